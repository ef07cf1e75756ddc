"""`pairs.jsonl`: a labelled pair a line, appended as labels come, so that nothing is lost and nothing asked twice."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

import msgspec

from ...errors import DataError
from ...judges.base import Task
from ..audit.score_log import lock

PAIRS = "pairs.jsonl"


class LabelledPair(msgspec.Struct, frozen=True):
    """One line; `agreement.load` reads the file as any labelled one.

    Attributes:
        id: a digest of question, premise, hypothesis and task.
        question, premise, hypothesis, task: what the judge read.
        label, p: what it said, and the probability it gave, if it did.
        judge: what it calls itself, its prompt's version included.
        source: the file's name without its ending.
        trajectory, step: where the pair was first met: FILE:ROW, and the step (both from 1).
    """

    id: str
    question: str
    premise: str
    hypothesis: str
    task: Task
    label: bool
    p: float | None
    judge: str
    source: str
    trajectory: str
    step: int


class PairFile:
    """The open file: its `ids`, and how many rows say yes. Half a last line, of a run that was killed, is cut off.

    Raises:
        DataError: when it cannot be written, another run writes it, or a line holds no labelled pair.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.ids: set[str] = set()
        self.positives = 0
        self.judges: Counter[str] = Counter()
        self._end = 0
        try:
            path.touch()
            self._file = path.open("r+b")
            lock(self._file, path, "labelling")
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

    def append(self, rows: Sequence[LabelledPair]) -> None:
        """Add rows and hand them to the operating system.

        Raises:
            DataError: when they cannot be written; those before are kept.
        """
        data = b"".join(_ENCODER.encode(row) + b"\n" for row in rows)
        try:
            self._file.seek(self._end)
            self._file.write(data)
            self._file.flush()
        except OSError as error:
            raise DataError(
                f"cannot write {self.path}: {error}; {len(self.ids)} labels are in it, run again to go on"
            ) from error
        self._end += len(data)
        for row in rows:
            self._note(row)

    def _index(self) -> None:
        for number, data in enumerate(self._file, start=1):
            if not data.endswith(b"\n"):
                break
            try:
                self._note(_DECODER.decode(data))
            except (msgspec.MsgspecError, UnicodeError) as error:
                raise DataError(
                    f"{self.path}, line {number}: not a labelled pair ({error}); "
                    "take the line out, or use another folder"
                ) from error
            self._end += len(data)
        self._file.truncate(self._end)

    def _note(self, row: LabelledPair) -> None:
        self.ids.add(row.id)
        self.positives += row.label
        self.judges[row.judge] += 1


_ENCODER = msgspec.json.Encoder()
_DECODER = msgspec.json.Decoder(LabelledPair)
