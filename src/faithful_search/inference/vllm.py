"""Generation and probing with vLLM, in this process or behind a server.

Rows of any length run together, and vLLM keeps prefixes between turns. In a training on several
processes each asks the server on its own.
"""

import math
import sys
import time
from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any, ClassVar

import httpx2
import msgspec

from ..errors import ConfigError, GeneratorError, JudgeError
from ..wire.background import Background, map_concurrently
from ..wire.llm import LLM, Endpoint, Unanswered, Unreachable
from .base import Completion, Generator, Sampling, check_choices

_RETRIES = 4  # further tries of a row
_BACKOFF = 0.5  # seconds before the first of them
_CONCURRENCY = 256  # rows that a server is asked for at once

_PLAIN = {
    # All are set, since a server takes what is not set from the model's generation config.
    "repetition_penalty": 1.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "min_p": 0.0,
    "skip_special_tokens": False,
}

Request = tuple[list[int], dict[str, Any]]
"""A prompt's tokens, and vLLM's sampling parameters, named alike in `SamplingParams` and over HTTP.
"""


Row = tuple[int, ...]
"""The tokens before one that is asked about."""


class Answer(msgspec.Struct, frozen=True):
    """What vLLM returns for a request.

    Args:
        ids: the sampled tokens.
        finish: vLLM's `finish_reason`.
        stop: vLLM's `stop_reason`: a stop string, a token's id, or `None` for the EOS.
        logprobs: for each position the log-probs by token, of the sampled one and of those that
            were asked for.
    """

    ids: list[int]
    finish: str
    stop: str | int | None = None
    logprobs: list[dict[int, float]] | None = None


