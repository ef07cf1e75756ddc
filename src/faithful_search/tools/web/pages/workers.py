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
import weakref
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


_ENCODER = msgspec.msgpack.Encoder()
_DECODER = msgspec.msgpack.Decoder(Answer)


def read(body: bytes, content_type: str, reading: Reading, deadline: float | None = None) -> Page:
    """Read a document in a worker process; blocks, and may be called from many threads.

    Args:
        body: the document.
        content_type: what the server says it is, with its parameters; may be empty.
        reading: the knobs.
        deadline: when the page is no longer wanted (`time.monotonic`).

    Raises:
        ToolError: when it cannot be read, saying why: its type, no text, too long, too large, a crash.
    """
    deadline = deadline if deadline is not None else time.monotonic() + 2 * reading.seconds + _START
    answer = _pool(reading).ask(Job(body, content_type, reading), deadline)
    if answer.page is None:
        raise ToolError(answer.why)
    return answer.page


def close() -> None:
    """End all idle workers of this process; the next page starts new ones."""
    with _guard:
        pools = list(_pools.values())
        _pools.clear()
    for pool in pools:
        pool.close()


class _Pool:
    """At most so many workers, started when they are needed and kept."""

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
    """A process and its two pipes; frames are a length of four bytes and so many bytes of MessagePack."""

    def __init__(self, memory: int) -> None:
        module = f"{__package__}.worker"
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-m", module, str(memory)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            bufsize=0,  # a forked child that closes its copy must not flush half a frame of ours into the pipe
            env=_environment(),
            start_new_session=True,  # an interrupt at the terminal is the parent's affair
        )
        _workers.add(self)
        self.usable, self._late = True, False
        if self._exchange(b"", _START) != b"ready":
            self.end()
            _log.warning("the page reader does not start: run `python -m %s 1000000000` to see why", module)
            raise ToolError("the page reader does not start")

    def ask(self, job: Job, seconds: float) -> Answer:
        """The answer; where the process had to be killed or died, what happened."""
        # the time that waiting for a worker left
        job = msgspec.structs.replace(job, reading=replace(job.reading, seconds=seconds))
        reply = self._exchange(_ENCODER.encode(job), seconds)
        if reply is not None:
            return _DECODER.decode(reply)
        if self._late:
            return Answer(None, f"reading it took longer than {seconds:.3g} seconds")
        self.process.kill()  # where it goes on living, it no longer keeps to the protocol
        _log.warning("a page crashed its reader, which ended with %s", self.process.wait())
        return Answer(None, "it crashed the program that reads pages")

    def end(self) -> None:
        self.usable = False
        self.process.kill()
        self.process.wait()
        self.let_go()

    def let_go(self) -> None:
        for pipe in (self.process.stdin, self.process.stdout):
            cast(BinaryIO, pipe).close()

    def _exchange(self, payload: bytes, seconds: float) -> bytes | None:
        """Send a frame and wait for one; None when the process died, killed by the timer or by itself."""
        requests, replies = cast(BinaryIO, self.process.stdin), cast(BinaryIO, self.process.stdout)
        self._late = False
        timer = threading.Timer(seconds, self._too_late)
        timer.daemon = True
        timer.start()
        try:
            rest = memoryview(len(payload).to_bytes(4, "big") + payload)
            while rest:
                rest = rest[requests.write(rest) :]
            size = int.from_bytes(_exactly(replies, 4), "big")
            if size > _LARGEST:  # no answer is: a document has taken the worker over
                raise EOFError
            return _exactly(replies, size)
        except (OSError, EOFError):
            self.usable = False
            return None
        finally:
            timer.cancel()
            timer.join()  # it must not kill the process in the middle of the next page

    def _too_late(self) -> None:
        self._late, self.usable = True, False
        self.process.kill()


def _exactly(pipe: BinaryIO, size: int) -> bytes:
    found = bytearray()
    while len(found) < size:
        part = pipe.read(size - len(found))
        if not part:
            raise EOFError
        found += part
    return bytes(found)


def _environment() -> dict[str, str]:
    """What Python needs to find the same packages; a document that breaks out finds no key here."""
    kept = {name: os.environ[name] for name in _KEPT if name in os.environ}
    # each would start as many threads as there are cores
    one_thread = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    return {**kept, **one_thread, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}


_pools: dict[tuple[int, int], _Pool] = {}
_workers: weakref.WeakSet[_Worker] = weakref.WeakSet()
_guard = threading.Lock()


def _pool(reading: Reading) -> _Pool:
    with _guard:
        key = (reading.workers, reading.memory)
        if key not in _pools:
            _pools[key] = _Pool(*key)
        return _pools[key]


def _forget() -> None:
    """In a forked child: the workers are the parent's, who alone may hold their pipes."""
    global _guard
    _guard = threading.Lock()
    for worker in list(_workers):
        worker.let_go()
    _pools.clear()


atexit.register(close)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
