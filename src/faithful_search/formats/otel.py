"""OpenTelemetry: the spans of a model's calls, with their messages in attributes
(`gen_ai.input.messages`, OpenInference's `llm.input_messages`, as Phoenix exports them, or
OpenLLMetry's `gen_ai.prompt.0.role`, as AgentOps and Agent-Lightning keep them).
"""

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from .. import loose_json
from ..errors import DataError
from . import openinference, openllmetry
from .base import Chat, Format, mapping, mappings

_INPUT, _OUTPUT = "gen_ai.input.messages", "gen_ai.output.messages"
_NEEDS = (
    f"no span has {_INPUT}, llm.input_messages or gen_ai.prompt.0.content; let the instrumentation "
    "record the messages' content"
)


def group(value: Any) -> str | None:
    """The trace of a line's spans; an export with several traces is a group of its own."""
    traces = {_trace(span) for span in _spans(value)}
    return "" if len(traces) > 1 else next(iter(traces), None)


def read(value: Any) -> Chat | None:
    """The messages of the model's call with the longest input, among spans: one, an export of
    several, or those of one trace.
    """
    spans = [span for line in mappings(value, "lines") or [value] for span in _spans(line)]
    calls = [call for span in spans if (call := _call(_attributes(span))) is not None]
    if not calls:
        return None
    # Each call of a model is sent all messages before it.
    sent, replied = max(calls, key=lambda call: len(call[0]))
    further = len({_trace(span) for span in spans}) - 1
    return Chat(
        [*sent, *replied],
        id=_trace(spans[0]),
        left_out={"further traces with their spans": further},
    )


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
    if _INPUT in attributes:
        return _messages(attributes, _INPUT), _messages(attributes, _OUTPUT)
    if openinference.is_call(attributes):
        messages = openinference.messages
        return messages(attributes, "input"), messages(attributes, "output")
    if openllmetry.is_call(attributes):
        messages = openllmetry.messages
        return messages(attributes, "prompt"), messages(attributes, "completion")
    return None


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
