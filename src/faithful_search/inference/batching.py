"""Batching by length, and sharing of common prefixes."""

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

from ..errors import ConfigError

CALLS = {"cpu": 64}
CALL = 4096
"""What a forward pass costs besides its own tokens, in tokens: by device, and on any other. Further
passes must save more than that. On an accelerator a pass of few tokens takes no less time.
"""
WORTH = 64  # tokens that a family of rows must save

Row = list[int]


def batches(lengths: Sequence[int], budget: int) -> Iterator[list[int]]:
    """Batches of row numbers, longest rows first, each of at most `budget` tokens with its padding.

    A row longer than the budget gets a batch of its own. The longest come first so that memory runs
    out at once or not at all.

    >>> list(batches([3, 10, 4, 9], budget=20))
    [[1, 3], [2, 0]]
    """
    if budget < 1:
        raise ConfigError(f"a batch must hold at least 1 token, got {budget}")
    batch: list[int] = []
    for row in _longest_first(lengths):
        if batch and (len(batch) + 1) * max(1, lengths[batch[0]]) > budget:
            yield batch
            batch = []
        batch.append(row)
    if batch:
        yield batch


def passes(lengths: Sequence[int], call: int) -> list[list[int]]:
    """Groups of row numbers that go through the model together, longest rows first, at the least
    cost: that of tokens, of padding, and `call` for each pass.
    """
    order = _longest_first(lengths)

    def cost(start: int, end: int) -> int:
        longest = lengths[order[start]]  # the others are padded to it
        return call + (end - start) * longest

    return [order[start:end] for start, end in _pieces(len(order), cost)]


def _longest_first(lengths: Sequence[int]) -> list[int]:
    return sorted(range(len(lengths)), key=lambda row: -lengths[row])


@dataclass(frozen=True)
class PassPlan:
    """How rows are read: first their common beginnings, then each row after its own.

    Attributes:
        heads: the common beginnings; an empty one stands for rows that share nothing.
        owners: for each row the number of its head.
        call: what a pass costs, in tokens.
    """

    rows: Sequence[Row]
    heads: Sequence[Row]
    owners: Sequence[int]
    call: int

    @cached_property
    def head_passes(self) -> list[list[int]]:
        """Numbers of the heads that are read together."""
        numbers = [head for head, tokens in enumerate(self.heads) if tokens]
        return self._passes(numbers, [len(self.heads[head]) for head in numbers])

    @cached_property
    def passes(self) -> list[list[int]]:
        """Numbers of the rows that are read together.

        Their heads have one length: a row would attend to padding otherwise.
        """
        row_passes: list[list[int]] = []
        empty = [head for head, tokens in enumerate(self.heads) if not tokens]
        for heads in (empty, *self.head_passes):
            rows = [row for row, owner in enumerate(self.owners) if owner in heads]
            row_passes += self._passes(rows, [self._rest(row) for row in rows])
        return row_passes

    def _passes(self, numbers: Sequence[int], lengths: Sequence[int]) -> list[list[int]]:
        """The numbers of things of these lengths, in the groups that are read together."""
        groups = []
        for places in passes(lengths, self.call):
            groups.append([numbers[place] for place in places])
        return groups

    @property
    def cost(self) -> int:
        """Tokens, padding included, and what the passes cost; a pass's first row is its longest."""
        total = self.call * (len(self.head_passes) + len(self.passes))
        for group in self.head_passes:
            total += len(group) * len(self.heads[group[0]])
        for group in self.passes:
            total += len(group) * self._rest(group[0])
        return total

    def _rest(self, row: int) -> int:
        """How many tokens of a row are read after its head."""
        return len(self.rows[row]) - len(self.heads[self.owners[row]])


def plan(
    rows: Sequence[Row], keep: int = 1, call: int = CALLS["cpu"], share: bool = True
) -> PassPlan:
    """The plan that reads all rows at the least cost: that of tokens, of padding, and `call` for
    each pass.

    Rows share nothing, or the beginning of all rows, or the beginnings of families of rows (prompts
    about the same evidence), with the beginning of all for the others. At least the last `keep`
    tokens of each row are not shared.

    >>> stem, evidence = [1] * 100, [2] * 900
    >>> shared = plan([stem + evidence + [3], stem + evidence + [4], stem + [5] * 700])
    >>> [len(head) for head in shared.heads], shared.owners
    ([0, 1000], [1, 1, 0])
    """
    alone = PassPlan(rows, [[]], [0] * len(rows), call)
    if not share or len(rows) < 2:
        return alone
    # In this order, rows that begin alike are neighbours.
    order = sorted(range(len(rows)), key=rows.__getitem__)
    shared = [shared_length(rows[row], rows[following], keep) for row, following in pairwise(order)]
    stem = rows[order[0]][: min(shared)]
    heads: list[Row] = []
    owners = [0] * len(rows)  # the first head is that of the rows without a family
    for number, family in enumerate(_families(order, shared), start=1):
        # Of rows in order, the first and the last share least.
        first = rows[family[0]]
        last = rows[family[-1]]
        heads.append(first[: shared_length(first, last, keep)])
        for row in family:
            owners[row] = number
    plans = [
        alone,
        PassPlan(rows, [stem], alone.owners, call),
        PassPlan(rows, [[], *heads], owners, call),
        PassPlan(rows, [stem, *heads], owners, call),
    ]
    # Of plans that cost the same the first: where nothing is shared, least can go wrong.
    return min(plans, key=lambda plan: plan.cost)


def shared_length(first: Row, second: Row, keep: int = 0) -> int:
    """How many first tokens two rows share, the last `keep` of each not counted."""
    most = max(0, min(len(first), len(second)) - keep)
    if first[:most] == second[:most]:
        return most

    # Comparing slices is much faster than comparing tokens in a loop.
    def differ(length: int) -> bool:
        return first[:length] != second[:length]

    # The place of the least length, counted from 1, in which they differ
    return bisect_left(range(1, most), True, key=differ)


def _families(order: list[int], shared: list[int]) -> list[list[int]]:
    """Groups of neighbours that share more than all rows do, cut so that sharing saves most tokens.

    `shared` is how many first tokens each row in order shares with the next.
    """
    stem = min(shared)

    def cost(start: int, end: int) -> int:
        further_rows = end - start - 1
        if not further_rows:
            return 0
        beyond_stem = min(shared[start : end - 1]) - stem
        return WORTH - further_rows * beyond_stem

    return [order[start:end] for start, end in _pieces(len(order), cost) if end - start > 1]


def _pieces(count: int, cost: Callable[[int, int], int]) -> list[tuple[int, int]]:
    """Cut `count` things into consecutive pieces (start, end) that cost least together.

    `cost(start, end)` is what the piece of these things costs.
    """
    # Of the first 0, 1, … things: the least cost, and where their last piece begins.
    least_costs = [0]
    last_starts = [0]
    for end in range(1, count + 1):
        costs = [least_costs[start] + cost(start, end) for start in range(end)]
        least = min(costs)
        least_costs.append(least)
        last_starts.append(costs.index(least))
    pieces: list[tuple[int, int]] = []
    end = count
    while end:
        pieces.append((last_starts[end], end))
        end = last_starts[end]
    return pieces[::-1]
