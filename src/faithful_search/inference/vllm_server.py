"""Generation and probing with a vLLM server over HTTP: every process of a training asks on its own."""

import math
import sys
import time
from functools import partial
from typing import Any
from urllib.parse import urlsplit

import httpx

from ..errors import ConfigError, GeneratorError, JudgeError
from ..wire.background import Background, map_concurrently
from ..wire.endpoint import Endpoint
from ..wire.llm import LLM, Unanswered
from .vllm import VLLM, Answer, Request

_RETRIES, _BACKOFF = 4, 0.5  # of a row; the first pause, in seconds


def wait_for_server(url: str, seconds: float) -> None:
    """Wait until a vLLM server says that it is up; raises `GeneratorError` when it does not in time."""
    end = time.monotonic() + seconds
    while True:
        try:
            response = httpx.get(url.rstrip("/") + "/health", timeout=min(5.0, seconds), trust_env=False)
            said = f"status {response.status_code}"
            if response.status_code == 200:
                return
        except httpx.TransportError as error:
            said = str(error) or type(error).__name__
        if time.monotonic() >= end:
            raise GeneratorError(
                f"no vLLM server was up at {url} within {seconds:g} s (vllm_server_timeout): {said}; start it, or see "
                "its log"
            )
        time.sleep(min(1.0, seconds / 10))


class VLLMServer(VLLM):
    """A policy held by a vLLM server (`vllm serve MODEL --logprobs-mode processed_logprobs`).

    A row is a request, so that the server batches the rows of all its clients, and no client waits for another.
    What fails on the way is asked for again a few times within some seconds; then the call ends in an error.

    Args:
        url: of the server, as `http://127.0.0.1:8000`.
        tokenizer: the model's tokenizer.
        timeout: seconds that one row may take, the wait for its turn on the server included.
        key: the API key, where the server wants one.
        concurrency: requests under way at once.

    Raises:
        ConfigError: when no vLLM server is there, or one that does not return token ids.
        GeneratorError: when the server is down or does not answer.
    """

    def __init__(
        self, url: str, tokenizer: Any, timeout: float = 600.0, key: str | None = None, concurrency: int = 256
    ) -> None:
        if urlsplit(url).scheme not in ("http", "https") or timeout <= 0 or concurrency < 1:
            raise ConfigError(
                f"a vLLM server needs a URL such as http://127.0.0.1:8000, and a timeout and concurrency above 0; got "
                f"{url!r}, {timeout}, {concurrency}"
            )
        self.url = url.rstrip("/").removesuffix("/v1")
        self.tokenizer, self.timeout, self.concurrency = tokenizer, timeout, concurrency
        how = (timeout, timeout, _RETRIES, _BACKOFF, concurrency, sys.maxsize)  # a failure ends the call, not a breaker
        self._llm = LLM(Endpoint(self.url, "", key, *how, direct=True))
        self._background = Background(threads=1)
        [document] = self._send("/models", [None])
        try:
            self.model, self.positions = str(document["data"][0]["id"]), int(document["data"][0]["max_model_len"])
        except (KeyError, IndexError, TypeError, ValueError) as error:
            raise ConfigError(f"what answers at {self.url} is no vLLM server: it names no model") from error
        # The one token that `top_k=1` leaves is certain in the distribution sampled from, which raw log-probs ignore.
        one = {"max_tokens": 1, "temperature": 2.0, "top_p": 1.0, "top_k": 1, "min_p": 0.0, "logprobs": 0}
        try:
            [answer] = self._ask([(tokenizer("a", add_special_tokens=False)["input_ids"][:1], one)])
        except GeneratorError as error:
            if isinstance(error.__cause__, (KeyError, TypeError)):
                raise ConfigError(f"the vLLM server at {self.url} returns no token ids; take a newer one") from error
            raise
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
                ids, tables = [int(token) for token in choice["token_ids"]], _logprobs(choice.get("logprobs"))
                answers.append(Answer(ids, choice["finish_reason"], choice.get("stop_reason"), tables))
            except (KeyError, IndexError, TypeError, ValueError) as error:
                raise GeneratorError(f"the vLLM server at {self.url} sent an answer without {error}") from error
        return answers

    def _send(self, path: str, bodies: list[dict[str, Any] | None]) -> list[Any]:
        """What the server answers to each body; transient failures are retried."""
        try:
            return self._background.run(map_concurrently(partial(self._llm.post, path), bodies, self.concurrency))
        except Unanswered as fault:
            if not fault.passing:
                raise ConfigError(f"the vLLM server at {self.url} refuses: {fault}") from None
            advice = "see its log, start it again (or give it a longer time-out), and resume from the last checkpoint"
            raise GeneratorError(f"the vLLM server at {self.url} does not work: {fault}; {advice}") from fault
        except JudgeError as error:
            raise ConfigError(f"the vLLM server at {self.url} refuses: {error}") from None


def _logprobs(document: Any) -> list[dict[int, float]] | None:
    """For each position the log-probs by token id; one that could not be computed is not a number."""
    if not document:
        return None
    tops = document.get("top_logprobs") or [None] * len(document["tokens"])
    known = zip(document["tokens"], document["token_logprobs"], tops, strict=True)
    tables: list[dict[str, float | None]] = [{**(top or {}), token: chosen} for token, chosen, top in known]
    # the server writes a token's id where it would write its text
    return [
        {int(name.removeprefix("token_id:")): math.nan if value is None else value for name, value in table.items()}
        for table in tables
    ]
