"""BrowseComp-Plus: a run is a list of thoughts, calls with their outputs, and texts, in `result`."""

from collections.abc import Mapping
from typing import Any

from .base import Chat, Format, Messages, mapping, mappings
from .blocks import as_json

_KINDS = frozenset(("reasoning", "tool_call", "output_text"))


def read(value: Any) -> Chat | None:
    """A run: each item of `result` has a type, and what it says in `output`."""
    items = mappings(value, "result", pure=True)
    if not items or not all(_is_item(item) for item in items):
        return None
    messages: Messages = []
    for number, item in enumerate(items):
        messages += _messages(item, str(number))
    return Chat(messages, id=str(mapping(value).get("query_id") or ""))


def _is_item(item: Mapping[str, Any]) -> bool:
    return item.get("type") in _KINDS and "output" in item


def _messages(item: Mapping[str, Any], identity: str) -> Messages:
    output = item["output"]
    if isinstance(output, list):
        output = "\n".join(part if isinstance(part, str) else as_json(part) for part in output)
    if item["type"] == "reasoning":
        return [{"role": "assistant", "content": "", "reasoning_content": output}]
    if item["type"] == "output_text":
        return [{"role": "assistant", "content": output}]
    function = {"name": item.get("tool_name"), "arguments": item.get("arguments")}
    call = {"id": identity, "type": "function", "function": function}
    return [
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": identity, "content": output},
    ]


FORMAT = Format(
    "a BrowseComp-Plus run", read, frozenset(("retrieved_docids", "tool_call_counts", "query_id"))
)
