"""The application around what is served: bodies read within limits, errors as JSON, health and metrics, a token."""

from __future__ import annotations

import asyncio
import hmac
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from ..errors import ConfigError, ToolError
from .metrics import CONTENT_TYPE, Metrics
from .wire import Limits, RequestError

if TYPE_CHECKING:
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import Response

Answer = Callable[[bytes], Awaitable[Any]]
"""What is served at a path: the body of a POST in, a value to be written as JSON out."""

App = Callable[[Any, Any, Any], Awaitable[None]]
"""An ASGI application."""

_LOG = logging.getLogger(__name__)
_HANG_UP = {"Connection": "close"}  # the rest of such a body is not read
_HEADERS = {408: _HANG_UP, 413: _HANG_UP, 503: {"Retry-After": "1"}}


def application(
    answers: Mapping[str, Answer],
    *,
    limits: Limits | None = None,
    metrics: Metrics | None = None,
    about: Mapping[str, Any] | None = None,
) -> Starlette:
    """An ASGI application that answers POSTs at the given paths, and `GET /health` and `GET /metrics`.

    Errors are `{"error": message}`: 4xx for what the request did, 502 and 503 for an engine behind the answer, 504 for
    one that takes too long. An answer is cancelled when its client has gone.

    Args:
        answers: by path; one raises `RequestError` for what it refuses.
        limits: of what a request may ask for.
        metrics: where to count.
        about: what `/health` tells besides `"status": "ok"`.

    Raises:
        ConfigError: when the package `starlette` is missing.
    """
    try:
        from starlette.applications import Starlette
        from starlette.responses import Response
        from starlette.routing import Route
    except ImportError as error:
        raise ConfigError("a server needs starlette: pip install 'faithful-search[serve]'") from error

    limits, metrics = limits or Limits(), metrics or Metrics()

    async def health(request: Request) -> Response:
        return _json({"status": "ok", **(about or {})})

    async def counted(request: Request) -> Response:
        return Response(metrics.text(), media_type=CONTENT_TYPE)

    routes = [Route("/health", health), Route("/metrics", counted)]
    for path, answer in answers.items():
        routes.append(Route(path, _Endpoint(path, answer, limits, metrics).post, methods=["POST"]))
    return Starlette(routes=routes, exception_handlers={404: _unknown(answers), 405: _unknown(answers)})


def guarded(app: App, token: str) -> App:
    """The application for those who send `Authorization: Bearer TOKEN`; `/health` is for all. No token, no guard."""
    wanted = f"Bearer {token}".encode()

    async def ask(scope: Any, receive: Any, send: Any) -> None:
        given = dict(scope.get("headers", ())).get(b"authorization", b"")
        if scope["type"] == "http" and scope["path"] != "/health" and not hmac.compare_digest(given, wanted):
            refusal = _refusal(RequestError("a token is needed: Authorization: Bearer …", 401))
            return await refusal(scope, receive, send)
        return await app(scope, receive, send)

    return ask if token else app


class _Endpoint:
    def __init__(self, path: str, answer: Answer, limits: Limits, metrics: Metrics) -> None:
        self.path, self.answer, self.limits, self.metrics = path, answer, limits, metrics

    async def post(self, request: Request) -> Response:
        start, running = time.perf_counter(), self.metrics.running
        running.add(1)
        try:
            response = await self._respond(request)
        finally:
            running.add(-1)
        self.metrics.requests.add(1, self.path, str(response.status_code))
        self.metrics.seconds.observe(time.perf_counter() - start)
        return response

    async def _respond(self, request: Request) -> Response:
        try:
            if self.metrics.running.value() > self.limits.requests:
                raise RequestError("too many requests at the same time: come back later", 503)
            body = await _body(request, self.limits)
            async with asyncio.timeout(self.limits.seconds):
                return _json(await _while_there(request, self.answer(body)))
        except Exception as error:
            return _refusal(error)


async def _body(request: Request, limits: Limits) -> bytes:
    """The body, which must come in time and be no larger than allowed, whatever its length is said to be."""
    too_large = RequestError(f"the body is larger than {limits.body_bytes} bytes", 413)
    told = request.headers.get("content-length", "")
    if told.isdecimal() and int(told[:18]) > limits.body_bytes:
        raise too_large
    body = bytearray()
    try:
        async with asyncio.timeout(limits.seconds):
            async for chunk in request.stream():
                body += chunk
                if len(body) > limits.body_bytes:
                    raise too_large
    except TimeoutError:
        raise RequestError(f"the body did not come within {limits.seconds:g} seconds", 408) from None
    return bytes(body)


async def _while_there(request: Request, work: Awaitable[Any]) -> Any:
    """Await `work` while the client waits for it."""
    from starlette.requests import ClientDisconnect

    answer, gone = asyncio.ensure_future(work), asyncio.ensure_future(request.receive())
    try:
        await asyncio.wait({answer, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not answer.done():
            raise ClientDisconnect
        return answer.result()
    finally:
        answer.cancel()
        gone.cancel()


def _refusal(error: Exception) -> Response:
    from starlette.requests import ClientDisconnect

    match error:
        case RequestError():
            return _json({"error": str(error)}, error.status)
        case ToolError():
            return _json({"error": str(error) or "the search failed"}, 503 if error.passing else 502)
        case TimeoutError():
            return _json({"error": "the answer took too long"}, 504)
        case ClientDisconnect():
            return _json({"error": "the client has gone"}, 499)
    _LOG.error("a request failed", exc_info=error)
    return _json({"error": "internal error, see the server's log"}, 500)


def _json(value: Any, status: int = 200) -> Response:
    from starlette.responses import Response

    headers = _HEADERS.get(status)
    return Response(msgspec.json.encode(value), status, headers=headers, media_type="application/json")


def _unknown(answers: Mapping[str, Answer]) -> Callable[[Request, Any], Awaitable[Response]]:
    there = ", ".join([*(f"POST {path}" for path in answers), "GET /health", "GET /metrics"])

    async def unknown(request: Request, error: Any) -> Response:
        return _json(
            {"error": f"there is no {request.method} {request.url.path[:80]} here; there are {there}"},
            error.status_code,
        )

    return unknown
