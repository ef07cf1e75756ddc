"""What one policy did on one suite, as a value; and two of them compared."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
import numpy as np

from ..errors import DataError
from ..rewards import Score
from ..trajectory import Trajectory
from . import stats
from .stats import NOTHING, Counts, Estimate
from .tool_use import normalized_entropy
from .verdicts import Seen, auroc, gap, verdict_counts

GAP, AUROC, ENTROPY = "verdict_gap", "verdict_auroc", "tool_entropy"


class Evaluation(msgspec.Struct, frozen=True):
    """What one policy did on one suite.

    Attributes:
        rows: each metric's estimate; see `evaluate_policy`.
        questions: the task's id of each rollout. All lists below are in this order.
        values: each metric's value for each rollout; `None` where it does not apply or the judge abstained.
        tool_calls: calls of each of the toolbox's tools.
        verdicts: each rollout's verdicts; empty where it is not known what its evidence states.
        made_by: the reward behind each metric, with its knobs.
        endings: how many rollouts ended for which reason.
        trajectories: the rollouts, their `scores` and `reasons` in `meta`; empty when read back from a dictionary.
    """

    rows: dict[str, Estimate]
    questions: list[str]
    values: dict[str, list[float | None]]
    tool_calls: dict[str, list[int]]
    verdicts: list[list[Seen]] = []
    made_by: dict[str, str] = {}
    endings: dict[str, int] = {}
    trajectories: list[Trajectory] = []

    def to_dict(self) -> dict[str, Any]:
        """Everything but the trajectories, as plain JSON types; `from_dict` reads it back."""
        return {name: value for name, value in msgspec.to_builtins(self).items() if name != "trajectories"}

    @staticmethod
    def from_dict(data: Mapping[str, Any]) -> Evaluation:
        """Read what `to_dict` gave. Raises `DataError` for anything else."""
        try:
            return msgspec.convert(dict(data), Evaluation)
        except (msgspec.ValidationError, TypeError, ValueError) as error:
            raise DataError(f"not an evaluation: {error}") from error


def mean_of(
    column: Sequence[float | None], scores: Sequence[Score], questions: Sequence[str], bounds: tuple[float, float]
) -> Estimate:
    """The mean of a metric over questions with its interval, and how many rollouts were left out of it, and why.

    `scores` are what the values were measured from: they tell abstentions from what does not apply.
    """
    kept = [(value, question) for value, question in zip(column, questions, strict=True) if value is not None]
    abstained = sum(bool(score.parts.get("abstained")) for score in scores)
    estimate = stats.mean_ci([value for value, _ in kept], [question for _, question in kept], bounds)
    return stats.left_out(estimate, len(kept), len(column) - len(kept) - abstained, abstained)


def entropy_estimate(tool_calls: Mapping[str, Sequence[int]], questions: stats.Clusters) -> Estimate:
    """Normalised tool entropy with its bootstrap interval over questions; no value without a call or with one tool."""
    return stats.pooled_estimate(_call_counts(tool_calls, len(questions)), normalized_entropy, questions)


def verdict_rows(scores: Sequence[Score], questions: Sequence[Hashable]) -> dict[str, Estimate]:
    """`verdict_gap` and `verdict_auroc` of the scores of `Verdicts`."""
    counts = verdict_counts([score.parts["verdicts"] for score in scores])
    abstained = sum(bool(score.parts.get("abstained")) for score in scores)
    rows = {}
    for name, function in ((GAP, gap), (AUROC, auroc)):
        found = stats.pooled_estimate(counts, function, questions)
        rows[name] = stats.left_out(
            found, len(scores) - found.not_applicable, found.not_applicable - abstained, abstained
        )
    return rows


class Pooled(NamedTuple):
    """A row that is a function of sums over all rollouts, not a mean: what is summed, and the function.

    `same`: two evaluations are comparable only where they count the same things.
    """

    counts: Callable[[Evaluation], Counts]
    function: stats.Function
    same: bool = False


def difference(before: Evaluation, after: Evaluation, metric: str) -> Estimate:
    """after - before over the questions that both answered: paired, or a paired bootstrap for pooled rows."""
    if metric in POOLED:
        pooled = POOLED[metric]
        first, second = pooled.counts(before), pooled.counts(after)
        if not (first.keys and second.keys) or (pooled.same and set(first.keys) != set(second.keys)):
            return NOTHING
        return stats.pooled_difference(first, second, pooled.function, before.questions, after.questions)
    if metric not in before.values or metric not in after.values:
        return NOTHING
    means = [stats.question_means(run.questions, run.values[metric]) for run in (before, after)]
    return stats.paired_difference(means[0], means[1])


def differences(before: Evaluation, after: Evaluation) -> dict[str, dict[str, Any]]:
    """Every row's difference as plain JSON types: `value`, `low`, `high`, `n`."""
    found = {name: difference(before, after, name) for name in before.rows if name in after.rows}
    return {name: {key: getattr(of, key) for key in ("value", "low", "high", "n")} for name, of in found.items()}


def _call_counts(tool_calls: Mapping[str, Sequence[int]], rollouts: int) -> Counts:
    table = np.array([*tool_calls.values()], dtype=np.float64).reshape(len(tool_calls), rollouts).T
    return Counts(tuple(tool_calls), table)


POOLED = {
    GAP: Pooled(lambda run: verdict_counts(run.verdicts), gap),
    AUROC: Pooled(lambda run: verdict_counts(run.verdicts), auroc),
    ENTROPY: Pooled(lambda run: _call_counts(run.tool_calls, len(run.questions)), normalized_entropy, same=True),
}
"""The rows that are computed from sums over all rollouts."""
