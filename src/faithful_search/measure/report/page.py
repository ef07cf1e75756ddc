"""An audit, or a comparison, as one page to look at: the figures at the top, then trajectories, step by step with their
scores and reasons (which the demo shows, too), or questions.

A page is a single file that loads nothing and needs no server. Everything in it that an agent or a tool wrote is
untrusted: it is escaped, and a content security policy lets nothing run but the page's own script.
"""

import base64
import hashlib
import math
import os
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import date
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import msgspec

from ... import __version__
from ...judges.grounding import pieces
from ...rewards import Score
from ...rewards.citation import CHECKS
from ...trajectory import ToolCall, Trajectory
from ..comparison import Comparison, Side, changes
from ..files import PathLike
from ..metrics import about, asks
from ..scores import read_scores
from ..stats import Estimate
from ..summary import Audit
from ..writing import write_whole
from . import extremes, sentences

if TYPE_CHECKING:
    from jinja2 import Environment

REPORT = "report.html"
BINS = 20
PAGE = 10_000_000
"""Characters of all texts on a page."""
LOW, HIGH = 0.5, 0.999
"""Scores below the first are marked as low, those above the second as high."""
OPEN, FOLDED, ROW = 1_500, 20_000, 200_000
"""Characters of a text that are shown, those that are folded behind them, and those of all texts of a row."""
MOST = 100
"""Steps of a row, and items of any kind at a step, that are shown."""
_LINE = 1_000


