"""LangChain and LangGraph: messages as `dumpd`, `messages_to_dict` or `model_dump` write them, in a
state or alone.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from .base import Chat, Format, Messages, mapping, mappings, text
from .messages import is_chat

_UPDATED = frozenset(("ai", "tool", "AIMessageChunk"))
_NODES = frozenset(("agent", "model", "tools", "call_model", "call_tool", "chatbot", "action"))
_PLACES = ("messages", "values", "output", "outputs", "state", "channel_values")


def group(value: Any) -> str | None:
    """An update of a graph, of which a stream has one a line: the node that ran, and the messages
    that it added. Nodes of other names may be columns of rows. Of a snapshot of a thread's state
    the thread.
    """
    fields = mapping(value)
    if _is_snapshot(fields):
        thread = mapping(fields, "config", "configurable").get("thread_id")
        return None if thread is None else str(thread)
    if len(fields) != 1 or not fields.keys() <= _NODES:
        return None
    messages = _updates(fields)
    names = {str(message.get("type")) for message in messages}
    return "" if names and names <= _UPDATED else None


def _updates(fields: Mapping[str, Any]) -> Messages:
    return [message for node in fields.values() for message in mappings(node, "messages")]


def read(value: Any) -> Chat | None:
    """A list of dumped messages, a graph's state that holds one, or an executor's intermediate
    steps.
    """
    lines = mappings(value, "lines", pure=True)
    if lines and _is_snapshot(lines[0]):
        value = lines
    elif lines and group(lines[0]) is not None:
        value = [message for line in lines for message in _updates(line)]
    state = _last_state(mappings(value, pure=True))
    value = state or value
    steps = mapping(value).get("intermediate_steps")
    if isinstance(steps, list | tuple):
        return _executed(mapping(value), steps)
    for _ in _PLACES:  # one inside the other, each once at the most
        if isinstance(value, Mapping):
            value = _in_place(value)
    dumps = mappings(value, pure=True)
    messages = [_plain(dump) for dump in dumps]
    # A message of LangChain's names its type instead of a role.
    has_types = any("role" not in dump and "type" in dump for dump in dumps)
    is_dumped = any(plain is not dump for plain, dump in zip(messages, dumps, strict=True))
    if (has_types or is_dumped or state) and is_chat(messages):
        return Chat(messages)
    return None


def _is_snapshot(fields: Mapping[str, Any]) -> bool:
    """Whether this is the state of a thread at one time, as `get_state_history` gives it."""
    return "next" in fields and "messages" in mapping(fields, "values")


def _last_state(snapshots: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    """Of the snapshots of a thread's states the one with most messages: each has all of the one
    before it, and the newest may stand first. Empty for a list of anything else.
    """
    states = [mapping(snapshot, "values") for snapshot in snapshots]
    if not states or not all(map(_is_snapshot, snapshots)):
        return {}
    return max(states, key=lambda state: len(mappings(state, "messages")))


def _in_place(state: Mapping[str, Any]) -> Any:
    """What stands in the first place of a state that holds messages, or another state."""
    for name in _PLACES:
        if isinstance(state.get(name), dict | list):
            return state[name]
    return None


def _plain(dump: Mapping[str, Any]) -> Mapping[str, Any]:
    """The fields of a dumped message or action; what is no dump is returned itself."""
    if dump.get("type") == "constructor" and isinstance(dump.get("kwargs"), Mapping):
        path = dump.get("id")  # of the class, such as ["langchain", "schema", "HumanMessage"]
        class_name = str(path[-1]) if isinstance(path, list) and path else ""
        kind = class_name.removesuffix("Chunk").removesuffix("Message").lower()
        return {"type": kind, **dump["kwargs"]}
    data = mapping(dump, "data")
    if "content" in data:
        return {"type": dump.get("type"), **data}
    return dump


def _executed(value: Mapping[str, Any], steps: Any) -> Chat | None:
    """What an `AgentExecutor` returns: actions with their observations, and the output."""
    messages: Messages = [{"role": "user", "content": text(value.get("input")) or ""}]
    for step in steps:
        if not isinstance(step, list | tuple) or len(step) != 2:
            return None
        action, observation = step
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


FORMAT = Format("LangChain messages", read, {"intermediate_steps", "lc"}, group=group)
