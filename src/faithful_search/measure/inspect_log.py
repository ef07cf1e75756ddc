"""An audit's scores in the inspect_ai log that was audited, where `inspect view` shows them."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from ..errors import ConfigError, DataError, needs
from ..reading.files import PathLike
from ..reading.rows import RowSource
from ..wire.files import replacing
from .documents import Converted, with_scores
from .scores import Cell

FORMATS = {".eval": "eval", ".json": "json"}
"""inspect's formats of a log, by the ending of its file."""
PREFIX = "faithful_search/"
"""Stands before the names of results, so that no score that the log has is written over."""


def write_inspect_log(source: Path, rows: RowSource, out: Path, scores: PathLike) -> Converted:
    """Write a copy of the log with a score for each result of the audit. inspect records each as an
    edit, with who made it.

    A result without a value is NaN with a reason, as inspect writes it; no mean counts it.

    Args:
        source: the log.
        rows: its samples.
        out: the log to write.
        scores: the audit's folder, or its `scores.jsonl`.

    Raises:
        ConfigError: if `out` is no name of a log, or inspect_ai is not installed.
        DataError: if the log cannot be read or written, or the scores are of other rows.
    """
    if out.suffix not in FORMATS:
        raise ConfigError(f"an inspect log is a file that ends in .eval or .json, not {out.name}")
    with needs("--to inspect", "adapters"):
        from inspect_ai.log import EvalLog, read_eval_log, write_eval_log
    log: EvalLog = _guarded(source, "read", lambda: read_eval_log(str(source)))
    conversion = Converted()
    columns: dict[str, list[float]] = {}
    for raw, line in with_scores(rows, scores):
        if line is None or line.error is not None:
            conversion.unread.append(f"row {raw.number}: not scored by the audit")
            continue
        sample = msgspec.json.decode(raw.data)
        for name, cell in line.scores.items():
            score_name = PREFIX + name
            _add_score(log, sample, score_name, cell)
            columns.setdefault(score_name, []).append(_number(cell))
            conversion.valueless += cell.value is None
        conversion.written += 1
        conversion.scored += bool(line.scores)
    _summarize(log, columns)
    with replacing(out) as partial:

        def write() -> None:
            write_eval_log(log, str(partial), format=FORMATS[out.suffix])

        _guarded(out, "written", write)
    return conversion


def _add_score(log: Any, sample: Mapping[str, Any], name: str, cell: Cell) -> None:
    from inspect_ai.log import ProvenanceData, edit_score
    from inspect_ai.scorer import ScoreEdit

    reason = None
    if cell.value is None:
        reason = "grader_failed" if cell.abstained else "scoring_failed"
    edit = ScoreEdit(
        value=_number(cell),
        explanation=cell.why or None,
        reason=reason,
        provenance=ProvenanceData(author="faithful-search", reason="scores of an audit"),
    )
    edit_score(log, sample["id"], name, edit, recompute_metrics=False, epoch=sample["epoch"])


def _summarize(log: Any, columns: Mapping[str, list[float]]) -> None:
    """Add the mean of each result. Those of other scorers stay: computing them anew would need the
    packages that they are from.
    """
    from inspect_ai.log import EvalMetric, EvalResults, EvalScore

    results = log.results or EvalResults(total_samples=len(log.samples or ()))
    kept = [score for score in results.scores if score.name not in columns]
    for name, values in columns.items():
        scored = [value for value in values if not math.isnan(value)]
        means = {}
        if scored:
            means["mean"] = EvalMetric(name="mean", value=sum(scored) / len(scored))
        score = EvalScore(
            name=name,
            scorer=name,
            scored_samples=len(scored),
            unscored_samples=len(values) - len(scored),
            metrics=means,
        )
        kept.append(score)
    results.scores = kept
    log.results = results


def _number(cell: Cell) -> float:
    return math.nan if cell.value is None else cell.value


def _guarded(path: Path, what: str, work: Any) -> Any:
    """The result of the work. Whatever inspect_ai raises becomes a `DataError`."""
    try:
        return work()
    except Exception as error:  # of the system, of pydantic, of inspect's own
        raise DataError(f"{path} cannot be {what} as an inspect log: {error}") from error
