"""End a run that cannot continue, with a line that says what happened and how to resume."""

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

from ..errors import FaithfulSearchError
from ..escape import as_line
from ..inference.launchers import LAUNCHERS
from ..wire.redact import redact

RESUME = "a run that has saved a checkpoint goes on from it with --resume"
PATIENCE = 60
"""The seconds for cleaning up after the loss of another process. Then this one is ended by
force.
"""
_GONE = re.compile(r"gloo|nccl|c10d|tcpstore|pair closure", re.IGNORECASE)
_SOURCE = re.compile(r"^\[\S+:\d+\] ")  # the line of Gloo's source, with which its messages begin
logger = logging.getLogger(__name__)


class Terminated(KeyboardInterrupt):
    """The program received SIGTERM, from a person or from the program that runs it."""


def leave(error: BaseException) -> NoReturn:
    """End the program with a line on standard error that says why.

    The exit code is 1 for the package's own errors and for a lost process, 130 for Ctrl-C, and 143
    for SIGTERM. Any other error is raised again.
    """
    line, code = str(error), 1
    _, processes = _processes()
    several = processes > 1
    if several:  # collective calls would wait forever for a lost process
        faulthandler.dump_traceback_later(PATIENCE, exit=True)
    # Gloo raises plain RuntimeErrors: only their texts differ from those of a full GPU, say
    distributed = _distributed()
    loss = (distributed is not None and isinstance(error, distributed.DistError)) or (
        isinstance(error, RuntimeError) and _GONE.search(line)
    )
    if isinstance(error, Terminated):
        line, code = line or f"told to end (SIGTERM); {RESUME}", 128 + signal.SIGTERM
    elif isinstance(error, KeyboardInterrupt):
        line, code = line or f"interrupted; {RESUME}", 128 + signal.SIGINT
    elif several and loss:
        reason = _SOURCE.sub("", line.strip().partition("\n")[0])
        reason = reason.partition(". This is typically")[0]
        line = f"lost contact with another process: {reason}; {RESUME}"
    elif not isinstance(error, FaithfulSearchError):
        raise error
    logger.debug("%s", line, exc_info=error)
    _say(line)
    raise SystemExit(code) from None


@contextmanager
def ending_after(seconds: float, line: str) -> Iterator[None]:
    """End the program with exit code 1 and this line if the block takes longer. It is for calls
    that have no time-out.
    """
    timer = threading.Timer(seconds, _end, [line])
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


@contextmanager
def heeding_signals() -> Iterator[None]:
    """Within the block SIGTERM raises `Terminated`, so that everything is cleaned up. A second
    SIGTERM ends the program at once.

    The end of the launcher counts as a SIGTERM, since `accelerate launch` and `torchrun` do not
    pass on a signal that only they receive.
    """
    process = os.getpid()
    launcher = os.getppid()

    def end(number: int, frame: Any) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        if os.getpid() != process:  # a forked process has the handler, too
            signal.raise_signal(signal.SIGTERM)
        raise Terminated

    def follow() -> None:
        # There is no portable signal for the end of a parent, but the process gets another parent
        while os.getppid() == launcher:
            time.sleep(1.0)
        _say(f"the launcher (process {launcher}) is gone, this process ends too")
        os.kill(process, signal.SIGTERM)

    before = signal.signal(signal.SIGTERM, end)
    if not LAUNCHERS.isdisjoint(os.environ):
        threading.Thread(target=follow, name="faithful-search-launcher", daemon=True).start()
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _end(line: str) -> NoReturn:
    _say(line)
    os._exit(1)  # an exception in the timer's thread would not end the blocked thread


def _say(line: str) -> None:
    """Print an error, with the number of the process if there are several."""
    rank, count = _processes()
    process = f"process {rank} of {count}: " if count > 1 else ""
    # It begins a new line, since a progress bar may stand in the current one
    print(f"\nerror: {process}{as_line(redact(line))}", file=sys.stderr, flush=True)


def _distributed() -> Any:
    """`torch.distributed`; `None` if torch has not been imported, or has no such module."""
    distributed = sys.modules.get("torch.distributed")
    return distributed if distributed is not None and distributed.is_available() else None


def _processes() -> tuple[int, int]:
    """The number of this process, and the number of processes. Until they have met, the launcher's
    environment variables say it.
    """
    distributed = _distributed()
    if distributed is not None and distributed.is_initialized():
        return distributed.get_rank(), distributed.get_world_size()
    return int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
