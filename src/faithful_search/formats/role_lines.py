"""A conversation as one text, whose lines name the speakers: `user: …`, `assistant: …`.

AutoGen records what it sends to a model so, people paste chats so, and logs print them so.
"""

import re
from typing import Any

from .base import Chat, Format, Messages

_ROLES = {
    "system": "system",
    "user": "user",
    "human": "user",
    "assistant": "assistant",
    "ai": "assistant",
    "agent": "assistant",
    "bot": "assistant",
    "tool": "tool",
    "tool result": "tool",
    "tool response": "tool",
    "observation": "tool",
    "function": "tool",
}
# The name of a speaker behind it is left out: `assistant (to user):`, `user_proxy` is no role.
_HEAD = re.compile(
    rf"^[*#> ]{{0,4}}(?P<role>{'|'.join(sorted(_ROLES, key=len, reverse=True))})"
    r"(?: ?\([^()\n]{1,60}\))?[*]{0,2}:[*]{0,2}[ \t]*",
    re.IGNORECASE | re.MULTILINE,
)


def messages_in(text: str) -> Messages:
    """The messages of such a text; none where it does not begin with a system's or user's line.

    Example:
        >>> messages_in("User: Who?\\nAssistant: Ada")
        [{'role': 'user', 'content': 'Who?'}, {'role': 'assistant', 'content': 'Ada'}]
    """
    heads = list(_HEAD.finditer(text))
    if not heads or text[: heads[0].start()].strip():
        return []
    starts = [head.start() for head in heads]
    messages: Messages = []
    for head, end in zip(heads, [*starts[1:], len(text)], strict=True):
        role = _ROLES[head["role"].lower()]
        content = text[head.end() : end].strip()
        messages.append({"role": role, "content": content})
    roles = [message["role"] for message in messages]
    if roles[0] == "assistant" or "user" not in roles:
        return []
    return messages


def read(value: Any) -> Chat | None:
    """A text of such lines with a question and an answer."""
    messages = messages_in(value) if isinstance(value, str) else []
    if not any(message["role"] == "assistant" for message in messages):
        return None
    return Chat(messages, of_text=True)


FORMAT = Format("a text whose lines name the speakers", read)
