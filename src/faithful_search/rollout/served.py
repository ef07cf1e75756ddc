"""Episodes of an agent behind an OpenAI-compatible endpoint: the server writes the calls, the tools run here.

In dialect `openai` the server reads and writes calls itself (`tools` and `tool_calls` of chat completions). In a
dialect of tags, such as `pokee` or `pou`, messages are plain text and the calls in them are read here.
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
from ..trajectory import ToolCall, Trajectory
from ..wire.background import map_concurrently
from ..wire.llm import LLM, Endpoint, Messages, Reply, Stats, ToolRequest, Unanswered, with_key
from .environment import inner_text, template_fence
from .episode import OnEnd, OnStep, copies, unreadable

FAILED = "failed"  # the stop reason of an episode that the endpoint did not answer; `meta["why"]` says why


class ServedAgent:
    """Runs a served chat model with tools; `run` is as `Engine.run`.

    Requests are retried after transient failures. An episode that still gets no answer ends as `FAILED` and is not
    shown to `on_end`: it says nothing about the agent. Not to be called inside a running event loop.

    Args:
        url: the server's base URL, usually ending in `/v1`; without one, Hugging Face Inference Providers.
        turns: requests an episode may take.
        concurrency: requests under way at once.
        timeout: seconds for one request.
        dialect: how the model writes: `openai`, or one of tags whose tool responses are messages of the chat.
        key: for the server, `""` for none; by default found as `EndpointJudge` does.

    Raises:
        ConfigError: for limits below 1, a URL that is not http(s) or holds a password, a dialect that cannot be served.

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
    ) -> None:
        if min(turns, max_tokens, concurrency) < 1 or timeout <= 0:
            raise ConfigError(
                "turns, max_tokens, concurrency and timeout of a served agent must be positive"
            )
        self.endpoint = Endpoint(url, model, key, timeout, 3 * timeout, concurrency=concurrency)
        self.toolbox, self.turns, self.verify = toolbox, turns, verify
        self.dialect = dialects.load(dialect)
        if self.dialect.observation_role is None:
            cannot = "goes on inside one message, which chat completions cannot"
            raise ConfigError(
                f"dialect {dialect!r} {cannot}; take 'openai', 'pou' or 'pokee', or run the model here"
            )
        if verify and not self.dialect.verifies:
            raise ConfigError(
                f"verify: dialect {dialect!r} has no mode in which answers are checked; take 'pokee'"
            )
        self.stats, self._fence = Stats(), template_fence(self.dialect)
        self._seed, self._structured = seed, dialect == "openai"
        tools = {"tools": toolbox.schemas} if self._structured else {}
        self._body: dict[str, Any] = {"temperature": temperature, "max_tokens": max_tokens, **tools}

    def run(
        self, tasks: Iterable[Task], on_end: OnEnd = None, on_step: OnStep = None
    ) -> list[Trajectory]:
        """As `Engine.run`; a task given n times is sampled with a seed of its own each time.

        Raises `JudgeError` when asking is pointless: a wrong key, an unknown model.
        """
        due = [(msgspec.structs.replace(task, id=name), copy) for task, name, copy in copies(tasks)]
        llm = LLM(with_key(self.endpoint), self.stats)

        async def episode(copied: tuple[Task, int]) -> Trajectory:
            task, copy = copied
            ask = partial(llm.chat, body={**self._body, "seed": self._seed + copy})
            with closing(self.toolbox.session(task.edits)) as session:
                try:
                    found = await self._episode(ask, task, session, on_step)
                except Unanswered as fault:
                    return Trajectory(
                        question=task.question,
                        id=task.id,
                        stop_reason=FAILED,
                        meta={"why": str(fault)},
                    )
            if on_end is not None:
                on_end(found)
            return found

        # All episodes at once: the endpoint's slots bound the requests, so that one may ask while another's tools run.
        return asyncio.run(map_concurrently(episode, due, most=max(1, len(due))))

    async def _episode(
        self,
        ask: Callable[[Messages], Awaitable[Reply]],
        task: Task,
        session: Session,
        on_step: OnStep,
    ) -> Trajectory:
        messages = self.dialect.prompt(task.question, self.toolbox.schemas)
        take = self._take_calls if self._structured else self._take_text
        reason, told = "turn_limit", 0
        for _ in range(self.turns):
            reply = await ask(messages)
            goes_on = await take(reply, messages, session)
            found = self.dialect.parse_messages(messages, question=task.question, fenced=True)
            for step in found.steps[told:] if on_step else ():
                on_step(task.id, step)  # type: ignore[misc]
            told = len(found.steps)
            if not goes_on:
                # What was written until such a reply was cut is a thought: every text without calls reads as an answer.
                if reply.cut and self._structured and found.answer is not None:
                    *steps, last = found.steps
                    said = "\n\n".join(filter(None, (last.think, last.answer)))
                    thought = msgspec.structs.replace(last, think=said, answer=None)
                    found = msgspec.structs.replace(found, steps=(*steps, thought), answer=None)
                ended = "turn_token_limit" if reply.cut else "no_action"
                reason = "answered" if found.answer is not None else ended
                break
        return msgspec.structs.replace(found, id=task.id, answers=task.answers, stop_reason=reason)

    async def _take_calls(self, reply: Reply, messages: Messages, session: Session) -> bool:
        """Append a reply with structured calls and what these return; whether there were any."""
        calls = [
            {
                "id": call.id,
                "type": "function",
                "function": {"name": call.name, "arguments": call.arguments},
            }
            for call in reply.calls
        ]
        messages.append(
            {"role": "assistant", "content": reply.text, **({"tool_calls": calls} if calls else {})}
        )
        observations = await asyncio.gather(*(self._observe(call, session) for call in reply.calls))
        for call, seen in zip(reply.calls, observations, strict=True):
            text = inner_text(seen, self.dialect, self._fence)
            messages.append({"role": "tool", "tool_call_id": call.id, "content": text})
        return bool(calls)

    async def _take_text(self, reply: Reply, messages: Messages, session: Session) -> bool:
        """Append a turn written as text, and what its call returns or the controller says; whether it goes on."""
        # A model may write on behind the string that ends its turn.
        ends = [
            reply.text.index(stop) + len(stop) for stop in self.dialect.stop if stop in reply.text
        ]
        messages.append(
            {"role": "assistant", "content": reply.text[: min(ends, default=len(reply.text))]}
        )
        found = self.dialect.parse_messages(messages, fenced=True)
        if not found.steps:  # nothing was written
            return False
        step = found.steps[-1]
        said: str | None
        if step.answer is not None or "call" not in step.spans:
            said = self.dialect.controller(found.steps, self.verify)
        else:
            if call := step.call or self.dialect.repair_call(
                found.text[slice(*step.spans["call"])]
            ):
                seen = await self.toolbox.call(call, session)
            else:
                form = self.dialect.call_form(self.toolbox.names)
                seen = self.toolbox.describe_malformed(unreadable(step).why, form)
            said = self.dialect.render_observation(seen.evidence, seen.note, self._fence)
        if said is not None:
            messages.append({"role": str(self.dialect.observation_role), "content": said})
        return said is not None

    async def _observe(self, call: ToolRequest, session: Session) -> Observation:
        try:
            arguments = msgspec.json.decode(call.arguments or "{}", type=dict[str, Any])
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            return self.toolbox.describe_malformed(f"its arguments are not a JSON object ({error})")
        return await self.toolbox.call(ToolCall(call.name, arguments), session)
