"""Claude Code: a session's JSON lines, each a message or a note of the program's; as it stores
them, and as `claude -p --output-format stream-json` and the Agent SDK print them.
"""

from collections.abc import Mapping
from typing import Any

from .base import Chat, Format, Messages, mapping, mappings, text
from .messages import is_chat

_MARKS = frozenset({"sessionId", "leafUuid", "parentUuid", "isSnapshotUpdate"})
_PRINTED = frozenset({"system", "user", "assistant", "result", "stream_event"})


def group(value: Any) -> str | None:
    """All lines of a stored session are one episode; printed ones say which they are of."""
    fields = mapping(value)
    if not isinstance(fields.get("type"), str):
        return None
    if fields.keys() & _MARKS:
        return ""
    return text(fields.get("session_id")) if fields["type"] in _PRINTED else None


def read(value: Any) -> Chat | None:
    """The messages of one session, without those of sub-agents and those that the program wrote for
    itself.
    """
    lines = mappings(value, "lines")
    if all(group(line) is None for line in lines):
        return None
    messages: Messages = []
    of_sub_agents = failures = 0
    session = ""
    for line in lines:
        session = session or text(line.get("sessionId")) or text(line.get("session_id")) or ""
        if line.get("isMeta") or not is_chat([line.get("message")]):
            continue
        if _of_sub_agent(line):
            of_sub_agents += 1
        elif line.get("isApiErrorMessage"):
            failures += 1
        else:
            messages.append(line["message"])
    left_out = {
        "messages of sub-agents": of_sub_agents,
        "messages of the program that the API failed": failures,
    }
    return Chat(messages, id=session, left_out=left_out)


def _of_sub_agent(line: Mapping[str, Any]) -> bool:
    return bool(line.get("isSidechain") or line.get("parent_tool_use_id"))


FORMAT = Format("a Claude Code session", read, _MARKS, group=group)
