"""An index behind the paths of the Search-R1 and ReCall families; queries of all requests are searched in batches."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from ..errors import ToolError
from ..tools.batcher import Batcher
from ..tools.local_search import found_by_each, is_quick
from ..tools.retrieval.index import Index
from ..trajectory import Evidence
from .app import Answer
from .metrics import RetrievalMetrics
from .wire import Asked, Limits, read_batch_search, read_retrieve, read_search

Query = tuple[str, int]
"""A query and how many passages it asks for."""

Found = list[Evidence] | ToolError
"""Passages, or why there are none: what refuses one query concerns no other of its batch."""

_FEW, _THREADS = 4, 8  # queries that are searched on the event loop, and threads for more


class Retrieval:
    """What a retrieval server answers: give `answers` to `application`.

    Args:
        index: what is searched. One that is `inline` gains nothing by batches: requests of few queries are searched
            on the event loop itself, others by several threads.
        top_k: passages for a request that names no number.
        limits: of what a request may ask for.
        metrics: where to count.
        batch: queries searched for at once; those of all requests are collected while a batch runs.
    """

    def __init__(
        self,
        index: Index,
        top_k: int = 3,
        limits: Limits | None = None,
        metrics: RetrievalMetrics | None = None,
        batch: int = 64,
    ) -> None:
        self.index, self.top_k = index, top_k
        self.limits, self.metrics = limits or Limits(), metrics or RetrievalMetrics()
        self.metrics.passages.add(len(index))
        self._quick = is_quick(index)
        batch, threads = (min(batch, _FEW), min(os.cpu_count() or 1, _THREADS)) if index.inline else (batch, 1)
        self._batcher: Batcher[Query, Found] = Batcher(self._search, batch, threads)

    @property
    def answers(self) -> dict[str, Answer]:
        """By path."""
        readers = {"/retrieve": read_retrieve, "/search": read_search, "/batch_search": read_batch_search}
        return {path: partial(self._answer, read) for path, read in readers.items()}

    def _answer(self, read: Callable[[bytes, Limits, int], Asked], body: bytes) -> Any:
        asked = read(body, self.limits, self.top_k)
        self.metrics.queries.add(len(asked.queries))
        wanted = [(query, asked.top_k) for query in asked.queries]
        if self._quick and len(wanted) <= _FEW:
            return _written(asked, self._search(wanted))

        async def batched() -> Any:
            return _written(asked, await asyncio.gather(*map(self._batcher.ask, wanted)))

        return batched()

    def _search(self, batch: Sequence[Query]) -> list[Found]:
        """Each different query once: rollouts of one question often ask the same."""
        found: dict[Query, Found] = {item: [] for item in batch if not item[0].strip()}
        wanted = dict.fromkeys(item for item in batch if item not in found)
        self.metrics.batches.observe(len(wanted))
        # an index takes one number of passages for all queries of a call
        for top_k in dict.fromkeys(top_k for _, top_k in wanted):
            queries = [query for query, number in wanted if number == top_k]
            results = found_by_each(self.index, top_k, queries)
            found.update({(query, top_k): items for query, items in zip(queries, results, strict=True)})
        return [found[item] for item in batch]


def _written(asked: Asked, found: Sequence[Found]) -> Any:
    results: list[list[Evidence]] = []
    for items in found:
        if isinstance(items, ToolError):
            raise items
        results.append(items)
    return asked.write(results)
