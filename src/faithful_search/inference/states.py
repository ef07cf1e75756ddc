"""What a causal LM remembers of rows of tokens, and reading on behind it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
from transformers.cache_utils import Cache, DynamicCache, DynamicLayer

from . import sharing

ROOM = 64
"""For how many tokens a batch makes room at a time."""

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
        self.mask = _mask([len(row.ids) for row in states], self.device)
        some = self.mask.shape[1] > 0
        self.layers = (
            list(_stacked(states)) if some else [RoomyLayer() for _ in DynamicCache(config=model.config).layers]
        )
        self.cache = Cache(layers=[*self.layers])

    def read(self, rows: Sequence[Row]) -> torch.Tensor:
        """Reads more of each row, at least a token, and gives the logits behind its last one."""
        width = max(map(len, rows))
        ids = torch.tensor([[0] * (width - len(row)) + list(row) for row in rows], device=self.device)
        new = _mask([len(row) for row in rows], self.device)
        places = self.mask.sum(-1, keepdim=True) + (new.cumsum(-1) - 1).clamp(min=0)
        self.mask = torch.cat([self.mask, new], dim=-1)
        return self.model(
            input_ids=ids,
            attention_mask=self.mask,
            position_ids=places,
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


def can_read_on(model: Any) -> bool:
    """Whether all that a model remembers of a row are the keys and values of its tokens: tried with one token."""
    own = getattr(model, "generation_config", None)
    if not sharing.remembers_all(model) or getattr(own, "cache_implementation", None) is not None:
        return False
    batch = Batch(model, [NOTHING])
    try:
        batch.read([[0]])
    except (TypeError, ValueError):  # its forward pass takes other arguments
        return False
    return all(layer.is_initialized and layer.get_seq_length() == 1 for layer in batch.layers)


def _stacked(states: Sequence[States]) -> Iterator[RoomyLayer]:
    width = max(len(row.ids) for row in states)
    some = next(row for row in states if row.layers)
    for layer in zip(*(row.layers or some.of(0).layers for row in states), strict=True):
        keys, values = (_padded([row[part] for row in layer], width) for part in (0, 1))
        yield RoomyLayer(keys, values, width)


def _padded(parts: Sequence[torch.Tensor], width: int) -> torch.Tensor:
    heads, _, size = parts[0].shape
    found = parts[0].new_zeros((len(parts), heads, width + ROOM, size))
    for row, part in zip(found, parts, strict=True):
        row[:, width - part.shape[1] : width] = part
    return found


def _with_room(part: Any, length: int) -> torch.Tensor:
    if part.shape[-2] >= length:
        return part
    room = part.new_empty((*part.shape[:-2], length + ROOM - part.shape[-2], part.shape[-1]))
    return torch.cat([part, room], dim=-2)


def _mask(lengths: Sequence[int], device: torch.device) -> torch.Tensor:
    width = max(lengths)
    rows = [[0] * (width - length) + [1] * length for length in lengths]
    return torch.tensor(rows, device=device, dtype=torch.long)
