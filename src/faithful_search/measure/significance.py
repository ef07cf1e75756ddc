"""Whether differences are more than chance: p-values of estimates, Wilcoxon's signed-rank test over
question sets, and Holm's correction for several metrics.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TypeVar

import msgspec
import numpy as np

from ..errors import DataError
from .stats import Estimate, t_quantile, t_within

LEVEL = 0.05
EXACT = 1000
"""Up to so many differences p is exact: the time for it grows with the cube of their number."""
Name = TypeVar("Name")


class SignedRank(msgspec.Struct, frozen=True):
    """The result of Wilcoxon's signed-rank test.

    Attributes:
        statistic: the smaller one of the sums of the ranks of positive and negative differences.
        p: the two-sided p-value, exact up to `EXACT` differences and of the normal approximation
            above; `None` where all differences are 0.
        n: the number of differences that are not 0.
        zeros: the number of those that are, which the test leaves out.
    """

    statistic: float
    p: float | None
    n: int
    zeros: int = 0

    def __str__(self) -> str:
        if self.p is None:
            return "no difference" if self.zeros else "-"
        if self.n > EXACT:
            return f"p ≈ {self.p:.3g} (n={self.n}, normal approximation)"
        return f"p = {self.p:.3g} (n={self.n})"

    @property
    def least_p(self) -> float:
        """The smallest p that so many differences can have: that of all with the same sign."""
        return min(1.0, 2 / 2**self.n)


def signed_rank(differences: Sequence[float]) -> SignedRank:
    """Wilcoxon's signed-rank test of paired differences, such as those of two methods on several
    question sets.

    The p-value is exact, also with ties: it counts all 2ⁿ assignments of signs to the ranks, of
    which equal absolute differences share the mean one. Differences of 0 are left out, as by
    Wilcoxon. With fewer than six differences p cannot be below 0.05. With more than `EXACT` it is
    that of the normal distribution with the same mean and variance, Σ rank / 2 and Σ rank² / 4.

    VERITAS, section 5.1, with n = 7 sets and p = 0.05. scipy's exact p-value takes no ties, and
    scipy is larger than a core install.

    Raises `DataError` for a difference that is not a finite number.

    Example:
        >>> print(signed_rank([0.01, 0.02, 0.03, 0.04, 0.05, 0.06, 0.07]))
        p = 0.0156 (n=7)
    """
    data = np.asarray(differences, dtype=np.float64)
    if not np.isfinite(data).all():
        raise DataError("a difference is not a finite number; leave out what has no value")
    # Differences that rounding alone sets apart are equal
    rounded = np.round(data, 12)
    nonzero = rounded[rounded != 0]
    n = len(nonzero)
    zeros = len(data) - n
    if not n:
        return SignedRank(0.0, None, 0, zeros)
    # Twice the ranks, since a mean rank may end in a half and the exact p counts whole numbers
    twice_ranks = _twice_ranks(np.abs(nonzero))
    positive = int(twice_ranks[nonzero > 0].sum())
    negative = int(twice_ranks.sum()) - positive
    smaller = min(positive, negative)
    p = _exact_p(twice_ranks, smaller) if n <= EXACT else _normal_p(twice_ranks, smaller)
    return SignedRank(smaller / 2, p, n, zeros)


def _exact_p(twice_ranks: np.ndarray, smaller: int) -> float:
    """The share of assignments of signs whose sum is as far from the mean as `smaller`, which is
    twice a sum of ranks.
    """
    total = int(twice_ranks.sum())
    # The share of assignments by twice their sum of positive ranks. Counts would overflow.
    shares = np.zeros(total + 1)
    shares[0] = 1.0
    for rank in twice_ranks:
        # Half of the assignments give this rank a minus, and half a plus, which adds it to the sum
        shares /= 2
        with_plus = shares[: total + 1 - rank]
        shares[rank:] = shares[rank:] + with_plus
    tail = float(shares[: smaller + 1].sum())
    return min(1.0, 2 * tail)


def _normal_p(twice_ranks: np.ndarray, smaller: int) -> float:
    """As `_exact_p`, by the normal approximation."""
    ranks = twice_ranks / 2
    mean = float(ranks.sum()) / 2
    deviation = math.sqrt(float((ranks**2).sum()) / 4)
    distance = mean - smaller / 2
    return math.erfc(distance / deviation / math.sqrt(2))


def _twice_ranks(values: np.ndarray) -> np.ndarray:
    """Twice the rank of each value, counted from 1; equal values share the mean rank."""
    _, place, count = np.unique(values, return_inverse=True, return_counts=True)
    last_rank = np.cumsum(count)
    first_rank = last_rank - count + 1
    return (first_rank + last_rank)[place]


def p_value(difference: Estimate) -> float | None:
    """The two-sided p-value of a paired difference: below 0.05 where its interval leaves out 0.
    `None` without a value, an interval or a standard error.
    """
    value, low, high = difference.value, difference.low, difference.high
    stderr = difference.stderr
    if value is None or low is None or high is None or stderr is None:
        return None
    if stderr == 0:
        return 1.0 if low <= 0 <= high else 0.0
    freedom = max(1, difference.n - 1)
    half = t_quantile(0.975, freedom) * stderr
    # An interval is cut at the bounds of its metric, first at the end that is farther from 0
    middle = low + half if low + high > 0 else high - half
    distance = abs(middle)
    if low <= 0 <= high:
        # Where both ends are cut, this middle is wrong; the smaller distance has the larger p
        distance = min(distance, abs(value))
    return 1 - t_within(distance / stderr, freedom)


def holm(p_values: Mapping[Name, float]) -> dict[Name, float]:
    """The p-values after Holm's correction (Holm 1979): with k of them, the smallest is multiplied
    by k, the next one by k - 1, and none is smaller than the one before it.

    If those below 0.05 are marked, the probability that any of them is marked by chance is at most
    0.05, however the p-values depend on each other.

    Example:
        >>> holm({"em": 0.01, "f1": 0.04, "calls": 0.03})
        {'em': 0.03, 'f1': 0.06, 'calls': 0.06}
    """
    corrected: dict[Name, float] = {}
    largest = 0.0
    rising = sorted(p_values, key=lambda name: p_values[name])
    for place, name in enumerate(rising):
        remaining = len(p_values) - place
        largest = max(largest, min(1.0, remaining * p_values[name]))
        corrected[name] = largest
    return {name: corrected[name] for name in p_values}


def clear_after_holm(differences: Mapping[Name, Estimate]) -> Iterable[Name]:
    """The names of the differences that are below 0.05 after Holm's correction over all of them."""
    p_values = {}
    for name, difference in differences.items():
        p = p_value(difference)
        if p is not None:
            p_values[name] = p
    return [name for name, p in holm(p_values).items() if p < LEVEL]
