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
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import date
from importlib.resources import files
from pathlib import Path
from typing import Any

import msgspec

from ... import __version__
from ...trajectory import Issue, Step, Trajectory
from ..metrics import LOWER_IS_BETTER
from ..scores import read_scores
from ..stats import Estimate
from ..summary import Audit
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
    limits = {"calls": (0.0, math.inf), **audit.bounds}
    shown = list(rollouts)
    values, rows = _read(scores, {row for row, _ in shown})
    rollouts_shown = [_rollout(row, trajectory, rows.get(row, _Row(row))) for row, trajectory in shown]
    page = _render(_view(audit, limits, values, rollouts_shown, _examples(trajectory for _, trajectory in shown)))
    partial = path.with_name(f".{path.name}.partial")
    try:
        partial.write_text(page, encoding="utf-8", errors="replace")
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)
    return path


def _render(view: Mapping[str, Any]) -> str:
    from jinja2 import Environment, StrictUndefined

    folder = files(__package__) / "page_files"
    template, style, script = (
        (folder / name).read_text("utf-8") for name in ("template.html", "style.css", "script.js")
    )
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True)
    own = {"style": style, "script": script, "style_hash": _hash(style), "script_hash": _hash(script)}
    return environment.from_string(template).render({**view, **own})


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


def _view(
    audit: Audit,
    limits: Mapping[str, tuple[float, float]],
    values: Mapping[str, Sequence[float]],
    rollouts: list[dict[str, Any]],
    examples: Mapping[str, str],
) -> dict[str, Any]:
    settings = audit.settings
    return {
        "title": Path(str(settings.get("source", "trajectories"))).name,
        "version": __version__,
        "date": date.today().isoformat(),
        "judge": settings.get("judge") or "none, words are compared",
        "counts": {"scored": audit.n, "errors": audit.errors},
        "dialects": list(audit.dialects.items()),
        "metrics": [_metric(name, row, limits.get(name, (0.0, 1.0))) for name, row in audit.rows.items()],
        "by_dialect": list(audit.by_dialect),
        "divided": audit.divided(),
        "histograms": [_histogram(name, column, limits.get(name, (0.0, 1.0))) for name, column in values.items()],
        "blocks": _blocks(audit),
        "issues": [(kind, count, examples.get(kind, "")) for kind, count in audit.issues.items()],
        "clean": f"{audit.clean:,} of {audit.n:,} trajectories were read without Issues",
        "primary": audit.primary,
        "errors": [(item.row, item.error) for item in audit.unread],
        "chosen": f"the lowest by {audit.primary} and others spread over the file"
        if audit.primary
        else "spread evenly",
        "rollouts": rollouts,
        "rollout_dialects": sorted({rollout["dialect"] for rollout in rollouts}),
        "settings": [(name, _plain(value)) for name, value in settings.items()],
    }


