"""What training runs with several seeds come to, with intervals for new seeds and new questions.

All runs answer the same Q questions, so that each value belongs to one of S runs and to one
question: a crossed design with two random factors.

```
A = s²(means of runs) / S           what differs between runs
B = s²(means of questions) / Q      what differs between questions
C = s²(residuals) / (S Q)           what neither explains; it is a part of A and of B, too
E = max(0, A - C)                   what seeds add

half of the interval = the wider of
                     √( (t_{S-1} √E)² + (half of the questions' own interval)² )     (MOVER)
                and  t_df √(B + E),   df = (B + E)² / (A²/(S-1) + B²/(Q-1) + C²/((S-1)(Q-1)))
```

Where E is 0, it is the questions' own interval. That one is Wilson's for shares, with as many
independent values as B implies, else Student's t of B. The first formula is short where seeds
differ about as much as chance lets them, the second where they differ much. docs/statistics.md has
the coverage of the wider one. A bootstrap of three seeds covers 0.74 where seeds differ.
"""

import math
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from ..errors import DataError
from .evaluation import POOLED, Evaluation, are_comparable, bounds_of, may_be_shares
from .sets import macro_mean
from .stats import (
    NOTHING,
    UNBOUNDED,
    Estimate,
    Floats,
    are_nearly_alike,
    are_shares,
    as_table,
    difference_ci,
    jackknife,
    mean_ci,
    pooled_estimate,
    question_means,
    sums_by_unit,
    t_quantile,
    wilson,
)

_ROUNDING = 1e-9
"""What is less than this part of a variance counts as nothing, since sums of the same values in
another order differ as much.
"""


class Crossed(NamedTuple):
    """The values of a metric by run and question.

    Attributes:
        values: of shape (runs, questions). The mean of a row is the run's value. For a `POOLED`
            result, which is not a mean over questions, they are the pseudo-values of its jackknife:
            what each question adds to the run's value.
        n: the number of questions with a value in at least one run.
        shares: whether all rollouts have the value 0 or 1, of a metric that may be a share.
        bounds: the lowest and the highest possible value of a run.
        reach: where nearly all questions of each run are alike, how far the runs' intervals reach
            below and above their values, each a mean over runs; else (0, 0). See `pooled_estimate`.
    """

    values: Floats
    n: int
    shares: bool
    bounds: tuple[float, float] = UNBOUNDED
    reach: tuple[float, float] = (0.0, 0.0)


class Spread(NamedTuple):
    """How far the runs of one side are apart.

    Attributes:
        runs: their number.
        between: the variance of their mean, estimated from how the runs' means differ: A.
        residual: how much of it is chance within the runs: C.
    """

    runs: int
    between: float
    residual: float


def over_seeds(runs: Sequence[Evaluation], metric: str) -> Estimate:
    """The mean of a result over runs that differ in their seed, with its 95 % interval.

    With one run the interval is over questions alone. `n` counts questions. There is no value where
    a run has none, nor an entropy where runs had different tools. Raises `DataError` without a run.
    """
    return macro_over_seeds([runs], metric)


def macro_over_seeds(runs_by_set: Sequence[Sequence[Evaluation]], metric: str) -> Estimate:
    """The mean over sets of questions, each with the same weight, of runs that differ in their
    seed. Each set has the evaluations of all runs, in the same order.

    Raises `DataError` where sets have different numbers of runs, or none.
    """
    counts = {len(runs) for runs in runs_by_set}
    if len(counts) != 1:
        raise DataError(
            f"sets with different numbers of runs ({sorted(counts)}) have no mean of runs: give "
            "each set the evaluations of the same runs"
        )
    if not are_comparable(chain.from_iterable(runs_by_set), metric):
        return NOTHING
    tables: list[Crossed] = []
    for runs in runs_by_set:
        table = crossed(runs, metric)
        if table is None:
            return NOTHING
        tables.append(table)
    return mean_of_sets(tables)


