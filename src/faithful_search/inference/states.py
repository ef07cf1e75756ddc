"""What a causal LM remembers of rows of tokens, and reading on behind it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
from transformers.cache_utils import Cache, DynamicCache, DynamicLayer

ROOM = 64  # tokens that a batch makes room for at a time
# types of models that tell how far tokens are apart by their places in the batch: padding between them counts
COUNT_PADDING = frozenset({"mpt", "gpt_neo"})

Row = list[int]


class States(NamedTuple):
    """What a model remembers of `ids`: the keys and the values of each layer, (heads, tokens, size of a head). No
    layers: nothing."""

    ids: Row
    layers: list[tuple[torch.Tensor, torch.Tensor]]

    def of(self, length: int) -> States:
        """Of the first `length` tokens; nothing is copied."""
        return States(self.ids[:length], [(keys[:, :length], values[:, :length]) for keys, values in self.layers])


NOTHING = States([], [])


class RoomyLayer(DynamicLayer):
    """Keys and values of a batch, the first `end` of them in use: with room behind, a step need not copy them all."""

    def __init__(self, keys: torch.Tensor | None = None, values: torch.Tensor | None = None, end: int = 0) -> None:
        super().__init__()
        self.end = end
        if keys is not None and values is not None:
            self.lazy_initialization(keys, values)
            self.keys, self.values = keys, values

    def update(self, key_states: Any, value_states: Any, *args: Any, **kwargs: Any) -> tuple[Any, Any]:
        """Takes what is new and gives all."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
            self.keys, self.values = key_states[:, :, :0], value_states[:, :, :0]
        start, self.end = self.end, self.end + key_states.shape[-2]
        self.keys, self.values = _with_room(self.keys, self.end), _with_room(self.values, self.end)
        self.keys[:, :, start : self.end] = key_states
        self.values[:, :, start : self.end] = value_states
        return self.keys[:, :, : self.end], self.values[:, :, : self.end]

    def get_seq_length(self) -> int:
        """How many tokens are in use, padding included."""
        return self.end

    def select(self, rows: torch.Tensor, start: int) -> None:
        """Only these rows, without their first `start` tokens."""
        own: tuple[Any, Any] = (self.keys, self.values)
        self.keys, self.values = (part[:, :, start:][rows] for part in own)
        self.end -= start


class Batch:
    """Rows that a model reads on together, each behind what it remembers of it.

    Padding stands at the left of what is remembered, and at the left of what is read behind it; positions do not count
    it.
    """

    def __init__(self, model: Any, states: Sequence[States]) -> None:
        self.model, self.device = model, next(model.parameters()).device
        lengths = [len(row.ids) for row in states]
        _, self.mask = padded([row.ids for row in states], 0, self.device)
        if max(lengths):
            some = next(row for row in states if row.layers)
            own = [row.layers or some.of(0).layers for row in states]
            self.layers = []
            width = max(lengths)
            for layer in zip(*own, strict=True):
                stacked = []
                for parts in zip(*layer, strict=True):  # the rows' keys, then their values
                    heads, _, size = parts[0].shape
                    # zeros: what is there in the padding has weight 0, which would not hide a NaN
                    both = parts[0].new_zeros((len(parts), heads, width + ROOM, size))
                    for row, part in zip(both, parts, strict=True):
                        row[:, width - part.shape[1] : width] = part
                    stacked.append(both)
                self.layers.append(RoomyLayer(stacked[0], stacked[1], width))
        else:
            self.layers = [RoomyLayer() for _ in DynamicCache(config=model.config).layers]
        self.cache = Cache(layers=[*self.layers])

    def read(self, rows: Sequence[Row]) -> torch.Tensor:
        """Reads more of each row, at least a token, and gives the logits behind its last one."""
        ids, new = padded(rows, 0, self.device)
        positions = self.mask.sum(-1, keepdim=True) + places(new)
        self.mask = torch.cat([self.mask, new], dim=-1)
        return self.model(
            input_ids=ids,
            attention_mask=self.mask,
            position_ids=positions,
            past_key_values=self.cache,
            logits_to_keep=1,
            use_cache=True,
        ).logits[:, -1]

    def states(self, row: int, ids: Row) -> States:
        """What the model remembers of a row by now, which is `ids`; in memory of its own."""
        own = self.mask[row].nonzero()[:, 0]
        return States(ids, [(keys[row][:, own], values[row][:, own]) for keys, values in self._parts()])

    def select(self, rows: Sequence[int]) -> None:
        """Only these rows from now on."""
        own = torch.tensor(rows, device=self.device)
        start = int(self.mask[own].any(0).nonzero()[0])  # a longer row, now gone, may have been all that was there
        self.mask = self.mask[own, start:]
        for layer in self.layers:
            layer.select(own, start)

    @property
    def token_size(self) -> int:
        """Bytes that the model remembers of one token."""
        return sum(part[0, :, 0].nbytes for layer in self._parts() for part in layer)

    def _parts(self) -> Iterator[tuple[Any, Any]]:
        return ((layer.keys, layer.values) for layer in self.layers)


