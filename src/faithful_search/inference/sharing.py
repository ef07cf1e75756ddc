"""Prompts that begin alike: which are computed together, so that what they share is read once.

Reading behind what is shared is the business of `states.held`.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

# tokens that a forward pass counts besides those in it: more passes must save more than that, and an accelerator is not
# kept busy by few tokens
CALLS, CALL = {"cpu": 64}, 4096
WORTH, LONGEST_RUN = 64, 256  # tokens that a run of rows must save, and how many rows are looked back on for it

Row = list[int]


class Part(NamedTuple):
    """Rows that are computed together, and before them the `heads` they begin with; no heads: nothing is shared.

    `rows` are numbers of rows, `owners` the place of each one's head.
    """

    rows: list[int]
    heads: list[Row]
    owners: list[int]

    def own_lengths(self, rows: Sequence[Row]) -> list[int]:
        """How many tokens of each of its rows stand behind its head."""
        heads = [len(self.heads[owner]) for owner in self.owners] or [0] * len(self.rows)
        return [len(rows[row]) - head for row, head in zip(self.rows, heads, strict=True)]

    def cost(self, rows: Sequence[Row], call: int) -> int:
        """Tokens, padding included, and `call` for each pass."""
        own = self.own_lengths(rows)
        shared = call + len(self.heads) * max(map(len, self.heads)) if self.heads else 0
        return shared + sum(call + len(group) * own[group[0]] for group in passes(own, call))


def schedule(rows: Sequence[Row], keep: int, call: int, size: int, share: bool) -> list[Part]:
    """The parts of all rows: a plan for each batch of at most `size` rows, or the batch as it is, without sharing."""
    found: list[Part] = []
    for batch in batches(rows, size, keep):
        own = [rows[row] for row in batch]
        parts = plan(own, keep, call) if share else [Part(list(range(len(own))), [], [])]
        found += [part._replace(rows=[batch[row] for row in part.rows]) for part in parts]
    return found


def batches(rows: Sequence[Row], size: int, keep: int = 1) -> list[list[int]]:
    """Numbers of rows, at most `size` a batch: rows that begin alike stay together, the rest is ordered by length."""
    found: list[list[int]] = []
    runs = _runs(rows, *_ordered(rows, range(len(rows)), keep))
    for run, _ in sorted(runs, key=lambda run: max(len(rows[row]) for row in run[0])):
        for start in range(0, len(run), size):
            piece = run[start : start + size]
            if not found or len(found[-1]) + len(piece) > size:
                found.append([])
            found[-1] += piece
    return found


def cost_of_call(device_type: str) -> int:
    """How many tokens a forward pass costs on such a device besides those in it."""
    return CALLS.get(device_type, CALL)


def plan(rows: Sequence[Row], keep: int = 1, call: int = CALLS["cpu"]) -> list[Part]:
    """The parts in which all rows are computed with the least tokens, padding and `call` for each pass included.

    Either nothing is shared, or what all rows begin with, or what families of rows begin with (prompts about the same
    evidence) and apart from them what all the others do. At least the last `keep` tokens of each row are its own.

    Example:
        >>> stem, evidence = [1] * 100, [2] * 900
        >>> found = plan([stem + evidence + [3], stem + evidence + [4], stem + [5] * 700])
        >>> [(part.rows, [len(head) for head in part.heads]) for part in found]
        [([0, 1], [1000]), ([2], [])]
    """
    everything = list(range(len(rows)))
    plans = [[Part(everything, [], [])]]  # the first of equals is taken: sharing nothing has the least to go wrong
    if len(rows) > 1:
        order, alike = _ordered(rows, everything, keep)
        plans.append([_headed(rows, everything, min(alike))])
        plans.append(_by_family(rows, _runs(rows, order, alike), keep, call))
    return min(plans, key=lambda parts: sum(part.cost(rows, call) for part in parts))


def passes(lengths: Sequence[int], call: int) -> list[list[int]]:
    """Numbers of rows that go through the model together, longest first: with the least tokens, padding and `call` for
    each pass included.
    """
    order = sorted(range(len(lengths)), key=lambda row: -lengths[row])
    best: list[tuple[int, int]] = [(0, 0)]  # of the longest rows: what they cost, and where the last pass begins
    for end in range(1, len(order) + 1):
        best.append(min((best[start][0] + call + (end - start) * lengths[order[start]], start) for start in range(end)))
    return [order[start:end] for start, end in pairwise(_traced(best))]


def shared_length(one: Row, two: Row, keep: int = 0) -> int:
    """How many tokens two rows begin with alike, so that each has at least `keep` of its own."""
    most = max(0, min(len(one), len(two)) - keep)
    if one[:most] == two[:most]:
        return most
    # comparing slices is much faster than comparing tokens in a loop
    return bisect_left(range(1, most), True, key=lambda length: one[:length] != two[:length])


def _headed(rows: Sequence[Row], members: list[int], shared: int) -> Part:
    """These rows behind the tokens that all of them begin with."""
    return Part(members, [rows[members[0]][:shared]], [0] * len(members)) if shared else Part(members, [], [])


def _by_family(rows: Sequence[Row], runs: list[tuple[list[int], int]], keep: int, call: int) -> list[Part]:
    families = [(run, shared) for run, shared in runs if len(run) > 1]
    others = [run[0] for run, _ in runs if len(run) == 1]
    parts = []
    if families:
        heads = [rows[run[0]][:shared] for run, shared in families]
        owners = [place for place, (run, _) in enumerate(families) for _ in run]
        whole = Part([row for run, _ in families for row in run], heads, owners)
        # or a part for each length of the heads, where that costs less: read together they would be padded, and every
        # row would attend to the padding
        apart = []
        for group in passes(list(map(len, heads)), call):
            place = {head: number for number, head in enumerate(group)}
            own = [(row, place[head]) for row, head in zip(whole.rows, owners, strict=True) if head in place]
            apart.append(Part([row for row, _ in own], [heads[head] for head in group], [head for _, head in own]))
        parts = min([whole], apart, key=lambda parts: sum(one.cost(rows, call) for one in parts))
    if others:
        shared = min(_ordered(rows, others, keep)[1], default=0)
        candidates = (Part(others, [], []), _headed(rows, others, shared))
        parts.append(min(candidates, key=lambda part: part.cost(rows, call)))
    return parts


def _ordered(rows: Sequence[Row], members: Sequence[int], keep: int) -> tuple[list[int], list[int]]:
    """Numbers of rows such that those that begin alike are neighbours, and how much each shares with the next."""
    order = sorted(members, key=rows.__getitem__)
    return order, [shared_length(rows[one], rows[two], keep) for one, two in pairwise(order)]


def _runs(rows: Sequence[Row], order: list[int], alike: list[int]) -> list[tuple[list[int], int]]:
    """Neighbours that share more than all do, and how much each run shares: cut where sharing saves most tokens."""
    stem = min(alike, default=0)
    best: list[tuple[int, int]] = [(0, 0)]  # of the first rows: the most tokens saved, and where the last run begins
    for end in range(1, len(order) + 1):
        ways = [(best[end - 1][0], end - 1)]
        common = max(alike, default=0)
        for start in range(end - 2, max(-1, end - 1 - LONGEST_RUN), -1):
            common = min(common, alike[start])
            if common <= stem:
                break
            ways.append((best[start][0] + (end - start - 1) * (common - stem) - WORTH, start))
        best.append(max(ways))
    return [
        (order[start:end], min(alike[start : end - 1], default=len(rows[order[start]])))
        for start, end in pairwise(_traced(best))
    ]


def _traced(best: list[tuple[int, int]]) -> list[int]:
    """Where the pieces of the whole begin and end, given where the last piece of each beginning does."""
    cuts = [len(best) - 1]
    while cuts[-1]:
        cuts.append(best[cuts[-1]][1])
    return cuts[::-1]
