"""Weave: the calls of a trace, a line each, of which some are of a model."""

from collections.abc import Mapping
from typing import Any

from .base import Chat, Format, mapping, mappings, text
from .messages import is_chat
from .model_calls import Recorded, calls_apart, conversation

# What the operations are called that call a model
_MODELS = ("completions", "messages.create", "responses.create", "generate_content", "converse")


def group(value: Any) -> str | None:
    """The trace of a call."""
    fields = mapping(value)
    if not {"op_name", "inputs", "output"} <= fields.keys():
        return None
    return text(fields.get("trace_id"))


def read(value: Any) -> Chat | None:
    """The calls of one trace."""
    lines = mappings(value, "lines", pure=True)
    if not lines or any(group(line) is None for line in lines):
        return None
    models = [_recorded(line) for line in lines if _is_of_model(line)]
    messages = conversation(models)
    if not is_chat(messages):
        return None
    left_out = {"calls of a model in another conversation": calls_apart(models, messages)}
    return Chat(messages, id=group(lines[0]) or "", left_out=left_out)


def _is_of_model(call: Mapping[str, Any]) -> bool:
    return any(name in str(call["op_name"]).casefold() for name in _MODELS)


def _recorded(call: Mapping[str, Any]) -> Recorded:
    choices = mappings(call["output"], "choices")
    output = mapping(choices[0], "message") if choices else call["output"]
    return Recorded(call["inputs"], output, str(call.get("started_at") or ""))


FORMAT = Format(
    "Weave calls",
    read,
    frozenset(("op_name", "inputs")),
    "no call of a model among them holds messages",
    group,
)
