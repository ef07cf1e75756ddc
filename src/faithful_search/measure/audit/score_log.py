"""`scores.jsonl` as an audit writes it: a line for each row as soon as it is scored, so that nothing is asked twice.

While an audit runs the file only grows, and a later line of a row stands for the earlier ones. When it ends, the file
is put in the order of the source, each row once.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import islice, pairwise
from pathlib import Path
from types import TracebackType
from typing import IO, Self

import msgspec

from ...errors import DataError


class Flags(msgspec.Struct, frozen=True):
    """Of a score's parts: whether its judge gave no verdict."""

    abstained: bool = False


class Cell(msgspec.Struct, frozen=True):
    """One metric's score of a row, as a measurement; `None` where it does not apply or the judge abstained."""

    value: float | None = None
    why: str = ""
    parts: Flags = Flags()


class Line(msgspec.Struct, frozen=True):
    """What is read back of one line; `error` is set for a row that could not be read."""

    row: int
    digest: str
    error: str | None = None
    question: str | None = None
    answer: str | None = None
    stop_reason: str | None = None
    dialect: str = ""
    scores: dict[str, Cell] = {}
    tools: dict[str, int] = {}
    issues: dict[str, int] = {}

    @property
    def complete(self) -> bool:
        """Whether the row was read and no judge abstained: such a row is not scored again."""
        return self.error is None and not any(cell.parts.abstained for cell in self.scores.values())


_LINE = msgspec.json.Decoder(Line)


def read_scores(path: str | os.PathLike[str], at_most: int | None = None) -> Iterator[Line]:
    """Yield the lines of a `scores.jsonl`, or only the first `at_most` of them.

    Raises:
        DataError: when the file cannot be read, or a line does not hold a row's scores.
    """
    try:
        with Path(path).open("rb") as file:
            for number, line in enumerate(islice(file, at_most), start=1):
                yield _decoded(line, path, number)
    except OSError as error:
        raise DataError(f"cannot read {path}: {error}") from error


def _decoded(line: bytes, path: str | os.PathLike[str], number: int) -> Line:
    try:
        return _LINE.decode(line)
    except (msgspec.MsgspecError, UnicodeError) as error:
        raise DataError(f"{path}, line {number}: not a row's scores ({error})") from error


def lock(file: IO[bytes], path: Path, who: str = "audit") -> None:
    """Keep a second run out of the file while this one writes; where the system has no locks, trust.

    Raises `DataError` while another one writes.
    """
    try:
        import fcntl
    except ImportError:
        return
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.close()
        raise DataError(f"another {who} is writing {path}; wait for it, or use another folder") from None
    except OSError:  # a file system without locks
        return


class ScoreLog:
    """The open file. What an earlier run left in it is found by row and digest; half a last line is cut off.

    `places` are the rows of this run, with where their lines begin.
    """

    def __init__(self, path: Path, resume: bool = True) -> None:
        self.path = path
        self.places: dict[int, int] = {}
        self._digests: dict[str, int] = {}
        self._old: dict[int, tuple[str, int]] = {}
        self._lines = self._end = 0
        try:
            path.touch()
            self._file = path.open("r+b")
            lock(self._file, path)
            if not resume:
                self._file.truncate()
            self._index()
        except OSError as error:
            raise DataError(f"cannot write {path}: {error}") from error

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with suppress(OSError):  # what a full disk did not take is known already, and fails again here
            self._file.close()

    def holds(self, row: int, digest: str) -> bool:
        """Whether an earlier run scored this row completely; it then counts as a row of this run."""
        known = self._old.get(row)
        if known is not None and known[0] == digest:
            self.places[row] = known[1]
            return True
        if digest not in self._digests:
            return False
        moved = {**msgspec.json.decode(self._line(self._digests[digest])), "row": row}
        self.append([row], [msgspec.json.encode(moved) + b"\n"])
        return True

    def append(self, rows: Sequence[int], lines: Sequence[bytes]) -> None:
        """Add the lines of these rows and hand them to the operating system.

        Raises:
            DataError: when they cannot be written; what was written before is kept.
        """
        try:
            self._file.seek(self._end)
            self._file.write(b"".join(lines))
            self._file.flush()
        except OSError as error:
            raise DataError(
                f"cannot write {self.path}: {error}; {len(self.places)} rows are in it, run again to go on"
            ) from error
        for row, line in zip(rows, lines, strict=True):
            self.places[row] = self._end
            self._end += len(line)
        self._lines += len(lines)

    def finish(self, whole: bool) -> None:
        """Put the file in the source's order, each row once; it is replaced only when the new one is complete.

        Args:
            whole: whether this run saw the whole source. Lines of other rows are then of a source that has changed,
                and go; otherwise they follow at the end.
        """
        order = [self.places[row] for row in sorted(self.places)]
        if not whole:
            order += [place for row, (_, place) in sorted(self._old.items()) if row not in self.places]
        if len(order) == self._lines and all(one < two for one, two in pairwise(order)):
            return
        partial = self.path.with_name(f".{self.path.name}.partial")
        try:
            with partial.open("wb") as file:
                file.writelines(self._line(place) for place in order)
            self._file.close()
            partial.replace(self.path)
        except OSError as error:
            raise DataError(f"cannot write {self.path}: {error}; its lines are all kept, run again to go on") from error
        finally:
            partial.unlink(missing_ok=True)

    def _line(self, place: int) -> bytes:
        self._file.seek(place)
        return self._file.readline()

    def _index(self) -> None:
        """Remember the complete rows, and forget what a run that was killed did not finish writing."""
        for data in self._file:
            if not data.endswith(b"\n"):
                break
            self._remember(data)
            self._lines += 1
            self._end += len(data)
        self._file.truncate(self._end)

    def _remember(self, data: bytes) -> None:
        try:
            line = _LINE.decode(data)
        except (msgspec.MsgspecError, UnicodeError):
            return  # damaged: the row is scored again
        self._old.pop(line.row, None)
        if line.complete:
            self._old[line.row] = (line.digest, self._end)
            self._digests[line.digest] = self._end
