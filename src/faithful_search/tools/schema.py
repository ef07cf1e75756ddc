"""A tool's JSON schema from its signature and docstring, and the check of a call's arguments against it.

The schema equals that of `transformers.utils.get_json_schema`, which cannot be used here because it imports torch.
"""

from __future__ import annotations

import inspect
import re
import types
from collections.abc import Callable, Sequence
from functools import cache, reduce
from operator import or_
from typing import Any, Union, get_args, get_origin, get_type_hints

import msgspec

from ..errors import ConfigError, ToolError

MOST = 5
"""Entries of an argument that is a list."""
_SECTION = re.compile(r"^(Args|Returns|Raises|Yields|Examples?|Notes?):[ ]*$", re.MULTILINE)
_ARGUMENT = re.compile(r"^    (\w+)(?: \(.*?\))?: *(.*(?:\n {5,}.*)*)", re.MULTILINE)
_WHERE = re.compile(r" - at `\$\.?(.*)`$")


def function_schema(method: Callable[..., Any], name: str, description: str = "") -> dict[str, Any]:
    """`{"type": "function", "function": {…}}`, as chat templates and OpenAI-compatible servers want it.

    The method has typed arguments and a Google-style docstring; `description` stands in for the text before its first
    section. Raises `ConfigError` when an argument has no type or is not described under `Args:`.
    """
    about, *rest = _SECTION.split(inspect.getdoc(method) or "")
    if not about.strip():
        raise ConfigError(f"{method.__qualname__} needs a docstring: it is what the policy reads")
    sections = dict(zip(rest[::2], rest[1::2], strict=True))
    told = {argument: " ".join(text.split()) for argument, text in _ARGUMENT.findall(sections.get("Args", ""))}
    properties: dict[str, Any] = {}
    kinds, required, _ = _arguments(method)
    for argument, kind in kinds.items():
        if argument not in told:
            raise ConfigError(f"{method.__qualname__}: describe {argument!r} under 'Args:' in its docstring")
        properties[argument] = {**_type_schema(kind), "description": told[argument]}
    parameters: dict[str, Any] = {"type": "object", "properties": properties}
    if required:
        parameters["required"] = list(required)
    function = {"name": name, "description": description or about.strip(), "parameters": parameters}
    return {"type": "function", "function": function}


def check_arguments(method: Callable[..., Any], arguments: Any) -> str:
    """What is wrong with the arguments of a call, for the policy to read; empty when nothing is.

    Example:
        >>> from faithful_search.tools import LocalSearch
        >>> check_arguments(LocalSearch.from_corpus("world").local_search, {"query": 3})
        "argument 'query': expected 'str', got 'int'"
    """
    _, required, struct = _arguments(method)
    try:
        msgspec.convert(arguments, struct)
    except msgspec.ValidationError as error:
        # msgspec speaks of JSON objects and JSONPaths, which the policy has not seen
        where = _WHERE.search(str(error))
        text = _WHERE.sub("", str(error)).replace("Object missing required field", "missing required argument")
        text = text.replace("Object contains unknown field", "unknown argument").replace("`", "'")
        text = text[:1].lower() + text[1:]
        return f"argument {where[1]!r}: {text}" if where and where[1] else text
    # an argument without a default is what the call is about, so it must not be empty either
    return next((f"argument {name!r} is empty" for name in required if _is_empty(arguments[name])), "")


def one_or_several(name: str, one: str, several: Sequence[str] | None) -> list[str]:
    """What was given as the argument `name` or `name_list`: each once, without white space around it. Raises
    `ToolError` when neither or both are given, an entry is empty, or there are more than `MOST`.

    Example:
        >>> one_or_several("query", "", ["tea", " tea ", "milk"])
        ['tea', 'milk']
    """
    if bool(one.strip()) == bool(several):
        raise ToolError(f"Give either {name}, which must not be empty, or {name}_list, not both.")
    given = list(dict.fromkeys(each.strip() for each in several or [one]))
    if len(given) > MOST:
        raise ToolError(f"{name}_list has {len(given)} entries; give at most {MOST}.")
    if not all(given):
        raise ToolError(f"An entry of {name}_list is empty.")
    return given


def _is_empty(value: Any) -> bool:
    """Whether it is a blank text, or a list of nothing else."""
    return not value.strip() if isinstance(value, str) else isinstance(value, list) and all(map(_is_empty, value))


def _arguments(method: Callable[..., Any]) -> tuple[dict[str, Any], tuple[str, ...], type[msgspec.Struct]]:
    """The types of the arguments, which of them are required, and all of them as a struct."""
    return _of_function(getattr(method, "__func__", method))  # which can be hashed, whatever the method is bound to


@cache
def _of_function(function: Callable[..., Any]) -> tuple[dict[str, Any], tuple[str, ...], type[msgspec.Struct]]:
    parameters = dict(inspect.signature(function).parameters)
    parameters.pop("self", None)
    hints = get_type_hints(function, include_extras=True)
    if missing := [name for name in parameters if name not in hints]:
        raise ConfigError(f"{function.__qualname__}: argument {missing[0]!r} has no type")
    kinds = {name: hints[name] for name in parameters}
    required = tuple(name for name, told in parameters.items() if told.default is told.empty)
    fields: list[Any] = [(name, kind) if name in required else (name, kind, None) for name, kind in kinds.items()]
    return kinds, required, msgspec.defstruct("Arguments", fields, forbid_unknown_fields=True, kw_only=True)


def _type_schema(kind: Any) -> dict[str, Any]:
    if get_origin(kind) in (Union, types.UnionType) and type(None) in get_args(kind):
        rest = [part for part in get_args(kind) if part is not type(None)]
        # chat templates know no unions
        return {**_type_schema(reduce(or_, rest)), "nullable": True}
    return msgspec.json.schema(kind)
