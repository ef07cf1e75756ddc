"""A stand-in for vLLM's HTTP server on loopback: it samples as told, or misbehaves as told."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


def five(body: dict[str, Any]) -> dict[str, Any]:
    """Token 5 as often as the row may have tokens; under `top_k=1` it is certain."""
    ids = [5] * body["max_tokens"]
    value = 0.0 if body.get("top_k") == 1 else -0.5
    names = [f"token_id:{token}" for token in ids]
    tops = [{name: value, **{f"token_id:{t}": -float(t) for t in body.get("logprob_token_ids", ())}} for name in names]
    logprobs = {"tokens": names, "token_logprobs": [value] * len(ids), "top_logprobs": tops}
    return {
        "token_ids": ids,
        "finish_reason": "length",
        "stop_reason": None,
        "logprobs": logprobs if body.get("logprobs") is not None else None,
    }


class StubVLLM:
    """Serves while the `with` block runs.

    `sample` makes a choice of a request's body. `fault`, where it is not `None`, is what the next `faults` completion
    requests get instead: a status with a message, "hang" (nothing), "closed" (the connection is closed), "cut" (half a
    document). Requests to the paths in `silent` get nothing. `bodies` and `headers` are what came.
    """

    def __init__(self, sample: Callable[[dict[str, Any]], dict[str, Any]] = five, positions: int | None = 64) -> None:
        self.sample, self.positions = sample, positions
        self.fault: Any = None
        self.faults = 10**9
        self.silent: set[str] = set()
        self.bodies: list[dict[str, Any]] = []
        self.headers: list[Any] = []
        self.busy = self.busiest = 0
        self.over = threading.Event()
        self.lock = threading.Lock()
        self._server = _Server(("127.0.0.1", 0), _Handler)
        self._server.stub = self
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> StubVLLM:
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """The server is gone."""
        self.over.set()
        self._server.shutdown()
        self._server.server_close()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 256
    stub: StubVLLM


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: _Server

    def log_message(self, *_: object) -> None:
        pass

    def do_GET(self) -> None:
        if self._silent():
            return
        model = {"id": "stub", "object": "model"}
        if self.server.stub.positions is not None:
            model["max_model_len"] = self.server.stub.positions
        self._send(200, {"object": "list", "data": [model]})

    def do_POST(self) -> None:
        stub = self.server.stub
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])) or "{}")
        if self._silent():
            return
        with stub.lock:
            stub.bodies.append(body)
            stub.headers.append(self.headers)
            stub.busy += 1
            stub.busiest = max(stub.busiest, stub.busy)
            fault, stub.faults = (stub.fault, stub.faults - 1) if stub.faults > 0 else (None, 0)
        try:
            self._answer(fault, body)
        finally:
            with stub.lock:
                stub.busy -= 1

    def _silent(self) -> bool:
        silent = self.path.partition("?")[0] in self.server.stub.silent
        if silent:
            self.server.stub.over.wait(60)
            self.close_connection = True
        return silent

    def _answer(self, fault: Any, body: dict[str, Any]) -> None:
        stub = self.server.stub
        if fault == "hang":
            stub.over.wait(60)
            self.close_connection = True
        elif fault == "closed":
            self.close_connection = True
        elif isinstance(fault, tuple):
            self._send(fault[0], {"error": {"message": fault[1], "type": "BadRequestError", "code": fault[0]}})
        else:
            stub.over.wait(0.02)
            document = {"choices": [{"index": 0, **stub.sample(body)}]} if "prompt" in body else {}
            self._send(200, document, cut=fault == "cut")

    def _send(self, status: int, document: Any, cut: bool = False) -> None:
        payload = json.dumps(document).encode()
        payload = payload[: len(payload) // 2] if cut else payload
        self.send_response(status)
        self.send_header("Content-Length", str(len(payload)))
        self.end_headers()
        self.wfile.write(payload)
