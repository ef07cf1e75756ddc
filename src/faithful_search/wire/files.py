"""Files that others read while they are written: replaced as a whole, or locked."""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

try:
    import fcntl
except ImportError:  # Windows: writers are then kept apart by the system alone
    fcntl = None  # type: ignore[assignment]


@contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[Path]:
    """A path to write to, which replaces the file at `path` when the block ends and is removed when
    it fails: readers see the old file or the whole new one, even if the writer is killed.
    """
    path = Path(path)
    partial = path.with_name(f".{path.name}.partial")
    try:
        yield partial
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def lock(file: IO[Any] | int, wait: bool = False) -> bool:
    """Lock an open file against other processes until it is closed; whether that worked.

    Where the system or the file system knows no locks, it counts as locked. The lock is on the file
    itself: `filelock` would leave a second file beside files that are kept under version control.
    """
    with suppress(OSError):  # a file system without locks
        try:
            if fcntl is not None:
                fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            return False
    return True


@contextmanager
def alone_in(folder: Path, wait: bool = True) -> Iterator[bool]:
    """While the block runs, no other process or thread is in one for this folder; gives `False`
    where one is that is not waited for. The folder is made where it is not there. For files that
    are replaced: a lock on the file itself would be on the old one.
    """
    if fcntl is None:
        yield True
        return
    for tries_left in reversed(range(99)):
        try:
            folder.mkdir(parents=True, exist_ok=True)
            handle = os.open(folder, os.O_RDONLY)
            break
        except (
            FileExistsError,
            FileNotFoundError,
        ):  # another may have removed it or moved it away meanwhile
            if not tries_left:
                raise
    try:
        yield lock(handle, wait)
    finally:
        os.close(handle)
