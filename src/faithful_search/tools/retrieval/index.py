"""What can be searched: passages behind one interface; and several ways to search as one."""

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import msgspec

from ...errors import ConfigError, ToolError
from ...trajectory import Evidence

MOST_INLINE = 100_000
"""Passages up to which an index that is `inline` is searched on the event loop."""
_K = 60  # the greater, the less the first ranks stand out
_DEPTH = 50  # passages asked of each part at least


class Index(ABC):
    """Passages that can be searched, many queries at once.

    `inline` says whether a search takes well under a millisecond, so that it may run on an event loop. Searches of
    other indexes are collected to batches and run on a thread.
    """

    inline: ClassVar[bool] = False

    @abstractmethod
    def search_batch(self, queries: Sequence[str], top_k: int) -> list[list[Evidence]]:
        """The best passages for each query, best first, with `score` and the corpus's id as `source`. Thread-safe.
        Raises `ToolError` when an engine elsewhere does not answer as it should."""

    def search(self, query: str, top_k: int) -> list[Evidence]:
        """The best passages for one query."""
        return self.search_batch([query], top_k)[0]

    def search_each(self, queries: Sequence[str], top_k: int) -> list[list[Evidence] | ToolError]:
        """What is found for each query, or why nothing is; of a batch that is refused each is asked alone, so that one
        alone fails."""
        try:
            return [*self.search_batch(queries, top_k)]
        except ToolError as error:
            # an engine that is down for the moment is not asked once more for every query
            if error.passing or len(queries) == 1:
                return [error] * len(queries)
        return [found for query in queries for found in self.search_each([query], top_k)]

    @property
    def quick(self) -> bool:
        """Whether a search does not hold up the event loop that it runs on."""
        return self.inline and len(self) <= MOST_INLINE

    @abstractmethod
    def __len__(self) -> int:
        """How many passages there are."""


@dataclass(frozen=True)
class HybridIndex(Index):
    """What several indexes of one corpus find, usually BM25 and dense, by reciprocal rank fusion: only ranks count.

    ```
    score(p) = sum over the parts that found p of 1 / (60 + rank of p there), ranks from 1
    ```

    (Cormack, Clarke and Büttcher, 2009.) Of equal scores the one that the first part found first comes first. Passages
    are the same when their `source` and text are.
    """

    parts: tuple[Index, ...]

    def __post_init__(self) -> None:
        if not self.parts:
            raise ConfigError("a hybrid index needs parts, such as (bm25, dense)")

    def search_batch(self, queries: Sequence[str], top_k: int) -> list[list[Evidence]]:
        # deeper than what is shown: what both parts find late may beat what one finds early
        found = [part.search_batch(queries, max(top_k, _DEPTH)) for part in self.parts]
        return [_fused(rankings, top_k) for rankings in zip(*found, strict=True)]

    def __len__(self) -> int:
        return max(len(part) for part in self.parts)


def _fused(rankings: Sequence[list[Evidence]], top_k: int) -> list[Evidence]:
    passages: dict[tuple[str, str], Evidence] = {}
    shares: dict[tuple[str, str], list[float]] = {}
    for ranking in rankings:
        own: dict[tuple[str, str], Evidence] = {}
        for passage in ranking:
            own.setdefault((passage.source, passage.text), passage)  # what a part names twice counts only once
        for rank, key in enumerate(own, start=1):
            shares.setdefault(key, []).append(1 / (_K + rank))
        passages = own | passages
    scores = {key: round(math.fsum(parts), 12) for key, parts in shares.items()}  # so that equal sums tie
    best = sorted(scores, key=scores.__getitem__, reverse=True)[:top_k]
    return [msgspec.structs.replace(passages[key], score=round(scores[key], 6)) for key in best]
