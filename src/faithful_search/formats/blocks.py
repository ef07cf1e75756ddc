"""Reads the parts of a message's content, whichever API wrote them.

Texts, thoughts, calls and results are recognised by their type, or in Gemini's API by a field. A
result may stand inside its call. Any other part (an image, a file, encrypted reasoning) becomes a
part of kind "unread".
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from .. import loose_json
from ..errors import DataError
from ..trajectory import Citation
from .base import first, mapping, mappings
from .cited import sent_with

# Types of parts, as APIs and frameworks call them
_TEXT = frozenset(
    ("text", "input_text", "output_text", "summary_text", "reasoning_text", "refusal")
)
_THOUGHT = frozenset(("thinking", "reasoning", "text_reasoning", "think", "thought"))
_CALL = frozenset(("tool_use", "toolCall", "tool-call", "functionCall"))
_CALL_ENDS = ("_call", "_tool_use")
_RESULT = frozenset(
    ("tool_result", "toolResult", "tool-result", "function_result", "functionResult")
)
_RESULT_ENDS = ("_tool_result", "_output", "_call_response", "_call_result")
_KINDS = _TEXT | _THOUGHT | _CALL | _RESULT
_WEB_SEARCH = "web_search_call"  # of OpenAI's server
_AI_SDK_TOOL = ("tool-", "dynamic-tool")  # parts of a page's messages: a call with its result
_EMPTY = frozenset(("step-start", "step-finish"))  # the AI SDK's marks between steps
# How LlamaIndex, Semantic Kernel, Microsoft's agents and A2A name a part's type
_OTHER_TYPES = ("block_type", "content_type", "$type", "kind")

# Parts of Gemini's API, and of Bedrock's Converse, have no type: a field says what they are.
_GEMINI_CALLS = ("functionCall", "function_call", "executableCode", "executable_code")
_GEMINI_RESULTS = (
    "functionResponse",
    "function_response",
    "codeExecutionResult",
    "code_execution_result",
)
_GEMINI_FILES = ("inlineData", "inline_data", "fileData", "file_data")
_BEDROCK = ("toolUse", "toolResult", "reasoningContent", "citationsContent", "json")
_WITHOUT_TYPE = frozenset((*_GEMINI_CALLS, *_GEMINI_RESULTS, *_GEMINI_FILES, *_BEDROCK))
# Tools that Google's server runs, and the parts of Haystack's messages; their values are objects.
_OBJECT_CALLS = ("toolCall", "tool_call")
_OBJECT_RESULTS = ("toolResponse", "tool_response", "tool_call_result")
_OBJECTS = (*_OBJECT_CALLS, *_OBJECT_RESULTS, "reasoning")
_MOST_BESIDE_OBJECT = 2  # fields of a part that holds one of the `_OBJECTS`
_CALLS_WITHOUT_TYPE = (*_GEMINI_CALLS, *_OBJECT_CALLS)
_RESULTS_WITHOUT_TYPE = (*_GEMINI_RESULTS, *_OBJECT_RESULTS)
# All fields that a part without a type may have which is a text
_BESIDE_TEXT = frozenset(("text", "thought", "thoughtSignature", "thought_signature"))

# Types of what stands in a result
_MCP_RESOURCES = ("resource", "resource_link")
_PASSAGES = frozenset(
    ("search_result", "web_search_result", "web_fetch_result", "document", *_MCP_RESOURCES)
)
_MEDIA = frozenset(("computer_screenshot", "input_image", "image_url", "image"))
_PRINTED = "code_execution_result"  # of code that Anthropic's server ran

# Fields of a call, the usual ones first
_CALL_IDS = ("call_id", "callId", "tool_call_id", "toolUseId", "toolCallId", "id")
_CALL_NAMES = ("name", "function_name", "toolName", "tool_name", "toolType")
_ARGUMENTS = (
    "arguments",
    "args",
    "input",
    "parameters",
    "action",
    "code",
    "queries",
    "tool_kwargs",
    "server_tool_call",
)
# What an argument that stands alone is called, by the call's type
_ARGUMENT_OF = {"file_search_call": "queries", "code_interpreter_call": "code"}
# Fields of a result: the id of its call, its tool's name, what was returned, that it failed
_ANSWERED = (
    "tool_use_id",
    "toolUseId",
    "tool_call_id",
    "toolCallId",
    "call_id",
    "callId",
    "source_call_id",
    "id",
)
_ANSWERED_NAMES = ("name", "tool_name", "toolName")
_RESULTS = (
    "content",
    "output",
    "outputs",
    "response",
    "result",
    "results",
    "server_tool_call_response",
)
_FAILED = ("error", "is_error", "isError", "tool_call_error")


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


def parts(content: Any, spoken: bool = False) -> Iterator[Part]:
    """The parts of a content: of a string, a list of parts, nothing, or other data, which becomes
    a text of JSON.

    `spoken`: an agent or a user says it. Then anything among parts is one, also of an unknown kind.
    """
    if isinstance(content, str):
        yield Part("text", content)
    elif _are_parts(content) or (spoken and _hold_parts(content)):
        for part in content:
            if isinstance(part, str):
                yield Part("text", part)
            else:
                yield from _part(part)
    elif spoken and isinstance(content, Mapping) and _is_one_part(content):
        yield from _part(content)
    elif content is not None and content != []:
        yield Part("text", as_json(content))


def call(structured: Any) -> dict[str, Any]:
    """A structured call, whoever wrote it, as `{"id": …, "name": …, "arguments": …}`.

    `id` and `name` are texts, empty where there is none; `arguments` is text or data as it was
    written, or `None`.
    """
    fields = mapping(structured)
    # In the chat API the call itself, in others a tool's name
    function = fields.get("function", fields.get("custom"))
    inner = function if isinstance(function, Mapping) else fields
    kind = str(fields.get("type", ""))
    name = function if isinstance(function, str) else first(inner, _CALL_NAMES)
    return {
        "id": _identity(first(fields, _CALL_IDS)),
        "name": name if isinstance(name, str) else _api_tool(kind),
        "arguments": _arguments(inner, kind),
    }


def _api_tool(kind: str) -> str:
    """The API's own tool that a call of this type, such as `web_search_call`, calls; empty for any
    other call.
    """
    if kind in ("tool_call", "function_call") or not kind.endswith("_call"):
        return ""
    return kind.removesuffix("_call")


def _call_part(structured: Any) -> Part:
    fields = call(structured)
    return Part("call", fields, fields["id"])


def _identity(value: Any) -> str:
    """An id, which some programs write as a number; empty for anything else."""
    is_number = isinstance(value, int) and not isinstance(value, bool)
    return str(value) if is_number or isinstance(value, str) else ""


def _arguments(fields: Mapping[str, Any], kind: str) -> Any:
    """A call's arguments; one that stands alone, without a name, gets one."""
    arguments = first(fields, _ARGUMENTS)
    if arguments is None:
        return None
    is_single = kind.startswith("custom") or fields.get("code") is arguments
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
    value, failure = _outcome(fields)
    returned = _Returned(failure)
    if _are_parts(value):
        for part in value:
            returned.add_part(part)
    elif value is not None:
        returned.add(value)
    name = first(fields, _ANSWERED_NAMES)
    yield Part(
        kind="result",
        value=returned.text(),
        id=_identity(first(fields, _ANSWERED)),
        name=name if isinstance(name, str) else "",
    )
    yield from returned.unread


