"""The calls of one tool: a limited number at once, each within its time, and again after a
transient failure.
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
"""How many calls' durations are remembered: the first hour of a run of days says nothing about
now.
"""
Slots = MutableMapping[asyncio.AbstractEventLoop, asyncio.Semaphore]
"""For each event loop the semaphore that limits how many calls run at once; the others wait in the
order they came.
"""


@dataclass(frozen=True)
class ToolStats:
    """Counts of one tool's calls. `later - earlier` counts those in between.

    Attributes:
        calls: all of them.
        hits: calls that were answered from a cache, a cassette, or by an equal call under way.
        errors: calls that ended in a note of what went wrong.
        made: calls that reached the tool.
        latest: seconds that the latest `LATEST` of these took, retries included, oldest first.
    """

    calls: int = 0
    hits: int = 0
    errors: int = 0
    made: int = 0
    latest: tuple[float, ...] = ()

    def quantile(self, share: float) -> float | None:
        """A quantile of `latest`, such as 0.5 for the median; `None` when there were no calls."""
        return float(np.quantile(self.latest, share)) if self.latest else None

    def __sub__(self, earlier: "ToolStats") -> "ToolStats":
        made = self.made - earlier.made
        return ToolStats(
            calls=self.calls - earlier.calls,
            hits=self.hits - earlier.hits,
            errors=self.errors - earlier.errors,
            made=made,
            latest=self.latest[-made:] if made else (),
        )


class Lane:
    """Runs the calls of one tool, and counts them in `stats`.

    A call's time-out covers its retries, and begins when it has its slot. A call that waits for a
    slot while the tool does not answer others is refused: at once when the breaker opens, else when
    it has waited as long as a call may take.

    Args:
        most: calls of all tools together that run at once on one event loop.
        slots: for these calls; shared by the lanes of a toolbox.
        breaker: opens, and calls are refused, when the tool goes on failing.
        advice: what a refused caller may do instead, a sentence of the note that the policy reads.
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
        self.name = tool.name
        self.method = method_of(tool)
        self.timeout = timeout
        self.cache_key: str = getattr(tool, "cache_key", "")  # tools need not be of our base class
        self._most = most
        self._slots = slots
        self._patience = patience
        self._breaker = breaker
        self._advice = advice
        self._last_timeout = -math.inf  # when a call last timed out, by `time.monotonic`
        self._failures = FailureLog(__name__)
        self._lock = threading.Lock()  # for the counts
        self._counts = Counter[str]()
        self._latest = deque[float](maxlen=LATEST)

    def count(self, **counts: int) -> None:
        """Add to the counts of `stats`."""
        with self._lock:
            self._counts.update(counts)

    @property
    def stats(self) -> ToolStats:
        """The counts so far."""
        with self._lock:
            return ToolStats(**self._counts, latest=tuple(self._latest))

    async def run(self, arguments: dict[str, Any]) -> list[Evidence]:
        """What the tool returns.

        Raises:
            ToolError: the tool is out of order, raised one itself, is late, or lost its connection.
            Fault: it raised anything else, whose words are not repeated, or returned something else
                than evidence.
            KeyboardInterrupt: that of the user, on the main thread.
        """
        self._refuse_for(self._breaker.remaining)
        arrival = time.monotonic()
        loop = asyncio.get_running_loop()
        async with self._slots.setdefault(loop, asyncio.Semaphore(self._most)):
            self._refuse_for(self._breaker.refusal())
            start = time.monotonic()
            if self._last_timeout > arrival and start - arrival > self.timeout:
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
        """The error of a call that took too long."""
        return ToolError(
            f"Error: {self.name} did not answer within {self.timeout:g} seconds.", transient=True
        )

    def _refuse_for(self, seconds: float) -> None:
        """Raise `ToolError` where the breaker lets no call through for so long; not for 0.0."""
        if seconds:
            raise ToolError(
                f"Error: {self.name} is out of order for the next {math.ceil(seconds)} s. "
                f"{self._advice}",
                transient=True,
            )

    async def _timed(self, arguments: dict[str, Any], start: float) -> list[Evidence]:
        """Call the tool, with retries, within its time from `start` on, and count the call."""
        attempts = self._patience.persist(lambda: self._attempt(arguments), start + self.timeout)
        task = asyncio.ensure_future(attempts)
        # Look at its error in any case: asyncio would report one that a tool raises after its
        # time-out, when no caller is left.
        task.add_done_callback(lambda ended: ended.cancelled() or ended.exception())
        try:
            # `wait`, unlike `wait_for`, does not wait for a tool that ignores its cancellation.
            await asyncio.wait({task}, timeout=self.timeout)
        finally:
            in_time = task.done()
            task.cancel()
            with self._lock:
                self._latest.append(time.monotonic() - start)
                self._counts["made"] += 1
        if not in_time:
            self._last_timeout = time.monotonic()
            raise self.late()
        if task.cancelled():
            # The tool cancelled itself: "retried", since that says nothing about its service.
            raise ToolError(f"Error: {self.name} was cancelled.", transient=True, retried=True)
        error = task.exception()
        if error is not None:
            raise error if isinstance(error, (ToolError, Fault)) else self._failure(error)
        return task.result()

    async def _attempt(self, arguments: dict[str, Any]) -> list[Evidence]:
        """Call the tool once; whatever it raises becomes a `ToolError` or a `Fault`."""
        try:
            # A copy, since the tool may change them, and the caller records them.
            returned = await self.method(**deepcopy(arguments))
            return evidence_of(self.name, returned)
        except (asyncio.CancelledError, GeneratorExit):
            raise  # the time-out's or the event loop's; `_timed` sees one of the tool's own
        except BaseException as error:
            # Also SystemExit and the like, which would end the event loop, and all calls with it.
            # An interrupt by the user arrives on the main thread only.
            is_interrupt = issubclass(type(error), KeyboardInterrupt)
            if is_interrupt and threading.current_thread() is threading.main_thread():
                raise
            failure = self._failure(error)
        # Outside of the `except`: the failure must not refer to the error, which may hold anything.
        raise failure

    def _failure(self, error: BaseException) -> ToolError | Fault:
        """What is raised instead of an error of the tool, which the log gets."""
        if not issubclass(type(error), ToolError) and not cancelled():
            self._failures.add(self.name, error)
        return failure_of(self.name, error)
