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
from typing import Any, Literal, get_args

import msgspec

from ...errors import ConfigError, DataError
from ...judges import Pair
from ...judges.base import Task
from ...tasks import read_rows
from ...text import normalize

Split = Literal["train", "heldout", "overlap"]
Row = Mapping[str, Any]
SPLITS: tuple[Split, ...] = ("train", "heldout", "overlap")
TEST_FILES = ("attributionbench_test500",)
FOLDS = 5
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


Keyed = tuple[Labelled, tuple[str, ...]]
"""A row, and the digests of its question and passages: rows that share one must not be on both sides of the split."""
Reader = Callable[[Row, str], Iterator[Keyed]]


def load(path: str | os.PathLike[str], split: Split | None = None) -> list[Labelled]:
    """The labelled rows of a file, or of every `.jsonl[.gz]` file in a directory, in order.

    The columns of the first row say which kind of file it is. Any other file needs a premise, a
    hypothesis and a label in columns of one of these names (and may have `question`, `id`, `source`, `task`, `p`):

    ```
    premise      premise, evidence, context, document, passage, knowledge (a text, or a list of texts)
    hypothesis   hypothesis, claim, statement, response, answer
    label        label, supported, attributable, faithful, entailed: a boolean, 0 or 1, or a word such as
                 "yes", "supported", "attributable", "entailment", "not supported", "neutral", "contradiction"
    task         what a judge is asked (see `judges.base.Task`); "support" without it
    p            the labeller's probability that the label is true; left out where it is no number in [0, 1]
    ```

    AttributionBench's files are split together with those beside them, also when only one is loaded.

    Args:
        path: the file or directory.
        split: only rows of this split; all without it.

    Raises:
        DataError: for what cannot be read, naming file and line; when there are no rows.
        ConfigError: for an unknown split.

    Example:
        >>> import json, pathlib, tempfile
        >>> file = pathlib.Path(tempfile.mkdtemp()) / "mine.jsonl"
        >>> rows = [{"evidence": "Rain fell.", "claim": "It rained.", "label": "supported"}]
        >>> _ = file.write_text("".join(json.dumps(row) + "\\n" for row in rows))
        >>> [(row.label, row.source, row.split) for row in load(file)]
        [(True, 'mine', 'heldout')]
    """
    if split is not None and split not in SPLITS:
        raise ConfigError(f"unknown split {split!r}; there are: {', '.join(SPLITS)}")
    wanted = _files(Path(path))
    read = {file: list(_read(file)) for file in _with_siblings(wanted)}
    held_out: dict[str, set[str]] = defaultdict(set)
    for row, keys in (keyed for own in read.values() for keyed in own):
        if row.split == "heldout":
            held_out[row.source].update(keys)
    rows = [
        msgspec.structs.replace(row, split="overlap")
        if row.split == "train" and held_out[row.source].intersection(keys)
        else row
        for file in wanted
        for row, keys in read[file]
    ]
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


def _with_siblings(files: Sequence[Path]) -> list[Path]:
    """The files, and the test files beside AttributionBench's, which say what must leave train."""
    beside = [
        other
        for file in files
        if _stem(file).startswith("attributionbench")
        for other in sorted(file.parent.glob("attributionbench*.jsonl*"))
        if _stem(other) in TEST_FILES
    ]
    return list(dict.fromkeys([*files, *beside]))


def _stem(path: Path) -> str:
    return path.name.removesuffix(".gz").removesuffix(".jsonl")


def _read(path: Path) -> Iterator[Keyed]:
    read: Reader | None = None
    for number, row in enumerate(read_rows(path), start=1):
        read = read or _reader(row)
        try:
            yield from read(row, f"{_stem(path)}:{number}")
        except (KeyError, TypeError, ValueError) as error:
            what = f"no column {error}; it has: {', '.join(row)}" if isinstance(error, KeyError) else str(error)
            raise DataError(f"{path}, row {number}: {what}") from error


def _reader(row: Row) -> Reader:
    return next((read for columns, read in _READERS if all(column in row for column in columns)), _generic)


