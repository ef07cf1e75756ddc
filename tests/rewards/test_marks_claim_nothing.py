"""Citation marks are taken out before a reward compares or asks."""

import pytest
from agent_rows import CountingJudge

from faithful_search.judges import GroundingJudge
from faithful_search.rewards import (
    AnswerSupport,
    Correctness,
    InfoThink,
    SourceGated,
    ThinkAnswer,
)
from faithful_search.trajectory import Evidence, Step, ToolCall, Trajectory

ADA = Evidence("Ada Mirov was born in Veldt.", "Ada Mirov", "E1", url="https://ex.org/ada")
VELDT = Evidence("Veldt lies on the Sule.", "Veldt", "E2", url="https://ex.org/veldt")
MARKS = [
    "",
    "[1]",
    "¹",
    "[^1]",
    "【1†L1】",
    " ([ex.org](https://ex.org/ada))",
    " https://ex.org/ada",
    " [ref:E1]",
    "\ue200cite\ue202turn0search0\ue201",
]


def answered(answer: str, think: str = "So it is.") -> Trajectory:
    search = Step(think="I search.", call=ToolCall("search"), evidence=(ADA, VELDT))
    return Trajectory(
        (search, Step(think=think, answer=answer)),
        question="Where was she born?",
        answer=answer,
        answers=("Veldt",),
        dialect="openai",
    )


@pytest.mark.parametrize("mark", MARKS)
def test_a_cited_sentence_is_supported(mark):
    found = answered(f"Ada Mirov was born in Veldt{mark}. Veldt lies on the Sule{mark}.")
    assert AnswerSupport(GroundingJudge()).score(found).value == 1.0


@pytest.mark.parametrize("mark", MARKS)
def test_a_cited_answer_is_the_gold_answer(mark):
    assert Correctness().score(answered(f"Veldt{mark}")).value == 1.0


@pytest.mark.parametrize("mark", MARKS)
def test_a_cited_answer_stands_in_the_thought(mark):
    assert ThinkAnswer().score(answered(f"Veldt{mark}", "So Veldt.")).value == 1.0


@pytest.mark.parametrize("mark", MARKS)
def test_an_answer_stands_in_a_thought_that_cites(mark):
    found = answered(f"Veldt{mark} in Oran", f"So Veldt{mark} in Oran.")
    assert ThinkAnswer().score(found).value == 1.0


@pytest.mark.parametrize("mark", MARKS)
def test_a_thought_that_cites_is_grounded(mark):
    found = answered("Veldt", f"Ada Mirov was born in Veldt{mark}.")
    assert InfoThink(GroundingJudge()).score(found).value == 1.0


@pytest.mark.parametrize("mark", MARKS)
def test_a_cited_answer_counts_where_evidence_is_asked_for(mark):
    assert SourceGated().score(answered(f"Veldt{mark}")).value == 1.0


@pytest.mark.parametrize(
    ("reward", "hypothesis"),
    [
        (AnswerSupport, "In Veldt."),
        (InfoThink, "So in Veldt."),
        (lambda judge: Correctness("judge", judge=judge), "In Veldt."),
        (ThinkAnswer, "In Veldt."),
    ],
)
def test_no_judge_reads_a_mark(reward, hypothesis):
    judge = CountingJudge()
    reward(judge).score(answered("In Veldt[1].", "So in Veldt [1]."))
    assert [pair.hypothesis for pair in judge.asked] == [hypothesis]


def test_a_list_of_sources_is_no_claim():
    found = answered("Ada Mirov was born in Veldt [1].\n\nSources:\n[1] https://ex.org/ada")
    assert AnswerSupport(GroundingJudge()).score(found).parts["claims"] == 1


def test_what_is_left_of_marks_is_no_claim():
    found = answered("Ada Mirov was born in Veldt. [1]. (https://ex.org/ada).")
    assert AnswerSupport(GroundingJudge()).score(found).parts["claims"] == 1
