"""Trajectories as others write them down: a document for each row, with its scores as metadata."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, NamedTuple

import msgspec

from ..trajectory import Step, Trajectory

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
        return {name: value for name, value in found.items() if value not in (None, "", [], {})}  # 0 is kept


def atif(document: Document) -> dict[str, Any]:
    """The agent trajectory interchange format (ATIF) 1.8: the question is the user's step, each turn the agent's."""
    read = document.trajectory
    steps: list[dict[str, Any]] = [] if read.question is None else [{"source": "user", "message": read.question}]
    for think, calls, answer in _turns(read):
        step: dict[str, Any] = {"source": "agent", "message": answer or ""}
        if think:
            step["reasoning_content"] = think
        if calls:
            step["tool_calls"] = [
                {"tool_call_id": call.id, "function_name": call.name, "arguments": call.arguments} for call in calls
            ]
            results = [{"source_call_id": call.id, "content": call.response} for call in calls]
            step["observation"] = {"results": results}
        steps.append(step)
    return {
        "schema_version": "ATIF-v1.8",
        "session_id": document.name,
        "agent": {"name": read.dialect or UNKNOWN, "version": UNKNOWN},
        "steps": [{"step_id": number, **step} for number, step in enumerate(steps, start=1)],
        "extra": document.metadata,
    }


def openai(document: Document) -> dict[str, Any]:
    """OpenAI's chat messages, beside them what an audit looks for: id, question, answers."""
    read = document.trajectory
    messages: list[dict[str, Any]] = [] if read.question is None else [{"role": "user", "content": read.question}]
    for think, calls, answer in _turns(read):
        message: dict[str, Any] = {"role": "assistant", "content": answer or ""}
        if think:
            message["reasoning_content"] = think  # where servers of open models put it
        if calls:
            message["tool_calls"] = [
                {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": _json(call.arguments)}}
                for call in calls
            ]
        messages.append(message)
        messages += [{"role": "tool", "tool_call_id": call.id, "content": call.response} for call in calls]
    row = {"id": document.name, "question": read.question, "answers": list(read.answers), "messages": messages}
    return {**row, "metadata": document.metadata}


def pi(document: Document) -> list[dict[str, Any]]:
    """A Pi session (version 3), which the Hub shows: a header, then entries that name the one before them.

    The scores are an entry of their own, outside the conversation.
    """
    read, time = document.trajectory, document.now.isoformat(timespec="milliseconds").replace("+00:00", "Z")
    # Pi requires a provider and a cost for each message, which a trajectory does not have
    counts = {"input": 0, "output": 0, "cacheRead": 0, "cacheWrite": 0}
    usage = {**counts, "totalTokens": 0, "cost": {**counts, "total": 0}}
    made_by = {"api": UNKNOWN, "provider": UNKNOWN, "model": UNKNOWN, "usage": usage}
    messages: list[dict[str, Any]] = []
    if read.question is not None:
        messages.append({"role": "user", "content": _text(read.question)})
    for think, calls, answer in _turns(read):
        content: list[dict[str, Any]] = [{"type": "thinking", "thinking": think}] if think else []
        content += _text(answer) if answer is not None else []
        content += [
            {"type": "toolCall", "id": call.id, "name": call.name, "arguments": call.arguments} for call in calls
        ]
        reason = "toolUse" if calls else "stop"
        messages.append({"role": "assistant", "content": content, **made_by, "stopReason": reason})
        for call in calls:
            answered = {"toolCallId": call.id, "toolName": call.name, "isError": call.failed}
            messages.append({"role": "toolResult", **answered, "content": _text(call.response)})
    milliseconds = int(document.now.timestamp() * 1000)
    entries = [{"type": "message", "message": {**message, "timestamp": milliseconds}} for message in messages]
    entries.append({"type": "custom", "customType": "faithful-search", "data": document.metadata})
    header = {"type": "session", "version": 3, "id": document.name, "timestamp": time, "cwd": "/"}
    lines, before = [{**header, "harness": "faithful-search"}], None
    for number, entry in enumerate(entries, start=1):
        lines.append({**entry, "id": f"{number:08x}", "parentId": before, "timestamp": time})
        before = f"{number:08x}"
    return lines


def _text(text: str) -> list[dict[str, Any]]:
    return [{"type": "text", "text": text}]


def trajectory(document: Document) -> dict[str, Any]:
    """Our own trajectory, as `fs.read_jsonl` reads it; scores and reasons are in its `meta`, as in an evaluation's."""
    read = document.trajectory
    given = {"scores": document.scores, "reasons": document.reasons} if document.scores else {}
    made: dict[str, Any] = msgspec.to_builtins(msgspec.structs.replace(read, meta={**read.meta, **given}))
    return made


WRITERS: dict[str, Callable[[Document], Any]] = {"atif": atif, "openai": openai, "pi": pi, "trajectory": trajectory}
"""By format, what makes of a row a value to be written as JSON; a list is one value a line."""


class _Call(NamedTuple):
    id: str
    name: str
    arguments: dict[str, Any]
    response: str
    failed: bool


def _turns(trajectory: Trajectory) -> Iterator[tuple[str, list[_Call], str | None]]:
    """The thought, calls and answer of each turn, in order; a thought without a call or an answer is one, too."""
    count = 0
    for steps in trajectory.turns:
        calls = []
        for step in steps:
            if step.call is not None:
                count += 1
                # What could not be parsed goes along as it was written
                arguments = step.call.arguments or ({"raw": step.call.raw} if step.call.raw.strip() else {})
                failed = not step.evidence and bool(step.note)
                calls.append(_Call(f"call_{count}", step.call.name or UNKNOWN, arguments, _response(step), failed))
        answer = next((step.answer for step in steps if step.answer is not None), None)
        yield (steps[0].think or "").strip(), calls, answer


def _response(step: Step) -> str:
    """JSON of the evidence, each with its id; the note as it is."""
    if not step.evidence:
        return step.note
    items = [{"id": item.id, "title": item.title, "url": item.url, "text": item.text} for item in step.evidence]
    kept = [{name: text for name, text in item.items() if text or name == "text"} for item in items]
    return _json(kept)


def _json(value: Any) -> str:
    return msgspec.json.encode(value).decode()
