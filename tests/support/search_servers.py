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

from __future__ import annotations

import json
from typing import Any

from faulty_server import FaultyServer, Request

KEY = "serper-key-0f9e8d"
STRANGE: dict[str, Any] = {
    "null": None,
    "number": 7,
    "text": "organic",
    "list": [{"organic": []}],
    "nothing": {},
    "nulls": dict.fromkeys(("organic", "results", "answerBox", "knowledgeGraph", "search", "entities", "error")),
    "numbers": dict.fromkeys(("organic", "results", "answerBox", "knowledgeGraph", "search", "entities"), 3),
    "texts": dict.fromkeys(("organic", "results", "answerBox", "knowledgeGraph", "search", "entities"), "x"),
    "rows_of_junk": {key: [None, 1, "x", [], {}] for key in ("organic", "results", "search", "answers", "infoboxes")},
    "fields_of_junk": {
        key: [dict.fromkeys(("title", "link", "url", "snippet", "content", "date", "publishedDate", "id"), junk)]
        for key, junk in (("organic", {"a": 1}), ("results", ["b"]), ("search", 1e400))
    },
    "maps": {key: {"Q1": {"labels": 3, "claims": "x"}} for key in ("organic", "results", "search", "entities")},
    "surrogates": {
        key: [{"title": "\ud800", "link": "http://a.example/\ud800", "url": "http://[", "snippet": "\udfff" * 9}]
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
    """`google.serper.dev`: the query's words make ten results; "facts" has an answer box and a panel."""
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
            "position": n,
            **({"date": "Mar 3, 2024"} if n == 2 else {}),
            **({"sitelinks": [{"title": "More", "link": f"https://site{n}.example/more"}]} if n == 1 else {}),
        }
        for n in range(1, request.body.get("num", 10) + 1)
    ]
    document: dict[str, Any] = {
        "searchParameters": {"q": query, "type": "search", "engine": "google", "num": len(organic)},
        "organic": organic if query != "unheard of" else [],
        "peopleAlsoAsk": [{"question": "Why?", "snippet": "Because.", "title": "Why", "link": "https://why.example"}],
        "relatedSearches": [{"query": f"more {query}"}],
        "credits": 1,
    }
    if query == "facts":
        document["answerBox"] = {
            "snippet": "The fact of the matter.",
            "snippetHighlighted": ["fact"],
            "title": "Matters",
            "link": "https://site3.example/facts",
        }
        document["knowledgeGraph"] = {
            "title": "Fact",
            "type": "Concept",
            "description": "What is the case.",
            "descriptionSource": "Encyclopedia",
            "descriptionLink": "https://pedia.example/Fact",
            "attributes": {"Opposite": "Fiction"},
        }
    return 200, document


def searxng(request: Request) -> tuple[int, Any]:
    """A SearXNG server; "outage" is a query for which no engine answered, "facts" has an answer and an infobox."""
    if request.method != "GET" or request.path != "/search" or request.parameters.get("format") != "json":
        return 404, {}
    query = request.parameters["q"]
    results = [
        {
            "url": f"https://site{n}.example/{query}",
            "title": f"{query} {n}",
            "content": f"What site {n} says about {query}.",
            "engine": "brave",
            "engines": ["brave", "mojeek"],
            "parsed_url": ["https", f"site{n}.example", f"/{query}", "", "", ""],
            "positions": [n],
            "score": 1 / n,
            "category": "general",
            "publishedDate": "2024-03-03T00:00:00" if n == 2 else None,
            "thumbnail": "",
            "template": "default.html",
        }
        for n in range(1, 21)
    ]
    facts = query == "facts"
    document = {
        "query": query,
        "number_of_results": 0,
        "results": [] if query in ("outage", "unheard of") else results,
        "answers": [{"answer": "42", "url": "https://deep.example/42", "engine": "deep"}, "old style"] if facts else [],
        "corrections": [],
        "infoboxes": [
            {"infobox": "Fact", "id": "https://pedia.example/Fact", "content": "What is the case.", "urls": []}
        ]
        if facts
        else [],
        "suggestions": [],
        "unresponsive_engines": [["google", "CAPTCHA"]] if query in ("outage", "rivers") else [],
    }
    return 200, document


_LABELS: dict[str, tuple[str, str, list[str]]] = {
    "Q1": ("Freedonia", "country in Europe", ["Republic of Freedonia"]),
    "Q2": ("Glooston", "capital of Freedonia", []),
    "Q3": ("Rufus Firefly", "head of Freedonia", ["Firefly"]),
    "Q4": ("Firefly", "genus of insects", []),
    "Q5": ("Ann Firefly", "", []),
    "Q6": ("Bo Firefly", "", []),
    "Q7": ("Cy Firefly", "", []),
    "Q8": ("metre", "unit of length", []),
    "Q9": ("Old Glooston", "former capital", []),
    "Q10": ("country", "kind of state", []),
    "P31": ("instance of", "", ["is a"]),
    "P36": ("capital", "", ["seat of government", "capital city"]),
    "P40": ("child", "", ["children", "daughter", "son"]),
    "P569": ("date of birth", "", ["born", "birth date"]),
    "P1082": ("population", "", ["inhabitants"]),
    "P2044": ("elevation above sea level", "", ["height"]),
    "P625": ("coordinate location", "", []),
    "P1448": ("official name", "", []),
    "P856": ("official website", "", ["home page"]),
    "P227": ("GND ID", "", []),
    "P18": ("image", "", []),
    "P26": ("spouse", "", ["wife", "husband"]),
}


