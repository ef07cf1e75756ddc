"""Generation and probing with a Transformers causal LM: plain, batched, exact."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from transformers import GenerationConfig, LogitsProcessor, LogitsProcessorList, StoppingCriteria, StoppingCriteriaList

from ..errors import ConfigError
from . import sharing
from .base import Completion, Sampling
from .states import Batch, can_read_on
from .turns import Turns, chooser

_KEPT = {
    *("bos_token_id", "eos_token_id", "pad_token_id", "decoder_start_token_id"),
    *("use_cache", "cache_implementation", "cache_config", "max_cache_len", "compile_config", "disable_compile"),
    *("transformers_version", "_from_model_config", "_commit_hash"),
}


class TransformersGenerator:
    """A policy held by a Transformers model.

    Args:
        model: a causal LM (or a PEFT model around one); used in eval mode without gradient, its mode restored
            afterwards.
        tokenizer: its tokenizer.
        batch_size: rows per forward pass.
        share_prefixes: let `choice_probs` compute what prompts begin with alike only once, where that saves tokens. The
            probabilities are the same up to rounding. Models that forget tokens behind a window, or count
            padding, never share.
        agree: given how many forward passes a `choice_probs` takes here, how many every process makes. Where a model is
            spread over processes, a forward pass needs them all, and each must make as many.
        keep_bytes: what may be kept of contexts from turn to turn, see `keeping`.

    Example:
        ```python
        generator = TransformersGenerator(model, tokenizer)
        generator.generate([ids], Sampling(temperature=0.0, max_new_tokens=64, stop=("</answer>",)))[0].ids
        ```
    """

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        batch_size: int = 64,
        share_prefixes: bool = True,
        agree: Callable[[int], int] = int,
        keep_bytes: int = 4 * 2**30,
    ) -> None:
        self.model = model
        self.tokenizer = tokenizer
        self.batch_size = batch_size
        self.share_prefixes = share_prefixes
        self.agree = agree
        self.keep_bytes = keep_bytes
        self._turns: Turns | None = None
        self._holds: bool | None = None
        self._closers: dict[str, frozenset[int]] = {}

    def generate(
        self, prompts: Sequence[list[int]], sampling: Sampling, max_new_tokens: Sequence[int] | None = None
    ) -> list[Completion]:
        """See `Generator.generate`.

        Prompts of similar length share a batch; results come in the order of the prompts. The model's own generation
        settings (penalties, suppressed tokens, …) do not apply.

        Raises:
            ConfigError: when a prompt leaves no position of the model for a new token.
            GeneratorError: while `keeping`, when the model's logits are not numbers.
        """
        self._check_lengths(prompts)
        limits = list(max_new_tokens) if max_new_tokens is not None else [sampling.max_new_tokens] * len(prompts)
        done: dict[int, Completion] = {}
        with _inference_mode(self.model), _plain_generation(self.model.generation_config):
            known = self._turns.take(prompts) if self._turns else {}
            for rows in self._batches(prompts):
                own, most = [prompts[row] for row in rows], [limits[row] for row in rows]
                if self._turns:
                    read = self._turns.read(own, [known.pop(row) for row in rows])
                    written = self._write(self._turns, read, own, sampling, most)
                    del read  # before the next batch needs the memory
                else:
                    written = self._generate(own, sampling, most)
                done.update(zip(rows, written, strict=True))
        return [done[row] for row in range(len(prompts))]

    @contextmanager
    def keeping(self) -> Iterator[None]:
        """While this lasts, what the model remembers of the rows that `generate` continued is kept for the next call:
        a prompt that goes on from one of them, as an episode's next turn does, is read only from there.

        Completions are distributed as without it. Weights and adapters must stay as they are meanwhile. Between calls
        at most `keep_bytes` are kept, only of rows of the last call (while one lasts, as much again may be there);
        other prompts, and changed ones, are read from where they differ. Models that forget tokens behind a window, or
        remember more than keys and values, keep nothing. Nothing is left when this ends.
        """
        before = self._turns
        with _inference_mode(self.model):
            self._turns = Turns(self.model, self.keep_bytes) if can_read_on(self.model) else None
        try:
            yield
        finally:
            self._turns = before

    def choice_probs(self, prompts: Sequence[list[int]], choices: Sequence[Sequence[list[int]]]) -> list[list[float]]:
        """See `Generator.choice_probs`; costs and errors are those of `choice_logprobs`."""
        return [[math.exp(value) for value in own] for own in self.choice_logprobs(prompts, choices)]

    def choice_logprobs(
        self, prompts: Sequence[list[int]], choices: Sequence[Sequence[list[int]]]
    ) -> list[list[float]]:
        """See `Scorer.choice_logprobs`.

        Choices of one token cost a row for each prompt; longer ones a row each. What the prompts of a batch begin with
        alike is computed once, and rows are padded only where that costs less than a pass of their own.

        Raises:
            ConfigError: for a choice without tokens.
        """
        wanted: dict[tuple[int, ...], list[tuple[int, int]]] = {}
        for i, (prompt, own) in enumerate(zip(prompts, choices, strict=True)):
            for j, choice in enumerate(own):
                if not choice:
                    raise ConfigError(f"choice {j} of prompt {i} is empty: a choice needs at least one token")
                wanted.setdefault((*prompt, *choice[:-1]), []).append((i, j))
        rows = [list(row) for row in wanted]
        places = list(wanted.values())
        keep = max((len(choice) for own in choices for choice in own), default=1)
        logprobs = [[0.0] * len(own) for own in choices]
        with _inference_mode(self.model):
            for row, logits in self._logits(rows, keep):
                table = torch.log_softmax(logits.float(), dim=-1)
                for i, j in places[row]:
                    logprobs[i][j] = _chain(table, choices[i][j])
        return logprobs

    def _check_lengths(self, prompts: Sequence[list[int]]) -> None:
        positions, longest = _positions(self.model.config), max(map(len, prompts), default=0)
        if positions is not None and longest >= positions:
            raise ConfigError(
                f"a prompt of {longest} tokens leaves no room in the model's {positions} positions; lower the "
                "episode's total_tokens, return less evidence per call, or take a model with a longer context"
            )

    def _batches(self, prompts: Sequence[list[int]]) -> Iterator[list[int]]:
        order = sorted(range(len(prompts)), key=lambda row: len(prompts[row]))
        for start in range(0, len(order), self.batch_size):
            yield order[start : start + self.batch_size]

    def _logits(self, rows: list[list[int]], keep: int) -> Iterator[tuple[int, torch.Tensor]]:
        """Of the last `keep` tokens of each row, where it has so many."""
        call = sharing.cost_of_call(next(self.model.parameters()).device)
        parts = sharing.schedule(rows, keep, call, self.batch_size, self._shares())
        passes = sum(sharing.forwards(rows, part, call) for part in parts)
        idle = self.agree(passes) - passes
        for part in parts:
            yield from self._part(rows, part, keep, call)
        for _ in range(idle):
            self._forward([[0]], 1)

    def _part(
        self, rows: list[list[int]], part: sharing.Part, keep: int, call: int
    ) -> Iterator[tuple[int, torch.Tensor]]:
        """Of the rows of one part, in as many passes as pay."""
        heads = self._read(part.heads) if part.heads else None
        lengths = sharing.own_lengths(rows, part)
        for group in sharing.passes(lengths, call):
            batch = [rows[part.rows[place]][-lengths[place] :] for place in group]
            owners = [part.owners[place] for place in group] if heads else []
            logits = self._behind(heads, owners, batch, keep) if heads else self._forward(batch, keep)
            yield from zip((part.rows[place] for place in group), logits, strict=True)

    def _shares(self) -> bool:
        """Whether heads are read once: asked for, and the model returns what can be held."""
        if self._holds is None:
            self._holds = (
                self.share_prefixes and sharing.can_share(self.model) and sharing.can_hold(self._read([[0]])[0])
            )
        return self._holds

    def _read(self, heads: list[list[int]]) -> tuple[Any, torch.Tensor]:
        """What the model remembers of the heads, and which of it is no padding."""
        ids, mask = self._pad(heads)
        read = self.model(
            input_ids=ids, attention_mask=mask, position_ids=_places(mask), logits_to_keep=1, use_cache=True
        )
        return getattr(read, "past_key_values", None), mask

    def _behind(
        self, heads: tuple[Any, torch.Tensor], owners: list[int], rows: list[list[int]], keep: int
    ) -> torch.Tensor:
        """As `_forward`, of what stands behind the heads that own the rows."""
        ids, mask = self._pad(rows)
        cache, places = heads[0], torch.tensor(owners, device=ids.device)
        before = heads[1][places]
        return self.model(
            input_ids=ids,
            attention_mask=torch.cat([before, mask], dim=-1),
            position_ids=before.sum(-1)[:, None] + _places(mask),
            past_key_values=sharing.held(cache, places),
            logits_to_keep=keep,
            use_cache=True,
        ).logits

    def _forward(self, prompts: list[list[int]], keep: int) -> torch.Tensor:
        ids, mask = self._pad(prompts)
        return self.model(
            input_ids=ids, attention_mask=mask, position_ids=_places(mask), logits_to_keep=keep, use_cache=False
        ).logits

    def _generate(self, prompts: list[list[int]], sampling: Sampling, limits: list[int]) -> list[Completion]:
        ids, mask = self._pad(prompts)
        width = ids.shape[1]
        stopper = _TurnEnd(self.tokenizer, sampling.stop, self._closing_tokens(sampling.stop), limits, width)
        recorder = _ChosenLogProbs(sampling.temperature) if sampling.logprobs else None
        output = self.model.generate(
            input_ids=ids,
            attention_mask=mask,
            generation_config=self._config(sampling, max(limits)),
            stopping_criteria=StoppingCriteriaList([stopper]),
            logits_processor=LogitsProcessorList([recorder] if recorder else []),
            synced_gpus=False,  # each process generates alone
        )
        logprobs = recorder.finish(output) if recorder else [None] * len(prompts)
        return [
            self._completion(row, limit, values, sampling.stop)
            for row, limit, values in zip(output[:, width:].tolist(), limits, logprobs, strict=True)
        ]

    def _write(
        self, turns: Turns, batch: Batch, prompts: list[list[int]], sampling: Sampling, limits: list[int]
    ) -> list[Completion]:
        """As `_generate`, from a batch in which the prompts have been read."""
        eos, stop, closers = self._eos, sampling.stop, self._closing_tokens(sampling.stop)

        def ended(row: int, ids: list[int]) -> bool:
            if len(ids) >= limits[row] or ids[-1] in eos:
                return True
            return ids[-1] in closers and _has_stop(self.tokenizer, ids, stop)

        written = turns.write(batch, prompts, chooser(sampling), ended)
        return [
            self._completion(row.ids, limit, torch.tensor(row.logprobs) if sampling.logprobs else None, stop)
            for row, limit in zip(written, limits, strict=True)
        ]

    def _completion(self, row: list[int], limit: int, logprobs: Any, stop: tuple[str, ...]) -> Completion:
        end = _TurnEnd.length(self.tokenizer, row[:limit], self._eos, stop, self._closing_tokens(stop))
        ids = row[: end[0]]
        return Completion(ids, end[1], logprobs[: len(ids)].tolist() if logprobs is not None else None)

    @property
    def _eos(self) -> frozenset[int]:
        own = self.model.generation_config.eos_token_id
        many = own if isinstance(own, list) else [own]
        return frozenset(token for token in (*many, self.tokenizer.eos_token_id) if token is not None)

    def _config(self, sampling: Sampling, limit: int) -> GenerationConfig:
        greedy = sampling.temperature == 0
        pad = self.tokenizer.pad_token_id
        return GenerationConfig(
            max_new_tokens=limit,
            do_sample=not greedy,
            temperature=None if greedy else sampling.temperature,
            top_p=None if greedy else sampling.top_p,
            top_k=None if greedy else sampling.top_k,
            eos_token_id=sorted(self._eos) or None,
            pad_token_id=pad if pad is not None else min(self._eos, default=0),
        )

    def _pad(self, prompts: list[list[int]]) -> tuple[torch.Tensor, torch.Tensor]:
        device = next(self.model.parameters()).device
        width = max(map(len, prompts))
        pad = self.tokenizer.pad_token_id or 0
        ids = torch.tensor([[pad] * (width - len(prompt)) + list(prompt) for prompt in prompts], device=device)
        mask = torch.tensor([[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in prompts], device=device)
        return ids, mask

    def _closing_tokens(self, stop: tuple[str, ...]) -> frozenset[int]:
        """Tokens whose text holds the last character of a stop string: only after these can a turn have ended."""
        for last in {text[-1] for text in stop} - self._closers.keys():
            pieces = self.tokenizer.batch_decode([[token] for token in range(len(self.tokenizer))])
            self._closers[last] = frozenset(token for token, piece in enumerate(pieces) if last in piece)
        return frozenset().union(*(self._closers[text[-1]] for text in stop))


class _TurnEnd(StoppingCriteria):
    """Ends each row at its own limit, or where its new text holds a stop string."""

    def __init__(
        self, tokenizer: Any, stop: tuple[str, ...], closers: frozenset[int], limits: list[int], width: int
    ) -> None:
        self.tokenizer, self.stop, self.closers, self.limits, self.width = tokenizer, stop, closers, limits, width
        self.done = [False] * len(limits)

    def __call__(self, input_ids: torch.Tensor, scores: Any, **kwargs: Any) -> torch.Tensor:
        new = input_ids.shape[1] - self.width
        for row, token in enumerate(input_ids[:, -1].tolist()):
            if not self.done[row]:
                self.done[row] = new >= self.limits[row] or (
                    token in self.closers
                    and _has_stop(self.tokenizer, input_ids[row, self.width :].tolist(), self.stop)
                )
        return torch.tensor(self.done, device=input_ids.device)

    @staticmethod
    def length(
        tokenizer: Any, ids: list[int], eos: frozenset[int], stop: tuple[str, ...], closers: frozenset[int]
    ) -> tuple[int, str]:
        """Where a row ended and why: padding after the end is not part of it."""
        for end, token in enumerate(ids, start=1):
            if token in eos:
                return end, "eos"
            if token in closers and _has_stop(tokenizer, ids[:end], stop):
                return end, "stop"
        return len(ids), "length"


class _ChosenLogProbs(LogitsProcessor):
    """Notes the log-probability of each sampled token, holding one step's distribution at a time."""

    def __init__(self, temperature: float) -> None:
        self.temperature = temperature or 1.0
        self.last: torch.Tensor | None = None
        self.values: list[torch.Tensor] = []

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        self._note(input_ids)
        self.last = torch.log_softmax(scores.float() / self.temperature, dim=-1)
        return scores

    def _note(self, ids: torch.Tensor) -> None:
        if self.last is not None:
            self.values.append(self.last.gather(1, ids[:, -1:]))

    def finish(self, ids: torch.Tensor) -> torch.Tensor:
        """The log-probabilities of all new tokens, a row per prompt."""
        self._note(ids)
        return torch.cat(self.values, dim=1)


