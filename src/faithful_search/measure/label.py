"""Make a dataset of a judge's labels on pairs of texts, which are cut from trajectories.

```
files ─ cut by the metric's reward ─> PairToJudge, … ─ judge ─> LabelledPair, … in pairs.jsonl
```

Files are read row by row, and labels are written as they come, so that a run can be continued.
"""

import hashlib
import heapq
import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, Protocol, TypeVar, get_args

import msgspec

from .. import __version__, rewards
from ..errors import ConfigError, DataError
from ..judges import GroundingJudge, Judge, Pair, Verdict, Writer
from ..judges.base import Task
from ..reading.files import STDIN, PathLike, inside, local_file, total_rows
from ..reading.rows import Raw, Reader, RowSource
from ..rewards.base import JudgedReward
from . import provenance
from .agreement.labelled import rank
from .ledger import Records, answers_kept, ask_in_parts, same_settings, width_of
from .provenance import NAMED, PAIRS, PROVENANCE, File, Provenance
from .scores import pairs_of_each
from .settings import LabelSettings, PairMetric
from .workers import chunks, in_order, progress_bar
from .writing import make_folder, write_metrics

METRICS = get_args(PairMetric)
BATCH_ROWS = 64  # the number of rows that a process reads at a time
Progress = Callable[..., Any]


class HasId(Protocol):
    """What can be sampled by its id."""

    @property
    def id(self) -> str: ...


Item = TypeVar("Item", bound=HasId)


class LabelledPair(msgspec.Struct, frozen=True):
    """One line of `pairs.jsonl`, which `agreement.load` reads like any labelled file.

    Attributes:
        id: a digest of question, premise, hypothesis and task.
        task: what the judge was asked.
        p: the judge's probability, if it gave one.
        judge: what the judge calls itself, with the version of its prompt.
        source: the name of the pair's file without its ending.
        trajectory: FILE:ROW where the pair was first met.
        step: the step there, from 1.
    """

    id: str
    question: str
    premise: str
    hypothesis: str
    task: Task
    label: bool
    p: float | None
    judge: str
    source: str
    trajectory: str
    step: int

    @staticmethod
    def of(to_judge: "PairToJudge", verdict: Verdict, judge: str) -> "LabelledPair":
        """The pair with its verdict. `judge` is the name of a judge whose verdicts hold no name."""
        pair = to_judge.pair
        return LabelledPair(
            id=to_judge.id,
            question=pair.question,
            premise=pair.premise,
            hypothesis=pair.hypothesis,
            task=pair.task,
            label=bool(verdict.label),
            p=verdict.p,
            judge=verdict.judge or judge,
            source=to_judge.trajectory.rpartition(":")[0],
            trajectory=to_judge.trajectory,
            step=to_judge.step,
        )


def label(
    files: Sequence[PathLike],
    out: PathLike,
    *,
    judge: Judge | None = None,
    on_progress: Progress | None = None,
    **settings: Any,
) -> Provenance:
    """Write `pairs.jsonl` while the judge answers, then `provenance.json` and `README.md`, a
    dataset card.

    The pairs are those that the metric's reward asks a judge about. Equal pairs become one row.
    Pairs that need no judge (an action after a response without a thought in between) are counted
    and left out. A pair that the judge abstains from gets no row; the same call asks about it
    again, but not about pairs that have a label. Further files may be added to a folder. Another
    metric, judge or prompt needs another folder; other settings of the judge, such as its
    threshold, are not compared.

    Args:
        files: as `audit` reads them, without the standard input.
        out: the folder for what is written.
        judge: who labels; by default `GroundingJudge()`, as in audits.
        on_progress: a `tqdm`-like class; by default a progress bar on a terminal.
        settings: fields of `LabelSettings`. `sample` pairs are chosen by hash, with `seed`, after
            all rows have been read. `workers` is 1 if the judge also makes claims of answers.
            `license` is by default the one in the folder's card.

    Raises as `audit` does, and `DataError` when no file holds any pair.
    """
    label_settings = LabelSettings(**settings)
    bar = on_progress or progress_bar
    judge = reward(label_settings.metric, judge).judge
    sources = files_of(files)
    folder = make_folder(Path(out))
    with Records(folder / PAIRS, "labelling", LabelledPair, _id_and_label) as labels:
        unfinished = _begun(label_settings, judge, folder).with_files(sources.values())
        # Written before the first label, so that the labels of a run that is killed say whose they
        # are
        write_metrics(folder / PROVENANCE, msgspec.to_builtins(unfinished))
        with answers_kept(judge, folder):
            pairs: Iterable[PairToJudge] = _pairs(sources, label_settings, judge, bar)
            if label_settings.sample is not None:
                pairs = bar(
                    iterable=sampled(pairs, label_settings.sample, label_settings.seed),
                    desc="labelling",
                    unit="pair",
                )
            unjudged = _ask(judge, labels, pairs)
        record = msgspec.structs.replace(
            unfinished.with_files(sources.values()),
            judges=dict(Counter(by for _, by in labels.kept.values()).most_common()),
            pairs=len(labels.kept),
            positives=sum(is_true for is_true, _ in labels.kept.values()),
            abstained=len(unjudged),
            unjudged=unjudged[:NAMED],
            date=datetime.now(UTC).isoformat(timespec="seconds"),
            finished=True,
        )
        write_metrics(folder / PROVENANCE, msgspec.to_builtins(record))
    if not any(file.pairs for file in record.files):
        raise DataError(_without_pairs(record))
    provenance.write_card(folder, record)
    return record


