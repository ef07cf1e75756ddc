"""The formats that trainers of search agents speak with their retrieval servers: requests read, results written.

| family | request | answer |
|---|---|---|
| Search-R1 | `POST /retrieve` `{"queries": [...], "topk": 3, "return_scores": true}` | `{"result": [[{"document": D, "score": s}]]}` |
| ReCall | `POST /search` `{"query": "...", "top_n": 3, "return_score": true}` | `[[D], [s]]` |
| ReCall | `POST /batch_search` `{"query": ["..."], "top_n": 3, "return_score": true}` | `[[[D]], [[s]]]` |

Without scores the answers hold documents only: `{"result": [[D]]}`, `[D]`, `[[D]]`. A document D has `id` and `contents`, see
`join_contents` in `tools/retrieval/corpus.py`, and `url` where it has one. Unknown fields of a request are ignored.
"""  # noqa: E501

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from ..errors import FaithfulSearchError
from ..judges import Pair
from ..tools.retrieval.corpus import join_contents
from ..trajectory import Evidence

Results = Sequence[Sequence[Evidence]]


class RequestError(FaithfulSearchError):
    """A request that is refused; `status` is the HTTP status that says so."""

    def __init__(self, message: str, status: int = 400) -> None:
        super().__init__(message)
        self.status = status


@dataclass(frozen=True)
class Limits:
    """What a request may ask for at most. The defaults let a whole training batch through as one request.

    Args:
        body_bytes: of its body.
        queries: in one request.
        query_chars: in one query.
        top_k: passages for a query.
        seconds: to send the body, and as many again to be answered.
        requests: at the same time; further ones are sent away to come back later.
        pairs: in one request to a served judge.
        pair_chars: of the texts of one pair together.
        bodies_bytes: of the bodies of all requests together, from their first byte until they are answered. A body
            that comes in one piece (some 64 kB) is always taken.
    """

    body_bytes: int = 16_000_000
    queries: int = 8192
    query_chars: int = 32_768
    top_k: int = 100
    seconds: float = 120.0
    requests: int = 1024
    pairs: int = 4096
    pair_chars: int = 1_000_000
    bodies_bytes: int = 500_000_000


@dataclass(frozen=True)
class Asked:
    """A request after reading: which queries, how many passages for each, and how the answer is written."""

    queries: list[str]
    top_k: int
    write: Callable[[Results], Any]


# trainers send null for what they leave out, so every option may be that
class _Retrieve(msgspec.Struct):
    queries: list[str]
    topk: int | None = None
    return_scores: bool | None = False


class _Search(msgspec.Struct):
    query: str
    top_n: int | None = None
    return_score: bool | None = False


class _BatchSearch(msgspec.Struct):
    query: list[str]
    top_n: int | None = None
    return_score: bool | None = False


class _Judge(msgspec.Struct):
    pairs: list[Pair]


_KINDS = {
    list[str]: "list of strings",
    list[Pair]: 'list of {"premise": string, "hypothesis": string, "question": string, "task": string}',
    str: "string",
    int | None: "number",
    bool | None: "true or false",
}


def read_retrieve(body: bytes, limits: Limits, top_k: int) -> Asked:
    """Search-R1's request; `top_k` is what it gets without asking. No queries and empty ones are allowed there.

    Raises `RequestError` for anything else (400, 422) and for what asks for too much (413).
    """
    asked = _decode(body, _Retrieve)

    def write(found: Results) -> Any:
        if not asked.return_scores:
            return {"result": _documents(found)}
        scored = [[{"document": _document(item), "score": item.score} for item in items] for items in found]
        return {"result": scored}

    return _within(limits, asked.queries, "topk", asked.topk, top_k, write)


def read_search(body: bytes, limits: Limits, top_k: int) -> Asked:
    """ReCall's request for one query, which must not be empty. Raises as `read_retrieve`."""
    asked = _decode(body, _Search)
    if not asked.query.strip():
        raise RequestError("query is empty: say what to search for")

    def first(found: Results) -> Any:
        written = _recall(found, asked.return_score)
        return tuple(part[0] for part in written) if asked.return_score else written[0]

    return _within(limits, [asked.query], "top_n", asked.top_n, top_k, first)


def read_batch_search(body: bytes, limits: Limits, top_k: int) -> Asked:
    """ReCall's request for many queries. Raises as `read_retrieve`."""
    asked = _decode(body, _BatchSearch)
    return _within(limits, asked.query, "top_n", asked.top_n, top_k, lambda found: _recall(found, asked.return_score))


def read_judge(body: bytes, limits: Limits) -> list[Pair]:
    """The pairs that a judge is asked about, which may have a `question` and a `task`. Raises as `read_retrieve`."""
    pairs: list[Pair] = _decode(body, _Judge).pairs
    if len(pairs) > limits.pairs:
        raise RequestError(f"{len(pairs)} pairs in a request; at most {limits.pairs}: send several", 413)
    for place, pair in enumerate(pairs):
        size = len(pair.premise) + len(pair.hypothesis) + len(pair.question)
        if size > limits.pair_chars:
            raise RequestError(f"pair {place} has {size} characters; at most {limits.pair_chars}", 413)
    return pairs


def _decode(body: bytes, shape: type[Any]) -> Any:
    try:
        return msgspec.json.decode(body, type=shape)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        fields = ", ".join(f'"{field.name}": {_KINDS[field.type]}' for field in msgspec.structs.fields(shape))
        if isinstance(error, msgspec.ValidationError):
            raise RequestError(f"{error}; expected {{{fields}}}", 422) from error
        raise RequestError(f"the body is not JSON: {error}; expected {{{fields}}}") from error


def _within(
    limits: Limits, queries: list[str], name: str, wanted: int | None, top_k: int, write: Callable[[Results], Any]
) -> Asked:
    """The request, when it asks for no more than the limits; `wanted` is what it says in the field `name`."""
    if wanted is not None and wanted < 0:
        raise RequestError(f"{name} must not be negative, got {wanted}", 422)
    if len(queries) > limits.queries:
        raise RequestError(f"{len(queries)} queries in a request; at most {limits.queries}: send several", 413)
    top_k = wanted or top_k
    if top_k > limits.top_k:
        raise RequestError(f"{top_k} passages asked for; at most {limits.top_k}", 422)
    for place, query in enumerate(queries):
        if len(query) > limits.query_chars:
            raise RequestError(f"query {place} has {len(query)} characters; at most {limits.query_chars}", 413)
    return Asked(queries, top_k, write)


def _document(item: Evidence) -> dict[str, str]:
    document = {"id": item.source, "contents": join_contents(item.title, item.text)}
    return document | {"url": item.url} if item.url else document


def _documents(found: Results) -> list[list[dict[str, str]]]:
    return [[_document(item) for item in items] for items in found]


def _recall(found: Results, scores: bool | None) -> Any:
    return (_documents(found), [[item.score for item in items] for items in found]) if scores else _documents(found)
