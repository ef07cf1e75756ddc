"""Langfuse: a trace and its observations, of which the generations are calls of a model."""

from collections.abc import Mapping
from typing import Any

from .base import Chat, Format, mapping, mappings, text
from .messages import is_chat
from .model_calls import Recorded, conversation

_MODELS, _TOOLS = ("GENERATION",), ("TOOL", "RETRIEVER")


def read(value: Any) -> Chat | None:
    """An export of one trace: `{"trace": …, "observations": […]}`, or a trace with observations."""
    fields = mapping(value)
    observations = mappings(fields, "observations", pure=True)
    if not observations or not all("type" in observation for observation in observations):
        return None
    trace = mapping(fields, "trace") or fields
    models = [_recorded(each) for each in observations if each["type"] in _MODELS]
    tools = [_recorded(each) for each in observations if each["type"] in _TOOLS]
    messages = conversation(models, tools, trace.get("input"))
    if not is_chat(messages):
        return None
    return Chat(messages, id=text(trace.get("id")) or "")


def _recorded(observation: Mapping[str, Any]) -> Recorded:
    return Recorded(
        input=observation.get("input"),
        output=observation.get("output"),
        time=str(observation.get("startTime") or observation.get("start_time") or ""),
        name=str(observation.get("name") or ""),
    )


FORMAT = Format(
    "a Langfuse export with observations",
    read,
    frozenset(("observations", "trace")),
    "no observation of type GENERATION holds messages",
)
