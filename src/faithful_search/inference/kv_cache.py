"""The keys and values that a causal LM remembers of rows of tokens: reading on after them, and
keeping them from call to call.
"""

from bisect import bisect
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch.nn.functional import pad
from transformers.cache_utils import Cache, DynamicCache, DynamicLayer

from .batching import Row, passes, plan, shared_length

ROOM = 64  # tokens that a batch makes room for at a time

MakeCache = Callable[[Any], Cache]  # an empty cache for a model


class States(NamedTuple):
    """What a model remembers of a row of tokens.

    Attributes:
        ids: the tokens.
        layers: keys and values of each layer, of shape (heads, tokens, size of a head).
    """

    ids: Row
    layers: list[tuple[torch.Tensor, torch.Tensor]]

    def first(self, length: int) -> "States":
        """The states of the first `length` tokens."""
        layers = [(keys[:, :length], values[:, :length]) for keys, values in self.layers]
        return States(self.ids[:length], layers)


NOTHING = States([], [])


class RoomyLayer(DynamicLayer):
    """One layer's keys and values of a batch, of shape (rows, heads, tokens, size of a head).

    Room for more tokens is made in advance, so that a step need not copy them all; the first `end`
    tokens are in use.

    Args:
        once: nothing is kept after the model has passed the layer, so that a pass takes no more
            memory than one layer needs.

    Attributes:
        rows: keys and values of each row's beginning, which are stacked when the model reaches the
            layer; empty when they have been.
    """

    def __init__(self, once: bool = False) -> None:
        super().__init__()
        self.once = once
        self.end = 0
        self.rows: Sequence[tuple[torch.Tensor, torch.Tensor]] = ()

    def update(
        self, key_states: Any, value_states: Any, *args: Any, **kwargs: Any
    ) -> tuple[Any, Any]:
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
            self._hold_nothing(key_states, value_states)
        start = self.end
        self.end = start + key_states.shape[-2]
        if self.rows:
            room = self.end + ROOM
            self.keys = _stacked([keys for keys, _ in self.rows], start, room)
            self.values = _stacked([values for _, values in self.rows], start, room)
            self.rows = ()
        self.keys = _with_room(self.keys, self.end)
        self.values = _with_room(self.values, self.end)
        self.keys[:, :, start : self.end] = key_states
        self.values[:, :, start : self.end] = value_states
        keys = self.keys[:, :, : self.end]
        values = self.values[:, :, : self.end]
        if self.once:
            self._hold_nothing(key_states, value_states)
        return keys, values

    def _hold_nothing(self, key_states: Any, value_states: Any) -> None:
        # empty tensors, of these states' type and device
        self.keys = key_states[:, :, :0]
        self.values = value_states[:, :, :0]

    def get_seq_length(self) -> int:
        return self.end

    def select(self, rows: torch.Tensor, start: int) -> None:
        """Keep only these rows, without the first `start` columns, in which they have padding."""
        keys: Any = self.keys
        values: Any = self.values
        self.keys = keys[:, :, start:][rows]
        self.values = values[:, :, start:][rows]
        self.end -= start


def _stacked(parts: Sequence[torch.Tensor], width: int, room: int) -> torch.Tensor:
    """Parts of shape (heads, tokens, size) as rows that are padded at their left to `width` tokens,
    and at their right to `room`.
    """
    right = room - width
    padded = []
    for part in parts:
        left = width - part.shape[1]
        # Zeros in the padding: its weight is 0, but 0 times NaN would be NaN.
        padded.append(pad(part, (0, 0, left, right)))
    return torch.stack(padded)


def _with_room(part: Any, length: int) -> torch.Tensor:
    """The keys or values, with room for at least `length` tokens."""
    held = part.shape[-2]
    if held >= length:
        return part
    # What stands after the tokens in use is never read, so it may be anything.
    room = part.new_empty((*part.shape[:-2], length + ROOM - held, part.shape[-1]))
    return torch.cat([part, room], dim=-2)


def by_row(model: Any, once: bool = False) -> Cache:
    """A cache whose rows can be taken out and put together anew.

    Raises `ValueError` where the model remembers more than keys and values, or forgets tokens
    outside a window.
    """
    layers = DynamicCache(config=model.config).layers
    if not all(type(layer) is DynamicLayer for layer in layers):
        raise ValueError("not keys and values alone")
    return Cache(layers=[RoomyLayer(once) for _ in layers])


def _together(model: Any) -> Cache:
    """Transformers' own cache, which keeps the rows of a batch together."""
    return DynamicCache(config=model.config)


def learns_prompt(model: Any) -> bool:
    """Whether an adapter puts remembered tokens of its own before those of the rows."""
    adapters = getattr(model, "peft_config", None) or {}
    return any(getattr(adapter, "is_prompt_learning", False) for adapter in adapters.values())


