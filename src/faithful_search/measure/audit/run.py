"""Measure a file of trajectories, however they were written down: streaming, on all cores, and able to go on."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec

from ... import __version__, dialects
from ...errors import ConfigError, DataError, JudgeError
from ...inference.base import Generator
from ...judges import Judge, Writer, prompting
from ...trajectory import Trajectory
from .. import metrics as metric_names
from ..report import write_metrics
from ..suite import progress_bar
from ..workers import in_order
from .files import STDIN, count_rows, local_file
from .score_log import ScoreLog
from .scoring import Batch, Plan, Scorer
from .sources import Raw, peek, read_rows, read_trajectories, usual_dialect
from .summary import Audit, summarize

SCORES, SUMMARY, SPOOLED = "scores.jsonl", "audit.json", "source.jsonl"
_ROWS, _BYTES = 64, 1 << 20
"""A batch is so many rows or bytes: what is in memory at a time, for each worker twice."""
_JUDGED = 16
"""Rows of a batch where a model on this machine judges: what an interruption loses, and when the bar moves."""
_NO_VERDICT = frozenset(("lure", "condense"))
"""Prompts that no score rests on."""
Progress = Callable[..., Any]


def audit(
    source: str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    metrics: Sequence[str] | None = None,
    judge: Judge | None = None,
    how: metric_names.How = "squad",
    dialect: str | None = None,
    text_column: str | None = None,
    policy: Generator | None = None,
    workers: int | None = None,
    limit: int | None = None,
    resume: bool = True,
    on_progress: Progress | None = None,
) -> Audit:
    """Score every trajectory of a file; writes `scores.jsonl` while it goes and `audit.json` at the end.

    Rows stream through, so that the file may be larger than memory. Without a model as judge all cores score; with
    one, its own concurrency does. After an interruption the same call goes on: rows that were scored are not scored
    again, those that could not be read or whose judge abstained are.

    Args:
        source: a file (see `read_trajectories`), or `"-"` for JSON lines on the standard input, kept in `out`.
        out: the folder for what is written.
        metrics: names from `metrics.names()`; default all, `evidence_sensitivity` only with a `policy`.
        judge: who judges; default the comparison of words, and the names of the results say so.
        how: the normaliser of compared answers.
        dialect, text_column: as in `read_trajectories`.
        policy: the model that wrote the trajectories, for what asks it.
        workers: processes; default the cores there are. One when a model judges.
        limit: read only so many of the first rows.
        resume: `False` begins anew and replaces what is in `out`.
        on_progress: a `tqdm`-like class; default a progress bar on a terminal.

    Raises:
        DataError: when the source cannot be read at all, or `out` not be written.
        JudgeError: when the judge cannot be asked at all; the rows that were scored until then are kept.
        ConfigError: for settings that contradict each other, or those of the audit that is in `out`.
        KeyboardInterrupt: when interrupted; its message says how to go on.

    Example:
        ```python
        found = audit("rollouts.jsonl", "rollouts-audit")
        print(found.rows["info_think_lexical"])
        ```
    """
    plan = _plan(metrics, judge, how, dialect, text_column, policy, workers, limit)
    folder = Path(out)
    path = _spooled(_folder(folder)) if str(source) == STDIN else local_file(source)
    rows = _Reading(path, text_column, limit)
    _folder(folder)
    if dialect is None:
        plan = replace(plan, usual=usual_dialect(rows.head, text_column))
    settings = _settings(source, plan)
    begins = _begins(folder, settings, resume)
    earlier, before = {} if begins else _audit_of(folder / SUMMARY).usage, _usage(judge)
    with ScoreLog(folder / SCORES, resume) as log:
        if begins:
            _write(folder / SUMMARY, Audit(settings=settings, finished=False))
        try:
            _score(rows, plan, log, _processes(plan, workers), (on_progress or progress_bar)(**_shown(path, limit)))
        except KeyboardInterrupt:
            raise KeyboardInterrupt(
                f"interrupted: {len(log.places)} rows are in {log.path}; run the same again to go on"
            ) from None
        log.finish(whole=limit is None and not rows.error)
    found = summarize(
        folder / SCORES,
        len(log.places),
        {name: reward.bounds for name, reward in plan.rewards().items()},
        settings=settings,
        source_error=rows.error,
        usage=_total(_usage(judge), before, earlier),
    )
    _write(folder / SUMMARY, found)
    if not found.n:
        first = found.unread[0]
        raise DataError(f"{source}: none of its rows ({found.errors}) can be read; row {first.row}: {first.error}")
    return found


def pick(
    source: str | os.PathLike[str], rows: Iterable[int], dialect: str | None = None, text_column: str | None = None
) -> Iterator[tuple[int, Trajectory]]:
    """Read those rows of a source again, with their numbers; what cannot be read is left out."""
    wanted = set(rows)
    if not wanted:
        return
    for row in read_trajectories(source, dialect, text_column, only=wanted):
        if row.trajectory is not None:
            yield row.number, row.trajectory
        wanted.remove(row.number)
        if not wanted:
            return


def _plan(
    metrics: Sequence[str] | None,
    judge: Judge | None,
    how: metric_names.How,
    dialect: str | None,
    text_column: str | None,
    policy: Generator | None,
    workers: int | None,
    limit: int | None,
) -> Plan:
    """The settings, checked before anything is written."""
    for name, value in (("workers", workers), ("limit", limit)):
        if value is not None and value < 1:
            raise ConfigError(f"{name} must be at least 1, got {value}")
    if dialect is not None:
        dialects.load(dialect)
    if metrics is None:
        metrics = [name for name in metric_names.names() if policy is not None or name != "evidence_sensitivity"]
    if not metrics:
        raise ConfigError(f"no metrics named; there are: {', '.join(metric_names.names())}")
    plan = Plan(tuple(dict.fromkeys(metrics)), judge, how, dialect, text_column, policy=policy)
    asks = [name for name, reward in plan.rewards().items() if reward.needs_policy]
    if asks and policy is None:
        raise ConfigError(f"{', '.join(asks)} measures a model: name the policy that wrote the trajectories")
    return plan


def _settings(source: str | os.PathLike[str], plan: Plan) -> dict[str, Any]:
    """What a score depends on. An audit only goes on with the same."""
    prompted = isinstance(plan.judge, Writer)
    return {
        "source": Path(source).name,
        "metrics": list(plan.metrics),
        "judge": plan.judge.name if plan.judge is not None else "lexical",
        "prompts": [prompting.load(name).id for name in prompting.names() if prompted and name not in _NO_VERDICT],
        "how": plan.how,
        "dialect": plan.dialect,
        "text_column": plan.text_column,
        "policy": None if plan.policy is None else str(getattr(plan.policy, "name", type(plan.policy).__name__)),
        "version": __version__,
    }


def _folder(out: Path) -> Path:
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DataError(f"cannot make the folder {out}: {error}") from error
    return out


def _spooled(folder: Path) -> Path:
    """The standard input as a file: it can be read again, to go on and to show its rows."""
    path, partial = folder / SPOOLED, folder / f".{SPOOLED}.partial"
    try:
        with partial.open("wb") as file:
            shutil.copyfileobj(sys.stdin.buffer, file, _BYTES)
        partial.replace(path)
    except OSError as error:
        raise DataError(f"cannot keep the standard input in {path}: {error}") from error
    finally:
        partial.unlink(missing_ok=True)
    return path


def _begins(folder: Path, settings: dict[str, Any], resume: bool) -> bool:
    """Whether this is a new audit; one that is there already must have been made with the same settings."""
    scores, path = folder / SCORES, folder / SUMMARY
    if not resume or not scores.is_file() or not scores.stat().st_size:
        return True
    before = _audit_of(path).settings
    differing = [name for name, value in settings.items() if before.get(name) != value]
    if differing:
        named = "; ".join(f"{name}: {before.get(name)!r} there, {settings[name]!r} now" for name in differing)
        raise ConfigError(f"{folder} holds an audit with other settings ({named}): another folder, or --overwrite")
    return False


def _write(path: Path, found: Audit) -> None:
    try:
        write_metrics(path, found.to_dict())
    except OSError as error:
        raise DataError(f"cannot write {path}: {error}") from error


def _audit_of(path: Path) -> Audit:
    try:
        return Audit.from_dict(msgspec.json.decode(path.read_bytes()))
    except (OSError, msgspec.MsgspecError, DataError, TypeError, ValueError) as error:
        raise ConfigError(
            f"{path.parent} holds scores, but {path.name} does not say how they were made ({error}); "
            "use another folder or --overwrite"
        ) from error


class _Reading:
    """The rows of the source. What keeps it from being read at all raises at once; what ends it early is noted."""

    def __init__(self, path: Path, text_column: str | None, limit: int | None) -> None:
        self.head, rows = peek(read_rows(path, text_column))
        self.rows = islice(rows, limit)
        self.error = ""

    def __iter__(self) -> Iterator[Raw]:
        try:
            yield from self.rows
        except DataError as error:
            self.error = str(error)


def _score(rows: Iterable[Raw], plan: Plan, log: ScoreLog, workers: int, bar: Any) -> None:
    done, judged = {"abstained": 0, "unread": 0}, False
    with bar:
        todo = _todo(rows, log, bar)
        for batch in _outcomes(_batches(todo, _size(plan)), plan, workers):
            log.append(batch.rows, batch.lines)
            if batch.refusal and not judged:
                raise JudgeError(f"the judge cannot be asked: {batch.refusal}")
            judged = judged or not batch.refusal
            done = {"abstained": done["abstained"] + batch.abstained, "unread": done["unread"] + batch.unread}
            bar.update(len(batch.rows))
            if any(done.values()):
                bar.set_postfix({name: count for name, count in done.items() if count}, refresh=False)


def _todo(rows: Iterable[Raw], log: ScoreLog, bar: Any) -> Iterator[Raw]:
    for raw in rows:
        if log.holds(raw.number, raw.digest):
            bar.update(1)
        else:
            yield raw


def _batches(rows: Iterable[Raw], size: int) -> Iterator[list[Raw]]:
    batch: list[Raw] = []
    held = 0
    for raw in rows:
        batch.append(raw)
        held += len(raw.data)
        if len(batch) >= size or held >= _BYTES * max(1, size // _ROWS):
            yield batch
            batch, held = [], 0
    if batch:
        yield batch


def _size(plan: Plan) -> int:
    """Rows of a batch: enough to keep all of a judge's requests under way, few enough to lose little."""
    width = getattr(plan.judge, "concurrency", None)
    if not isinstance(width, int):
        return _JUDGED if plan.asks_a_model else _ROWS
    return max(_ROWS, min(8 * width, 8 * _ROWS))


