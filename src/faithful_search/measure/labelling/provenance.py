"""`provenance.json`: which files, judge and settings the labels come from, and what was left out."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from ...errors import ConfigError, DataError
from ...judges import Judge, Writer, prompting
from ...judges.together import TOGETHER
from ..report import write_metrics

PROVENANCE = "provenance.json"
NAMED = 20
"""How many rows of a file that could not be read are named; the others are counted."""


class File(msgspec.Struct, frozen=True):
    """A file of trajectories.

    Attributes:
        name, sha256: of the file.
        rows: how many were read.
        pairs: cut from them, repeated ones included; `settled` ones need no judge and are not in the dataset.
        skipped: rows that could not be read; the first are named in `reasons`.
        dialects: trajectories of each dialect.
        broken_off: why it could not be read to its end, if so.
    """

    name: str
    sha256: str
    rows: int = 0
    pairs: int = 0
    settled: int = 0
    skipped: int = 0
    reasons: list[str] = []
    dialects: dict[str, int] = {}
    broken_off: str = ""


class Provenance(msgspec.Struct, frozen=True):
    """Where a folder of labels comes from.

    Attributes:
        metric, judge, prompts: what was asked, who, and the prompts (name@version) with their files' digests.
        files: those read, in this run and earlier ones.
        judges: rows by what labelled them, the prompt's version included.
        pairs, positives: rows of `pairs.jsonl`, and how many say yes.
        abstained: pairs without a label in the last run, the first with why in `unjudged`.
        settings: of the last run: sample, seed, limit, dialect, text column.
        license: as the user chose, or empty.
        version, date: of the package, and when the last run ended (began, where it did not).
        finished: whether it ended.
    """

    metric: str
    judge: str
    prompts: dict[str, str] = {}
    files: list[File] = []
    judges: dict[str, int] = {}
    pairs: int = 0
    positives: int = 0
    abstained: int = 0
    unjudged: list[str] = []
    settings: dict[str, Any] = {}
    license: str = ""
    version: str = ""
    date: str = ""
    finished: bool = False

    @property
    def skipped(self) -> int:
        """Rows that could not be read, of all files."""
        return sum(file.skipped for file in self.files)

    @property
    def complete(self) -> bool:
        """Whether every row was read and every pair labelled."""
        return not (self.abstained or self.skipped or any(file.broken_off for file in self.files))


def prompts_of(judge: Judge, metric: str, task: str) -> dict[str, str]:
    """The prompts that a judge of this package uses for a metric's pairs, with their digests; none for the others."""
    if not isinstance(judge, Writer):
        return {}
    names = [task, *([TOGETHER] if task == "support" and getattr(judge, "together", False) else [])]
    names += ["claims"] if metric == "answer_support" else []
    return {prompt.id: prompt.digest for prompt in map(prompting.load, names)}


def read(folder: Path) -> Provenance | None:
    """What the folder says of itself; `None` where it says nothing.

    Raises:
        ConfigError: when that cannot be read.
    """
    path = folder / PROVENANCE
    if not path.exists():
        return None
    try:
        return msgspec.json.decode(path.read_bytes(), type=Provenance)
    except (OSError, msgspec.MsgspecError, UnicodeError) as error:
        raise ConfigError(f"{path} cannot be read ({error}); use another folder") from error


def check(folder: Path, before: Provenance | None, now: Provenance, rows: int) -> None:
    """Refuse to mix labels: the folder's must be of the same metric, judge and prompts.

    Raises:
        ConfigError: naming what differs.
    """
    if rows and before is None:
        raise ConfigError(f"{folder} holds labels, but no {PROVENANCE} that says whose they are; use another folder")
    if not rows or before is None:
        return
    pairs = [(name, getattr(before, name), getattr(now, name)) for name in ("metric", "judge", "prompts")]
    differing = [f"{name}: {there!r} there, {here!r} now" for name, there, here in pairs if there != here]
    if differing:
        raise ConfigError(f"{folder} holds labels made otherwise ({'; '.join(differing)}): use another folder")


def write(folder: Path, provenance: Provenance) -> None:
    """Write it; the file appears when complete. Raises `DataError` when it cannot be written."""
    found: Mapping[str, Any] = msgspec.to_builtins(provenance)
    try:
        write_metrics(folder / PROVENANCE, found)
    except OSError as error:
        raise DataError(f"cannot write {folder / PROVENANCE}: {error}") from error


def merged(before: Sequence[File], now: Sequence[File]) -> list[File]:
    """The files of earlier runs and of this one; of the same file the record that read more of it."""
    found = {file.sha256: file for file in before}
    for file in now:
        earlier = found.get(file.sha256)
        found[file.sha256] = earlier if earlier is not None and earlier.rows > file.rows else file
    return list(found.values())


def sha256(path: Path) -> str:
    """Of a file's bytes. Raises `DataError` when it cannot be read."""
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise DataError(f"cannot read {path}: {error}") from error
