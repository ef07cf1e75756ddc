"""BrowseComp-Plus: a run is a list of thoughts, calls with their outputs, and texts, in `result`."""

from collections.abc import Mapping
from typing import Any

from .base import Chat, Format, Messages, mapping, mappings
from .blocks import as_json

_KINDS = frozenset(("reasoning", "tool_call", "output_text"))


def read(value: Any) -> Chat | None:
    """A run: each entry of `result` has a type, and what it says in `output`."""
    events = mappings(value, "result", pure=True)
    if not events or not all(map(_is_event, events)):
        return None
    messages: Messages = []
    for number, event in enumerate(events):
        messages += _messages(event, str(number))
    return Chat(messages, id=str(mapping(value).get("query_id") or ""))


def _is_event(event: Mapping[str, Any]) -> bool:
    return event.get("type") in _KINDS and "output" in event


def _messages(event: Mapping[str, Any], identity: str) -> Messages:
    """A thought or a text as a message; a call as two, with what it returned."""
    output = event["output"]
    if isinstance(output, list):
        output = "\n".join(part if isinstance(part, str) else as_json(part) for part in output)
    if event["type"] == "reasoning":
        return [{"role": "assistant", "content": "", "reasoning_content": output}]
    if event["type"] == "output_text":
        return [{"role": "assistant", "content": output}]
    function = {"name": event.get("tool_name"), "arguments": event.get("arguments")}
    call = {"id": identity, "type": "function", "function": function}
    return [
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": identity, "content": output},
    ]


FORMAT = Format(
    "a BrowseComp-Plus run", read, frozenset(("retrieved_docids", "tool_call_counts", "query_id"))
)
