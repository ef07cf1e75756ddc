"""What people export from ChatGPT and Claude, and threads of OpenAI's Assistants.

| export | a conversation |
|---|---|
| ChatGPT, `conversations.json` | `mapping`: messages in a tree; the branch that was shown last counts |
| Claude, `conversations.json` | `chat_messages` |
| Assistants | `{"object": "list", "data": […]}` of `thread.message`, the newest first |
"""

from collections.abc import Mapping
from typing import Any

from .base import Chat, Format, Messages, mapping, mappings, text

_THREAD = "thread.message"


def read(value: Any) -> Chat | None:
    """One conversation of any of these exports."""
    fields = mapping(value)
    if mapping(fields, "mapping"):
        return _chatgpt(fields)
    if mappings(fields, "chat_messages"):
        return _claude(fields)
    thread = mappings(fields, "data")
    if thread and all(message.get("object") == _THREAD for message in thread):
        return Chat(sorted(thread, key=lambda message: message.get("created_at") or 0))
    return None


def _chatgpt(fields: Mapping[str, Any]) -> Chat | None:
    nodes = mapping(fields, "mapping")
    path = []
    seen: set[str] = set()
    name = fields.get("current_node") or next(reversed(list(nodes)), None)
    while isinstance(name, str) and name in nodes and name not in seen:
        seen.add(name)
        path.append(mapping(nodes, name))
        name = path[-1].get("parent")
    messages: Messages = []
    for node in reversed(path):
        messages += _chatgpt_message(mapping(node, "message"))
    left_out = len(nodes) - len(path)
    return Chat(
        messages,
        id=text(fields.get("conversation_id")) or text(fields.get("id")) or "",
        left_out={"messages of other branches": left_out},
    )


def _chatgpt_message(message: Mapping[str, Any]) -> Messages:
    """The message; what is hidden or empty is none."""
    role = mapping(message, "author").get("role")
    content = mapping(message, "content")
    metadata = mapping(message, "metadata")
    if not isinstance(role, str) or metadata.get("is_visually_hidden_from_conversation"):
        return []
    parts = content.get("parts")
    listed = parts if isinstance(parts, list) else [content.get("text") or content.get("result")]
    words = "\n".join(part for part in listed if isinstance(part, str) and part)
    if role == "assistant" and content.get("content_type") == "code":
        function = {"name": message.get("recipient") or "code", "arguments": {"input": words}}
        return [
            {
                "role": role,
                "content": "",
                "tool_calls": [{"type": "function", "function": function}],
            }
        ]
    if role == "assistant" and content.get("content_type") in ("thoughts", "reasoning_recap"):
        thoughts = [text(thought.get("content")) for thought in mappings(content, "thoughts")]
        return [
            {"role": role, "content": "", "reasoning_content": "\n".join(filter(None, thoughts))}
        ]
    return [{"role": role, "content": words}] if words else []


def _claude(fields: Mapping[str, Any]) -> Chat:
    messages: Messages = []
    for message in mappings(fields, "chat_messages"):
        role = "user" if message.get("sender") == "human" else "assistant"
        content = message.get("content")
        messages.append({"role": role, "content": content or message.get("text") or ""})
    return Chat(messages, id=text(fields.get("uuid")) or "")


FORMAT = Format(
    "a conversation exported from ChatGPT or Claude, or an Assistants thread",
    read,
    frozenset(("mapping", "current_node", "chat_messages", "conversation_id")),
)
