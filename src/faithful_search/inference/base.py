"""What a generator is: it continues token ids, and says how probable given continuations are."""

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol, runtime_checkable

import msgspec

from ..errors import ConfigError


class Sampling(msgspec.Struct, frozen=True):
    """How to sample. `temperature` 0 is greedy, `top_k` 0 and `top_p` 1 keep the whole
    distribution.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    max_new_tokens: int = 512
    stop: tuple[str, ...] = ()
    logprobs: bool = False

    def __post_init__(self) -> None:
        if not 0 <= self.temperature < float("inf"):
            raise ConfigError(
                f"temperature must be a finite number of at least 0, got {self.temperature}"
            )
        if not 0 < self.top_p <= 1:
            raise ConfigError(
                f"top_p must be above 0 and at most 1 (1: everything), got {self.top_p}"
            )
        if self.top_k < 0:
            raise ConfigError(f"top_k must be at least 0 (0: everything), got {self.top_k}")
        if self.max_new_tokens < 1:
            raise ConfigError(f"max_new_tokens must be at least 1, got {self.max_new_tokens}")
        if "" in self.stop:
            raise ConfigError(
                "stop must be strings that are not empty: an empty one would end every turn at "
                "once, "
                f"got {self.stop}"
            )


class Completion(msgspec.Struct, frozen=True):
    """`ids` exactly as sampled, the end-of-sequence token included when it was sampled. `finish` is
    "stop" (a stop string), "eos" or "length". `logprobs` are natural logs under the
    temperature-scaled distribution.
    """

    ids: list[int]
    finish: str
    logprobs: list[float] | None = None


@runtime_checkable
class Generator(Protocol):
    """A policy that can be sampled and probed. `tokenizer` is the Hugging Face tokenizer of its
    ids. A class that derives from it has the default of `keeping`.
    """

    tokenizer: Any

    def generate(
        self,
        prompts: Sequence[list[int]],
        sampling: Sampling,
        max_new_tokens: Sequence[int] | None = None,
    ) -> list[Completion]:
        """Continue each prompt; `max_new_tokens` gives a limit per prompt (at most the
        sampling's).
        """
        ...

    def choice_probs(
        self, prompts: Sequence[list[int]], choices: Sequence[Sequence[list[int]]]
    ) -> list[list[float]]:
        """p(choice | prompt) for each prompt's own choices: raw, not normalised over the
        choices.
        """
        ...

    def keeping(self) -> AbstractContextManager[None]:
        """While entered, what was computed of the rows that `generate` continued may be kept for
        the next call, whose prompts often go on from them. The weights must not change.
        """
        return nullcontext()


@runtime_checkable
class Scorer(Protocol):
    """A generator that also gives log-probabilities, for continuations so improbable that p is 0 in
    floating point.
    """

    tokenizer: Any

    def choice_logprobs(
        self, prompts: Sequence[list[int]], choices: Sequence[Sequence[list[int]]]
    ) -> list[list[float]]:
        """log p(choice | prompt) for each prompt's own choices: natural logs, summed over a
        choice's tokens.
        """
        ...


def check_choices(choices: Sequence[Sequence[list[int]]]) -> None:
    """Raise `ConfigError` for a choice without tokens."""
    for number, of_prompt in enumerate(choices):
        if [] in of_prompt:
            raise ConfigError(
                f"choice {of_prompt.index([])} of prompt {number} is empty: a choice needs at "
                "least "
                "one token"
            )