def difference_over_seeds(
    before: Sequence[Evaluation], after: Sequence[Evaluation], metric: str
) -> Estimate:
    """The mean of a result over the later runs minus that over the earlier ones, paired by
    question.

    Seeds of the two sides belong to different trainings, and are not paired. A side of one run,
    such as a cold start, is taken as it is: the interval then is for this start. Raises `DataError`
    without a run.
    """
    tables = _tables_of_both(before, after, metric)
    if tables is None:
        return NOTHING
    return difference_of_tables(*tables)


def change_over_seeds(
    before: Sequence[Evaluation], after: Sequence[Evaluation], metric: str
) -> Estimate:
    """The mean change of a result where each later run was trained from the earlier one at the same
    place: paired by run and by question, so that what starts differ in is no part of the interval.

    Raises `DataError` without a run, or with more of them on one side.
    """
    if len(before) != len(after):
        raise DataError(
            f"{len(before)} runs before and {len(after)} after cannot be paired: give each start "
            "the run that was trained from it, in the same order"
        )
    tables = _tables_of_both(before, after, metric)
    if tables is None:
        return NOTHING
    first, second = tables
    changes = second.values - first.values
    side = _spread(changes.mean(axis=1), _residual(changes))
    return _difference(first, second, [side])


def _tables_of_both(
    before: Sequence[Evaluation], after: Sequence[Evaluation], metric: str
) -> tuple[Crossed, Crossed] | None:
    """The values of both sides, whose columns are the same questions in the same order. `None`
    where a side has no value, or the two cannot be compared.
    """
    questions = _questions_of([*before, *after])
    first = crossed(before, metric, questions)
    second = crossed(after, metric, questions)
    if first is None or second is None or not are_comparable([*before, *after], metric):
        return None
    return first, second


def _questions_of(runs: Sequence[Evaluation]) -> dict[str, None]:
    """The questions of all runs, each once, in order of appearance."""
    return dict.fromkeys(chain.from_iterable(run.questions for run in runs))


def mean_of_sets(tables: Sequence[Crossed]) -> Estimate:
    """The mean over runs and over sets of questions, each set with the same weight. The sets have
    the same runs, in the same order.
    """
    estimates: dict[str, Estimate] = {}
    means_by_set: list[Floats] = []
    residual = 0.0
    for place, table in enumerate(tables):
        estimates[str(place)] = _over_questions(table)
        means_by_set.append(table.values.mean(axis=1))
        residual += _residual(table.values)
    spread = _spread(np.mean(means_by_set, axis=0), residual / len(tables) ** 2)
    least, most = np.mean([table.bounds for table in tables], axis=0)
    return _widened(macro_mean(estimates), [spread], (float(least), float(most)))


def difference_of_tables(first: Crossed, second: Crossed) -> Estimate:
    """The mean of the second table minus that of the first, paired by question."""
    sides: list[Spread] = []
    for table in (first, second):
        sides.append(_spread(table.values.mean(axis=1), _residual(table.values)))
    return _difference(first, second, sides)


def _difference(first: Crossed, second: Crossed, sides: Sequence[Spread]) -> Estimate:
    """The mean of the second table minus that of the first, paired by question; `sides` say what
    seeds add to its interval.
    """
    change = second.values.mean(axis=0) - first.values.mean(axis=0)
    smallest = None
    if first.shares and second.shares:
        # A mean of S values 0 or 1 changes by 1/S. Of two sides the larger step, to be on the wide
        # side
        smallest = 1 / min(len(first.values), len(second.values))
    paired = difference_ci(change, smallest)
    # A side whose questions differ has a width of its own
    if any(first.reach) and any(second.reach):
        first_below, first_above = first.reach
        second_below, second_above = second.reach
        # The difference is lowest where the second is low and the first is high
        below = math.hypot(second_below, first_above)
        above = math.hypot(second_above, first_below)
        paired = _at_least(paired, below, above)
    first_least, first_most = first.bounds
    second_least, second_most = second.bounds
    bounds = (second_least - first_most, second_most - first_least)
    estimate = _widened(paired, sides, bounds)
    return msgspec.structs.replace(estimate, n=min(first.n, second.n))