def _outcome(fields: Mapping[str, Any]) -> tuple[Any, Any]:
    """What a call returned, and what its result says of a failure, as `_failure`."""
    value = first(fields, _RESULTS)
    failure = _failure(fields)
    kind = _type_of(value)
    if kind == "execution-denied":  # the AI SDK's, as the next one
        return None, value.get("reason") or kind
    blocks = mappings(value, "blocks", pure=True)
    if blocks and all("block_type" in block for block in blocks):  # LlamaIndex's
        return value["blocks"], failure or value.get("is_error")
    if isinstance(value, Mapping) and value.keys() == {"type", "value"}:
        return value["value"], failure or kind.startswith("error")
    return value, failure


def _failure(fields: Mapping[str, Any]) -> Any:
    """What a result says of a failure: its message, something true, or something false."""
    failure = next((fields[name] for name in _FAILED if fields.get(name)), None)
    failure = failure or fields.get("status") == "error"
    if isinstance(failure, Mapping):
        return failure.get("message") or True
    return failure


def _type_of(value: Any) -> str:
    return str(value.get("type")) if isinstance(value, Mapping) else ""


class _Returned:
    """What a call returned, piece by piece.

    Attributes:
        failure: what is said of a failure, as `_failure` gives it.
        pieces: texts, and passages as objects.
        unread: the parts that were not read.
    """

    def __init__(self, failure: Any) -> None:
        self.failure = failure
        self.pieces: list[Any] = []
        self.unread: list[Part] = []

    def add(self, value: Any) -> None:
        """Add a text or data, which is no list of parts."""
        if not self._add_known(value):
            self.pieces.append(value if isinstance(value, str) else as_json(value))

    def add_part(self, part: Any) -> None:
        """Add one of several parts."""
        if self._add_known(part):
            return
        if _is_titled_text(part):
            self.pieces.append(_passage(part))
            return
        for inner in parts([part]):
            if inner.kind == "text":
                self.pieces.append(inner.value)
            elif inner.kind == "unread":
                self.unread.append(inner)

    def _add_known(self, entry: Any) -> bool:
        """Add what has one of the types that stand in results alone; `False` where it has none."""
        kind = _type_of(entry)
        if kind in _MEDIA:
            self.unread.append(Part("unread", kind))
        elif kind in _PASSAGES:
            passage = _passage(entry)
            if passage is None:
                self.unread.append(Part("unread", kind))
            else:
                self.pieces.append(passage)
        elif kind.endswith(_PRINTED):
            printed = (entry.get("stdout"), entry.get("stderr"))
            self.pieces.append("\n".join(filter(None, printed)))
        elif kind.endswith("_error"):
            reason = first(entry, ("error_code", "message", "error"))
            self.failure = self.failure or reason or True
        else:
            return False
        return True

    def text(self) -> str:
        """All pieces as one text; of a call that failed, the JSON of an error."""
        text = _joined(self.pieces)
        if not self.failure:
            return text
        reason = self.failure if isinstance(self.failure, str) else "failed"
        return as_json({"error": text or reason})


