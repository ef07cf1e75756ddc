"""BM25 over passages by bm25s: built in memory, kept on disk and mapped from there."""

from __future__ import annotations

import sys
from array import array
from collections.abc import Sequence
from pathlib import Path

import msgspec
import numpy as np

from ...trajectory import Evidence
from ..words import words
from .index import Index
from .passages import Passages, Progress, silent, write_whole

VOCABULARY = "vocabulary.txt"
_ARRAYS = ("data", "indices", "indptr")
_COMPILED = 20_000
"""Passages from which on it is worth a second of compiling to add scores by numba."""


class BM25Index(Index):
    """Passages and their BM25 scores (Lucene's form, k1 = 1.5, b = 0.75), from the folder that `build` wrote.

    bm25s looks up and adds the scores of a query's words, with numba where it is installed. Pickles as its folder's
    name.

    Args:
        folder: of the arrays.
        passages: the store that it was built from.

    Raises:
        OSError, ValueError: when the folder is damaged, or belongs to other passages.
    """

    inline = True

    def __init__(self, folder: Path, passages: Passages) -> None:
        import bm25s  # here, since most who import this module search elsewhere

        self.folder, self.passages = folder, passages
        found = (folder / VOCABULARY).read_text(encoding="utf-8").split("\n")[:-1]
        self.model = bm25s.BM25()
        if bm25s.NUMBA_AVAILABLE and len(passages) > _COMPILED:
            self.model.activate_numba_scorer()
        self.model.vocab_dict = {word: column for column, word in enumerate(found)}
        self.model.nonoccurrence_array = None
        self.model.load_scores(folder, *(f"{name}.npy" for name in _ARRAYS), num_docs=len(passages), mmap=True)
        # plain arrays over the same maps: slicing a memmap is slow, and numba does not know it
        data, indices, indptr = (np.asarray(self.model.scores[name]) for name in _ARRAYS)
        if len(indptr) != len(found) + 1 or not indptr[-1] == len(data) == len(indices):
            raise ValueError("its parts do not fit each other")
        self.model.scores |= {"data": data, "indices": indices, "indptr": indptr}

    @classmethod
    def build(cls, folder: Path, passages: Passages, *, progress: Progress = silent) -> None:
        """Write the index of `passages` into `folder`, unless it is there already.

        Until it is written, bm25s holds all postings in memory: about 2.5 kB for a passage of 60 words.
        """
        if (folder / VOCABULARY).exists():  # written last
            return
        import bm25s

        # numbers in the order of the corpus: the same passages give the same files
        vocabulary: dict[str, int] = {}
        columns = []  # arrays, since lists of numbers would take many times their place
        with progress(desc="counting words", unit=" passages", total=len(passages)) as bar:
            for batch in passages.batches():
                texts = (f"{item.title} {item.text}" for item in batch)
                columns += [array("i", [vocabulary.setdefault(w, len(vocabulary)) for w in words(t)]) for t in texts]
                bar.update(len(batch))
        model = bm25s.BM25()
        shown = progress is not silent and sys.stderr.isatty()
        with np.errstate(invalid="ignore"):  # where no passage has a word their mean length is 0
            model.index((columns, vocabulary), create_empty_token=False, show_progress=shown)
        folder.mkdir(exist_ok=True)
        for name in _ARRAYS:
            _save(folder / f"{name}.npy", model.scores[name])
        write_whole(folder / VOCABULARY, "".join(f"{word}\n" for word in vocabulary).encode())

    def __len__(self) -> int:
        return len(self.passages)

    def __reduce__(self) -> tuple[type[BM25Index], tuple[Path, Passages]]:
        return BM25Index, (self.folder, self.passages)

    def search_batch(self, queries: Sequence[str], top_k: int) -> list[list[Evidence]]:
        """The best passages that share a word with each query, best first; of equals the one earlier in the corpus."""
        return [self.search(query, top_k) for query in queries]

    def search(self, query: str, top_k: int) -> list[Evidence]:
        """The same for one query."""
        scores = self.scores(query)
        # not by bm25s' own selection, which returns equals in any order, and passages without a word of the query
        least = np.partition(scores, -top_k)[-top_k] if len(scores) > top_k else 0.0
        found = np.flatnonzero(scores >= least) if least > 0 else np.flatnonzero(scores)
        best = found[np.argsort(-scores[found], kind="stable")][:top_k]
        return [
            msgspec.structs.replace(self.passages.get(number), score=round(score, 4))
            for number, score in zip(best.tolist(), scores[best].tolist(), strict=True)
        ]

    def scores(self, query: str) -> np.ndarray:
        """BM25 of every passage; shape (passages,), float32. A word said twice counts twice."""
        columns = self.model.get_tokens_ids(words(query))
        return self.model.get_scores_from_ids(columns) if columns else np.zeros(len(self), dtype=np.float32)


def _save(path: Path, array: np.ndarray) -> None:
    """What `np.save` does, which says nothing when the disk is full at the last bytes."""
    with path.open("wb") as file:
        np.lib.format.write_array_header_1_0(file, np.lib.format.header_data_from_array_1_0(array))
        file.write(array.data)
