"""Search in a local corpus with BM25: no network, no key, no server."""

from __future__ import annotations

import os
from dataclasses import dataclass

from ..trajectory import Evidence
from .base import Tool
from .bm25 import BM25Index, Corpus, open_index


@dataclass(frozen=True)
class LocalSearch(Tool):
    """BM25 over the titles and texts of a corpus. A query takes well under a millisecond, so it runs inline.

    Args:
        index: from `open_index`, or use `from_corpus`.
        name: what the policy calls it; two corpora are two tools of different names.
        description: what the policy is told; empty for the default.
        top_k: passages a query returns at most.

    Example:
        >>> import asyncio
        >>> search = LocalSearch.from_corpus([{"id": "p1", "title": "Paris", "text": "The capital of France."}])
        >>> [found.source for found in asyncio.run(search.local_search("capital of France"))]
        ['p1']
    """

    index: BM25Index
    name: str = "local_search"
    description: str = ""
    top_k: int = 3

    @classmethod
    def from_corpus(
        cls,
        corpus: Corpus,
        cache_dir: str | os.PathLike[str] | None = None,
        top_k: int = 3,
        name: str = "local_search",
        description: str = "",
    ) -> LocalSearch:
        """Index `corpus` (`"world"`, a `.jsonl[.gz]` file, or rows `id`, `title`, `text`), or reopen its cached index.

        Raises:
            DataError: an unreadable or empty corpus, or a row without text, naming it.
        """
        return cls(open_index(corpus, cache_dir), name=name, description=description, top_k=top_k)

    async def local_search(self, query: str) -> list[Evidence]:
        """Search a local collection of documents and return the passages that match best.

        Args:
            query: The words to search for.
        """
        return self.index.search(query, self.top_k)
