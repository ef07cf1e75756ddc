"""One client for models behind OpenAI-compatible endpoints: served judges, writers, agents and vLLM servers."""

from __future__ import annotations

import asyncio
import json
import math
import os
import re
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar
from urllib.parse import urlsplit

import httpx2
import msgspec

from ..errors import ConfigError, JudgeError
from .background import PerLoop
from .guard import is_loopback
from .network import tls
from .redact import SHORTEST, redact
from .retry import TRANSIENT, Breaker, Patience, retry_after

T = TypeVar("T")
Messages = list[dict[str, Any]]

_ROUTER = "https://router.huggingface.co/v1"
_HUB_HOSTS = ("huggingface.co", "huggingface.cloud", "hf.space")
_SHOWN = 300
"""Characters of a server's own words in a message."""
_MOST = "max_completion_tokens"
_REASONS = 2048
"""Tokens for a model that wants them under that name: it reasons before it replies, and both count."""
_UNSUPPORTED = re.compile(r"unsupported|not support|only the default|unrecognized", re.IGNORECASE)
_ADVICE = {
    401: "the key is missing or wrong; set FAITHFUL_SEARCH_API_KEY, or OPENAI_API_KEY, to one that this server accepts",
    402: "the account has no credit",
    403: "the key may not use this model",
    404: "the model is unknown there or the URL is wrong (it usually ends in /v1)",
}


@dataclass
class Stats:
    """What asking has taken so far.

    `calls` are requests sent, `hits` answers that were cached, `failures` questions that were given up. `cost` is in
    the currency of the prices, 0 without them. `notes` says, and how often, what else became known: that another model
    answered than was asked, and which parameters this one does not take.
    """

    calls: int = 0
    hits: int = 0
    retries: int = 0
    failures: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cost: float = 0.0
    notes: dict[str, int] = field(default_factory=dict)

    def note(self, what: str) -> None:
        """Count something that whoever reads the results should know."""
        self.notes[what] = self.notes.get(what, 0) + 1


@dataclass(frozen=True)
class Endpoint:
    """Where to ask, and how patiently.

    Args:
        url: base URL, usually ending in `/v1`; `None` for Hugging Face Inference Providers.
        model: the served model's name.
        key: sent as a bearer token, and hidden in everything that the server says.
        timeout: seconds for one request, its whole answer included.
        patience: seconds for one question, its retries included.
        retries: further tries of a question after failures that pass.
        backoff: seconds before the first retry, doubled each time.
        concurrency: requests under way at once.
        give_up_after: questions in a row without any answer, after which no more are asked.
        direct: whether no proxy stands before the server, whatever the environment says; none does on this machine.

    Raises:
        ConfigError: for settings that cannot work, and for a URL with a password in it, which would end up in logs.
    """

    url: str | None
    model: str
    key: str | None = field(default=None, repr=False)
    timeout: float = 60.0
    patience: float = 180.0
    retries: int = 4
    backoff: float = 0.5
    concurrency: int = 16
    give_up_after: int = 8
    direct: bool = False

    def __post_init__(self) -> None:
        numbers = (self.concurrency, self.timeout, self.patience, self.give_up_after)
        if min(numbers) <= 0 or self.retries < 0 or self.backoff < 0:
            raise ConfigError(
                "concurrency, timeout, patience and give_up_after must be positive, retries and backoff not negative"
            )
        parts = urlsplit(self.url or _ROUTER)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ConfigError(f"the endpoint's url must begin with http:// or https://; got {self.url!r}")
        if parts.username or parts.password:
            raise ConfigError("the endpoint's url must not hold a password: put the key into an environment variable")

    @property
    def where(self) -> str:
        """The server, for messages."""
        return self.url or "Inference Providers"


class Unanswered(Exception):
    """A question without an answer. `passing`: the server is down or not well, and another try may help."""

    def __init__(
        self, why: str, status: int | None = None, retry_after: float | None = None, passing: bool = True
    ) -> None:
        super().__init__(why)
        self.status, self.retry_after, self.passing = status, retry_after, passing


class Unreadable(Unanswered):
    """The server answered, but not what was asked for."""

    def __init__(self, why: str) -> None:
        super().__init__(why, passing=False)


class NotAsked(Unanswered):
    """The endpoint had been given up before this question was sent."""


