"""Work on batches in several processes, with the results in order."""

import os
import signal
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from itertools import chain, islice
from multiprocessing import get_context, parent_process
from typing import Any, TypeVar

from ..errors import ConfigError

T = TypeVar("T")
R = TypeVar("R")
WORTH_A_POOL = 8
"""The number of batches from which on processes are started: it takes longer than to work on
fewer.
"""
_function: Callable[[Any], Any]


def chunks(items: Iterable[T], size: int) -> Iterator[list[T]]:
    """Yield lists of `size` items; the last one may be shorter."""
    iterator = iter(items)
    while part := list(islice(iterator, size)):
        yield part


def progress_bar(**settings: Any) -> Any:
    """A progress bar, shown on a terminal only."""
    from tqdm.auto import tqdm

    return tqdm(**{"disable": None, **settings})


def in_order(function: Callable[[T], R], batches: Iterator[T], workers: int) -> Iterator[R]:
    """Yield the results of the function for each batch, in order.

    With one worker, or few batches, all is done in this process. Otherwise the function is pickled
    once for each process, and at most two batches for each process are under way. Raises
    `ConfigError` when a process died.
    """
    first = list(islice(batches, WORTH_A_POOL)) if workers > 1 else []
    batches = chain(first, batches)
    if len(first) < WORTH_A_POOL:
        yield from map(function, batches)
        return
    # Spawned, not forked: the parent may have threads, of a judge's client or of numpy, that a fork
    # would break
    pool = ProcessPoolExecutor(workers, get_context("spawn"), _set_up, (function,))
    waiting: deque[Future[R]] = deque()
    try:
        for batch in batches:
            waiting.append(pool.submit(_work, batch))
            if len(waiting) >= 2 * workers:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    except BrokenProcessPool as error:
        raise ConfigError(
            "a worker process died: out of memory, or, in a script, this must be called under "
            '`if __name__ == "__main__":`; workers=1 needs no processes. Run again to go on'
        ) from error
    finally:
        pool.shutdown(cancel_futures=True)


def _set_up(function: Callable[[Any], Any]) -> None:
    global _function
    _function = function
    # Ctrl-C reaches workers, too, but the parent decides what happens
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    """End this worker with its parent: a parent that is killed cannot tell its workers to end."""
    parent = parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _work(batch: Any) -> Any:
    return _function(batch)
