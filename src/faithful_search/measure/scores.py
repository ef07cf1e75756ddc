"""`scores.jsonl`: a line for each row of an audit as soon as it is scored, so that no judge is asked twice.

While an audit runs the file only grows, and a later line of a row stands for the earlier ones. When it ends, the file
is put in the order of the source, each row once.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path

import msgspec
import numpy as np

from ..errors import DataError
from .files import PathLike
from .ledger import Ledger

SCORES = "scores.jsonl"


class Flags(msgspec.Struct, frozen=True):
    """The one part of a score that is needed again; the others are most of the file and are not decoded."""

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
    id: str = ""
    question: str | None = None
    answer: str | None = None
    stop_reason: str | None = None
    dialect: str = ""
    scores: dict[str, Cell] = {}
    tools: dict[str, int] = {}
    evidence: int = 0
    issues: dict[str, int] = {}

    @property
    def values(self) -> dict[str, float | None]:
        """Of each metric, and whether there is an answer and how many calls."""
        own = {name: cell.value for name, cell in self.scores.items()}
        return own | {"answered": float(self.answer is not None), "calls": float(sum(self.tools.values()))}

    @property
    def complete(self) -> bool:
        """Whether the row was read and no judge abstained: such a row is not scored again."""
        return self.error is None and not any(cell.parts.abstained for cell in self.scores.values())


LINE = msgspec.json.Decoder(Line)


def read_scores(path: PathLike, at_most: int | None = None) -> Iterator[Line]:
    """Yield the lines of a `scores.jsonl`, or only the first `at_most` of them.

    Raises `DataError` when the file cannot be read, or a line does not hold a row's scores.
    """
    try:
        with Path(path).open("rb") as file:
            for number, line in enumerate(islice(file, at_most), start=1):
                try:
                    found = LINE.decode(line)
                except ValueError as error:
                    raise DataError(f"{path}, line {number}: not a row's scores ({error})") from error
                yield found
    except OSError as error:
        raise DataError(f"cannot read {path}: {error}") from error


class ScoreLog(Ledger):
    """The open file. What an earlier run left in it is found by row and digest.

    `rows` are those of this run, `places` where their lines begin: kept instead of the lines, which may be larger than
    memory.
    """

    def __init__(self, path: Path, resume: bool = True) -> None:
        super().__init__(path, "audit", anew=not resume)
        self.rows, self.places = array("q"), array("q")
        self._old: dict[int, tuple[str, int]] = {}
        self._digests: dict[str, int] = {}
        for place, data in self.read():
            try:
                line = LINE.decode(data)
            except ValueError:
                continue  # damaged: the row is scored again
            self._old.pop(line.row, None)  # also where the later line abstained: it is asked again
            if line.complete:
                self._old[line.row] = (line.digest, place)
                self._digests[line.digest] = place

    def holds(self, row: int, digest: str) -> bool:
        """Whether an earlier run scored this row completely; it then counts as a row of this run."""
        known, place = self._old.get(row, (None, 0))
        if known == digest:
            self.rows.append(row)
            self.places.append(place)
            return True
        if digest not in self._digests:
            return False
        # The same row at another place: rows were added to or taken from the source
        moved = {**msgspec.json.decode(self.line(self._digests[digest])), "row": row}
        self.add([row], [msgspec.json.encode(moved) + b"\n"])
        return True

    def add(self, rows: Sequence[int], lines: Sequence[bytes]) -> None:
        """Append the lines of these rows; errors as those of `Ledger.append`."""
        self.places.extend(self.append(lines))
        self.rows.extend(rows)

    def finish(self, whole: bool) -> None:
        """Put the file in the source's order, each row once; it is replaced only when the new one is complete.

        Where this run saw the `whole` source, lines of other rows are of a source that has changed, and go; otherwise
        they follow at the end.
        """
        order = np.array(self.places)[np.argsort(self.rows)]
        if self._old and not whole:
            read = set(self.rows)
            rest = [place for row, (_, place) in sorted(self._old.items()) if row not in read]
            order = np.concatenate([order, np.array(rest, dtype=np.int64)])
        if len(order) != self.count or not (np.diff(order) > 0).all():
            self.replace(map(int, order))
