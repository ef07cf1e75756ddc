"""LangChain and LangGraph: messages as `dumpd`, `messages_to_dict` or `model_dump` write them, in a
state or alone.
"""

from collections.abc import Mapping
from typing import Any

from .base import Chat, Format, Messages, mapping, mappings, text
from .messages import is_chat

_PLACES = ("messages", "values", "output", "outputs", "state", "channel_values")


def read(value: Any) -> Chat | None:
    """A list of dumped messages, a graph's state that holds one, or an executor's intermediate
    steps.
    """
    steps = mapping(value).get("intermediate_steps")
    if isinstance(steps, list | tuple):
        return _executed(mapping(value), steps)
    for _ in _PLACES:
        if isinstance(value, Mapping):
            filled = [name for name in _PLACES if isinstance(value.get(name), dict | list)]
            value = value[filled[0]] if filled else None
    dumps = mappings(value, pure=True)
    messages = [_plain(dump) for dump in dumps]
    # A message of LangChain's names its type instead of a role.
    typed = any("role" not in dump and "type" in dump for dump in dumps)
    dumped = any(plain is not dump for plain, dump in zip(messages, dumps, strict=True))
    return Chat(messages) if (typed or dumped) and is_chat(messages) else None


def _plain(dump: Mapping[str, Any]) -> Mapping[str, Any]:
    """The fields of a dumped message or action; what is no dump is returned itself."""
    if dump.get("type") == "constructor" and isinstance(dump.get("kwargs"), Mapping):
        names = dump.get("id")
        kind = str(names[-1]) if isinstance(names, list) and names else ""
        kind = kind.removesuffix("Chunk").removesuffix("Message").lower()
        return {"type": kind, **dump["kwargs"]}
    data = mapping(dump, "data")
    return {"type": dump.get("type"), **data} if "content" in data else dump


def _executed(value: Mapping[str, Any], steps: Any) -> Chat | None:
    """What an `AgentExecutor` returns: actions with their observations, and the output."""
    messages: Messages = [{"role": "user", "content": text(value.get("input")) or ""}]
    for step in steps:
        is_pair = isinstance(step, list | tuple) and len(step) == 2
        action, observation = step if is_pair else (None, None)
        fields = _plain(mapping(action))
        if "tool" not in fields:
            return None
        arguments = fields.get("tool_input")
        if isinstance(arguments, str):
            arguments = {"query": arguments}
        call = {"name": fields["tool"], "arguments": arguments}
        thought, _, _ = (text(fields.get("log")) or "").partition("\nAction:")
        thought = thought.removeprefix("Thought:").strip()
        messages.append({"role": "assistant", "content": thought, "tool_calls": [call]})
        messages.append({"role": "tool", "content": observation})
    output = text(value.get("output"))
    if output:
        messages.append({"role": "assistant", "content": output})
    return Chat(messages)


FORMAT = Format("LangChain messages", read, {"intermediate_steps", "lc"})
