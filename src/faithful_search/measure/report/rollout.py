"""One trajectory to look at, step by step with its scores and their reasons: in an audit's page and in the demo."""

from collections.abc import Callable, Iterator, Mapping
from importlib.resources import files
from typing import TYPE_CHECKING, Any

import msgspec

from ...judges.grounding import pieces
from ...rewards import Score
from ...trajectory import ToolCall, Trajectory
from ..metrics import about

if TYPE_CHECKING:
    from jinja2 import Environment

LOW, HIGH = 0.5, 0.999
"""Scores below the first are marked as low, those above the second as high."""
OPEN, FOLDED, ROW = 1_500, 20_000, 200_000
"""Characters of a text that are shown, those that are folded behind them, and those of all texts of a row."""
MOST = 100
"""Steps of a row, and items of any kind at a step, that are shown."""
_LINE = 1_000


def environment(**filters: Callable[..., Any]) -> "Environment":
    """The templates of `page_files/`. They escape all but our own style and script: the rest is untrusted."""
    from jinja2 import Environment, FunctionLoader, StrictUndefined

    made = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, loader=FunctionLoader(page_file))
    made.filters |= {"line": _line, **filters}
    return made


def page_file(name: str) -> str:
    """The text of a file of `page_files/`."""
    return (files(__package__) / "page_files" / name).read_text("utf-8")


def fields(row: int | None, trajectory: Trajectory, scores: Mapping[str, Score], most: int = ROW) -> dict[str, Any]:
    """What `rollout.html` shows: `row` names it in a page of several, `scores` are those of the audit's line.

    `most` are the characters that all its texts may take.
    """
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

    said = {name: one for name, one in scores.items() if one.value is not None or one.parts.get("abstained")}
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
    cited, returned = {name for step in trajectory.steps for name in step.refs}, set(trajectory.evidence)
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
            "evidence": [(item, item.id in cited, text(item.text)) for item in step.evidence[:MOST]],
            "note": text(step.note),
            "marks": marks.get(number, [])[:MOST],
        }
        found = found or bool(step.evidence)
        known = "\n".join([known, *(f"{item.title}\n{item.text}" for item in step.evidence), step.note])


def _line(text: object) -> str:
    """What stands in a line, not too long for it."""
    shown = str(text)
    return shown if len(shown) <= _LINE else f"{shown[:_LINE]} … ({len(shown) - _LINE:,} characters more)"


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


def _marks(scores: Mapping[str, Score]) -> dict[int, list[dict[str, str]]]:
    """What was found at each step, from the scores' parts: judged pairs, and steps that count or were probed."""
    found: dict[int, list[dict[str, str]]] = {}

    def mark(step: int, metric: str, shown: str, level: str = "", claim: str = "", why: str = "") -> None:
        told = {"metric": metric, "shown": shown, "level": level, "claim": claim, "why": why}
        found.setdefault(step, []).append(told)

    for name, score in scores.items():
        claims = score.parts.get("texts", ())
        for place, pair in enumerate(score.parts.get("pairs", ())):
            label, p = pair.get("label"), pair.get("p")
            shown = "abstained" if label is None else "upheld" if label else "not upheld"
            sure = "" if p is None or label is None else f" ({p:.2f})"
            level = "" if label is None else "yes" if label else "no"
            claim = claims[place] if len(claims) > 1 else ""
            mark(pair.get("step", 0), name, shown + sure, level, claim, pair.get("why") or "")
        for item in score.parts.get("steps", ()):
            if isinstance(item, int):  # a step that counts against the metric, else one whose evidence was changed
                mark(item, name, "counts against it", "no")
            else:
                mark(item["step"], name, f"p(yes) {item['q']:.2f}, with changed evidence {item['q_perturbed']:.2f}")
    return found
