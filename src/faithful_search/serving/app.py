"""An application that answers JSON with JSON at some paths, and tells its health and metrics."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeVar

import msgspec
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from starlette.responses import Response

from .middleware import JSON, GoneError, Limits, Receive, RequestError, refusal

Answer = Callable[[bytes], Any]
"""What is served at a path: the body of a POST in, out comes a value to be written as JSON, or an awaitable of one."""
T = TypeVar("T")

SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256)


class Service:
    """An ASGI application that answers POSTs at the given paths, and `GET /health` and `GET /metrics`.

    Errors are `{"error": message}`: 4xx for what the request did, 502 and 503 for an engine behind the answer, 504 for
    one that takes too long. An answer that is awaited is cancelled when its client has gone. It stands behind
    `Guarded`, which hands it whole bodies. Routing is plain ASGI: a search takes a fraction of a millisecond, and the
    layers of a framework take as long again.

    Args:
        answers: by path; one raises `RequestError` for what it refuses.
        limits: of what a request may ask for.
        about: what `/health` tells besides `"status": "ok"`.

    Attributes:
        registry: the metrics; those of a subclass are made in it, too.
    """

    def __init__(
        self, answers: Mapping[str, Answer], limits: Limits | None = None, about: Mapping[str, Any] | None = None
    ) -> None:
        self.answers, self.limits, self.about = answers, limits or Limits(), about or {}
        self.registry = CollectorRegistry()
        self._requests = self.counter("requests", "Requests answered.", "path", "status")
        self._seconds = self.histogram("request_seconds", "Time to answer a request.", SECONDS)
        self._running = 0
        running = Gauge("faithful_search_requests_running", "Requests being answered.", registry=self.registry)
        running.set_function(lambda: self._running)

    def counter(self, name: str, about: str, *labels: str) -> Counter:
        """A new counter in the registry."""
        return Counter(f"faithful_search_{name}", about, labels, registry=self.registry)

    def histogram(self, name: str, about: str, bounds: tuple[float, ...]) -> Histogram:
        """A new histogram in the registry."""
        return Histogram(f"faithful_search_{name}", about, buckets=bounds, registry=self.registry)

    async def __call__(self, scope: Any, receive: Receive, send: Any) -> None:
        if scope["type"] != "http":
            raise RuntimeError(f"{scope['type']} is not spoken here")  # as ASGI wants it
        method, path = scope["method"], scope["path"].rstrip("/")
        response: Response
        if method == "POST" and path in self.answers:
            response = await self._post(path, receive)
        elif method in ("GET", "HEAD") and path == "/health":
            response = JSON({"status": "ok", **self.about})
        elif method in ("GET", "HEAD") and path == "/metrics":
            response = Response(generate_latest(self.registry), media_type=CONTENT_TYPE_LATEST)
        else:
            there = ", ".join([*(f"POST {known}" for known in self.answers), "GET /health, GET /metrics"])
            told = f"there is no {method} {scope['path'][:80]} here; there are {there}"
            known = path in self.answers or path in ("/health", "/metrics")
            response = JSON({"error": told}, 405 if known else 404)
        await response(scope, receive, send)

    async def _post(self, path: str, receive: Receive) -> JSON:
        with self._seconds.time():
            try:
                response = JSON(await self._answer(path, receive))
            except (Exception, asyncio.CancelledError) as error:
                response = refusal(error)
        self._requests.labels(path, response.status_code).inc()
        return response

    async def _answer(self, path: str, receive: Receive) -> Any:
        if self._running >= self.limits.requests:
            raise RequestError("too many requests at the same time: come back later", 503)
        self._running += 1
        try:
            answer = self.answers[path]((await receive())["body"])
            if inspect.isawaitable(answer):
                async with asyncio.timeout(self.limits.seconds):
                    answer = await _while_there(receive, answer)
            return answer
        finally:
            self._running -= 1


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


def decode(body: bytes, shape: type[T], like: str) -> T:
    """A request of this shape; raises `RequestError` for another one (422) and for what is no JSON (400)."""
    try:
        return msgspec.json.decode(body, type=shape)
    except msgspec.ValidationError as error:
        raise RequestError(f"{error}; expected something like {like}", 422) from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise RequestError(f"the body is not JSON: {error}; expected something like {like}") from error
