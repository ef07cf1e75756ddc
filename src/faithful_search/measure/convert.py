"""Trajectories in anybody's form to trajectories in another's, row by row, with the scores that an audit gave them."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any

import msgspec

from ..errors import ConfigError, DataError
from ..wire.redact import REMOVED, redact
from .files import local_file
from .report.rollout import Scored
from .rows import Source
from .scores import SCORES
from .settings import Reading
from .summary import NAMED
from .writers import WRITERS, Document
from .writing import replacing, results_folder

_LINES = ".jsonl"
_UNSAFE = re.compile(r"[^\w.-]+", re.ASCII)


class Converted(msgspec.Struct, frozen=True):
    """What became of a file: rows `written`; those `unread`, with why; those in which something looks like a key, and
    how many keys that are; how many rows had scores."""

    written: int = 0
    unread: list[str] = []
    with_secrets: list[int] = []
    secrets: int = 0
    scored: int = 0


def convert(
    source: str | os.PathLike[str],
    out: str | os.PathLike[str],
    to: str,
    *,
    scores: str | os.PathLike[str] | None = None,
    scrub: bool = False,
    **settings: Any,
) -> Converted:
    """Write each row that can be read in another format.

    Args:
        source: as `audit` reads it.
        out: a file that ends in `.jsonl` gets one row a line; anything else is a folder that gets a file for each row.
        to: one of `WRITERS`.
        scores: an audit of the same rows, its folder or `scores.jsonl`; they become metadata.
        scrub: take out what `redact` takes for a secret. Otherwise such rows are only counted.
        settings: `dialect`, `text_column` and `limit`, as in `audit`.

    Raises:
        DataError: when the source cannot be read, the result not be written, or the scores are of other rows.
        ConfigError: for a format that there is not, or that cannot be a line of a file.
    """
    if to not in WRITERS:
        raise ConfigError(f"unknown format {to!r}; there are: {', '.join(WRITERS)}")
    if to == "pi" and Path(out).suffix == _LINES:
        raise ConfigError(f"a pi session is a file of its own: name a folder instead of {out}")
    given = Reading(**settings)
    rows = Source(local_file(source), given.dialect, given.text_column, given.limit)
    known = iter(()) if scores is None else _scores(Path(scores))
    written = secrets = scored = 0
    unread: list[str] = []
    suspicious: list[int] = []
    now = datetime.now(UTC)
    try:
        with ExitStack() as stack:
            target = _Target(Path(out), stack)
            line = next(known, None)
            for raw in rows:
                while line is not None and line.row < raw.number:
                    line = next(known, None)
                own = line if line is not None and line.row == raw.number else None
                if own is not None and own.digest != raw.digest:
                    raise DataError(f"{scores}: row {raw.number} is not the row that was scored; audit the file again")
                read = rows.reader(raw)
                if read.trajectory is None:
                    unread.append(f"row {raw.number}: {read.error}")
                    continue
                marked = own.scores if own is not None else {}
                scored += bool(marked)
                values = {name: score.value for name, score in marked.items()}
                reasons = {name: score.why for name, score in marked.items() if score.why}
                made = WRITERS[to](Document(raw.number, read.trajectory, now, values, reasons))
                clean = redact(made)
                if found := _count(clean) - _count(made):
                    secrets += found
                    suspicious.append(raw.number)
                target.write(f"{raw.number:06}-{read.trajectory.id}", clean if scrub else made)
                written += 1
    except OSError as error:
        raise DataError(f"cannot write {out}: {error}") from error
    if rows.error:
        unread.append(rows.error)
    return Converted(written, unread, suspicious, secrets, scored)


class _Target:
    """A file of lines, or a folder with a file for each row."""

    def __init__(self, out: Path, stack: ExitStack) -> None:
        self._folder: Path | None = None
        self._file: IO[bytes] | None = None
        if out.suffix == _LINES:
            results_folder(out.parent)
            self._file = stack.enter_context(replacing(out))
        else:
            self._folder = results_folder(out)

    def write(self, name: str, made: Any) -> None:
        """Add one row; a list is lines."""
        lines = made if isinstance(made, list) else [made]
        data = b"".join(msgspec.json.encode(line) + b"\n" for line in lines)
        if self._file is not None:
            self._file.write(data)
            return
        assert self._folder is not None
        short = _UNSAFE.sub("-", name).strip("-.")[:100]
        (self._folder / f"{short}{_LINES if isinstance(made, list) else '.json'}").write_bytes(data)


class _Line(Scored, frozen=True):
    """A line of scores with the digest of its row."""

    digest: str = ""


def _scores(path: Path) -> Iterator[_Line]:
    decode = msgspec.json.Decoder(_Line).decode
    file = path / SCORES if path.is_dir() else path
    try:
        with file.open("rb") as lines:
            yield from map(decode, lines)
    except (OSError, msgspec.MsgspecError) as error:
        raise DataError(f"cannot read the scores in {file}: {error}") from error


def _count(value: Any) -> int:
    return msgspec.json.encode(value).count(REMOVED.encode())


def told(found: Converted, scrub: bool) -> list[str]:
    """What somebody who converted a file should know, a line each."""
    lines = [f"rows that could not be read: {len(found.unread)}"] if found.unread else []
    lines += [f"  {why}" for why in found.unread[:NAMED]]
    if found.secrets:
        named = ", ".join(map(str, found.with_secrets[:NAMED]))
        more = ", …" if len(found.with_secrets) > NAMED else ""
        what = "were taken out" if scrub else "are still there: --scrub takes them out"
        lines.append(f"{found.secrets:,} things that look like keys, in rows {named}{more}, {what}")
    return lines
