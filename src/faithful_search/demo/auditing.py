"""Audit what a visitor pasted, uploaded or named on the Hub: in words, as a table, and row by row."""

import json
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory

import msgspec
from tqdm import tqdm

from .. import dialects
from ..errors import DataError
from ..measure.audit import audit
from ..measure.metrics import asks
from ..measure.report import interval, page
from ..measure.rows import pick
from ..measure.scores import SCORES, read_scores
from ..measure.settings import Reading
from ..measure.summary import Audit, choose_rows
from ..trajectory import Trajectory

MOST_ROWS, MOST_CHARACTERS = 200, 5_000_000
HUB = "hf://"
_BINS = 10


class Bin(msgspec.Struct, frozen=True):
    """A part of a metric's scale, the rows with such a score, and its height in percent of the highest."""

    name: str
    rows: tuple[int, ...]
    height: int


class Metric(msgspec.Struct, frozen=True):
    """A line of the table: the mean with its interval over `n` questions, and a histogram of the rows."""

    name: str
    asks: str
    mean: str
    n: int
    bins: tuple[Bin, ...]


class Row(msgspec.Struct, frozen=True):
    """A trajectory and its row in the file; `value` is its score by the metric that the rows are sorted by."""

    number: int
    value: float | None
    trajectory: Trajectory


class Audited(msgspec.Struct, frozen=True):
    """An audit in sentences, a line for each metric, the rows from the worst on, and `scores.jsonl`."""

    words: tuple[str, ...]
    table: tuple[Metric, ...]
    rows: tuple[Row, ...]
    found: Audit
    scores: str

    def report(self) -> str:
        """The page that `faithful-search audit` writes."""
        with TemporaryDirectory() as folder:
            scores = Path(folder) / SCORES
            scores.write_text(self.scores, encoding="utf-8")
            shown = sorted((row.number, row.trajectory) for row in self.rows)
            return page.write(Path(folder) / "report.html", self.found, scores, shown).read_text("utf-8")


def audited(text: str, dialect: str | None = None) -> Audited:
    """Audit a text: a trajectory, a chat as JSON, or rows as JSON or JSON lines, of which the first 200 are read.

    Args:
        text: what was pasted or uploaded, or the address of a file on the Hub: `hf://datasets/ORG/NAME/FILE.jsonl`.
        dialect: how it is written; `None` detects it row by row.

    Raises:
        DataError: when there is nothing that can be read, or too much.
    """
    if not text.strip() or len(text) > MOST_CHARACTERS:
        raise DataError(f"too long: at most {MOST_CHARACTERS:,} characters" if text.strip() else "nothing to audit")
    with TemporaryDirectory() as folder:
        source = _source(text.strip(), Path(folder))
        scores = Path(folder) / "audit" / SCORES
        quiet = partial(tqdm, disable=True)  # a server's terminal is not for its visitors' rows
        found = audit(source, scores.parent, dialect=dialect, limit=MOST_ROWS, workers=1, on_progress=quiet)
        read = dict(pick(source, choose_rows(scores, found.primary, MOST_ROWS), Reading(dialect)))
        values = {
            line.row: {name: cell.value for name, cell in line.scores.items() if cell.value is not None}
            for line in read_scores(scores)
        }
        rows = [Row(number, values[number].get(found.primary or ""), one) for number, one in read.items()]
        rows.sort(key=lambda row: (row.value is None, row.value))
        table = tuple(
            Metric(name, asks(name), interval(row), row.n, _bins(name, values, found.bounds.get(name)))
            for name, row in found.rows.items()
            if row.n
        )
        words = tuple(_words(found, list(read.values()), text))
        return Audited(words, table, tuple(rows), found, scores.read_text("utf-8"))


def _source(text: str, folder: Path) -> Path:
    """The text as a file of rows as `measure.rows` reads them: a chat and a plain text become one row."""
    if text.startswith(HUB) and "\n" not in text:
        # The endings alone: they say how it is read, and the rest of the name is a stranger's
        source = folder / f"rows{''.join(PurePosixPath(text).suffixes[-2:])}"
        source.write_bytes(_fetched(text))
        return source
    source = folder / "pasted.json"
    try:
        value = json.loads(text)
    except ValueError:
        # JSON lines begin like JSON; anything else is one trajectory as plain text
        text = text if text.startswith("{") else json.dumps({"text": text})
    else:
        if isinstance(value, list) and all(isinstance(item, dict) and "role" in item for item in value):
            text = json.dumps({"messages": value})
        elif not isinstance(value, (dict, list)):
            text = json.dumps({"text": text})
    source.write_text(text, encoding="utf-8", errors="replace")
    return source


def _fetched(address: str) -> bytes:
    """A public file of the Hub. The server's own token is not for its visitors, so private ones are not found."""
    import httpx2
    from huggingface_hub import HfFileSystem

    try:
        with HfFileSystem(token=False).open(address, "rb") as file:
            data: bytes = file.read(MOST_CHARACTERS + 1)
    except (OSError, ValueError, NotImplementedError, httpx2.HTTPError) as error:  # the Hub's own are OSErrors
        raise DataError(f"cannot read {address}: {str(error).strip() or type(error).__name__}") from error
    if len(data) > MOST_CHARACTERS:
        raise DataError(f"{address} is too large for this page: at most {MOST_CHARACTERS:,} bytes")
    return data


def _bins(name: str, scores: Mapping[int, Mapping[str, float]], bounds: tuple[float, float] | None) -> tuple[Bin, ...]:
    """Equal parts of the scale with their rows; none for a metric that does not score rows."""
    values = {row: found[name] for row, found in scores.items() if name in found}
    if not values or bounds is None:
        return ()
    low, width = bounds[0], (bounds[1] - bounds[0]) / _BINS
    # 1e-9: 0.3 / 0.1 is a little less than 3
    places = {row: min(_BINS - 1, int((value - low) / width + 1e-9)) for row, value in values.items()}
    groups = [tuple(row for row, at in places.items() if at == place) for place in range(_BINS)]
    most = max(map(len, groups))
    return tuple(
        Bin(f"{low + width * place:.1f} to {low + width * (place + 1):.1f}", rows, round(100 * len(rows) / most))
        for place, rows in enumerate(groups)
    )


def _words(found: Audit, read: Sequence[Trajectory], text: str) -> list[str]:
    written = ", ".join(f"{name} ({count})" for name, count in found.dialects.items())
    said = [f"{_many(found.n)} read, written in {written}."]
    if found.n == 1:
        told = dialects.detect(read[0].text or text)
        said.append(f"What tells how it is written: {told.why} (confidence {told.confidence:.2f}).")
    forged = sum(any(ref not in one.evidence for step in one.steps for ref in step.refs) for one in read)
    if forged:
        said.append(f"{_many(forged)} of {found.n} cite evidence that was never returned.")
    if silent := sum(one.answer is None for one in read):
        said.append(f"{_many(silent)} of {found.n} give no answer.")
    if found.issues:
        kinds = ", ".join(f"{name} ({count})" for name, count in found.issues.items())
        said.append(f"{_many(found.n - found.clean)} of {found.n} have mistakes in their writing: {kinds}.")
    if found.errors:
        said.append(f"{found.errors} rows could not be read; row {found.unread[0].row}: {found.unread[0].why}")
    return said


def _many(count: int) -> str:
    return f"{count} trajector{'y' if count == 1 else 'ies'}"
