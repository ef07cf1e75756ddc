"""What a generator is: it continues token ids, and says how probable given continuations are."""

from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

import msgspec

from ..errors import ConfigError


class Sampling(msgspec.Struct, frozen=True):
    """How to sample. `temperature` 0 is greedy, `top_k` 0 and `top_p` 1 keep the whole distribution."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    max_new_tokens: int = 512
    stop: tuple[str, ...] = ()
    logprobs: bool = False

    def __post_init__(self) -> None:
        wanted = {
            "temperature": (0 <= self.temperature < float("inf"), "a finite number of at least 0"),
            "top_p": (0 < self.top_p <= 1, "above 0 and at most 1 (1: everything)"),
            "top_k": (self.top_k >= 0, "at least 0 (0: everything)"),
            "max_new_tokens": (self.max_new_tokens >= 1, "at least 1"),
            "stop": (
                "" not in self.stop,
                "strings that are not empty: an empty one would end every turn at once",
            ),
        }
        for name, (fine, what) in wanted.items():
            if not fine:
                raise ConfigError(f"{name} must be {what}, got {getattr(self, name)}")


class Completion(msgspec.Struct, frozen=True):
    """`ids` exactly as sampled, the end-of-sequence token included when it was sampled. `finish` is "stop" (a stop
    string), "eos" or "length". `logprobs` are natural logs under the temperature-scaled distribution."""

    ids: list[int]
    finish: str
    logprobs: list[float] | None = None


@runtime_checkable
class Generator(Protocol):
    """A policy that can be sampled and probed. `tokenizer` is the Hugging Face tokenizer of its ids."""

    tokenizer: Any

    def generate(
        self,
        prompts: Sequence[list[int]],
        sampling: Sampling,
        max_new_tokens: Sequence[int] | None = None,
    ) -> list[Completion]:
        """Continue each prompt; `max_new_tokens` gives a limit per prompt (at most the sampling's)."""
        ...

    def choice_probs(
        self, prompts: Sequence[list[int]], choices: Sequence[Sequence[list[int]]]
    ) -> list[list[float]]:
        """p(choice | prompt) for each prompt's own choices: raw, not normalised over the choices."""
        ...


@runtime_checkable
class Scorer(Protocol):
    """A generator that also gives log-probabilities, for continuations so improbable that p is 0 in floating point."""

    tokenizer: Any

    def choice_logprobs(
        self, prompts: Sequence[list[int]], choices: Sequence[Sequence[list[int]]]
    ) -> list[list[float]]:
        """log p(choice | prompt) for each prompt's own choices: natural logs, summed over a choice's tokens."""
        ...


def check_choices(choices: Sequence[Sequence[list[int]]]) -> None:
    """Raise `ConfigError` for a choice without tokens."""
    for i, own in enumerate(choices):
        if [] in own:
            raise ConfigError(
                f"choice {own.index([])} of prompt {i} is empty: a choice needs at least one token"
            )
