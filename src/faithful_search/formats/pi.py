"""Pi: a session's JSON lines, a tree of entries whose last one is where the conversation ended."""

from typing import Any

from .base import Chat, Format, branch, mapping, mappings
from .messages import is_chat


def group(value: Any) -> str | None:
    return "" if mapping(value).get("type") == "session" and "version" in value else None


def read(value: Any) -> Chat | None:
    """The messages of one session on the way from its first entry to the last."""
    head, *lines = mappings(value, "lines") or [{}]
    if group(head) is None:
        return None
    entries = {str(line["id"]): line for line in lines if "id" in line}
    path = branch(entries, "parentId")
    messages = [entry["message"] for entry in path if is_chat([entry.get("message")])]
    beside = sum("message" in entry for entry in entries.values()) - sum(
        "message" in entry for entry in path
    )
    return Chat(
        messages, id=str(head.get("id", "")), left_out={"messages of other branches": beside}
    )


FORMAT = Format("a Pi session", read, {"parentId"}, group=group)
