"""How far two raters agree, and how far a judge's probabilities can be believed: each with its interval.

Every function takes one entry a pair. `None` is an abstention: pairs with one are counted in `Estimate.abstained` and
left out, never filled in. `groups` names the question or text that each pair belongs to: whole groups are resampled
(percentile bootstrap), and `Estimate.n` counts them. A statistic that is not defined (each docstring says where) has
the value `None`; resamples where it is not defined are left out of the interval.

scikit-learn has most of these, for one sample at a time; here they are functions of sums, so that thousands of
resamples are one matrix product.
"""

from collections.abc import Hashable, Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from ...errors import DataError
from ..stats import (
    DRAWS,
    NOTHING,
    Estimate,
    Floats,
    bootstrap,
    divided,
    numbered,
    percentile_interval,
    resampled,
)

Labels = Sequence[bool | None]
Probabilities = Sequence[float | None]
Groups = Sequence[Hashable] | None
BINS = 10


class Bin(msgspec.Struct, frozen=True):
    """Pairs whose probabilities lie together: their mean probability, the share that is true, how many they are."""

    p: float
    share: float
    n: int


def agreement_rate(
    a: Labels, b: Labels, groups: Groups = None, draws: int = DRAWS, seed: int = 0
) -> Estimate:
    """The share of pairs that both label alike. Not defined without pairs."""
    (x, y), groups, left_out = _complete((a, b), groups)
    return _counted(bootstrap(x == y, None, groups, draws, seed), left_out)


def cohen_kappa(
    a: Labels, b: Labels, groups: Groups = None, draws: int = DRAWS, seed: int = 0
) -> Estimate:
    """Cohen's κ = (p_o − p_e) / (1 − p_e): agreement beyond what the raters' own rates would give by chance.

    0 when one rater is constant and the other is not; not defined when both always give the same one label, for chance
    then explains everything.
    """
    (x, y), groups, left_out = _complete((a, b), groups)

    def kappa(sums: Floats) -> Floats:
        alike, yes_x, yes_y, n = sums.T
        chance = yes_x * yes_y + (n - yes_x) * (n - yes_y)
        return divided(alike * n - chance, n * n - chance)

    features = np.column_stack([x == y, x, y, np.ones(len(x))])
    return _counted(bootstrap(features, kappa, groups, draws, seed), left_out)


def fleiss_kappa(
    ratings: Sequence[Labels], groups: Groups = None, draws: int = DRAWS, seed: int = 0
) -> Estimate:
    """Fleiss' κ over two or more raters, on the pairs that all of them labelled.

    ```
    P_i = (n_i1² + n_i0² − k) / (k (k − 1)),   P_e = p² + (1 − p)²,   κ = (mean P_i − P_e) / (1 − P_e)
    ```
    n_i1 of the k raters say yes to pair i, p is the share of yes over everything. Not defined when all say the same
    everywhere. `ratings` has one sequence of labels a rater.
    """
    if len(ratings) < 2:
        raise DataError("Fleiss' κ needs at least two raters")
    columns, groups, left_out = _complete(ratings, groups)
    k, yes = len(ratings), np.sum(columns, axis=0)

    def kappa(sums: Floats) -> Floats:
        # multiplied by (k - 1) · ratings²: sums of whole numbers make perfect agreement 1 to the last bit
        squares, yeses, ratings = sums.T
        chance = (k - 1) * (yeses * yeses + (ratings - yeses) ** 2)
        return divided((squares - ratings) * ratings - chance, (k - 1) * ratings * ratings - chance)

    features = np.column_stack([yes**2 + (k - yes) ** 2, yes, np.full(len(yes), k)])
    return _counted(bootstrap(features, kappa, groups, draws, seed), left_out)


