"""Servers that take JSON and answer with JSON (`Service`), behind a guard that checks who asks and
how large a body is (`Guarded`).
"""

import asyncio
import hmac
import inspect
import logging
import re
import socket
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import msgspec
from prometheus_client import (
    CONTENT_TYPE_LATEST,
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    generate_latest,
)
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import Response

from ..errors import ToolError
from ..wire.guard import as_address

Receive = Callable[[], Awaitable[Any]]
App = Callable[[Any, Receive, Any], Awaitable[None]]
"""An ASGI application."""
Answer = Callable[[bytes], Any]
"""What is served at a path: the body of a POST in, out comes a value to be written as JSON, or an
awaitable of one.
"""
T = TypeVar("T")

SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256)

_LOG = logging.getLogger(__name__)
# `host:port` in lower case: an address of IPv6 in brackets, or any other host; then the port
_HOST_AND_PORT = re.compile(r"(?:\[([0-9a-f:.]+)\]|([a-z0-9._-]+))(?::[0-9]*)?")
_HANG_UP = {"connection": "close"}  # the rest of such a body is not read
_HEADERS = {408: _HANG_UP, 413: _HANG_UP, 503: {"retry-after": "1"}}


@dataclass(frozen=True)
class ServerLimits:
    """What a request may ask for at most. The defaults let a whole training batch through as one
    request.
    """

    body_bytes: int = 16_000_000
    queries: int = 8192
    query_chars: int = 32_768
    top_k: int = 100  # passages for a query
    seconds: float = 120.0  # to send the body, and as many again to be answered
    requests: int = 1024  # at the same time; further ones are sent away to come back later
    pairs: int = 4096
    pair_chars: int = 1_000_000  # of the texts of one pair together
    # Of all requests together, from their first byte until they are answered. A body that comes in
    # one piece (some 64 kB) is always taken.
    bodies_bytes: int = 500_000_000


def written(value: Any, status: int = 200) -> Response:
    """A value as JSON."""
    return Response(msgspec.json.encode(value), status, _HEADERS.get(status), "application/json")


def refusal(error: BaseException) -> Response:
    """What a client is told of an error; what is the server's own business goes to its log."""
    match error:
        case HTTPException():
            status, message = error.status_code, error.detail
        case ToolError():
            status = 503 if error.transient else 502
            message = str(error) or "the search failed"
        case TimeoutError():
            status, message = 504, "the answer took too long"
        case ClientDisconnect():
            status, message = 499, "the client has gone"
        case asyncio.CancelledError():  # only a server that ends does that
            status, message = 503, "the server is stopping"
        case _:
            _LOG.error("a request failed", exc_info=error)
            status, message = 500, "internal error, see the server's log"
    return written({"error": message}, status)


