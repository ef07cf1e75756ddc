"""LangChain and LangGraph: messages as `dumpd`, `messages_to_dict` or `model_dump` write them, in a state or alone."""

from collections.abc import Mapping
from typing import Any

from .base import Chat, Format, Messages, mapping, mappings, text
from .messages import is_chat

_PLACES = ("messages", "values", "output", "outputs", "state", "channel_values")


def read(value: Any) -> Chat | None:
    """A list of dumped messages, a graph's state that holds one, or an executor's intermediate steps."""
    steps = mapping(value).get("intermediate_steps")
    if isinstance(steps, list | tuple):
        return _executed(mapping(value), steps)
    for _ in _PLACES:
        if isinstance(value, Mapping):
            value = next(
                (value[name] for name in _PLACES if isinstance(value.get(name), dict | list)), None
            )
    given = mappings(value, pure=True)
    found = [_plain(item) for item in given]
    # A message of LangChain's names its type instead of a role.
    typed = any("role" not in item and "type" in item for item in given)
    dumped = any(plain is not item for plain, item in zip(found, given, strict=True))
    return Chat(found) if (typed or dumped) and is_chat(found) else None


def _plain(item: Mapping[str, Any]) -> Mapping[str, Any]:
    if item.get("type") == "constructor" and isinstance(item.get("kwargs"), Mapping):
        names = item.get("id")
        kind = str(names[-1]) if isinstance(names, list) and names else ""
        return {
            "type": kind.removesuffix("Chunk").removesuffix("Message").lower(),
            **item["kwargs"],
        }
    inner = mapping(item, "data")
    return {"type": item.get("type"), **inner} if "content" in inner else item


def _executed(value: Mapping[str, Any], steps: Any) -> Chat | None:
    """What an `AgentExecutor` returns: actions with their observations, and the output."""
    messages: Messages = [{"role": "user", "content": text(value.get("input")) or ""}]
    for step in steps:
        action, seen = step if isinstance(step, list | tuple) and len(step) == 2 else (None, None)
        fields = _plain(mapping(action))
        if "tool" not in fields:
            return None
        given = fields.get("tool_input")
        called = {
            "name": fields["tool"],
            "arguments": {"query": given} if isinstance(given, str) else given,
        }
        thought = (
            (text(fields.get("log")) or "")
            .partition("\nAction:")[0]
            .removeprefix("Thought:")
            .strip()
        )
        messages.append({"role": "assistant", "content": thought, "tool_calls": [called]})
        messages.append({"role": "tool", "content": seen})
    if said := text(value.get("output")):
        messages.append({"role": "assistant", "content": said})
    return Chat(messages)


FORMAT = Format("LangChain messages", read, {"intermediate_steps", "lc"})