def crossed(
    runs: Sequence[Evaluation], metric: str, questions: Mapping[str, None] | None = None
) -> Crossed | None:
    """The values of a metric by run and question; `None` where a run has no value.

    `questions` are the columns of the table, in this order; by default the questions of all runs.
    """
    if not runs:
        raise DataError("no run to take a mean of")
    if questions is None:
        questions = _questions_of(runs)
    rows: list[_Row] = []
    for run in runs:
        row = _by_question(run, metric, list(questions))
        if row is None:
            return None
        rows.append(row)
    with_value = np.any([row.with_value for row in rows], axis=0)
    shares = may_be_shares(runs, metric) and all(row.shares for row in rows)
    if metric in POOLED:
        _, pooled = POOLED[metric]
        bounds = pooled.bounds
    elif shares:
        bounds = (0.0, 1.0)
    else:
        bounds = bounds_of(runs, metric)
    return Crossed(
        values=np.array([row.values for row in rows]),
        n=int(with_value.sum()),
        shares=shares,
        bounds=bounds,
        reach=_mean_reach(runs, metric),
    )


def _mean_reach(runs: Sequence[Evaluation], metric: str) -> tuple[float, float]:
    """How far the intervals of the runs reach below and above their values, as `Crossed.reach`."""
    if metric not in POOLED:
        return 0.0, 0.0
    columns_of, pooled = POOLED[metric]
    reaches: list[tuple[float, float]] = []
    for run in runs:
        columns = columns_of(run)
        if not are_nearly_alike(columns, pooled, run.questions):
            return 0.0, 0.0
        alone = pooled_estimate(columns, pooled, run.questions)
        if alone.value is None or alone.low is None or alone.high is None:
            return 0.0, 0.0
        reaches.append((alone.value - alone.low, alone.high - alone.value))
    below, above = np.mean(reaches, axis=0)
    return float(below), float(above)


def _at_least(estimate: Estimate, below: float, above: float) -> Estimate:
    """The estimate with an interval that reaches so far at least."""
    if estimate.value is None or estimate.low is None or estimate.high is None:
        return estimate
    low = min(estimate.low, estimate.value - below)
    high = max(estimate.high, estimate.value + above)
    # The standard error of which Student's interval would reach so far
    freedom = max(estimate.n - 1, 1)
    stderr_of_reach = max(below, above) / t_quantile(0.975, freedom)
    stderr = max(estimate.stderr or 0.0, stderr_of_reach)
    return msgspec.structs.replace(estimate, low=low, high=high, stderr=stderr)


class _Row(NamedTuple):
    """The values of one run: a row of `Crossed`, and which questions have a value at all."""

    values: Floats
    with_value: NDArray[np.bool_]
    shares: bool


def _by_question(run: Evaluation, metric: str, questions: Sequence[str]) -> _Row | None:
    """What each question adds to the run's value, (questions,); `None` where it has no value."""
    if metric in POOLED:
        return _pseudo_values(run, metric, questions)
    column = run.values.get(metric, [])
    if not column:
        return None
    means = question_means(run.questions, column)
    if not means:
        return None
    with_value = np.array([question in means for question in questions], dtype=np.bool_)
    values = np.array([means.get(question, 0.0) for question in questions])
    count = with_value.sum()
    mean = values.sum() / count
    # The mean of the row has to be the mean over the questions with a value: one without stands at
    # the mean, and the distances of the others from it are so much the larger
    weights = with_value * (len(questions) / count)
    weighted = mean + weights * (values - mean)
    shares = are_shares(np.array([value for value in column if value is not None]))
    return _Row(weighted, with_value, shares)


def _pseudo_values(run: Evaluation, metric: str, questions: Sequence[str]) -> _Row | None:
    """As `_by_question`, for a `POOLED` result: a function of the sums of columns over all
    rollouts.
    """
    columns_of, pooled = POOLED[metric]
    columns = columns_of(run)
    if not columns or not run.questions:
        return None
    table = as_table(columns, list(columns), len(run.questions))
    places = {question: place for place, question in enumerate(questions)}
    units = np.array([places[question] for question in run.questions])
    # Questions that only other runs were asked may come last, and their sums are zeros
    sums = np.zeros((len(questions), table.shape[1]))
    sums[: units.max() + 1] = sums_by_unit(table, units)
    value, pseudo_values = jackknife(sums, pooled.of_tables(columns))
    if math.isnan(value) or np.isnan(pseudo_values).any():
        return None
    with_value: NDArray[np.bool_] = np.any(sums, axis=1)
    # The mean of the pseudo-values differs a little from the run's value: shift them to it
    shifted = pseudo_values + value - pseudo_values.mean()
    return _Row(shifted, with_value, shares=False)


