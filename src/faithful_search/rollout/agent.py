"""What an agent is: anything that answers tasks with trajectories."""

from collections.abc import Iterable
from typing import Protocol

from ..tasks import Task
from ..trajectory import Trajectory
from .episode import OnEnd, OnStep


class Agent(Protocol):
    """Answers tasks; a policy here (`Engine`), a served model (`ServedAgent`), or your own.

    Studies, evaluations and the command `ask` take any agent: what an agent is made of is its own
    business.
    """

    def run(
        self, tasks: Iterable[Task], on_end: OnEnd = None, on_step: OnStep = None
    ) -> list[Trajectory]:
        """One episode per task, in the tasks' order; a task given n times yields ids `id`, `id#1`,
        …, `id#n-1` (`episode.copies`).

        `on_end` sees each trajectory as soon as its episode ends, `on_step` each turn with its
        episode's id once its call was answered.
        """
        ...
