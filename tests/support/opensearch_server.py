"""A loopback server that takes and gives what OpenSearch and Elasticsearch do."""

from __future__ import annotations

import gzip
import json
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class Engine:
    """Keeps documents and counts shared words; `fault` makes it fail in one of the ways that engines do."""

    def __init__(self) -> None:
        self.documents: dict[str, dict[str, str]] = {}
        self.made: dict[str, Any] | None = None
        self.fault = ""
        self.faults = 0
        self.requests: list[tuple[str, str, dict[str, str], bytes]] = []
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
        self.server.daemon_threads = True
        self.server.engine = self
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"

    def found(self, question: dict[str, Any]) -> dict[str, Any]:
        match = question["query"]["multi_match"]
        wanted = set(match["query"].lower().split())
        scored = []
        for number, document in self.documents.items():
            words = " ".join(document[field] for field in match["fields"]).lower().strip(".").split()
            if shared := len(wanted & set(words)):
                picked = {key: document[key] for key in question["_source"] if key in document}
                scored.append({"_index": "wiki", "_id": number, "_score": shared + 0.123456, "_source": picked})
        scored.sort(key=lambda hit: -hit["_score"])
        return answered(scored[: question["size"]])


def answered(hits: list[Any], **fields: Any) -> dict[str, Any]:
    shards = {"total": 2, "successful": 2, "skipped": 0, "failed": 0}
    base = {"took": 1, "timed_out": False, "_shards": shards, "status": 200}
    return {**base, "hits": {"total": {"value": len(hits), "relation": "eq"}, "max_score": 1, "hits": hits}, **fields}


REFUSED = {"error": {"type": "parsing_exception", "reason": "secret 10.1.2.3 in here"}, "status": 400}


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def log_message(self, *_: Any) -> None:
        """Quiet."""

    def do_GET(self) -> None:
        self.handle_any()

    do_POST = do_PUT = do_GET

    def handle_any(self) -> None:
        engine: Engine = self.server.engine
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        engine.requests.append((self.command, self.path, dict(self.headers), body))
        fault = engine.fault
        if fault and engine.faults:
            engine.faults -= 1
            engine.fault = fault if engine.faults else ""
        if hasattr(self, f"fault_{fault}"):
            return getattr(self, f"fault_{fault}")()
        if fault.isdigit():
            return self.reply(int(fault), {"error": {"type": "some_exception", "reason": "r"}, "status": int(fault)})
        return self.serve(engine, self.path.strip("/").split("/"), body, fault)

    def serve(self, engine: Engine, path: list[str], body: bytes, fault: str) -> None:
        lines = [json.loads(line) for line in body.splitlines()]
        if path == ["_msearch"]:
            answers = [engine.found(question) for question in lines[1::2]]
            if fault in PARTIAL and answers:
                answers[-1] = PARTIAL[fault]
            return self.reply(200, {"took": 1, "responses": answers[1:] if fault == "short" else answers})
        if path == ["_bulk"]:
            return self.bulk(engine, lines, fault)
        if self.command == "PUT" and path[-1] == "_mapping":
            engine.made["mappings"] |= lines[0]
            return self.reply(200, {"acknowledged": True})
        if self.command == "PUT":
            engine.made = lines[0]
            return self.reply(200, {"acknowledged": True})
        if engine.made is None:
            return self.reply(404, {"error": {"type": "index_not_found_exception"}, "status": 404})
        if path[-1] == "_count":
            return self.reply(200, {"count": len(engine.documents), "_shards": {"failed": 0}})
        return self.reply(200, {path[0]: engine.made} if path[-1] == "_mapping" else {"_shards": {"failed": 0}})

    def bulk(self, engine: Engine, lines: list[Any], fault: str) -> None:
        items = []
        for number, (action, document) in enumerate(zip(lines[::2], lines[1::2], strict=True)):
            name, status = action["index"]["_id"], 201
            if fault in ("busy", "bad") and number % 2:
                status = 429 if fault == "busy" else 400
            else:
                engine.documents[name] = document
            error = {"error": {"type": "mapper_parsing_exception", "reason": "r"}} if status > 201 else {}
            items.append({"index": {"_index": "wiki", "_id": name, "status": status, **error}})
        self.reply(200, {"took": 1, "errors": True, "items": items})

    def reply(self, status: int, value: Any, **headers: str) -> None:
        body = value if isinstance(value, bytes) else json.dumps(value).encode()
        self.send_response(status)
        for name, said in {"Content-Type": "application/json", "Content-Length": str(len(body)), **headers}.items():
            self.send_header(name.replace("_", "-"), said)
        if status in (429, 503):
            self.send_header("Retry-After", "7")
        self.end_headers()
        self.wfile.write(body)

    def fault_garbage(self) -> None:
        self.reply(200, b"<html>not an engine</html>")

    def fault_redirect(self) -> None:
        self.reply(302, {}, Location="http://169.254.169.254/latest/meta-data")

    def fault_bomb(self) -> None:
        self.reply(200, gzip.compress(b" " * 30_000_000), Content_Encoding="gzip")

    def fault_cut(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", "1000")
        self.end_headers()
        self.wfile.write(b'{"responses"')
        self.close_connection = True

    def fault_drip(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", "100000")
        self.end_headers()
        try:
            for _ in range(200):
                self.wfile.write(b" ")
                time.sleep(0.05)
        except OSError:
            self.close_connection = True

    def fault_silent(self) -> None:
        time.sleep(1.5)
        self.close_connection = True


PARTIAL: dict[str, Any] = {
    "refused": REFUSED,
    "shards": answered([], _shards={"total": 2, "successful": 1, "failed": 1}),
    "timed_out": answered([], timed_out=True),
    "overload": {"error": {"type": "circuit_breaking_exception"}, "status": 429},
    "no_hits": {"status": 200},
}
