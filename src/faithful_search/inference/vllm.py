"""Generation and probing with vLLM, in this process or served: rows of any length together, prefixes kept between
turns. Each process of a training asks a server on its own."""

import math
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import partial
from typing import Any, ClassVar

import httpx
import msgspec

from ..errors import ConfigError, GeneratorError, JudgeError
from ..wire.background import Background, map_concurrently
from ..wire.llm import LLM, Endpoint, Unanswered
from .base import Completion, Sampling, check_choices

_RETRIES, _BACKOFF = 4, 0.5  # of a row of a server; the first pause, in seconds
_CONCURRENCY = 256  # rows that a server is asked for at once

_PLAIN = {
    "repetition_penalty": 1.0,  # servers take what is left unset from the model's generation config
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "min_p": 0.0,
    "skip_special_tokens": False,
}

Request = tuple[list[int], dict[str, Any]]
"""A prompt, and vLLM's sampling parameters by name, the same in `SamplingParams` and over HTTP."""


class Answer(msgspec.Struct, frozen=True):
    ids: list[int]
    finish: str  # its `finish_reason`
    stop: str | int | None = (
        None  # its `stop_reason`: a stop string, a token's id, or nothing for the EOS
    )
    logprobs: list[dict[int, float]] | None = (
        None  # at each position of the sampled token, and of those asked for
    )