class ToolRequest(msgspec.Struct, frozen=True):
    """A tool call in an answer; `arguments` is JSON as the model wrote it, right or wrong."""

    id: str
    name: str
    arguments: str


class Reply(msgspec.Struct, frozen=True):
    """The text of an answer; for each of its tokens, the most probable tokens at that place with their log-probs."""

    text: str
    tokens: tuple[tuple[str, dict[str, float]], ...] = ()
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cut: bool = False
    calls: tuple[ToolRequest, ...] = ()


class LLM:
    """Asks one endpoint, on any event loop.

    Raises:
        JudgeError: when asking is pointless for every question: a wrong key, an unknown model.
    """

    def __init__(self, endpoint: Endpoint, stats: Stats | None = None) -> None:
        self.endpoint, self.stats = endpoint, stats or Stats()
        self.has_answered = False
        self._connections: PerLoop[_Connection] = PerLoop(lambda one: one.client.aclose())
        self._breaker, self._doubtful = self._new_breaker(), False
        self._not_before = 0.0
        self._takes: dict[str, str | None] = {}

    def new_batch(self) -> None:
        """After a server was given up, the next batch tries again, but each question only once until one succeeds."""
        if self._breaker.remaining:
            self._breaker, self._doubtful = self._new_breaker(), True

    async def chat(self, messages: Messages, body: dict[str, Any], **how: Any) -> Reply:
        """One chat completion: `body` are further parameters of the request, `how` those of `post`.

        Raises:
            Unanswered: when there is no answer; `Unreadable` when it cannot be read.
            JudgeError: when asking is pointless.
        """
        document = await self._complete({"messages": messages, "model": self.endpoint.model, **body}, how)
        try:
            reply = reply_of(document)
        except ValueError as error:
            raise Unreadable(f"the answer cannot be read: {self._hide(str(error))[:_SHOWN]}") from None
        if (who := document.get("model")) and str(who).lower() != self.endpoint.model.lower():
            self.stats.note(f"{self.endpoint.model} was asked, {self._hide(str(who))[:_SHOWN]} answered")
        self.stats.prompt_tokens += reply.prompt_tokens
        self.stats.completion_tokens += reply.completion_tokens
        # before anything of it is cut short, shown or kept: a server may repeat what it was sent
        calls = tuple(msgspec.structs.replace(call, arguments=self._hide(call.arguments)) for call in reply.calls)
        return msgspec.structs.replace(reply, text=self._hide(reply.text), calls=calls)

    async def _complete(self, body: dict[str, Any], how: dict[str, Any]) -> Any:
        """The completion; a parameter that the model refuses is given as it wants it, from then on."""
        while True:
            named = ((self._takes.get(name, name), value) for name, value in body.items())
            sent = {name: value for name, value in named if name is not None}
            if _MOST in sent:
                sent[_MOST] = max(sent[_MOST], _REASONS)
            try:
                return await self.post("/chat/completions", sent, **how)
            except Unanswered as fault:
                if fault.status not in (400, 422) or not self._learn(str(fault), sent):
                    raise

    def _learn(self, said: str, sent: dict[str, Any]) -> bool:
        """Whether the refusal says of a parameter that was sent what the model takes instead, if anything."""
        if "max_tokens" in sent and _MOST in said:
            self._takes["max_tokens"] = _MOST
            self.stats.note(f"the model takes {_MOST}: it may reason first, in up to {_REASONS:,} tokens")
            return True
        refused = next((name for name in ("temperature", "seed") if name in sent and f"'{name}'" in said), None)
        if refused is None or not _UNSUPPORTED.search(said):
            return False
        self._takes[refused] = None
        self.stats.note(f"the model takes no {refused}: it was asked without")
        return True

    async def post(
        self,
        path: str,
        body: dict[str, Any] | None,
        final: Callable[[Unanswered], bool] = lambda fault: False,
        on_retry: Callable[[], object] = lambda: None,
    ) -> Any:
        """The JSON that a path of the API answers to a body, or to a GET without one.

        Args:
            path: below `/v1`.
            body: of the request.
            final: whether a failure is not to be retried, though it may pass.
            on_retry: called whenever the question has to be asked again.

        Raises:
            Unanswered: when there is no answer.
            JudgeError: when asking is pointless.
        """
        endpoint, connection = self.endpoint, await self._connections.get(self._connect)
        request = connection.client.build_request(
            "GET" if body is None else "POST",
            self._address(path),
            content=None if body is None else json.dumps(body).encode(),
            headers={"Content-Type": "application/json"},
        )
        async with connection.slots:
            deadline = time.monotonic() + endpoint.patience
            patience = Patience(0 if self._doubtful else endpoint.retries, endpoint.backoff, endpoint.patience)

            async def attempt() -> Any:
                await self._wait_as_asked(deadline)
                if self._breaker.remaining:
                    lost = f"the endpoint left {endpoint.give_up_after} questions in a row without an answer"
                    raise NotAsked(f"not asked: {lost}", passing=False)
                try:
                    return await self._send(connection.client, request, deadline)
                except Unanswered as fault:
                    # the other questions wait, too, unless a question is asked once only: then each takes its chance
                    if fault.retry_after is not None and patience.retries:
                        self._not_before = max(self._not_before, time.monotonic() + fault.retry_after)
                    fault.passing = fault.passing and not final(fault)
                    raise

            def retrying() -> None:
                self.stats.retries += 1
                on_retry()

            try:
                found = await patience.persist(attempt, deadline, retrying)
            except NotAsked:
                raise
            except Unanswered as fault:
                (self._breaker.failed if fault.passing else self._breaker.succeeded)()
                raise
        self._breaker.succeeded()
        self._doubtful, self.has_answered = False, True
        return found

    async def aclose(self) -> None:
        """Close this event loop's connections. Else that happens when the loop shuts down."""
        await self._connections.aclose()

    def __reduce__(self) -> tuple[type[LLM], tuple[Endpoint]]:
        return LLM, (self.endpoint,)

    def _new_breaker(self) -> Breaker:
        return Breaker(self.endpoint.give_up_after, cooldown=math.inf)

    def _connect(self) -> _Connection:
        endpoint = self.endpoint
        if not endpoint.url:
            from huggingface_hub import constants

            if constants.is_offline_mode():
                raise JudgeError("HF_HUB_OFFLINE is set, so Inference Providers cannot be asked; give the judge a url")
        client = httpx2.AsyncClient(
            headers={"Authorization": f"Bearer {endpoint.key}"} if endpoint.key else None,
            timeout=None,  # `_once` limits the whole answer: a slow body would never trip a read time-out
            limits=httpx2.Limits(max_connections=None),  # a request waits before its time runs, not here
            follow_redirects=True,
            trust_env=not (endpoint.direct or is_loopback(endpoint.where)),
            verify=tls(),
        )
        return _Connection(client, asyncio.Semaphore(endpoint.concurrency))

    def _address(self, path: str) -> httpx2.URL:
        url = httpx2.URL(self.endpoint.url or _ROUTER)
        base = url.path.rstrip("/")
        if base.endswith(path):
            return url
        return url.copy_with(path=f"{base if base.endswith('/v1') else f'{base}/v1'}{path}")

    async def _send(self, client: httpx2.AsyncClient, request: httpx2.Request, deadline: float) -> Any:
        limit = min(self.endpoint.timeout, max(deadline - time.monotonic(), 0.01))
        self.stats.calls += 1
        try:
            async with asyncio.timeout(limit):
                response = await client.send(request)
            if response.is_success:
                return response.json()
        except TimeoutError:
            raise Unanswered(f"no complete answer within {round(limit, 1):g} s") from None
        except (ValueError, RecursionError):
            raise Unanswered("the answer cannot be read: it is not JSON") from None
        except (httpx2.HTTPError, OSError) as error:  # without its chain, which would show the request's headers
            told = f"cannot talk to {self.endpoint.where}: {error or type(error).__name__}"
            raise Unanswered(self._hide(told)) from None
        raise self._refusal(response)

    async def _wait_as_asked(self, deadline: float) -> None:
        while (wait := self._not_before - time.monotonic()) > 0:
            if self._not_before > deadline:
                raise Unanswered(f"the endpoint asks to wait {wait:.0f} s, which is too long", 429, passing=False)
            await asyncio.sleep(wait)

    def _refusal(self, response: httpx2.Response) -> Exception:
        status, said = response.status_code, self._hide(_message(response))[:_SHOWN]
        why = f"the endpoint answered {status}: {said}" if said else f"the endpoint answered {status}"
        if status in _ADVICE:
            where = redact(self.endpoint.where)
            return JudgeError(f"cannot ask {self.endpoint.model!r} at {where}: {_ADVICE[status]} ({why})")
        wait = retry_after(response.headers.get("Retry-After"))
        why += f"; it asks to wait {wait:.0f} s" if wait else ""
        return Unanswered(why, status, wait, status in TRANSIENT)

    def _hide(self, text: str) -> str:
        key = self.endpoint.key or ""
        return str(redact(text, [key] if len(key) >= SHORTEST else []))


