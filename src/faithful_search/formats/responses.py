"""OpenAI's Responses: items in and out, each a message, a thought, a call or what it returned."""

from collections.abc import Mapping
from typing import Any

from .base import Chat, Format, Messages, mapping, mappings, text

_ENDS = ("_call", "_call_output", "_approval_request", "_list_tools")


def read(value: Any) -> Chat | None:
    """A response, an object with `input` and `output`, or a list of items."""
    name = ""
    if isinstance(value, Mapping):
        inner = mapping(value, "response") or value
        given, made = value.get("input", inner.get("input")), inner.get("output")
        asked = [{"role": "user", "content": given}] if text(given) else mappings(given)
        name = text(inner.get("id")) or ""
        value = [*asked, *made] if isinstance(made, list | tuple) else None
    found = mappings(value, pure=True)
    if not any(map(is_item, found)) or not all("role" in item or is_item(item) for item in found):
        return None
    return Chat(as_messages(found), id=name)


def is_item(item: Mapping[str, Any]) -> bool:
    """Whether this is an item of the API and not a message of a chat."""
    kind = item.get("type")
    own = isinstance(kind, str) and (kind == "reasoning" or kind.endswith(_ENDS))
    return (own and "role" not in item) or (
        kind == "message" and item.get("role") == "assistant" and "id" in item
    )


def as_messages(items: list[Mapping[str, Any]]) -> Messages:
    """The items as messages; one without a role is a part of the agent's message, or a result."""
    return [item if "role" in item else {"role": "assistant", "content": [item]} for item in items]


FORMAT = Format("OpenAI Responses", read, {"output", "previous_response_id"})
