"""A judge that gives no verdicts during training: a warning, and beyond a share of the rollouts the run stops."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from accelerate.utils import gather_object
from transformers import TrainerCallback

from ..errors import ConfigError, JudgeError
from ..rewards import Score
from .endings import between_batches

logger = logging.getLogger(__name__)


class Unscored(NamedTuple):
    """A rollout: whether the judge left it without reward, why it has none otherwise, and each part that was left open
    with its reason."""

    lost: bool
    other: str | None
    parts: dict[str, str]


def unscored(components: Sequence[dict[str, Score]], scores: Sequence[Score]) -> list[Unscored]:
    """What was left open of all processes' rollouts, given the components and rewards of this one's."""
    rows = []
    for row, score in zip(components, scores, strict=True):
        empty, abstained = score.value is None, bool(score.parts.get("abstained"))
        left = {name: part.why for name, part in row.items() if part.parts.get("abstained")}
        rows.append(Unscored(empty and abstained, score.why if empty and not abstained else None, left))
    return gather_object(rows)


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
    """Ends training with a checkpoint if a judge left more than a share of a global batch without reward.

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

    def note(self, rows: Sequence[Unscored], step: int, training: bool, loud: bool) -> float:
        """Record a global batch, the same in every process; `loud`: this process writes the log.

        Returns:
            The share of rollouts that have no reward because of the judge.
        """
        # Rollouts without reward for another reason, such as no gold answers, are not the judge's fault.
        others = [row.other for row in rows if row.other is not None]
        lost = sum(row.lost for row in rows)
        counts = Counter(name for row in rows for name in row.parts)
        why = next((why for row in rows for why in row.parts.values() if why), "")
        parts = ", ".join(f"{name} of {count}" for name, count in counts.items())
        found = f"no verdict on {parts} of {len(rows)} rollouts; {lost} of them have no reward: {why}"
        if counts and loud:
            logger.warning("step %d: %s", step, found)
        if others and loud:
            logger.warning("step %d: %d of %d rollouts have no reward: %s", step, len(others), len(rows), others[0])
        if training and not self.trouble and lost > self.limit * len(rows):
            self.trouble = f"at step {step} {found}"
        return lost / len(rows)

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.trouble = ""

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        # the last step need not lie between two batches
        if self.trouble and (between_batches(args, state) or state.global_step >= state.max_steps):
            control.should_log = control.should_save = control.should_training_stop = True

    def check(self, output_dir: str, step: int) -> None:
        """Raise `JudgeError`, saying why and how to resume, if this ended the training."""
        if self.trouble:
            raise JudgeError(
                f"{self.trouble}. That is more than max_abstained={self.limit:g} of a batch, so training stopped; the "
                f"checkpoint is {Path(output_dir) / f'checkpoint-{step}'}. When the judge answers again, resume from it"
            )
