"""`Evaluation`, what a policy did on a suite of questions; `difference`, how two of them differ;
`Record`, a training run with its evaluations; and `run_episodes`.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Self

import msgspec

from ..errors import DataError
from ..rollout import Agent
from ..rollout.episode import copies
from ..tasks import Task
from ..trajectory import Trajectory
from . import stats
from .behaviour import POOLED_ENTROPY, ErrorCounts
from .ledger import Ledger
from .stats import NOTHING, UNBOUNDED, Estimate
from .verdicts import AUROC, GAP, POOLED_VERDICTS, Seen, verdict_columns
from .workers import progress_bar

ENTROPY = "tool_entropy"
MERGED = "merged"  # where in a run's folder its adapter lies as a full model


class Measured:
    """A struct that can be written as JSON types (`to_dict`) and read back (`from_dict`)."""

    __slots__ = ()

    def to_dict(self) -> dict[str, Any]:
        values: dict[str, Any] = msgspec.to_builtins(self)
        return values

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """Raises `DataError` for anything but what `to_dict` gave."""
        try:
            return msgspec.convert(dict(data), cls)
        except (msgspec.ValidationError, TypeError, ValueError) as error:
            raise DataError(f"not an {cls.__name__.lower()}: {error}") from error


class Evaluation(Measured, msgspec.Struct, frozen=True):
    """What a policy did on a suite of questions.

    Attributes:
        rows: the estimate of each metric.
        questions: the id of the task of each rollout. All lists are in this order.
        values: the values of the rollouts by metric; `None` if the metric does not apply, or the
            judge abstained.
        tool_calls: the numbers of calls by tool.
        verdicts: the verdicts of each rollout; empty if it is not known what its evidence states.
        made_by: the reward of each metric, with its knobs.
        errors: why episodes failed; `None` where nothing says whether answers are right.
        failed: the number of episodes that the agent's endpoint did not finish. They count nowhere
            else.
        failed_because: why they failed, in the words of most of them.
        trajectories: the rollouts, with `scores` and `reasons` in their `meta`. They are not in the
            dictionary.
        bounds: the lowest and the highest possible value of the metrics that have both; means of
            runs and their differences are cut there.
    """

    rows: dict[str, Estimate]
    questions: list[str]
    values: dict[str, list[float | None]]
    tool_calls: dict[str, list[int]]
    verdicts: list[list[Seen]] = []
    made_by: dict[str, str] = {}
    errors: ErrorCounts | None = None
    failed: int = 0
    failed_because: str = ""
    trajectories: list[Trajectory] = []
    bounds: dict[str, tuple[float, float]] = {}

    def calls_by_tool(self) -> dict[str, int]:
        """The number of calls of each tool in all rollouts together."""
        return {tool: sum(calls) for tool, calls in self.tool_calls.items()}

    def to_dict(self) -> dict[str, Any]:
        values = super().to_dict()
        del values["trajectories"]
        values["bounds"] = {metric: list(bounds) for metric, bounds in self.bounds.items()}
        return values


POOLED: dict[str, tuple[Callable[[Evaluation], stats.Columns], stats.Pooled]] = {
    GAP: (lambda run: verdict_columns(run.verdicts), POOLED_VERDICTS[GAP]),
    AUROC: (lambda run: verdict_columns(run.verdicts), POOLED_VERDICTS[AUROC]),
    ENTROPY: (lambda run: run.tool_calls, POOLED_ENTROPY),
}
"""The results that are no means but functions of sums over all rollouts: the columns that are summed
up, and the statistic.
"""


def difference(before: Evaluation, after: Evaluation, metric: str) -> Estimate:
    """`after - before`, over the questions of both: the mean of paired differences, or for `POOLED`
    results the difference of the two, by a paired jackknife. Entropies over different tools have
    none.
    """
    if not are_comparable([before, after], metric):
        return NOTHING
    if metric in POOLED:
        columns_of, pooled = POOLED[metric]
        first = columns_of(before)
        second = columns_of(after)
        if not first or not second:
            return NOTHING
        return stats.pooled_difference(first, second, pooled, (before.questions, after.questions))
    if metric not in before.values or metric not in after.values:
        return NOTHING
    first_means = stats.question_means(before.questions, before.values[metric])
    second_means = stats.question_means(after.questions, after.values[metric])
    smallest = _smallest_change(before, after, metric)
    change = stats.paired_difference(first_means, second_means, smallest)
    least, most = bounds_of([before, after], metric)
    return stats.cut(change, least - most, most - least)


def bounds_of(runs: Iterable[Evaluation], metric: str) -> tuple[float, float]:
    """The lowest and the highest value that a metric can have in all of these evaluations; infinite
    where one of them does not say.
    """
    bounds = [run.bounds.get(metric, UNBOUNDED) for run in runs]
    return min(least for least, _ in bounds), max(most for _, most in bounds)


def may_be_shares(runs: Iterable[Evaluation], metric: str) -> bool:
    """Whether zeros and ones of a metric are shares in all of these evaluations, by its bounds: a
    count, such as `calls`, has no highest value. One that was written before evaluations had bounds
    does not say.
    """
    return all(run.bounds.get(metric) == (0.0, 1.0) for run in runs if run.bounds)


def are_comparable(runs: Iterable[Evaluation], metric: str) -> bool:
    """Whether the values of a result are of the same quantity in all of these evaluations: an
    entropy is only where they had the same tools.
    """
    if metric != ENTROPY:
        return True
    return len({frozenset(run.tool_calls) for run in runs}) < 2


def _smallest_change(before: Evaluation, after: Evaluation, metric: str) -> float | None:
    """The smallest change of a question's mean that is not 0: 1/k where all values are 0 or 1 and a
    question has k of them, in both evaluations at least. `None` for other values.
    """
    fewest: list[int] = []
    for run in (before, after):
        by_question: Counter[str] = Counter()
        for question, value in zip(run.questions, run.values[metric], strict=True):
            if value is None:
                continue
            if value not in (0, 1):
                return None
            by_question[question] += 1
        fewest += by_question.values()
    return 1 / min(fewest) if fewest else None


def differences(before: Evaluation, after: Evaluation) -> dict[str, dict[str, Any]]:
    """The differences of the results that both have, as JSON types: `value`, `low`, `high`, `n`."""
    by_metric = {}
    for name in before.rows:
        if name in after.rows:
            change = difference(before, after, name)
            by_metric[name] = {
                "value": change.value,
                "low": change.low,
                "high": change.high,
                "n": change.n,
            }
    return by_metric


def run_episodes(
    agent: Agent,
    tasks: Sequence[Task],
    condition: str,
    file: Path | None = None,
    tokens: bool = True,
) -> list[Trajectory]:
    """The agent's rollouts of the tasks, with a progress bar on a terminal.

    Args:
        agent: who answers.
        tasks: one rollout for each.
        condition: what the progress bar is called.
        file: keeps rollouts as they end. Those that it holds are not run again, so that tasks and
            agent must be the same as when it was written.
        tokens: whether rollouts keep their token ids.

    Raises `DataError` when the file cannot be written or read.
    """
    named = {name: msgspec.structs.replace(task, id=name) for task, name, _ in copies(tasks)}
    done: dict[str, Trajectory] = {}
    with ExitStack() as stack:
        ledger = None
        if file is not None:
            ledger = Ledger(
                file,
                "evaluation",
                asked="the agent's model",
                again="run the same with --resume to go on",
            )
            stack.enter_context(ledger)
            for _, line in ledger.read():
                try:
                    rollout = Trajectory.from_json(line)
                except DataError as error:
                    raise DataError(
                        f"{file}, line {ledger.count + 1}: {error}; take the line out, or delete "
                        "the file"
                    ) from error
                done[rollout.id] = rollout
        missing = {name: task for name, task in named.items() if name not in done}
        bar = progress_bar(
            total=len(named), initial=len(named) - len(missing), desc=condition, unit="rollout"
        )
        stack.enter_context(bar)

        def keep(rollout: Trajectory) -> None:
            if not tokens:
                rollout = msgspec.structs.replace(rollout, tokens=None)
            done[rollout.id] = rollout
            if ledger is not None:
                ledger.append([f"{rollout.to_json()}\n".encode()])
            bar.update(1)

        ended = {}
        if missing:
            ended = dict(zip(missing, agent.run(missing.values(), on_end=keep), strict=True))
    # Rollouts that failed were not kept, so that they are run again the next time
    rollouts = {**ended, **done}
    return [rollouts[name] for name in named]


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """A training run and its results.

    Attributes:
        folder: where the policy was saved.
        model: what training started from.
        dialect: of the policy.
        tools: their names.
        questions: the held-out questions.
        settings: all flags of the recipe, and the most important ones of the trainer.
        steps: the number of steps.
        history: the trainer's log, a dictionary for each step, without infinities.
        before, after: the evaluations on the held-out questions.
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

    def metrics(self) -> dict[str, Any]:
        """The content of `metrics.json`: the evaluations, their differences, settings, model and
        number of steps.
        """
        evaluated = {"before": self.before, "after": self.after}
        metrics: dict[str, Any] = {}
        for name, evaluation in evaluated.items():
            if evaluation is not None:
                metrics[name] = evaluation.to_dict()
        if self.before is not None and self.after is not None:
            metrics["differences"] = differences(self.before, self.after)
        return {**metrics, "settings": self.settings, "model": self.model, "steps": self.steps}
