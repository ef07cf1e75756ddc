"""The application around what is served: paths, errors as JSON, health and metrics.

It is plain ASGI: a search takes a fraction of a millisecond, and the layers of a framework as long again.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, NamedTuple

import msgspec

from ..errors import ToolError
from .bodies import Bodies, GoneError, Receive
from .metrics import CONTENT_TYPE, Metrics
from .wire import Limits, RequestError

Answer = Callable[[bytes], Any]
"""What is served at a path: the body of a POST in, out comes a value to be written as JSON, or an awaitable of one."""

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
    endpoints = {path: _Endpoint(path, answer, bodies, metrics) for path, answer in answers.items()}
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
        await send_reply(send, reply)

    return serve


class _Endpoint:
    def __init__(self, path: str, answer: Answer, bodies: Bodies, metrics: Metrics) -> None:
        self.path, self.answer, self.bodies, self.metrics = path, answer, bodies, metrics

    async def post(self, scope: Any, receive: Receive) -> _Reply:
        start = time.perf_counter()
        reply = await self._reply(scope, receive)
        self.metrics.requests.add(1, self.path, str(reply.status))
        self.metrics.seconds.observe(time.perf_counter() - start)
        return reply

    async def _reply(self, scope: Any, receive: Receive) -> _Reply:
        try:
            async with self.bodies.read(scope, receive) as body:
                return _json(await self._answered(body, receive))
        except asyncio.CancelledError:  # nobody but a server that ends does that
            return _json({"error": "the server is stopping"}, 503)
        except Exception as error:
            return refusal(error)

    async def _answered(self, body: bytes, receive: Receive) -> Any:
        """Counted from here on: a client that takes its time to send a body keeps nobody else waiting."""
        running, limits = self.metrics.running, self.bodies.limits
        if running.value() >= limits.requests:
            raise RequestError("too many requests at the same time: come back later", 503)
        running.add(1)
        try:
            answer = self.answer(body)
            if inspect.isawaitable(answer):
                async with asyncio.timeout(limits.seconds):
                    answer = await _while_there(receive, answer)
            return answer
        finally:
            running.add(-1)


async def _while_there(receive: Receive, work: Awaitable[Any]) -> Any:
    """Await `work` while the client waits for it."""
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


def _unknown(scope: Any, endpoints: Mapping[str, Any], pages: Mapping[str, Any]) -> _Reply:
    method, path = scope["method"], scope["path"]
    there = ", ".join([*(f"POST {known}" for known in endpoints), *(f"GET {known}" for known in pages)])
    known = path.rstrip("/") in {*endpoints, *pages}
    return _json({"error": f"there is no {method} {path[:80]} here; there are {there}"}, 405 if known else 404)


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
