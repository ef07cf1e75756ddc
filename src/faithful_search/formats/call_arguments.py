"""Readers of the calls that models write in markup of their own: functions that parse the text
between a call's opening and its closing.

The texts may be hostile, so every pattern takes linear time: each of its repetitions is bounded or
possessive.
"""

import ast
import html
import json
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import Any, NamedTuple

from .. import loose_json
from ..errors import DataError
from .base import first, mapping

_LONGEST_PYTHON = 20_000  # characters of arguments that are read as Python
_LONGEST_BLANK = 40  # characters between two parts of a call in Python's form
# Names of arguments whose values are texts, also where they look like a number.
_TEXT_ARGUMENTS = frozenset((
    "query", "q", "question", "search_query", "keyword", "text", "title", "name", "goal", "url",
    "id", "answer",
))  # fmt: skip
_LITERALS = {"True": True, "False": False, "None": None}
_NAMES = ("name", "tool_name", "function_name", "function")
_ARGUMENTS = ("arguments", "parameters", "args")
_CALL_FIELDS = frozenset((*_NAMES, *_ARGUMENTS, "id", "type", "tool_call_id"))
_BLANKS = re.compile(r"\s*+")
_ATTRIBUTE = re.compile(r'([\w-]{1,60})="([^"<>\n]{0,1000})"')
_TAG = re.compile(r"<([A-Za-z_][\w-]{0,60})>")
_MCP_NAME = re.compile(r"<tool_name>([^<>]{1,200})</tool_name>")
_MCP_ARGUMENTS = re.compile(r"<arguments>((?:(?!</arguments>).)*+)", re.DOTALL)
_GEMMA_KEY = re.compile(r"([{,]\s*+|\A\s*+)([\w.-]{1,100})\s*+:")
_PYTHON_CALL = re.compile(r"\s{0,40}+,?\s{0,40}+([A-Za-z_][\w.-]{0,100})\(")
_PYTHON_KEY = re.compile(r"\s{0,40}+,?\s{0,40}+([\w-]{1,100})\s{0,40}+=\s{0,40}+")
_PYTHON_LIST = re.compile(r"\s{0,40}+\[(?=[A-Za-z_][\w.-]{0,100}\([\w-]{1,100}\s{0,9}=)")
_PYTHON_CLOSE = re.compile(r"\s{0,40}+\)")
# What ends a value: a comma before the next keyword, or the bracket that closes the call.
_PYTHON_NEXT = re.compile(
    r",(?=\s{0,40}+[\w-]{1,100}\s{0,40}+=)|\)(?=\s{0,40}+(?:,\s{0,40}+[A-Za-z_][\w.-]{0,100}\(|\Z))"
)

Calls = list[dict[str, Any]]
Read = Callable[[re.Match[str], str], Calls]
"""Parses calls: takes the match of their opening and the text up to their closing."""


class ArgumentForm(NamedTuple):
    """How an argument is written.

    `head` matches its beginning, with the group "key" and perhaps "type", and `tail` its end. With
    `exact` the line breaks around a value belong to it.
    """

    head: re.Pattern[str]
    tail: re.Pattern[str]
    exact: bool = False


def as_call(name: str, arguments: Any, identity: str = "") -> dict[str, Any]:
    """A call of this name, in the form of `blocks.call`. `arguments` are a mapping, or JSON as it was
    written.
    """
    name = html.unescape(name.strip().strip("\"'")).removeprefix("functions.")
    return {"id": identity, "name": name, "arguments": arguments}


def json_end(text: str, at: int) -> int:
    """Where the JSON value that begins at `at` ends; `at` itself where there is none."""
    with suppress(DataError):
        return loose_json.end_of(text, at)
    return at


def json_arguments(head: re.Match[str], inner: str) -> Calls:
    """A call whose arguments are a JSON object, perhaps in a block of code."""
    text = inner.strip().removeprefix("```json").removesuffix("```").strip()
    return [as_call(head["name"], text or {}, head.groupdict().get("id") or "")]


def json_calls(head: re.Match[str], inner: str) -> Calls:
    """Calls that are JSON as a whole, with their names."""
    return calls_in_json(inner)


def several_json_calls(head: re.Match[str], inner: str) -> Calls:
    """Calls that are JSON, one behind the other."""
    calls: Calls = []
    place = _BLANKS.match(inner).end()  # type: ignore[union-attr]  # an empty string matches, too
    while (end := json_end(inner, place)) > place:
        calls += calls_in_json(inner[place:end])
        place = _BLANKS.match(inner, end).end()  # type: ignore[union-attr]
    return calls if place == len(inner) else []


