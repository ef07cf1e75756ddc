"""inspect_ai: the samples of a log, of `.eval` (a zip of them) and `.json` alike."""

from collections.abc import Mapping
from typing import Any

from .base import Chat, Format, Messages, mapping, mappings, text
from .messages import ANSWERING, is_chat


def read(value: Any) -> Chat | None:
    """One sample, an `EvalSample`, with what was stored apart from its messages; its target is the gold answer."""
    if not {"messages", "epoch", "target"} <= mapping(value).keys():
        return None
    events = [
        event for event in mappings(value, "events") if text(event.get("function")) in ANSWERING
    ]
    kept = {f"attachment://{name}": item for name, item in mapping(value, "attachments").items()}
    given = [value["messages"], value.get("input"), value["target"], events]
    messages, asked, target, events = _restored(given, kept) if kept else given
    if not is_chat(messages):
        return None
    return Chat(_handed(list(messages), events), text(asked), target, str(value.get("id", "")))


def _handed(messages: Messages, events: list[Mapping[str, Any]]) -> Messages:
    """With the call that handed in the answer: `react` takes it out, and writes the answer behind the text."""
    last, event = messages[-1], events[-1] if events else {}
    answer = text(next(iter(mapping(event, "arguments").values()), None))
    said = last.get("content")
    *before, tail = said if isinstance(said, list) and said else [said]
    words = text(tail.get("text") if isinstance(tail, Mapping) else tail)
    if last.get("tool_calls") or answer is None or words is None or not words.endswith(answer):
        return messages
    call = {"function": event["function"], "arguments": {"answer": answer}}
    content = [*before, {"type": "text", "text": words.removesuffix(answer).strip()}]
    return [*messages[:-1], {**last, "content": content, "tool_calls": [call]}]


def _restored(item: Any, kept: Mapping[str, Any]) -> Any:
    """The value with every text that stands for an attachment replaced."""
    if isinstance(item, str):
        return kept.get(item, item)
    if isinstance(item, dict):
        return {name: _restored(inner, kept) for name, inner in item.items()}
    return [_restored(inner, kept) for inner in item] if isinstance(item, list) else item


FORMAT = Format("an inspect_ai sample", read, {"epoch", "target", "eval"})
