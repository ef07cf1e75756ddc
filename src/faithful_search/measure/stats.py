"""Means and other statistics with their intervals: no number without its n."""

import math
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from statistics import NormalDist
from typing import Any

import msgspec
import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..errors import DataError

Floats = NDArray[np.float64]
Clusters = Sequence[Hashable] | NDArray[np.int64]  # the question of each row, by name, or by number
Columns = Mapping[Any, Sequence[float] | Floats]
"""What is summed, by name: a number a rollout. A rollout with nothing but zeros says nothing and is left out."""
Function = Callable[[Mapping[Any, Floats]], Floats]
"""Maps the columns' sums in each draw to (draws,); NaN where it is undefined."""
DRAWS = 2000
_CELLS = 4_000_000  # of a block of resamples: 32 MB


class Estimate(msgspec.Struct, frozen=True):
    """A statistic, its confidence interval, and the number of independent units (questions) behind it.

    `None` where there is nothing to compute from: `value` with n = 0; `low`, `high` and `stderr` where n is too small.
    `not_applicable` counts the rollouts that the measure says nothing about, `abstained` those without a verdict.
    """

    value: float | None
    low: float | None
    high: float | None
    n: int
    stderr: float | None
    not_applicable: int = 0
    abstained: int = 0

    def __str__(self) -> str:
        if self.value is None:
            return f"- (n={self.n})"
        band = (
            "" if self.low is None or self.high is None else f" [{self.low:.3f}, {self.high:.3f}]"
        )
        return f"{self.value:.3f}{band} (n={self.n})"


NOTHING = Estimate(None, None, None, 0, None)
MISSING = 0.1  # of the rows may a judge leave open before the others' mean is no longer given


def left_out(estimate: Estimate, rows: int, not_applicable: int, abstained: int) -> Estimate:
    """The estimate over `rows` rows with what was left out of it.

    It has no value when judges left open more than a tenth of the rows: some rows need no judge (an exact match, a
    search without a thought), so that what an outage leaves is a biased sample.
    """
    if abstained > MISSING * (rows + abstained):
        estimate = msgspec.structs.replace(NOTHING, n=estimate.n)
    return msgspec.structs.replace(estimate, not_applicable=not_applicable, abstained=abstained)


def mean_ci(
    values: Sequence[float] | Floats,
    clusters: Clusters | None = None,
    bounds: tuple[float, float] | None = None,
) -> Estimate:
    """The mean with its 95 % interval.

    ```
    shares (all values 0 or 1):  Wilson's score interval
    anything else:               mean ± t_{n-1} · s / √n, cut at `bounds`
    ```

    `clusters` are the question of each value: rollouts of a question are averaged first and n counts questions.
    `bounds` are what the values can be. Anything but (0, 1) says that zeros and ones are not shares.

    Example:
        >>> print(mean_ci([1, 1, 1, 0]))
        0.750 [0.301, 0.954] (n=4)
    """
    data = _finite(values)
    if clusters is not None:
        unit = numbered(clusters)
        data = np.bincount(unit, data) / np.bincount(unit)
    if not data.size:
        return NOTHING
    n, mean = len(data), float(data.mean())
    # Student's interval of all zeros or all ones has no width, however few there are; Wilson's has
    if bounds in (None, (0, 1)) and np.isin(data, (0.0, 1.0)).all():
        z = NormalDist().inv_cdf(0.975)
        middle = (mean + z * z / (2 * n)) / (1 + z * z / n)
        half = z / (1 + z * z / n) * math.sqrt(mean * (1 - mean) / n + z * z / (4 * n * n))
        # exactly 0 and 1 at the ends, where rounding would leave a little more or less
        low, high = (0.0 if mean == 0 else middle - half), (1.0 if mean == 1 else middle + half)
        return Estimate(mean, low, high, n, math.sqrt(mean * (1 - mean) / n))
    if n == 1:
        return Estimate(mean, None, None, 1, None)
    stderr = float(data.std(ddof=1)) / math.sqrt(n)
    half = t_quantile(0.975, n - 1) * stderr
    least, most = bounds or (-math.inf, math.inf)
    return Estimate(mean, max(least, mean - half), min(most, mean + half), n, stderr)


def question_means(
    questions: Sequence[Hashable], values: Sequence[float | None]
) -> dict[Hashable, float]:
    """The mean value of each question, in order of appearance; values that are `None` are left out."""
    groups: dict[Hashable, list[float]] = defaultdict(list)
    for question, value in zip(questions, values, strict=True):
        if value is not None:
            groups[question].append(value)
    return {question: math.fsum(group) / len(group) for question, group in groups.items()}


def paired_difference(a: Mapping[Hashable, float], b: Mapping[Hashable, float]) -> Estimate:
    """Mean of b - a over the questions that both have, with its paired bootstrap interval."""
    return bootstrap([b[question] - a[question] for question in a if question in b])