class Guarded:
    """An application for clients that may use it; it receives each request's body in one message.

    **Names.** A web page may give its own name this machine's address (DNS rebinding), and a
    browser then takes the answers for the page's own. Such requests carry the page's name in
    `Host`, so a name has to be known here: `localhost`, what the machine calls itself, or one of
    `names`. An IP address cannot be rebound and is always right. A request with an `Origin` comes
    from a page, which must be one of this machine's (loopback) or of `names`.

    **Token.** Where there is one, clients send `Authorization: Bearer TOKEN`; `/health` is for all.

    **Bodies.** When those that are held grow too large together, the one that has been coming for
    longest is given up: clients that send slowly keep out none that send quickly.
    """

    def __init__(
        self, app: App, limits: ServerLimits, token: str = "", names: Sequence[str] = ()
    ) -> None:
        self._app = app
        self._limits = limits
        # The value of the header `Authorization`; empty where no token is needed
        self._authorization = f"Bearer {token}".encode() if token else b""
        self._names_of_pages = {"localhost", *map(str.lower, names)}
        self._names_of_hosts = {*self._names_of_pages, socket.gethostname().lower()}
        self._bytes_answered = 0  # of the bodies that are being answered
        # Of each body that is being read, its time-out and its bytes so far; the eldest first
        self._bytes_read: dict[asyncio.Timeout, int] = {}

    async def __call__(self, scope: Any, receive: Receive, send: Any) -> None:
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        headers = Headers(scope=scope)
        try:
            self._check(headers, scope["path"])
            body = await self._read(headers.get("content-length", ""), receive)
        except (HTTPException, ClientDisconnect, asyncio.CancelledError) as error:
            return await refusal(error)(scope, receive, send)
        size = len(body)
        messages = [{"type": "http.request", "body": body, "more_body": False}]
        del body  # which the application may drop before it has answered

        async def replay() -> Any:
            # after the body the server tells only that the client has gone
            return messages.pop() if messages else await receive()

        self._bytes_answered += size
        try:
            await self._app(scope, replay, send)
        finally:
            self._bytes_answered -= size

    def _check(self, headers: Headers, path: str) -> None:
        """Raise `HTTPException` for a request of a client that may not ask: for its `Host` (421),
        its `Origin` (403) or its token (401).
        """
        # Every header of that name: which of several an application would take is its own affair.
        for host_and_port in headers.getlist("host") or [""]:
            host = _host_in(host_and_port)
            if as_address(host) is not None or host in self._names_of_hosts:
                continue
            advice = "send Host"
            if host:
                advice = f"start it with --allow-host {host[:80]} where that is its name"
            raise HTTPException(421, f"the Host header {host[:80]!r} is not allowed: {advice}")
        for origin in headers.getlist("origin"):
            page = _host_in(origin.partition("://")[2])
            address = as_address(page)
            is_loopback = address is not None and address.is_loopback
            if page not in self._names_of_pages and not is_loopback:
                raise HTTPException(403, f"pages of {origin[:80]!r} are not answered")
        if not self._authorization or path == "/health":
            return
        authorization = headers.get("authorization", "").encode("latin-1")
        # Compared in constant time, so that how long it takes tells nothing about the token.
        if not hmac.compare_digest(authorization, self._authorization):
            raise HTTPException(401, "a token is needed: Authorization: Bearer …")

    async def _read(self, content_length: str, receive: Receive) -> bytes:
        """The body of a request. What its length is said to be is not trusted.

        Raises `HTTPException` for a body that does not come in time (408), is larger than allowed
        (413), or was given up to make room for others (503).
        """
        limits = self._limits
        too_large = HTTPException(413, f"the body is larger than {limits.body_bytes} bytes")
        # So many digits are too large in any case; `int` would be slow on a million of them.
        if content_length.isdecimal() and int(content_length[:18]) > limits.body_bytes:
            raise too_large
        body = bytearray()
        is_complete = False
        timeout = asyncio.timeout(limits.seconds)
        try:
            async with timeout:
                while not is_complete:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        raise ClientDisconnect
                    body += message.get("body", b"")
                    is_complete = not message.get("more_body", False)
                    if len(body) > limits.body_bytes:
                        raise too_large
                    self._bytes_read[timeout] = len(body)
                    self._make_room()
        except TimeoutError:
            if timeout.when() == 0:  # by `_make_room`
                raise HTTPException(
                    503, "too many large bodies at the same time: come back later"
                ) from None
            raise HTTPException(
                408, f"the body did not come within {limits.seconds:g} seconds"
            ) from None
        finally:
            self._bytes_read.pop(timeout, None)
        return bytes(body)

    def _make_room(self) -> None:
        """Give up the eldest of the bodies that are being read, until all that are held fit."""
        most = max(self._limits.bodies_bytes, self._limits.body_bytes)
        while self._bytes_read and self._bytes_answered + sum(self._bytes_read.values()) > most:
            eldest = next(iter(self._bytes_read))
            del self._bytes_read[eldest]
            if not eldest.expired():
                eldest.reschedule(0)  # its own task raises the error


def _host_in(host_and_port: str) -> str:
    """The host of `host:port`, without port and brackets; empty for anything else."""
    match = _HOST_AND_PORT.fullmatch(host_and_port.lower())
    return (match[1] or match[2]) if match else ""