def _joined(pieces: Sequence[Any]) -> str:
    """Texts as one text; as JSON where passages are among them, or each is JSON itself."""
    texts = [piece for piece in pieces if isinstance(piece, str)]
    if len(texts) == len(pieces):
        are_json = len(texts) > 1 and all(map(_is_json, texts))
        return as_json(_typed(texts)) if are_json else _prose(texts)
    return as_json([{"text": piece} if isinstance(piece, str) else piece for piece in pieces])


def _prose(texts: Sequence[str]) -> str:
    """Texts as one, each on lines of its own, except where one continues the text before it: a
    blank stands where they meet.
    """
    pieces: list[str] = []
    for text in filter(None, texts):
        if pieces and not pieces[-1][-1].isspace() and not text[0].isspace():
            pieces.append("\n")
        pieces.append(text)
    return "".join(pieces)


def _is_json(text: str) -> bool:
    """Whether a text is the JSON of an object or a list."""
    if text.lstrip()[:1] not in ("{", "["):
        return False
    with suppress(DataError):
        loose_json.decode(text)
        return True
    return False


def _typed(texts: Sequence[str]) -> list[dict[str, str]]:
    """Texts as the parts that they were."""
    return [{"type": "text", "text": text} for text in texts]


def _is_titled_text(entry: Any) -> bool:
    """Whether a part of a result is a text with a title of its own, whatever its type is called."""
    if not isinstance(entry, Mapping) or not isinstance(entry.get("text"), str):
        return False
    return isinstance(entry.get("title"), str) and bool(entry["title"])


def _are_parts(content: Any) -> bool:
    """Whether a content is a list of parts, and not data."""
    return isinstance(content, list | tuple) and bool(content) and all(map(_is_part, content))


def _hold_parts(content: Any) -> bool:
    """Whether a content is a list with a part in it, and with nothing but texts and objects."""
    if not isinstance(content, list | tuple) or not any(map(_is_part, content)):
        return False
    return all(isinstance(entry, str | Mapping) for entry in content)


def _is_one_part(content: Mapping[str, Any]) -> bool:
    """Whether a content is a part itself, as in MCP, and no data that an agent answers with."""
    kind = content.get("type")
    return isinstance(kind, str) and kind in _KINDS


def _kind_of(fields: Mapping[str, Any]) -> str | None:
    """The type that a part names; `None` for a part without one, such as a page whose record has
    one of the other names.
    """
    kind = fields.get("type")
    if isinstance(kind, str):
        return kind
    kind = first(fields, _OTHER_TYPES)
    if not isinstance(kind, str) or "title" in fields:
        return None
    is_known = kind in _KINDS or kind.endswith(_CALL_ENDS)
    return kind if is_known else None


