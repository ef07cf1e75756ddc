"""Answers of chat APIs as they were streamed: pieces, one an event, put together to the answer.

| API | an event |
|---|---|
| OpenAI's chat completions and what copies them | `choices[0].delta` |
| Anthropic's Messages | `message_start`, `content_block_start`, `content_block_delta` |
| OpenAI's Responses | `response.completed`, with the whole response |
| Gemini | a response whose candidate is a piece |

They stand in a list, in a row beside the request, or one a line of a file.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from .base import Chat, Format, Messages, mapping, mappings, reread

_CHUNK = "chat.completion.chunk"
_WHOLE = ("response.completed", "response.incomplete", "response.failed")
_EVENTS = frozenset(
    (
        *("message_start", "content_block_start", "content_block_delta", "content_block_stop"),
        *("message_delta", "message_stop", "ping"),
    )
)
_LISTS = ("response", "output", "chunks", "events", "stream", "completion")
_TEXTS = ("content", "reasoning_content", "reasoning")
_DELTAS = {"text_delta": "text", "thinking_delta": "thinking", "input_json_delta": "partial_json"}


def group(value: Any) -> str | None:
    """The answer that an event is a part of."""
    event = mapping(value)
    if event.get("object") == _CHUNK:
        return str(event.get("id") or "")
    kind = event.get("type")
    begins = kind == "message_start" or kind == "response.created"
    return "" if begins else None


def read(value: Any) -> Chat | None:
    """A list of events, or a row that holds one beside the request."""
    if isinstance(value, list | tuple):
        return _answered([], mappings(value, pure=True))
    fields = mapping(value)
    if (lines := mappings(fields, "lines")) and group(lines[0]) is not None:
        return _answered([], lines)
    for name in _LISTS:
        events = mappings(fields, name, pure=True)
        if _are_events(events):
            return _answered(_asked(fields), events)
    return None


def _asked(row: Mapping[str, Any]) -> Messages:
    """The messages of the request beside the events."""
    for request in (mapping(row, "request"), mapping(row, "input"), mapping(row, "body"), row):
        chat = reread(request.get("messages")) or reread(request.get("contents"))
        if chat is not None:
            return list(chat.messages)
    chat = reread(row.get("input"))
    return [] if chat is None else list(chat.messages)


def _are_events(events: Sequence[Mapping[str, Any]]) -> bool:
    first = events[0] if events else {}
    kind = first.get("type")
    typed = isinstance(kind, str) and (kind in _EVENTS or kind.startswith("response."))
    return typed or _delta(first) is not None or (len(events) > 1 and bool(_candidate(first)))


def _answered(asked: Messages, events: Sequence[Mapping[str, Any]]) -> Chat | None:
    if not _are_events(events):
        return None
    for event in events:
        if event.get("type") in _WHOLE:
            chat = reread(mapping(event, "response"))
            return None if chat is None else Chat([*asked, *chat.messages], id=chat.id)
    deltas = [delta for delta in map(_delta, events) if delta is not None]
    message: dict[str, Any] | None
    if deltas:
        message = _of_deltas(deltas)
    elif any(event.get("type") in _EVENTS for event in events):
        blocks = _of_blocks(events)
        message = {"role": "assistant", "content": blocks} if blocks else None
    else:
        message = _of_candidates(events)
    return Chat([*asked, message]) if message else None


def _delta(event: Mapping[str, Any]) -> Mapping[str, Any] | None:
    choices = mappings(event, "choices")
    if not choices:
        return {} if event.get("object") == _CHUNK else None
    return mapping(choices[0], "delta") if "delta" in choices[0] else None


def _of_deltas(deltas: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The message of OpenAI's pieces."""
    message: dict[str, Any] = {"role": "assistant", "content": ""}
    for name in _TEXTS:
        texts = [delta[name] for delta in deltas if isinstance(delta.get(name), str)]
        if texts:
            message[name] = "".join(texts)
    pieces: dict[int, list[Mapping[str, Any]]] = {}  # of each call
    for piece in (piece for delta in deltas for piece in mappings(delta, "tool_calls")):
        pieces.setdefault(_place(piece), []).append(piece)
    if pieces:
        message["tool_calls"] = list(map(_call, pieces.values()))
    citations = [delta["citations"] for delta in deltas if delta.get("citations")]
    if citations:
        message["citations"] = citations[-1]
    return message


def _call(pieces: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    functions = [mapping(piece, "function") for piece in pieces]
    identity = next((str(piece["id"]) for piece in pieces if piece.get("id")), "")
    whole = {
        name: "".join(str(function.get(name) or "") for function in functions)
        for name in ("name", "arguments")
    }
    return {"id": identity, "function": whole}


def _of_blocks(events: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The blocks of Anthropic's events."""
    blocks: dict[int, dict[str, Any]] = {}
    pieces: dict[tuple[int, str], list[str]] = {}
    for event in events:
        place = _place(event)
        if event.get("type") == "content_block_start":
            blocks[place] = dict(mapping(event, "content_block"))
        delta = mapping(event, "delta")
        field = _DELTAS.get(str(delta.get("type")))
        if field is not None:
            pieces.setdefault((place, field), []).append(str(delta.get(field) or ""))
    for (place, field), texts in pieces.items():
        block = blocks.setdefault(place, {"type": "text", "text": ""})
        if field == "partial_json":
            block["input"] = "".join(texts)
        else:
            block[field] = "".join([str(block.get(field) or ""), *texts])
    return list(blocks.values())


def _place(event: Mapping[str, Any]) -> int:
    index = event.get("index")
    return index if isinstance(index, int) else 0


def _candidate(event: Mapping[str, Any]) -> Mapping[str, Any]:
    candidates = mappings(event, "candidates")
    return candidates[0] if candidates and mapping(candidates[0], "content") else {}


def _of_candidates(events: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
    """The message of Gemini's pieces; what it is grounded on comes with the last ones."""
    pieces = [piece for piece in map(_candidate, events) if piece]
    parts = [part for piece in pieces for part in mappings(mapping(piece, "content"), "parts")]
    metadata = [piece["groundingMetadata"] for piece in pieces if piece.get("groundingMetadata")]
    if not parts:
        return None
    return {"role": "model", "parts": parts, "groundingMetadata": metadata[-1] if metadata else {}}


FORMAT = Format("a streamed answer of a chat API", read, frozenset(("delta",)), group=group)
