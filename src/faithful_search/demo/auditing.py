"""Audit what a visitor pasted, uploaded or named on the Hub: in words, as a table, and row by row."""

import json
from collections import defaultdict
from collections.abc import Sequence
from functools import partial
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import msgspec
from tqdm import tqdm

from .. import dialects
from ..errors import DataError
from ..measure.audit import audit
from ..measure.report import page
from ..measure.rows import pick
from ..measure.scores import SCORES, read_scores
from ..measure.settings import Reading
from ..measure.stats import Estimate
from ..measure.summary import Audit
from ..trajectory import Trajectory

MOST_ROWS, MOST_CHARACTERS = 200, 5_000_000
HUB = "hf://"
_BINS = 10


class Row(NamedTuple):
    """A trajectory and its row in the file; `value` is its score by the metric that the rows are sorted by."""

    number: int
    value: float | None
    trajectory: Trajectory


class Audited(msgspec.Struct, frozen=True):
    """An audit, what it says in words, the rows from the worst on, each metric's values by row, and `scores.jsonl`."""

    audit: Audit
    words: list[str]
    rows: list[Row]
    values: dict[str, dict[int, float]]
    scores: str

    @property
    def table(self) -> dict[str, Estimate]:
        """The mean of each metric that says something of these rows."""
        return {name: estimate for name, estimate in self.audit.rows.items() if estimate.n}

    def bins(self, metric: str) -> list[dict[str, Any]]:
        """Equal parts of a metric's scale: the rows in each, and its height in percent of the highest."""
        values, bounds = self.values.get(metric), self.audit.bounds.get(metric)
        if not values or bounds is None:
            return []
        low, width = bounds[0], (bounds[1] - bounds[0]) / _BINS
        parts: list[list[int]] = [[] for _ in range(_BINS)]
        for row, value in values.items():
            parts[min(_BINS - 1, int((value - low) / width + 1e-9))].append(
                row
            )  # 0.3 / 0.1 is a little less than 3
        most = max(map(len, parts))
        return [
            {"name": f"{low + width * place:.1f} to {low + width * (place + 1):.1f}", "rows": rows}
            | {"height": round(100 * len(rows) / most)}
            for place, rows in enumerate(parts)
        ]

    def report(self) -> str:
        """The page that `faithful-search audit` writes."""
        with TemporaryDirectory() as folder:
            scores = Path(folder) / SCORES
            scores.write_text(self.scores, encoding="utf-8")
            shown = sorted((row.number, row.trajectory) for row in self.rows)
            return page.write(Path(folder) / "report.html", self.audit, scores, shown).read_text(
                "utf-8"
            )


def audited(text: str, dialect: str | None = None) -> Audited:
    """Audit a text: a trajectory, a chat as JSON, or rows as JSON or JSON lines, of which the first 200 are read.

    Args:
        text: what was pasted or uploaded, or the address of a file on the Hub: `hf://datasets/ORG/NAME/FILE.jsonl`.
        dialect: how it is written; `None` detects it row by row.

    Raises:
        DataError: when there is nothing that can be read, or too much.
    """
    if not text.strip() or len(text) > MOST_CHARACTERS:
        raise DataError(
            f"too long: at most {MOST_CHARACTERS:,} characters"
            if text.strip()
            else "nothing to audit"
        )
    with TemporaryDirectory() as folder:
        source = _source(text.strip(), Path(folder))
        scores = Path(folder) / "audit" / SCORES
        quiet = partial(tqdm, disable=True)  # a server's terminal is not for its visitors' rows
        found = audit(
            source, scores.parent, dialect=dialect, limit=MOST_ROWS, workers=1, on_progress=quiet
        )
        values: defaultdict[str, dict[int, float]] = defaultdict(dict)
        for line in read_scores(scores):
            for name, cell in line.scores.items():
                if cell.value is not None:
                    values[name][line.row] = cell.value
        primary = values.get(found.primary or "", {})
        read = pick(source, range(1, MOST_ROWS + 1), Reading(dialect))
        rows = [Row(number, primary.get(number), trajectory) for number, trajectory in read]
        rows.sort(key=lambda row: (row.value is None, row.value))
        return Audited(
            found, _words(found, rows, text), rows, dict(values), scores.read_text("utf-8")
        )


def _source(text: str, folder: Path) -> Path:
    """The text as a file of rows as `measure.rows` reads them: a chat and a plain text become one row."""
    if text.startswith(HUB) and "\n" not in text:
        # The endings alone: they say how it is read, and the rest of the name is a stranger's
        source = folder / f"rows{''.join(PurePosixPath(text).suffixes[-2:])}"
        source.write_bytes(_fetched(text))
        return source
    value: Any = None
    try:
        value = json.loads(text)
    except ValueError:
        # JSON lines begin like JSON; anything else is one trajectory as plain text
        text = text if text.startswith("{") else json.dumps({"text": text})
    if isinstance(value, list) and all(isinstance(item, dict) and "role" in item for item in value):
        text = json.dumps({"messages": value})
    elif isinstance(value, (str, int, float)):
        text = json.dumps({"text": text})
    source = folder / "pasted.json"
    source.write_text(text, encoding="utf-8", errors="replace")
    return source


def _fetched(address: str) -> bytes:
    """A public file of the Hub. The server's own token is not for its visitors, so private ones are not found."""
    import httpx2
    from huggingface_hub import HfFileSystem

    try:
        with HfFileSystem(token=False).open(address, "rb") as file:
            data: bytes = file.read(MOST_CHARACTERS + 1)
    except (
        OSError,
        ValueError,
        NotImplementedError,
        httpx2.HTTPError,
    ) as error:  # the Hub's own are OSErrors
        raise DataError(
            f"cannot read {address}: {str(error).strip() or type(error).__name__}"
        ) from error
    if len(data) > MOST_CHARACTERS:
        raise DataError(f"{address} is too large for this page: at most {MOST_CHARACTERS:,} bytes")
    return data


def _words(found: Audit, rows: Sequence[Row], text: str) -> list[str]:
    read = [row.trajectory for row in rows]
    written, kinds = (
        ", ".join(f"{name} ({count})" for name, count in counts.items())
        for counts in (found.dialects, found.issues)
    )
    said = [f"{_many(found.n)} read, written in {written}."]
    if found.n == 1:
        told = dialects.detect(read[0].text or text)
        said.append(f"What tells how it is written: {told.why} (confidence {told.confidence:.2f}).")
    forged = [
        one
        for one in read
        if any(ref not in one.evidence for step in one.steps for ref in step.refs)
    ]
    counts = {
        "cite evidence that was never returned": len(forged),
        "give no answer": sum(one.answer is None for one in read),
        f"have mistakes in their writing: {kinds}": found.n - found.clean,
    }
    said += [f"{_many(count)} of {found.n} {what}." for what, count in counts.items() if count]
    if found.errors:
        said.append(
            f"{found.errors} rows could not be read; row {found.unread[0].row}: {found.unread[0].why}"
        )
    return said


def _many(count: int) -> str:
    return f"{count} trajector{'y' if count == 1 else 'ies'}"
