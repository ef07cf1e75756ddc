"""Generation and probing with a Transformers causal LM: plain, batched, exact."""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

import torch
from transformers import LogitsProcessor, TopKLogitsWarper, TopPLogitsWarper

from ..errors import ConfigError, GeneratorError
from .base import Completion, Sampling, check_choices
from .batching import CALL, CALLS, Row, plan
from .kv_cache import Batch, Memory, by_row, inference_mode, reads_on, remembered

KEEP_BYTES = 4 * 2**30
LEAVE = 8  # rows leave a batch when they are at least one in eight: to go on without them, the others are copied

Choose = Callable[[torch.Tensor], tuple[Row, list[float]]]
"""From logits, a row for each prompt: the tokens to go on with, and their log-probabilities if those are wanted."""


class TransformersGenerator:
    """A policy held by a Transformers model.

    Args:
        model: a causal LM (or a PEFT model around one); used in eval mode without gradient, its mode restored
            afterwards.
        tokenizer: its tokenizer.
        batch_size: rows per forward pass.
        agree: given how many forward passes a `choice_probs` takes here, how many every process makes. Where a model is
            spread over processes, a forward pass needs them all, and each must make as many.

    Raises:
        ConfigError: for a `batch_size` below 1.

    Example:
        ```python
        generator = TransformersGenerator(model, tokenizer)
        generator.generate([ids], Sampling(temperature=0.0, max_new_tokens=64, stop=("</answer>",)))[0].ids
        ```
    """

    def __init__(
        self, model: Any, tokenizer: Any, batch_size: int = 64, agree: Callable[[int], int] = int
    ) -> None:
        if batch_size < 1:
            raise ConfigError(f"a forward pass needs at least 1 row, got batch_size={batch_size}")
        self.model, self.tokenizer, self.batch_size, self.agree = (
            model,
            tokenizer,
            batch_size,
            agree,
        )
        self._memory: Memory | None = None
        self.shares: bool | None = (
            None  # whether `choice_probs` reads common beginnings once; `None`: not tried yet
        )
        self._closers: dict[str, frozenset[int]] = {}

    def generate(
        self,
        prompts: Sequence[list[int]],
        sampling: Sampling,
        max_new_tokens: Sequence[int] | None = None,
    ) -> list[Completion]:
        """See `Generator.generate`. The model's own generation settings (penalties, suppressed tokens, …) do not apply.

        Raises:
            ConfigError: when a prompt leaves no position of the model for a new token.
            GeneratorError: when the model's logits are not numbers.
        """
        if self._memory is None:
            with self.keeping(0):
                return self.generate(prompts, sampling, max_new_tokens)
        positions, longest = positions_of(self.model.config), max(map(len, prompts), default=0)
        if positions is not None and longest >= positions:
            raise ConfigError(
                f"a prompt of {longest} tokens leaves no room in the model's {positions} positions; lower the "
                "episode's total_tokens, return less evidence per call, or take a model with a longer context"
            )
        limits = (
            list(max_new_tokens)
            if max_new_tokens is not None
            else [sampling.max_new_tokens] * len(prompts)
        )
        # prompts of similar length share a batch, so that little of it is padding
        order = sorted(range(len(prompts)), key=lambda row: len(prompts[row]))
        end = self._end(sampling.stop)
        done: dict[int, Completion] = {}
        with inference_mode(self.model):
            known = dict(enumerate(self._memory.take(prompts)))
            for start in range(0, len(order), self.batch_size):
                rows = order[start : start + self.batch_size]
                own = [prompts[row] for row in rows]
                batch = self._memory.read(own, [known.pop(row) for row in rows])
                written = self._write(
                    self._memory, batch, own, [limits[row] for row in rows], sampling, end
                )
                del batch  # before the next one needs the memory
                done.update(zip(rows, written, strict=True))
        return [done[row] for row in range(len(prompts))]

    @contextmanager
    def keeping(self, most: int = KEEP_BYTES) -> Iterator[None]:
        """While this lasts, what the model remembers of the rows that `generate` continued is kept for the next call: a
        prompt that goes on from one of them, as an episode's next turn does, is read only from there.

        Weights and adapters must not change. Between calls at most so many bytes are kept, only of rows of the last
        call; changed prompts are read from where they differ. Models that forget tokens behind a window, or remember
        more than keys and values, keep nothing.
        """
        before = self._memory
        with inference_mode(self.model):
            self._memory = Memory(self.model, most, self._call)
        try:
            yield
        finally:
            self._memory = before

    def choice_probs(
        self, prompts: Sequence[list[int]], choices: Sequence[Sequence[list[int]]]
    ) -> list[list[float]]:
        """See `Generator.choice_probs`; costs and errors are those of `choice_logprobs`."""
        return [
            [math.exp(value) for value in own] for own in self.choice_logprobs(prompts, choices)
        ]

    def choice_logprobs(
        self, prompts: Sequence[list[int]], choices: Sequence[Sequence[list[int]]]
    ) -> list[list[float]]:
        """See `Scorer.choice_logprobs`; a choice without tokens is a `ConfigError`. Choices of one token cost a row for
        each prompt; longer ones a row each. What the prompts of a batch begin with alike is computed once where that
        saves tokens (never for models that forget tokens behind a window)."""
        check_choices(choices)
        wanted: dict[tuple[int, ...], list[tuple[int, int]]] = {}
        for i, (prompt, own) in enumerate(zip(prompts, choices, strict=True)):
            for j, choice in enumerate(own):
                # a choice's last token is only scored, so choices of one token share their prompt's row
                wanted.setdefault((*prompt, *choice[:-1]), []).append((i, j))
        keep = max((len(choice) for own in choices for choice in own), default=1)
        logprobs = [[0.0] * len(own) for own in choices]
        with inference_mode(self.model):
            for row, logits in self._logits(wanted, keep):
                table = torch.log_softmax(logits.float(), dim=-1)
                for i, j in wanted[tuple(row)]:
                    tokens = torch.tensor(choices[i][j], device=table.device)
                    logprobs[i][j] = float(table[-len(tokens) :].gather(1, tokens[:, None]).sum())
        return logprobs

    def _write(
        self,
        memory: Memory,
        batch: Batch,
        prompts: Sequence[Row],
        limits: Sequence[int],
        sampling: Sampling,
        end: "_End",
    ) -> list[Completion]:
        choose, done = chooser(sampling), dict[int, Completion]()
        ids: list[Row] = [[] for _ in prompts]
        logprobs: list[list[float]] = [[] for _ in prompts]
        here = live = list(
            range(len(prompts))
        )  # whose rows the batch holds, and the places of those that go on
        logits = batch.logits
        while live:
            tokens, chosen = choose(logits[:, -1])
            for place in live:
                row = here[place]
                ids[row].append(tokens[place])
                logprobs[row] += chosen[place : place + 1]
                if finish := end.of(ids[row], limits[row]):
                    memory.put(
                        batch, place, prompts[row] + ids[row][:-1]
                    )  # the last one has not been read
                    done[row] = Completion(
                        ids[row], finish, logprobs[row] if sampling.logprobs else None
                    )
            live = [place for place in live if here[place] not in done]
            if live and memory.by_row and (len(here) - len(live)) * LEAVE >= len(here):
                batch.select(live)
                here, tokens = [here[place] for place in live], [tokens[place] for place in live]
                live = list(range(len(here)))
            if live:
                logits = batch.read([[token] for token in tokens])
        return [done[row] for row in range(len(prompts))]

    def _logits(
        self, rows: Iterable[tuple[int, ...]], keep: int
    ) -> Iterator[tuple[Row, torch.Tensor]]:
        """Each row with the logits of its last `keep` tokens, or of all where it has fewer."""
        if self.shares is None:
            self.shares = reads_on(self.model) is by_row
        # those that begin alike are neighbours, or those of similar length
        order = sorted(map(list, rows), key=None if self.shares else len)
        starts = range(0, len(order), self.batch_size)
        plans = [
            plan(order[at : at + self.batch_size], keep, self._call, self.shares) for at in starts
        ]
        passes = sum(len(made.head_passes) + len(made.passes) for made in plans)
        idle = self.agree(passes) - passes
        for made in plans:
            heads = remembered(self.model, made.heads, self._call)
            for group in made.passes:
                own, states = (
                    [made.rows[row] for row in group],
                    [heads[made.owners[row]] for row in group],
                )
                make = partial(by_row, once=True) if any(head.ids for head in states) else None
                yield from zip(own, Batch(self.model, make, own, states, keep).logits, strict=True)
        for _ in range(idle):  # other processes wait for this one's part of the model
            Batch(self.model, None, [[0]])

    def _end(self, stop: tuple[str, ...]) -> "_End":
        for last in {
            text[-1] for text in stop
        } - self._closers.keys():  # kept: the whole vocabulary is read
            pieces = self.tokenizer.batch_decode([[token] for token in range(len(self.tokenizer))])
            self._closers[last] = frozenset(
                token for token, piece in enumerate(pieces) if last in piece
            )
        closers = frozenset().union(*(self._closers[text[-1]] for text in stop))
        own = self.model.generation_config.eos_token_id
        eos = {*(own if isinstance(own, list) else [own]), self.tokenizer.eos_token_id} - {None}
        return _End(self.tokenizer, frozenset(eos), stop, closers)

    @property
    def _call(self) -> int:
        return CALLS.get(next(self.model.parameters()).device.type, CALL)


