"""Runs many episodes at once: one batched turn of the policy, then all its tool calls concurrently,
and so on until all have ended.
"""

from collections.abc import Iterable, Sequence
from itertools import islice

import msgspec

from .. import dialects
from ..dialects.base import Dialect
from ..errors import ConfigError
from ..inference.base import Generator, Sampling
from ..inference.chat import ChatFormat
from ..tasks import Task
from ..tools.toolbox import Session, Toolbox
from ..trajectory import Issue, ToolCall, Trajectory
from .episode import Episode, Limits, OnEnd, OnStep, copies


class Engine:
    """Runs a policy with its tools.

    Args:
        generator: the policy.
        toolbox: its tools.
        dialect: a dialect or its name.
        limits: the bounds of an episode.
        sampling: how to sample. Stop strings come from the dialect, the turn's token limit from
            `limits`.
        concurrency: how many episodes run at once; where one ends, the next begins.

    Raises:
        ConfigError: `concurrency` is below 1, an empty tool response already has more than
            `limits.observation_tokens`, or the dialect cannot do what `limits` ask for.

    Example:
        ```python
        engine = Engine(generator, Toolbox([LocalSearch.from_corpus("world")]), dialect="pou", limits=Limits(turns=5))
        trajectories = engine.run(load_tasks("world", "validation", limit=8))
        ```
    """

    def __init__(
        self,
        generator: Generator,
        toolbox: Toolbox,
        dialect: Dialect | str = "pou",
        limits: Limits | None = None,
        sampling: Sampling | None = None,
        concurrency: int = 256,
    ) -> None:
        if concurrency < 1:
            raise ConfigError(f"concurrency must be at least 1, got {concurrency}")
        self.generator = generator
        self.toolbox = toolbox
        self.concurrency = concurrency
        self.dialect = dialects.load(dialect) if isinstance(dialect, str) else dialect
        self.limits = limits or Limits()
        self.chat = ChatFormat.of(generator.tokenizer, self.dialect)
        self.sampling = msgspec.structs.replace(
            sampling or Sampling(),
            stop=self.dialect.stop + self.chat.stop,
            max_new_tokens=self.limits.turn_tokens,
        )
        self._check_limits()

    def _check_limits(self) -> None:
        dialect, limits = self.dialect, self.limits

        def lacks(limit: str, why: str, other: str) -> ConfigError:
            return ConfigError(
                f"{limit}: dialect {dialect.name!r} {why}; leave it off, or take dialect {other!r}"
            )

        if limits.verify and not dialect.can_verify:
            raise lacks("verify", "has no mode in which it checks its answers", "pokee")
        if limits.force_answer and not self.chat.answer_opening:
            raise lacks("force_answer", "has no tag that opens an answer", "search_r1")
        if limits.kept_responses and dialect.observation_role:
            raise lacks("kept_responses", "writes each tool response as a message", "search_r1")
        if not limits.observation_tokens:
            return
        # Shortening a response keeps its tags, so these must fit on their own.
        frame = len(self.chat.encode(self.chat.render_observation(())))
        if limits.observation_tokens < frame:
            raise ConfigError(
                f"observation_tokens={limits.observation_tokens} is too few: an empty tool "
                "response "
                f"of dialect {dialect.name!r} takes {frame} tokens; give several hundred, or 0 for "
                "no limit"
            )

    def run(
        self, tasks: Iterable[Task], on_end: OnEnd = None, on_step: OnStep = None
    ) -> list[Trajectory]:
        """Run one episode for each task; trajectories come in the tasks' order.

        A task given n times yields the ids `id`, `id#1`, …, `id#n-1`. `on_end` is called with each
        trajectory as soon as its episode ends, `on_step` with the episode's id and each turn once
        its call was answered. The policy's weights must not change during the run: keys and values
        may be kept.
        """
        schemas = self.toolbox.schemas  # made anew at each access
        episodes = [
            Episode(task, self.chat, self.limits, schemas, name) for task, name, _ in copies(tasks)
        ]
        waiting = enumerate(episodes)
        active: dict[int, tuple[Episode, Session]] = {}
        ended: dict[int, Trajectory] = {}
        with self.generator.keeping():
            try:
                while len(ended) < len(episodes):
                    for number, episode in islice(waiting, self.concurrency - len(active)):
                        active[number] = episode, self.toolbox.session(episode.task.edits)
                    self._turn(list(active.values()))
                    if on_step is not None:
                        for episode, _ in active.values():
                            on_step(episode.id, episode.steps[-1])
                    for number, (episode, session) in list(active.items()):
                        if episode.stop_reason is None:
                            continue
                        del active[number]
                        session.close()
                        ended[number] = episode.trajectory()
                        if on_end is not None:
                            on_end(ended[number])
            finally:
                for _, session in active.values():  # after an error: calls may still be under way
                    session.close()
        return [ended[number] for number in sorted(ended)]

    def _turn(self, active: Sequence[tuple[Episode, Session]]) -> None:
        """Have all episodes take a turn, and run the calls that these make."""
        contexts = [episode.context for episode, _ in active]
        budgets = [episode.budget for episode, _ in active]
        completions = self.generator.generate(contexts, self.sampling, budgets)
        waiting: list[tuple[Episode, ToolCall | Issue]] = []
        sessions: list[Session] = []
        for (episode, session), completion in zip(active, completions, strict=True):
            call = episode.take_turn(completion)
            if call is not None:
                waiting.append((episode, call))
                sessions.append(session)
        calls: list[ToolCall | None] = []
        for _, call in waiting:
            calls.append(call if isinstance(call, ToolCall) else None)
        observations = self.toolbox.run_batch(calls, sessions)
        for (episode, call), observation in zip(waiting, observations, strict=True):
            if isinstance(call, Issue):
                form = self.dialect.call_form(self.toolbox.names)
                observation = self.toolbox.describe_malformed(call.why, form)
            episode.take_observation(observation)
