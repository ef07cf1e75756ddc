"""The two judges that only compare words, and the flags that name a judge."""

import re
import sys
import time
from functools import partial

import pytest
from hypothesis import given, strategies as st
from imports import import_again
from paths import SHARED

from faithful_search.errors import ConfigError
from faithful_search.judges import ContainmentJudge, GroundingJudge, Judge, Pair, load
from faithful_search.judges.arguments import JudgeArguments
from faithful_search.judges.endpoint import EndpointJudge
from faithful_search.judges.remote import RemoteJudge
from faithful_search.measure.agreement import labelled

LABELS = SHARED / "data/faithfulness/attributionbench_dev.jsonl.gz"


@pytest.mark.parametrize(
    ("premise", "hypothesis", "supported"),
    [
        ("It stands in The Hague.", "the Hague!", True),
        ("A Parisian café.", "Paris", False),
        ("anything", "", False),
        ("the, a, an", "the", False),  # nothing is left of it
        ("yes, they are", "yes", False),
        ("He moved to New\n\nYork is a city", "New York", False),  # not across documents
        ("He moved to New\nYork", "New York", True),
    ],
)
def test_containment_on_word_boundaries(premise, hypothesis, supported):
    [verdict, no] = ContainmentJudge().judge_batch([Pair(premise, hypothesis), Pair("x", "y")])
    assert (verdict.p, verdict.label) == (float(supported), supported)
    assert verdict.judge == "containment"
    assert no.label is False
    assert isinstance(ContainmentJudge(), Judge)
    assert ContainmentJudge().lexical


# ---- grounding: how many of the words stand in the premise


def ground(premise: str, hypothesis: str, task="support", question="", **knobs):
    return GroundingJudge(**knobs).judge_batch([Pair(premise, hypothesis, question, task)])[0]


def test_names_and_numbers_count_double_and_are_named_first():
    found = ground("A mill stands in Lund.", "An old mill of 1789 stands near Ystad.")
    assert found.p == pytest.approx(
        2 / 8
    )  # mill and stands, of these and old, near, 1789 and Ystad
    assert found.why == "not in the premise: '1789', 'Ystad', 'old'"
    assert not found.label
    assert found.judge == "lexical"


@pytest.mark.parametrize(
    ("premise", "hypothesis", "p"),
    [
        ("She painted mills.", "a painter of the mill", 1.0),  # beginnings, plural
        ("It cost 1,200 crowns.", "cost: 1200 crowns", 1.0),
        ("It has 1 200 300 people.", "It has 1,200,300 people.", 1.0),
        ("It has 1200300 people.", "It has 1 200 300 people.", 1.0),
        ("It weighs 5 kg.", "It weighs 5kg.", 1.0),
        ("It weighs 5kg.", "It weighs 5 kg.", 1.0),
        ("It weighs 15kg.", "It weighs 5 kg.", 1 / 2),
        ("Ševčík played.", "It was Sevcik", 1.0),
        ("Fran\u0063\u0327ois came", "it was Fran\u00e7ois", 1.0),  # composed or not
        ("It stands in Can\u00adber\u00adra.", "It was in Canberra", 1.0),  # soft hyphens of a page
        ("They went to Berliner Strasse.", "It was in Berlin", 0.0),  # names as they are
        ("In 19845", "in 1984", 0.0),
        ("Ida's mill", "the mill of Ida", 1.0),
        ("anything", "", 0.0),
        ("the mill", "Based on the search results, I need to find the mill.", 1.0),
        ("the mill", "mill mill mill barn", 0.5),  # each word once
        ("東京の塔は1958年に完成した。", "塔は1958年に完成", 1.0),  # pairs of characters
        ("東京の塔は1958年に完成した。", "大阪城は1583年", 1 / 6),
        ("หอคอยปารีส", "หอคอย", 1.0),
    ],
)
def test_grounding_by_hand(premise, hypothesis, p):
    assert ground(premise, hypothesis).p == pytest.approx(p)


def test_words_of_the_question_do_not_ground_a_thought():
    premise, question = (
        "The keeper of the old mill was Ada Horn.",
        "Who was the keeper of the old mill?",
    )
    restated = ground(premise, "I need to find the keeper of the old mill.", "info_think", question)
    assert (restated.p, restated.label, restated.why) == (
        0.0,
        False,
        "it claims nothing of its own",
    )
    assert ground(premise, "The keeper was Ada Horn.", "info_think", question).p == 1.0
    assert ground(premise, "The keeper was Ada Falk.", "support", question).p == pytest.approx(
        2.5 / 4.5
    )
    assert ground(premise, "keeper mill", "think_search", question).p == 1.0


