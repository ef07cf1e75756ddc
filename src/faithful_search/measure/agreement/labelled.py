"""Pairs of texts that people labelled (`load`), and judges by the names that commands take
(`parse_judge`).

docs/judges.md says what the labels mean. Each row belongs to one of three splits, which never
change. A row's *group* is its question, or its premise where it has no question. The row is held
out when the first eight hex digits of the group's SHA-256 are divisible by five, or when it comes
from AttributionBench's test file. The hashed text is NFKC, in lower case, with punctuation and runs
of blanks replaced by one blank. A row that is not held out, but shares a question or a passage with
a held out row of the same source, has the split `overlap`. All others are `train`.
"""

import hashlib
import heapq
import math
import os
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

import msgspec

from ...bundled import bundled_json
from ...columns import first
from ...errors import ConfigError, DataError, WeightsError
from ...json_lines import read_rows
from ...judges import Judge, Pair, Verdict, find as find_judge, load as load_judge
from ...judges.base import Task
from ...judges.presets import PRESETS
from ...text import normalize

Split = Literal["train", "heldout", "overlap"]
Row = Mapping[str, Any]
SPLITS: tuple[Split, ...] = ("train", "heldout", "overlap")
TEST_FILE = "attributionbench_test500"
FOLDS = 5  # one of which is held out
# `COLUMNS` are the names of columns with the premise, the hypothesis and the label. `KNOWN` are the
# columns by which known files are recognised. `TRUE` and `FALSE` are words of labels.
COLUMNS, KNOWN, TRUE, FALSE = bundled_json("labelled_files.json").values()