class _End(NamedTuple):
    tokenizer: Any
    eos: frozenset[int]
    stop: tuple[str, ...]
    # tokens whose text holds a stop string's last character: only these can complete one, so texts are decoded rarely
    closers: frozenset[int]

    def of(self, ids: Row, limit: int) -> str:
        """How a turn ended with the last of these tokens; empty: it goes on."""
        if ids[-1] in self.eos:
            return "eos"
        if ids[-1] in self.closers:
            # a stop string spans few tokens, so a window keeps long turns linear; a character takes at most four tokens
            window = 4 * max(map(len, self.stop)) + 4
            text = self.tokenizer.decode(ids[-window:], skip_special_tokens=False)
            if any(item in text for item in self.stop):
                return "stop"
        return "length" if len(ids) >= limit else ""


def positions_of(config: Any) -> int | None:
    """How many positions the model was made for, stretched by its RoPE scaling; `None` when it does not say."""
    config = config.get_text_config() if hasattr(config, "get_text_config") else config
    positions = getattr(config, "max_position_embeddings", None)
    scaling = (
        getattr(config, "rope_parameters", None) or getattr(config, "rope_scaling", None) or {}
    )
    return positions and int(positions * max(1.0, scaling.get("factor") or 1.0))


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
        logprobs = (
            scores.log_softmax(-1).gather(-1, tokens)[:, 0].tolist() if sampling.logprobs else []
        )
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
