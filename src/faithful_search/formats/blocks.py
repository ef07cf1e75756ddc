"""Reads the parts of a message's content, whichever API wrote them.

Texts, thoughts, calls and results are recognised by their type, or in Gemini's API by a field. A
result may stand inside its call. Any other part (an image, a file, encrypted reasoning) becomes a
part of kind "unread".
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from ..trajectory import Citation
from .base import first, mapping
from .cited import sent_with

_TEXT = frozenset(
    ("text", "input_text", "output_text", "summary_text", "reasoning_text", "refusal")
)
_THOUGHT = frozenset(("thinking", "reasoning"))
_CALL = frozenset(("tool_use", "toolCall", "tool-call"))
_CALL_ENDS = ("_call", "_tool_use")
_WEB_SEARCH = "web_search_call"  # of OpenAI's server
_RESULT = frozenset(("tool_result", "toolResult", "tool-result"))
_AI_SDK_TOOL = ("tool-", "dynamic-tool")  # parts of a page's messages: a call with its result
_RESULT_ENDS = ("_tool_result", "_output", "_call_response", "_call_result")
# Parts of Gemini's API, and of Bedrock's Converse, have no type: a field says what they are.
_GEMINI_CALLS = ("functionCall", "function_call", "executableCode", "executable_code")
_GEMINI_RESULTS = (
    "functionResponse",
    "function_response",
    "codeExecutionResult",
    "code_execution_result",
)
_GEMINI_FILES = ("inlineData", "inline_data", "fileData", "file_data")
_BEDROCK = frozenset(("toolUse", "toolResult", "reasoningContent", "json"))
_WITHOUT_TYPE = frozenset((*_GEMINI_CALLS, *_GEMINI_RESULTS, *_GEMINI_FILES, *_BEDROCK))
# All fields that a part without a type may have which is a text
_BESIDE_TEXT = frozenset(("text", "thought", "thoughtSignature", "thought_signature"))
_EMPTY = frozenset(("step-start", "step-finish"))  # the AI SDK's marks between steps
_PASSAGES = frozenset(("search_result", "web_search_result", "web_fetch_result", "document"))
# Fields of a result that hold the id of its call, and those that hold its tool's name
_ANSWERED = (
    "tool_use_id",
    "toolUseId",
    "tool_call_id",
    "toolCallId",
    "call_id",
    "source_call_id",
    "id",
)
_ANSWERED_NAMES = ("name", "tool_name", "toolName")
_ARGUMENT_OF = {"file_search_call": "queries", "code_interpreter_call": "code"}
_ARGUMENTS = ("arguments", "args", "input", "parameters", "action", "code", "queries")
_RESULTS = ("content", "output", "outputs", "response", "result", "results")


class Part(NamedTuple):
    """One part of a message's content.

    Attributes:
        kind: "text", "thought", "call", "result" or "unread".
        value: the text; of a call its fields, as `call` gives them; the type of an unread part.
        id: the id of a call; of a result, that of the call that it says it answers.
        name: the name of the tool that a result says it is of.
        citations: what a text cites, as its API says.
    """

    kind: str
    value: Any
    id: str = ""
    name: str = ""
    citations: tuple[Citation, ...] = ()


def parts(content: Any) -> Iterator[Part]:
    """The parts of a content: of a string, a list of parts, nothing, or other data, which becomes
    a text of JSON.
    """
    if isinstance(content, str):
        yield Part("text", content)
    elif _are_parts(content):
        for part in content:
            if isinstance(part, str):
                yield Part("text", part)
            else:
                yield from _part(part)
    elif content is not None and content != []:
        yield Part("text", as_json(content))


def call(written: Any) -> dict[str, Any]:
    """A structured call, whoever wrote it, as `{"id": …, "name": …, "arguments": …}`.

    `id` and `name` are texts, empty where there is none; `arguments` is text or data as it was
    written, or `None`.
    """
    fields = written if isinstance(written, Mapping) else {}
    function = fields.get("function")  # in the chat API the call itself, in others a tool's name
    inner = function if isinstance(function, Mapping) else fields
    kind = str(fields.get("type", ""))
    name = function
    if not isinstance(name, str):
        name = first(inner, ("name", "function_name", "toolName"))
    if not isinstance(name, str):  # a call of the API's own tool, such as web_search_call
        is_of_api = kind.endswith("_call") and kind not in ("tool_call", "function_call")
        name = kind.removesuffix("_call") if is_of_api else ""
    identity = first(fields, ("call_id", "tool_call_id", "toolUseId", "toolCallId", "id"))
    return {
        "id": identity if isinstance(identity, str) else "",
        "name": name,
        "arguments": _arguments(inner, kind),
    }


def _arguments(fields: Mapping[str, Any], kind: str) -> Any:
    """A call's arguments; one that stands alone, without a name, gets one."""
    arguments = first(fields, _ARGUMENTS)
    if arguments is None:
        return None
    is_single = kind.startswith("custom_tool") or fields.get("code") is arguments
    if is_single or isinstance(arguments, list):
        return {_ARGUMENT_OF.get(kind, "input"): arguments}
    if isinstance(arguments, Mapping):  # Arrow has `None` where another row's call has an argument
        return {key: value for key, value in arguments.items() if value is not None}
    return arguments


