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
_MAX_THREADS = 1024  # of one executor, those included that hang for ever
# The results that some caller of `once` is computing at this moment, by name
_flights: dict[Hashable, Future[Any]] = {}
if hasattr(os, "register_at_fork"):
    # A forked child has none of its parent's threads: it would wait for ever for their results.
    os.register_at_fork(after_in_child=_flights.clear)


class DaemonThreads(ThreadPoolExecutor):
    """An executor of daemon threads: a call that never returns holds up neither other calls nor the
    program's end.

    It derives from Python's own executor because event loops accept no other. Of that one only the
    interface is used: its threads are not daemons, and none of them is ever started.

    Args:
        most: threads at once. With all of them busy, a call waits for the first that is free.
    """

    def __init__(self, most: int = _MAX_THREADS) -> None:
        super().__init__(max_workers=1)
        self._most = most
        self._count = 0  # threads that were started
        self._idle = 0  # threads that wait, and have no job on its way to them
        self._ended = False
        # A call and the future of its result; `None` ends the thread that gets it
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
        """Take no more calls, and end each thread when the queue is empty; never waits."""
        with self._guard:
            self._ended = True
            for _ in range(self._count):
                self._jobs.put(None)

    def _serve(self) -> None:
        while True:
            with self._guard:
                # Not idle where a job waits already: `submit` would count on this thread for a
                # second one, which would wait for ever if the first hangs.
                if self._jobs.empty():
                    self._idle += 1
            job = self._jobs.get()
            if job is None:
                return
            future, call = job
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(call())
                except StopIteration as error:
                    # asyncio refuses this one: whoever awaits the call would wait for ever.
                    future.set_exception(RuntimeError(f"the call raised {kind_of(error)}"))
                except BaseException as error:
                    future.set_exception(error)
            del job, future, call  # a thread that waits must not keep them alive


class Background:
    """Runs coroutines on an event loop in a daemon thread, for synchronous callers.

    The loop is started with the first `run`, and anew in a forked child, after `stop`, and after
    something blocked it. It ends when this object is collected. Thread-safe.

    Args:
        threads: how many `asyncio.to_thread` calls may run on the loop at once.
    """

    def __init__(self, threads: int = _MAX_THREADS) -> None:
        self._threads = threads
        self._start_fresh()

    def _start_fresh(self) -> None:
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._loop: _Loop | None = None

    def run(self, work: Coroutine[Any, Any, T], patience: float = 60.0) -> T:
        """The result of `work`, however long it takes.

        Every `patience` seconds the loop is asked for a sign of life.

        Raises:
            TimeoutError: something blocks the loop, has cancelled all that runs on it, or has ended
                it. The next call starts another loop.
            ConfigError: the call comes from the loop itself, which cannot wait for itself.
        """
        if self._pid != os.getpid():
            # A forked child has no such thread, and its copy of the lock may be held for ever.
            self._start_fresh()
        with self._lock:
            if self._loop is None or not self._loop.usable:
                self._loop = _Loop(self._threads)
                # Connections of the owner are collected with it; they need the loop for another
                # moment, to close.
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
            loop.responds()  # leaves the loop behind if it is what ended
            raise TimeoutError("something has cancelled what runs on the event loop") from error
        finally:
            future.cancel()

    def stop(self) -> None:
        """Cancel what runs and end the thread. One that is stuck is left behind after a second: a
        daemon holds up no program.
        """
        loop = self._loop
        if loop is not None:
            loop.stop()
            if threading.current_thread() is not loop.thread:
                loop.thread.join(1.0)

    def __reduce__(self) -> "tuple[type[Background], tuple[int]]":
        return Background, (self._threads,)


