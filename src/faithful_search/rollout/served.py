"""Episodes of an agent behind an OpenAI-compatible endpoint: the server writes the calls, the tools run here."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterable
from contextlib import closing
from typing import Any

import msgspec

from .. import dialects
from ..errors import ConfigError
from ..tasks import Task
from ..tools.base import Observation
from ..tools.session import Session
from ..tools.toolbox import Toolbox
from ..trajectory import ToolCall, Trajectory
from ..wire.background import map_concurrently
from ..wire.llm import LLM, Endpoint, Stats, ToolRequest, Unanswered, with_key
from .environment import inner_text, template_fence

FAILED = "failed"
"""The stop reason of an episode that the endpoint did not answer to its end; `meta["why"]` says why."""


class ServedAgent:
    """Runs a served chat model with tools (`tools` and `tool_calls` of chat completions); `run` is as `Engine.run`.

    Requests are tried again after what passes. An episode that gets no answer then ends as `FAILED` and is not shown to
    `on_end`: it says nothing about the agent. The key is looked for as by `EndpointJudge`. Not to be called inside a
    running event loop.

    Args:
        model: the served model's name.
        url: the server's base URL, usually ending in `/v1`; without one, Hugging Face Inference Providers.
        toolbox: its tools.
        turns: requests an episode may take.
        max_tokens: of a reply.
        temperature, seed: of the sampling.
        concurrency: requests under way at once.
        timeout: seconds for one request.

    Raises:
        ConfigError: for limits below 1, or a URL that is not http(s) or holds a password.

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
    ) -> None:
        if min(turns, max_tokens, concurrency) < 1 or timeout <= 0:
            raise ConfigError("turns, max_tokens, concurrency and timeout of a served agent must be positive")
        self.endpoint = Endpoint(url, model, None, timeout, 3 * timeout, concurrency=concurrency)
        self.toolbox, self.turns = toolbox, turns
        self.dialect = dialects.load("openai")
        self.stats = Stats()
        self._fence = template_fence(self.dialect)
        self._body = {"temperature": temperature, "seed": seed, "max_tokens": max_tokens, "tools": toolbox.schemas}

    def run(self, tasks: Iterable[Task], on_end: Callable[[Trajectory], Any] | None = None) -> list[Trajectory]:
        """One episode per task, in the tasks' order.

        Raises:
            JudgeError: when asking is pointless: a wrong key, an unknown model.
        """
        return asyncio.run(self._run(list(tasks), on_end))

    async def _run(self, tasks: list[Task], on_end: Callable[[Trajectory], Any] | None) -> list[Trajectory]:
        llm = LLM(with_key(self.endpoint), self.stats)

        async def episode(task: Task) -> Trajectory:
            with closing(self.toolbox.session(task.edits)) as session:
                try:
                    found = await self._episode(llm, task, session)
                except Unanswered as fault:
                    return Trajectory(question=task.question, id=task.id, stop_reason=FAILED, meta={"why": str(fault)})
            if on_end is not None:
                on_end(found)
            return found

        # All episodes at once: the endpoint's slots bound the requests, so that one may ask while another's tools run.
        return await map_concurrently(episode, tasks, most=max(1, len(tasks)))

    async def _episode(self, llm: LLM, task: Task, session: Session) -> Trajectory:
        messages = self.dialect.prompt(task.question, self.toolbox.schemas)
        for _ in range(self.turns):
            reply = await llm.chat(messages, self._body)
            messages.append({"role": "assistant", "content": reply.text, **_written(reply.calls)})
            if not reply.calls:
                break
            observations = await asyncio.gather(*(self._observe(call, session) for call in reply.calls))
            for call, seen in zip(reply.calls, observations, strict=True):
                text = inner_text(seen, self.dialect, self._fence)
                messages.append({"role": "tool", "tool_call_id": call.id, "content": text})
        found = self.dialect.parse_messages(messages, question=task.question)
        reason = "answered" if found.answer is not None else "turn_limit"
        return msgspec.structs.replace(found, id=task.id, answers=task.answers, stop_reason=reason, dialect="openai")

    async def _observe(self, call: ToolRequest, session: Session) -> Observation:
        try:
            arguments = json.loads(call.arguments or "{}")
        except ValueError as error:
            return self.toolbox.describe_malformed(f"its arguments are no JSON ({error})")
        if not isinstance(arguments, dict):
            return self.toolbox.describe_malformed("its arguments are no JSON object")
        return await self.toolbox.call(ToolCall(call.name, arguments), session)


def _written(calls: tuple[ToolRequest, ...]) -> dict[str, Any]:
    made = [
        {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
        for call in calls
    ]
    return {"tool_calls": made} if made else {}