def bootstrap(
    features: ArrayLike,
    statistic: Callable[[Floats], Floats] | None = None,
    clusters: Clusters | None = None,
    draws: int = DRAWS,
    seed: int = 0,
) -> Estimate:
    """Percentile bootstrap of a statistic that is a function of sums over the resampled rows.

    `features` are (n,) or (n, k), one row a rollout: its value, its calls of each tool, …. `statistic` maps the sums of
    each draw, (draws, k), to (draws,); draws where it is NaN are left out. The default is the mean of the first column.
    `clusters` are the question of each row; questions, not rows, are resampled.
    """
    rows = _finite(features)
    if not rows.size:
        return NOTHING
    rows = rows[:, None] if rows.ndim == 1 else rows
    if statistic is None:
        rows, statistic = (
            np.column_stack([rows[:, 0], np.ones(len(rows))]),
            lambda sums: sums[:, 0] / sums[:, 1],
        )
    if clusters is not None:
        unit = numbered(clusters)
        sums = np.zeros((unit.max() + 1, rows.shape[1]))
        np.add.at(sums, unit, rows)
        rows = sums
    value = float(statistic(rows.sum(axis=0, keepdims=True))[0])
    # a draw is how often each row was picked, so that all draws are one matrix product
    blocks = (statistic(weights @ rows) for weights in resampled(len(rows), draws, seed))
    return percentile_interval(value, blocks, len(rows))


def numbered(names: Clusters) -> NDArray[np.int64]:
    """The number of each name, counted in order of first appearance: b, a, b are 0, 1, 0."""
    if isinstance(names, np.ndarray):
        _, first, number = np.unique(names, return_index=True, return_inverse=True)
        return np.argsort(np.argsort(first))[number]
    numbers: dict[Hashable, int] = {}
    return np.array([numbers.setdefault(name, len(numbers)) for name in names], dtype=np.int64)


def resampled(n: int, draws: int = DRAWS, seed: int = 0) -> Iterator[Floats]:
    """How often each of `n` units is drawn in each resample: blocks of (some draws, n), together `draws` of them."""
    rng = np.random.default_rng(seed)
    block = max(1, _CELLS // n)
    for start in range(0, draws, block):
        count = min(block, draws - start)
        picked = rng.integers(n, size=(count, n)) + n * np.arange(count)[:, None]
        yield np.bincount(picked.ravel(), minlength=count * n).reshape(count, n).astype(np.float64)


def percentile_interval(value: float, blocks: Iterable[Floats], n: int) -> Estimate:
    """`value` with the 95 % interval that its resamples span, those that are NaN left out; none with a single unit, or
    fewer than two resamples. A value that is NaN becomes `None`.
    """
    if math.isnan(value):
        return Estimate(None, None, None, n, None)
    drawn = np.concatenate(list(blocks)) if n > 1 else np.zeros(0)
    drawn = drawn[~np.isnan(drawn)]
    if len(drawn) < 2:
        return Estimate(value, None, None, n, None)
    low, high = np.quantile(drawn, [0.025, 0.975])
    return Estimate(value, float(low), float(high), n, float(drawn.std(ddof=1)))


def pooled_estimate(columns: Columns, function: Function, questions: Clusters) -> Estimate:
    """The function of all rollouts' sums with its bootstrap interval; n counts the questions that say something."""
    table = as_table(columns, list(columns), len(questions))
    used: NDArray[np.bool_] = np.any(table, axis=1)
    estimate = bootstrap(
        table[used], lambda sums: function(by_name(columns, sums)), numbered(questions)[used]
    )
    return msgspec.structs.replace(estimate, not_applicable=int((~used).sum()))


def pooled_difference(
    first: Columns,
    second: Columns,
    function: Function,
    asked: tuple[Sequence[Hashable], Sequence[Hashable]],
) -> Estimate:
    """second - first over the questions that both were `asked`, which are resampled for both alike; n counts those that
    say something in either.
    """
    keys, questions = list({**first, **second}), [*asked[0], *asked[1]]
    left, right = as_table(first, keys, len(asked[0])), as_table(second, keys, len(asked[1]))
    # columns of its own for each side, so that one draw of questions sums both
    table = np.block([[left, np.zeros_like(left)], [np.zeros_like(right), right]])
    telling = {question for question, row in zip(questions, table, strict=True) if row.any()}
    shared = telling.intersection(*asked)
    kept = [place for place, question in enumerate(questions) if question in shared]

    def change(sums: Floats) -> Floats:
        before, after = np.split(sums, 2, axis=1)
        return function(by_name(keys, after)) - function(by_name(keys, before))

    return bootstrap(table[kept], change, [questions[place] for place in kept])


def as_table(columns: Columns, keys: Sequence[Any], rows: int) -> Floats:
    nothing = np.zeros(rows)
    return (
        np.array([columns.get(key, nothing) for key in keys], dtype=np.float64)
        .reshape(len(keys), rows)
        .T
    )


def by_name(keys: Iterable[Any], sums: Floats) -> dict[Any, Floats]:
    return dict(zip(keys, sums.T, strict=True))


def t_quantile(p: float, df: int) -> float:
    """Quantile of Student's t: closed forms for 1 and 2 degrees of freedom, else an expansion in 1/df (to 0.2 %)."""
    # scipy, for this alone, would be larger than the rest of a core install
    if df == 1:
        return math.tan(math.pi * (p - 0.5))
    if df == 2:
        return (2 * p - 1) * math.sqrt(2 / (4 * p * (1 - p)))
    z = NormalDist().inv_cdf(p)
    terms = (
        z,
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
        (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / 92160,
    )
    return sum(term / df**power for power, term in enumerate(terms))


def divided(above: Floats, below: Floats) -> Floats:
    """The quotients; NaN where `below` is not positive."""
    return np.divide(above, below, out=np.full_like(above, np.nan), where=below > 0)


def _finite(values: ArrayLike) -> Floats:
    data = np.asarray(values, dtype=np.float64)
    if not np.isfinite(data).all():
        raise DataError(
            "a value is not a finite number; leave out what does not apply before taking a mean"
        )
    return data
