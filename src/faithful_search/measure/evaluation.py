"""What one policy did on one suite, and two of them compared; what a training run was; episodes that are kept."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Self

import msgspec

from ..errors import DataError
from ..rollout import Engine, ServedAgent
from ..rollout.episode import copies
from ..tasks import Task
from ..trajectory import Trajectory
from . import stats
from .behaviour import normalized_entropy
from .ledger import Ledger
from .stats import NOTHING, Estimate
from .verdicts import AUROC, GAP, Seen, auroc, gap, verdict_columns
from .workers import progress_bar

ENTROPY = "tool_entropy"
MERGED = "merged"  # where in a run's folder its adapter lies as a full model


class Measured:
    """A struct that is written as JSON types (`to_dict`) and read back (`from_dict`)."""

    __slots__ = ()

    def to_dict(self) -> dict[str, Any]:
        found: dict[str, Any] = msgspec.to_builtins(self)
        return found

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """Raises `DataError` for anything but what `to_dict` gave."""
        try:
            return msgspec.convert(dict(data), cls)
        except (msgspec.ValidationError, TypeError, ValueError) as error:
            raise DataError(f"not an {cls.__name__.lower()}: {error}") from error


class Evaluation(Measured, msgspec.Struct, frozen=True):
    """What one policy did on one suite; lists are in the order of `questions`, the task's id of each rollout.

    `values` are those of each metric for each rollout, `None` where it does not apply or the judge abstained;
    `tool_calls` calls of each of the toolbox's tools; `verdicts` each rollout's, empty where it is not known what its
    evidence states; `made_by` the reward behind each metric, with its knobs. `trajectories` have `scores` and `reasons`
    in their `meta` and are not in the dictionary.
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


# Rows that are functions of sums over all rollouts, not means: what is summed, and the function
POOLED: dict[str, tuple[Callable[[Evaluation], stats.Columns], stats.Function]] = {
    GAP: (lambda run: verdict_columns(run.verdicts), gap),
    AUROC: (lambda run: verdict_columns(run.verdicts), auroc),
    ENTROPY: (lambda run: run.tool_calls, normalized_entropy),
}


def difference(before: Evaluation, after: Evaluation, metric: str) -> Estimate:
    """after - before over the questions that both answered: paired, or a paired bootstrap for pooled rows."""
    if metric in POOLED:
        columns, function = POOLED[metric]
        first, second = columns(before), columns(after)
        # entropies are comparable only over the same tools
        if not (first and second) or (metric == ENTROPY and first.keys() != second.keys()):
            return NOTHING
        return stats.pooled_difference(first, second, function, (before.questions, after.questions))
    if metric not in before.values or metric not in after.values:
        return NOTHING
    means = [stats.question_means(run.questions, run.values[metric]) for run in (before, after)]
    return stats.paired_difference(*means)


def differences(before: Evaluation, after: Evaluation) -> dict[str, dict[str, Any]]:
    """The difference of every row that both have, as plain JSON types: `value`, `low`, `high`, `n`."""
    found = {name: difference(before, after, name) for name in before.rows if name in after.rows}
    return {
        name: {key: getattr(of, key) for key in ("value", "low", "high", "n")}
        for name, of in found.items()
    }


def run_episodes(
    agent: Engine | ServedAgent,
    tasks: Sequence[Task],
    what: str,
    file: Path | None = None,
    tokens: bool = True,
) -> list[Trajectory]:
    """The agent's rollouts of the tasks, with a progress bar on a terminal; without their token ids where not `tokens`.

    With a file each is in it as soon as it ends, and one that is there is not run again: whoever names the file sees to
    it that tasks and agent are the same. Raises `DataError` when the file cannot be written or read.
    """
    named = {name: msgspec.structs.replace(task, id=name) for task, name, _ in copies(tasks)}
    done: dict[str, Trajectory] = {}
    with ExitStack() as opened:
        ledger = opened.enter_context(Ledger(file, "evaluation")) if file else None
        if ledger is not None:
            done |= {
                item.id: item for item in (Trajectory.from_json(line) for _, line in ledger.read())
            }
        missing = {name: task for name, task in named.items() if name not in done}
        bar = progress_bar(
            total=len(named), initial=len(named) - len(missing), desc=what, unit="rollout"
        )
        opened.enter_context(bar)

        def keep(rollout: Trajectory) -> None:
            done[rollout.id] = rollout = (
                rollout if tokens else msgspec.structs.replace(rollout, tokens=None)
            )
            if ledger is not None:
                ledger.append([f"{rollout.to_json()}\n".encode()])
            bar.update(1)

        # what failed is not kept, so that it is asked again the next time
        ended = (
            dict(zip(missing, agent.run(missing.values(), on_end=keep), strict=True))
            if missing
            else {}
        )
    return [done[name] if name in done else ended[name] for name in named]


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

    def metrics(self) -> dict[str, Any]:
        """What `metrics.json` holds: results, paired differences of rows that both have, settings, model, steps."""
        evaluated = {"before": self.before, "after": self.after}
        found: dict[str, Any] = {
            name: own.to_dict() for name, own in evaluated.items() if own is not None
        }
        if self.before is not None and self.after is not None:
            found["differences"] = differences(self.before, self.after)
        return {**found, "settings": self.settings, "model": self.model, "steps": self.steps}