def result(fields: Mapping[str, Any]) -> Iterator[Part]:
    """A result as one part, and the parts in it that were not read.

    `fields` are those of a part or of a tool's message. Passages with title and address become a
    JSON list. The text of a call that failed is `{"error": …}`.
    """
    failure = _failure(fields)
    value = first(fields, _RESULTS)
    if isinstance(value, Mapping) and value.keys() == {"type", "value"}:  # the AI SDK's
        failure = failure or str(value["type"]).startswith("error")
        value = value["value"]
    pieces: list[Any] = []  # texts, and passages as objects
    unread: list[Part] = []
    listed = _are_parts(value)
    for item in value if listed else [value]:
        kind = str(item.get("type")) if isinstance(item, Mapping) else ""
        if kind in _PASSAGES:
            pieces.append(_passage(item))
        elif kind.endswith("_error"):
            failure = failure or first(item, ("error_code", "message", "error")) or True
        elif listed:
            inner = list(parts([item]))
            pieces += [part.value for part in inner if part.kind == "text"]
            unread += [part for part in inner if part.kind == "unread"]
        elif item is not None:
            pieces.append(item if isinstance(item, str) else as_json(item))
    text = _joined(pieces)
    if failure:
        reason = failure if isinstance(failure, str) else "failed"
        text = as_json({"error": text or reason})
    identity = first(fields, _ANSWERED)
    name = first(fields, _ANSWERED_NAMES)
    yield Part(
        kind="result",
        value=text,
        id=identity if isinstance(identity, str) else "",
        name=name if isinstance(name, str) else "",
    )
    yield from unread


def _joined(pieces: Sequence[Any]) -> str:
    """Texts as one text; as JSON where passages are among them."""
    if all(isinstance(piece, str) for piece in pieces):
        return "".join(pieces)
    objects: list[Any] = []
    for piece in pieces:
        objects.append({"text": piece} if isinstance(piece, str) else piece)
    return as_json(objects)


def _failure(fields: Mapping[str, Any]) -> Any:
    """What a result says of a failure: its message, something true, or something false."""
    failure = fields.get("error") or fields.get("is_error") or fields.get("isError")
    failure = failure or fields.get("status") == "error"
    if isinstance(failure, Mapping):
        return failure.get("message") or True
    return failure


def _are_parts(content: Any) -> bool:
    """Whether a content is a list of parts, and not data."""
    return isinstance(content, list | tuple) and bool(content) and all(map(_is_part, content))


def _is_part(item: Any) -> bool:
    if not isinstance(item, Mapping):
        return isinstance(item, str)
    if isinstance(item.get("type"), str):
        return True
    if isinstance(item.get("text"), str) and item.keys() <= _BESIDE_TEXT:
        return True
    return not _WITHOUT_TYPE.isdisjoint(item)


def _text_of(content: Any, between: str = "") -> str:
    """The text itself, or the texts among the parts of a content, joined."""
    if isinstance(content, str):
        return content
    return between.join(part.value for part in parts(content) if part.kind == "text")


def _part(fields: Mapping[str, Any]) -> Iterator[Part]:
    kind = fields.get("type")
    if not isinstance(kind, str):
        yield from _bedrock(fields) if fields.keys() & _BEDROCK else _gemini(fields)
    elif kind.startswith(_AI_SDK_TOOL) and "state" in fields:
        yield from _ai_sdk_tool(fields, kind)
    elif kind in _TEXT:
        yield _text(fields)
    elif kind in _THOUGHT:
        thought = first(fields, ("thinking", "reasoning", "content", "text"))
        yield _thought(thought or fields.get("summary"), kind)
    elif kind in _RESULT or kind.endswith(_RESULT_ENDS):
        yield from result(fields)
    elif kind in _CALL or kind.endswith(_CALL_ENDS):
        yield from _call_with_result(fields, kind)
    elif isinstance(fields.get("text"), str):
        yield Part("text", fields["text"])
    elif kind not in _EMPTY:
        yield Part("unread", kind)


def _text(fields: Mapping[str, Any]) -> Part:
    written = first(fields, ("text", "content", "refusal"))
    if isinstance(written, Mapping):  # in an Assistants thread
        fields = written
        written = fields.get("value")
    text = str(written or "")
    return Part("text", text, citations=sent_with(text, fields))


