"""Audit what a visitor pasted, uploaded or named on the Hub: in words, as a table, and row by
row.
"""

import json
import re
import sys
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import islice
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import msgspec
from tqdm import tqdm

from .. import dialects, loose_json
from ..errors import DataError, FaithfulSearchError, kind_of
from ..measure.audit import audit
from ..measure.report import page
from ..measure.scores import SCORES, read_scores
from ..measure.stats import Estimate
from ..measure.summary import Audit
from ..reading.files import read_json
from ..reading.rows import pick
from ..reading.settings import ReadingSettings
from ..text import well_formed
from ..trajectory import Trajectory, encoded
from ..wire.killable import Busy, Crashed, Late, NotStarted, Program, answer_lines

MOST_ROWS = 200  # of an audit
MOST_CHARACTERS = 5_000_000  # of a text, and bytes of a file
# Bytes of all rows: as JSON a pasted text takes some more than as it is.
MOST_UNPACKED = 2 * MOST_CHARACTERS
SECONDS = 30  # that the audit of one visitor may take
# The processes that audit: they run this module.
PROGRAM = Program(__name__, memory=1_500_000_000, workers=2, longest=1 << 28)
HUB = "hf://"
# The endings of files that say how they are read. Of other texts the text itself says it.
ENDINGS = (".jsonl", ".json")
# What messages call the text of a visitor, in place of the path at which this server keeps it
_NAME = "the text"
# The confidence from which the marks in a text are named that say how it is written
_LEAST_CONFIDENCE = 0.5
_ELSEWHERE = "`faithful-search audit` on your own machine has no such limit"
_BINS = 10
_BEGINS_JSON = re.compile(r"\{|\[\s*\{")  # an object, or an array of them, whole or broken


class AuditedRow(NamedTuple):
    """A trajectory, and the number of its row in the file. `value` is its score by the metric that
    the rows are sorted by; `None` where it has none.
    """

    number: int
    value: float | None
    trajectory: Trajectory


class Audited(msgspec.Struct, frozen=True):
    """An audit of a visitor's text.

    Attributes:
        words: what it says, in sentences.
        unread: what of the text could not be read, and why, in sentences.
        rows: the worst first.
        values: for each metric its values by the number of the row.
        scores: the content of `scores.jsonl`.
    """

    audit: Audit
    words: list[str]
    unread: list[str]
    rows: list[AuditedRow]
    values: dict[str, dict[int, float]]
    scores: str

    @property
    def table(self) -> dict[str, Estimate]:
        """The mean of each metric that says something of these rows."""
        return {name: estimate for name, estimate in self.audit.rows.items() if estimate.n}

    def bins(self, metric: str) -> list[dict[str, Any]]:
        """A histogram of a metric, for the bars of the page.

        Each bin has a `name`, such as "0.2 to 0.3", the numbers of its `rows`, and its `height` in
        percent of the highest.
        """
        values = self.values.get(metric)
        bounds = self.audit.bounds.get(metric)
        if not values or bounds is None:
            return []
        low, high = bounds
        width = (high - low) / _BINS
        rows_of_bins: list[list[int]] = [[] for _ in range(_BINS)]
        for row, value in values.items():
            # With a little added, since 0.3 / 0.1 is a little less than 3.
            place = int((value - low) / width + 1e-9)
            rows_of_bins[min(_BINS - 1, place)].append(row)
        most = max(map(len, rows_of_bins))
        bins = []
        for place, rows in enumerate(rows_of_bins):
            begin, end = low + width * place, low + width * (place + 1)
            height = round(100 * len(rows) / most)
            bins.append({"name": f"{begin:.1f} to {end:.1f}", "rows": rows, "height": height})
        return bins

    def report(self) -> str:
        """The page that `faithful-search audit` writes."""
        with TemporaryDirectory() as folder:
            scores = Path(folder) / SCORES
            scores.write_text(self.scores, encoding="utf-8")
            rows = sorted((row.number, row.trajectory) for row in self.rows)
            report = page.write(Path(folder) / "report.html", self.audit, scores, rows)
            return report.read_text("utf-8")


class _Job(msgspec.Struct, frozen=True):
    """What the process is asked: a text, or the bytes of a file whose name ends in `ending`."""

    text: str
    dialect: str | None
    ending: str
    file: bytes = b""


