"""Rows of similar length share a batch, so that little of it is padding."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ..errors import ConfigError


def batches(lengths: Sequence[int], budget: int) -> Iterator[list[int]]:
    """Row numbers, longest rows first, such that rows x longest row of a batch is at most `budget` tokens.

    A row longer than the budget gets a batch of its own. The longest come first so that memory runs out at once or not
    at all.

    Raises:
        ConfigError: for a budget below 1.

    Example:
        >>> list(batches([3, 10, 4, 9], budget=20))
        [[1, 3], [2, 0]]
    """
    if budget < 1:
        raise ConfigError(f"a batch must hold at least 1 token, got {budget}")
    batch: list[int] = []
    for row in sorted(range(len(lengths)), key=lambda row: -lengths[row]):
        if batch and (len(batch) + 1) * max(1, lengths[batch[0]]) > budget:
            yield batch
            batch = []
        batch.append(row)
    if batch:
        yield batch
