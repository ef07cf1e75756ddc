"""Means over training seeds: intervals by hand, and how often they hold the truth."""

import math

import interval_coverage as simulated
import msgspec
import numpy as np
import pytest

from faithful_search.errors import DataError
from faithful_search.measure.evaluation import Evaluation, difference
from faithful_search.measure.seeds import (
    Crossed,
    change_over_seeds,
    crossed,
    difference_of_tables,
    difference_over_seeds,
    macro_over_seeds,
    mean_of_sets,
    over_seeds,
)
from faithful_search.measure.sets import macro_mean
from faithful_search.measure.stats import difference_ci, mean_ci, t_quantile, t_within

QUESTIONS = [f"q{number}" for number in range(40)]


def run(values, calls=None):
    calls = calls or {"a": [1] * len(values), "b": [1] * len(values)}
    return Evaluation({}, QUESTIONS[: len(values)], {"em": list(values)}, calls)


ALL, NONE, HALF = run([1.0] * 40), run([0.0] * 40), run([0.0, 1.0] * 20)


def test_one_run_has_the_interval_of_its_questions():
    estimate = over_seeds([HALF], "em")
    of_questions = mean_ci(HALF.values["em"])
    assert [estimate.low, estimate.high] == pytest.approx([of_questions.low, of_questions.high])


def test_runs_that_agree_have_the_interval_of_their_questions():
    """The same answers in every run: three runs know no more than one."""
    estimate = over_seeds([HALF] * 3, "em")
    of_questions = mean_ci(HALF.values["em"])
    assert [estimate.low, estimate.high] == pytest.approx([of_questions.low, of_questions.high])


def test_three_runs_that_differ_have_students_interval():
    """0.1, 0.2 and 0.6 on all questions alike: s = 0.2646, t = 4.303, so 0.3 ± 0.657."""
    runs = [run([value] * 40) for value in (0.1, 0.2, 0.6)]
    estimate = over_seeds(runs, "em")
    half = 4.303 * 0.26458 / math.sqrt(3)
    assert [estimate.low, estimate.high] == pytest.approx([0.3 - half, 0.3 + half], abs=1e-3)


@pytest.mark.parametrize("started", [0.1, 0.2, 0.3, 0.6, 0.7])
def test_no_rounding_decides_whether_seeds_add_anything(started):
    """One run has one answer more, which is as far apart as chance within the runs lets them be."""
    starts = [run([1.0] * 5), run([1.0] * 4 + [0.0])]
    estimate = change_over_seeds(starts, [run([started] * 5)] * 2, "em")
    changes = np.array([started - 1] * 4 + [started - 0.5])
    of_questions = difference_ci(changes)
    assert [estimate.low, estimate.high] == pytest.approx([of_questions.low, of_questions.high])


def test_questions_alike_but_for_rounding_count_as_alike():
    alike = np.full((3, 4), 1 / 3)
    nearly = alike + np.array([0.0, 1e-16, 0.0, 1e-16])
    exact, rounded = [mean_of_sets([Crossed(x, 4, True, (0.0, 1.0))]) for x in (alike, nearly)]
    assert [rounded.low, rounded.high] == pytest.approx([exact.low, exact.high])


def test_runs_apart_by_rounding_alone_add_nothing():
    changes = np.array([[1.0, -1.0], [1.0, -1.0], [1.0 + 1e-14, -1.0 + 1e-14]])
    before, after = [Crossed(x, 2, False) for x in (np.zeros((3, 2)), changes)]
    estimate = difference_of_tables(before, after)
    of_questions = difference_ci([1.0, -1.0])
    assert [estimate.low, estimate.high] == pytest.approx([of_questions.low, of_questions.high])


def test_an_interval_of_shares_ends_at_0_and_1():
    estimate = over_seeds([ALL, NONE], "em")
    assert (estimate.value, estimate.low, estimate.high) == (0.5, 0.0, 1.0)


def test_a_value_that_is_not_there_is_left_out():
    estimate = over_seeds([run([None, 1.0] * 20)] * 2, "em")
    assert (estimate.value, estimate.n) == (1.0, 20)


