"""Runs the tools of a policy: checks arguments, enforces time-outs, turns failures into notes, and
numbers the evidence.
"""

import asyncio
import difflib
import weakref
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Self

import msgspec

from ..errors import ConfigError, ToolError
from ..evidence import sifted
from ..trajectory import Evidence, ToolCall
from ..wire.background import Background
from ..wire.cache import Cache, key_of
from ..wire.failures import LONGEST
from ..wire.retry import Breaker, Patience
from .base import ERROR, NO_RESULTS, Observation, Partial, Tool, check_arguments, schema_of
from .cassette import Cassette, kept, recent
from .lane import Lane, Slots, ToolStats
from .outcome import Fault, failure_of
from .untrusted import line

_GRACE = 1.0  # seconds waited beyond a call's time-out, so that the call can report it itself
_COMPARED_LENGTH = 80  # characters of an unknown tool's name that are compared with known names
# The arguments of a toolbox besides its tools; each is also an attribute
_SETTINGS = ("timeout", "concurrency", "patience", "failures", "cooldown", "cache", "cassette")


class Session:
    """One rollout's use of a toolbox: numbers its evidence, `E1`, `E2`, … across its calls.

    Args:
        edits: by the text of a passage, the text that this rollout reads instead, or `None` to
            leave the passage out; see `Task.edits`. They are applied after the cache and the
            cassette, so that these hold what the tools returned.
    """

    def __init__(self, edits: Mapping[str, str | None] | None = None) -> None:
        self.edits = edits or {}
        self.count = 0  # passages that have been numbered
        self.closed = False
        self._tasks: set[asyncio.Future[Any]] = set()

    def number(self, observation: Observation) -> Observation:
        """The observation after the edits, its passages with the ids that come next."""
        numbered: list[Evidence] = []
        for passage in observation.evidence:
            text = self.edits.get(passage.text, passage.text)
            if text is not None:
                self.count += 1
                numbered.append(msgspec.structs.replace(passage, text=text, id=f"E{self.count}"))
        note = observation.note
        if observation.evidence and not numbered:  # the edits took away all of it
            note = note or NO_RESULTS.note
        return msgspec.structs.replace(observation, evidence=tuple(numbered), note=note)

    def hold(self, task: asyncio.Future[Any]) -> None:
        """Remember a running call, so that `close` cancels it."""
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        # Checked after the task was added: another thread that closes the session at this moment
        # may have read the tasks before.
        if self.closed:
            task.cancel()

    def close(self) -> None:
        """End the rollout: cancel its running calls, and answer later ones with a note."""
        self.closed = True
        for task in list(self._tasks):
            with suppress(RuntimeError):  # the event loop of the call may be closed already
                task.get_loop().call_soon_threadsafe(task.cancel)