class Labelled(msgspec.Struct, frozen=True):
    """A pair of texts with a label: whether `hypothesis` follows from `premise`.

    `group` is a digest of what must not stand on two sides of a split. `task` is what a judge is
    asked about the pair. `p` is the probability that the labeller gave, if any. `kind` says which
    error the hypothesis has, or how it was made. `spans` are the characters (start, end) of the
    hypothesis that the premise does not support; `None` where that is not known.
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
    kind: str = ""
    spans: tuple[tuple[int, int], ...] | None = None

    @property
    def pair(self) -> Pair:
        return Pair(self.premise, self.hypothesis, self.question, self.task)


def load(path: str | os.PathLike[str], split: Split | None = None) -> list[Labelled]:
    """The labelled rows of a file, or of all `.jsonl` and `.jsonl.gz` files in a directory, in
    order: all rows, or those of one split.

    The columns of the first row say which kind of file it is. It is one of `KNOWN`, or it has a
    premise (a text, or a list of texts), a hypothesis and a label, each in one of `COLUMNS`. A
    label is a boolean, 0 or 1, or one of the words `TRUE` and `FALSE`. The file may also have a
    `question`, an `id`, a `source`, a `task` (what a judge is asked, by default "support"), `p`,
    the labeller's probability in [0, 1] that the label is true, a `kind` of error and its `spans`,
    a list of [start, end]. AttributionBench's files are split
    together with its test file, even if only one of them is loaded.

    Raises `DataError` for rows that cannot be read, with the file and the row, and when there are
    no rows; `ConfigError` for an unknown split.
    """
    if split is not None and split not in SPLITS:
        raise ConfigError(f"unknown split {split!r}; there are: {', '.join(SPLITS)}")
    path = Path(path)
    endings = (".jsonl", ".jsonl.gz")
    files = [path]
    if path.is_dir():
        files = sorted(file for file in path.iterdir() if file.name.endswith(endings))
    rows_of_files = {file: list(_read(file)) for file in [*files, *_test_files(files, endings)]}
    held_out: defaultdict[str, set[str]] = defaultdict(set)  # digests by source
    for row, digests in chain.from_iterable(rows_of_files.values()):
        if row.split == "heldout":
            held_out[row.source].update(digests)
    rows: list[Labelled] = []
    for row, digests in chain.from_iterable(rows_of_files[file] for file in files):
        if row.split == "train" and not held_out[row.source].isdisjoint(digests):
            row = msgspec.structs.replace(row, split="overlap")
        rows.append(row)
    if not rows:
        where = f"{' and '.join(endings)} files" if path.is_dir() else "it"
        raise DataError(f"{path}: no labelled rows in {where}")
    chosen = [row for row in rows if split in (None, row.split)]
    if not chosen:
        raise DataError(f"{path}: no labelled rows in the split {split!r}")
    return chosen


def _test_files(files: Sequence[Path], endings: Sequence[str]) -> list[Path]:
    """AttributionBench's test file, where only others of its files are loaded: their rows must
    leave `train` if they share something with it.
    """
    tests: set[Path] = set()
    for file in files:
        if not file.name.startswith("attributionbench"):
            continue
        for ending in endings:
            test = file.with_name(f"{TEST_FILE}{ending}")
            if test not in files and test.exists():
                tests.add(test)
    return list(tests)


def sample(rows: Iterable[Labelled], per_source: int, seed: int = 0) -> list[Labelled]:
    """At most `per_source` rows of each source, in their order. A larger sample contains the
    smaller ones.
    """
    rows = list(rows)
    places_by_source: dict[str, list[int]] = defaultdict(list)
    for place, row in enumerate(rows):
        places_by_source[row.source].append(place)

    def rank_at(place: int) -> str:
        return rank(seed, rows[place].id)

    chosen: list[int] = []
    for places in places_by_source.values():
        chosen += heapq.nsmallest(per_source, places, key=rank_at)
    return [rows[place] for place in sorted(chosen)]


def rank(seed: int, id: str) -> str:
    """A key by which rows are sorted at random: the first ones are a sample."""
    return hashlib.sha256(f"{seed} {id}".encode()).hexdigest()


@dataclass(frozen=True)
class RecordedJudge(Judge):
    """A judge that repeats recorded labels, of people or of another run.

    It looks a pair up by its question, premise, hypothesis and task. It abstains from a pair that
    has no label, and from one that was labelled both true and false. Its p is the labeller's if the
    file has one, else 1 or 0. Its name holds a digest of the labels.
    """

    name: str
    verdicts: Mapping[Pair, Verdict] = field(repr=False)

    @classmethod
    def of(cls, rows: Iterable[Labelled]) -> "RecordedJudge":
        verdicts: dict[Pair, Verdict] = {}
        for row in rows:
            # Without a p the label counts as certain
            p = float(row.label) if row.p is None else row.p
            earlier = verdicts.get(row.pair)
            if earlier is None or earlier.label == row.label:
                verdicts[row.pair] = Verdict(p, row.label)
            else:
                verdicts[row.pair] = Verdict(None, None, "labelled both ways")
        lines = [f"{pair} {verdict.p} {verdict.label}" for pair, verdict in verdicts.items()]
        digest = hashlib.sha256("\n".join(lines).encode())
        return cls(f"labels@{digest.hexdigest()[:12]}", verdicts)

    def judge_batch(self, pairs: Sequence[Pair]) -> list[Verdict]:
        missing = Verdict(None, None, "no label for this pair")
        return [self.verdicts.get(pair, missing) for pair in pairs]


def parse_judge(spec: str, trust_remote_code: bool = False) -> tuple[str, Judge]:
    """The name of a judge and the judge, from its specification on a command line:

    ```
    lexical | counted | containment | embedding:MODEL | nli:MODEL | generator:MODEL
    endpoint:MODEL@URL | remote:URL
    minicheck | hhem | lettuce | factcg | granite | one of these with :MODEL | span:MODEL | labels:PATH
    ```

    MODEL is a Hub id or a directory, for `endpoint` the served name. PATH is a labelled file or a
    folder of them, such as another run of a judge on the same pairs. The name is the kind with the
    last part of MODEL or PATH.

    Raises `ConfigError` for any other specification, `DataError` for a PATH that holds no labels.
    """
    kind, _, model = spec.partition(":")
    url = ""
    if kind == "endpoint":
        model, _, url = model.rpartition("@")
    last_part = model.removesuffix("/pairs.jsonl").rstrip("/").rsplit("/", 1)[-1]
    name = f"{kind}:{last_part}" if model else kind
    if kind == "labels" and model:
        return name, RecordedJudge.of(load(model))
    if kind == "remote":  # the server chooses the model
        return spec, load_judge(kind, url=model)
    if kind == "endpoint":
        if not model or not url.startswith(("http://", "https://")):
            raise ConfigError(f"{spec!r}: expected endpoint:MODEL@URL with an http(s) URL")
        # A request with several claims brings no probabilities, which calibration needs
        return name, load_judge(kind, model, url=url, together=False)
    settings = {}
    if trust_remote_code and "trust_remote_code" in find_judge(kind).flags:
        settings["trust_remote_code"] = True
    return name, load_judge(kind, model or None, **settings)


class Judges(NamedTuple):
    """Judges by name, and why the weights of others could not be opened, by their names."""

    opened: dict[str, Judge]
    unmeasured: dict[str, str]


def parse_judges(specs: Iterable[str], trust_remote_code: bool = False) -> Judges:
    """The judges of these specifications; `presets` stands for all judges with published weights.

    The second judge of a name is called NAME #2, and so on. Raises `ConfigError` as `parse_judge`,
    but where some weights cannot be opened only if there is no judge without them.
    """
    judges: dict[str, Judge] = {}
    unmeasured: dict[str, str] = {}
    times: Counter[str] = Counter()
    each_spec: list[str] = []
    for spec in specs:
        if spec == "presets":
            each_spec += PRESETS
        else:
            each_spec.append(spec)
    for spec in each_spec:
        try:
            name, judge = parse_judge(spec, trust_remote_code)
        except WeightsError as error:
            unmeasured[spec] = str(error)
            continue
        times[name] += 1
        if times[name] > 1:
            name = f"{name} #{times[name]}"
        judges[name] = judge
    if not judges and unmeasured:
        reasons = "; ".join(f"{spec}: {reason}" for spec, reason in unmeasured.items())
        raise WeightsError(f"no judge could be opened: {reasons}")
    return Judges(judges, unmeasured)


def _read(path: Path) -> Iterator[tuple[Labelled, Sequence[str]]]:
    """The rows, each with digests of its question and its passages. Rows that share a digest must
    not stand on both sides of a split.
    """
    stem = path.name.removesuffix(".gz").removesuffix(".jsonl")
    kind: str | None = None
    for number, row in enumerate(map(_without_nan, read_rows(path, beyond=True)), start=1):
        if kind is None:
            kind = _kind_of(row)
        try:
            for plain_row in _plain(row, kind):
                yield _labelled(plain_row, f"{stem}:{number}", stem)
        except (KeyError, TypeError, ValueError) as error:
            problem = str(error)
            if isinstance(error, KeyError):
                problem = f"no column {error}; it has: {', '.join(row)}"
            raise DataError(f"{path}, row {number}: {problem}") from error


def _kind_of(row: Row) -> str:
    """The known kind of file that has rows with these columns; empty for none."""
    for kind, columns in KNOWN.items():
        if row.keys() >= set(columns):
            return kind
    return ""


def _without_nan(row: Row) -> Row:
    """The row with `None` for NaN, as many write what is missing. A p stays, since it would count
    as certain.
    """
    cleaned = dict(row)
    for name, value in row.items():
        is_no_number = isinstance(value, float) and not math.isfinite(value)
        if is_no_number and name != "p":
            cleaned[name] = None
    return cleaned


def _plain(row: Row, kind: str) -> Iterator[Row]:
    """The row of a known kind of file in the usual columns. A row of HaluEval becomes two."""
    if kind == "halueval":
        for which in ("right", "hallucinated"):
            yield {
                "premise": row["knowledge"],
                "question": row["question"],
                "source": kind,
                "hypothesis": row[f"{which}_answer"],
                "label": which == "right",
                "id": which,
            }
    elif kind:
        premise, hypothesis, label = KNOWN[kind]
        yield {
            "premise": row[premise],
            "hypothesis": row[hypothesis],
            "label": row[label],
            "question": row.get("question"),
            "source": kind,
        }
    else:
        yield row


def label_of(value: Any) -> bool:
    """A label as labelled files write it. Raises `ValueError` for what is none."""
    word = str(value).strip().lower().replace("_", " ").replace("-", " ")
    if value in (0, 1):  # booleans and 1.0, too
        word = str(int(value))
    if word not in (*TRUE, *FALSE):
        raise ValueError(f"the label {value!r} is not understood; use true or false")
    return word in TRUE


def _labelled(row: Row, place: str, stem: str) -> tuple[Labelled, Sequence[str]]:
    """The labelled pair, and the digests of its question and passages.

    `place` is FILE:ROW and `stem` the file's name. Raises `TypeError` or `ValueError` for values
    that cannot be read.
    """
    values = []
    for names in COLUMNS:
        column = first(row, names)
        if column is None:
            raise ValueError(
                f"no column {' or '.join(names)}; it has: {', '.join(row) or 'nothing'} (the "
                "command label makes a labelled file of trajectories)"
            )
        values.append(column.value)
    premise, hypothesis, label = values
    passages = [premise] if isinstance(premise, str) else premise
    question = row.get("question") or ""
    if not isinstance(passages, list) or not all(
        isinstance(text, str) for text in (*passages, hypothesis, question)
    ):
        raise TypeError(
            "the premise must be a text or a list of texts, hypothesis and question must be texts"
        )
    task: Any = row.get("task") or "support"
    if task not in get_args(Task):
        raise ValueError(f"unknown task {task!r}; there are: {', '.join(get_args(Task))}")
    # Normalised, so that two spellings of a question do not stand on both sides of a split
    normalized = [
        normalize(unicodedata.normalize("NFKC", text), "pokee") for text in (question, *passages)
    ]
    texts = [text for text in normalized if text] or [hypothesis]
    keys = [hashlib.sha256(text.encode()).hexdigest() for text in texts]
    source = str(row.get("source") or stem)
    is_test = stem == TEST_FILE and source == "attributionbench"
    is_held_out = is_test or int(keys[0][:8], 16) % FOLDS == 0
    labelled = Labelled(
        id=place if row.get("id") is None else f"{place}:{row['id']}",
        premise="\n\n".join(passages),
        hypothesis=hypothesis,
        question=question,
        label=label_of(label),
        source=source,
        split="heldout" if is_held_out else "train",
        group=keys[0][:16],
        task=task,
        p=_probability(row.get("p")),
        kind=str(row.get("kind") or ""),
        spans=_spans(row.get("spans"), hypothesis),
    )
    return labelled, keys


def _probability(value: Any) -> float | None:
    """The labeller's probability, `None` where there is none; `ValueError` for what is none."""
    if value is None:
        return None
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not is_number or not 0 <= value <= 1:
        raise ValueError(f"p must be a number in [0, 1], got {value!r}")
    return float(value)


def _spans(value: Any, hypothesis: str) -> tuple[tuple[int, int], ...] | None:
    """Places in the hypothesis; `ValueError` for what is none."""
    if value is None:
        return None
    try:
        spans = msgspec.convert(value, tuple[tuple[int, int], ...])
    except msgspec.ValidationError as error:
        raise ValueError(f"spans must be a list of [start, end]: {error}") from error
    for start, end in spans:
        if not 0 <= start <= end <= len(hypothesis):
            raise ValueError(f"the span [{start}, {end}] is outside the hypothesis")
    return spans