class VLLM(Generator):
    """A policy held by vLLM, wherever that runs.

    Log-probabilities are of the distribution that was sampled from: scaled by the temperature and,
    where `top_p` or `top_k` cut it, renormalised. Greedy rows report them at temperature 1.

    Attributes:
        positions: how many tokens a prompt and its continuation may have together.
        no_logprobs: why there are no log-probabilities: those that vLLM reports are of another
            distribution. Empty where there are.
        hottest: the highest temperature that vLLM takes.
    """

    tokenizer: Any
    positions: int
    no_logprobs: str = ""
    hottest: ClassVar[float] = 2.0

    @abstractmethod
    def _ask(self, requests: list[Request]) -> list[Answer]:
        """The answers to the requests, in their order."""

    def generate(
        self,
        prompts: Sequence[list[int]],
        sampling: Sampling,
        max_new_tokens: Sequence[int] | None = None,
    ) -> list[Completion]:
        """See `Generator.generate`.

        A row also ends at the model's last position. The model's own generation settings do not
        apply.

        Raises:
            ConfigError: when a prompt leaves no position for a new token, for a temperature above
                2, or for log-probs where the engine reports others than those sampled from.
            GeneratorError: when vLLM gave up on a row.
        """
        if not prompts:
            return []
        self._check_lengths(prompts)
        if sampling.temperature > self.hottest:
            raise ConfigError(
                f"vLLM takes temperatures up to {self.hottest:g}, not {sampling.temperature:g}"
            )
        if sampling.logprobs and self.no_logprobs:
            raise ConfigError(self.no_logprobs)
        eos = self.tokenizer.eos_token_id
        parameters = {
            **_PLAIN,
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "top_k": sampling.top_k,
            "stop": list(sampling.stop),
            "stop_token_ids": [] if eos is None else [eos],
            "include_stop_str_in_output": True,
            "logprobs": 0 if sampling.logprobs else None,  # 0: only the sampled token's
        }
        limits = max_new_tokens
        if limits is None:
            limits = [sampling.max_new_tokens] * len(prompts)
        requests: list[Request] = []
        for prompt, limit in zip(prompts, limits, strict=True):
            max_tokens = min(limit, self.positions - len(prompt))
            requests.append((prompt, {**parameters, "max_tokens": max_tokens}))
        return [self._completion(answer, sampling) for answer in self._ask(requests)]

    def choice_probs(
        self, prompts: Sequence[list[int]], choices: Sequence[Sequence[list[int]]]
    ) -> list[list[float]]:
        """See `Generator.choice_probs`.

        Each token of a choice is asked for by a row that ends before it, so that prompts are read
        from the prefix cache.

        Raises:
            ConfigError: a prompt and its choice do not fit into the positions, or vLLM is too old.
        """
        check_choices(choices)
        tokens_by_row: dict[Row, dict[int, None]] = {}  # the tokens asked for, each once, in order
        for prompt, prompt_choices in zip(prompts, choices, strict=True):
            for choice in prompt_choices:
                for row, token in _steps(prompt, choice):
                    tokens_by_row.setdefault(row, {})[token] = None
        tables = self._token_logprobs(tokens_by_row)
        probabilities: list[list[float]] = []
        for prompt, prompt_choices in zip(prompts, choices, strict=True):
            of_prompt: list[float] = []
            for choice in prompt_choices:
                logprob = sum(tables[row][token] for row, token in _steps(prompt, choice))
                of_prompt.append(math.exp(logprob))
            probabilities.append(of_prompt)
        return probabilities

    def _token_logprobs(
        self, tokens_by_row: Mapping[Row, Iterable[int]]
    ) -> dict[Row, dict[int, float]]:
        """For each row the log-probs of these tokens as its next one."""
        self._check_lengths(tokens_by_row)
        # At temperature 1, raw and processed log-probs are the same.
        parameters = {**_PLAIN, "max_tokens": 1, "temperature": 1.0, "top_p": 1.0, "top_k": 0}
        requests: list[Request] = [
            (list(row), {**parameters, "logprob_token_ids": list(tokens)})
            for row, tokens in tokens_by_row.items()
        ]
        answers = self._ask(requests) if requests else []
        tables: dict[Row, dict[int, float]] = {}
        for (row, tokens), answer in zip(tokens_by_row.items(), answers, strict=True):
            table = answer.logprobs[0] if answer.logprobs else {}
            if not table.keys() >= set(tokens):
                raise ConfigError(
                    "this vLLM does not report the log-probs of given tokens "
                    "(`logprob_token_ids`); take a newer one"
                )
            tables[row] = table
        return tables

    def _check_lengths(self, rows: Iterable[Sequence[int]]) -> None:
        """Raise `ConfigError` where a row leaves no position for another token."""
        longest = max(map(len, rows), default=0)
        if longest >= self.positions:
            raise ConfigError(
                f"a prompt of {longest} tokens leaves no room in the {self.positions} positions "
                "that vLLM was started with; raise them as far as the model goes "
                "(`vllm_max_model_length`, a server's --max-model-len), lower the episode's "
                "total_tokens, or return less evidence per call"
            )

    def _completion(self, answer: Answer, sampling: Sampling) -> Completion:
        """The answer to a request of `generate`."""
        if answer.finish not in ("stop", "length"):
            raise GeneratorError(
                f"vLLM gave up on a row ({answer.finish}): was it stopped or put to sleep "
                "meanwhile?"
            )
        ids, finish = answer.ids, answer.finish
        ends_with_eos = ids[-1:] == [self.tokenizer.eos_token_id]
        if finish == "stop" and (ends_with_eos or not isinstance(answer.stop, str)):
            finish = "eos"
        if finish == "stop":
            # Engines that sample several tokens at once go on after the stop string.
            while len(ids) > 1 and self._has_stop(ids[:-1], sampling.stop):
                ids = ids[:-1]
        if not sampling.logprobs or answer.logprobs is None:
            return Completion(ids, finish)
        # Not strict: ids may have been cut above.
        tables = zip(ids, answer.logprobs, strict=False)
        return Completion(ids, finish, [table[token] for token, table in tables])

    def _has_stop(self, ids: list[int], stop: Sequence[str]) -> bool:
        text = self.tokenizer.decode(ids, skip_special_tokens=False)
        return any(string in text for string in stop)


def _steps(prompt: Sequence[int], choice: Sequence[int]) -> list[tuple[Row, int]]:
    """For each token of a choice: the row before it, and the token."""
    return [((*prompt, *choice[:place]), token) for place, token in enumerate(choice)]


