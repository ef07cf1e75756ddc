"""What an agent is: anything that answers tasks with trajectories."""

from collections.abc import Iterable
from typing import Protocol, runtime_checkable

import msgspec

from ..tasks import Task
from ..trajectory import Trajectory
from .episode import OnEnd, OnStep


class Used(msgspec.Struct):
    """What an episode cost: requests to the model, calls of tools, and tokens of all requests
    (0 where a server does not count them).
    """

    requests: int = 0
    calls: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0


@runtime_checkable
class Agent(Protocol):
    """Answers tasks; a policy here (`Engine`), a served model (`ServedAgent`), an agent that needs
    no training (`faithful_search.agents`), or your own.

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
