"""Measure a file of trajectories, whatever wrote them.

```
file ─ RowSource ─> Raw, … ─ RowScorer (in several processes) ─> ScoreLog ─ summarize ─> Audit
```

Rows are read and scored in batches, so that a file may be larger than the memory and an audit can
be continued. `bill` estimates what an audit would cost with a paid judge.
"""

import hashlib
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
from ..errors import ConfigError, DataError, reason_of
from ..inference.base import Generator
from ..judges import Judge, Writer, prompting
from ..reading.files import STDIN, PathLike, is_named_as_data, local_file, total_rows
from ..reading.rows import Raw, RowSource
from ..tools.retrieval.corpus import digest
from . import fetching, gates, metrics
from .invented import SearchedCorpus
from .ledger import answers_kept, same_settings, width_of
from .scores import SCORES, RowScorer, ScoreLog, read_scores
from .settings import AuditSettings
from .summary import ALWAYS, SUMMARY, Audit, summarize
from .workers import chunks, in_order, progress_bar
from .writing import make_folder, write_metrics

if TYPE_CHECKING:
    from ..judges.endpoint import EndpointJudge

__all__ = ["Audit", "audit"]
SPOOLED = "source.jsonl"
PLACE = "place"
"""The key, among an audit's settings, of a digest of where its source lies. It may change: a folder
that was moved is still audited further.
"""
_INSTEAD = "use another folder, or --overwrite"
_BATCH_ROWS = 64
"""The number of rows in a batch. An interruption loses a batch, and the progress bar moves by
one.
"""
_LOCAL_MODEL_BATCH_ROWS = 16
"""The same for a judge that is a model on this machine."""
_ESTIMATE_ROWS = 512
"""The number of rows that an estimate rests on."""
_PROMPTS_WITHOUT_SCORES = frozenset(("lure", "condense", "thread_summary", "thread_synthesis"))
"""The prompts that no score depends on: their new versions do not keep an audit from being
continued.
"""


def audit(
    source: PathLike,
    out: PathLike,
    *,
    judge: Judge | None = None,
    policy: Generator | None = None,
    resume: bool = True,
    growing: bool = False,
    on_progress: Callable[..., Any] | None = None,
    **settings: Any,
) -> Audit:
    """Score every trajectory of a file. Writes `scores.jsonl` while it runs, and `audit.json` at
    the end.

    If no model judges, all cores score; a model judges with its own concurrency. After an
    interruption the same call continues: it scores rows that were not scored, those that could not
    be read, and those whose judge abstained. The audit of another file of the same name is not
    replaced.

    Args:
        source: a file, as `read_trajectories` takes it, or `"-"` for JSON lines on the standard
            input, which are kept in `out`.
        out: the folder for the results.
        judge: by default words are compared, and the names of the results say so.
        policy: the model that wrote the trajectories, for metrics that ask it.
        resume: `False` deletes what is in `out` and starts over.
        growing: another program still writes the source, a file of JSON lines. A last line without
            an end is left for the next call.
        on_progress: a class like `tqdm`, which is called for a progress bar; by default a progress bar on a terminal.
        settings: fields of `AuditSettings`. `metrics` are by default all, with
            `evidence_sensitivity` only if there is a `policy`. `Audit.unmet` says afterwards which
            of what they `require` is not met.

    Raises `DataError` when the source cannot be read at all, or `out` cannot be written;
    `JudgeError` when the judge cannot be asked at all (scores until then are kept); `ConfigError`
    for settings that contradict each other, or the settings of the audit that is in `out`, for an
    `out` with the audit of another file, and for a `require` that no value of its result could
    meet.
    """
    audit_settings = AuditSettings(**settings)
    folder = Path(out)
    piped = str(source) == STDIN
    if audit_settings.fetch and (piped or growing):
        raise ConfigError("fetch needs a file that is whole: save it first")
    names = metrics_of(audit_settings, judge, policy)
    counts_before = _counts(judge)
    with ExitStack() as stack:
        path = _spooled(stack) if piped else local_file(source)
        try:
            rows = RowSource(path, audit_settings, growing)
        except DataError as error:  # users know their source, not the copy of their input
            raise DataError(str(error).replace(str(path), str(source))) from error
        scorer = RowScorer(names, judge, how=audit_settings.how, policy=policy, reader=rows.reader)
        bounds = {name: reward.bounds for name, reward in scorer.rewards.items()}
        gates.check(audit_settings.require, {**ALWAYS, **bounds})
        header = _header(source, audit_settings, scorer)
        place = "" if piped else _place_of(path)
        recorded = {**header, PLACE: place}
        # Made after source and corpus were read, so that a wrong name leaves no folder
        make_folder(folder)
        scores_file = folder / SCORES
        stored_audit = {}
        if resume:
            stored_audit = same_settings(
                folder / SUMMARY,
                header,
                instead=_INSTEAD,
                part="settings",
                ledger=scores_file,
            )
        # From here on the folder is this audit's: its copies of corpus and source may be replaced
        if audit_settings.corpus is not None:
            corpus = SearchedCorpus.of(audit_settings.corpus, folder)
            reader = replace(rows.reader, revise=corpus.without_invented)
            scorer = replace(scorer, reader=reader)
        log = stack.enter_context(ScoreLog(scores_file, resume))
        place_before = stored_audit.get("settings", {}).get(PLACE, place)
        is_elsewhere = piped or place_before != place
        if is_elsewhere and not audit_settings.fetch:  # fetched pages make rows new ones
            every_row = RowSource(path, replace(audit_settings, limit=None))
            _refuse_other_rows(every_row, log, source, folder)
        if piped:  # the report reads its rows again
            shutil.copyfile(path, folder / SPOOLED)
        if not stored_audit:
            write_metrics(folder / SUMMARY, Audit(settings=recorded, finished=False).to_dict())
        rows_to_score, path_to_score = rows, path
        if audit_settings.fetch:
            if not resume:
                fetching.forget(folder)
            pages = fetching.cited_addresses(path, audit_settings)
            path_to_score = fetching.fetch_sources(
                rows, pages, folder, audit_settings.fetch_allow, on_progress
            )
            rows_to_score = RowSource(path_to_score, audit_settings)
        bar = (on_progress or progress_bar)(
            total=total_rows([path_to_score], audit_settings.limit), desc="auditing", unit="row"
        )
        with answers_kept(judge, folder, resume), bar:
            _score(rows_to_score, scorer, log, audit_settings.workers, bar)
        source_error = rows.error or rows_to_score.error
        log.finish(whole=audit_settings.limit is None and not source_error)
    usage = _usage(judge, counts_before, stored_audit.get("usage", {}))
    lines = read_scores(scores_file, len(log.places))
    result = summarize(lines, bounds, settings=recorded, source_error=source_error, usage=usage)
    write_metrics(folder / SUMMARY, result.to_dict())
    if not result.n:  # no row could be read: a source without any row has raised before
        first = result.unread[0]
        raise DataError(
            f"{source}: none of its rows ({result.errors}) can be read; row {first.row}: "
            f"{first.why}{_advice(path, first.why)}"
        )
    return result


