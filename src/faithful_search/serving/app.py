"""The application around what is served: paths, bodies within limits, errors as JSON, health and metrics.

It is plain ASGI: a search takes a fraction of a millisecond, and the layers of a framework take as long again.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

import msgspec

from ..errors import ToolError
from .metrics import CONTENT_TYPE, Metrics
from .wire import Limits, RequestError

Answer = Callable[[bytes], Any]
"""What is served at a path: the body of a POST in, out comes a value to be written as JSON, or an awaitable of one."""

Receive = Callable[[], Awaitable[Any]]
App = Callable[[Any, Receive, Any], Awaitable[None]]
"""An ASGI application."""

_LOG = logging.getLogger(__name__)
_HANG_UP = ((b"connection", b"close"),)  # the rest of such a body is not read
_HEADERS = {408: _HANG_UP, 413: _HANG_UP, 503: ((b"retry-after", b"1"),)}


class _Reply(NamedTuple):
    status: int
    body: bytes
    kind: str = "application/json"


def application(
    answers: Mapping[str, Answer],
    *,
    limits: Limits | None = None,
    metrics: Metrics | None = None,
    about: Mapping[str, Any] | None = None,
) -> App:
    """An ASGI application that answers POSTs at the given paths, and `GET /health` and `GET /metrics`.

    Errors are `{"error": message}`: 4xx for what the request did, 502 and 503 for an engine behind the answer, 504 for
    one that takes too long. An answer that is awaited is cancelled when its client has gone.

    Args:
        answers: by path; one raises `RequestError` for what it refuses.
        limits: of what a request may ask for.
        metrics: where to count.
        about: what `/health` tells besides `"status": "ok"`.
    """
    limits, metrics = limits or Limits(), metrics or Metrics()
    bodies = Bodies(limits)
    pages: dict[str, Callable[[], _Reply]] = {
        "/health": lambda: _json({"status": "ok", **(about or {})}),
        "/metrics": lambda: _Reply(200, metrics.text().encode(), CONTENT_TYPE),
    }

    async def answered(path: str, body: bytes, receive: Receive) -> Any:
        # counted from here on: a client that takes its time to send a body keeps nobody else waiting
        if metrics.running.value() >= limits.requests:
            raise RequestError("too many requests at the same time: come back later", 503)
        metrics.running.add(1)
        try:
            answer = answers[path](body)
            if inspect.isawaitable(answer):
                async with asyncio.timeout(limits.seconds):
                    answer = await _while_there(receive, answer)
            return answer
        finally:
            metrics.running.add(-1)

    async def post(path: str, scope: Any, receive: Receive) -> _Reply:
        start = time.perf_counter()
        try:
            async with bodies.read(scope, receive) as body:
                reply = _json(await answered(path, body, receive))
        except asyncio.CancelledError:  # only a server that ends does that
            reply = _json({"error": "the server is stopping"}, 503)
        except Exception as error:
            reply = refusal(error)
        metrics.requests.add(1, path, str(reply.status))
        metrics.seconds.observe(time.perf_counter() - start)
        return reply

    async def serve(scope: Any, receive: Receive, send: Any) -> None:
        if scope["type"] != "http":
            raise RuntimeError(f"{scope['type']} is not spoken here")  # as ASGI wants it
        method, path = scope["method"], scope["path"].rstrip("/")
        if method == "POST" and path in answers:
            reply = await post(path, scope, receive)
        elif method in ("GET", "HEAD") and path in pages:
            reply = pages[path]()
        else:
            there = ", ".join([*(f"POST {known}" for known in answers), *(f"GET {known}" for known in pages)])
            told = f"there is no {method} {scope['path'][:80]} here; there are {there}"
            reply = _json({"error": told}, 405 if path in answers or path in pages else 404)
        await send_reply(send, reply)

    return serve


class GoneError(Exception):
    """The client has gone."""


async def _while_there(receive: Receive, work: Awaitable[Any]) -> Any:
    """Await `work` while the client waits for it."""
    # the body has been read, so `receive` has nothing more to give but that the client is gone
    answer, gone = asyncio.ensure_future(work), asyncio.ensure_future(receive())
    try:
        await asyncio.wait({answer, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not answer.done():
            raise GoneError
        return answer.result()
    finally:
        answer.cancel()
        gone.cancel()


def refusal(error: Exception) -> _Reply:
    """What a client is told of an error; what is the server's own business goes to its log."""
    match error:
        case RequestError():
            return _json({"error": str(error)}, error.status)
        case ToolError():
            return _json({"error": str(error) or "the search failed"}, 503 if error.passing else 502)
        case TimeoutError():
            return _json({"error": "the answer took too long"}, 504)
        case GoneError():
            return _json({"error": "the client has gone"}, 499)
    _LOG.error("a request failed", exc_info=error)
    return _json({"error": "internal error, see the server's log"}, 500)


