"""Where a folder of labels comes from: `provenance.json` for programs, a dataset card for
people.
"""

import shlex
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec

from ..errors import ConfigError, DataError, reason_of
from ..judges import Judge, Writer, prompting
from ..judges.endpoint import MANY_CLAIMS_PROMPT
from ..wire.files import sha256_of
from .writing import card_of, write_whole

PROVENANCE, PAIRS, CARD = "provenance.json", "pairs.jsonl", "README.md"
NAMED = 20
"""The number of rows that a record names with the reason why they could not be read."""


class File(msgspec.Struct, frozen=True):
    """A file of trajectories, or the counts of some of its rows.

    Attributes:
        rows: number of rows that were read.
        pairs: number of pairs that were cut from them, repeated ones included.
        settled: number of those pairs that need no judge and are not in the dataset.
        skipped: number of rows that could not be read or cut.
        reasons: the first of them, with the reasons.
        dialects: number of trajectories by dialect.
        broken_off: why the file could not be read to its end; empty if it was.
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
    def of(path: Path) -> "File":
        """A file before it is read. Raises `DataError` when it cannot be."""
        try:
            return File(path.name, sha256_of(path))
        except OSError as error:
            raise DataError(f"cannot read {path}: {reason_of(error)}") from error

    def counting(self, addition: "File") -> "File":
        """The file with the counts of further rows added to its own."""
        return msgspec.structs.replace(
            self,
            rows=self.rows + addition.rows,
            pairs=self.pairs + addition.pairs,
            settled=self.settled + addition.settled,
            skipped=self.skipped + addition.skipped,
            reasons=[*self.reasons, *addition.reasons][:NAMED],
            dialects=dict(Counter(self.dialects) + Counter(addition.dialects)),
        )


class Provenance(msgspec.Struct, frozen=True):
    """Where a folder of labels comes from.

    Attributes:
        prompts: digests of the prompts, by NAME@VERSION.
        files: those that the pairs come from.
        judges: number of rows by what labelled them.
        pairs: number of rows in `pairs.jsonl`.
        positives: number of those rows whose label is true.
        abstained: number of pairs that got no label in the last run.
        unjudged: the first of them, with the reasons.
        date: when the last run ended, or began if it is not `finished`.
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
    def complete(self) -> bool:
        return not (self.abstained or any(file.skipped or file.broken_off for file in self.files))

    def with_files(self, files: Iterable[File]) -> "Provenance":
        """With these files beside those of earlier runs. Of two records of one file, the one of the
        run that read more rows is kept.
        """
        # By digest, since a file may have been renamed
        by_digest = {file.sha256: file for file in self.files}
        for file in files:
            earlier = by_digest.get(file.sha256)
            if earlier is None or file.rows >= earlier.rows:
                by_digest[file.sha256] = file
        return msgspec.structs.replace(self, files=list(by_digest.values()))


def read(folder: Path) -> Provenance | None:
    """The provenance of a folder; `None` where it has none. Raises `ConfigError` when it cannot be
    read.
    """
    path = folder / PROVENANCE
    if not path.exists():
        return None
    try:
        return msgspec.json.decode(path.read_bytes(), type=Provenance)
    except (OSError, msgspec.MsgspecError, UnicodeError) as error:
        raise ConfigError(
            f"{path} cannot be read ({reason_of(error)}); use another folder"
        ) from error


def prompts_of(judge: Judge, metric: str) -> dict[str, str]:
    """The digests of the prompts that a judge uses for the pairs of a metric, by NAME@VERSION. A
    judge that reads no prompts of this package has none.
    """
    if not isinstance(judge, Writer):
        return {}
    names = [metric]
    if metric == "answer_support":
        names = (
            ["support", MANY_CLAIMS_PROMPT, "claims"] if judge.together else ["support", "claims"]
        )
    return {prompt.id: prompt.digest for prompt in map(prompting.load, names)}


def write_card(folder: Path, record: Provenance) -> None:
    """Write `README.md`, a dataset card that says what a label means and where it comes from.

    Raises `DataError` when it cannot be written.
    """
    from huggingface_hub import DatasetCardData

    title = folder.resolve().name
    data = DatasetCardData(
        license=record.license or None,
        task_categories=["text-classification"],
        task_ids=["natural-language-inference"],
        annotations_creators=["machine-generated"],
        tags=["faithful-search", "faithfulness", "search-agent", record.metric],
        configs=[{"config_name": "default", "data_files": [{"split": "train", "path": PAIRS}]}],
    )
    pairs = shlex.quote(f"{' '.join(title.split())}/{PAIRS}")
    values = {
        "found": record,
        "title": title,
        "task": "support" if record.metric == "answer_support" else record.metric,
        "provenance": PROVENANCE,
        "agree": f"faithful-search agreement {pairs} --judge labels:SECOND_RUN"
        "   # how consistent is the judge?",
    }
    write_whole(folder / CARD, card_of(__package__, "report/label_card.md.j2", data, **values))
