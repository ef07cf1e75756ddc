"""The study's intervals: over questions and over seeds."""

from __future__ import annotations

import pytest
import study

from faithful_search.measure.evaluation import Evaluation

QUESTIONS = [f"q{number}" for number in range(40)]


def run(values, calls=None):
    return Evaluation(
        rows={},
        questions=QUESTIONS,
        values={"exact_match": list(values)},
        tool_calls=calls or {"a": [1] * 40, "b": [1] * 40},
    )


HALF, ALL, NONE = run([0.0, 1.0] * 20), run([1.0] * 40), run([0.0] * 40)


def test_a_mean_over_seeds_and_questions():
    found = study.over_seeds([ALL, NONE], "exact_match")
    assert found.value == 0.5
    assert (found.low, found.high) == (0.0, 1.0)  # two seeds that differ this much say nothing
    alike = study.over_seeds([HALF, HALF], "exact_match")
    assert alike.value == 0.5 and 0.3 < alike.low < 0.5 < alike.high < 0.7


def test_a_difference_is_paired_by_question():
    """The same questions are drawn for both, so that a difference of the same size everywhere has no width."""
    better = run([min(1.0, value + 0.25) for value in [0.0, 0.5] * 20])
    found = study.over_seeds([better], "exact_match", [run([0.0, 0.5] * 20)])
    assert (found.value, found.low, found.high) == pytest.approx((0.25, 0.25, 0.25))
    assert study.over_seeds([HALF, HALF], "exact_match", [HALF]).value == 0.0


def test_rollouts_of_a_question_are_averaged_and_what_does_not_apply_is_left_out():
    values = [None if number % 2 else 1.0 for number in range(40)]
    assert study.over_seeds([run(values)], "exact_match").value == 1.0


def test_rows_that_are_no_means_are_computed_from_sums():
    even, lone = run([1.0] * 40), run([1.0] * 40, {"a": [2] * 40, "b": [0] * 40})
    assert study.over_seeds([even], "tool_entropy").value == pytest.approx(1.0)
    assert study.over_seeds([lone], "tool_entropy", [even]).value == pytest.approx(-1.0)


def test_every_setting_has_its_configuration():
    for named in study.STUDIES.values():
        for setting in named.settings.values():
            assert (study.CONFIGS / setting.config).exists() and (study.RECIPES / setting.recipe).exists()
