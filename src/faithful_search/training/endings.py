"""How a run ends that cannot go on: with one line that says what happened and how to resume."""

from __future__ import annotations

import faulthandler
import logging
import os
import re
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

import torch.distributed as distributed

from ..errors import FaithfulSearchError
from ..inference.threads import LAUNCHERS
from ..text import printable
from ..wire.redact import redact

RESUME = "a run that has saved a checkpoint goes on from it with --resume true"
PATIENCE = 60
"""Seconds for cleaning up after another process was lost, before this one is ended by force."""
LOOK = 1.0
"""Seconds between two checks whether the launcher is alive."""
_GONE = re.compile(r"gloo|nccl|c10d|tcpstore|pair closure", re.IGNORECASE)
_SOURCE = re.compile(r"^\[\S+:\d+\] ")
logger = logging.getLogger(__name__)


class Terminated(KeyboardInterrupt):
    """The program was told to end (SIGTERM), by a person or by what runs it."""


def leave(error: BaseException) -> NoReturn:
    """End the program with one line on standard error that says why.

    The exit code is 1 for the package's own errors and for a lost process, 130 for Ctrl-C, 143 for SIGTERM. Any other
    error is raised again, with its traceback.
    """
    found = _line(error)
    if _processes()[1] > 1:
        faulthandler.dump_traceback_later(PATIENCE, exit=True)  # collective calls wait forever for a lost process
    if found is None:
        raise error
    line, code = found
    logger.debug("%s", line, exc_info=error)
    _say(line)
    raise SystemExit(code) from None


@contextmanager
def ending_after(seconds: float, line: str) -> Iterator[None]:
    """End the program with exit code 1 and that line if the block takes longer: for calls that have no time-out."""
    timer = threading.Timer(seconds, _end, [line])
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


@contextmanager
def heeding_sigterm() -> Iterator[None]:
    """Within the block SIGTERM raises `Terminated`, so that everything is cleaned up; a second one ends at once."""
    own = os.getpid()

    def end(number: int, frame: Any) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        if os.getpid() != own:  # a forked process has the handler too
            signal.raise_signal(signal.SIGTERM)
        raise Terminated

    if threading.current_thread() is not threading.main_thread():  # only there may handlers be set
        yield
        return
    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def ending_with_launcher() -> None:
    """From now on, send this process SIGTERM when the launcher that started it is gone.

    `accelerate launch` and `torchrun` pass Ctrl-C on at a terminal, but not a signal that only they get; a killed
    launcher would leave its processes running.
    """
    launcher = os.getppid()

    def follow() -> None:
        while os.getppid() == launcher:
            time.sleep(LOOK)
        _say(f"the launcher (process {launcher}) is gone, this process ends too")
        os.kill(os.getpid(), signal.SIGTERM)

    if not LAUNCHERS.isdisjoint(os.environ):
        threading.Thread(target=follow, name="faithful-search-launcher", daemon=True).start()


def is_loss(error: BaseException) -> bool:
    """Whether an error says that another process is gone or did not answer in time."""
    if _processes()[1] < 2:
        return False
    return isinstance(error, distributed.DistError) or (
        isinstance(error, RuntimeError) and bool(_GONE.search(str(error)))
    )


def _line(error: BaseException) -> tuple[str, int] | None:
    """The line to print for an error, and the exit code; `None` if its traceback is needed."""
    if isinstance(error, FaithfulSearchError):
        return str(error), 1
    if isinstance(error, Terminated):
        return str(error) or f"told to end (SIGTERM); {RESUME}", 128 + signal.SIGTERM
    if isinstance(error, KeyboardInterrupt):
        return f"interrupted; {RESUME}", 128 + signal.SIGINT
    if is_loss(error):
        reason = _SOURCE.sub("", str(error).strip().partition("\n")[0]).partition(". This is typically")[0]
        return f"another process is gone or hangs: {reason}; {RESUME}", 1
    return None


def _say(line: str) -> None:
    rank, many = _processes()
    who = f"process {rank} of {many}: " if many > 1 else ""
    print(
        f"\nerror: {who}{printable(redact(line))}", file=sys.stderr, flush=True
    )  # a progress bar may stand in the line


def _end(line: str) -> NoReturn:
    _say(line)
    os._exit(1)  # an exception in the timer's thread would not end the blocked one


def _processes() -> tuple[int, int]:
    """This process's number, and how many there are; before they have met, as the launcher says."""
    if distributed.is_available() and distributed.is_initialized():
        return distributed.get_rank(), distributed.get_world_size()
    return int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