def _json(value: Any, status: int = 200) -> _Reply:
    return _Reply(status, msgspec.json.encode(value))


async def send_reply(send: Any, reply: _Reply) -> None:
    """Send it as an ASGI application does."""
    headers = [
        (b"content-type", reply.kind.encode()),
        (b"content-length", str(len(reply.body)).encode()),
        *_HEADERS.get(reply.status, ()),
    ]
    await send({"type": "http.response.start", "status": reply.status, "headers": headers})
    await send({"type": "http.response.body", "body": reply.body})


class Bodies:
    """The bodies that an application holds, of requests that are sent or answered at present.

    When they grow too large together, the one that has been coming for longest is given up, as often as it takes:
    clients that send slowly keep out none that send quickly.
    """

    def __init__(self, limits: Limits) -> None:
        self._limits, self._most = limits, max(limits.bodies_bytes, limits.body_bytes)
        self._whole = 0
        self._coming: dict[asyncio.Timeout, int] = {}  # the eldest first

    @asynccontextmanager
    async def read(self, scope: Any, receive: Receive) -> AsyncIterator[bytes]:
        """A request's body, whatever its length is said to be; held until the block ends.

        Raises `RequestError` when it does not come in time (408), is larger than allowed (413) or made room (503), and
        `GoneError` when the client went away before its end.
        """
        told = header(scope, b"content-length")
        if told.isdigit() and int(told[:18]) > self._limits.body_bytes:
            raise self._too_large()
        # by a function of its own, which drops the pieces: while the request is answered, a body is held only once
        body = await self._read(receive)
        self._whole += len(body)
        try:
            yield body
        finally:
            self._whole -= len(body)

    async def _read(self, receive: Receive) -> bytes:
        body, more, patience = bytearray(), True, asyncio.timeout(self._limits.seconds)
        try:
            async with patience:
                while more:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        raise GoneError
                    body += message.get("body", b"")
                    more = message.get("more_body", False)
                    if len(body) > self._limits.body_bytes:
                        raise self._too_large()
                    self._coming[patience] = len(body)
                    while self._coming and self._whole + sum(self._coming.values()) > self._most:
                        eldest = next(iter(self._coming))
                        del self._coming[eldest]
                        if not eldest.expired():
                            eldest.reschedule(0)  # its own task raises the error
        except TimeoutError:
            if patience.when() == 0:
                raise RequestError("too many large bodies at the same time: come back later", 503) from None
            raise RequestError(f"the body did not come within {self._limits.seconds:g} seconds", 408) from None
        finally:
            self._coming.pop(patience, None)
        return bytes(body)

    def _too_large(self) -> RequestError:
        return RequestError(f"the body is larger than {self._limits.body_bytes} bytes", 413)


def header(scope: Any, name: bytes) -> bytes:
    """The last header of this name, empty where there is none."""
    value: bytes = dict(scope.get("headers", ())).get(name, b"")
    return value
