"""The fields of a chat's message under their usual names, whoever named them.

| others' | usual |
|---|---|
| `toolCalls`, `toolCallId`, `toolPlan`, `reasoningContent` (TypeScript, Oracle) | `tool_calls` |
| what LangChain and LlamaIndex keep in `additional_kwargs` | fields of the message |
| `blocks` (LlamaIndex), `items` (Semantic Kernel), `contents` (Microsoft's agents) | `content` |
| `_role`, `_content` (Haystack), a role that is an object | `role`, `content` |
| `toolInvocations`, and `parts` beside a `content` (AI SDK) | parts of the `content` |

What an agent's message holds under any other name is told by `unread`.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from .base import first, mapping, mappings

_RENAMED = {
    "toolCalls": "tool_calls",
    "toolCallId": "tool_call_id",
    "toolPlan": "tool_plan",
    "toolResults": "tool_results",
    "reasoningContent": "reasoning_content",
    "_role": "role",
    "_content": "content",
}
_CONTENTS = ("blocks", "items", "contents")
_CALLS = ("tool_calls", "function_call")
# Fields that LangChain keeps apart, each with what it holds
_LIFTED: dict[str, type] = {
    "tool_calls": list,
    "function_call": dict,
    "reasoning_content": str,
    "tool_call_id": str,
}
# A message without any of these, whose role is no object, has the usual names already
_UNUSUAL = frozenset(
    (
        *_RENAMED,
        *_CONTENTS,
        "additional_kwargs",
        "metadata",
        "toolInvocations",
        "parts",
        "tool_call",
    )
)
# Fields that may hold a call, a result or a thought, and those that tell about one
_SPEAKS = re.compile(
    r"tool|function_?call|invocation|result|reason|thought|think|retriev|(?:\A|_)output|"
    r"\Acontexts?\Z",
    re.IGNORECASE,
)
_TELLS = re.compile(
    r"(?:stamp|date|model|_at|signature|effort|tokens?|ids?|names?|time|duration|count|metadata|"
    r"config|choice|reason|tools|status|status_?history|usage|kwargs)\Z",
    re.IGNORECASE,
)
# Fields in which a user's message may hold documents
_ATTACHED = re.compile(r"attach|document|(?:\A|_)files?\Z", re.IGNORECASE)
_MAY_HOLD_TEXTS = (str, list, tuple, Mapping)
_DEEPEST = 6  # levels of a field's value that are searched for texts


def role_of(message: Mapping[str, Any]) -> Any:
    """The role that a message names; `None` where it names none."""
    role = message.get("role", message.get("from", message.get("_role")))
    if isinstance(role, Mapping):  # Microsoft's agents have an object
        return first(role, ("value", "label"))
    return role


def usual(message: Mapping[str, Any]) -> Mapping[str, Any]:
    """The message with the usual names of fields; the message itself where it has no others.

    Example:
        >>> usual({"role": "tool", "toolCallId": "1", "content": "Veldt"})["tool_call_id"]
        '1'
    """
    if _UNUSUAL.isdisjoint(message) and not isinstance(message.get("role"), Mapping):
        return message
    fields = {_RENAMED.get(name, name): value for name, value in message.items()}
    if "role" in fields:
        fields["role"] = role_of(fields)
    _lift(fields)
    fields["tool_call_id"] = _answered_call(fields)
    if fields.get("content") in (None, "", []):
        content = next((fields[name] for name in _CONTENTS if fields.get(name)), None)
        if content is not None:
            fields["content"] = content
    parts = _parts_of_a_page(message)
    if parts:
        fields["content"] = parts
    return fields


def _lift(fields: dict[str, Any]) -> None:
    """Add to the fields those that LangChain keeps in `additional_kwargs`, where they are missing.

    A call is kept there once more where the message has its calls: that one is left there.
    """
    kept_apart = mapping(fields, "additional_kwargs")
    for name, kind in _LIFTED.items():
        value = kept_apart.get(name)
        if not value or not isinstance(value, kind):
            continue
        is_repeated = name in _CALLS and fields.get("tool_calls")
        if not fields.get(name) and not is_repeated:
            fields[name] = value


def _answered_call(fields: Mapping[str, Any]) -> Any:
    """The id of the call that a result answers, wherever the message has it; `None` where it names
    no call.
    """
    for place in (fields, mapping(fields, "metadata")):
        if place.get("tool_call_id") is not None:
            return place["tool_call_id"]
    # Some results hold the call itself
    return mapping(fields, "tool_call").get("id") or None


def _parts_of_a_page(message: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The content of a message of the AI SDK's, which a page shows; none for any other message.

    The parts of such a message say more than its text, and its calls stand before that.
    """
    text = message.get("content")
    if not isinstance(text, str):
        return []
    parts = mappings(message, "parts", pure=True)
    types = [part.get("type") for part in parts]
    if any(isinstance(kind, str) and kind != "text" for kind in types):
        return parts
    invocations = mappings(message, "toolInvocations", pure=True)
    if not invocations:
        return []
    calls = [{"type": "tool-invocation", "toolInvocation": call} for call in invocations]
    return [*calls, {"type": "text", "text": text}]


def unread(
    message: Mapping[str, Any],
    texts: Sequence[str],
    fields_read: Sequence[str],
    nothing_read: bool = False,
) -> list[str]:
    """The fields of a message that may hold a call, a result or a thought by their name, or list
    objects, and hold a text that was not read.

    Args:
        message: the message with its usual names.
        texts: those that were read of it.
        fields_read: the fields that are read wherever they stand.
        nothing_read: nothing else was read of the message, so that any field may be what it says.

    Example:
        >>> unread({"role": "ai", "tool_log": ["Look it up."]}, [], ["role"])
        ['tool_log']
    """
    text_read = "\n".join(texts)
    unread_names = []
    for name, value in message.items():
        if not value or name in fields_read or not isinstance(value, _MAY_HOLD_TEXTS):
            continue
        may_speak = nothing_read or _SPEAKS.search(name) or _lists_objects(message, name)
        if not may_speak or _TELLS.search(name):
            continue
        if any(text not in text_read for text in _texts(value)):
            unread_names.append(name)
    return unread_names


def unread_attachments(message: Mapping[str, Any], texts: Sequence[str]) -> list[str]:
    """The fields in which a user's message may hold documents, by their name or as a list of
    objects, with a text that was not read.

    Example:
        >>> unread_attachments({"role": "user", "attachments": [{"text": "Look it up."}]}, [])
        ['attachments']
    """
    attached: dict[str, Any] = {}
    for name, value in message.items():
        if _ATTACHED.search(name) or _lists_objects(message, name):
            attached[name] = value
    return unread(attached, texts, (), nothing_read=True)


def _lists_objects(message: Mapping[str, Any], name: str) -> bool:
    """Whether a field lists objects and is not the message's content, whose unread parts are told
    elsewhere.
    """
    value = message[name]
    content = message.get("content", message.get("parts"))
    return value != content and bool(mappings(value, pure=True))


def _texts(value: Any, depth: int = 0) -> Iterator[str]:
    """The texts of more than a word in a value."""
    if isinstance(value, str):
        has_words = len(value.split(maxsplit=1)) > 1
        if has_words:
            yield value.strip()
        return
    entries: Iterable[Any] = ()
    if isinstance(value, Mapping):
        entries = value.values()
    elif isinstance(value, list | tuple):
        entries = value
    if depth < _DEEPEST:
        for entry in entries:
            yield from _texts(entry, depth + 1)