class _Loop:
    """A daemon thread with a running event loop.

    It holds no reference to its `Background`: the thread would keep it from being collected.
    """

    def __init__(self, threads: int) -> None:
        self._runner = asyncio.Runner(loop_factory=asyncio.new_event_loop)
        self.loop = self._runner.get_loop()
        self.loop.set_default_executor(DaemonThreads(threads))
        self._stopping = False  # it was asked to end
        self._ended = False  # `_serve` runs the loop no more
        self.thread = threading.Thread(target=self._serve, name="faithful-search-loop", daemon=True)
        self.thread.start()

    @property
    def usable(self) -> bool:
        return not self._stopping and self.thread.is_alive()

    def responds(self) -> bool:
        """Whether the loop runs a callback within a second; one that does not is stopped."""
        answered = threading.Event()
        with suppress(RuntimeError):  # the loop is closed
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
        # asyncio would print a warning for a task that fails while it is cancelled.
        self.loop.set_exception_handler(lambda loop, context: None)
        self.loop.stop()

    def _serve(self) -> None:
        # Signals go to the main thread: these two were raised by a task, whose caller gets them.
        # The other tasks go on.
        while not self._ended:
            with suppress(KeyboardInterrupt, SystemExit):
                self.loop.run_forever()
        with suppress(BaseException):
            self._runner.close()  # cancels the tasks, and closes generators such as `_keep`


async def map_concurrently(
    work: Callable[[Item], Coroutine[Any, Any, T]], items: Iterable[Item], most: int
) -> list[T]:
    """The results of `work` in the items' order, at most `most` at a time.

    The first failure cancels the others, and is raised itself rather than in a group.
    """
    slots = asyncio.Semaphore(most)

    async def in_a_slot(item: Item) -> T:
        async with slots:
            return await work(item)

    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(in_a_slot(item)) for item in items]
    except BaseExceptionGroup as failures:
        first = failures.exceptions[0]
        raise first from first.__cause__
    return [task.result() for task in tasks]


class _Cancelled(Exception):
    """The caller who did the work was cancelled."""


async def once(
    name: Hashable, work: Callable[[], Awaitable[T]], wait: float | None = None
) -> tuple[T, bool]:
    """The result of `work`, and whether another caller in this process computed it under the same
    name.

    Concurrent callers, on whatever threads and loops, share the result or the exception. When the
    caller who computes is cancelled, one of the others takes over. One that has waited `wait`
    seconds does the work itself, because the other's event loop may be blocked.
    """
    future: Future[T] = Future()
    # A future that runs cannot be cancelled: a caller who stops waiting must not stop the others.
    future.set_running_or_notify_cancel()
    while True:
        flight = _flights.setdefault(name, future)  # one atomic step, so it needs no lock
        if flight is future:
            break
        try:
            async with asyncio.timeout(wait) as limit:
                with suppress(_Cancelled):  # and look whether another has taken over
                    return await asyncio.wrap_future(flight), True
        except TimeoutError:
            if not limit.expired():  # the work itself raised it
                raise
            return await work(), False
    try:
        result = await work()
    except BaseException as error:
        # Removed first: a caller that `_Cancelled` wakes looks for the flight again.
        _flights.pop(name, None)
        future.set_exception(_Cancelled() if isinstance(error, asyncio.CancelledError) else error)
        raise
    _flights.pop(name, None)
    future.set_result(result)
    return result, False


class PerLoop(Generic[T]):
    """One resource for each event loop, such as a connection pool.

    Args:
        close: closes a resource, when its loop shuts down or nothing holds this object any more.
    """

    def __init__(self, close: Callable[[T], Coroutine[Any, Any, object]]) -> None:
        self._close = close
        # For each loop its resource, and the generator that closes it
        self._open: dict[asyncio.AbstractEventLoop, tuple[T, AsyncGenerator[T, None]]] = {}

    async def get(self, make: Callable[[], T]) -> T:
        """The running loop's resource; `make` makes it where there is none yet."""
        loop = asyncio.get_running_loop()
        if loop not in self._open:
            # Copied, since other threads may add their loops meanwhile.
            for other_loop in list(self._open):
                if other_loop.is_closed():
                    self._open.pop(other_loop, None)
            keeper = _keep(make(), self._close)
            self._open[loop] = await anext(keeper), keeper
        resource, _ = self._open[loop]
        return resource


async def _keep(
    resource: T, close: Callable[[T], Coroutine[Any, Any, object]]
) -> AsyncGenerator[T, None]:
    """Yield the resource, and close it when this generator ends.

    A generator, because an event loop ends those by itself: when it shuts down, as `asyncio.run`
    does at the end, or when nothing holds them.
    """
    try:
        yield resource
    finally:
        await close(resource)