def test_a_run_without_a_value_leaves_no_mean():
    assert over_seeds([ALL, run([None] * 40)], "em").value is None


@pytest.mark.parametrize("metric", ["em", "tool_entropy", "verdict_gap"])
def test_a_run_without_questions_has_no_mean(metric):
    assert over_seeds([run([]), run([])], metric).value is None


def test_what_is_pooled_is_computed_for_each_run_from_its_sums():
    lone = run([1.0] * 40, {"a": [2] * 40, "b": [0] * 40})
    assert over_seeds([lone, ALL], "tool_entropy").value == pytest.approx(0.5)
    assert difference_over_seeds([ALL], [lone], "tool_entropy").value == pytest.approx(-1.0)


THREE_TOOLS = run([1.0] * 40, {tool: [1] * 40 for tool in "abc"})


@pytest.mark.parametrize("difference", [difference_over_seeds, change_over_seeds])
def test_entropies_over_other_tools_have_no_difference(difference):
    assert difference([ALL], [THREE_TOOLS], "tool_entropy").value is None


@pytest.mark.parametrize("runs_by_set", [[[ALL, THREE_TOOLS]], [[ALL], [THREE_TOOLS]]])
def test_entropies_over_other_tools_have_no_mean(runs_by_set):
    assert macro_over_seeds(runs_by_set, "tool_entropy").value is None


def test_a_difference_is_paired_by_question():
    before, after = [0.0, 0.5] * 20, [0.25, 0.75] * 20
    change = difference_over_seeds([run(before)], [run(after)], "em")
    assert (change.value, change.low, change.high) == pytest.approx((0.25, 0.25, 0.25))


def test_a_cold_start_of_one_run_adds_nothing_for_its_seed():
    runs = [run([value] * 40) for value in (0.1, 0.2, 0.6)]
    mean = over_seeds(runs, "em")
    change = difference_over_seeds([run([0.05] * 40)], runs, "em")
    assert change.high - change.low == pytest.approx(mean.high - mean.low)


def test_starts_that_differ_but_gain_alike_have_a_narrow_change():
    """Each run turns the same four wrong answers right, from starts of 0.2 and of 0.6."""
    starts = [run([1.0] * right + [0.0] * (40 - right)) for right in (8, 24)]
    trained = [run([1.0] * right + [0.0] * (36 - right) + [1.0] * 4) for right in (8, 24)]
    change = change_over_seeds(starts, trained, "em")
    by_hand = difference_ci([0.0] * 36 + [1.0] * 4, smallest=1 / 2)
    assert [change.value, change.low] == pytest.approx([by_hand.value, by_hand.low])


SAME = run([1.0] * 40, {"a": [2] * 40, "b": [0] * 40})


@pytest.mark.parametrize(
    ("before", "after", "metric"),
    [(NONE, NONE, "em"), (NONE, ALL, "em"), (HALF, HALF, "em"), (SAME, SAME, "tool_entropy")],
)
def test_a_change_that_is_the_same_everywhere_has_the_width_of_a_difference(before, after, metric):
    change = change_over_seeds([before] * 3, [after] * 3, metric)
    assert change == difference_over_seeds([before] * 3, [after] * 3, metric)
    assert change.low < change.high


@pytest.mark.parametrize("runs", [1, 3])
def test_an_interval_ends_at_the_bounds_where_seeds_add_nothing(runs):
    """Of 12 questions 9 take one tool: a high entropy, of few questions."""
    uneven = run([1.0] * 12, {"a": [2] * 9 + [0] * 3, "b": [0] * 9 + [2] * 3})
    assert over_seeds([uneven] * runs, "tool_entropy").high == 1.0
    one_tool = run([1.0] * 12, {"a": [2] * 12, "b": [0] * 12})
    assert difference_over_seeds([uneven], [one_tool] * runs, "tool_entropy").low == -1.0


