"""The results of an agent on several question sets: macro means by hand, and their tables."""

import math

import pytest

from faithful_search.measure.behaviour import ErrorCounts
from faithful_search.measure.evaluation import Evaluation
from faithful_search.measure.sets import SuiteResults, macro_mean, mean_at
from faithful_search.measure.stats import NOTHING, Estimate, mean_ci

HALF = Estimate(0.5, 0.4, 0.7, n=100, stderr=0.05)
NONE = Estimate(0.0, 0.0, 0.08, n=50, stderr=0.0)


def test_every_set_counts_alike():
    assert macro_mean({"nq": HALF, "popqa": NONE}).value == 0.25


def test_the_interval_of_a_macro_mean_by_hand():
    """Below: √(0.1² + 0²) / 2 = 0.05; above: √(0.2² + 0.08²) / 2 = 0.1077."""
    mean = macro_mean({"nq": HALF, "popqa": NONE})
    assert mean.low == pytest.approx(0.20)
    assert mean.high == pytest.approx(0.25 + math.sqrt(0.2**2 + 0.08**2) / 2)


def test_a_macro_mean_counts_the_questions_of_all_sets():
    assert macro_mean({"nq": HALF, "popqa": NONE}).n == 150


def test_a_set_without_the_result_is_not_in_the_macro_mean():
    mean = macro_mean({"nq": HALF, "popqa": NOTHING})
    assert mean.value == 0.5
    assert mean.sets == ["nq"]


def test_a_set_without_interval_leaves_the_macro_mean_without():
    mean = macro_mean({"nq": HALF, "popqa": mean_ci([0.3])})
    assert mean.value == 0.4
    assert mean.low is None


def test_no_value_anywhere_is_no_macro_mean():
    assert macro_mean({"nq": NOTHING}).value is None


@pytest.mark.parametrize(("samples", "name"), [(4, ", mean@4"), (1, "")])
def test_a_mean_over_rollouts_is_called_by_their_number(samples, name):
    assert mean_at(samples) == name


def evaluation(values, metric="exact_match", errors=None, failed=0, failed_because=""):
    questions = [str(number) for number in range(len(values))]
    return Evaluation(
        rows={metric: mean_ci(values)},
        questions=questions,
        values={metric: values},
        tool_calls={},
        errors=errors,
        failed=failed,
        failed_because=failed_because,
    )


RIGHT = evaluation([1.0, 1.0, 1.0, 0.0])
WRONG = evaluation([0.0, 0.0])


def test_the_table_has_a_row_for_each_set_and_their_mean():
    lines = str(SuiteResults({"nq": RIGHT, "popqa": WRONG}, samples=4)).splitlines()
    assert lines[0].split("  ")[0] == "answers, mean@4 [95% CI]"
    assert [line.split("  ")[0] for line in lines[2:5]] == ["nq", "popqa", "macro mean of 2"]
    assert lines[4].split()[4:6] == ["6", "0.375"]


def test_the_table_says_of_how_many_sets_a_mean_is():
    faithful = evaluation([1.0, 0.0], "citation_validity")
    runs = {"nq": RIGHT, "popqa": WRONG, "musique": faithful}
    macro_line = str(SuiteResults(runs)).splitlines()[5]
    assert macro_line.endswith("of 2")


def test_the_mean_of_a_single_set_is_not_called_one():
    assert "macro" not in str(SuiteResults({"nq": RIGHT}))


def test_sets_that_were_left_out_are_below_the_table():
    text = str(SuiteResults({"nq": RIGHT}, ["hle: it must be asked for"]))
    assert text.endswith("left out: hle: it must be asked for")


def test_episodes_that_failed_are_below_the_table():
    text = str(SuiteResults({"nq": evaluation([1.0], failed=3, failed_because="busy")}))
    assert text.endswith("nq: 3 episodes failed and count nowhere (busy)")


def test_errors_are_a_table_with_a_row_for_each_set():
    errors = ErrorCounts(judged_by="lm_accuracy", wrong_answer=3, limits=1, episodes=9)
    lines = str(SuiteResults({"nq": evaluation([1.0], errors=errors)})).splitlines()
    assert lines[-3].split("  ")[1] == "wrong answer (by lm_accuracy)"
    assert lines[-1].split("  ")[0] == "nq"


def test_what_is_written_can_be_read_again():
    results = SuiteResults({"nq": RIGHT}, samples=2)
    assert SuiteResults.from_dict(results.to_dict()) == results
