"""Threads for calls that block: one that never returns holds up neither other calls nor the program's end."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import Any

from ..errors import kind_of

MOST = 1024
"""Threads of one executor, those included that hang for ever."""

_Job = tuple["Future[Any]", Callable[[], Any]]


class DaemonThreads(ThreadPoolExecutor):
    """An executor of daemon threads, made when no other is idle.

    Python's own waits at the program's end for all its threads, and a few calls that hang keep all others waiting. It
    is the base class because event loops accept no other; its threads are never started.

    Example:
        >>> with DaemonThreads() as threads:
        ...     threads.submit(sum, [1, 2]).result()
        3
    """

    def __init__(self, most: int = MOST) -> None:
        super().__init__(1)
        self._most, self._jobs = most, queue.SimpleQueue[_Job | None]()
        self._guard, self._idle, self._count, self._ended = threading.Lock(), 0, 0, False

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Run `fn` on a thread. Raises `RuntimeError` after `shutdown`."""
        future: Future[Any] = Future()
        with self._guard:
            if self._ended:
                raise RuntimeError("cannot schedule new futures after shutdown")
            self._jobs.put((future, partial(fn, *args, **kwargs)))
            if self._idle:
                self._idle -= 1
            elif self._count < self._most:
                self._count += 1
                threading.Thread(target=self._serve, name="faithful-search-call", daemon=True).start()
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Let the threads end when they have done what was given to them; never waits."""
        with self._guard:
            if not self._ended:
                self._ended = True
                for _ in range(self._count):
                    self._jobs.put(None)

    def _serve(self) -> None:
        while (job := self._next()) is not None:
            _run(*job)
            del job  # keeps nothing alive while it waits

    def _next(self) -> _Job | None:
        with self._guard:
            with suppress(queue.Empty):
                return self._jobs.get_nowait()
            self._idle += 1
        return self._jobs.get()


def _run(future: Future[Any], call: Callable[[], Any]) -> None:
    if not future.set_running_or_notify_cancel():
        return
    try:
        result = call()
    except StopIteration as error:  # no event loop takes it: whoever awaits the call would wait for ever
        future.set_exception(RuntimeError(f"the call raised {kind_of(error)}"))
    except BaseException as error:
        future.set_exception(error)
    else:
        future.set_result(result)
