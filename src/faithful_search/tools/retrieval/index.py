"""Passages on disk, the interface of all indexes, and several indexes searched as one."""

import math
import mmap
from abc import ABC, abstractmethod
from array import array
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar

import msgspec
import numpy as np
from tqdm import tqdm

from ...errors import DataError, ToolError
from ...trajectory import Evidence
from ...wire.files import replacing

LINES = "passages.jsonl"
OFFSETS = "passages.offsets"  # where each line begins, and where the last ends: 8 bytes each
BATCH = 8192  # passages that are read or written together
MOST_INLINE = 100_000
"""Passages up to which an index that is `inline` is searched on the event loop."""

_PASSAGE = msgspec.json.Decoder(Evidence)
_Key = tuple[str, str]  # a passage's source and text, by which parts of an index find the same
# Of reciprocal rank fusion: the constant k, of which a greater one lets the first ranks stand out
# less, and how many passages each part is asked for, at least.
_FUSION_K = 60
_FUSION_DEPTH = 50


class Passages:
    """The passages of an index in corpus order, from the folder that `store` wrote. Thread-safe;
    pickles as its path.

    Raises:
        OSError, ValueError: the files are not there, or do not fit each other.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        # Mapped: the processes of a machine share one copy, and a corpus may be larger than memory.
        with (folder / LINES).open("rb") as file:
            self._lines = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        self.offsets = np.asarray(np.memmap(folder / OFFSETS, dtype="<i8", mode="r"))
        if self.offsets[0] or self.offsets[-1] != len(self._lines):
            raise ValueError(f"{folder}: {LINES} and {OFFSETS} do not fit each other")

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def get(self, number: int, score: float | None = None) -> Evidence:
        """One passage.

        Args:
            number: its place in the corpus, from 0.
            score: that of a search, which the passage gets, rounded to four digits.

        Raises:
            DataError: the file is damaged.
        """
        try:
            passage = _PASSAGE.decode(self._lines[self.offsets[number] : self.offsets[number + 1]])
        except (msgspec.DecodeError, UnicodeError) as error:
            raise damaged(self.folder, f"passage {number}: {error}") from error
        if score is None:
            return passage
        return msgspec.structs.replace(passage, score=round(score, 4))

    def batches(self, start: int = 0, size: int = BATCH) -> Iterator[list[Evidence]]:
        """The passages from `start` on, `size` at a time."""
        for first in range(start, len(self), size):
            end = min(first + size, len(self))
            yield [self.get(number) for number in range(first, end)]

    def __reduce__(self) -> "tuple[type[Passages], tuple[Path]]":
        return Passages, (self.folder,)


def progress(doing: str, total: int | None = None, initial: int = 0) -> Any:
    """A progress bar on the standard error, shown after a second, and only on a terminal."""
    # `disable=None` leaves it out where the standard error is no terminal.
    return tqdm(desc=doing, total=total, initial=initial, unit=" passages", disable=None, delay=1)


def store(folder: Path, passages: Iterable[Evidence]) -> None:
    """Write the passages into `folder`."""
    offsets = array("q", [0])
    remaining = iter(passages)
    with (folder / LINES).open("wb") as file, progress("reading") as bar:
        while batch := list(islice(remaining, BATCH)):
            lines = [msgspec.json.encode(passage) + b"\n" for passage in batch]
            file.writelines(lines)
            for line in lines:
                offsets.append(offsets[-1] + len(line))
            bar.update(len(lines))
    # Last, since its presence says that all passages are there.
    write_whole(folder / OFFSETS, offsets.tobytes())


def damaged(folder: Path, why: object) -> DataError:
    """The error for an index whose files are not as they were written."""
    return DataError(f"the index {folder} is damaged ({why}): build it again with --overwrite")


def write_whole(path: Path, data: bytes) -> None:
    """Replace a file, so that readers, also after a crash, find the old or all of the new."""
    with replacing(path) as partial_file:
        partial_file.write_bytes(data)


class Index(ABC):
    """Passages that can be searched, many queries at once."""

    inline: ClassVar[bool] = False
    """Whether a search of a small index takes well under a millisecond, so that it may run on an
    event loop (`quick`) and gains nothing by batches.
    """

    @abstractmethod
    def search_batch(self, queries: Sequence[str], top_k: int) -> list[list[Evidence]]:
        """The best passages for each query, best first, with their `score`, and the corpus's id as
        `source`. Thread-safe.

        Raises:
            ToolError: a search engine on a server fails, or does not answer as it should.
        """

    def search(self, query: str, top_k: int) -> list[Evidence]:
        """The best passages for one query."""
        return self.search_batch([query], top_k)[0]

    def search_each(self, queries: Sequence[str], top_k: int) -> list[list[Evidence] | ToolError]:
        """The best passages for each query, or the error where the search failed.

        An engine may refuse a batch for one of its queries. Then each is asked alone, so that only
        that one fails.
        """
        try:
            return list(self.search_batch(queries, top_k))
        except ToolError as error:
            # An engine that is down for the moment is not asked again for every query.
            if error.transient or len(queries) == 1:
                return [error] * len(queries)
        results: list[list[Evidence] | ToolError] = []
        for query in queries:
            results += self.search_each([query], top_k)
        return results

    @property
    def quick(self) -> bool:
        """Whether a search may run on an event loop without holding it up."""
        return self.inline and len(self) <= MOST_INLINE

    @abstractmethod
    def __len__(self) -> int:
        """How many passages there are."""


@dataclass(frozen=True)
class HybridIndex(Index):
    """Several indexes of one corpus, usually BM25 and dense, searched as one by reciprocal rank
    fusion (Cormack, Clarke and Büttcher, 2009). Only ranks count:

    ```
    score(p) = sum over the parts that found p of 1 / (60 + rank of p there), ranks from 1
    ```

    Passages are the same when their `source` and text are. Of equal scores, that of the earlier
    part, and there of the better rank, comes first.
    """

    parts: tuple[Index, ...]

    def search_batch(self, queries: Sequence[str], top_k: int) -> list[list[Evidence]]:
        # More than is returned: what both parts find late may beat what one of them finds early.
        depth = max(top_k, _FUSION_DEPTH)
        rankings_of_parts = [part.search_batch(queries, depth) for part in self.parts]
        return [_fused(rankings, top_k) for rankings in zip(*rankings_of_parts, strict=True)]

    def __len__(self) -> int:
        return max(len(part) for part in self.parts)


def _fused(rankings: Sequence[list[Evidence]], top_k: int) -> list[Evidence]:
    """The rankings of the parts for one query as one."""
    passages: dict[_Key, Evidence] = {}  # each as the first part that found it has it
    shares: defaultdict[_Key, list[float]] = defaultdict(list)  # from each part that found it
    for ranking in rankings:
        for rank, (key, passage) in enumerate(_distinct(ranking).items(), start=1):
            passages.setdefault(key, passage)
            shares[key].append(1 / (_FUSION_K + rank))
    scores: dict[_Key, float] = {}
    for key, shares_of_passage in shares.items():
        # Rounded, so that sums of the same shares in another order are equal.
        scores[key] = round(math.fsum(shares_of_passage), 12)
    best_first = sorted(scores, key=scores.__getitem__, reverse=True)
    fused = []
    for key in best_first[:top_k]:
        fused.append(msgspec.structs.replace(passages[key], score=round(scores[key], 6)))
    return fused


def _distinct(ranking: list[Evidence]) -> dict[_Key, Evidence]:
    """The passages of a ranking by what they are told apart by: one that a part returns twice
    counts once, at its better rank.
    """
    passages: dict[_Key, Evidence] = {}
    for passage in ranking:
        passages.setdefault((passage.source, passage.text), passage)
    return passages