def audited(text: str, dialect: str | None = None, ending: str = "") -> Audited:
    """Audit a text: a trajectory, a chat as JSON, or rows as JSON or JSON lines, of which the first
    200 are read.

    A row that cannot be read costs no other row, and is named in `Audited.unread`. A process of its
    own reads and scores everything, and is killed when it takes longer than `SECONDS`: whatever one
    visitor sends, others need not wait for it. Thread-safe.

    Args:
        text: what was pasted or uploaded, or the address of a file on the Hub:
            `hf://datasets/ORG/NAME/FILE.jsonl`.
        dialect: how it is written; `None` detects it row by row.
        ending: of the file that the text was read from, one of `ENDINGS`; else the text tells.

    Raises:
        DataError: when there is nothing that can be read, too much, or what takes too long.
    """
    text = well_formed(text.strip())
    if not text:
        raise DataError("there is no text to audit")
    if len(text) > MOST_CHARACTERS:
        raise DataError(f"the text is too long: at most {MOST_CHARACTERS:,} characters")
    job = _Job(text, dialect, ending)
    if text.startswith(HUB) and "\n" not in text:
        # Of the name only the endings, which say how the file is read: the rest is a stranger's.
        endings = "".join(PurePosixPath(text).suffixes[-2:])
        job = _Job("", dialect, endings, file=_fetched(text))
    try:
        with PROGRAM.worker(time.monotonic() + SECONDS) as worker:
            reply = worker.ask(msgspec.json.encode(job), SECONDS)
            answer = msgspec.json.decode(reply, type=Audited | str)
    except Busy:
        raise DataError("other visitors' texts are being audited: try again in a minute") from None
    except Late:
        raise DataError(f"this takes longer than {SECONDS} seconds; {_ELSEWHERE}") from None
    except (Crashed, NotStarted, msgspec.MsgspecError, RecursionError):
        raise DataError(f"this takes more than this page has; {_ELSEWHERE}") from None
    if isinstance(answer, str):
        raise DataError(answer)
    return answer


def answer_to(line: bytes) -> bytes:
    """What the process answers: the audit, or why there is none."""
    job = msgspec.json.decode(line, type=_Job)
    with TemporaryDirectory() as folder:
        source = _source(job, Path(folder))
        try:
            return encoded(_audited(source, job))
        except FaithfulSearchError as error:
            return encoded(str(error).replace(str(source), _NAME))
        except Exception as error:  # nothing that a visitor sends ends the process
            return encoded(f"this cannot be audited: {kind_of(error)}")


def _audited(source: Path, job: _Job) -> Audited:
    """Audit a file, with its results beside it."""
    _check_unpacked(source)
    scores = source.with_name("audit") / SCORES
    quiet = partial(tqdm, disable=True)
    result = audit(
        source, scores.parent, dialect=job.dialect, limit=MOST_ROWS, workers=1, on_progress=quiet
    )
    values: defaultdict[str, dict[int, float]] = defaultdict(dict)
    numbers = []
    for line in read_scores(scores):
        numbers.append(line.row)
        for name, cell in line.scores.items():
            if cell.value is not None:
                values[name][line.row] = cell.value
    primary = values.get(result.primary or "", {})
    trajectories = pick(source, numbers, ReadingSettings(job.dialect))
    rows = []
    for number, trajectory in trajectories:
        rows.append(AuditedRow(number, primary.get(number), trajectory))
    rows.sort(key=lambda row: (row.value is None, row.value))  # without a value last
    return Audited(
        audit=result,
        words=_words(result, rows, job.text),
        unread=[sentence.replace(str(source), _NAME) for sentence in _unread(result, source)],
        rows=rows,
        values=dict(values),
        scores=scores.read_text("utf-8"),
    )


def _check_unpacked(source: Path) -> None:
    """Raise `DataError` for a file that unpacks to more than `MOST_UNPACKED` bytes."""
    size = 0
    with suppress(DataError):  # the audit says what cannot be read
        for _, data in read_json(source):
            size += len(data) if isinstance(data, bytes) else 0
            if size > MOST_UNPACKED:
                break
    if size > MOST_UNPACKED:
        raise DataError(f"{_NAME} unpacks to more than {MOST_UNPACKED:,} bytes; {_ELSEWHERE}")


