"""Claims that people labelled as supported or not, with a split that never changes.

| file (told by its columns) | premise | hypothesis | label is true when |
|---|---|---|---|
| AttributionBench | the references | claim | `attributable` |
| HaluEval-QA | knowledge | right answer, hallucinated answer: two rows | it is the right answer |
| BEGIN | knowledge | response | `Fully attributable`; `Generic` counts as not, for nothing in it is attributed |
| ANLI | context | statement | `e`; neutral and contradiction are both not |
| any other | see `load` | | see `load` |

**The split.** A row's *group* is its question, or its premise where it has none. A row is held out when the first eight
hex digits of the group's SHA-256 are divisible by five (a fifth), or when it comes from AttributionBench's test file.
What is hashed is NFKC text, lower-cased, punctuation and runs of blanks made one blank. A row that is not held out but
shares a question or a passage with one that is has the split `overlap`: it is for neither side. What is held out
depends on the row alone, so judges trained at different times are compared on the same rows.
"""

from __future__ import annotations

import hashlib
import os
import unicodedata
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

import msgspec

from ...errors import ConfigError, DataError
from ...judges import Pair
from ...judges.base import Task
from ...tasks import read_rows
from ...text import normalize

Split = Literal["train", "heldout", "overlap"]
Row = Mapping[str, Any]
SPLITS: tuple[Split, ...] = ("train", "heldout", "overlap")
TEST_FILE = "attributionbench_test500"
FOLDS = 5  # one of which is held out
PREMISE = ("premise", "evidence", "context", "document", "passage", "knowledge")
HYPOTHESIS = ("hypothesis", "claim", "statement", "response", "answer")
LABEL = ("label", "supported", "attributable", "faithful", "entailed")
TRUE = ("true", "yes", "1", "supported", "attributable", "faithful", "entailment", "entailed", "e")
FALSE = (
    *("false", "no", "0", "unsupported", "not supported", "not attributable", "unfaithful", "not faithful"),
    *("not entailment", "not entailed", "neutral", "contradiction", "n", "c"),
)


class Labelled(msgspec.Struct, frozen=True):
    """Whether `hypothesis` follows from `premise`, as a person or a judge said; `group` is what must not be split.

    `task` is what a judge is asked about the pair, `p` the probability that whoever labelled it gave, if any.
    """

    id: str
    premise: str
    hypothesis: str
    question: str
    label: bool
    source: str
    split: Split
    group: str
    task: Task = "support"
    p: float | None = None

    @property
    def pair(self) -> Pair:
        """What a judge reads of it."""
        return Pair(self.premise, self.hypothesis, self.question, self.task)


class _Found(NamedTuple):
    """What a row says of one pair; `suffix` is added to its id, an empty source is the file's name."""

    suffix: str
    premise: str | list[str]
    hypothesis: str
    question: str
    label: bool
    source: str
    task: Task = "support"
    p: float | None = None


def load(path: str | os.PathLike[str], split: Split | None = None) -> list[Labelled]:
    """The labelled rows of a file, or of every `.jsonl[.gz]` file in a directory, in order; all, or those of one split.

    The columns of the first row say which kind of file it is. Any other file needs a premise, a hypothesis and a label
    in columns of one of these names (and may have `question`, `id`, `source`, `task`, `p`):

    ```
    premise      premise, evidence, context, document, passage, knowledge (a text, or a list of texts)
    hypothesis   hypothesis, claim, statement, response, answer
    label        label, supported, attributable, faithful, entailed: a boolean, 0 or 1, or a word such as
                 "yes", "supported", "attributable", "entailment", "not supported", "neutral", "contradiction"
    task         what a judge is asked (see `judges.base.Task`); "support" without it
    p            the labeller's probability that the label is true; ignored unless it is a number in [0, 1]
    ```

    AttributionBench's files are split together with those beside them, also when only one is loaded.

    Raises:
        DataError: for what cannot be read, naming file and line; when there are no rows.
        ConfigError: for an unknown split.
    """
    if split is not None and split not in SPLITS:
        raise ConfigError(f"unknown split {split!r}; there are: {', '.join(SPLITS)}")
    wanted = _files(Path(path))
    # The test file beside AttributionBench's others says what must leave train, also when only they are loaded
    beside = {
        other
        for file in wanted
        if _stem(file).startswith("attributionbench")
        for other in file.parent.glob(f"{TEST_FILE}.jsonl*")
        if _stem(other) == TEST_FILE
    }
    read = {file: list(_read(file)) for file in [*wanted, *sorted(beside.difference(wanted))]}
    keyed = [item for own in read.values() for item in own]
    held_out = {(row.source, key) for row, keys in keyed if row.split == "heldout" for key in keys}
    rows = []
    for row, keys in (item for file in wanted for item in read[file]):
        crosses = row.split == "train" and any((row.source, key) in held_out for key in keys)
        rows.append(msgspec.structs.replace(row, split="overlap") if crosses else row)
    found = [row for row in rows if split in (None, row.split)]
    if not found:
        raise DataError(f"{path}: no labelled rows{f' in the split {split!r}' if rows else ''}")
    return found


def sample(rows: Iterable[Labelled], per_source: int, seed: int = 0) -> list[Labelled]:
    """At most `per_source` rows of each source, in the order they came; a larger sample contains the smaller ones."""
    by_source: dict[str, list[tuple[str, int, Labelled]]] = defaultdict(list)
    for place, row in enumerate(rows):
        by_source[row.source].append((hashlib.sha256(f"{seed} {row.id}".encode()).hexdigest(), place, row))
    kept = [entry for entries in by_source.values() for entry in sorted(entries)[:per_source]]
    return [row for _, _, row in sorted(kept, key=lambda entry: entry[1])]


