"""Single calls are collected to batches: those that arrive while a batch runs become the next."""

import asyncio
import os
import weakref
from collections import deque
from collections.abc import Callable, MutableMapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from ..errors import ConfigError, kind_of
from ..wire.background import DaemonThreads

Item = TypeVar("Item")
Result = TypeVar("Result")


@dataclass
class _Queue:
    """The items that wait on one event loop, each with the future of its result, and the tasks that
    run them.
    """

    waiting: deque[tuple[Any, asyncio.Future[Any]]] = field(default_factory=deque)
    workers: set[asyncio.Task[None] | None] = field(default_factory=set)


class Batcher(Generic[Item, Result]):
    """Turns calls of single items into calls of batches, on daemon threads of its own that run one
    batch each.

    Calls made in the same turn of an event loop go together, and so does what arrives while a batch
    runs; a lone call starts at once, or after `gathering` seconds in which others may join it. It
    may be asked from several event loops and threads. A forked child and a pickled copy start their
    own threads with their first call; the threads end with the batcher.

    Args:
        run: gives one result for each item of a batch, in order; an exception is raised to the
            item's own caller.
        most: largest batch.
        threads: batches that run at the same time.
        gathering: seconds for which the first call of a batch waits for others.

    Example:
        >>> async def two():
        ...     doubled = Batcher(lambda numbers: [2 * number for number in numbers])
        ...     return await asyncio.gather(doubled.ask(1), doubled.ask(2))
        >>> asyncio.run(two())
        [2, 4]
    """

    def __init__(
        self,
        run: Callable[[Sequence[Item]], Sequence[Result | Exception]],
        most: int = 64,
        threads: int = 1,
        gathering: float = 0.0,
    ) -> None:
        if most < 1 or threads < 1:
            raise ConfigError(f"most and threads must be at least 1, got {most} and {threads}")
        self.run = run
        self.most = most
        self.threads = threads
        self.gathering = gathering
        self._start_fresh()

    def _start_fresh(self) -> None:
        self._process = os.getpid()
        self._executor = DaemonThreads(self.threads)
        weakref.finalize(self, self._executor.shutdown)
        self._queues: MutableMapping[asyncio.AbstractEventLoop, _Queue] = (
            weakref.WeakKeyDictionary()
        )

    async def ask(self, item: Item) -> Result:
        """The result of one item. Raises what `run` raised for its batch.

        An item whose caller is cancelled before its batch begins is not run.
        """
        if self._process != os.getpid():  # a forked child has none of the threads
            self._start_fresh()
        loop = asyncio.get_running_loop()
        queue = self._queues.setdefault(loop, _Queue())
        future: asyncio.Future[Result] = loop.create_future()
        queue.waiting.append((item, future))
        if len(queue.workers) < self.threads:
            # The task begins in the next turn of the loop, when the other calls of this one wait,
            # too.
            queue.workers.add(loop.create_task(self._work(queue)))
        return await future

    async def _work(self, queue: _Queue) -> None:
        """Run batches until none waits."""
        loop = asyncio.get_running_loop()
        results: list[Any]
        try:
            if self.gathering:
                await asyncio.sleep(self.gathering)
            while queue.waiting:
                batch: list[tuple[Any, asyncio.Future[Any]]] = []
                while queue.waiting and len(batch) < self.most:
                    item, future = queue.waiting.popleft()
                    if not future.done():  # its caller was cancelled before
                        batch.append((item, future))
                items = [item for item, _ in batch]
                try:
                    results = await loop.run_in_executor(self._executor, self._run, items)
                except Exception as error:
                    results = [error] * len(batch)
                for (_, future), result in zip(batch, results, strict=True):
                    if future.done():  # its caller was cancelled while the batch ran
                        continue
                    if isinstance(result, Exception):
                        future.set_exception(result)
                    else:
                        future.set_result(result)
        finally:
            queue.workers.discard(asyncio.current_task())

    def _run(self, items: Sequence[Item]) -> list[Any]:
        """The results of one batch; on a thread."""
        try:
            results = list(self.run(items)) if items else []
        except Exception:
            raise
        except BaseException as error:
            # An exit or an interrupt would end the event loops of the callers.
            raise RuntimeError(f"a batch raised {kind_of(error)}") from error
        if len(results) != len(items):
            raise RuntimeError(f"a batch of {len(items)} items gave {len(results)} results")
        return results

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.run, self.most, self.threads, self.gathering)