def _source(job: _Job, folder: Path) -> Path:
    """What was sent as a file of rows, as `reading.rows` reads it. A chat and a plain text become
    one row.
    """
    text = job.text
    ending = job.ending
    if job.file:
        source = folder / f"rows{ending}"
        source.write_bytes(job.file)
        return source
    value: Any = None
    with suppress(DataError):
        value = loose_json.decode(text)
    is_list = isinstance(value, list)
    if is_list and all(isinstance(entry, dict) and "role" in entry for entry in value):
        text = json.dumps({"messages": value})
        ending = ".json"
    elif ending not in ENDINGS:
        ending = ".jsonl" if _is_lines(text) else ".json"
        if not is_list and not _BEGINS_JSON.match(text):
            text = json.dumps({"text": value if isinstance(value, str) else text})
    source = folder / f"rows{ending}"
    source.write_text(text, encoding="utf-8", errors="replace")
    return source


def _is_lines(text: str) -> bool:
    """Whether these are JSON lines: some line is an object by itself. A line that is indented does
    not count, since it is part of an object over several lines.
    """
    return any(line.startswith("{") and _is_object(line) for line in text.split("\n"))


def _is_object(line: str) -> bool:
    """Whether a line is a JSON object."""
    with suppress(DataError):
        return isinstance(loose_json.decode(line), dict)
    return False


def _fetched(address: str) -> bytes:
    """The bytes of a public file of the Hub. The server's own token is not used, since it is not
    for visitors. Raises `DataError` where there is no such file, or it is too large.
    """
    import httpx2
    from huggingface_hub import HfFileSystem

    try:
        with HfFileSystem(token=False).open(address, "rb") as file:
            data: bytes = file.read(MOST_CHARACTERS + 1)
    except (OSError, ValueError, NotImplementedError, httpx2.HTTPError) as error:
        # The Hub's own errors are OSErrors.
        raise DataError(
            f"cannot read {address}: {str(error).strip() or type(error).__name__}"
        ) from error
    if len(data) > MOST_CHARACTERS:
        raise DataError(f"{address} is too large for this page: at most {MOST_CHARACTERS:,} bytes")
    return data


def _words(result: Audit, rows: Sequence[AuditedRow], text: str) -> list[str]:
    """What the page says of an audit, in sentences.

    Args:
        text: what was pasted or uploaded; empty for a file of the Hub.
    """
    trajectories = [row.trajectory for row in rows]
    sentences = [f"{_many(result.n)} read, written in {_with_counts(result.dialects)}."]
    detection = dialects.detect(trajectories[0].text or text)
    # Of a chat, which is read by its messages, the marks in the text say nothing.
    is_read_by_marks = detection.dialect == trajectories[0].dialect
    if result.n == 1 and is_read_by_marks and detection.confidence > _LEAST_CONFIDENCE:
        sentences.append(
            f"What tells how it is written: {detection.why} (confidence "
            f"{detection.confidence:.2f})."
        )
    mistakes = _with_counts(result.issues)
    counts = {
        "cite evidence that was never returned": sum(map(_cites_unknown, trajectories)),
        "give no answer": sum(trajectory.answer is None for trajectory in trajectories),
        f"have mistakes in their writing: {mistakes}": result.n - result.clean,
    }
    for description, count in counts.items():
        if count:
            sentences.append(f"{_many(count)} of {result.n} {description}.")
    return sentences


def _with_counts(counts: Mapping[str, int]) -> str:
    """`pou (3), openai (2)`."""
    return ", ".join(f"{name} ({count})" for name, count in counts.items())


def _cites_unknown(trajectory: Trajectory) -> bool:
    """Whether an agent cites evidence that was never returned."""
    refs: set[str] = set()
    for step in trajectory.steps:
        refs.update(step.refs)
    return not refs <= trajectory.evidence.keys()


def _unread(result: Audit, source: Path) -> list[str]:
    """What of the source is not in the audit, and why: as `faithful-search audit` says it."""
    sentences = [f"Row {row.row} could not be read: {row.why}" for row in result.unread]
    if result.errors > len(result.unread):
        sentences.append(f"{result.errors - len(result.unread)} more rows could not be read.")
    if result.source_error:
        sentences.append(f"The source could not be read to its end: {result.source_error}")
    elif _has_more(source):
        sentences.append(
            f"Only the first {MOST_ROWS} rows are read here; `faithful-search audit` reads all."
        )
    return sentences


def _has_more(source: Path) -> bool:
    """Whether a file has more rows than are read."""
    with suppress(DataError):
        return next(islice(read_json(source), MOST_ROWS, None), None) is not None
    return True  # it is broken behind the rows that were read


def _many(count: int) -> str:
    return f"{count} trajector{'y' if count == 1 else 'ies'}"


if __name__ == "__main__":
    answer_lines(answer_to, int(sys.argv[1]), writes_files=True)
