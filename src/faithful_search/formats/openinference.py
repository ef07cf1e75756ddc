"""OpenInference's attributes of a span, as Phoenix keeps them: messages whose fields have long
names.

They stand as a list (`llm.input_messages: [{"message.role": …}]`), as nested objects, or flat
(`llm.input_messages.0.message.role`).
"""

from collections.abc import Mapping
from typing import Any

from .base import Messages, mapping, mappings

_LISTS = {"input": "llm.input_messages", "output": "llm.output_messages"}


def is_call(attributes: Mapping[str, Any]) -> bool:
    """Whether these are the attributes of a model's call with its messages."""
    return bool(messages(attributes, "input"))


def messages(attributes: Mapping[str, Any], which: str) -> Messages:
    """The messages that a model's call was given (`input`), or that it gave (`output`)."""
    tree: Any = nested(attributes)
    for name in _LISTS[which].split("."):
        tree = mapping(tree).get(name)
    chat: Messages = []
    for item in items(tree):
        message = mapping(nested(mapping(item)), "message")
        if isinstance(message.get("role"), str):
            chat.append(_message(message))
    return chat


def _message(message: Mapping[str, Any]) -> Mapping[str, Any]:
    calls = []
    for item in items(message.get("tool_calls")):
        call = mapping(nested(mapping(item)), "tool_call")
        function = mapping(call, "function")
        if function:
            calls.append({"id": call.get("id") or "", "type": "function", "function": function})
    content = message.get("content")
    if content is None:
        parts = [
            mapping(nested(mapping(item)), "message_content")
            for item in items(message.get("contents"))
        ]
        content = [part for part in parts if part]
    plain = {"role": message["role"], "content": content or ""}
    if calls:
        return {**plain, "tool_calls": calls}
    if message.get("tool_call_id"):
        return {**plain, "tool_call_id": message["tool_call_id"]}
    return plain


def items(value: Any) -> list[Any]:
    """The items of a list, or of an object whose fields are their numbers."""
    if isinstance(value, Mapping) and value and all(str(name).isdecimal() for name in value):
        return [value[name] for name in sorted(value, key=lambda name: int(name))]
    return list(mappings(value))


def nested(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Fields whose names have dots, as objects within objects."""
    tree: dict[str, Any] = {}
    for name, value in fields.items():
        *path, last = str(name).split(".")
        place = tree
        for step in path:
            inner = place.setdefault(step, {})
            if not isinstance(inner, dict):
                break
            place = inner
        else:
            if isinstance(value, Mapping) and isinstance(place.get(last), dict):
                place[last].update(nested(value))
            else:
                place[last] = nested(value) if isinstance(value, Mapping) else value
    return tree