class VLLMGenerator(VLLM):
    """A policy held by a `vllm.LLM` of this process.

    Make it with `logprobs_mode="processed_logprobs"`, or there are no log-probabilities. Whoever
    changes the weights has to clear its prefix cache (`llm.reset_prefix_cache()`).
    """

    def __init__(self, llm: Any, tokenizer: Any) -> None:
        self.llm = llm
        self.tokenizer = tokenizer
        settings = llm.llm_engine.model_config
        self.positions = settings.max_model_len
        if settings.logprobs_mode != "processed_logprobs":
            self.no_logprobs = (
                f"this engine reports {settings.logprobs_mode}, not the log-probs of what is "
                'sampled from; make it with LLM(…, logprobs_mode="processed_logprobs"), or with '
                "open_vllm"
            )

    def _ask(self, requests: list[Request]) -> list[Answer]:
        from vllm import SamplingParams, exceptions

        # Older versions have no exception of their own for a request that vLLM does not take.
        refusals = (ValueError, TypeError, getattr(exceptions, "VLLMClientError", ValueError))
        prompts = [{"prompt_token_ids": ids} for ids, _ in requests]
        parameters = [SamplingParams(**named) for _, named in requests]
        try:
            outputs = self.llm.generate(prompts, parameters, use_tqdm=False)
        except refusals as error:
            raise ConfigError(f"vLLM refuses what it was asked for: {error}") from error
        answers = []
        for request in outputs:
            output = request.outputs[0]
            tables = None
            if output.logprobs is not None:
                tables = [_by_token(table) for table in output.logprobs]
            answer = Answer(
                ids=list(output.token_ids),
                finish=output.finish_reason,
                stop=output.stop_reason,
                logprobs=tables,
            )
            answers.append(answer)
        return answers


def _by_token(table: dict[int, Any]) -> dict[int, float]:
    """The log-probs in vLLM's own table of one position."""
    return {token: entry.logprob for token, entry in table.items()}


def open_vllm(name: str, *, revision: str | None = None, **kwargs: Any) -> VLLMGenerator:
    """A model from the Hub or a directory, run by vLLM in this process, for use without training.

    `kwargs` are further arguments of `vllm.LLM`, such as `tensor_parallel_size`, `max_model_len` or
    `dtype`.

    Raises:
        ConfigError: when vLLM is not installed, or cannot open the model.

    Example:
        ```python
        generator = open_vllm("Qwen/Qwen2.5-7B-Instruct")
        generator.generate([ids], Sampling(temperature=0.0, max_new_tokens=64, stop=("</answer>",)))[0].ids
        ```
    """
    try:
        from vllm import LLM
    except ImportError as error:
        raise ConfigError(
            f"vLLM cannot be imported ({error}): pip install 'faithful-search[vllm]'"
        ) from error
    from .loading import read_tokenizer

    settings = {"logprobs_mode": "processed_logprobs", **kwargs}
    try:
        llm = LLM(model=name, revision=revision, **settings)
    except (OSError, ValueError, RuntimeError) as error:
        raise ConfigError(f"vLLM cannot open the model {name!r}: {error}") from error
    trusted = kwargs.get("trust_remote_code", False)
    return VLLMGenerator(llm, read_tokenizer(name, revision=revision, trust_remote_code=trusted))


def wait_for_server(url: str, seconds: float) -> None:
    """Wait until a vLLM server is up; raises `GeneratorError` when it is not within `seconds`."""
    end = time.monotonic() + seconds
    health = url.rstrip("/") + "/health"
    state = ""  # why it is not up, for the error
    while time.monotonic() < end:
        try:
            response = httpx2.get(health, timeout=min(5.0, seconds), trust_env=False)
            if response.status_code == 200:
                return
            state = f"status {response.status_code}"
        except httpx2.TransportError as error:
            state = str(error) or type(error).__name__
        time.sleep(min(1.0, seconds / 10))
    raise GeneratorError(
        f"no vLLM server was up at {url} within {seconds:g} s (vllm_server_timeout): {state}; "
        "start it, or see its log"
    )


