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
from typing import Any, ClassVar

import msgspec

from ..errors import ToolError
from ..tools.batcher import Batcher
from ..tools.retrieval.corpus import join_contents
from ..tools.retrieval.index import Index
from ..trajectory import Evidence
from .app import SIZES, Limits, RequestError, Service, decode

Query = tuple[str, int]
"""A query and how many passages it asks for."""
Found = Sequence[list[Evidence]]

_FEW, _THREADS = 4, 8  # queries that are searched on the event loop, and threads for more
_RECALL = {"queries": "query", "top_k": "top_n", "scores": "return_score"}


# trainers send null for what they leave out, so every option may be that
class _SearchR1(msgspec.Struct, rename={"top_k": "topk", "scores": "return_scores"}):
    queries: list[str]
    top_k: int | None = None
    scores: bool | None = False
    like: ClassVar[str] = '{"queries": ["…"], "topk": 3, "return_scores": true}'

    def write(self, found: Found) -> Any:
        if not self.scores:
            return {"result": _documents(found)}
        return {"result": [[{"document": _document(item), "score": item.score} for item in items] for items in found]}


class _ReCall(msgspec.Struct, rename=_RECALL):
    queries: list[str]
    top_k: int | None = None
    scores: bool | None = False
    like: ClassVar[str] = '{"query": ["…"], "top_n": 3, "return_score": true}'

    def write(self, found: Found) -> Any:
        documents = _documents(found)
        return (documents, [[item.score for item in items] for items in found]) if self.scores else documents


class _ReCallOne(msgspec.Struct, rename=_RECALL):
    queries: str
    top_k: int | None = None
    scores: bool | None = False
    like: ClassVar[str] = '{"query": "…", "top_n": 3, "return_score": true}'

    def write(self, found: Found) -> Any:
        documents, scores = _documents(found)[0], [item.score for item in found[0]]
        return (documents, scores) if self.scores else documents


_FORMATS: dict[str, Any] = {"/retrieve": _SearchR1, "/search": _ReCallOne, "/batch_search": _ReCall}


def _documents(found: Found) -> list[list[dict[str, str]]]:
    return [[_document(item) for item in items] for items in found]


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

    def __init__(self, index: Index, top_k: int = 3, limits: Limits | None = None, batch: int = 64) -> None:
        answers = {path: partial(self._answer_in, shape) for path, shape in _FORMATS.items()}
        super().__init__(answers, limits, {"passages": len(index)})
        self.index, self.top_k = index, top_k
        self._queries = self.counter("queries", "Queries searched for.")
        self._batches = self.histogram("batch_queries", "Different queries searched for at once.", SIZES)
        batch, threads = (min(batch, _FEW), min(os.cpu_count() or 1, _THREADS)) if index.inline else (batch, 1)
        self._batcher: Batcher[Query, list[Evidence]] = Batcher(self._search, batch, threads)

    def _answer_in(self, shape: Any, body: bytes) -> Any:
        asked = decode(body, shape, shape.like)
        queries: list[str] = [asked.queries] if isinstance(asked.queries, str) else asked.queries
        if shape is _ReCallOne and not asked.queries.strip():
            raise RequestError("query is empty: say what to search for")
        top_k = self._within_limits(queries, asked.top_k)
        self._queries.inc(len(queries))
        wanted = [(query, top_k) for query in queries]
        if self.index.quick and len(wanted) <= _FEW:
            return asked.write([_found(result) for result in self._search(wanted)])

        async def batched() -> Any:
            return asked.write(await asyncio.gather(*map(self._batcher.ask, wanted)))

        return batched()

    def _within_limits(self, queries: list[str], wanted: int | None) -> int:
        """How many passages are asked for, by a request within the limits."""
        limits, top_k = self.limits, wanted or self.top_k
        if not 0 < top_k <= limits.top_k:
            raise RequestError(f"{top_k} passages asked for; at least 1 and at most {limits.top_k}", 422)
        if len(queries) > limits.queries:
            raise RequestError(f"{len(queries)} queries in a request; at most {limits.queries}: send several", 413)
        for place, query in enumerate(queries):
            if len(query) > limits.query_chars:
                raise RequestError(f"query {place} has {len(query)} characters; at most {limits.query_chars}", 413)
        return top_k

    def _search(self, batch: Sequence[Query]) -> list[list[Evidence] | ToolError]:
        """Each different query once: rollouts of one question often ask the same."""
        found: dict[Query, list[Evidence] | ToolError] = {item: [] for item in batch if not item[0].strip()}
        wanted = dict.fromkeys(item for item in batch if item not in found)
        self._batches.observe(len(wanted))
        # an index takes one number of passages for all queries of a call
        for top_k in dict.fromkeys(top_k for _, top_k in wanted):
            queries = [query for query, number in wanted if number == top_k]
            results = self.index.search_each(queries, top_k)
            found.update({(query, top_k): items for query, items in zip(queries, results, strict=True)})
        return [found[item] for item in batch]


def _found(result: list[Evidence] | ToolError) -> list[Evidence]:
    if isinstance(result, ToolError):
        raise result
    return result
