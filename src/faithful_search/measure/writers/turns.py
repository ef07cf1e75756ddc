"""What every format needs of a trajectory: its turns, the calls of each under an id, and what stands beside them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import msgspec

from ...trajectory import Step, Trajectory

UNKNOWN = "unknown"


@dataclass(frozen=True)
class Document:
    """One row: its trajectory, its scores and their reasons, and when it was converted, where a format wants a time."""

    row: int
    trajectory: Trajectory
    now: datetime
    scores: dict[str, float | None] = field(default_factory=dict)
    reasons: dict[str, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The row's own id, else its number."""
        return self.trajectory.id or f"row-{self.row}"

    @property
    def metadata(self) -> dict[str, Any]:
        """What the formats have no place of their own for."""
        read = self.trajectory
        verdicts = {
            str(number): {"helpful": step.helpful, "refs": list(step.refs)}
            for number, step in enumerate(read.steps, start=1)
            if step.helpful is not None
        }
        found = {
            **{"id": read.id, "row": self.row, "question": read.question, "answer": read.answer},
            **{"gold_answers": list(read.answers), "read_as": read.dialect, "stop_reason": read.stop_reason},
            "verdicts": verdicts,
            "issues": [{"kind": issue.kind, "why": issue.why} for issue in read.all_issues()],
            "scores": self.scores,
            "reasons": self.reasons,
        }
        return {name: value for name, value in found.items() if value not in (None, "", [], {})}


@dataclass(frozen=True)
class Call:
    """A call of a turn: an id that no other has, what was called, and the response as text."""

    id: str
    name: str
    arguments: dict[str, Any]
    response: str
    failed: bool


@dataclass(frozen=True)
class Turn:
    """One turn: the thought, its calls, and the answer."""

    think: str
    calls: list[Call]
    answer: str | None


def turns(trajectory: Trajectory) -> Iterator[Turn]:
    """The turns in order. A thought without a call or an answer is one, too."""
    count = 0
    for steps in trajectory.turns:
        calls = []
        for step in steps:
            if step.call is not None:
                count += 1
                arguments = step.call.arguments or ({"raw": step.call.raw} if step.call.raw.strip() else {})
                failed = not step.evidence and bool(step.note)
                calls.append(Call(f"call_{count}", step.call.name or UNKNOWN, arguments, _response(step), failed))
        answer = next((step.answer for step in steps if step.answer is not None), None)
        yield Turn((steps[0].think or "").strip(), calls, answer)


def _response(step: Step) -> str:
    """JSON of the evidence, each with its id; the note as it is."""
    if not step.evidence:
        return step.note
    items = [{"id": item.id, "title": item.title, "url": item.url, "text": item.text} for item in step.evidence]
    kept = [{name: text for name, text in item.items() if text or name == "text"} for item in items]
    return msgspec.json.encode(kept).decode()
