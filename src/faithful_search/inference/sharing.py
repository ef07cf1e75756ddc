"""Prompts that begin alike: what they share is computed once, and each row's own tokens are read behind it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from transformers.cache_utils import Cache, DynamicCache, DynamicLayer

CALLS = {"cpu": 64}
CALL = 4096
"""Tokens that a forward pass counts besides those in it, by the device's type: more passes must save more than that. An
accelerator is not kept busy by few tokens."""
WORTH, LONGEST_RUN = 64, 256
"""Tokens that a run of rows must save by what it shares, and how many rows are looked back on for it."""
COUNT_PADDING = frozenset({"mpt", "gpt_neo"})
"""Types of models that tell how far tokens are apart by their places in the batch: padding between them counts."""

Row = list[int]


class Part(NamedTuple):
    """Rows that are computed together, and before them the `heads` they begin with; no heads: nothing is shared.

    `rows` are numbers of rows, `owners` the place of each one's head.
    """

    rows: list[int]
    heads: list[Row]
    owners: list[int]


def schedule(rows: Sequence[Row], keep: int, call: int, size: int, share: bool) -> list[Part]:
    """The parts of all rows: a plan for each batch of at most `size` rows, or the batch as it is, without sharing."""
    found: list[Part] = []
    for batch in batches(rows, size, keep):
        own = [rows[row] for row in batch]
        parts = plan(own, keep, call) if share else [Part(list(range(len(own))), [], [])]
        found += [part._replace(rows=[batch[row] for row in part.rows]) for part in parts]
    return found


def batches(rows: Sequence[Row], size: int, keep: int = 1) -> list[list[int]]:
    """Numbers of rows, at most `size` a batch: what begins alike stays together, and is else ordered by length.

    Example:
        >>> evidence = [2] * 900
        >>> batches([evidence + [3], [1, 1], evidence + [4] * 80, [1, 2, 3]], size=2)
        [[1, 3], [0, 2]]
    """
    if not rows:
        return []
    families = [run for run, _ in _runs(rows, *_ordered(rows, keep))]
    runs = sorted(families, key=lambda run: max(len(rows[row]) for row in run))
    found: list[list[int]] = [[]]
    for piece in (run[start : start + size] for run in runs for start in range(0, len(run), size)):
        if len(found[-1]) + len(piece) > size:
            found.append([])
        found[-1] += piece
    return found


def forwards(rows: Sequence[Row], part: Part, call: int) -> int:
    """How many forward passes a part takes."""
    return bool(part.heads) + len(passes(own_lengths(rows, part), call))


def own_lengths(rows: Sequence[Row], part: Part) -> list[int]:
    """How many tokens of each of a part's rows stand behind its head."""
    heads = [len(part.heads[owner]) for owner in part.owners] or [0] * len(part.rows)
    return [len(rows[row]) - head for row, head in zip(part.rows, heads, strict=True)]


def cost_of_call(device: torch.device) -> int:
    """How many tokens a forward pass costs there besides those in it."""
    return CALLS.get(device.type, CALL)


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
    plain = [Part(everything, [], [])]
    if len(rows) < 2:
        return plain
    order, alike = _ordered(rows, keep)
    runs = list(_runs(rows, order, alike))
    plans = [plain, [_headed(rows, everything, min(alike))], _by_family(rows, runs, keep, call)]
    return min(plans, key=lambda parts: sum(_cost(rows, part, call) for part in parts))


def passes(lengths: Sequence[int], call: int) -> list[list[int]]:
    """Numbers of rows that go through the model together, longest first: with the least tokens, padding and `call` for
    each pass included.

    Example:
        >>> passes([90, 500, 100, 480], call=64)
        [[1, 3], [2, 0]]
    """
    order = sorted(range(len(lengths)), key=lambda row: -lengths[row])
    best: list[tuple[int, int]] = [(0, 0)]  # of the longest rows: what they cost, and where the last pass begins
    for end in range(1, len(order) + 1):
        best.append(min((best[start][0] + call + (end - start) * lengths[order[start]], start) for start in range(end)))
    return [order[start:end] for start, end in pairwise(_traced(best))]


class HeldLayer(DynamicLayer):
    """Keys and values of the heads in one layer; every row is given those of its head before its own, which are not
    kept. That takes no more memory than one layer needs at a time."""

    def __init__(self, layer: Any, owners: torch.Tensor) -> None:
        super().__init__()
        self.lazy_initialization(layer.keys, layer.values)
        self.keys, self.values, self._owners = layer.keys, layer.values, owners

    def update(self, key_states: Any, value_states: Any, *args: Any, **kwargs: Any) -> tuple[Any, Any]:
        """The heads' and the rows' own."""
        heads: tuple[Any, Any] = (self.keys, self.values)
        keys, values = (part[self._owners] for part in heads)
        return torch.cat([keys, key_states], dim=-2), torch.cat([values, value_states], dim=-2)


def can_hold(cache: Any) -> bool:
    """Whether what a model remembers of heads can be shared by the rows behind them."""
    layers: Any = getattr(cache, "layers", None)
    return bool(layers) and all(type(layer) is DynamicLayer and layer.is_initialized for layer in layers)


