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
from .pairs import Cuts

PROVENANCE, PAIRS = "provenance.json", "pairs.jsonl"
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

    @staticmethod
    def of(path: Path) -> File:
        """A file before it is read. Raises `DataError` when it cannot be."""
        try:
            with path.open("rb") as file:
                return File(path.name, hashlib.file_digest(file, "sha256").hexdigest())
        except OSError as error:
            raise DataError(f"cannot read {path}: {error}") from error

    def counting(self, cuts: Cuts) -> File:
        """With what a batch of its rows gave."""
        return msgspec.structs.replace(
            self,
            rows=self.rows + cuts.rows,
            pairs=self.pairs + len(cuts.cuts) + cuts.settled,
            settled=self.settled + cuts.settled,
            skipped=self.skipped + len(cuts.unread),
            reasons=[*self.reasons, *cuts.unread][:NAMED],
            dialects=dict(Counter(self.dialects) + Counter(cuts.dialects)),
        )


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

    @property
    def made_by(self) -> dict[str, Any]:
        """What the labels in one folder have in common."""
        return {"metric": self.metric, "judge": self.judge, "prompts": self.prompts}


def read(folder: Path) -> Provenance | None:
    """The folder's provenance; `None` where it has none.

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


def prompts_of(judge: Judge, metric: str, task: str) -> dict[str, str]:
    """The prompts that a judge of this package uses for a metric's pairs, with their digests; none for the others."""
    if not isinstance(judge, Writer):
        return {}
    names = [task, *([TOGETHER] if task == "support" and getattr(judge, "together", False) else [])]
    names += ["claims"] if metric == "answer_support" else []
    return {prompt.id: prompt.digest for prompt in map(prompting.load, names)}


def merged(before: Sequence[File], now: Sequence[File]) -> list[File]:
    """The files of earlier runs and of this one; of the same file the record that read more of it."""
    found = {file.sha256: file for file in before}
    for file in now:
        earlier = found.get(file.sha256)
        found[file.sha256] = earlier if earlier is not None and earlier.rows > file.rows else file
    return list(found.values())
