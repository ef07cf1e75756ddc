"""Claims that people labelled as supported or not, with a split that never changes; judges, and labels as a judge.

docs/judges.md says what the labels mean. A row's *group* is its question, or its premise where it has none. A row is
held out when the first eight hex digits of the group's SHA-256 are divisible by five, or when it comes from
AttributionBench's test file. What is hashed is NFKC text, lower-cased, punctuation and runs of blanks made one blank. A
row that is not held out but shares a question or a passage with one that is has the split `overlap`.
"""

import hashlib
import heapq
import os
import unicodedata
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any, Literal, get_args

import msgspec

from ...bundled import bundled_json
from ...errors import ConfigError, DataError
from ...judges import Judge, LexicalJudge, Pair, Verdict, load as load_judge
from ...judges.base import Task
from ...tasks import first, read_rows
from ...text import normalize

Split = Literal["train", "heldout", "overlap"]
Row = Mapping[str, Any]
SPLITS: tuple[Split, ...] = ("train", "heldout", "overlap")
TEST_FILE = "attributionbench_test500"
FOLDS = 5  # one of which is held out
# Columns of premise, hypothesis and label; those that tell known files (HaluEval has two hypotheses); words of labels
COLUMNS, KNOWN, TRUE, FALSE = bundled_json("labelled_files.json").values()


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
        return Pair(self.premise, self.hypothesis, self.question, self.task)


def load(path: str | os.PathLike[str], split: Split | None = None) -> list[Labelled]:
    """The labelled rows of a file, or of every `.jsonl[.gz]` file in a directory, in order; all, or those of one split.

    The columns of the first row say which kind of file it is: one of `KNOWN`, or any that has a premise (a text, or a
    list of texts), a hypothesis and a label in one of `COLUMNS` each. A label is a boolean, 0 or 1, or one of the words
    `TRUE` and `FALSE`. Such a file may also have `question`, `id`, `source`, `task` (what a judge is asked, "support"
    without it) and `p`, the labeller's probability in [0, 1] that the label is true. AttributionBench's files are split
    together with those beside them, also when only one is loaded.

    Raises `DataError` for what cannot be read, naming file and line, and without rows.
    """
    if split is not None and split not in SPLITS:
        raise ConfigError(f"unknown split {split!r}; there are: {', '.join(SPLITS)}")
    path, endings = Path(path), (".jsonl", ".jsonl.gz")
    wanted = (
        sorted(file for file in path.iterdir() if file.name.endswith(endings))
        if path.is_dir()
        else [path]
    )
    # The test file beside AttributionBench's others says what must leave train, also when only they are loaded
    others = [file for file in wanted if file.name.startswith("attributionbench")]
    tests = {file.with_name(f"{TEST_FILE}{end}") for file in others for end in endings}
    beside = [file for file in tests.difference(wanted) if file.exists()]
    read = {file: list(_read(file)) for file in [*wanted, *beside]}
    held_out = {
        (row.source, key)
        for own in read.values()
        for row, keys in own
        if row.split == "heldout"
        for key in keys
    }
    rows = []
    for row, keys in (item for file in wanted for item in read[file]):
        crosses = row.split == "train" and any((row.source, key) in held_out for key in keys)
        rows.append(msgspec.structs.replace(row, split="overlap") if crosses else row)
    found = [row for row in rows if split in (None, row.split)]
    if not found:
        where = f"in the split {split!r}" if rows else f"in {' and '.join(endings)} files"
        raise DataError(f"{path}: no labelled rows {where}")
    return found


def sample(rows: Iterable[Labelled], per_source: int, seed: int = 0) -> list[Labelled]:
    """At most `per_source` rows of each source, in the order they came; a larger sample contains the smaller ones."""
    by_source: dict[str, list[tuple[int, Labelled]]] = defaultdict(list)
    for place, row in enumerate(rows):
        by_source[row.source].append((place, row))
    chosen = [
        heapq.nsmallest(per_source, own, key=lambda item: rank(seed, item[1].id))
        for own in by_source.values()
    ]
    return [row for _, row in sorted(chain.from_iterable(chosen), key=lambda item: item[0])]


def rank(seed: int, id: str) -> str:
    """Where an item comes in the order of which the first ones are a sample."""
    return hashlib.sha256(f"{seed} {id}".encode()).hexdigest()


@dataclass(frozen=True)
class RecordedJudge:
    """Labels that were given before, by people or another run, as a judge.

    It looks a pair up by what it says (question, premise, hypothesis, task) and abstains where there is no label, or
    both. p is the labeller's where the file has it, else 1 or 0. The name holds a digest of the labels.
    """

    name: str
    verdicts: Mapping[Pair, Verdict] = field(repr=False)

    @classmethod
    def of(cls, rows: Iterable[Labelled]) -> "RecordedJudge":
        found: dict[Pair, Verdict] = {}
        for row in rows:
            # without a p the label is as sure as can be: calibration then reads it as 1 or 0
            own = Verdict(float(row.label) if row.p is None else row.p, row.label)
            alike = found.get(row.pair, own).label == row.label
            found[row.pair] = own if alike else Verdict(None, None, "labelled both ways")
        digest = hashlib.sha256(
            "\n".join(f"{pair} {own.p} {own.label}" for pair, own in found.items()).encode()
        )
        return cls(f"labels@{digest.hexdigest()[:12]}", found)

    def judge_batch(self, pairs: Sequence[Pair]) -> list[Verdict]:
        missing = Verdict(None, None, "no label for this pair")
        return [self.verdicts.get(pair, missing) for pair in pairs]


