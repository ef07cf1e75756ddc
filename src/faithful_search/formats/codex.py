"""Codex: a session's JSON lines, whose response items are those of OpenAI's Responses."""

from collections.abc import Mapping
from typing import Any

from .base import Chat, Format, mapping, mappings, text
from .responses import as_messages, is_item

# Beginnings of what the program writes in the user's name
_OF_PROGRAM = (
    "<environment_context>",
    "<user_instructions>",
    "# AGENTS.md",
    "<permissions",
    "<turn_aborted>",
)


def group(value: Any) -> str | None:
    fields = mapping(value)
    return "" if isinstance(fields.get("payload"), Mapping) and text(fields.get("type")) else None


def read(value: Any) -> Chat | None:
    """The response items of one session, without what the program wrote in the user's name."""
    lines = mappings(value, "lines")
    if all(group(line) is None for line in lines):
        return None
    items = [mapping(line, "payload") for line in lines if line.get("type") == "response_item"]
    items = [item for item in items if not _is_of_program(item)]
    readable = [item for item in items if text(item.get("role")) or is_item(item)]
    sessions = [mapping(line, "payload") for line in lines if line.get("type") == "session_meta"]
    name = sessions[0].get("id") if sessions else None
    return Chat(
        as_messages(readable),
        id=str(name or ""),
        left_out={"items of other kinds": len(items) - len(readable)},
    )


def _is_of_program(item: Mapping[str, Any]) -> bool:
    if item.get("role") != "user":
        return False
    first_part = next(iter(mappings(item, "content")), {})
    return str(first_part.get("text", "")).lstrip().startswith(_OF_PROGRAM)


FORMAT = Format("a Codex session", read, {"payload"}, group=group)
