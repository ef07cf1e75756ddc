"""Concurrent calls for the same work share one result, whichever thread or event loop they run on."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Hashable
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, TypeVar

T = TypeVar("T")

_flights: dict[Hashable, Future[Any]] = {}
if hasattr(os, "register_at_fork"):
    # in a forked child no thread does the work that its parent had begun
    os.register_at_fork(after_in_child=_flights.clear)


class _Cancelled(Exception):
    """Tells those who wait that the caller who did the work was cancelled."""


async def once(name: Hashable, work: Callable[[], Awaitable[T]], wait: float | None = None) -> tuple[T, bool]:
    """The result of `work`, and whether another caller in this process computed it under the same name.

    Concurrent callers share the result or the exception. When the caller who computes is cancelled, one of the others
    takes over; one that has waited `wait` seconds does the work itself, because the other's event loop may be blocked.
    """
    own: Future[T] = Future()
    own.set_running_or_notify_cancel()  # so that a caller who stops waiting does not cancel it
    while (flight := _flights.setdefault(name, own)) is not own:  # one atomic step, so it needs no lock
        try:
            async with asyncio.timeout(wait) as limit:
                with suppress(_Cancelled):
                    return await asyncio.wrap_future(flight), True
        except TimeoutError:
            if not limit.expired():  # the work itself raised it
                raise
            return await work(), False
    try:
        result = await work()
    except BaseException as error:
        # forgotten first: a caller that is woken by a cancellation looks for the flight again
        _flights.pop(name, None)
        own.set_exception(_Cancelled() if isinstance(error, asyncio.CancelledError) else error)
        raise
    _flights.pop(name, None)
    own.set_result(result)
    return result, False
