"""Which rows go through a model together: with little padding, and with what they begin with alike read once."""

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

from ..errors import ConfigError

# tokens that a forward pass counts besides those in it: more passes must save more than that, and an accelerator is not
# kept busy by few tokens
CALLS, CALL = {"cpu": 64}, 4096
WORTH = 64  # tokens that a family of rows must save

Row = list[int]


def batches(lengths: Sequence[int], budget: int) -> Iterator[list[int]]:
    """Row numbers, longest rows first, such that rows x longest row of a batch is at most `budget` tokens.

    A row longer than the budget gets a batch of its own. The longest come first so that memory runs out at once or not
    at all.

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


def passes(lengths: Sequence[int], call: int) -> list[list[int]]:
    """Numbers of rows that go through the model together, longest first: with the least tokens, those of padding and
    `call` for each pass included."""
    order = sorted(range(len(lengths)), key=lambda row: -lengths[row])
    pieces = _pieces(len(order), lambda start, end: call + (end - start) * lengths[order[start]])
    return [order[start:end] for start, end in pieces]


@dataclass(frozen=True)
class Plan:
    """How `rows` are read: first the `heads` that they begin with, then each behind the head that `owners` numbers. An
    empty head is nothing. `call` is what a pass costs, in tokens."""

    rows: Sequence[Row]
    heads: Sequence[Row]
    owners: Sequence[int]
    call: int

    @cached_property
    def head_passes(self) -> list[list[int]]:
        own = [head for head, tokens in enumerate(self.heads) if tokens]
        return [
            [own[place] for place in group]
            for group in passes([len(self.heads[head]) for head in own], self.call)
        ]

    @cached_property
    def passes(self) -> list[list[int]]:
        """Numbers of the rows that are read together, none behind heads of different lengths: it would attend to
        padding."""
        found = []
        for group in [
            [head for head, tokens in enumerate(self.heads) if not tokens],
            *self.head_passes,
        ]:
            own = [row for row, owner in enumerate(self.owners) if owner in group]
            found += [
                [own[place] for place in part]
                for part in passes([self._own(row) for row in own], self.call)
            ]
        return found

    @property
    def cost(self) -> int:
        """Tokens, padding included, and what the passes cost; a pass's first row is its longest."""
        heads = sum(
            self.call + len(group) * len(self.heads[group[0]]) for group in self.head_passes
        )
        return heads + sum(self.call + len(group) * self._own(group[0]) for group in self.passes)

    def _own(self, row: int) -> int:
        return len(self.rows[row]) - len(self.heads[self.owners[row]])


def plan(rows: Sequence[Row], keep: int = 1, call: int = CALLS["cpu"], share: bool = True) -> Plan:
    """The heads with which all rows are computed with the least tokens, padding and `call` for each pass included.

    Either nothing is shared, or what all rows begin with, or what families of rows begin with (prompts about the same
    evidence) and apart from them what all rows do. At least the last `keep` tokens of each row are its own.

    >>> stem, evidence = [1] * 100, [2] * 900
    >>> found = plan([stem + evidence + [3], stem + evidence + [4], stem + [5] * 700])
    >>> [len(head) for head in found.heads], found.owners
    ([0, 1000], [1, 1, 0])
    """
    alone = Plan(rows, [[]], [0] * len(rows), call)
    if not share or len(rows) < 2:
        return alone
    order = sorted(range(len(rows)), key=rows.__getitem__)
    alike = [shared_length(rows[one], rows[two], keep) for one, two in pairwise(order)]
    stem = rows[order[0]][: min(alike)]
    heads, owners = [], [0] * len(rows)  # the first head is that of the rows without a family
    for number, family in enumerate(_families(order, alike), start=1):
        first, last = (
            rows[family[0]],
            rows[family[-1]],
        )  # of rows in order these two are the least alike
        heads.append(first[: shared_length(first, last, keep)])
        for row in family:
            owners[row] = number
    ways = ([stem], alone.owners), ([[], *heads], owners), ([stem, *heads], owners)
    # of equals the first: sharing nothing has the least to fail
    return min((alone, *(Plan(rows, *way, call) for way in ways)), key=lambda made: made.cost)


def shared_length(one: Row, two: Row, keep: int = 0) -> int:
    """How many tokens two rows begin with alike, so that each keeps at least `keep` of its own."""
    most = max(0, min(len(one), len(two)) - keep)
    if one[:most] == two[:most]:
        return most
    # comparing slices is much faster than comparing tokens in a loop
    return bisect_left(range(1, most), True, key=lambda length: one[:length] != two[:length])


def _families(order: list[int], alike: list[int]) -> list[list[int]]:
    """Neighbours that share more than all rows do: cut where sharing saves most tokens."""
    stem = min(alike)

    def cost(start: int, end: int) -> int:
        if end - start == 1:
            return 0
        return WORTH - (end - start - 1) * (min(alike[start : end - 1]) - stem)

    return [order[start:end] for start, end in _pieces(len(order), cost) if end - start > 1]


def _pieces(count: int, cost: Callable[[int, int], int]) -> list[tuple[int, int]]:
    """So many things cut into consecutive pieces that cost least together; `cost` is that of a piece."""
    best: list[tuple[int, int]] = [
        (0, 0)
    ]  # of the first things: what they cost, and where their last piece begins
    for end in range(1, count + 1):
        best.append(min((best[start][0] + cost(start, end), start) for start in range(end)))
    cuts = [count]
    while cuts[-1]:
        cuts.append(best[cuts[-1]][1])
    return list(pairwise(cuts[::-1]))
