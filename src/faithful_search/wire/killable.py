"""Programs of this package that read what strangers sent, in processes that can be killed.

They are asked line by line. Data that takes too long or too much memory, or that crashes what reads
it, costs one answer.
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

_START_TIMEOUT = 60.0  # seconds for a process to start, its imports included
_GRACE = 2  # seconds after the deadline until a process ends itself, should its parent be gone
MOST_ANSWERS = 1_000
"""Answers of one process before it is replaced, lest the memory that libraries keep adds up."""
# Environment variables that a process inherits
_INHERITED = (
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
# Environment variables that limit the threads of numerical libraries
_THREAD_LIMITS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
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
    """Bytes that a process may take beyond those of its imports, where the system can limit that.
    It is the argument of the module.
    """
    workers: int
    """Processes that answer at once."""
    longest: int = 1 << 26
    """Bytes of an answer. A longer one counts as none: the data has taken the process over."""

    @contextmanager
    def worker(self, until: float) -> Iterator["Worker"]:
        """A process that nobody else asks meanwhile.

        Args:
            until: how long to wait for one, by `time.monotonic`.

        Raises:
            Busy: none is free until then.
            NotStarted: the program does not start.
        """
        slots = self.slots()
        try:
            worker = slots.get(timeout=max(0.0, until - time.monotonic()))
        except queue.Empty:
            raise Busy from None
        try:
            worker = worker or Worker(self)
            yield worker
        except BaseException:
            if worker is not None:  # its pipes might hold half a question
                worker.end()
            raise
        finally:
            is_usable = worker is not None and worker.usable
            slots.put(worker if is_usable else None)

    def slots(self) -> "queue.LifoQueue[Worker | None]":
        """The free slots: each a running process, or `None` where one is to be started first.

        Last in, first out, so that processes which run are used before another is started.
        """
        key = (os.getpid(), self)  # a forked child must not write into its parent's pipes
        if key not in _slots:
            slots: queue.LifoQueue[Worker | None] = queue.LifoQueue()
            for _ in range(self.workers):
                slots.put(None)
            _slots.setdefault(key, slots)  # another thread may have been quicker
        return _slots[key]


class Worker:
    """One process of a program. It inherits no keys from this process's environment.

    Attributes:
        usable: whether it runs and may be asked another question.
    """

    def __init__(self, program: Program) -> None:
        environment = {name: os.environ[name] for name in _INHERITED if name in os.environ}
        # Else each library would start a thread for each core, in each process.
        environment |= dict.fromkeys(_THREAD_LIMITS, "1")
        environment["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
        self.program = program
        self.usable = True
        self._answers = 0
        self.process = subprocess.Popen(
            # -P: modules in the working directory are not imported
            [sys.executable, "-P", "-m", program.module, str(program.memory)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=environment,
            start_new_session=True,  # an interrupt at the terminal is for the parent to handle
        )
        if self._exchange(b"", _START_TIMEOUT) != b"ready\n":
            self.end()
            command = f"python -m {program.module} {program.memory}"
            _log.warning("a process does not start: run `%s` to see why", command)
            raise NotStarted

    def ask(self, line: bytes, seconds: float) -> bytes:
        """The answer to a question, as the process wrote it, with its line break.

        Args:
            line: the question, without line breaks.
            seconds: how long to wait for the answer.

        Raises:
            Late, Crashed: there is no answer. The process is then gone.
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
        """Kill the process."""
        self.usable = False
        self.process.kill()
        self.process.communicate()

    def _exchange(self, line: bytes, seconds: float) -> bytes:
        """Send a line and wait for one.

        The process is killed when it takes longer than `seconds`. When it dies, so or by itself,
        the line is not complete, and the process no longer `usable`.
        """
        requests = cast(BinaryIO, self.process.stdin)
        replies = cast(BinaryIO, self.process.stdout)
        start = time.monotonic()
        reply = b""
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


# `Program.slots`, by process id and program
_slots: "dict[tuple[int, Program], queue.LifoQueue[Worker | None]]" = {}


def answer_lines(
    answer: Callable[[bytes], bytes],
    memory: int,
    imports: Iterable[str] = (),
    writes_files: bool = False,
) -> None:
    """Answer questions until the pipe is closed, if only by the parent's end. This is what the
    process of a `Program` runs.

    Args:
        answer: gives the answer to a question; both are without line breaks.
        memory: bytes that may be taken from now on, where the system can limit that.
        imports: modules that are loaded first, where they are installed, so that `memory` is for
            the data alone.
        writes_files: whether files may be written, of at most `memory` bytes each.
    """
    # Standard input and output get other numbers: what a library prints or reads must not get
    # between the lines.
    requests = os.fdopen(os.dup(0), "rb")
    replies = os.fdopen(os.dup(1), "wb")
    null_device = os.open(os.devnull, os.O_RDWR)
    os.dup2(null_device, 0)
    os.dup2(null_device, 1)
    for name in imports:
        with suppress(ImportError):
            import_module(name)
    _limit(memory, writes_files)
    alarm = getattr(signal, "alarm", lambda seconds: None)  # Windows has none
    reply = b"ready"
    while True:
        replies.write(reply + b"\n")
        replies.flush()
        line = requests.readline()
        if not line.endswith(b"\n"):
            return
        seconds, _, question = line.partition(b" ")
        # The parent kills a process that is late. Should the parent be gone, the alarm does.
        alarm(int(seconds))
        reply = answer(question.removesuffix(b"\n"))
        alarm(0)


def _limit(memory: int, writes_files: bool) -> None:
    """Limit what this process may take from the system."""
    try:
        import resource
    except ImportError:  # a system without such limits
        return
    used_bytes = 0  # where the system does not tell, the limit is for all that is used
    with suppress(OSError, ValueError), open("/proc/self/statm", encoding="ascii") as file:
        used_pages = int(file.read().split()[0])
        used_bytes = used_pages * os.sysconf("SC_PAGE_SIZE")
    limits = {
        resource.RLIMIT_AS: used_bytes + memory,
        resource.RLIMIT_FSIZE: memory if writes_files else 0,
        resource.RLIMIT_CORE: 0,  # no file with the memory of a process that crashed
    }
    for kind, most in limits.items():
        with suppress(ValueError, OSError):  # a system without this limit, or with a lower one
            resource.setrlimit(kind, (most, most))
