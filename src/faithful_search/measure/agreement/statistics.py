"""Statistics of how far raters agree, and how well a judge's probabilities are calibrated, each
with an interval.

Every function takes sequences with one entry for each pair of texts. `None` is an abstention: a
pair with one is counted in `Estimate.abstained` and left out. `groups` names the question or text
that each pair belongs to. The percentile bootstrap resamples whole groups, and `Estimate.n` counts
them. The docstrings say where a statistic is not defined: then its value is `None`, and resamples
where it is not defined are left out of the interval.

scikit-learn has most of these for one sample at a time. Here they are functions of sums, so that
thousands of resamples are one matrix product.
"""

from collections.abc import Callable, Hashable, Sequence

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
    """A bin of pairs with similar probabilities: their mean probability, the share of them that is
    true, and their number.
    """

    p: float
    share: float
    n: int


def agreement_rate(
    a: Labels, b: Labels, groups: Groups = None, draws: int = DRAWS, seed: int = 0
) -> Estimate:
    """The share of pairs that both raters label alike. Not defined without pairs."""
    (x, y), groups, abstained = _complete((a, b), groups)
    return _counted(bootstrap(x == y, None, groups, draws, seed), abstained)


def cohen_kappa(
    a: Labels, b: Labels, groups: Groups = None, draws: int = DRAWS, seed: int = 0
) -> Estimate:
    """Cohen's κ = (p_o − p_e) / (1 − p_e): agreement beyond what the raters' own rates would give
    by chance.

    It is 0 when one rater is constant and the other is not. It is not defined when both always give
    the same label, since chance then explains everything.
    """
    (x, y), groups, abstained = _complete((a, b), groups)

    def kappa(sums: Floats) -> Floats:
        # p_o and p_e times n²: they are whole numbers then, so that perfect agreement is exactly 1
        alike, yes_x, yes_y, n = sums.T
        observed = alike * n
        by_chance = yes_x * yes_y + (n - yes_x) * (n - yes_y)
        return divided(observed - by_chance, n * n - by_chance)

    features = np.column_stack([x == y, x, y, np.ones(len(x))])
    return _counted(bootstrap(features, kappa, groups, draws, seed), abstained)


def fleiss_kappa(
    ratings: Sequence[Labels], groups: Groups = None, draws: int = DRAWS, seed: int = 0
) -> Estimate:
    """Fleiss' κ over two or more raters, on the pairs that all of them labelled.

    ```
    P_i = (n_i1² + n_i0² − k) / (k (k − 1)),   P_e = p² + (1 − p)²,   κ = (mean P_i − P_e) / (1 − P_e)
    ```

    n_i1 of the k raters say yes to pair i, and n_i0 say no; p is the share of yes in all labels. κ
    is not defined when all labels are the same. `ratings` has a sequence of labels for each rater.
    Raises `DataError` with fewer than two raters.
    """
    if len(ratings) < 2:
        raise DataError("Fleiss' κ needs at least two raters")
    columns, groups, abstained = _complete(ratings, groups)
    k = len(ratings)
    yes = np.sum(columns, axis=0)
    no = k - yes

    def kappa(sums: Floats) -> Floats:
        # Mean P_i and P_e times (k - 1) · labels²: they are sums of whole numbers then, so that
        # perfect agreement is exactly 1
        squares, yes_labels, labels = sums.T
        observed = (squares - labels) * labels
        by_chance = (k - 1) * (yes_labels * yes_labels + (labels - yes_labels) ** 2)
        most = (k - 1) * labels * labels
        return divided(observed - by_chance, most - by_chance)

    features = np.column_stack([yes**2 + no**2, yes, np.full(len(yes), k)])
    return _counted(bootstrap(features, kappa, groups, draws, seed), abstained)


def auroc(
    labels: Labels, p: Probabilities, groups: Groups = None, draws: int = DRAWS, seed: int = 0
) -> Estimate:
    """The probability that a true pair has a higher p than a false one; ties count half
    (Mann-Whitney).

    It is 0.5 when p is constant, and not defined when all pairs have the same label.
    """
    (truth, scores), groups, abstained = _complete((labels, p), groups)
    if not len(truth):
        return _counted(NOTHING, abstained)
    estimate = _weighted_bootstrap(_share_won(truth, scores), len(truth), groups, draws, seed)
    return _counted(estimate, abstained)


def auroc_difference(
    labels: Labels,
    a: Probabilities,
    b: Probabilities,
    groups: Groups = None,
    draws: int = DRAWS,
    seed: int = 0,
) -> Estimate:
    """AUROC of b less that of a, on the pairs that both judged; both are computed on the same
    resamples, so that what is hard for both does not widen the interval.

    Example:
        >>> labels = [True, True, False, False]
        >>> auroc_difference(labels, [0.5, 0.5, 0.5, 0.5], [0.9, 0.8, 0.2, 0.1]).value
        0.5
    """
    (truth, first, second), groups, abstained = _complete((labels, a, b), groups)
    if not len(truth):
        return _counted(NOTHING, abstained)
    won_by_first = _share_won(truth, first)
    won_by_second = _share_won(truth, second)

    def difference(weights: Floats) -> Floats:
        return won_by_second(weights) - won_by_first(weights)

    estimate = _weighted_bootstrap(difference, len(truth), groups, draws, seed)
    return _counted(estimate, abstained)


