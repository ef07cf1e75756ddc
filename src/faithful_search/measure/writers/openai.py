"""OpenAI's chat messages, with `reasoning_content` for the thought as servers of open models have it."""

from __future__ import annotations

from typing import Any

import msgspec

from .turns import Call, Document, turns


def write(document: Document) -> dict[str, Any]:
    """`messages` and `metadata`, and what an audit looks for beside them: id, question, answers."""
    read = document.trajectory
    messages: list[dict[str, Any]] = [] if read.question is None else [{"role": "user", "content": read.question}]
    for turn in turns(read):
        message: dict[str, Any] = {"role": "assistant", "content": turn.answer or ""}
        if turn.think:
            message["reasoning_content"] = turn.think
        if turn.calls:
            message["tool_calls"] = list(map(_call, turn.calls))
        messages.append(message)
        messages += [{"role": "tool", "tool_call_id": call.id, "content": call.response} for call in turn.calls]
    row = {"id": document.name, "question": read.question, "answers": list(read.answers), "messages": messages}
    return {**row, "metadata": document.metadata}


def _call(call: Call) -> dict[str, Any]:
    function = {"name": call.name, "arguments": msgspec.json.encode(call.arguments).decode()}
    return {"id": call.id, "type": "function", "function": function}
