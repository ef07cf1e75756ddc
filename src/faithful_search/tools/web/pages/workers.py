"""Processes that read documents: one that hangs, crashes or eats memory is killed, and the next page gets another."""

from __future__ import annotations

import atexit
import logging
import os
import queue
import subprocess
import sys
import threading
import time
from contextlib import suppress
from dataclasses import replace
from typing import BinaryIO, cast

import msgspec

from ....errors import ToolError
from .base import Page, Reading

_START = 60.0
"""Seconds for a worker to come up, its imports included."""
_LARGEST = 1 << 26
_KEPT = ("PATH", "PYTHONHOME", "LANG", "LC_ALL", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH", "SYSTEMROOT", "TMPDIR", "TEMP")
_log = logging.getLogger(__name__)


class Job(msgspec.Struct, frozen=True, array_like=True):
    """What a worker is asked: a document, what the server says it is, and how to read it."""

    body: bytes
    content_type: str
    reading: Reading


class Answer(msgspec.Struct, frozen=True, array_like=True):
    """What a worker says: the page, or why there is none."""

    page: Page | None = None
    why: str = ""


def read(body: bytes, content_type: str, reading: Reading, deadline: float | None = None) -> Page:
    """Read a document in a worker process; blocks. Thread-safe.

    `content_type` is what the server says it is, with its parameters; may be empty. After `deadline` (`time.monotonic`)
    the page is no longer wanted. Raises `ToolError` when it cannot be read, saying why.
    """
    deadline = deadline if deadline is not None else time.monotonic() + 2 * reading.seconds + _START
    answer = _pool(reading).ask(Job(body, content_type, reading), deadline)
    if answer.page is None:
        raise ToolError(answer.why)
    return answer.page


def close() -> None:
    """End all idle workers of this process; the next page starts new ones."""
    for key in list(_pools):
        if key[0] == os.getpid():
            _pools.pop(key).close()


class _Pool:
    """A limited number of workers, started when they are needed and kept."""

    def __init__(self, workers: int, memory: int) -> None:
        self.memory, self.closed = memory, False
        self.slots: queue.LifoQueue[_Worker | None] = queue.LifoQueue()
        for _ in range(workers):
            self.slots.put(None)  # the place of a worker that is not started yet; those in use are taken out first

    def ask(self, job: Job, deadline: float) -> Answer:
        try:
            worker = self.slots.get(timeout=max(0.0, deadline - time.monotonic()))
        except queue.Empty:
            raise ToolError("other pages are still being read; try again", passing=True) from None
        kept = None
        try:
            worker = worker or _Worker(self.memory)
            seconds = min(job.reading.seconds, deadline - time.monotonic())
            answer = worker.ask(job, seconds) if seconds > 0 else Answer(None, "the time was up")
            kept = worker if worker.usable and not self.closed else None
            return answer
        finally:
            if worker is not None and kept is None:  # after an exception the pipes might hold half a frame
                worker.end()
            self.slots.put(kept)

    def close(self) -> None:
        self.closed = True
        with suppress(queue.Empty):
            while True:
                if worker := self.slots.get_nowait():
                    worker.end()


class _Worker:
    """A process and its two pipes; a frame is its length in four bytes, then MessagePack."""

    def __init__(self, memory: int) -> None:
        module = f"{__package__}.worker"
        environment = {name: os.environ[name] for name in _KEPT if name in os.environ}  # no keys
        # each would start as many threads as there are cores
        environment |= dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-m", module, str(memory)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**environment, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
            start_new_session=True,  # an interrupt at the terminal is for the parent to handle
        )
        self.usable, self._late = True, False
        if self._exchange(b"", _START) != b"ready":
            self.end()
            _log.warning("the page reader does not start: run `python -m %s 1000000000` to see why", module)
            raise ToolError("the page reader does not start")

    def ask(self, job: Job, seconds: float) -> Answer:
        """The answer; where the process had to be killed or died, what happened."""
        # the time that waiting for a worker left
        job = msgspec.structs.replace(job, reading=replace(job.reading, seconds=seconds))
        reply = self._exchange(msgspec.msgpack.encode(job), seconds)
        if reply is not None:
            return msgspec.msgpack.decode(reply, type=Answer)
        if self._late:
            return Answer(None, f"reading it took longer than {seconds:.3g} seconds")
        self.process.kill()  # if it is still running, it no longer keeps to the protocol
        _log.warning("a page crashed its reader, which ended with %s", self.process.wait())
        return Answer(None, "it crashed the program that reads pages")

    def end(self) -> None:
        self.usable = False
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            with suppress(OSError):  # what was not sent is lost
                cast(BinaryIO, pipe).close()

    def _exchange(self, payload: bytes, seconds: float) -> bytes | None:
        """Send a frame and wait for one; None when the process died, killed by the timer or by itself."""
        requests, replies = cast(BinaryIO, self.process.stdin), cast(BinaryIO, self.process.stdout)
        self._late = False
        timer = threading.Timer(seconds, self._too_late)
        timer.daemon = True
        timer.start()
        try:
            requests.write(len(payload).to_bytes(4, "big") + payload)
            requests.flush()
            size = int.from_bytes(replies.read(4), "big")
            # no answer is larger: a document has taken the worker over
            reply = replies.read(size) if size <= _LARGEST else b""
        except OSError:
            size, reply = 0, b""
        finally:
            timer.cancel()
            timer.join()  # it must not kill the process in the middle of the next page
        self.usable = self.usable and 0 < size == len(reply)
        return reply if 0 < size == len(reply) else None

    def _too_late(self) -> None:
        self._late, self.usable = True, False
        self.process.kill()


_pools: dict[tuple[int, int, int], _Pool] = {}


def _pool(reading: Reading) -> _Pool:
    # by process: a forked child must not write into its parent's pipes
    key = (os.getpid(), reading.workers, reading.memory)
    return _pools.setdefault(key, _pools.get(key) or _Pool(reading.workers, reading.memory))


atexit.register(close)
