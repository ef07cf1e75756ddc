"""Claude Code: a session's JSON lines, each a message or a note of the program's."""

from typing import Any

from .base import Chat, Format, mapping, mappings, text
from .messages import is_chat

_MARKS = frozenset({"sessionId", "leafUuid", "parentUuid", "isSnapshotUpdate"})


def group(value: Any) -> str | None:
    fields = mapping(value)
    return "" if isinstance(fields.get("type"), str) and fields.keys() & _MARKS else None


def read(value: Any) -> Chat | None:
    """The messages of one session without those of sub-agents, and those that the program wrote for itself."""
    lines = mappings(value, "lines")
    if all(group(line) is None for line in lines):
        return None
    said = [line for line in lines if not line.get("isMeta") and is_chat([line.get("message")])]
    own = [line["message"] for line in said if not line.get("isSidechain")]
    name = next((name for line in lines if (name := text(line.get("sessionId")))), "")
    return Chat(own, id=name, left_out={"messages of sub-agents": len(said) - len(own)})


FORMAT = Format("a Claude Code session", read, _MARKS, group=group)