class HeldLayer(DynamicLayer):
    """Keys and values of heads in one layer; every row is given those of its head before its own, which are not kept.
    That takes no more memory than one layer needs at a time."""

    def __init__(self, layer: Any, owners: torch.Tensor) -> None:
        super().__init__()
        self.lazy_initialization(layer.keys, layer.values)
        self.keys, self.values, self._owners = layer.keys, layer.values, owners

    def update(self, key_states: Any, value_states: Any, *args: Any, **kwargs: Any) -> tuple[Any, Any]:
        """The heads' and the rows' own."""
        heads: tuple[Any, Any] = (self.keys, self.values)
        keys, values = (part[self._owners] for part in heads)
        return torch.cat([keys, key_states], dim=-2), torch.cat([values, value_states], dim=-2)


def held(cache: Any, owners: torch.Tensor) -> Cache:
    """What a model remembers of heads, for one pass over rows behind them; it is not changed."""
    return Cache(layers=[HeldLayer(layer, owners) for layer in cache.layers])


def can_hold(cache: Any) -> bool:
    """Whether what a model remembers of heads can be shared by the rows behind them."""
    layers: Any = getattr(cache, "layers", None)
    return bool(layers) and all(type(layer) is DynamicLayer and layer.is_initialized for layer in layers)


def can_share(model: Any) -> bool:
    """Whether rows can be read behind heads: the model remembers all its tokens, and does not mind the padding that
    stands between the head and a row that is shorter than others."""
    return remembers_all(model) and getattr(model.config, "model_type", None) not in COUNT_PADDING


def can_read_on(model: Any) -> bool:
    """Whether all that a model remembers of a row are the keys and values of its tokens: tried with one token."""
    own = getattr(model, "generation_config", None)
    if not remembers_all(model) or getattr(own, "cache_implementation", None) is not None:
        return False
    batch = Batch(model, [NOTHING])
    try:
        batch.read([[0]])
    except (TypeError, ValueError):  # its forward pass takes other arguments
        return False
    return all(layer.is_initialized and layer.get_seq_length() == 1 for layer in batch.layers)


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


def padded(rows: Sequence[Row], pad: int, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows padded at their left, and a mask that tells them from the padding."""
    width = max(map(len, rows))
    ids = torch.tensor([[pad] * (width - len(row)) + list(row) for row in rows], device=device, dtype=torch.long)
    mask = torch.tensor([[0] * (width - len(row)) + [1] * len(row) for row in rows], device=device, dtype=torch.long)
    return ids, mask


def places(mask: torch.Tensor) -> torch.Tensor:
    """The position of each token in its row, padding not counted."""
    return (mask.cumsum(-1) - 1).clamp(min=0)


def _with_room(part: Any, length: int) -> torch.Tensor:
    if part.shape[-2] >= length:
        return part
    # empty: what is behind the tokens in use is never read
    room = part.new_empty((*part.shape[:-2], length + ROOM - part.shape[-2], part.shape[-1]))
    return torch.cat([part, room], dim=-2)