def _without_pairs(record: Provenance) -> str:
    """Why there is nothing to label, and what to do."""
    rows = sum(file.rows for file in record.files)
    skipped = sum(file.skipped for file in record.files)
    if not skipped:
        others = ", ".join(name for name in METRICS if name != record.metric)
        return (
            f"no {record.metric} pair in any of the {rows:,} rows read; --metric names another of "
            f"{others}"
        )
    first = next((f"{file.name}, {file.reasons[0]}" for file in record.files if file.reasons), "")
    return (
        f"no {record.metric} pair: {skipped:,} of {rows:,} rows could not be read or cut, and the "
        f"others hold none; {first}"
    )


def _id_and_label(row: LabelledPair) -> tuple[str, tuple[bool, str]]:
    return row.id, (row.label, row.judge)


def reward(metric: str, judge: Judge | None = None) -> JudgedReward:
    """The reward that cuts the pairs of a metric, with this judge. By default it is the judge of
    audits, which compares words.

    Raises `ConfigError` for a metric that asks about no pairs.
    """
    if metric not in METRICS:
        raise ConfigError(f"{metric!r} has no pairs to label; there are: {', '.join(METRICS)}")
    kind: Callable[..., JudgedReward] = rewards.load(metric)  # type: ignore[assignment]
    return kind(judge=GroundingJudge() if judge is None else judge)


def files_of(files: Sequence[PathLike]) -> dict[Path, File]:
    """The files, and those in the folders, with their digests. Raises `DataError` for a file that
    is not there.
    """
    if not files:
        raise ConfigError("name at least one file of trajectories")
    if any(str(file) == STDIN for file in files):
        raise ConfigError(
            "labels name the files they come from: save the standard input to a file first"
        )
    sources: dict[Path, File] = {}
    for path in map(local_file, files):
        files_of_path = inside(path) if path.is_dir() else [path]
        for file in files_of_path:
            sources.setdefault(file, File.of(file))
    return sources


def _begun(label_settings: LabelSettings, judge: Judge, folder: Path) -> Provenance:
    """The provenance when a run begins. Raises `ConfigError` where the folder holds labels of
    another metric, judge or prompt.
    """
    prompts = provenance.prompts_of(judge, label_settings.metric)
    kind = {"metric": label_settings.metric, "judge": judge.name, "prompts": prompts}
    same_settings(folder / PROVENANCE, kind, "use another folder", ledger=folder / PAIRS)
    before = provenance.read(folder) or Provenance(label_settings.metric, judge.name)
    return msgspec.structs.replace(
        before,
        **kind,
        abstained=0,
        unjudged=[],
        settings={
            "sample": label_settings.sample,
            "seed": label_settings.seed,
            "limit": label_settings.limit,
            "dialect": label_settings.dialect,
            "text_column": label_settings.text_column,
            "weights": judge.weights.record(),
        },
        license=label_settings.license or before.license,
        version=__version__,
        date=datetime.now(UTC).isoformat(timespec="seconds"),
        finished=False,
    )


