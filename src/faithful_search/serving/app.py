"""`Service`, an application that answers JSON with JSON, and `Guarded`, which stands before each
application: who may ask, and how large bodies may be.
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

# Upper bounds of the classes of histograms: of times, and of batches
SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256)

_LOG = logging.getLogger(__name__)
# `host:port` or `[IPv6 address]:port`, with or without the port
_HOST_AND_PORT = re.compile(r"(?:\[([0-9a-f:.]+)\]|([a-z0-9._-]+))(?::[0-9]*)?")
_HANG_UP = {"connection": "close"}  # the rest of the request's body is not read
# Further headers of an answer, by its status
_HEADERS = {408: _HANG_UP, 413: _HANG_UP, 503: {"retry-after": "1"}}


@dataclass(frozen=True)
class ServerLimits:
    """What a request may ask for at most. The defaults let a whole training batch through as one
    request.
    """

    body_bytes: int = 16_000_000
    queries: int = 8192  # in a request
    query_chars: int = 32_768
    top_k: int = 100  # passages for a query
    seconds: float = 120.0  # to send the body, and as many again to be answered
    requests: int = 1024  # at the same time; further ones are answered "come back later"
    pairs: int = 4096  # in a request
    pair_chars: int = 1_000_000  # of the texts of one pair together
    # The bodies of all requests together, from their first byte until they are answered. A body
    # that comes in one piece (some 64 kB) is always taken.
    bodies_bytes: int = 500_000_000


def written(value: Any, status: int = 200) -> Response:
    """A value as JSON."""
    return Response(msgspec.json.encode(value), status, _HEADERS.get(status), "application/json")


def refusal(error: BaseException) -> Response:
    """The answer for an error. What is wrong within the server goes to its log only."""
    match error:
        case HTTPException():
            status, message = error.status_code, error.detail
        case ToolError():
            status, message = 503 if error.transient else 502, str(error) or "the search failed"
        case TimeoutError():
            status, message = 504, "the answer took too long"
        case ClientDisconnect():
            status, message = 499, "the client has gone"
        case asyncio.CancelledError():  # the server ends: nothing else cancels a request
            status, message = 503, "the server is stopping"
        case _:
            _LOG.error("a request failed", exc_info=error)
            status, message = 500, "internal error, see the server's log"
    return written({"error": message}, status)


class Guarded:
    """An application for clients that may use it; it receives each request's body in one message.

    **Names.** A web page may give its own name this machine's address (DNS rebinding), and a
    browser then takes the answers for the page's own. Such requests carry the page's name in
    `Host`, so only known names are answered: `localhost`, what the machine calls itself, and
    `names`. An IP address cannot be rebound and is always right. A request with an `Origin` comes
    from a page, which must be one of this machine's (loopback) or of `names`.

    **Token.** Where there is one, clients send `Authorization: Bearer TOKEN`; `/health` is for all.

    **Bodies.** When all bodies together take too much memory, the one that has been arriving for
    longest is given up: clients that send slowly keep out none that send quickly.

    Args:
        token: what clients must send; empty where anybody may ask.
        names: host names of this server.
    """

    def __init__(
        self, app: App, limits: ServerLimits, token: str = "", names: Sequence[str] = ()
    ) -> None:
        self._app = app
        self._limits = limits
        self._authorization = f"Bearer {token}".encode() if token else b""
        self._page_hosts = {"localhost", *(name.lower() for name in names)}
        self._hosts = {*self._page_hosts, socket.gethostname().lower()}
        self._complete_bytes = 0  # of the bodies whose requests are being answered
        # For each body that is arriving its time-out and its bytes so far, the oldest first
        self._arriving: dict[asyncio.Timeout, int] = {}

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
        del body  # so that the application may free it before it has answered

        async def receive_body() -> Any:
            # After the body there is only one more message: that the client has gone.
            return messages.pop() if messages else await receive()

        self._complete_bytes += size
        try:
            await self._app(scope, receive_body, send)
        finally:
            self._complete_bytes -= size

    def _check(self, headers: Headers, path: str) -> None:
        """Raise `HTTPException` for a request that is not to be answered."""
        # All of these headers, since nobody knows which of several an application would take.
        for place in headers.getlist("host") or [""]:
            host = _host_in(place)
            if as_address(host) is None and host not in self._hosts:
                advice = "send Host"
                if host:
                    advice = f"start it with --allow-host {host[:80]} where that is its name"
                raise HTTPException(421, f"the Host header {host[:80]!r} is not allowed: {advice}")
        for origin in headers.getlist("origin"):
            page_host = _host_in(origin.partition("://")[2])
            address = as_address(page_host)
            is_this_machine = address is not None and address.is_loopback
            if page_host not in self._page_hosts and not is_this_machine:
                raise HTTPException(403, f"pages of {origin[:80]!r} are not answered")
        if self._authorization and path != "/health":
            authorization = headers.get("authorization", "").encode("latin-1")
            # In constant time: how long a comparison takes must say nothing about the token.
            if not hmac.compare_digest(authorization, self._authorization):
                raise HTTPException(401, "a token is needed: Authorization: Bearer …")

    async def _read(self, length: str, receive: Receive) -> bytes:
        """The whole body.

        Args:
            length: the header Content-Length, which need not be right.

        Raises:
            HTTPException: the body does not come in time (408), is larger than allowed (413), or
                was given up for others (503).
            ClientDisconnect: the client has gone.
        """
        limits = self._limits
        too_large = f"the body is larger than {limits.body_bytes} bytes"
        # The first digits are enough, and Python refuses to read thousands of them.
        if length.isdigit() and int(length[:18]) > limits.body_bytes:
            raise HTTPException(413, too_large)
        body = bytearray()
        incomplete = True
        timeout = asyncio.timeout(limits.seconds)
        try:
            async with timeout:
                while incomplete:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        raise ClientDisconnect
                    body += message.get("body", b"")
                    incomplete = message.get("more_body", False)
                    if len(body) > limits.body_bytes:
                        raise HTTPException(413, too_large)
                    self._arriving[timeout] = len(body)
                    self._make_room()
        except TimeoutError:
            if timeout.when() == 0:  # set by `_make_room`
                raise HTTPException(
                    503, "too many large bodies at the same time: come back later"
                ) from None
            raise HTTPException(
                408, f"the body did not come within {limits.seconds:g} seconds"
            ) from None
        finally:
            self._arriving.pop(timeout, None)
        return bytes(body)

    def _make_room(self) -> None:
        """Give up the oldest bodies while all of them together are too large."""
        most = max(self._limits.bodies_bytes, self._limits.body_bytes)
        while self._arriving and self._complete_bytes + sum(self._arriving.values()) > most:
            oldest = next(iter(self._arriving))
            del self._arriving[oldest]
            if not oldest.expired():
                oldest.reschedule(0)  # at once: the error is raised in the task that reads the body


def _host_in(place: str) -> str:
    """The host of `host:port`, without port and brackets; empty for anything else."""
    match = _HOST_AND_PORT.fullmatch(place.lower())
    return (match[1] or match[2]) if match else ""


class Service:
    """An ASGI application, behind `Guarded`, that answers POSTs at given paths, `GET /health` and
    `GET /metrics`.

    Errors are `{"error": message}`: 4xx for what is wrong with the request, 502 and 503 for a
    failure of an engine behind the answer, 504 for one that takes too long. An answer that is
    awaited is cancelled when its client has gone.

    Routing is plain ASGI: the layers of a framework take as long as a search.

    Args:
        answers: what is served, by path. An answer raises `HTTPException` for what it refuses.
        about: what `/health` says besides `"status": "ok"`.
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
        match ("GET" if method == "HEAD" else method), path:
            case "POST", _ if path in self.answers:
                response = await self._post(path, receive)
            case "GET", "/health":
                response = written({"status": "ok", **self.about})
            case "GET", "/metrics":
                response = Response(generate_latest(self.registry), media_type=CONTENT_TYPE_LATEST)
            case _:
                served = [f"POST {served_path}" for served_path in self.answers]
                served += ["GET /health", "GET /metrics"]
                message = (
                    f"there is no {method} {scope['path'][:80]} here; there are {', '.join(served)}"
                )
                path_exists = any(endpoint.endswith(f" {path}") for endpoint in served)
                response = written({"error": message}, 405 if path_exists else 404)
        await response(scope, receive, send)

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
            answer = self.answers[path]((await receive())["body"])
            if inspect.isawaitable(answer):
                async with asyncio.timeout(self.limits.seconds):
                    answer = await _while_there(receive, answer)
            return answer
        finally:
            self._running -= 1


async def _while_there(receive: Receive, work: Awaitable[Any]) -> Any:
    """The result of `work`, as long as the client waits for it; else raises `ClientDisconnect`."""
    answer = asyncio.ensure_future(work)
    # The body has been read: the only message that may still come is that the client has gone.
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
    """A request of this shape.

    Args:
        like: an example of it, which errors show.

    Raises:
        HTTPException: the body is of another shape (422), or no JSON (400).
    """
    try:
        return msgspec.json.decode(body, type=shape)
    except msgspec.ValidationError as error:
        raise HTTPException(422, f"{error}; expected something like {like}") from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise HTTPException(
            400, f"the body is not JSON: {error}; expected something like {like}"
        ) from error
