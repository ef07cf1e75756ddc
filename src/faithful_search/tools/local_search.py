"""Search in a local corpus: by words (BM25) without network, key or server, or by any other index."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from ..errors import ConfigError, ToolError
from ..trajectory import Evidence
from .base import Tool
from .batcher import Batcher
from .retrieval.corpus import Corpus
from .retrieval.index import Index
from .retrieval.index_folder import open_index

_INLINE = 100_000
"""Passages up to which a search does not hold up an event loop."""


@dataclass(frozen=True)
class LocalSearch(Tool):
    """Search in the passages of an index.

    BM25 over up to a hundred thousand passages takes a millisecond a query or less and runs inline; with other and
    larger indexes, queries that arrive together are searched together, on a thread. Calls are not cached: they cost
    less than that.

    Args:
        index: any `Index`, such as `retrieval.open_folder` gives; or use `from_corpus`.

    Raises:
        ConfigError: for a `top_k` below 1.

    Example:
        >>> import asyncio
        >>> search = LocalSearch.from_corpus([{"id": "p1", "title": "Paris", "text": "The capital of France."}])
        >>> [found.source for found in asyncio.run(search.local_search("capital of France"))]
        ['p1']
    """

    index: Index
    name: str = "local_search"
    description: str = ""
    top_k: int = 3
    _batcher: Batcher[str, list[Evidence] | ToolError] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.top_k < 1:
            raise ConfigError(f"top_k must be at least 1, got {self.top_k}")
        object.__setattr__(self, "_batcher", Batcher(partial(found_by_each, self.index, self.top_k)))

    @classmethod
    def from_corpus(cls, corpus: Corpus, cache_dir: str | os.PathLike[str] | None = None, **about: Any) -> LocalSearch:
        """Index `corpus` by BM25, or reopen its cached index.

        Args:
            corpus: `"world"`, a `.jsonl[.gz]` or `.parquet` file, a folder of such, a Hub dataset
                (`owner/name[:split]`), or rows `id`, `title`, `text`. `opening.open_search` takes indexes, servers and
                engines, too.
            cache_dir: where the index is kept; by default `FAITHFUL_SEARCH_CACHE` or `~/.cache/faithful_search`.
            about: `name`, `description`, `top_k`.

        Raises:
            DataError: an unreadable or empty corpus, or a row without text, naming it. `faithful-search index` leaves
                such rows out instead, and says which.
        """
        return cls(open_index(corpus, cache_dir), **about)

    async def local_search(self, query: str) -> list[Evidence]:
        """Search a local collection of documents and return the passages that match best.

        Args:
            query: The words to search for.
        """
        # a thread costs more than such a search
        if is_quick(self.index):
            return self.index.search(query, self.top_k)
        found = await self._batcher.ask(query)
        if isinstance(found, ToolError):
            raise found
        return found


def is_quick(index: Index) -> bool:
    """Whether a search does not hold up the event loop that it runs on."""
    return index.inline and len(index) <= _INLINE


def found_by_each(index: Index, top_k: int, queries: Sequence[str]) -> list[list[Evidence] | ToolError]:
    """What is found for each query; of a batch that is refused each query is asked alone, so that one alone fails."""
    try:
        return [*index.search_batch(queries, top_k)]
    except ToolError as error:
        # an engine that is down for the moment is not asked once more for every query
        if error.passing or len(queries) == 1:
            return [error] * len(queries)
    return [found for query in queries for found in found_by_each(index, top_k, [query])]
