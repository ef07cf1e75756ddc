"""The metrics by name: what they consist of, what their results are called, and that they all compute."""

import random

import pytest
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


def test_the_judge_and_the_normaliser_reach_the_rewards():
    assert list(metrics.load("answer_correctness", how="pokee")) == ["exact_match_pokee", "f1_pokee", "sub_em_pokee"]
    strict = GroundingJudge(threshold=0.9)
    assert metrics.load("info_think_faithfulness", strict)["info_think_lexical"].judge == strict
    assert metrics.load("answer_support")["answer_support_lexical"].judge == GroundingJudge()
    reader = Reader()
    assert metrics.load("answer_correctness", reader)["answer_correctness"].judge is reader


def test_knobs_go_to_the_rewards_that_have_them():
    found = metrics.load("tool_use", words=5)
    assert found == {
        "repeated_calls": ToolUse("repeated", 5),
        "unused_evidence_lexical": ToolUse("unused", 5),
        "uncited_evidence": ToolUse("uncited", 5),
    }
    assert metrics.load("info_think_faithfulness", soft=True)["info_think_lexical"].soft
    assert metrics.load("evidence_sensitivity", budget=2)["evidence_sensitivity"].budget == 2
    with pytest.raises(ConfigError, match="no knob sofft; it has: soft"):
        metrics.load("info_think_faithfulness", sofft=True)
    with pytest.raises(ConfigError, match="no knob what"):
        metrics.load("tool_use", what="unused")
    with pytest.raises(ConfigError, match="unknown metric 'faith'; there are: answer_correctness"):
        metrics.load("faith")


@pytest.mark.skipif(not ROLLOUTS.exists(), reason="the rollouts are not here")
def test_on_real_rollouts_every_metric_computes_and_evidence_that_was_swapped_is_noticed():
    from msgspec.structs import replace

    rows = [row for row, _ in zip(read_rows(ROLLOUTS), range(60), strict=False)]
    read = [dialect("r1_searcher").parse(row["gen_text_store"], question=row["question"]) for row in rows]
    real = [replace(item, answers=(row["answer"],)) for item, row in zip(read, rows, strict=True)]
    pool = [step.evidence for item in real for step in item.steps if step.evidence]
    draw = random.Random(0)
    swapped = [
        replace(item, steps=tuple(replace(s, evidence=draw.choice(pool)) if s.evidence else s for s in item.steps))
        for item in real
    ]
    means = {}
    for name in set(metrics.names()) - {"evidence_sensitivity", "citation_validity"}:
        for result, reward in metrics.load(name).items():
            if result == "uncited_evidence":  # this dialect has no verdicts
                continue
            for kind, batch in (("real", real), ("swapped", swapped)):
                values = [value for value in map(reward.measure, reward.score_batch(batch)) if value is not None]
                assert len(values) >= 45 and all(0 <= value <= 1 for value in values), result
                means[result, kind] = sum(values) / len(values)
    assert means["info_think_lexical", "real"] > 0.6 and means["info_think_lexical", "swapped"] < 0.1
    assert means["answer_support_lexical", "real"] > means["answer_support_lexical", "swapped"] + 0.3
    assert means["unused_evidence_lexical", "real"] < means["unused_evidence_lexical", "swapped"] - 0.3
    assert means["think_answer_sub_em", "real"] == means["think_answer_sub_em", "swapped"]
    values = [reward.score_batch(real) for reward in metrics.load("citation_validity").values()]
    assert all(score.value is None for score in values[0])  # this dialect has no verdicts
