"""One tool's way to its service: a bounded number of calls at once, each within its time, again
after what passes.
"""

import asyncio
import math
import threading
import time
from collections import Counter, deque
from collections.abc import MutableMapping
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..errors import ToolError
from ..trajectory import Evidence
from ..wire.failures import FailureLog
from ..wire.retry import Breaker, Patience, cancelled, transient
from .base import Tool, method_of
from .outcome import Fault, evidence_of, failure_of

LATEST = 512
"""Of how many calls the durations are remembered: the first hour of a run of days says nothing
about now.
"""
Slots = MutableMapping[asyncio.AbstractEventLoop, asyncio.Semaphore]
"""Of each event loop, for as many calls at once; the others wait in the order they came."""


@dataclass(frozen=True)
class ToolStats:
    """What one tool was asked; the difference of two, the later one first, counts what was asked in
    between.
    """

    calls: int = 0
    hits: int = (
        0  # answered from a cache, a cassette, or by another call for the same that was under way
    )
    errors: int = 0  # ended in a note of what went wrong
    made: int = 0  # calls that reached the tool
    latest: tuple[
        float, ...
    ] = ()  # seconds of the latest `LATEST` of them, retries included, oldest first

    def quantile(self, share: float) -> float | None:
        """Of `latest`, 0.5 for the median; `None` when there were none."""
        return float(np.quantile(self.latest, share)) if self.latest else None

    def __sub__(self, earlier: "ToolStats") -> "ToolStats":
        calls, hits, errors = (
            self.calls - earlier.calls,
            self.hits - earlier.hits,
            self.errors - earlier.errors,
        )
        made = self.made - earlier.made
        return ToolStats(calls, hits, errors, made, self.latest[-made:] if made else ())


class Lane:
    """Runs the calls of one tool, and counts them in `stats`.

    A call's time-out covers its retries, and begins when it has its slot. A call that waits for a
    slot of a tool that does not answer others is refused: at once when the breaker opens, else when
    it has waited as long as a call may take. `slots`, for `most` calls, are those of all tools
    together; `advice` is what a refused caller is told to do instead.
    """

    def __init__(
        self,
        tool: Tool,
        timeout: float,
        most: int,
        slots: Slots,
        patience: Patience,
        breaker: Breaker,
        advice: str,
    ) -> None:
        self.name, self.method, self.timeout = tool.name, method_of(tool), timeout
        self.cache_key: str = getattr(tool, "cache_key", "")  # tools need not be of our base class
        self._counts, self._latest = Counter[str](), deque[float](maxlen=LATEST)
        self._most, self._slots, self._patience, self._breaker, self._advice = (
            most,
            slots,
            patience,
            breaker,
            advice,
        )
        self._last_late = -math.inf
        self._failures = FailureLog(__name__)
        self._lock = threading.Lock()

    def count(self, **counts: int) -> None:
        """Add to the counts of `stats`."""
        with self._lock:
            self._counts.update(counts)

    @property
    def stats(self) -> ToolStats:
        with self._lock:
            return ToolStats(**self._counts, latest=tuple(self._latest))

    async def run(self, arguments: dict[str, Any]) -> list[Evidence]:
        """What the tool returns. Raises `ToolError` when it is out of order, says so, is late, or
        lost its connection, and `Fault`, without the words, when it raises anything else, or
        returns something else than evidence; on the main thread also the `KeyboardInterrupt` of the
        user.
        """
        self._refuse(self._breaker.remaining)
        came = time.monotonic()
        async with self._slots.setdefault(
            asyncio.get_running_loop(), asyncio.Semaphore(self._most)
        ):
            self._refuse(self._breaker.refusal())
            start = time.monotonic()
            if self._last_late > came and start - came > self.timeout:
                raise ToolError(
                    f"Error: {self.name} is busy with calls that do not end. {self._advice}",
                    transient=True,
                )
            try:
                evidence = await self._timed(arguments, start)
            except Exception as error:
                if transient(error):
                    self._breaker.failed(since=start)
                else:
                    self._breaker.succeeded()
                raise
            self._breaker.succeeded()
            return evidence

    def late(self) -> ToolError:
        """What a call is told that took too long."""
        return ToolError(
            f"Error: {self.name} did not answer within {self.timeout:g} seconds.", transient=True
        )

    def _refuse(self, seconds: float) -> None:
        if seconds:
            message = f"Error: {self.name} is out of order for the next {math.ceil(seconds)} s. {self._advice}"
            raise ToolError(message, transient=True)

    async def _timed(self, arguments: dict[str, Any], start: float) -> list[Evidence]:
        tries = self._patience.persist(lambda: self._attempt(arguments), start + self.timeout)
        task = asyncio.ensure_future(tries)
        # no caller is left for what a tool raises after its time-out, and asyncio need not report
        # it
        task.add_done_callback(lambda done: done.cancelled() or done.exception())
        try:
            # `wait`, unlike `wait_for`, does not wait for a tool that ignores its cancellation
            await asyncio.wait({task}, timeout=self.timeout)
        finally:
            done = task.done()
            task.cancel()
            with self._lock:
                self._latest.append(time.monotonic() - start)
                self._counts["made"] += 1
        if not done:
            self._last_late = time.monotonic()
            raise self.late()
        if task.cancelled():
            # by itself: that says nothing of its service
            raise ToolError(f"Error: {self.name} was cancelled.", transient=True, retried=True)
        error = task.exception()
        if error is not None:
            raise error if isinstance(error, (ToolError, Fault)) else self._failure(error)
        return task.result()

    async def _attempt(self, arguments: dict[str, Any]) -> list[Evidence]:
        try:
            return evidence_of(
                self.name, await self.method(**deepcopy(arguments))
            )  # a copy: ours are recorded
        except (
            asyncio.CancelledError,
            GeneratorExit,
        ):  # this coroutine's own, or else `_timed` hears of it
            raise
        except BaseException as error:  # some would end the event loop and with it all other calls
            if (
                issubclass(type(error), KeyboardInterrupt)
                and threading.current_thread() is threading.main_thread()
            ):
                raise
            failure = self._failure(error)
        raise failure  # from here, so that it does not hold the error, which may hold anything

    def _failure(self, error: BaseException) -> ToolError | Fault:
        if not issubclass(type(error), ToolError) and not cancelled():
            self._failures.add(self.name, error)
        return failure_of(self.name, error)