def _outcomes(batches: Iterator[list[Raw]], plan: Plan, workers: int) -> Iterator[Batch]:
    """The scored batches in order."""
    return in_order(partial(_scorer, plan), batches, workers)


def _scorer(plan: Plan) -> Callable[[list[Raw]], Batch]:
    return Scorer(plan).score


def _processes(plan: Plan, workers: int | None) -> int:
    if plan.policy is not None or plan.asks_a_model:
        return 1
    if workers is not None:
        return workers
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _shown(path: Path, limit: int | None) -> dict[str, Any]:
    total = count_rows(path)
    known = [number for number in (total, limit) if number is not None]
    return {"total": min(known, default=None), "desc": "auditing", "unit": "row"}


def _total(now: Mapping[str, Any], before: Mapping[str, Any], earlier: Mapping[str, Any]) -> dict[str, Any]:
    """What this run added to the judge's counts, and what earlier runs did."""
    return {name: now.get(name, 0) - before.get(name, 0) + earlier.get(name, 0) for name in {**now, **earlier}}


def _usage(judge: Judge | None) -> dict[str, Any]:
    """What the judge counted: requests, tokens, cost."""
    counted = msgspec.to_builtins(getattr(judge, "stats", {}), enc_hook=str)
    return counted if isinstance(counted, dict) else {}