@dataclass(frozen=True)
class _Connection:
    client: httpx2.AsyncClient
    slots: asyncio.Semaphore


def with_key(endpoint: Endpoint, key_env: str | None = None) -> Endpoint:
    """The endpoint with its key, from the environment where it has none of its own.

    `key_env` if given, else `FAITHFUL_SEARCH_API_KEY`, else the Hub's token for Hugging Face hosts and `OPENAI_API_KEY`
    for all others. The Hub's token is sent to no other host.

    Raises:
        JudgeError: when one is needed and missing, or it cannot be sent in a header.
    """
    key = ((_found_key(endpoint.url, key_env) if endpoint.key is None else endpoint.key) or "").strip()
    if not (key.isascii() and key.isprintable()):  # an HTTP client would quote it in its complaint
        raise JudgeError("the judge's key holds characters that no header can carry; copy it anew")
    return replace(endpoint, key=key or None)


def _found_key(url: str | None, key_env: str | None) -> str | None:
    if key_env is not None:
        if not os.environ.get(key_env):
            raise JudgeError(f"the environment variable {key_env}, which should hold the judge's key, is not set")
        return os.environ[key_env]
    from huggingface_hub import get_token

    host = urlsplit(url or _ROUTER).hostname or ""
    at_hub = any(host == name or host.endswith(f".{name}") for name in _HUB_HOSTS)
    key = os.environ.get("FAITHFUL_SEARCH_API_KEY") or (get_token() if at_hub else os.environ.get("OPENAI_API_KEY"))
    if url is None and not (key or "").startswith("hf_"):
        raise JudgeError("Inference Providers need a Hub token: set HF_TOKEN, run `hf auth login`, or give a url")
    return key


