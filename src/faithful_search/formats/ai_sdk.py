"""What the AI SDK's `generateText` returns: `steps`, each with what the model wrote and what its
tools returned, and the `text` beside them.
"""

from collections.abc import Mapping
from typing import Any

from .base import Chat, Format, Messages, mapping, mappings, text
from .message_parts import speaker
from .messages import is_chat

_CALLS = (("toolCalls", "tool-call"), ("toolResults", "tool-result"))
_OF_STEP = frozenset(("finishReason", "toolCalls", "toolResults", "stepType"))


def read(value: Any) -> Chat | None:
    """A result with its steps; what was asked stands beside them, as a text or as messages. Messages
    in which the agent spoke last hold the steps already.
    """
    fields = mapping(value)
    steps = mappings(fields, "steps", pure=True)
    if not steps or not all(_OF_STEP & step.keys() for step in steps):
        return None
    messages: Messages = _asked(fields)
    is_whole = bool(messages) and speaker(messages[-1]) == "assistant"
    for step in [] if is_whole else steps:
        content = mappings(step, "content") or _content(step)
        if content:
            messages.append({"role": "assistant", "content": content})
    return Chat(messages, agents=frozenset(("text",)))


def _asked(fields: Mapping[str, Any]) -> Messages:
    for name in ("messages", "prompt"):
        request = fields.get(name)
        if is_chat(request):
            return mappings(request)
    prompt = text(fields.get("prompt"))
    return [{"role": "user", "content": prompt}] if prompt else []


def _content(step: Mapping[str, Any]) -> Messages:
    """What an older version keeps apart, in the form of the newer one."""
    content: Messages = []
    if text(step.get("reasoning")):
        content.append({"type": "reasoning", "text": step["reasoning"]})
    if text(step.get("text")):
        content.append({"type": "text", "text": step["text"]})
    for name, kind in _CALLS:
        content += [{**entry, "type": kind} for entry in mappings(step, name)]
    return content


FORMAT = Format("a result of the AI SDK", read, frozenset(("finishReason", "toolResults")))
