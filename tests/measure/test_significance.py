"""Tests of differences: Wilcoxon's signed-rank test, Holm's correction, p-values of estimates."""

import itertools

import pytest

from faithful_search.errors import DataError
from faithful_search.measure.significance import holm, p_value, signed_rank
from faithful_search.measure.stats import NOTHING, cut, difference_ci


def counted(differences):
    """The two-sided p by trying every assignment of signs; for different sizes without zeros."""
    sizes = sorted(map(abs, differences))
    ranks = [
        sizes.index(abs(change)) + (sizes.count(abs(change)) + 1) / 2 for change in differences
    ]
    total = sum(ranks)
    rise = sum(rank for rank, change in zip(ranks, differences, strict=True) if change > 0)
    smaller = min(rise, total - rise)
    sums = [
        sum(rank for rank, positive in zip(ranks, signs, strict=True) if positive)
        for signs in itertools.product((True, False), repeat=len(ranks))
    ]
    return min(1.0, 2 * sum(value <= smaller for value in sums) / len(sums))


@pytest.mark.parametrize(
    ("differences", "statistic", "p"),
    [
        ([1, 2, 3, 4, 5, 6, 7], 0, 2 / 128),  # seven sets, all better: what VERITAS can reach
        ([-1, 2, 3, 4, 5, 6, 7], 1, 4 / 128),
        ([-1, -2, 3, 4, 5, 6, 7], 3, 10 / 128),
        ([1, 2, 3, 4, 5], 0, 2 / 32),  # five sets never reach 0.05
    ],
)
def test_the_signed_rank_test_equals_tables(differences, statistic, p):
    result = signed_rank([change / 100 for change in differences])
    assert (result.statistic, result.p) == (statistic, pytest.approx(p))


@pytest.mark.parametrize(
    "differences",
    [
        [0.1, 0.1, -0.1, 0.2, 0.3, -0.2],
        [0.05, 0.05, 0.05, 0.05],
        [-0.3, 0.1, 0.2, -0.2, 0.2, 0.4, -0.1, 0.5],
    ],
)
def test_ties_share_their_rank_and_p_stays_exact(differences):
    assert signed_rank(differences).p == pytest.approx(counted(differences))


def test_differences_that_only_rounding_parts_are_ties():
    assert signed_rank([0.1 + 0.2, -0.3, 0.4]).p == signed_rank([0.3, -0.3, 0.4]).p


def many(n):
    """Differences of which a few more are positive than negative."""
    return [(number * 7919 % 10007 - 4800) / 10007 for number in range(1, n + 1)]


@pytest.mark.parametrize(
    ("n", "p"),
    [
        (900, 0.03410268513254322),  # scipy.stats.wilcoxon(…, method="exact")
        (1000, 0.02291976458645162),
        (1001, 0.02538927654784931),  # scipy.stats.wilcoxon(…, method="approx")
        (1100, 0.013522168850365833),
        (9000, 5.3163335720774186e-11),
    ],
)
def test_many_differences_have_the_p_of_scipy(n, p):
    assert signed_rank(many(n)).p == pytest.approx(p, rel=1e-6)


def test_a_normal_approximation_is_named():
    assert str(signed_rank(many(1100))) == "p ≈ 0.0135 (n=1100, normal approximation)"


def test_a_difference_of_zero_is_left_out_and_counted():
    result = signed_rank([0.0, 0.1, 0.2])
    assert (result.n, result.zeros) == (2, 1)


def test_without_a_difference_there_is_no_p():
    assert signed_rank([0.0, 0.0]).p is None


def test_few_sets_have_a_least_p():
    few = signed_rank([0.1, 0.2, 0.3])
    assert (str(few), few.least_p) == ("p = 0.25 (n=3)", 0.25)


def test_what_is_no_number_is_refused():
    with pytest.raises(DataError, match="not a finite number"):
        signed_rank([0.1, float("nan")])


def test_holm_multiplies_the_smallest_most():
    """By hand: 0.01 · 4, then 0.02 · 3, 0.03 · 2, and the last is not below the one before it."""
    corrected = holm({"d": 0.05, "a": 0.01, "c": 0.03, "b": 0.02})
    assert corrected == pytest.approx({"a": 0.04, "b": 0.06, "c": 0.06, "d": 0.06})


def test_p_of_a_difference_is_students():
    """2, 4, 6: t = 4 / (2/√3) = 3.464 at 2 degrees of freedom, two-sided 0.0742."""
    assert p_value(difference_ci([2.0, 4.0, 6.0])) == pytest.approx(0.0742, abs=1e-4)


@pytest.mark.parametrize("values", [[1.0] * 30, [0.5, 0.4, 0.7], [0.0] * 20, [-1.0] * 9 + [0.0]])
def test_p_is_below_a_twentieth_where_the_interval_leaves_out_zero(values):
    change = difference_ci(values)
    assert (p_value(change) < 0.05) == (not change.low <= 0 <= change.high)


@pytest.mark.parametrize("changes", [[0.0, 0.9], [0.0, -0.9], [0.1, 0.9], [0.6, 0.9, 0.95]])
def test_where_an_interval_ends_does_not_change_p(changes):
    change = difference_ci(changes)
    assert p_value(cut(change, -1.0, 1.0)) == pytest.approx(p_value(change))


def test_without_an_interval_there_is_no_p_of_it():
    assert p_value(NOTHING) is None
