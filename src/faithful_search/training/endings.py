"""How a run ends that cannot go on: one line that says what happened and how to resume; with a checkpoint if asked."""

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
from pathlib import Path
from typing import Any, NoReturn

import torch.distributed as distributed
from accelerate.utils import gather_object
from transformers import TrainerCallback

from ..errors import FaithfulSearchError, JudgeError
from ..inference.loading import LAUNCHERS
from ..text import printable
from ..wire.redact import redact

RESUME = "a run that has saved a checkpoint goes on from it with --resume true"
PATIENCE = (
    60  # seconds for cleaning up after another process was lost, before this one is ended by force
)
_GONE = re.compile(r"gloo|nccl|c10d|tcpstore|pair closure", re.IGNORECASE)
_SOURCE = re.compile(r"^\[\S+:\d+\] ")  # Gloo begins its messages with the line of its own source
logger = logging.getLogger(__name__)


class Terminated(KeyboardInterrupt):
    """The program was told to end (SIGTERM), by a person or by what runs it."""


def leave(error: BaseException) -> NoReturn:
    """End the program with a line on standard error that says why, and exit code 1 for the package's own errors and for
    a lost process, 130 for Ctrl-C, 143 for SIGTERM. Any other error is raised again."""
    line, code, several = str(error), 1, _processes()[1] > 1
    if several:
        faulthandler.dump_traceback_later(
            PATIENCE, exit=True
        )  # collective calls wait forever for a lost process
    # Gloo raises plain RuntimeErrors, which only their text tells from a failed search or a full GPU.
    loss = isinstance(error, distributed.DistError) or (
        isinstance(error, RuntimeError) and _GONE.search(line)
    )
    if isinstance(error, Terminated):
        line, code = line or f"told to end (SIGTERM); {RESUME}", 128 + signal.SIGTERM
    elif isinstance(error, KeyboardInterrupt):
        line, code = f"interrupted; {RESUME}", 128 + signal.SIGINT
    elif several and loss:
        reason = _SOURCE.sub("", line.strip().partition("\n")[0]).partition(". This is typically")[
            0
        ]
        line = f"another process is gone or hangs: {reason}; {RESUME}"
    elif not isinstance(error, FaithfulSearchError):
        raise error
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
def heeding_signals() -> Iterator[None]:
    """Within the block SIGTERM raises `Terminated`, so that everything is cleaned up; a second one ends at once. The
    launcher's end counts as one: `accelerate launch` and `torchrun` do not pass on a signal that only they get."""
    own, launcher = os.getpid(), os.getppid()

    def end(number: int, frame: Any) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        if os.getpid() != own:  # a forked process has the handler too
            signal.raise_signal(signal.SIGTERM)
        raise Terminated

    def follow() -> None:
        # A process whose parent has ended gets another one; there is no portable signal for it.
        while os.getppid() == launcher:
            time.sleep(1.0)
        _say(f"the launcher (process {launcher}) is gone, this process ends too")
        os.kill(own, signal.SIGTERM)

    before = signal.signal(signal.SIGTERM, end)
    if not LAUNCHERS.isdisjoint(os.environ):
        threading.Thread(target=follow, name="faithful-search-launcher", daemon=True).start()
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


class OrderlyStop(TrainerCallback):
    """Ends training with a checkpoint once `silence`, which every process sets alike, says what is wrong with a judge;
    if `on_sigterm` also after SIGTERM, which clusters send some time before they take a machine. The steps that use the
    current rollouts are still made, so that a resumed run equals an uninterrupted one."""

    def __init__(self, on_sigterm: bool) -> None:
        self.on_sigterm, self.silence = on_sigterm, ""
        self.told = self.stopped = False

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.silence, self.stopped = "", False
        if self.on_sigterm:
            self._before = signal.signal(
                signal.SIGTERM, lambda number, frame: setattr(self, "told", True)
            )

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        last = state.global_step >= state.max_steps
        if args.between_generations(state.global_step) or last:
            # The processes tell each other whether one was told, so that all save together.
            told = self.on_sigterm and not last and any(gather_object([self.told]))
            if told or self.silence:
                control.should_save = control.should_training_stop = self.stopped = True

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self.on_sigterm:
            signal.signal(signal.SIGTERM, self._before)

    def check(self, args: Any, state: Any) -> None:
        """Raise `JudgeError` or `Terminated`, saying why and how to resume, if this ended the training."""
        checkpoint = Path(args.output_dir) / f"checkpoint-{state.global_step}"
        if self.silence:
            raise JudgeError(
                f"{self.silence}. That is more than max_abstained={args.max_abstained:g} of a batch, so training "
                f"stopped; the checkpoint is {checkpoint}. When the judge answers again, resume from it"
            )
        if self.stopped:
            raise Terminated(f"told to end (SIGTERM): {checkpoint.name} is saved; {RESUME}")


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
