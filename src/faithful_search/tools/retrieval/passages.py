"""The passages of an index: JSON lines on disk, mapped, found by their number; one store for all ways to search."""

import mmap
from array import array
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from tqdm import tqdm

from ...errors import DataError
from ...trajectory import Evidence
from ...wire.files import replacing

LINES, OFFSETS = "passages.jsonl", "passages.offsets"
BATCH = 8192

Progress = Callable[..., AbstractContextManager[Any]]
"""Called as `tqdm` is, with `total`, `initial`, `desc` and `unit`; returns a bar, a context with `update(n)`."""

silent: Progress = partial(tqdm, disable=True)
"""The `Progress` that shows nothing."""

_PASSAGE = msgspec.json.Decoder(Evidence)


class Passages:
    """The passages in corpus order, from the folder that `store` wrote. Thread-safe; pickles as its path. Raises
    `OSError` or `ValueError` when the files are not there or do not fit each other."""

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
        """The passage at `number` (from 0), with the score of a search to four digits. Raises `DataError` where the
        file is damaged."""
        try:
            found = _PASSAGE.decode(self._lines[self.offsets[number] : self.offsets[number + 1]])
        except (msgspec.DecodeError, UnicodeError) as error:
            raise damaged(self.folder, f"passage {number}: {error}") from error
        return found if score is None else msgspec.structs.replace(found, score=round(score, 4))

    def batches(self, start: int = 0, size: int = BATCH) -> Iterator[list[Evidence]]:
        """The passages from `start` on, `size` at a time."""
        for first in range(start, len(self), size):
            yield [self.get(number) for number in range(first, min(first + size, len(self)))]

    def __reduce__(self) -> "tuple[type[Passages], tuple[Path]]":
        return Passages, (self.folder,)


def store(folder: Path, passages: Iterable[Evidence], progress: Progress = silent) -> None:
    """Write the passages into `folder`."""
    offsets = array("q", [0])
    rest = iter(passages)
    with (folder / LINES).open("wb") as file, progress(desc="reading", unit=" passages") as bar:
        while batch := [msgspec.json.encode(passage) + b"\n" for passage in islice(rest, BATCH)]:
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
