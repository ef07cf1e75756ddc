"""The tools a policy has: arguments checked, time-outs kept, failures turned into notes, evidence numbered."""

from __future__ import annotations

import asyncio
import threading
import time
import weakref
from collections.abc import MutableMapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from ..errors import ConfigError, ToolError
from ..trajectory import Evidence, ToolCall
from .background import BackgroundLoop
from .base import Observation, Tool, method_of, schema_of
from .schema import check_arguments

NOTE_LENGTH = 500
"""Longest note made from an exception: a tool's stack of HTML must not fill the policy's context."""
_GRACE = 1.0


@dataclass(frozen=True)
class ToolStats:
    """What one tool was asked so far: `calls`, the `errors` among them, and the `seconds` they took, summed."""

    calls: int = 0
    errors: int = 0
    seconds: float = 0.0


class Session:
    """Numbers the evidence of one rollout: `E1`, `E2`, … running on across its calls."""

    def __init__(self, given: int = 0) -> None:
        self.given = given

    def number(self, observation: Observation) -> Observation:
        """The same observation with the next ids on its evidence."""
        first, self.given = self.given + 1, self.given + len(observation.evidence)
        named = (msgspec.structs.replace(item, id=f"E{n}") for n, item in enumerate(observation.evidence, start=first))
        return msgspec.structs.replace(observation, evidence=tuple(named))


