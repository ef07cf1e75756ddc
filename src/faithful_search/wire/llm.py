"""One client for models behind OpenAI-compatible endpoints: served judges, writers, agents and vLLM servers."""

import asyncio
import json
import os
import re
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any
from urllib.parse import urlsplit

import httpx2
import msgspec

from ..errors import ConfigError, JudgeError
from .background import PerLoop
from .guard import is_loopback, tls
from .redact import SHORTEST, carried, redact
from .retry import TRANSIENT, Patience, retry_after

Messages = list[dict[str, Any]]

ROUTER = "https://router.huggingface.co/v1"
_HUB_HOSTS = ("huggingface.co", "huggingface.cloud", "hf.space")
_SHOWN = 300  # characters of a server's own words in a message
_MOST = "max_completion_tokens"
_REASONS = 2048  # tokens for a model that wants them under that name: it reasons before it replies, and both count
_UNSUPPORTED = re.compile(r"unsupported|not support|only the default|unrecognized", re.IGNORECASE)
_INSTEAD = re.compile(rf"{_UNSUPPORTED.pattern}|use .?{_MOST}", re.IGNORECASE)
_REFUSED = re.compile(r"log_?prob|logits_all|structured_output|guided|grammar|regex", re.IGNORECASE)
_TOO_LONG = re.compile(
    r"too (?:large|long)|context length", re.IGNORECASE
)  # vLLM then names both parameters
_ADVICE = {
    401: "the key is missing or wrong; set FAITHFUL_SEARCH_API_KEY, or OPENAI_API_KEY, to one that this server accepts",
    402: "the account has no credit",
    403: "the key may not use this model",
    404: "the model is unknown there or the URL is wrong (it usually ends in /v1)",
}


