"""inspect_ai: the samples of a log, of `.eval` (a zip of them) and `.json` alike."""

from collections.abc import Mapping
from typing import Any

from .base import Chat, Format, Messages, mapping, mappings, text
from .call_texts import hands_in
from .messages import is_chat


def read(value: Any) -> Chat | None:
    """One sample, an `EvalSample`, with what was stored apart from its messages; its target is the
    gold answer.
    """
    if not {"messages", "epoch", "target"} <= mapping(value).keys():
        return None
    attachments = {
        f"attachment://{name}": attached for name, attached in mapping(value, "attachments").items()
    }

    def field(name: str) -> Any:
        return _restored(value.get(name), attachments) if attachments else value.get(name)

    messages = field("messages")
    if not is_chat(messages):
        return None
    target = field("target")
    golds = target if isinstance(target, list) else [target]
    submits = [event for event in mappings(value, "events") if hands_in(event.get("function"))]
    if submits:
        submit = _restored(submits[-1], attachments) if attachments else submits[-1]
        messages = _with_submit(list(messages), submit)
    return Chat(
        list(messages),
        question=text(field("input")),
        answers=[gold for gold in golds if gold not in (None, "")],  # "" is no target
        id=str(value.get("id", "")),
    )


def _with_submit(messages: Messages, event: Mapping[str, Any]) -> Messages:
    """Restore the call that handed in the answer, which inspect's `react` agent deletes when it
    appends the answer to the text of the last message.
    """
    last = messages[-1]
    answer = text(next(iter(mapping(event, "arguments").values()), None))
    content = last.get("content")
    if not isinstance(content, list) or not content:
        content = [content]
    *before, tail = content
    words = text(tail.get("text") if isinstance(tail, Mapping) else tail)
    if last.get("tool_calls") or answer is None or words is None or not words.endswith(answer):
        return messages
    without_answer = {"type": "text", "text": words.removesuffix(answer).strip()}
    restored = {
        **last,
        "content": [*before, without_answer],
        "tool_calls": [{"function": event["function"], "arguments": {"answer": answer}}],
    }
    return [*messages[:-1], restored]


def _restored(value: Any, attachments: Mapping[str, Any]) -> Any:
    """The value with every text that stands for an attachment replaced."""
    if isinstance(value, str):
        return attachments.get(value, value)
    if isinstance(value, dict):
        return {name: _restored(inner, attachments) for name, inner in value.items()}
    if isinstance(value, list):
        return [_restored(inner, attachments) for inner in value]
    return value


FORMAT = Format("an inspect_ai sample", read, {"epoch", "target", "eval"})
