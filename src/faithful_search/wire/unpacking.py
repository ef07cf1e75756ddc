"""Reading files of others, plain or gzip, within limits: on a line, in memory, and unpacked."""

import gzip
import os
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, cast

from ..errors import DataError, reason_of

MOST_LINE = 100_000_000
"""Bytes of a line. Of a longer one, so many and one more are given, by which it is known."""
MOST_IN_MEMORY = 1_000_000_000
"""Bytes of a file that is read as a whole."""
_GZIP = b"\x1f\x8b"  # how files that gzip packed begin
_UTF_16 = (b"\xff\xfe", b"\xfe\xff")  # how files in UTF-16 begin
# A packed file may hold so many bytes, or so many times its size: text is seldom packed to a
# hundredth.
_MOST_UNPACKED = 1_000_000_000
_MOST_RATIO = 200


@contextmanager
def unpacked(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    """A file to read, unpacked when its name ends in `.gz` or it begins as gzip does.

    Raises `DataError` when it cannot be read, also within the block, and for a broken or truncated
    gzip.
    """
    try:
        with open(path, "rb") as stored:
            packed = Path(path).suffix == ".gz" or stored.peek(2).startswith(_GZIP)
            file = gzip.GzipFile(fileobj=stored) if packed else stored
            if file.peek(2).startswith(_UTF_16):
                raise DataError(f"cannot read {path}: its text is UTF-16; save it as UTF-8")
            yield cast(BinaryIO, file)
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"cannot read {path}: {reason_of(error)}") from error


def lines(path: str | os.PathLike[str], file: BinaryIO) -> Iterator[bytes]:
    """The lines of an open file; of one longer than `MOST_LINE` the beginning.

    Raises `DataError` for a packed file that holds more than `most_unpacked`.
    """
    packed = isinstance(file, gzip.GzipFile)
    most = most_unpacked(path) if packed else None
    while line := file.readline(MOST_LINE + 1):
        # The rest of a line that is too long is read, and not given.
        piece = line
        while len(piece) > MOST_LINE and not piece.endswith(b"\n"):
            piece = file.readline(MOST_LINE + 1)
            check_unpacked(path, file.tell() if packed else 0, most)
        check_unpacked(path, file.tell() if packed else 0, most)
        yield line


def whole(path: str | os.PathLike[str], file: BinaryIO) -> bytes:
    """All of an open file. Raises `DataError` when that is more than `MOST_IN_MEMORY`."""
    data = file.read(MOST_IN_MEMORY + 1)
    if len(data) > MOST_IN_MEMORY:
        raise DataError(
            f"cannot read {path}: it holds more than {MOST_IN_MEMORY:,} bytes, and must be read as "
            "a whole; make it a file of JSON lines"
        )
    return data


def most_unpacked(path: str | os.PathLike[str]) -> int:
    """How many bytes a packed file may hold: a billion, or 200 times its size."""
    return max(_MOST_UNPACKED, _MOST_RATIO * os.path.getsize(path))


def check_unpacked(path: str | os.PathLike[str], size: int, most: int | None) -> None:
    """Raise `DataError` where more than `most` bytes were unpacked; `None` is no limit."""
    if most is not None and size > most:
        raise DataError(
            f"cannot read {path}: it unpacks to more than {most:,} bytes, as no text does; unpack "
            "it yourself if it is to be trusted"
        )