def calls_by_name(head: re.Match[str], inner: str) -> Calls:
    """Calls as a list of objects that each have the arguments under the tool's name."""
    try:
        value, _ = loose_json.decode_start(inner.strip())
    except DataError:
        return []
    calls: Calls = []
    for entry in value if isinstance(value, list) else [value]:
        calls += [as_call(name, arguments) for name, arguments in mapping(entry).items()]
    return calls


def calls_in_json(text: str, strict: bool = False) -> Calls:
    """The calls in a JSON object or a list of such; none if one of them is no call.

    With `strict` an object that has other fields than a call's is none, nor is a tool's schema.
    """
    try:
        value, _ = loose_json.decode_start(text.strip())
    except DataError:
        return []
    calls: Calls = []
    for entry in value if isinstance(value, list) else [value]:
        fields = entry if isinstance(entry, Mapping) else {}
        inner = mapping(fields, "function") or fields
        name, arguments = first(inner, _NAMES), first(inner, _ARGUMENTS)
        only_a_call = fields.keys() <= _CALL_FIELDS and isinstance(arguments, Mapping | str)
        only_a_call = only_a_call and not _is_schema(arguments)
        if not isinstance(name, str) or (strict and not only_a_call):
            return []
        identity = first(fields, ("id", "tool_call_id"))
        calls.append(as_call(name, arguments, identity if isinstance(identity, str) else ""))
    return calls


def _is_schema(arguments: Any) -> bool:
    """Whether this says what arguments a tool takes, and is none of them."""
    fields = arguments if isinstance(arguments, Mapping) else {}
    return fields.get("type") == "object" and (len(fields) == 1 or "properties" in fields)


def call_in(value: Any) -> tuple[str, dict[str, Any]] | None:
    """The name and the arguments of the one call that a value of JSON is; `None` where it is none,
    or several.

    It may be all that a list holds, and its fields may have any of the usual names. Arguments may
    be the JSON of an object, or stand beside the name.

    Example:
        >>> call_in({"function": {"name": "search", "parameters": '{"query": "Ada"}'}})
        ('search', {'query': 'Ada'})
    """
    if isinstance(value, list) and len(value) == 1:
        value = value[0]
    fields = mapping(value, "function") or mapping(value)
    name, arguments = first(fields, (*_NAMES, "tool")), first(fields, (*_ARGUMENTS, "input"))
    if arguments is None:
        beside = fields.keys() - _CALL_FIELDS - {"tool", "input"}
        arguments = {key: entry for key, entry in fields.items() if key in beside}
    for _ in range(2):  # some servers encode them twice
        if isinstance(arguments, str):
            with suppress(DataError):
                arguments = loose_json.decode(arguments)
    if not isinstance(name, str) or not name or not isinstance(arguments, dict):
        return None
    return name, arguments


def tagged_arguments(field: ArgumentForm) -> Read:
    """Reads arguments that each stand between tags of this form.

    Where none does, they may stand in tags of their own names, or be a JSON object.
    """

    def read(head: re.Match[str], inner: str) -> Calls:
        arguments: Any = dict(_pairs(field, inner))
        if not arguments and inner.lstrip().startswith("<"):
            arguments = dict(_tagged(inner))
        if not arguments and "{" in inner:
            start = inner.index("{")
            end = json_end(inner, start)
            arguments = inner[start:end] if end > start else inner[start:]
        return [as_call(head["name"], arguments)]

    return read


def _pairs(field: ArgumentForm, inner: str) -> Iterator[tuple[str, Any]]:
    """The names and values of a call's arguments; one that is not closed ends at the next."""
    place = 0
    # False once no tail follows: to look for it again for every argument takes quadratic time.
    closes = True
    while head := field.head.search(inner, place):
        tail = field.tail.search(inner, head.end()) if closes else None
        closes = tail is not None
        if tail is not None:
            value_end, place = tail.span()
        else:
            next_head = field.head.search(inner, head.end())
            value_end = place = next_head.start() if next_head else len(inner)
        key = html.unescape(head["key"].strip().strip("\"'"))
        kind = head.groupdict().get("type")
        yield key, _value(key, inner[head.end() : value_end], kind, field.exact)


def _tagged(inner: str) -> Iterator[tuple[str, Any]]:
    """The names and values of arguments that each stand in a tag of their name."""
    place = 0
    while opening := _TAG.search(inner, place):
        name = opening[1]
        closing = f"</{name}>"
        value_end = inner.find(closing, opening.end())
        if value_end < 0:
            return
        place = value_end + len(closing)
        yield name, _value(name, inner[opening.end() : value_end], None, exact=False)