def _weighted_bootstrap(
    statistic: Callable[[Floats], Floats], pairs: int, groups: Groups, draws: int, seed: int
) -> Estimate:
    """`bootstrap` of a statistic that is no function of sums: it takes how often each pair is
    drawn, (draws, pairs), and returns its values, (draws,).
    """
    unit = numbered(range(pairs) if groups is None else groups)
    units = int(unit.max()) + 1
    value = float(statistic(np.ones((1, pairs)))[0])
    # A pair is drawn as often as its group
    blocks = (statistic(weights[:, unit]) for weights in resampled(units, draws, seed))
    return percentile_interval(value, blocks, units)


def _share_won(truth: Floats, scores: Floats) -> Callable[[Floats], Floats]:
    """A function from weights, (draws, pairs), to the AUROC of each draw, (draws,)."""
    order = np.argsort(scores, kind="stable")
    truth = truth[order]
    ranked = scores[order]
    is_start = np.r_[True, ranked[1:] != ranked[:-1]]  # of a run of equal scores
    starts = np.flatnonzero(is_start)

    def share_won(weights: Floats) -> Floats:
        weights = weights[:, order]
        # The weights of the true and of the false pairs with each score, by rising score
        true = np.add.reduceat(weights * truth, starts, axis=1)
        false = np.add.reduceat(weights * (1 - truth), starts, axis=1)
        false_below = np.cumsum(false, axis=1) - false
        won = (true * (false_below + false / 2)).sum(axis=1)
        contests = true.sum(axis=1) * false.sum(axis=1)
        return divided(won, contests)

    return share_won


def calibration_error(
    labels: Labels,
    p: Probabilities,
    groups: Groups = None,
    bins: int = BINS,
    draws: int = DRAWS,
    seed: int = 0,
) -> Estimate:
    """Expected calibration error: Σ over bins of (share of pairs in it) · |share that is true −
    mean p|.

    The pairs are divided into `bins` equal parts by the rank of p. Pairs with equal p stay in one
    bin, so that bins may be unequal or empty. Resamples keep these bins. With few pairs the error
    is too high on average, even for a perfect judge, and that of resamples more so: the interval
    may lie above a value near 0. Not defined without pairs.
    """
    (truth, scores), groups, abstained = _complete((labels, p), groups)
    gap = truth - scores
    is_member = _bins(scores, bins)[:, None] == np.arange(bins)  # (pairs, bins)
    features = np.column_stack([gap[:, None] * is_member, np.ones(len(gap))])

    def error(sums: Floats) -> Floats:
        gaps_of_bins = sums[:, :-1]
        pairs = sums[:, -1]
        return divided(np.abs(gaps_of_bins).sum(axis=1), pairs)

    return _counted(bootstrap(features, error, groups, draws, seed), abstained)


def brier(
    labels: Labels, p: Probabilities, groups: Groups = None, draws: int = DRAWS, seed: int = 0
) -> Estimate:
    """Brier score: the mean of (p − label)². 0 is best; a constant p of 0.5 gives 0.25. Not defined
    without pairs.
    """
    (truth, scores), groups, abstained = _complete((labels, p), groups)
    return _counted(bootstrap((scores - truth) ** 2, None, groups, draws, seed), abstained)


def reliability(labels: Labels, p: Probabilities, bins: int = BINS) -> list[Bin]:
    """The points of a calibration plot: the bins of `calibration_error` that are not empty, by
    rising p.
    """
    (truth, scores), _, _ = _complete((labels, p), None)
    numbers = _bins(scores, bins)
    points = []
    for number in np.unique(numbers):
        chosen = numbers == number
        point = Bin(
            p=float(scores[chosen].mean()),
            share=float(truth[chosen].mean()),
            n=int(chosen.sum()),
        )
        points.append(point)
    return points


def _bins(scores: Floats, bins: int) -> NDArray[np.int64]:
    """The number of each score's bin, by its rank. Equal scores have the middle of their ranks."""
    _, place_of_score, counts = np.unique(scores, return_inverse=True, return_counts=True)
    middle_ranks = np.cumsum(counts) - counts / 2
    bin_of_place = np.floor(middle_ranks / max(1, len(scores)) * bins).astype(np.int64)
    return bin_of_place[place_of_score]


def _complete(columns: Sequence[Sequence], groups: Groups) -> tuple[list[Floats], Groups, int]:
    """The columns and groups without the pairs that some column has no value for, and the number
    of those pairs. Raises `DataError` if the columns and groups differ in length.
    """
    lengths = {len(column) for column in columns}
    if groups is not None:
        lengths.add(len(groups))
    if len(lengths) != 1:
        raise DataError(
            f"raters, labels and groups must have one entry for each pair, found {sorted(lengths)}"
        )
    rows = zip(*columns, strict=True)
    places = [place for place, row in enumerate(rows) if None not in row]
    complete = []
    for column in columns:
        values = [column[place] for place in places]
        complete.append(np.array(values, dtype=np.float64))
    if groups is not None:
        groups = [groups[place] for place in places]
    return complete, groups, len(columns[0]) - len(places)


def _counted(estimate: Estimate, abstained: int) -> Estimate:
    return msgspec.structs.replace(estimate, abstained=abstained)
