"""A chat whose messages are the lines of a file, or the elements of its array:
`json.dump(messages)`.

Where messages name their conversation, those of one name are one chat; without such a field all
are.
"""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any

from .. import loose_json
from ..errors import DataError
from .base import Chat, Format, mapping, mappings, reread
from .messages import is_chat

_CONVERSATIONS = (
    *("conversation_id", "session_id", "thread_id", "chat_id", "dialog_id", "trace_id"),
    *("conversationId", "sessionId", "threadId", "chatId"),
    *("run_id", "runId", "episode_id", "rollout_id"),
)
_OPENING = frozenset(("system", "developer", "user", "human"))
_CONTENTS = ("content", "parts", "value")


def group(value: Any) -> str | None:
    """The conversation of a message. Only one that opens a chat tells that a file is one."""
    fields = mapping(value)
    if _item_of(fields):
        return str(fields["session_id"])
    if not is_chat([fields]) or not any(name in fields for name in _CONTENTS):
        return None
    names = [fields[name] for name in _CONVERSATIONS if fields.get(name) not in (None, "")]
    named = str(names[0]) if names else None
    return "" if named is None and _opens(fields) else named


def _item_of(line: Mapping[str, Any]) -> Mapping[str, Any]:
    """The item in a row of a session of OpenAI's Agents SDK, which keeps its JSON; empty for any
    other line.
    """
    stored = line.get("message_data")
    if isinstance(stored, str) and "session_id" in line:
        with suppress(DataError):
            return mapping(loose_json.decode(stored))
    return {}


def _opens(message: Mapping[str, Any]) -> bool:
    role = message.get("role", message.get("from", message.get("type")))
    return isinstance(role, str) and role.casefold() in _OPENING


def read(value: Any) -> Chat | None:
    """The lines of one conversation."""
    lines = mappings(value, "lines")
    if not lines or group(lines[0]) is None:
        return None
    # Calls and results may stand between the messages, as in OpenAI's items
    chat = reread([_item_of(line) or line for line in lines])
    name = next((name for name in map(group, lines) if name), "")
    return None if chat is None else replace(chat, id=chat.id or name)


FORMAT = Format("a chat of which each line is a message", read, group=group)
