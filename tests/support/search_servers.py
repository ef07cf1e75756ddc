"""Search services on loopback, shaped like the real ones, that answer or misbehave as told.

    with SearchServer(serper, mode="busy", faults=1) as server:
        WebSearch(Serper(url=server.url))
        server.requests          # what came: method, path, parameters, headers, body

The modes are `faulty_server`'s and

| mode | what a request gets |
|---|---|
| patient | 429 with `Retry-After: 3600` |
| garbage | something else than JSON |
| html | an HTML page |
| anything else | JSON of that name in `STRANGE` |
"""

import json
from pathlib import Path
from typing import Any

from faulty_server import FaultyServer, Request

KEY = "serper-key-0f9e8d"
STRANGE: dict[str, Any] = {
    "null": None,
    "number": 7,
    "text": "organic",
    "list": [{"organic": []}],
    "nothing": {},
    "nulls": dict.fromkeys(
        ("organic", "results", "answerBox", "knowledgeGraph", "search", "entities", "error")
    ),
    "numbers": dict.fromkeys(
        ("organic", "results", "answerBox", "knowledgeGraph", "search", "entities"), 3
    ),
    "texts": dict.fromkeys(
        ("organic", "results", "answerBox", "knowledgeGraph", "search", "entities"), "x"
    ),
    "rows_of_junk": {
        key: [None, 1, "x", [], {}]
        for key in ("organic", "results", "search", "answers", "infoboxes")
    },
    "fields_of_junk": {
        key: [
            dict.fromkeys(
                ("title", "link", "url", "snippet", "content", "date", "publishedDate", "id"), junk
            )
        ]
        for key, junk in (("organic", {"a": 1}), ("results", ["b"]), ("search", 1e400))
    },
    "maps": {
        key: {"Q1": {"labels": 3, "claims": "x"}}
        for key in ("organic", "results", "search", "entities")
    },
    "surrogates": {
        key: [
            {
                "title": "\ud800",
                "link": "http://a.example/\ud800",
                "url": "http://[",
                "snippet": "\udfff" * 9,
            }
        ]
        for key in ("organic", "results", "search")
    },
    "deep": json.loads("[" * 400 + "]" * 400),
}


class SearchServer(FaultyServer):
    """Its refusals quote the key that it was asked with, as some services do."""

    announces_all = True

    def refusal(self, status: int, message: str) -> tuple[int, Any]:
        return status, {"message": f"no, {KEY}"}

    def reply(self, mode: Any, request: Request) -> tuple[int, Any]:
        if mode == "patient":
            self.retry_after = "3600"
            return self.refusal(429, mode)
        if mode == "garbage":
            return 200, b'{"organic": [{]'
        if mode == "html":
            return 200, b"<html><body>Please log in</body></html>"
        return (200, STRANGE[mode]) if mode in STRANGE else super().reply(mode, request)


def serper(request: Request) -> tuple[int, Any]:
    """`google.serper.dev`: the query's words make ten results; "facts" has an answer box and a
    panel.
    """
    if request.method != "POST" or request.path != "/search":
        return 404, {"message": "Not Found", "statusCode": 404}
    if request.headers.get("x-api-key") != KEY:
        return 403, {"message": "Unauthorized.", "statusCode": 403}
    query = request.body["q"]
    if query == "broke":
        return 400, {"message": "Not enough credits", "statusCode": 400}
    organic = [
        {
            "title": f"{query} {n}",
            "link": f"https://site{n}.example/{query.replace(' ', '-')}",
            "snippet": f"What site {n} says about {query}.",
            **({"date": "Mar 3, 2024"} if n == 2 else {}),
        }
        for n in range(1, request.body.get("num", 10) + 1)
    ]
    if query != "facts":
        return 200, {"organic": organic}
    box = {
        "snippet": "The fact of the matter.",
        "title": "Matters",
        "link": "https://site3.example/facts",
    }
    panel = {
        "title": "Fact",
        "description": "What is the case.",
        "descriptionLink": "https://pedia.example/Fact",
    }
    return 200, {"organic": organic, "answerBox": box, "knowledgeGraph": panel}


def searxng(request: Request) -> tuple[int, Any]:
    """A SearXNG server; "outage" is a query for which no engine answered, "facts" has an answer and
    an infobox.
    """
    if (
        request.method != "GET"
        or request.path != "/search"
        or request.parameters.get("format") != "json"
    ):
        return 404, {}
    query = request.parameters["q"]
    results = [
        {
            "url": f"https://site{n}.example/{query}",
            "title": f"{query} {n}",
            "content": f"What site {n} says about {query}.",
            "publishedDate": "2024-03-03T00:00:00" if n == 2 else None,
        }
        for n in range(1, 21)
    ]
    document: dict[str, Any] = {
        "results": results,
        "answers": [],
        "infoboxes": [],
        "unresponsive_engines": [],
    }
    if query in ("outage", "unheard of"):
        document["results"] = []
    if query in ("outage", "rivers"):
        document["unresponsive_engines"] = [["google", "CAPTCHA"]]
    if query == "facts":
        document["answers"] = [
            {"answer": "42", "url": "https://deep.example/42", "engine": "deep"},
            "old style",
        ]
        box = {
            "infobox": "Fact",
            "id": "https://pedia.example/Fact",
            "content": "What is the case.",
            "urls": [],
        }
        document["infoboxes"] = [box]
    return 200, document


FREEDONIA: dict[str, dict[str, Any]] = json.loads(
    Path(__file__).with_name("freedonia.json").read_text("utf-8")
)
"""Items and properties of a small country as Wikidata writes them; labels in English only."""


def wikidata(request: Request) -> tuple[int, Any]:
    """The action API over `FREEDONIA`."""
    asked = request.parameters
    if request.path != "/w/api.php" or asked.get("format") != "json":
        return 404, {}
    if asked["action"] == "wbsearchentities":
        hits = [
            hit for key in FREEDONIA if key[0] == "Q" for hit in _matching(key, asked["search"])[:1]
        ]
        return 200, {
            "searchinfo": {"search": asked["search"]},
            "search": hits[: int(asked["limit"])],
            "success": 1,
        }
    ids = asked["ids"].split("|")
    if len(ids) > 50:
        return 200, {
            "error": {"code": "toomanyvalues", "info": "Too many values", "*": "See the help"}
        }
    parts = {"id", "type", "missing", *asked["props"].split("|")}
    told = {key: FREEDONIA.get(key, {"id": key, "missing": ""}) for key in ids}
    for key, entity in told.items():
        told[key] = {name: part for name, part in entity.items() if name in parts}
    return 200, {"entities": told, "success": 1}


def _matching(key: str, search: str) -> list[dict[str, Any]]:
    entity = FREEDONIA[key]
    label = entity["labels"]["en"]["value"]
    aliases = [row["value"] for row in entity["aliases"]["en"]] if entity["aliases"] else []
    found = [name for name in (label, *aliases) if name.casefold().startswith(search.casefold())]
    matches = [
        {"type": "label" if name == label else "alias", "language": "en", "text": name}
        for name in found
    ]
    return [{"id": key, "label": label, "match": match} for match in matches]
