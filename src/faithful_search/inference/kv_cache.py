"""What a causal LM remembers of rows of tokens, reading on behind it, and keeping it from call to call."""

from bisect import bisect
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from transformers.cache_utils import Cache, DynamicCache, DynamicLayer

from .batching import Row, passes, plan, shared_length

ROOM = 64  # tokens that a batch makes room for at a time

MakeCache = Callable[[Any], Cache]  # an empty cache for a model


class States(NamedTuple):
    """What a model remembers of `ids`: keys and values of each layer, (heads, tokens, size of a head)."""

    ids: Row
    layers: list[tuple[torch.Tensor, torch.Tensor]]

    def of(self, length: int) -> "States":
        return States(
            self.ids[:length],
            [(keys[:, :length], values[:, :length]) for keys, values in self.layers],
        )


NOTHING = States([], [])


class RoomyLayer(DynamicLayer):
    """Keys and values of a batch, the first `end` of them in use: with room behind, a step need not copy them all. What
    is remembered of the rows is put together when the layer is reached; with `once` nothing of it is kept, so that a
    pass takes no more memory than one layer needs."""

    def __init__(self, once: bool = False) -> None:
        super().__init__()
        self.once, self.end = once, 0
        self.rows: Sequence[tuple[torch.Tensor, torch.Tensor]] = ()

    def update(
        self, key_states: Any, value_states: Any, *args: Any, **kwargs: Any
    ) -> tuple[Any, Any]:
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
            self.keys, self.values = key_states[:, :, :0], value_states[:, :, :0]
        start, self.end = self.end, self.end + key_states.shape[-2]
        if self.rows:
            both = zip(*self.rows, strict=True)  # the rows' keys, then their values
            self.keys, self.values = (_stacked(parts, start, self.end + ROOM) for parts in both)
            self.rows = ()
        self.keys, self.values = _with_room(self.keys, self.end), _with_room(self.values, self.end)
        self.keys[:, :, start : self.end] = key_states
        self.values[:, :, start : self.end] = value_states
        found = self.keys[:, :, : self.end], self.values[:, :, : self.end]
        if self.once:
            self.keys, self.values = key_states[:, :, :0], value_states[:, :, :0]
        return found

    def get_seq_length(self) -> int:
        return self.end

    def select(self, rows: torch.Tensor, start: int) -> None:
        own: tuple[Any, Any] = (self.keys, self.values)
        self.keys, self.values = (part[:, :, start:][rows] for part in own)
        self.end -= start


def _stacked(parts: Sequence[torch.Tensor], width: int, room: int) -> torch.Tensor:
    heads, _, size = parts[0].shape
    # zeros: what is there in the padding has weight 0, which would not hide a NaN
    both = parts[0].new_zeros((len(parts), heads, room, size))
    for row, part in zip(both, parts, strict=True):
        row[:, width - part.shape[1] : width] = part
    return both


def _with_room(part: Any, length: int) -> torch.Tensor:
    if part.shape[-2] >= length:
        return part
    # empty: what is behind the tokens in use is never read
    room = part.new_empty((*part.shape[:-2], length + ROOM - part.shape[-2], part.shape[-1]))
    return torch.cat([part, room], dim=-2)


def by_row(model: Any, once: bool = False) -> Cache:
    """A cache whose rows can be taken out and put together anew; `ValueError` where the model remembers more than keys
    and values, or forgets them behind a window."""
    layers = DynamicCache(config=model.config).layers
    if not all(type(layer) is DynamicLayer for layer in layers):
        raise ValueError("not keys and values alone")
    return Cache(layers=[RoomyLayer(once) for _ in layers])


def reads_on(model: Any) -> MakeCache | None:
    """The cache with which a model reads on behind what it has read, tried with one token; `None`: it is shown
    everything again at each step."""
    adapters = getattr(model, "peft_config", None) or {}
    if any(getattr(adapter, "is_prompt_learning", False) for adapter in adapters.values()):
        return None  # it puts remembered tokens of its own before those of the rows
    # Transformers' own cache keeps the rows together
    for make in (by_row, lambda model: DynamicCache(config=model.config)):
        try:
            layers = Batch(model, make, [[0]]).cache.layers
        except (
            AttributeError,
            KeyError,
            TypeError,
            ValueError,
        ):  # it takes other arguments, or none of this cache
            continue
        if all(layer.is_initialized for layer in layers):
            return make
    return None


