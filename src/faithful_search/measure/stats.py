"""Means and other statistics, each with its interval and the number of questions that it rests
on.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from statistics import NormalDist
from typing import Any, NamedTuple

import msgspec
import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..errors import DataError

Floats = NDArray[np.float64]
Clusters = Sequence[Hashable] | NDArray[np.int64]
"""The question of each row, by its name or its number."""
Columns = Mapping[Any, Sequence[float] | Floats]
"""The values that a statistic sums up, by name: one for each rollout. A rollout whose values are
all zeros is left out.
"""
Function = Callable[[Mapping[Any, Floats]], Floats]
"""A statistic of columns: takes their sums in each draw, of shape (draws,), and returns its values,
of the same shape; NaN where it is undefined.
"""
Extremes = Callable[[Mapping[Any, float]], Sequence[Mapping[Any, float]]]
"""Takes the mean of each column over questions, and returns the columns of made-up questions at
both ends of a statistic: with as many calls or verdicts, all of one kind.
"""
FEW_DEPART = 6
"""With fewer questions that differ from the typical one, these made-up questions count as well."""
_DEPARTS = 0.05  # of how far the made-up ones lie from the typical question
UNBOUNDED = (-math.inf, math.inf)
DRAWS = 2000
_CELLS = 4_000_000  # the largest number of cells in a block of resamples: 32 MB


class Estimate(msgspec.Struct, frozen=True):
    """A statistic with its 95 % confidence interval.

    Attributes:
        value: `None` with n = 0, and where a judge abstained too often.
        low, high: the interval; `None` if n is too small for one.
        n: the number of independent units, which are questions.
        stderr: the standard error; `None` if n is too small for one.
        not_applicable: the number of rollouts that the metric does not apply to.
        abstained: the number of rollouts without a verdict of the judge.
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
        band = ""
        if self.low is not None and self.high is not None:
            band = f" [{self.low:.3f}, {self.high:.3f}]"
        return f"{self.value:.3f}{band} (n={self.n})"


NOTHING = Estimate(value=None, low=None, high=None, n=0, stderr=None)
MOST_ABSTAINED = 0.1
"""If a judge abstains from a larger share of the rows, the mean of the others is not given."""


def left_out(estimate: Estimate, rows: int, not_applicable: int, abstained: int) -> Estimate:
    """The estimate over `rows` rows, with the numbers of the rows that were left out of it.

    It has no value when judges abstained from more than a tenth of the rows. Some rows need no
    judge (an exact match, a search without a thought), so that the rows that an outage leaves are a
    biased sample.
    """
    if abstained > MOST_ABSTAINED * (rows + abstained):
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

    `clusters` are the questions of the values: values of a question are averaged first, and n
    counts questions. Where the N values are 0 or 1, s / √n is at least √(mean (1 - mean) / N), what
    N independent values would have: half of the values right in every question is no certainty.
    Such an interval is cut at 0 and 1.
    `bounds` are the lowest and the highest possible value. With other bounds than (0, 1), zeros and
    ones are not taken for shares.

    Example:
        >>> print(mean_ci([1, 1, 1, 0]))
        0.750 [0.301, 0.954] (n=4)
    """
    rows = _finite(values)
    units = rows
    if clusters is not None:
        unit = numbered(clusters)
        units = np.bincount(unit, rows) / np.bincount(unit)
    if not units.size:
        return NOTHING
    n = len(units)
    mean = float(units.mean())
    takes_shares = bounds in (None, (0, 1))
    # With only zeros or only ones Student's interval would have no width, but Wilson's has one
    if takes_shares and are_shares(units):
        low, high = wilson(mean, n)
        return Estimate(mean, low, high, n, math.sqrt(mean * (1 - mean) / n))
    if n == 1:
        return Estimate(mean, None, None, 1, None)
    stderr = float(units.std(ddof=1)) / math.sqrt(n)
    if takes_shares and are_shares(rows):
        stderr = max(stderr, math.sqrt(mean * (1 - mean) / len(rows)))
        bounds = (0.0, 1.0)
    return _student(mean, stderr, n, bounds)


def are_shares(values: Floats) -> bool:
    """Whether all values are 0 or 1, so that their mean is a share."""
    return bool(np.isin(values, (0.0, 1.0)).all())


def wilson(share: float, n: float) -> tuple[float, float]:
    """Wilson's 95 % score interval of a share of `n` independent units (Wilson 1927)."""
    z = NormalDist().inv_cdf(0.975)
    shrinkage = 1 + z * z / n
    middle = (share + z * z / (2 * n)) / shrinkage
    variance = share * (1 - share) / n + z * z / (4 * n * n)
    half = z / shrinkage * math.sqrt(variance)
    # Exactly 0 and 1 at the ends, which rounding would miss by a little
    low = 0.0 if share == 0 else middle - half
    high = 1.0 if share == 1 else middle + half
    return low, high


