"""A file's rows with an audit's scores of them, for whoever writes them down elsewhere."""

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from ..errors import DataError
from ..reading.files import PathLike
from ..reading.rows import Raw, RowSource
from ..trajectory import Trajectory
from .scores import SCORES, Line, read_scores
from .summary import NAMED


class Document(msgspec.Struct, frozen=True):
    """One row: its trajectory, its scores and their reasons, and when it was converted, where a
    format wants a time.
    """

    row: int
    trajectory: Trajectory
    now: datetime
    scores: dict[str, float | None] = {}
    reasons: dict[str, str] = {}

    @property
    def name(self) -> str:
        return self.trajectory.id or f"row-{self.row}"

    @property
    def metadata(self) -> dict[str, Any]:
        """What the formats have no place of their own for."""
        trajectory = self.trajectory
        verdicts = {
            str(number): {"helpful": step.helpful, "refs": list(step.refs)}
            for number, step in enumerate(trajectory.steps, start=1)
            if step.helpful is not None
        }
        issues = [{"kind": issue.kind, "why": issue.why} for issue in trajectory.all_issues()]
        metadata = {
            "id": trajectory.id,
            "row": self.row,
            "question": trajectory.question,
            "answer": trajectory.answer,
            "gold_answers": list(trajectory.answers),
            "read_as": trajectory.dialect,
            "stop_reason": trajectory.stop_reason,
            "verdicts": verdicts,
            "issues": issues,
            "scores": self.scores,
            "reasons": self.reasons,
        }
        empty: tuple[Any, ...] = (None, "", [], {})  # 0 is a value
        return {name: value for name, value in metadata.items() if value not in empty}


class Converted(msgspec.Struct):
    """What became of a file's rows: why some are `unread`, and the numbers of those with what looks
    like a key. `valueless` scores are those that no judge gave, or that do not apply.
    """

    written: int = 0
    scored: int = 0
    valueless: int = 0
    unread: list[str] = []
    secrets: list[int] = []

    def messages(self, scrub: bool) -> list[str]:
        """The messages for the user, one a line. `scrub`: keys were taken out."""
        lines = []
        if self.unread:
            lines.append(f"rows that could not be read: {len(self.unread)}")
            lines += [f"  {why}" for why in self.unread[:NAMED]]
        if self.secrets:
            named = ", ".join(map(str, self.secrets[:NAMED]))
            if len(self.secrets) > NAMED:
                named += ", …"
            keys_fate = "were taken out" if scrub else "are still there: --scrub takes them out"
            lines.append(f"things that look like keys, in rows {named}, {keys_fate}")
        return lines


def documents_of(
    rows: RowSource, scores: PathLike | None, conversion: Converted
) -> Iterator[Document]:
    """Each row that can be read, with its scores; counted in `conversion`, the others named there.

    Raises `DataError` where the scores are of other rows.
    """
    now = datetime.now(UTC)
    for raw, line in with_scores(rows, scores):
        row = rows.reader(raw)
        if row.trajectory is None:
            conversion.unread.append(f"row {raw.number}: {row.error}")
            continue
        cells = line.scores if line is not None else {}
        conversion.scored += bool(cells)
        conversion.valueless += sum(cell.value is None for cell in cells.values())
        yield Document(
            row=raw.number,
            trajectory=row.trajectory,
            now=now,
            scores={name: cell.value for name, cell in cells.items()},
            reasons={name: cell.why for name, cell in cells.items() if cell.why},
        )


def with_scores(rows: RowSource, scores: PathLike | None) -> Iterator[tuple[Raw, Line | None]]:
    """Each row with its line of the scores; both files are in the order of the source, so neither
    is held.
    """
    lines: Iterator[Line] = iter(())
    if scores is not None:
        path = Path(scores)
        lines = read_scores(path / SCORES if path.is_dir() else path)
    line = next(lines, None)
    for raw in rows:
        while line is not None and line.row < raw.number:
            line = next(lines, None)
        line_of_row = line if line is not None and line.row == raw.number else None
        if line_of_row is not None and line_of_row.digest != raw.digest:
            raise DataError(
                f"{scores}: row {raw.number} is not the row that was scored; audit the file again"
            )
        yield raw, line_of_row