def _is_part(value: Any) -> bool:
    """Whether this may be one of several parts: a text, or an object with the fields of a part."""
    if isinstance(value, str):
        return True
    if not isinstance(value, Mapping):
        return False
    if _kind_of(value) is not None or not _WITHOUT_TYPE.isdisjoint(value):
        return True
    if isinstance(value.get("text"), str) and value.keys() <= _BESIDE_TEXT:
        return True
    holds_object = any(isinstance(value.get(name), Mapping) for name in _OBJECTS)
    return holds_object and len(value) <= _MOST_BESIDE_OBJECT


def _text_of(content: Any, between: str = "") -> str:
    """The text itself, or the texts among the parts of a content, joined."""
    if isinstance(content, str):
        return content
    return between.join(part.value for part in parts(content) if part.kind == "text")


def _part(fields: Mapping[str, Any]) -> Iterator[Part]:
    """What an object among the parts of a content is; several parts where it is more than one."""
    kind = _kind_of(fields)
    if kind is None:
        yield from _part_without_type(fields)
        return
    kind = _spelled(kind)
    if kind.startswith(_AI_SDK_TOOL) and "state" in fields:
        yield from _ai_sdk_tool(fields, kind)
    elif kind == "tool-invocation":  # of the AI SDK's older pages
        yield from _ai_sdk_tool(mapping(fields, "toolInvocation"), kind)
    elif kind in _TEXT:
        yield _text(fields)
    elif kind in _THOUGHT:
        yield _thought(fields, kind)
    elif kind in _RESULT or kind.endswith(_RESULT_ENDS):
        yield from result(fields)
    elif kind in _CALL or kind.endswith(_CALL_ENDS):
        yield from _call_with_result(fields, kind)
    elif isinstance(fields.get("text"), str):
        yield Part("text", fields["text"])
    elif kind == "json" and "json" in fields:  # LangChain's
        yield Part("text", as_json(fields["json"]))
    elif kind == "logs" and isinstance(fields.get("logs"), str):  # of OpenAI's code interpreter
        yield Part("text", fields["logs"])
    elif kind not in _EMPTY:
        yield Part("unread", kind)


def _part_without_type(fields: Mapping[str, Any]) -> Iterator[Part]:
    if any(name in fields for name in _BEDROCK):
        return _bedrock(fields)
    return _gemini(fields)


def _spelled(kind: str) -> str:
    """A type in lower case where it is all in upper case, as in Oracle's API."""
    return kind.lower() if kind.isupper() else kind


def _text(fields: Mapping[str, Any]) -> Part:
    content = first(fields, ("text", "content", "refusal"))
    if isinstance(content, Mapping):  # in an Assistants thread
        fields = content
        content = fields.get("value")
    text = str(content or "")
    return Part("text", text, citations=sent_with(text, fields))


def _thought(fields: Mapping[str, Any], kind: str) -> Part:
    content = first(fields, ("thinking", "reasoning", "think", "content", "text"))
    text = _text_of(content or fields.get("summary"), between="\n")
    return Part("thought", text) if text else Part("unread", kind)


def _call_with_result(fields: Mapping[str, Any], kind: str) -> Iterator[Part]:
    """A call, and what it returned where that stands inside it."""
    fields = mapping(fields, "tool_call") or fields  # LibreChat's
    part = _call_part(fields)
    yield part
    if kind == "image_generation_call":
        yield Part("unread", kind)
    elif first(fields, _RESULTS) is not None or fields.get("error"):
        yield from result({**fields, "id": part.id, "call_id": part.id})
    elif kind == _WEB_SEARCH:
        sources = mapping(fields, "action").get("sources")
        if sources:
            yield from result({"id": part.id, "content": _sources(sources)})


def _sources(sources: Any) -> list[dict[str, Any]]:
    """The addresses that OpenAI's search looked at, as passages without text.

    The server lists them in the call; in any other call they would be words of the agent's.
    """
    listed = sources if isinstance(sources, list) else [sources]
    passages = []
    for source in mappings(listed):
        passage = {
            "type": "search_result",
            "title": source.get("title"),
            "url": source.get("url"),
            "content": "",
        }
        passages.append(passage)
    return passages


def _ai_sdk_tool(fields: Mapping[str, Any], kind: str) -> Iterator[Part]:
    """A call of the AI SDK's, and what it returned where it did."""
    identity = str(fields.get("toolCallId") or "")
    name = fields.get("toolName") or kind.removeprefix("tool-")
    arguments = first(fields, ("input", "args"))
    yield _call_part({"id": identity, "name": name, "arguments": arguments})
    output = first(fields, ("output", "result"))
    error = fields.get("errorText")
    if output is not None or error:  # else it has not run yet
        yield from result({"id": identity, "content": output, "error": error})