class VLLMServer(VLLM):
    """A policy held by a vLLM server (`vllm serve MODEL --logprobs-mode processed_logprobs`).

    Each row is a request, so that the server batches the rows of all its clients. A request that
    fails is tried again a few times within some seconds; then the call raises.

    Args:
        url: the server's address, such as `http://127.0.0.1:8000`.
        tokenizer: the model's tokenizer.
        timeout: seconds that one row may take, its wait on the server included.

    Raises:
        ConfigError: what answers is no vLLM server.
        GeneratorError: the server is down, or does not return token ids.
    """

    def __init__(self, url: str, tokenizer: Any, timeout: float = 600.0) -> None:
        self.url = url.rstrip("/").removesuffix("/v1")
        self.tokenizer = tokenizer
        self.timeout = timeout
        endpoint = Endpoint(
            url=self.url,
            model="",
            timeout=timeout,
            patience=timeout,
            retries=_RETRIES,
            backoff=_BACKOFF,
            concurrency=_CONCURRENCY,
            give_up_after=sys.maxsize,  # a failure ends the call anyway
            direct=True,
        )
        self._llm = LLM(endpoint)
        self._background = Background(threads=1)
        [document] = self._send("/models", [None])
        try:
            model = document["data"][0]
            self.model = str(model["id"])
            self.positions = int(model["max_model_len"])
        except (KeyError, IndexError, TypeError, ValueError) as error:
            raise ConfigError(
                f"what answers at {self.url} is no vLLM server: it names no model"
            ) from error
        if not self._reports_sampled_from():
            self.no_logprobs = (
                f"the vLLM server at {self.url} does not report the log-probs of the distribution "
                "it samples from; start it with --logprobs-mode processed_logprobs"
            )

    def _reports_sampled_from(self) -> bool:
        """Whether the server's log-probs are of the distribution that it samples from."""
        # `top_k=1` leaves one token, which is certain there. Raw log-probs do not know that.
        parameters = {
            "max_tokens": 1,
            "temperature": 2.0,
            "top_p": 1.0,
            "top_k": 1,
            "min_p": 0.0,
            "logprobs": 0,
        }
        prompt = self.tokenizer("a", add_special_tokens=False)["input_ids"][:1]
        [answer] = self._ask([(prompt, parameters)])
        if answer.logprobs is None:
            return False
        logprob = answer.logprobs[0][answer.ids[0]]
        return abs(logprob) < 1e-4  # false for NaN, too

    def _ask(self, requests: list[Request]) -> list[Answer]:
        bodies: list[dict[str, Any] | None] = []
        for prompt, parameters in requests:
            body = {
                "model": self.model,
                "prompt": prompt,
                "return_token_ids": True,
                "return_tokens_as_token_ids": True,
                **parameters,
            }
            if "logprob_token_ids" in parameters:  # a server wants their number as well
                body["logprobs"] = len(parameters["logprob_token_ids"])
            bodies.append(body)
        answers = []
        for document in self._send("/completions", bodies):
            try:
                choice = document["choices"][0]
                answer = Answer(
                    ids=[int(token) for token in choice["token_ids"]],
                    finish=choice["finish_reason"],
                    stop=choice.get("stop_reason"),
                    logprobs=_logprobs(choice.get("logprobs")),
                )
            except (KeyError, IndexError, TypeError, ValueError) as error:
                raise GeneratorError(
                    f"the vLLM server at {self.url} is too old, or answers amiss "
                    f"({type(error).__name__}: {error})"
                ) from error
            answers.append(answer)
        return answers

    def _send(self, path: str, bodies: list[dict[str, Any] | None]) -> list[Any]:
        """The server's answers to these requests, in their order; `None` asks without a body."""
        post = partial(self._llm.post, path)
        try:
            return self._background.run(map_concurrently(post, bodies, _CONCURRENCY))
        except Unanswered as fault:
            if not fault.transient and not isinstance(fault, Unreachable):
                raise ConfigError(f"the vLLM server at {self.url} refuses: {fault}") from None
            raise GeneratorError(
                f"the vLLM server at {self.url} does not work: {fault}; see its log, start it "
                "again (or give it a longer time-out), and resume from the last checkpoint"
            ) from fault
        except JudgeError as error:
            raise ConfigError(f"the vLLM server at {self.url} refuses: {error}") from None


def _logprobs(document: Any) -> list[dict[int, float]] | None:
    """For each position the log-probs by token id; NaN for one that could not be computed."""
    if not document:
        return None
    sampled_tokens = document["tokens"]
    top_logprobs = document.get("top_logprobs") or [None] * len(sampled_tokens)
    tables: list[dict[int, float]] = []
    for sampled, logprob, top in zip(
        sampled_tokens, document["token_logprobs"], top_logprobs, strict=True
    ):
        table: dict[int, float] = {}
        for name, value in {**(top or {}), sampled: logprob}.items():
            # The server writes a token's id in the place of its text.
            token = int(name.removeprefix("token_id:"))
            table[token] = math.nan if value is None else value
        tables.append(table)
    return tables
