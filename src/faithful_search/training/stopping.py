"""Stop training between two steps, with a checkpoint."""

import signal
from pathlib import Path
from typing import Any

from accelerate.utils import gather_object
from transformers import TrainerCallback

from ..errors import JudgeError
from .endings import RESUME, Terminated


class OrderlyStop(TrainerCallback):
    """Ends training with a checkpoint when a judge fails, or after SIGTERM.

    A judge has failed when `judge_failure` says what is wrong; every process sets it alike.
    SIGTERM, which clusters send some time before they take a machine, counts if `on_sigterm` is
    true. The steps that use the current rollouts are still made, so that a resumed run equals an
    uninterrupted one.
    """

    def __init__(self, on_sigterm: bool) -> None:
        self.on_sigterm = on_sigterm
        self.judge_failure = ""
        self.sigterm_received = False
        self.stopped = False

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.judge_failure = ""
        self.stopped = False
        if self.on_sigterm:
            self._before = signal.signal(signal.SIGTERM, self._on_sigterm)

    def _on_sigterm(self, number: int, frame: Any) -> None:
        self.sigterm_received = True

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        is_last = state.global_step >= state.max_steps
        if not (args.between_generations(state.global_step) or is_last):
            return
        stop_for_sigterm = False
        if self.on_sigterm and not is_last:
            # The processes tell each other whether one has received it, so that all save together
            stop_for_sigterm = any(gather_object([self.sigterm_received]))
        if stop_for_sigterm or self.judge_failure:
            control.should_save = True
            control.should_training_stop = True
            self.stopped = True

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self.on_sigterm:
            signal.signal(signal.SIGTERM, self._before)

    def check(self, args: Any, state: Any) -> None:
        """Raise `JudgeError` or `Terminated` if this callback has ended the training. The message
        says why, and how to resume.
        """
        checkpoint = Path(args.output_dir) / f"checkpoint-{state.global_step}"
        if self.judge_failure:
            raise JudgeError(
                f"{self.judge_failure}. That is more than max_abstained={args.max_abstained:g} of "
                f"a batch, so training stopped; the checkpoint is {checkpoint}. When the judge "
                "answers again, resume from it"
            )
        if self.stopped:
            raise Terminated(f"told to end (SIGTERM): {checkpoint.name} is saved; {RESUME}")
