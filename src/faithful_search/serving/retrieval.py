"""A retrieval server: an index behind the paths and in the formats that trainers of search agents speak.

| family | request | answer |
|---|---|---|
| Search-R1 | `POST /retrieve` `{"queries": [...], "topk": 3, "return_scores": true}` | `{"result": [[{"document": D, "score": s}]]}` |
| ReCall | `POST /search` `{"query": "...", "top_n": 3, "return_score": true}` | `[[D], [s]]` |
| ReCall | `POST /batch_search` `{"query": ["..."], "top_n": 3, "return_score": true}` | `[[[D]], [[s]]]` |

Without scores the answers hold documents only: `{"result": [[D]]}`, `[D]`, `[[D]]`. A document D has `id` and `contents`, see
`join_contents` in `tools/retrieval/corpus.py`, and `url` where it has one. Unknown fields of a request are ignored.
"""  # noqa: E501

import asyncio
import os
from collections.abc import Sequence
from functools import partial
from typing import Any, Generic, TypeVar

import msgspec
from starlette.exceptions import HTTPException

from ..errors import ToolError
from ..tools.batcher import Batcher
from ..tools.retrieval.corpus import join_contents
from ..tools.retrieval.index import Index
from ..trajectory import Evidence
from .app import SIZES, Limits, Service, decode

Asked = TypeVar("Asked", str, list[str])
Query = tuple[str, int]
"""A query and how many passages it asks for."""

_FEW, _THREADS = 4, 8  # queries that are searched on the event loop, and threads for more


# trainers send null for what they leave out, so every option may be that
class _SearchR1(msgspec.Struct):
    queries: list[str]
    topk: int | None = None
    return_scores: bool | None = False


class _ReCall(msgspec.Struct, Generic[Asked]):
    query: Asked
    top_n: int | None = None
    return_score: bool | None = False


_FORMATS: dict[str, tuple[type[msgspec.Struct], str]] = {
    "/retrieve": (_SearchR1, '{"queries": ["…"], "topk": 3, "return_scores": true}'),
    "/search": (_ReCall[str], '{"query": "…", "top_n": 3, "return_score": true}'),
    "/batch_search": (_ReCall[list[str]], '{"query": ["…"], "top_n": 3, "return_score": true}'),
}


def _written(path: str, found: Sequence[list[Evidence] | ToolError], scored: bool) -> Any:
    """What was found for each query, in the format of the path; raises what a search failed with."""
    documents, scores = [], []
    for items in found:
        if isinstance(items, ToolError):
            raise items
        documents.append([_document(item) for item in items])
        scores.append([item.score for item in items])
    if path == "/search":
        return (documents[0], scores[0]) if scored else documents[0]
    if path == "/batch_search":
        return (documents, scores) if scored else documents
    if not scored:
        return {"result": documents}
    pairs = (zip(*row, strict=True) for row in zip(documents, scores, strict=True))
    return {
        "result": [
            [{"document": document, "score": score} for document, score in row] for row in pairs
        ]
    }


def _document(item: Evidence) -> dict[str, str]:
    document = {"id": item.source, "contents": join_contents(item.title, item.text)}
    return document | {"url": item.url} if item.url else document


class Retrieval(Service):
    """The retrieval server of an index. One that is `inline` gains nothing by batches: requests of few queries are
    searched on the event loop itself, others by several threads.

    Args:
        top_k: passages for a request that names no number.
        batch: queries searched for at once; those of all requests are collected while a batch runs.
    """

    def __init__(
        self, index: Index, top_k: int = 3, limits: Limits | None = None, batch: int = 64
    ) -> None:
        answers = {path: partial(self._answer_at, path) for path in _FORMATS}
        super().__init__(answers, limits, {"passages": len(index)})
        self.index, self.top_k = index, top_k
        self._queries = self.counter("queries", "Queries searched for.")
        self._batches = self.histogram(
            "batch_queries", "Different queries searched for at once.", SIZES
        )
        batch, threads = (
            (min(batch, _FEW), min(os.cpu_count() or 1, _THREADS)) if index.inline else (batch, 1)
        )
        self._batcher: Batcher[Query, list[Evidence]] = Batcher(self._search, batch, threads)

    def _answer_at(self, path: str, body: bytes) -> Any:
        asked, wanted, scored = msgspec.structs.astuple(decode(body, *_FORMATS[path]))
        if path == "/search" and not asked.strip():
            raise HTTPException(400, "query is empty: say what to search for")
        queries: list[str] = [asked] if path == "/search" else asked
        top_k = self._within_limits(queries, wanted)
        self._queries.inc(len(queries))
        items = [(query, top_k) for query in queries]
        if self.index.quick and len(items) <= _FEW:
            return _written(path, self._search(items), scored)

        async def batched() -> Any:
            return _written(path, await asyncio.gather(*map(self._batcher.ask, items)), scored)

        return batched()

    def _within_limits(self, queries: list[str], wanted: int | None) -> int:
        """How many passages are asked for, by a request within the limits."""
        limits, top_k = self.limits, wanted or self.top_k
        if not 0 < top_k <= limits.top_k:
            raise HTTPException(
                422, f"{top_k} passages asked for; at least 1 and at most {limits.top_k}"
            )
        if len(queries) > limits.queries:
            raise HTTPException(
                413, f"{len(queries)} queries in a request; at most {limits.queries}: send several"
            )
        for place, query in enumerate(queries):
            if len(query) > limits.query_chars:
                raise HTTPException(
                    413, f"query {place} has {len(query)} characters; at most {limits.query_chars}"
                )
        return top_k

    def _search(self, batch: Sequence[Query]) -> list[list[Evidence] | ToolError]:
        """Each different query once: rollouts of one question often ask the same."""
        found: dict[Query, list[Evidence] | ToolError] = {
            item: [] for item in batch if not item[0].strip()
        }
        wanted = dict.fromkeys(item for item in batch if item not in found)
        self._batches.observe(len(wanted))
        # an index takes one number of passages for all queries of a call
        for top_k in dict.fromkeys(top_k for _, top_k in wanted):
            queries = [query for query, number in wanted if number == top_k]
            results = self.index.search_each(queries, top_k)
            found.update(
                {(query, top_k): items for query, items in zip(queries, results, strict=True)}
            )
        return [found[item] for item in batch]
