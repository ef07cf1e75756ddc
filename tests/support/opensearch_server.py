"""A server on loopback that takes and gives what OpenSearch and Elasticsearch do, or misbehaves as
they do.
"""

import gzip
from typing import Any

from faulty_server import FaultyServer, Request


def answered(hits: list[Any], **fields: Any) -> dict[str, Any]:
    shards = {"total": 2, "successful": 2, "skipped": 0, "failed": 0}
    base = {"took": 1, "timed_out": False, "_shards": shards, "status": 200}
    return {
        **base,
        "hits": {"total": {"value": len(hits), "relation": "eq"}, "max_score": 1, "hits": hits},
        **fields,
    }


REFUSED = {
    "error": {"type": "parsing_exception", "reason": "secret 10.1.2.3 in here"},
    "status": 400,
}
PARTIAL: dict[str, Any] = {
    "refused": REFUSED,
    "shards": answered([], _shards={"total": 2, "successful": 1, "failed": 1}),
    "timed_out": answered([], timed_out=True),
    "overload": {"error": {"type": "circuit_breaking_exception"}, "status": 429},
    "no_hits": {"status": 200},
}
"""What the last query of several gets, by mode."""


class Engine(FaultyServer):
    """Keeps documents and counts shared words. Its modes are `faulty_server`'s, a status, the
    `PARTIAL` answers, garbage, redirect, bomb, short (an answer is missing), and for passages
    written busy and bad (every other one).
    """

    announces_all = True

    def __init__(self) -> None:
        super().__init__(retry_after="7")
        self.documents: dict[str, dict[str, str]] = {}
        self.made: dict[str, Any] | None = None

    def found(self, question: dict[str, Any]) -> dict[str, Any]:
        match = question["query"]["multi_match"]
        wanted = set(match["query"].lower().split())
        scored = []
        for number, document in self.documents.items():
            words = (
                " ".join(document[field] for field in match["fields"]).lower().strip(".").split()
            )
            if shared := len(wanted & set(words)):
                picked = {key: document[key] for key in question["_source"] if key in document}
                scored.append(
                    {
                        "_index": "wiki",
                        "_id": number,
                        "_score": shared + 0.123456,
                        "_source": picked,
                    }
                )
        scored.sort(key=lambda hit: -hit["_score"])
        return answered(scored[: question["size"]])

    def reply(self, mode: Any, request: Request) -> tuple[int, Any]:
        self.more_headers = {}
        if mode.isdigit():
            return int(mode), {
                "error": {"type": "some_exception", "reason": "r"},
                "status": int(mode),
            }
        if mode == "garbage":
            return 200, b"<html>not an engine</html>"
        if mode == "redirect":
            self.more_headers = {"Location": "http://169.254.169.254/latest/meta-data"}
            return 302, {}
        if mode == "bomb":
            self.more_headers = {"Content-Encoding": "gzip"}
            return 200, gzip.compress(b" " * 30_000_000)
        path = request.path.strip("/").split("/")
        if path == ["_msearch"]:
            answers = [self.found(question) for question in request.body[1::2]]
            if mode in PARTIAL:
                answers[-1] = PARTIAL[mode]
            return 200, {"took": 1, "responses": answers[1:] if mode == "short" else answers}
        if path == ["_bulk"]:
            return 200, {"took": 1, "errors": True, "items": self._bulk(request.body, mode)}
        if request.method == "PUT" and path[-1] == "_mapping":
            self.made["mappings"] |= request.body
            return 200, {"acknowledged": True}
        if request.method == "PUT":
            self.made = request.body
            return 200, {"acknowledged": True}
        if self.made is None:
            return 404, {"error": {"type": "index_not_found_exception"}, "status": 404}
        if path[-1] == "_count":
            return 200, {"count": len(self.documents), "_shards": {"failed": 0}}
        return 200, {path[0]: self.made} if path[-1] == "_mapping" else {"_shards": {"failed": 0}}

    def _bulk(self, lines: list[Any], mode: str) -> list[dict[str, Any]]:
        items = []
        for number, (action, document) in enumerate(zip(lines[::2], lines[1::2], strict=True)):
            name, status = action["index"]["_id"], 201
            if mode in ("busy", "bad") and number % 2:
                status = 429 if mode == "busy" else 400
            else:
                self.documents[name] = document
            error = (
                {"error": {"type": "mapper_parsing_exception", "reason": "r"}}
                if status > 201
                else {}
            )
            items.append({"index": {"_index": "wiki", "_id": name, "status": status, **error}})
        return items
