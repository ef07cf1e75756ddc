"""Counterfactual rollouts: some of a question's rollouts run in a world in which its answer is another one."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

import msgspec

from ..counterfactual import CounterfactualWorld
from ..errors import ConfigError
from ..rewards import Correctness
from ..tasks import Task
from ..trajectory import Trajectory
from ..world import Change

GROUPS = ("paired", "own")
LOOKED_AT = 100
"""Training questions that are checked for changed worlds before training."""


@dataclass(frozen=True)
class ChangedWorlds:
    """Which rollouts of a batch are in a changed world, and in which.

    All changed rollouts of a question are in the same world, a new one at each step. It is drawn from the world's seed
    and the step, so it is the same in all processes and in a resumed run.

    Args:
        world: makes the changes.
        tasks: the training questions, with what they are annotated with.
        share: of rollouts, in [0, 1].
        generations: rollouts of a question.
        groups: "paired": that share of every question's rollouts, the last of its group, so that they are compared with
            those in the original world (as Knowledgeable-R1 does). "own": all rollouts of that share of the questions,
            drawn at each step, so that they are only compared with each other.

    Raises:
        ConfigError: for a share out of range or without a whole number of rollouts, unknown groups, or questions that
            have no changed world.
    """

    world: CounterfactualWorld
    tasks: Mapping[tuple[str, str], Task]
    share: float
    generations: int
    groups: str = "paired"

    def __post_init__(self) -> None:
        if self.groups not in GROUPS:
            raise ConfigError(f"unknown counterfactual_groups {self.groups!r}; there are: {', '.join(GROUPS)}")
        if not 0 < self.share <= 1:
            raise ConfigError(f"counterfactual must be a share of rollouts in [0, 1], not {self.share}")
        changed = self.share * self.generations
        # not compared exactly: most shares, such as 0.1, have no exact binary form
        if self.groups == "paired" and abs(changed - round(changed)) > 1e-9:
            raise ConfigError(
                f"counterfactual={self.share} of num_generations={self.generations} rollouts is {changed:g}: give a "
                "share that makes it a whole number"
            )
        # Else questions without annotations would train unchanged, and only a metric would say so.
        found, dropped = self.world.change_all(list(self.tasks.values())[:LOOKED_AT])
        if not found:
            reasons = ", ".join(f"{count} since {reason}" for reason, count in dropped.most_common())
            raise ConfigError(f"counterfactual: of {dropped.total()} questions none has a changed world: {reasons}")

    def due(self, ids: Sequence[str], first: int, step: int) -> list[bool]:
        """Which rows are to be in a changed world; `first` is the index of the first one in the global batch."""
        if self.groups == "own":
            # By question and step, so that all processes and a resumed run draw the same.
            return [random.Random(f"{self.world.seed}:{step}:{name}").random() < self.share for name in ids]
        kept = self.generations - round(self.share * self.generations)
        return [(first + row) % self.generations >= kept for row in range(len(ids))]

    def tasks_of(self, rows: Sequence[Mapping[str, Any]], first: int, step: int) -> list[Task]:
        """The rows' tasks: their question, in a changed world if one is due and the question has one. The tasks' ids
        are the rows' numbers."""
        change = cache(lambda key: self.world.change(self.tasks[key], step))  # one world for all rollouts of a question
        tasks = asked(rows, self.tasks)
        for number, due in enumerate(self.due([row["id"] for row in rows], first, step)):
            if due and (changed := change((rows[number]["id"], rows[number]["prompt"]))) is not None:
                tasks[number] = msgspec.structs.replace(changed, id=str(number))
        return tasks


def by_question(tasks: Sequence[Task]) -> dict[tuple[str, str], Task]:
    """The questions by the columns of a training row."""
    return {(task.id, task.question): task for task in tasks}


def asked(rows: Sequence[Mapping[str, Any]], tasks: Mapping[tuple[str, str], Task]) -> list[Task]:
    """The rows' tasks, each question in its own world (`Task.edits`); ids are the rows' numbers."""
    known = [tasks.get((row["id"], row["prompt"]), Task("", row["prompt"])) for row in rows]
    return [Task(str(number), task.question, meta=task.meta, edits=task.edits) for number, task in enumerate(known)]


class Met(NamedTuple):
    """Whether a rollout was to be in a changed world, whether it was, and its answer's exact match there."""

    due: bool
    changed: bool
    exact_match: float | None


def met(rollouts: Sequence[Trajectory], due: Sequence[bool]) -> list[Met]:
    """Rollouts, with the gold answers of their own world, for `world_figures`."""
    scores = Correctness().score_batch(rollouts)
    return [
        Met(wanted, Change.of(item.meta) is not None, score.value)
        for item, wanted, score in zip(rollouts, due, scores, strict=True)
    ]


def world_figures(rows: Sequence[Met]) -> dict[str, float]:
    """A step's metrics over the rollouts of all processes; those without any rollouts are left out.

    `share`: of rollouts in a changed world; `unchanged`: share of those due whose question has none; `exact_match`: in
    changed worlds; `original`: exact match of the other rollouts.

    >>> world_figures([Met(True, True, 0.0), Met(True, False, 1.0), Met(False, False, 1.0), Met(False, False, 0.0)])
    {'share': 0.25, 'unchanged': 0.5, 'exact_match': 0.0, 'original': 0.6666666666666666}
    """
    columns: dict[str, list[float]] = {
        "share": [row.changed for row in rows],
        "unchanged": [not row.changed for row in rows if row.due],
        "exact_match": [row.exact_match for row in rows if row.changed and row.exact_match is not None],
        "original": [row.exact_match for row in rows if not row.changed and row.exact_match is not None],
    }
    return {name: sum(values) / len(values) for name, values in columns.items() if values}
