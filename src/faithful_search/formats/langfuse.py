"""Langfuse: a trace and its observations, of which the generations are calls of a model."""

from collections.abc import Mapping, Sequence
from typing import Any

from .base import Chat, Format, mapping, mappings, text
from .messages import is_chat
from .model_calls import Recorded, calls_apart, conversation

_KINDS = frozenset(("GENERATION", "TOOL", "RETRIEVER", "AGENT", "SPAN", "CHAIN", "EVENT"))
_MODELS, _TOOLS = ("GENERATION",), ("TOOL", "RETRIEVER")


def read(value: Any) -> Chat | None:
    """An export of one trace: `{"trace": …, "observations": […]}`, a trace with observations, or
    observations of which each is a line.
    """
    fields = mapping(value)
    observations = mappings(fields, "observations", pure=True)
    lines = mappings(fields, "lines", pure=True)
    if lines and all(group(line) is not None for line in lines):
        return _conversation({"id": group(lines[0])}, lines)
    if not observations or not all("type" in observation for observation in observations):
        return None
    return _conversation(mapping(fields, "trace") or fields, observations)


def group(value: Any) -> str | None:
    """The trace of an observation."""
    fields = mapping(value)
    if fields.get("type") not in _KINDS or not {"input", "output"} <= fields.keys():
        return None
    return text(fields.get("traceId")) or text(fields.get("trace_id"))


def _conversation(
    trace: Mapping[str, Any], observations: Sequence[Mapping[str, Any]]
) -> Chat | None:
    """What the calls of a model among these observations of the trace said."""
    models = [_recorded(each) for each in observations if each["type"] in _MODELS]
    tools = [_recorded(each) for each in observations if each["type"] in _TOOLS]
    messages = conversation(models, tools, trace.get("input"))
    if not is_chat(messages):
        return None
    left_out = {"calls of a model in another conversation": calls_apart(models, messages)}
    return Chat(messages, id=text(trace.get("id")) or "", left_out=left_out)


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
    group,
)
