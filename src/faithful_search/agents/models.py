"""The models that agents ask: one behind an OpenAI-compatible endpoint, or a policy here."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import cached_property
from typing import Any, NamedTuple, Protocol, Self

import msgspec

from ..errors import ConfigError
from ..inference.base import Generator, Sampling
from ..inference.chat import opening_ids, templated
from ..text import well_formed
from ..tools.batcher import Batcher
from ..wire.llm import LLM, Endpoint, Messages, Stats, with_key


class ModelReply(msgspec.Struct, frozen=True):
    """What a model replied.

    Attributes:
        text: without the stop string that ended it.
        cut: whether it ends at the token limit instead of its own end.
        prompt_tokens, completion_tokens: 0 where a server does not count them.
    """

    text: str
    cut: bool = False
    prompt_tokens: int = 0
    completion_tokens: int = 0


class PromptTooLong(Exception):
    """The messages leave the model no room for a reply."""


class ChatModel(Protocol):
    """A model that replies to chat messages.

    Attributes:
        name: the model's name, for results.
        tokenizer: its tokenizer, whose control tokens must not stand in retrieved text; `None`
            where it is not here.
        stats: counts of requests and tokens so far.
    """

    name: str
    tokenizer: Any
    stats: Stats

    def session(self) -> AbstractContextManager[None]:
        """A run of an agent. A server that was given up before is asked again, and a policy here
        keeps what it has read from one request to the next.
        """
        ...

    async def reply(
        self,
        messages: Messages,
        *,
        max_tokens: int,
        stop: Sequence[str] = (),
        temperature: float = 0.0,
        seed: int = 0,
    ) -> ModelReply:
        """The reply to these messages, of roles system, user and assistant.

        Raises `Unanswered` where this request has no answer, `JudgeError` where none can have one
        (a wrong key, an unknown model), and `PromptTooLong`.
        """
        ...


class ServedModel:
    """A model behind an OpenAI-compatible endpoint.

    Args:
        model: the served model's name.
        url: the server's base URL, usually ending in `/v1`; `None` for Hugging Face Inference
            Providers.
        key: the server's key, `""` for none; by default it is found as `EndpointJudge` finds it.
        timeout: seconds for one request.
        concurrency: requests under way at once.

    Example:
        ```python
        model = ServedModel("Qwen/Qwen2.5-7B-Instruct", "http://127.0.0.1:8000/v1")
        ```
    """

    tokenizer = None

    def __init__(
        self,
        model: str,
        url: str | None,
        key: str | None = None,
        timeout: float = 120.0,
        concurrency: int = 16,
    ) -> None:
        self.endpoint = Endpoint(
            url=url,
            model=model,
            key=key,
            timeout=timeout,
            patience=3 * timeout,  # retries included
            concurrency=concurrency,
        )
        self.name = model
        self.stats = Stats()

    @cached_property  # a missing key is an error when a run begins, not before
    def _llm(self) -> LLM:
        return LLM(with_key(self.endpoint), self.stats)

    @contextmanager
    def session(self) -> Iterator[None]:
        self._llm.new_batch()
        yield

    async def reply(
        self,
        messages: Messages,
        *,
        max_tokens: int,
        stop: Sequence[str] = (),
        temperature: float = 0.0,
        seed: int = 0,
    ) -> ModelReply:
        body: dict[str, Any] = {"temperature": temperature, "max_tokens": max_tokens, "seed": seed}
        if stop:
            body["stop"] = list(stop)
        reply = await self._llm.chat(messages, body)
        return ModelReply(
            # Some servers leave the stop string in, or write on behind it.
            text=_until(reply.text, stop),
            cut=reply.cut,
            prompt_tokens=reply.prompt_tokens,
            completion_tokens=reply.completion_tokens,
        )


class _Prompt(NamedTuple):
    """A request of a `PolicyModel`."""

    ids: list[int]
    max_tokens: int
    stop: tuple[str, ...]
    temperature: float


class PolicyModel:
    """A policy here, on Transformers or vLLM. Requests that are made at once go into one batch.

    Its sampling is seeded by the random state of torch: the `seed` of a request is not used.

    Args:
        generator: samples the policy.
        name: the policy's name; by default its tokenizer's.
        window: tokens of the longest prompt with its reply; `None` for no limit.
        batch: rows of a forward pass.

    Example:
        ```python
        model = PolicyModel.open("Qwen/Qwen2.5-0.5B-Instruct", dtype="bfloat16")
        ```
    """

    def __init__(
        self, generator: Generator, name: str = "", window: int | None = None, batch: int = 64
    ) -> None:
        if window is not None and window < 1:
            raise ConfigError(f"window must be at least 1, got {window}")
        self.generator = generator
        self.tokenizer = generator.tokenizer
        self.name = name or str(generator.tokenizer.name_or_path)
        self.window = window
        self.stats = Stats()
        self._batcher: Batcher[_Prompt, ModelReply] = Batcher(self._generate, most=batch)

    @classmethod
    def open(cls, source: str, batch: int = 64, **kwargs: Any) -> Self:
        """The policy of a directory, adapters included, or of a Hub id.

        `kwargs` are those of `inference.loading.open_model`: `dtype`, `device`,
        `trust_remote_code`. Raises `ConfigError` when it cannot be opened.
        """
        from ..inference.loading import max_tokens, open_generator

        generator = open_generator(source, **kwargs)
        window = max_tokens(generator.model, generator.tokenizer)
        return cls(generator, source, window, batch)

    def session(self) -> AbstractContextManager[None]:
        """Within it a prompt that goes on from one of the last batch, as an episode's next turn
        does, is read only from where they differ.
        """
        return self.generator.keeping()

    async def reply(
        self,
        messages: Messages,
        *,
        max_tokens: int,
        stop: Sequence[str] = (),
        temperature: float = 0.0,
        seed: int = 0,
    ) -> ModelReply:
        ids = self._ids(messages)
        if self.window is not None:
            room = self.window - len(ids)
            if room < 1:
                raise PromptTooLong(
                    f"the prompt has {len(ids)} tokens, of {self.window} that the model takes"
                )
            max_tokens = min(max_tokens, room)
        return await self._batcher.ask(_Prompt(ids, max_tokens, tuple(stop), temperature))

    def _ids(self, messages: Messages) -> list[int]:
        """The messages as the chat template writes them; for a base model's tokenizer, which has
        none, as plain text.
        """
        tokenizer = self.tokenizer
        opening: list[int] = []
        if tokenizer.chat_template:
            text = templated(tokenizer, messages, "the agent's messages")
        else:
            text = "\n\n".join(message["content"] for message in messages) + "\n\n"
            opening = opening_ids(tokenizer)
        encoded = tokenizer(well_formed(text), add_special_tokens=False, verbose=False)
        return [*opening, *encoded["input_ids"]]

    def _generate(self, rows: Sequence[_Prompt]) -> list[ModelReply]:
        """A reply for each row, in their order.

        The generator samples a batch with one temperature and the same stop strings, so that rows
        are grouped by these.
        """
        groups: defaultdict[tuple[tuple[str, ...], float], list[int]] = defaultdict(list)
        for number, row in enumerate(rows):
            groups[row.stop, row.temperature].append(number)
        replies: dict[int, ModelReply] = {}
        for (stop, temperature), numbers in groups.items():
            limits = [rows[number].max_tokens for number in numbers]
            sampling = Sampling(temperature, max_new_tokens=max(limits), stop=stop)
            prompts = [rows[number].ids for number in numbers]
            completions = self.generator.generate(prompts, sampling, limits)
            for number, completion in zip(numbers, completions, strict=True):
                text = self.tokenizer.decode(completion.ids, skip_special_tokens=True)
                replies[number] = ModelReply(
                    text=_until(text, stop),
                    cut=completion.finish == "length",
                    prompt_tokens=len(rows[number].ids),
                    completion_tokens=len(completion.ids),
                )
        self.stats.calls += len(rows)
        self.stats.prompt_tokens += sum(reply.prompt_tokens for reply in replies.values())
        self.stats.completion_tokens += sum(reply.completion_tokens for reply in replies.values())
        return [replies[number] for number in range(len(rows))]


def _until(text: str, stop: Sequence[str]) -> str:
    """The text before the stop string that comes first in it; all of it without one."""
    places = [text.index(string) for string in stop if string in text]
    end = min(places, default=len(text))
    return text[:end]
