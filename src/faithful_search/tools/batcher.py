"""Calls that arrive while a batch runs become the next batch: many callers, few threads, no added waiting."""

from __future__ import annotations

import asyncio
import os
import threading
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Generic, NamedTuple, TypeVar

from ..errors import ConfigError, kind_of

Item = TypeVar("Item")
Result = TypeVar("Result")


class Batcher(Generic[Item, Result]):
    """Turns calls of single items into calls of batches, on daemon threads of its own that run one batch each.

    Calls made in the same turn of an event loop go together, and so does what arrives while a batch runs; a lone call
    starts at once. It may be asked from several event loops and threads. A forked child and a pickled copy start
    their own threads with their first call; the threads end with the batcher.

    Args:
        run: gives one result for each item of a batch, in order.
        most: largest batch.
        threads: batches that run at the same time.

    Example:
        >>> async def two():
        ...     doubled = Batcher(lambda numbers: [2 * number for number in numbers])
        ...     return await asyncio.gather(doubled.ask(1), doubled.ask(2))
        >>> asyncio.run(two())
        [2, 4]
    """

    def __init__(self, run: Callable[[Sequence[Item]], Sequence[Result]], most: int = 64, threads: int = 1) -> None:
        if most < 1 or threads < 1:
            raise ConfigError(f"most and threads must be at least 1, got {most} and {threads}")
        self.run, self.most, self.threads = run, most, threads
        self._workers: dict[int, _Worker] = {}

    async def ask(self, item: Item) -> Result:
        """The result of one item; raises what `run` raised for its batch. An item whose caller is cancelled before its
        batch begins is not run."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Result] = loop.create_future()
        # by process: threads do not cross a fork, so a child starts its own
        worker = self._workers.get(os.getpid())
        if worker is None:
            made = _Worker(self.run, self.most, self.threads)
            worker = self._workers.setdefault(os.getpid(), made)
            weakref.finalize(self, made.stop)
        worker.waiting.append(_Call(item, future, loop))
        loop.call_soon(worker.wake)  # not before the other calls of this turn are waiting too
        return await future

    def __getstate__(self) -> dict[str, Any]:
        return {"run": self.run, "most": self.most, "threads": self.threads}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _workers={})


class _Call(NamedTuple):
    item: Any
    future: asyncio.Future[Any]
    loop: asyncio.AbstractEventLoop


class _Worker:
    """The queue and the threads of one process; does not refer to the batcher, so that it can be thrown away."""

    def __init__(self, run: Callable[[Sequence[Any]], Sequence[Any]], most: int, threads: int) -> None:
        self.run, self.most, self.threads = run, most, threads
        self.waiting: deque[_Call] = deque()
        self._called = threading.Semaphore(0)
        self.wake = self._called.release
        self._stopped = False
        for _ in range(threads):
            threading.Thread(target=self._serve, name="faithful-search-batches", daemon=True).start()

    def stop(self) -> None:
        self._stopped = True
        self._called.release(self.threads)

    def _serve(self) -> None:
        while True:
            self._called.acquire()
            while batch := self._next():
                # in a function of its own: a thread that waits must hold no item and no result
                _deliver(batch, *self._outcome([call.item for call in batch]))
            if self._stopped:
                return

    def _next(self) -> list[_Call]:
        batch: list[_Call] = []
        with suppress(IndexError):  # nothing waits any more
            while len(batch) < self.most:
                call = self.waiting.popleft()
                if not call.future.done():
                    batch.append(call)
        return batch

    def _outcome(self, items: list[Any]) -> tuple[list[Any], Exception | None]:
        """The results, or what the batch raised."""
        try:
            results = list(self.run(items))
            if len(results) != len(items):
                raise RuntimeError(f"a batch of {len(items)} items gave {len(results)} results")
            return results, None
        except BaseException as error:  # whatever it is, the callers must hear of it and the thread must live
            if isinstance(error, Exception) and not isinstance(error, StopIteration):
                return [None] * len(items), error
            retold = RuntimeError(f"a batch raised {kind_of(error)}")  # no future takes a `StopIteration`
            retold.__cause__ = error
            return [None] * len(items), retold


def _deliver(batch: list[_Call], results: list[Any], error: Exception | None) -> None:
    # each loop is woken once, whatever the number of its callers
    for loop in dict.fromkeys(call.loop for call in batch):
        settled = [(call.future, result) for call, result in zip(batch, results, strict=True) if call.loop is loop]
        with suppress(RuntimeError):  # the loop was closed meanwhile, and its callers with it
            loop.call_soon_threadsafe(_settle, settled, error)


def _settle(settled: list[tuple[asyncio.Future[Any], Any]], error: Exception | None) -> None:
    for future, result in settled:
        if future.done():  # its caller was cancelled while the batch ran
            continue
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(result)
