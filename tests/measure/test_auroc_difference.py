"""How far one judge's AUROC is above another's, on the same pairs."""

import pytest

from faithful_search.judges import ContainmentJudge, GroundingJudge
from faithful_search.measure.agreement import run
from faithful_search.measure.agreement.labelled import Labelled
from faithful_search.measure.agreement.statistics import auroc, auroc_difference

LABELS = [True, False] * 20
GOOD = [0.9 - 0.01 * n if label else 0.1 + 0.02 * n for n, label in enumerate(LABELS)]
POOR = [0.5 + 0.01 * (n % 7) for n in range(40)]


def test_it_is_the_difference_of_both():
    difference = auroc_difference(LABELS, POOR, GOOD).value
    assert difference == pytest.approx(auroc(LABELS, GOOD).value - auroc(LABELS, POOR).value)


def test_a_judge_beside_itself_has_no_difference():
    estimate = auroc_difference(LABELS, GOOD, GOOD)
    assert (estimate.value, estimate.low, estimate.high) == (0, 0, 0)


def test_pairs_that_one_abstained_from_are_left_out():
    estimate = auroc_difference(LABELS, [None, *POOR[1:]], GOOD)
    assert (estimate.n, estimate.abstained) == (39, 1)


def test_without_pairs_there_is_no_value():
    assert auroc_difference([None], [0.5], [0.5]).value is None


def test_agreement_prints_it_beside_the_first_judge(tmp_path):
    rows = [
        Labelled(str(n), "Ada wrote notes.", hypothesis, "", label, "made", "heldout", str(n))
        for n, (hypothesis, label) in enumerate([("Ada wrote", True), ("Bob sang", False)] * 5)
    ]
    judges = {"containment": ContainmentJudge(), "lexical": GroundingJudge()}
    table = run(rows, judges, tmp_path, progress=False).table()
    assert "AUROC of lexical less that of containment: 0.000" in table
