"""Rollouts differ in length several times over: rows of like length share a pass, so that padding is not computed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

import torch
from torch.nn.functional import pad

PASSES = 4
"""Passes over a batch. The number is fixed, since sharded models need as many passes in every process."""
FEWEST = 8
"""Rows from which it is worth it: with fewer, as for models of billions of parameters, a batch stays in one pass."""
Columns = torch.Tensor | None


def by_length(
    forward: Callable[..., tuple[Columns, ...]],
    input_ids: torch.Tensor,
    attention_mask: torch.Tensor,
    kept: int,
    **given: Any,
) -> tuple[Columns, ...]:
    """What TRL's `_get_per_token_logps_and_entropies` computes, in `PASSES` passes without what only pads them.

    Args:
        forward: TRL's method, given ids, mask and the number of last columns that are wanted.
        input_ids: `(rows, columns)`: prompts padded on the left, completions on the right.
        attention_mask: `(rows, columns)`: 0 where it is padding.
        kept: columns of the completions.
        given: further arguments of `forward`.

    Returns:
        As `forward`: where it gives a value a token, those are `(rows, kept)`, 0 where a pass left padding out; of
        single numbers (an auxiliary loss) the mean of the passes; `None` stays.
    """
    rows, columns = input_ids.shape
    if rows < FEWEST:
        return forward(input_ids, attention_mask, kept, **given)
    found = []
    order = attention_mask.sum(dim=1).argsort()
    for chosen in order.tensor_split(PASSES):
        used = attention_mask[chosen].any(dim=0).nonzero()
        # A completion without a token would leave nothing to keep, so one column of it always stays.
        start, end = int(used[0]), max(int(used[-1]) + 1, columns - kept + 1)
        missing = columns - end
        one = forward(input_ids[chosen, start:end], attention_mask[chosen, start:end], kept - missing, **given)
        found.append([pad(part, (0, missing)) if part is not None and part.dim() else part for part in one])
    back = order.argsort()
    return tuple(_joined(parts, back) for parts in zip(*found, strict=True))


def _joined(parts: Sequence[Columns], order: torch.Tensor) -> Columns:
    if parts[0] is None:
        return None
    given = cast(Sequence[torch.Tensor], parts)
    return torch.cat(list(given))[order] if given[0].dim() else torch.stack(list(given)).mean()