def item(entity: str) -> tuple[str, dict[str, Any]]:
    return "wikibase-item", {
        "type": "wikibase-entityid",
        "value": {"entity-type": "item", "numeric-id": int(entity[1:]), "id": entity},
    }


def time(text: str, precision: int) -> tuple[str, dict[str, Any]]:
    value = {"time": text, "timezone": 0, "before": 0, "after": 0, "precision": precision}
    return "time", {"type": "time", "value": {**value, "calendarmodel": "http://www.wikidata.org/entity/Q1985727"}}


def text(kind: str, value: str) -> tuple[str, dict[str, Any]]:
    return kind, {"type": "string", "value": value}


def _quantity(amount: str, unit: str = "1") -> tuple[str, dict[str, Any]]:
    return "quantity", {"type": "quantity", "value": {"amount": amount, "unit": unit}}


def _claim(name: str, value: tuple[str, dict[str, Any]] | str, rank: str = "normal", **when: Any) -> dict[str, Any]:
    snak: dict[str, Any] = {"snaktype": value, "property": name, "datatype": "wikibase-item"}
    if not isinstance(value, str):
        snak = {"snaktype": "value", "property": name, "datatype": value[0], "datavalue": value[1]}
    claim: dict[str, Any] = {"mainsnak": snak, "type": "statement", "id": f"{name}$1", "rank": rank, "references": []}
    if when:
        claim["qualifiers"] = {
            key: [{"snaktype": "value", "property": key, "datatype": "time", "datavalue": told[1]}]
            for key, told in when.items()
        }
    return claim


_CLAIMS: dict[str, dict[str, list[dict[str, Any]]]] = {
    "Q1": {
        "P31": [_claim("P31", item("Q10"))],
        "P18": [_claim("P18", text("commonsMedia", "Flag.svg"))],
        "P36": [
            _claim("P36", item("Q9"), P582=time("+1901-00-00T00:00:00Z", 9)),
            _claim("P36", item("Q2"), "preferred"),
            _claim("P36", item("Q7"), "deprecated"),
        ],
        "P1082": [_claim("P1082", _quantity("+1234567"), P585=time("+2020-00-00T00:00:00Z", 9))],
        "P2044": [_claim("P2044", _quantity("+812.5", "http://www.wikidata.org/entity/Q8"))],
        "P625": [
            _claim(
                "P625",
                (
                    "globe-coordinate",
                    {"type": "globecoordinate", "value": {"latitude": 45.5, "longitude": -7.25, "precision": 0.01}},
                ),
            )
        ],
        "P1448": [
            _claim(
                "P1448",
                (
                    "monolingualtext",
                    {"type": "monolingualtext", "value": {"text": "Land of the Free", "language": "en"}},
                ),
            )
        ],
        "P856": [_claim("P856", text("url", "https://freedonia.example/"))],
        "P227": [_claim("P227", text("external-id", "118540238"))],
    },
    "Q3": {
        "P40": [_claim("P40", item(each)) for each in ("Q5", "Q6", "Q7")],
        "P569": [_claim("P569", time("+1890-10-02T00:00:00Z", 11))],
        "P26": [_claim("P26", "novalue")],
    },
    "Q4": {"P31": [_claim("P31", "somevalue")]},
}


def wikidata(request: Request) -> tuple[int, Any]:
    """The action API over a small country; labels in English only."""
    asked = request.parameters
    if request.path != "/w/api.php" or asked.get("format") != "json":
        return 404, {}
    if asked["action"] == "wbsearchentities":
        hits = [_hit(key, name) for key in _LABELS if key[0] == "Q" for name in _matching(key, asked["search"])[:1]]
        return 200, {"searchinfo": {"search": asked["search"]}, "search": hits[: int(asked["limit"])], "success": 1}
    ids = asked["ids"].split("|")
    if len(ids) > 50:
        return 200, {"error": {"code": "toomanyvalues", "info": "Too many values", "*": "See the help"}}
    return 200, {"entities": {key: _entity(key, asked["props"]) for key in ids}, "success": 1}


def _matching(key: str, search: str) -> list[str]:
    label, _, aliases = _LABELS[key]
    return [name for name in (label, *aliases) if name.casefold().startswith(search.casefold())]


def _hit(key: str, name: str) -> dict[str, Any]:
    label, about, aliases = _LABELS[key]
    kind = "alias" if name in aliases else "label"
    return {
        "id": key,
        "title": key,
        "concepturi": f"http://www.wikidata.org/entity/{key}",
        "url": f"//www.wikidata.org/wiki/{key}",
        "label": label,
        "description": about,
        "match": {"type": kind, "language": "en", "text": name},
    }


def _entity(key: str, props: str) -> dict[str, Any]:
    if key not in _LABELS:
        return {"id": key, "missing": ""}
    label, about, aliases = _LABELS[key]
    entity: dict[str, Any] = {"type": "item" if key[0] == "Q" else "property", "id": key}
    if "labels" in props:
        entity["labels"] = {"en": {"language": "en", "value": label}}
    if "descriptions" in props:
        entity["descriptions"] = {"en": {"language": "en", "value": about}} if about else []
    if "aliases" in props:
        entity["aliases"] = {"en": [{"language": "en", "value": each} for each in aliases]} if aliases else []
    if "claims" in props:
        entity["claims"] = _CLAIMS.get(key, [])
    return entity