def test_intervals_over_seeds_end_at_the_bounds_of_the_result():
    half = run([1.0] * 40, {"a": [2] * 20 + [0] * 20, "b": [0] * 20 + [2] * 20})
    mean = over_seeds([SAME, half], "tool_entropy")
    assert (mean.low, mean.high) == (0.0, 1.0)
    change = change_over_seeds([SAME, SAME], [half, SAME], "tool_entropy")
    assert (change.low, change.high) == (-1.0, 1.0)
    of_shares = change_over_seeds([NONE, NONE], [ALL, HALF], "em")
    assert (of_shares.low, of_shares.high) == (-1.0, 1.0)


def apart(first, second, bounds):
    """Two runs with these values of all questions, of a metric that has these bounds."""
    runs = [run([value] * 40) for value in (first, second)]
    return [msgspec.structs.replace(one, bounds={"em": bounds}) for one in runs]


@pytest.mark.parametrize("bounds", [(0.0, 1.0), (-1.0, 2.0)])
def test_an_interval_of_fractions_ends_at_the_bounds_of_the_metric(bounds):
    estimate = over_seeds(apart(0.1, 0.7, bounds), "em")
    assert (estimate.low, estimate.high) == bounds


@pytest.mark.parametrize("bounds", [{"em": (-1.0, 2.0)}, {"other": (0.0, 1.0)}])
def test_zeros_and_ones_of_a_count_are_no_shares(bounds):
    """Nothing in a run whose rollouts make a call at most says that one makes no more."""
    counts = [msgspec.structs.replace(one, bounds=bounds) for one in (ALL, HALF)]
    table = crossed(counts, "em")
    assert not table.shares
    assert over_seeds(counts, "em").high > 1.0


@pytest.mark.parametrize("bounds", [{}, {"em": (0.0, 1.0)}])
def test_zeros_and_ones_are_shares_where_the_metric_may_be_one(bounds):
    """Older evaluations do not say it."""
    runs = [msgspec.structs.replace(one, bounds=bounds) for one in (ALL, HALF)]
    assert crossed(runs, "em").shares


def test_a_difference_of_fractions_ends_where_all_has_changed():
    runs = apart(0.1, 0.7, (0.0, 1.0))
    estimate = difference_over_seeds(runs, runs[::-1], "em")
    assert (estimate.low, estimate.high) == (-1.0, 1.0)


def test_a_paired_difference_ends_where_all_has_changed():
    """Changes of 0 and 0.9: 0.45 ± 5.7."""
    first, second = (
        Evaluation({}, ["q1", "q2"], {"em": values}, {}, bounds={"em": (0.0, 1.0)})
        for values in ([0.1, 0.05], [0.1, 0.95])
    )
    change = difference(first, second, "em")
    assert (change.low, change.high) == (-1.0, 1.0)


def test_runs_without_their_starts_are_refused():
    with pytest.raises(DataError, match="1 runs before and 2 after cannot be paired"):
        change_over_seeds([HALF], [HALF, ALL], "em")


def test_the_macro_mean_of_a_run_is_that_of_its_sets():
    sets = {"first": HALF, "second": run([1.0, 1.0, 0.0] * 10)}
    by_hand = macro_mean({name: mean_ci(of_set.values["em"]) for name, of_set in sets.items()})
    estimate = macro_over_seeds([[of_set] for of_set in sets.values()], "em")
    assert [estimate.value, estimate.low, estimate.high] == pytest.approx(
        [by_hand.value, by_hand.low, by_hand.high]
    )


@pytest.mark.parametrize("runs", [[], [[HALF], [HALF, ALL]]])
def test_sets_of_different_runs_are_refused(runs):
    with pytest.raises(DataError, match="different numbers of runs"):
        macro_over_seeds(runs, "em")


def test_made_up_pairs_widen_a_difference_of_shares():
    """Nothing differs on 58 questions; with two made-up ones s² = 2/60, so ± 2.002·√(2/60/60)."""
    change = difference_ci([0.0] * 58)
    assert change.high == pytest.approx(2.0025 * math.sqrt(2 / 60 / 60), rel=1e-3)
    assert change.low == -change.high


