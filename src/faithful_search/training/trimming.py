"""Rollouts differ in length several times over: rows of like length share a pass, so that padding is not computed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.nn.functional import pad

PASSES = 4
"""Passes over a batch. The number is fixed, since sharded models need as many passes in every process."""
FEWEST = 8
"""Rows from which it is worth it: with fewer, as for models of billions of parameters, a batch stays in one pass."""
Columns = torch.Tensor | None


def by_length(
    forward: Callable[..., tuple[torch.Tensor, Columns, Columns]],
    input_ids: torch.Tensor,
    attention_mask: torch.Tensor,
    kept: int,
    **given: Any,
) -> tuple[torch.Tensor, Columns, Columns]:
    """What TRL's `_get_per_token_logps_and_entropies` computes, in `PASSES` passes without what only pads them.

    Args:
        forward: TRL's method, given ids, mask and the number of last columns that are wanted.
        input_ids: `(rows, columns)`: prompts padded on the left, completions on the right.
        attention_mask: `(rows, columns)`: 0 where it is padding.
        kept: columns of the completions.
        given: further arguments of `forward`.

    Returns:
        Log-probabilities and entropies, each `(rows, kept)` or `None`, 0 where a pass left padding out, and the mean of
        the passes' auxiliary losses.
    """
    rows, columns = input_ids.shape
    if rows < FEWEST:
        return forward(input_ids, attention_mask, kept, **given)
    lengths = attention_mask.sum(dim=1)
    logps: list[torch.Tensor] = []
    entropies: list[torch.Tensor] = []
    losses: list[torch.Tensor] = []
    order = lengths.argsort()
    for chosen in order.tensor_split(PASSES):
        used = attention_mask[chosen].any(dim=0).nonzero()
        # A completion without a token would leave nothing to keep, so one column of it always stays.
        start, end = int(used[0]), max(int(used[-1]) + 1, columns - kept + 1)
        missing = columns - end
        one = forward(input_ids[chosen, start:end], attention_mask[chosen, start:end], kept - missing, **given)
        logps.append(pad(one[0], (0, missing)))
        if one[1] is not None:
            entropies.append(pad(one[1], (0, missing)))
        if one[2] is not None:
            losses.append(one[2])
    back = order.argsort()
    mean_loss = torch.stack(losses).mean() if losses else None
    return torch.cat(logps)[back], torch.cat(entropies)[back] if entropies else None, mean_loss
