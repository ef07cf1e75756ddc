"""How far two raters agree, and how far a judge's probabilities can be believed: each with its interval.

Every function takes one entry a pair. `None` is an abstention: pairs with one are counted in `Estimate.abstained` and
left out, never filled in. `groups` names the question or text that each pair belongs to: whole groups are resampled
(percentile bootstrap), and `Estimate.n` counts them. A statistic that is not defined (each docstring says where) has
the value `None`; resamples where it is not defined are left out of the interval.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from functools import partial
from typing import TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from ...errors import DataError
from ..stats import DRAWS, NOTHING, Estimate, Floats, bootstrap, percentile_interval, resampled

Labels = Sequence[bool | None]
Probabilities = Sequence[float | None]
Groups = Sequence[Hashable] | None
BINS = 10
Column = TypeVar("Column", bound=Sequence)


class Bin(msgspec.Struct, frozen=True):
    """Pairs whose probabilities lie together: their mean probability, the share that is true, how many they are."""

    p: float
    share: float
    n: int


def agreement_rate(a: Labels, b: Labels, groups: Groups = None, draws: int = DRAWS, seed: int = 0) -> Estimate:
    """The share of pairs that both label alike. Not defined without pairs.

    Example:
        >>> agreement_rate([True, False, True, None], [True, True, True, True]).value
        0.6666666666666666
    """
    (one, two), groups, left_out = _complete((a, b), groups)
    return _counted(bootstrap(_floats(one) == _floats(two), None, groups, draws, seed), left_out)


def cohen_kappa(a: Labels, b: Labels, groups: Groups = None, draws: int = DRAWS, seed: int = 0) -> Estimate:
    """Cohen's κ = (p_o − p_e) / (1 − p_e): agreement beyond what the raters' own rates would give by chance.

    0 when one rater is constant and the other is not; not defined when both always give the same one label, for chance
    then explains everything.

    Example:
        >>> cohen_kappa([True, True, False, False], [True, False, False, False]).value
        0.5
    """
    (one, two), groups, left_out = _complete((a, b), groups)
    x, y = _floats(one), _floats(two)
    features = np.column_stack([x == y, x, y, np.ones(len(x))])
    return _counted(bootstrap(features, _cohen, groups, draws, seed), left_out)


def fleiss_kappa(ratings: Sequence[Labels], groups: Groups = None, draws: int = DRAWS, seed: int = 0) -> Estimate:
    """Fleiss' κ over two or more raters, on the pairs that all of them labelled.

    ```
    P_i = (n_i1² + n_i0² − k) / (k (k − 1)),   P_e = p² + (1 − p)²,   κ = (mean P_i − P_e) / (1 − P_e)
    ```
    n_i1 of the k raters say yes to pair i, p is the share of yes over everything. Not defined when all say the same
    everywhere.

    Args:
        ratings: one sequence of labels a rater, in the same order of pairs.

    Raises:
        DataError: for fewer than two raters.

    Example:
        >>> fleiss_kappa([[True, False], [True, False], [True, False]]).value
        1.0
    """
    if len(ratings) < 2:
        raise DataError("Fleiss' κ needs at least two raters")
    columns, groups, left_out = _complete(ratings, groups)
    k, yes = len(ratings), np.sum([_floats(column) for column in columns], axis=0)
    features = np.column_stack([yes**2 + (k - yes) ** 2, yes, np.full(len(yes), k)])
    return _counted(bootstrap(features, partial(_fleiss, k=k), groups, draws, seed), left_out)


def auroc(labels: Labels, p: Probabilities, groups: Groups = None, draws: int = DRAWS, seed: int = 0) -> Estimate:
    """The chance that a true pair has a higher p than a false one, ties counting half (Mann-Whitney).

    Not defined when all pairs have one label; 0.5 when p is constant.

    Example:
        >>> auroc([True, True, False], [0.9, 0.4, 0.4]).value
        0.75
    """
    (truth, scores), groups, left_out = _complete((labels, p), groups)
    if not len(truth):
        return _counted(NOTHING, left_out)
    numbers: dict[Hashable, int] = {}
    units = range(len(truth)) if groups is None else groups
    unit = np.array([numbers.setdefault(name, len(numbers)) for name in units])
    order = np.argsort(_floats(scores), kind="stable")
    ranked = _Ranked(_floats(truth)[order], _floats(scores)[order])
    value = float(ranked.auroc(np.ones((1, len(order))))[0])
    if np.isnan(value):
        return Estimate(None, None, None, len(numbers), None, abstained=left_out)
    blocks = (ranked.auroc(weights[:, unit[order]]) for weights in resampled(len(numbers), draws, seed))
    return _counted(percentile_interval(value, blocks, len(numbers)), left_out)


def calibration_error(
    labels: Labels, p: Probabilities, groups: Groups = None, bins: int = BINS, draws: int = DRAWS, seed: int = 0
) -> Estimate:
    """Expected calibration error: Σ over bins of (share of pairs in it) · |share that is true − mean p|.

    The bins hold equally many pairs, as far as ties let them: pairs are put into `bins` equal parts by rank, equal p
    stay together, and bins may stay empty (see `reliability`). Resamples keep these bins. The error of few pairs is too
    high on average even for a perfect judge, and that of their resamples more so: the interval may lie above a value
    near 0. Not defined without pairs.

    Example:
        >>> round(calibration_error([True, False], [0.8, 0.8]).value, 3)
        0.3
    """
    (truth, scores), groups, left_out = _complete((labels, p), groups)
    gap = _floats(truth) - _floats(scores)
    member = _bins(_floats(scores), bins)
    features = np.column_stack([gap[:, None] * (member[:, None] == np.arange(bins)), np.ones(len(gap))])
    return _counted(bootstrap(features, _calibration, groups, draws, seed), left_out)


def brier(labels: Labels, p: Probabilities, groups: Groups = None, draws: int = DRAWS, seed: int = 0) -> Estimate:
    """Brier score: the mean of (p − label)²; 0 is best, always saying 0.5 gives 0.25. Not defined without pairs.

    Example:
        >>> brier([True, False], [0.5, 0.5]).value
        0.25
    """
    (truth, scores), groups, left_out = _complete((labels, p), groups)
    return _counted(bootstrap((_floats(scores) - _floats(truth)) ** 2, None, groups, draws, seed), left_out)


def reliability(labels: Labels, p: Probabilities, bins: int = BINS) -> list[Bin]:
    """The bins of `calibration_error` that hold any pairs, by rising p: what a calibration plot draws."""
    (truth, scores), _, _ = _complete((labels, p), None)
    member = _bins(_floats(scores), bins)
    found = ((_floats(scores)[member == place], _floats(truth)[member == place]) for place in range(bins))
    return [Bin(float(ours.mean()), float(theirs.mean()), len(ours)) for ours, theirs in found if len(ours)]


class _Ranked:
    """Labels by rising p, ready to be weighted by many resamples at once."""

    def __init__(self, truth: Floats, scores: Floats) -> None:
        self.truth = truth
        self.starts = np.flatnonzero(np.r_[True, scores[1:] != scores[:-1]])

    def auroc(self, weights: Floats) -> Floats:
        """(draws, n) weights to (draws,) values; NaN where a resample has one label only."""
        true = np.add.reduceat(weights * self.truth, self.starts, axis=1)
        false = np.add.reduceat(weights * (1 - self.truth), self.starts, axis=1)
        below = np.cumsum(false, axis=1) - false
        pairs = true.sum(axis=1) * false.sum(axis=1)
        return _divided((true * (below + false / 2)).sum(axis=1), pairs)


def _cohen(sums: Floats) -> Floats:
    alike, x, y, n = sums.T
    chance = x * y + (n - x) * (n - y)
    return _divided(alike * n - chance, n * n - chance)


def _fleiss(sums: Floats, k: int) -> Floats:
    """All is multiplied by (k − 1) · ratings²: sums of whole numbers make perfect agreement 1 to the last bit."""
    squares, yes, ratings = sums.T
    chance = (k - 1) * (yes * yes + (ratings - yes) ** 2)
    return _divided((squares - ratings) * ratings - chance, (k - 1) * ratings * ratings - chance)


def _calibration(sums: Floats) -> Floats:
    return _divided(np.abs(sums[:, :-1]).sum(axis=1), sums[:, -1])


def _divided(above: Floats, below: Floats) -> Floats:
    return np.divide(above, below, out=np.full_like(above, np.nan), where=below > 0)


def _bins(scores: Floats, bins: int) -> NDArray[np.int64]:
    """The number of each score's bin, by its rank; equal scores share the middle of their ranks."""
    _, inverse, counts = np.unique(scores, return_inverse=True, return_counts=True)
    middle = np.cumsum(counts) - counts / 2
    return np.floor(middle / max(1, len(scores)) * bins).astype(np.int64)[inverse]


def _complete(columns: Sequence[Column], groups: Groups) -> tuple[list[list], list[Hashable] | None, int]:
    """The columns without the pairs that any of them has no value for, and how many those are."""
    lengths = {len(column) for column in columns} | ({len(groups)} if groups is not None else set())
    if len(lengths) != 1:
        raise DataError(f"raters, labels and groups must have one entry for each pair, found {sorted(lengths)}")
    rows = list(zip(*columns, strict=True))
    kept = [place for place, row in enumerate(rows) if None not in row]
    chosen = [[column[place] for place in kept] for column in columns]
    return chosen, None if groups is None else [groups[place] for place in kept], len(rows) - len(kept)


def _floats(values: Iterable) -> Floats:
    return np.array([float(value) for value in values], dtype=np.float64)


def _counted(estimate: Estimate, left_out: int) -> Estimate:
    return msgspec.structs.replace(estimate, abstained=left_out)
