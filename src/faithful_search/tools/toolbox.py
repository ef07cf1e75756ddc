"""The tools a policy has: arguments checked, time-outs kept, failures turned into notes, evidence numbered."""

import asyncio
import difflib
import weakref
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Self

import msgspec

from ..errors import ConfigError, ToolError
from ..trajectory import Evidence, ToolCall
from ..wire.background import Background
from ..wire.cache import Cache, key_of
from ..wire.retry import Breaker, Patience
from .base import NO_RESULTS, Observation, Tool, check_arguments, schema_of
from .cassette import Cassette, kept, recent
from .lane import Lane, Slots, ToolStats
from .outcome import LONGEST, Fault, failure_of
from .untrusted import line

_GRACE = 1.0
_NAME_LENGTH = 80
_SETTINGS = ("timeout", "concurrency", "patience", "failures", "cooldown", "cache", "cassette")


class Session:
    """One rollout's part of a toolbox: numbers its evidence, `E1`, `E2`, … running on across its calls, and ends with
    it.

    Args:
        edits: texts that this rollout reads in the place of others, `None` for a passage it does not see; see
            `Task.edits`. They are applied behind the cache and the cassette, which hold what the tools returned.
    """

    def __init__(self, edits: Mapping[str, str | None] | None = None) -> None:
        self.given, self.closed, self.edits = 0, False, edits or {}
        self._tasks: set[asyncio.Future[Any]] = set()

    def number(self, observation: Observation) -> Observation:
        """The same observation with the next ids on its evidence, edited."""
        named: list[Evidence] = []
        for item in observation.evidence:
            text = self.edits.get(item.text, item.text)
            if text is not None:
                self.given += 1
                named.append(msgspec.structs.replace(item, text=text, id=f"E{self.given}"))
        # in this rollout's world nothing was found
        note = NO_RESULTS.note if observation.evidence and not named else observation.note
        return msgspec.structs.replace(observation, evidence=tuple(named), note=note)

    def hold(self, task: asyncio.Future[Any]) -> None:
        """Have `task` cancelled when the rollout ends before it."""
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        # looked at only now: another thread may close the session in between, and does not see the task then
        if self.closed:
            task.cancel()

    def close(self) -> None:
        """The rollout has ended: its running calls are cancelled, later ones are answered with a note."""
        self.closed = True
        for task in list(self._tasks):
            with suppress(RuntimeError):  # the loop of an abandoned call may be closed
                task.get_loop().call_soon_threadsafe(task.cancel)


