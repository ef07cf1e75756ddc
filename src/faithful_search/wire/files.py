"""Files that others read while they are written: replaced as a whole, or locked; and their
digest.
"""

import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

try:
    import fcntl
except ImportError:  # Windows: writers are then kept apart by the system alone
    fcntl = None  # type: ignore[assignment]


def sha256_of(path: Path) -> str:
    """The digest of a file's content, in hexadecimal digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[Path]:
    """A path to write to, whose file replaces the one at `path` when the block ends, and is removed
    when the block fails.

    Readers see the old file or the whole new one, even if the writer is killed.
    """
    path = Path(path)
    partial = path.with_name(f".{path.name}.partial")
    try:
        yield partial
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def lock(file: IO[Any] | int, wait: bool = False) -> bool:
    """Lock an open file against other processes until it is closed. Returns whether that worked.

    Where the system or the file system knows no locks, it counts as locked. The lock is on the file
    itself: `filelock` would leave a second file beside files that are kept under version control.

    Args:
        wait: wait for a process that holds the lock, rather than return `False`.
    """
    if fcntl is None:
        return True
    operation = fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB
    try:
        fcntl.flock(file, operation)
    except BlockingIOError:
        return False
    except OSError:  # a file system without locks
        return True
    return True


@contextmanager
def alone_in(folder: Path, wait: bool = True) -> Iterator[bool]:
    """Lock a folder, which is made where it is not there, while the block runs. Gives whether that
    worked.

    For files that are replaced: a lock on the file itself would be on the old one. It holds against
    other processes and threads.

    Args:
        wait: wait for whoever holds the lock, rather than give `False`.
    """
    if fcntl is None:
        yield True
        return
    for attempts_left in reversed(range(99)):
        try:
            folder.mkdir(parents=True, exist_ok=True)
            handle = os.open(folder, os.O_RDONLY)
            break
        except (FileExistsError, FileNotFoundError):
            # Another may have removed the folder, or moved it away, between the two lines.
            if not attempts_left:
                raise
    try:
        yield lock(handle, wait)
    finally:
        os.close(handle)
