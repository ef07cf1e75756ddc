"""Find evidence that a search cannot have returned: evidence whose sentences stand nowhere in the
corpus.
"""

import re
from array import array
from dataclasses import dataclass
from functools import cache
from hashlib import blake2b
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from ..text import sentences, shortened
from ..tools.retrieval.corpus import Corpus, readable_passages
from ..trajectory import Evidence, Issue, Trajectory
from ..wire.files import replacing
from .workers import progress_bar

NOT_IN_CORPUS = "evidence_not_in_corpus"
KEPT = "corpus.npy"
_WORD = re.compile(r"\w+")
_CUT = re.compile(r"(\.\.\.|…)\s*\Z")


@dataclass(frozen=True)
class SearchedCorpus:
    """The sentences of a corpus, as sorted 64-bit hashes in the file `path`. Processes map the file
    into memory without copying it.
    """

    path: str

    @classmethod
    def of(cls, corpus: Corpus, folder: Path) -> "SearchedCorpus":
        """Read a corpus, as `tools.retrieval.corpus.passages` takes it, and write `corpus.npy` into
        the folder.
        """
        hashes = array("Q")
        for passage in progress_bar(
            iterable=readable_passages(corpus), desc="reading the corpus", unit="passage"
        ):
            hashes.extend(_hash(_words(sentence)) for sentence in sentences(passage.text))
        path = folder / KEPT
        with replacing(path) as partial, partial.open("wb") as file:
            np.save(file, np.unique(np.frombuffer(hashes, dtype=np.uint64)))
        _table.cache_clear()  # the file may have held another corpus
        return cls(str(path))

    def holds(self, evidence: Evidence) -> bool:
        """Whether at least half of the evidence's words are in sentences of the corpus. A last
        sentence that ends in "…" is left out.
        """
        texts = sentences(evidence.text)
        if texts and _CUT.search(texts[-1]):
            texts = texts[:-1]
        words = [words for words in map(_words, texts) if words]
        if not words:
            return True
        hashes = np.array([_hash(sentence) for sentence in words], dtype=np.uint64)
        lengths = np.array([len(sentence) for sentence in words])
        in_corpus = _stand_in(_table(self.path), hashes)
        return bool(2 * lengths[in_corpus].sum() >= lengths.sum())

    def without_invented(self, trajectory: Trajectory) -> Trajectory:
        """The trajectory with an `Issue` instead of each piece of evidence that the corpus does not
        hold. Citing such evidence is an error.
        """
        steps = []
        for step in trajectory.steps:
            issues = list(step.issues)
            evidence = []
            for passage in step.evidence:
                if self.holds(passage):
                    evidence.append(passage)
                    continue
                name = passage.id or "a passage"
                text = shortened(passage.text, 60)
                issues.append(
                    Issue(NOT_IN_CORPUS, f"{name} stands nowhere in the corpus: {text!r}")
                )
            steps.append(
                msgspec.structs.replace(step, evidence=tuple(evidence), issues=tuple(issues))
            )
        return msgspec.structs.replace(trajectory, steps=tuple(steps))


def _stand_in(
    table: npt.NDArray[np.uint64], hashes: npt.NDArray[np.uint64]
) -> npt.NDArray[np.bool_]:
    """Which of the hashes stand in the sorted table."""
    if not len(table):
        return np.zeros(len(hashes), dtype=np.bool_)
    places = np.searchsorted(table, hashes)
    nearest = table[np.minimum(places, len(table) - 1)]
    return np.equal(nearest, hashes)


@cache
def _table(path: str) -> npt.NDArray[Any]:
    return np.load(path, mmap_mode="r")


def _words(sentence: str) -> list[str]:
    return _WORD.findall(sentence.lower())


def _hash(words: list[str]) -> int:
    sentence = " ".join(words).encode("utf-8", "surrogatepass")
    return int.from_bytes(blake2b(sentence, digest_size=8).digest(), "little")
