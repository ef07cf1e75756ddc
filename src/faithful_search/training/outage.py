"""A judge that gives no verdicts during training: a warning, and beyond a share of the rollouts the run stops."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
from transformers import TrainerCallback

from ..errors import ConfigError, JudgeError
from ..rewards import Score
from .preemption import between_batches

logger = logging.getLogger(__name__)


class Silence(msgspec.Struct, frozen=True):
    """What a judge left open of some rollouts: how many have no reward because of it, how many of each part, and why.

    `other` rollouts have no reward for another `reason`, such as a question without gold answers.
    """

    rows: int
    lost: int = 0
    parts: dict[str, int] = {}
    why: str = ""
    other: int = 0
    reason: str = ""

    @property
    def share(self) -> float:
        """The share of rollouts without a reward."""
        return self.lost / self.rows if self.rows else 0.0

    def __str__(self) -> str:
        parts = ", ".join(f"{name} of {count}" for name, count in self.parts.items())
        return f"no verdict on {parts} of {self.rows} rollouts; {self.lost} of them have no reward: {self.why}"


def silence(components: Sequence[dict[str, Score]], scores: Sequence[Score]) -> Silence:
    """What the judge left open of one process's rollouts, by their components and their rewards."""
    left = [(name, score.why) for row in components for name, score in row.items() if score.parts.get("abstained")]
    empty = [score for score in scores if score.value is None]
    other = [score.why for score in empty if not score.parts.get("abstained")]
    parts, why = dict(Counter(name for name, _ in left)), left[0][1] if left else ""
    return Silence(len(scores), len(empty) - len(other), parts, why, len(other), other[0] if other else "")


def together(found: Sequence[Silence]) -> Silence:
    """The same of all processes' rollouts."""
    parts = sum((Counter(item.parts) for item in found), Counter[str]())
    rows, lost, other = (sum(getattr(item, name) for item in found) for name in ("rows", "lost", "other"))
    why, reason = (next(filter(None, (getattr(item, name) for item in found)), "") for name in ("why", "reason"))
    return Silence(rows, lost, dict(parts), why, other, reason)


@contextmanager
def without_dump() -> Iterator[None]:
    """Without TRL's warning about a rollout without reward, which holds all its tokens; `JudgeWatch` needs a line."""

    def kept(record: logging.LogRecord) -> bool:
        return "All reward functions returned None" not in str(record.msg)[:100]  # the process's rank comes first

    logger = logging.getLogger("trl.trainer.grpo_trainer")
    logger.addFilter(kept)
    try:
        yield
    finally:
        logger.removeFilter(kept)


class JudgeWatch(TrainerCallback):
    """Ends training with a checkpoint if more than a share of a global batch's rollouts have no reward.

    Rollouts without reward train nothing (their advantage is 0). The steps that use the batch are still made, so that
    the checkpoint lies between two batches and a resumed run asks new questions.

    Args:
        limit: the largest share that is accepted, in [0, 1]; 1.0 never stops.
    """

    def __init__(self, limit: float = 0.5) -> None:
        if not 0 <= limit <= 1:
            raise ConfigError(f"max_abstained must be in [0, 1], not {limit}")
        self.limit = limit
        self.trouble = ""

    def note(self, found: Silence, step: int, training: bool, loud: bool) -> None:
        """Record a global batch, the same in every process; `loud`: this process writes the log."""
        if found.parts and loud:
            logger.warning("step %d: %s", step, found)
        if found.other and loud:
            logger.warning("step %d: %d of %d rollouts have no reward: %s", step, found.other, found.rows, found.reason)
        if training and not self.trouble and found.share > self.limit:
            self.trouble = f"at step {step} {found}"

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.trouble = ""

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self.trouble and (between_batches(args, state) or state.global_step >= state.max_steps):
            control.should_log = control.should_save = control.should_training_stop = True

    def check(self, output_dir: str, step: int) -> None:
        """Raise `JudgeError`, saying why and how to resume, if this ended the training."""
        if self.trouble:
            raise JudgeError(
                f"{self.trouble}. That is more than max_abstained={self.limit:g} of a batch, so training stopped; the "
                f"checkpoint is {Path(output_dir) / f'checkpoint-{step}'}. When the judge answers again, resume from it"
            )
