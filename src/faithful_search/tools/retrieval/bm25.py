"""BM25 by bm25s: an index of passages, built in memory and mapped from disk; and the ranking of a
few texts.
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
# The scores as a sparse matrix of words and passages (CSC): `indptr` says where the passages
# (`indices`) and scores (`data`) of each word begin.
_ARRAYS = ("data", "indices", "indptr")
_MANY = 20_000
"""In so many passages numba adds scores, which is worth a second of compiling, and a build shows
its progress.
"""


class BM25Index(Index):
    """Passages and their BM25 scores (Lucene's form, k1 = 1.5, b = 0.75), from the folder that
    `build` wrote.

    Raises:
        OSError, ValueError: the folder is damaged, or belongs to other passages.
    """

    inline = True

    def __init__(self, folder: Path, passages: Passages) -> None:
        import bm25s  # here, since most who import this module search elsewhere

        self.folder = folder
        self.passages = passages
        vocabulary = (folder / VOCABULARY).read_text(encoding="utf-8").split("\n")[:-1]
        self.model = bm25s.BM25()
        if bm25s.NUMBA_AVAILABLE and len(passages) > _MANY:
            self.model.activate_numba_scorer()
        self.model.vocab_dict = {word: column for column, word in enumerate(vocabulary)}
        self.model.nonoccurrence_array = None  # only other forms of BM25 have one
        files = [f"{name}.npy" for name in _ARRAYS]
        self.model.load_scores(folder, *files, num_docs=len(passages), mmap=True)
        # Plain arrays over the same maps: slicing a memmap is slow, and numba does not know it.
        data, indices, indptr = [np.asarray(self.model.scores[name]) for name in _ARRAYS]
        fits_vocabulary = len(indptr) == len(vocabulary) + 1
        if not fits_vocabulary or not (indptr[-1] == len(data) == len(indices)):
            raise ValueError("its parts do not fit each other")
        self.model.scores |= {"data": data, "indices": indices, "indptr": indptr}

    @classmethod
    def build(cls, folder: Path, passages: Passages) -> None:
        """Write the index of `passages` into `folder`, unless it is there already. All postings are
        held in memory.
        """
        if (folder / VOCABULARY).exists():  # it is written last
            return
        import bm25s

        # Words are numbered in the order of the corpus: the same passages give the same files.
        vocabulary: dict[str, int] = {}
        passages_as_numbers: list[array[int]] = []  # lists would take several times the memory
        with progress("counting words", len(passages)) as bar:
            for batch in passages.batches():
                for passage in batch:
                    numbers = []
                    for word in words(f"{passage.title} {passage.text}"):
                        numbers.append(vocabulary.setdefault(word, len(vocabulary)))
                    passages_as_numbers.append(array("i", numbers))
                bar.update(len(batch))
        model = bm25s.BM25()
        show_progress = len(passages) > _MANY and sys.stderr.isatty()
        with np.errstate(invalid="ignore"):  # 0 / 0 for the mean length, where there are no words
            model.index(
                (passages_as_numbers, vocabulary),
                create_empty_token=False,
                show_progress=show_progress,
            )
        folder.mkdir(exist_ok=True)
        for name in _ARRAYS:
            scores = model.scores[name]
            # Not by `np.save`, which does not raise when the disk is full at the last bytes.
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
        # The words that some passage has; one that the query has twice counts twice.
        word_numbers = self.model.get_tokens_ids(words(query))
        if not word_numbers:
            return []
        scores = self.model.get_scores_from_ids(word_numbers)  # of all passages
        # bm25s' own selection returns equals in any order, and passages without a word of the
        # query. Here: all that are at least as good as the top_k-th, best first, of equals the
        # earlier.
        least_score = 0.0
        if len(scores) > top_k:
            least_score = np.partition(scores, -top_k)[-top_k]
        is_candidate = scores >= least_score if least_score > 0 else scores
        candidates = np.flatnonzero(is_candidate)
        best_first = np.argsort(-scores[candidates], kind="stable")
        best = candidates[best_first][:top_k]
        return list(map(self.passages.get, best.tolist(), scores[best].tolist()))


def rank(query: str, texts: Sequence[str]) -> list[tuple[int, float]]:
    """The places of the texts that share a word with the query, each with its score, best first; of
    equals the earlier.

    Function words of the query count only when it has no others: among the paragraphs of one page
    "the" would decide, as it does not in a corpus.

    Example:
        >>> [place for place, score in rank("the height of the tower", ["Opening hours", "Its height is 324 m"])]
        [1]
    """
    query_words = list(dict.fromkeys(words(query)))
    content_words = [word for word in query_words if word not in FUNCTION_WORDS]
    # All other words of a text count for its length only, and are one word with the number 0.
    vocabulary = {"": 0}
    for number, word in enumerate(content_words or query_words, start=1):
        vocabulary[word] = number
    texts_as_numbers = []
    for text in texts:
        texts_as_numbers.append([vocabulary.get(word, 0) for word in words(text)])
    if not any(any(numbers) for numbers in texts_as_numbers):
        return []
    import bm25s

    model = bm25s.BM25(k1=1.5, b=0.75, method="lucene", backend="numpy")
    model.index((texts_as_numbers, vocabulary), show_progress=False)
    query_numbers = list(range(1, len(vocabulary)))
    scores = np.asarray(model.get_scores_from_ids(query_numbers))
    ranking = []
    for place in np.argsort(-scores, kind="stable"):
        if scores[place] > 0:
            ranking.append((int(place), round(float(scores[place]), 4)))
    return ranking
