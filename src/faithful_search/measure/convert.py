"""Trajectories in anybody's form to trajectories in another's, row by row, with the scores that an audit gave them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from ..errors import ConfigError, DataError
from ..wire.files import replacing
from ..wire.redact import REMOVED, redact
from .files import PathLike, Raw, local_file
from .rows import Source
from .scores import SCORES, Line, read_scores
from .settings import Reading
from .summary import NAMED
from .writers import WRITERS, Document
from .writing import results_folder

_UNSAFE = re.compile(r"[^\w.-]+", re.ASCII)


class Converted(msgspec.Struct):
    """What became of a file's rows; `unread` says why, `secrets` counts what looks like a key."""

    written: int = 0
    unread: list[str] = []
    with_secrets: list[int] = []
    secrets: int = 0
    scored: int = 0


def convert(
    source: PathLike, out: PathLike, to: str, *, scores: PathLike | None = None, scrub: bool = False, **settings: Any
) -> Converted:
    """Write each row that can be read in another format, one of `WRITERS`.

    Args:
        source: as `audit` reads it.
        out: a file that ends in `.jsonl` gets one row a line; anything else is a folder that gets a file for each row.
        scores: an audit of the same rows, its folder or `scores.jsonl`; they become metadata.
        scrub: take out what `redact` takes for a secret. Otherwise such rows are only counted.
        settings: `dialect`, `text_column` and `limit`, as in `audit`.

    Raises `DataError` when the source cannot be read, the result cannot be written, or the scores are of other rows,
    `ConfigError` for an unknown format, or one that cannot be a line of a file.
    """
    out = Path(out)
    if to not in WRITERS:
        raise ConfigError(f"unknown format {to!r}; there are: {', '.join(WRITERS)}")
    if to == "pi" and out.suffix == ".jsonl":
        raise ConfigError(f"a pi session is a file of its own: name a folder instead of {out}")
    given, found = Reading(**settings), Converted()
    rows = Source(local_file(source), given.dialect, given.text_column, given.limit)
    documents = _documents(rows, to, scores, scrub, found)
    folder = results_folder(out.parent if out.suffix == ".jsonl" else out)
    try:
        if out.suffix == ".jsonl":
            with replacing(out) as partial, partial.open("wb") as file:
                file.writelines(data for _, data in documents)
        else:
            for name, data in documents:
                (folder / name).write_bytes(data)
    except OSError as error:
        raise DataError(f"cannot write {out}: {error}") from error
    found.unread += [rows.error] if rows.error else []
    return found


def _documents(
    rows: Source, to: str, scores: PathLike | None, scrub: bool, found: Converted
) -> Iterator[tuple[str, bytes]]:
    """The name of a file for each row, and what is written into it; counted in `found`."""
    now = datetime.now(UTC)
    for raw, line in _with_scores(rows, scores):
        read = rows.reader(raw)
        if read.trajectory is None:
            found.unread.append(f"row {raw.number}: {read.error}")
            continue
        cells = line.scores if line is not None else {}
        values = {name: cell.value for name, cell in cells.items()}
        reasons = {name: cell.why for name, cell in cells.items() if cell.why}
        made = WRITERS[to](Document(raw.number, read.trajectory, now, values, reasons))
        clean = redact(made)
        before, after = (msgspec.json.encode(value).count(REMOVED.encode()) for value in (made, clean))
        if after > before:  # the text may hold the mark already
            found.secrets += after - before
            found.with_secrets.append(raw.number)
        found.scored += bool(cells)
        found.written += 1
        kept = clean if scrub else made
        lines, ending = (kept, ".jsonl") if isinstance(kept, list) else ([kept], ".json")
        # The number keeps the order and tells equal ids apart; file systems take 255 bytes
        name = _UNSAFE.sub("-", f"{raw.number:06}-{read.trajectory.id}").strip("-.")[:100]
        yield f"{name}{ending}", b"".join(msgspec.json.encode(one) + b"\n" for one in lines)


def _with_scores(rows: Source, scores: PathLike | None) -> Iterator[tuple[Raw, Line | None]]:
    """Each row with its line of the scores; both files are in the order of the source, so neither is held."""
    path = Path(scores or "")
    lines = iter(()) if scores is None else read_scores(path / SCORES if path.is_dir() else path)
    line = next(lines, None)
    for raw in rows:
        while line is not None and line.row < raw.number:
            line = next(lines, None)
        own = line if line is not None and line.row == raw.number else None
        if own is not None and own.digest != raw.digest:
            raise DataError(f"{scores}: row {raw.number} is not the row that was scored; audit the file again")
        yield raw, own


def told(found: Converted, scrub: bool) -> list[str]:
    """The messages for the user after a conversion, one a line."""
    lines = [f"rows that could not be read: {len(found.unread)}"] if found.unread else []
    lines += [f"  {why}" for why in found.unread[:NAMED]]
    if found.secrets:
        named = ", ".join(map(str, found.with_secrets[:NAMED]))
        more = ", …" if len(found.with_secrets) > NAMED else ""
        what = "were taken out" if scrub else "are still there: --scrub takes them out"
        lines.append(f"{found.secrets:,} things that look like keys, in rows {named}{more}, {what}")
    return lines
