"""What one policy did on one suite, as a value; two of them compared; and what a training run was, with both."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Self

import msgspec

from ..errors import DataError
from ..trajectory import Trajectory
from . import stats
from .behaviour import normalized_entropy
from .stats import NOTHING, Estimate
from .verdicts import AUROC, GAP, Seen, auroc, gap, verdict_columns

ENTROPY = "tool_entropy"
MERGED = "merged"
"""Where in a run's folder its adapter lies as a full model, when it was asked to be merged."""


class Measured:
    """A struct that is written as JSON and read back."""

    __slots__ = ()

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON types; `from_dict` reads it back."""
        found: dict[str, Any] = msgspec.to_builtins(self)
        return found

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """Read what `to_dict` gave. Raises `DataError` for anything else."""
        try:
            return msgspec.convert(dict(data), cls)
        except (msgspec.ValidationError, TypeError, ValueError) as error:
            raise DataError(f"not an {cls.__name__.lower()}: {error}") from error


class Evaluation(Measured, msgspec.Struct, frozen=True):
    """What one policy did on one suite.

    Attributes:
        rows: each metric's estimate; see `evaluate_policy`.
        questions: the task's id of each rollout. All lists below are in this order.
        values: each metric's value for each rollout; `None` where it does not apply or the judge abstained.
        tool_calls: calls of each of the toolbox's tools.
        verdicts: each rollout's verdicts; empty where it is not known what its evidence states.
        made_by: the reward behind each metric, with its knobs.
        trajectories: the rollouts, their `scores` and `reasons` in `meta`; not in the dictionary.
    """

    rows: dict[str, Estimate]
    questions: list[str]
    values: dict[str, list[float | None]]
    tool_calls: dict[str, list[int]]
    verdicts: list[list[Seen]] = []
    made_by: dict[str, str] = {}
    trajectories: list[Trajectory] = []

    def to_dict(self) -> dict[str, Any]:
        return {name: value for name, value in super().to_dict().items() if name != "trajectories"}


def entropy_estimate(tool_calls: stats.Columns, questions: stats.Clusters) -> Estimate:
    """Normalised tool entropy with its bootstrap interval over questions; no value without a call or with one tool."""
    return stats.pooled_estimate(tool_calls, normalized_entropy, questions)


class Pooled(NamedTuple):
    """A row that is a function of sums over all rollouts, not a mean: what is summed, and the function. `same`: two
    evaluations are comparable only where they count the same things.
    """

    columns: Callable[[Evaluation], stats.Columns]
    function: stats.Function
    same: bool = False


POOLED = {
    GAP: Pooled(lambda run: verdict_columns(run.verdicts), gap),
    AUROC: Pooled(lambda run: verdict_columns(run.verdicts), auroc),
    ENTROPY: Pooled(lambda run: run.tool_calls, normalized_entropy, same=True),
}


def difference(before: Evaluation, after: Evaluation, metric: str) -> Estimate:
    """after - before over the questions that both answered: paired, or a paired bootstrap for pooled rows."""
    if metric in POOLED:
        pooled = POOLED[metric]
        first, second = pooled.columns(before), pooled.columns(after)
        if not (first and second) or (pooled.same and first.keys() != second.keys()):
            return NOTHING
        return stats.pooled_difference(first, second, pooled.function, (before.questions, after.questions))
    if metric not in before.values or metric not in after.values:
        return NOTHING
    means = [stats.question_means(run.questions, run.values[metric]) for run in (before, after)]
    return stats.paired_difference(*means)


def differences(before: Evaluation, after: Evaluation) -> dict[str, dict[str, Any]]:
    """Every row's difference as plain JSON types: `value`, `low`, `high`, `n`."""
    found = {name: difference(before, after, name) for name in before.rows if name in after.rows}
    return {name: {key: getattr(of, key) for key in ("value", "low", "high", "n")} for name, of in found.items()}


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """A training run and what came of it.

    `folder` is where the policy was saved, `model` what training started from. `settings` are every flag of the recipe,
    and the trainer's that matter most; `history` is the trainer's log, a dictionary a step, without infinities;
    `before` and `after` are evaluations on the held-out `questions`.
    """

    folder: str
    model: str
    dialect: str
    tools: list[str]
    questions: str
    settings: dict[str, Any]
    steps: int
    history: list[dict[str, Any]]
    before: Evaluation | None = None
    after: Evaluation | None = None

    @property
    def results(self) -> dict[str, dict[str, Any]]:
        """The evaluations, as plain JSON types."""
        found = {"before": self.before, "after": self.after}
        return {name: evaluation.to_dict() for name, evaluation in found.items() if evaluation is not None}

    def metrics(self) -> dict[str, Any]:
        """What `metrics.json` holds: results, paired differences of rows that both have, settings, model, steps."""
        found: dict[str, Any] = dict(self.results)
        if self.before is not None and self.after is not None:
            found["differences"] = differences(self.before, self.after)
        return {**found, "settings": self.settings, "model": self.model, "steps": self.steps}
