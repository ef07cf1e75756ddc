"""Episodes go on turn by turn: what a model remembers of their contexts is kept, and only what is new is read."""

from __future__ import annotations

from bisect import bisect
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from transformers import LogitsProcessor, TopKLogitsWarper, TopPLogitsWarper

from ..errors import GeneratorError
from . import sharing
from .base import Sampling
from .states import NOTHING, Batch, Row, States

LEAVE = 8  # rows leave a batch when they are at least one in eight: to go on without them, the others are copied

Choose = Callable[[torch.Tensor], tuple[Row, list[float]]]
"""From logits, a row for each prompt: the tokens to go on with, and their log-probabilities if those are wanted."""


class Written(NamedTuple):
    """New tokens of a row, and their log-probabilities if any are wanted."""

    ids: Row
    logprobs: list[float]


class Turns:
    """Continues rows and keeps what the model remembers of them.

    Only what the last call continued is kept, so an ended episode is forgotten with the next turn of the others. The
    weights must not change. At most `limit` bytes are kept from call to call; rows beyond are read again. The model is
    one that `states.can_read_on` accepts.
    """

    def __init__(self, model: Any, limit: int) -> None:
        self.model, self.limit = model, limit
        self.kept: list[States] = []
        self.size = 0
        self._call = sharing.cost_of_call(next(model.parameters()).device.type)

    def take(self, prompts: Sequence[Row]) -> dict[int, States]:
        """What is remembered of each prompt's beginning, its last token excepted; nothing is kept any longer."""
        kept, found = sorted(self.kept, key=lambda one: one.ids), {}
        for number, prompt in enumerate(prompts):
            place = bisect(kept, row := prompt[:-1], key=lambda one: one.ids)
            near = kept[max(0, place - 1) : place + 1]  # one of the row's neighbours begins most like it
            shared = [sharing.shared_length(one.ids, row) for one in near]
            best = max(shared, default=0)
            found[number] = near[shared.index(best)].of(best) if best else NOTHING
        self.kept, self.size = [], 0
        return found

    def read(self, prompts: Sequence[Row], states: Sequence[States]) -> Batch:
        """A batch in which all of each prompt but its last token has been read.

        What prompts begin with alike is read once, if nothing of them is known. Prompts of which more is new are not
        padded to the length of others where a pass of their own costs less.
        """
        rows = [prompt[:-1] for prompt in prompts]
        known = {tuple(row): found for row, found in zip(rows, states, strict=True)}
        new = [list(row) for row, found in known.items() if not found.ids]
        for shared in sharing.plan(new, 1, self._call):
            heads = self._pass(shared.heads, [NOTHING] * len(shared.heads)) if shared.heads else []
            known.update(
                # no owners where nothing is shared
                (tuple(new[row]), heads[owner])
                for row, owner in zip(shared.rows, shared.owners, strict=False)
            )
        due = [row for row, found in known.items() if len(found.ids) < len(row)]
        for group in sharing.passes([len(row) - len(known[row].ids) for row in due], self._call):
            part = [due[place] for place in group]
            read = self._pass([list(row) for row in part], [known[row] for row in part])
            known.update(zip(part, read, strict=True))
        return Batch(self.model, [known[tuple(row)] for row in rows])

    def write(
        self, batch: Batch, prompts: Sequence[Row], choose: Choose, ended: Callable[[int, Row], bool]
    ) -> list[Written]:
        """Continues each prompt until `ended`, which is asked with its number and its new tokens."""
        written = [Written([], []) for _ in prompts]
        here = live = list(range(len(prompts)))  # whose rows the batch holds, and the places of those that go on
        last = [prompt[-1] for prompt in prompts]
        while live:
            last, logprobs = choose(batch.read([[token] for token in last]))
            for place in live:
                written[here[place]].ids.append(last[place])
                written[here[place]].logprobs.extend(logprobs[place : place + 1])
            over = {place for place in live if ended(here[place], written[here[place]].ids)}
            for place in over:
                ids = prompts[here[place]] + written[here[place]].ids[:-1]  # the last one has not been read
                size = batch.token_size * len(ids)
                if self.size + size <= self.limit:
                    self.kept.append(batch.states(place, ids))
                    self.size += size
            live = [place for place in live if place not in over]
            if live and (len(here) - len(live)) * LEAVE >= len(here):
                batch.select(live)
                here, last = [here[place] for place in live], [last[place] for place in live]
                live = list(range(len(here)))
        return written

    def _pass(self, rows: Sequence[Row], states: Sequence[States]) -> list[States]:
        """Reads the rest of each row behind what is remembered of it; where that is less than of others, a bit more of
        it: so there is no padding within a row, which not every model could do with."""
        width = max(len(row) - len(found.ids) for row, found in zip(rows, states, strict=True))
        # what is read twice is dropped first, or it would be remembered twice
        states = [found.of(max(0, len(row) - width)) for row, found in zip(rows, states, strict=True)]
        batch = Batch(self.model, states)
        batch.read([row[len(found.ids) :] for row, found in zip(rows, states, strict=True)])
        return [batch.states(place, row) for place, row in enumerate(rows)]


def chooser(sampling: Sampling) -> Choose:
    """Samples as `sampling` says. Log-probabilities are those under its temperature, of the whole distribution."""
    greedy, temperature = sampling.temperature == 0, sampling.temperature or 1.0
    limits: list[LogitsProcessor] = [TopKLogitsWarper(sampling.top_k)] if sampling.top_k else []
    limits += [TopPLogitsWarper(sampling.top_p)] if sampling.top_p < 1 else []

    def choose(logits: torch.Tensor) -> tuple[Row, list[float]]:
        scores = logits.float() / temperature
        allowed = scores
        for limit in limits:
            allowed = limit(None, allowed)
        tokens = scores.argmax(-1, keepdim=True) if greedy else _drawn(allowed.softmax(-1))
        logprobs = scores.log_softmax(-1).gather(-1, tokens)[:, 0].tolist() if sampling.logprobs else []
        return tokens[:, 0].tolist(), logprobs

    return choose


def _drawn(probs: torch.Tensor) -> torch.Tensor:
    """A token for each row; raises `GeneratorError` for probabilities that are not numbers."""
    if probs[:, 0].isnan().any():
        raise GeneratorError(
            "the model's logits are not numbers (NaN), so nothing can be sampled: its weights are broken or its "
            "precision overflows; go back to a checkpoint with a lower learning rate, or compute in float32"
        )
    if probs.device.type != "cpu":
        return torch.multinomial(probs, 1)
    # on CPUs `multinomial` is slow: it draws a number for each token of the vocabulary, and here one a row is enough
    # right: a draw of 0 must not fall on a token of probability 0; the clamp: rounding may give the whole sum
    sums = probs.cumsum(-1, dtype=torch.float64)
    drawn = torch.rand(len(probs), 1, dtype=torch.float64) * sums[:, -1:]
    return torch.searchsorted(sums, drawn, right=True).clamp(max=probs.shape[-1] - 1)
