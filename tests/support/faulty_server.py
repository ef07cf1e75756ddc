"""An HTTP server on loopback that answers, or misbehaves, as told: the base of every service that tests stand in for.

    with FaultyServer(lambda request: (200, {"result": []}), mode="busy", faults=2) as server:
        client(server.url)
        server.requests, server.times, server.busiest     # what came, when, and how many at once at most

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
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self
from urllib.parse import parse_qsl, urlsplit

REFUSALS = {"unauthorized": 401, "forbidden": 403, "missing": 404, "busy": 429, "error": 500, "unavailable": 503}


@dataclass(frozen=True)
class Request:
    """What came; `headers` are found in upper and lower case, `body` is what the JSON says, of JSON lines a list."""

    method: str
    path: str
    parameters: dict[str, str]
    headers: Mapping[str, str]
    body: Any


Answer = Callable[[Request], tuple[int, Any]]


class FaultyServer:
    """Serves while the `with` block runs; its attributes may be changed meanwhile.

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
        if answer is not None:
            self.answer = answer
        self.mode, self.faults, self.retry_after, self.latency = mode, faults, retry_after, latency
        self.more_headers: dict[str, str] = {}
        self.requests: list[Any] = []
        self.headers: list[Mapping[str, str]] = []
        self.times: list[float] = []
        self.busy = self.busiest = 0
        self.lock, self.over = threading.Lock(), threading.Event()
        self._server = _Server(("127.0.0.1", 0), _Handler)
        self._server.told = self
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    @property
    def calls(self) -> int:
        return len(self.requests)

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """The server is gone."""
        self.over.set()
        self._server.shutdown()
        self._server.server_close()

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


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 512
    told: FaultyServer


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: _Server

    def log_message(self, *_: object) -> None:
        pass

    def handle(self) -> None:
        try:
            super().handle()
        except OSError:
            self.close_connection = True  # the client gave up

    def do_GET(self) -> None:
        told = self.server.told
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        parts = urlsplit(self.path)
        lines = "ndjson" in self.headers.get("Content-Type", "")
        given = [*map(json.loads, body.splitlines())] if lines else json.loads(body or b"null")
        request = Request(self.command, parts.path, dict(parse_qsl(parts.query)), self.headers, given)
        mode = told.now(request)
        with told.lock:
            told.busy += 1
            told.busiest = max(told.busiest, told.busy)
        try:
            told.over.wait(told.latency)
            self.answer(told, mode, request)
        finally:
            with told.lock:
                told.busy -= 1

    do_POST = do_PUT = do_GET

    def answer(self, told: FaultyServer, mode: Any, request: Request) -> None:
        if mode == "hang":
            told.over.wait(60)
        if mode in ("hang", "closed"):
            self.close_connection = True
            return
        status, body = told.reply(mode, request)
        payload = body if isinstance(body, bytes) else json.dumps(body).encode()
        sent = payload[: len(payload) // 2] if mode == "cut" else payload
        self.send_response(status)
        self.send_header("Content-Type", "application/json; charset=utf-8")
        self.send_header("Content-Length", str(len(payload if told.announces_all else sent)))
        if status in (429, 503):
            self.send_header("Retry-After", told.retry_after)
        for name, value in told.more_headers.items():
            self.send_header(name, value)
        self.end_headers()
        if mode != "drip":
            self.wfile.write(sent)
            self.close_connection = self.close_connection or len(sent) < len(payload)
            return
        for byte in payload:
            self.wfile.write(bytes([byte]))
            if told.over.wait(0.2):
                return
