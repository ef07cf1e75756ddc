"""An HTTP server on loopback that answers, or misbehaves, as told: the base of every service that
tests stand in for.

    with FaultyServer(lambda request: (200, {"result": []}), mode="busy", faults=2) as server:
        client(server.url)
        server.requests, server.times, server.busiest     # what came, when, and how many at once at
        most

| mode | what a request gets |
|---|---|
| ok | what `answer(request)` returns: a status and a body, bytes as they are and anything else as JSON |
| a name in `REFUSALS`, or (status, message) | that status; 429 and 503 with `Retry-After: retry_after` |
| hang | nothing, the connection stays open |
| closed | the connection is closed without an answer |
| cut | half of the body; where `announces_all`, the head promises all of it |
| drip | the body, a byte every 0.2 s |
"""

import json
import socket
import ssl
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self
from urllib.parse import parse_qsl, urlsplit

REFUSALS = {
    "unauthorized": 401,
    "forbidden": 403,
    "missing": 404,
    "busy": 429,
    "error": 500,
    "unavailable": 503,
}


@dataclass(frozen=True)
class Request:
    """What came; `headers` are found in upper and lower case."""

    method: str
    target: str
    headers: Mapping[str, str]
    data: bytes

    @property
    def path(self) -> str:
        return urlsplit(self.target).path

    @property
    def parameters(self) -> dict[str, str]:
        return dict(parse_qsl(urlsplit(self.target).query))

    @cached_property
    def body(self) -> Any:
        """What the JSON says, of JSON lines a list."""
        lines = "ndjson" in self.headers.get("Content-Type", "")
        return (
            [*map(json.loads, self.data.splitlines())]
            if lines
            else json.loads(self.data or b"null")
        )


Answer = Callable[[Request], tuple[int, Any]]


class Loopback:
    """Serves while the `with` block runs; what it does with a request is for `respond` to say.

    Attributes:
        requests: what came, in order.
        connections: how many were accepted.
        busy, busiest: how many requests are answered now, and were at once at most.
    """

    def __init__(self, host: str = "127.0.0.1", tls: ssl.SSLContext | None = None) -> None:
        self.requests: list[Any] = []
        self.connections = self.busy = self.busiest = 0
        self.lock, self.over = threading.Lock(), threading.Event()
        self._server = _Server(self, host)
        self.host, self.port = host, self._server.server_port
        if tls is not None:
            self._server.socket = tls.wrap_socket(self._server.socket, server_side=True)

    def __enter__(self) -> Self:
        threading.Thread(
            target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True
        ).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """The server is gone."""
        self.over.set()
        self._server.shutdown()
        self._server.server_close()

    def respond(self, request: Request, handler: "Handler") -> None:
        raise NotImplementedError


class FaultyServer(Loopback):
    """Its attributes may be changed while it serves.

    With `faults=n` the mode hits the first n requests only; without, every request.
    """

    announces_all = False

    def __init__(
        self,
        answer: Answer | None = None,
        mode: str | tuple[int, str] = "ok",
        faults: int | None = None,
        retry_after: str = "0",
        latency: float = 0.0,
    ) -> None:
        super().__init__()
        if answer is not None:
            self.answer = answer
        self.mode, self.faults, self.retry_after, self.latency = mode, faults, retry_after, latency
        self.more_headers: dict[str, str] = {}
        self.headers: list[Mapping[str, str]] = []
        self.times: list[float] = []
        self.url = f"http://127.0.0.1:{self.port}"

    @property
    def calls(self) -> int:
        return len(self.requests)

    def noted(self, request: Request) -> Any:
        """What of a request is kept in `requests`."""
        return request

    def now(self, request: Request) -> Any:
        """Note a request; returns the mode that it meets."""
        with self.lock:
            self.requests.append(self.noted(request))
            self.headers.append(request.headers)
            self.times.append(time.monotonic())
            return self.mode if self.faults is None or len(self.requests) <= self.faults else "ok"

    def reply(self, mode: Any, request: Request) -> tuple[int, Any]:
        """The status and the body of an answer in this mode; services add modes of their own."""
        if isinstance(mode, tuple):
            return self.refusal(*mode)
        return self.refusal(REFUSALS[mode], mode) if mode in REFUSALS else self.answer(request)

    def refusal(self, status: int, message: str) -> tuple[int, Any]:
        return status, {"error": {"message": message, "type": "error", "code": status}}

    def respond(self, request: Request, handler: "Handler") -> None:
        mode = self.now(request)
        self.over.wait(self.latency)
        if mode == "hang":
            self.over.wait(60)
        if mode in ("hang", "closed"):
            handler.close_connection = True
            return
        status, body = self.reply(mode, request)
        payload = body if isinstance(body, bytes) else json.dumps(body).encode()
        sent, closes = payload, {}
        if mode == "cut":
            sent = payload[: len(payload) // 2]
            # Says so, or a client that meets the closed connection next reports that instead.
            closes = {"Connection": "close"}
        length = str(len(payload if self.announces_all else sent))
        later = {"Retry-After": self.retry_after} if status in (429, 503) else {}
        told = {"Content-Type": "application/json; charset=utf-8", "Content-Length": length}
        handler.begin(status, {**told, **later, **closes, **self.more_headers})
        if mode != "drip":
            handler.wfile.write(sent)
            return
        for byte in payload:
            handler.wfile.write(bytes([byte]))
            if self.over.wait(0.2):
                return


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 2048

    def __init__(self, told: Loopback, host: str) -> None:
        self.told = told
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        super().__init__((host, 0), Handler)

    def get_request(self) -> tuple[Any, Any]:
        accepted = super().get_request()
        self.told.connections += 1
        return accepted


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: _Server

    def log_message(self, *_: object) -> None:
        pass

    def send_error(self, *_: object) -> None:
        """Who says something else than HTTP is left waiting."""
        self.server.told.over.wait(60)
        self.close_connection = True

    def begin(self, status: int, headers: Mapping[str, str]) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()

    def handle(self) -> None:
        try:
            super().handle()
        except OSError:
            self.close_connection = True  # the client gave up

    def do_GET(self) -> None:
        told = self.server.told
        data = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        with told.lock:
            told.busy += 1
            told.busiest = max(told.busiest, told.busy)
        try:
            told.respond(Request(self.command, self.path, self.headers, data), self)
        finally:
            with told.lock:
                told.busy -= 1

    do_HEAD = do_POST = do_PUT = do_GET
