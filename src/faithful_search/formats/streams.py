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
# Events of OpenAI's that hold the whole response
_WHOLE = ("response.completed", "response.incomplete", "response.failed")
# Anthropic's events
_EVENTS = frozenset(
    (
        *("message_start", "content_block_start", "content_block_delta", "content_block_stop"),
        *("message_delta", "message_stop", "ping"),
    )
)
# Fields of a row that may hold a list of events
_LISTS = ("response", "output", "chunks", "events", "stream", "completion")
# Fields of a message whose pieces are texts to be joined
_TEXTS = ("content", "reasoning_content", "reasoning")
# The field of a piece that holds its text, by the type of the piece
_DELTAS = {"text_delta": "text", "thinking_delta": "thinking", "input_json_delta": "partial_json"}


def group(value: Any) -> str | None:
    """The id of the answer that an event begins or is a part of, empty for one without an id.
    `None`: this neither begins an answer nor names the one that it belongs to.
    """
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
    lines = mappings(fields, "lines")  # of a file that holds one event a line
    if lines and group(lines[0]) is not None:
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
    """Whether these are the events of a stream, by the first of them."""
    if not events:
        return False
    first = events[0]
    kind = first.get("type")
    if isinstance(kind, str) and (kind in _EVENTS or kind.startswith("response.")):
        return True
    if _delta(first) is not None:
        return True
    return len(events) > 1 and bool(_candidate(first))  # one alone is a response of Gemini's


def _answered(asked: Messages, events: Sequence[Mapping[str, Any]]) -> Chat | None:
    """The messages that were asked, and the answer that the events are pieces of."""
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
    """The piece in an event of OpenAI's; `None` for any other event. The last one may be empty, and
    only count tokens.
    """
    choices = mappings(event, "choices")
    if choices:
        return mapping(choices[0], "delta") if "delta" in choices[0] else None
    return {} if event.get("object") == _CHUNK else None


def _of_deltas(deltas: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The message of OpenAI's pieces."""
    message: dict[str, Any] = {"role": "assistant", "content": ""}
    for name in _TEXTS:
        texts = [delta[name] for delta in deltas if isinstance(delta.get(name), str)]
        if texts:
            message[name] = "".join(texts)
    pieces_of_calls: dict[int, list[Mapping[str, Any]]] = {}
    for delta in deltas:
        for piece in mappings(delta, "tool_calls"):
            pieces_of_calls.setdefault(_place(piece), []).append(piece)
    if pieces_of_calls:
        message["tool_calls"] = [_call(pieces) for pieces in pieces_of_calls.values()]
    citations = [delta["citations"] for delta in deltas if delta.get("citations")]
    if citations:
        message["citations"] = citations[-1]
    return message


def _call(pieces: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The call that was streamed in these pieces."""
    identity = next((str(piece["id"]) for piece in pieces if piece.get("id")), "")
    functions = [mapping(piece, "function") for piece in pieces]
    function = {}
    for name in ("name", "arguments"):
        function[name] = "".join([str(piece.get(name) or "") for piece in functions])
    return {"id": identity, "function": function}


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
    """The index of the block or call that an event or a piece belongs to."""
    index = event.get("index")
    return index if isinstance(index, int) else 0


def _candidate(event: Mapping[str, Any]) -> Mapping[str, Any]:
    """The first candidate of an event of Gemini's; empty for any other event."""
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
