"""Pydantic AI: requests and responses, whose parts each say their `part_kind`."""

from collections.abc import Mapping
from typing import Any

from .base import Chat, Format, Messages, mapping, mappings

_KINDS = frozenset(("request", "response"))


def read(value: Any) -> Chat | None:
    """A list of messages (`all_messages_json`), or an object with one."""
    fields = mapping(value)
    listed = value if isinstance(value, list | tuple) else fields.get("messages")
    messages = mappings(listed, pure=True)
    if not messages or not all(_is_message(message) for message in messages):
        return None
    chat: Messages = []
    for message in messages:
        for part in mappings(message, "parts"):
            chat.append(_part(part))
    return Chat(chat)


def _is_message(message: Mapping[str, Any]) -> bool:
    parts = mappings(message, "parts", pure=True)
    return str(message.get("kind")) in _KINDS and all("part_kind" in part for part in parts)


def _part(part: Mapping[str, Any]) -> Mapping[str, Any]:
    kind, content = str(part["part_kind"]), part.get("content")
    if kind == "system-prompt":
        return {"role": "system", "content": content}
    if kind == "user-prompt":
        return {"role": "user", "content": content}
    if kind == "text":
        return {"role": "assistant", "content": content}
    if kind == "thinking":
        return {"role": "assistant", "content": "", "reasoning_content": content}
    if kind in ("tool-call", "builtin-tool-call"):
        function = {"name": part.get("tool_name"), "arguments": part.get("args")}
        call = {"id": part.get("tool_call_id"), "type": "function", "function": function}
        return {"role": "assistant", "content": "", "tool_calls": [call]}
    if kind in ("tool-return", "builtin-tool-return"):
        result = {"role": "tool", "tool_call_id": part.get("tool_call_id"), "content": content}
        return {**result, "is_error": part.get("outcome") in ("failed", "denied")}
    if kind == "retry-prompt":  # what was wrong with a call
        error = {"role": "tool", "tool_call_id": part.get("tool_call_id"), "content": content}
        return {**error, "is_error": True}
    return {"role": "assistant", "content": [{"type": kind}]}


FORMAT = Format(
    "Pydantic AI messages", read, frozenset(("part_kind", "kind", "parts")), "it holds no message"
)
