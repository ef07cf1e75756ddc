"""Make a file of trajectories that a judge scored by the rubric of self-evaluation.

```
files ─> trajectories ─ judge ─> the same with meta["rubric"], in scored.jsonl
```

The paper has GPT-4.1 score trajectories, and trains the policy to score as it does
(trajectory-level self-evaluation, section 2.2); `recipes/sft.py --rubric_files` reads the file.
Trajectories are read row by row and written as they are scored, so that a run can be continued.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from .. import __version__
from ..errors import ConfigError, DataError
from ..judges import Judge, Writer, prompting
from ..judges.base import Request
from ..reading.files import PathLike, total_rows
from ..reading.rows import RowSource
from ..rewards.self_rubric import LABEL, read_rubric, shown_text
from ..trajectory import Trajectory
from .audit import bill_of
from .label import Progress, files_of, sampled
from .ledger import Ledger, answers_kept, same_settings, width_of
from .provenance import NAMED, PROVENANCE, File
from .settings import LabelSettings
from .workers import chunks, progress_bar
from .writing import make_folder, write_metrics

if TYPE_CHECKING:
    from ..judges.endpoint import EndpointJudge

METRIC, SCORED = "rubric", "scored.jsonl"
_ESTIMATE_ROWS = 200


class ScoredTrajectories(msgspec.Struct, frozen=True):
    """Where a file of scored trajectories comes from.

    Attributes:
        metric: always `rubric`.
        judge: what the judge calls itself.
        prompts: the digest of the prompt, by NAME@VERSION.
        files: those that were read in this run; `pairs` are their trajectories with a reference
            answer.
        scores: number of rows in `scored.jsonl` by score.
        unscored: number of trajectories that the judge gave no score in this run.
        reasons: the first of them, with what was wrong.
    """

    metric: str
    judge: str
    prompts: dict[str, str]
    files: list[File] = []
    scores: dict[str, int] = {}
    unscored: int = 0
    reasons: list[str] = []
    settings: dict[str, Any] = {}
    version: str = ""
    date: str = ""

    @property
    def total(self) -> int:
        """The number of rows in `scored.jsonl`."""
        return sum(self.scores.values())

    @property
    def complete(self) -> bool:
        """Whether every row was read and scored."""
        return not (self.unscored or any(file.skipped or file.broken_off for file in self.files))


class _ToScore(msgspec.Struct, frozen=True):
    """A trajectory with the digest of its row, and FILE:ROW."""

    id: str
    trajectory: Trajectory
    place: str


def score_by_rubric(
    files: Sequence[PathLike],
    out: PathLike,
    *,
    judge: Judge | None,
    on_progress: Progress | None = None,
    **settings: Any,
) -> ScoredTrajectories:
    """Write `scored.jsonl` while the judge answers, then `provenance.json`.

    A line is a trajectory, without token ids, with `meta["rubric"]`: its `score` (0.0, 0.2, 0.4,
    0.7 or 1.0), the judge's explanation (`why`), the `judge`, and the digest of the `row` that it
    was read from. Trajectories without a reference answer are counted and left out. One that the
    judge does not answer about, or answers without a score of the rubric, gets no line; the same
    call asks again about it.

    Args:
        files: as `audit` reads them, without the standard input.
        out: the folder for what is written.
        judge: one that writes: `endpoint` or `generator`.
        on_progress: a `tqdm`-like class; by default a progress bar on a terminal.
        settings: fields of `LabelSettings`; `workers` and `license` are not used.

    Raises as `label.label` does, and `ConfigError` for a judge that cannot write.
    """
    label_settings = LabelSettings(**settings)
    writer = _writer(judge)
    sources = files_of(files)
    folder = make_folder(Path(out))
    prompt = prompting.load(METRIC)
    kind = {"metric": METRIC, "judge": writer.name, "prompts": {prompt.id: prompt.digest}}
    with Ledger(folder / SCORED, "labelling") as ledger:
        same_settings(folder / PROVENANCE, kind, "use another folder", ledger=folder / SCORED)
        scores = _scored_before(ledger)
        record = ScoredTrajectories(
            **kind,
            settings={
                name: getattr(label_settings, name)
                for name in ("sample", "seed", "limit", "dialect", "text_column")
            },
            version=__version__,
        )
        # Written before the first score, so that a run that is killed says whose scores these are
        write_metrics(folder / PROVENANCE, msgspec.to_builtins(record))
        to_score: Iterable[_ToScore] = _trajectories(sources, label_settings)
        if label_settings.sample is not None:
            to_score = sampled(to_score, label_settings.sample, label_settings.seed)
        reasons: list[str] = []
        total = label_settings.sample or total_rows(sources, label_settings.limit)
        bar = (on_progress or progress_bar)(total=total, desc="scoring", unit="trajectory")
        with answers_kept(judge, folder), bar:
            for part in chunks(to_score, width_of(judge, 32)):
                missing = [item for item in part if item.id not in scores]
                reasons += _score(writer, missing, ledger, scores)
                bar.update(len(part))
        record = msgspec.structs.replace(
            record,
            files=list(sources.values()),
            scores=dict(sorted(Counter(map(str, scores.values())).items())),
            unscored=len(reasons),
            reasons=reasons[:NAMED],
            date=datetime.now(UTC).isoformat(timespec="seconds"),
        )
        write_metrics(folder / PROVENANCE, msgspec.to_builtins(record))
    if not any(file.pairs for file in record.files):
        reasons_of_files = chain.from_iterable(file.reasons for file in record.files)
        why = next(reasons_of_files, "the files are empty")
        raise DataError(f"no trajectory with a reference answer in the files: {why}")
    return record


def rubric_bill(source: PathLike, judge: "EndpointJudge", **settings: Any) -> str:
    """A sentence that estimates what scoring this file would cost. The judge is not asked."""
    label_settings = LabelSettings(**settings)
    sources = files_of([source])
    dry = replace(judge, dry=True, on_progress=None)
    items = list(islice(_trajectories(sources, label_settings), _ESTIMATE_ROWS))
    if not items:
        raise DataError(f"{source}: no trajectory with a reference answer")
    dry.write_batch([_request(item.trajectory) for item in items])
    rows_read = sum(file.rows for file in sources.values()) or len(items)
    dry.close()
    return bill_of(dry, rows_read, total_rows(sources, label_settings.limit) or rows_read)


def _writer(judge: Judge | None) -> Any:
    """The judge. Raises `ConfigError` for one that cannot write."""
    if isinstance(judge, Writer):
        return judge
    raise ConfigError(
        "a judge explains what it finds before it scores a trajectory: give one that writes, "
        "--judge endpoint or generator"
    )


def _scored_before(ledger: Ledger) -> dict[str, float]:
    """The scores in the file by the digest of the row. Raises `DataError` for a line without."""
    scores: dict[str, float] = {}
    for _, line in ledger.read():
        try:
            label = Trajectory.from_json(line).meta[LABEL]
            scores[label["row"]] = label["score"]
        except (DataError, KeyError, TypeError) as error:
            raise DataError(
                f"{ledger.path}, line {ledger.count + 1}: not a scored trajectory ({error}); take "
                "the line out, or use another folder"
            ) from error
    return scores


def _trajectories(files: dict[Path, File], label_settings: LabelSettings) -> Iterator[_ToScore]:
    """The trajectories with a reference answer. The entries of `files` are replaced by ones with
    counts, row by row.
    """
    seen: set[str] = set()
    for path in files:
        rows = RowSource(path, label_settings)
        for raw in rows:
            row = rows.reader(raw)
            trajectory, why = row.trajectory, row.error
            if trajectory is not None and not (trajectory.question and trajectory.answers):
                trajectory, why = None, "no question with a reference answer to compare with"
            skipped = [] if trajectory is not None else [f"row {raw.number}: {why}"]
            counts = File(
                name="",
                sha256="",
                rows=1,
                pairs=1 - len(skipped),
                skipped=len(skipped),
                reasons=skipped,
            )
            files[path] = files[path].counting(counts)
            if trajectory is not None and raw.digest not in seen:
                seen.add(raw.digest)
                yield _ToScore(raw.digest, trajectory, f"{path.name}:{raw.number}")
        files[path] = msgspec.structs.replace(files[path], broken_off=rows.error)


def _request(trajectory: Trajectory) -> Request:
    fields = {
        "question": trajectory.question or "",
        "reference": " | ".join(trajectory.answers),
        "trajectory": shown_text(trajectory),
    }
    return Request("rubric", fields)


def _score(
    writer: Any, items: Sequence[_ToScore], ledger: Ledger, scores: dict[str, float]
) -> list[str]:
    """Ask about the trajectories, and keep those that got a score. Returns a line for each that got
    none.
    """
    if not items:
        return []
    replies = writer.write_batch([_request(item.trajectory) for item in items])
    unscored = []
    lines = []
    for item, reply in zip(items, replies, strict=True):
        if reply is None:
            unscored.append(f"{item.place}: the judge gave no reply")
            continue
        score, why = read_rubric(reply)
        if score is None:
            unscored.append(f"{item.place}: no score of the rubric in {reply[-100:]!r}")
            continue
        scores[item.id] = score
        label = {"score": score, "why": why, "judge": writer.name, "row": item.id}
        scored = msgspec.structs.replace(
            item.trajectory, meta={**item.trajectory.meta, LABEL: label}, tokens=None
        )
        lines.append(f"{scored.to_json()}\n".encode())
    ledger.append(lines)
    return unscored
