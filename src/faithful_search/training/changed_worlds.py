"""Counterfactual rollouts: some of a question's rollouts run in a world in which its answer is another one."""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from ..counterfactual import CounterfactualWorld
from ..errors import ConfigError
from ..tasks import WORLD, Task
from ..world import bundled_world

LOOKED_AT = 100  # training questions that are checked for changed worlds before training


@dataclass(frozen=True)
class ChangedWorlds:
    """Which rollouts of a batch are in a changed world, and in which.

    All changed rollouts of a question are in the same world, a new one at each step, drawn from the world's seed and
    the step: the same in all processes and in a resumed run.

    Args:
        tasks: the training questions, with what `world` changes them by.
        share: of rollouts, in (0, 1].
        generations: rollouts of a question.
        groups: "paired": the last ones of every question's rollouts, which are so compared with those in the original
            world (as Knowledgeable-R1 does). "own": all rollouts of a share of the questions, drawn at each step.

    Raises:
        ConfigError: for a share without a whole number of rollouts, or questions that have no changed world.
    """

    world: CounterfactualWorld
    tasks: Sequence[Task]
    share: float
    generations: int
    groups: str = "paired"

    def __post_init__(self) -> None:
        changed = self.share * self.generations
        # not compared exactly: most shares, such as 0.1, have no exact binary form
        if self.groups == "paired" and abs(changed - round(changed)) > 1e-9:
            given = f"counterfactual={self.share} of num_generations={self.generations} rollouts"
            raise ConfigError(f"{given} is {changed:g}: give a share that makes it a whole number")
        # Else questions without annotations would train unchanged, and only a metric would say so.
        found, dropped = self.world.change_all(self.tasks[:LOOKED_AT])
        if not found:
            reasons = ", ".join(
                f"{count} since {reason}" for reason, count in dropped.most_common()
            )
            raise ConfigError(
                f"counterfactual: of {dropped.total()} questions none has a changed world: {reasons}"
            )

    def due(self, ids: Sequence[str], first: int, step: int) -> list[bool]:
        """Which rows are to be in a changed world; `first` is the index of the first one in the global batch."""
        if self.groups == "own":
            # By question and step, so that all processes and a resumed run draw the same.
            return [
                random.Random(f"{self.world.seed}:{step}:{name}").random() < self.share
                for name in ids
            ]
        kept = self.generations - round(self.share * self.generations)
        return [(first + row) % self.generations >= kept for row in range(len(ids))]

    def asked(self, numbers: Sequence[int], first: int, step: int) -> list[Task]:
        """The questions of these numbers, in a changed world where one is due and the question has one."""
        change = cache(
            lambda number: self.world.change(self.tasks[number], step)
        )  # one for all rollouts of a question
        due = self.due([self.tasks[number].id for number in numbers], first, step)
        changed = (
            change(number) if wanted else None for number, wanted in zip(numbers, due, strict=True)
        )
        return [found or self.tasks[number] for number, found in zip(numbers, changed, strict=True)]


def counterfactual_world(script: Any, tasks: list[Task], seed: int) -> CounterfactualWorld:
    """Changes the questions' world: the bundled one, or the facts that the questions of a file are annotated with."""
    if script.questions in WORLD:
        return CounterfactualWorld(bundled_world(), seed)
    return CounterfactualWorld.annotated(tasks, script.corpus_passages(), seed)


def with_stale(
    tasks: list[Task], world: CounterfactualWorld, share: float
) -> tuple[list[Task], int]:
    """The questions with a share of them in a changed world, drawn with the world's seed; and the number of these."""
    changed: dict[int, Task] = {}
    # all in a random order, not a sample of that size: some questions have no changed world
    for number in random.Random(world.seed).sample(range(len(tasks)), len(tasks)):
        if (
            len(changed) < round(share * len(tasks))
            and (found := world.change(tasks[number])) is not None
        ):
            changed[number] = found
    return [changed.get(number, task) for number, task in enumerate(tasks)], len(changed)