def _ask(judge: Judge, labels: Records[LabelledPair], pairs: Iterable["PairToJudge"]) -> list[str]:
    """Label the pairs that have no label yet. Returns a line for each pair that the judge abstained
    from.
    """
    width = width_of(judge, 512 if judge.lexical else 32)
    # A generator: the pairs of all files may not fit into memory
    missing = (to_judge for to_judge in pairs if to_judge.id not in labels.kept)
    unjudged = []
    for answered in ask_in_parts(judge, missing, lambda to_judge: to_judge.pair, width):
        labelled = []
        for to_judge, verdict in answered:
            if verdict.label is not None:
                labelled.append(LabelledPair.of(to_judge, verdict, judge.name))
            if verdict.abstained:
                place = f"{to_judge.trajectory}, step {to_judge.step}"
                unjudged.append(f"{place}: {verdict.why}")
        labels.add(labelled)
    return unjudged


def sampled(items: Iterable[Item], count: int, seed: int) -> list[Item]:
    """`count` pairs or trajectories in their order, chosen by the hash of seed and id. A larger
    sample contains these.
    """
    chosen = heapq.nsmallest(
        count, enumerate(items), key=lambda numbered: rank(seed, numbered[1].id)
    )
    return [item for _, item in sorted(chosen, key=lambda numbered: numbered[0])]


def _pairs(
    files: dict[Path, File], label_settings: LabelSettings, judge: Judge, bar: Progress
) -> Iterator["PairToJudge"]:
    """The different pairs of all files. The entries of `files` are replaced by ones with counts."""
    # Cutting needs the judge only where the judge makes claims of answers. It is then done in this
    # process, where the judge's cache is.
    writes = label_settings.metric == "answer_support" and isinstance(judge, Writer)
    workers = 1 if writes else label_settings.workers or 1
    seen: set[str] = set()
    with bar(total=total_rows(files, label_settings.limit), desc="reading", unit="row") as progress:
        for path in files:
            rows = RowSource(path, label_settings)
            cut_rows = partial(
                pairs_of,
                label_settings.metric,
                judge if writes else None,
                Path(path.name.removesuffix(".gz")).stem,
                rows.reader,
            )
            for pairs, counts in in_order(cut_rows, chunks(rows, BATCH_ROWS), workers):
                files[path] = files[path].counting(counts)
                for pair in pairs:
                    if pair.id not in seen:
                        seen.add(pair.id)
                        yield pair
                progress.update(counts.rows)
            files[path] = msgspec.structs.replace(files[path], broken_off=rows.error)


class PairToJudge(msgspec.Struct, frozen=True):
    """A pair that is to be judged. `id` is its digest; `trajectory` (FILE:ROW) and `step` (from 1)
    say where it was met.
    """

    id: str
    pair: Pair
    trajectory: str
    step: int


def _digest(pair: Pair) -> str:
    """An id by which equal pairs are one row of the dataset."""
    text = json.dumps([pair.premise, pair.hypothesis, pair.question, pair.task])
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def pairs_of(
    metric: str, judge: Judge | None, source: str, reader: Reader, batch: Sequence[Raw]
) -> tuple[list[PairToJudge], File]:
    """The pairs of some rows of a file that a judge is to be asked about, and the counts of these
    rows as a `File` without a name.

    `source` is the name of the file without its ending. `judge` is asked only to make claims of
    answers (`answer_support`), if it can write.
    """
    rows = [reader(raw) for raw in batch]
    trajectories = {row.number: row.trajectory for row in rows if row.trajectory is not None}
    skipped = [f"row {row.number}: {row.error}" for row in rows if row.trajectory is None]
    pairs: list[PairToJudge] = []
    settled = 0
    pairs_of_rows = pairs_of_each(reward(metric, judge), [*trajectories.values()])
    for number, step_pairs in zip(trajectories, pairs_of_rows, strict=True):
        for step_pair in step_pairs:
            if step_pair.settled is None:
                to_judge = PairToJudge(
                    id=_digest(step_pair.pair),
                    pair=step_pair.pair,
                    trajectory=f"{source}:{number}",
                    step=step_pair.step,
                )
                pairs.append(to_judge)
            elif step_pair.settled.abstained:
                # The row could not be cut, or no claims could be made of its answer
                skipped.append(f"row {number}: {step_pair.settled.why}")
            else:
                settled += 1
    dialects = Counter(trajectory.dialect or "unknown" for trajectory in trajectories.values())
    counts = File(
        name="",
        sha256="",
        rows=len(rows),
        pairs=len(pairs) + settled,
        settled=settled,
        skipped=len(skipped),
        reasons=skipped,
        dialects=dict(dialects),
    )
    return pairs, counts
