"""BM25 by bm25s: over passages, built in memory, kept on disk and mapped from there; and over a few
texts.
"""

import sys
from array import array
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from ...text import FUNCTION_WORDS
from ...trajectory import Evidence
from ..words import words
from .index import Index, Passages, progress, write_whole

VOCABULARY = "vocabulary.txt"
_ARRAYS = ("data", "indices", "indptr")
_MANY = 20_000
"""Passages from which on it is worth a second of compiling to add scores by numba, and a build
shows its progress.
"""


class BM25Index(Index):
    """Passages and their BM25 scores (Lucene's form, k1 = 1.5, b = 0.75), from the folder that
    `build` wrote. Raises `OSError` or `ValueError` when the folder is damaged, or belongs to other
    passages.
    """

    inline = True

    def __init__(self, folder: Path, passages: Passages) -> None:
        import bm25s  # here, since most who import this module search elsewhere

        self.folder, self.passages = folder, passages
        vocabulary = (folder / VOCABULARY).read_text(encoding="utf-8").split("\n")[:-1]
        self.model = bm25s.BM25()
        if bm25s.NUMBA_AVAILABLE and len(passages) > _MANY:
            self.model.activate_numba_scorer()
        self.model.vocab_dict = {word: column for column, word in enumerate(vocabulary)}
        self.model.nonoccurrence_array = None
        self.model.load_scores(
            folder, *(f"{name}.npy" for name in _ARRAYS), num_docs=len(passages), mmap=True
        )
        # plain arrays over the same maps: slicing a memmap is slow, and numba does not know it
        data, indices, indptr = (np.asarray(self.model.scores[name]) for name in _ARRAYS)
        if len(indptr) != len(vocabulary) + 1 or not indptr[-1] == len(data) == len(indices):
            raise ValueError("its parts do not fit each other")
        self.model.scores |= {"data": data, "indices": indices, "indptr": indptr}

    @classmethod
    def build(cls, folder: Path, passages: Passages) -> None:
        """Write the index of `passages` into `folder`, unless it is there already; holds all
        postings in memory.
        """
        if (folder / VOCABULARY).exists():  # written last
            return
        import bm25s

        # numbers in the order of the corpus: the same passages give the same files
        vocabulary: dict[str, int] = {}
        columns = []  # arrays, since lists of numbers would take several times the memory
        with progress("counting words", len(passages)) as bar:
            for batch in passages.batches():
                texts = (f"{passage.title} {passage.text}" for passage in batch)
                columns += [
                    array("i", [vocabulary.setdefault(w, len(vocabulary)) for w in words(t)])
                    for t in texts
                ]
                bar.update(len(batch))
        model = bm25s.BM25()
        progress_shown = len(passages) > _MANY and sys.stderr.isatty()
        with np.errstate(invalid="ignore"):  # where no passage has a word their mean length is 0
            model.index(
                (columns, vocabulary), create_empty_token=False, show_progress=progress_shown
            )
        folder.mkdir(exist_ok=True)
        for name in _ARRAYS:
            scores = model.scores[name]
            # `np.save` does not raise when the disk is full at the last bytes
            with (folder / f"{name}.npy").open("wb") as file:
                np.lib.format.write_array_header_1_0(
                    file, np.lib.format.header_data_from_array_1_0(scores)
                )
                file.write(scores.data)
        write_whole(folder / VOCABULARY, "".join(f"{word}\n" for word in vocabulary).encode())

    def __len__(self) -> int:
        return len(self.passages)

    def __reduce__(self) -> "tuple[type[BM25Index], tuple[Path, Passages]]":
        return BM25Index, (self.folder, self.passages)

    def search_batch(self, queries: Sequence[str], top_k: int) -> list[list[Evidence]]:
        return [self.search(query, top_k) for query in queries]

    def search(self, query: str, top_k: int) -> list[Evidence]:
        columns = self.model.get_tokens_ids(words(query))  # a word said twice counts twice
        if not columns:
            return []
        scores = self.model.get_scores_from_ids(columns)
        # not by bm25s' own selection, which returns equals in any order, and passages without a
        # word of the query
        least = np.partition(scores, -top_k)[-top_k] if len(scores) > top_k else 0.0
        candidates = np.flatnonzero(scores >= least) if least > 0 else np.flatnonzero(scores)
        best = candidates[np.argsort(-scores[candidates], kind="stable")][:top_k]
        return [*map(self.passages.get, best.tolist(), scores[best].tolist())]


def rank(query: str, texts: Sequence[str]) -> list[tuple[int, float]]:
    """The places of the texts that share a word with the query, and their scores, best first; of
    equals the earlier.

    Function words of the query count only when it has no others.

    Example:
        >>> [place for place, score in rank("the height of the tower", ["Opening hours", "Its height is 324 m"])]
        [1]
    """
    query_words = list(dict.fromkeys(words(query)))
    # among a page's own paragraphs "the" would decide, which in a corpus it does not
    query_words = [word for word in query_words if word not in FUNCTION_WORDS] or query_words
    # words that are not asked for count for a text's length only, so they are all one word
    vocabulary = {word: number for number, word in enumerate(["", *query_words])}
    tokens = [[vocabulary.get(word, 0) for word in words(text)] for text in texts]
    if not any(map(any, tokens)):
        return []
    import bm25s

    model = bm25s.BM25(k1=1.5, b=0.75, method="lucene", backend="numpy")
    model.index((tokens, vocabulary), show_progress=False)
    scores = np.asarray(model.get_scores_from_ids(list(range(1, len(vocabulary)))))
    best = np.argsort(-scores, kind="stable")
    return [(int(place), round(float(scores[place]), 4)) for place in best if scores[place] > 0]
