"""What all agents share: they put a question to a model in plain messages and call the tools
themselves, and an `Attempt` records each step.
"""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any, ClassVar

import msgspec

from .. import dialects
from ..errors import ConfigError
from ..rollout.agent import Used
from ..rollout.environment import inner_text, template_fence
from ..rollout.episode import OnEnd, OnStep, copies, sample_number
from ..rollout.served import FAILED
from ..tasks import Task
from ..tools.base import Observation
from ..tools.toolbox import Session, Toolbox, searches
from ..trajectory import Step, ToolCall, Trajectory
from ..wire.background import map_concurrently
from ..wire.llm import Messages, OutgrownWindow, Unanswered
from .models import ChatModel, ModelReply, PromptTooLong
from .prompts import filled

DIALECT = "openai"
"""What trajectories of these agents are read as: chat messages with calls, without tags."""
_PASSAGE_DIALECT = "pou"  # prompts show passages as this dialect does: title, id, text


@dataclass(frozen=True)
class AgentSettings:
    """How an agent works, the same for all of them. How many passages a search returns is a setting
    of the toolbox.

    Args:
        turns: how many turns of an episode may call tools; `None` for the agent's own number. Where
            they are used up the agent is asked for its answer, except `untrained`, whose episode
            ends.
        max_tokens: tokens of a reply.
        total_tokens: tokens that the model may sample in an episode; for `untrained` with a policy
            here, tool responses are among them.
        temperature: of the sampling; 0 is greedy.
        seed: of the sampling; further episodes of a task add 1, 2, …
        concurrency: episodes under way at once.
        tool: the tool that `rag`, `ircot` and `search_o1` search with; `None` for the first one
            that takes a query.
        dialect: what `untrained` writes; `None` for `openai` with an endpoint, else `search_r1`.

    Raises:
        ConfigError: for a number that is out of range.
    """

    turns: int | None = None
    max_tokens: int = 512
    total_tokens: int = 8192
    temperature: float = 0.0
    seed: int = 0
    concurrency: int = 16
    tool: str | None = None
    dialect: str | None = None

    def __post_init__(self) -> None:
        turns = 1 if self.turns is None else self.turns
        if min(turns, self.max_tokens, self.total_tokens, self.concurrency) < 1:
            raise ConfigError(
                "turns, max_tokens, total_tokens and concurrency of an agent must be at least 1; "
                f"got {self}"
            )
        if self.temperature < 0:
            raise ConfigError(f"temperature must be at least 0, got {self.temperature}")


class Stopped(Exception):
    """An episode ends before its answer; `reason` is its `stop_reason`."""

    def __init__(self, reason: str, why: str = "") -> None:
        super().__init__(reason)
        self.reason = reason
        self.why = why


class Attempt:
    """One episode: what was asked of the model and the tools, as steps.

    Attributes:
        question: of the task.
        steps: what was done so far.
        used: what it cost so far.
    """

    def __init__(self, agent: "ChatAgent", task: Task, session: Session, on_step: OnStep) -> None:
        self.question = task.question
        self.steps: list[Step] = []
        self.used = Used()
        self._agent = agent
        self._task = task
        # Episodes of the same task differ in their number, and so sample differently
        self._seed = agent.settings.seed + sample_number(task.id)
        self._session = session
        self._on_step = on_step

    async def ask(self, prompt: str, **fields: str) -> ModelReply:
        """The model's reply to the template `prompts/<prompt>.md`, with its `fields` filled in."""
        return await self.reply([{"role": "user", "content": filled(prompt, **fields)}])

    async def reply(self, messages: Messages, stop: Sequence[str] = ()) -> ModelReply:
        """The model's reply. Raises `Stopped` where the episode's tokens are used up."""
        settings = self._agent.settings
        tokens_left = settings.total_tokens - self.used.completion_tokens
        if tokens_left < 1:
            raise Stopped("token_limit")
        try:
            reply = await self._agent.model.reply(
                messages,
                stop=stop,
                max_tokens=min(settings.max_tokens, tokens_left),
                temperature=settings.temperature,
                seed=self._seed,
            )
        except PromptTooLong as fault:
            raise Stopped("token_limit", str(fault)) from None
        except OutgrownWindow as fault:
            if (
                not self.used.requests
            ):  # the limit of the reply may be wrong: no episode would begin
                raise
            raise Stopped("token_limit", str(fault)) from None
        self.used.requests += 1
        self.used.prompt_tokens += reply.prompt_tokens
        self.used.completion_tokens += reply.completion_tokens
        return reply

    async def call(
        self, think: str | None, calls: Sequence[ToolCall], note: str = ""
    ) -> list[Observation]:
        """Run the calls of a turn at once, and write down a step for each. A turn without calls
        becomes one step.

        Args:
            think: the thought before the calls; the first step holds it.
            calls: the calls, in the order in which the model wrote them.
            note: what the model is told instead of a tool response, in a turn without calls.
        """
        observations = await self._agent.toolbox.call_together(calls, self._session)
        self.used.calls += len(calls)
        is_first = True
        for call, observation in zip(calls, observations, strict=True):
            step = Step(
                think=think if is_first else None,
                call=call,
                evidence=observation.evidence,
                note=observation.note,
                same_turn=not is_first,
            )
            self._take(step)
            is_first = False
        if not calls:
            self._take(Step(think=think, note=note))
        return observations

    def answer(self, think: str | None, answer: str | None, reply: ModelReply) -> None:
        """Write down the last step. Without an answer the episode ends for the reason that the
        model's `reply` shows.
        """
        self._take(Step(think=think, answer=answer))
        if answer is None:
            raise Stopped("turn_token_limit" if reply.cut else "no_action")

    def shown(self, observations: Iterable[Observation]) -> str:
        """What was returned, as a prompt shows it: fenced, so that no passage can write markup."""
        return "\n".join(self._agent.shown(observation) for observation in observations)

    def trajectory(self, reason: str, why: str = "") -> Trajectory:
        """The episode as a value. `meta` says which agent and model it is of, and what it `used`
        within which `limits`.
        """
        meta = {**self._agent.described(), "used": msgspec.to_builtins(self.used)}
        # Judges and tables have to know which fact was changed in the passages of this episode
        if "counterfactual" in self._task.meta:
            meta["counterfactual"] = self._task.meta["counterfactual"]
        if why:
            meta["why"] = why
        last = self.steps[-1] if self.steps else Step()
        return Trajectory(
            steps=tuple(self.steps),
            question=self.question,
            answer=last.answer if reason == "answered" else None,
            stop_reason=reason,
            dialect=DIALECT,
            id=self._task.id,
            answers=self._task.answers,
            meta=meta,
            # The tools ran here, so the model cannot have invented what they returned
            evidence_from="environment" if self.used.calls else "",
        )

    def _take(self, step: Step) -> None:
        self.steps.append(step)
        if self._on_step is not None:
            self._on_step(self._task.id, step)


