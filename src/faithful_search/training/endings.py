"""How a program ends that cannot go on: in one line that says what happened, where, and how to go on."""

from __future__ import annotations

import faulthandler
import logging
import os
import re
import signal
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any, NoReturn

import torch.distributed as distributed

from ..errors import FaithfulSearchError
from ..inference.threads import LAUNCHERS
from ..text import printable
from ..wire.redact import redact

RESUME = "a run that has saved a checkpoint goes on from it with --resume true"
PATIENCE = 60
"""Seconds that a program which lost another process has for tidying up before it is ended by force."""
LOOK = 1.0
"""Seconds between two looks whether the launcher is there."""
PLACES = {
    "init_process_group": "when the processes met",
    "_prepare_for_training": "preparing the model",
    "training_step": "in a training step",
    "backward": "in the backward pass",
    "_rollout": "in a rollout",
    "_reward": "scoring the rollouts",
    "evaluate": "in an evaluation",
    "_save_checkpoint": "saving a checkpoint",
    "save_model": "saving the model",
}
"""What a process is doing in functions of these names; the innermost says it best."""
_GONE = re.compile(r"gloo|nccl|c10d|tcpstore|pair closure", re.IGNORECASE)
_SOURCE = re.compile(r"^\[\S+:\d+\] ")
logger = logging.getLogger(__name__)


class Terminated(KeyboardInterrupt):
    """The program was told to end (SIGTERM), by a person or by what runs it."""


def leave(error: BaseException) -> NoReturn:
    """End the program with a line on the standard error that says what became of it.

    The exit code is 1 for what the package refuses and for a lost process, 130 for Ctrl-C, 143 for SIGTERM. Anything
    else is an error of the program: it is raised again and keeps its trace.
    """
    found = _line(error)
    if _processes()[1] > 1:
        faulthandler.dump_traceback_later(PATIENCE, exit=True)  # waiting for those who are gone has no end
    if found is None:
        raise error
    line, code = found
    logger.debug("%s", line, exc_info=error)
    _say(line)
    raise SystemExit(code) from None


@contextmanager
def ending_after(seconds: float, line: str) -> Iterator[None]:
    """End the program with exit code 1 and that line when this lasts longer: for calls that nothing else interrupts."""
    timer = threading.Timer(seconds, _end, [line])
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


@contextmanager
def heeding_sigterm() -> Iterator[None]:
    """While it lasts, SIGTERM raises `Terminated`, so that everything is tidied up; a second one ends at once."""
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
    """From now on the program gets SIGTERM when the launcher that started it is gone: nobody else would end it.

    `accelerate launch` and `torchrun` pass Ctrl-C on at a terminal, but not a signal that they alone are sent.
    """
    if not LAUNCHERS.isdisjoint(os.environ):
        threading.Thread(target=_follow, args=[os.getppid()], name="faithful-search-launcher", daemon=True).start()


def _follow(launcher: int) -> None:
    while os.getppid() == launcher:
        time.sleep(LOOK)
    _say(f"the launcher (process {launcher}) is gone, this process ends too")
    os.kill(os.getpid(), signal.SIGTERM)


def is_loss(error: BaseException) -> bool:
    """Whether an error says that another process is gone, or did not answer in time."""
    if _processes()[1] < 2:
        return False
    return isinstance(error, distributed.DistError) or (
        isinstance(error, RuntimeError) and bool(_GONE.search(str(error)))
    )


def where(trace: TracebackType | None) -> str:
    """What was being done when an error was raised, and after how many steps; empty where that is not known."""
    place, step = "", None
    for frame, _ in traceback.walk_tb(trace):
        place = PLACES.get(frame.f_code.co_name, place)
        state = getattr(frame.f_locals.get("self"), "state", None)
        step = getattr(state, "global_step", step)
    return f"{place}, step {step}" if place and step is not None else place


def _line(error: BaseException) -> tuple[str, int] | None:
    """What is said of an error, and the exit code; `None` where its trace is needed."""
    if isinstance(error, FaithfulSearchError):
        return str(error), 1
    place = where(error.__traceback__)
    if isinstance(error, KeyboardInterrupt):
        told = isinstance(error, Terminated)
        said = str(error) or f"{'told to end (SIGTERM)' if told else 'interrupted'}{place and f' {place}'}; {RESUME}"
        return said, 128 + (signal.SIGTERM if told else signal.SIGINT)
    if is_loss(error):
        reason = _SOURCE.sub("", str(error).strip().partition("\n")[0]).partition(". This is typically")[0]
        return f"another process is gone or hangs{place and f' ({place})'}: {reason}; {RESUME}", 1
    return None


def _say(line: str) -> None:
    rank, many = _processes()
    who = f"process {rank} of {many}: " if many > 1 else ""
    print(
        f"\nerror: {who}{printable(redact(line))}", file=sys.stderr, flush=True
    )  # a progress bar may stand in the line


def _end(line: str) -> NoReturn:
    _say(line)
    os._exit(1)


def _processes() -> tuple[int, int]:
    """This process's number, and how many there are; before they have met, as the launcher says."""
    if distributed.is_available() and distributed.is_initialized():
        return distributed.get_rank(), distributed.get_world_size()
    return int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
