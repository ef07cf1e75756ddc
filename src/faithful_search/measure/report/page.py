"""An audit as one page to look at: the corpus at the top, then trajectories step by step with the reason of each score.

The page is a single file that loads nothing and needs no server. Everything in it that an agent or a tool wrote is
untrusted: it is escaped, and a content security policy lets nothing run but the page's own script.
"""

from __future__ import annotations

import base64
import hashlib
import math
import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import date
from itertools import zip_longest
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import msgspec

from ... import __version__
from ...trajectory import Trajectory
from ..metrics import LOWER_IS_BETTER
from ..scores import read_scores
from ..stats import Estimate
from ..summary import Audit
from ..writing import replacing
from .asks import asks, extremes, sentences
from .rollout import ROW, Scored, environment, fields, page_file
from .tables import EMPTY

REPORT = "report.html"
BINS = 20
PAGE = 10_000_000
"""Characters of all texts on a page."""


def write(
    path: str | os.PathLike[str],
    audit: Audit,
    scores: str | os.PathLike[str],
    rollouts: Iterable[tuple[int, Trajectory]],
) -> Path:
    """Write the page; it appears under its name only when complete.

    Args:
        path: of the page.
        audit: the corpus.
        scores: the audit's `scores.jsonl`, read for the distributions and again for the reasons of what is shown.
        rollouts: the trajectories to show, with the number of their row.

    Raises:
        DataError: when the scores cannot be read.
        OSError: when the page cannot be written.
    """
    path = Path(path)
    shown = list(rollouts)
    page = _render(audit, *_read(scores, {row for row, _ in shown}), shown)
    with replacing(path) as file:
        file.write(page.encode("utf-8", "replace"))  # half characters have no form in UTF-8
    return path


def _render(
    audit: Audit,
    values: Mapping[str, Sequence[float]],
    rows: Mapping[int, Scored],
    shown: Sequence[tuple[int, Trajectory]],
) -> str:
    style, script = page_file("rollout.css") + page_file("style.css"), page_file("script.js")
    limits = {"calls": (0.0, math.inf), **audit.bounds}
    share = min(ROW, PAGE // max(1, len(shown)))
    examples: dict[str, str] = {}  # the first Issue of each kind explains the kind
    for _, trajectory in shown:
        for issue in trajectory.all_issues():
            examples.setdefault(issue.kind, issue.why)
    return (
        environment(plain=_plain, view=lambda value, name: view(**{name: value}))
        .get_template("template.html")
        .render(
            audit=audit,
            style=style,
            script=script,
            style_hash=digest(style),
            script_hash=digest(script),
            title=Path(str(audit.settings.get("source", "trajectories"))).name,
            version=__version__,
            date=date.today().isoformat(),
            told=_told(audit),
            metrics=[
                (name, asks(name), row, _bar(row, limits.get(name, (0.0, 1.0)))) for name, row in audit.rows.items()
            ],
            histograms=[_histogram(name, column, limits.get(name, (0.0, 1.0))) for name, column in values.items()],
            examples=examples,
            lower=sorted(LOWER_IS_BETTER),
            rollouts=[
                fields(row, trajectory, rows[row].scores if row in rows else {}, share) for row, trajectory in shown
            ],
        )
    )


def _told(audit: Audit) -> list[tuple[str, str]]:
    """The sentences, each with the view of the rows that it speaks of."""
    views = [view(metric=name, order="worst" if place else "best") for place, name in enumerate(extremes(audit) or ())]
    return list(zip_longest(sentences(audit), views, fillvalue=""))


def view(**wanted: object) -> str:
    """The address, in the page, of the trajectories filtered and ordered in a way that its script knows."""
    return f"#?{urlencode(wanted)}"


def digest(source: str) -> str:
    """What the page's security policy knows a style or script by."""
    return f"sha256-{base64.b64encode(hashlib.sha256(source.encode()).digest()).decode()}"


def _read(path: str | os.PathLike[str], wanted: set[int]) -> tuple[dict[str, list[float]], dict[int, Scored]]:
    """The values of each metric over all rows, and the whole scores of the wanted ones."""
    values: dict[str, list[float]] = {}
    for line in read_scores(path):
        for name, cell in line.scores.items():
            if cell.value is not None:
                values.setdefault(name, []).append(cell.value)
    decode = msgspec.json.Decoder(Scored).decode
    with Path(path).open("rb") as file:
        rows = (decode(line) for line in file if line.strip())
        return values, {row.row: row for row in rows if row.row in wanted}


def _plain(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {item}" for name, item in value.items()) or EMPTY
    if isinstance(value, (list, tuple)):
        return ", ".join(map(str, value)) or EMPTY
    return EMPTY if value is None else str(value)


def _bar(estimate: Estimate, limits: tuple[float, float]) -> dict[str, float] | None:
    """Where the interval and the mean stand on a scale 120 wide."""
    if estimate.value is None or not math.isfinite(limits[1] - limits[0]):
        return None

    def place(value: float) -> float:
        return round(120 * min(1.0, max(0.0, (value - limits[0]) / (limits[1] - limits[0]))), 2)

    low = place(estimate.value if estimate.low is None else estimate.low)
    high = place(estimate.value if estimate.high is None else estimate.high)
    return {"low": low, "width": round(max(high - low, 1.0), 2), "mark": min(place(estimate.value), 117.5)}


def _histogram(name: str, column: Sequence[float], limits: tuple[float, float]) -> dict[str, Any]:
    low = limits[0] if math.isfinite(limits[0]) else min(column)
    high = limits[1] if math.isfinite(limits[1]) else max(*column, low + 1)
    step = (high - low) / BINS
    counts = Counter(min(BINS - 1, max(0, int((value - low) / step))) for value in column)
    most = max(counts.values())
    width = 200 / BINS
    bins = [
        {
            "x": round(place * width + 0.5, 2),
            "y": round(60 - max(1.0, 56 * count / most), 2),
            "height": round(max(1.0, 56 * count / most), 2),
            "view": view(metric=name, least=f"{low + place * step:.6g}", most=f"{low + (place + 1) * step:.6g}"),
            "label": f"{low + place * step:.2f} to {low + (place + 1) * step:.2f}: {count:,}",
        }
        for place, count in sorted(counts.items())
    ]
    ends = {"low": f"{low:g}", "high": f"{high:g}"}
    return {"name": name, "n": len(column), "most": most, "bins": bins, "width": width - 1, **ends}