def _student(
    value: float, stderr: float, n: int, bounds: tuple[float, float] | None = None
) -> Estimate:
    """`value ± t_{n-1} · stderr`, cut at the bounds."""
    half = t_quantile(0.975, n - 1) * stderr
    least, most = bounds or (-math.inf, math.inf)
    low = max(least, value - half)
    high = min(most, value + half)
    return Estimate(value, low, high, n, stderr)


def question_means(
    questions: Sequence[Hashable], values: Sequence[float | None]
) -> dict[Hashable, float]:
    """The mean value of each question, in order of appearance, without values that are `None`."""
    groups: dict[Hashable, list[float]] = defaultdict(list)
    for question, value in zip(questions, values, strict=True):
        if value is not None:
            groups[question].append(value)
    return {question: math.fsum(group) / len(group) for question, group in groups.items()}


def paired_difference(
    a: Mapping[Hashable, float], b: Mapping[Hashable, float], smallest: float | None = None
) -> Estimate:
    """Mean of b - a over the questions that both have, with the interval of `difference_ci`.

    Example:
        >>> print(paired_difference({"q1": 0.2, "q2": 0.4}, {"q1": 0.5, "q2": 0.6}))
        0.250 [-0.385, 0.885] (n=2)
    """
    differences = [b[question] - a[question] for question in a if question in b]
    return difference_ci(differences, smallest)


def difference_ci(differences: Sequence[float] | Floats, smallest: float | None = None) -> Estimate:
    """The mean of paired differences, one for each question, with its 95 % interval.

    ```
    differences of shares:  Student's interval of the differences and of two more, 1 and -1
    anything else:          mean ± t_{n-1} · s / √n
    ```

    Differences of zeros and ones are -1, 0 or 1. Often nearly all of them are 0, so that chance may
    show too few of the others: two made-up ones correct that (Bonett and Price 2012). The mean is
    that of the real ones.

    Args:
        differences: of shape (questions,).
        smallest: the smallest difference between two shares that is not 0; the made-up ones have
            this size. By default 1 if all differences are -1, 0 or 1, else they are not of shares.
    """
    data = _finite(differences)
    n = len(data)
    if not n:
        return NOTHING
    # Rounded, since differences of means that are the same may miss 0 by a little
    if smallest is None and np.isin(data.round(12), (-1.0, 0.0, 1.0)).all():
        smallest = 1.0
    mean = float(data.mean())
    if smallest is not None:
        padded = np.append(data, (smallest, -smallest))
        middle = float(padded.mean())
        stderr = float(padded.std()) / math.sqrt(n + 2)
        half = t_quantile(0.975, max(n - 1, 1)) * stderr
        low = max(-1.0, middle - half)
        high = min(1.0, middle + half)
        return Estimate(mean, low, high, n, stderr)
    if n == 1:
        return Estimate(mean, None, None, 1, None)
    stderr = float(data.std(ddof=1)) / math.sqrt(n)
    return _student(mean, stderr, n)


def bootstrap(
    features: ArrayLike,
    statistic: Callable[[Floats], Floats] | None = None,
    clusters: Clusters | None = None,
    draws: int = DRAWS,
    seed: int = 0,
) -> Estimate:
    """Percentile bootstrap of a statistic that is a function of sums over the resampled rows.

    Args:
        features: of shape (n,) or (n, k), one row for each rollout, such as its value, or its calls
            of each tool.
        statistic: maps the sums of each draw, (draws, k), to values, (draws,). Draws where it is
            NaN are left out. By default it is the mean of the first column.
        clusters: the question of each row. Questions are resampled, not rows.
        draws: the number of resamples.
        seed: of the resamples.
    """
    rows = _finite(features)
    if not rows.size:
        return NOTHING
    if rows.ndim == 1:
        rows = rows[:, None]
    if statistic is None:
        rows = np.column_stack([rows[:, 0], np.ones(len(rows))])
        statistic = _ratio
    if clusters is not None:
        rows = sums_by_unit(rows, numbered(clusters))
    value = float(statistic(rows.sum(axis=0, keepdims=True))[0])
    # A draw is the number of times that each row was picked, so that all draws are one product
    blocks = (statistic(weights @ rows) for weights in resampled(len(rows), draws, seed))
    return percentile_interval(value, blocks, len(rows))