def test_the_threshold_goes_by_the_task_unless_one_is_given():
    premise, hypothesis = "mill barn", "mill barn house"
    assert ground(premise, hypothesis, "info_think").label
    assert ground(premise, hypothesis, "think_search").label
    assert not ground(premise, hypothesis, "support").label
    assert ground(premise, hypothesis, "support", threshold=0.6).label
    assert load("lexical", threshold=0.4) == GroundingJudge(0.4)
    assert GroundingJudge().lexical


@given(
    st.text(max_size=80),
    st.text(max_size=60),
    st.text(max_size=20),
    st.sampled_from(["support", "info_think"]),
)
def test_any_text_has_a_share_and_a_text_grounds_itself(premise, hypothesis, question, task):
    verdict = ground(premise, hypothesis, task, question)
    assert 0 <= verdict.p <= 1
    assert verdict.label is not None
    own = ground(f"{premise}\n{hypothesis}", hypothesis, task, question)
    assert own.p in (0.0, pytest.approx(1.0))
    assert own.p >= verdict.p - 1e-9
    assert (own.p == 0) <= (own.why == "it claims nothing of its own")


def test_millions_of_characters_are_read_in_linear_time():
    start = time.perf_counter()
    ground(
        "The mill of Lund. " * 100_000,
        "It was the mill. " * 1000 + "x" * 100_000 + " \u6771" * 10_000,
    )
    assert time.perf_counter() - start < 5


@pytest.mark.skipif(not LABELS.exists(), reason="the labelled data is not here")
def test_on_human_labels_the_share_of_words_says_something():
    rows = labelled.load(LABELS, "train")
    verdicts = GroundingJudge().judge_batch(
        [Pair(row.premise, row.hypothesis, row.question) for row in rows]
    )
    judged = [
        (verdict.label is row.label, row.label) for verdict, row in zip(verdicts, rows, strict=True)
    ]
    right = [[own for own, label in judged if label is side] for side in (False, True)]
    assert sum(sum(side) / len(side) for side in right) / 2 > 0.63  # chance is 0.5


@pytest.mark.parametrize("kind", ["nli", "generator", "embedding"])
def test_a_judge_that_runs_a_model_says_what_it_needs(kind, monkeypatch):
    import_again(monkeypatch, "faithful_search.judges.", "faithful_search.inference")
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(
        ConfigError, match=rf"the judge '{kind}' runs a model here and needs torch: pip install"
    ):
        load(kind, "some/model")


# ---- flags

URL = "http://127.0.0.1:9/v1"


def test_flags_reach_the_judge_or_leave_its_defaults():
    assert JudgeArguments().load_judge() is None  # each reward has its own comparison of words
    assert JudgeArguments("lexical").load_judge() == GroundingJudge()
    assert JudgeArguments("containment").load_judge() == ContainmentJudge()
    endpoint = partial(JudgeArguments, "endpoint", "served", URL)
    assert endpoint().load_judge() == EndpointJudge("served", URL)
    limits = {"judge_concurrency": 3, "judge_timeout": 7.0}
    judge = endpoint(
        judge_cache="judge.sqlite", judge_max_tokens=900, judge_prices="0.15, 0.6", **limits
    ).load_judge()
    told = {"cache": "judge.sqlite", "prices": (0.15, 0.6), "max_tokens": 900}
    assert judge == EndpointJudge("served", URL, concurrency=3, timeout=7.0, **told)
    assert endpoint(judge_cache="none").load_judge().cache is None
    remote = JudgeArguments("remote", judge_url="http://host:1", **limits).load_judge()
    assert remote == RemoteJudge("http://host:1", timeout=7.0, concurrency=3)


@pytest.mark.parametrize(
    ("judge", "model", "url", "more", "said"),
    [
        ("oracle", None, None, {}, "unknown judge 'oracle'; there are: containment, counted"),
        ("nli", "some/model", URL, {}, "goes with the judge 'endpoint' or 'remote', not 'nli'"),
        (
            "nli",
            None,
            None,
            {},
            "'nli' needs a model: name its directory or Hub id with --judge_model",
        ),
        ("endpoint", None, URL, {}, "needs a model: name what its server calls it with"),
        ("endpoint", "served", URL, {"judge_prices": "1"}, "prices '1' are two numbers"),
        ("remote", None, None, {}, "needs the URL of `faithful-search serve-judge`"),
        ("remote", None, "127.0.0.1:1", {}, "must look like http://127.0.0.1:8001"),
        ("remote", None, "http://me:secret@host", {}, "without a user or password"),
        ("remote", None, "http://host?x=1", {}, "without a query"),
        ("remote", None, "http://host", {"judge_timeout": 0.0}, "must be positive"),
    ],
)
def test_flags_that_cannot_work_are_refused(judge, model, url, more, said):
    with pytest.raises(ConfigError, match=re.escape(said)) as refusal:
        JudgeArguments(judge, model, url, **more).load_judge()
    assert "secret" not in str(refusal.value)
