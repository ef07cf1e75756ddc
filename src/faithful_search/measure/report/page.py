"""An audit, or a comparison, as one page to look at: the figures at the top, then trajectories or questions.

A page is a single file that loads nothing and needs no server. Everything in it that an agent or a tool wrote is
untrusted: it is escaped, and a content security policy lets nothing run but the page's own script.
"""

import base64
import hashlib
import math
import os
from array import array
from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import date
from pathlib import Path
from typing import Any
from urllib.parse import quote

from ... import __version__
from ...rewards import Score
from ...trajectory import Trajectory
from ..comparison import Comparison, Side, changes
from ..files import PathLike
from ..metrics import about, asks
from ..scores import read_scores
from ..stats import Estimate
from ..summary import Audit
from ..writing import write_whole
from . import extremes, sentences
from .rollout import ROW, environment, fields, page_file

REPORT = "report.html"
BINS = 20
PAGE = 10_000_000
"""Characters of all texts on a page."""


def write(path: PathLike, audit: Audit, scores: PathLike, rollouts: Iterable[tuple[int, Trajectory]]) -> Path:
    """Write the page of an audit and its `scores.jsonl`; it appears under its name only when complete.

    `rollouts` are the trajectories to show, with the number of their row. Raises `DataError` when the scores cannot be
    read, or the page cannot be written.
    """
    shown = list(rollouts)
    values, rows = _read(scores, {row for row, _ in shown}, audit.n + audit.errors)
    limits = {**dict.fromkeys({*audit.rows, *values}, (0.0, 1.0)), "calls": (0.0, math.inf), **audit.bounds}
    share = min(ROW, PAGE // max(1, len(shown)))
    best, worst = extremes(audit) or (None, None)
    # what a sentence speaks of, as the page's script filters and orders by it
    views = {"Best": {"metric": best, "order": "best"}, "Worst": {"metric": worst, "order": "worst"}}
    examples: dict[str, str] = {}  # the first Issue of each kind explains the kind
    for _, trajectory in shown:
        for issue in trajectory.all_issues():
            examples.setdefault(issue.kind, issue.why)
    return _render(
        path,
        "template.html",
        audit=audit,
        title=Path(str(audit.settings.get("source", "trajectories"))).name,
        told=[(sentence, views.get(sentence.partition(":")[0])) for sentence in sentences(audit)],
        bars={name: _scale(row, limits[name]) for name, row in audit.rows.items()},
        histograms=[_histogram(name, column, limits[name]) for name, column in values.items()],
        examples=examples,
        lower=[name for name in audit.rows if about(name).direction < 0],
        rollouts=[fields(row, trajectory, rows.get(row, {}), share) for row, trajectory in shown],
    )


def write_comparison(path: PathLike, found: Comparison, sides: Sequence[Side]) -> Path:
    """Write the page. Questions link to their rows in the audits' own reports, where these lie.

    Raises `DataError` when the page cannot be written.
    """
    reports = []  # of each audit its report's address, seen from the page
    for side in sides:
        report = Path(side.folder) / REPORT
        known = side.rows and report.is_file()
        reports.append(quote(Path(os.path.relpath(report, Path(path).parent)).as_posix()) if known else None)
    header, *table = found.table()
    return _render(
        path,
        "comparison.html",
        found=found,
        header=header,
        rows=[(name, cells) for name, *cells in table],
        changed={metric: changes(sides, metric) for metric in found.rows},
        reports=reports,
    )


def digest(source: str) -> str:
    """What the page's security policy knows a style or script by."""
    return f"sha256-{base64.b64encode(hashlib.sha256(source.encode()).digest()).decode()}"


def _render(path: PathLike, template: str, **values: Any) -> Path:
    page = environment(asks=asks, digest=digest, file=page_file).get_template(template)
    text = page.render(version=__version__, date=date.today().isoformat(), **values)
    return write_whole(Path(path), text.encode("utf-8", "replace"))  # half a surrogate pair has no form in UTF-8


def _read(
    path: PathLike, wanted: set[int], count: int
) -> "tuple[dict[str, array[float]], dict[int, dict[str, Score]]]":
    """The values of each metric over the first `count` rows, and the whole scores of the wanted ones.

    What follows them is kept from an audit of more rows, and not in this one's figures.
    """
    values: dict[str, array[float]] = {}
    rows: dict[int, dict[str, Score]] = {}
    for line in read_scores(path, count):
        for name, cell in line.scores.items():
            if cell.value is not None:
                values.setdefault(name, array("d")).append(cell.value)
        if line.row in wanted:
            rows[line.row] = {name: cell.whole for name, cell in line.scores.items()}
    return values, rows


def _scale(estimate: Estimate, limits: tuple[float, float]) -> list[float] | None:
    """Where the interval's ends and the mean stand between the limits, from 0 to 1."""
    if estimate.value is None or not math.isfinite(limits[1] - limits[0]):
        return None
    ends = [estimate.value if end is None else end for end in (estimate.low, estimate.high, estimate.value)]
    return [min(1.0, max(0.0, (end - limits[0]) / (limits[1] - limits[0]))) for end in ends]


def _histogram(name: str, column: Sequence[float], limits: tuple[float, float]) -> dict[str, Any]:
    """The bars of `BINS` equal parts: the part's number, where it begins and ends, and how many values are in it."""
    low = limits[0] if math.isfinite(limits[0]) else min(column)
    high = limits[1] if math.isfinite(limits[1]) else max(*column, low + 1)
    step = (high - low) / BINS
    counts = Counter(min(BINS - 1, max(0, int((value - low) / step))) for value in column)
    bins = [(place, low + place * step, low + (place + 1) * step, count) for place, count in sorted(counts.items())]
    return {"name": name, "n": len(column), "most": max(counts.values()), "bins": bins, "low": low, "high": high}
