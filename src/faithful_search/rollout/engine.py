"""Many episodes at once: a batched turn of the policy, then all its tool calls concurrently, until all have ended."""

from collections.abc import Iterable, Sequence
from contextlib import nullcontext
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
    """Runs a policy, the `generator`, with its tools.

    Args:
        sampling: how to sample; stop strings and the turn's token limit are set from the dialect and `limits`.
        concurrency: episodes in flight; an ended one makes room for the next.

    Raises:
        ConfigError: when `concurrency` is below 1, an empty tool response already has more than
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
        self.generator, self.toolbox, self.concurrency = generator, toolbox, concurrency
        self.dialect = dialects.load(dialect) if isinstance(dialect, str) else dialect
        self.limits = limits or Limits()
        self.chat = ChatFormat.of(generator.tokenizer, self.dialect)
        self.sampling = msgspec.structs.replace(
            sampling or Sampling(),
            stop=self.dialect.stop + self.chat.stop,
            max_new_tokens=self.limits.turn_tokens,
        )
        name, limits, dialect = self.dialect.name, self.limits, self.dialect
        lacks = [
            ("verify", not dialect.verifies, "has no mode in which it checks its answers", "pokee"),
            (
                "force_answer",
                not self.chat.answer_opening,
                "has no tag that opens an answer",
                "search_r1",
            ),
            (
                "kept_responses",
                dialect.observation_role,
                "writes each tool response as a message",
                "search_r1",
            ),
        ]
        for limit, lacking, why, other in lacks:
            if lacking and getattr(limits, limit):
                raise ConfigError(
                    f"{limit}: dialect {name!r} {why}; leave it off, or take dialect {other!r}"
                )
        # Shortening a response keeps its tags: what does not fit without a text in them could not be shortened.
        frame = (
            len(self.chat.encode(self.chat.render_observation(())))
            if limits.observation_tokens
            else 0
        )
        if limits.observation_tokens < frame:
            few = f"observation_tokens={limits.observation_tokens} is too few"
            empty = f"an empty tool response of dialect {name!r} takes {frame} tokens"
            raise ConfigError(f"{few}: {empty}; give several hundred, or 0 for no limit")

    def run(
        self, tasks: Iterable[Task], on_end: OnEnd = None, on_step: OnStep = None
    ) -> list[Trajectory]:
        """One episode per task, in the tasks' order; a task given n times yields ids `id`, `id#1`, …, `id#n-1`.

        `on_end` sees each trajectory as soon as its episode ends, `on_step` each turn with its episode's id once its
        call was answered. The policy's weights must not change during the run: keys and values may be kept.
        """
        schemas = self.toolbox.schemas  # made anew at each access
        episodes = [
            Episode(task, self.chat, self.limits, schemas, name) for task, name, _ in copies(tasks)
        ]
        waiting = enumerate(episodes)
        active: dict[int, tuple[Episode, Session]] = {}
        ended: dict[int, Trajectory] = {}
        with getattr(self.generator, "keeping", nullcontext)():
            try:
                while len(ended) < len(episodes):
                    for number, episode in islice(waiting, self.concurrency - len(active)):
                        active[number] = episode, self.toolbox.session(episode.task.edits)
                    self._turn(list(active.values()))
                    if on_step is not None:
                        for episode, _ in active.values():
                            on_step(episode.id, episode.steps[-1])
                    for number in [
                        number for number, (episode, _) in active.items() if episode.stop_reason
                    ]:
                        episode, session = active.pop(number)
                        session.close()
                        ended[number] = episode.trajectory()
                        if on_end is not None:
                            on_end(ended[number])
            finally:
                for _, session in active.values():  # after an error: calls may still be under way
                    session.close()
        return [ended[number] for number in sorted(ended)]

    def _turn(self, active: Sequence[tuple[Episode, Session]]) -> None:
        contexts, budgets = (
            [episode.context for episode, _ in active],
            [episode.budget for episode, _ in active],
        )
        completions = self.generator.generate(contexts, self.sampling, budgets)
        asked = [
            episode.take_turn(completion)
            for (episode, _), completion in zip(active, completions, strict=True)
        ]
        due = [(item, *pair) for item, pair in zip(asked, active, strict=True) if item is not None]
        calls = [item if isinstance(item, ToolCall) else None for item, _, _ in due]
        observations = self.toolbox.run_batch(calls, [session for _, _, session in due])
        for (item, episode, _), observation in zip(due, observations, strict=True):
            if isinstance(item, Issue):
                form = self.dialect.call_form(self.toolbox.names)
                observation = self.toolbox.describe_malformed(item.why, form)
            episode.take_observation(observation)
