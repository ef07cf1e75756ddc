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
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import date
from importlib.resources import files
from pathlib import Path
from typing import Any

import msgspec

from ... import __version__
from ...trajectory import ToolCall, Trajectory
from ..metrics import LOWER_IS_BETTER
from ..scores import read_scores
from ..stats import Estimate
from ..summary import Audit
from ..writing import replacing
from .asks import asks
from .tables import EMPTY

BINS = 20
LOW, HIGH = 0.5, 0.999
"""Scores below the first are marked as low, those above the second as high."""


class _Score(msgspec.Struct, frozen=True):
    value: float | None = None
    why: str = ""
    parts: dict[str, Any] = {}


class _Row(msgspec.Struct, frozen=True):
    """What the page needs of one line of scores.jsonl."""

    row: int
    scores: dict[str, _Score] = {}


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
    rows: Mapping[int, _Row],
    shown: Sequence[tuple[int, Trajectory]],
) -> str:
    from jinja2 import Environment, StrictUndefined

    folder = files(__package__) / "page_files"
    template, style, script = (
        (folder / name).read_text("utf-8") for name in ("template.html", "style.css", "script.js")
    )
    # Everything that an agent or tool wrote is untrusted, so the template escapes all but our own style and script
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True)
    environment.filters |= {"plain": _plain, "arguments": _arguments}
    limits = {"calls": (0.0, math.inf), **audit.bounds}
    examples: dict[str, str] = {}  # the first Issue of each kind explains the kind
    for _, trajectory in shown:
        for issue in trajectory.all_issues():
            examples.setdefault(issue.kind, issue.why)
    return environment.from_string(template).render(
        audit=audit,
        style=style,
        script=script,
        style_hash=_hash(style),
        script_hash=_hash(script),
        title=Path(str(audit.settings.get("source", "trajectories"))).name,
        version=__version__,
        date=date.today().isoformat(),
        metrics=[(name, asks(name), row, _bar(row, limits.get(name, (0.0, 1.0)))) for name, row in audit.rows.items()],
        histograms=[_histogram(name, column, limits.get(name, (0.0, 1.0))) for name, column in values.items()],
        examples=examples,
        rollouts=[_rollout(row, trajectory, rows.get(row, _Row(row))) for row, trajectory in shown],
    )


def _hash(source: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(source.encode()).digest()).decode()}"


def _read(path: str | os.PathLike[str], wanted: set[int]) -> tuple[dict[str, list[float]], dict[int, _Row]]:
    """The values of each metric over all rows, and the whole scores of the wanted ones."""
    values: dict[str, list[float]] = {}
    for line in read_scores(path):
        for name, cell in line.scores.items():
            if cell.value is not None:
                values.setdefault(name, []).append(cell.value)
    decode = msgspec.json.Decoder(_Row).decode
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
            "label": f"{low + place * step:.2f} to {low + (place + 1) * step:.2f}: {count:,}",
        }
        for place, count in sorted(counts.items())
    ]
    ends = {"low": f"{low:g}", "high": f"{high:g}"}
    return {"name": name, "n": len(column), "most": most, "bins": bins, "width": width - 1, **ends}


def _rollout(row: int, trajectory: Trajectory, scores: _Row) -> dict[str, Any]:
    abstained = {name for name, score in scores.scores.items() if score.parts.get("abstained")}
    said = {name: score for name, score in scores.scores.items() if score.value is not None or name in abstained}
    return {
        "row": row,
        "trajectory": trajectory,
        "cited": {name for step in trajectory.steps for name in step.refs},
        "values": {name: score.value for name, score in scores.scores.items()},
        "chips": [_chip(name, score) for name, score in scores.scores.items()],
        "reasons": _reasons(said),
        "left_out": _reasons({name: score for name, score in scores.scores.items() if name not in said}),
        "marks": _marks(scores),
    }


def _chip(name: str, score: _Score) -> dict[str, str]:
    if score.value is None:
        return {"name": name, "shown": "abstained" if score.parts.get("abstained") else "n/a", "level": ""}
    quality = 1 - score.value if name in LOWER_IS_BETTER else score.value
    level = "low" if quality < LOW else "high" if quality > HIGH else ""
    return {"name": name, "shown": f"{score.value:.2f}", "level": level}


def _reasons(scores: Mapping[str, _Score]) -> dict[str, list[str]]:
    """Each reason once, with the metrics that gave it."""
    found: dict[str, list[str]] = {}
    for name, score in scores.items():
        if score.why:
            found.setdefault(score.why, []).append(name)
    return found


def _arguments(call: ToolCall) -> str:
    if set(call.arguments) == {"query"} and isinstance(call.arguments["query"], str):
        return call.arguments["query"]
    return msgspec.json.encode(call.arguments).decode() if call.arguments else call.raw


def _marks(scores: _Row) -> dict[int, list[dict[str, str]]]:
    """What was found at each step, from the scores' parts: judged pairs, and steps that count or were probed."""
    found: dict[int, list[dict[str, str]]] = {}
    for name, score in scores.scores.items():
        for step, mark in (*_verdicts(score), *_named(score)):
            found.setdefault(step, []).append({"metric": name, **mark})
    return found


def _verdicts(score: _Score) -> Iterator[tuple[int, dict[str, str]]]:
    claims = score.parts.get("texts", ())
    for place, pair in enumerate(score.parts.get("pairs", ())):
        label, p = pair.get("label"), pair.get("p")
        shown = "abstained" if label is None else f"{'upheld' if label else 'not upheld'} ({p:.2f})"
        level = "" if label is None else "yes" if label else "no"
        claim = claims[place] if len(claims) > 1 else ""
        yield pair.get("step", 0), {"shown": shown, "level": level, "claim": claim, "why": pair.get("why") or ""}


def _named(score: _Score) -> Iterator[tuple[int, dict[str, str]]]:
    """Steps that a metric names: as a number where they count against it, with p(yes) where it probed them."""
    for item in score.parts.get("steps", ()):
        if isinstance(item, int):
            yield item, {"shown": "counts against it", "level": "no", "claim": "", "why": ""}
        else:
            shown = f"p(yes) {item['q']:.2f}, with changed evidence {item['q_perturbed']:.2f}"
            yield item["step"], {"shown": shown, "level": "", "claim": "", "why": ""}
