"""Files of JSON lines, plain or gzip: their lines, and the JSON objects in them."""

import os
from collections.abc import Iterator
from typing import Any

from . import loose_json
from .errors import DataError
from .wire.unpacking import lines, unpacked


def read_lines(path: str | os.PathLike[str]) -> Iterator[tuple[int, bytes]]:
    """Yield the lines of a file that are not blank, with their numbers from 1; they are unpacked
    where the name ends in `.gz` or the file begins as gzip does.

    Of a line that is longer than `wire.unpacking.MOST_LINE` only the beginning is read. Raises
    `DataError` when the file cannot be read, is a broken or truncated gzip, or unpacks to far more
    than its size.
    """
    with unpacked(path) as file:
        for number, line in enumerate(lines(path, file), start=1):
            if line.strip():
                yield number, line


def read_rows(path: str | os.PathLike[str], beyond: bool = False) -> Iterator[dict[str, Any]]:
    """Yield the JSON objects of a `.jsonl` or `.jsonl.gz` file; with `beyond`, NaN and infinite
    numbers stay, which are `None` without it. Raises `DataError` naming the line that is broken.
    """
    for number, line in read_lines(path):
        try:
            row = loose_json.decode(line.decode(), beyond=beyond)
        except ValueError as error:  # also what is not UTF-8
            raise DataError(f"{path}, line {number}: not JSON ({error})") from error
        if not isinstance(row, dict):
            raise DataError(
                f"{path}, line {number}: expected a JSON object, found {type(row).__name__}"
            )
        yield row
