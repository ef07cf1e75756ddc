"""Runs that collapse: how likely right answers stay, a warning before they are lost, and a term that keeps them.

Search agents trained for some hundred steps lose their likelihood of right and wrong answers alike, gradients grow, and
the policy breaks down ("lazy likelihood displacement", arXiv 2512.04220).
"""

from __future__ import annotations

import logging
from collections import deque
from statistics import fmean
from typing import Any

import torch
from transformers import TrainerCallback

LIKELIHOOD = "likelihood/right"
"""The mean log-probability of right answers' own tokens, as it is logged."""
MOVED = "likelihood/moved"
"""By how much the step's update moved it, on some of the step's right answers."""
DROP = 0.03
"""How many nats one update may take from it before that is a warning."""
WATCHED = 8
"""How many rollouts of a batch are asked about once more after the update, at most."""
logger = logging.getLogger(__name__)


def llds(
    logps: torch.Tensor, old: torch.Tensor, numbers: torch.Tensor, advantages: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """The likelihood-preserving term: how far the tokens of actions that have lost likelihood fell.

    ```
    LLDS = Σ_actions [Σ_t (log π_old - log π) > 0] · Σ_t max(0, log π_old - log π)  /  own tokens of the batch
    ```

    An action is the policy's own tokens of one turn. Only those whose advantage is not negative are preserved, and of
    them only those that have become less likely as a whole; of such an action only the tokens that did (arXiv
    2512.04220, with its gate by action). `old` are the log-probabilities when the tokens were sampled, `numbers` those
    of `advantages.turn_numbers`; advantages are `(rows,)` or `(rows, columns)`.

    Returns:
        The term, and the share of the actions that have lost likelihood.
    """
    own = numbers > 0
    fallen = torch.where(own, old - logps, 0.0)
    many = int(numbers.max()) + 1
    by_action = fallen.new_zeros(len(fallen), many).scatter_add(1, numbers, fallen.detach())
    there = by_action.new_zeros(by_action.shape).scatter(1, numbers, 1.0)[:, 1:].sum().clamp(min=1)
    kept = (advantages if advantages.dim() == 2 else advantages[:, None]) >= 0
    falling = own & kept & (by_action > 0).gather(1, numbers)
    term = torch.where(falling, fallen.clamp(min=0), 0.0).sum() / own.sum().clamp(min=1)
    return term, (by_action[:, 1:] > 0).sum() / there


class LikelihoodWatch(TrainerCallback):
    """Warns, once, when right answers become less likely: within one update, or over many while gradients grow.

    A run that collapses at once is seen by `MOVED`: an update that leaves the step's own right answers less likely went
    too far, whatever the next rollouts will look like. Slow decay is seen by comparing the last `window` steps that had
    right answers with the first: the mean log-probability of right answers' own tokens has fallen to one and a half
    times what it was, and so has the mean gradient norm risen.
    """

    def __init__(self, window: int = 4) -> None:
        self.window = window
        self.first: list[tuple[float, float]] = []
        self.last: deque[tuple[float, float]] = deque(maxlen=window)
        self.warned_at: int | None = None

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        if self.warned_at or not state.is_world_process_zero:
            return
        trouble = self._trouble(logs or {})
        if trouble:
            self.warned_at = state.global_step
            advice = "runs collapse like this. Lower --learning_rate, or give --llds 0.1"
            logger.warning("step %d: %s: %s", state.global_step, trouble, advice)

    def _trouble(self, logs: Any) -> str:
        if logs.get(MOVED, 0.0) < -DROP:
            return f"one update took {-logs[MOVED]:.3f} from the mean log-probability of right answers' tokens"
        if LIKELIHOOD not in logs or "grad_norm" not in logs:
            return ""
        pair = float(logs[LIKELIHOOD]), float(logs["grad_norm"])
        if len(self.first) < self.window:  # what is normal differs from policy to policy: it is measured first
            self.first.append(pair)
            return ""
        self.last.append(pair)
        (before, norm_before), (now, norm) = (map(fmean, zip(*pairs, strict=True)) for pairs in (self.first, self.last))
        if len(self.last) < self.window or now >= 1.5 * before or norm <= 1.5 * norm_before:
            return ""
        return (
            f"right answers become less likely (mean log-probability of their tokens {now:.3f}, at first {before:.3f}) "
            f"while gradients grow (norm {norm:.3g}, at first {norm_before:.3g})"
        )
