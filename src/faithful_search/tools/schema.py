"""A tool's JSON schema from its signature and docstring, and the check of a call's arguments against it.

The schema equals that of `transformers.utils.get_json_schema`, which cannot be used here because it imports torch.
"""

from __future__ import annotations

import inspect
import re
import types
from collections.abc import Callable
from functools import cache, reduce
from operator import or_
from typing import Any, Union, get_args, get_origin, get_type_hints

import msgspec

from ..errors import ConfigError

_SECTION = re.compile(r"^(Args|Returns|Raises|Yields|Examples?|Notes?):[ ]*$", re.MULTILINE)
_ARGUMENT = re.compile(r"^    (\w+)(?: \(.*?\))?: *(.*(?:\n {5,}.*)*)", re.MULTILINE)
_WHERE = re.compile(r" - at `\$\.?(.*)`$")


def function_schema(method: Callable[..., Any], name: str, description: str = "") -> dict[str, Any]:
    """`{"type": "function", "function": {…}}`, as chat templates and OpenAI-compatible servers want it.

    Args:
        method: a bound method or a function with typed arguments and a Google-style docstring.
        name: the name it is called by.
        description: instead of the docstring's text before its first section.

    Raises:
        ConfigError: when there is no docstring, or an argument has no type or is not described under `Args:`.
    """
    about, told = _docstring(method)
    properties: dict[str, Any] = {}
    for argument, kind in _types(method).items():
        if argument not in told:
            raise ConfigError(f"{method.__qualname__}: describe {argument!r} under 'Args:' in its docstring")
        properties[argument] = {**_type_schema(kind), "description": told[argument]}
    parameters: dict[str, Any] = {"type": "object", "properties": properties}
    if required := _required(_plain(method)):
        parameters["required"] = list(required)
    function = {"name": name, "description": description or about, "parameters": parameters}
    return {"type": "function", "function": function}


def check_arguments(method: Callable[..., Any], arguments: Any) -> str:
    """What is wrong with the arguments of a call, for the policy to read; empty when nothing is.

    Example:
        >>> from faithful_search.tools import LocalSearch
        >>> check_arguments(LocalSearch.from_corpus("world").local_search, {"query": 3})
        "argument 'query': expected 'str', got 'int'"
    """
    try:
        msgspec.convert(arguments, _argument_struct(_plain(method)))
    except msgspec.ValidationError as error:
        return _readable(str(error))
    return next((f"argument {name!r} is empty" for name in _required(_plain(method)) if _is_empty(arguments[name])), "")


def _is_empty(value: Any) -> bool:
    """Whether nothing is asked: a blank text, or a list of no others."""
    return not value.strip() if isinstance(value, str) else isinstance(value, list) and all(map(_is_empty, value))


def _plain(method: Callable[..., Any]) -> Callable[..., Any]:
    """The function behind a bound method: it can be hashed, whatever it is bound to."""
    return getattr(method, "__func__", method)


@cache
def _required(method: Callable[..., Any]) -> tuple[str, ...]:
    return tuple(name for name, told in _parameters(method).items() if told.default is told.empty)


@cache
def _argument_struct(method: Callable[..., Any]) -> type[msgspec.Struct]:
    parameters = _parameters(method)
    fields: list[Any] = []
    for name, kind in _types(method).items():
        optional = parameters[name].default is not inspect.Parameter.empty
        fields.append((name, kind, None) if optional else (name, kind))
    return msgspec.defstruct("Arguments", fields, forbid_unknown_fields=True, kw_only=True)


def _readable(message: str) -> str:
    where = _WHERE.search(message)
    text = _WHERE.sub("", message).replace("Object missing required field", "missing required argument")
    text = text.replace("Object contains unknown field", "unknown argument").replace("`", "'")
    text = text[:1].lower() + text[1:]
    return f"argument {where[1]!r}: {text}" if where and where[1] else text


def _parameters(method: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    found = dict(inspect.signature(method).parameters)
    found.pop("self", None)
    return found


def _types(method: Callable[..., Any]) -> dict[str, Any]:
    hints = get_type_hints(method, include_extras=True)
    missing = [name for name in _parameters(method) if name not in hints]
    if missing:
        raise ConfigError(f"{method.__qualname__}: argument {missing[0]!r} has no type")
    return {name: hints[name] for name in _parameters(method)}


def _type_schema(kind: Any) -> dict[str, Any]:
    if get_origin(kind) in (Union, types.UnionType) and type(None) in get_args(kind):
        rest = [part for part in get_args(kind) if part is not type(None)]
        return {**_type_schema(reduce(or_, rest)), "nullable": True}
    return msgspec.json.schema(kind)


def _docstring(method: Callable[..., Any]) -> tuple[str, dict[str, str]]:
    """The text before the first section, and the `Args:` section by argument."""
    pieces = _SECTION.split(inspect.getdoc(method) or "")
    if not pieces[0].strip():
        raise ConfigError(f"{method.__qualname__} needs a docstring: it is what the policy reads")
    sections = dict(zip(pieces[1::2], pieces[2::2], strict=True))
    arguments = {name: " ".join(told.split()) for name, told in _ARGUMENT.findall(sections.get("Args", ""))}
    return pieces[0].strip(), arguments
