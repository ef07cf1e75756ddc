"""Ask a judge about the pairs of trajectories and keep its labels as a dataset: streaming, and able to go on."""

import hashlib
import heapq
import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, get_args

import msgspec

from .. import __version__, rewards
from ..errors import ConfigError, DataError
from ..judges import GroundingJudge, Judge, Pair, Verdict, Writer, is_lexical
from ..judges.base import Task
from ..rewards.base import JudgedReward
from . import provenance
from .agreement.labelled import rank
from .files import STDIN, PathLike, inside, local_file, total_rows
from .ledger import Records, answers_kept, ask_in_parts, same_settings, width_of
from .provenance import NAMED, PAIRS, PROVENANCE, File, Provenance
from .rows import Raw, Reader, Source
from .scores import cut
from .settings import LabelSettings, PairMetric
from .workers import chunks, in_order, progress_bar
from .writing import results_folder, write_metrics

METRICS = get_args(PairMetric)
ROWS = 64  # read at a time, for each process twice
Progress = Callable[..., Any]


class LabelledPair(msgspec.Struct, frozen=True):
    """One line of `pairs.jsonl`; `agreement.load` reads the file as any labelled one.

    `id` is a digest of question, premise, hypothesis and task; `judge` what the judge calls itself, its prompt's
    version included; `source` the file's name without its ending; `trajectory` (FILE:ROW) and `step` are where the pair
    was first met.
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
    def of(cut: "Cut", said: Verdict, judge: str) -> "LabelledPair":
        """A pair with its verdict; `judge` is the name of one whose verdicts do not say it."""
        return LabelledPair(
            id=cut.id,
            **{
                name: getattr(cut.pair, name)
                for name in ("question", "premise", "hypothesis", "task")
            },
            label=bool(said.label),
            p=said.p,
            judge=said.judge or judge,
            source=cut.trajectory.rpartition(":")[0],
            trajectory=cut.trajectory,
            step=cut.step,
        )


def label(
    files: Sequence[PathLike],
    out: PathLike,
    *,
    judge: Judge | None = None,
    on_progress: Progress | None = None,
    **settings: Any,
) -> Provenance:
    """Write `pairs.jsonl` while the judge answers, then `provenance.json` and `README.md`, a dataset card.

    The pairs are those of the metric's reward. Equal pairs are one row; those that need no judge (an action after a
    response without a thought in between) are left out and counted. A pair that the judge abstained from gets no row;
    the same call asks about it again, and about nothing that has a label. Further files may be added to a folder;
    another metric, judge or prompt needs another folder. A judge's knobs (its threshold) are not compared.

    Args:
        files: as `audit` reads them; not the standard input.
        out: the folder for what is written.
        judge: who labels; default the comparison of words.
        on_progress: a `tqdm`-like class; default a progress bar on a terminal.
        settings: fields of `LabelSettings`. `sample` chooses by hash, with `seed`, after all rows were read; `workers`
            is 1 where the judge also makes claims of answers; `license` is by default what the card says already.

    Raises as `audit` does, and `DataError` when no file holds any pair.
    """
    given, bar = LabelSettings(**settings), on_progress or progress_bar
    judge, read = reward(given.metric, judge).judge, _files(files)
    folder = results_folder(Path(out))
    with Records(
        folder / PAIRS, "labelling", LabelledPair, lambda row: (row.id, (row.label, row.judge))
    ) as labels:
        begun = _begun(given, judge, folder).with_files(read.values())
        # before the first label: those of a run that is killed must still say whose they are
        write_metrics(folder / PROVENANCE, msgspec.to_builtins(begun))
        with answers_kept(judge, folder):
            cuts: Iterable[Cut] = _cuts(read, given, judge, bar)
            if given.sample is not None:
                cuts = bar(
                    iterable=sampled(cuts, given.sample, given.seed), desc="labelling", unit="pair"
                )
            unjudged = _ask(judge, labels, cuts)
        found = msgspec.structs.replace(
            begun.with_files(read.values()),
            judges=dict(Counter(by for _, by in labels.kept.values()).most_common()),
            pairs=len(labels.kept),
            positives=sum(said for said, _ in labels.kept.values()),
            abstained=len(unjudged),
            unjudged=unjudged[:NAMED],
            date=datetime.now(UTC).isoformat(timespec="seconds"),
            finished=True,
        )
        write_metrics(folder / PROVENANCE, msgspec.to_builtins(found))
    if not any(file.pairs for file in found.files):
        first = next((f"; {file.name}, {why}" for file in found.files for why in file.reasons), "")
        rows, skipped = (
            sum(getattr(file, name) for file in found.files) for name in ("rows", "skipped")
        )
        raise DataError(
            f"no {found.metric} pair in the {rows} rows read, {skipped} of which could not be{first}"
        )
    provenance.write_card(folder, found)
    return found


def reward(metric: str, judge: Judge | None = None) -> JudgedReward:
    """The reward that cuts a metric's pairs, with a judge; by default its own, or the comparison of words."""
    if metric not in METRICS:
        raise ConfigError(f"{metric!r} has no pairs to label; there are: {', '.join(METRICS)}")
    kind: Callable[..., JudgedReward] = rewards.load(metric)  # type: ignore[assignment]
    return kind(judge=judge or kind().judge or GroundingJudge())