def _files(path: Path) -> list[Path]:
    if not path.exists():
        raise DataError(f"{path}: no such file or directory")
    if not path.is_dir():
        return [path]
    found = sorted(file for file in path.iterdir() if file.name.endswith((".jsonl", ".jsonl.gz")))
    if not found:
        raise DataError(f"{path}: no .jsonl or .jsonl.gz file in this directory")
    return found


def _stem(path: Path) -> str:
    return path.name.removesuffix(".gz").removesuffix(".jsonl")


def _read(path: Path) -> Iterator[tuple[Labelled, Sequence[str]]]:
    """The rows, each with the digests of its question and passages: rows that share one belong on one side."""
    reader: Callable[[Row], Iterator[_Found]] | None = None
    for number, row in enumerate(read_rows(path), start=1):
        if reader is None:
            reader = next((own for columns, own in _READERS if all(column in row for column in columns)), _generic)
        try:
            for found in reader(row):
                yield _keyed(found, f"{_stem(path)}:{number}", _stem(path))
        except (KeyError, TypeError, ValueError) as error:
            what = f"no column {error}; it has: {', '.join(row)}" if isinstance(error, KeyError) else str(error)
            raise DataError(f"{path}, row {number}: {what}") from error


def _keyed(found: _Found, place: str, stem: str) -> tuple[Labelled, Sequence[str]]:
    passages = [found.premise] if isinstance(found.premise, str) else found.premise
    if not isinstance(passages, list) or not all(isinstance(text, str) for text in passages):
        raise TypeError("the premise must be a text or a list of texts")
    if not isinstance(found.hypothesis, str) or not isinstance(found.question, str):
        raise TypeError("hypothesis and question must be texts")
    # ways to spell a question must not put it on both sides
    simple = [normalize(unicodedata.normalize("NFKC", text), "pokee") for text in (found.question, *passages)]
    told = [text for text in simple if text] or [found.hypothesis]
    keys = [hashlib.sha256(text.encode()).hexdigest() for text in told]
    reserved = stem == TEST_FILE and found.source == "attributionbench"
    split: Split = "heldout" if reserved or int(keys[0][:8], 16) % FOLDS == 0 else "train"
    source, premise = found.source or stem, "\n\n".join(passages)
    return Labelled(
        place + found.suffix, premise, found.hypothesis, found.question, found.label, source, split,
        keys[0][:16], found.task, found.p,
    ), keys  # fmt: skip


def _attribution_bench(row: Row) -> Iterator[_Found]:
    yield _Found(
        "", row["references"], row["claim"], row["question"], _label(row["attribution_label"]), "attributionbench"
    )


def _halueval(row: Row) -> Iterator[_Found]:
    yield _Found(":right", row["knowledge"], row["right_answer"], row["question"], True, "halueval")
    yield _Found(":hallucinated", row["knowledge"], row["hallucinated_answer"], row["question"], False, "halueval")


def _begin(row: Row) -> Iterator[_Found]:
    labels = {"Fully attributable": True, "Not fully attributable": False, "Generic": False}
    yield _Found("", row["knowledge"], row["response"], "", _one_of(row, "begin_label", labels), "begin")


def _anli(row: Row) -> Iterator[_Found]:
    label = _one_of(row, "gold_label", {"e": True, "n": False, "c": False})
    yield _Found("", row["context"], row["statement"], "", label, "anli")


def _generic(row: Row) -> Iterator[_Found]:
    values = []
    for names in (PREMISE, HYPOTHESIS, LABEL):
        value = next((row[name] for name in names if row.get(name) is not None), None)
        if value is None:
            raise ValueError(f"no column {' or '.join(names)}; it has: {', '.join(row) or 'nothing'}")
        values.append(value)
    premise, hypothesis, label = values
    suffix = "" if row.get("id") is None else f":{row['id']}"
    task: Any = row.get("task") or "support"
    if task not in get_args(Task):
        raise ValueError(f"unknown task {task!r}; there are: {', '.join(get_args(Task))}")
    p = row.get("p")
    p = float(p) if isinstance(p, (int, float)) and not isinstance(p, bool) and 0 <= p <= 1 else None
    question, source = row.get("question") or "", str(row.get("source") or "")
    yield _Found(suffix, premise, hypothesis, question, _label(label), source, task, p)


_READERS: tuple[tuple[tuple[str, ...], Callable[[Row], Iterator[_Found]]], ...] = (
    (("claim", "references", "attribution_label"), _attribution_bench),
    (("knowledge", "right_answer", "hallucinated_answer"), _halueval),
    (("knowledge", "response", "begin_label"), _begin),
    (("context", "statement", "gold_label"), _anli),
)


def _one_of(row: Row, column: str, labels: Mapping[str, bool]) -> bool:
    if row[column] not in labels:
        raise ValueError(f"{column} is {row[column]!r}, expected one of: {', '.join(labels)}")
    return labels[row[column]]


def _label(value: Any) -> bool:
    """Booleans, 0 and 1, and the words of `TRUE` and `FALSE`."""
    # `value in (0, 1)` is true of booleans and of 1.0, too
    word = str(int(value)) if value in (0, 1) else str(value).strip().lower().replace("_", " ").replace("-", " ")
    if word not in (*TRUE, *FALSE):
        raise ValueError(f"the label {value!r} is not understood; use true or false")
    return word in TRUE
