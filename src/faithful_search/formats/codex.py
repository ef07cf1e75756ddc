"""Codex: a session's JSON lines, whose response items are those of OpenAI's Responses."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .base import Chat, Format, mapping, mappings, text
from .responses import as_messages, is_item

_GIVEN = ("<environment_context>", "<user_instructions>", "# AGENTS.md", "<permissions", "<turn_aborted>")


class Codex(Format):
    """The lines of one session."""

    what = "a Codex session"
    marks = frozenset({"payload"})

    def group(self, value: Any) -> str | None:
        fields = mapping(value)
        return "" if isinstance(fields.get("payload"), Mapping) and text(fields.get("type")) else None

    def read(self, value: Any) -> Chat | None:
        """The response items, without those by which the program tells the agent where it is."""
        lines = mappings(mapping(value).get("lines"))
        if not any(self.group(line) is not None for line in lines):
            return None
        items = [mapping(line, "payload") for line in lines if line.get("type") == "response_item"]
        kept = [item for item in items if (text(item.get("role")) and not _given(item)) or is_item(item)]
        name = next((mapping(line, "payload").get("id") for line in lines if line.get("type") == "session_meta"), "")
        other = len(items) - len(kept) - sum(map(_given, items))
        return Chat(as_messages(kept), id=str(name or ""), left_out=(f"{other} items of other kinds",) if other else ())


def _given(item: Mapping[str, Any]) -> bool:
    """Whether the program wrote this message in the user's name."""
    first = next(iter(mappings(item.get("content"))), {})
    return item.get("role") == "user" and str(first.get("text", "")).lstrip().startswith(_GIVEN)
