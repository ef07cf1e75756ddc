"""A checkpoint when the run is told to end: clusters send a signal, and leave some time, before they take a machine."""

from __future__ import annotations

import signal
from typing import Any

from accelerate.utils import gather_object
from transformers import TrainerCallback

from .endings import RESUME, Terminated


class SaveWhenTold(TrainerCallback):
    """Ends training with a checkpoint after SIGTERM, at the end of a step.

    The steps that use the current rollouts are still made, so that the checkpoint lies between two batches of rollouts
    and a resumed run equals an uninterrupted one. After each step the processes tell each other whether one was told,
    so that all save together. Whoever sends the signal has to wait that long.
    """

    def __init__(self) -> None:
        self.told = False
        self.saved: int | None = None
        self._before: Any = None

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        def note(number: int, frame: Any) -> None:
            self.told = True

        self._before = signal.signal(signal.SIGTERM, note)

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
