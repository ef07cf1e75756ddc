"""The passages of an index: JSON lines on disk, mapped, found by their number; one store for all ways to search."""

from __future__ import annotations

import mmap
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from ...errors import DataError
from ...trajectory import Evidence
from .spool import Spool

LINES, OFFSETS = "passages.jsonl", "passages.offsets"
BATCH = 8192

Progress = Callable[..., AbstractContextManager[Any]]
"""Called as `tqdm` is, with `total`, `initial`, `desc` and `unit`; returns a bar, a context with `update(n)`."""


class Passages:
    """The passages in corpus order, from the folder that `store` wrote. Safe for many threads; pickles as its path.

    Raises:
        ValueError: when the files do not fit each other.
        OSError: when they are not there.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        with (folder / LINES).open("rb") as file:
            self._lines = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        self.offsets = np.asarray(np.memmap(folder / OFFSETS, dtype="<i8", mode="r"))
        if self.offsets[0] or self.offsets[-1] != len(self._lines):
            raise ValueError(f"{folder}: {LINES} and {OFFSETS} do not fit each other")

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def get(self, number: int) -> Evidence:
        """The passage at `number` (from 0) in corpus order, its corpus id as `source`.

        Raises:
            DataError: when the file is damaged there.
        """
        try:
            return _PASSAGE.decode(self._lines[self.offsets[number] : self.offsets[number + 1]])
        except (msgspec.DecodeError, UnicodeError) as error:
            raise damaged(self.folder, f"passage {number}: {error}") from error

    def batches(self, start: int = 0, size: int = BATCH) -> Iterator[list[Evidence]]:
        """The passages from `start` on, `size` at a time."""
        for first in range(start, len(self), size):
            yield [self.get(number) for number in range(first, min(first + size, len(self)))]

    def __reduce__(self) -> tuple[type[Passages], tuple[Path]]:
        return Passages, (self.folder,)


def damaged(folder: Path, why: object) -> DataError:
    """What is said of an index whose files are not as they were written."""
    return DataError(f"the index {folder} is damaged ({why}): build it again with --overwrite")


class _Silent:
    def update(self, count: int) -> None:
        """Nothing is shown."""


def silent(**_: Any) -> AbstractContextManager[Any]:
    """The `Progress` that shows nothing."""
    return nullcontext(_Silent())


def store(folder: Path, passages: Iterable[Evidence], progress: Progress = silent) -> int:
    """Write the passages into `folder`; where an earlier call was killed, go on after what it wrote.

    Args:
        folder: made when missing.
        passages: all of them, also when going on: those that are there already are passed over.
        progress: shows how many are written.

    Returns:
        How many there are.
    """
    with Spool(folder, "passages", (LINES, OFFSETS)) as spool:
        done, end = spool.state.get("passages", 0), spool.state.get("end", 0)
        if not spool.state:
            spool.append(OFFSETS, np.zeros(1, "<i8").data)
        rest = islice(passages, done, None)
        with progress(desc="reading", unit=" passages", initial=done) as bar:
            while batch := [_ENCODER.encode(passage) + b"\n" for passage in islice(rest, BATCH)]:
                ends = end + np.cumsum([len(line) for line in batch], dtype="<i8")
                spool.append(LINES, b"".join(batch))
                spool.append(OFFSETS, ends.data)
                done, end = done + len(batch), int(ends[-1])
                spool.commit(passages=done, end=end)
                bar.update(len(batch))
        spool.commit(passages=done, end=end, finished=True)
    return done


def finished(folder: Path) -> bool:
    """Whether `store` came to its end in that folder."""
    with Spool(folder, "passages", (LINES, OFFSETS)) as spool:
        return bool(spool.state.get("finished"))


_ENCODER = msgspec.json.Encoder()
_PASSAGE = msgspec.json.Decoder(Evidence)
