"""Ask a judge about the pairs of trajectories and keep what it says: streaming, and able to go on."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from ... import __version__, dialects
from ...errors import ConfigError, DataError, JudgeError
from ...judges import Judge, Verdict, Writer, is_lexical
from ..audit.files import STDIN, count_rows, local_file
from ..audit.sources import Raw, peek, read_rows, usual_dialect
from ..suite import progress_bar
from ..workers import in_order
from . import card, provenance
from .cutting import Cut, Cuts, Cutter, distinct, reward, sampled
from .pair_file import PAIRS, LabelledPair, PairFile
from .provenance import NAMED, File, Provenance

ROWS = 64
"""Rows read at a time, for each process twice."""
Progress = Callable[..., Any]
PathLike = str | os.PathLike[str]
T = TypeVar("T")


def label(
    files: Sequence[PathLike],
    out: PathLike,
    *,
    metric: str = "info_think",
    judge: Judge | None = None,
    dialect: str | None = None,
    text_column: str | None = None,
    limit: int | None = None,
    sample: int | None = None,
    seed: int = 0,
    workers: int = 1,
    license: str = "",
    on_progress: Progress | None = None,
) -> Provenance:
    """Write `pairs.jsonl` while the judge answers, then `provenance.json` and `README.md`, a dataset card.

    The pairs are those of the metric's reward, so that what is labelled is what is scored. Equal pairs are one row.
    Pairs that need no judge (an action after a response without a thought in between) are left out and counted. A pair
    that the judge abstained from is no row; the same call asks about it again, and about nothing that has a label.
    Further files may be added to a folder; another metric, judge or prompt needs another folder. A judge's knobs (its
    threshold) are not compared.

    Args:
        files: as `audit` reads them; not the standard input.
        out: the folder for what is written.
        metric: "info_think", "think_search", "think_answer" or "answer_support".
        judge: who labels; default the comparison of words.
        dialect, text_column: as in `audit`.
        limit: read only so many of the first rows of each file.
        sample: label only so many of all pairs, chosen by hash; a larger sample contains the smaller ones. All rows are
            read first.
        seed: of the sample.
        workers: processes that read rows; one where the judge also makes claims of answers.
        license: for the card; the default keeps what the folder's says.
        on_progress: a `tqdm`-like class; default a progress bar on a terminal.

    Raises:
        DataError: when a file cannot be read at all, `out` cannot be written, or no file holds any pair.
        JudgeError: when the judge cannot be asked at all; what it labelled before is kept.
        ConfigError: for settings that contradict each other, or those of the labels that are in `out`.
        KeyboardInterrupt: when interrupted; its message says how to go on.

    Example:
        ```python
        found = label(["rollouts.jsonl"], "labels", judge=judge)
        print(found.pairs, found.positives)
        ```
    """
    _check(limit=limit, sample=sample, workers=workers)
    paths = _paths(files)
    if dialect is not None:
        dialects.load(dialect)
    cutter = Cutter(metric, "", reward(metric, judge).judge, dialect, text_column)
    judge, folder = cutter.judge, _folder(Path(out))
    settings = {"sample": sample, "seed": seed, "limit": limit, "dialect": dialect, "text_column": text_column}
    task = "support" if metric == "answer_support" else metric
    begun = Provenance(
        metric, judge.name, provenance.prompts_of(judge, metric, task), settings=settings, version=__version__
    )
    sources = {path: File(path.name, provenance.sha256(path)) for path in paths}
    with PairFile(folder / PAIRS) as pairs:
        before = provenance.read(folder)
        provenance.check(folder, before, begun, len(pairs.ids))
        begun = _continued(begun, before, license, list(sources.values()))
        provenance.write(folder, begun)
        reading = _Reading(sources, cutter, limit, workers, on_progress or progress_bar)
        asking = _Asking(judge, pairs, on_progress or progress_bar)
        try:
            asking.ask(reading, sample, seed)
        except KeyboardInterrupt:
            raise KeyboardInterrupt(
                f"interrupted: {len(pairs.ids)} labels are in {pairs.path}; run the same again to go on"
            ) from None
        found = _found(begun, reading, asking)
        provenance.write(folder, found)
    if not any(file.pairs for file in found.files):
        raise DataError(_nothing(found))
    card.write(folder, found)
    return found


def _check(**given: int | None) -> None:
    for name, value in given.items():
        if value is not None and value < 1:
            raise ConfigError(f"{name} must be at least 1, got {value}")


def _paths(files: Sequence[PathLike]) -> list[Path]:
    """The files, each of which is there."""
    if not files:
        raise ConfigError("name at least one file of trajectories")
    if any(str(file) == STDIN for file in files):
        raise ConfigError("labels name the files they come from: save the standard input to a file first")
    paths = list(dict.fromkeys(map(local_file, files)))
    missing = [str(path) for path in paths if not path.exists()]
    if missing:
        raise DataError(f"no such file: {', '.join(missing)}")
    return paths


def _folder(out: Path) -> Path:
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DataError(f"cannot make the folder {out}: {error}") from error
    return out


def _continued(begun: Provenance, before: Provenance | None, license: str, files: Sequence[File]) -> Provenance:
    """What is known when a run begins: its files, and what earlier runs into the folder left."""
    earlier = before or begun
    return msgspec.structs.replace(
        begun,
        files=provenance.merged(earlier.files, files),
        judges=earlier.judges,
        pairs=earlier.pairs,
        positives=earlier.positives,
        license=license or earlier.license,
        date=_now(),
    )


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def _found(begun: Provenance, reading: _Reading, asking: _Asking) -> Provenance:
    return msgspec.structs.replace(
        begun,
        files=provenance.merged(begun.files, reading.files),
        judges=dict(asking.pairs.judges.most_common()),
        pairs=len(asking.pairs.ids),
        positives=asking.pairs.positives,
        abstained=asking.abstained + len(reading.unsplit),
        unjudged=[*asking.unjudged, *reading.unsplit][:NAMED],
        date=_now(),
        finished=True,
    )


def _nothing(found: Provenance) -> str:
    read, skipped = sum(file.rows for file in found.files), found.skipped
    first = next((f"; {file.name}, {why}" for file in found.files for why in file.reasons), "")
    return f"no {found.metric} pair in the {read} rows read, {skipped} of which could not be{first}"


class _Reading:
    """The pairs of all files. What is left out of them is noted in `files` and `unsplit`."""

    def __init__(
        self, paths: Mapping[Path, File], cutter: Cutter, limit: int | None, workers: int, bar: Progress
    ) -> None:
        self.files: list[File] = []
        self.unsplit: list[str] = []
        self._paths, self._limit, self._bar = paths, limit, bar
        writes = cutter.metric == "answer_support" and isinstance(cutter.judge, Writer)
        self._workers = 1 if writes else workers
        self._cutter = cutter if writes else replace(cutter, judge=reward(cutter.metric).judge)

    def __iter__(self) -> Iterator[Cut]:
        with self._bar(total=_rows(list(self._paths), self._limit), desc="reading", unit="row") as bar:
            for path, file in self._paths.items():
                yield from self._pairs(path, file, bar)

    def _pairs(self, path: Path, file: File, bar: Any) -> Iterator[Cut]:
        head, raws = peek(read_rows(path, self._cutter.text_column))
        cutter = replace(self._cutter, source=stem(path))
        if cutter.dialect is None:
            cutter = replace(cutter, usual=usual_dialect(head, cutter.text_column))
        rows = _Rows(islice(raws, self._limit))
        for cuts in in_order(partial(_itself, cutter), chunks(rows, ROWS), self._workers):
            file = _counted(file, cuts)
            self.unsplit += [f"{path.name}, {why}" for why in cuts.unsplit]
            yield from cuts.cuts
            bar.update(cuts.rows)
        self.files.append(msgspec.structs.replace(file, broken_off=rows.error))


class _Rows:
    """The rows of a file. What ends it early, after its first row, is noted."""

    def __init__(self, rows: Iterator[Raw]) -> None:
        self.error = ""
        self._rows = rows

    def __iter__(self) -> Iterator[Raw]:
        try:
            yield from self._rows
        except DataError as error:
            self.error = str(error)


class _Asking:
    """The judge's verdicts on their way into the file. A pair without one is noted in `unjudged`."""

    def __init__(self, judge: Judge, pairs: PairFile, bar: Progress) -> None:
        self.judge, self.pairs = judge, pairs
        self.abstained = 0
        self.unjudged: list[str] = []
        self._bar = bar

    def ask(self, cuts: Iterable[Cut], sample: int | None, seed: int) -> None:
        """Label the pairs, or a sample of them, that have no label."""
        if sample is None:
            self._ask(distinct(cuts))
            return
        chosen = sampled(cuts, sample, seed)
        with self._bar(total=len(chosen), desc="labelling", unit="pair") as bar:
            self._ask(_watched(chosen, bar))

    def _ask(self, cuts: Iterable[Cut]) -> None:
        for part in chunks((cut for cut in cuts if cut.id not in self.pairs.ids), _width(self.judge)):
            verdicts = self._verdicts(part)
            answered = list(zip(part, verdicts, strict=True))
            self.pairs.append([_row(cut, own, self.judge.name) for cut, own in answered if own.label is not None])
            missing = [f"{cut.trajectory}, step {cut.step}: {own.why}" for cut, own in answered if own.abstained]
            self.abstained += len(missing)
            self.unjudged = [*self.unjudged, *missing][:NAMED]

    def _verdicts(self, cuts: Sequence[Cut]) -> list[Verdict]:
        try:
            verdicts = self.judge.judge_batch([cut.pair for cut in cuts])
        except JudgeError as error:
            raise JudgeError(
                f"the judge cannot be asked: {error}; {len(self.pairs.ids)} labels are in {self.pairs.path}"
            ) from error
        if len(verdicts) != len(cuts):
            raise JudgeError(f"{self.judge.name} gave {len(verdicts)} verdicts for {len(cuts)} pairs")
        return verdicts


