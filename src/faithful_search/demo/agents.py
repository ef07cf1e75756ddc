"""The agents of the demo, answering a question with their evidence and without it."""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from queue import SimpleQueue
from threading import Lock

import msgspec

from ..bundled import bundled_policy
from ..errors import DataError
from ..inference.base import Sampling
from ..measure.controls import Closed
from ..measure.scores import open_policy
from ..rollout import Engine
from ..rollout.arguments import EnvironmentArguments
from ..rollout.served import FAILED, ServedAgent
from ..tasks import Task, load_tasks
from ..tools import Toolbox
from ..trajectory import Step, Trajectory
from ..world import SPLITS

POLICIES = {"reads its evidence": "tiny", "can be fooled": "tiny_memory"}  # by what a visitor is told of them
WITHOUT = "without_evidence"
"""In `Trajectory.meta`: the answer of the same policy when no search returns anything."""
_LONGEST = 448  # tokens of a question; with those of an episode what the bundled policies take
_ENVIRONMENT = EnvironmentArguments(corpus="world", triples="world", dialect="pou", turns=8)


class Agent:
    """A bundled policy with its tools. It decodes greedily, so that the same question is answered the same way."""

    def __init__(self, name: str) -> None:
        generator = open_policy(bundled_policy(name, "pou"), "an agent here")
        self.engine, self._closed = (
            Engine(generator, tools, "pou", _ENVIRONMENT.limits(1600), Sampling(temperature=0))
            for tools in (_toolbox(), Closed(_toolbox()))
        )
        self._lock = Lock()  # what the generator keeps of an episode is not for two threads

    def run(self, tasks: Sequence[Task]) -> list[Trajectory]:
        """A trajectory for each task."""
        with self._lock:
            return self.engine.run(tasks)

    def ask(self, question: str) -> Iterator[Trajectory]:
        """The trajectory as it grows; the last one is complete, with the answer `WITHOUT` evidence in its `meta`.

        Raises:
            DataError: for a question that is empty or too long.
        """
        task = task_of(question)
        if len(self.engine.chat.prompt_ids(task.question, [])) > _LONGEST:
            raise DataError("the question is too long")
        with self._lock:
            yield from _growing(self.engine.run, self._closed.run, task)


class Served(msgspec.Struct, frozen=True):
    """A model behind an OpenAI-compatible endpoint. Whoever starts the page names it: visitors choose no addresses."""

    url: str
    model: str

    def ask(self, question: str, key: str) -> Iterator[Trajectory]:
        """As `Agent.ask`, with a visitor's key; the server's own keys are not for its visitors.

        Raises:
            DataError: for an empty question, and when the endpoint gives no answer.
            JudgeError: when it refuses the key or the model.
        """
        task = task_of(question)
        run, closed = (
            ServedAgent(self.model, self.url, tools, turns=8, timeout=60, key=key).run
            for tools in (_toolbox(), Closed(_toolbox()))
        )
        yield from _growing(run, closed, task)


def _growing(
    run: Callable[..., list[Trajectory]], closed: Callable[..., list[Trajectory]], task: Task
) -> Iterator[Trajectory]:
    steps: SimpleQueue[Step | None] = SimpleQueue()
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(run, [task], on_step=lambda _, step: steps.put(step))
        running.add_done_callback(lambda _: steps.put(None))
        grown: tuple[Step, ...] = ()
        while (step := steps.get()) is not None:
            grown += (step,)
            yield Trajectory(grown, task.question, answers=task.answers)
        found = running.result()[0]
    if found.stop_reason == FAILED:
        raise DataError(f"no answer came: {found.meta['why']}")
    without = closed([task])[0]
    # Token ids are of use to nobody in a browser, and are most of what a visitor's state would hold
    yield msgspec.structs.replace(found, tokens=None, meta={**found.meta, WITHOUT: without.answer})


_agent = lru_cache(Agent)
_OPENING = Lock()  # a cache alone would let two visitors open the same agent


def agent(name: str) -> Agent:
    """The agent of one of `POLICIES`, opened once. Raises `ConfigError` where PyTorch is not installed."""
    with _OPENING:
        return _agent(name)


def task_of(question: str) -> Task:
    """The question, with its gold answers where it is one of the bundled ones. Raises `DataError` where it is empty."""
    if not (question := " ".join(question.split())):
        raise DataError("the question is empty")
    return Task("demo", question, _golds().get(question, ()))


@lru_cache
def _golds() -> dict[str, tuple[str, ...]]:
    return {task.question: task.answers for split in SPLITS for task in load_tasks("world", split)}


@lru_cache
def _toolbox() -> Toolbox:
    return _ENVIRONMENT.toolbox()
