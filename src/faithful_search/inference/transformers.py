"""Generation and probing with a causal LM of Transformers."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import torch
from transformers import LogitsProcessor, TopKLogitsWarper, TopPLogitsWarper

from ..errors import ConfigError, GeneratorError
from .base import Completion, Sampling, check_choices
from .batching import CALL, CALLS, Row, plan
from .kv_cache import Batch, RowMemory, by_row, inference_mode, reads_on, remembered

KEEP_BYTES = 4 * 2**30  # of keys and values between calls
LEAVE = 8
"""Rows that have ended leave a batch once they are at least one in eight of it: the others have to
be copied to go on without them.
"""

EXTENDING = ("linear", "dynamic", "yarn")
"""Types of RoPE scaling whose factor multiplies a model's positions, see `positions_of`."""
MOST_SCALED = 1e9
"""No factor of a RoPE scaling, and no count of positions, is larger."""
REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
"""What a tokenizer decodes bytes to that are not a whole character."""

Choose = Callable[[torch.Tensor], tuple[Row, list[float] | None]]
"""From logits, one row for each prompt: the next tokens, and their log-probabilities, or `None`
where these are not asked for.
"""


class TransformersGenerator:
    """A policy held by a Transformers model.

    Args:
        model: a causal LM, or a PEFT model around one. It is used in eval mode without gradient,
            and its mode is restored afterwards.
        tokenizer: its tokenizer.
        batch_size: rows per forward pass.
        agree: takes the number of forward passes that a `choice_probs` needs in this process, and
            returns the number that every process makes. Where a model is spread over processes, a
            forward pass needs all of them, so each must make as many.

    Attributes:
        on_tokens: called after each token of a batch with the ids of its rows so far, to show them;
            `None`: nothing is called.

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
        self.model = model
        self.tokenizer = tokenizer
        self.batch_size = batch_size
        self.agree = agree
        self.on_tokens: Callable[[Sequence[Row]], object] | None = None
        self._memory: RowMemory | None = None
        # Whether `choice_probs` reads common beginnings once; `None`: not tried yet
        self.shares: bool | None = None
        # By character, the tokens whose text holds it or may hold the last of its bytes
        self._tokens_with: dict[str, frozenset[int]] = {}

    def generate(
        self,
        prompts: Sequence[list[int]],
        sampling: Sampling,
        max_new_tokens: Sequence[int] | None = None,
    ) -> list[Completion]:
        """See `Generator.generate`.

        The model's own generation settings (penalties, suppressed tokens, …) do not apply.

        Raises:
            ConfigError: when a prompt leaves no position of the model for a new token.
            GeneratorError: when the model's logits are not numbers.
        """
        if self._memory is None:  # nothing is kept after this call
            with self.keeping(0):
                return self.generate(prompts, sampling, max_new_tokens)
        self._check_room(prompts)
        limits = [sampling.max_new_tokens] * len(prompts)
        if max_new_tokens is not None:
            limits = list(max_new_tokens)
        # Prompts of similar length share a batch, so that little of it is padding.
        order = sorted(range(len(prompts)), key=lambda row: len(prompts[row]))
        end = self._end(sampling.stop)
        turns = [_SampledTurn(prompt, limit) for prompt, limit in zip(prompts, limits, strict=True)]
        with inference_mode(self.model):
            known = dict(enumerate(self._memory.take(prompts)))
            for start in range(0, len(order), self.batch_size):
                rows = order[start : start + self.batch_size]
                batch_prompts = [prompts[row] for row in rows]
                # popped, so that what is known of a row takes no memory once it is read
                batch = self._memory.read(batch_prompts, [known.pop(row) for row in rows])
                self._write([turns[row] for row in rows], batch, self._memory, sampling, end)
                del batch  # before the next one needs the memory
        return [turn.completion() for turn in turns]

    def _check_room(self, prompts: Sequence[list[int]]) -> None:
        """Raise `ConfigError` for a prompt that takes all positions of the model."""
        positions = positions_of(self.model.config)
        longest = max(map(len, prompts), default=0)
        if positions is not None and longest >= positions:
            raise ConfigError(
                f"a prompt of {longest} tokens leaves no room in the model's {positions} "
                "positions; lower the episode's total_tokens, return less evidence per call, or "
                "take a model with a longer context"
            )

    @contextmanager
    def keeping(self, most: int = KEEP_BYTES) -> Iterator[None]:
        """Keep keys and values between calls of `generate`.

        A prompt that continues a row of the last call, as an episode's next turn does, is then read
        only from where that row ended, and a prompt that differs from it only from where it
        differs. Weights and adapters must not change meanwhile. Models that forget tokens outside a
        window, or remember more than keys and values, keep nothing.

        Args:
            most: bytes that are kept, only of rows of the last call.
        """
        before = self._memory
        with inference_mode(self.model):
            self._memory = RowMemory(self.model, most, self._call)
        try:
            yield
        finally:
            self._memory = before

    def choice_probs(
        self, prompts: Sequence[list[int]], choices: Sequence[Sequence[list[int]]]
    ) -> list[list[float]]:
        """See `Generator.choice_probs`; costs and errors are those of `choice_logprobs`."""
        logprobs = self.choice_logprobs(prompts, choices)
        return [list(map(math.exp, row)) for row in logprobs]

    def choice_logprobs(
        self, prompts: Sequence[list[int]], choices: Sequence[Sequence[list[int]]]
    ) -> list[list[float]]:
        """See `Scorer.choice_logprobs`.

        Choices of one token cost one row for each prompt, longer ones a row each. Where prompts of
        a batch begin alike, that beginning is computed once if it saves tokens (never for models
        that forget tokens outside a window).

        Raises:
            ConfigError: a choice has no tokens.
        """
        check_choices(choices)
        # For each row, the choices it is the context of: number of the prompt, number of the choice
        choices_after: dict[tuple[int, ...], list[tuple[int, int]]] = {}
        longest = 1
        for i, (prompt, prompt_choices) in enumerate(zip(prompts, choices, strict=True)):
            for j, choice in enumerate(prompt_choices):
                # A choice's last token is only scored, so choices of one token share a row.
                row = (*prompt, *choice[:-1])
                choices_after.setdefault(row, []).append((i, j))
                longest = max(longest, len(choice))
        logprobs = [[0.0] * len(prompt_choices) for prompt_choices in choices]
        with inference_mode(self.model):
            for ids, logits in self._logits(choices_after, keep=longest):
                table = torch.log_softmax(logits.float(), dim=-1)  # (last tokens, vocabulary)
                for i, j in choices_after[tuple(ids)]:
                    tokens = torch.tensor(choices[i][j], device=table.device)
                    token_logprobs = table[-len(tokens) :].gather(1, tokens[:, None])
                    logprobs[i][j] = float(token_logprobs.sum())
        return logprobs

    def _write(
        self,
        turns: Sequence["_SampledTurn"],
        batch: Batch,
        memory: RowMemory,
        sampling: Sampling,
        end: "_End",
    ) -> None:
        """Write the turns, whose prompts the batch has read, each up to its end."""
        choose = chooser(sampling)
        ids = [turn.ids for turn in turns]
        in_batch = list(turns)
        logits = batch.logits
        while True:
            tokens, logprobs = choose(logits[:, -1])
            for place, turn in enumerate(in_batch):
                if turn.finish:
                    continue
                turn.ids.append(tokens[place])
                if logprobs is not None:
                    turn.logprobs.append(logprobs[place])
                turn.finish = end.of(turn.ids, turn.limit)
                if turn.finish:
                    # The last token has not been read.
                    memory.put(batch, place, turn.prompt + turn.ids[:-1])
            if self.on_tokens is not None:
                self.on_tokens(ids)
            live = [place for place, turn in enumerate(in_batch) if not turn.finish]
            if not live:
                return
            ended = len(in_batch) - len(live)
            if memory.by_row and ended * LEAVE >= len(in_batch):
                batch.select(live)
                in_batch = [in_batch[place] for place in live]
                tokens = [tokens[place] for place in live]
            logits = batch.read([[token] for token in tokens])

    def _logits(
        self, rows: Iterable[tuple[int, ...]], keep: int
    ) -> Iterator[tuple[Row, torch.Tensor]]:
        """Each row with the logits of its last `keep` tokens, or of all where it has fewer."""
        if self.shares is None:
            self.shares = reads_on(self.model) is by_row
        # Neighbours are rows that begin alike, or else rows of similar length.
        order = sorted(map(list, rows), key=None if self.shares else len)
        plans = []
        for start in range(0, len(order), self.batch_size):
            batch_rows = order[start : start + self.batch_size]
            plans.append(plan(batch_rows, keep, self._call, self.shares))
        passes = sum(len(batch.head_passes) + len(batch.passes) for batch in plans)
        idle = self.agree(passes) - passes
        for batch in plans:
            heads = remembered(self.model, batch.heads, self._call)
            for group in batch.passes:
                contexts = [batch.rows[row] for row in group]
                states = [heads[batch.owners[row]] for row in group]
                reads_on_after = any(state.ids for state in states)
                make_cache = partial(by_row, once=True) if reads_on_after else None
                logits = Batch(self.model, make_cache, contexts, states, keep).logits
                yield from zip(contexts, logits, strict=True)
        for _ in range(idle):  # passes of other processes that need this one's part of the model
            Batch(self.model, None, [[0]])

    def _end(self, stop: tuple[str, ...]) -> "_End":
        """What ends a turn with these stop strings."""
        closers: set[int] = set()
        for character in {text[-1] for text in stop}:
            closers |= self._tokens_closing(character)
        eos = self.model.generation_config.eos_token_id  # one token, several, or none
        eos_tokens = set(eos) if isinstance(eos, list) else {eos}
        eos_tokens.add(self.tokenizer.eos_token_id)
        eos_tokens.discard(None)
        return _End(
            tokenizer=self.tokenizer,
            eos=frozenset(eos_tokens),
            stop=stop,
            closers=frozenset(closers),
        )

    def _tokens_closing(self, character: str) -> frozenset[int]:
        """The tokens whose text holds a character, or may hold the last of its bytes."""
        if character in self._tokens_with:  # each needs a look at the whole vocabulary
            return self._tokens_with[character]
        vocabulary = [[token] for token in range(len(self.tokenizer))]
        pieces = self.tokenizer.batch_decode(vocabulary)
        # The bytes of a character may be spread over tokens, none of which holds it.
        is_in_bytes = not character.isascii()
        tokens = []
        for token, piece in enumerate(pieces):
            if character in piece or (is_in_bytes and REPLACEMENT in piece):
                tokens.append(token)
        self._tokens_with[character] = frozenset(tokens)
        return self._tokens_with[character]

    @property
    def _call(self) -> int:
        """What a forward pass costs, in tokens (`batching.CALLS`)."""
        return CALLS.get(next(self.model.parameters()).device.type, CALL)


@dataclass
class _SampledTurn:
    """What is written after a prompt; `finish` is empty while it goes on (see `Completion`)."""

    prompt: Row
    limit: int
    ids: Row = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    finish: str = ""

    def completion(self) -> Completion:
        return Completion(self.ids, self.finish, self.logprobs or None)


class _End(NamedTuple):
    """What ends a turn.

    Attributes:
        eos: tokens that end it.
        stop: strings that end it.
        closers: the tokens whose text holds the last character of a stop string, or may hold the
            last of its bytes. Only these can complete one, so that texts are decoded rarely.
    """

    tokenizer: Any
    eos: frozenset[int]
    stop: tuple[str, ...]
    closers: frozenset[int]

    def of(self, ids: Row, limit: int) -> str:
        """How a turn ends with the last of these tokens: "eos", "stop" or "length"; "": it goes on."""
        if ids[-1] in self.eos:
            return "eos"
        if ids[-1] in self.closers:
            # A stop string spans few tokens, since a character takes at most four. Only a window is
            # decoded, which keeps the time of long turns linear.
            window = 4 * max(map(len, self.stop)) + 4
            text = self.tokenizer.decode(ids[-window:], skip_special_tokens=False)
            if any(stop in text for stop in self.stop):
                return "stop"
        return "length" if len(ids) >= limit else ""


def positions_of(config: Any) -> int | None:
    """How many positions a model has, with its RoPE scaling; `None` where its config does not say.

    What the scaling's `factor` multiplies depends on its `rope_type`:

    - "linear" and "dynamic": `max_position_embeddings`.
    - "yarn": `original_max_position_embeddings`, by default `max_position_embeddings`. Some models
      ship `max_position_embeddings` extended already, others as it was: the larger result counts.
    - any other, as "llama3" and "longrope": nothing, since their models ship
      `max_position_embeddings` extended. The factor of "llama3" is of wavelengths: Llama 3.2's is
      32, while its length is 16 times the original.
    - scaling by kinds of layers (Gemma 3): nothing, since `max_position_embeddings` is extended.

    Raises `ConfigError` for a scaling that is no mapping, or whose factor or original positions are
    no number above 0.

    Example:
        >>> from transformers import Qwen2Config
        >>> yarn = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32_768}
        >>> positions_of(Qwen2Config(max_position_embeddings=32_768, rope_scaling=yarn))
        131072
    """
    if hasattr(config, "get_text_config"):
        config = config.get_text_config()
    positions = getattr(config, "max_position_embeddings", None)
    if not positions:
        return positions
    scaling = getattr(config, "rope_parameters", None) or getattr(config, "rope_scaling", None)
    if not scaling:
        return int(positions)
    if not isinstance(scaling, Mapping):
        raise ConfigError(
            f"the model's RoPE scaling is {scaling!r}; its config.json needs a mapping there, with "
            "rope_type and factor, or null"
        )
    kind = scaling.get("rope_type", scaling.get("type"))
    if kind not in EXTENDING:
        return int(positions)
    trained = positions
    if kind == "yarn":
        trained = _number_of(scaling, "original_max_position_embeddings", default=positions)
    return max(int(positions), int(trained * _number_of(scaling, "factor", default=1.0)))


def _number_of(scaling: Mapping[str, Any], name: str, default: float) -> float:
    """The number of this name, above 0. Raises `ConfigError` for anything else."""
    number = scaling.get(name)
    if number is None:
        return default
    is_number = isinstance(number, int | float) and not isinstance(number, bool)
    if not is_number or not 0 < number <= MOST_SCALED:
        raise ConfigError(
            f"the RoPE scaling of the model's config.json says {name}: {number!r}; expected a "
            f"number above 0 and at most {MOST_SCALED:,.0f}"
        )
    return number


def chooser(sampling: Sampling) -> Choose:
    """A function that samples as `sampling` says.

    Log-probabilities are of the whole distribution under its temperature, without top-k and top-p.
    The function raises `GeneratorError` for logits that are not numbers.
    """
    greedy = sampling.temperature == 0
    temperature = sampling.temperature or 1.0
    limits: list[LogitsProcessor] = []
    if sampling.top_k:
        limits.append(TopKLogitsWarper(sampling.top_k))
    if sampling.top_p < 1:
        limits.append(TopPLogitsWarper(sampling.top_p))

    def choose(logits: torch.Tensor) -> tuple[Row, list[float] | None]:
        scores = logits.float() / temperature
        _check_numbers(scores)
        if greedy:
            tokens = scores.argmax(-1, keepdim=True)
        else:
            allowed = scores
            for limit in limits:
                allowed = limit(None, allowed)
            tokens = _drawn(allowed.softmax(-1))
        logprobs = None
        if sampling.logprobs:
            logprobs = scores.log_softmax(-1).gather(-1, tokens)[:, 0].tolist()
        return tokens[:, 0].tolist(), logprobs

    return choose


def _check_numbers(scores: torch.Tensor) -> None:
    """Raise `GeneratorError` for rows without a token to choose: the greatest of their scores is
    infinite, or NaN, as it is wherever any is NaN.
    """
    if not scores.amax(-1).isfinite().all():
        raise GeneratorError(
            "the model's logits are not numbers (NaN or infinite), so no token can be chosen: its "
            "weights are broken or its precision overflows; go back to a checkpoint with a lower "
            "learning rate, or compute in float32"
        )


def _drawn(probs: torch.Tensor) -> torch.Tensor:
    """A token for each row."""
    if probs.device.type != "cpu":
        return torch.multinomial(probs, 1)
    # On CPUs `multinomial` is slow: it draws a number for each token of the vocabulary. One for
    # each row is enough: the token at which the sum of probabilities passes it.
    sums = probs.cumsum(-1, dtype=torch.float64)
    drawn = torch.rand(len(probs), 1, dtype=torch.float64) * sums[:, -1:]
    # `right=True`: a draw of 0 must not fall on a token of probability 0
    tokens = torch.searchsorted(sums, drawn, right=True)
    last = probs.shape[-1] - 1
    return tokens.clamp(max=last)  # rounding may give the whole sum
