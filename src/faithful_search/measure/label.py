"""Ask a judge about the pairs of trajectories and keep its labels as a dataset: streaming, and able to go on."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from .. import __version__
from ..errors import ConfigError, DataError, JudgeError
from ..judges import Judge, Verdict, Writer, is_lexical
from ..judges.base import Task
from . import provenance
from .files import STDIN, inside, local_file
from .ledger import Ledger, answers_kept, ask_in_parts, same_settings
from .pairs import Cut, Cutter, reward, sampled
from .provenance import NAMED, PAIRS, PROVENANCE, File, Provenance
from .report import label_card
from .rows import Source, total_rows
from .settings import LabelSettings
from .workers import chunks, in_order, progress_bar
from .writing import results_folder, write_result

ROWS = 64
"""Rows read at a time, for each process twice."""
PathLike = str | os.PathLike[str]
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


def label(
    files: Sequence[PathLike],
    out: PathLike,
    *,
    judge: Judge | None = None,
    on_progress: Progress | None = None,
    **settings: Any,
) -> Provenance:
    """Write `pairs.jsonl` while the judge answers, then `provenance.json` and `README.md`, a dataset card.

    The pairs are those of the metric's reward, so that what is labelled is what is scored. Equal pairs are one row.
    Pairs that need no judge (an action after a response without a thought in between) are left out and counted. A pair
    that the judge abstained from gets no row; the same call asks about it again, and about nothing that has a label.
    Further files may be added to a folder; another metric, judge or prompt needs another folder. A judge's knobs (its
    threshold) are not compared.

    Args:
        files: as `audit` reads them; not the standard input.
        out: the folder for what is written.
        judge: who labels; default the comparison of words.
        on_progress: a `tqdm`-like class; default a progress bar on a terminal.
        settings: fields of `LabelSettings`: `metric` (one of `METRICS`); `dialect`, `text_column`, `limit` as in
            `audit`; `sample` labels that many of all pairs, chosen by hash with `seed`, after all rows were read;
            `workers` (1 where the judge also makes claims of answers); `license` (default: what the card says already).

    Raises:
        DataError: when a file cannot be read at all, `out` cannot be written, or no file holds any pair.
        JudgeError: when the judge cannot be asked at all; what it labelled before is kept.
        ConfigError: for settings that contradict each other, or those of the labels that are in `out`.
    """
    given, bar = LabelSettings(**settings), on_progress or progress_bar
    judge = reward(given.metric, judge).judge
    reading = _Reading(_files(files), given, judge, bar)
    folder = results_folder(Path(out))
    with _Labels(folder / PAIRS) as labels:
        before = provenance.read(folder)
        begun = _begun(given, judge, before, reading.paths.values())
        if labels.ids:
            if before is None:
                raise ConfigError(
                    f"{folder} holds labels, but no {PROVENANCE} that says whose they are; use another folder"
                )
            same_settings(folder, "labels", before.made_by, begun.made_by, "use another folder")
        # before the first label: those of a run that is killed must still say whose they are
        write_result(folder / PROVENANCE, msgspec.to_builtins(begun))
        try:
            with answers_kept(judge, folder):
                unjudged = _ask(judge, labels, _wanted(reading, given, bar))
        except KeyboardInterrupt:
            raise KeyboardInterrupt(
                f"interrupted: {len(labels.ids)} labels are in {labels.path}; run the same again to go on"
            ) from None
        unjudged += reading.unsplit
        found = msgspec.structs.replace(
            begun,
            files=provenance.merged(begun.files, reading.files),
            judges=dict(labels.judges.most_common()),
            pairs=len(labels.ids),
            positives=labels.positives,
            abstained=len(unjudged),
            unjudged=unjudged[:NAMED],
            date=_now(),
            finished=True,
        )
        write_result(folder / PROVENANCE, msgspec.to_builtins(found))
    if not any(file.pairs for file in found.files):
        first = next((f"; {file.name}, {why}" for file in found.files for why in file.reasons), "")
        rows = sum(file.rows for file in found.files)
        raise DataError(f"no {found.metric} pair in the {rows} rows read, {found.skipped} of which could not be{first}")
    label_card.write(folder, found)
    return found


def _files(files: Sequence[PathLike]) -> dict[Path, File]:
    """The files, each of which is there; of a folder those in it."""
    if not files:
        raise ConfigError("name at least one file of trajectories")
    if any(str(file) == STDIN for file in files):
        raise ConfigError("labels name the files they come from: save the standard input to a file first")
    given = map(local_file, files)
    paths = list(dict.fromkeys(own for path in given for own in (inside(path) if path.is_dir() else [path])))
    missing = [str(path) for path in paths if not path.exists()]
    if missing:
        raise DataError(f"no such file: {', '.join(missing)}")
    return {path: File.of(path) for path in paths}


def _begun(given: LabelSettings, judge: Judge, before: Provenance | None, files: Iterable[File]) -> Provenance:
    """What is known when a run begins: its settings and files, and what earlier runs into the folder left."""
    earlier = before or Provenance(given.metric, judge.name)
    return msgspec.structs.replace(
        earlier,
        metric=given.metric,
        judge=judge.name,
        prompts=provenance.prompts_of(judge, given.metric),
        files=provenance.merged(earlier.files, list(files)),
        abstained=0,
        unjudged=[],
        settings={name: getattr(given, name) for name in ("sample", "seed", "limit", "dialect", "text_column")},
        license=given.license or earlier.license,
        version=__version__,
        date=_now(),
        finished=False,
    )


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


class _Reading:
    """The pairs of all files. What is left out of them is noted in `files` and `unsplit`."""

    def __init__(self, paths: dict[Path, File], given: LabelSettings, judge: Judge, bar: Progress) -> None:
        self.paths = paths
        self.files: list[File] = []
        self.unsplit: list[str] = []
        self._given, self._bar = given, bar
        # Only a judge that makes claims of answers is needed for cutting, and then in this process, where its cache is
        writes = given.metric == "answer_support" and isinstance(judge, Writer)
        self._workers = 1 if writes else given.workers or 1
        self._cutter = Cutter(given.metric, judge if writes else None)

    def __iter__(self) -> Iterator[Cut]:
        with self._bar(total=total_rows(self.paths, self._given.limit), desc="reading", unit="row") as bar:
            for path, file in self.paths.items():
                rows = Source(path, self._given.dialect, self._given.text_column, self._given.limit)
                stem = Path(path.name.removesuffix(".gz")).stem
                cutter = replace(self._cutter, source=stem, reader=rows.reader)
                for cuts in in_order(cutter, chunks(rows, ROWS), self._workers):
                    file = file.counting(cuts.counted)
                    self.unsplit += [f"{path.name}, {why}" for why in cuts.unsplit]
                    yield from cuts.cuts
                    bar.update(cuts.counted.rows)
                self.files.append(msgspec.structs.replace(file, broken_off=rows.error))


class _Labels(Ledger):
    """The open `pairs.jsonl`: its `ids`, how many rows say yes, and who labelled them.

    Raises:
        DataError: for a line that holds no labelled pair: people edit datasets, and a label is never thrown away.
    """

    def __init__(self, path: Path) -> None:
        super().__init__(path, "labelling")
        self.ids: set[str] = set()
        self.positives = 0
        self.judges: Counter[str] = Counter()
        decode = msgspec.json.Decoder(LabelledPair).decode
        for _, line in self.read():
            try:
                self._note(decode(line))
            except (msgspec.MsgspecError, UnicodeError) as error:
                raise DataError(
                    f"{path}, line {self.count + 1}: not a labelled pair ({error}); "
                    "take the line out, or use another folder"
                ) from error

    def add(self, rows: Sequence[LabelledPair]) -> None:
        """Append rows; errors as those of `Ledger.append`."""
        self.append([msgspec.json.encode(row) + b"\n" for row in rows])
        for row in rows:
            self._note(row)

    def _note(self, row: LabelledPair) -> None:
        self.ids.add(row.id)
        self.positives += row.label
        self.judges[row.judge] += 1


def _wanted(reading: _Reading, given: LabelSettings, bar: Progress) -> Iterator[Cut]:
    """Each pair the first time it comes, or a sample of them."""
    if given.sample is None:
        seen: set[str] = set()
        for cut in reading:
            if cut.id not in seen:
                seen.add(cut.id)
                yield cut
        return
    chosen = sampled(reading, given.sample, given.seed)
    with bar(total=len(chosen), desc="labelling", unit="pair") as shown:
        for cut in chosen:
            yield cut
            shown.update(1)


def _ask(judge: Judge, labels: _Labels, cuts: Iterable[Cut]) -> list[str]:
    """Label the pairs that have no label yet; returns those that the judge abstained from, and why."""
    # Pairs asked at once: enough to keep a judge busy, few enough to lose little when it breaks off
    width = getattr(judge, "concurrency", None)
    usual = 512 if is_lexical(judge) else 32
    width = max(64, min(8 * width, 512)) if isinstance(width, int) else usual
    missing = (cut for cut in cuts if cut.id not in labels.ids)  # as they are read: files may exceed the memory
    unjudged = []
    try:
        for answered in ask_in_parts(judge, missing, lambda cut: cut.pair, width):
            labels.add([_row(cut, own, judge.name) for cut, own in answered if own.label is not None])
            unjudged += [f"{cut.trajectory}, step {cut.step}: {own.why}" for cut, own in answered if own.abstained]
    except JudgeError as error:
        raise JudgeError(
            f"the judge cannot be asked: {error}; {len(labels.ids)} labels are in {labels.path}"
        ) from error
    return unjudged


def _row(cut: Cut, said: Verdict, judge: str) -> LabelledPair:
    pair, by = cut.pair, said.judge or judge
    return LabelledPair(
        cut.id, pair.question, pair.premise, pair.hypothesis, pair.task, bool(said.label), said.p, by,
        cut.source, cut.trajectory, cut.step,
    )  # fmt: skip
