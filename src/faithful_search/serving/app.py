"""The application around what is served: bodies read within limits, errors as JSON, health and metrics, a token.

It is plain ASGI: a search takes a fraction of a millisecond, and the layers of a framework as long again.
"""

from __future__ import annotations

import asyncio
import hmac
import inspect
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
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
_JSON = "application/json"
_HANG_UP = ((b"connection", b"close"),)  # the rest of such a body is not read
_HEADERS = {408: _HANG_UP, 413: _HANG_UP, 503: ((b"retry-after", b"1"),)}


class _Reply(NamedTuple):
    status: int
    body: bytes
    kind: str = _JSON


class _GoneError(Exception):
    """The client has gone."""


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
    endpoints = {path: _Endpoint(path, answer, limits, metrics) for path, answer in answers.items()}
    pages: dict[str, Callable[[], _Reply]] = {
        "/health": lambda: _json({"status": "ok", **(about or {})}),
        "/metrics": lambda: _Reply(200, metrics.text().encode(), CONTENT_TYPE),
    }

    async def serve(scope: Any, receive: Receive, send: Any) -> None:
        if scope["type"] != "http":
            raise RuntimeError(f"{scope['type']} is not spoken here")  # as ASGI wants it
        method, path = scope["method"], scope["path"].rstrip("/")
        if method == "POST" and path in endpoints:
            reply = await endpoints[path].post(scope, receive)
        elif method in ("GET", "HEAD") and path in pages:
            reply = pages[path]()
        else:
            reply = _unknown(scope, endpoints, pages)
        await _send(send, reply)

    return serve


def guarded(app: App, token: str) -> App:
    """The application for those who send `Authorization: Bearer TOKEN`; `/health` is for all. No token, no guard."""
    wanted = f"Bearer {token}".encode()

    async def ask(scope: Any, receive: Receive, send: Any) -> None:
        given = _header(scope, b"authorization")
        if scope["type"] == "http" and scope["path"] != "/health" and not hmac.compare_digest(given, wanted):
            refusal = RequestError("a token is needed: Authorization: Bearer …", 401)
            return await _send(send, _refusal(refusal))
        return await app(scope, receive, send)

    return ask if token else app


class _Endpoint:
    def __init__(self, path: str, answer: Answer, limits: Limits, metrics: Metrics) -> None:
        self.path, self.answer, self.limits, self.metrics = path, answer, limits, metrics

    async def post(self, scope: Any, receive: Receive) -> _Reply:
        start, running = time.perf_counter(), self.metrics.running
        running.add(1)
        try:
            reply = await self._reply(scope, receive)
        finally:
            running.add(-1)
        self.metrics.requests.add(1, self.path, str(reply.status))
        self.metrics.seconds.observe(time.perf_counter() - start)
        return reply

    async def _reply(self, scope: Any, receive: Receive) -> _Reply:
        try:
            if self.metrics.running.value() > self.limits.requests:
                raise RequestError("too many requests at the same time: come back later", 503)
            answer = self.answer(await _body(scope, receive, self.limits))
            if inspect.isawaitable(answer):
                async with asyncio.timeout(self.limits.seconds):
                    answer = await _while_there(receive, answer)
            return _json(answer)
        except asyncio.CancelledError:  # nobody but a server that ends does that
            return _json({"error": "the server is stopping"}, 503)
        except Exception as error:
            return _refusal(error)


async def _body(scope: Any, receive: Receive, limits: Limits) -> bytes:
    """The body, which must come in time and be no larger than allowed, whatever its length is said to be."""
    too_large = RequestError(f"the body is larger than {limits.body_bytes} bytes", 413)
    told = _header(scope, b"content-length")
    if told.isdigit() and int(told[:18]) > limits.body_bytes:
        raise too_large
    body, more = bytearray(), True
    try:
        async with asyncio.timeout(limits.seconds):
            while more:
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise _GoneError
                body += message.get("body", b"")
                more = message.get("more_body", False)
                if len(body) > limits.body_bytes:
                    raise too_large
    except TimeoutError:
        raise RequestError(f"the body did not come within {limits.seconds:g} seconds", 408) from None
    return bytes(body)


async def _while_there(receive: Receive, work: Awaitable[Any]) -> Any:
    """Await `work` while the client waits for it."""
    answer, gone = asyncio.ensure_future(work), asyncio.ensure_future(receive())
    try:
        await asyncio.wait({answer, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not answer.done():
            raise _GoneError
        return answer.result()
    finally:
        answer.cancel()
        gone.cancel()


def _header(scope: Any, name: bytes) -> bytes:
    """Of several the last, empty where there is none."""
    value: bytes = dict(scope.get("headers", ())).get(name, b"")
    return value


def _refusal(error: Exception) -> _Reply:
    match error:
        case RequestError():
            return _json({"error": str(error)}, error.status)
        case ToolError():
            return _json({"error": str(error) or "the search failed"}, 503 if error.passing else 502)
        case TimeoutError():
            return _json({"error": "the answer took too long"}, 504)
        case _GoneError():
            return _json({"error": "the client has gone"}, 499)
    _LOG.error("a request failed", exc_info=error)
    return _json({"error": "internal error, see the server's log"}, 500)


def _unknown(scope: Any, endpoints: Mapping[str, Any], pages: Mapping[str, Any]) -> _Reply:
    method, path = scope["method"], scope["path"]
    there = ", ".join([*(f"POST {known}" for known in endpoints), *(f"GET {known}" for known in pages)])
    known = path.rstrip("/") in {*endpoints, *pages}
    return _json({"error": f"there is no {method} {path[:80]} here; there are {there}"}, 405 if known else 404)


def _json(value: Any, status: int = 200) -> _Reply:
    return _Reply(status, msgspec.json.encode(value))


async def _send(send: Any, reply: _Reply) -> None:
    headers = [
        (b"content-type", reply.kind.encode()),
        (b"content-length", str(len(reply.body)).encode()),
        *_HEADERS.get(reply.status, ()),
    ]
    await send({"type": "http.response.start", "status": reply.status, "headers": headers})
    await send({"type": "http.response.body", "body": reply.body})
