"""Advantage estimators, one function each; another estimator goes here.

Each takes the rewards of the global batch, shape `(questions · K,)` with the K rollouts of a question next to each
other, and returns advantages of the same shape. A NaN reward (its judge abstained) is left out of its group's baseline
and gets advantage 0.
"""

from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch.nn.functional import pad

from ..rewards import Score
from ..trajectory import Tokens

Estimator = Callable[[torch.Tensor, int], torch.Tensor]
Returns = tuple[list[float], float]  # what a rollout got from each of its turns on, and its outcome


def group_relative(rewards: torch.Tensor, k: int) -> torch.Tensor:
    """GRPO: `(r − mean) / (std + 1e-4)` within the group, as TRL computes it for `scale_rewards="group"`."""
    groups = rewards.view(-1, k)
    centred = groups - groups.nanmean(dim=1, keepdim=True)
    valid = (~groups.isnan()).sum(dim=1, keepdim=True)
    variance = centred.square().nansum(dim=1, keepdim=True) / (valid - 1).clamp(min=1)
    return torch.nan_to_num(centred / (variance.sqrt() + 1e-4)).view(
        -1
    )  # NaN where there is no reward


def leave_one_out(rewards: torch.Tensor, k: int) -> torch.Tensor:
    """RLOO: `r_i − mean_{j≠i} r_j = K/(K−1) · (r_i − mean)`, as in PokeeResearch, section 3."""
    groups = rewards.view(-1, k)
    # K is the number of rollouts that have a reward, which is not k where a judge abstained.
    valid = (~groups.isnan()).sum(dim=1, keepdim=True)
    scale = valid / (valid - 1).clamp(min=1)
    return torch.nan_to_num(scale * (groups - groups.nanmean(dim=1, keepdim=True))).view(-1)


def turn_returns(score: Score, turns: int, gamma: float = 1.0) -> Returns:
    """The returns of a rollout with that score; NaN where it has no value.

    ```
    G_k = Σ_{j ≥ k} gamma^(j-k) r_j + gamma^(T-k) outcome        r_j and the outcome: see `Score.credit`
    ```

    >>> turn_returns(Score(1.5, steps=(1.0, 0.0)), 2)
    ([1.5, 1.0], 1.0)
    """
    earned, outcome = score.credit
    outcome = float("nan") if score.value is None else outcome
    found: list[float] = []
    for reward in reversed(earned or (0.0,) * turns):
        found.insert(0, reward + (gamma * found[0] if found else outcome))
    return found, outcome


def by_turn(estimator: Estimator, returns: Sequence[Returns], k: int) -> torch.Tensor:
    """Advantages of the global batch, shape `(questions · K, turns of the longest)`: those of each turn by itself."""
    most = max(len(own) for own, _ in returns)
    # A rollout that has ended takes part in later baselines with its outcome alone, so that without rewards of steps
    # and with gamma = 1 every turn has the trajectory's own advantage.
    table = torch.tensor([own + [outcome] * (most - len(own)) for own, outcome in returns])
    return torch.stack([estimator(column.contiguous(), k) for column in table.T], dim=1)


def turn_numbers(rollouts: Sequence[Tokens], width: int) -> torch.Tensor:
    """The number of its turn, from 1, of each token that the policy wrote; 0 of all others. Shape `(rows, width)`."""
    numbers = torch.zeros(len(rollouts), width, dtype=torch.long)
    for row, tokens in zip(numbers, rollouts, strict=True):
        for number, (start, middle, _) in enumerate(tokens.turns, start=1):
            row[start:middle] = number
        row[: len(tokens.mask)] *= torch.tensor(
            tokens.mask
        )  # a forced answer's opening is the environment's
    return numbers


def spread(advantages: torch.Tensor, numbers: torch.Tensor) -> torch.Tensor:
    """Each turn's advantage at that turn's own tokens, and 0 elsewhere."""
    return pad(advantages, (1, 0)).gather(1, numbers)  # column 0: tokens of no turn


def informative(outcomes: torch.Tensor, valid: torch.Tensor, k: int) -> torch.Tensor:
    """1 for the rollouts of groups whose outcomes differ (NaN, where there is none, differs from nothing) or of which
    only some passed the format gate, as `valid` says; 0 for the others.

    >>> right = torch.tensor([1.0, 0.0, 1.0, 1.0, 0.0, 0.0])
    >>> valid = torch.tensor([True, True, True, True, True, False])
    >>> informative(right, valid, 2).tolist()
    [1.0, 1.0, 0.0, 0.0, 1.0, 1.0]
    """
    groups, gate = outcomes.view(-1, k), valid.view(-1, k)
    # a group without any outcome has -inf as its highest and inf as its lowest, and so does not differ
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
TURN_ESTIMATORS: dict[str, Callable[[Sequence[Returns], int], torch.Tensor]] = {
    "turns": partial(by_turn, group_relative),
    "turns_leave_one_out": partial(by_turn, leave_one_out),
}
"""By name: those that give each turn an advantage of its own."""
