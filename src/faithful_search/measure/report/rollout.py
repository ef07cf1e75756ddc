"""One trajectory to look at, step by step with its scores and their reasons: in an audit's page and in the demo."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from importlib.resources import files
from typing import TYPE_CHECKING, Any

import msgspec

from ...trajectory import ToolCall, Trajectory
from ..metrics import LOWER_IS_BETTER

if TYPE_CHECKING:
    from jinja2 import Environment

LOW, HIGH = 0.5, 0.999
"""Scores below the first are marked as low, those above the second as high."""


class Marked(msgspec.Struct, frozen=True):
    """One score: the value as a measurement, the reason, and what it consists of."""

    value: float | None = None
    why: str = ""
    parts: dict[str, Any] = {}


class Scored(msgspec.Struct, frozen=True):
    """What is shown of one line of scores.jsonl."""

    row: int
    scores: dict[str, Marked] = {}


def rollout_html(trajectory: Trajectory, scores: Mapping[str, Marked], opened: bool = True) -> str:
    """One trajectory as HTML to be put into a page that has `page_file("rollout.css")`.

    Whatever the agent, its tools or a judge wrote is text in it, and nothing else.
    """
    shown = fields(None, trajectory, scores)
    return environment().get_template("rollout.html").render(rollout=shown, opened=opened)


def environment(**filters: Callable[..., Any]) -> Environment:
    """The templates of `page_files/`. They escape all but our own style and script: the rest is untrusted."""
    from jinja2 import Environment, FunctionLoader, StrictUndefined

    made = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, loader=FunctionLoader(page_file))
    made.filters |= {"arguments": _arguments, **filters}
    return made


def page_file(name: str) -> str:
    """The text of a file of `page_files/`."""
    return (files(__package__) / "page_files" / name).read_text("utf-8")


def fields(row: int | None, trajectory: Trajectory, scores: Mapping[str, Marked]) -> dict[str, Any]:
    """What `rollout.html` shows: `row` names it in a page of several, `scores` are those of the audit's line."""
    abstained = {name for name, score in scores.items() if score.parts.get("abstained")}
    said = {name: score for name, score in scores.items() if score.value is not None or name in abstained}
    return {
        "row": row,
        "trajectory": trajectory,
        "cited": {name for step in trajectory.steps for name in step.refs},
        "known": set(trajectory.evidence),
        "values": {name: score.value for name, score in scores.items()},
        "chips": [_chip(name, score) for name, score in scores.items()],
        "reasons": _reasons(said),
        "left_out": _reasons({name: score for name, score in scores.items() if name not in said}),
        "marks": _marks(scores),
    }


def _chip(name: str, score: Marked) -> dict[str, str]:
    if score.value is None:
        return {"name": name, "shown": "abstained" if score.parts.get("abstained") else "n/a", "level": ""}
    quality = 1 - score.value if name in LOWER_IS_BETTER else score.value
    level = "low" if quality < LOW else "high" if quality > HIGH else ""
    return {"name": name, "shown": f"{score.value:.2f}", "level": level}


def _reasons(scores: Mapping[str, Marked]) -> dict[str, list[str]]:
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


def _marks(scores: Mapping[str, Marked]) -> dict[int, list[dict[str, str]]]:
    """What was found at each step, from the scores' parts: judged pairs, and steps that count or were probed."""
    found: dict[int, list[dict[str, str]]] = {}
    for name, score in scores.items():
        for step, mark in (*_verdicts(score), *_named(score)):
            found.setdefault(step, []).append({"metric": name, **mark})
    return found


def _verdicts(score: Marked) -> Iterator[tuple[int, dict[str, str]]]:
    claims = score.parts.get("texts", ())
    for place, pair in enumerate(score.parts.get("pairs", ())):
        label, p = pair.get("label"), pair.get("p")
        shown = "abstained" if label is None else f"{'upheld' if label else 'not upheld'} ({p:.2f})"
        level = "" if label is None else "yes" if label else "no"
        claim = claims[place] if len(claims) > 1 else ""
        yield pair.get("step", 0), {"shown": shown, "level": level, "claim": claim, "why": pair.get("why") or ""}


def _named(score: Marked) -> Iterator[tuple[int, dict[str, str]]]:
    """Steps that a metric names: as a number where they count against it, with p(yes) where it probed them."""
    for item in score.parts.get("steps", ()):
        if isinstance(item, int):
            yield item, {"shown": "counts against it", "level": "no", "claim": "", "why": ""}
        else:
            shown = f"p(yes) {item['q']:.2f}, with changed evidence {item['q_perturbed']:.2f}"
            yield item["step"], {"shown": shown, "level": "", "claim": "", "why": ""}
