"""OpenTelemetry: the spans of a model's calls, with their messages in attributes
(`gen_ai.input.messages`, OpenInference's `llm.input_messages`, as Phoenix exports them, or
OpenLLMetry's `gen_ai.prompt.0.role`, as AgentOps and Agent-Lightning keep them).
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from .. import loose_json
from ..errors import DataError
from . import openinference, openllmetry
from .base import Chat, Format, first, mapping, mappings
from .model_calls import Recorded, calls_apart, conversation

_INPUT, _OUTPUT = "gen_ai.input.messages", "gen_ai.output.messages"
_ALL = "pydantic_ai.all_messages"
_DOCUMENTS = "gen_ai.retrieval.documents"
_STARTS = ("start_time", "startTimeUnixNano", "start_time_unix_nano", "startTime")
_ENDS = ("end_time", "endTimeUnixNano", "end_time_unix_nano", "endTime")
_NEEDS = (
    f"no span has {_INPUT}, llm.input_messages or gen_ai.prompt.0.content; let the instrumentation "
    "record the messages' content"
)


def group(value: Any) -> str | None:
    """The trace of a line's spans; an export with several traces is a group of its own."""
    traces = {_trace(span) for span in _spans(value)}
    return "" if len(traces) > 1 else next(iter(traces), None)


def read(value: Any) -> Chat | None:
    """The conversation in spans: one, an export of several, or those of one trace."""
    spans = [span for line in mappings(value, "lines") or [value] for span in _spans(line)]
    traces = list(dict.fromkeys(map(_trace, spans)))
    models: list[Recorded] = []
    tools: dict[str, Recorded] = {}  # by the ids of their spans
    for span in spans:
        attributes = _attributes(span)
        call = _call(attributes)
        tool = _tool(attributes) if call is None else None
        if call is not None:
            models.append(Recorded(*call, time=_time(span, _ENDS)))
            traces = [_trace(span), *traces] if len(models) == 1 else traces
        elif tool is not None and _parent(span) not in tools:  # a tool may run another one
            name, sent, returned = tool
            call_id = str(attributes.get("gen_ai.tool.call.id") or "")
            ran = Recorded(sent, returned, _time(span, _STARTS), name, id=call_id)
            tools[_identity(span)] = ran
    if not models:
        return _of_agent(spans)
    messages = conversation(models, list(tools.values()))
    left_out = {
        "further traces with their spans": len(set(traces)) - 1,
        "calls of a model in another conversation": calls_apart(models, messages),
    }
    return Chat(messages, id=traces[0], left_out=left_out)


def _of_agent(spans: Sequence[Mapping[str, Any]]) -> Chat | None:
    """The conversation that Pydantic AI keeps in the span of an agent's run, for spans of which
    none is of a model's call.
    """
    for span in spans:
        messages = _messages(_attributes(span), _ALL)
        if messages:
            return Chat(messages, id=_trace(span))
    return None


def _attributes(span: Mapping[str, Any]) -> Mapping[str, Any]:
    """A span's attributes. The collector writes a list of keys, each with its value under the name
    of its type.
    """
    attributes = span["attributes"]
    if isinstance(attributes, Mapping):
        return attributes
    values: dict[str, Any] = {}
    for entry in mappings(attributes):
        values[str(entry.get("key"))] = next(iter(mapping(entry, "value").values()), None)
    return values


def _call(attributes: Mapping[str, Any]) -> tuple[list[Any], list[Any]] | None:
    """The messages that a model's call was sent, and those it replied; `None`: it is no call."""
    if _INPUT in attributes or _OUTPUT in attributes:
        return _messages(attributes, _INPUT), _messages(attributes, _OUTPUT)
    if openinference.is_call(attributes):
        messages = openinference.messages
        return messages(attributes, "input"), messages(attributes, "output")
    if openllmetry.is_call(attributes):
        messages = openllmetry.messages
        return messages(attributes, "prompt"), messages(attributes, "completion")
    return None


def _tool(attributes: Mapping[str, Any]) -> tuple[str, Any, Any] | None:
    """The name of a tool that ran, what it was given and what it returned; `None`: none did."""
    if attributes.get("gen_ai.operation.name") == "execute_tool":
        returned = attributes.get("gen_ai.tool.call.result")
        name = attributes.get("gen_ai.tool.name")
        sent = attributes.get("gen_ai.tool.call.arguments")
    elif _DOCUMENTS in attributes:
        name = "retrieval"
        sent = {"query": attributes.get("gen_ai.retrieval.query.text")}
        returned = attributes[_DOCUMENTS]
    else:
        tool = openinference.tool(attributes)
        if tool is None:
            return None
        name, sent, returned = tool
    return None if returned is None else (str(name or "tool"), sent, returned)


def _time(span: Mapping[str, Any], names: tuple[str, ...]) -> str:
    return str(first(span, (*names, *_STARTS)) or "")


def _identity(span: Mapping[str, Any]) -> str:
    identity = first(span, ("spanId", "span_id")) or mapping(span, "context").get("span_id")
    return str(identity or "")


def _parent(span: Mapping[str, Any]) -> str:
    return str(first(span, ("parentSpanId", "parent_span_id", "parent_id")) or "")


def _spans(value: Any) -> list[Mapping[str, Any]]:
    """The spans in one line, of the console's exporter or of the collector's."""
    exports = mappings(value, "resourceSpans")
    spans: list[Mapping[str, Any]] = []
    for export in exports:
        for scope in mappings(export, "scopeSpans"):
            spans += mappings(scope, "spans")
    if not exports:
        spans = [mapping(value)]
    return [span for span in spans if "attributes" in span and _trace(span)]


def _trace(span: Mapping[str, Any]) -> str:
    trace = span.get("traceId") or span.get("trace_id") or mapping(span, "context").get("trace_id")
    return str(trace or "")


def _messages(attributes: Mapping[str, Any], name: str) -> list[Any]:
    messages = attributes.get(name)
    if isinstance(messages, str):
        with suppress(DataError):
            messages = loose_json.decode(messages)
    return messages if isinstance(messages, list) else []


FORMAT = Format(
    "OpenTelemetry or OpenInference (Phoenix) spans",
    read,
    {"traceId", "resourceSpans", "span_id", "attributes"},
    _NEEDS,
    group,
)