def parse_judge(spec: str, trust_remote_code: bool = False) -> tuple[str, Judge]:
    """A judge and its name from what is typed on a command line.

    ```
    lexical | containment | embedding:MODEL | nli:MODEL | generator:MODEL | endpoint:MODEL@URL | remote:URL
    labels:PATH
    ```
    MODEL is a Hub id or a directory (for `endpoint` the served name). The name is the kind and the model's last part.
    PATH is a labelled file or a folder of them, such as another run of a judge over the same pairs.

    Raises `ConfigError` for anything else, `DataError` for a PATH that holds no labels.
    """
    kind, _, model = spec.partition(":")
    served, _, url = model.rpartition("@") if kind == "endpoint" else (model, "", "")
    name = (
        f"{kind}:{served.removesuffix('/pairs.jsonl').rstrip('/').rsplit('/', 1)[-1]}"
        if model
        else kind
    )
    if spec == "containment":
        return spec, LexicalJudge()
    if kind == "lexical" and model:
        raise ConfigError(f"{spec!r}: the lexical judge has no model")
    if kind == "labels" and model:
        return name, RecordedJudge.of(load(model))
    if kind == "remote":  # its model is the server's business
        return spec, load_judge(kind, url=model)
    if kind == "endpoint":
        if not served or not url.startswith(("http://", "https://")):
            raise ConfigError(f"{spec!r}: expected endpoint:MODEL@URL with an http(s) URL")
        # Several claims in one request bring no probabilities, which calibration needs
        return name, load_judge(kind, served, url=url, together=False)
    knobs = {"trust_remote_code": True} if trust_remote_code and kind != "lexical" else {}
    return name, load_judge(kind, model or None, **knobs)


def parse_judges(specs: Iterable[str], trust_remote_code: bool = False) -> dict[str, Judge]:
    """The judges by name; a name that two have gets a number."""
    found: dict[str, Judge] = {}
    for name, judge in (parse_judge(spec, trust_remote_code) for spec in specs):
        taken = sum(other == name or other.startswith(f"{name} #") for other in found)
        found[f"{name} #{taken + 1}" if taken else name] = judge
    return found


def _read(path: Path) -> Iterator[tuple[Labelled, Sequence[str]]]:
    """The rows, each with the digests of its question and passages: rows that share one belong on one side."""
    stem = path.name.removesuffix(".gz").removesuffix(".jsonl")
    kind: str | None = None
    for number, row in enumerate(read_rows(path), start=1):
        if kind is None:
            kind = next((name for name, columns in KNOWN.items() if row.keys() >= set(columns)), "")
        try:
            for one in _plain(row, kind):
                yield _labelled(one, f"{stem}:{number}", stem)
        except (KeyError, TypeError, ValueError) as error:
            what = (
                f"no column {error}; it has: {', '.join(row)}"
                if isinstance(error, KeyError)
                else str(error)
            )
            raise DataError(f"{path}, row {number}: {what}") from error


def _plain(row: Row, kind: str) -> Iterator[Row]:
    """The row in the columns that any other file may have; one of HaluEval is two."""
    if kind == "halueval":
        for which in ("right", "hallucinated"):
            said = {"hypothesis": row[f"{which}_answer"], "label": which == "right", "id": which}
            yield {"premise": row["knowledge"], "question": row["question"], "source": kind, **said}
    elif kind:
        pair = dict(
            zip(
                ("premise", "hypothesis", "label"),
                (row[column] for column in KNOWN[kind]),
                strict=True,
            )
        )
        yield {**pair, "question": row.get("question"), "source": kind}
    else:
        yield row


def _labelled(row: Row, place: str, stem: str) -> tuple[Labelled, Sequence[str]]:
    values = []
    for names in COLUMNS:
        if (value := first(row, names)) is None:
            raise ValueError(
                f"no column {' or '.join(names)}; it has: {', '.join(row) or 'nothing'}"
            )
        values.append(value)
    premise, hypothesis, label = values
    passages, question = (
        [premise] if isinstance(premise, str) else premise,
        row.get("question") or "",
    )
    if not isinstance(passages, list) or not all(
        isinstance(text, str) for text in (*passages, hypothesis, question)
    ):
        raise TypeError(
            "the premise must be a text or a list of texts, hypothesis and question must be texts"
        )
    task: Any = row.get("task") or "support"
    p = row.get("p")
    if task not in get_args(Task):
        raise ValueError(f"unknown task {task!r}; there are: {', '.join(get_args(Task))}")
    # `in (0, 1)` is true of booleans and of 1.0, too
    word = (
        str(int(label))
        if label in (0, 1)
        else str(label).strip().lower().replace("_", " ").replace("-", " ")
    )
    if word not in (*TRUE, *FALSE):
        raise ValueError(f"the label {label!r} is not understood; use true or false")
    # ways to spell a question must not put it on both sides
    simple = [
        normalize(unicodedata.normalize("NFKC", text), "pokee") for text in (question, *passages)
    ]
    told = [text for text in simple if text] or [hypothesis]
    keys = [hashlib.sha256(text.encode()).hexdigest() for text in told]
    source = str(row.get("source") or stem)
    reserved = stem == TEST_FILE and source == "attributionbench"
    labelled = Labelled(
        id=place if row.get("id") is None else f"{place}:{row['id']}",
        premise="\n\n".join(passages),
        hypothesis=hypothesis,
        question=question,
        label=word in TRUE,
        source=source,
        split="heldout" if reserved or int(keys[0][:8], 16) % FOLDS == 0 else "train",
        group=keys[0][:16],
        task=task,
        p=float(p)
        if isinstance(p, (int, float)) and not isinstance(p, bool) and 0 <= p <= 1
        else None,
    )
    return labelled, keys