def _value(key: str, text: str, kind: str | None, exact: bool) -> Any:
    """An argument's value: the text itself, or what it says as JSON.

    `kind` is the type that the markup names; without one the argument's name and the text decide.
    """
    if not exact:
        text = text.removeprefix("\n").removesuffix("\n")
    if kind in ("string", "true"):  # DeepSeek writes string="true"
        return text
    stripped = text.strip()
    if kind is None and stripped[:1] not in ("[", "{"):
        if key.lower() in _TEXT_ARGUMENTS or stripped[:1] == '"':
            return text
        if stripped in _LITERALS:
            return _LITERALS[stripped]
    with suppress(DataError):
        return loose_json.decode(stripped)
    return text


def single_argument(name: str, argument: str) -> Read:
    """Reads a call of this tool, whose only argument is the text between head and tail."""

    def read(head: re.Match[str], inner: str) -> Calls:
        return [as_call(name, {argument: inner.strip()})] if inner.strip() else []

    return read


def by_attributes(head: re.Match[str], inner: str) -> Calls:
    """A call whose tool and further arguments are attributes of its tag."""
    arguments: dict[str, Any] = dict(_ATTRIBUTE.findall(head["attributes"]))
    name = arguments.pop("name", "")
    words = inner.strip()
    if words:
        arguments["url" if words.startswith(("http://", "https://")) else "query"] = words
    return [as_call(name, arguments)] if name else []


def mcp_call(head: re.Match[str], inner: str) -> Calls:
    """A call whose name and arguments stand in tags."""
    name, arguments = _MCP_NAME.search(inner), _MCP_ARGUMENTS.search(inner)
    return [as_call(name[1], arguments[1].strip() if arguments else {})] if name else []


def python_calls(head: re.Match[str], inner: str) -> Calls:
    """One call or a list of calls as Python writes them, or the arguments of the call that the head
    names.

    Python's parser would not do: templates put texts between quotes and escape nothing in them.
    """
    name = head.groupdict().get("name")
    text = f"{name}({inner})" if name else inner.strip().removeprefix("[").removesuffix("]")
    calls: Calls = []
    place = 0
    while opening := _PYTHON_CALL.match(text, place):
        arguments: dict[str, Any] = {}
        place = opening.end()
        while not (closing := _PYTHON_CLOSE.match(text, place)):
            key = _PYTHON_KEY.match(text, place)
            value_end = _python_end(text, key.end()) if key else None
            if key is None or value_end is None:
                return []
            arguments[key[1]] = _python_value(text[key.end() : value_end].strip())
            place = value_end
        place = closing.end()
        calls.append(as_call(opening[1], arguments))
    return calls if not text[place:].strip() else []


def calls_in_python(text: str) -> Calls:
    """The calls in a list that a model wrote as Python does; none where one has no arguments, as a
    list in an answer may look like that.

    Example:
        >>> calls_in_python('[search(query="Ada")]')[0]["arguments"]
        {'query': 'Ada'}
    """
    opening = _PYTHON_LIST.match(text)
    calls = python_calls(opening, text[opening.end() :]) if opening else []
    return calls if all(call["arguments"] for call in calls) else []


def _python_end(text: str, begin: int) -> int | None:
    """Where the value that begins at `begin` ends: before the next argument or the end of the call,
    and after its own closing quote or bracket. `None`: it does not end.
    """
    closing = {"'": "'", '"': '"', "[": "]", "{": "}"}.get(text[begin : begin + 1])
    for following in _PYTHON_NEXT.finditer(text, begin + 1 if closing else begin):
        end = following.start()
        if closing is None:
            return end
        tail = text[max(begin + 1, end - _LONGEST_BLANK) : end].rstrip()
        if tail.endswith(closing):
            return end
    return None


def _python_value(text: str) -> Any:
    """A value as Python or as JSON writes it."""
    if text[:1] in ("'", '"'):
        return text[1:-1]
    if text in _LITERALS:
        return _LITERALS[text]
    with suppress(DataError):
        return loose_json.decode(text)
    if len(text) <= _LONGEST_PYTHON:
        with suppress(ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
            return ast.literal_eval(text)
    return text


def gemma_arguments(head: re.Match[str], inner: str) -> Calls:
    """A call whose arguments are JSON without quotes around keys, and with tokens around texts."""
    return [as_call(head["name"], gemma_json(inner.replace("<escape>", '<|"|>')))]


def gemma_json(text: str) -> str:
    """Gemma 4's arguments as JSON."""
    parts: list[str] = []
    # Texts stand between the tokens: they are every second part.
    for number, part in enumerate(text.split('<|"|>')):
        parts.append(json.dumps(part) if number % 2 else _GEMMA_KEY.sub(r'\1"\2":', part))
    return "".join(parts).strip()