def _message(response: httpx2.Response) -> str:
    """What a server says of an error, however it wraps it, on one line."""
    said: Any = response.text
    try:
        document = response.json()
    except (ValueError, RecursionError):
        document = None
    if isinstance(document, dict):
        said = document.get("error", document.get("message", document.get("detail", said)))
        said = said.get("message", said) if isinstance(said, dict) else said
    return " ".join(str(said).split())


def reply_of(document: Any) -> Reply:
    """A chat completion, read.

    Raises:
        ValueError: when the document is something else.
    """
    try:
        choice = document["choices"][0]
        text, usage = choice["message"].get("content"), document.get("usage") or {}
        if text is not None and not isinstance(text, str):
            raise TypeError("content")
        return Reply(
            text=text or "",
            tokens=_tokens(choice.get("logprobs")),
            prompt_tokens=int(usage.get("prompt_tokens") or 0),
            completion_tokens=int(usage.get("completion_tokens") or 0),
            cut=choice.get("finish_reason") == "length",
            calls=tuple(map(_tool_request, choice["message"].get("tool_calls") or ())),
        )
    except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
        raise ValueError(f"it is no chat completion with a message: {document}") from error


def _tool_request(call: dict[str, Any]) -> ToolRequest:
    function = call["function"]
    written = function.get("arguments") or ""
    arguments = written if isinstance(written, str) else json.dumps(written)
    return ToolRequest(str(call.get("id")), str(function["name"]), arguments)


def _tokens(logprobs: Any) -> tuple[tuple[str, dict[str, float]], ...]:
    """Log-probs are an extra: in a form that is not known, there are none."""
    try:
        return tuple(
            (item["token"], {top["token"]: float(top["logprob"]) for top in item["top_logprobs"]})
            for item in logprobs["content"]
        )
    except (AttributeError, KeyError, TypeError, ValueError):
        return ()