def _thought(content: Any, kind: str) -> Part:
    text = _text_of(content, between="\n")
    return Part("thought", text) if text else Part("unread", kind)


def _call_with_result(fields: Mapping[str, Any], kind: str) -> Iterator[Part]:
    """A call, and what it returned where that stands inside it."""
    written = call(fields)
    yield Part("call", written, written["id"])
    if first(fields, _RESULTS) is not None or fields.get("error"):
        yield from result({**fields, "id": written["id"], "call_id": written["id"]})
    elif kind == _WEB_SEARCH:
        sources = mapping(fields, "action").get("sources")
        if sources:
            yield from result({"id": written["id"], "content": _sources(sources)})


def _ai_sdk_tool(fields: Mapping[str, Any], kind: str) -> Iterator[Part]:
    """A call of the AI SDK's, and what it returned where it did."""
    identity = str(fields.get("toolCallId") or "")
    name = fields.get("toolName") or kind.removeprefix("tool-")
    written = call({"id": identity, "name": name, "arguments": fields.get("input")})
    yield Part("call", written, identity)
    output = fields.get("output")
    error = fields.get("errorText")
    if output is not None or error:
        yield from result({"id": identity, "content": output, "error": error})


def _bedrock(fields: Mapping[str, Any]) -> Iterator[Part]:
    """A part of Bedrock's Converse."""
    tool_use = fields.get("toolUse")
    tool_result = fields.get("toolResult")
    reasoning = fields.get("reasoningContent")
    if isinstance(tool_use, Mapping):
        written = call(tool_use)
        yield Part("call", written, written["id"])
    elif isinstance(tool_result, Mapping):
        yield from result(tool_result)
    elif isinstance(reasoning, Mapping):
        text = mapping(reasoning, "reasoningText").get("text")
        yield Part("thought", text) if isinstance(text, str) else Part("unread", "reasoningContent")
    elif "json" in fields:
        yield Part("text", as_json(fields["json"]))
    else:
        yield Part("unread", next(iter(fields.keys() & _BEDROCK)))


def _sources(sources: Any) -> list[dict[str, Any]]:
    """The addresses that OpenAI's search looked at, as passages without text.

    The server lists them in the call; in any other call they would be words of the agent's.
    """
    listed = sources if isinstance(sources, list) else [sources]
    passages = []
    for source in listed:
        if isinstance(source, Mapping):
            passage = {
                "type": "search_result",
                "title": source.get("title"),
                "url": source.get("url"),
                "content": "",
            }
            passages.append(passage)
    return passages


def _gemini(fields: Mapping[str, Any]) -> Iterator[Part]:
    """A part of Gemini's API."""
    kind = ""  # the first field that says what the part is
    for kind in fields:
        if kind in _GEMINI_CALLS or kind in _GEMINI_RESULTS:
            break
    value = fields.get(kind)
    if kind in _GEMINI_CALLS and isinstance(value, Mapping):
        if "code" in value:
            value = {"name": "python", "code": value["code"]}
        written = call(value)
        yield Part("call", written, written["id"])
    elif kind in _GEMINI_RESULTS and isinstance(value, Mapping):
        yield from _gemini_result(value)
    elif isinstance(fields.get("text"), str):
        yield Part("thought" if fields.get("thought") else "text", fields["text"])
    else:
        yield Part("unread", next(iter(fields), "nothing"))


def _gemini_result(fields: Mapping[str, Any]) -> Iterator[Part]:
    """A result of a function or of code, and what is not read beside it."""
    content = fields.get("response", fields.get("output"))
    if isinstance(content, Mapping) and len(content) == 1:  # the API wraps a text
        [(name, inner)] = content.items()
        if name in ("result", "output", "content"):
            content = inner
    yield from result({"id": fields.get("id"), "name": fields.get("name"), "content": content})
    for part in parts(fields.get("parts")):
        if part.kind == "unread":
            yield part


def _passage(fields: Mapping[str, Any]) -> dict[str, str]:
    """A search result or a fetched page as `{"id": …, "title": …, "url": …, "text": …}`."""
    content = fields.get("content")
    source = fields.get("source")
    if isinstance(content, Mapping):  # a page that was fetched
        title = fields.get("title") or content.get("title")
        return _passage({**content, "url": fields.get("url"), "title": title})
    if isinstance(source, Mapping) and source.get("type") == "text":
        content = source.get("data")
    address = source if isinstance(source, str) else ""
    url = fields.get("url", address)
    passage = {
        "title": str(fields.get("title") or ""),
        "url": str(url or ""),
        "text": _text_of(content),
    }
    if isinstance(fields.get("id"), str | int):
        return {"id": str(fields["id"]), **passage}
    return passage


def as_json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, default=str)