def _ratio(sums: Floats) -> Floats:
    return sums[:, 0] / sums[:, 1]


def numbered(names: Clusters) -> NDArray[np.int64]:
    """The number of each name, counted in order of first appearance: b, a, b are 0, 1, 0."""
    if isinstance(names, np.ndarray):
        _, first_places, number_when_sorted = np.unique(
            names, return_index=True, return_inverse=True
        )
        number_by_appearance = np.argsort(np.argsort(first_places))
        return number_by_appearance[number_when_sorted]
    numbers: dict[Hashable, int] = {}
    return np.array([numbers.setdefault(name, len(numbers)) for name in names], dtype=np.int64)


def resampled(n: int, draws: int = DRAWS, seed: int = 0) -> Iterator[Floats]:
    """Yield how often each of `n` units is drawn, in blocks of shape (some draws, n) that have
    `draws` rows together.
    """
    rng = np.random.default_rng(seed)
    block = max(1, _CELLS // n)
    for start in range(0, draws, block):
        count = min(block, draws - start)
        picked = rng.integers(n, size=(count, n))
        # Each draw counts in cells of its own, so that one `bincount` does for the block
        cells = picked + n * np.arange(count)[:, None]
        times = np.bincount(cells.ravel(), minlength=count * n)
        yield times.reshape(count, n).astype(np.float64)


def percentile_interval(value: float, blocks: Iterable[Floats], n: int) -> Estimate:
    """The value with the 95 % interval of its resamples, without those that are NaN.

    There is no interval with a single unit, or fewer than two resamples. A value that is NaN
    becomes `None`.
    """
    if math.isnan(value):
        return msgspec.structs.replace(NOTHING, n=n)
    without_interval = msgspec.structs.replace(NOTHING, n=n, value=value)
    if n < 2:
        return without_interval
    resamples = np.concatenate(list(blocks))
    resamples = resamples[~np.isnan(resamples)]
    if len(resamples) < 2:
        return without_interval
    low, high = np.quantile(resamples, [0.025, 0.975])
    return Estimate(
        value=value, low=float(low), high=float(high), n=n, stderr=float(resamples.std(ddof=1))
    )


class Pooled(NamedTuple):
    """A statistic that is no mean but a function of sums over all rollouts.

    Attributes:
        function: of the sums.
        extremes: made-up questions for rows that are nearly all alike.
        bounds: the lowest and the highest possible value.
    """

    function: Function
    extremes: Extremes
    bounds: tuple[float, float]

    def of_tables(self, keys: Iterable[Any]) -> Callable[[Floats], Floats]:
        """The function for sums in a table, (draws, k), whose columns have these keys."""
        names = list(keys)

        def function(sums: Floats) -> Floats:
            return self.function(by_name(names, sums))

        return function


def pooled_estimate(columns: Columns, pooled: Pooled, questions: Clusters) -> Estimate:
    """The statistic of all rollouts, with the interval of its jackknife over questions, cut off at
    its bounds. n counts the questions of rollouts whose values are not all zeros.
    """
    sums, not_applicable = _sums_by_question(columns, questions)
    if not len(sums):
        return msgspec.structs.replace(NOTHING, not_applicable=not_applicable)
    made_up = _made_up(columns, sums, pooled.extremes)
    estimate = _jackknifed(sums, made_up, pooled.of_tables(columns))
    least, most = pooled.bounds
    return msgspec.structs.replace(cut(estimate, least, most), not_applicable=not_applicable)


def are_nearly_alike(columns: Columns, pooled: Pooled, questions: Clusters) -> bool:
    """Whether so few questions differ from the typical one that `pooled_estimate` counts made-up
    questions as well.
    """
    sums, _ = _sums_by_question(columns, questions)
    if len(sums) < 2:
        return False
    statistic = pooled.of_tables(columns)
    made_up = _made_up(columns, sums, pooled.extremes)
    _, pseudo_values = jackknife(sums, statistic)
    _, padded = jackknife(np.vstack([sums, made_up]), statistic)
    return _few_depart(pseudo_values, padded[len(sums) :])


def _sums_by_question(columns: Columns, questions: Clusters) -> tuple[Floats, int]:
    """The sums of each question's rollouts, without those whose values are all zeros, and how many
    these are.
    """
    table = as_table(columns, list(columns), len(questions))
    used_rows = np.flatnonzero(np.any(table, axis=1))
    # Numbered without the others, so that it does not matter in which order they stand
    questions_of_used = [questions[row] for row in used_rows.tolist()]
    sums = sums_by_unit(table[used_rows], numbered(questions_of_used))
    return sums, len(table) - len(used_rows)


def pooled_difference(
    first: Columns,
    second: Columns,
    pooled: Pooled,
    questions_of_sides: tuple[Sequence[Hashable], Sequence[Hashable]],
) -> Estimate:
    """The statistic of the second columns minus that of the first, over the questions of both.

    The jackknife leaves a question out of both. n counts the shared questions with a value other
    than zero on either side.
    """
    first_questions, second_questions = questions_of_sides
    keys = list({**first, **second})
    left = as_table(first, keys, len(first_questions))
    right = as_table(second, keys, len(second_questions))
    # Each side has columns of its own, so that one sum over questions holds both
    table = np.block([[left, np.zeros_like(left)], [np.zeros_like(right), right]])
    questions = [*first_questions, *second_questions]
    with_values = {question for question, row in zip(questions, table, strict=True) if row.any()}
    shared = with_values.intersection(first_questions, second_questions)
    places = [place for place, question in enumerate(questions) if question in shared]
    if not places:
        return NOTHING
    units = numbered([questions[place] for place in places])
    sums = sums_by_unit(table[places], units)

    statistic = pooled.of_tables(keys)

    def change(sums: Floats) -> Floats:
        before, after = np.split(sums, 2, axis=1)
        return statistic(after) - statistic(before)

    made_up = _made_up_changes(keys, sums, pooled.extremes)
    least, most = pooled.bounds
    return cut(_jackknifed(sums, made_up, change), least - most, most - least)


def _made_up_changes(keys: Sequence[Any], sums: Floats, extremes: Extremes) -> Floats:
    """The made-up questions beside those with these sums of both sides, (some, 2 k): some change
    from the mean question to each extreme one, the others from each extreme one to the mean.
    """
    before, after = np.split(sums, 2, axis=1)
    extremes_before = _made_up(keys, before, extremes)
    extremes_after = _made_up(keys, after, extremes)
    means_before = np.tile(before.mean(axis=0), (len(extremes_after), 1))
    means_after = np.tile(after.mean(axis=0), (len(extremes_before), 1))
    to_extremes = np.hstack([means_before, extremes_after])
    to_means = np.hstack([extremes_before, means_after])
    return np.vstack([to_extremes, to_means])


def _made_up(keys: Iterable[Any], sums: Floats, extremes: Extremes) -> Floats:
    """The made-up questions beside those with these sums, (some, k)."""
    names = list(keys)
    means = dict(zip(names, sums.mean(axis=0), strict=True))
    rows = []
    for question in extremes(means):
        rows.append([question.get(name, 0.0) for name in names])
    return np.array(rows).reshape(len(rows), len(names))


def _jackknifed(sums: Floats, made_up: Floats, statistic: Callable[[Floats], Floats]) -> Estimate:
    """A statistic of the sums of all questions, (questions, k), with the interval of Student's t of
    its pseudo-values. There is no interval where it rests on a single question.

    Where nearly all questions are alike, chance may show too few of the others, or none, and the
    interval would have no width. The made-up questions, (some, k), then count as well, as in
    `difference_ci`; the value is that of the real ones.
    """
    n = len(sums)
    value, pseudo_values = jackknife(sums, statistic)
    if math.isnan(value):
        return msgspec.structs.replace(NOTHING, n=n)
    if n == 1 or np.isnan(pseudo_values).any():
        return msgspec.structs.replace(NOTHING, n=n, value=value)
    middle, padded = jackknife(np.vstack([sums, made_up]), statistic)
    if not _few_depart(pseudo_values, padded[n:]):
        stderr = float(pseudo_values.std(ddof=1)) / math.sqrt(n)
        return _student(value, stderr, n)
    stderr = float(padded.std(ddof=1)) / math.sqrt(len(padded))
    half = t_quantile(0.975, n - 1) * stderr
    # The interval is around the value with the made-up ones, and has to hold the real one
    low = min(value, middle - half)
    high = max(value, middle + half)
    return Estimate(value, low, high, n, stderr)


def _few_depart(pseudo_values: Floats, made_up: Floats) -> bool:
    """Whether fewer than `FEW_DEPART` questions differ from the typical one, measured by how far
    the made-up ones lie from it.
    """
    typical = np.median(pseudo_values)
    farthest = float(np.abs(made_up - typical).max())
    departing = np.abs(pseudo_values - typical) > _DEPARTS * farthest
    return bool(departing.sum() < FEW_DEPART)


def cut(estimate: Estimate, least: float, most: float) -> Estimate:
    """The estimate with its interval cut at these bounds."""
    if estimate.low is None or estimate.high is None:
        return estimate
    low = max(estimate.low, least)
    high = min(estimate.high, most)
    return msgspec.structs.replace(estimate, low=low, high=high)


def jackknife(sums: Floats, statistic: Callable[[Floats], Floats]) -> tuple[float, Floats]:
    """A statistic of the sums over n questions, (n, k), and its pseudo-values, (n,): n times the
    statistic minus n - 1 times that without the question. Their deviation is that of a mean's
    values (Tukey 1958).
    """
    n = len(sums)
    total = sums.sum(axis=0, keepdims=True)
    value = float(statistic(total)[0])
    without_question = statistic(total - sums)
    return value, n * value - (n - 1) * without_question


def sums_by_unit(rows: Floats, unit: NDArray[np.int64]) -> Floats:
    """The sums of the rows, (rows, k), of each unit, (units, k)."""
    sums = np.zeros((unit.max(initial=-1) + 1, rows.shape[1]))
    np.add.at(sums, unit, rows)
    return sums


def as_table(columns: Columns, keys: Sequence[Any], rows: int) -> Floats:
    """The columns with these keys as a table of shape (rows, keys); zeros for one that is
    missing.
    """
    zeros = np.zeros(rows)
    table = np.array([columns.get(key, zeros) for key in keys], dtype=np.float64)
    return table.reshape(len(keys), rows).T


def by_name(keys: Iterable[Any], sums: Floats) -> dict[Any, Floats]:
    """The columns of a table of sums, by their keys."""
    return dict(zip(keys, sums.T, strict=True))


@lru_cache(maxsize=1024)
def t_quantile(p: float, df: float) -> float:
    """The quantile of Student's t, for at least one degree of freedom."""
    if p < 0.5:
        return -t_quantile(1 - p, df)
    # By bisection, since scipy would be larger than the rest of a core install
    within = 2 * p - 1
    low, high = 0.0, 1.0
    while t_within(high, df) < within:
        low, high = high, 2 * high
    for _ in range(60):
        middle = (low + high) / 2
        if t_within(middle, df) < within:
            low = middle
        else:
            high = middle
    return high


def t_within(t: float, df: float) -> float:
    """The probability that Student's t lies between -t and t, for at least one degree of freedom.

    ```
    P(|T| ≤ t) = 2 / B(1/2, df/2) · ∫ cos(x)^(df-1) dx,     x from 0 to arctan(t / √df)
    ```

    Example:
        >>> round(t_within(2.776445, 4), 6)
        0.95
    """
    nodes, weights = _legendre()
    largest_angle = math.atan2(t, math.sqrt(df))
    angles = largest_angle * (nodes + 1) / 2  # of nodes between -1 and 1
    integral = largest_angle / 2 * float(weights @ np.cos(angles) ** (df - 1))
    log_beta = math.lgamma(0.5) + math.lgamma(df / 2) - math.lgamma((df + 1) / 2)
    return min(1.0, 2 * integral * math.exp(-log_beta))


@lru_cache(maxsize=1)
def _legendre() -> tuple[Floats, Floats]:
    nodes, weights = np.polynomial.legendre.leggauss(96)
    return nodes, weights


def divided(above: Floats, below: Floats) -> Floats:
    """`above / below`, and NaN where `below` is not positive."""
    return np.divide(above, below, out=np.full_like(above, np.nan), where=below > 0)


def _finite(values: ArrayLike) -> Floats:
    data = np.asarray(values, dtype=np.float64)
    if not np.isfinite(data).all():
        raise DataError(
            "a value is not a finite number; leave out what does not apply before taking a mean"
        )
    return data
