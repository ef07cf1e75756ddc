"""BM25 over passages: built in batches, kept on disk, memory-mapped; only what can be among the best is scored."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import msgspec
import numpy as np

from ...trajectory import Evidence
from ..words import words
from .bm25_build import INFO, VOCABULARY, build
from .index import Index
from .passages import Passages, Progress, silent

_ARRAYS = ("data", "indices", "indptr", "maxima")
_SMALL, _BLOCK = 20_000, 256


class BM25Index(Index):
    """Passages and their BM25 scores (Lucene's form, k1 = 1.5, b = 0.75), from the folder that `build` wrote.

    `data`, `indices`, `indptr` are the columns of the sparse matrix passage x word, `maxima` the greatest value of each
    column. They stay on disk, mapped. Pickles as its folder's name.

    Args:
        folder: of the arrays.
        passages: the store that it was built from.

    Raises:
        OSError, ValueError: when the folder is damaged, or belongs to other passages.
    """

    inline = True

    def __init__(self, folder: Path, passages: Passages) -> None:
        self.folder, self.passages = folder, passages
        info = msgspec.json.decode((folder / INFO).read_bytes())
        found = (folder / VOCABULARY).read_text(encoding="utf-8").split("\n")[:-1]
        self.vocabulary = {word: number for number, word in enumerate(found)}
        self.data, self.indices, self.indptr, self.maxima = (_mapped(folder / f"{name}.npy") for name in _ARRAYS)
        columns = len(self.vocabulary)
        if not (info["passages"] == len(passages) and self.indptr.shape == (columns + 1,) == (len(self.maxima) + 1,)):
            raise ValueError("its parts do not fit each other")
        if not self.indptr[-1] == len(self.data) == len(self.indices):
            raise ValueError("its postings are not as written")
        self._scratch = threading.local()

    @classmethod
    def build(cls, folder: Path, passages: Passages, *, progress: Progress = silent) -> None:
        """See `bm25_build.build`."""
        build(folder, passages, progress)

    def __len__(self) -> int:
        return len(self.passages)

    def __reduce__(self) -> tuple[type[BM25Index], tuple[Path, Passages]]:
        return BM25Index, (self.folder, self.passages)

    def search_batch(self, queries: Sequence[str], top_k: int) -> list[list[Evidence]]:
        """The best passages that share a word with each query, best first; of equals the one earlier in the corpus."""
        return [self.search(query, top_k) for query in queries]

    def search(self, query: str, top_k: int) -> list[Evidence]:
        """The same for one query."""
        numbers, scores = self.best(query, top_k)
        return [
            msgspec.structs.replace(self.passages.get(number), score=round(score, 4))
            for number, score in zip(numbers.tolist(), scores.tolist(), strict=True)
        ]

    def best(self, query: str, top_k: int) -> tuple[np.ndarray, np.ndarray]:
        """Numbers of the best passages and their scores, best first; shapes `(n,)`, n at most `top_k`."""
        columns = self._columns(query)
        if len(self) <= _SMALL:
            scores = self._scores(columns)
            numbers = np.flatnonzero(scores > 0)
            scores = scores[numbers]
        else:
            numbers = self._candidates(columns, top_k)
            scores = self._scores_of(columns, numbers)
        if len(numbers) > top_k:
            kept = scores >= _kth(scores, top_k)
            numbers, scores = numbers[kept], scores[kept]
        order = np.argsort(-scores, kind="stable")[:top_k]
        return numbers[order], scores[order]

    def scores(self, query: str) -> np.ndarray:
        """BM25 of every passage; shape (passages,), float32. A word said twice counts twice."""
        return self._scores(self._columns(query))

    def _columns(self, query: str) -> list[int]:
        found = map(self.vocabulary.get, words(query))
        return [column for column in found if column is not None]

    def _column(self, column: int) -> tuple[np.ndarray, np.ndarray]:
        start, end = self.indptr[column : column + 2].tolist()
        return self.indices[start:end], self.data[start:end]

    def _scores(self, columns: list[int]) -> np.ndarray:
        scores = np.zeros(len(self), dtype=np.float32)
        for column in columns:
            numbers, values = self._column(column)
            scores[numbers] += values
        return scores

    def _scores_of(self, columns: list[int], numbers: np.ndarray) -> np.ndarray:
        """What `scores` says of these passages, added in the same order."""
        scores = np.zeros(len(numbers), dtype=np.float32)
        for column in columns:
            scores += self._values(column, numbers)
        return scores

    def _values(self, column: int, numbers: np.ndarray) -> np.ndarray:
        """The column's values for these passages, 0 where the word does not occur."""
        rows, values = self._column(column)
        places = np.minimum(rows.searchsorted(numbers), len(rows) - 1)
        return np.where(rows[places] == numbers, values[places], np.float32(0))

    def _candidates(self, columns: list[int], top_k: int) -> np.ndarray:
        """Passages of which the best `top_k` are some, in corpus order.

        Words are taken by what they can add at most, the greatest first (MaxScore). As soon as all others together add
        less than the `top_k`-th best has, no passage without one of the words taken can come in any more: the long
        lists of common words are then only looked up for the passages found.
        """
        said = Counter(columns)
        order = sorted(said, key=lambda column: -said[column] * float(self.maxima[column]))
        rest = np.cumsum([0.0, *(said[column] * float(self.maxima[column]) for column in reversed(order))])[::-1]
        slack = 1 - 1e-6 * (len(columns) + 1)  # sums in another order differ by less
        numbers, scores, taken, least = self._gather(order, said, rest, slack, top_k)
        for place in range(taken, len(order)):
            kept = scores + rest[place] >= least
            numbers, scores = numbers[kept], scores[kept]
            scores = scores + said[order[place]] * self._values(order[place], numbers)
            least = max(least, _at_least(scores, top_k) * slack)
        return np.sort(numbers[scores >= least])

    def _gather(
        self, order: list[int], said: Counter[int], rest: np.ndarray, slack: float, top_k: int
    ) -> tuple[np.ndarray, np.ndarray, int, float]:
        """All passages with one of the first words, as many words as are needed; see `_candidates`."""
        sums = self._zeros()
        found: list[np.ndarray] = [np.zeros(0, dtype=np.int32)]
        taken, least = 0, 0.0
        try:
            while taken < len(order) and rest[taken] >= least:
                rows, values = self._column(order[taken])
                before = sums[rows]
                after = before + said[order[taken]] * values
                found.append(rows[before == 0])
                sums[rows] = after
                least = max(least, _at_least(after, top_k) * slack)
                taken += 1
            numbers = np.concatenate(found)
            return numbers, sums[numbers], taken, least
        finally:
            for rows in found:
                sums[rows] = 0

    def _zeros(self) -> np.ndarray:
        """This thread's sums, all 0 between two searches: a new array for each query would cost more."""
        if not hasattr(self._scratch, "sums"):
            self._scratch.sums = np.zeros(len(self), dtype=np.float32)
        sums: np.ndarray = self._scratch.sums
        return sums


def _kth(scores: np.ndarray, k: int) -> float:
    """The k-th greatest, 0 where there are fewer."""
    return float(np.partition(scores, -k)[-k]) if len(scores) >= k else 0.0


def _at_least(scores: np.ndarray, k: int) -> float:
    """What the k-th greatest is at least: that of the greatest of each block, which is found much sooner."""
    blocks = len(scores) // _BLOCK
    if blocks < 4 * k:
        return _kth(scores, k)
    return _kth(scores[: blocks * _BLOCK].reshape(blocks, _BLOCK).max(axis=1), k)


def _mapped(path: Path) -> np.ndarray:
    return np.asarray(np.load(path, mmap_mode="r"))  # as a plain array: slicing a memmap is slow
