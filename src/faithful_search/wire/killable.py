"""Programs of this package that read what strangers sent, in processes that can be killed: a line
in, a line out.

Data that takes too long or too much memory, or that crashes what reads it, costs one answer.
"""

import logging
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib import import_module
from typing import BinaryIO, cast

_START = 60.0  # seconds for a process to come up, its imports included
_GRACE = 2  # seconds after which a late process ends itself, should its parent be gone
MOST_ANSWERS = 1_000  # of one process, lest the memory that libraries keep adds up
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
_THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
_log = logging.getLogger(__name__)


class NoAnswer(Exception):
    """A process gave no answer."""


class Busy(NoAnswer):
    """All processes were busy until it was too late to ask."""


class Late(NoAnswer):
    """The answer took too long; the process was killed."""


class Crashed(NoAnswer):
    """The process ended, or answered something that is not a line."""


class NotStarted(NoAnswer):
    """The process does not start."""


@dataclass(frozen=True)
class Program:
    """A module that calls `answer_lines` when it is run, and the processes that run it.

    They are shared by all equal values of this class, kept between questions, and replaced when
    they were killed. Thread-safe.
    """

    module: str
    memory: int
    """Bytes that a process may take beyond what its imports take, where the system can limit
    that. It is the argument of the module.
    """
    workers: int
    """Processes that answer at once."""
    longest: int = 1 << 26
    """Bytes of an answer. A longer one is none: what was read has taken the process over."""

    @contextmanager
    def worker(self, until: float) -> Iterator["Worker"]:
        """A process that nobody else asks meanwhile.

        Raises `Busy` when none is free at `until` (`time.monotonic`), `NotStarted` where none
        starts.
        """
        slots = self.slots()
        try:
            worker = slots.get(timeout=max(0.0, until - time.monotonic()))
        except queue.Empty:
            raise Busy from None
        try:
            worker = worker or Worker(self)
            yield worker
        except BaseException:  # the pipes might hold half a question
            if worker is not None:
                worker.end()
            raise
        finally:
            slots.put(worker if worker is not None and worker.usable else None)

    def slots(self) -> "queue.LifoQueue[Worker | None]":
        """The processes that are free, or `None` for one to be started; those in use are taken out
        first.
        """
        key = (os.getpid(), self)  # a forked child must not write into its parent's pipes
        if key not in _slots:
            slots: queue.LifoQueue[Worker | None] = queue.LifoQueue()
            for _ in range(self.workers):
                slots.put(None)
            _slots.setdefault(key, slots)
        return _slots[key]


class Worker:
    """One process of a program, without the keys that are in this one's environment."""

    def __init__(self, program: Program) -> None:
        environment = {name: os.environ[name] for name in _KEPT if name in os.environ}
        environment |= dict.fromkeys(_THREADS, "1")  # each would start one for each core
        environment["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
        self.program, self.usable, self._answers = program, True, 0
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-m", program.module, str(program.memory)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=environment,
            start_new_session=True,  # an interrupt at the terminal is for the parent to handle
        )
        if self._exchange(b"", _START) != b"ready\n":
            self.end()
            command = f"python -m {program.module} {program.memory}"
            _log.warning("a process does not start: run `%s` to see why", command)
            raise NotStarted

    def ask(self, line: bytes, seconds: float) -> bytes:
        """The answer to a question without line breaks, as the process wrote it.

        Raises `Late` or `Crashed`; the process is then gone.
        """
        start = time.monotonic()
        reply = self._exchange(b"%d %s\n" % (int(seconds) + _GRACE, line), seconds)
        self._answers += 1
        if self.usable:
            self.usable = self._answers < MOST_ANSWERS
            return reply
        self.end()
        if time.monotonic() - start >= seconds:
            raise Late
        _log.warning("%s ended with %s", self.program.module, self.process.returncode)
        raise Crashed

    def end(self) -> None:
        self.usable = False
        self.process.kill()
        self.process.communicate()

    def _exchange(self, line: bytes, seconds: float) -> bytes:
        """Send a line and wait for one; not a whole one when the process died, killed by the timer
        or by itself.
        """
        requests, replies = cast(BinaryIO, self.process.stdin), cast(BinaryIO, self.process.stdout)
        start, reply = time.monotonic(), b""
        timer = threading.Timer(seconds, self.process.kill)
        timer.daemon = True
        timer.start()
        with suppress(OSError):
            requests.write(line)
            requests.flush()
            reply = replies.readline(self.program.longest)
        timer.cancel()
        timer.join()  # it must not kill the process in the middle of the next answer
        self.usable = reply.endswith(b"\n") and time.monotonic() - start < seconds
        return reply


_slots: "dict[tuple[int, Program], queue.LifoQueue[Worker | None]]" = {}


def answer_lines(
    answer: Callable[[bytes], bytes],
    memory: int,
    imports: Iterable[str] = (),
    writes_files: bool = False,
) -> None:
    """Answer until the pipe is closed, if only by the parent's end: the process of a `Program`.

    `imports` are loaded first, where they are installed, so that the memory is for what is read
    alone.
    """
    # Under numbers of their own: what a library prints or reads must not get between the lines.
    requests, replies = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    nothing = os.open(os.devnull, os.O_RDWR)
    os.dup2(nothing, 0)
    os.dup2(nothing, 1)
    for name in imports:
        with suppress(ImportError):
            import_module(name)
    _limit(memory, writes_files)
    alarm = getattr(signal, "alarm", lambda seconds: None)
    reply = b"ready"
    while True:
        replies.write(reply + b"\n")
        replies.flush()
        line = requests.readline()
        if not line.endswith(b"\n"):
            return
        seconds, _, question = line.partition(b" ")
        # The parent kills a process that is late; this ends it should the parent be gone.
        alarm(int(seconds))
        reply = answer(question.removesuffix(b"\n"))
        alarm(0)


def _limit(memory: int, writes_files: bool) -> None:
    try:
        import resource
    except ImportError:  # a system without such limits
        return
    used = 0  # where the system does not say, the limit includes it
    with suppress(OSError, ValueError), open("/proc/self/statm", encoding="ascii") as file:
        used = int(file.read().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    limits = {resource.RLIMIT_AS: used + memory, resource.RLIMIT_CORE: 0}
    limits[resource.RLIMIT_FSIZE] = memory if writes_files else 0
    for kind, most in limits.items():
        with suppress(ValueError, OSError):  # a system without this limit, or with a lower one
            resource.setrlimit(kind, (most, most))
