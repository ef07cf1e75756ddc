"""Processes that read documents: one that hangs, crashes or eats memory is killed, and the next page gets another."""

from __future__ import annotations

import atexit
import logging
import os
import subprocess
import sys
import threading
import time
import weakref
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
        self.memory = memory
        self._slots = threading.BoundedSemaphore(workers)
        self._lock = threading.Lock()
        self._idle: list[_Worker] = []
        self._every: weakref.WeakSet[_Worker] = weakref.WeakSet()
        self._closed = False

    def ask(self, job: Job, deadline: float) -> Answer:
        if not self._slots.acquire(timeout=max(0.0, deadline - time.monotonic())):
            raise ToolError("other pages are still being read; try again", passing=True)
        try:
            worker = self._take() or self._start()
            seconds = min(job.reading.seconds, deadline - time.monotonic())
            answer = worker.ask(job, seconds) if seconds > 0 else Answer(None, "the time was up")
            self._put_back(worker)  # not after an exception: the pipes might hold half a frame
            return answer
        finally:
            self._slots.release()

    def _take(self) -> _Worker | None:
        with self._lock:
            return self._idle.pop() if self._idle else None

    def _start(self) -> _Worker:
        worker = _Worker(self.memory)
        self._every.add(worker)
        return worker

    def _put_back(self, worker: _Worker) -> None:
        with self._lock:
            if worker.usable and not self._closed:
                self._idle.append(worker)
                return
        worker.end()

    def close(self) -> None:
        with self._lock:
            self._closed, idle = True, self._idle
            self._idle = []
        for worker in idle:
            worker.end()

    def abandon(self) -> None:
        """In a forked child: the workers are the parent's, who alone may hold their pipes."""
        for worker in list(self._every):
            worker.let_go()


class _Worker:
    """A process and its two pipes; frames are a length of four bytes and so many bytes of MessagePack."""

    def __init__(self, memory: int) -> None:
        module = f"{__package__}.worker"
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", module, str(memory)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            bufsize=0,
            env=_environment(),
            start_new_session=True,  # an interrupt at the terminal is the parent's affair
        )
        self._requests, self._replies = cast(BinaryIO, self._process.stdin), cast(BinaryIO, self._process.stdout)
        self.usable, self._late = True, False
        if self._exchange(b"", _START) != b"ready":
            self.end()
            _log.warning("the page reader does not start: run `python -m %s 1000000000` to see why", module)
            raise ToolError("the page reader does not start")

    def ask(self, job: Job, seconds: float) -> Answer:
        """The answer; where the process had to be killed or died, what happened."""
        job = msgspec.structs.replace(job, reading=replace(job.reading, seconds=seconds))
        reply = self._exchange(_ENCODER.encode(job), seconds)
        if reply is not None:
            return _DECODER.decode(reply)
        if self._late:
            return Answer(None, f"reading it took longer than {seconds:.3g} seconds")
        self._process.kill()  # where it goes on living, it no longer keeps to the protocol
        _log.warning("a page crashed its reader, which ended with %s", self._process.wait())
        return Answer(None, "it crashed the program that reads pages")

    def end(self) -> None:
        self.usable = False
        self._process.kill()
        self._process.wait()
        self.let_go()

    def let_go(self) -> None:
        self._requests.close()
        self._replies.close()

    def _exchange(self, payload: bytes, seconds: float) -> bytes | None:
        """Send a frame and wait for one; None when the process died, killed by the timer or by itself."""
        self._late = False
        timer = threading.Timer(seconds, self._too_late)
        timer.daemon = True
        timer.start()
        try:
            self._send(payload)
            return self._receive()
        except (OSError, EOFError):
            self.usable = False
            return None
        finally:
            timer.cancel()
            timer.join()  # it must not kill the process in the middle of the next page

    def _too_late(self) -> None:
        self._late, self.usable = True, False
        self._process.kill()

    def _send(self, payload: bytes) -> None:
        rest = memoryview(len(payload).to_bytes(4, "big") + payload)
        while rest:
            rest = rest[self._requests.write(rest) :]

    def _receive(self) -> bytes:
        size = int.from_bytes(self._exactly(4), "big")
        if size > _LARGEST:  # no answer is: a document has taken the worker over
            raise EOFError
        return self._exactly(size)

    def _exactly(self, size: int) -> bytes:
        found = bytearray()
        while len(found) < size:
            part = self._replies.read(size - len(found))
            if not part:
                raise EOFError
            found += part
        return bytes(found)


def _environment() -> dict[str, str]:
    """What Python needs to find the same packages; a document that breaks out finds no key here."""
    kept = {name: os.environ[name] for name in _KEPT if name in os.environ}
    one_thread = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    return {**kept, **one_thread, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}


_pools: dict[tuple[int, int], _Pool] = {}
_guard = threading.Lock()


def _pool(reading: Reading) -> _Pool:
    with _guard:
        key = (reading.workers, reading.memory)
        if key not in _pools:
            _pools[key] = _Pool(*key)
        return _pools[key]


def _forget() -> None:
    global _guard
    _guard = threading.Lock()
    for pool in _pools.values():
        pool.abandon()
    _pools.clear()


atexit.register(close)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
