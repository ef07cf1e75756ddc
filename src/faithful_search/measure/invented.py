"""Evidence that the search cannot have returned: its sentences stand nowhere in the corpus that was searched."""

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
from ..tools.retrieval.corpus import Corpus, passages
from ..trajectory import Evidence, Issue, Trajectory
from ..wire.files import replacing
from .workers import progress_bar

NOT_IN_CORPUS = "evidence_not_in_corpus"
KEPT = "corpus.npy"
_WORD = re.compile(r"\w+")
_CUT = re.compile(r"(\.\.\.|…)\s*\Z")


@dataclass(frozen=True)
class SearchedCorpus:
    """The sentences of a corpus: sorted 64-bit hashes in the file `path`, which every process maps and none copies."""

    path: str

    @classmethod
    def of(cls, corpus: Corpus, folder: Path) -> "SearchedCorpus":
        """Read a corpus (see `tools.retrieval.corpus.passages`) once; `corpus.npy` is written into the folder."""
        hashes = array("Q")
        for passage in progress_bar(
            iterable=passages(corpus), desc="reading the corpus", unit="passage"
        ):
            hashes.extend(_hash(_words(sentence)) for sentence in sentences(passage.text))
        path = folder / KEPT
        with replacing(path) as partial, partial.open("wb") as file:
            np.save(file, np.unique(np.frombuffer(hashes, dtype=np.uint64)))
        _table.cache_clear()  # the file may have been another corpus's
        return cls(str(path))

    def holds(self, evidence: Evidence) -> bool:
        """Whether at least half of its words stand in sentences of the corpus; a last one cut by "…" is left out."""
        said = sentences(evidence.text)
        whole = said[:-1] if said and _CUT.search(said[-1]) else said
        words = [found for found in map(_words, whole) if found]
        table, hashes = (
            _table(self.path),
            np.array([_hash(found) for found in words], dtype=np.uint64),
        )
        known = table[np.minimum(np.searchsorted(table, hashes), max(0, len(table) - 1))] == hashes
        lengths = np.array([len(found) for found in words])
        return not words or bool(lengths[known].sum() * 2 >= lengths.sum())

    def without_invented(self, trajectory: Trajectory) -> Trajectory:
        """The trajectory with an `Issue` in place of evidence that the corpus does not hold; citing it is an error."""
        steps = []
        for step in trajectory.steps:
            invented = [item for item in step.evidence if not self.holds(item)]
            told = (
                f"{item.id or 'a passage'} stands nowhere in the corpus: {shortened(item.text, 60)!r}"
                for item in invented
            )
            issues = (*step.issues, *(Issue(NOT_IN_CORPUS, why) for why in told))
            kept = tuple(item for item in step.evidence if item not in invented)
            steps.append(msgspec.structs.replace(step, evidence=kept, issues=issues))
        return msgspec.structs.replace(trajectory, steps=tuple(steps))


@cache
def _table(path: str) -> npt.NDArray[Any]:
    return np.load(path, mmap_mode="r")


def _words(sentence: str) -> list[str]:
    return _WORD.findall(sentence.lower())


def _hash(words: list[str]) -> int:
    return int.from_bytes(
        blake2b(" ".join(words).encode("utf-8", "surrogatepass"), digest_size=8).digest(), "little"
    )