def _advice(source: Path, why: str) -> str:
    """What to do where no row of a source can be read for this reason."""
    if why.startswith("no column with"):
        return "; --text_column names the column that holds what the agent wrote"
    if why.startswith("not JSON") and is_named_as_data(source, (".jsonl", ".ndjson")):
        return "; a file of JSON lines has a row in each line, other JSON is named .json"
    return ""


def bill(source: PathLike, judge: "EndpointJudge", **settings: Any) -> str:
    """A sentence that estimates what a new audit with this judge and these settings would cost. The
    judge is not asked.

    The estimate rests on the first rows of the source. Raises as `audit` does.
    """
    if str(source) == STDIN:
        raise ConfigError(
            "the standard input can be read only once: save it to a file for an estimate"
        )
    audit_settings = AuditSettings(**settings)
    path = local_file(source)
    dry = replace(judge, dry=True, on_progress=None)
    rows = RowSource(path, audit_settings)
    names = metrics_of(audit_settings, dry)
    scorer = RowScorer(names, dry, how=audit_settings.how, policy=None, reader=rows.reader)
    rows_read = 0
    for batch in chunks(islice(rows, _ESTIMATE_ROWS), _BATCH_ROWS):
        scorer.score(batch)
        rows_read += len(batch)
    total = total_rows([path], audit_settings.limit) or rows_read
    dry.close()
    return bill_of(dry, rows_read, total)


def bill_of(dry: "EndpointJudge", rows_read: int, total: int) -> str:
    """A sentence about what `total` rows would cost, from what a dry judge counted for `rows_read`
    of them.
    """
    stats = dry.stats
    scale = total / rows_read
    basis = "" if total == rows_read else f", from the first {rows_read:,}"
    calls = round(scale * stats.calls)
    hits = round(scale * stats.hits)
    cached = f" ({hits:,} answers are in the cache)" if hits else ""
    prompt_tokens = round(scale * stats.prompt_tokens)
    completion_tokens = round(scale * stats.completion_tokens)
    cost = "its cost unknown without --judge-prices"
    if dry.prices is not None:
        cost = f"cost {scale * stats.cost:.4f}"
    minutes = calls / dry.concurrency / 60  # if a call takes a second, which nobody knows
    return (
        f"{total:,} rows{basis}: about {calls:,} calls{cached}, "
        f"{prompt_tokens:,} + {completion_tokens:,} tokens, {cost}, "
        f"{minutes:.1f} min if a call takes 1 s; 4 characters are a token"
    )


def metrics_of(
    audit_settings: AuditSettings, judge: Judge | None, policy: Generator | None = None
) -> tuple[str, ...]:
    """The names of the metrics that an audit measures, each once. Raises `ConfigError` for metrics
    that do not exist, or that need a policy if there is none.
    """
    chosen = audit_settings.metrics
    if chosen is None:
        chosen = tuple(metrics.names())
        if policy is None:
            chosen = tuple(name for name in chosen if name != "evidence_sensitivity")
    names = tuple(dict.fromkeys(chosen))
    if not names:
        raise ConfigError(f"no metrics named; there are: {', '.join(metrics.names())}")
    rewards = RowScorer(names, judge, audit_settings.how).rewards
    need_policy = [name for name, reward in rewards.items() if reward.needs_policy]
    if need_policy and policy is None:
        raise ConfigError(
            f"{', '.join(need_policy)} measures a model: name the policy that wrote the "
            "trajectories"
        )
    return names


