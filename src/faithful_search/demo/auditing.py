"""Audit what a visitor pasted or uploaded: in words, as a table, and row by row."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec
from tqdm import tqdm

from .. import dialects
from ..errors import DataError
from ..measure.audit import audit, choose_rows, pick
from ..measure.report import interval
from ..measure.report.asks import asks
from ..measure.scores import SCORES
from ..measure.summary import Audit
from ..trajectory import Trajectory

MOST_ROWS, MOST_CHARACTERS = 200, 5_000_000


class Audited(msgspec.Struct, frozen=True):
    """What was found: sentences, a row for each metric (name, question, mean with interval, n), the trajectories."""

    words: tuple[str, ...]
    table: tuple[tuple[str, str, str, str], ...]
    rows: tuple[tuple[int, Trajectory], ...]


def audited(text: str, dialect: str | None = None) -> Audited:
    """Audit a text: a trajectory, a chat as JSON, or rows as JSON or JSON lines, of which the first 200 are read.

    Args:
        text: what was pasted or uploaded.
        dialect: how it is written; `None` detects it row by row.

    Raises:
        DataError: when there is nothing that can be read, or too much.
    """
    if not text.strip() or len(text) > MOST_CHARACTERS:
        raise DataError(f"too long: at most {MOST_CHARACTERS:,} characters" if text.strip() else "nothing to audit")
    with TemporaryDirectory() as folder:
        source = Path(folder) / "pasted.json"
        source.write_text(_rows(text), encoding="utf-8", errors="replace")
        quiet = partial(tqdm, disable=True)
        found = audit(source, Path(folder) / "audit", dialect=dialect, limit=MOST_ROWS, workers=1, on_progress=quiet)
        chosen = choose_rows(Path(folder) / "audit" / SCORES, found.primary, MOST_ROWS)
        rows = tuple(pick(source, chosen, dialect))
    table = tuple((name, asks(name), interval(row), str(row.n)) for name, row in found.rows.items() if row.n)
    return Audited(tuple(_words(found, [one for _, one in rows], text)), table, rows)


def _rows(text: str) -> str:
    """Rows as `measure.rows` reads them: a chat and a plain text become one row."""
    try:
        value = json.loads(text)
    except ValueError:
        rows_follow = text.lstrip().startswith("{")
        return text if rows_follow else json.dumps({"text": text})
    if isinstance(value, list) and all(isinstance(item, dict) and "role" in item for item in value):
        return json.dumps({"messages": value})
    return text if isinstance(value, (dict, list)) else json.dumps({"text": text})


def _words(found: Audit, read: Sequence[Trajectory], text: str) -> list[str]:
    written = ", ".join(f"{name} ({count})" for name, count in found.dialects.items())
    said = [f"{_many(found.n)} read, written in {written}."]
    if found.n == 1:
        told = dialects.detect(text)
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
        said.append(f"{found.errors} rows could not be read; row {found.unread[0].row}: {found.unread[0].error}")
    return said


def _many(count: int) -> str:
    return f"{count} trajector{'y' if count == 1 else 'ies'}"
