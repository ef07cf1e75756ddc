"""A chat-completions server on loopback that answers, or misbehaves, as told.

    with StubServer(mode="busy", faults=2, retry_after="0.2") as server:
        judge = EndpointJudge("stub", url=server.url, cache=None)
        judge.judge_batch([Pair("The sky is blue.", "It is blue.")])
        server.calls, server.busiest          # how many requests came, and how many at once at most

The label is `label(messages)`: by default 1 when the user's message contains "yes-please", else 0; a dictionary is
the whole message, for tool calls. With `faults=n` the
fault hits the first n requests only, those after are answered; without, every request.

| mode | what a request gets |
|---|---|
| ok | the label, with log-probs when asked for them |
| plain | the label; asking for log-probs or for constrained output is ignored |
| strict | 400 naming the parameter when log-probs or constrained output are asked for |
| context | 400: the prompt is too long |
| busy | 429 with `Retry-After: retry_after` |
| error | 500 |
| hang | nothing, the connection stays open |
| cut | half of a JSON document |
| schema | JSON of another form |
| drip | the body, a byte every 0.2 s |
| empty | no choices |
| garbage | a sentence instead of a label |
| closed | the connection is closed without an answer |
| unauthorized, missing | 401, 404 |
"""

from __future__ import annotations

import json
import math
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Messages = list[dict[str, str]]
_CONSTRAINTS = ("structured_outputs", "guided_choice", "grammar", "regex", "response_format")


def label_by_word(messages: Messages) -> str:
    return "1" if "yes-please" in messages[-1]["content"] else "0"


class StubServer:
    """Serves while the `with` block runs. `mode`, `faults`, `latency` and `label` may be changed meanwhile.

    `requests` are the bodies received, `headers` their headers, `times` when they came (`time.monotonic`).
    """

    def __init__(
        self,
        mode: str = "ok",
        latency: float = 0.0,
        faults: int | None = None,
        retry_after: str = "0.2",
        label: Callable[[Messages], str | dict[str, Any]] = label_by_word,
        p: float = 0.9,
    ) -> None:
        self.mode, self.latency, self.faults, self.retry_after = mode, latency, faults, retry_after
        self.label, self.p = label, p
        self.requests: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.times: list[float] = []
        self.busiest = self._busy = 0
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._server = _Server(("127.0.0.1", 0), _Handler)
        self._server.stub = self
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}/v1"

    @property
    def calls(self) -> int:
        return len(self.requests)

    def __enter__(self) -> StubServer:
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._server.shutdown()
        self._server.server_close()

    def receive(self, body: dict[str, Any], headers: dict[str, str]) -> str:
        """Note a request; returns the mode that it is to be treated with."""
        with self._lock:
            self.requests.append(body)
            self.headers.append(headers)
            self.times.append(time.monotonic())
            self._busy += 1
            self.busiest = max(self.busiest, self._busy)
            faulty = self.faults is None or len(self.requests) <= self.faults
            return self.mode if faulty else "ok"

    def done(self) -> None:
        with self._lock:
            self._busy -= 1

    def wait(self, seconds: float) -> None:
        self._stop.wait(seconds)


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 256
    stub: StubServer


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

    def do_POST(self) -> None:
        stub = self.server.stub
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        mode = stub.receive(body, {name.lower(): value for name, value in self.headers.items()})
        try:
            if stub.latency:
                stub.wait(stub.latency)
            self._answer(mode, body)
        finally:
            stub.done()

    def _answer(self, mode: str, body: dict[str, Any]) -> None:
        stub = self.server.stub
        if mode == "hang":
            stub.wait(60)
            self.close_connection = True
        elif mode == "closed":
            self.close_connection = True
        elif mode == "busy":
            self._send(429, _error("slow down"), {"Retry-After": stub.retry_after})
        elif mode in _STATUS:
            status, message = _STATUS[mode]
            self._send(status, _error(message))
        elif mode == "strict" and (named := _asked_for(body)):
            self._send(400, _error(f"Unrecognized request argument supplied: {named}"))
        elif mode == "cut":
            self._send(200, _completion(stub, body, False)[:40])
        elif mode == "drip":
            self._drip(_completion(stub, body, False))
        elif mode in _BODIES:
            self._send(200, json.dumps(_BODIES[mode]))
        else:
            self._send(200, _completion(stub, body, mode == "ok"))

    def _send(self, status: int, text: str, headers: dict[str, str] | None = None) -> None:
        payload = text.encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(payload)))
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(payload)

    def _drip(self, text: str) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        for character in text:
            if self.server.stub._stop.is_set():
                return
            self.wfile.write(character.encode())
            self.wfile.flush()
            self.server.stub.wait(0.2)


_STATUS = {
    "error": (500, "out of memory"),
    "context": (400, "This model's maximum context length is 512 tokens; the prompt has 900"),
    "unauthorized": (401, "Incorrect API key provided"),
    "missing": (404, "The model `stub` does not exist"),
}
_USAGE = {"prompt_tokens": 100, "completion_tokens": 1, "total_tokens": 101}
_BODIES: dict[str, Any] = {
    "schema": {"result": ["nothing", "expected"]},
    "empty": {"id": "x", "choices": [], "usage": _USAGE},
    "garbage": {"id": "x", "choices": [{"index": 0, "message": {"role": "assistant", "content": "It depends."}}]},
}


def _asked_for(body: dict[str, Any]) -> str:
    if body.get("logprobs"):
        return "logprobs"
    return next((name for name in _CONSTRAINTS if name in body), "")


def _error(message: str) -> str:
    return json.dumps({"error": {"message": message, "type": "error"}})


def _completion(stub: StubServer, body: dict[str, Any], logprobs: bool) -> str:
    said = stub.label(body["messages"])
    message = said if isinstance(said, dict) else {"role": "assistant", "content": said}
    choice: dict[str, Any] = {
        "index": 0,
        "message": message,
        "finish_reason": "stop",
    }
    if logprobs and body.get("logprobs"):
        choice["logprobs"] = {"content": [_token(said, stub.p)]}
    return json.dumps({"id": "x", "object": "chat.completion", "model": "stub", "choices": [choice], "usage": _USAGE})


def _token(said: str, p: float) -> dict[str, Any]:
    other = {"1": "0", "0": "1"}.get(said, "1")
    rest = max(1.0 - p, 1e-9)
    top = [{"token": said, "logprob": math.log(p)}, {"token": other, "logprob": math.log(rest)}]
    return {"token": said, "logprob": math.log(p), "top_logprobs": top}
