"""AutoGen's AgentChat: the messages and events of a run, in a result or alone.

| type | what becomes of it |
|---|---|
| `TextMessage`, `MultiModalMessage`, `StructuredMessage` | a message of its source |
| `ThoughtEvent` | a thought |
| `ToolCallRequestEvent`, `ToolCallExecutionEvent` | calls, and their results |
| `ToolCallSummaryMessage` | the answer where it is the last message; else what the results say |
| `MemoryQueryEvent` | a search of the memory, with what was found |

Messages of any other type are left out and counted, as is why a condition stopped the run (a
`StopMessage` of a source that says nothing else).
"""

from collections.abc import Mapping
from typing import Any

from .base import Chat, Format, Messages, mapping, mappings, text
from .searches import passage, search

_STOP = "StopMessage"
_SPOKEN = ("TextMessage", "MultiModalMessage", "StructuredMessage", _STOP)
_USERS = ("user", "user_proxy")  # names of who asks
_SUMMARY = "ToolCallSummaryMessage"
_REQUEST, _EXECUTION = "ToolCallRequestEvent", "ToolCallExecutionEvent"
_THOUGHT, _MEMORY = "ThoughtEvent", "MemoryQueryEvent"
_SHOWS = frozenset((_REQUEST, _EXECUTION, _SUMMARY, _THOUGHT, _MEMORY, "TextMessage"))


def read(value: Any) -> Chat | None:
    """The messages of a run, in the order in which they were sent."""
    entries = mappings(value, pure=True) or mappings(value, "messages", pure=True)
    if not entries or not all(text(entry.get("type")) and "source" in entry for entry in entries):
        return None
    if all(entry["type"] not in _SHOWS for entry in entries):
        return None
    before_stop = [entry for entry in entries if entry["type"] != _STOP] or entries
    last = before_stop[-1]
    speakers = [entry["source"] for entry in before_stop]
    messages: Messages = []
    unknown = 0
    for number, entry in enumerate(entries):
        if entry["type"] == _SUMMARY and entry is not last:
            continue  # the results once more
        is_of_condition = entry["type"] == _STOP and entry["source"] not in speakers
        of_entry = [] if is_of_condition else _messages(entry, number)
        messages += of_entry
        unknown += not of_entry
    return Chat(messages, left_out={"messages of AutoGen of another type": unknown})


def _messages(entry: Mapping[str, Any], number: int) -> Messages:
    """One message or event, whose number among all of them is this; none for another type."""
    kind, content = entry["type"], entry.get("content")
    role = "user" if entry["source"] in _USERS else "assistant"
    if kind in (*_SPOKEN, _SUMMARY):
        return [{"role": role, "content": content}]
    if kind == _THOUGHT:
        return [{"role": "assistant", "reasoning_content": content}]
    if kind == _REQUEST:
        return [{"role": "assistant", "content": None, "tool_calls": mappings(content)}]
    if kind == _EXECUTION:
        results: Messages = []
        for result in mappings(content):
            results.append({**result, "role": "tool", "tool_call_id": result.get("call_id")})
        return results
    if kind == _MEMORY:
        passages = []
        for memory in mappings(content):
            source = mapping(memory, "metadata")
            passages.append(passage(source, memory.get("content")))
        return search("memory", {}, passages, f"memory {number}")
    return []


FORMAT = Format("a run of AutoGen", read, frozenset(("models_usage",)))
