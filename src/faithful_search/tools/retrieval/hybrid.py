"""Several indexes of one corpus as one, by reciprocal rank fusion: only ranks count, scores need no common scale."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from ...errors import ConfigError
from ...trajectory import Evidence
from .index import Index

_K = 60  # the greater, the less the first ranks stand out
_DEPTH = 50  # passages asked of each part at least


@dataclass(frozen=True)
class HybridIndex(Index):
    """What several indexes find, fused: usually BM25, which knows names and numbers, and dense, which knows meanings.

    ```
    score(p) = sum over the parts that found p of 1 / (60 + rank of p there), ranks from 1
    ```

    (Cormack, Clarke and Büttcher, 2009.) Of equal scores the one that the first part found first comes first. Passages
    are the same when their `source` and text are.

    Args:
        parts: the indexes, of the same corpus.

    Example:
        >>> class Fixed(Index):
        ...     def __init__(self, *found): self.found = [Evidence(text=text, source=text) for text in found]
        ...     def search_batch(self, queries, top_k): return [self.found[:top_k] for _ in queries]
        ...     def __len__(self): return 3
        >>> hybrid = HybridIndex((Fixed("a", "b"), Fixed("c", "b")))
        >>> [(found.source, found.score) for found in hybrid.search("?", 2)]
        [('b', 0.032258), ('a', 0.016393)]
    """

    parts: tuple[Index, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "parts", tuple(self.parts))
        if not self.parts:
            raise ConfigError("a hybrid index needs parts, such as (bm25, dense)")

    def search_batch(self, queries: Sequence[str], top_k: int) -> list[list[Evidence]]:
        """The best passages for each query with fused scores. Raises `ToolError` when one of the parts fails."""
        # deeper than what is shown: what both parts find late may beat what one finds early
        found = [part.search_batch(queries, max(top_k, _DEPTH)) for part in self.parts]
        fused = []
        for rankings in zip(*found, strict=True):
            passages: dict[tuple[str, str], Evidence] = {}
            shares: dict[tuple[str, str], list[float]] = {}
            for ranking in rankings:
                # what a part names twice counts where it named it first
                for rank, key in enumerate(dict.fromkeys((each.source, each.text) for each in ranking), start=1):
                    shares.setdefault(key, []).append(1 / (_K + rank))
                for passage in ranking:
                    passages.setdefault((passage.source, passage.text), passage)
            scores = {key: round(math.fsum(parts), 12) for key, parts in shares.items()}  # so that equal sums tie
            best = sorted(scores, key=scores.__getitem__, reverse=True)[:top_k]
            fused.append([msgspec.structs.replace(passages[key], score=round(scores[key], 6)) for key in best])
        return fused

    def __len__(self) -> int:
        return max(len(part) for part in self.parts)
