"""A policy that is asked the same thing once.

An evaluation asks its questions again under other conditions, where the first turn is the same, and
several of its metrics ask for p(yes) after the same contexts.
"""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any

from .base import Completion, Generator, Sampling

_Choices = tuple[tuple[int, ...], ...]


class AskedOnce:
    """A generator whose greedy continuations and probabilities are kept.

    Its weights must not change while it is in use. Sampled continuations are not kept: each is a
    draw of its own.

    Example:
        ```python
        policy = AskedOnce(generator)
        policy.generate([ids, ids], Sampling(temperature=0.0))  # one row is decoded
        ```
    """

    def __init__(self, inner: Generator) -> None:
        self.inner, self.tokenizer = inner, inner.tokenizer
        self._written: dict[tuple[tuple[int, ...], int, Sampling], Completion] = {}
        self._probable: dict[tuple[tuple[int, ...], _Choices], list[float]] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def keeping(self) -> AbstractContextManager[None]:
        """See `Generator.keeping`."""
        return self.inner.keeping()

    def generate(
        self,
        prompts: Sequence[list[int]],
        sampling: Sampling,
        max_new_tokens: Sequence[int] | None = None,
    ) -> list[Completion]:
        """See `Generator.generate`."""
        if sampling.temperature > 0:
            return self.inner.generate(prompts, sampling, max_new_tokens)
        limits = max_new_tokens or [sampling.max_new_tokens] * len(prompts)
        keys = [
            (tuple(prompt), limit, sampling) for prompt, limit in zip(prompts, limits, strict=True)
        ]
        missing = [key for key in dict.fromkeys(keys) if key not in self._written]
        if missing:
            rows, room = [list(key[0]) for key in missing], [key[1] for key in missing]
            completions = self.inner.generate(rows, sampling, room)
            self._written |= zip(missing, completions, strict=True)
        return [self._written[key] for key in keys]

    def choice_probs(
        self, prompts: Sequence[list[int]], choices: Sequence[Sequence[list[int]]]
    ) -> list[list[float]]:
        """See `Generator.choice_probs`."""
        keys = [
            (tuple(prompt), tuple(map(tuple, prompt_choices)))
            for prompt, prompt_choices in zip(prompts, choices, strict=True)
        ]
        missing = [key for key in dict.fromkeys(keys) if key not in self._probable]
        rows = [list(prompt) for prompt, _ in missing]
        row_choices = [list(map(list, choices_)) for _, choices_ in missing]
        # asked even when nothing is missing: where weights are shared out, others need this
        # process's passes
        self._probable |= zip(missing, self.inner.choice_probs(rows, row_choices), strict=True)
        return [self._probable[key] for key in keys]
