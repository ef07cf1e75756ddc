"""What a generator is: it continues token ids, and says how probable given continuations are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

import msgspec


class Sampling(msgspec.Struct, frozen=True):
    """How to sample. `temperature` 0 is greedy."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    max_new_tokens: int = 512
    stop: tuple[str, ...] = ()
    logprobs: bool = False


class Completion(msgspec.Struct, frozen=True):
    """`ids` exactly as sampled, the end-of-sequence token included when it was sampled.

    `finish` is "stop" (a stop string), "eos" or "length". `logprobs` are natural logs under the temperature-scaled
    distribution.
    """

    ids: list[int]
    finish: str
    logprobs: list[float] | None = None


@runtime_checkable
class Generator(Protocol):
    """A policy that can be sampled and probed. `tokenizer` is the Hugging Face tokenizer of its ids."""

    tokenizer: Any

    def generate(
        self, prompts: Sequence[list[int]], sampling: Sampling, max_new_tokens: Sequence[int] | None = None
    ) -> list[Completion]:
        """Continue each prompt; `max_new_tokens` gives a limit per prompt (at most the sampling's)."""
        ...

    def choice_probs(self, prompts: Sequence[list[int]], choices: Sequence[Sequence[list[int]]]) -> list[list[float]]:
        """p(choice | prompt) for each prompt's own choices.

        These are raw probabilities of the choices' tokens, not normalised.
        """
        ...