class Service:
    """An ASGI application, behind `Guarded`, that answers POSTs at given paths, `GET /health` and
    `GET /metrics`.

    `answers`, by path, raise `HTTPException` for what they refuse. Errors are `{"error": message}`:
    4xx for what the request did, 502 and 503 for an engine behind the answer, 504 for one that
    takes too long. An answer that is awaited is cancelled when its client has gone. `about` is what
    `/health` tells besides `"status": "ok"`.

    Routing is plain ASGI: the layers of a framework take as long as a search.
    """

    def __init__(
        self,
        answers: Mapping[str, Answer],
        limits: ServerLimits | None = None,
        about: Mapping[str, Any] | None = None,
    ) -> None:
        self.answers = answers
        self.limits = limits or ServerLimits()
        self.about = about or {}
        self.registry = CollectorRegistry()
        self._requests = self.counter("requests", "Requests answered.", "path", "status")
        self._seconds = self.histogram("request_seconds", "Time to answer a request.", SECONDS)
        self._running = 0
        running = Gauge(
            "faithful_search_requests_running", "Requests being answered.", registry=self.registry
        )
        running.set_function(lambda: self._running)

    def counter(self, name: str, about: str, *labels: str) -> Counter:
        return Counter(f"faithful_search_{name}", about, labels, registry=self.registry)

    def histogram(self, name: str, about: str, bounds: tuple[float, ...]) -> Histogram:
        return Histogram(f"faithful_search_{name}", about, buckets=bounds, registry=self.registry)

    async def __call__(self, scope: Any, receive: Receive, send: Any) -> None:
        if scope["type"] != "http":
            raise RuntimeError(f"{scope['type']} is not spoken here")  # as ASGI wants it
        method = scope["method"]
        path = scope["path"].rstrip("/")
        if method == "POST" and path in self.answers:
            response = await self._post(path, receive)
        elif method in ("GET", "HEAD") and path == "/health":
            response = written({"status": "ok", **self.about})
        elif method in ("GET", "HEAD") and path == "/metrics":
            response = Response(generate_latest(self.registry), media_type=CONTENT_TYPE_LATEST)
        else:
            response = self._nothing_at(method, scope["path"])
        await response(scope, receive, send)

    def _nothing_at(self, method: str, path: str) -> Response:
        """The answer to a method that a path does not take (405), or to a path that there is not
        (404).
        """
        methods = dict.fromkeys(self.answers, "POST") | {"/health": "GET", "/metrics": "GET"}
        listed = ", ".join(f"{method_there} {there}" for there, method_there in methods.items())
        message = f"there is no {method} {path[:80]} here; there are {listed}"
        status = 405 if path.rstrip("/") in methods else 404
        return written({"error": message}, status)

    async def _post(self, path: str, receive: Receive) -> Response:
        with self._seconds.time():
            try:
                response = written(await self._answer(path, receive))
            except (Exception, asyncio.CancelledError) as error:
                response = refusal(error)
        self._requests.labels(path, response.status_code).inc()
        return response

    async def _answer(self, path: str, receive: Receive) -> Any:
        if self._running >= self.limits.requests:
            raise HTTPException(503, "too many requests at the same time: come back later")
        self._running += 1
        try:
            message = await receive()  # with the whole body: `Guarded` stands before
            answer = self.answers[path](message["body"])
            if inspect.isawaitable(answer):
                async with asyncio.timeout(self.limits.seconds):
                    answer = await _while_there(receive, answer)
            return answer
        finally:
            self._running -= 1


async def _while_there(receive: Receive, work: Awaitable[Any]) -> Any:
    """The result of `work`, which is cancelled as soon as its client has gone
    (`ClientDisconnect`).
    """
    answer = asyncio.ensure_future(work)
    # The body has been read, so all that `receive` can still give is that the client has gone.
    gone = asyncio.ensure_future(receive())
    try:
        await asyncio.wait({answer, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not answer.done():
            raise ClientDisconnect
        return answer.result()
    finally:
        answer.cancel()
        gone.cancel()


def decode(body: bytes, shape: type[T], like: str) -> T:
    """A request of this shape; raises `HTTPException` for another one (422) and for what is no JSON
    (400).
    """
    try:
        return msgspec.json.decode(body, type=shape)
    except msgspec.ValidationError as error:
        raise HTTPException(422, f"{error}; expected something like {like}") from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise HTTPException(
            400, f"the body is not JSON: {error}; expected something like {like}"
        ) from error
