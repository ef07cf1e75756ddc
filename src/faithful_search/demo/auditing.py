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
from itertools import chain, islice
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

MOST_ROWS, MOST_CHARACTERS = 200, 5_000_000
MOST_UNPACKED = 2 * MOST_CHARACTERS
"""Bytes of all rows; as JSON a pasted text takes some more than as it is."""
SECONDS = 30
"""The most that one visitor's audit may take."""
PROGRAM = Program(__name__, memory=1_500_000_000, workers=2, longest=1 << 28)
"""The processes that audit: this module, run."""
HUB = "hf://"
ENDINGS = (".jsonl", ".json")
"""Of files whose ending says how they are read. The form of any other text is told from the text.
"""
_NAMED = "the text"  # what a visitor sent, instead of where this server keeps it
_TELLING = 0.5  # the confidence from which the marks of a text say how it is written
_ELSEWHERE = "`faithful-search audit` on your own machine has no such limit"
_BINS = 10
_BEGINS_JSON = re.compile(r"\{|\[\s*\{")  # an object, or an array of them, whole or broken


class AuditedRow(NamedTuple):
    """A trajectory and its row in the file; `value` is its score by the metric that the rows are
    sorted by.
    """

    number: int
    value: float | None
    trajectory: Trajectory


class Audited(msgspec.Struct, frozen=True):
    """An audit, what it says in words, what of the text could not be read and why, the rows from
    the worst on, each metric's values by row, and `scores.jsonl`.
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
        """Equal parts of a metric's scale: the rows in each, and its height in percent of the
        highest.
        """
        values = self.values.get(metric)
        bounds = self.audit.bounds.get(metric)
        if not values or bounds is None:
            return []
        low, high = bounds
        width = (high - low) / _BINS
        rows_of_bins: list[list[int]] = [[] for _ in range(_BINS)]
        for row, value in values.items():
            place = int((value - low) / width + 1e-9)  # 0.3 / 0.1 is a little less than 3
            rows_of_bins[min(place, _BINS - 1)].append(row)  # the last one holds its upper end, too
        most = max(map(len, rows_of_bins))
        bins = []
        for place, rows in enumerate(rows_of_bins):
            start = low + width * place
            end = low + width * (place + 1)
            name = f"{start:.1f} to {end:.1f}"
            bins.append({"name": name, "rows": rows, "height": round(100 * len(rows) / most)})
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

    A row that cannot be read costs no other row, and is named in `Audited.unread`. All is read and
    scored in a process of its own, which is killed when it takes longer than `SECONDS`: whatever
    one visitor sends, others need not wait for it. Thread-safe.

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
        # The endings alone: they say how it is read, and the rest of the name is a stranger's
        job = _Job("", dialect, "".join(PurePosixPath(text).suffixes[-2:]), _fetched(text))
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
            return encoded(str(error).replace(str(source), _NAMED))
        except Exception as error:  # nothing that a visitor sends ends the process
            return encoded(f"this cannot be audited: {kind_of(error)}")


def _audited(source: Path, job: _Job) -> Audited:
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
    rows.sort(key=_worst_first)
    return Audited(
        audit=result,
        words=_words(result, rows, job.text),
        unread=[sentence.replace(str(source), _NAMED) for sentence in _unread(result, source)],
        rows=rows,
        values=dict(values),
        scores=scores.read_text("utf-8"),
    )


def _worst_first(row: AuditedRow) -> tuple[bool, float]:
    """The place of a row by its value; rows without one come last."""
    return row.value is None, row.value or 0.0


def _check_unpacked(source: Path) -> None:
    """Raise `DataError` where a file of few bytes holds many."""
    size = 0
    with suppress(DataError):  # what cannot be read is said by the audit
        for _, data in read_json(source):
            if isinstance(data, bytes):
                size += len(data)
            if size > MOST_UNPACKED:
                break
    if size > MOST_UNPACKED:
        raise DataError(f"{_NAMED} unpacks to more than {MOST_UNPACKED:,} bytes; {_ELSEWHERE}")


def _source(job: _Job, folder: Path) -> Path:
    """The text as a file of rows as `reading.rows` reads them: a chat and a plain text become one
    row.
    """
    if job.file:
        source = folder / f"rows{job.ending}"
        source.write_bytes(job.file)
        return source
    text = job.text
    ending = job.ending
    value: Any = None
    with suppress(DataError):
        value = loose_json.decode(text)
    if _is_chat(value):
        text = json.dumps({"messages": value})
        ending = ".json"
    elif ending not in ENDINGS:
        ending = ".jsonl" if _is_lines(text) else ".json"
        holds_rows = isinstance(value, list) or _BEGINS_JSON.match(text)
        if not holds_rows:
            text = json.dumps({"text": value if isinstance(value, str) else text})
    source = folder / f"rows{ending}"
    source.write_text(text, encoding="utf-8", errors="replace")
    return source


def _is_chat(value: Any) -> bool:
    """Whether a JSON value is a list of chat messages."""
    if not isinstance(value, list):
        return False
    return all(isinstance(message, dict) and "role" in message for message in value)


def _is_lines(text: str) -> bool:
    """Whether these are JSON lines: some line is an object by itself. What stands indented is part
    of an object over several lines.
    """
    return any(line.startswith("{") and _is_object(line) for line in text.split("\n"))


def _is_object(line: str) -> bool:
    with suppress(DataError):
        return isinstance(loose_json.decode(line), dict)
    return False


def _fetched(address: str) -> bytes:
    """A public file of the Hub. The server's own token is not for its visitors, so private ones are
    not found.
    """
    import httpx2
    from huggingface_hub import HfFileSystem

    try:
        with HfFileSystem(token=False).open(address, "rb") as file:
            data: bytes = file.read(MOST_CHARACTERS + 1)
    # The Hub's own errors are OSErrors
    except (OSError, ValueError, NotImplementedError, httpx2.HTTPError) as error:
        why = str(error).strip() or type(error).__name__
        raise DataError(f"cannot read {address}: {why}") from error
    if len(data) > MOST_CHARACTERS:
        raise DataError(f"{address} is too large for this page: at most {MOST_CHARACTERS:,} bytes")
    return data


def _words(result: Audit, rows: Sequence[AuditedRow], text: str) -> list[str]:
    """What the audit says, in sentences."""
    trajectories = [row.trajectory for row in rows]
    sentences = [f"{_many(result.n)} read, written in {_listed(result.dialects)}."]
    detection = dialects.detect(trajectories[0].text or text)
    # A chat is read by its messages; the marks of a text say how this one was read
    is_read_so = detection.dialect == trajectories[0].dialect
    if result.n == 1 and is_read_so and detection.confidence > _TELLING:
        sentences.append(
            f"What tells how it is written: {detection.why} (confidence "
            f"{detection.confidence:.2f})."
        )
    counts = {
        "cite evidence that was never returned": sum(map(_cites_unreturned, trajectories)),
        "give no answer": sum(trajectory.answer is None for trajectory in trajectories),
        f"have mistakes in their writing: {_listed(result.issues)}": result.n - result.clean,
    }
    for description, count in counts.items():
        if count:
            sentences.append(f"{_many(count)} of {result.n} {description}.")
    return sentences


def _listed(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{name} ({count})" for name, count in counts.items())


def _cites_unreturned(trajectory: Trajectory) -> bool:
    """Whether a step cites evidence that no tool returned."""
    cited = chain.from_iterable(step.refs for step in trajectory.steps)
    return any(ref not in trajectory.evidence for ref in cited)


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
    with suppress(DataError):  # it is broken behind the rows that were read
        return next(islice(read_json(source), MOST_ROWS, None), None) is not None
    return True


def _many(count: int) -> str:
    return f"{count} trajector{'y' if count == 1 else 'ies'}"


if __name__ == "__main__":
    answer_lines(answer_to, int(sys.argv[1]), writes_files=True)
