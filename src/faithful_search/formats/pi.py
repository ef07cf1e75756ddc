"""Pi: a session's JSON lines, a tree of entries whose last one is where the conversation ended."""

from __future__ import annotations

from typing import Any

from .base import Chat, Format, mapping, mappings
from .messages import is_chat


class Pi(Format):
    """The lines of one session."""

    what = "a Pi session"
    marks = frozenset({"parentId"})

    def group(self, value: Any) -> str | None:
        return "" if _is_head(value) else None

    def read(self, value: Any) -> Chat | None:
        """The messages on the way from the first entry to the last; other branches are left out."""
        lines = mappings(mapping(value).get("lines"))
        if not lines or not _is_head(lines[0]):
            return None
        entries = {str(line["id"]): line for line in lines[1:] if "id" in line}
        at = next(reversed(entries), "")
        path: list[Any] = []
        while at in entries:
            path.append(entries.pop(at))
            at = str(path[-1].get("parentId"))
        messages = [mapping(entry, "message") for entry in reversed(path) if is_chat([mapping(entry, "message")])]
        beside = sum("message" in entry for entry in entries.values())
        left = (f"{beside} messages of other branches",) if beside else ()
        return Chat(messages, id=str(lines[0].get("id", "")), left_out=left)


def _is_head(value: Any) -> bool:
    return mapping(value).get("type") == "session" and "version" in value
