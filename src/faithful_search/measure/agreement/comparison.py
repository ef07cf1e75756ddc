"""Judges asked about labelled pairs, or audits of the same trajectories laid side by side: can the judge be trusted?"""

from __future__ import annotations

import hashlib
import json
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from ...errors import ConfigError, DataError, JudgeError
from ...judges import Judge, LexicalJudge, Pair, Verdict, prompting
from ...judges import load as load_judge
from ...tasks import read_rows
from ...trajectory import read_lines
from ..report import write_metrics
from ..stats import DRAWS
from .labelled import Labelled, sample
from .recorded import RecordedJudge
from .table import Agreement, Ratings, measured

CHUNK = 64
VERDICTS = "verdicts.jsonl"
RESULT = "agreement.json"
UNJUDGED = "_sub_em"
PathLike = str | os.PathLike[str]
_Key = tuple[str, int, str]


def run(
    rows: Sequence[Labelled],
    judges: Mapping[str, Judge],
    out: PathLike,
    *,
    limit: int | None = None,
    seed: int = 0,
    draws: int = DRAWS,
    chunk: int = CHUNK,
    progress: bool = True,
) -> Agreement:
    """Ask every judge about every row and compare the verdicts with the labels and with each other.

    Verdicts are appended to `OUT/verdicts.jsonl` as they come; a later run into the same directory asks only about what
    is missing there or was abstained from. `OUT/agreement.json` appears when all is done.

    Args:
        rows: of `labelled.load`.
        judges: by the names they shall have in the results, see `parse_judge`.
        out: a directory, made where it does not exist.
        limit: at most so many rows of each source, chosen by `seed`.
        seed, draws: of the sample and the bootstrap.
        chunk: pairs handed to a judge at once, and written at once.
        progress: show a bar (on a terminal).

    Raises:
        JudgeError: when a judge cannot be asked at all; what was judged before is kept.
        DataError: without rows, or when `out` cannot be written.
        ConfigError: without judges.
    """
    if not judges:
        raise ConfigError("name at least one judge")
    rows = list(rows) if limit is None else sample(rows, limit, seed)
    if not rows:
        raise DataError("no labelled rows to judge")
    store = _Store(Path(out) / VERDICTS)
    found = {name: _judge_all(name, judge, rows, store, chunk, progress) for name, judge in judges.items()}
    ratings = Ratings([row.source for row in rows], [row.group for row in rows], [row.label for row in rows], found)
    settings = {"judges": {name: judge.name for name, judge in judges.items()}, "limit": limit}
    return _written(measured(ratings, settings, draws, seed), out)


def from_scores(
    paths: Sequence[PathLike],
    out: PathLike | None = None,
    labels: PathLike | None = None,
    *,
    seed: int = 0,
    draws: int = DRAWS,
) -> Agreement:
    """Compare the judges of two or more audits of the same trajectories, pair by pair.

    Pairs are matched by the digest of their row, the metric (`info_think_lexical` and `info_think_faithfulness` are the
    same pairs) and their place in it. A row is left out of a metric when a file lacks it or holds another number of
    pairs; `settings` says how many pairs that were. Pairs that needed no judge (a search without a thought) are no
    verdicts and left out. Whole rows are resampled.

    Args:
        paths: `scores.jsonl` files.
        out: where `agreement.json` is written; nowhere without it.
        labels: a `scores.jsonl` whose pairs carry a person's labels.
        seed, draws: of the bootstrap.

    Raises:
        DataError: for what is no `scores.jsonl`, and when no pair is in all files.
        ConfigError: with fewer than two files.
    """
    if len(paths) + (labels is not None) < 2:
        raise ConfigError("give two or more scores.jsonl files, or one and a labelled one")
    audits = [_Audit.read(path) for path in paths]
    truth = None if labels is None else _Audit.read(labels)
    every = [*audits, *([truth] if truth else [])]
    places = _shared(every)
    if not places:
        raise DataError(f"no judged pair is in all of: {', '.join(a.path for a in every)}; audit the same file")
    ratings = Ratings(
        [metric for (_, _, metric), _ in places],
        [digest for (digest, _, _), _ in places],
        None if truth is None else [verdict.label for verdict in truth.at(places)],
        {name: audit.at(places) for name, audit in zip(_names(audits), audits, strict=True)},
    )
    settings = {"files": [a.path for a in every], "left_out": {a.path: a.left_out(places) for a in every}}
    found = measured(ratings, settings, draws, seed)
    return found if out is None else _written(found, out)


