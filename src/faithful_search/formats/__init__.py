"""Logs of agents, whichever API or framework wrote them, to chat messages: one file per format, found by its name."""

import json
import pkgutil
from functools import lru_cache
from importlib import import_module
from typing import Any

from .base import Chat, Format, mapping
from .messages import is_chat

__all__ = ["Chat", "Format", "decode", "formats", "group", "read", "refusal"]


@lru_cache(maxsize=1)
def formats() -> dict[str, Format]:
    """All formats by name, sorted."""
    files = sorted(info.name for info in pkgutil.iter_modules(__path__))
    modules = {name: import_module(f".{name}", __name__) for name in files}
    return {name: module.FORMAT for name, module in modules.items() if hasattr(module, "FORMAT")}


def read(value: Any) -> Chat | None:
    """The conversation in a value of JSON: a list of messages, an object with `messages`, or a log of any format.

    Example:
        >>> read({"contents": [{"role": "user", "parts": [{"text": "Who?"}]}]}).messages[0]["role"]
        'user'
    """
    if is_chat(value):
        return Chat(list(value))
    for each in formats().values():
        if (found := each.read(value)) is not None and is_chat(found.messages):
            if isinstance(lines := mapping(value).get("lines"), list):
                found.left_out["lines that are no JSON objects"] = sum(
                    not isinstance(line, dict) for line in lines
                )
            return found
    # An object with `messages` may have more to say in one of the formats.
    messages: Any = mapping(value).get("messages")
    return Chat(messages) if is_chat(messages) else None


def decode(text: str) -> Chat | None:
    """The same for the JSON of such a value; `None` for any other text."""
    if text[:200].lstrip()[:1] not in ("[", "{"):
        return None
    try:
        return read(json.loads(text))
    except (ValueError, RecursionError):
        return None


def group(value: Any) -> str | None:
    """Which episode this line of a file is a part of, where a format spreads one over many lines."""
    found = ((name, each.group(value)) for name, each in formats().items())
    return next((f"{name} {key}" for name, key in found if key is not None), None)


def refusal(value: Any) -> str:
    """What a value that no format reads looks like, and what to do."""
    items = value if isinstance(value, list | tuple) else [value]
    silent = [number for number, item in enumerate(items) if not is_chat([item])]
    if 0 < len(silent) < len(items):  # the others are messages
        return f"message {silent[0]} is not a mapping with a role: {str(items[silent[0]])[:80]!r}"
    fields: dict[str, Any] = next((item for item in items if isinstance(item, dict)), {})
    best = max(formats().values(), key=lambda each: len(each.marks & fields.keys()))
    if shared := best.marks & fields.keys():
        has = ", ".join(sorted(shared))
        return f"it looks like {best.what} (it has {has}), but cannot be read: {best.needs}"
    shape = (
        f"an object with {', '.join(map(str, list(fields)[:8]))}"
        if fields
        else type(value).__name__
    )
    known = ", ".join(each.what for each in formats().values())
    wanted = "neither a text nor a list of chat messages with roles"
    return f"{wanted}, but {shape}: {str(value)[:80]!r}; read are also: {known}"
