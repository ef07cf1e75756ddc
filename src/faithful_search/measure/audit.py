"""Measure a file of trajectories, however they were written down: streaming, on all cores, and able to go on.

`bill` says what that would take of a paid judge, before anything is asked.
"""

import os
import shutil
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import replace
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import msgspec

from .. import __version__
from ..errors import ConfigError, DataError
from ..inference.base import Generator
from ..judges import Judge, Writer, prompting
from ..tools.retrieval.corpus import digest
from . import metrics
from .files import STDIN, PathLike, local_file, total_rows
from .invented import SearchedCorpus
from .ledger import answers_kept, same_settings, width_of
from .rows import Raw, Source
from .scores import SCORES, ScoreLog, Scorer, read_scores
from .settings import AuditSettings
from .summary import SUMMARY, Audit, summarize
from .workers import chunks, in_order, progress_bar
from .writing import results_folder, write_metrics

if TYPE_CHECKING:
    from ..judges.endpoint import EndpointJudge

__all__ = ["Audit", "audit"]
SPOOLED = "source.jsonl"
_ROWS, _JUDGED = 64, 16
"""Rows of a batch; fewer where a model on this machine judges: what an interruption loses, and when the bar moves."""
_READ = 512
"""Rows that are read for an estimate."""
_NO_VERDICT = frozenset(("lure", "condense"))
"""Prompts that no score rests on."""


def audit(
    source: PathLike,
    out: PathLike,
    *,
    judge: Judge | None = None,
    policy: Generator | None = None,
    resume: bool = True,
    on_progress: Callable[..., Any] | None = None,
    **settings: Any,
) -> Audit:
    """Score every trajectory of a file; writes `scores.jsonl` while it goes and `audit.json` at the end.

    Without a model as judge all cores score; with one, its own concurrency does. After an interruption the same call
    goes on: rows that were scored are not scored again, those that could not be read or whose judge abstained are.

    Args:
        source: a file (see `read_trajectories`), or `"-"` for JSON lines on the standard input, which is kept in `out`.
        out: the folder for what is written.
        judge: the judge; by default words are compared, and the names of the results say so.
        policy: the model that wrote the trajectories, for what asks it.
        resume: `False` starts over and replaces what is in `out`.
        on_progress: a `tqdm`-like class; default a progress bar on a terminal.
        settings: fields of `AuditSettings`; `metrics` are by default all, `evidence_sensitivity` only with a `policy`.

    Raises `DataError` when the source cannot be read at all, or `out` cannot be written; `JudgeError` when the judge
    cannot be asked at all (what was scored until then is kept); `ConfigError` for settings that contradict each other,
    or those of the audit that is in `out`.
    """
    given, folder, piped = AuditSettings(**settings), Path(out), str(source) == STDIN
    names, at_first = metrics_of(given, judge, policy), _counted(judge)
    with ExitStack() as opened:
        path = (
            _spooled(Path(opened.enter_context(TemporaryDirectory())))
            if piped
            else local_file(source)
        )
        rows = Source(path, given)
        scorer = Scorer(names, judge, given.how, policy, rows.reader)
        header = _header(source, given, scorer)
        results_folder(folder)  # after source and corpus were read: a wrong name leaves no folder
        instead, scores = "use another folder, or --overwrite", folder / SCORES
        before = (
            same_settings(folder / SUMMARY, header, instead, "settings", scores) if resume else {}
        )
        if (
            given.corpus is not None
        ):  # only now: the one that is there belongs to the audit that is there
            scorer = replace(
                scorer, reader=replace(rows.reader, corpus=SearchedCorpus.of(given.corpus, folder))
            )
        log = opened.enter_context(ScoreLog(scores, resume))
        if piped:  # only now, for the same reason; its rows are read again to be shown
            shutil.copyfile(path, folder / SPOOLED)
        if not before:
            write_metrics(folder / SUMMARY, Audit(settings=header, finished=False).to_dict())
        bar = (on_progress or progress_bar)(
            total=total_rows([path], given.limit), desc="auditing", unit="row"
        )
        with answers_kept(judge, folder, resume), bar:
            _score(rows, scorer, log, given.workers, bar)
        log.finish(whole=given.limit is None and not rows.error)
    bounds = {name: reward.bounds for name, reward in scorer.rewards.items()}
    usage = _usage(judge, at_first, before.get("usage", {}))
    lines = read_scores(scores, len(log.places))
    found = summarize(lines, bounds, settings=header, source_error=rows.error, usage=usage)
    write_metrics(folder / SUMMARY, found.to_dict())
    if not found.n:
        first = found.unread[0]
        raise DataError(
            f"{source}: none of its rows ({found.errors}) can be read; row {first.row}: {first.why}"
        )
    return found


