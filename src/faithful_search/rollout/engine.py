"""Many episodes at once: a batched turn of the policy, then all its tool calls concurrently, until all have ended."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from typing import Any

import msgspec

from .. import dialects
from ..dialects.base import Dialect
from ..errors import ConfigError
from ..inference.base import Generator, Sampling
from ..inference.chat import ChatFormat
from ..tasks import Task
from ..tools.session import Session
from ..tools.toolbox import Toolbox
from ..trajectory import Issue, Step, ToolCall, Trajectory
from .episode import Episode, Limits, copies


class Engine:
    """Runs a policy, the `generator`, with its tools.

    Args:
        sampling: how to sample; stop strings and the turn's token limit are set from the dialect and `limits`.
        concurrency: episodes in flight; an ended one makes room for the next.

    Raises:
        ConfigError: when `concurrency` is below 1, an empty tool response already has more than
            `limits.observation_tokens`, or the dialect cannot do what `limits` ask for (`force_answer`, `verify`).

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
        if self.limits.verify and not self.dialect.verifies:
            raise ConfigError(
                f"verify: an agent of dialect {self.dialect.name!r} has no mode in which it checks its answers; leave "
                "it off, or take dialect 'pokee'"
            )
        if self.limits.force_answer and not self.chat.answer_opening:
            raise ConfigError(
                f"force_answer: dialect {self.dialect.name!r} has no tag that opens an answer; leave it off, or take a "
                "dialect that has one, such as 'search_r1'"
            )
        if self.limits.kept_responses and self.dialect.observation_role is not None:
            raise ConfigError(
                f"kept_responses: dialect {self.dialect.name!r} writes each tool response as a message of a chat, "
                "which cannot be left out; leave it at 0, or take dialect 'search_r1'"
            )
        # shortening a response keeps its tags: what no longer fits within them could not be shortened
        frame = len(self.chat.encode(self.chat.render_observation(()))) if self.limits.observation_tokens else 0
        if self.limits.observation_tokens < frame:
            raise ConfigError(
                f"observation_tokens={self.limits.observation_tokens} is too few: an empty tool response of dialect "
                f"{self.dialect.name!r} takes {frame} tokens; give several hundred, or 0 for no limit"
            )
        self.sampling = msgspec.structs.replace(
            sampling or Sampling(), stop=self.dialect.stop + self.chat.stop, max_new_tokens=self.limits.turn_tokens
        )

    def run(
        self,
        tasks: Iterable[Task],
        on_end: Callable[[Trajectory], Any] | None = None,
        on_step: Callable[[str, Step], Any] | None = None,
    ) -> list[Trajectory]:
        """One episode per task, in the tasks' order; a task given n times yields ids `id`, `id#1`, …, `id#n-1`.

        `on_end` sees each trajectory as soon as its episode ends, `on_step` each turn with its episode's id once its
        call was answered. The policy's weights must not change during the run: keys and values may be kept from turn to
        turn.
        """
        schemas = self.toolbox.schemas  # made anew at each access
        episodes = [Episode(task, self.chat, self.limits, schemas, name) for task, name, _ in copies(tasks)]
        waiting = list(enumerate(episodes))[::-1]  # popped from its end
        sessions: dict[int, Session] = {}
        active: dict[int, Episode] = {}
        ended: dict[int, Trajectory] = {}
        with getattr(self.generator, "keeping", nullcontext)():
            try:
                while waiting or active:
                    while waiting and len(active) < self.concurrency:
                        number, episode = waiting.pop()
                        active[number], sessions[number] = episode, self.toolbox.session(episode.task.edits)
                    self._turn(list(active.values()), [sessions[number] for number in active])
                    if on_step is not None:
                        for episode in active.values():
                            on_step(episode.id, episode.steps[-1])
                    for number in [number for number, episode in active.items() if episode.stop_reason]:
                        ended[number] = active.pop(number).trajectory()
                        sessions.pop(number).close()
                        if on_end is not None:
                            on_end(ended[number])
            finally:
                for session in sessions.values():  # after an error: calls may still be under way
                    session.close()
        return [ended[number] for number in sorted(ended)]

    def _turn(self, episodes: Sequence[Episode], sessions: Sequence[Session]) -> None:
        completions = self.generator.generate(
            [episode.context for episode in episodes], self.sampling, [episode.budget for episode in episodes]
        )
        asked = [episode.take_turn(completion) for episode, completion in zip(episodes, completions, strict=True)]
        due = [number for number, item in enumerate(asked) if item is not None]
        calls = [item if isinstance(item, ToolCall) else None for item in asked]
        observations = self.toolbox.run_batch([calls[number] for number in due], [sessions[number] for number in due])
        for number, observation in zip(due, observations, strict=True):
            issue = asked[number]
            if isinstance(issue, Issue):
                observation = self.toolbox.describe_malformed(
                    issue.why, form=self.dialect.call_form(self.toolbox.names)
                )
            episodes[number].take_observation(observation)