def is_scores(path: PathLike) -> bool:
    """Whether the file's first line is one of an audit's `scores.jsonl`."""
    if Path(path).is_dir():
        return False
    try:
        return any(column in next(read_rows(path), {}) for column in ("scores", "digest"))
    except DataError:
        return False


def parse_judge(spec: str, trust_remote_code: bool = False) -> tuple[str, Judge]:
    """A judge and its name from what is typed on a command line.

    ```
    lexical | containment | embedding:MODEL | nli:MODEL | generator:MODEL | endpoint:MODEL@URL | remote:URL
    labels:PATH
    ```
    MODEL is a Hub id or a directory (for `endpoint` the served name). The name is the kind and the model's last part.
    PATH is a labelled file or a folder of them, such as another run of a judge over the same pairs, which are looked up
    in it; pairs that it does not hold are abstained from.

    Args:
        spec: as above.
        trust_remote_code: whether Python code that lies beside a judge's model may be run.

    Raises:
        ConfigError: for anything else.
        DataError: for a PATH that holds no labels.

    Example:
        >>> parse_judge("containment")
        ('containment', LexicalJudge(how='squad'))
    """
    kind, _, model = spec.partition(":")
    if spec == "containment":
        return spec, LexicalJudge()
    if kind == "lexical" and model:
        raise ConfigError(f"{spec!r}: the lexical judge has no model")
    if kind == "labels" and model:
        return _short(kind, model.removesuffix("/pairs.jsonl")), RecordedJudge.read(model)
    if kind == "remote":
        return spec, load_judge(kind, url=model)
    if kind != "endpoint":
        knobs = {"trust_remote_code": True} if trust_remote_code and kind != "lexical" else {}
        return _short(kind, model), load_judge(kind, model or None, **knobs)
    served, _, url = model.rpartition("@")
    if not served or not url.startswith(("http://", "https://")):
        raise ConfigError(f"{spec!r}: expected endpoint:MODEL@URL with an http(s) URL")
    return _short(kind, served), load_judge(kind, served, url=url, together=False)  # calibration needs probabilities


def _short(kind: str, model: str) -> str:
    return f"{kind}:{model.rstrip('/').rsplit('/', 1)[-1]}" if model else kind


class _Line(msgspec.Struct, frozen=True):
    """A line of `verdicts.jsonl`; `by` is what the judge calls itself, `pair` a digest of what it read."""

    judge: str
    by: str
    pair: str
    id: str
    p: float | None
    label: bool | None
    why: str = ""


class _Store:
    """The verdicts in a file, read once and appended to."""

    def __init__(self, path: Path) -> None:
        self.path = path
        lines = _lines(path) if path.exists() else ()
        self.known = {(line.judge, line.by, line.pair): _verdict(line) for line in lines if line.label is not None}
        self._write(b"\n" if path.exists() and not path.read_bytes().endswith(b"\n") else b"")

    def append(self, lines: Sequence[_Line]) -> None:
        self._write(b"".join(msgspec.json.encode(line) + b"\n" for line in lines))

    def _write(self, text: bytes) -> None:
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with open(self.path, "ab") as file:
                file.write(text)
        except OSError as error:
            raise DataError(f"cannot write {self.path}: {error}") from error


def _lines(path: Path) -> Iterator[_Line]:
    """The lines that can be read: an interrupted run may have left half of one."""
    for _, line in read_lines(path):
        try:
            yield msgspec.json.decode(line, type=_Line)
        except (msgspec.MsgspecError, UnicodeError):
            continue


def _verdict(line: _Line) -> Verdict:
    return Verdict(line.p, line.label, line.why, line.by)


