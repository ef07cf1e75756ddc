"""OpenTelemetry: the spans of a model's calls, with their messages in attributes (`gen_ai.input.messages`)."""

import json
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from .base import Chat, Format, mapping, mappings

_INPUT, _OUTPUT = "gen_ai.input.messages", "gen_ai.output.messages"
_NEEDS = f"no span has {_INPUT}; let the instrumentation record the messages' content"


def group(value: Any) -> str | None:
    traces = {_trace(span) for span in _spans(value)}
    return "" if len(traces) > 1 else next(iter(traces), None)


def read(value: Any) -> Chat | None:
    """Of spans (one, an export of some, or those of one trace) the messages of the call that was given most."""
    spans = [span for line in mappings(value, "lines") or [value] for span in _spans(line)]
    told = []
    for span in spans:
        fields = span["attributes"]
        if not isinstance(
            fields, Mapping
        ):  # the collector's: a list of keys, each with its value under the type
            typed = {str(each.get("key")): mapping(each, "value") for each in mappings(fields)}
            fields = {key: next(iter(value.values()), None) for key, value in typed.items()}
        if _INPUT in fields:
            told.append(fields)
    if not told:
        return None
    # Each call of a model is given all messages before it.
    last = max(told, key=lambda fields: len(_messages(fields, _INPUT)))
    messages = [*_messages(last, _INPUT), *_messages(last, _OUTPUT)]
    other = len({_trace(span) for span in spans}) - 1
    return Chat(messages, id=_trace(spans[0]), left_out={"further traces with their spans": other})


def _spans(value: Any) -> list[Mapping[str, Any]]:
    """The spans in one line, of the console's exporter or of the collector's."""
    exports = mappings(value, "resourceSpans")
    scopes = [scope for export in exports for scope in mappings(export, "scopeSpans")]
    spans = (
        [span for scope in scopes for span in mappings(scope, "spans")]
        if exports
        else [mapping(value)]
    )
    return [span for span in spans if "attributes" in span and _trace(span)]


def _trace(span: Mapping[str, Any]) -> str:
    return str(
        span.get("traceId")
        or span.get("trace_id")
        or mapping(span, "context").get("trace_id")
        or ""
    )


def _messages(fields: Mapping[str, Any], name: str) -> list[Any]:
    given = fields.get(name)
    with suppress(ValueError, RecursionError):
        given = json.loads(given) if isinstance(given, str) else given
    return given if isinstance(given, list) else []


FORMAT = Format(
    "OpenTelemetry spans",
    read,
    {"traceId", "resourceSpans", "span_id", "attributes"},
    _NEEDS,
    group,
)