class VLLM(ABC):
    """A policy held by vLLM, wherever that runs. Log-probabilities are those of the distribution that was sampled from:
    scaled by the temperature and, where `top_p` or `top_k` cut it, renormalised. Greedy rows report them at temperature
    1."""

    tokenizer: Any
    positions: int  # how many tokens a prompt and its continuation may have together
    no_logprobs: str = ""  # why there are none, where those reported are of another distribution than was sampled from
    hottest: ClassVar[float] = 2.0  # the highest temperature that vLLM takes

    @abstractmethod
    def _ask(self, requests: list[Request]) -> list[Answer]:
        pass

    def generate(
        self,
        prompts: Sequence[list[int]],
        sampling: Sampling,
        max_new_tokens: Sequence[int] | None = None,
    ) -> list[Completion]:
        """See `Generator.generate`. A row also ends at the model's last position; its generation settings do not apply.

        Raises:
            ConfigError: when a prompt leaves no position for a new token, for a temperature above 2, or for log-probs
                where the engine reports others than those sampled from.
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
        how = {
            **_PLAIN,
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "top_k": sampling.top_k,
            "stop": list(sampling.stop),
            "stop_token_ids": [] if eos is None else [eos],
            "include_stop_str_in_output": True,
            "logprobs": 0 if sampling.logprobs else None,  # those of the sampled token alone
        }
        limits = (
            max_new_tokens
            if max_new_tokens is not None
            else [sampling.max_new_tokens] * len(prompts)
        )
        most = [
            min(limit, self.positions - len(prompt))
            for prompt, limit in zip(prompts, limits, strict=True)
        ]
        answers = self._ask(
            [(own, {**how, "max_tokens": limit}) for own, limit in zip(prompts, most, strict=True)]
        )
        return [self._completion(answer, sampling) for answer in answers]

    def choice_probs(
        self, prompts: Sequence[list[int]], choices: Sequence[Sequence[list[int]]]
    ) -> list[list[float]]:
        """See `Generator.choice_probs`; `ConfigError` when prompt and choice do not fit into the positions. Each token
        of a choice is a row that ends with the token before it, so that prompts are read from the prefix cache."""
        check_choices(choices)
        # what is asked about each choice: rows, and the token behind each
        asked = [
            [
                [((*prompt, *choice[:place]), token) for place, token in enumerate(choice)]
                for choice in own
            ]
            for prompt, own in zip(prompts, choices, strict=True)
        ]
        wanted: dict[tuple[int, ...], list[int]] = {}
        for row, token in dict.fromkeys(each for own in asked for choice in own for each in choice):
            wanted.setdefault(row, []).append(token)
        self._check_lengths(wanted)
        # at temperature 1 raw and processed log-probs are the same
        how = {**_PLAIN, "max_tokens": 1, "temperature": 1.0, "top_p": 1.0, "top_k": 0}
        requests = [
            (list(row), {**how, "logprob_token_ids": tokens}) for row, tokens in wanted.items()
        ]
        answers = self._ask(requests) if requests else []
        found = {
            row: (answer.logprobs or [{}])[0] for row, answer in zip(wanted, answers, strict=True)
        }
        try:
            return [
                [math.exp(sum(found[row][token] for row, token in choice)) for choice in own]
                for own in asked
            ]
        except KeyError as missing:
            old = "this vLLM does not report the log-probs of given tokens (`logprob_token_ids`); take a newer one"
            raise ConfigError(old) from missing

    def _check_lengths(self, rows: Any) -> None:
        longest = max(map(len, rows), default=0)
        if longest >= self.positions:
            raise ConfigError(
                f"a prompt of {longest} tokens leaves no room in the {self.positions} positions that vLLM was started "
                "with; raise them as far as the model goes (`vllm_max_model_length`, a server's --max-model-len), "
                "lower the episode's total_tokens, or return less evidence per call"
            )

    def _completion(self, answer: Answer, sampling: Sampling) -> Completion:
        if answer.finish not in ("stop", "length"):
            raise GeneratorError(
                f"vLLM gave up on a row ({answer.finish}): was it stopped or put to sleep meanwhile?"
            )
        ids, finish = answer.ids, answer.finish
        if finish == "stop":
            by_string = isinstance(answer.stop, str) and ids[-1:] != [self.tokenizer.eos_token_id]
            finish = "stop" if by_string else "eos"
        if (
            finish == "stop"
        ):  # engines that sample several tokens at once go further than the stop string
            decode = self.tokenizer.decode
            while len(ids) > 1 and any(
                text in decode(ids[:-1], skip_special_tokens=False) for text in sampling.stop
            ):
                ids = ids[:-1]
        if not sampling.logprobs or answer.logprobs is None:
            return Completion(ids, finish)
        # not strict: ids may have been cut above
        return Completion(
            ids, finish, [place[token] for token, place in zip(ids, answer.logprobs, strict=False)]
        )


class VLLMGenerator(VLLM):
    """A policy held by a `vllm.LLM` of this process, made with `logprobs_mode="processed_logprobs"`. Who changes the
    weights has to clear its prefix cache (`llm.reset_prefix_cache()`)."""

    def __init__(self, llm: Any, tokenizer: Any) -> None:
        self.llm, self.tokenizer = llm, tokenizer
        settings = llm.llm_engine.model_config
        self.positions = settings.max_model_len
        if settings.logprobs_mode != "processed_logprobs":
            self.no_logprobs = (
                f"this engine reports {settings.logprobs_mode}, not the log-probs of what is sampled from; make it "
                'with LLM(…, logprobs_mode="processed_logprobs"), or with open_vllm'
            )

    def _ask(self, requests: list[Request]) -> list[Answer]:
        from vllm import SamplingParams, exceptions

        # vLLM raised plain ones before it had an exception for a request that it does not take
        refusals = (ValueError, TypeError, getattr(exceptions, "VLLMClientError", ValueError))
        prompts = [{"prompt_token_ids": ids} for ids, _ in requests]
        hows = [SamplingParams(**how) for _, how in requests]
        try:
            outputs = self.llm.generate(prompts, hows, use_tqdm=False)
        except refusals as error:
            raise ConfigError(f"vLLM refuses what it was asked for: {error}") from error
        answers = []
        for output in (request.outputs[0] for request in outputs):
            tables = output.logprobs and [
                {token: one.logprob for token, one in at.items()} for at in output.logprobs
            ]
            answers.append(
                Answer(list(output.token_ids), output.finish_reason, output.stop_reason, tables)
            )
        return answers


def open_vllm(name: str, *, revision: str | None = None, **how: Any) -> VLLMGenerator:
    """A model from the Hub or a directory, run by vLLM in this process, for use without training.

    `how` are further arguments of `vllm.LLM`, such as `tensor_parallel_size`, `max_model_len` or `dtype`.

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

    try:
        llm = LLM(model=name, revision=revision, **{"logprobs_mode": "processed_logprobs", **how})
    except (OSError, ValueError, RuntimeError) as error:
        raise ConfigError(f"vLLM cannot open the model {name!r}: {error}") from error
    trusted = how.get("trust_remote_code", False)
    return VLLMGenerator(llm, read_tokenizer(name, revision=revision, trust_remote_code=trusted))


def wait_for_server(url: str, seconds: float) -> None:
    """Wait until a vLLM server says that it is up; raises `GeneratorError` when it does not in time."""
    end, said = time.monotonic() + seconds, ""
    while time.monotonic() < end:
        try:
            response = httpx.get(
                url.rstrip("/") + "/health", timeout=min(5.0, seconds), trust_env=False
            )
            if response.status_code == 200:
                return
            said = f"status {response.status_code}"
        except httpx.TransportError as error:
            said = str(error) or type(error).__name__
        time.sleep(min(1.0, seconds / 10))
    late = f"no vLLM server was up at {url} within {seconds:g} s (vllm_server_timeout)"
    raise GeneratorError(f"{late}: {said}; start it, or see its log")


