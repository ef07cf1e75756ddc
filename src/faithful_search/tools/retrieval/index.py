"""Passages on disk, what can be searched in them behind one interface, and several ways to search
as one.
"""

import math
import mmap
from abc import ABC, abstractmethod
from array import array
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

LINES, OFFSETS = "passages.jsonl", "passages.offsets"
BATCH = 8192
MOST_INLINE = 100_000
"""Passages up to which an index that is `inline` is searched on the event loop."""

_PASSAGE = msgspec.json.Decoder(Evidence)
_K = 60  # the greater, the less the first ranks stand out
_DEPTH = 50  # passages asked of each part at least


class Passages:
    """The passages of an index in corpus order, from the folder that `store` wrote. Thread-safe;
    pickles as its path. Raises `OSError` or `ValueError` when the files are not there or do not fit
    each other.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        # mapped: many processes of a machine share one copy, and a corpus may be larger than memory
        with (folder / LINES).open("rb") as file:
            self._lines = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        self.offsets = np.asarray(np.memmap(folder / OFFSETS, dtype="<i8", mode="r"))
        if self.offsets[0] or self.offsets[-1] != len(self._lines):
            raise ValueError(f"{folder}: {LINES} and {OFFSETS} do not fit each other")

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def get(self, number: int, score: float | None = None) -> Evidence:
        """The passage at `number` (from 0), with the score of a search to four digits. Raises
        `DataError` where the file is damaged.
        """
        try:
            passage = _PASSAGE.decode(self._lines[self.offsets[number] : self.offsets[number + 1]])
        except (msgspec.DecodeError, UnicodeError) as error:
            raise damaged(self.folder, f"passage {number}: {error}") from error
        return passage if score is None else msgspec.structs.replace(passage, score=round(score, 4))

    def batches(self, start: int = 0, size: int = BATCH) -> Iterator[list[Evidence]]:
        """The passages from `start` on, `size` at a time."""
        for first in range(start, len(self), size):
            yield [self.get(number) for number in range(first, min(first + size, len(self)))]

    def __reduce__(self) -> "tuple[type[Passages], tuple[Path]]":
        return Passages, (self.folder,)


def progress(doing: str, total: int | None = None, initial: int = 0) -> Any:
    """A bar on the standard error, where that is a terminal and it takes longer than a second."""
    return tqdm(desc=doing, total=total, initial=initial, unit=" passages", disable=None, delay=1)


def store(folder: Path, passages: Iterable[Evidence]) -> None:
    """Write the passages into `folder`."""
    offsets = array("q", [0])
    remaining = iter(passages)
    with (folder / LINES).open("wb") as file, progress("reading") as bar:
        while batch := [
            msgspec.json.encode(passage) + b"\n" for passage in islice(remaining, BATCH)
        ]:
            file.writelines(batch)
            for line in batch:
                offsets.append(offsets[-1] + len(line))
            bar.update(len(batch))
    # last, since this file says that all passages are there
    write_whole(folder / OFFSETS, offsets.tobytes())


def damaged(folder: Path, why: object) -> DataError:
    """The error for an index whose files are not as they were written."""
    return DataError(f"the index {folder} is damaged ({why}): build it again with --overwrite")


def write_whole(path: Path, data: bytes) -> None:
    """Write a file so that it has its old content or all of the new, never a part."""
    with replacing(path) as partial_file:
        partial_file.write_bytes(data)


class Index(ABC):
    """Passages that can be searched, many queries at once.

    `inline` says whether a search takes well under a millisecond, so that it may run on an event
    loop. Searches of other indexes are collected to batches and run on a thread.
    """

    inline: ClassVar[bool] = False

    @abstractmethod
    def search_batch(self, queries: Sequence[str], top_k: int) -> list[list[Evidence]]:
        """The best passages for each query, best first, with `score` and the corpus's id as
        `source`. Thread-safe. Raises `ToolError` when an engine elsewhere does not answer as it
        should.
        """

    def search(self, query: str, top_k: int) -> list[Evidence]:
        """The best passages for one query."""
        return self.search_batch([query], top_k)[0]

    def search_each(self, queries: Sequence[str], top_k: int) -> list[list[Evidence] | ToolError]:
        """What is found for each query, or why nothing is; of a batch that is refused each is asked
        alone, so that one alone fails.
        """
        try:
            return [*self.search_batch(queries, top_k)]
        except ToolError as error:
            # an engine that is down for the moment is not asked once more for every query
            if error.transient or len(queries) == 1:
                return [error] * len(queries)
        return [outcome for query in queries for outcome in self.search_each([query], top_k)]

    @property
    def quick(self) -> bool:
        """Whether a search does not hold up the event loop that it runs on."""
        return self.inline and len(self) <= MOST_INLINE

    @abstractmethod
    def __len__(self) -> int:
        """How many passages there are."""


@dataclass(frozen=True)
class HybridIndex(Index):
    """What several indexes of one corpus find, usually BM25 and dense, by reciprocal rank fusion:
    only ranks count.

    ```
    score(p) = sum over the parts that found p of 1 / (60 + rank of p there), ranks from 1
    ```

    (Cormack, Clarke and Büttcher, 2009.) Of equal scores the one that the first part found first
    comes first. Passages are the same when their `source` and text are.
    """

    parts: tuple[Index, ...]

    def search_batch(self, queries: Sequence[str], top_k: int) -> list[list[Evidence]]:
        # deeper than what is shown: what both parts find late may beat what one finds early
        rankings_of_parts = [part.search_batch(queries, max(top_k, _DEPTH)) for part in self.parts]
        return [_fused(rankings, top_k) for rankings in zip(*rankings_of_parts, strict=True)]

    def __len__(self) -> int:
        return max(len(part) for part in self.parts)


def _fused(rankings: Sequence[list[Evidence]], top_k: int) -> list[Evidence]:
    passages: dict[tuple[str, str], Evidence] = {}
    shares: dict[tuple[str, str], list[float]] = {}
    for ranking in rankings:
        distinct: dict[tuple[str, str], Evidence] = {}
        for passage in ranking:
            distinct.setdefault(
                (passage.source, passage.text), passage
            )  # what a part names twice counts only once
        for rank, key in enumerate(distinct, start=1):
            shares.setdefault(key, []).append(1 / (_K + rank))
        passages = distinct | passages
    scores = {
        key: round(math.fsum(parts), 12) for key, parts in shares.items()
    }  # so that equal sums tie
    best = sorted(scores, key=scores.__getitem__, reverse=True)[:top_k]
    return [msgspec.structs.replace(passages[key], score=round(scores[key], 6)) for key in best]
