"""Advantage estimators, each a function in `ESTIMATORS` or `TURN_ESTIMATORS`.

An estimator takes the rewards of the global batch, of shape `(questions · K,)` with the K rollouts
of a question next to each other, and returns advantages of the same shape. A reward that is NaN
(its judge abstained) is left out of the baseline of its group and gets the advantage 0.
"""

from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch.nn.functional import pad

from ..rewards import Score
from ..trajectory import Tokens

Estimator = Callable[[torch.Tensor, int], torch.Tensor]
Returns = tuple[list[float], float]
"""The return of a rollout from each of its turns on, and its outcome."""


def group_relative(rewards: torch.Tensor, k: int) -> torch.Tensor:
    """GRPO: `(r − mean) / (std + 1e-4)` within the group, as TRL computes it for
    `scale_rewards="group"`.
    """
    groups = rewards.view(-1, k)
    centred = groups - groups.nanmean(dim=1, keepdim=True)
    valid = (~groups.isnan()).sum(dim=1, keepdim=True)
    variance = centred.square().nansum(dim=1, keepdim=True) / (valid - 1).clamp(min=1)
    advantages = centred / (variance.sqrt() + 1e-4)  # NaN where there is no reward
    return torch.nan_to_num(advantages).view(-1)


def leave_one_out(rewards: torch.Tensor, k: int) -> torch.Tensor:
    """RLOO: `r_i − mean_{j≠i} r_j = K/(K−1) · (r_i − mean)`, as in PokeeResearch, section 3."""
    groups = rewards.view(-1, k)
    centred = groups - groups.nanmean(dim=1, keepdim=True)
    # K is the number of rollouts that have a reward, which is not k where a judge abstained.
    valid = (~groups.isnan()).sum(dim=1, keepdim=True)
    scale = valid / (valid - 1).clamp(min=1)
    advantages = scale * centred  # NaN where there is no reward
    return torch.nan_to_num(advantages).view(-1)


def turn_returns(score: Score, turns: int, gamma: float = 1.0) -> Returns:
    """The returns of a rollout with this score; NaN if it has no value.

    ```
    G_k = Σ_{j ≥ k} gamma^(j-k) r_j + gamma^(T-k) outcome        r_j and the outcome: see `Score.credit`
    ```

    >>> turn_returns(Score(1.5, steps=(1.0, 0.0)), 2)
    ([1.5, 1.0], 1.0)
    """
    earned, outcome = score.credit
    if score.value is None:
        outcome = float("nan")
    rewards = earned or (0.0,) * turns
    last_to_first: list[float] = []
    discounted = outcome  # what comes after a turn
    for reward in reversed(rewards):
        turn_return = reward + discounted
        last_to_first.append(turn_return)
        discounted = gamma * turn_return
    return last_to_first[::-1], outcome


def turn_advantages(estimator: Estimator, returns: Sequence[Returns], k: int) -> torch.Tensor:
    """The advantages of each turn, of shape `(questions · K, turns of the longest rollout)`."""
    longest = max(len(by_turn) for by_turn, _ in returns)
    # A rollout that has ended takes part in the baselines of later turns with its outcome. So,
    # without rewards of steps and with gamma = 1, all turns have the advantage of the trajectory.
    padded = []
    for by_turn, outcome in returns:
        missing = longest - len(by_turn)
        padded.append(by_turn + [outcome] * missing)
    columns = torch.tensor(padded).T  # one for each turn
    advantages = [estimator(column.contiguous(), k) for column in columns]
    return torch.stack(advantages, dim=1)


def turn_numbers(rollouts: Sequence[Tokens], width: int) -> torch.Tensor:
    """The number of the turn, from 1, of each token that the policy wrote, and 0 for all others; of
    shape `(rows, width)`.
    """
    numbers = torch.zeros(len(rollouts), width, dtype=torch.long)
    for row, tokens in zip(numbers, rollouts, strict=True):
        for number, (start, middle, _) in enumerate(tokens.turns, start=1):
            row[start:middle] = number
        # The environment wrote the opening of a forced answer
        row[: len(tokens.mask)] *= torch.tensor(tokens.mask)
    return numbers


def spread(advantages: torch.Tensor, numbers: torch.Tensor) -> torch.Tensor:
    """The advantage of each turn at the tokens that the policy wrote in it, and 0 elsewhere."""
    return pad(advantages, (1, 0)).gather(1, numbers)  # column 0: tokens of no turn


def informative(outcomes: torch.Tensor, valid: torch.Tensor, k: int) -> torch.Tensor:
    """1 for the rollouts of informative groups, and 0 for the others.

    A group is informative if its outcomes differ, or only some of its rollouts are `valid`, which
    means that they passed the format gate. A NaN outcome (there is none) does not differ from any.

    >>> right = torch.tensor([1.0, 0.0, 1.0, 1.0, 0.0, 0.0])
    >>> valid = torch.tensor([True, True, True, True, True, False])
    >>> informative(right, valid, 2).tolist()
    [1.0, 1.0, 0.0, 0.0, 1.0, 1.0]
    """
    groups, gate = outcomes.view(-1, k), valid.view(-1, k)
    # In a group without any outcome the highest is -inf and the lowest inf: they do not differ
    highest = groups.nan_to_num(nan=-torch.inf).amax(dim=1)
    lowest = groups.nan_to_num(nan=torch.inf).amin(dim=1)
    mixed = (highest > lowest) | (gate.any(dim=1) & ~gate.all(dim=1))
    return mixed.float().repeat_interleave(k)


ESTIMATORS: dict[str, Estimator | None] = {
    "trl": None,
    "group_relative": group_relative,
    "leave_one_out": leave_one_out,
}
"""By name. `trl` keeps the advantages that TRL computes (its setting `scale_rewards`)."""
TURN_ESTIMATORS: dict[str, Callable[[Sequence[Returns], int], torch.Tensor]] = {
    "turns": partial(turn_advantages, group_relative),
    "turns_leave_one_out": partial(turn_advantages, leave_one_out),
}
"""By name, the estimators that give each turn an advantage of its own."""
