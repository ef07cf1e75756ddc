"""Does a policy that scores itself come to like itself? Its own scores against a rule's, step by step."""

from __future__ import annotations

import logging
from typing import Any

from accelerate.utils import gather_object
from transformers import TrainerCallback

from .grpo import SearchGRPOTrainer

BLIND = 0.4
"""The root mean square error of the best constant score, on rollouts about half of which are right."""
logger = logging.getLogger(__name__)


class SelfPreference(TrainerCallback):
    """Logs at every step what the policy gave its rollouts, what the rule gives them, and how far both are apart.

    The rule is a part of the mix with weight 0 (`self_eval_mix(watched_by=…)`): scored at every step, never trained on.
    Over the rollouts of all processes that both have scored:

    | logged | meaning |
    |---|---|
    | self_score, rule_score | means |
    | self_gap | self_score - rule_score |
    | self_rmse | root mean square difference, which also grows where the mean stays |

    A gap that has grown by more than `tolerance` since the beginning, over `window` steps, is a warning in words: what
    rises is then the policy's opinion of its searches, not its searches. So is an error in the first `window` steps
    that a constant score would hardly exceed: the policy then cannot judge what it searches, however well it scored the
    episodes that it was taught on.

    Args:
        trainer: the trainer that it watches.
        own, rule: names of the mix's parts.
        tolerance: a tenth by default, about the error that the paper's evaluator makes anyway (RMSE 0.12).
        window: steps that are averaged, at the beginning and now.
    """

    def __init__(
        self,
        trainer: SearchGRPOTrainer,
        own: str = "self_rubric",
        rule: str = "world_rubric",
        tolerance: float = 0.1,
        window: int = 5,
    ) -> None:
        self.trainer, self.own, self.rule = trainer, own, rule
        self.tolerance, self.window = tolerance, window
        self.parted = False

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        if "loss" not in (logs or {}):  # an evaluation's, or the end of training
            return
        scored = ((row[self.own].value, row[self.rule].value) for row in self.trainer.last_components)
        pairs = gather_object([pair for pair in scored if None not in pair])
        if not pairs:
            return
        found = compared(pairs)
        logs.update(found)
        state.log_history[-1].update(found)
        rows = [row for row in state.log_history if "self_gap" in row]
        if state.is_world_process_zero and len(rows) == self.window:
            error = sum(row["self_rmse"] for row in rows) / self.window
            if error > BLIND:
                logger.warning(
                    "the policy's own scores are wrong by %.2f (root mean square), no better than a constant: it "
                    "cannot judge its own rollouts. Teach it on scored rollouts of its own (recipes/sft.py "
                    "--rubric_files), or use a judge that is not trained",
                    error,
                )
        self._warn(state, [row["self_gap"] for row in rows])

    def _warn(self, state: Any, gaps: list[float]) -> None:
        grown = growth(gaps, self.window)
        apart = abs(grown) > self.tolerance
        if apart and not self.parted and state.is_world_process_zero:
            better = "above" if grown > 0 else "below"
            logger.warning(
                "step %d: the policy's own scores have moved %.2f %s the rule's since training began: what it thinks "
                "of its searches changes, not the searches. Its rewards can no longer be trusted; take an earlier "
                "checkpoint, a smaller learning rate, or a judge that is not trained",
                state.global_step,
                abs(grown),
                better,
            )
        self.parted = apart


def compared(pairs: list[tuple[float, float]]) -> dict[str, float]:
    """What `SelfPreference` logs of pairs of the policy's own score and the rule's.

    >>> compared([(1.0, 1.0), (1.0, 0.2)])
    {'self_score': 1.0, 'rule_score': 0.6, 'self_gap': 0.4, 'self_rmse': 0.5657}
    """
    own, rule = (sum(column) / len(pairs) for column in zip(*pairs, strict=True))
    rmse = (sum((first - second) ** 2 for first, second in pairs) / len(pairs)) ** 0.5
    found = {"self_score": own, "rule_score": rule, "self_gap": own - rule, "self_rmse": rmse}
    return {name: round(value, 4) for name, value in found.items()}


def growth(gaps: list[float], window: int) -> float:
    """How much larger the last `window` gaps are than the first ones, on average; 0 before there are two windows.

    >>> growth([0.0, 0.1, 0.3, 0.4], 2)
    0.3
    """
    if len(gaps) < 2 * window:
        return 0.0
    return round((sum(gaps[-window:]) - sum(gaps[:window])) / window, 6)
