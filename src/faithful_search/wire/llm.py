"""One client for models behind OpenAI-compatible endpoints: served judges, writers, agents and vLLM servers."""

import asyncio
import json
import re
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import httpx2
import msgspec

from ..errors import JudgeError
from .background import PerLoop
from .endpoint import Endpoint
from .guard import is_loopback, tls
from .redact import SHORTEST, redact
from .retry import TRANSIENT, Patience, retry_after

Messages = list[dict[str, Any]]

_SHOWN = 300  # characters of a server's own words in a message
_MOST = "max_completion_tokens"
_REASONS = 2048  # tokens for a model that wants them under that name: it reasons before it replies, and both count
_UNSUPPORTED = re.compile(r"unsupported|not support|only the default|unrecognized", re.IGNORECASE)
_INSTEAD = re.compile(rf"{_UNSUPPORTED.pattern}|use .?{_MOST}", re.IGNORECASE)
_REFUSED = re.compile(r"log_?prob|logits_all|structured_output|guided|grammar|regex", re.IGNORECASE)
_TOO_LONG = re.compile(r"too (?:large|long)|context length", re.IGNORECASE)  # vLLM then names both parameters
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
    the currency of the prices. `notes` counts what readers of the results should know as well.
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
        self.notes[what] = self.notes.get(what, 0) + 1


class Unanswered(Exception):
    """A question without an answer. `passing`: the failure is transient, and another try may help."""

    def __init__(
        self, why: str, status: int | None = None, retry_after: float | None = None, passing: bool = False
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
    """Asks one endpoint, on any event loop.

    Its methods raise `JudgeError` when asking is pointless for every question (a wrong key, an unknown model) and
    `Unanswered` when there is no answer to this one.
    """

    def __init__(self, endpoint: Endpoint, stats: Stats | None = None) -> None:
        self.endpoint, self.stats = endpoint, stats or Stats()
        self.has_answered = False
        self._connections: PerLoop[tuple[httpx2.AsyncClient, asyncio.Semaphore]] = PerLoop(lambda one: one[0].aclose())
        self._lost, self._doubtful = 0, False  # questions in a row without any answer; whether that ended a batch
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
            raise Unreadable(f"the answer cannot be read: {self._hide(str(error))[:_SHOWN]}") from None
        if (who := document.get("model")) and str(who).lower() != self.endpoint.model.lower():
            self.stats.note(f"{self.endpoint.model} was asked, {self._hide(str(who))[:_SHOWN]} answered")
        self.stats.prompt_tokens += reply.prompt_tokens
        self.stats.completion_tokens += reply.completion_tokens
        return reply

    def _learn(self, said: str, sent: dict[str, Any]) -> bool:
        """Whether the refusal says of a parameter that was sent what the model takes instead, if anything."""
        if "max_tokens" in sent and _MOST in said and _INSTEAD.search(said) and not _TOO_LONG.search(said):
            self._takes["max_tokens"] = _MOST
            self.stats.note(f"the model takes {_MOST}: it may reason first, in up to {_REASONS:,} tokens")
            return True
        refused = next((name for name in ("temperature", "seed") if name in sent and f"'{name}'" in said), None)
        if refused is None or not _UNSUPPORTED.search(said):
            return False
        self._takes[refused] = None
        self.stats.note(f"the model takes no {refused}: it was asked without")
        return True

    async def post(self, path: str, body: dict[str, Any] | None, on_retry: Callable[[], object] = lambda: None) -> Any:
        """The JSON that a path of the API, below `/v1`, answers to a body, or to a GET without one.

        `on_retry` is called whenever the question has to be asked again.
        """
        endpoint, (client, slots) = self.endpoint, await self._connections.get(self._connect)
        url, headers = endpoint.address(path), {"Content-Type": "application/json"}
        content = None if body is None else json.dumps(body).encode()
        request = client.build_request("POST" if content else "GET", url, content=content, headers=headers)

        def retrying() -> None:
            self.stats.retries += 1
            on_retry()

        async with slots:
            deadline = time.monotonic() + endpoint.patience
            patience = Patience(0 if self._doubtful else endpoint.retries, endpoint.backoff, endpoint.patience)
            try:
                found = await patience.persist(partial(self._send, client, request, deadline), deadline, retrying)
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
                raise JudgeError("HF_HUB_OFFLINE is set, so Inference Providers cannot be asked; give the judge a url")
        client = httpx2.AsyncClient(
            headers={"Authorization": f"Bearer {endpoint.key}"} if endpoint.key else None,
            timeout=None,  # `_send` limits the whole answer: a slow body would never trip a read time-out
            limits=httpx2.Limits(max_connections=None),  # a request waits before its time runs, not here
            follow_redirects=True,
            trust_env=not (endpoint.direct or is_loopback(endpoint.where)),
            verify=tls(),
        )
        return client, asyncio.Semaphore(endpoint.concurrency)

    async def _send(self, client: httpx2.AsyncClient, request: httpx2.Request, deadline: float) -> Any:
        """What the server answers, once it may be asked."""
        endpoint = self.endpoint
        while (wait := self._not_before - time.monotonic()) > 0:
            if self._not_before > deadline:
                raise Unanswered(f"the endpoint asks to wait {wait:.0f} s, which is too long", 429)
            await asyncio.sleep(wait)
        if self._lost >= endpoint.give_up_after:
            lost = f"the endpoint left {endpoint.give_up_after} questions in a row without an answer"
            raise Unanswered(f"not asked: {lost}")
        limit = min(endpoint.timeout, max(deadline - time.monotonic(), 0.01))
        self.stats.calls += 1
        try:
            async with asyncio.timeout(limit):
                response = await client.send(request)
            if response.is_success:
                return response.json()
        except TimeoutError:
            raise Unanswered(f"no complete answer within {round(limit, 1):g} s", passing=True) from None
        except (ValueError, RecursionError):
            raise Unanswered("the answer cannot be read: it is not JSON", passing=True) from None
        except (httpx2.HTTPError, OSError) as error:  # without its chain, which would show the request's headers
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
        why = f"the endpoint answered {status}: {said}" if said else f"the endpoint answered {status}"
        if status in _ADVICE:
            where = redact(endpoint.where)
            raise JudgeError(f"cannot ask {endpoint.model!r} at {where}: {_ADVICE[status]} ({why})")
        pause = retry_after(response.headers.get("Retry-After"))
        # the other questions wait, too, unless a question is asked once only: then each takes its chance
        if pause and endpoint.retries and not self._doubtful:
            self._not_before = max(self._not_before, time.monotonic() + pause)
        why += f"; it asks to wait {pause:.0f} s" if pause else ""
        # some servers fail where they ought to refuse a parameter, and always will
        raise Unanswered(why, status, pause, status in TRANSIENT and not (status == 500 and _REFUSED.search(said)))

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
        logprobs = choice.get("logprobs")
        # an extra that not every server gives: where its form is unknown, the answer counts all the same
        with suppress(AttributeError, KeyError, TypeError, ValueError):
            tokens = tuple(
                (item["token"], {top["token"]: float(top["logprob"]) for top in item["top_logprobs"]})
                for item in logprobs["content"]
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