def _residual(values: Floats) -> float:
    """C: the variance of the mean of values of the shape (runs, questions) that neither seeds nor
    questions explain.
    """
    runs, questions = values.shape
    if runs < 2 or questions < 2:
        return 0.0
    means_of_questions = values.mean(axis=0)
    means_of_runs = values.mean(axis=1, keepdims=True)
    residuals = values - means_of_questions - means_of_runs + values.mean()
    freedom = (runs - 1) * (questions - 1)
    variance = float((residuals**2).sum()) / freedom
    return variance / (runs * questions)


def _spread(means_of_runs: Floats, residual: float) -> Spread:
    """How far runs with these means are apart; a single run is not apart from anything."""
    runs = len(means_of_runs)
    if runs < 2:
        return Spread(runs, 0.0, residual)
    return Spread(runs, float(means_of_runs.var(ddof=1)) / runs, residual)


def _over_questions(table: Crossed) -> Estimate:
    """The mean with its interval over questions, for these seeds."""
    means = table.values.mean(axis=0)
    if not table.shares:
        estimate = msgspec.structs.replace(mean_ci(means, bounds=UNBOUNDED), n=table.n)
        return _at_least(estimate, *table.reach)
    mean = min(max(float(means.mean()), 0.0), 1.0)
    variance = float(means.var()) / len(means)
    variance_of_a_share = mean * (1 - mean)
    # As many independent values as would give this variance: more than questions where runs differ
    independent = float(table.n)
    if variance > _ROUNDING * mean * (1 - mean):
        most = table.n * len(table.values)
        independent = min(max(variance_of_a_share / variance, 1.0), most)
    low, high = wilson(mean, independent)
    stderr = math.sqrt(variance_of_a_share / independent)
    return Estimate(mean, low, high, table.n, stderr)


def _widened(questions: Estimate, sides: Sequence[Spread], bounds: tuple[float, float]) -> Estimate:
    """An interval over questions, widened by what the seeds of each side add: the wider of the two
    formulas at the top of this file.
    """
    value, low, high = questions.value, questions.low, questions.high
    stderr = questions.stderr
    if value is None or low is None or high is None or stderr is None:
        return questions
    several = [side for side in sides if side.runs > 1]
    between = sum(side.between for side in several)  # A
    residual = sum(side.residual for side in several)  # C
    added = between - residual  # E
    least, most = bounds
    if added <= _ROUNDING * max(between, stderr**2):
        return msgspec.structs.replace(questions, low=max(least, low), high=min(most, high))
    # MOVER. Welch's degrees of freedom; those of a single side are its runs less one
    variance_of_between = sum(side.between**2 / (side.runs - 1) for side in several)
    seeds_freedom = between**2 / variance_of_between
    seeds_half = t_quantile(0.975, seeds_freedom) * math.sqrt(added)
    mover_below = math.hypot(value - low, seeds_half)
    mover_above = math.hypot(high - value, seeds_half)
    # Student's t of B + E, whose degrees of freedom are Satterthwaite's
    variance = stderr**2 + added
    questions_freedom = max(questions.n - 1, 1)
    variance_of_variance = stderr**4 / questions_freedom
    for side in several:
        variance_of_variance += side.between**2 / (side.runs - 1)
        variance_of_variance += side.residual**2 / ((side.runs - 1) * questions_freedom)
    freedom = max(1.0, variance**2 / variance_of_variance)
    student_half = t_quantile(0.975, freedom) * math.sqrt(variance)
    below = max(mover_below, student_half)
    above = max(mover_above, student_half)
    return msgspec.structs.replace(
        questions,
        low=max(least, value - below),
        high=min(most, value + above),
        stderr=math.sqrt(variance),
    )