class VLLMServer(VLLM):
    """A policy held by a vLLM server (`vllm serve MODEL --logprobs-mode processed_logprobs`).

    A row is a request, so that the server batches the rows of all its clients. What fails on the way is asked for again
    a few times within some seconds; then the call ends in an error.

    Args:
        url: of the server, as `http://127.0.0.1:8000`.
        tokenizer: the model's tokenizer.
        timeout: seconds that one row may take, the wait for its turn on the server included.

    Raises:
        ConfigError: when what answers is no vLLM server.
        GeneratorError: when it is down, or does not return token ids.
    """

    def __init__(self, url: str, tokenizer: Any, timeout: float = 600.0) -> None:
        self.url, self.tokenizer, self.timeout = (
            url.rstrip("/").removesuffix("/v1"),
            tokenizer,
            timeout,
        )
        # no breaker: a failure ends the call
        patience = timeout, timeout, _RETRIES, _BACKOFF, _CONCURRENCY, sys.maxsize
        self._llm = LLM(Endpoint(self.url, "", None, *patience, direct=True))
        self._background = Background(threads=1)
        [document] = self._send("/models", [None])
        try:
            self.model, self.positions = (
                str(document["data"][0]["id"]),
                int(document["data"][0]["max_model_len"]),
            )
        except (KeyError, IndexError, TypeError, ValueError) as error:
            raise ConfigError(
                f"what answers at {self.url} is no vLLM server: it names no model"
            ) from error
        # The one token that `top_k=1` leaves is certain in the distribution sampled from, which raw log-probs ignore.
        one = {
            "max_tokens": 1,
            "temperature": 2.0,
            "top_p": 1.0,
            "top_k": 1,
            "min_p": 0.0,
            "logprobs": 0,
        }
        [answer] = self._ask([(tokenizer("a", add_special_tokens=False)["input_ids"][:1], one)])
        if answer.logprobs is None or not abs(answer.logprobs[0][answer.ids[0]]) < 1e-4:
            self.no_logprobs = (
                f"the vLLM server at {self.url} does not report the log-probs of the distribution it samples from; "
                "start it with --logprobs-mode processed_logprobs"
            )

    def _ask(self, requests: list[Request]) -> list[Answer]:
        bodies: list[dict[str, Any] | None] = []
        for prompt, how in requests:
            as_ids = {"return_token_ids": True, "return_tokens_as_token_ids": True}
            # it wants to be told both the tokens and how many
            also = {"logprobs": len(how["logprob_token_ids"])} if "logprob_token_ids" in how else {}
            bodies.append({"model": self.model, "prompt": prompt, **as_ids, **how, **also})
        answers = []
        for document in self._send("/completions", bodies):
            try:
                choice = document["choices"][0]
                ids, tables = (
                    [int(token) for token in choice["token_ids"]],
                    _logprobs(choice.get("logprobs")),
                )
                answers.append(
                    Answer(ids, choice["finish_reason"], choice.get("stop_reason"), tables)
                )
            except (KeyError, IndexError, TypeError, ValueError) as error:
                told = f"{type(error).__name__}: {error}"
                raise GeneratorError(
                    f"the vLLM server at {self.url} is too old, or answers amiss ({told})"
                ) from error
        return answers

    def _send(self, path: str, bodies: list[dict[str, Any] | None]) -> list[Any]:
        try:
            return self._background.run(
                map_concurrently(partial(self._llm.post, path), bodies, _CONCURRENCY)
            )
        except Unanswered as fault:
            if not fault.passing:
                raise ConfigError(f"the vLLM server at {self.url} refuses: {fault}") from None
            advice = "see its log, start it again (or give it a longer time-out), and resume from the last checkpoint"
            raise GeneratorError(
                f"the vLLM server at {self.url} does not work: {fault}; {advice}"
            ) from fault
        except JudgeError as error:
            raise ConfigError(f"the vLLM server at {self.url} refuses: {error}") from None


def _logprobs(document: Any) -> list[dict[int, float]] | None:
    """For each position the log-probs by token id; one that could not be computed is not a number."""
    if not document:
        return None
    tops = document.get("top_logprobs") or [None] * len(document["tokens"])
    known = zip(document["tokens"], document["token_logprobs"], tops, strict=True)
    tables: list[dict[str, float | None]] = [
        {**(top or {}), token: chosen} for token, chosen, top in known
    ]
    # the server writes a token's id where it would write its text
    return [
        {
            int(name.removeprefix("token_id:")): math.nan if value is None else value
            for name, value in table.items()
        }
        for table in tables
    ]
