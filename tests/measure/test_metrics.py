"""The metrics by name: what they consist of, what their results are called, and that they all compute."""

import random

import pytest
from msgspec.structs import replace
from paths import SHARED

from faithful_search.dialects import load as dialect
from faithful_search.errors import ConfigError
from faithful_search.judges import GroundingJudge, LexicalJudge, Verdict
from faithful_search.measure import metrics
from faithful_search.rewards import ToolUse
from faithful_search.tasks import read_rows

ROLLOUTS = SHARED / "data/trajectories/r1_searcher_hotpotqa_qwen.jsonl.gz"


class Reader:
    """A judge that is not lexical."""

    name = "reader"

    def judge_batch(self, pairs):
        return [Verdict(1.0, True, "", self.name) for _ in pairs]


NAMED = {  # without a judge, and with one that reads
    "answer_correctness": (["exact_match_squad", "f1_squad", "sub_em_squad"], ["answer_correctness"]),
    "answer_support": (["answer_support_lexical"], ["answer_support"]),
    "citation_validity": (["citation_validity"], ["citation_validity"]),
    "evidence_sensitivity": (["evidence_sensitivity"], ["evidence_sensitivity"]),
    "info_think_faithfulness": (["info_think_lexical"], ["info_think_faithfulness"]),
    "protocol_format": (["protocol_format"], ["protocol_format"]),
    "query_provenance": ([f"query_from_{of}_lexical" for of in ("question", "evidence", "thought")],) * 2,
    "think_answer_faithfulness": (["think_answer_sub_em"], ["think_answer_faithfulness"]),
    "think_search_faithfulness": (["think_search_lexical"], ["think_search_faithfulness"]),
    "tool_use": (["repeated_calls", "unused_evidence_lexical", "uncited_evidence"],) * 2,
}


def test_results_are_named_for_what_made_them():
    assert metrics.names() == list(NAMED)
    for name, (without, judged) in NAMED.items():
        assert list(metrics.load(name)) == without
        assert list(metrics.load(name, GroundingJudge())) == list(metrics.load(name, LexicalJudge())) == without
        # strings are still compared beside such a judge
        strings = without if name in ("answer_correctness", "think_answer_faithfulness") else []
        assert list(metrics.load(name, Reader())) == [*strings, *judged]


def test_judge_normaliser_and_knobs_go_to_the_rewards_that_have_them():
    assert list(metrics.load("answer_correctness", how="pokee")) == ["exact_match_pokee", "f1_pokee", "sub_em_pokee"]
    strict, reader = GroundingJudge(threshold=0.9), Reader()
    assert metrics.load("info_think_faithfulness", strict)["info_think_lexical"].judge == strict
    assert metrics.load("answer_support")["answer_support_lexical"].judge == GroundingJudge()
    assert metrics.load("answer_correctness", reader)["answer_correctness"].judge is reader
    assert metrics.load("tool_use", words=5)["unused_evidence_lexical"] == ToolUse("unused", 5)
    for name, knobs, message in (
        ("info_think_faithfulness", {"sofft": True}, "no knob sofft; it has: soft"),
        ("tool_use", {"what": "unused"}, "no knob what"),  # what tells its results apart
        ("faith", {}, "unknown metric 'faith'; there are: answer_correctness"),
    ):
        with pytest.raises(ConfigError, match=message):
            metrics.load(name, **knobs)


@pytest.mark.skipif(not ROLLOUTS.exists(), reason="the rollouts are not here")
def test_on_real_rollouts_every_metric_computes_and_evidence_that_was_swapped_is_noticed():
    rows = [row for row, _ in zip(read_rows(ROLLOUTS), range(30), strict=False)]
    read = [dialect("r1_searcher").parse(row["gen_text_store"], question=row["question"]) for row in rows]
    real = [replace(item, answers=(row["answer"],)) for item, row in zip(read, rows, strict=True)]
    pool = [step.evidence for item in real for step in item.steps if step.evidence]
    draw = random.Random(0)
    swapped = [
        replace(item, steps=tuple(replace(s, evidence=draw.choice(pool)) if s.evidence else s for s in item.steps))
        for item in real
    ]
    means = {}
    for name in set(metrics.names()) - {"evidence_sensitivity"}:
        for result, reward in metrics.load(name).items():
            for kind, batch in (("real", real), ("swapped", swapped)):
                values = [value for value in map(reward.measure, reward.score_batch(batch)) if value is not None]
                if result in ("citation_validity", "uncited_evidence"):  # this dialect has no verdicts
                    assert values == []
                    continue
                assert len(values) >= 22 and all(0 <= value <= 1 for value in values), result
                means[result, kind] = sum(values) / len(values)
    assert means["info_think_lexical", "real"] > 0.6 and means["info_think_lexical", "swapped"] < 0.1
    assert means["answer_support_lexical", "real"] > means["answer_support_lexical", "swapped"] + 0.3
    assert means["unused_evidence_lexical", "real"] < means["unused_evidence_lexical", "swapped"] - 0.3
    assert means["think_answer_sub_em", "real"] == means["think_answer_sub_em", "swapped"]