class Toolbox:
    """Runs tool calls; whatever goes wrong becomes a note the policy reads, never an exception.

    A call's arguments are checked, then it is looked up in the cassette and in the cache, and only then made: when the
    tool is not out of order, as one of a limited number at once, within the time-out, and again after a failure that
    passes. What a tool returns is checked and bounded (`outcome.evidence_of`), what it raises is retold
    (`outcome.failure_of`). A copy or a pickle carries the tools and the settings, not the thread and the counters.

    Args:
        tools: objects of the shape of `Tool`, each with its own name.
        timeout: seconds one call may take, its retries included.
        concurrency: how many calls run at once on one event loop.
        patience: how often and after which pauses a failure that passes (`ToolError.passing`) is tried again.
        failures: how many failures that pass, in a row, put a tool out of order.
        cooldown: for how many seconds; then one call tries whether it works again.
        cache: keeps what tools with a `cache_key` return; failures are never kept.
        cassette: records calls or replays them; tools that are only replayed are not checked for keys.

    Raises `ConfigError` for two tools of one name, a tool without a documented async method or without what it needs,
    or a setting that is not positive.

    Example:
        >>> from faithful_search.tools import LocalSearch
        >>> with Toolbox([LocalSearch.from_corpus("world")]) as toolbox:
        ...     session = toolbox.session()
        ...     [found] = toolbox.run_batch([ToolCall("local_search", {"query": "capital"})], [session])
        >>> found.evidence[0].id
        'E1'
    """

    def __init__(
        self,
        tools: Sequence[Tool],
        timeout: float = 30.0,
        concurrency: int = 64,
        *,
        patience: Patience | None = None,
        failures: int = 5,
        cooldown: float = 30.0,
        cache: Cache | None = None,
        cassette: Cassette | None = None,
    ) -> None:
        if min(timeout, concurrency) <= 0:
            raise ConfigError(
                f"timeout and concurrency must be positive; got {timeout}, {concurrency}"
            )
        self.tools = {tool.name: tool for tool in tools}
        if len(self.tools) < len(tools):
            raise ConfigError(
                f"two tools of one name: {', '.join(tool.name for tool in tools)}; rename one"
            )
        self.timeout, self.concurrency = timeout, concurrency
        self.patience, self.failures, self.cooldown = patience or Patience(), failures, cooldown
        self.cache, self.cassette = cache, cassette
        self._background = Background()
        slots: Slots = weakref.WeakKeyDictionary()
        self._lanes: dict[str, Lane] = {}
        self._usage: dict[str, str] = {}
        for name, tool in self.tools.items():
            others = ", ".join(other for other in self.tools if other != name)
            advice = f"Other tools: {others}." if others else "There is no other tool."
            lane = Lane(
                tool,
                timeout,
                concurrency,
                slots,
                self.patience,
                Breaker(failures, cooldown),
                advice,
            )
            told = schema_of(tool)["function"]["parameters"]
            known, required = (
                ", ".join(told.get(key, ())) or "none" for key in ("properties", "required")
            )
            self._lanes[name], self._usage[name] = (
                lane,
                f"Its arguments: {known}; required: {required}.",
            )
            replayed = cassette is not None and cassette.mode == "replay" and lane.cache_key
            if not replayed and hasattr(tool, "check"):  # tools need not be of our base class
                tool.check()

    @property
    def settings(self) -> dict[str, Any]:
        """All arguments but the tools: `Toolbox(other_tools, **toolbox.settings)` is set as this one."""
        return {name: getattr(self, name) for name in _SETTINGS}

    @property
    def names(self) -> list[str]:
        return list(self.tools)

    @property
    def schemas(self) -> list[dict[str, Any]]:
        """The JSON schemas, as a chat template wants them."""
        return [schema_of(tool) for tool in self.tools.values()]

    def session(self, edits: Mapping[str, str | None] | None = None) -> Session:
        """A new rollout's, which starts at `E1`; `edits` as in `Session`."""
        return Session(edits)

    def stats(self) -> dict[str, ToolStats]:
        """What was counted by tool since the toolbox was made."""
        return {name: lane.stats for name, lane in self._lanes.items()}

    def describe_malformed(self, why: str, form: str = "") -> Observation:
        """The answer to a call that could not be read: why, the tools there are, and the dialect's `call_form`."""
        wanted = f" Write it as {form}." if form else ""
        return _error(f"The tool call could not be read: {why}.{wanted} {self._available()}")

    async def call(self, tool_call: ToolCall, session: Session) -> Observation:
        """Run one call and number what it found. Never raises for what the policy or a tool did."""
        return session.number(await self._answer(tool_call, session))

    def run_batch(
        self, calls: Sequence[ToolCall | None], sessions: Sequence[Session]
    ) -> list[Observation]:
        """Run the calls of one turn at once and wait for all; results come in the calls' order, empty for `None`.

        Ids are given in the calls' order, whichever finishes first; several calls may share a session. The calls run on
        the toolbox's own background event loop. Should a tool block that loop, the calls that have not returned are
        answered with a time-out and the next batch gets a new loop. Raises `ConfigError` when there are not as many
        sessions as calls, or when called from inside a tool.
        """
        if len(calls) != len(sessions):
            raise ConfigError(
                f"{len(calls)} calls for {len(sessions)} sessions: give one session for each call"
            )
        found: dict[int, Observation] = {}

        # each as it comes: a tool that blocks the loop must not take the others' results with it
        async def fill(place: int, call: ToolCall) -> None:
            found[place] = await self._answer(call, sessions[place])

        async def fill_all() -> None:
            await asyncio.gather(*(fill(place, call) for place, call in enumerate(calls) if call))

        with suppress(TimeoutError):
            self._background.run(fill_all(), patience=self.timeout + _GRACE)
        # of a copy: where the loop was blocked, it may go on and still fill it
        there = dict(found)
        return [
            session.number(there.get(place) or self._late(call)) if call else Observation()
            for place, (call, session) in enumerate(zip(calls, sessions, strict=True))
        ]

    def close(self) -> None:
        """Stop the background thread, and sort what was recorded; the next `run_batch` starts a new one."""
        self._background.stop()
        if self.cassette is not None:
            self.cassette.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(type(self), **self.settings), ([*self.tools.values()],)

    def __repr__(self) -> str:
        return f"Toolbox({', '.join(self.names)}; timeout={self.timeout:g}, concurrency={self.concurrency})"

    async def _answer(self, call: ToolCall, session: Session) -> Observation:
        lane = self._lanes.get(str(call.name))
        if lane is None:
            return self._unknown(call)
        if wrong := check_arguments(lane.method, call.arguments):
            lane.count(calls=1, errors=1)
            return _error(f"Error: {lane.name}: {line(wrong, LONGEST)}. {self._usage[lane.name]}")
        # a hit in memory costs microseconds, a task some tens of them; a cassette comes before the cache
        key = ""
        if self.cache is not None and lane.cache_key:
            key = key_of(tool=lane.name, cache_key=lane.cache_key, arguments=call.arguments)
            there = (
                recent(self.cache, key) if self.cassette is None and not session.closed else None
            )
            if there is not None:
                lane.count(calls=1, hits=1)
                return _shown(there)
        task = asyncio.ensure_future(self._run(lane, call.arguments, key))
        session.hold(task)
        try:
            await asyncio.wait({task})
        finally:
            task.cancel()
        if not task.cancelled():
            return task.result()
        lane.count(calls=1)
        return _error(f"{lane.name} was not asked: the episode has ended.")

    async def _run(self, lane: Lane, arguments: dict[str, Any], key: str) -> Observation:
        asked = False

        async def live() -> list[Evidence]:
            nonlocal asked
            asked = True
            return await lane.run(arguments)

        ask = live
        wait = (
            self.timeout + _GRACE
        )  # so that who waits for another's call hears how it failed, and does not repeat it
        if self.cache is not None and key:
            ask = partial(kept, self.cache, key, live, wait)
        try:
            # a tool without a key is as good as its own record
            if self.cassette is not None and lane.cache_key:
                found = await self.cassette.play(lane.name, arguments, ask, wait)
            else:
                found = await ask()
        except Exception as error:
            lane.count(calls=1, errors=1)
            known = error if isinstance(error, (ToolError, Fault)) else failure_of(lane.name, error)
            return _error(line(str(known), LONGEST) or f"Error: {lane.name} failed.")
        lane.count(calls=1, hits=not asked)
        return _shown(found)

    def _late(self, call: ToolCall) -> Observation:
        """For a call that has not returned."""
        lane = self._lanes.get(str(call.name))
        if lane is None:
            return self._unknown(call)
        lane.count(calls=1, errors=1)
        return _error(str(lane.late()))

    def _unknown(self, call: ToolCall) -> Observation:
        name = line(str(call.name), _NAME_LENGTH)
        # a name that is nearly right is a slip, which the right one mends
        near = difflib.get_close_matches(name, self.names, n=1)
        meant = f" Did you mean {near[0]!r}?" if near else ""
        return _error(f"Unknown tool {name!r}.{meant} {self._available()}")

    def _available(self) -> str:
        return f"Available tools: {', '.join(self.names)}." if self.tools else "There are no tools."


def _shown(found: list[Evidence]) -> Observation:
    return Observation(evidence=tuple(found)) if found else NO_RESULTS


def _error(note: str) -> Observation:
    return Observation(note=note, error=True)
