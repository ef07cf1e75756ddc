"""`scores.jsonl`: a line for each row of an audit as soon as it is scored, so that no judge is asked twice.

While an audit runs the file only grows, and a later line of a row stands for the earlier ones. When it ends, the file
is put in the order of the source, each row once.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import chain, islice
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
    number = 0
    try:
        with Path(path).open("rb") as file:
            for line in islice(file, at_most):
                number += 1
                yield LINE.decode(line)
    except OSError as error:
        raise DataError(f"cannot read {path}: {error}") from error
    except ValueError as error:
        raise DataError(f"{path}, line {number}: not a row's scores ({error})") from error


class ScoreLog(Ledger):
    """The open file. What an earlier run left in it is found by the row's digest, wherever the row stands now.

    `rows` are those of this run, `places` where their lines begin: kept instead of the lines, which may be larger than
    memory.
    """

    def __init__(self, path: Path, resume: bool = True) -> None:
        super().__init__(path, "audit", anew=not resume)
        self.rows, self.places = array("q"), array("q")
        self._known: dict[str, int] = {}
        for place, data in self.read():
            with suppress(ValueError):  # a damaged line: its row is scored again
                line = LINE.decode(data)
                self._known.pop(line.digest, None)  # also where the later line abstained: it is asked again
                if line.complete:
                    self._known[line.digest] = place

    def holds(self, row: int, digest: str) -> bool:
        """Whether an earlier run scored this row completely; it then counts as a row of this run."""
        place = self._known.get(digest)
        if place is None:
            return False
        self.rows.append(row)
        self.places.append(place)
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
        if not self._known and self.count == len(self.places):
            return  # a first run, whose lines are in order
        rows, places = set(self.rows), set(self.places)
        others = [] if whole else [place for place in sorted(self._known.values()) if place not in places]
        rest = (line for line in map(self.line, others) if LINE.decode(line).row not in rows)
        self.replace(chain((self._numbered(self.rows[at], self.places[at]) for at in np.argsort(self.rows)), rest))

    def _numbered(self, row: int, place: int) -> bytes:
        """The line at this place as that of the row, which may stand elsewhere than when it was scored."""
        line = self.line(place)
        if line.startswith(b'{"row":%d,' % row):
            return line
        return msgspec.json.encode({**msgspec.json.decode(line), "row": row}) + b"\n"
