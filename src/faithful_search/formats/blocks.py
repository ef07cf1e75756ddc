"""The parts of a message's content, whichever API wrote them.

Texts, thoughts, calls and results are told by their type, or in Gemini's by a field; a result may stand inside its
call. Any other part (an image, a file, encrypted reasoning) is named as one that was not read.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

_TEXT = frozenset(
    ("text", "input_text", "output_text", "summary_text", "reasoning_text", "refusal")
)
_THOUGHT = frozenset(("thinking", "reasoning"))
_CALL = frozenset(("tool_use", "toolCall"))
_CALL_ENDS = ("_call", "_tool_use")
_RESULT = frozenset(("tool_result", "toolResult"))
_RESULT_ENDS = ("_tool_result", "_output", "_call_response", "_call_result")
_GEMINI = dict.fromkeys(
    ("functionCall", "function_call", "executableCode", "executable_code"), "call"
)
_GEMINI |= dict.fromkeys(("functionResponse", "function_response"), "result")
_GEMINI |= dict.fromkeys(("codeExecutionResult", "code_execution_result"), "result")
# A part of Gemini's has no type: it is known by one of these fields, or by a text beside nothing else but these.
_NAMED = frozenset((*_GEMINI, "inlineData", "inline_data", "fileData", "file_data"))
_BESIDE_TEXT = frozenset(("text", "thought", "thoughtSignature", "thought_signature"))
_PASSAGES = frozenset(("search_result", "web_search_result", "document"))
# The call which a result belongs to.
_ANSWERED = ("tool_use_id", "tool_call_id", "toolCallId", "call_id", "source_call_id", "id")
_ARGUMENT_OF = {"file_search_call": "queries", "code_interpreter_call": "code"}
_ARGUMENTS = ("arguments", "args", "input", "parameters", "action", "code", "queries")
_RESULTS = ("content", "output", "outputs", "response", "result", "results")


class Part(NamedTuple):
    """One part: `kind` is text, thought, call, result or unread; `value` the text, or of a call its fields."""

    kind: str
    value: Any
    id: str = ""


def parts(content: Any) -> Iterator[Part]:
    """The parts of a content: a string, a list of parts, nothing, or data (which is written as JSON)."""
    if isinstance(content, str):
        yield Part("text", content)
    elif isinstance(content, list | tuple) and content and all(map(_is_part, content)):
        for item in content:
            yield from [Part("text", item)] if isinstance(item, str) else _part(item)
    elif content is not None and content != []:
        yield Part("text", as_json(content))


def call(written: Any) -> dict[str, Any]:
    """A structured call, whoever wrote it, as `{"id", "name", "arguments"}`; `arguments` is text or data."""
    fields = written if isinstance(written, Mapping) else {}
    function = fields.get("function")
    inner = function if isinstance(function, Mapping) else fields
    name = (
        function
        if isinstance(function, str)
        else first(inner, ("name", "function_name", "toolName"))
    )
    kind = str(fields.get("type", ""))
    if not isinstance(name, str):  # a call of the API's own tool, such as web_search_call
        own = kind.endswith("_call") and kind not in ("tool_call", "function_call")
        name = kind.removesuffix("_call") if own else ""
    arguments = first(inner, _ARGUMENTS)
    if (
        kind.startswith("custom_tool")
        or inner.get("code") is arguments
        or isinstance(arguments, list)
    ):
        arguments = None if arguments is None else {_ARGUMENT_OF.get(kind, "input"): arguments}
    if isinstance(arguments, Mapping):  # Arrow has `None` where another row's call has an argument
        arguments = {name: value for name, value in arguments.items() if value is not None}
    identity = first(fields, ("call_id", "tool_call_id", "id"))
    return {
        "id": identity if isinstance(identity, str) else "",
        "name": name,
        "arguments": arguments,
    }


def result(item: Mapping[str, Any]) -> Iterator[Part]:
    """What a call returned, a part or a tool's message, as text; and the kinds of parts in it that were not read.

    Passages with title and address become a JSON list. Of a call that failed the text is `{"error": …}`.
    """
    failed = (
        item.get("error")
        or item.get("is_error")
        or item.get("isError")
        or item.get("status") == "error"
    )
    if isinstance(failed, Mapping):
        failed = failed.get("message") or True
    value = first(item, _RESULTS)
    found: list[Any] = []
    unread: list[Part] = []
    for piece in (
        value
        if isinstance(value, list | tuple) and value and all(map(_is_part, value))
        else [value]
    ):
        kind = str(piece.get("type")) if isinstance(piece, Mapping) else ""
        if kind in _PASSAGES:
            found.append(_passage(piece))
        elif kind.endswith("_error") and isinstance(piece, Mapping):
            failed = failed or first(piece, ("error_code", "message", "error")) or True
        elif piece is not value:
            own = list(parts([piece]))
            found += [part.value for part in own if part.kind == "text"]
            unread += [part for part in own if part.kind == "unread"]
        elif value is not None:
            found.append(value if isinstance(value, str) else as_json(value))
    plain = all(isinstance(piece, str) for piece in found)
    passages = [{"text": piece} if isinstance(piece, str) else piece for piece in found]
    text = "".join(found) if plain else as_json(passages)
    if failed:
        text = as_json({"error": text or (failed if isinstance(failed, str) else "failed")})
    answered = first(item, _ANSWERED)
    yield Part("result", text, answered if isinstance(answered, str) else "")
    yield from unread


def first(fields: Mapping[str, Any], names: Iterable[str]) -> Any:
    """The first of these fields that is there."""
    return next((fields[name] for name in names if fields.get(name) is not None), None)


def _is_part(item: Any) -> bool:
    if not isinstance(item, Mapping):
        return isinstance(item, str)
    plain = isinstance(item.get("text"), str) and item.keys() <= _BESIDE_TEXT
    return plain or isinstance(item.get("type"), str) or bool(item.keys() & _NAMED)


def _part(item: Mapping[str, Any]) -> Iterator[Part]:
    kind = item.get("type")
    if not isinstance(kind, str):
        yield from _gemini(item)
    elif kind in _TEXT:
        yield Part("text", str(first(item, ("text", "content", "refusal")) or ""))
    elif kind in _THOUGHT:
        given = first(item, ("thinking", "reasoning", "content", "text")) or item.get("summary")
        text = (
            given
            if isinstance(given, str)
            else "\n".join(p.value for p in parts(given) if p.kind == "text")
        )
        yield Part("thought", text) if text else Part("unread", kind)
    elif kind in _RESULT or kind.endswith(_RESULT_ENDS):
        yield from result(item)
    elif kind in _CALL or kind.endswith(_CALL_ENDS):
        asked = call(item)
        yield Part("call", asked, asked["id"])
        if first(item, _RESULTS) is not None or item.get("error"):
            yield from result({**item, "id": asked["id"], "call_id": asked["id"]})
        elif isinstance(asked["arguments"], Mapping) and asked["arguments"].get("sources"):
            yield from result(
                {"id": asked["id"], "content": as_json(asked["arguments"]["sources"])}
            )
    elif isinstance(item.get("text"), str):
        yield Part("text", item["text"])
    else:
        yield Part("unread", kind)


def _gemini(item: Mapping[str, Any]) -> Iterator[Part]:
    name = next((name for name in item if name in _GEMINI), "")
    value = item.get(name)
    if name and isinstance(value, Mapping):
        if _GEMINI[name] == "call":
            asked = call({"name": "python", "code": value["code"]} if "code" in value else value)
            yield Part("call", asked, asked["id"])
        else:
            given = value.get("response", value.get("output"))
            if isinstance(given, Mapping) and len(given) == 1:  # the API wraps a text
                given = (
                    next(iter(given.values()))
                    if next(iter(given)) in ("result", "output", "content")
                    else given
                )
            yield from result({"id": value.get("id"), "content": given})
            yield from (part for part in parts(value.get("parts")) if part.kind == "unread")
    elif isinstance(item.get("text"), str):
        yield Part("thought" if item.get("thought") else "text", item["text"])
    else:
        yield Part("unread", next(iter(item), "nothing"))


def _passage(item: Mapping[str, Any]) -> dict[str, str]:
    source = item.get("source")
    inner = (
        source.get("data")
        if isinstance(source, Mapping) and source.get("type") == "text"
        else item.get("content")
    )
    text = (
        inner
        if isinstance(inner, str)
        else "".join(part.value for part in parts(inner) if part.kind == "text")
    )
    url = item.get("url", source if isinstance(source, str) else "")
    return {"title": str(item.get("title") or ""), "url": str(url or ""), "text": text}


def as_json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, default=str)