class Toolbox:
    """Runs tool calls; whatever goes wrong becomes a note the policy reads, never an exception.

    A copy or a pickle carries the tools and the settings; the background thread and the counters stay behind.

    Args:
        tools: objects of the shape of `Tool`, each with its own name.
        timeout: seconds one call may take.
        concurrency: how many calls run at once on one event loop.
        top_k: most passages one call may return; `None` for what the tools return.

    Raises:
        ConfigError: two tools of one name, a tool without a documented async method, or a setting that is not
            positive.

    Example:
        >>> from faithful_search.tools import LocalSearch
        >>> with Toolbox([LocalSearch.from_corpus("world")]) as toolbox:
        ...     session = toolbox.session()
        ...     [found] = toolbox.run_batch([ToolCall("local_search", {"query": "capital"})], [session])
        >>> found.evidence[0].id
        'E1'
    """

    def __init__(
        self, tools: Sequence[Tool], timeout: float = 30.0, concurrency: int = 64, top_k: int | None = None
    ) -> None:
        if timeout <= 0 or concurrency < 1 or (top_k is not None and top_k < 1):
            raise ConfigError(f"timeout, concurrency and top_k must be positive; got {timeout}, {concurrency}, {top_k}")
        self.tools = {tool.name: tool for tool in tools}
        if len(self.tools) < len(tools):
            raise ConfigError(f"two tools of one name: {', '.join(tool.name for tool in tools)}; rename one")
        self.timeout, self.concurrency, self.top_k = timeout, concurrency, top_k
        self._start_fresh()

    def _start_fresh(self) -> None:
        self._lock = threading.Lock()
        self._loop: BackgroundLoop | None = None
        self._methods = {name: method_of(tool) for name, tool in self.tools.items()}
        self._arguments = {name: _usage(tool) for name, tool in self.tools.items()}
        self._stats = {name: ToolStats() for name in self.tools}
        self._slots: MutableMapping[asyncio.AbstractEventLoop, asyncio.Semaphore] = weakref.WeakKeyDictionary()

    @property
    def names(self) -> list[str]:
        """The tools' names, in the order given."""
        return list(self.tools)

    @property
    def schemas(self) -> list[dict[str, Any]]:
        """The tools' JSON schemas, as a chat template wants them."""
        return [schema_of(tool) for tool in self.tools.values()]

    def session(self) -> Session:
        """A new rollout's numbering, starting at `E1`."""
        return Session()

    def stats(self) -> dict[str, ToolStats]:
        """Calls, errors and seconds by tool since the toolbox was made."""
        return dict(self._stats)

    def describe_malformed(self, why: str, form: str = "") -> Observation:
        """The answer to a call that could not be read: what was wrong, the tools there are, and the form expected.

        `form` is the dialect's (`Dialect.call_form`); the toolbox knows of none.
        """
        wanted = f" Write it as {form}." if form else ""
        return _error(f"The tool call could not be read: {why}.{wanted} {self._available()}")

    async def call(self, tool_call: ToolCall, session: Session) -> Observation:
        """Run one call and number what it found. Never raises for what the policy or a tool did."""
        return session.number(await self._limited(tool_call))

    def run_batch(self, calls: Sequence[ToolCall | None], sessions: Sequence[Session]) -> list[Observation]:
        """Run the calls of one turn at once and wait for all; results come in the calls' order, empty for `None`.

        Ids are given in the calls' order, whichever finishes first; several calls may share a session. Callable from
        anywhere but a tool: the calls run on the toolbox's own background event loop. Should a tool block that loop,
        the calls that have not returned are answered with a time-out and the next batch gets a new loop.

        Raises:
            ConfigError: when there are not as many sessions as calls, or when called from inside a tool.
        """
        if len(calls) != len(sessions):
            raise ConfigError(f"{len(calls)} calls for {len(sessions)} sessions: give one session for each call")
        found: list[Observation | None] = [None if call else Observation() for call in calls]
        background = self._background()
        try:
            background.run(self._gather(calls, found), patience=self.timeout + _GRACE)
        except TimeoutError:
            self._abandon(background)
        late = self._late()
        return [session.number(item or late) for session, item in zip(sessions, list(found), strict=True)]

    def close(self) -> None:
        """Stop the background thread; the next `run_batch` starts a new one."""
        with self._lock:
            loop, self._loop = self._loop, None
        if loop is not None:
            loop.stop()

    def __enter__(self) -> Toolbox:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __getstate__(self) -> dict[str, Any]:
        return {"tools": self.tools, "timeout": self.timeout, "concurrency": self.concurrency, "top_k": self.top_k}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._start_fresh()

    def __repr__(self) -> str:
        settings = f"timeout={self.timeout:g}, concurrency={self.concurrency}, top_k={self.top_k}"
        return f"Toolbox({', '.join(self.names)}; {settings})"

    def _background(self) -> BackgroundLoop:
        with self._lock:
            if self._loop is None or not self._loop.usable:
                self._loop = BackgroundLoop(threads=self.concurrency)
                weakref.finalize(self, self._loop.stop)
            return self._loop

    def _abandon(self, background: BackgroundLoop) -> None:
        with self._lock:
            if self._loop is background:
                self._loop = None
        background.stop(wait=0)

    async def _gather(self, calls: Sequence[ToolCall | None], found: list[Observation | None]) -> None:
        async def fill(place: int, call: ToolCall) -> None:
            found[place] = await self._limited(call)

        await asyncio.gather(*(fill(place, call) for place, call in enumerate(calls) if call))

    async def _limited(self, call: ToolCall) -> Observation:
        tool = self.tools.get(str(call.name))
        if tool is None:
            return _error(f"Unknown tool {_short(str(call.name), 80)!r}. {self._available()}")
        slots = self._slots.setdefault(asyncio.get_running_loop(), asyncio.Semaphore(self.concurrency))
        async with slots:
            start = time.perf_counter()
            observation = await self._attempt(tool, call)
            self._count(tool.name, observation.error, time.perf_counter() - start)
        return observation

    async def _attempt(self, tool: Tool, call: ToolCall) -> Observation:
        method = self._methods[tool.name]
        if wrong := check_arguments(method, call.arguments):
            return _error(f"Error: {tool.name}: {_short(wrong)}. {self._arguments[tool.name]}")
        task = asyncio.ensure_future(method(**call.arguments))
        try:
            # `wait`, unlike `wait_for`, does not wait for a tool that ignores its cancellation
            done, _ = await asyncio.wait({task}, timeout=self.timeout)
        finally:
            task.cancel()
        return self._outcome(tool.name, task) if done else self._late(tool.name)

    def _outcome(self, name: str, task: asyncio.Future[list[Evidence]]) -> Observation:
        if task.cancelled():
            return _error(f"Error: {name} was cancelled.")
        error = task.exception()
        if isinstance(error, ToolError):
            return _error(_short(str(error)) or f"Error: {name} failed.")
        if error is not None:
            return _error(_short(f"Error: {name} failed: {type(error).__name__}: {error}"))
        found = task.result()
        if not isinstance(found, (list, tuple)) or not all(isinstance(item, Evidence) for item in found):
            return _error(f"Error: {name} failed: it returned {type(found).__name__}, not a list of Evidence.")
        return Observation(evidence=tuple(found[: self.top_k])) if found else Observation(note="No results.")

    def _count(self, name: str, error: bool, seconds: float) -> None:
        with self._lock:
            old = self._stats[name]
            self._stats[name] = ToolStats(old.calls + 1, old.errors + error, old.seconds + seconds)

    def _available(self) -> str:
        return f"Available tools: {', '.join(self.names)}." if self.tools else "There are no tools."

    def _late(self, name: str = "the call") -> Observation:
        return _error(f"Error: {name} did not answer within {self.timeout:g} seconds.")


def _error(note: str) -> Observation:
    return Observation(note=note, error=True)


def _usage(tool: Tool) -> str:
    told = schema_of(tool)["function"]["parameters"]
    known, required = (", ".join(told.get(key, ())) or "none" for key in ("properties", "required"))
    return f"Its arguments: {known}; required: {required}."


def _short(text: str, length: int = NOTE_LENGTH) -> str:
    line = " ".join(text[: 4 * length].split())
    return line if len(line) <= length else line[: length - 1] + "…"
