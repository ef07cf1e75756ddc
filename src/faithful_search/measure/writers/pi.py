"""A Pi session (version 3), which the Hub shows: a header, then messages that name the one before them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from .turns import UNKNOWN, Document, Turn, turns

_USAGE = {"input": 0, "output": 0, "cacheRead": 0, "cacheWrite": 0, "totalTokens": 0}
_FREE = {"input": 0, "output": 0, "cacheRead": 0, "cacheWrite": 0, "total": 0}


def write(document: Document) -> list[dict[str, Any]]:
    """The session's lines; the scores are an entry of their own, which is no part of the conversation."""
    read, time = document.trajectory, document.now.isoformat(timespec="milliseconds").replace("+00:00", "Z")
    milliseconds = int(document.now.timestamp() * 1000)
    header = {"type": "session", "version": 3, "id": document.name, "timestamp": time, "cwd": "/"}
    entries: list[dict[str, Any]] = []
    if read.question is not None:
        entries.append({"type": "message", "message": {"role": "user", "content": _text(read.question)}})
    for turn in turns(read):
        entries += [{"type": "message", "message": message} for message in _messages(turn)]
    for entry in entries:
        entry["message"]["timestamp"] = milliseconds
    entries.append({"type": "custom", "customType": "faithful-search", "data": document.metadata})
    names = [f"{number:08x}" for number in range(1, len(entries) + 1)]
    return [
        {**header, "harness": "faithful-search"},
        *(
            {**entry, "id": name, "parentId": before, "timestamp": time}
            for entry, name, before in zip(entries, names, [None, *names], strict=False)
        ),
    ]


def _messages(turn: Turn) -> Iterator[dict[str, Any]]:
    content: list[dict[str, Any]] = [{"type": "thinking", "thinking": turn.think}] if turn.think else []
    content += _text(turn.answer) if turn.answer is not None else []
    content += [
        {"type": "toolCall", "id": call.id, "name": call.name, "arguments": call.arguments} for call in turn.calls
    ]
    made_by = {"api": UNKNOWN, "provider": UNKNOWN, "model": UNKNOWN, "usage": {**_USAGE, "cost": _FREE}}
    yield {"role": "assistant", "content": content, **made_by, "stopReason": "toolUse" if turn.calls else "stop"}
    for call in turn.calls:
        answered = {"toolCallId": call.id, "toolName": call.name, "isError": call.failed}
        yield {"role": "toolResult", **answered, "content": _text(call.response)}


def _text(text: str) -> list[dict[str, Any]]:
    return [{"type": "text", "text": text}]
