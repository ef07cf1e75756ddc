"""Counterfactual rollouts: some rollouts of a question run in a world in which its answer is
another one.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ..counterfactual import CounterfactualWorld
from ..errors import ConfigError
from ..tasks import Task

CHECKED = 100
"""The number of training questions that are checked for changed worlds before training."""


@dataclass(frozen=True)
class ChangedWorlds:
    """Decides which rollouts of a batch run in a changed world, and in which.

    All changed rollouts of a question are in the same world. It is a new one at each step, drawn
    from the world's seed and the step, so that all processes and a resumed run draw the same.

    Args:
        world: changes the questions.
        tasks: the training questions, with the annotations that `world` needs.
        share: the share of changed rollouts, in (0, 1].
        generations: the number of rollouts of a question.
        groups: "paired" changes the last rollouts of every question, which are compared with those
            in the original world (as in Knowledgeable-R1). "own" changes all rollouts of a share of
            the questions, drawn at each step.

    Raises:
        ConfigError: for a share that is no whole number of rollouts, or questions that have no
            changed world.
    """

    world: CounterfactualWorld
    tasks: Sequence[Task]
    share: float
    generations: int
    groups: str = "paired"

    def __post_init__(self) -> None:
        changed = self.share * self.generations
        # Not compared exactly, since most shares, such as 0.1, have no exact binary form
        if self.groups == "paired" and abs(changed - round(changed)) > 1e-9:
            raise ConfigError(
                f"counterfactual={self.share} of num_generations={self.generations} rollouts is "
                f"{changed:g}; give a share that makes it a whole number"
            )
        # Otherwise questions without annotations would stay unchanged, and only a metric would show
        # it
        changed_tasks, dropped = self.world.change_all(self.tasks[:CHECKED])
        if not changed_tasks:
            reasons = ", ".join(
                f"{count} since {reason}" for reason, count in dropped.most_common()
            )
            raise ConfigError(
                f"counterfactual: of {dropped.total()} questions none has a changed world: "
                f"{reasons}"
            )

    def due(self, ids: Sequence[str], first: int, step: int) -> list[bool]:
        """Which rows are to run in a changed world. `first` is the index of the first row in the
        global batch.
        """
        if self.groups == "own":
            # Drawn by question and step, so that all processes and a resumed run draw the same
            draws = [random.Random(f"{self.world.seed}:{step}:{name}").random() for name in ids]
            return [draw < self.share for draw in draws]
        unchanged = self.generations - round(self.share * self.generations)
        places_in_group = [(first + row) % self.generations for row in range(len(ids))]
        return [place >= unchanged for place in places_in_group]

    def questions(self, numbers: Sequence[int], first: int, step: int) -> list[Task]:
        """The questions with these numbers; those that are due for it in a changed world, if they
        have one.
        """
        tasks = [self.tasks[number] for number in numbers]
        is_due = self.due([task.id for task in tasks], first, step)
        changes: dict[int, Task | None] = {}  # one for all rollouts of a question
        for place, number in enumerate(numbers):
            if not is_due[place]:
                continue
            if number not in changes:
                changes[number] = self.world.change(self.tasks[number], step)
            tasks[place] = changes[number] or tasks[place]
        return tasks


def counterfactual_world(script: Any, tasks: list[Task], seed: int) -> CounterfactualWorld:
    """What changes the world of a recipe's questions."""
    return CounterfactualWorld.of_source(script.questions, tasks, script.corpus_passages, seed)


def with_stale(
    tasks: list[Task], world: CounterfactualWorld, share: float
) -> tuple[list[Task], int]:
    """The questions with a share of them in a changed world, drawn with the world's seed, and the
    number of changed ones.
    """
    changed: dict[int, Task] = {}
    wanted_count = round(share * len(tasks))
    # All in a random order, not a sample of that size, since some questions have no changed world
    for number in random.Random(world.seed).sample(range(len(tasks)), len(tasks)):
        if len(changed) >= wanted_count:
            break
        task = world.change(tasks[number])
        if task is not None:
            changed[number] = task
    return [changed.get(number, task) for number, task in enumerate(tasks)], len(changed)
