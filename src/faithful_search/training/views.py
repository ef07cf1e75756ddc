"""A rollout whose policy did not see all of it at once is read as often as it was: each turn as it was sampled.

Where the engine keeps only the last tool responses in the context (`Limits.kept_responses`), a rollout is no single
sequence. Each of its turns is one: what the policy saw then, and what it wrote.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch.nn.utils.rnn import pad_sequence

Read = torch.Tensor | None
"""What a pass computes of every token (`rows, columns`) or of all together; `None` where it was not asked for."""


class Views(NamedTuple):
    """Turns of a batch, each as the policy saw it; both of shape `(turns, columns)`, padded on the left.

    Attributes:
        rows: each turn's row of the batch, of shape `(turns,)`.
        places: the batch's columns that a turn shows, its own tokens last.
        mask: 1 where `places` means something.
        own: how many of the last columns the turn's own tokens take, of shape `(turns,)`.
    """

    rows: torch.Tensor
    places: torch.Tensor
    mask: torch.Tensor
    own: torch.Tensor


def turn_views(attention_mask: torch.Tensor, numbers: torch.Tensor, kept: int) -> Views:
    """One view for each turn.

    Args:
        attention_mask: of prompts and completions, of shape `(rows, columns)`.
        numbers: of completions, as `advantages.turn_numbers` gives them.
        kept: see `Limits.kept_responses`.

    Example:
        >>> mask, numbers = torch.ones(1, 7, dtype=torch.long), torch.tensor([[1, 0, 2, 0, 3]])
        >>> turn_views(mask, numbers, kept=1).places.tolist()  # turn 3 sees the second response, not the first
        [[0, 0, 0, 0, 1, 2], [0, 0, 1, 2, 3, 4], [0, 1, 2, 4, 5, 6]]
    """
    found = []
    for row, (mask, turns) in enumerate(zip(attention_mask, numbers, strict=True)):
        before = len(mask) - len(turns)
        latest = torch.cat([turns.new_zeros(before), turns.cummax(dim=0).values])  # the turn that came last
        every = torch.cat([turns.new_zeros(before), turns])
        written = turns.unique()
        for turn in written[written > 0].tolist():
            mine = every == turn
            response = (every == 0) & (latest > 0)
            seen = mask.bool() & (latest < turn) & ~(response & (latest < turn - kept)) | mine
            found.append((row, seen.nonzero()[:, 0], int(mine.sum())))
        if not written.any():  # a row without a turn is a view all the same, so that every process has as many passes
            found.append((row, mask.nonzero()[:, 0][: before + 1], 1))
    rows, places, own = zip(*found, strict=True)
    shown = pad_sequence([torch.ones_like(one) for one in places], batch_first=True, padding_side="left")
    padded = pad_sequence(list(places), batch_first=True, padding_side="left")
    return Views(padded.new_tensor(rows), padded, shown.to(attention_mask), padded.new_tensor(own))


def by_view(
    read: Callable[..., tuple[Read, ...]],
    views: Views,
    input_ids: torch.Tensor,
    kept: int,
    **given: Any,
) -> tuple[Read, ...]:
    """What `read` (see `update.by_length`) computes of a batch's last `kept` columns, each turn read as it was sampled.

    What no turn wrote is 0 there.
    """
    width = int(views.own.max())
    ids = input_ids[views.rows[:, None], views.places]
    found = read(ids, views.mask, width, **given)
    own = torch.arange(width, 0, -1, device=ids.device) <= views.own[:, None]
    columns = views.places[:, -width:] - (input_ids.shape[1] - kept)
    row = views.rows[:, None].expand_as(columns)[own]

    def placed(part: Read) -> Read:
        if part is None or not part.dim():
            return part
        whole = part.new_zeros(len(input_ids), kept)
        return whole.index_put((row, columns[own]), part[own])

    return tuple(map(placed, found))