def _header(source: PathLike, audit_settings: AuditSettings, scorer: RowScorer) -> dict[str, Any]:
    """The settings that scores depend on. An audit can only be continued with the same ones."""
    prompts: list[str] = []
    if isinstance(scorer.judge, Writer):
        names = [name for name in prompting.names() if name not in _PROMPTS_WITHOUT_SCORES]
        prompts = [prompting.load(name).id for name in names]
    corpus = policy = None
    if audit_settings.corpus is not None:
        short_digest = digest(audit_settings.corpus)[:16]
        corpus = f"{Path(audit_settings.corpus).name} (SHA-256 {short_digest})"
    if scorer.policy is not None:
        policy = str(getattr(scorer.policy, "name", type(scorer.policy).__name__))
    return {
        "source": Path(source).name.encode(errors="replace").decode(),  # it need not be UTF-8
        "metrics": list(scorer.metrics),
        "judge": scorer.judge.name if scorer.judge is not None else "lexical",
        "weights": scorer.judge.weights.record() if scorer.judge is not None else {},
        "prompts": prompts,
        "how": scorer.how,
        "dialect": audit_settings.dialect,
        "text_column": audit_settings.text_column,
        "question_column": audit_settings.question_column,
        "gold_column": audit_settings.gold_column,
        "id_column": audit_settings.id_column,
        "answer_tool": audit_settings.answer_tool,
        "corpus": corpus,
        "policy": policy,
        "version": __version__,
    }


def _place_of(path: Path) -> str:
    """A short digest of where a source lies: it tells files of one name apart, and shows no path to
    those with whom the audit is shared.
    """
    return hashlib.sha256(os.fsencode(path.resolve())).hexdigest()[:16]


def _refuse_other_rows(rows: RowSource, log: ScoreLog, source: PathLike, folder: Path) -> None:
    """Raise `ConfigError` where the log has scores of rows that are not there any more: it is the
    audit of another file, and these would be lost.
    """
    lost = len(log.scored_but_not_in(rows))
    if lost:
        raise ConfigError(
            f"{folder} holds the audit of another file: {lost} of its {log.scored_before} rows are "
            f"not in {source}: {_INSTEAD}"
        )


def _spooled(stack: ExitStack) -> Path:
    """A file with all of the standard input, which exists until the stack is closed."""
    path = Path(stack.enter_context(TemporaryDirectory())) / SPOOLED
    try:
        with path.open("wb") as file:
            shutil.copyfileobj(sys.stdin.buffer, file)
    except OSError as error:
        raise DataError(f"cannot keep the standard input in {path}: {reason_of(error)}") from error
    return path


def _score(
    rows: RowSource, scorer: RowScorer, log: ScoreLog, workers: int | None, bar: Any
) -> None:
    """Score the rows that the log lacks, and add their lines to it."""
    if scorer.policy is not None or scorer.asks_model:
        workers = 1  # the model is in this process, or its requests are concurrent already
    elif workers is None:
        workers = _cores()
    batch_rows = _LOCAL_MODEL_BATCH_ROWS if scorer.asks_model else _BATCH_ROWS
    # A judge that sends requests gets as many rows as keep all of its requests under way.
    size = width_of(scorer.judge, batch_rows)
    for lines in in_order(scorer.score, chunks(_missing(rows, log, bar), size), workers):
        log.add(lines)
        bar.update(len(lines))


def _cores() -> int:
    """The number of cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):  # not on macOS and Windows
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _missing(rows: RowSource, log: ScoreLog, bar: Any) -> Iterator[Raw]:
    """Yield the rows that the log lacks."""
    for raw in rows:
        if log.reuse(raw.number, raw.digest):
            bar.update(1)
        else:
            yield raw


def _usage(
    judge: Judge | None, counts_before: Mapping[str, Any], earlier_usage: Mapping[str, Any]
) -> dict[str, Any]:
    """The judge's counts (requests, tokens, cost, notes) of this audit; empty for a judge that does
    not count.

    `counts_before` are the judge's before this run, `earlier_usage` those of the audit's earlier
    runs.
    """
    now = _counts(judge)
    if not now and not earlier_usage:
        return {}
    usage = dict(earlier_usage)
    for name, value in now.items():
        if name != "notes":
            usage[name] = value - counts_before[name] + earlier_usage.get(name, 0)
    notes = Counter(now.get("notes", {})) - Counter(counts_before.get("notes", {}))
    usage["notes"] = dict(notes + Counter(earlier_usage.get("notes", {})))
    return usage


def _counts(judge: Judge | None) -> dict[str, Any]:
    stats = None if judge is None else judge.stats
    return {} if stats is None else msgspec.to_builtins(stats)
