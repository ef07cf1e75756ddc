"""Claude Code: a session's JSON lines, each a message or a note of the program's."""

from __future__ import annotations

from collections import Counter
from typing import Any, ClassVar

from .base import Chat, Format, Messages, left_out, mapping, mappings, text
from .messages import is_chat

_MARKS = frozenset(("sessionId", "leafUuid", "parentUuid", "isSnapshotUpdate"))


class ClaudeCode(Format):
    """The lines of one session."""

    what: ClassVar[str] = "a Claude Code session"
    marks: ClassVar[frozenset[str]] = frozenset(
        (
            "sessionId",
            "parentUuid",
        )
    )

    def group(self, value: Any) -> str | None:
        """All lines of a file are one session's."""
        fields = mapping(value)
        return "" if isinstance(fields.get("type"), str) and fields.keys() & _MARKS else None

    def read(self, value: Any) -> Chat | None:
        """The messages; those of sub-agents are left out, those that the program wrote for itself are not counted."""
        lines = mappings(mapping(value).get("lines"))
        if not any(self.group(line) is not None for line in lines):
            return None
        messages: Messages = []
        apart: Counter[str] = Counter()
        for line in lines:
            message = mapping(line, "message")
            if line.get("isMeta") or not is_chat([message]):
                continue
            if line.get("isSidechain"):
                apart["sub-agent's message"] += 1
            else:
                messages.append(message)
        name = next((name for line in lines if (name := text(line.get("sessionId")))), "")
        return Chat(messages, id=name, left_out=left_out(apart))
