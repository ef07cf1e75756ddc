"""Tasks of the Agent2Agent protocol, as a server stores and returns them.

What an agent hands over stands in `artifacts`, apart from the `history` of what was said and from
the message in the `status`. All of it is the agent's: an artifact is no evidence.
"""

from collections.abc import Mapping
from typing import Any

from .base import Chat, Format, Messages, mapping, mappings, text
from .message_parts import speaker

_CONTEXT = ("contextId", "context_id")
_ROLE = "ROLE_"  # before roles in JSON that Protocol Buffers write
_PARTS = ("text", "data", "file", "url", "raw")  # what a part without a kind may hold


def read(value: Any) -> Chat | None:
    """The history of a task, what its status says, and its artifacts, each a message."""
    fields = mapping(value)
    status = mapping(fields, "status")
    is_task = fields.get("kind") == "task" or any(name in fields for name in _CONTEXT)
    if not is_task or text(status.get("state")) is None:
        return None
    messages: Messages = [_message(message) for message in mappings(fields, "history")]
    last = _message(mapping(status, "message"))
    if last.get("content") and last not in messages:
        messages.append(last)
    artifacts: Messages = []
    for artifact in mappings(fields, "artifacts"):
        artifacts.append({"role": "assistant", "content": _parts(artifact)})
    if any(_says_something(artifact) for artifact in artifacts):
        messages = _reply_as_commentary(messages)
    return Chat([*messages, *artifacts])


def _message(message: Mapping[str, Any]) -> dict[str, Any]:
    """A message of the protocol as a chat has it."""
    role = message.get("role")
    if isinstance(role, str):
        role = role.removeprefix(_ROLE)
    return {"role": role, "content": _parts(message)}


def _parts(holder: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The parts of a message or an artifact, each with its type."""
    parts = []
    for part in mappings(holder, "parts") or mappings(holder, "content"):
        kind = part.get("kind") or part.get("type")
        if not kind:
            kind = next((name for name in _PARTS if name in part), "nothing")
        parts.append({**part, "type": kind})
    return parts


def _says_something(message: Mapping[str, Any]) -> bool:
    return any(text(part.get("text")) for part in message["content"])


def _reply_as_commentary(messages: Messages) -> Messages:
    """The messages, in which those after the user's last are marked as commentary: the answer is
    in the artifacts, and these were said on the way to them.
    """
    users = [number for number, message in enumerate(messages) if speaker(message) == "user"]
    start = users[-1] + 1 if users else 0
    comments = [{**message, "phase": "commentary"} for message in messages[start:]]
    return [*messages[:start], *comments]


FORMAT = Format(
    "a task of the Agent2Agent protocol",
    read,
    frozenset(("artifacts", *_CONTEXT)),
    "it needs a status with a state, and a history or artifacts",
)
