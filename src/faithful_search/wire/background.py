"""Event loops on threads of their own, for synchronous code; and what tasks, loops and threads
share.
"""

import asyncio
import concurrent.futures
import os
import queue
import threading
import weakref
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Hashable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import Any, Generic, TypeVar

from ..errors import ConfigError, kind_of

T = TypeVar("T")
Item = TypeVar("Item")
_MOST = 1024  # threads of one executor, those included that hang for ever
_flights: dict[Hashable, Future[Any]] = {}
if hasattr(os, "register_at_fork"):
    # in a forked child no thread does the work that its parent had begun
    os.register_at_fork(after_in_child=_flights.clear)


class DaemonThreads(ThreadPoolExecutor):
    """An executor of daemon threads: a call that never returns holds up neither other calls nor the
    program's end.

    Python's own, from which it is derived because event loops accept no other, never starts its
    threads.
    """

    def __init__(self, most: int = _MOST) -> None:
        super().__init__(1)
        self._most, self._count, self._idle, self._ended = most, 0, 0, False
        self._jobs: queue.SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = (
            queue.SimpleQueue()
        )
        self._guard = threading.Lock()

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        with self._guard:
            if self._ended:
                raise RuntimeError("cannot schedule new futures after shutdown")
            self._jobs.put((future, partial(fn, *args, **kwargs)))
            if self._idle:
                self._idle -= 1
            elif self._count < self._most:
                self._count += 1
                threading.Thread(
                    target=self._serve, name="faithful-search-call", daemon=True
                ).start()
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Let the threads end when they have done what they were given; never waits."""
        with self._guard:
            self._ended = True
            for _ in range(self._count):
                self._jobs.put(None)

    def _serve(self) -> None:
        while True:
            with (
                self._guard
            ):  # a thread counts as idle for one job only, or a job would wait for one that hangs
                self._idle += self._jobs.empty()
            job = self._jobs.get()
            if job is None:
                return
            future, call = job
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(call())
                except (
                    StopIteration
                ) as error:  # no event loop takes it: whoever awaits the call would wait for ever
                    future.set_exception(RuntimeError(f"the call raised {kind_of(error)}"))
                except BaseException as error:
                    future.set_exception(error)
            del job, future, call  # keeps nothing alive while it waits


class Background:
    """Runs coroutines on an event loop in a daemon thread, for synchronous callers.

    The loop is started with the first `run`, and anew in a forked child, after `stop`, and after
    something blocked it. It ends with its owner. `threads` is how many `asyncio.to_thread` calls
    may run at once on it. Thread-safe.
    """

    def __init__(self, threads: int = _MOST) -> None:
        self._threads = threads
        self._start_fresh()

    def _start_fresh(self) -> None:
        self._pid, self._lock = os.getpid(), threading.Lock()
        self._loop: _Loop | None = None

    def run(self, work: Coroutine[Any, Any, T], patience: float = 60.0) -> T:
        """The result of `work`, however long it takes, as long as the loop shows a sign of life
        every `patience` s.

        Raises `TimeoutError` when something blocks the loop or has cancelled all that runs on it,
        or it has ended. The next call then starts another.
        """
        if (
            self._pid != os.getpid()
        ):  # a forked child has no such thread, and the lock may be held for ever
            self._start_fresh()
        with self._lock:
            if self._loop is None or not self._loop.usable:
                self._loop = _Loop(self._threads)
                # what the owner had open on the loop is collected with it, and closes on the loop
                # in the next moments
                weakref.finalize(self, self._loop.stop, after=0.1)
            loop = self._loop
        if threading.current_thread() is loop.thread:
            work.close()
            raise ConfigError(
                "run_batch was called from inside a tool: await Toolbox.call there instead"
            )
        future = asyncio.run_coroutine_threadsafe(work, loop.loop)
        try:
            while not concurrent.futures.wait([future], patience).done:
                if not loop.responds():
                    raise TimeoutError("something has blocked the event loop, or it has ended")
            return future.result()
        except concurrent.futures.CancelledError as error:
            loop.responds()
            raise TimeoutError("something has cancelled what runs on the event loop") from error
        finally:
            future.cancel()

    def stop(self) -> None:
        """Cancel what runs and end the thread; after a second a stuck one is left behind, being a
        daemon.
        """
        loop = self._loop
        if loop is not None:
            loop.stop()
            if threading.current_thread() is not loop.thread:
                loop.thread.join(1.0)

    def __reduce__(self) -> "tuple[type[Background], tuple[int]]":
        return Background, (self._threads,)


class _Loop:
    """A daemon thread with a running event loop; knows nothing of its owner, so that the owner can
    be collected.
    """

    def __init__(self, threads: int) -> None:
        self._runner = asyncio.Runner(loop_factory=asyncio.new_event_loop)
        self.loop = self._runner.get_loop()
        self.loop.set_default_executor(DaemonThreads(threads))
        self._stopping = self._ended = False
        self.thread = threading.Thread(target=self._serve, name="faithful-search-loop", daemon=True)
        self.thread.start()

    @property
    def usable(self) -> bool:
        return (
            not self._stopping and self.thread.is_alive()
        )  # in a forked child no thread of its parent is

    def responds(self) -> bool:
        """Whether it shows a sign of life; else it is left behind."""
        answered = threading.Event()
        with suppress(RuntimeError):  # it was closed
            self.loop.call_soon_threadsafe(answered.set)
            if not answered.wait(1.0):
                self.stop()
        return answered.is_set()

    def stop(self, after: float = 0.0) -> None:
        if self.usable:
            self._stopping = True
            self.loop.call_soon_threadsafe(self.loop.call_later, after, self._end)

    def _end(self) -> None:
        self._ended = True
        # asyncio would complain about a task that ends badly when it is cancelled
        self.loop.set_exception_handler(lambda loop, context: None)
        self.loop.stop()

    def _serve(self) -> None:
        # what is raised is a task's or callback's own: signals go to the main thread, and the
        # others' work goes on
        while not self._ended:
            with suppress(KeyboardInterrupt, SystemExit):
                self.loop.run_forever()
        with suppress(BaseException):
            self._runner.close()  # cancels what still runs, and ends what is open


async def map_concurrently(
    work: Callable[[Item], Coroutine[Any, Any, T]], items: Iterable[Item], most: int
) -> list[T]:
    """The results of `work` in the items' order, at most `most` at a time; the first failure ends
    the others.
    """
    gate = asyncio.Semaphore(most)

    async def gated(item: Item) -> T:
        async with gate:
            return await work(item)

    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(gated(item)) for item in items]
    except BaseExceptionGroup as failed:
        raise failed.exceptions[0] from failed.exceptions[0].__cause__
    return [task.result() for task in tasks]


class _Cancelled(Exception):
    """The caller who did the work was cancelled."""


async def once(
    name: Hashable, work: Callable[[], Awaitable[T]], wait: float | None = None
) -> tuple[T, bool]:
    """The result of `work`, and whether another caller in this process computed it under the same
    name.

    Concurrent callers share the result or the exception. When the caller who computes is cancelled,
    one of the others takes over; one that has waited `wait` seconds does the work itself, because
    the other's event loop may be blocked.
    """
    future: Future[T] = Future()
    future.set_running_or_notify_cancel()  # so that a caller who stops waiting does not cancel it
    while (
        flight := _flights.setdefault(name, future)
    ) is not future:  # one atomic step, so it needs no lock
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
        future.set_exception(_Cancelled() if isinstance(error, asyncio.CancelledError) else error)
        raise
    _flights.pop(name, None)
    future.set_result(result)
    return result, False


class PerLoop(Generic[T]):
    """One resource for each event loop, such as a connection pool; `close` closes it when its loop
    shuts down, or when nothing holds this object any more.
    """

    def __init__(self, close: Callable[[T], Coroutine[Any, Any, object]]) -> None:
        self._close = close
        self._known: dict[asyncio.AbstractEventLoop, tuple[T, AsyncGenerator[T, None]]] = {}

    async def get(self, make: Callable[[], T]) -> T:
        """The running loop's, made where there is none yet."""
        loop = asyncio.get_running_loop()
        if loop not in self._known:
            for old in [old for old in list(self._known) if old.is_closed()]:
                self._known.pop(old, None)
            keeper = _keep(make(), self._close)
            self._known[loop] = await anext(keeper), keeper
        return self._known[loop][0]


async def _keep(
    made: T, close: Callable[[T], Coroutine[Any, Any, object]]
) -> AsyncGenerator[T, None]:
    """A generator, since a loop itself ends those: when it shuts down, as in `asyncio.run`, or
    nothing holds them.
    """
    try:
        yield made
    finally:
        await close(made)