class Batch:
    """Rows that a model reads on together, each behind what it remembers of its beginning. Padding stands at the left;
    positions do not count it. `logits` are those behind the last `keep` tokens of each row."""

    def __init__(
        self,
        model: Any,
        make: MakeCache | None,
        rows: Sequence[Row],
        states: Sequence[States] | None = None,
        keep: int = 1,
    ) -> None:
        states = states or [NOTHING] * len(rows)
        self.model, self.device = model, next(model.parameters()).device
        self.cache: Any = make(model) if make else None
        # Where less is new of a row than of others, a bit more of it is read again: so there is no padding within a
        # row, which not every model could do with.
        width = max(len(row) - len(own.ids) for row, own in zip(rows, states, strict=True))
        known = [own.of(max(0, len(row) - width)) for row, own in zip(rows, states, strict=True)]
        self.ids, self.mask = self._padded([own.ids for own in known])
        filled = next((own.of(0).layers for own in known if own.layers), None)
        if filled and self.cache is not None:
            for layer, *parts in zip(
                self.cache.layers, *(own.layers or filled for own in known), strict=True
            ):
                layer.rows, layer.end = parts, max(keys.shape[1] for keys, _ in parts)
        self.logits = self.read(
            [row[len(own.ids) :] for row, own in zip(rows, known, strict=True)], keep
        )

    def read(self, rows: Sequence[Row], keep: int = 1) -> torch.Tensor:
        """Reads more of each row, at least a token, and gives the logits behind its last `keep` tokens."""
        ids, new = self._padded(rows)
        self.mask = torch.cat([self.mask, new], dim=-1)
        if self.cache is None:
            ids = self.ids = torch.cat([self.ids, ids], dim=-1)
        positions = (self.mask.cumsum(-1) - 1).clamp(min=0)[:, -ids.shape[1] :]
        return self.model(
            input_ids=ids,
            attention_mask=self.mask,
            position_ids=positions,
            past_key_values=self.cache,
            use_cache=self.cache is not None,
            logits_to_keep=keep,
        ).logits[:, -keep:]

    def states(self, row: int, ids: Row) -> States:
        """What the model remembers of a row, which is `ids` by now; nothing is copied."""
        own = slice(self.mask.shape[1] - len(ids), self.mask.shape[1])
        return States(
            ids,
            [(layer.keys[row, :, own], layer.values[row, :, own]) for layer in self.cache.layers],
        )

    def select(self, rows: Sequence[int]) -> None:
        own = torch.tensor(rows, device=self.device)
        start = int(
            self.mask[own].any(0).nonzero()[0]
        )  # a longer row, now gone, may have been all that was there
        self.mask = self.mask[own, start:]
        for layer in self.cache.layers:
            layer.select(own, start)

    def _padded(self, rows: Sequence[Row]) -> tuple[torch.Tensor, torch.Tensor]:
        """Rows padded at their left, and a mask that tells them from the padding."""
        width = max(map(len, rows))
        ids = [[0] * (width - len(row)) + row for row in rows]
        mask = [[0] * (width - len(row)) + [1] * len(row) for row in rows]
        # said, since without tokens the type could not be told
        how: dict[str, Any] = {"device": self.device, "dtype": torch.long}
        return torch.tensor(ids, **how), torch.tensor(mask, **how)


def remembered(
    model: Any, rows: Sequence[Row], call: int, states: Sequence[States] = ()
) -> list[States]:
    """What a model remembers of rows, each read behind its own of `states`, in the passes that cost least."""
    found = [*states] or [NOTHING] * len(rows)
    due = [row for row, own in enumerate(found) if len(own.ids) < len(rows[row])]
    for group in passes([len(rows[row]) - len(found[row].ids) for row in due], call):
        numbers = [due[place] for place in group]
        batch = Batch(
            model, by_row, [rows[row] for row in numbers], [found[row] for row in numbers]
        )
        for place, row in enumerate(numbers):
            found[row] = batch.states(place, rows[row])
    return found


class Memory:
    """What a model remembers of the rows that the last call continued, at most `limit` bytes of it. An ended episode is
    thus forgotten with the next turn of the others."""

    def __init__(self, model: Any, limit: int, call: int) -> None:
        self.model, self.limit, self.call = model, limit, call
        self.make = reads_on(model)
        self.by_row = self.make is by_row
        self.rows: list[States] = []
        self.size = 0

    def take(self, prompts: Sequence[Row]) -> list[States]:
        """What is remembered of each prompt's beginning, its last token excepted; nothing is kept any longer."""
        rows, self.rows, self.size = sorted(self.rows, key=lambda one: one.ids), [], 0
        found = []
        for prompt in prompts:
            place = bisect(rows, row := prompt[:-1], key=lambda one: one.ids)
            near = rows[
                max(0, place - 1) : place + 1
            ]  # one of the row's neighbours begins most like it
            shared = [shared_length(one.ids, row) for one in near]
            best = max(shared, default=0)
            found.append(near[shared.index(best)].of(best) if best else NOTHING)
        return found

    def read(self, prompts: Sequence[Row], known: Sequence[States]) -> Batch:
        """A batch in which the prompts have been read, each behind what is known of it. Equal prompts, and what others
        begin with alike, are read once, and no prompt is padded to the length of others where a pass of its own costs
        less."""
        if not self.by_row:
            return Batch(self.model, self.make, prompts)
        # all but the last token: behind it each of equal prompts goes on by itself
        rows = {tuple(prompt[:-1]): own for prompt, own in zip(prompts, known, strict=True)}
        new = [list(row) for row, own in rows.items() if not own.ids]
        shared = plan(new, 1, self.call)
        heads = remembered(self.model, shared.heads, self.call)
        rows |= {tuple(row): heads[owner] for row, owner in zip(new, shared.owners, strict=True)}
        read = remembered(self.model, list(map(list, rows)), self.call, [*rows.values()])
        rows = dict(zip(rows, read, strict=True))
        return Batch(self.model, by_row, prompts, [rows[tuple(prompt[:-1])] for prompt in prompts])

    def put(self, batch: Batch, row: int, ids: Row) -> None:
        if not self.by_row:
            return
        own = batch.states(row, ids)
        size = sum(part.nbytes for layer in own.layers for part in layer)
        if size and self.size + size <= self.limit:
            layers = [(keys.clone(), values.clone()) for keys, values in own.layers]
            self.rows.append(States(ids, layers))  # in memory of its own: the batch goes
            self.size += size


@contextmanager
def inference_mode(model: Any) -> Iterator[None]:
    """Eval mode without gradient; afterwards the model is as it was."""
    training = model.training
    model.eval()  # which also leaves out the checkpointing of activations
    try:
        with torch.no_grad():
            yield
    finally:
        model.train(training)
