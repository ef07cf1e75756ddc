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
from collections import defaultdict
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
"""A query and how many passages it asks for."""

# At most so many queries of a request are searched on the event loop, or in one batch of an index
# that is `inline`
_FEW = 4
_THREADS = 8  # that search an index that is `inline`


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
    def wanted(self) -> int | None:
        """How many passages are asked for: the first of these fields that says so. 0 says nothing,
        as null does.
        """
        return self.topk or self.top_k or self.top_n or self.k

    @property
    def scored(self) -> bool:
        return bool(self.return_scores or self.return_score)


_EXAMPLES = {
    "/retrieve": '{"queries": ["…"], "topk": 3, "return_scores": true}',
    "/search": '{"query": "…", "top_n": 3, "return_score": true}',
    "/batch_search": '{"query": ["…"], "top_n": 3, "return_score": true}',
}


def _answer_body(path: str, results: Sequence[list[Evidence] | ToolError], scored: bool) -> Any:
    """The passages for each query, in the format of the path. Raises the error of a search that
    failed.
    """
    documents, scores = [], []  # for each query
    for passages in results:
        if isinstance(passages, ToolError):
            raise passages
        documents.append([_document(passage) for passage in passages])
        scores.append([passage.score for passage in passages])
    if path == "/search":
        return (documents[0], scores[0]) if scored else documents[0]
    if path == "/batch_search":
        return (documents, scores) if scored else documents
    if not scored:
        return {"result": documents}
    rows = []
    for documents_of_query, scores_of_query in zip(documents, scores, strict=True):
        pairs = zip(documents_of_query, scores_of_query, strict=True)
        rows.append([{"document": document, "score": score} for document, score in pairs])
    return {"result": rows}


def _document(passage: Evidence) -> dict[str, str]:
    document = {"id": passage.source, "contents": join_contents(passage.title, passage.text)}
    if passage.url:
        document["url"] = passage.url
    return document


class Retrieval(Service):
    """The retrieval server of an index.

    The queries of all requests are collected and searched for in batches on a thread. An index that
    is `inline` gains nothing by batches: several threads search it, a few queries each. One that is
    also `quick`, since it is small, is searched on the event loop itself for requests of few
    queries.

    Args:
        top_k: passages for a request that names no number.
        batch: queries searched for at once; those of all requests are collected while a batch runs.
    """

    def __init__(
        self, index: Index, top_k: int = 3, limits: ServerLimits | None = None, batch: int = 64
    ) -> None:
        answers = {path: partial(self._answer_at, path) for path in _EXAMPLES}
        super().__init__(answers, limits, {"passages": len(index)})
        self.index, self.top_k = index, top_k
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
        """The answer to a request at this path, or an awaitable of it."""
        example = _EXAMPLES[path]
        request = decode(body, _Request, example)
        queries = request.texts
        scored = request.scored
        if queries is None:
            raise HTTPException(422, f"no query in the request; expected something like {example}")
        if path == "/search" and len(queries) != 1:
            raise HTTPException(422, f"{len(queries)} queries in a search: use /batch_search")
        if path == "/search" and not queries[0].strip():
            raise HTTPException(400, "query is empty: say what to search for")
        top_k = self._checked_top_k(queries, request.wanted)
        self._queries.inc(len(queries))
        batch = [(query, top_k) for query in queries]
        if self.index.quick and len(batch) <= _FEW:
            return _answer_body(path, self._search(batch), scored)

        async def batched() -> Any:
            results = await asyncio.gather(*map(self._batcher.ask, batch))
            return _answer_body(path, results, scored)

        return batched()

    def _checked_top_k(self, queries: list[str], requested: int | None) -> int:
        """The number of passages that are asked for. Raises `HTTPException` for a request beyond
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
        """What is found for each query, or why that failed. A different query is searched for once:
        rollouts of one question often ask the same.
        """
        results: dict[Query, list[Evidence] | ToolError] = {}
        # By the number of passages: an index takes one for all queries of a call.
        texts_by_top_k: defaultdict[int, list[str]] = defaultdict(list)
        for text, top_k in dict.fromkeys(batch):
            if text.strip():
                texts_by_top_k[top_k].append(text)
            else:
                results[text, top_k] = []
        self._batches.observe(sum(map(len, texts_by_top_k.values())))
        for top_k, texts in texts_by_top_k.items():
            outcomes = self.index.search_each(texts, top_k)
            for text, outcome in zip(texts, outcomes, strict=True):
                results[text, top_k] = outcome
        return [results[query] for query in batch]
