"""Generation and probing with a Transformers causal LM: plain, batched, exact."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from transformers import GenerationConfig, LogitsProcessor, LogitsProcessorList, StoppingCriteriaList

from ..errors import ConfigError
from . import sharing
from .base import Completion, Sampling
from .modes import inference_mode, plain_generation, positions_of
from .states import Batch, can_hold, can_read_on, can_share, held, padded, places
from .turns import Turns, chooser


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

    Raises:
        ConfigError: for a `batch_size` below 1.

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
        if batch_size < 1:
            raise ConfigError(f"a forward pass needs at least 1 row, got batch_size={batch_size}")
        self.model, self.tokenizer, self.batch_size = model, tokenizer, batch_size
        self.share_prefixes, self.agree, self.keep_bytes = share_prefixes, agree, keep_bytes
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
        positions, longest = positions_of(self.model.config), max(map(len, prompts), default=0)
        if positions is not None and longest >= positions:
            raise ConfigError(
                f"a prompt of {longest} tokens leaves no room in the model's {positions} positions; lower the "
                "episode's total_tokens, return less evidence per call, or take a model with a longer context"
            )
        limits = list(max_new_tokens) if max_new_tokens is not None else [sampling.max_new_tokens] * len(prompts)
        # prompts of similar length share a batch, so that little of it is padding
        order = sorted(range(len(prompts)), key=lambda row: len(prompts[row]))
        own_end = self.model.generation_config.eos_token_id
        eos = (*(own_end if isinstance(own_end, list) else [own_end]), self.tokenizer.eos_token_id)
        for last in {text[-1] for text in sampling.stop} - self._closers.keys():  # kept: the whole vocabulary is read
            pieces = self.tokenizer.batch_decode([[token] for token in range(len(self.tokenizer))])
            self._closers[last] = frozenset(token for token, piece in enumerate(pieces) if last in piece)
        closers = frozenset().union(*(self._closers[text[-1]] for text in sampling.stop))
        end = _End(self.tokenizer, frozenset(token for token in eos if token is not None), sampling.stop, closers)
        done: dict[int, Completion] = {}
        with inference_mode(self.model), plain_generation(self.model.generation_config):
            known = self._turns.take(prompts) if self._turns else {}
            for start in range(0, len(order), self.batch_size):
                rows = order[start : start + self.batch_size]
                own, most = [prompts[row] for row in rows], [limits[row] for row in rows]
                if self._turns:
                    read = self._turns.read(own, [known.pop(row) for row in rows])
                    written = self._write(self._turns, read, own, sampling, most, end)
                    del read  # before the next batch needs the memory
                else:
                    written = self._generate(own, sampling, most, end)
                done.update(zip(rows, written, strict=True))
        return [done[row] for row in range(len(prompts))]

    @contextmanager
    def keeping(self) -> Iterator[None]:
        """While this lasts, what the model remembers of the rows that `generate` continued is kept for the next call:
        a prompt that goes on from one of them, as an episode's next turn does, is read only from there.

        Completions are distributed as without it. Weights and adapters must not change. Between calls
        at most `keep_bytes` are kept, only of rows of the last call (while one lasts, as much again may be there);
        other prompts, and changed ones, are read from where they differ. Models that forget tokens behind a window, or
        remember more than keys and values, keep nothing. Nothing is left when this ends.
        """
        before = self._turns
        with inference_mode(self.model):
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
                # a choice's last token is only scored, so choices of one token share their prompt's row
                wanted.setdefault((*prompt, *choice[:-1]), []).append((i, j))
        rows = [list(row) for row in wanted]
        askers = list(wanted.values())
        keep = max((len(choice) for own in choices for choice in own), default=1)
        logprobs = [[0.0] * len(own) for own in choices]
        with inference_mode(self.model):
            for row, logits in self._logits(rows, keep):
                table = torch.log_softmax(logits.float(), dim=-1)
                for i, j in askers[row]:
                    tokens = torch.tensor(choices[i][j], device=table.device)
                    logprobs[i][j] = float(table[-len(tokens) :].gather(1, tokens[:, None]).sum())
        return logprobs

    def _logits(self, rows: list[list[int]], keep: int) -> Iterator[tuple[int, torch.Tensor]]:
        """Logits of the last `keep` tokens of each row, or of all where it has fewer."""
        if self._holds is None:  # whether heads are read once: asked for, and the model returns what can be held
            self._holds = self.share_prefixes and can_share(self.model) and can_hold(self._read([[0]])[0])
        call = sharing.cost_of_call(self._device.type)
        parts = []
        passes = 0
        for part in sharing.schedule(rows, keep, call, self.batch_size, self._holds):
            groups = sharing.passes(part.own_lengths(rows), call)
            parts.append((part, groups))
            passes += bool(part.heads) + len(groups)
        idle = self.agree(passes) - passes
        for part, groups in parts:
            heads = self._read(part.heads) if part.heads else None
            lengths = part.own_lengths(rows)
            for group in groups:
                own = [rows[part.rows[place]][-lengths[place] :] for place in group]
                logits = self._forward(own, keep, heads, [part.owners[place] for place in group] if heads else [])
                yield from zip((part.rows[place] for place in group), logits, strict=True)
        for _ in range(idle):  # other processes wait for this one's part of the model
            self._forward([[0]], 1)

    def _read(self, heads: list[list[int]]) -> tuple[Any, torch.Tensor]:
        """What the model remembers of the heads, and a mask that tells it from padding."""
        ids, mask = self._padded(heads)
        read = self.model(
            input_ids=ids, attention_mask=mask, position_ids=places(mask), logits_to_keep=1, use_cache=True
        )
        return getattr(read, "past_key_values", None), mask

    def _forward(
        self,
        rows: list[list[int]],
        keep: int,
        heads: tuple[Any, torch.Tensor] | None = None,
        owners: Sequence[int] = (),
    ) -> torch.Tensor:
        """Logits of the last `keep` tokens of rows, which stand behind the heads that own them, if there are any."""
        ids, mask = self._padded(rows)
        positions = places(mask)
        how: dict[str, Any] = {"use_cache": False}
        if heads is not None:
            own = torch.tensor(owners, device=ids.device)
            before = heads[1][own]
            positions = before.sum(-1)[:, None] + positions
            mask = torch.cat([before, mask], dim=-1)
            how = {"use_cache": True, "past_key_values": held(heads[0], own)}
        return self.model(input_ids=ids, attention_mask=mask, position_ids=positions, logits_to_keep=keep, **how).logits

    def _generate(self, prompts: list[list[int]], sampling: Sampling, limits: list[int], end: _End) -> list[Completion]:
        ids, mask = self._padded(prompts)
        width, over = ids.shape[1], [False] * len(limits)

        def stopped(input_ids: torch.Tensor, scores: Any, **kwargs: Any) -> torch.Tensor:
            """Each row ends at its own limit, or with a stop string; Transformers itself ends it with the EOS."""
            for row, token in enumerate(input_ids[:, -1].tolist()):
                over[row] = over[row] or input_ids.shape[1] - width >= limits[row]
                over[row] = over[row] or (token in end.closers and end.stops(input_ids[row, width:].tolist()))
            return torch.tensor(over, device=input_ids.device)

        greedy, pad = sampling.temperature == 0, self.tokenizer.pad_token_id
        recorder = _ChosenLogProbs(sampling.temperature) if sampling.logprobs else None
        output = self.model.generate(
            input_ids=ids,
            attention_mask=mask,
            generation_config=GenerationConfig(
                max_new_tokens=max(limits),
                do_sample=not greedy,
                temperature=None if greedy else sampling.temperature,
                top_p=None if greedy else sampling.top_p,
                top_k=None if greedy else sampling.top_k,
                eos_token_id=sorted(end.eos) or None,
                pad_token_id=pad if pad is not None else min(end.eos, default=0),
            ),
            stopping_criteria=StoppingCriteriaList([stopped]),
            logits_processor=LogitsProcessorList([recorder] if recorder else []),
            synced_gpus=False,  # each process generates alone
        )
        logprobs = recorder.finish(output).tolist() if recorder else [None] * len(prompts)
        new = output[:, width:].tolist()
        return [end.completion(row[:limit], own) for row, limit, own in zip(new, limits, logprobs, strict=True)]

    def _write(
        self, turns: Turns, batch: Batch, prompts: list[list[int]], sampling: Sampling, limits: list[int], end: _End
    ) -> list[Completion]:
        """As `_generate`, from a batch in which the prompts have been read."""

        def ended(row: int, ids: list[int]) -> bool:
            return len(ids) >= limits[row] or ids[-1] in end.eos or (ids[-1] in end.closers and end.stops(ids))

        written = turns.write(batch, prompts, chooser(sampling), ended)
        return [end.completion(row.ids, row.logprobs if sampling.logprobs else None) for row in written]

    @property
    def _device(self) -> torch.device:
        return next(self.model.parameters()).device

    def _padded(self, rows: list[list[int]]) -> tuple[torch.Tensor, torch.Tensor]:
        return padded(rows, self.tokenizer.pad_token_id or 0, self._device)


class _End(NamedTuple):
    """Where turns end: with one of the `eos` tokens, or a stop string.

    `closers` are the tokens whose text holds the last character of a stop string: only these can complete one, so that
    the text is decoded rarely.
    """

    tokenizer: Any
    eos: frozenset[int]
    stop: tuple[str, ...]
    closers: frozenset[int]

    def stops(self, ids: list[int]) -> bool:
        """Whether there is a stop string at the end of these tokens."""
        # a stop string spans few tokens, so a window keeps long turns linear; a character takes at most four tokens
        window = 4 * max(map(len, self.stop), default=0) + 4
        text = self.tokenizer.decode(ids[-window:], skip_special_tokens=False)
        return any(item in text for item in self.stop)

    def completion(self, ids: list[int], logprobs: list[float] | None) -> Completion:
        """Of new tokens: what comes behind the end is padding."""
        length, finish = len(ids), "length"
        for place, token in enumerate(ids, start=1):
            if token in self.eos or (token in self.closers and self.stops(ids[:place])):
                length, finish = place, "eos" if token in self.eos else "stop"
                break
        return Completion(ids[:length], finish, None if logprobs is None else logprobs[:length])


class _ChosenLogProbs(LogitsProcessor):
    """Notes the log-probability of each sampled token, holding one step's distribution at a time."""

    def __init__(self, temperature: float) -> None:
        self.temperature = temperature or 1.0
        self.last: torch.Tensor | None = None
        self.values: list[torch.Tensor] = []

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        self._note(input_ids)
        # Transformers calls given processors before its own temperature
        self.last = torch.log_softmax(scores.float() / self.temperature, dim=-1)
        return scores

    def _note(self, ids: torch.Tensor) -> None:
        if self.last is not None:
            self.values.append(self.last.gather(1, ids[:, -1:]))

    def finish(self, ids: torch.Tensor) -> torch.Tensor:
        """The log-probabilities of all new tokens, a row per prompt."""
        self._note(ids)
        return torch.cat(self.values, dim=1)