def held(cache: Any, owners: torch.Tensor) -> Cache:
    """What a model remembers of the heads, for one pass over rows behind them; it is not changed."""
    return Cache(layers=[HeldLayer(layer, owners) for layer in cache.layers])


def can_share(model: Any) -> bool:
    """Whether rows can be read behind heads: the model remembers all its tokens, and does not mind the padding that
    stands between the head and a row that is shorter than others."""
    return remembers_all(model) and getattr(model.config, "model_type", None) not in COUNT_PADDING


def remembers_all(model: Any) -> bool:
    """Whether the model remembers all its tokens, by keys and values: none slide out of a window, nothing is summed up,
    and no adapter puts remembered tokens of its own before them."""
    adapters = getattr(model, "peft_config", None) or {}
    if any(getattr(adapter, "is_prompt_learning", False) for adapter in adapters.values()):
        return False
    try:
        layers = DynamicCache(config=model.config).layers
    except (AttributeError, KeyError, TypeError, ValueError):
        return False
    return all(type(layer) is DynamicLayer for layer in layers)


def _by_family(rows: Sequence[Row], runs: Sequence[tuple[list[int], int]], keep: int, call: int) -> list[Part]:
    families = [(run, shared) for run, shared in runs if len(run) > 1]
    members = [row for run, _ in families for row in run]
    heads = [rows[run[0]][:shared] for run, shared in families]
    owners = [place for place, (run, _) in enumerate(families) for _ in run]
    others = [row for run, _ in runs if len(run) == 1 for row in run]
    parts = _by_length(rows, Part(members, heads, owners), call) if families else []
    if not others:
        return parts
    shared = min(
        (shared_length(rows[one], rows[two], keep) for one, two in pairwise(sorted(others, key=rows.__getitem__))),
        default=0,
    )
    candidates = (Part(others, [], []), _headed(rows, others, shared))
    return [*parts, min(candidates, key=lambda part: _cost(rows, part, call))]


def _by_length(rows: Sequence[Row], part: Part, call: int) -> list[Part]:
    """The part; or, where that costs less, one for each length of its heads: read together they would be padded, and
    every row would attend to the padding."""
    apart = []
    for group in passes(list(map(len, part.heads)), call):
        place = {head: number for number, head in enumerate(group)}
        own = [(row, place[head]) for row, head in zip(part.rows, part.owners, strict=True) if head in place]
        apart.append(Part([row for row, _ in own], [part.heads[head] for head in group], [head for _, head in own]))
    return min([part], apart, key=lambda parts: sum(_cost(rows, one, call) for one in parts))


def _headed(rows: Sequence[Row], members: list[int], shared: int) -> Part:
    if not shared:
        return Part(members, [], [])
    return Part(members, [rows[members[0]][:shared]], [0] * len(members))


def _ordered(rows: Sequence[Row], keep: int) -> tuple[list[int], list[int]]:
    """Numbers of rows such that those that begin alike are neighbours, and how much each shares with the next."""
    order = sorted(range(len(rows)), key=rows.__getitem__)
    return order, [shared_length(rows[one], rows[two], keep) for one, two in pairwise(order)]


def _runs(rows: Sequence[Row], order: list[int], alike: list[int]) -> Iterator[tuple[list[int], int]]:
    """Neighbours that share more than all do, and how much each run shares: cut where sharing saves most tokens."""
    for start, end in pairwise(_cuts(alike)):
        yield order[start:end], min(alike[start : end - 1], default=len(rows[order[start]]))


def _cuts(alike: list[int]) -> list[int]:
    """Where runs of rows begin and end, given how much each row shares with the next."""
    stem = min(alike, default=0)
    best: list[tuple[int, int]] = [(0, 0)]  # of the first rows: the most tokens saved, and where the last run begins
    for end in range(1, len(alike) + 2):
        best.append(max(_last_runs(best, alike, stem, end)))
    return _traced(best)


def _last_runs(best: list[tuple[int, int]], alike: list[int], stem: int, end: int) -> Iterator[tuple[int, int]]:
    """The runs that the first `end` rows may end with: tokens saved with each, and where it begins."""
    yield best[end - 1][0], end - 1
    common = max(alike, default=0)
    for start in range(end - 2, max(-1, end - 1 - LONGEST_RUN), -1):
        common = min(common, alike[start])
        if common <= stem:
            break
        yield best[start][0] + (end - start - 1) * (common - stem) - WORTH, start


def _traced(best: list[tuple[int, int]]) -> list[int]:
    """Where the pieces of the whole begin and end, given where the last piece of each beginning does."""
    cuts = [len(best) - 1]
    while cuts[-1]:
        cuts.append(best[cuts[-1]][1])
    return cuts[::-1]


def shared_length(one: Row, two: Row, keep: int = 0) -> int:
    """How many tokens two rows begin with alike, so that each has at least `keep` of its own."""
    most = max(0, min(len(one), len(two)) - keep)
    if one[:most] == two[:most]:
        return most
    low, high = 0, most
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if one[:middle] == two[:middle] else (low, middle)
    return low


def _cost(rows: Sequence[Row], part: Part, call: int) -> int:
    """Tokens, padding included, and `call` for each pass."""
    own = own_lengths(rows, part)
    shared = call + len(part.heads) * max(map(len, part.heads)) if part.heads else 0
    return shared + sum(call + len(group) * own[group[0]] for group in passes(own, call))
