"""The agent trajectory interchange format (ATIF) 1.8: one document for each trajectory."""

from __future__ import annotations

from typing import Any

from .turns import UNKNOWN, Document, Turn, turns

VERSION = "ATIF-v1.8"


def write(document: Document) -> dict[str, Any]:
    """The question as the user's step, each turn as one of the agent's; the scores are `extra`."""
    read = document.trajectory
    steps: list[dict[str, Any]] = [] if read.question is None else [{"source": "user", "message": read.question}]
    steps += map(_step, turns(read))
    return {
        "schema_version": VERSION,
        "session_id": document.name,
        "agent": {"name": read.dialect or UNKNOWN, "version": UNKNOWN},
        "steps": [{"step_id": number, **step} for number, step in enumerate(steps, start=1)],
        "extra": document.metadata,
    }


def _step(turn: Turn) -> dict[str, Any]:
    step: dict[str, Any] = {"source": "agent", "message": turn.answer or ""}
    if turn.think:
        step["reasoning_content"] = turn.think
    if turn.calls:
        step["tool_calls"] = [
            {"tool_call_id": call.id, "function_name": call.name, "arguments": call.arguments} for call in turn.calls
        ]
        results = [{"source_call_id": call.id, "content": call.response} for call in turn.calls]
        step["observation"] = {"results": results}
    return step
