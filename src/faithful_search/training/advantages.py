"""Advantage estimators, one function each; another estimator goes here.

Each takes the rewards of the global batch, shape `(questions · K,)` with the K rollouts of a question next to each
other, and returns advantages of the same shape. A NaN reward (its judge abstained) is left out of its group's baseline
and gets advantage 0.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

Estimator = Callable[[torch.Tensor, int], torch.Tensor]


def group_relative(rewards: torch.Tensor, k: int) -> torch.Tensor:
    """GRPO: `(r − mean) / (std + 1e-4)` within the group, as TRL computes it for `scale_rewards="group"`."""
    groups = rewards.view(-1, k)
    centred = groups - groups.nanmean(dim=1, keepdim=True)
    valid = (~groups.isnan()).sum(dim=1, keepdim=True)
    variance = centred.square().nansum(dim=1, keepdim=True) / (valid - 1).clamp(min=1)
    return torch.nan_to_num(centred / (variance.sqrt() + 1e-4)).view(-1)


def leave_one_out(rewards: torch.Tensor, k: int) -> torch.Tensor:
    """RLOO: `r_i − mean_{j≠i} r_j = K/(K−1) · (r_i − mean)`.

    No division by the standard deviation (PokeeResearch, section 3).
    """
    groups = rewards.view(-1, k)
    valid = (~groups.isnan()).sum(dim=1, keepdim=True)
    scale = valid / (valid - 1).clamp(min=1)
    return torch.nan_to_num(scale * (groups - groups.nanmean(dim=1, keepdim=True))).view(-1)


def informative(outcomes: torch.Tensor, valid: torch.Tensor, k: int) -> torch.Tensor:
    """1 for the rollouts of groups that tell right from wrong, 0 for the others.

    Such a group's outcomes differ, or some of its rollouts passed the format gate and some did not.

    Args:
        outcomes: of the global batch, shape `(questions · K,)`; NaN where there is none, which differs from nothing.
        valid: whether each rollout passed the gate, likewise.
        k: rollouts of a question.

    Example:
        >>> right = torch.tensor([1.0, 0.0, 1.0, 1.0, 0.0, 0.0])
        >>> valid = torch.tensor([True, True, True, True, True, False])
        >>> informative(right, valid, 2).tolist()
        [1.0, 1.0, 0.0, 0.0, 1.0, 1.0]
    """
    groups, gate = outcomes.view(-1, k), valid.view(-1, k)
    highest = groups.nan_to_num(nan=-torch.inf).amax(dim=1)
    lowest = groups.nan_to_num(nan=torch.inf).amin(dim=1)
    mixed = (highest > lowest) | (gate.any(dim=1) & ~gate.all(dim=1))
    return mixed.float().repeat_interleave(k)


ESTIMATORS: dict[str, Estimator | None] = {
    "trl": None,
    "group_relative": group_relative,
    "leave_one_out": leave_one_out,
}
"""By name; `trl` leaves the trainer's own advantages (its `scale_rewards` setting) as they are."""