def auroc(
    labels: Labels, p: Probabilities, groups: Groups = None, draws: int = DRAWS, seed: int = 0
) -> Estimate:
    """The chance that a true pair has a higher p than a false one, ties counting half (Mann-Whitney).

    Not defined when all pairs have one label; 0.5 when p is constant.
    """
    (truth, scores), groups, left_out = _complete((labels, p), groups)
    if not len(truth):
        return _counted(NOTHING, left_out)
    unit, order = (
        numbered(range(len(truth)) if groups is None else groups),
        np.argsort(scores, kind="stable"),
    )
    truth, scores = truth[order], scores[order]
    starts = np.flatnonzero(np.r_[True, scores[1:] != scores[:-1]])  # of the runs of equal scores

    def share_won(weights: Floats) -> Floats:
        """(draws, pairs) weights by rising score to (draws,) values."""
        true = np.add.reduceat(weights * truth, starts, axis=1)
        false = np.add.reduceat(weights * (1 - truth), starts, axis=1)
        below = np.cumsum(false, axis=1) - false
        return divided(
            (true * (below + false / 2)).sum(axis=1), true.sum(axis=1) * false.sum(axis=1)
        )

    n, value = int(unit.max()) + 1, float(share_won(np.ones((1, len(order))))[0])
    blocks = (share_won(weights[:, unit[order]]) for weights in resampled(n, draws, seed))
    return _counted(percentile_interval(value, blocks, n), left_out)


def calibration_error(
    labels: Labels,
    p: Probabilities,
    groups: Groups = None,
    bins: int = BINS,
    draws: int = DRAWS,
    seed: int = 0,
) -> Estimate:
    """Expected calibration error: Σ over bins of (share of pairs in it) · |share that is true − mean p|.

    The bins hold equally many pairs, as far as ties let them: pairs are put into `bins` equal parts by rank, equal p
    stay together, and bins may stay empty (see `reliability`). Resamples keep these bins. The error of few pairs is too
    high on average even for a perfect judge, and that of their resamples more so: the interval may lie above a value
    near 0. Not defined without pairs.
    """
    (truth, scores), groups, left_out = _complete((labels, p), groups)
    gap, member = truth - scores, _bins(scores, bins)
    features = np.column_stack(
        [gap[:, None] * (member[:, None] == np.arange(bins)), np.ones(len(gap))]
    )

    def error(sums: Floats) -> Floats:
        return divided(np.abs(sums[:, :-1]).sum(axis=1), sums[:, -1])

    return _counted(bootstrap(features, error, groups, draws, seed), left_out)


def brier(
    labels: Labels, p: Probabilities, groups: Groups = None, draws: int = DRAWS, seed: int = 0
) -> Estimate:
    """Brier score: the mean of (p − label)²; 0 is best, always saying 0.5 gives 0.25. Not defined without pairs."""
    (truth, scores), groups, left_out = _complete((labels, p), groups)
    return _counted(bootstrap((scores - truth) ** 2, None, groups, draws, seed), left_out)


def reliability(labels: Labels, p: Probabilities, bins: int = BINS) -> list[Bin]:
    """The bins of `calibration_error` that hold any pairs, by rising p: what a calibration plot draws."""
    (truth, scores), _, _ = _complete((labels, p), None)
    own = _bins(scores, bins)
    return [
        Bin(
            float(scores[own == place].mean()),
            float(truth[own == place].mean()),
            int((own == place).sum()),
        )
        for place in np.unique(own)
    ]


def _bins(scores: Floats, bins: int) -> NDArray[np.int64]:
    """The number of each score's bin, by its rank; equal scores share the middle of their ranks."""
    _, inverse, counts = np.unique(scores, return_inverse=True, return_counts=True)
    middle = np.cumsum(counts) - counts / 2
    return np.floor(middle / max(1, len(scores)) * bins).astype(np.int64)[inverse]


def _complete(columns: Sequence[Sequence], groups: Groups) -> tuple[list[Floats], Groups, int]:
    """The columns without the pairs that any of them has no value for, and how many those are."""
    lengths = {len(column) for column in columns} | ({len(groups)} if groups is not None else set())
    if len(lengths) != 1:
        raise DataError(
            f"raters, labels and groups must have one entry for each pair, found {sorted(lengths)}"
        )
    kept = [place for place, row in enumerate(zip(*columns, strict=True)) if None not in row]
    chosen = [np.array([column[place] for place in kept], dtype=np.float64) for column in columns]
    return chosen, groups and [groups[place] for place in kept], len(columns[0]) - len(kept)


def _counted(estimate: Estimate, left_out: int) -> Estimate:
    return msgspec.structs.replace(estimate, abstained=left_out)
