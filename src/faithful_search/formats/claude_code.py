"""Claude Code: a session's JSON lines, each a message or a note of the program's."""

from __future__ import annotations

from typing import Any

from .base import Chat, Format, Messages, mapping, mappings, text
from .messages import is_chat

_MARKS = frozenset(("sessionId", "leafUuid", "parentUuid", "isSnapshotUpdate"))


class ClaudeCode(Format):
    """The lines of one session."""

    what = "a Claude Code session"
    marks = frozenset({"sessionId", "parentUuid"})

    def group(self, value: Any) -> str | None:
        fields = mapping(value)
        return "" if isinstance(fields.get("type"), str) and fields.keys() & _MARKS else None

    def read(self, value: Any) -> Chat | None:
        """The messages without those of sub-agents, and those that the program wrote for itself."""
        lines = mappings(mapping(value).get("lines"))
        if not any(self.group(line) is not None for line in lines):
            return None
        messages: Messages = []
        within = 0
        for line in lines:
            message = mapping(line, "message")
            if line.get("isMeta") or not is_chat([message]):
                continue  # written by the program, or a summary
            if line.get("isSidechain"):
                within += 1
            else:
                messages.append(message)
        name = next((name for line in lines if (name := text(line.get("sessionId")))), "")
        left = (f'{within} of kind "sub-agent\'s message"',) if within else ()
        return Chat(messages, id=name, left_out=left)
