"""What a training changed, in plain sentences: above the table at its end."""

import pytest

from faithful_search.analysis.results import next_steps
from faithful_search.measure.evaluation import Evaluation, Record
from faithful_search.measure.metrics import asks
from faithful_search.measure.report import changes
from faithful_search.measure.stats import mean_ci
from faithful_search.trajectory import Trajectory

QUESTIONS = [f"q{number}" for number in range(20)]
NAMES = ("exact_match", "follow_rate", "answer_first", "calls")


def run(**shares: float) -> Evaluation:
    """An evaluation in which so large a share of the questions has the value 1, the others 0."""
    values = {
        name: [float(place < share * len(QUESTIONS)) for place in range(len(QUESTIONS))]
        for name, share in shares.items()
    }
    rows = {name: mean_ci(column) for name, column in values.items()}
    asked = [Trajectory(id=name, question="Where's Bern?") for name in QUESTIONS]
    return Evaluation(rows, QUESTIONS, values, {}, trajectories=asked)


BEFORE = run(exact_match=0.2, follow_rate=0.1, answer_first=0.9, calls=0.1)
AFTER = run(exact_match=0.8, follow_rate=0.6, answer_first=0.2, calls=1.0)


def test_the_sentences_by_hand():
    right, better, worse, sure = changes(BEFORE, AFTER)
    assert right.startswith("Right: the answer is a gold answer in 20% before and 80% after (")
    assert better.startswith(
        "Better: most of all, the answer is not stated before its evidence in 10% before and 80% "
        "after (paired difference of answer_first -0.700 ["
    )
    assert worse == "Worse: nothing else is clearly worse."
    assert sure == (
        "How sure: 20 questions and one run; 4 of 4 differences are clear "
        "(had nothing changed, about 0 would be)."
    )


def test_what_became_worse_is_named():
    worse = changes(AFTER, BEFORE)[2]
    assert worse.startswith(
        "Worse: most of all, the answer is not stated before its evidence in 80%"
    )


def test_a_change_that_is_no_share_is_named_with_its_question():
    before, after = run(evidence_sensitivity=0.2), run(evidence_sensitivity=0.8)
    better, worse, _ = changes(before, after)
    assert better.startswith("Better: evidence_sensitivity by +0.600 [")
    assert better.endswith(f": {asks('evidence_sensitivity')}")
    assert worse == "Worse: nothing else is clearly worse."


@pytest.mark.parametrize("place", [1, 2])
def test_nothing_changed_is_said(place):
    assert "nothing else is clearly" in changes(BEFORE, BEFORE)[place]


def test_a_row_of_one_side_is_left_out():
    lonely = run(exact_match=0.5)
    assert changes(lonely, AFTER)[-1].startswith("How sure: 20 questions and one run; 1 of 1 ")


def test_of_a_few_questions_chance_makes_no_difference_clear():
    names = [f"row{number}" for number in range(20)]
    few = Evaluation(
        {name: mean_ci([1.0, 0.0]) for name in names},
        QUESTIONS[:2],
        {name: [1.0, 0.0] for name in names},
        {},
    )
    sure = changes(few, few)[-1]
    assert "0 of 20 differences are clear (had nothing changed, about 0 would be)" in sure


def test_without_gold_answers_no_sentence_speaks_of_them():
    found = changes(run(calls=0.5), run(calls=0.5))
    assert [line.partition(":")[0] for line in found] == ["Better", "Worse", "How sure"]


def record(before: Evaluation | None, after: Evaluation | None) -> Record:
    return Record(
        folder="outputs/my run",
        model="tiny",
        dialect="pou",
        tools=[],
        questions="world",
        settings={},
        steps=1,
        history=[],
        before=before,
        after=after,
    )


def test_what_to_try_next_can_be_copied_into_a_shell():
    ask, compare, audit = next_steps(record(BEFORE, AFTER))
    assert ask == """faithful-search ask 'Where'"'"'s Bern?' --model 'outputs/my run'"""
    assert compare == "faithful-search compare 'outputs/my run#before' 'outputs/my run#after'"
    assert audit == "faithful-search audit 'outputs/my run/trajectories.jsonl'"


def test_without_an_evaluation_nothing_is_compared():
    assert not any("compare" in line for line in next_steps(record(None, None)))
