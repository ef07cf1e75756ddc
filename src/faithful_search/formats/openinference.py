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
    for entry in items(tree):
        message = mapping(nested(mapping(entry)), "message")
        if isinstance(message.get("role"), str):
            chat.append(_message(message))
    return chat


def tool(attributes: Mapping[str, Any]) -> tuple[str, Any, Any] | None:
    """The name of the tool or retriever that ran, what it was given and what it returned; `None`:
    these are attributes of something else.
    """
    kind = attributes.get("openinference.span.kind")
    tree = nested(attributes)
    sent = mapping(tree, "input").get("value")
    if kind == "TOOL":
        name = mapping(tree, "tool").get("name")
        return str(name or "tool"), sent, mapping(tree, "output").get("value")
    if kind != "RETRIEVER":
        return None
    documents = [
        mapping(nested(mapping(record)), "document")
        for record in items(mapping(tree, "retrieval").get("documents"))
    ]
    passages = [{**mapping(document, "metadata"), **document} for document in documents]
    return "retrieval", {"query": sent}, passages or mapping(tree, "output").get("value")


def _message(message: Mapping[str, Any]) -> Mapping[str, Any]:
    calls = []
    for record in items(message.get("tool_calls")):
        call = mapping(nested(mapping(record)), "tool_call")
        function = mapping(call, "function")
        if function:
            calls.append({"id": call.get("id") or "", "type": "function", "function": function})
    content = message.get("content")
    if content is None:
        parts = [
            mapping(nested(mapping(record)), "message_content")
            for record in items(message.get("contents"))
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