@dataclass(frozen=True)
class Endpoint:
    """Where to ask, and how patiently.

    Args:
        url: base URL, usually ending in `/v1`; `None` for Hugging Face Inference Providers.
        model: the served model's name.
        key: sent as a bearer token, and hidden in everything that the server says.
        timeout: seconds for one request, its whole answer included.
        patience: seconds for one question, its retries included.
        retries: further tries of a question after transient failures.
        backoff: seconds before the first retry, doubled each time.
        concurrency: requests under way at once.
        give_up_after: questions in a row without any answer, after which no more are asked.
        direct: use no proxy, whatever the environment says; on this machine none is used anyway.
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
        positive = (self.concurrency, self.timeout, self.patience, self.give_up_after)
        if min(positive) <= 0 or min(self.retries, self.backoff) < 0:
            told = "concurrency, timeout, patience and give_up_after must be positive, retries and backoff not negative"
            raise ConfigError(told)
        parts = urlsplit(self.url or ROUTER)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ConfigError(
                f"the endpoint's url must begin with http:// or https://; got {self.url!r}"
            )
        if parts.username or parts.password:  # it would end up in logs
            raise ConfigError(
                "the endpoint's url must not hold a password: put the key into an environment variable"
            )

    @property
    def where(self) -> str:
        return self.url or "Inference Providers"

    def address(self, path: str) -> httpx2.URL:
        """Where a path of its API is; `url` may end before it, in `/v1` or in the path itself."""
        url = httpx2.URL(self.url or ROUTER)
        base = url.path.rstrip("/")
        if base.endswith(path):
            return url
        return url.copy_with(path=f"{base if base.endswith('/v1') else f'{base}/v1'}{path}")


def with_key(endpoint: Endpoint) -> Endpoint:
    """The endpoint with its key, from the environment where it has none: `FAITHFUL_SEARCH_API_KEY`, else the Hub's
    token for Hugging Face hosts alone, and `OPENAI_API_KEY` for all others. Raises `JudgeError` for want of one."""
    key, url = endpoint.key, endpoint.url
    if key is None:
        from huggingface_hub import get_token

        host = urlsplit(url or ROUTER).hostname or ""
        # with the dot: the host `nothuggingface.co` must not be sent the Hub's token
        at_hub = any(host == name or host.endswith(f".{name}") for name in _HUB_HOSTS)
        key = os.environ.get("FAITHFUL_SEARCH_API_KEY") or (
            get_token() if at_hub else os.environ.get("OPENAI_API_KEY")
        )
        if url is None and not (key or "").startswith("hf_"):
            raise JudgeError(
                "Inference Providers need a Hub token: set HF_TOKEN, run `hf auth login`, or give a url"
            )
    key = carried(key or "")
    if key is None:
        raise JudgeError("the judge's key holds characters that no header can carry; copy it anew")
    return replace(endpoint, key=key or None)


@dataclass
class Stats:
    """What asking has taken so far: `calls` are requests sent, `hits` answers that were cached, `failures` questions
    that were given up. `cost` is in the currency of the prices; `notes` counts what else readers should know."""

    calls: int = 0
    hits: int = 0
    retries: int = 0
    failures: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cost: float = 0.0
    notes: dict[str, int] = field(default_factory=dict)

    def note(self, what: str) -> None:
        self.notes[what] = self.notes.get(what, 0) + 1


class Unanswered(Exception):
    """A question without an answer. `passing`: the failure is transient, and another try may help."""

    def __init__(
        self,
        why: str,
        status: int | None = None,
        retry_after: float | None = None,
        passing: bool = False,
    ) -> None:
        super().__init__(why)
        self.status, self.retry_after, self.passing = status, retry_after, passing


class Unreadable(Unanswered):
    """The server answered, but not what was asked for."""


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
    """Asks one endpoint, on any event loop. Its methods raise `JudgeError` when asking is pointless for every question
    (a wrong key, an unknown model) and `Unanswered` when there is no answer to this one."""

    def __init__(self, endpoint: Endpoint, stats: Stats | None = None) -> None:
        self.endpoint, self.stats = endpoint, stats or Stats()
        self.has_answered = False
        self._connections: PerLoop[tuple[httpx2.AsyncClient, asyncio.Semaphore]] = PerLoop(
            lambda one: one[0].aclose()
        )
        self._lost, self._doubtful = (
            0,
            False,
        )  # questions in a row without any answer; whether that ended a batch
        self._not_before = 0.0
        self._takes: dict[str, str | None] = {}

    def new_batch(self) -> None:
        """After a server was given up, the next batch tries again, but each question only once until one succeeds."""
        if self._lost >= self.endpoint.give_up_after:
            self._lost, self._doubtful = 0, True

    async def chat(self, messages: Messages, body: dict[str, Any], **how: Any) -> Reply:
        """One chat completion: `body` are further parameters of the request, `how` those of `post`.

        A parameter that the model refuses is given as it wants it, from then on. Raises `Unreadable` for anything else.
        """
        wanted = {"messages": messages, "model": self.endpoint.model, **body}
        while True:
            named = ((self._takes.get(name, name), value) for name, value in wanted.items())
            sent = {name: value for name, value in named if name is not None}
            if _MOST in sent:
                sent[_MOST] = max(sent[_MOST], _REASONS)
            try:
                document = await self.post("/chat/completions", sent, **how)
                break
            except Unanswered as fault:
                if fault.status not in (400, 422) or not self._learn(str(fault), sent):
                    raise
        try:
            reply = _reply_of(document, self._hide)
        except ValueError as error:
            raise Unreadable(
                f"the answer cannot be read: {self._hide(str(error))[:_SHOWN]}"
            ) from None
        if (who := document.get("model")) and str(who).lower() != self.endpoint.model.lower():
            self.stats.note(
                f"{self.endpoint.model} was asked, {self._hide(str(who))[:_SHOWN]} answered"
            )
        self.stats.prompt_tokens += reply.prompt_tokens
        self.stats.completion_tokens += reply.completion_tokens
        return reply

    def _learn(self, said: str, sent: dict[str, Any]) -> bool:
        """Whether the refusal says of a parameter that was sent what the model takes instead, if anything."""
        if (
            "max_tokens" in sent
            and _MOST in said
            and _INSTEAD.search(said)
            and not _TOO_LONG.search(said)
        ):
            self._takes["max_tokens"] = _MOST
            self.stats.note(
                f"the model takes {_MOST}: it may reason first, in up to {_REASONS:,} tokens"
            )
            return True
        refused = next(
            (name for name in ("temperature", "seed") if name in sent and f"'{name}'" in said), None
        )
        if refused is None or not _UNSUPPORTED.search(said):
            return False
        self._takes[refused] = None
        self.stats.note(f"the model takes no {refused}: it was asked without")
        return True

    async def post(
        self, path: str, body: dict[str, Any] | None, on_retry: Callable[[], object] = lambda: None
    ) -> Any:
        """The JSON that a path of the API, below `/v1`, answers to a body, or to a GET without one; `on_retry` is
        called before it is asked again."""
        endpoint, (client, slots) = self.endpoint, await self._connections.get(self._connect)
        url, headers = endpoint.address(path), {"Content-Type": "application/json"}
        content = None if body is None else json.dumps(body).encode()
        request = client.build_request(
            "POST" if content else "GET", url, content=content, headers=headers
        )

        def retrying() -> None:
            self.stats.retries += 1
            on_retry()

        async with slots:
            deadline = time.monotonic() + endpoint.patience
            patience = Patience(
                0 if self._doubtful else endpoint.retries, endpoint.backoff, endpoint.patience
            )
            try:
                found = await patience.persist(
                    partial(self._send, client, request, deadline), deadline, retrying
                )
            except Unanswered as fault:
                if fault.passing:
                    self._lost += 1
                elif fault.status:  # an answer, though not to this question
                    self._lost = 0
                raise
        self._lost, self._doubtful, self.has_answered = 0, False, True
        return found

    def _connect(self) -> tuple[httpx2.AsyncClient, asyncio.Semaphore]:
        endpoint = self.endpoint
        if not endpoint.url:
            from huggingface_hub import constants

            if constants.is_offline_mode():
                raise JudgeError(
                    "HF_HUB_OFFLINE is set, so Inference Providers cannot be asked; give the judge a url"
                )
        client = httpx2.AsyncClient(
            headers={"Authorization": f"Bearer {endpoint.key}"} if endpoint.key else None,
            timeout=None,  # `_send` limits the whole answer: a slow body would never trip a read time-out
            limits=httpx2.Limits(
                max_connections=None
            ),  # a request waits before its time runs, not here
            follow_redirects=True,
            trust_env=not (endpoint.direct or is_loopback(endpoint.where)),
            verify=tls(),
        )
        return client, asyncio.Semaphore(endpoint.concurrency)

    async def _send(
        self, client: httpx2.AsyncClient, request: httpx2.Request, deadline: float
    ) -> Any:
        """What the server answers, once it may be asked."""
        endpoint = self.endpoint
        while (wait := self._not_before - time.monotonic()) > 0:
            if self._not_before > deadline:
                raise Unanswered(f"the endpoint asks to wait {wait:.0f} s, which is too long", 429)
            await asyncio.sleep(wait)
        if self._lost >= endpoint.give_up_after:
            lost = (
                f"the endpoint left {endpoint.give_up_after} questions in a row without an answer"
            )
            raise Unanswered(f"not asked: {lost}")
        limit = min(endpoint.timeout, max(deadline - time.monotonic(), 0.01))
        self.stats.calls += 1
        try:
            async with asyncio.timeout(limit):
                response = await client.send(request)
            if response.is_success:
                return response.json()
        except TimeoutError:
            raise Unanswered(
                f"no complete answer within {round(limit, 1):g} s", passing=True
            ) from None
        except (ValueError, RecursionError):
            raise Unanswered("the answer cannot be read: it is not JSON", passing=True) from None
        except (
            httpx2.HTTPError,
            OSError,
        ) as error:  # without its chain, which would show the request's headers
            told = f"cannot talk to {endpoint.where}: {str(error) or type(error).__name__}"
            raise Unanswered(self._hide(told), passing=True) from None
        # what the server says of the error, however it wraps it
        said: Any = response.text
        with suppress(ValueError, RecursionError, AttributeError):
            document = response.json()
            said = document.get("error", document.get("message", document.get("detail", said)))
            said = said.get("message", said)
        # hidden before it is cut: half a key would not be recognised as one
        status, said = response.status_code, self._hide(" ".join(str(said).split()))[:_SHOWN]
        why = (
            f"the endpoint answered {status}: {said}" if said else f"the endpoint answered {status}"
        )
        if status in _ADVICE:
            where = redact(endpoint.where)
            raise JudgeError(f"cannot ask {endpoint.model!r} at {where}: {_ADVICE[status]} ({why})")
        pause = retry_after(response.headers.get("Retry-After"))
        # the other questions wait, too, unless a question is asked once only: then each takes its chance
        if pause and endpoint.retries and not self._doubtful:
            self._not_before = max(self._not_before, time.monotonic() + pause)
        why += f"; it asks to wait {pause:.0f} s" if pause else ""
        # some servers fail where they ought to refuse a parameter, and always will
        raise Unanswered(
            why,
            status,
            pause,
            status in TRANSIENT and not (status == 500 and _REFUSED.search(said)),
        )

    def _hide(self, text: str) -> str:
        key = self.endpoint.key or ""
        return str(redact(text, [key] if len(key) >= SHORTEST else []))


def _reply_of(document: Any, hide: Callable[[str], str]) -> Reply:
    """A chat completion, read without what `hide` takes out, since a server may repeat what it was sent; raises
    `ValueError` for any other document."""
    try:
        choice = document["choices"][0]
        text, usage = choice["message"].get("content"), document.get("usage") or {}
        if text is not None and not isinstance(text, str):
            raise TypeError("content")
        calls = []
        for call in choice["message"].get("tool_calls") or ():
            written = call["function"].get("arguments") or ""
            arguments = hide(written if isinstance(written, str) else json.dumps(written))
            calls.append(ToolRequest(str(call.get("id")), str(call["function"]["name"]), arguments))
        tokens: tuple[tuple[str, dict[str, float]], ...] = ()
        # an extra that not every server gives: where its form is unknown, the answer counts all the same
        with suppress(AttributeError, KeyError, TypeError, ValueError):
            tokens = tuple(
                (
                    item["token"],
                    {top["token"]: float(top["logprob"]) for top in item["top_logprobs"]},
                )
                for item in choice["logprobs"]["content"]
            )
        return Reply(
            text=hide(text or ""),
            tokens=tokens,
            prompt_tokens=int(usage.get("prompt_tokens") or 0),
            completion_tokens=int(usage.get("completion_tokens") or 0),
            cut=choice.get("finish_reason") == "length",
            calls=tuple(calls),
        )
    except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
        raise ValueError(f"it is no chat completion with a message: {document}") from error