def _files(files: Sequence[PathLike]) -> dict[Path, File]:
    """The files, each of which is there; of a folder those in it."""
    if not files:
        raise ConfigError("name at least one file of trajectories")
    if any(str(file) == STDIN for file in files):
        raise ConfigError(
            "labels name the files they come from: save the standard input to a file first"
        )
    given = map(local_file, files)
    paths = dict.fromkeys(
        own for path in given for own in (inside(path) if path.is_dir() else [path])
    )
    return {path: File.of(path) for path in paths}


def _begun(given: LabelSettings, judge: Judge, folder: Path) -> Provenance:
    """What is known when a run begins. Raises `ConfigError` where the folder holds labels of another kind."""
    prompts = provenance.prompts_of(judge, given.metric)
    kind = {"metric": given.metric, "judge": judge.name, "prompts": prompts}
    same_settings(folder / PROVENANCE, kind, "use another folder", ledger=folder / PAIRS)
    before = provenance.read(folder) or Provenance(given.metric, judge.name)
    return msgspec.structs.replace(
        before,
        **kind,
        abstained=0,
        unjudged=[],
        settings={
            name: getattr(given, name)
            for name in ("sample", "seed", "limit", "dialect", "text_column")
        },
        license=given.license or before.license,
        version=__version__,
        date=datetime.now(UTC).isoformat(timespec="seconds"),
        finished=False,
    )


def _ask(judge: Judge, labels: Records[LabelledPair], cuts: Iterable["Cut"]) -> list[str]:
    """Label the pairs that have no label yet; returns those that the judge abstained from, and why."""
    width = width_of(judge, 512 if is_lexical(judge) else 32)
    missing = (
        cut for cut in cuts if cut.id not in labels.kept
    )  # as they are read: files may exceed the memory
    unjudged = []
    for answered in ask_in_parts(judge, missing, lambda cut: cut.pair, width):
        labels.add(
            [
                LabelledPair.of(cut, own, judge.name)
                for cut, own in answered
                if own.label is not None
            ]
        )
        unjudged += [
            f"{cut.trajectory}, step {cut.step}: {own.why}"
            for cut, own in answered
            if own.abstained
        ]
    return unjudged


def sampled(cuts: Iterable["Cut"], count: int, seed: int) -> list["Cut"]:
    """`count` pairs, chosen by the hash of seed and id, in the order they came; a larger sample contains these."""
    chosen = heapq.nsmallest(count, enumerate(cuts), key=lambda item: rank(seed, item[1].id))
    return [cut for _, cut in sorted(chosen, key=lambda item: item[0])]


def _cuts(
    files: dict[Path, File], given: LabelSettings, judge: Judge, bar: Progress
) -> Iterator["Cut"]:
    """The pairs of all files, each the first time that it comes; what is met on the way is counted in `files`."""
    # Only a judge that makes claims of answers is needed for cutting, and then in this process, where its cache is
    writes = given.metric == "answer_support" and isinstance(judge, Writer)
    workers, seen = 1 if writes else given.workers or 1, set[str]()
    with bar(total=total_rows(files, given.limit), desc="reading", unit="row") as shown:
        for path in files:
            rows = Source(path, given)
            stem = Path(path.name.removesuffix(".gz")).stem
            read = partial(pairs_of, given.metric, judge if writes else None, stem, rows.reader)
            for cuts, counted in in_order(read, chunks(rows, ROWS), workers):
                files[path] = files[path].counting(counted)
                for own in cuts:
                    if own.id not in seen:
                        seen.add(own.id)
                        yield own
                shown.update(counted.rows)
            files[path] = msgspec.structs.replace(files[path], broken_off=rows.error)


class Cut(msgspec.Struct, frozen=True):
    """A pair to be judged: `id` is its digest; `trajectory` (FILE:ROW) and `step` (from 1) are where it was met."""

    id: str
    pair: Pair
    trajectory: str
    step: int


def pairs_of(
    metric: str, judge: Judge | None, source: str, reader: Reader, batch: Sequence[Raw]
) -> tuple[list[Cut], File]:
    """The pairs of some rows of a file that a judge is asked about, and what was counted on the way.

    `judge` is asked only to make claims of answers (`answer_support`), where it can write.
    """
    rows = [reader(raw) for raw in batch]
    read = {row.number: row.trajectory for row in rows if row.trajectory is not None}
    left_out = [f"row {row.number}: {row.error}" for row in rows if row.trajectory is None]
    cuts, settled = [], 0
    asked = cut(reward(metric, judge), [*read.values()])
    for number, item in (
        (number, item) for number, own in zip(read, asked, strict=True) for item in own
    ):
        if item.settled is None:
            text = json.dumps(
                [item.pair.premise, item.pair.hypothesis, item.pair.question, item.pair.task]
            )
            digest = hashlib.sha256(text.encode()).hexdigest()[
                :16
            ]  # equal pairs are one row of the dataset
            cuts.append(Cut(digest, item.pair, f"{source}:{number}", item.step))
        elif (
            item.settled.abstained
        ):  # the row could not be cut, or no claims could be made of the answer
            left_out.append(f"row {number}: {item.settled.why}")
        else:
            settled += 1
    written = dict(Counter(trajectory.dialect or "unknown" for trajectory in read.values()))
    return cuts, File(
        "", "", len(rows), len(cuts) + settled, settled, len(left_out), left_out, written
    )