class Toolbox:
    """Runs tool calls. Whatever goes wrong becomes a note for the policy, never an exception.

    A call's arguments are checked; then it is looked up in the cassette and in the cache, and only
    then made, unless the tool is out of order. A limited number run at once, each within its
    time-out, and again after a transient failure. What a tool returns is checked and bounded
    (`outcome.evidence_of`), what it raises is put into words (`outcome.failure_of`).

    A copy or a pickle carries the tools and the settings, not the thread and the counters.

    Args:
        tools: objects of the shape of `Tool`, each with its own name.
        timeout: seconds that a call may take, its retries included.
        concurrency: number of calls that run at once on one event loop, over all tools.
        patience: how often and after which pauses a transient failure (`ToolError.transient`) is
            tried again.
        failures: how many transient failures in a row put a tool out of order.
        cooldown: for how many seconds it then is; afterwards one call tries whether it works again.
        cache: keeps what tools with a `cache_key` return; failures are never kept.
        cassette: records calls or replays them. `Tool.check` is not run for tools that are only
            replayed, so that they need no API key.

    Raises:
        ConfigError: for two tools of one name, a tool without a documented async method or without
            what it needs, or a setting that is not positive.

    Example:
        >>> from faithful_search.tools import LocalSearch
        >>> with Toolbox([LocalSearch.from_corpus("world")]) as toolbox:
        ...     session = toolbox.session()
        ...     call = ToolCall("local_search", {"query": "capital"})
        ...     [observation] = toolbox.run_batch([call], [session])
        >>> observation.evidence[0].id
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
        self.timeout = timeout
        self.concurrency = concurrency
        self.patience = patience or Patience()
        self.failures = failures
        self.cooldown = cooldown
        self.cache = cache
        self.cassette = cassette
        self._background = Background()
        slots: Slots = weakref.WeakKeyDictionary()
        self._lanes: dict[str, Lane] = {}
        self._usage: dict[str, str] = {}
        for name, tool in self.tools.items():
            other_tools = ", ".join(tool_name for tool_name in self.tools if tool_name != name)
            advice = f"Other tools: {other_tools}." if other_tools else "There is no other tool."
            lane = Lane(
                tool,
                timeout=timeout,
                most=concurrency,
                slots=slots,
                patience=self.patience,
                breaker=Breaker(failures, cooldown),
                advice=advice,
            )
            self._lanes[name] = lane
            parameters = schema_of(tool)["function"]["parameters"]
            argument_names = ", ".join(parameters.get("properties", ())) or "none"
            required = ", ".join(parameters.get("required", ())) or "none"
            self._usage[name] = f"Its arguments: {argument_names}; required: {required}."
            # A tool without a cache key is called even then: its calls are not recorded.
            only_replayed = cassette is not None and cassette.mode == "replay" and lane.cache_key
            if not only_replayed and hasattr(tool, "check"):  # tools need not be of our base class
                tool.check()

    @property
    def settings(self) -> dict[str, Any]:
        """All arguments except the tools: `Toolbox(other_tools, **toolbox.settings)` behaves like
        this one.
        """
        return {name: getattr(self, name) for name in _SETTINGS}

    @property
    def names(self) -> list[str]:
        return list(self.tools)

    @property
    def first_arguments(self) -> dict[str, str]:
        """What each tool is mostly about: its first argument, by the tool's name."""
        functions = [schema["function"] for schema in self.schemas]
        return {
            function["name"]: next(iter(function["parameters"]["properties"]))
            for function in functions
        }

    @property
    def schemas(self) -> list[dict[str, Any]]:
        """The JSON schemas, as a chat template wants them."""
        return [schema_of(tool) for tool in self.tools.values()]

    def session(self, edits: Mapping[str, str | None] | None = None) -> Session:
        """A session for a new rollout, which starts at `E1`; `edits` as in `Session`."""
        return Session(edits)

    def stats(self) -> dict[str, ToolStats]:
        """Counts by tool since the toolbox was made."""
        return {name: lane.stats for name, lane in self._lanes.items()}

    def describe_malformed(self, why: str, form: str = "") -> Observation:
        """The observation for a call that could not be read: it says `why`, names the tools, and
        shows how to write a call, `form` (the dialect's `call_form`).
        """
        advice = f" Write it as {form}." if form else ""
        return _error(f"The tool call could not be read: {why}.{advice} {self._available()}")

    async def call(self, tool_call: ToolCall, session: Session) -> Observation:
        """Run one call and number its evidence. Never raises for what the policy or a tool did."""
        return session.number(await self._answer(tool_call, session))

    async def call_together(self, calls: Sequence[ToolCall], session: Session) -> list[Observation]:
        """Run the calls of one turn at once. Their evidence is numbered in the order of the calls,
        whichever finishes first.
        """
        answers = await asyncio.gather(*(self._answer(call, session) for call in calls))
        return [session.number(answer) for answer in answers]

    def run_batch(
        self, calls: Sequence[ToolCall | None], sessions: Sequence[Session]
    ) -> list[Observation]:
        """Run the calls of one turn at once and wait for all.

        Observations come in the order of the calls, with an empty one for each `None`. Evidence is
        numbered in that order, too, whichever call finishes first. `sessions` has the session of
        each call; several calls may share one. The calls run on the toolbox's own background event
        loop. If a tool blocks that loop, the calls that have not returned are answered with a
        time-out, and the next batch gets a new loop.

        Raises:
            ConfigError: there are not as many sessions as calls, or a tool calls this itself.
        """
        if len(calls) != len(sessions):
            raise ConfigError(
                f"{len(calls)} calls for {len(sessions)} sessions: give one session for each call"
            )
        observations: dict[int, Observation] = {}

        # Each call writes its own result, so that a tool that blocks the loop loses no other's.
        async def answer(place: int, call: ToolCall) -> None:
            observations[place] = await self._answer(call, sessions[place])

        async def answer_all() -> None:
            answers = [answer(place, call) for place, call in enumerate(calls) if call is not None]
            await asyncio.gather(*answers)

        with suppress(TimeoutError):
            self._background.run(answer_all(), patience=self.timeout + _GRACE)
        # A copy, since a loop that was blocked may go on and still write results.
        in_time = dict(observations)
        numbered = []
        for place, (call, session) in enumerate(zip(calls, sessions, strict=True)):
            if call is None:
                numbered.append(Observation())
                continue
            observation = in_time[place] if place in in_time else self._late(call)
            numbered.append(session.number(observation))
        return numbered

    def close(self) -> None:
        """Stop the background thread and finish the cassette; the next `run_batch` starts a new
        thread.
        """
        self._background.stop()
        if self.cassette is not None:
            self.cassette.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __reduce__(self) -> tuple[Any, ...]:
        make_with_settings = partial(type(self), **self.settings)
        return make_with_settings, (list(self.tools.values()),)

    def __repr__(self) -> str:
        return f"Toolbox({', '.join(self.names)}; timeout={self.timeout:g}, concurrency={self.concurrency})"

    async def _answer(self, call: ToolCall, session: Session) -> Observation:
        """The observation for a call, its evidence not yet edited and numbered."""
        lane = self._lanes.get(str(call.name))
        if lane is None:
            return self._unknown(call)
        problem = check_arguments(lane.method, call.arguments)
        if problem:
            lane.count(calls=1, errors=1)
            return _error(f"Error: {lane.name}: {line(problem, LONGEST)}. {self._usage[lane.name]}")
        key = ""  # of the call in the cache; empty where it is not cached
        if self.cache is not None and lane.cache_key:
            key = key_of(tool=lane.name, cache_key=lane.cache_key, arguments=call.arguments)
            # A call that the cache has in memory is answered here: the task below would cost tens
            # of microseconds more. With a cassette `_run` asks the cassette first.
            if self.cassette is None and not session.closed:
                cached = recent(self.cache, key)
                if cached is not None:
                    lane.count(calls=1, hits=1)
                    return _observation_of(cached, call)
        task = asyncio.ensure_future(self._run(lane, call, key))
        session.hold(task)
        try:
            await asyncio.wait({task})
        finally:
            task.cancel()
        if not task.cancelled():
            return task.result()
        lane.count(calls=1)
        return _error(f"{lane.name} was not asked: the episode has ended.")

    async def _run(self, lane: Lane, call: ToolCall, key: str) -> Observation:
        """The observation for a checked call, from the cassette, the cache or the tool, which are
        asked in this order. `key` is that of `_answer`.
        """
        arguments = call.arguments
        reached_tool = False

        async def run_tool() -> list[Evidence]:
            nonlocal reached_tool
            reached_tool = True
            return await lane.run(arguments)

        ask = run_tool
        # Equal calls that run at once are made once. The others wait a little longer than a call
        # may take: if it times out, they get its failure instead of repeating it.
        wait = self.timeout + _GRACE
        if self.cache is not None and key:
            ask = partial(kept, self.cache, key, ask=run_tool, wait=wait)
        try:
            # A tool without a cache key depends on its arguments alone, so that it can run again
            # where a cassette is replayed.
            if self.cassette is not None and lane.cache_key:
                evidence = await self.cassette.play(lane.name, arguments, ask, wait)
            else:
                evidence = await ask()
        except Exception as error:
            lane.count(calls=1, errors=1)
            failure: Exception = error
            if not isinstance(error, (ToolError, Fault)):
                failure = failure_of(lane.name, error)
            return _error(line(str(failure), LONGEST) or f"Error: {lane.name} failed.")
        lane.count(calls=1, hits=not reached_tool)
        return _observation_of(evidence, call)

    def _late(self, call: ToolCall) -> Observation:
        """The observation for a call that did not return in time."""
        lane = self._lanes.get(str(call.name))
        if lane is None:
            return self._unknown(call)
        lane.count(calls=1, errors=1)
        return _error(str(lane.late()))

    def _unknown(self, call: ToolCall) -> Observation:
        """The observation for a call of a tool that is not there."""
        name = str(call.name)[:_COMPARED_LENGTH]
        matches = difflib.get_close_matches(name, self.names, n=1)
        hint = f" Did you mean {matches[0]!r}?" if matches else ""
        return _error(f"Unknown tool.{hint} {self._available()}")

    def _available(self) -> str:
        return f"Available tools: {', '.join(self.names)}." if self.tools else "There are no tools."


def searches(toolbox: Toolbox) -> list[str]:
    """The tools that can be called with a query alone, in the toolbox's order."""
    return [
        schema["function"]["name"]
        for schema in toolbox.schemas
        if _takes_a_query(schema["function"]["parameters"])
    ]


def _takes_a_query(parameters: Mapping[str, Any]) -> bool:
    """Whether a query is what the tool is about, and it needs nothing else."""
    first = next(iter(parameters["properties"]), None)
    return first == "query" and set(parameters.get("required", ())) <= {"query"}


def _observation_of(result: list[Evidence], call: ToolCall) -> Observation:
    """A tool's result as an observation. A text in which the tool speaks itself, such as "no
    results found", becomes part of the note: it is no evidence.
    """
    evidence, notes = sifted(result, call)
    if isinstance(result, Partial) and result.note:
        notes = [result.note, *notes]
    note = "\n".join(filter(None, notes))
    if not evidence and not note:
        return NO_RESULTS
    return Observation(tuple(evidence), note)


def _error(note: str) -> Observation:
    """An observation with this note, which begins with `ERROR`: so a text in any dialect shows that
    it is no source's.
    """
    if not note.startswith(ERROR):
        note = f"{ERROR}: {note}"
    return Observation(note=note, error=True)