def bill(source: PathLike, judge: "EndpointJudge", **settings: Any) -> str:
    """What a new audit with this judge and these settings takes, in words; nothing is asked. Raises as `audit` does.

    Rows after the first ones are taken to be like these.
    """
    if str(source) == STDIN:
        raise ConfigError(
            "the standard input can be read only once: save it to a file for an estimate"
        )
    given, path, dry = (
        AuditSettings(**settings),
        local_file(source),
        replace(judge, dry=True, on_progress=None),
    )
    rows = Source(path, given)
    scorer, read = Scorer(metrics_of(given, dry), dry, given.how, None, rows.reader), 0
    for batch in chunks(islice(rows, _READ), _ROWS):
        scorer.score(batch)
        read += len(batch)
    total, stats = total_rows([path], given.limit) or read, dry.stats
    dry.close()
    calls, hits, asked, answered = (
        round(total / read * count)
        for count in (stats.calls, stats.hits, stats.prompt_tokens, stats.completion_tokens)
    )
    basis = "" if total == read else f", from the first {read:,}"
    kept = f" ({hits:,} answers are in the cache)" if hits else ""
    cost = (
        f"cost {total / read * stats.cost:.4f}"
        if stats.cost
        else "its cost unknown without --judge-prices"
    )
    minutes = f"{calls / judge.concurrency / 60:.1f} min if a call takes 1 s"  # nothing is known of the server
    tokens = f"{asked:,} + {answered:,} tokens"
    return f"{total:,} rows{basis}: about {calls:,} calls{kept}, {tokens}, {cost}, {minutes}; 4 characters are a token"


def metrics_of(
    given: AuditSettings, judge: Judge | None, policy: Generator | None = None
) -> tuple[str, ...]:
    """Which metrics are measured. Raises `ConfigError`, before anything is written, for those that cannot be."""
    usual = [
        name for name in metrics.names() if policy is not None or name != "evidence_sensitivity"
    ]
    names = tuple(dict.fromkeys(usual if given.metrics is None else given.metrics))
    if not names:
        raise ConfigError(f"no metrics named; there are: {', '.join(metrics.names())}")
    asks = [
        name
        for name, reward in Scorer(names, judge, given.how).rewards.items()
        if reward.needs_policy
    ]
    if asks and policy is None:
        raise ConfigError(
            f"{', '.join(asks)} measures a model: name the policy that wrote the trajectories"
        )
    return names


def _header(source: PathLike, given: AuditSettings, scorer: Scorer) -> dict[str, Any]:
    """What a score depends on: an audit only goes on with the same."""
    prompted = isinstance(scorer.judge, Writer)
    return {
        "source": Path(source).name.encode(errors="replace").decode(),  # as it is written
        "metrics": list(scorer.metrics),
        "judge": scorer.judge.name if scorer.judge is not None else "lexical",
        "prompts": [
            prompting.load(name).id
            for name in prompting.names()
            if prompted and name not in _NO_VERDICT
        ],
        "how": scorer.how,
        "dialect": given.dialect,
        "text_column": given.text_column,
        "corpus": None
        if given.corpus is None
        else f"{Path(given.corpus).name} (SHA-256 {digest(given.corpus)[:16]})",
        "policy": None
        if scorer.policy is None
        else str(getattr(scorer.policy, "name", type(scorer.policy).__name__)),
        "version": __version__,
    }


def _spooled(folder: Path) -> Path:
    path = folder / SPOOLED
    try:
        with path.open("wb") as file:
            shutil.copyfileobj(sys.stdin.buffer, file)
    except OSError as error:
        raise DataError(f"cannot keep the standard input in {path}: {error}") from error
    return path


def _score(rows: Source, scorer: Scorer, log: ScoreLog, workers: int | None, bar: Any) -> None:
    if scorer.policy is not None or scorer.asks_model:
        workers = 1  # the model is in this process, or its requests are concurrent already
    elif workers is None:
        workers = (
            len(os.sched_getaffinity(0))
            if hasattr(os, "sched_getaffinity")
            else os.cpu_count() or 1
        )
    size = width_of(scorer.judge, _JUDGED if scorer.asks_model else _ROWS)
    for lines in in_order(scorer.score, chunks(_missing(rows, log, bar), size), workers):
        log.add(lines)
        bar.update(len(lines))


def _missing(rows: Source, log: ScoreLog, bar: Any) -> Iterator[Raw]:
    for raw in rows:
        if log.holds(raw.number, raw.digest):
            bar.update(1)
        else:
            yield raw


def _usage(
    judge: Judge | None, at_first: Mapping[str, Any], earlier: Mapping[str, Any]
) -> dict[str, Any]:
    """What the judge has counted, if it does (requests, tokens, cost, notes), since the audit began and in earlier
    runs of it."""
    now = _counted(judge)
    counts = {
        name: value - at_first[name] + earlier.get(name, 0)
        for name, value in now.items()
        if name != "notes"
    }
    notes = [Counter(counted.get("notes", {})) for counted in (now, at_first, earlier)]
    return (
        {**earlier, **counts, "notes": dict(notes[0] - notes[1] + notes[2])}
        if counts or earlier
        else {}
    )


def _counted(judge: Judge | None) -> dict[str, Any]:
    return msgspec.to_builtins(getattr(judge, "stats", {}))