def reads_on(model: Any) -> MakeCache | None:
    """The kind of cache with which a model reads on after what it has read.

    It is found by trying, with one token. `None`: there is none, and the model has to be shown
    everything again at each step.
    """
    if learns_prompt(model):
        return None
    for make in (by_row, _together):
        try:
            layers = Batch(model, make, [[0]]).cache.layers
            if all(map(_holds_token, layers)):
                return make
        except (AttributeError, KeyError, TypeError, ValueError):
            continue  # the model takes other arguments, or no such cache
    return None


def _holds_token(layer: Any) -> bool:
    """Whether a layer of a cache holds what the model has read. A layer may have keys and values, a
    recurrent state, or both. Models with a cache of another name, such as Mamba, leave it empty.
    """
    has_keys = getattr(layer, "is_initialized", True)
    has_states = getattr(layer, "has_previous_state", {})  # whether each of its states is there
    return has_keys and all(has_states.values())


class Batch:
    """Rows that a model reads together, each after the states of its beginning.

    Padding stands at the left; positions do not count it.

    Args:
        make: makes the cache; `None`: the model is shown everything again at each step.
        states: what the model remembers of the beginning of each row.
        keep: for how many of the last tokens of each row there are logits.

    Attributes:
        logits: those after the last `keep` tokens of each row.
    """

    def __init__(
        self,
        model: Any,
        make: MakeCache | None,
        rows: Sequence[Row],
        states: Sequence[States] | None = None,
        keep: int = 1,
    ) -> None:
        states = states or [NOTHING] * len(rows)
        self.model = model
        self.device = next(model.parameters()).device
        self.cache: Any = make(model) if make else None
        # All rows get as many new tokens as the one with most of them, the others by reading some
        # of theirs again: not every model could do with padding within a row.
        pairs = list(zip(rows, states, strict=True))
        most_new = max(len(row) - len(state.ids) for row, state in pairs)
        pasts = [state.first(max(0, len(row) - most_new)) for row, state in pairs]
        self.ids, self.mask = self._padded([past.ids for past in pasts])
        if self.cache is not None:
            self._fill_cache(pasts)
        new_tokens = [row[len(past.ids) :] for row, past in zip(rows, pasts, strict=True)]
        self.logits = self.read(new_tokens, keep)

    def _fill_cache(self, pasts: Sequence[States]) -> None:
        """Give each layer of the cache its keys and values of the rows' pasts."""
        remembered_pasts = [past for past in pasts if past.layers]
        if not remembered_pasts:
            return
        # rows of which nothing is remembered have keys and values of 0 tokens
        no_tokens = remembered_pasts[0].first(0)
        layers_of_rows = [past.layers or no_tokens.layers for past in pasts]
        for number, layer in enumerate(self.cache.layers):
            layer.rows = [layers[number] for layers in layers_of_rows]
            layer.end = max(keys.shape[1] for keys, _ in layer.rows)

    def read(self, rows: Sequence[Row], keep: int = 1) -> torch.Tensor:
        """Read further tokens of each row, at least one.

        Returns the logits after the last `keep` of them.
        """
        ids, new_mask = self._padded(rows)
        self.mask = torch.cat([self.mask, new_mask], dim=-1)
        if self.cache is None:  # the model is shown everything again
            self.ids = torch.cat([self.ids, ids], dim=-1)
            ids = self.ids
        positions = (self.mask.cumsum(-1) - 1).clamp(min=0)  # of all columns
        output = self.model(
            input_ids=ids,
            attention_mask=self.mask,
            position_ids=positions[:, -ids.shape[1] :],
            past_key_values=self.cache,
            use_cache=self.cache is not None,
            logits_to_keep=keep,
        )
        return output.logits[:, -keep:]

    def states(self, row: int, ids: Row) -> States:
        """What the model remembers of a row whose tokens are `ids` by now; nothing is copied."""
        end = self.mask.shape[1]
        span = slice(end - len(ids), end)  # without the padding at the left
        layers = []
        for layer in self.cache.layers:
            layers.append((layer.keys[row, :, span], layer.values[row, :, span]))
        return States(ids, layers)

    def select(self, rows: Sequence[int]) -> None:
        """Keep only these rows."""
        numbers = torch.tensor(rows, device=self.device)
        # The first columns may have held only a longer row that is gone now.
        start = int(self.mask[numbers].any(0).nonzero()[0])
        self.mask = self.mask[numbers, start:]
        for layer in self.cache.layers:
            layer.select(numbers, start)

    def _padded(self, rows: Sequence[Row]) -> tuple[torch.Tensor, torch.Tensor]:
        """Rows padded at their left, and a mask that is 1 where there is no padding."""
        width = max(map(len, rows))
        ids: list[Row] = []
        mask: list[Row] = []
        for row in rows:
            padding = [0] * (width - len(row))
            ids.append(padding + row)
            mask.append(padding + [1] * len(row))
        # With the type, which torch could not tell where there are no tokens.
        return (
            torch.tensor(ids, device=self.device, dtype=torch.long),
            torch.tensor(mask, device=self.device, dtype=torch.long),
        )


