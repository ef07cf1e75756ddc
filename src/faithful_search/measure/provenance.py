"""Where a folder of labels comes from, for programs (`provenance.json`) and for people (a dataset card)."""

import hashlib
import shlex
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec

from ..errors import ConfigError, DataError
from ..judges import Judge, Writer, prompting
from ..judges.endpoint import TOGETHER
from ..text import as_markdown, printable
from .writing import card_of, write_whole

PROVENANCE, PAIRS, CARD = "provenance.json", "pairs.jsonl", "README.md"
NAMED = 20  # rows of a file that could not be read; the others are counted


class File(msgspec.Struct, frozen=True):
    """A file of trajectories, or what was counted in some of its rows.

    `pairs` are cut from the rows, repeated ones included; `settled` ones need no judge and are not in the dataset. Rows
    that could not be read or cut are `skipped`, the first are named in `reasons`; `broken_off` is why the file could
    not be read to its end.
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
            with path.open("rb") as file:
                return File(path.name, hashlib.file_digest(file, "sha256").hexdigest())
        except OSError as error:
            raise DataError(f"cannot read {path}: {error}") from error

    def counting(self, more: "File") -> "File":
        """With what was counted in a batch of its rows."""
        return msgspec.structs.replace(
            self,
            **{
                name: getattr(self, name) + getattr(more, name)
                for name in ("rows", "pairs", "settled", "skipped")
            },
            reasons=[*self.reasons, *more.reasons][:NAMED],
            dialects=dict(Counter(self.dialects) + Counter(more.dialects)),
        )


class Provenance(msgspec.Struct, frozen=True):
    """Where a folder of labels comes from.

    `prompts` are names with versions (name@version) and their digests, `judges` rows by what labelled them, `positives`
    the rows of `pairs.jsonl` that say yes; `abstained` counts pairs without a label in the last run, the first with why
    in `unjudged`. `date` is when the last run ended (began, where it is not `finished`).
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
        """With these files beside those of earlier runs; of the same file the record that read more of it."""
        found = {
            file.sha256: file for file in self.files
        }  # by content: a file may have been renamed
        for file in files:
            found[file.sha256] = max(file, found.get(file.sha256, file), key=lambda own: own.rows)
        return msgspec.structs.replace(self, files=list(found.values()))


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


def write_card(folder: Path, found: Provenance) -> None:
    """Write `README.md`, a dataset card that says what a label means and where it comes from.

    Raises `DataError` when it cannot be written.
    """
    from huggingface_hub import DatasetCardData

    title = folder.resolve().name
    data = DatasetCardData(
        license=found.license or None,
        task_categories=["text-classification"],
        task_ids=["natural-language-inference"],
        annotations_creators=["machine-generated"],
        tags=["faithful-search", "faithfulness", "search-agent", found.metric],
        configs=[{"config_name": "default", "data_files": [{"split": "train", "path": PAIRS}]}],
    )
    values = {
        "found": found,
        "title": as_markdown(title),
        "task": "support" if found.metric == "answer_support" else found.metric,
        "provenance": PROVENANCE,
        "load": repr(title),
        "pairs_file": printable(shlex.quote(f"{' '.join(title.split())}/{PAIRS}")),
    }
    write_whole(folder / CARD, card_of(__package__, "report/label_card.md.j2", data, **values))
