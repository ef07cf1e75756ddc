"""Episodes of a model behind an OpenAI-compatible endpoint, whose tools run here.

In the dialect `openai` the server reads and writes calls itself (`tools` and `tool_calls` of chat
completions). In a dialect with tags, such as `pokee` or `pou`, messages are plain text and the
calls in them are read here.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from contextlib import closing
from functools import partial
from typing import Any

import msgspec

from .. import dialects
from ..errors import ConfigError
from ..tasks import Task
from ..tools.base import Observation
from ..tools.toolbox import Session, Toolbox
from ..trajectory import Step, ToolCall, Trajectory
from ..wire.background import map_concurrently
from ..wire.llm import (
    LLM,
    ChatReply,
    Endpoint,
    Messages,
    OutgrownWindow,
    Stats,
    ToolRequest,
    Unanswered,
    with_key,
)
from .agent import Used
from .environment import inner_text, template_fence
from .episode import OnEnd, OnStep, copies, issue_of_call, sample_number

FAILED = "failed"
"""The stop reason of an episode whose endpoint did not answer; `meta["why"]` says why."""


class ServedAgent:
    """Runs a served chat model with tools. `run` is as `Engine.run`, and must not be called inside
    a running event loop.

    Requests are retried after transient failures. An episode whose request still gets no reply ends
    as `FAILED` with its steps so far. It says nothing about the agent, so `on_end` is not called
    with it.

    Args:
        model: the served model's name.
        url: the server's base URL, usually ending in `/v1`; `None` for Hugging Face Inference
            Providers.
        toolbox: the tools.
        turns: maximum number of requests in an episode.
        max_tokens: maximum number of tokens that the model samples in a turn.
        temperature: of the sampling.
        seed: of the sampling; further episodes of a task add 1, 2, …
        concurrency: maximum number of requests under way at once.
        timeout: seconds for one request.
        dialect: how the model writes: `openai`, or a dialect with tags whose tool responses are
            messages of the chat.
        verify: let the agent check each answer, see `Limits.verify`.
        key: the server's key, `""` for none; by default it is looked up as by `EndpointJudge`.
        total_tokens: maximum number of tokens that the model samples in an episode, as the server
            counts them; `None` for no limit.

    Raises:
        ConfigError: for limits below 1, a URL that is not http(s) or holds a password, a dialect
            that cannot be served.

    Example:
        ```python
        agent = ServedAgent("NAME", "http://127.0.0.1:8000/v1", Toolbox([LocalSearch.from_corpus("world")]))
        print(agent.run(load_tasks("world", "test", limit=8))[0].answer)
        ```
    """

    def __init__(
        self,
        model: str,
        url: str | None,
        toolbox: Toolbox,
        turns: int = 10,
        max_tokens: int = 1024,
        temperature: float = 0.0,
        seed: int = 0,
        concurrency: int = 16,
        timeout: float = 120.0,
        dialect: str = "openai",
        verify: bool = False,
        key: str | None = None,
        total_tokens: int | None = None,
    ) -> None:
        tokens = max_tokens if total_tokens is None else total_tokens
        if min(turns, max_tokens, tokens, concurrency) < 1 or timeout <= 0:
            raise ConfigError(
                "turns, max_tokens, total_tokens, concurrency and timeout of a served agent must "
                "be positive"
            )
        self.total_tokens = total_tokens
        self.endpoint = Endpoint(url, model, key, timeout, 3 * timeout, concurrency=concurrency)
        self.toolbox = toolbox
        self.turns = turns
        self.verify = verify
        self.dialect = dialects.load(dialect)
        if self.dialect.observation_role is None:
            cannot = "goes on inside one message, which chat completions cannot"
            raise ConfigError(
                f"dialect {dialect!r} {cannot}; take 'openai', 'pou' or 'pokee', or run the model "
                "here"
            )
        if verify and not self.dialect.can_verify:
            raise ConfigError(
                f"verify: dialect {dialect!r} has no mode in which answers are checked; take "
                "'pokee'"
            )
        self.stats = Stats()
        self._fence = template_fence(self.dialect)
        self._seed = seed
        self._structured = dialect == "openai"  # the server reads and writes calls itself
        self._body: dict[str, Any] = {"temperature": temperature, "max_tokens": max_tokens}
        if self._structured:
            self._body["tools"] = toolbox.schemas

    def run(
        self, tasks: Iterable[Task], on_end: OnEnd = None, on_step: OnStep = None
    ) -> list[Trajectory]:
        """As `Engine.run`. A task that is given several times is sampled with another seed each
        time.

        Raises `JudgeError` when no request can succeed: a wrong key, an unknown model, a server
        that is not there.
        """
        # Each task under the id of its episode
        tasks = [msgspec.structs.replace(task, id=id) for task, id, _ in copies(tasks)]
        llm = LLM(with_key(self.endpoint), self.stats)

        async def episode(task: Task) -> Trajectory:
            seed = self._seed + sample_number(task.id)
            ask = partial(llm.chat, body={**self._body, "seed": seed})
            with closing(self.toolbox.session(task.edits)) as session:
                trajectory = await self._episode(ask, task, session, on_step)
            if on_end is not None and trajectory.stop_reason != FAILED:
                on_end(trajectory)
            return trajectory

        # All episodes at once, so that one can send a request while the tools of another run. The
        # endpoint bounds the number of requests.
        return asyncio.run(map_concurrently(episode, tasks, most=max(1, len(tasks))))

    async def _episode(
        self,
        ask: Callable[[Messages], Awaitable[ChatReply]],
        task: Task,
        session: Session,
        on_step: OnStep,
    ) -> Trajectory:
        """The episode of a task; `ask` sends the messages so far and returns the model's reply."""
        messages = self.dialect.prompt(task.question, self.toolbox.schemas)
        take = self._take_calls if self._structured else self._take_text
        trajectory = Trajectory(question=task.question, dialect=self.dialect.name)
        stop_reason = "turn_limit"
        reported = 0  # the number of steps that `on_step` was called with
        used = Used()
        for _ in range(self.turns):
            if self.total_tokens is not None and used.completion_tokens >= self.total_tokens:
                stop_reason = "token_limit"
                break
            try:
                reply = await ask(messages)
            except Unanswered as fault:
                has_outgrown = isinstance(fault, OutgrownWindow) and used.requests > 0
                stop_reason = "token_limit" if has_outgrown else FAILED
                trajectory = msgspec.structs.replace(
                    trajectory, answer=None, meta={"why": str(fault)}
                )
                break
            used.requests += 1
            used.prompt_tokens += reply.prompt_tokens
            used.completion_tokens += reply.completion_tokens
            has_next_turn = await take(reply, messages, session)
            trajectory = self._read(messages, task.question)
            # In `openai` any text without calls is read as an answer, but text that was cut at the
            # token limit is only a thought
            is_cut_text = reply.cut and self._structured and not has_next_turn
            if is_cut_text and trajectory.answer is not None:
                trajectory = _with_answer_as_thought(trajectory)
            if on_step is not None:
                for step in trajectory.steps[reported:]:
                    on_step(task.id, step)
                reported = len(trajectory.steps)
            if not has_next_turn:
                stop_reason = "turn_token_limit" if reply.cut else "no_action"
                if trajectory.answer is not None:
                    stop_reason = "answered"
                break
        used.calls = sum(step.call is not None for step in trajectory.steps)
        return msgspec.structs.replace(
            trajectory,
            id=task.id,
            answers=task.answers,
            stop_reason=stop_reason,
            meta={**trajectory.meta, "used": msgspec.to_builtins(used)},
        )

    def _read(self, messages: Messages, question: str | None = None) -> Trajectory:
        """The episode so far. A tool response inside a message of the model is no evidence, since
        the model wrote it.
        """
        return self.dialect.parse_messages(
            messages, question=question, fenced=True, responses="messages"
        )

    async def _take_calls(self, reply: ChatReply, messages: Messages, session: Session) -> bool:
        """Append a reply and what its structured calls return. Returns whether it had any."""
        message: dict[str, Any] = {"role": "assistant", "content": reply.text}
        calls = []
        for call in reply.calls:
            function = {"name": call.name, "arguments": call.arguments}
            calls.append({"id": call.id, "type": "function", "function": function})
        if calls:
            message["tool_calls"] = calls
        messages.append(message)
        observations = await asyncio.gather(*(self._observe(call, session) for call in reply.calls))
        for call, observation in zip(reply.calls, observations, strict=True):
            text = inner_text(observation, self.dialect, self._fence)
            messages.append({"role": "tool", "tool_call_id": call.id, "content": text})
        return bool(calls)

    async def _take_text(self, reply: ChatReply, messages: Messages, session: Session) -> bool:
        """Append a turn written as text, and what its call returns or the controller replies.

        Returns whether the episode goes on.
        """
        # The model may go on after the string that ends its turn: what follows is cut off
        end = len(reply.text)
        for stop in self.dialect.stop:
            if stop in reply.text:
                end = min(end, reply.text.index(stop) + len(stop))
        messages.append({"role": "assistant", "content": reply.text[:end]})
        so_far = self._read(messages)
        if not so_far.steps:  # nothing was written
            return False
        step = so_far.steps[-1]
        if step.answer is not None or "call" not in step.spans:
            response = self.dialect.controller_reply(so_far.steps, self.verify)
        else:
            raw = so_far.text[slice(*step.spans["call"])]
            response = await self._response_to_call(step, raw, session)
        if response is None:
            return False
        messages.append({"role": str(self.dialect.observation_role), "content": response})
        return True

    async def _response_to_call(self, step: Step, raw: str, session: Session) -> str:
        """What the call of a step returns, as the dialect writes it. `raw` is the text of the call.
        If it can neither be read nor repaired, the response says how to write it.
        """
        call = step.call or self.dialect.repair_call(raw)
        if call is None:
            form = self.dialect.call_form(self.toolbox.names)
            observation = self.toolbox.describe_malformed(issue_of_call(step).why, form)
        else:
            observation = await self.toolbox.call(call, session)
        return self.dialect.render_observation(observation.evidence, observation.note, self._fence)

    async def _observe(self, call: ToolRequest, session: Session) -> Observation:
        """What a structured call returns; a note, if its arguments cannot be read."""
        try:
            arguments = msgspec.json.decode(call.arguments or "{}", type=dict[str, Any])
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            return self.toolbox.describe_malformed(f"its arguments are not a JSON object ({error})")
        return await self.toolbox.call(ToolCall(call.name, arguments), session)


def _with_answer_as_thought(trajectory: Trajectory) -> Trajectory:
    """The trajectory without its answer, which becomes part of the last step's thought."""
    *steps, last = trajectory.steps
    text = "\n\n".join(filter(None, (last.think, last.answer)))
    thought = msgspec.structs.replace(last, think=text, answer=None)
    return msgspec.structs.replace(trajectory, steps=(*steps, thought), answer=None)