def _judge_all(
    name: str, judge: Judge, rows: Sequence[Labelled], store: _Store, chunk: int, progress: bool
) -> list[Verdict]:
    from tqdm.auto import tqdm

    keys = [(name, judge.name, _digest(row)) for row in rows]
    found = dict(store.known)
    missing = [(key, row) for key, row in dict(zip(keys, rows, strict=True)).items() if key not in found]
    with tqdm(total=len(set(keys)), desc=name, unit="pair", disable=None if progress else True) as bar:
        bar.update(len(set(keys)) - len(missing))
        for start in range(0, len(missing), chunk):
            part = missing[start : start + chunk]
            verdicts = _judged(name, judge, [row for _, row in part])
            answered = list(zip(part, verdicts, strict=True))
            store.append([_Line(*key, row.id, own.p, own.label, own.why) for (key, row), own in answered])
            found |= {key: own for (key, _), own in answered}
            bar.update(len(part))
    return [found[key] for key in keys]


def _judged(name: str, judge: Judge, rows: Sequence[Labelled]) -> list[Verdict]:
    verdicts = judge.judge_batch([Pair(row.premise, row.hypothesis, row.question, row.task) for row in rows])
    if len(verdicts) != len(rows):
        raise JudgeError(f"{name} gave {len(verdicts)} verdicts for {len(rows)} pairs")
    return verdicts


def _digest(row: Labelled) -> str:
    """Of what a judge reads, the prompt's version included: what changed is asked about again."""
    text = json.dumps([row.premise, row.hypothesis, row.question, prompting.load(row.task).digest])
    return hashlib.sha256(text.encode()).hexdigest()[:16]


@dataclass(frozen=True)
class _Audit:
    """The pairs of a `scores.jsonl` by row digest, how often that digest came before, and metric."""

    path: str
    judge: str
    pairs: Mapping[_Key, Sequence[Verdict]]

    @staticmethod
    def read(path: PathLike) -> _Audit:
        pairs: dict[_Key, Sequence[Verdict]] = {}
        seen: Counter[str] = Counter()
        judges: dict[str, None] = {}
        for number, row in enumerate(read_rows(path), start=1):
            try:
                digest, parts = row["digest"], _parts(row)
                pairs |= {(digest, seen[digest], metric): _verdicts(part) for metric, part in parts.items()}
                judges |= dict.fromkeys(part["judge"].partition(" ")[0] for part in parts.values())
            except (KeyError, TypeError, AttributeError) as error:
                raise DataError(f"{path}, row {number}: not a line of an audit's scores.jsonl ({error!r})") from error
            seen[digest] += 1
        return _Audit(str(path), " + ".join(judges), pairs)

    def at(self, places: Sequence[tuple[_Key, int]]) -> list[Verdict]:
        return [self.pairs[key][number] for key, number in places]

    def left_out(self, places: Sequence[tuple[_Key, int]]) -> int:
        return sum(map(len, self.pairs.values())) - len(places)


def _parts(row: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """By metric, what is said about its pairs; left out are metrics without pairs and those that ask no judge."""
    asked = {name: score for name, score in row.get("scores", {}).items() if not name.endswith(UNJUDGED)}
    parts = {_stem(name): score.get("parts", {}) for name, score in asked.items()}
    return {metric: part for metric, part in parts.items() if part.get("pairs")}


def _verdicts(part: Mapping[str, Any]) -> list[Verdict]:
    return [Verdict(pair.get("p"), pair["label"]) for pair in part["pairs"] if not pair.get("settled")]


def _shared(audits: Sequence[_Audit]) -> list[tuple[_Key, int]]:
    """The pairs of rows and metrics for which all audits have equally many."""
    first, *others = [audit.pairs for audit in audits]
    alike = [key for key, own in first.items() if all(len(other.get(key, ())) == len(own) for other in others)]
    return [(key, number) for key in alike for number in range(len(first[key]))]


def _stem(metric: str) -> str:
    return metric.removesuffix("_lexical").removesuffix("_faithfulness")


def _names(audits: Sequence[_Audit]) -> list[str]:
    """What the judges call themselves; the files' paths where that does not tell them apart."""
    names = [audit.judge for audit in audits]
    return names if all(names) and len(set(names)) == len(names) else [audit.path for audit in audits]


def _written(found: Agreement, out: PathLike) -> Agreement:
    try:
        write_metrics(Path(out) / RESULT, found.to_dict())
    except OSError as error:
        raise DataError(f"cannot write {Path(out) / RESULT}: {error}") from error
    return found
