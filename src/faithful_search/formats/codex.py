"""Codex: a session's JSON lines, whose response items are those of OpenAI's Responses."""

from collections.abc import Mapping, Sequence
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
    entries = _payloads(lines, "response_item")
    entries = [entry for entry in entries if not _is_of_program(entry)]
    readable = [entry for entry in entries if text(entry.get("role")) or is_item(entry)]
    sessions = _payloads(lines, "session_meta")
    name = sessions[0].get("id") if sessions else None
    return Chat(
        as_messages(readable),
        id=str(name or ""),
        left_out={"items of other kinds": len(entries) - len(readable)},
    )


def _payloads(lines: Sequence[Mapping[str, Any]], kind: str) -> list[Mapping[str, Any]]:
    """What the lines of one type hold."""
    return [mapping(line, "payload") for line in lines if line.get("type") == kind]


def _is_of_program(entry: Mapping[str, Any]) -> bool:
    if entry.get("role") != "user":
        return False
    first_part = next(iter(mappings(entry, "content")), {})
    return str(first_part.get("text", "")).lstrip().startswith(_OF_PROGRAM)


FORMAT = Format("a Codex session", read, {"payload"}, group=group)