def _has_stop(tokenizer: Any, ids: list[int], stop: tuple[str, ...]) -> bool:
    # A stop string spans few tokens; the window keeps long turns linear.
    # One character takes at most four byte-level tokens.
    window = 4 * max(map(len, stop), default=0) + 4
    text = tokenizer.decode(ids[-window:], skip_special_tokens=False)
    return any(item in text for item in stop)


def _places(mask: torch.Tensor) -> torch.Tensor:
    """The position of each token in its row, padding not counted."""
    return (mask.cumsum(-1) - 1).clamp(min=0)


def _chain(logprobs: torch.Tensor, choice: list[int]) -> float:
    tail = logprobs[-len(choice) :]
    return float(tail.gather(1, torch.tensor(choice, device=tail.device)[:, None]).sum())


def _positions(config: Any) -> int | None:
    """How many positions the model was made for, stretched by its RoPE scaling; `None` when it does not say."""
    config = config.get_text_config() if hasattr(config, "get_text_config") else config
    positions = getattr(config, "max_position_embeddings", None)
    scaling = getattr(config, "rope_parameters", None) or getattr(config, "rope_scaling", None) or {}
    return positions and int(positions * max(1.0, scaling.get("factor") or 1.0))


@contextmanager
def _plain_generation(config: GenerationConfig) -> Iterator[None]:
    """Hides what a model ships in its generation config: `generate` would take all that a call leaves unset from it.

    The policy is to be sampled as it is. Ids of special tokens and how the cache is held stay.
    """
    own = dict(vars(config))
    plain = {key: value for key, value in vars(GenerationConfig()).items() if key not in _KEPT and key in own}
    vars(config).update(plain)
    try:
        yield
    finally:
        vars(config).update(own)


@contextmanager
def _inference_mode(model: Any) -> Iterator[None]:
    training = model.training
    # renamed in Transformers 5.2x
    kind = "activation" if hasattr(model, "activation_checkpointing_enable") else "gradient"
    checkpointing = getattr(model, f"is_{kind}_checkpointing", False)
    model.eval()
    if checkpointing:
        getattr(model, f"{kind}_checkpointing_disable")()
    try:
        with torch.no_grad():
            yield
    finally:
        if checkpointing:
            getattr(model, f"{kind}_checkpointing_enable")()
        model.train(training)
