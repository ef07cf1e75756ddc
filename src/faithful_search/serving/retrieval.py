"""A retrieval server: an index behind the paths and in the formats that trainers of search agents
speak.

| family | request | answer |
|---|---|---|
| Search-R1 | `POST /retrieve` `{"queries": [...], "topk": 3, "return_scores": true}` | `{"result": [[{"document": D, "score": s}]]}` |
| SkyRL-gym | `POST /retrieve` `{"query": "...", "topk": 3, "return_scores": true}` | the same, for one query |
| ReCall | `POST /search` `{"query": "...", "top_n": 3, "return_score": true}` | `[[D], [s]]` |
| ReCall | `POST /batch_search` `{"query": ["..."], "top_n": 3, "return_score": true}` | `[[[D]], [[s]]]` |

Every path takes `query` and `queries`, each a text or a list of texts; `topk`, `top_k`, `top_n` and
`k`; `return_scores` and `return_score`: projects differ in these names alone. Without scores the
answers hold documents only: `{"result": [[D]]}`, `[D]`, `[[D]]`. A document D has `id` and
`contents`, see `join_contents` in `tools/retrieval/corpus.py`, and `url` where it has one. Unknown
fields of a request are ignored.
"""  # noqa: E501

import asyncio
import os
from collections.abc import Sequence
from functools import partial
from typing import Any

import msgspec
from starlette.exceptions import HTTPException

from ..errors import ToolError
from ..tools.batcher import Batcher
from ..tools.retrieval.corpus import join_contents
from ..tools.retrieval.index import Index
from ..trajectory import Evidence
from .app import SIZES, ServerLimits, Service, decode

Query = tuple[str, int]
"""A query, and how many passages are wanted for it."""

_FEW = 4  # queries of a request that are searched on the event loop itself
_THREADS = 8  # at most, that search for others


class _Request(msgspec.Struct):
    """A request in any of these forms; trainers send null for what they leave out."""

    queries: list[str] | str | None = None
    query: list[str] | str | None = None
    topk: int | None = None
    top_k: int | None = None
    top_n: int | None = None
    k: int | None = None
    return_scores: bool | None = None
    return_score: bool | None = None

    @property
    def texts(self) -> list[str] | None:
        """The queries; `None` where neither field is there."""
        queries = self.query if self.queries is None else self.queries
        return [queries] if isinstance(queries, str) else queries

    @property
    def passages_per_query(self) -> int | None:
        """How many passages are wanted: the first of these fields that says so."""
        numbers = (self.topk, self.top_k, self.top_n, self.k)
        return next((number for number in numbers if number), None)

    @property
    def with_scores(self) -> bool:
        """Whether scores are wanted."""
        return bool(self.return_scores or self.return_score)


# A request of each path, as errors show it
_EXAMPLES = {
    "/retrieve": '{"queries": ["…"], "topk": 3, "return_scores": true}',
    "/search": '{"query": "…", "top_n": 3, "return_score": true}',
    "/batch_search": '{"query": ["…"], "top_n": 3, "return_score": true}',
}


def _written(path: str, results: Sequence[list[Evidence] | ToolError], with_scores: bool) -> Any:
    """The passages for each query, in the format of the path. Raises the error of a search that
    failed.
    """
    # For each query a list of documents, and a list of their scores
    documents: list[list[dict[str, str]]] = []
    scores: list[list[float | None]] = []
    for result in results:
        if isinstance(result, ToolError):
            raise result
        documents.append([_document(passage) for passage in result])
        scores.append([passage.score for passage in result])
    if path == "/search":
        return (documents[0], scores[0]) if with_scores else documents[0]
    if path == "/batch_search":
        return (documents, scores) if with_scores else documents
    if not with_scores:
        return {"result": documents}
    rows = []
    for documents_of_query, scores_of_query in zip(documents, scores, strict=True):
        row = []
        for document, score in zip(documents_of_query, scores_of_query, strict=True):
            row.append({"document": document, "score": score})
        rows.append(row)
    return {"result": rows}


def _document(passage: Evidence) -> dict[str, str]:
    """A passage as all formats write it."""
    document = {"id": passage.source, "contents": join_contents(passage.title, passage.text)}
    if passage.url:
        document["url"] = passage.url
    return document


class Retrieval(Service):
    """The retrieval server of an index.

    An index that is `inline` gains nothing by batches: requests of few queries are searched on the
    event loop itself, others by several threads.

    Args:
        top_k: passages for each query of a request that names no number.
        batch: queries searched for at once; those of all requests are collected while a batch runs.
    """

    def __init__(
        self, index: Index, top_k: int = 3, limits: ServerLimits | None = None, batch: int = 64
    ) -> None:
        answers = {path: partial(self._answer_at, path) for path in _EXAMPLES}
        super().__init__(answers, limits, {"passages": len(index)})
        self.index = index
        self.top_k = top_k
        self._queries = self.counter("queries", "Queries searched for.")
        self._batches = self.histogram(
            "batch_queries", "Different queries searched for at once.", SIZES
        )
        threads = 1
        if index.inline:
            batch = min(batch, _FEW)
            threads = min(os.cpu_count() or 1, _THREADS)
        self._batcher: Batcher[Query, list[Evidence]] = Batcher(self._search, batch, threads)

    def _answer_at(self, path: str, body: bytes) -> Any:
        """The answer to a request, or an awaitable of it."""
        example = _EXAMPLES[path]
        request = decode(body, _Request, example)
        queries = request.texts
        with_scores = request.with_scores
        if queries is None:
            raise HTTPException(422, f"no query in the request; expected something like {example}")
        if path == "/search" and len(queries) != 1:
            raise HTTPException(422, f"{len(queries)} queries in a search: use /batch_search")
        if path == "/search" and not queries[0].strip():
            raise HTTPException(400, "query is empty: say what to search for")
        top_k = self._within_limits(queries, request.passages_per_query)
        self._queries.inc(len(queries))
        batch = [(query, top_k) for query in queries]
        if self.index.quick and len(batch) <= _FEW:
            return _written(path, self._search(batch), with_scores)

        async def searched() -> Any:
            results = await asyncio.gather(*map(self._batcher.ask, batch))
            return _written(path, results, with_scores)

        return searched()

    def _within_limits(self, queries: list[str], requested: int | None) -> int:
        """How many passages are wanted for each query. Raises `HTTPException` for a request beyond
        the limits.
        """
        limits = self.limits
        top_k = requested or self.top_k
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
        """The passages for each query, in order. Rollouts of one question often search for the
        same: each different query is searched for once.
        """
        results: dict[Query, list[Evidence] | ToolError] = {}
        # An index takes one number for all queries of a call.
        by_top_k: dict[int, list[str]] = {}
        for text, top_k in dict.fromkeys(batch):
            if text.strip():
                by_top_k.setdefault(top_k, []).append(text)
            else:
                results[text, top_k] = []
        self._batches.observe(sum(map(len, by_top_k.values())))
        for top_k, texts in by_top_k.items():
            outcomes = self.index.search_each(texts, top_k)
            for text, outcome in zip(texts, outcomes, strict=True):
                results[text, top_k] = outcome
        return [results[query] for query in batch]
