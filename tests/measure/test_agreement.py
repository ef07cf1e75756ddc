"""Agreement statistics: cases worked by hand, properties, and intervals that resample whole groups."""

import math

import numpy as np
import pytest
from hypothesis import assume, given, strategies as st

from faithful_search.measure.agreement.statistics import (
    agreement_rate,
    auroc,
    brier,
    calibration_error,
    cohen_kappa,
    fleiss_kappa,
    reliability,
)

FEW = 50
pairs_of_labels = st.lists(st.tuples(st.booleans(), st.booleans()), min_size=1, max_size=30)
scored = st.lists(st.tuples(st.booleans(), st.integers(0, 8)), min_size=2, max_size=30)


def two(yes, first, second, no):
    """Two raters from their 2 x 2 table: both yes, only the first, only the second, both no."""
    a = [True] * (yes + first) + [False] * (second + no)
    b = [True] * yes + [False] * first + [True] * second + [False] * no
    return a, b


YES, MIXED = [True] * 4, [True, False, True, False]
THREE = [[True, True, False, True], [True, True, False, False], [True, False, False, False]]
EIGHT = [False, False, True, False, True, True, True, True], [0.1, 0.2, 0.3, 0.4, 0.6, 0.7, 0.8, 0.9]


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (agreement_rate(*two(20, 5, 10, 15)), 0.7),
        # p_o = 35/50 = 0.7; rates 25/50 and 30/50: p_e = 0.5·0.6 + 0.5·0.4 = 0.5; κ = 0.2 / 0.5
        (cohen_kappa(*two(20, 5, 10, 15)), 0.4),
        # yes counts 3, 2, 0, 1: P_i = 1, 1/3, 1, 1/3, mean 2/3; p = 6/12: P_e = 1/2; κ = (1/6) / (1/2)
        (fleiss_kappa(THREE), 1 / 3),
        # true 0.8, 0.5, 0.3 over false 0.5, 0.1: of six comparisons 2 + 1.5 + 1 are won
        (auroc([True, True, True, False, False], [0.8, 0.5, 0.3, 0.5, 0.1]), 4.5 / 6),
        # two bins of four: mean p 0.25 with 1 of 4 true, mean p 0.75 with 4 of 4 true: (0 + 0.25) / 2
        (calibration_error(*EIGHT, bins=2), 0.125),
        (brier([True, False, False], [1.0, 0.5, 0.2]), (0 + 0.25 + 0.04) / 3),
        # one class, and raters that are constant
        (cohen_kappa(YES, YES), None),
        (fleiss_kappa([YES, YES, YES]), None),
        (cohen_kappa(YES, MIXED), 0.0),
        (cohen_kappa([True] * 3, [False] * 3), 0.0),
        (auroc(YES, [0.1, 0.2, 0.3, 0.4]), None),
        (auroc(MIXED, [0.7] * 4), 0.5),
        (calibration_error(YES, [1.0] * 4), 0.0),
    ],
)
def test_statistics_by_hand(found, expected):
    assert found.value is expected is None or found.value == pytest.approx(expected)
    assert found.n in (3, 4, 5, 8, 50) and (found.low is None or found.low - 1e-9 <= found.value)


def test_bins_hold_equally_many_and_keep_ties_together():
    assert [b.n for b in reliability([True] * 100, np.linspace(0, 1, 100).tolist())] == [10] * 10
    lopsided = reliability([True] * 97 + [False] * 3, [0.0] * 97 + [1.0] * 3)
    assert [(b.p, b.n) for b in lopsided] == [(0.0, 97), (1.0, 3)]


def test_what_is_missing_is_counted_and_left_out_and_nothing_left_is_no_value():
    some, nobody, truth = [True, None, True], [None] * 3, [True, False, False]
    for found in (
        cohen_kappa(nobody, truth),
        fleiss_kappa([nobody, truth]),
        auroc(truth, nobody),
        calibration_error(truth, nobody),
    ):
        assert (found.value, found.n, found.abstained) == (None, 0, 3)
    assert reliability([True], [None]) == []
    for found in (agreement_rate(some, truth), auroc(truth, [0.9, None, 0.1]), fleiss_kappa([some, truth, truth])):
        assert (found.n, found.abstained) == (2, 1)


@given(pairs_of_labels)
def test_kappa_is_one_exactly_when_all_agree_and_both_classes_occur(rows):
    a, b = map(list, zip(*rows, strict=True))
    perfect = a == b and len(set(a)) == 2
    assert (cohen_kappa(a, b, draws=FEW).value == 1.0) is perfect
    assert (fleiss_kappa([a, b, a], draws=FEW).value == 1.0) is perfect


@given(pairs_of_labels)
def test_kappa_is_symmetric_blind_to_names_and_at_most_one(rows):
    a, b = map(list, zip(*rows, strict=True))
    value = cohen_kappa(a, b, draws=FEW).value
    assert value == cohen_kappa(b, a, draws=FEW).value
    flipped = cohen_kappa([not x for x in a], [not x for x in b], draws=FEW).value
    assert value is flipped is None or (-1 <= value <= 1 and value == pytest.approx(flipped))


@given(scored)
def test_auroc_is_the_share_of_comparisons_won(rows):
    truth, scores = map(list, zip(*rows, strict=True))
    yes = [score for label, score in rows if label]
    no = [score for label, score in rows if not label]
    assume(yes and no)
    won = sum((y > n) + (y == n) / 2 for y in yes for n in no)
    for shown in (scores, [math.exp(score) - 3 for score in scores]):  # only the order counts
        assert auroc(truth, shown, draws=FEW).value == pytest.approx(won / (len(yes) * len(no)))


@given(st.lists(st.tuples(st.booleans(), st.floats(0, 1)), min_size=1, max_size=40), st.integers(1, 12))
def test_calibration_is_the_weighted_gap_of_its_bins(rows, bins):
    truth, p = map(list, zip(*rows, strict=True))
    curve = reliability(truth, p, bins)
    assert sum(b.n for b in curve) == len(rows) and len(curve) <= bins
    assert [b.p for b in curve] == sorted(b.p for b in curve)
    expected = sum(b.n * abs(b.share - b.p) for b in curve) / len(rows)
    assert calibration_error(truth, p, bins=bins, draws=FEW).value == pytest.approx(expected, abs=1e-12)


def test_pairs_repeated_within_a_group_do_not_narrow_the_interval():
    rng = np.random.default_rng(1)
    truth = (rng.random(60) < 0.5).tolist()
    p = [0.5 * label + 0.7 * rng.random() for label in truth]
    said = [score > 0.6 for score in p]
    groups = [place for place in range(60) for _ in range(5)]
    five = [[value for value in column for _ in range(5)] for column in (truth, said, p)]
    for measure, once, often in (
        (agreement_rate, (truth, said), (five[0], five[1])),
        (cohen_kappa, (truth, said), (five[0], five[1])),
        (auroc, (truth, p), (five[0], five[2])),
        (brier, (truth, p), (five[0], five[2])),
    ):
        single, grouped, naive = measure(*once), measure(*often, groups=groups), measure(*often)
        assert grouped.n == 60 and naive.n == 300
        assert grouped.stderr == pytest.approx(single.stderr, rel=1e-6)
        assert naive.stderr < 0.6 * grouped.stderr