def _plain(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {item}" for name, item in value.items()) or EMPTY
    if isinstance(value, (list, tuple)):
        return ", ".join(map(str, value)) or EMPTY
    return EMPTY if value is None else str(value)


def _metric(name: str, estimate: Estimate, limits: tuple[float, float]) -> dict[str, Any]:
    left_out = [f"{estimate.not_applicable:,} n/a"] if estimate.not_applicable else []
    left_out += [f"{estimate.abstained:,} abstained"] if estimate.abstained else []
    known = estimate.low is not None and estimate.high is not None
    return {
        "name": name,
        "asks": asks(name),
        "value": EMPTY if estimate.value is None else f"{estimate.value:.3f}",
        "interval": f"[{estimate.low:.3f}, {estimate.high:.3f}]" if known else "",
        "bar": _bar(estimate, limits),
        "n": f"{estimate.n:,}",
        "left_out": ", ".join(left_out),
    }


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


def _blocks(audit: Audit) -> list[dict[str, Any]]:
    calls = sum(audit.tools.counts.values())
    entropy = audit.tools.entropy
    return [
        {
            "title": "Calls by tool",
            "rows": [(name, count, _share(count, calls)) for name, count in list(audit.tools.counts.items())[:12]],
            "none": "No tool was called.",
            "note": "" if entropy.value is None else f"normalised entropy {entropy}",
        },
        {
            "title": "How episodes ended",
            "rows": [(name, count, _share(count, audit.n)) for name, count in audit.stop_reasons.items()],
            "none": "Nothing was read.",
            "note": "",
        },
    ]


def _examples(trajectories: Iterable[Trajectory]) -> dict[str, str]:
    """What the first Issue of each kind says: it explains the kind."""
    found: dict[str, str] = {}
    for trajectory in trajectories:
        for issue in trajectory.all_issues():
            found.setdefault(issue.kind, issue.why)
    return found


def _share(count: int, total: int) -> str:
    return f"{count / total:.1%}" if total else ""


def _rollout(row: int, trajectory: Trajectory, scores: _Row) -> dict[str, Any]:
    cited = {name for step in trajectory.steps for name in step.refs}
    marks = _marks(scores)
    steps = enumerate(trajectory.steps, start=1)
    return {
        "row": row,
        "question": trajectory.question,
        "answer": trajectory.answer,
        "answers": " | ".join(trajectory.answers),
        "dialect": trajectory.dialect or "unknown",
        "issues": trajectory.all_issues(),
        "own_issues": [_issue(issue) for issue in trajectory.issues],
        "measures": {name: score.value for name, score in scores.scores.items()},
        "scores": [_chip(name, score) for name, score in scores.scores.items()],
        "reasons": _reasons(scores, lambda score: score.value is not None or score.parts.get("abstained")),
        "left_out": _reasons(scores, lambda score: score.value is None and not score.parts.get("abstained")),
        "steps": [_step(number, step, cited, marks.get(number, [])) for number, step in steps],
    }


def _chip(name: str, score: _Score) -> dict[str, str]:
    if score.value is None:
        return {"name": name, "shown": "abstained" if score.parts.get("abstained") else "n/a", "level": ""}
    quality = 1 - score.value if name in LOWER_IS_BETTER else score.value
    level = "low" if quality < LOW else "high" if quality > HIGH else ""
    return {"name": name, "shown": f"{score.value:.2f}", "level": level}


def _reasons(scores: _Row, kept: Callable[[_Score], Any]) -> list[tuple[list[str], str]]:
    """Each reason of the kept scores once, with the metrics that gave it."""
    found: dict[str, list[str]] = {}
    for name, score in scores.scores.items():
        if score.why and kept(score):
            found.setdefault(score.why, []).append(name)
    return [(names, why) for why, names in found.items()]


def _step(number: int, step: Step, cited: set[str], marks: list[dict[str, str]]) -> dict[str, Any]:
    verdict = "" if step.helpful is None else f"helpful, cites {', '.join(step.refs) or 'nothing'}"
    evidence = [
        {
            "id": item.id,
            "title": item.title,
            "text": item.text,
            "url": item.url,
            "cited": item.id in cited,
        }
        for item in step.evidence
    ]
    return {
        "number": number,
        "same_turn": step.same_turn,
        "helpful": step.helpful,
        "verdict": "not helpful" if step.helpful is False else verdict,
        "verified": step.verified,
        "think": None if step.think is None else step.think.strip(),
        "call": step.call.name if step.call else "",
        "arguments": _arguments(step),
        "answer": step.answer,
        "evidence": evidence,
        "note": step.note,
        "marks": marks,
        "issues": [_issue(issue) for issue in step.issues],
    }


def _arguments(step: Step) -> str:
    if step.call is None:
        return ""
    if set(step.call.arguments) == {"query"} and isinstance(step.call.arguments["query"], str):
        return step.call.arguments["query"]
    return msgspec.json.encode(step.call.arguments).decode() if step.call.arguments else step.call.raw


def _issue(issue: Issue) -> str:
    return f"{issue.kind}: {issue.why}"


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