class ChatAgent(ABC):
    """An agent that asks a `ChatModel` in plain messages and calls tools itself. It is run like any
    `rollout.Agent`.

    An agent is one file: a subclass with `attempt`. An episode whose endpoint did not answer ends
    as `FAILED` and is not passed to `on_end`, as with `ServedAgent`.

    Attributes:
        needs_tools: whether the agent can only work with a tool.
        own_turns: the number of turns where `AgentSettings.turns` is `None`.

    Raises:
        ConfigError: it needs a tool and the toolbox has none, or not the one that is named.
    """

    needs_tools: ClassVar[bool] = True
    own_turns: ClassVar[int] = 1

    def __init__(self, model: ChatModel, toolbox: Toolbox, settings: AgentSettings) -> None:
        self.name = type(self).__module__.rpartition(".")[2]  # agents are called as their file is
        self.model = model
        self.toolbox = toolbox
        self.settings = settings
        self.dialect = dialects.load(DIALECT)
        self.turns = self.own_turns if settings.turns is None else settings.turns
        if self.needs_tools and not searches(toolbox):
            there_are = ", ".join(toolbox.names) or "none"
            raise ConfigError(
                f"the agent {self.name!r} needs a tool that takes a query: give --corpus or "
                f"--web_search (tools: {there_are})"
            )
        if settings.tool is not None and settings.tool not in searches(toolbox):
            raise ConfigError(
                f"tool: no tool {settings.tool!r} that takes a query; there are: "
                f"{', '.join(searches(toolbox)) or 'none'}"
            )
        self._passages = dialects.load(_PASSAGE_DIALECT)
        # Keeps a retrieved text from writing markup or the control tokens of the chat template
        self._fence = template_fence(self._passages, model.tokenizer)

    @property
    def stats(self) -> Any:
        """Counts of the model's requests and tokens."""
        return self.model.stats

    @abstractmethod
    async def attempt(self, episode: Attempt) -> None:
        """Answer `episode.question`: ask, call, and end with `episode.answer`. Where it raises
        `Stopped`, the episode has no answer.
        """

    def run(
        self, tasks: Iterable[Task], on_end: OnEnd = None, on_step: OnStep = None
    ) -> list[Trajectory]:
        """Answer the tasks, `settings.concurrency` at once, and return their trajectories in the
        order of the tasks. A task that is given twice has two episodes. Not to be called inside a
        running event loop.

        Args:
            tasks: the questions.
            on_end: called with each trajectory when its episode has ended.
            on_step: called with the episode's id and each step.

        Raises:
            JudgeError: asking is pointless: a wrong key, an unknown model, a server that is not
                there. Judges ask endpoints in the same way, so that the error has their name.
        """
        episodes = []
        for task, episode_id, _ in copies(tasks):
            episodes.append(msgspec.structs.replace(task, id=episode_id))

        async def episode(task: Task) -> Trajectory:
            with closing(self.toolbox.session(task.edits)) as session:
                attempt = Attempt(self, task, session, on_step)
                trajectory = await self._ended(attempt)
            if on_end is not None and trajectory.stop_reason != FAILED:
                on_end(trajectory)
            return trajectory

        with self.model.session():
            return asyncio.run(map_concurrently(episode, episodes, self.settings.concurrency))

    async def _ended(self, attempt: Attempt) -> Trajectory:
        try:
            await self.attempt(attempt)
        except Stopped as stopped:
            return attempt.trajectory(stopped.reason, stopped.why)
        except Unanswered as fault:
            return attempt.trajectory(FAILED, str(fault))
        return attempt.trajectory("answered")

    def search_call(self, query: str) -> ToolCall:
        """The query, put to the tool that the agent searches with."""
        name = self.settings.tool or searches(self.toolbox)[0]
        return ToolCall(name, {"query": query})

    def shown(self, observation: Observation) -> str:
        """An observation as a prompt shows it."""
        return inner_text(observation, self._passages, self._fence)

    def described(self) -> dict[str, Any]:
        """Which agent this is, of which model, and what bounds an episode."""
        limits = {
            "turns": self.turns,
            "max_tokens": self.settings.max_tokens,
            "total_tokens": self.settings.total_tokens,
        }
        return {"agent": self.name, "model": self.model.name, "limits": limits}
