"""Measure a file of trajectories, however they were written down: streaming, on all cores, and able to go on.

`bill` says what that would take of a paid judge, before anything is asked.
"""

import os
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from .. import __version__
from ..errors import ConfigError, DataError, JudgeError
from ..inference.base import Generator
from ..judges import Judge, Writer, prompting
from ..tools.retrieval.corpus import digest
from . import metrics
from .files import STDIN, PathLike, local_file, total_rows
from .invented import SearchedCorpus
from .ledger import answers_kept, same_settings
from .rows import Raw, Source, pick, read_trajectories
from .scores import SCORES, ScoreLog, Scorer, read_scores
from .settings import AuditSettings
from .summary import SUMMARY, Audit, choose_rows, summarize
from .workers import chunks, in_order, progress_bar
from .writing import results_folder, write_metrics

if TYPE_CHECKING:
    from ..judges.endpoint import EndpointJudge

__all__ = ["SCORES", "SPOOLED", "Audit", "audit", "choose_rows", "pick", "read_trajectories"]

SPOOLED = "source.jsonl"
_ROWS, _BYTES = 64, 1 << 20
"""The most rows or bytes of a batch. Memory holds two batches for each worker."""
_JUDGED = 16
"""Rows of a batch where a model on this machine judges: what an interruption loses, and when the bar moves."""
READ = 512
"""Rows that are read for an estimate; those of a longer file are taken to be like its first ones."""
_SECONDS = 1.0
"""What a request is taken to last: nothing is known of the server."""
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

    Rows stream through, so the file may be larger than memory. Without a model as judge all cores score; with one, its
    own concurrency does. After an interruption the same call goes on: rows that were scored are not scored again, those
    that could not be read or whose judge abstained are.

    Args:
        source: a file (see `read_trajectories`), or `"-"` for JSON lines on the standard input, which is kept in `out`.
        out: the folder for what is written.
        judge: the judge; by default words are compared, and the names of the results say so.
        policy: the model that wrote the trajectories, for what asks it.
        resume: `False` starts over and replaces what is in `out`.
        on_progress: a `tqdm`-like class; default a progress bar on a terminal.
        settings: fields of `AuditSettings`; `metrics` are by default all, `evidence_sensitivity` only with a `policy`.

    Raises:
        DataError: when the source cannot be read at all, or `out` cannot be written.
        JudgeError: when the judge cannot be asked at all; the rows that were scored until then are kept.
        ConfigError: for settings that contradict each other, or those of the audit that is in `out`.

    Example:
        ```python
        found = audit("rollouts.jsonl", "rollouts-audit")
        print(found.rows["info_think_lexical"])
        ```
    """
    given, folder, piped = AuditSettings(**settings), Path(out), str(source) == STDIN
    names = metrics_of(given, judge, policy)
    with ExitStack() as opened:
        path = opened.enter_context(_spooled(folder)) if piped else local_file(source)
        rows = Source(path, given)
        scorer = Scorer(names, judge, given.how, policy, rows.reader)
        header = _header(source, given, scorer)
        results_folder(folder)  # after source and corpus were read: a wrong name leaves no folder
        instead, scores = "use another folder, or --overwrite", folder / SCORES
        before = same_settings(folder / SUMMARY, header, instead, "settings", scores) if resume else {}
        if given.corpus is not None:  # only now: the one that is there belongs to the audit that is there
            scorer = replace(scorer, reader=replace(rows.reader, corpus=SearchedCorpus.of(given.corpus, folder)))
        log = opened.enter_context(ScoreLog(scores, resume))
        if piped:  # only now, for the same reason
            path = path.replace(folder / SPOOLED)
        if not before:
            write_metrics(folder / SUMMARY, Audit(settings=header, finished=False).to_dict())
        counted = _usage(judge)
        bar = (on_progress or progress_bar)(total=total_rows([path], given.limit), desc="auditing", unit="row")
        with answers_kept(judge, folder, resume), bar:
            _score(rows, scorer, log, given.workers, bar)
        log.finish(whole=given.limit is None and not rows.error)
    found = summarize(
        read_scores(scores, len(log.places)),
        {name: reward.bounds for name, reward in scorer.rewards.items()},
        settings=header,
        source_error=rows.error,
        usage=_added(_usage(judge), counted, before.get("usage", {})),
    )
    write_metrics(folder / SUMMARY, found.to_dict())
    if not found.n:
        first = found.unread[0]
        raise DataError(f"{source}: none of its rows ({found.errors}) can be read; row {first.row}: {first.error}")
    return found


class Bill(msgspec.Struct, frozen=True):
    """An estimate from `read` of `rows` (`None`: too many to count); `hits` are answers in the judge's cache."""

    read: int
    rows: int | None
    calls: int
    hits: int
    prompt_tokens: int
    completion_tokens: int
    cost: float
    seconds: float

    def __str__(self) -> str:
        basis = "" if self.rows == self.read else f", from the first {self.read:,}"
        rows = f"{self.rows:,} rows{basis}" if self.rows is not None else f"the first {self.read:,} rows alone"
        cost = f"cost {self.cost:.4f}" if self.cost else "its cost unknown without --judge-prices"
        kept = f" ({self.hits:,} answers are in the cache)" if self.hits else ""
        return (
            f"{rows}: about {self.calls:,} calls{kept}, {self.prompt_tokens:,} + {self.completion_tokens:,} tokens, "
            f"{cost}, {self.seconds / 60:.1f} min if a call takes {_SECONDS:g} s; 4 characters are taken for a token"
        )


