"""Files that only grow and can go on growing after the process was killed."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO

import msgspec

from ...errors import DataError

_SETTLE = 1.0
"""Seconds between two waits for the disk: a kill loses nothing in between, only a power cut can."""


class _Checkpoint(msgspec.Struct, frozen=True):
    sizes: dict[str, int]
    state: dict[str, Any]


class Spool:
    """Append-only files with a checkpoint: opened again, they are as at the last `commit`.

    Args:
        folder: where the files are; made when missing.
        name: of the checkpoint, `NAME.checkpoint` in that folder.
        files: names of the files in it.

    Attributes:
        state: what the last `commit` said, empty before the first.

    Raises:
        DataError: when the files are shorter than the checkpoint says, or cannot be written.

    Example:
        >>> import tempfile
        >>> folder = Path(tempfile.mkdtemp())
        >>> with Spool(folder, "log", ["lines"]) as spool:
        ...     spool.append("lines", b"kept ")
        ...     spool.commit(count=1)
        ...     spool.append("lines", b"lost")
        >>> with Spool(folder, "log", ["lines"]) as spool:
        ...     spool.state, (folder / "lines").read_bytes()
        ({'count': 1}, b'kept ')
    """

    def __init__(self, folder: Path, name: str, files: Sequence[str]) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._checkpoint = folder / f"{name}.checkpoint"
        last = self._read()
        self.state, self._settled = last.state, time.monotonic()
        self._files: dict[str, BinaryIO] = {}
        self._sizes = {file: last.sizes.get(file, 0) for file in files}
        try:
            for file, size in self._sizes.items():
                self._files[file] = _reopened(folder / file, size)
        except BaseException:
            self.close()
            raise

    def append(self, file: str, data: bytes | memoryview) -> None:
        """Add bytes to the end of one of the files."""
        self._sizes[file] += self._files[file].write(data)

    def commit(self, **state: Any) -> None:
        """What was appended so far is kept, and `state` with it. Raises `OSError` when the disk is full."""
        wait = time.monotonic() - self._settled > _SETTLE
        for opened in self._files.values():
            opened.flush()
            if wait:
                os.fsync(opened.fileno())
        if wait:
            self._settled = time.monotonic()
        write_whole(self._checkpoint, msgspec.json.encode(_Checkpoint(dict(self._sizes), state)))
        self.state = state

    def close(self) -> None:
        """Close the files; what was not committed is cut off when they are opened again."""
        for opened in self._files.values():
            opened.close()

    def __enter__(self) -> Spool:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _read(self) -> _Checkpoint:
        try:
            return msgspec.json.decode(self._checkpoint.read_bytes(), type=_Checkpoint)
        except FileNotFoundError:
            return _Checkpoint({}, {})
        except (OSError, msgspec.DecodeError) as error:
            raise DataError(
                f"cannot go on from {self._checkpoint} ({error}): delete its folder and begin anew"
            ) from error


def write_whole(path: Path, data: bytes) -> None:
    """Write a small file so that it has its old content or all of the new, never a part."""
    beside = path.with_name(path.name + ".new")
    beside.write_bytes(data)
    beside.replace(path)


def _reopened(path: Path, size: int) -> BinaryIO:
    file = path.open("r+b" if path.exists() else "w+b")
    if (found := file.seek(0, os.SEEK_END)) < size:
        file.close()
        raise DataError(f"{path} has {found} bytes where {size} were written: delete its folder and begin anew")
    file.truncate(size)
    file.seek(size)
    return file
