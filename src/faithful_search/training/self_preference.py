"""Does a policy that scores itself come to like itself? Its own scores against a rule's, step by step."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from statistics import fmean
from typing import Any

from accelerate.utils import gather_object
from transformers import TrainerCallback

from .grpo import SearchGRPOTrainer

BLIND = 0.4
"""The root mean square error of the best constant score, on rollouts about half of which are right."""
OWN, RULE = "self_rubric", "world_rubric"
TOLERANCE = 0.1
"""About the error that the paper's evaluator makes anyway (RMSE 0.12)."""
logger = logging.getLogger(__name__)


class SelfPreference(TrainerCallback):
    """Logs at every step what the policy gave its rollouts, what the rule gives them, and how far both are apart.

    The rule is a part of the mix with weight 0 (`self_eval_mix(watched_by=…)`): scored at every step, never trained on.
    Logged over the rollouts that both have scored, of all processes: `self_score`, `rule_score`, their difference
    `self_gap`, and `self_rmse`, the root mean square difference, which also grows where the mean stays.

    A gap that has grown by more than a tenth since the beginning, on average over `window` steps, is a warning in
    words: what rises is then the policy's opinion of its searches, not its searches. So is an error in the first
    `window` steps that a constant score would hardly exceed: the policy then cannot judge what it searches, however
    well it scored the episodes that it was taught on.
    """

    def __init__(self, trainer: SearchGRPOTrainer, window: int = 5) -> None:
        self.trainer, self.window = trainer, window
        self.parted = False

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        if "loss" not in (logs or {}):  # an evaluation's, or the end of training
            return
        scored = ((row[OWN].value, row[RULE].value) for row in self.trainer.last_components)
        pairs = gather_object([pair for pair in scored if None not in pair])
        if not pairs:
            return
        found = compared(pairs)
        logs.update(found)
        state.log_history[-1].update(found)  # this row was written before the callbacks were called
        rows = [row for row in state.log_history if "self_gap" in row]
        gaps = [row["self_gap"] for row in rows]
        beginning, now = gaps[: self.window], gaps[-self.window :]
        grown = round(fmean(now) - fmean(beginning), 6) if len(gaps) >= 2 * self.window else 0.0
        parted, self.parted = self.parted, abs(grown) > TOLERANCE
        if not state.is_world_process_zero:
            return
        error = fmean(row["self_rmse"] for row in rows[: self.window])
        if len(rows) == self.window and error > BLIND:
            logger.warning(
                "the policy's own scores are wrong by %.2f (root mean square), no better than a constant: it "
                "cannot judge its own rollouts. Teach it on scored rollouts of its own (recipes/sft.py "
                "--rubric_files), or use a judge that is not trained",
                error,
            )
        if self.parted and not parted:
            logger.warning(
                "step %d: the policy's own scores have moved %.2f %s the rule's since training began: what it thinks "
                "of its searches changes, not the searches. Its rewards can no longer be trusted; take an earlier "
                "checkpoint, a smaller learning rate, or a judge that is not trained",
                *(state.global_step, abs(grown), "above" if grown > 0 else "below"),
            )


def compared(pairs: Sequence[tuple[float, float]]) -> dict[str, float]:
    """What `SelfPreference` logs of pairs of the policy's own score and the rule's.

    >>> compared([(1.0, 1.0), (1.0, 0.2)])
    {'self_score': 1.0, 'rule_score': 0.6, 'self_gap': 0.4, 'self_rmse': 0.5657}
    """
    own, rule = map(fmean, zip(*pairs, strict=True))
    rmse = fmean((first - second) ** 2 for first, second in pairs) ** 0.5
    found = {"self_score": own, "rule_score": rule, "self_gap": own - rule, "self_rmse": rmse}
    return {name: round(value, 4) for name, value in found.items()}
