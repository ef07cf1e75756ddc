"""A policy that is asked the same thing once.

An evaluation asks its questions again under other conditions, where the first turn is the same, and
several of its metrics ask for p(yes) after the same contexts.
"""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any

from .base import Completion, Generator, Sampling

_Ids = tuple[int, ...]  # of tokens
_Choices = tuple[_Ids, ...]


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
        self.inner = inner
        self.tokenizer = inner.tokenizer
        self._completions: dict[tuple[_Ids, int, Sampling], Completion] = {}
        self._choice_probs: dict[tuple[_Ids, _Choices], list[float]] = {}

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
        keys = []
        for prompt, limit in zip(prompts, limits, strict=True):
            keys.append((tuple(prompt), limit, sampling))
        missing = [key for key in dict.fromkeys(keys) if key not in self._completions]
        if missing:
            missing_prompts = [list(prompt) for prompt, _, _ in missing]
            missing_limits = [limit for _, limit, _ in missing]
            completions = self.inner.generate(missing_prompts, sampling, missing_limits)
            self._completions |= zip(missing, completions, strict=True)
        return [self._completions[key] for key in keys]

    def choice_probs(
        self, prompts: Sequence[list[int]], choices: Sequence[Sequence[list[int]]]
    ) -> list[list[float]]:
        """See `Generator.choice_probs`."""
        keys = []
        for prompt, prompt_choices in zip(prompts, choices, strict=True):
            choices_key = tuple(map(tuple, prompt_choices))
            keys.append((tuple(prompt), choices_key))
        missing = [key for key in dict.fromkeys(keys) if key not in self._choice_probs]
        missing_prompts = [list(prompt) for prompt, _ in missing]
        missing_choices = [list(map(list, prompt_choices)) for _, prompt_choices in missing]
        # asked even when nothing is missing: where weights are shared out, others need this
        # process's passes
        probs = self.inner.choice_probs(missing_prompts, missing_choices)
        self._choice_probs |= zip(missing, probs, strict=True)
        return [self._choice_probs[key] for key in keys]
