"""One OpenAI-compatible endpoint: requests with time-outs, bounded retries, and an end to asking a dead server."""

from __future__ import annotations

import asyncio
import email.utils
import json
import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import msgspec

from ..errors import JudgeError
from ..tools.untrusted import is_loopback
from ..wire.redact import SHORTEST, redact
from .prompting import Messages
from .replies import Reply, reply_of

_PASSING = frozenset((408, 409, 425, 429))
_LONGEST_PAUSE = 30.0
_SHOWN = 300
"""Characters of a server's own words in a message."""
_ADVICE = {
    401: "the key is missing or wrong; set FAITHFUL_SEARCH_API_KEY, or OPENAI_API_KEY, to one that this server accepts",
    402: "the account has no credit",
    403: "the key may not use this model",
    404: "the model is unknown there or the URL is wrong (it usually ends in /v1)",
}


@dataclass
class Stats:
    """What asking has taken so far. `calls` are requests sent, `hits` answers that were cached, `failures` questions
    that were given up. `cost` is in the currency of the prices, 0 without them."""

    calls: int = 0
    hits: int = 0
    retries: int = 0
    failures: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cost: float = 0.0


@dataclass(frozen=True)
class Line:
    """Where to ask, and how patiently; times are seconds. `key` stays out of all text that leaves here, replies too."""

    url: str | None
    model: str
    key: str | None = field(repr=False)
    timeout: float
    patience: float
    retries: int
    backoff: float
    concurrency: int
    give_up_after: int

    @property
    def where(self) -> str:
        """The server, for messages."""
        return self.url or "Inference Providers"


class Fault(Exception):
    """A question that got no answer. `passing`: the server is not there or not well, and another try may help."""

    def __init__(self, why: str, status: int | None = None, wait: float | None = None, passing: bool = True) -> None:
        super().__init__(why)
        self.status, self.wait, self.passing = status, wait, passing


class Unreadable(Fault):
    """The server answered with something that is no answer."""

    def __init__(self, why: str) -> None:
        super().__init__(why, passing=False)


class NotAsked(Fault):
    """The endpoint had been given up before it was this question's turn."""


class Chat:
    """Asks one endpoint; everything here happens on one event loop."""

    def __init__(self, line: Line, stats: Stats) -> None:
        self.line, self.stats = line, stats
        self._slots = asyncio.Semaphore(line.concurrency)
        self._client = _client(line)
        self.trouble = asyncio.Event()
        """Set whenever a question has to be asked again."""
        self._not_before = 0.0
        self._lost = 0
        self._doubtful = False
        self.has_answered = False

    def new_batch(self) -> None:
        """After a server was given up, the next batch tries again, but each question only once until one succeeds."""
        if self._given_up:
            self._lost, self._doubtful = 0, True

    async def ask(self, messages: Messages, body: dict[str, Any], hopeless: Callable[[Fault], bool]) -> Reply:
        """One answer. A passing fault that is not `hopeless` is tried again after a growing pause, or the server's own.

        Raises:
            Fault: when there is no answer; `Unreadable` when it is none.
            JudgeError: when asking is pointless: a wrong key, an unknown model.
        """
        async with self._slots:
            try:
                reply = await self._persist(messages, body, hopeless)
            except NotAsked:
                raise
            except Fault as fault:
                self._lost = self._lost + 1 if fault.passing else 0
                raise
        self._lost, self._doubtful, self.has_answered = 0, False, True
        return reply

    async def close(self) -> None:
        await self._client.close()

    @property
    def _given_up(self) -> bool:
        return self._lost >= self.line.give_up_after

    async def _persist(self, messages: Messages, body: dict[str, Any], hopeless: Callable[[Fault], bool]) -> Reply:
        deadline = time.monotonic() + self.line.patience
        attempt = 0
        while True:
            await self._pause_for_all(deadline)
            if self._given_up:
                raise NotAsked(f"not asked: the endpoint left {self._lost} questions in a row without an answer")
            try:
                return await self._once(messages, body, deadline)
            except Fault as fault:
                tries = 0 if self._doubtful else self.line.retries
                if attempt >= tries or not fault.passing or hopeless(fault):
                    raise
                await self._back_off(fault, attempt, deadline)
            attempt += 1
            self.stats.retries += 1

    async def _once(self, messages: Messages, body: dict[str, Any], deadline: float) -> Reply:
        limit = min(self.line.timeout, max(deadline - time.monotonic(), 0.01))
        self.stats.calls += 1
        try:
            async with asyncio.timeout(limit):  # the whole answer: a slow body would never trip a read time-out
                output = await self._client.chat_completion(messages, model=self.line.model, extra_body=body)
            reply = self._without_key(reply_of(output))
        except Exception as error:
            raise self._fault(error, limit) from None  # the chain would show the request with its headers
        self.stats.prompt_tokens += reply.prompt_tokens
        self.stats.completion_tokens += reply.completion_tokens
        return reply

    async def _pause_for_all(self, deadline: float) -> None:
        while (wait := self._not_before - time.monotonic()) > 0:
            if self._not_before > deadline:
                raise Fault(f"the endpoint asks to wait {wait:.0f} s, longer than the patience of this judge", 429)
            await asyncio.sleep(wait + random.uniform(0, 0.02))

    async def _back_off(self, fault: Fault, attempt: int, deadline: float) -> None:
        self.trouble.set()
        if fault.wait is not None:
            self._not_before = max(self._not_before, time.monotonic() + fault.wait)
            return
        wait = min(self.line.backoff * 2**attempt, _LONGEST_PAUSE) * random.uniform(0.5, 1.0)
        if time.monotonic() + wait > deadline:
            raise fault
        await asyncio.sleep(wait)

    def _fault(self, error: Exception, limit: float) -> Fault | JudgeError:
        response = getattr(error, "response", None)
        if response is not None:
            return self._refusal(response)
        if isinstance(error, TimeoutError):
            return Fault(f"no complete answer within {limit:g} s")
        if type(error).__name__ == "OfflineModeIsEnabled":
            return JudgeError("HF_HUB_OFFLINE is set, so Inference Providers cannot be asked; give the judge a url")
        if _is_transport(error):
            return Fault(self._hide(f"cannot talk to {self.line.where}: {error or type(error).__name__}"))
        return Unreadable(f"the answer cannot be read: {self._hide(str(error))[:_SHOWN]}")

    def _refusal(self, response: Any) -> Fault | JudgeError:
        status = int(response.status_code)
        said = self._hide(_message(response))[:_SHOWN]
        why = f"the endpoint answered {status}: {said}" if said else f"the endpoint answered {status}"
        if status in _ADVICE:
            where = redact(self.line.where)
            return JudgeError(f"cannot ask {self.line.model!r} at {where}: {_ADVICE[status]} ({why})")
        passing = status in _PASSING or status >= 500
        return Fault(why, status, retry_after(response.headers.get("Retry-After")), passing)

    def _without_key(self, reply: Reply) -> Reply:
        """The reply, before anything of it is cut short, shown or kept: a server may repeat what it was sent."""
        calls = tuple(msgspec.structs.replace(call, arguments=self._hide(call.arguments)) for call in reply.calls)
        return msgspec.structs.replace(reply, text=self._hide(reply.text), calls=calls)

    def _hide(self, text: str) -> str:
        key = self.line.key or ""
        return str(redact(text, [key] if len(key) >= SHORTEST else []))


