"""Codex: a session's JSON lines, whose response items are those of OpenAI's Responses."""

from collections.abc import Mapping
from typing import Any

from .base import Chat, Format, mapping, mappings, text
from .responses import as_messages, is_item

_GIVEN = (
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
    """The response items of one session, without those by which the program tells the agent where it is."""
    lines = mappings(value, "lines")
    if all(group(line) is None for line in lines):
        return None
    items = [mapping(line, "payload") for line in lines if line.get("type") == "response_item"]
    own = []
    for item in items:
        first = next(iter(mappings(item, "content")), {})
        # what the program wrote in the user's name
        if item.get("role") != "user" or not str(first.get("text", "")).lstrip().startswith(_GIVEN):
            own.append(item)
    kept = [item for item in own if text(item.get("role")) or is_item(item)]
    name = next(
        (
            mapping(line, "payload").get("id")
            for line in lines
            if line.get("type") == "session_meta"
        ),
        "",
    )
    return Chat(
        as_messages(kept),
        id=str(name or ""),
        left_out={"items of other kinds": len(own) - len(kept)},
    )


FORMAT = Format("a Codex session", read, {"payload"}, group=group)
