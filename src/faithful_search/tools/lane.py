"""One tool's way to its service: so many calls at once, each within its time, again after what passes."""

from __future__ import annotations

import asyncio
import math
import time
import weakref
from collections.abc import MutableMapping
from typing import Any

from ..errors import ToolError
from ..trajectory import Evidence
from .base import Partial, Tool, method_of
from .meter import Meter
from .patience import Breaker, Patience, passing


class Refused(ToolError):
    """A call that was not made because the tool is out of order."""


class Slots:
    """So many at once on each event loop; the others wait in the order they came."""

    def __init__(self, most: int) -> None:
        self.most = most
        self._loops: MutableMapping[asyncio.AbstractEventLoop, asyncio.Semaphore] = weakref.WeakKeyDictionary()

    def here(self) -> asyncio.Semaphore:
        """Those of the running loop."""
        return self._loops.setdefault(asyncio.get_running_loop(), asyncio.Semaphore(self.most))


class Lane:
    """Runs the calls of one tool.

    A call's time-out covers its retries, and begins when it has its slot. A call that waits for a slot of a tool that
    does not answer others is refused: at once when the breaker opens, else when it has waited as long as a call may
    take.

    Args:
        tool: what is called.
        timeout: seconds one call may take.
        own: how many calls of this tool run at once.
        shared: how many calls of all tools run at once.
        patience: how often a failure that passes is tried again.
        breaker: refuses calls when too many failed in a row.
        advice: what to do instead, for a refused caller.
    """

    def __init__(
        self, tool: Tool, timeout: float, own: Slots, shared: Slots, patience: Patience, breaker: Breaker, advice: str
    ) -> None:
        self.name, self.method, self.timeout = tool.name, method_of(tool), timeout
        self.meter = Meter()
        self._own, self._shared, self._patience = own, shared, patience
        self._breaker, self._advice = breaker, advice
        self._last_late = -math.inf

    async def run(self, arguments: dict[str, Any]) -> list[Evidence]:
        """What the tool returns.

        Raises:
            Refused: when the tool is out of order.
            ToolError: when it says so, is late, or returns something else than evidence.
            Exception: whatever else the tool raises.
        """
        self._refuse(self._breaker.remaining)
        came = time.monotonic()
        async with self._own.here(), self._shared.here():
            self._refuse(self._breaker.refusal())
            if self._last_late > came and time.monotonic() - came > self.timeout:
                raise Refused(f"Error: {self.name} is busy with calls that do not end. {self._advice}", passing=True)
            return await self._timed(arguments)

    def late(self) -> ToolError:
        """What a call is told that took too long."""
        return ToolError(f"Error: {self.name} did not answer within {self.timeout:g} seconds.", passing=True)

    def _refuse(self, seconds: float) -> None:
        if seconds:
            raise Refused(
                f"Error: {self.name} is out of order for the next {math.ceil(seconds)} s. {self._advice}", passing=True
            )

    async def _timed(self, arguments: dict[str, Any]) -> list[Evidence]:
        attempts = 0

        async def attempt() -> list[Evidence]:
            nonlocal attempts
            attempts += 1
            return await self._attempt(arguments)

        start = time.monotonic()
        task = asyncio.ensure_future(self._patience.persist(attempt, start + self.timeout))
        task.add_done_callback(_heard)
        try:
            # `wait`, unlike `wait_for`, does not wait for a tool that ignores its cancellation
            await asyncio.wait({task}, timeout=self.timeout)
        finally:
            done = task.done()
            task.cancel()
            self.meter.took(time.monotonic() - start, attempts)
        if not done:
            self._last_late = time.monotonic()
            self._breaker.failed(since=start)
            raise self.late()
        return self._outcome(task, start)

    async def _attempt(self, arguments: dict[str, Any]) -> list[Evidence]:
        try:
            found = await self.method(**arguments)
        except SystemExit as error:  # would end the event loop and with it all other calls
            raise ToolError(f"Error: {self.name} failed: it tried to end the program.") from error
        if not isinstance(found, (list, tuple)) or not all(isinstance(item, Evidence) for item in found):
            raise ToolError(f"Error: {self.name} failed: it returned {type(found).__name__}, not a list of Evidence.")
        return found if isinstance(found, Partial) else list(found)

    def _outcome(self, task: asyncio.Future[list[Evidence]], start: float) -> list[Evidence]:
        error = None if task.cancelled() else task.exception()
        if error is not None and passing(error):
            self._breaker.failed(since=start)
        else:
            self._breaker.succeeded()
        if task.cancelled():
            raise ToolError(f"Error: {self.name} was cancelled.", passing=True)
        return task.result()


def _heard(task: asyncio.Future[Any]) -> None:
    """What a tool raises after it was given up is nobody's, and asyncio need not report it."""
    if not task.cancelled():
        task.exception()