def write(
    path: PathLike, audit: Audit, scores: PathLike, rollouts: Iterable[tuple[int, Trajectory]]
) -> Path:
    """Write the page of an audit and its `scores.jsonl`; `rollouts` are those to show, with the number of their row.

    Raises `DataError` when the scores cannot be read, or the page cannot be written.
    """
    shown = dict(rollouts)
    values: dict[str, array[float]] = {}
    rows: dict[int, dict[str, Score]] = {}
    for line in read_scores(scores, audit.n + audit.errors):
        for name, cell in line.scores.items():
            if cell.value is not None:
                values.setdefault(name, array("d")).append(cell.value)
        if line.row in shown:
            rows[line.row] = {name: cell.whole for name, cell in line.scores.items()}
    limits = {
        **dict.fromkeys({*audit.rows, *values}, (0.0, 1.0)),
        "calls": (0.0, math.inf),
        **audit.bounds,
    }
    share = min(ROW, PAGE // max(1, len(shown)))
    best, worst = extremes(audit) or (None, None)
    # what a sentence speaks of, as the page's script filters and orders by it
    views = {
        "Best": {"metric": best, "order": "best"},
        "Worst": {"metric": worst, "order": "worst"},
    }
    return _render(
        path,
        "template.html",
        audit=audit,
        title=Path(str(audit.settings.get("source", "trajectories"))).name,
        told=[(sentence, views.get(sentence.partition(":")[0])) for sentence in sentences(audit)],
        bars={name: _scale(row, limits[name]) for name, row in audit.rows.items()},
        histograms=[_histogram(name, column, limits[name]) for name, column in values.items()],
        examples={issue.kind: issue.why for one in shown.values() for issue in one.all_issues()},
        lower=[name for name in audit.rows if about(name).direction < 0],
        rollouts=[
            fields(row, trajectory, rows.get(row, {}), share) for row, trajectory in shown.items()
        ],
    )


def write_comparison(path: PathLike, found: Comparison, sides: Sequence[Side]) -> Path:
    """Write the page. Questions link to their rows in the audits' own reports, where these lie."""
    reports = []  # of each audit its report's address, seen from the page
    for side in sides:
        report = Path(side.folder) / REPORT
        known = side.rows and report.is_file()
        reports.append(
            quote(Path(os.path.relpath(report, Path(path).parent)).as_posix()) if known else None
        )
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
    page = environment(asks=asks, digest=digest, file=_page_file).get_template(template)
    text = page.render(version=__version__, date=date.today().isoformat(), **values)
    return write_whole(
        Path(path), text.encode("utf-8", "replace")
    )  # half a surrogate pair has no form in UTF-8


def _scale(estimate: Estimate, limits: tuple[float, float]) -> list[float] | None:
    """Where the interval's ends and the mean stand between the limits, from 0 to 1."""
    if estimate.value is None or not math.isfinite(limits[1] - limits[0]):
        return None
    ends = [
        estimate.value if end is None else end
        for end in (estimate.low, estimate.high, estimate.value)
    ]
    return [min(1.0, max(0.0, (end - limits[0]) / (limits[1] - limits[0]))) for end in ends]


def _histogram(name: str, column: Sequence[float], limits: tuple[float, float]) -> dict[str, Any]:
    """The bars of `BINS` equal parts: the part's number, where it begins and ends, and how many values are in it."""
    low = limits[0] if math.isfinite(limits[0]) else min(column)
    high = limits[1] if math.isfinite(limits[1]) else max(*column, low + 1)
    step = (high - low) / BINS
    counts = Counter(min(BINS - 1, max(0, int((value - low) / step))) for value in column)
    bins = [
        (place, low + place * step, low + (place + 1) * step, count)
        for place, count in sorted(counts.items())
    ]
    return {
        "name": name,
        "n": len(column),
        "most": max(counts.values()),
        "bins": bins,
        "low": low,
        "high": high,
    }


@cache  # with the templates that it compiles
def environment(**filters: Callable[..., Any]) -> "Environment":
    """The templates of `page_files/`. They escape all but our own style and script: the rest is untrusted."""
    from jinja2 import Environment, FunctionLoader, StrictUndefined

    made = Environment(
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        loader=FunctionLoader(_page_file),
    )
    made.filters |= {"line": _line, **filters}
    return made


def _page_file(name: str) -> str:
    return (files(__package__) / "page_files" / name).read_text("utf-8")


def fields(
    row: int | None, trajectory: Trajectory, scores: Mapping[str, Score], most: int = ROW
) -> dict[str, Any]:
    """What `rollout.html` shows: `row` names it in a page of several, `most` are the characters of all its texts."""
    left = most

    def text(whole: str, known: str | None = None) -> dict[str, Any]:
        """A text in pieces, long ones folded, what is beyond its row's share counted; what `known` lacks is marked."""
        nonlocal left
        kept = whole[: min(OPEN + FOLDED, left)]
        left -= len(kept)
        shown, folded = (
            pieces(part, known) if known is not None else [(part, False)] if part else []
            for part in (kept[:OPEN], kept[OPEN:])
        )
        return {"shown": shown, "folded": folded, "left_out": len(whole) - len(kept)}

    said = {
        name: one
        for name, one in scores.items()
        if one.value is not None or one.parts.get("abstained")
    }
    issues = trajectory.all_issues()
    return {
        "row": row,
        "trajectory": trajectory,
        "question": text(trajectory.question or "(no question)"),
        "issues": len(issues),
        "kinds": sorted({issue.kind for issue in issues})[:MOST],
        "values": {name: score.value for name, score in scores.items()},
        "chips": [_chip(name, score) for name, score in said.items()],
        "reasons": _reasons(said),
        "left_out": _reasons({name: score for name, score in scores.items() if name not in said}),
        "steps": list(_steps(trajectory, text, _marks(scores))),
        "most": MOST,
    }


def _steps(
    trajectory: Trajectory, text: Callable[..., Any], marks: Mapping[int, list[Any]]
) -> Iterator[dict[str, Any]]:
    """What is shown of each step. A word is marked that neither the question nor the evidence until then holds."""
    cited, returned = (
        {name for step in trajectory.steps for name in step.refs},
        set(trajectory.evidence),
    )
    known, found = trajectory.question or "", False
    for number, step in enumerate(trajectory.steps[:MOST], start=1):
        against = known if found else None  # before the first evidence every word would be marked
        yield {
            "number": number,
            "step": step,
            # An id that was never returned is made up, and shown so
            "refs": [(id[:_LINE], id in returned) for id in step.refs[:MOST]],
            "think": None if step.think is None else text(step.think.strip(), against),
            "call": text(arguments_of(step.call)) if step.call and step.call.name else None,
            "answer": None if step.answer is None else text(step.answer, against),
            "evidence": [
                (item, item.id in cited, text(item.text)) for item in step.evidence[:MOST]
            ],
            "note": text(step.note),
            "marks": marks.get(number, [])[:MOST],
        }
        found = found or bool(step.evidence)
        known = "\n".join(
            [known, *(f"{item.title}\n{item.text}" for item in step.evidence), step.note]
        )


def _line(text: object) -> str:
    shown = str(text)
    return (
        shown
        if len(shown) <= _LINE
        else f"{shown[:_LINE]} … ({len(shown) - _LINE:,} characters more)"
    )


def _chip(name: str, score: Score) -> dict[str, str]:
    if score.value is None:
        return {"name": name, "shown": "abstained", "level": ""}
    good = about(name).direction
    quality = 1 - score.value if good < 0 else score.value
    level = "" if not good else "low" if quality < LOW else "high" if quality > HIGH else ""
    return {"name": name, "shown": f"{score.value:.2f}", "level": level}


def _reasons(scores: Mapping[str, Score]) -> dict[str, list[str]]:
    """Each reason once, with the metrics that gave it."""
    found: dict[str, list[str]] = {}
    for name, score in scores.items():
        if score.why:
            found.setdefault(score.why, []).append(name)
    return found


def arguments_of(call: ToolCall) -> str:
    """A call's arguments to read: the query where there is nothing else."""
    if set(call.arguments) == {"query"} and isinstance(call.arguments["query"], str):
        return call.arguments["query"]
    return msgspec.json.encode(call.arguments).decode() if call.arguments else call.raw


def _marks(scores: Mapping[str, Score]) -> dict[int, list[dict[str, Any]]]:
    """What was found at each step, from the scores' parts: judged pairs, verdicts of the agent that were checked, and
    steps that count or were probed."""
    found: dict[int, list[dict[str, Any]]] = {}

    def mark(
        step: int, metric: str, shown: str, level: str = "", p: float | None = None, **more: str
    ) -> None:
        told = {
            "metric": metric,
            "shown": shown,
            "level": level,
            "p": p,
            "claim": "",
            "why": "",
            **more,
        }
        found.setdefault(step, []).append(told)

    for name, score in scores.items():
        claims = score.parts.get("texts", ())
        for place, pair in enumerate(score.parts.get("pairs", ())):
            label, p = pair.get("label"), pair.get("p")
            shown = "abstained" if label is None else "upheld" if label else "not upheld"
            sure = "" if p is None or label is None else f" ({p:.2f})"
            level = "" if label is None else "yes" if label else "no"
            claim = claims[place] if len(claims) > 1 else ""
            known = None if label is None else p
            mark(
                pair.get("step", 0),
                name,
                shown + sure,
                level,
                known,
                claim=claim,
                why=pair.get("why") or "",
            )
        checks = zip(*(score.parts.get(check, ()) for check in CHECKS), strict=True)
        for number, passed in enumerate(checks, start=2):  # no verdict is due at the first step
            failed = ", ".join(check for check, ok in zip(CHECKS, passed, strict=True) if not ok)
            mark(
                number,
                name,
                f"not {failed}" if failed else "holds",
                "no" if failed else "yes",
                sum(passed) / len(passed),
            )
        for item in score.parts.get("steps", ()):
            if isinstance(
                item, int
            ):  # a step that counts against the metric, else one whose evidence was changed
                mark(item, name, "counts against it", "no")
            else:
                mark(
                    item["step"],
                    name,
                    f"p(yes) {item['q']:.2f}, with changed evidence {item['q_perturbed']:.2f}",
                )
    return found
