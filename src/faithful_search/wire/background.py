"""An event loop on a thread of its own: synchronous code runs many awaitables at once, even inside a running loop."""

from __future__ import annotations

import asyncio
import concurrent.futures
import os
import threading
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any, TypeVar

from ..errors import ConfigError
from .threads import MOST, DaemonThreads

Result = TypeVar("Result")


class BackgroundLoop:
    """A daemon thread with a running event loop. Belongs to the process that made it: see `usable`.

    Args:
        threads: how many `asyncio.to_thread` calls may run at once on it; on daemon threads, too.
    """

    def __init__(self, threads: int = MOST) -> None:
        self.loop = asyncio.new_event_loop()
        self.loop.set_default_executor(DaemonThreads(threads))
        self._pid = os.getpid()
        self._stopping = self._drained = False
        self._thread = threading.Thread(target=self._serve, name="faithful-search-tools", daemon=True)
        self._thread.start()

    @property
    def usable(self) -> bool:
        """False in a forked child, where the thread does not exist, and after `stop`."""
        return self._pid == os.getpid() and not self._stopping and self._thread.is_alive()

    def run(self, work: Coroutine[Any, Any, Result], patience: float) -> Result:
        """Run `work` on the loop and wait for it, however long, as long as the loop itself is alive.

        Args:
            work: what to await.
            patience: every so many seconds the loop must show that nothing blocks it.

        Raises:
            ConfigError: when called from the loop's own thread, which would wait for itself.
            TimeoutError: when something blocks the loop or has cancelled all that runs on it, or it has ended.
        """
        if threading.current_thread() is self._thread:
            work.close()
            raise ConfigError("run_batch was called from inside a tool: await Toolbox.call there instead")
        future = asyncio.run_coroutine_threadsafe(work, self.loop)
        try:
            while not concurrent.futures.wait([future], patience).done:
                self._ping()
            return future.result()
        except concurrent.futures.CancelledError as error:
            raise TimeoutError("something has cancelled what runs on the event loop") from error
        finally:
            future.cancel()

    def _ping(self, wait: float = 1.0) -> None:
        answered = threading.Event()
        try:
            self.loop.call_soon_threadsafe(answered.set)
        except RuntimeError as error:
            raise TimeoutError("the event loop has ended") from error
        if not answered.wait(wait):
            raise TimeoutError(f"something has blocked the event loop for {wait:g} s")

    def stop(self, wait: float = 1.0) -> None:
        """Cancel what runs and end the thread; after `wait` seconds a stuck one is left behind, being a daemon."""
        if not self.usable:
            return
        self._stopping = True
        asyncio.run_coroutine_threadsafe(self._drain(), self.loop)
        if wait and threading.current_thread() is not self._thread:
            self._thread.join(wait)

    def _serve(self) -> None:
        try:
            while not self._drained:
                # a task's or callback's own: signals go to the main thread, and the others' work goes on
                with suppress(KeyboardInterrupt, SystemExit):
                    self.loop.run_forever()
        finally:
            self.loop.close()

    async def _drain(self) -> None:
        rest = asyncio.all_tasks() - {asyncio.current_task()}
        for task in rest:
            task.cancel()
        if rest:
            await asyncio.wait(rest, timeout=0.5)
        self.loop.set_exception_handler(_ignore)  # a tool that outlives its cancellation is left behind without a word
        try:
            await self.loop.shutdown_asyncgens()
        finally:
            self._drained = True
            self.loop.stop()


def _ignore(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Takes what a loop has to say that nobody uses any more."""
