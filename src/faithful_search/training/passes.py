"""Passes over a batch of rollouts: rows of similar length together (`by_length`), or each turn as
the policy saw it (`by_view`).

A trainer asks for a value of every token in one padded pass. More than half of that would be
padding. And where the engine keeps only the last tool responses in the context
(`Limits.kept_responses`), a rollout is not a single sequence.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch.nn.functional import pad
from torch.nn.utils.rnn import pad_sequence

Values = torch.Tensor | None
"""What a pass computes: a value for every token, of shape (rows, columns), or one for all together.
`None` if it was not asked for.
"""
Forward = Callable[..., tuple[Values, ...]]
"""TRL's `_get_per_token_logps_and_entropies` of a model. It takes ids, their mask, the number of
the last columns that values are wanted for, and a mask of those tokens that the policy sampled.
"""
PASSES = 4
"""The number of passes over a batch on an accelerator."""
FEWEST = 8
"""The number of rollouts from which several passes are worth it there. A smaller batch, as for
models of billions of parameters, is one pass.
"""


def passes_over(rows: int, device: str, at_once: int | None = None) -> int:
    """The number of passes over a batch of rollouts on this type of device, with at most `at_once`
    rows in each. It depends on nothing else, since sharded models need the same number in every
    process.

    On a CPU each rollout is a pass of its own. A further pass costs next to nothing there, and rows
    without padding need no mask, with which attention would compute what it then masks.

    >>> passes_over(32, "cuda"), passes_over(4, "cuda"), passes_over(32, "cpu")
    (4, 1, 32)
    """
    if device == "cpu":
        return rows
    fewest = math.ceil(rows / (at_once or rows))
    return max(fewest, PASSES if rows >= FEWEST else 1)


def by_length(
    forward: Forward,
    input_ids: torch.Tensor,
    attention_mask: torch.Tensor,
    width: int,
    sampled: torch.Tensor,
    *,
    passes: int,
    **kwargs: Any,
) -> tuple[Values, ...]:
    """What `forward` computes, in passes over rows of similar length, so that little is padding.

    Args:
        forward: see `Forward`.
        input_ids: prompts, padded on the left, and completions, padded on the right; shape (rows,
            columns).
        attention_mask: of the same shape.
        width: the number of the last columns, which are the completions.
        sampled: a mask of the tokens of completions that the policy wrote; shape (rows, width).
        passes: the number of passes.

    Returns:
        Values of tokens, of shape (rows, width), are 0 where a pass left padding out. A single
        number (an auxiliary loss) is the mean over the passes.
    """
    columns = input_ids.shape[1]
    results: list[list[Values]] = []
    order = attention_mask.sum(dim=1).argsort()
    for rows in order.tensor_split(passes):
        # A process with fewer rows makes a pass, too, since the others wait for it
        chosen = rows if len(rows) else order[:1]
        used = attention_mask[chosen].any(dim=0).nonzero()
        # At least one column of the completions stays, since `forward` must return something. And
        # it must be given one column before the completions, which may begin before the used ones.
        start = min(int(used[0]), max(0, columns - width - 1))
        end = max(int(used[-1]) + 1, columns - width + 1)
        missing = columns - end
        values = forward(
            input_ids[chosen, start:end],
            attention_mask[chosen, start:end],
            width - missing,
            sampled[chosen, : width - missing],
            **kwargs,
        )
        results.append([_padded(part, len(rows), missing) for part in values])
    back = order.argsort()  # to the order of the batch
    return tuple(_joined(parts, back) for parts in zip(*results, strict=True))


def _padded(values: Values, rows: int, missing: int) -> Values:
    """The values of the first `rows` rows, with zeros in the columns that the pass left out."""
    if values is None or not values.dim():
        return values
    return pad(values[:rows], (0, missing))


def _joined(parts: Sequence[Values], back: torch.Tensor) -> Values:
    """The values of all passes in the order of the batch; the mean for single numbers."""
    tensors = [part for part in parts if part is not None]
    if not tensors:
        return None
    return torch.cat(tensors)[back] if tensors[0].dim() else torch.stack(tensors).mean()


class Views(NamedTuple):
    """The turns of a batch, each as the policy saw it.

    Attributes:
        rows: the row of the batch that each turn is in; shape (turns,).
        columns: the columns of the batch that the policy saw, and last those that it sampled in
            the turn; shape (turns, columns), padded on the left.
        mask: 1 where `columns` are no padding; of the same shape.
        lengths: the number of tokens that it sampled in each turn; shape (turns,).
    """

    rows: torch.Tensor
    columns: torch.Tensor
    mask: torch.Tensor
    lengths: torch.Tensor


def turn_views(attention_mask: torch.Tensor, numbers: torch.Tensor, responses: int) -> Views:
    """A view for each turn, given the mask of prompts and completions, the completions'
    `advantages.turn_numbers`, and the number of the last responses that a turn sees.

    >>> mask, numbers = torch.ones(1, 7, dtype=torch.long), torch.tensor([[1, 0, 2, 0, 3]])
    >>> views = turn_views(mask, numbers, responses=1)
    >>> views.columns.tolist()  # turn 3 sees the second response, not the first
    [[0, 0, 0, 0, 1, 2], [0, 0, 1, 2, 3, 4], [0, 1, 2, 4, 5, 6]]
    """
    rows: list[int] = []
    columns: list[torch.Tensor] = []
    lengths: list[int] = []
    for row, (mask, turns) in enumerate(zip(attention_mask, numbers, strict=True)):
        prompt = len(mask) - len(turns)
        turn_of = pad(turns, (prompt, 0))
        latest = pad(turns.cummax(dim=0).values, (prompt, 0))  # the turn up to each token
        is_response = (turn_of == 0) & (latest > 0)
        turn_ids = turns.unique()
        for turn in turn_ids[turn_ids > 0].tolist():
            sampled = turn_of == turn
            forgotten = is_response & (latest < turn - responses)
            seen = mask.bool() & (latest < turn) & ~forgotten
            rows.append(row)
            columns.append((seen | sampled).nonzero()[:, 0])
            lengths.append(int(sampled.sum()))
        if not turn_ids.any():
            # A row without a turn has a view, too: every process must make the same passes
            rows.append(row)
            columns.append(mask.nonzero()[:, 0][: prompt + 1])
            lengths.append(1)
    no_padding = [torch.ones_like(places) for places in columns]
    mask = pad_sequence(no_padding, batch_first=True, padding_side="left")
    padded = pad_sequence(columns, batch_first=True, padding_side="left")
    return Views(
        rows=padded.new_tensor(rows),
        columns=padded,
        mask=mask.to(attention_mask),
        lengths=padded.new_tensor(lengths),
    )


def by_view(
    forward: Forward, views: Views, input_ids: torch.Tensor, width: int, **kwargs: Any
) -> tuple[Values, ...]:
    """What `forward` computes for the last `width` columns of a batch, with each turn read as it
    was sampled. Values are 0 for tokens that the policy did not sample.
    """
    longest = int(views.lengths.max())
    ids = input_ids[views.rows[:, None], views.columns]
    # A turn's own tokens are its view's last ones
    from_end = torch.arange(longest, 0, -1, device=ids.device)
    sampled = from_end <= views.lengths[:, None]
    results = forward(ids, views.mask, longest, sampled, **kwargs)
    # Where each sampled token stands in the batch
    first_column = input_ids.shape[1] - width
    columns = views.columns[:, -longest:] - first_column
    rows = views.rows[:, None].expand_as(columns)
    places = (rows[sampled], columns[sampled])

    def placed(values: Values) -> Values:
        """The values of turns in the places of their tokens in the batch."""
        if values is None or not values.dim():
            return values
        batch = values.new_zeros(len(input_ids), width)
        return batch.index_put(places, values[sampled])

    return tuple(map(placed, results))
