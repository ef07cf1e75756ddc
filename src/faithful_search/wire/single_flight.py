"""Work of the same name is done once: who asks meanwhile waits for the result, whichever thread or event loop it is."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Awaitable, Callable, Hashable
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, TypeVar

T = TypeVar("T")

_flights: dict[Hashable, Future[Any]] = {}
_guard = threading.Lock()


async def once(name: Hashable, work: Callable[[], Awaitable[T]], wait: float | None = None) -> tuple[T, bool]:
    """The result of `work`, and whether somebody else in this process was at it already under the same name.

    Who asks meanwhile, from whichever thread or event loop, waits for that result, and gets its failure too. When the
    one at work is cancelled, another who waits takes over; who has waited `wait` seconds does the work itself, because
    the other's event loop may be blocked.

    Example:
        >>> async def work():
        ...     await asyncio.sleep(0.01)
        ...     return "done"
        >>> async def ask():
        ...     return await asyncio.gather(once("a", work), once("a", work))
        >>> asyncio.run(ask())
        [('done', False), ('done', True)]
    """
    while True:
        flight, leads = _board(name)
        if leads:
            return await _lead(name, flight, work), False
        try:
            async with asyncio.timeout(wait) as limit:
                with suppress(_Left):
                    return await asyncio.wrap_future(flight), True
        except TimeoutError:
            if not limit.expired():
                raise
            return await work(), False


class _Left(Exception):
    """Tells those who wait that the one at work was cancelled."""


async def _lead(name: Hashable, flight: Future[T], work: Callable[[], Awaitable[T]]) -> T:
    try:
        result = await work()
    except BaseException as error:
        _land(name)
        flight.set_exception(_Left() if isinstance(error, asyncio.CancelledError) else error)
        raise
    _land(name)
    flight.set_result(result)
    return result


def _board(name: Hashable) -> tuple[Future[Any], bool]:
    """The work of this name that is under way, or a new one that the caller has to lead."""
    with _guard:
        flight = _flights.get(name)
        if flight is not None:
            return flight, False
        _flights[name] = flight = Future()
        flight.set_running_or_notify_cancel()  # so that one who waits and leaves does not cancel it
        return flight, True


def _land(name: Hashable) -> None:
    with _guard:
        _flights.pop(name, None)


def _forget_flights() -> None:
    """In a forked child nobody leads the parent's computations."""
    global _guard
    _guard = threading.Lock()
    _flights.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_flights)
