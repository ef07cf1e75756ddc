"""The client for models behind OpenAI-compatible endpoints: served judges, writers, agents and vLLM
servers.
"""

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

from ..errors import ConfigError, JudgeError, UnreachableError
from .background import PerLoop
from .guard import is_loopback, tls
from .redact import SHORTEST, carried, redact
from .retry import TRANSIENT, Patience, retry_after

Messages = list[dict[str, Any]]

ROUTER = "https://router.huggingface.co/v1"
_HUB_HOSTS = ("huggingface.co", "huggingface.cloud", "hf.space")
_SHOWN = 300  # characters of a server's own words that a message shows
# A model that takes this parameter instead of max_tokens may reason before it replies. Reasoning
# counts towards the limit, so that a limit meant for the reply alone could leave it no room.
_COMPLETION_LIMIT = "max_completion_tokens"
_REASONING_TOKENS = 2048  # the least limit of such a model
# How servers word that they do not know a parameter or its value
_UNSUPPORTED = re.compile(r"unsupported|not support|only the default|unrecognized", re.IGNORECASE)
_INSTEAD = re.compile(rf"{_UNSUPPORTED.pattern}|use .?{_COMPLETION_LIMIT}", re.IGNORECASE)
# What a refusal names that is about log-probs or about output of a fixed form
_OPTIONAL_FEATURE = re.compile(
    r"log_?prob|logits_all|structured_output|guided|grammar|regex", re.IGNORECASE
)
# vLLM names both max_tokens and max_completion_tokens when a prompt is too long for the limit; that
# does not mean that it takes only one of them.
_OUTGROWN = re.compile(
    r"context (?:length|size|window)|(?:prompt|input) is too long", re.IGNORECASE
)
_TOO_LONG = re.compile(r"too (?:large|long)|context length", re.IGNORECASE)
_ADVICE = {
    401: "the key is missing or wrong; set FAITHFUL_SEARCH_API_KEY, or OPENAI_API_KEY, to one that this server accepts",
    402: "the account has no credit",
    403: "the key may not use this model",
    404: "the model is unknown there or the URL is wrong (it usually ends in /v1)",
}