def chunks(items: Iterable[T], size: int) -> Iterator[list[T]]:
    """Lists of `size` items, the last one maybe shorter."""
    rest = iter(items)
    while part := list(islice(rest, size)):
        yield part


def stem(path: Path) -> str:
    """`rollouts` of `some/rollouts.jsonl.gz`: what a row's source is called."""
    return Path(path.name.removesuffix(".gz")).stem


def _itself(cutter: Cutter) -> Cutter:
    return cutter


def _watched(cuts: Iterable[Cut], bar: Any) -> Iterator[Cut]:
    for cut in cuts:
        yield cut
        bar.update(1)


def _width(judge: Judge) -> int:
    """Pairs asked at once: enough to keep a judge busy, few enough to lose little."""
    width = getattr(judge, "concurrency", None)
    if isinstance(width, int):
        return max(64, min(8 * width, 512))
    return 512 if is_lexical(judge) else 32


def _row(cut: Cut, verdict: Verdict, judge: str) -> LabelledPair:
    return LabelledPair(
        id=cut.id,
        question=cut.pair.question,
        premise=cut.pair.premise,
        hypothesis=cut.pair.hypothesis,
        task=cut.pair.task,
        label=bool(verdict.label),
        p=verdict.p,
        judge=verdict.judge or judge,
        source=cut.source,
        trajectory=cut.trajectory,
        step=cut.step,
    )


def _counted(file: File, cuts: Cuts) -> File:
    return msgspec.structs.replace(
        file,
        rows=file.rows + cuts.rows,
        pairs=file.pairs + len(cuts.cuts) + cuts.settled,
        settled=file.settled + cuts.settled,
        skipped=file.skipped + len(cuts.unread),
        reasons=[*file.reasons, *cuts.unread][:NAMED],
        dialects=dict(Counter(file.dialects) + Counter(cuts.dialects)),
    )


def _rows(paths: Sequence[Path], limit: int | None) -> int | None:
    counts = [count_rows(path) for path in paths]
    known = [count if limit is None else min(count, limit) for count in counts if count is not None]
    return sum(known) if len(known) == len(counts) else None