def bill(source: PathLike, judge: "EndpointJudge", **settings: Any) -> Bill:
    """Estimate what a new audit with this judge and these settings takes; nothing is asked. Raises as `audit` does."""
    if str(source) == STDIN:
        raise ConfigError("the standard input can be read only once: save it to a file for an estimate")
    given, path, dry = AuditSettings(**settings), local_file(source), replace(judge, dry=True, on_progress=None)
    rows = Source(path, given)
    scorer, read = Scorer(metrics_of(given, dry), dry, given.how, None, rows.reader), 0
    for batch in chunks(islice(rows, READ), 64):
        scorer.score(batch)
        read += len(batch)
    # A file that was read to its end need not be counted
    total = read if read < READ else total_rows([path], given.limit)
    times, stats = (total or read) / read, dry.stats
    dry.close()
    names = ("calls", "hits", "prompt_tokens", "completion_tokens")
    counted = {name: round(times * getattr(stats, name)) for name in names}
    seconds = counted["calls"] * _SECONDS / judge.concurrency
    return Bill(read, total, **counted, cost=times * stats.cost, seconds=seconds)


def metrics_of(given: AuditSettings, judge: Judge | None, policy: Generator | None = None) -> tuple[str, ...]:
    """Which metrics are measured. Raises `ConfigError`, before anything is written, for those that cannot be."""
    usual = [name for name in metrics.names() if policy is not None or name != "evidence_sensitivity"]
    names = tuple(dict.fromkeys(usual if given.metrics is None else given.metrics))
    if not names:
        raise ConfigError(f"no metrics named; there are: {', '.join(metrics.names())}")
    asks = [name for name, reward in Scorer(names, judge, given.how).rewards.items() if reward.needs_policy]
    if asks and policy is None:
        raise ConfigError(f"{', '.join(asks)} measures a model: name the policy that wrote the trajectories")
    return names


def _header(source: PathLike, given: AuditSettings, scorer: Scorer) -> dict[str, Any]:
    """What a score depends on: an audit only goes on with the same."""
    prompted = isinstance(scorer.judge, Writer)
    return {
        "source": Path(source).name.encode(errors="replace").decode(),  # as it is written
        "metrics": list(scorer.metrics),
        "judge": scorer.judge.name if scorer.judge is not None else "lexical",
        "prompts": [prompting.load(name).id for name in prompting.names() if prompted and name not in _NO_VERDICT],
        "how": scorer.how,
        "dialect": given.dialect,
        "text_column": given.text_column,
        "corpus": None if given.corpus is None else f"{Path(given.corpus).name} (SHA-256 {digest(given.corpus)[:16]})",
        "policy": None if scorer.policy is None else str(getattr(scorer.policy, "name", type(scorer.policy).__name__)),
        "version": __version__,
    }


@contextmanager
def _spooled(folder: Path) -> Iterator[Path]:
    """The standard input as a file: it can be read again, to go on and to show its rows. Removed, unless moved."""
    path = results_folder(folder) / f"stdin-{os.getpid()}.jsonl"
    try:
        try:
            with path.open("wb") as file:
                shutil.copyfileobj(sys.stdin.buffer, file, _BYTES)
        except OSError as error:
            raise DataError(f"cannot keep the standard input in {path}: {error}") from error
        yield path
    finally:
        path.unlink(missing_ok=True)


def _score(rows: Source, scorer: Scorer, log: ScoreLog, workers: int | None, bar: Any) -> None:
    """Score the rows that the log does not hold yet, batch by batch, into the log."""
    if scorer.policy is not None or scorer.shared is not None:
        workers = 1  # the model is in this process, or its requests are concurrent already
    elif workers is None:
        workers = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    size, judged = _ROWS if scorer.shared is None else _JUDGED, False
    if isinstance(width := getattr(scorer.judge, "concurrency", None), int):
        # enough to keep all of its requests under way, few enough to lose little
        size = max(_ROWS, min(8 * width, 8 * _ROWS))
    for batch in in_order(scorer.score, _batches(rows, log, size, bar), workers):
        log.add(batch.rows, batch.lines)
        # A judge that refuses from the start has a wrong key or address: no row after it can be judged either
        if batch.refusal and not judged:
            raise JudgeError(batch.refusal)
        judged = judged or not batch.refusal
        bar.update(len(batch.rows))


def _batches(rows: Source, log: ScoreLog, size: int, bar: Any) -> Iterator[list[Raw]]:
    """The rows that the log does not hold yet, `size` at a time, fewer where they are long."""
    batch: list[Raw] = []
    held = 0
    for raw in rows:
        if log.holds(raw.number, raw.digest):
            bar.update(1)
            continue
        batch.append(raw)
        held += len(raw.data)
        if len(batch) >= size or held >= _BYTES * max(1, size // _ROWS):
            yield batch
            batch, held = [], 0
    if batch:
        yield batch


def _usage(judge: Judge | None) -> dict[str, Any]:
    """What the judge counted: requests, tokens, cost."""
    counted = msgspec.to_builtins(getattr(judge, "stats", {}), enc_hook=str)
    return counted if isinstance(counted, dict) else {}


def _added(now: Mapping[str, Any], before: Mapping[str, Any], earlier: Mapping[str, Any]) -> dict[str, Any]:
    """What this run added to the judge's counts `before` it, and what `earlier` runs did."""
    found: dict[str, Any] = {}
    for name in {**now, **earlier}:
        counts = [one.get(name) for one in (now, before, earlier)]
        if any(isinstance(count, Mapping) for count in counts):
            found[name] = _added(*(count or {} for count in counts))
        else:
            new, old, known = (count or 0 for count in counts)
            found[name] = new - old + known
    return found