def retry_after(header: str | None) -> float | None:
    """Seconds to wait, from a `Retry-After` header in seconds or as a date; `None` when there is none to read.

    Example:
        >>> retry_after("2"), retry_after("soon")
        (2.0, None)
    """
    if not header:
        return None
    try:
        seconds = float(header)
    except ValueError:
        try:
            seconds = email.utils.parsedate_to_datetime(header).timestamp() - time.time()
        except (ValueError, OverflowError):
            return None
    return max(seconds, 0.0) if seconds == seconds else None


def _message(response: Any) -> str:
    try:
        text = str(response.text)
    except Exception:  # a body that was not read; the status says enough
        return ""
    try:
        found = json.loads(text)
        inner = found.get("error", found.get("message", found.get("detail", text)))
        text = inner.get("message", text) if isinstance(inner, dict) else inner
    except (ValueError, AttributeError):
        pass
    return " ".join(str(text).split())


def _is_transport(error: Exception) -> bool:
    """The Hub's client has changed its HTTP library; the classes' names stayed."""
    return isinstance(error, OSError) or any(kind.__name__ == "TransportError" for kind in type(error).__mro__)


def _client(line: Line) -> Any:
    from huggingface_hub import AsyncInferenceClient

    if not line.url:
        return AsyncInferenceClient(api_key=line.key)

    class Client(AsyncInferenceClient):
        """HF_HUB_OFFLINE is about the Hub; a server of one's own may well be asked. On this machine it is asked itself,
        whatever proxy the environment names.

        Both can otherwise only be set for the whole process (`set_async_client_factory`).
        """

        async def _get_async_client(self) -> Any:
            session = await super()._get_async_client()
            hooks = {**session.event_hooks, "request": []}
            if session.trust_env and is_loopback(str(line.url)):
                direct = type(session)(trust_env=False, follow_redirects=True, timeout=None, event_hooks=hooks)
                session = self._async_client = await self.exit_stack.enter_async_context(direct)
            session.event_hooks = hooks
            return session

    # Without a key the client would send the user's Hub token to whatever server this is.
    headers: Any = {"authorization": f"Bearer {line.key}" if line.key else None}
    return Client(base_url=line.url, headers=headers)
