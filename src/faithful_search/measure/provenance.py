"""`provenance.json`: which files, judge and settings a folder of labels comes from, and what was left out."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from ..errors import ConfigError, DataError
from ..judges import Judge, Writer, prompting
from ..judges.endpoint import TOGETHER

PROVENANCE, PAIRS = "provenance.json", "pairs.jsonl"
NAMED = 20
"""How many rows of a file that could not be read are named; the others are counted."""


class File(msgspec.Struct, frozen=True):
    """A file of trajectories, or what was counted in some of its rows.

    Attributes:
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

    @staticmethod
    def of(path: Path) -> File:
        """A file before it is read. Raises `DataError` when it cannot be."""
        try:
            with path.open("rb") as file:
                return File(path.name, hashlib.file_digest(file, "sha256").hexdigest())
        except OSError as error:
            raise DataError(f"cannot read {path}: {error}") from error

    def counting(self, more: File) -> File:
        """With what was counted in a batch of its rows."""
        return msgspec.structs.replace(
            self,
            rows=self.rows + more.rows,
            pairs=self.pairs + more.pairs,
            settled=self.settled + more.settled,
            skipped=self.skipped + more.skipped,
            reasons=[*self.reasons, *more.reasons][:NAMED],
            dialects=dict(Counter(self.dialects) + Counter(more.dialects)),
        )


class Provenance(msgspec.Struct, frozen=True):
    """Where a folder of labels comes from.

    Attributes:
        prompts: names with versions (name@version) and their files' digests.
        files: those read, in this run and earlier ones.
        judges: rows by what labelled them, the prompt's version included.
        pairs, positives: rows of `pairs.jsonl`, and how many say yes.
        abstained: pairs without a label in the last run, the first with why in `unjudged`.
        settings: of the last run.
        version, date: of the package, and when the last run ended (began, where it is not `finished`).
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

    @property
    def made_by(self) -> dict[str, Any]:
        """What the labels in one folder have in common."""
        return {"metric": self.metric, "judge": self.judge, "prompts": self.prompts}


def read(folder: Path) -> Provenance | None:
    """The folder's provenance; `None` where it has none. Raises `ConfigError` when it cannot be read."""
    path = folder / PROVENANCE
    if not path.exists():
        return None
    try:
        return msgspec.json.decode(path.read_bytes(), type=Provenance)
    except (OSError, msgspec.MsgspecError, UnicodeError) as error:
        raise ConfigError(f"{path} cannot be read ({error}); use another folder") from error


def prompts_of(judge: Judge, metric: str) -> dict[str, str]:
    """The prompts that a judge of this package uses for a metric's pairs, with their digests; none for the others."""
    if not isinstance(judge, Writer):
        return {}
    names = [metric]
    if metric == "answer_support":
        names = ["support", *([TOGETHER] if getattr(judge, "together", False) else []), "claims"]
    return {prompt.id: prompt.digest for prompt in map(prompting.load, names)}


def merged(before: Sequence[File], now: Sequence[File]) -> list[File]:
    """The files of earlier runs and of this one; of the same file the record that read more of it."""
    found = {file.sha256: file for file in before}  # by content: a file may have been renamed
    for file in now:
        found[file.sha256] = max(file, found.get(file.sha256, file), key=lambda own: own.rows)
    return list(found.values())