@pytest.mark.parametrize(
    ("freedom", "t"), [(1, 12.7062), (2, 4.3027), (3, 3.1824), (30, 2.0423), (600, 1.9639)]
)
def test_students_quantile_is_that_of_tables(freedom, t):
    assert t_quantile(0.975, freedom) == pytest.approx(t, abs=1e-4)
    assert t_within(t, freedom) == pytest.approx(0.95, abs=1e-5)


def test_the_quantile_takes_a_fraction_of_a_degree():
    assert t_quantile(0.975, 3) < t_quantile(0.975, 2.5) < t_quantile(0.975, 2)


# --- coverage: a part of docs/statistics.md, at fixed seeds

DIFFER = {"level": 0.37, "later": 0.37, "deviation": 0.27}
CLOSE = {"level": 0.6, "later": 0.6, "deviation": 0.04}
SIMULATED = [
    simulated.Setting("mean over questions", 60),
    simulated.Setting("paired difference", 60, 0.5, 0.6),
    simulated.Setting("paired difference", 60, 0.5, 0.6, binary=False),
    simulated.Setting("macro mean over sets", 60),
    simulated.Setting("tool entropy", 200, 0.7),
    simulated.Setting("mean over seeds", 60, seeds=3, **DIFFER),
    simulated.Setting("mean over seeds", 200, seeds=3, binary=False, **CLOSE),
    simulated.Setting("mean over seeds", 60, seeds=3),
    simulated.Setting("mean over seeds", 60, seeds=8, **DIFFER),
    simulated.Setting("difference over seeds", 60, seeds=3, **DIFFER),
    simulated.Setting("difference over seeds", 60, seeds=3, **CLOSE),
]


@pytest.mark.parametrize("setting", SIMULATED, ids=str)
def test_intervals_hold_the_truth_as_often_as_they_say(setting):
    share, _ = simulated.coverage(setting, repeats=500)
    assert 0.92 <= share <= 0.98


ALIKE = ("tool entropy, nearly one tool", "difference of gaps, nearly all alike")


@pytest.mark.parametrize("interval", ALIKE)
@pytest.mark.parametrize("rare", [0.01, 0.03, 0.1])
def test_rows_that_are_nearly_all_alike_keep_a_width(interval, rare):
    share, width = simulated.coverage(simulated.Setting(interval, 60, rare), repeats=200)
    assert share >= 0.92
    assert width > 0.1


ONE_TOOL = run([1.0] * 40, {"a": [1] * 40, "b": [0] * 40})


def test_one_tool_throughout_may_be_chance_in_three_runs_as_in_one():
    one, three = over_seeds([ONE_TOOL], "tool_entropy"), over_seeds([ONE_TOOL] * 3, "tool_entropy")
    assert three.high == pytest.approx(one.high)
    assert one.high > 0.3


def test_a_difference_of_runs_of_one_tool_keeps_a_width():
    change = difference_over_seeds([ONE_TOOL] * 2, [ONE_TOOL] * 3, "tool_entropy")
    assert change.value == 0.0
    assert -change.low == change.high > 0.3


def test_a_run_that_differs_is_not_made_wider_by_one_that_is_alike():
    mixed = run([1.0] * 40, {"a": [1, 1, 1, 0] * 10, "b": [0, 0, 0, 1] * 10})
    change = difference_over_seeds([ONE_TOOL], [mixed], "tool_entropy")
    assert change.stderr == pytest.approx(over_seeds([mixed], "tool_entropy").stderr)


def test_a_bootstrap_of_three_seeds_does_not():
    setting = simulated.Setting("bootstrap over seeds (not printed)", 60, seeds=3, **DIFFER)
    assert simulated.coverage(setting, repeats=60)[0] < 0.9


def test_runs_that_agree_by_chance_are_no_narrower_than_their_questions():
    values = np.array([[0.2, 0.9, 0.4, 0.6], [0.9, 0.2, 0.6, 0.4]])
    together = mean_of_sets([Crossed(values, 4, shares=False)])
    alone = mean_ci(values.mean(axis=0), bounds=(-math.inf, math.inf))
    assert together.high - together.low == pytest.approx(alone.high - alone.low)
