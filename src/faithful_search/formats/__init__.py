"""Logs of agents, whichever API or framework wrote them, to chat messages: one file per format, found by its name.

A list of messages is a chat as it stands (`messages`). Any other value of JSON is asked of each format, and the first
whose marks it bears reads it.
"""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from functools import lru_cache
from typing import Any

from .. import registry
from .base import Chat, Format
from .messages import is_chat

__all__ = ["Chat", "Format", "decode", "formats", "group", "read", "refusal"]


@lru_cache(maxsize=1)
def formats() -> dict[str, Format]:
    """All formats by name, sorted."""
    package = sys.modules[__name__]
    return {name: registry.load(package, name, Format)() for name in registry.names(package, Format)}


def read(value: Any) -> Chat | None:
    """The conversation in a value of JSON: a list of messages, an object with `messages`, or a log of any format.

    Example:
        >>> read({"contents": [{"role": "user", "parts": [{"text": "Who?"}]}]}).messages[0]["role"]
        'user'
    """
    if is_chat(value):
        return Chat(list(value))
    # A list of messages needs no format; an object with `messages` may have more to say in one.
    found = next((chat for each in formats().values() if (chat := each.read(value))), None)
    lines = value.get("lines") if isinstance(value, dict) else None
    if found is not None and isinstance(lines, list) and (broken := sum(not isinstance(line, dict) for line in lines)):
        found = replace(found, left_out=(*found.left_out, f"{broken} lines that are no JSON objects"))
    if found is None and isinstance(value, dict) and is_chat(value.get("messages")):
        return Chat(value["messages"])
    return found


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
    fields: dict[str, Any] = next((item for item in items if isinstance(item, dict)), {})
    best = max(formats().values(), key=lambda each: len(each.marks & fields.keys()))
    if shared := best.marks & fields.keys():
        has = ", ".join(sorted(shared))
        return f"it looks like {best.what} (it has {has}), but cannot be read: {best.needs}"
    shape = f"an object with {', '.join(map(str, list(fields)[:8]))}" if fields else type(value).__name__
    known = ", ".join(each.what for each in formats().values())
    seen = f"{shape}: {str(value)[:80]!r}"
    return f"neither a text nor a list of chat messages with roles, but {seen}; read are also: {known}"
