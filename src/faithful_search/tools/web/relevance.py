"""Which of some texts have to do with a query: BM25 over these texts alone."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ...text import FUNCTION_WORDS
from ..words import words

_OTHER = 0
_K1, _B = 1.5, 0.75


def rank(query: str, texts: Sequence[str]) -> list[tuple[int, float]]:
    """The places of the texts that share a word with the query, and their scores, best first; of equals the earlier.

    BM25 in Lucene's form, k1 = 1.5, b = 0.75. Function words of the query count only when it has no others.

    Example:
        >>> [place for place, score in rank("the height of the tower", ["Opening hours", "Its height is 324 m"])]
        [1]
    """
    asked = list(dict.fromkeys(words(query)))
    # among a page's own paragraphs "the" would decide, which in a corpus it does not
    asked = [word for word in asked if word not in FUNCTION_WORDS] or asked
    if not asked or not texts:
        return []
    scores = _scores(asked, texts)
    best = np.argsort(-scores, kind="stable")
    return [(int(place), round(float(scores[place]), 4)) for place in best if scores[place] > 0]


def _scores(asked: Sequence[str], texts: Sequence[str]) -> np.ndarray:
    """Shape (texts,). Words not asked for count for a text's length only, so they are all one word."""
    import bm25s

    vocabulary = {word: number for number, word in enumerate(asked, start=_OTHER + 1)}
    tokens = [[vocabulary.get(word, _OTHER) for word in words(text)] for text in texts]
    if not any(map(any, tokens)):
        return np.zeros(len(texts), dtype=np.float32)
    model = bm25s.BM25(k1=_K1, b=_B, method="lucene", backend="numpy")
    model.index((tokens, {"": _OTHER, **vocabulary}), show_progress=False)
    return np.asarray(model.get_scores_from_ids(list(vocabulary.values())))
