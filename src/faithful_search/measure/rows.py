"""Trajectories out of files written by anyone: JSON lines, a JSON array or Parquet, row by row, larger than memory.

```
file ─ read_rows ─> Raw (number, digest, JSON of the row) ─ parse_row ─> Trajectory, or the reason why there is none
```
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, replace
from hashlib import blake2b
from itertools import chain, islice
from pathlib import Path

import msgspec

from .. import dialects
from ..errors import DataError, DialectError
from ..trajectory import Trajectory
from .columns import KNOWN_COLUMNS, parse_row
from .failures import told
from .files import PathLike, called, count_rows, read_json
from .invented import SearchedCorpus


class Raw(msgspec.Struct, frozen=True):
    """One row as it lies in the file: `data` is its JSON, `digest` the hex of that."""

    number: int
    digest: str
    data: bytes


class Row(msgspec.Struct, frozen=True):
    """One row that was read: its trajectory, or the `error` that kept it from being one. `number` counts from 1."""

    number: int
    digest: str
    trajectory: Trajectory | None
    error: str = ""


@dataclass(frozen=True)
class Reader:
    """Makes trajectories of rows; picklable. `usual` as in `dialects.parse`; `corpus`: what was searched, if known."""

    dialect: str | None = None
    text_column: str | None = None
    usual: str | None = None
    corpus: SearchedCorpus | None = None

    def __call__(self, raw: Raw) -> Row:
        """The row's trajectory, or the reason why it has none; never raises."""
        try:
            read = parse_row(raw.data, self.dialect, self.text_column, self.usual)
            return Row(raw.number, raw.digest, self.corpus.without_invented(read) if self.corpus else read)
        except (DataError, DialectError) as error:
            why = str(error)
        except Exception as error:  # whatever a row holds, the others are read
            why = f"could not be parsed: {told('parsing', error)}"
        return Row(raw.number, raw.digest, None, why)


READER = Reader()


class Source:
    """An open file of rows: iterate over it once.

    Attributes:
        reader: reads its rows; a row without marks of a dialect is read as most of the first rows are.
        error: why the file could not be read to its end. An error before the first row is raised at once instead.
    """

    def __init__(
        self, path: PathLike, dialect: str | None = None, text_column: str | None = None, limit: int | None = None
    ) -> None:
        self.error = ""
        rows = read_rows(path, text_column)
        head = [next(rows)]  # outside of `_whole`: a file without a single row is the caller's error
        rows = self._whole(rows)
        head += islice(rows, dialects.USUAL_OF - 1)
        if limit is not None and limit <= len(head):
            self.error = ""  # the file is broken only after the last row that is wanted
        self._rows = islice(chain(head, rows), limit)
        self.reader = Reader(dialect, text_column)
        if not dialect:
            self.reader = replace(self.reader, usual=dialects.usual(self.reader(raw).trajectory for raw in head))

    def __iter__(self) -> Iterator[Raw]:
        return self._rows

    def _whole(self, rows: Iterator[Raw]) -> Iterator[Raw]:
        """The rows up to the first that cannot be read; `error` then says why."""
        try:
            yield from rows
        except DataError as error:
            self.error = str(error)


def total_rows(paths: Iterable[Path], limit: int | None) -> int | None:
    """How many rows will be read, for a progress bar; `None` where that is not quickly known."""
    total = 0
    for path in paths:
        if (count := count_rows(path)) is None:
            return None
        total += min(count, limit or count)
    return total


def read_trajectories(
    path: PathLike,
    dialect: str | None = None,
    text_column: str | None = None,
    only: Collection[int] | None = None,
    corpus: SearchedCorpus | None = None,
) -> Iterator[Row]:
    """Yield every row of a file: its trajectory, or the reason why it has none. A broken row never ends the run.

    A row is what `Trajectory.to_json` wrote, an object with chat `messages`, or an object with a column of text.
    Question, gold answers and id are taken from the columns that are usual for them.

    Args:
        path: `.jsonl`, `.json` (an array, or objects that follow one another), both also `.gz`, `.parquet`, `.eval`, a
            folder of these, `hf://datasets/…`, or `"-"` for JSON lines on the standard input.
        dialect: of all rows; `None` takes each row's own `dialect` column or detects it, so dialects may be mixed. A
            row that bears no dialect's marks is read as most of the first rows are.
        text_column: which column holds the text; `None` looks for a known name.
        only: numbers of rows; the others are passed over.
        corpus: what was searched: evidence that it does not hold is left out, with an `Issue`.

    Raises `DataError` when the file cannot be read (any more), is empty, or has none of the columns needed.
    """
    if dialect is not None:
        dialects.load(dialect)
    if only is not None and not only:
        return
    source, last = Source(path, dialect, text_column), max(only or (), default=0)
    read = replace(source.reader, corpus=corpus)
    for raw in source:
        if only is None or raw.number in only:
            yield read(raw)
        if raw.number == last:  # the rest of a long file need not be read
            return
    if source.error:
        raise DataError(source.error)


def pick(
    source: PathLike,
    rows: Iterable[int],
    dialect: str | None = None,
    text_column: str | None = None,
    corpus: SearchedCorpus | None = None,
) -> Iterator[tuple[int, Trajectory]]:
    """Read those rows of a source again, with their numbers; what cannot be read is left out."""
    for row in read_trajectories(source, dialect, text_column, only=set(rows), corpus=corpus):
        if row.trajectory is not None:
            yield row.number, row.trajectory


def read_rows(path: PathLike, text_column: str | None = None) -> Iterator[Raw]:
    """Yield the rows of a file without looking into them; `path` and errors as in `read_trajectories`."""
    found = 0
    for number, data in read_json(path, text_column, KNOWN_COLUMNS):
        found += 1
        # Stripped: an audit knows a row again in a file that was packed, or written on another system
        yield Raw(number, blake2b(data.strip(), digest_size=16).hexdigest(), data)
    if not found:
        raise DataError(f"{called(path)}: no rows in it")
