"""How a run ends that cannot go on: one line that says what happened and how to resume; with a checkpoint if asked."""

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
from accelerate.utils import gather_object
from transformers import TrainerCallback

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
_SOURCE = re.compile(r"^\[\S+:\d+\] ")  # Gloo begins its messages with the line of its own source
logger = logging.getLogger(__name__)


class Terminated(KeyboardInterrupt):
    """The program was told to end (SIGTERM), by a person or by what runs it."""


def leave(error: BaseException) -> NoReturn:
    """End the program with one line on standard error that says why.

    The exit code is 1 for the package's own errors and for a lost process, 130 for Ctrl-C, 143 for SIGTERM. Any other
    error is raised again, with its traceback.
    """
    if _processes()[1] > 1:
        faulthandler.dump_traceback_later(PATIENCE, exit=True)  # collective calls wait forever for a lost process
    code = 1
    if isinstance(error, FaithfulSearchError):
        line = str(error)
    elif isinstance(error, Terminated):
        line, code = str(error) or f"told to end (SIGTERM); {RESUME}", 128 + signal.SIGTERM
    elif isinstance(error, KeyboardInterrupt):
        line, code = f"interrupted; {RESUME}", 128 + signal.SIGINT
    elif is_loss(error):
        reason = _SOURCE.sub("", str(error).strip().partition("\n")[0]).partition(". This is typically")[0]
        line = f"another process is gone or hangs: {reason}; {RESUME}"
    else:
        raise error
    logger.debug("%s", line, exc_info=error)
    _say(line)
    raise SystemExit(code) from None


def is_loss(error: BaseException) -> bool:
    """Whether an error says that another process is gone or did not answer in time."""
    # Gloo raises plain RuntimeErrors, which only their text tells from a failed search or a full GPU.
    known = isinstance(error, RuntimeError) and _GONE.search(str(error)) is not None
    return _processes()[1] > 1 and (known or isinstance(error, distributed.DistError))


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
        # A process whose parent has ended gets another one; there is no portable signal for it.
        while os.getppid() == launcher:
            time.sleep(LOOK)
        _say(f"the launcher (process {launcher}) is gone, this process ends too")
        os.kill(os.getpid(), signal.SIGTERM)

    if not LAUNCHERS.isdisjoint(os.environ):
        threading.Thread(target=follow, name="faithful-search-launcher", daemon=True).start()


class SaveWhenTold(TrainerCallback):
    """Ends training with a checkpoint after SIGTERM, which clusters send some time before they take a machine.

    The steps that use the current rollouts are still made, so that the checkpoint lies between two batches of rollouts
    and a resumed run equals an uninterrupted one. After each step the processes tell each other whether one was told,
    so that all save together. The sender of the signal has to wait that long.
    """

    def __init__(self) -> None:
        self.told = False
        self.saved: int | None = None
        self._before: Any = None

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._before = signal.signal(signal.SIGTERM, lambda number, frame: setattr(self, "told", True))

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        last = state.global_step >= state.max_steps
        if between_batches(args, state) and any(gather_object([self.told])) and not last:
            control.should_save = control.should_training_stop = True
            self.saved = state.global_step

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        signal.signal(signal.SIGTERM, self._before)

    @staticmethod
    def check(trainer: Any) -> None:
        """Raise `Terminated` if such a callback has ended the trainer's training."""
        for callback in trainer.callback_handler.callbacks:
            if isinstance(callback, SaveWhenTold) and callback.saved is not None:
                raise Terminated(f"told to end (SIGTERM): checkpoint-{callback.saved} is saved; {RESUME}")


def between_batches(args: Any, state: Any) -> bool:
    """Whether the steps so far have used up the generated rollouts."""
    cycle = (args.steps_per_generation or 1) * args.num_iterations
    return bool(state.global_step * args.gradient_accumulation_steps % cycle == 0)


def _end(line: str) -> NoReturn:
    _say(line)
    os._exit(1)  # an exception in the timer's thread would not end the blocked one


def _say(line: str) -> None:
    rank, many = _processes()
    who = f"process {rank} of {many}: " if many > 1 else ""
    # On a line of its own: a progress bar may stand in the current one.
    print(f"\nerror: {who}{printable(redact(line))}", file=sys.stderr, flush=True)


def _processes() -> tuple[int, int]:
    """This process's number, and how many there are; before they have met, as the launcher says."""
    if distributed.is_available() and distributed.is_initialized():
        return distributed.get_rank(), distributed.get_world_size()
    return int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
