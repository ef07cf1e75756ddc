"""Documents of the web to paragraphs, read in processes that can be killed: one that hangs or crashes costs a page."""

import logging
import os
import queue
import subprocess
import sys
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import BinaryIO, cast

import msgspec

from ...errors import ConfigError, ToolError

_START = 60.0  # seconds for a process to come up, its imports included
_LARGEST = (
    1 << 26
)  # bytes of an answer; a larger one is no answer: a document has taken the process over
_PAGES = 1_000  # that a process reads, lest the memory that libraries keep adds up
_KEPT = (
    "PATH",
    "PYTHONHOME",
    "LANG",
    "LC_ALL",
    "LD_LIBRARY_PATH",
    "DYLD_LIBRARY_PATH",
    "SYSTEMROOT",
    "TMPDIR",
    "TEMP",
)
_log = logging.getLogger(__name__)


class Paragraph(msgspec.Struct, frozen=True, omit_defaults=True):
    """A piece of a document that can be cited; `place` says where it stands, such as "p. 3" of a PDF."""

    text: str
    place: str = ""


class Page(msgspec.Struct, frozen=True, omit_defaults=True):
    """A document that was read. `cut` says what was left out; empty when it was read whole."""

    title: str
    paragraphs: tuple[Paragraph, ...]
    cut: str = ""


@dataclass(frozen=True)
class Reading:
    """How documents are read."""

    seconds: float = 10.0
    """The most that reading one document may take. Of a long PDF, what was read by then is kept."""
    memory: int = 1_000_000_000
    """Bytes that a document may take in the process that reads it, where the system can limit that."""
    workers: int = 2
    """Processes that read at once, shared by all tools of equal `workers` and `memory`."""
    shortest: int = 200
    """Paragraphs with fewer characters are joined with the next."""
    longest: int = 1_200
    """Paragraphs with more characters are split at the ends of sentences."""

    def __post_init__(self) -> None:
        if (
            min(self.seconds, self.memory, self.workers) <= 0
            or not 0 < self.shortest <= self.longest
        ):
            raise ConfigError(f"all must be positive, and shortest not above longest: {self}")


class Job(msgspec.Struct, frozen=True):
    body: bytes
    content_type: str
    reading: Reading


Answer = Page | str
"""What a process says: the page, or why there is none."""


def read(body: bytes, content_type: str, reading: Reading, deadline: float | None = None) -> Page:
    """Read a document in another process; blocks. Thread-safe.

    `content_type` is what the server says it is, with its parameters; may be empty. After `deadline` (`time.monotonic`)
    the page is no longer wanted. Raises `ToolError` when it cannot be read, saying why.
    """
    deadline = deadline if deadline is not None else time.monotonic() + 2 * reading.seconds + _START
    slots, worker = _slots(reading), None
    try:
        worker = slots.get(timeout=max(0.0, deadline - time.monotonic()))
    except queue.Empty:
        raise ToolError("other pages are still being read; try again", passing=True) from None
    try:
        worker = worker or _Worker(reading.memory)
        seconds = max(0.01, min(reading.seconds, deadline - time.monotonic()))
        answer = worker.ask(Job(body, content_type, replace(reading, seconds=seconds)))
    except BaseException:  # the pipes might hold half a question
        if worker is not None:
            worker.end()
        raise
    finally:
        slots.put(worker if worker is not None and worker.usable else None)
    if isinstance(answer, str):
        raise ToolError(answer)
    return answer


class _Worker:
    """A process: a line of JSON in, a line of JSON out."""

    def __init__(self, memory: int) -> None:
        module = f"{__package__}.documents"
        environment = {name: os.environ[name] for name in _KEPT if name in os.environ}  # no keys
        # each would start as many threads as there are cores
        environment |= dict.fromkeys(
            ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1"
        )
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-m", module, str(memory)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**environment, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
            start_new_session=True,  # an interrupt at the terminal is for the parent to handle
        )
        self.usable, self._pages = True, 0
        if self._exchange(b"", _START) != b"ready\n":
            self.end()
            _log.warning(
                "the page reader does not start: run `python -m %s 1000000000` to see why", module
            )
            raise ToolError("the page reader does not start")

    def ask(self, job: Job) -> Answer:
        start, seconds = time.monotonic(), job.reading.seconds
        reply = self._exchange(msgspec.json.encode(job) + b"\n", seconds)
        self._pages += 1
        if self.usable:
            self.usable = self._pages < _PAGES
            with suppress(msgspec.MsgspecError):
                return msgspec.json.decode(reply, type=Answer)
        self.end()
        if time.monotonic() - start >= seconds:
            return f"reading it took longer than {seconds:.3g} seconds"
        _log.warning("a page crashed its reader, which ended with %s", self.process.returncode)
        return "it crashed the program that reads pages"

    def end(self) -> None:
        self.usable = False
        self.process.kill()
        self.process.communicate()

    def _exchange(self, line: bytes, seconds: float) -> bytes:
        """Send a line and wait for one; not a whole one when the process died, killed by the timer or by itself."""
        requests, replies = cast(BinaryIO, self.process.stdin), cast(BinaryIO, self.process.stdout)
        start, reply = time.monotonic(), b""
        timer = threading.Timer(seconds, self.process.kill)
        timer.daemon = True
        timer.start()
        with suppress(OSError):
            requests.write(line)
            requests.flush()
            reply = replies.readline(_LARGEST)
        timer.cancel()
        timer.join()  # it must not kill the process in the middle of the next page
        self.usable = reply.endswith(b"\n") and time.monotonic() - start < seconds
        return reply


_pools: "dict[tuple[int, int, int], queue.LifoQueue[_Worker | None]]" = {}


def _slots(reading: Reading) -> "queue.LifoQueue[_Worker | None]":
    """The processes that are not reading, or `None` for one to be started; those in use are taken out first."""
    # by process: a forked child must not write into its parent's pipes
    key = (os.getpid(), reading.workers, reading.memory)
    if key not in _pools:
        slots: queue.LifoQueue[_Worker | None] = queue.LifoQueue()
        for _ in range(reading.workers):
            slots.put(None)
        _pools.setdefault(key, slots)
    return _pools[key]