def remembered(
    model: Any, rows: Sequence[Row], call: int, states: Sequence[States] = ()
) -> list[States]:
    """Read rows and return what the model remembers of them.

    Each row is read after its own of `states`, in the passes that cost least together; `call` is
    what a pass costs, in tokens.
    """
    result = list(states) or [NOTHING] * len(rows)
    unread: list[int] = []  # numbers of rows with new tokens
    new_tokens: list[int] = []  # how many each of these has
    for number, (row, state) in enumerate(zip(rows, result, strict=True)):
        if len(row) > len(state.ids):
            unread.append(number)
            new_tokens.append(len(row) - len(state.ids))
    for group in passes(new_tokens, call):
        numbers = [unread[place] for place in group]
        group_rows = [rows[number] for number in numbers]
        group_states = [result[number] for number in numbers]
        batch = Batch(model, by_row, group_rows, group_states)
        for place, number in enumerate(numbers):
            result[number] = batch.states(place, rows[number])
    return result


def beginnings(remembered_rows: Sequence[States], prompts: Sequence[Row]) -> list[States]:
    """For each prompt, what the model remembers of its longest beginning, from these rows.

    The last token of a prompt is always read, so it is not part of a beginning.
    """
    in_order = sorted(remembered_rows, key=lambda states: states.ids)
    result = []
    for prompt in prompts:
        beginning = prompt[:-1]
        place = bisect(in_order, beginning, key=lambda states: states.ids)
        best = NOTHING
        # In order of their ids, a neighbour shares most with the beginning.
        for states in in_order[max(0, place - 1) : place + 1]:
            length = shared_length(states.ids, beginning)
            if length > len(best.ids):
                best = states.first(length)
        result.append(best)
    return result


class RowMemory:
    """Keeps what a model remembers of the rows of the last call, up to `limit` bytes.

    An episode that has ended is thus forgotten with the next turn of the others.
    """

    def __init__(self, model: Any, limit: int, call: int) -> None:
        self.model = model
        self.limit = limit
        self.call = call
        self.make = reads_on(model)
        self.by_row = self.make is by_row
        self.rows: list[States] = []
        self.size = 0

    def take(self, prompts: Sequence[Row]) -> list[States]:
        """The states of the prompts' beginnings; nothing else is kept any longer."""
        remembered_rows = self.rows
        self.rows = []
        self.size = 0
        return beginnings(remembered_rows, prompts)

    def read(self, prompts: Sequence[Row], starts: Sequence[States]) -> Batch:
        """A batch in which the prompts have been read, each after the states of its beginning.

        Equal prompts, and common beginnings, are read once. A prompt is not padded to the length of
        others where a pass of its own costs less.
        """
        if not self.by_row:
            return Batch(self.model, self.make, prompts)
        # Without the last token, after which each of equal prompts goes on by itself.
        contexts = [tuple(prompt[:-1]) for prompt in prompts]
        states_of = dict(zip(contexts, starts, strict=True))  # by distinct context
        self._read_common(states_of)
        distinct = [list(context) for context in states_of]
        read_states = remembered(self.model, distinct, self.call, list(states_of.values()))
        states_of = dict(zip(states_of, read_states, strict=True))
        return Batch(self.model, by_row, prompts, [states_of[context] for context in contexts])

    def _read_common(self, states_of: dict[tuple[int, ...], States]) -> None:
        """Read the common beginnings of contexts of which nothing is known yet."""
        unknown = [context for context, states in states_of.items() if not states.ids]
        rows = [list(context) for context in unknown]
        shared = plan(rows, keep=1, call=self.call)
        heads = remembered(self.model, shared.heads, self.call)
        for context, owner in zip(unknown, shared.owners, strict=True):
            states_of[context] = heads[owner]

    def put(self, batch: Batch, row: int, ids: Row) -> None:
        """Keep what the model remembers of a row of the batch, if there is room for it."""
        if not self.by_row:
            return
        states = batch.states(row, ids)
        size = sum(keys.nbytes + values.nbytes for keys, values in states.layers)
        if size == 0 or self.size + size > self.limit:
            return
        # Copied, so that the batch's memory can be freed
        layers = [(keys.clone(), values.clone()) for keys, values in states.layers]
        self.rows.append(States(ids, layers))
        self.size += size


@contextmanager
def inference_mode(model: Any) -> Iterator[None]:
    """Put the model into eval mode without gradient, and back into its mode afterwards."""
    training = model.training
    model.eval()  # this also turns off the checkpointing of activations
    try:
        with torch.no_grad():
            yield
    finally:
        model.train(training)