def _attribution_bench(row: Row, place: str) -> Iterator[Keyed]:
    passages = _texts(row["references"])
    reserved = place.split(":")[0] in TEST_FILES
    label = _label(row["attribution_label"])
    yield _keyed(place, passages, row["claim"], row["question"], label, "attributionbench", reserved)


def _halueval(row: Row, place: str) -> Iterator[Keyed]:
    passages = _texts(row["knowledge"])
    for kind, column in ((True, "right_answer"), (False, "hallucinated_answer")):
        yield _keyed(f"{place}:{column.split('_')[0]}", passages, row[column], row["question"], kind, "halueval")


def _begin(row: Row, place: str) -> Iterator[Keyed]:
    labels = {"Fully attributable": True, "Not fully attributable": False, "Generic": False}
    if row["begin_label"] not in labels:
        raise ValueError(f"begin_label is {row['begin_label']!r}, expected one of: {', '.join(labels)}")
    yield _keyed(place, _texts(row["knowledge"]), row["response"], "", labels[row["begin_label"]], "begin")


def _anli(row: Row, place: str) -> Iterator[Keyed]:
    if row["gold_label"] not in ("e", "n", "c"):
        raise ValueError(f"gold_label is {row['gold_label']!r}, expected e, n or c")
    yield _keyed(place, _texts(row["context"]), row["statement"], "", row["gold_label"] == "e", "anli")


def _generic(row: Row, place: str) -> Iterator[Keyed]:
    premise, hypothesis, label = (_first(row, names) for names in (PREMISE, HYPOTHESIS, LABEL))
    source = str(row.get("source") or place.split(":")[0])
    where = place if row.get("id") is None else f"{place}:{row['id']}"
    task, p = row.get("task") or "support", row.get("p")
    if task not in get_args(Task):
        raise ValueError(f"unknown task {task!r}; there are: {', '.join(get_args(Task))}")
    labelled, keys = _keyed(where, _texts(premise), hypothesis, row.get("question") or "", _label(label), source)
    yield msgspec.structs.replace(labelled, task=task, p=_p(p)), keys


_READERS: tuple[tuple[tuple[str, ...], Reader], ...] = (
    (("claim", "references", "attribution_label"), _attribution_bench),
    (("knowledge", "right_answer", "hallucinated_answer"), _halueval),
    (("knowledge", "response", "begin_label"), _begin),
    (("context", "statement", "gold_label"), _anli),
)


def _keyed(
    place: str,
    passages: Sequence[str],
    hypothesis: Any,
    question: Any,
    label: bool,
    source: str,
    reserved: bool = False,
) -> Keyed:
    if not isinstance(hypothesis, str) or not isinstance(question, str):
        raise TypeError("hypothesis and question must be texts")
    keys = tuple(digest for digest in map(_digest, (question, *passages)) if digest)
    keys = keys or (hashlib.sha256(hypothesis.encode()).hexdigest(),)
    split: Split = "heldout" if reserved or int(keys[0][:8], 16) % FOLDS == 0 else "train"
    premise = "\n\n".join(passages)
    return Labelled(place, premise, hypothesis, question, label, source, split, keys[0][:16]), keys


def _first(row: Row, names: Sequence[str]) -> Any:
    found = next((row[name] for name in names if row.get(name) is not None), None)
    if found is None:
        raise ValueError(f"no column {' or '.join(names)}; it has: {', '.join(row) or 'nothing'}")
    return found


def _texts(value: Any) -> list[str]:
    texts = [value] if isinstance(value, str) else value
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        raise TypeError("the premise must be a text or a list of texts")
    return texts


def _label(value: Any) -> bool:
    """Booleans, 0 and 1, and the words of `TRUE` and `FALSE`; `True == 1` in all of these."""
    word = str(int(value)) if value in (0, 1) else str(value).strip().lower().replace("_", " ").replace("-", " ")
    if word not in (*TRUE, *FALSE):
        raise ValueError(f"the label {value!r} is not understood; use true or false")
    return word in TRUE


def _p(value: Any) -> float | None:
    known = isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value <= 1
    return float(value) if known else None


def _digest(text: str) -> str:
    simple = normalize(unicodedata.normalize("NFKC", text), "pokee")
    return hashlib.sha256(simple.encode()).hexdigest() if simple else ""