def _bedrock(fields: Mapping[str, Any]) -> Iterator[Part]:
    """A part of Bedrock's Converse."""
    tool_use = fields.get("toolUse")
    tool_result = fields.get("toolResult")
    reasoning = fields.get("reasoningContent")
    cited = mapping(fields, "citationsContent")
    words = mappings(cited, "content")
    if words:
        citing = _text_of(words)
        yield Part("text", citing, citations=sent_with(citing, cited))
    elif isinstance(tool_use, Mapping):
        yield _call_part(tool_use)
    elif isinstance(tool_result, Mapping):
        yield from result(tool_result)
    elif isinstance(reasoning, Mapping):
        text = mapping(reasoning, "reasoningText").get("text")
        yield Part("thought", text) if isinstance(text, str) else Part("unread", "reasoningContent")
    elif "json" in fields:
        yield Part("text", as_json(fields["json"]))
    else:
        yield Part("unread", next(name for name in _BEDROCK if name in fields))


def _gemini(fields: Mapping[str, Any]) -> Iterator[Part]:
    """A part of Gemini's API, or of Haystack's messages."""
    names = (*_CALLS_WITHOUT_TYPE, *_RESULTS_WITHOUT_TYPE)
    # A program may write all fields that a part could have
    kind = next((name for name in names if isinstance(fields.get(name), Mapping)), "")
    value = mapping(fields, kind)
    if kind in _CALLS_WITHOUT_TYPE:
        yield _gemini_call(value)
    elif kind == "tool_call_result":
        origin = mapping(value, "origin")
        yield from result({**value, "id": origin.get("id"), "name": origin.get("tool_name")})
    elif kind in _RESULTS_WITHOUT_TYPE:
        yield from _gemini_result(value)
    elif isinstance(fields.get("text"), str):
        yield Part("thought" if fields.get("thought") else "text", fields["text"])
    elif mapping(fields, "reasoning").get("reasoning_text"):
        yield Part("thought", str(fields["reasoning"]["reasoning_text"]))
    else:
        present = (name for name, value in fields.items() if value is not None)
        yield Part("unread", next(present, "nothing"))


def _gemini_call(fields: Mapping[str, Any]) -> Part:
    """A call of a function, or code that is run."""
    if "code" in fields:
        fields = {"name": "python", "code": fields["code"]}
    return _call_part(fields)


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


def _passage(fields: Mapping[str, Any]) -> dict[str, Any] | None:
    """A search result, a fetched page or a document as `{"id": …, "title": …, "url": …,
    "text": …}`; `None` where it says nothing that can be read.
    """
    document = mapping(fields, "document")
    if document:
        return _cohere_document(document)
    page = fields.get("content")
    if isinstance(page, Mapping):  # it was fetched
        title = fields.get("title") or page.get("title")
        return _passage({**page, "url": fields.get("url"), "title": title})
    resource = mapping(fields, "resource")  # MCP's
    source = fields.get("source")
    address = source if isinstance(source, str) else ""
    url = first(fields, ("url", "uri")) or resource.get("uri") or address
    passage = {
        "title": str(first(fields, ("title", "name")) or ""),
        "url": str(url or ""),
        "text": _text_of(_passage_content(fields, resource)),
    }
    if not any(passage.values()):
        return None
    if resource and not passage["text"]:  # it is in bytes
        return None
    if isinstance(fields.get("id"), str | int):
        return {"id": str(fields["id"]), **passage}
    return passage


def _passage_content(fields: Mapping[str, Any], resource: Mapping[str, Any]) -> Any:
    """What a passage says, wherever it says it: its source, its content, a resource of MCP's."""
    source = fields.get("source")
    if isinstance(source, Mapping) and source.get("type") in ("text", None):
        return source.get("data", source.get("text"))
    if fields.get("content") is not None:
        return fields["content"]
    return first(resource or fields, ("text", "description"))


def _cohere_document(fields: Mapping[str, Any]) -> dict[str, Any]:
    """A document of Cohere's: a text, an object, or the JSON of one, under `data` with an id."""
    data = fields.get("data", fields)
    if isinstance(data, str):
        with suppress(DataError):
            data = loose_json.decode(data)
    if isinstance(data, str):
        data = {"text": data}
    elif not isinstance(data, Mapping):
        data = {"text": as_json(data)}
    return {"id": str(fields["id"]), **data} if "id" in fields else dict(data)


def as_json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, default=str)