@dataclass(frozen=True)
class Endpoint:
    """A model on a server, and how often and how long to ask it.

    A question is what a caller asks; each time that it is sent is a request.

    Args:
        url: base URL, usually ending in `/v1`; `None` for Hugging Face Inference Providers.
        model: the served model's name.
        key: sent as a bearer token, and hidden in everything that the server says.
        timeout: seconds for one request, until its answer is complete.
        patience: seconds for one question, its retries included.
        retries: how often a question is sent again after transient failures.
        backoff: seconds before the first retry, doubled with each retry.
        concurrency: questions under way at once on one event loop.
        give_up_after: how many questions in a row get no answer until no more are asked.
        direct: use no proxy, whatever the environment says. For servers on this machine none is
            used in any case.

    Raises:
        ConfigError: a number is out of range, or the URL is not of HTTP or holds a password.
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
            raise ConfigError(
                "concurrency, timeout, patience and give_up_after must be positive, retries and "
                "backoff not negative"
            )
        parts = urlsplit(self.url or ROUTER)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ConfigError(
                f"the endpoint's url must begin with http:// or https://; got {self.url!r}"
            )
        if parts.username or parts.password:  # it would end up in logs
            raise ConfigError(
                "the endpoint's url must not hold a password: put the key into an environment "
                "variable"
            )

    @property
    def where(self) -> str:
        """The server as messages name it."""
        return self.url or "Inference Providers"

    def address(self, path: str) -> httpx2.URL:
        """The URL of a path of the API. `url` may end before `/v1`, with it, or with the path."""
        url = httpx2.URL(self.url or ROUTER)
        base = url.path.rstrip("/")
        if base.endswith(path):
            return url
        if not base.endswith("/v1"):
            base += "/v1"
        return url.copy_with(path=base + path)


def with_key(endpoint: Endpoint) -> Endpoint:
    """The endpoint with its key, taken from the environment where it has none.

    `FAITHFUL_SEARCH_API_KEY` comes first; then the Hub's token for Hugging Face hosts only, and
    `OPENAI_API_KEY` for all others.

    Raises:
        JudgeError: Inference Providers are asked without a Hub token, or the key holds characters
            that no header can carry.
    """
    key = endpoint.key
    if key is None:
        from huggingface_hub import get_token

        host = urlsplit(endpoint.url or ROUTER).hostname or ""
        # With the dot: the host `nothuggingface.co` must not be sent the Hub's token.
        at_hub = any(host == name or host.endswith(f".{name}") for name in _HUB_HOSTS)
        key = os.environ.get("FAITHFUL_SEARCH_API_KEY")
        if not key:
            key = get_token() if at_hub else os.environ.get("OPENAI_API_KEY")
        if endpoint.url is None and not (key or "").startswith("hf_"):
            raise JudgeError(
                "Inference Providers need a Hub token: set HF_TOKEN, run `hf auth login`, or give "
                "a url"
            )
    key = carried(key or "")
    if key is None:
        raise JudgeError("the judge's key holds characters that no header can carry; copy it anew")
    return replace(endpoint, key=key or None)


@dataclass
class Stats:
    """Counts of what was asked so far.

    Attributes:
        calls: requests sent.
        hits: answers taken from a cache.
        retries: requests sent again after a transient failure.
        failures: questions that were given up.
        prompt_tokens: tokens of all prompts.
        completion_tokens: tokens of all completions.
        cost: of all tokens, in the currency of the prices that the caller was given.
        notes: sentences for whoever reads the results, with how often each was noted.
    """

    calls: int = 0
    hits: int = 0
    retries: int = 0
    failures: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cost: float = 0.0
    notes: dict[str, int] = field(default_factory=dict)

    def note(self, sentence: str) -> None:
        self.notes[sentence] = self.notes.get(sentence, 0) + 1


class Unanswered(Exception):
    """A question without an answer.

    Args:
        why: the reason, in words.
        status: the HTTP status, where there was a response.
        retry_after: seconds that the server asks to wait.
        transient: whether another try may help.
    """

    def __init__(
        self,
        why: str,
        status: int | None = None,
        retry_after: float | None = None,
        transient: bool = False,
    ) -> None:
        super().__init__(why)
        self.status = status
        self.retry_after = retry_after
        self.transient = transient


class Unreachable(Unanswered):
    """No connection could be made: nothing listens there, or the address is wrong."""


class OutgrownWindow(Unanswered):
    """The prompt, or the prompt with the reply's limit, is longer than the model's window."""


class Unreadable(Unanswered):
    """The server answered with something else than what was asked for."""


class ToolRequest(msgspec.Struct, frozen=True):
    """A tool call in an answer; `arguments` is JSON as the model wrote it, right or wrong."""

    id: str
    name: str
    arguments: str


class ChatReply(msgspec.Struct, frozen=True):
    """A chat completion.

    Attributes:
        text: empty where the model only calls tools.
        tokens: for each token of the text, the token and the most probable tokens at its place with
            their log-probs (natural logarithm); empty where the server sends none.
        prompt_tokens, completion_tokens: 0 where the server does not count them.
        cut: whether the text ends at the token limit instead of its own end.
        calls: the tools that the model calls.
    """

    text: str
    tokens: tuple[tuple[str, dict[str, float]], ...] = ()
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cut: bool = False
    calls: tuple[ToolRequest, ...] = ()


class LLM:
    """Asks one endpoint, on any event loop.

    Its methods raise `JudgeError` when no question can be answered (a wrong key, an unknown model,
    a server that is not there), and `Unanswered` when only this question has no answer. Once a
    server has answered, losing it raises `Unanswered`, since it may come back.

    Args:
        stats: where calls and tokens are counted; by default counts of its own.
    """

    def __init__(self, endpoint: Endpoint, stats: Stats | None = None) -> None:
        self.endpoint = endpoint
        self.stats = stats or Stats()
        self.has_answered = False
        # For each event loop a client, and the slots that limit its questions under way
        self._connections: PerLoop[tuple[httpx2.AsyncClient, asyncio.Semaphore]] = PerLoop(
            lambda connection: connection[0].aclose()
        )
        self._lost = 0  # questions in a row without any answer
        self._doubtful = False  # the server was given up, and has not answered since
        self._not_before = 0.0  # `time.monotonic` until which the server asks to wait
        # By the name of a parameter, the name that the model wants instead, or `None` where it
        # refuses the parameter
        self._renamed: dict[str, str | None] = {}

    def new_batch(self) -> None:
        """Try again to ask a server that was given up; until it answers, no question is retried."""
        if self._lost >= self.endpoint.give_up_after:
            self._lost = 0
            self._doubtful = True

    async def chat(self, messages: Messages, body: dict[str, Any], **kwargs: Any) -> ChatReply:
        """Ask for one chat completion.

        A parameter that the model refuses is renamed or left out, and the question asked again; so
        are later ones from the start.

        Args:
            body: further parameters of the request.
            kwargs: arguments of `post`.

        Raises:
            OutgrownWindow: the prompt leaves no room for the reply.
            Unreadable: the answer is no chat completion.
            UnreachableError: the server is not there, and has never answered.
        """
        request = {"messages": messages, "model": self.endpoint.model, **body}
        while True:
            sent: dict[str, Any] = {}
            for name, value in request.items():
                sent_name = self._renamed.get(name, name)
                if sent_name is not None:
                    sent[sent_name] = value
            if _COMPLETION_LIMIT in sent:
                sent[_COMPLETION_LIMIT] = max(sent[_COMPLETION_LIMIT], _REASONING_TOKENS)
            try:
                document = await self.post("/chat/completions", sent, **kwargs)
                break
            except Unreachable as fault:
                if self.has_answered:
                    raise
                advice = "start the server, or give its address (it usually ends in /v1)"
                raise UnreachableError(f"{fault}; {advice}") from None
            except Unanswered as fault:
                # 400 and 422 are the statuses of refused parameters.
                is_refused = fault.status in (400, 413, 422)
                if is_refused and _OUTGROWN.search(str(fault)):
                    raise OutgrownWindow(str(fault), fault.status) from None
                if fault.status not in (400, 422) or not self._learn(str(fault), sent):
                    raise
        try:
            reply = _reply_of(document, self._hide)
        except ValueError as error:
            why = self._hide(str(error))[:_SHOWN]
            raise Unreadable(f"the answer cannot be read: {why}") from None
        if not document.get("usage"):
            self.stats.note(
                "the server did not say how many tokens a request had: the counts are too low"
            )
        model = document.get("model")
        if model and str(model).lower() != self.endpoint.model.lower():
            answerer = self._hide(str(model))[:_SHOWN]
            self.stats.note(f"{self.endpoint.model} was asked, {answerer} answered")
        self.stats.prompt_tokens += reply.prompt_tokens
        self.stats.completion_tokens += reply.completion_tokens
        return reply

    def _learn(self, refusal: str, sent: dict[str, Any]) -> bool:
        """Remember which parameter of those that were sent a refusal is about. Returns whether it
        is about one.
        """
        names_limit = "max_tokens" in sent and _COMPLETION_LIMIT in refusal
        if names_limit and _INSTEAD.search(refusal) and not _TOO_LONG.search(refusal):
            self._renamed["max_tokens"] = _COMPLETION_LIMIT
            self.stats.note(
                f"the model takes {_COMPLETION_LIMIT}: it may reason first, in up to "
                f"{_REASONING_TOKENS:,} tokens"
            )
            return True
        if not _UNSUPPORTED.search(refusal):
            return False
        for name in ("temperature", "seed"):
            if name in sent and f"'{name}'" in refusal:
                self._renamed[name] = None
                self.stats.note(f"the model takes no {name}: it was asked without")
                return True
        return False

    async def post(
        self, path: str, body: dict[str, Any] | None, on_retry: Callable[[], object] = lambda: None
    ) -> Any:
        """The JSON that the server answers at a path of the API.

        Args:
            path: what follows `/v1` in the URL, such as `/chat/completions`.
            body: sent as JSON by POST; `None` sends a GET.
            on_retry: called before each retry.
        """
        endpoint = self.endpoint
        client, slots = await self._connections.get(self._connect)
        content = None if body is None else json.dumps(body).encode()
        request = client.build_request(
            "POST" if content else "GET",
            endpoint.address(path),
            content=content,
            headers={"Content-Type": "application/json"},
        )

        def count_retry() -> None:
            self.stats.retries += 1
            on_retry()

        async with slots:
            deadline = time.monotonic() + endpoint.patience
            patience = Patience(
                retries=0 if self._doubtful else endpoint.retries,
                first=endpoint.backoff,
                longest=endpoint.patience,
            )
            try:
                document = await patience.persist(
                    partial(self._send, client, request, deadline), deadline, on_retry=count_retry
                )
            except Unanswered as fault:
                if fault.transient:
                    self._lost += 1
                elif fault.status:  # an answer, though not to this question
                    self._lost = 0
                raise
        self._lost = 0
        self._doubtful = False
        self.has_answered = True
        return document

    def _connect(self) -> tuple[httpx2.AsyncClient, asyncio.Semaphore]:
        """A client and slots for one event loop."""
        endpoint = self.endpoint
        if not endpoint.url:
            from huggingface_hub import constants

            if constants.is_offline_mode():
                raise JudgeError(
                    "HF_HUB_OFFLINE is set, so Inference Providers cannot be asked; give the judge "
                    "a url"
                )
        client = httpx2.AsyncClient(
            headers={"Authorization": f"Bearer {endpoint.key}"} if endpoint.key else None,
            # `_send` limits the time of the whole answer. A read time-out would not: each byte of a
            # slow answer starts it anew.
            timeout=None,
            # The slots limit the requests. One that waited for a connection here would use up its
            # time-out.
            limits=httpx2.Limits(max_connections=None),
            follow_redirects=True,
            trust_env=not (endpoint.direct or is_loopback(endpoint.where)),
            verify=tls(),
        )
        return client, asyncio.Semaphore(endpoint.concurrency)

    async def _send(
        self, client: httpx2.AsyncClient, request: httpx2.Request, deadline: float
    ) -> Any:
        """Send the request once, when the server no longer asks to wait, and return its JSON.

        `deadline` (`time.monotonic`) is that of the question.
        """
        endpoint = self.endpoint
        while (wait := self._not_before - time.monotonic()) > 0:
            if self._not_before > deadline:
                raise Unanswered(f"the endpoint asks to wait {wait:.0f} s, which is too long", 429)
            await asyncio.sleep(wait)
        if self._lost >= endpoint.give_up_after:
            raise Unanswered(
                f"not asked: the endpoint left {endpoint.give_up_after} questions in a row without "
                "an answer"
            )
        # Even at the deadline a request has a moment, so that it fails as a time-out.
        limit = min(endpoint.timeout, max(deadline - time.monotonic(), 0.01))
        self.stats.calls += 1
        try:
            async with asyncio.timeout(limit):
                response = await client.send(request)
            if response.is_success:
                return response.json()
        except TimeoutError:
            raise Unanswered(
                f"no complete answer within {round(limit, 1):g} s", transient=True
            ) from None
        except (ValueError, RecursionError):
            raise Unanswered("the answer cannot be read: it is not JSON", transient=True) from None
        except httpx2.ConnectError as error:
            message = f"cannot reach {endpoint.where}: {str(error) or type(error).__name__}"
            raise Unreachable(self._hide(message), transient=self.has_answered) from None
        except (httpx2.HTTPError, OSError) as error:
            message = f"cannot talk to {endpoint.where}: {str(error) or type(error).__name__}"
            # `from None`, since the chained error would show the request's headers.
            raise Unanswered(self._hide(message), transient=True) from None
        raise self._refusal(response)

    def _refusal(self, response: httpx2.Response) -> JudgeError | Unanswered:
        """The error for a response that is no success.

        Where the response asks to wait, all questions wait (`_not_before`).
        """
        endpoint = self.endpoint
        status = response.status_code
        one_line = " ".join(str(_detail(response)).split())
        # Keys are hidden before the text is cut: half a key would not be recognised as one.
        detail = self._hide(one_line)[:_SHOWN]
        why = f"the endpoint answered {status}"
        if detail:
            why += f": {detail}"
        if status in _ADVICE:
            where = redact(endpoint.where)
            return JudgeError(
                f"cannot ask {endpoint.model!r} at {where}: {_ADVICE[status]} ({why})"
            )
        pause = retry_after(response.headers.get("Retry-After"))
        if pause:
            why += f"; it asks to wait {pause:.0f} s"
            # Where no question is retried, waiting would help none: each is sent at once.
            if endpoint.retries and not self._doubtful:
                self._not_before = max(self._not_before, time.monotonic() + pause)
        # Some servers answer 500 instead of refusing a feature they lack. A retry would not help.
        fails_always = status == 500 and _OPTIONAL_FEATURE.search(detail) is not None
        transient = status in TRANSIENT and not fails_always
        return Unanswered(why, status=status, retry_after=pause, transient=transient)

    def _hide(self, text: str) -> str:
        """The text without the key and other secrets; a very short key would hide common words."""
        key = self.endpoint.key or ""
        secrets = [key] if len(key) >= SHORTEST else []
        return str(redact(text, secrets))


def _detail(response: httpx2.Response) -> Any:
    """What the server says of an error: `error`, `message` or `detail` of its JSON, or the
    `message` within; the whole text where it has none of these.
    """
    detail: Any = response.text
    with suppress(ValueError, RecursionError, AttributeError):
        document = response.json()
        for name in ("error", "message", "detail"):
            if document.get(name) is not None:
                detail = document[name]
                break
        detail = detail.get("message") or detail
    return detail


def _reply_of(document: Any, hide: Callable[[str], str]) -> ChatReply:
    """The reply in a server's JSON.

    Args:
        document: the JSON, of any form.
        hide: takes secrets out of a text, since a server may repeat what it was sent.

    Raises:
        ValueError: the document is no chat completion.
    """
    try:
        choice = document["choices"][0]
        text = choice["message"].get("content")
        usage = document.get("usage") or {}
        if text is not None and not isinstance(text, str):
            raise TypeError("content")
        calls = []
        for call in choice["message"].get("tool_calls") or ():
            name = str(call["function"]["name"])
            arguments = call["function"].get("arguments") or ""
            if not isinstance(arguments, str):  # some servers send the object itself
                arguments = json.dumps(arguments)
            request = ToolRequest(str(call.get("id")), name, hide(arguments))
            calls.append(request)
        return ChatReply(
            text=hide(text or ""),
            tokens=_logprobs_of(choice),
            prompt_tokens=int(usage.get("prompt_tokens") or 0),
            completion_tokens=int(usage.get("completion_tokens") or 0),
            cut=choice.get("finish_reason") == "length",
            calls=tuple(calls),
        )
    except (
        AttributeError,
        IndexError,
        KeyError,
        TypeError,
        ValueError,
        OverflowError,  # `int` of a count that JSON has as infinity, such as 1e400
    ) as error:
        raise ValueError(f"it is no chat completion with a message: {document}") from error


def _logprobs_of(choice: Any) -> tuple[tuple[str, dict[str, float]], ...]:
    """`ChatReply.tokens` of a choice; empty where it has none, or has them in an unknown form."""
    tokens = []
    with suppress(AttributeError, KeyError, TypeError, ValueError):
        for token in choice["logprobs"]["content"]:
            most_probable = {}
            for top in token["top_logprobs"]:
                most_probable[top["token"]] = float(top["logprob"])
            tokens.append((token["token"], most_probable))
        return tuple(tokens)
    return ()
