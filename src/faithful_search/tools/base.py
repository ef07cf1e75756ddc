"""What a tool is: an object with one public async method, typed and documented for the policy."""

import inspect
import re
import types
from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import cache, reduce
from operator import or_
from typing import (
    TYPE_CHECKING,
    Any,
    Protocol,
    Union,
    get_args,
    get_origin,
    get_type_hints,
    runtime_checkable,
)

import msgspec

from ..docstrings import summary_and_arguments
from ..errors import ConfigError, ToolError
from ..trajectory import Evidence

if TYPE_CHECKING:
    from .setup import Setup

MOST = 5
"""Entries that an argument which is a list may have."""
# How msgspec's messages end that say where the error is: "- at `$.query`"
_PLACE = re.compile(r" - at `\$\.?([^`]*)`$")
# How its messages begin that repeat a name or a value which the policy made up
_UNKNOWN_FIELD = "Object contains unknown field"
_UNKNOWN_VALUE = "Invalid enum value"


class Observation(msgspec.Struct, frozen=True, omit_defaults=True):
    """What the environment returns for a call.

    Attributes:
        evidence: the passages, with ids.
        note: a text that the policy can act on, such as why there is no evidence, or only a part.
        error: whether the call failed.
    """

    evidence: tuple[Evidence, ...] = ()
    note: str = ""
    error: bool = False


NO_RESULTS = Observation(note="No results.")
ERROR = "Error"
"""What the note of a call that failed begins with."""


class Partial(list[Evidence]):
    """A result that lacks something.

    Args:
        evidence: what there is.
        note: what is missing and why, which the policy reads; in the tool's own words.
        transient: whether a later call may return it. Such a result is neither cached nor recorded.
    """

    def __init__(
        self, evidence: Iterable[Evidence] = (), note: str = "", transient: bool = True
    ) -> None:
        super().__init__(evidence)
        self.note = note
        self.transient = transient


class Tool:
    """Base class of the package's tools; a `Toolbox` takes any object of the same shape.

    A tool in a file of its own is found by the file's name, as `--tools` takes it; a file outside
    the package by its path, or by an entry point of the group `faithful_search.tools`.

    A tool has a `name` and one public async method with typed arguments and a Google-style
    docstring. The method returns `list[Evidence]` without ids (the toolbox gives them) and raises
    `ToolError` with a message for the policy. What it computes for more than some milliseconds goes
    through `asyncio.to_thread`.

    Attributes:
        name: what the policy calls it; need not be the method's name, so that two corpora can be
            two tools of a class.
        description: what the policy is told about it; empty for what the method's docstring says.
        cache_key: what a result depends on besides the arguments (service, corpus, how many
            results), in one string; calls of a tool without one are never cached. Read when a
            toolbox is made.
    """

    name: str
    description: str = ""
    cache_key: str = ""

    def check(self) -> None:
        """Raise `ConfigError` where no call could succeed, saying which key or package is missing
        and how to give it. A replayed tool is not checked.
        """

    @classmethod
    def open(cls, source: str, setup: "Setup") -> "Tool":
        """The tool that `--tools NAME=SOURCE` names; without `=SOURCE` the source is empty.

        Raises `ConfigError` for a source that is unknown, missing, or not needed.
        """
        cls.takes_no(source)
        try:
            return cls()
        except TypeError as error:
            raise ConfigError(
                f"{cls.__name__} cannot be made without arguments ({error}): override `open`"
            ) from error

    @classmethod
    def takes_no(cls, source: str) -> None:
        """Raise `ConfigError` for a source, which this tool does not need."""
        if source:
            raise ConfigError(f"{cls.__name__} has no source: leave off {source!r}")


@runtime_checkable
class Condenser(Protocol):
    """Shortens texts for a tool: writes what the passages say about the query, from them alone."""

    @property
    def name(self) -> str:
        """Which model and prompt write: a part of cache keys."""
        ...

    async def condense(self, query: str, passages: Sequence[str]) -> str:
        """One paragraph; empty when the passages say nothing about the query. Raises `ToolError`
        where the model fails.
        """
        ...


def method_of(tool: Tool) -> Callable[..., Awaitable[list[Evidence]]]:
    """The bound async method that the policy calls: the one that has the tool's name, or else the
    only public one.

    Raises:
        ConfigError: the tool has none, or several and none of its own name.
    """
    tool_class = type(tool)
    public = []
    for name in dir(tool_class):
        # Read from the class: a property of the instance might open a connection.
        if not name.startswith("_") and inspect.iscoroutinefunction(getattr(tool_class, name)):
            public.append(name)
    if tool.name in public or len(public) == 1:
        method: Callable[..., Awaitable[list[Evidence]]]
        method = getattr(tool, tool.name if tool.name in public else public[0])
        return method
    methods = f"it has {', '.join(public)}" if public else "it has no public async method"
    raise ConfigError(
        f"{tool_class.__name__}: a tool named {tool.name!r} needs "
        f"`async def {tool.name}(self, …)`; {methods}"
    )


def schema_of(tool: Tool) -> dict[str, Any]:
    """The JSON schema of a tool, `{"type": "function", "function": {…}}`, as chat templates and
    OpenAI-compatible servers want it.

    It is what `transformers.utils.get_json_schema` gives, which imports torch, but with the tool's
    own name and description.

    Raises:
        ConfigError: an argument has no type, or is not described under `Args:`.
    """
    method: Any = method_of(tool)
    summary, descriptions = summary_and_arguments(inspect.getdoc(method) or "")
    if not summary:
        raise ConfigError(f"{method.__qualname__} needs a docstring: it is what the policy reads")
    properties: dict[str, Any] = {}
    types_of_arguments, required, _ = _arguments(_function_of(method))
    for argument, kind in types_of_arguments.items():
        if argument not in descriptions:
            raise ConfigError(
                f"{method.__qualname__}: describe {argument!r} under 'Args:' in its docstring"
            )
        properties[argument] = {**_type_schema(kind), "description": descriptions[argument]}
    parameters: dict[str, Any] = {"type": "object", "properties": properties}
    if required:
        parameters["required"] = list(required)
    description = getattr(tool, "description", "") or summary
    return {
        "type": "function",
        "function": {"name": tool.name, "description": description, "parameters": parameters},
    }


def check_arguments(method: Callable[..., Any], arguments: Any) -> str:
    """What is wrong with the arguments of a call, for the policy to read; empty when nothing is.

    It names arguments of the method, and repeats nothing that the policy made up.

    Example:
        >>> async def search(self, query: str): ...
        >>> check_arguments(search, {"query": 3})
        "argument 'query': expected 'str', got 'int'"
    """
    _, required, struct = _arguments(_function_of(method))
    try:
        msgspec.convert(arguments, struct)
    except msgspec.ValidationError as error:
        return _reworded(str(error))
    # An argument without a default is what the call is about, so it must not be empty either.
    for name in required:
        if _is_empty(arguments[name]):
            return f"argument {name!r} is empty"
    return ""


def _reworded(message: str) -> str:
    """msgspec's message without its words of JSON objects and paths, which the policy has not
    seen.
    """
    if message.startswith(_UNKNOWN_FIELD):
        return "unknown argument"
    place = _PLACE.search(message)
    problem = _PLACE.sub("", message)
    problem = problem.replace("Object missing required field", "missing required argument")
    if problem.startswith(_UNKNOWN_VALUE):
        problem = "none of the values that it takes"
    problem = problem[:1].lower() + problem[1:].replace("`", "'")
    return f"argument {place[1]!r}: {problem}" if place and place[1] else problem


def one_or_several(name: str, one: str, several: Sequence[str] | None) -> list[str]:
    """The values of the argument `name` or `name_list`: each once, without white space around it.

    Args:
        one: the value of `name`; empty where it is not given.
        several: that of `name_list`.

    Raises:
        ToolError: neither or both are given, an entry is empty, or there are more than `MOST`.

    Example:
        >>> one_or_several("query", "", ["tea", " tea ", "milk"])
        ['tea', 'milk']
    """
    if bool(one.strip()) == bool(several):
        raise ToolError(f"Give either {name}, which must not be empty, or {name}_list, not both.")
    entries = list(dict.fromkeys(value.strip() for value in several or [one]))
    if len(entries) > MOST:
        raise ToolError(f"{name}_list has {len(entries)} entries; give at most {MOST}.")
    if not all(entries):
        raise ToolError(f"An entry of {name}_list is empty.")
    return entries


def entry(name: str, value: str, several: Sequence[str] | None) -> str:
    """How a note names an argument: by its name, or by its place in `name_list`, since notes do not
    repeat what the agent wrote.

    Args:
        value: the argument's, or that of the entry.
        several: the value of `name_list`; `None` where the argument is `name`.

    Example:
        >>> entry("url", "b", ["a", " b"]), entry("url", "a", None)
        ('Entry 2 of url_list', 'The url')
    """
    if not several:
        return f"The {name}"
    entries = [value.strip() for value in several]
    return f"Entry {entries.index(value) + 1} of {name}_list"


def _is_empty(value: Any) -> bool:
    """Whether it is a blank text, or a list of nothing but such."""
    if isinstance(value, str):
        return not value.strip()
    return isinstance(value, list) and all(map(_is_empty, value))


def _function_of(method: Callable[..., Any]) -> Callable[..., Any]:
    """The function of a bound method: it can be hashed, whatever the method is bound to."""
    function: Callable[..., Any] = getattr(method, "__func__", method)
    return function


@cache
def _arguments(
    function: Callable[..., Any],
) -> tuple[dict[str, Any], tuple[str, ...], type[msgspec.Struct]]:
    """The types of the arguments, the names of those that are required, and all as a struct."""
    parameters = dict(inspect.signature(function).parameters)
    parameters.pop("self", None)
    hints = get_type_hints(function, include_extras=True)
    types_of_arguments: dict[str, Any] = {}
    required: list[str] = []
    fields: list[Any] = []
    for name, parameter in parameters.items():
        if name not in hints:
            raise ConfigError(f"{function.__qualname__}: argument {name!r} has no type")
        types_of_arguments[name] = hints[name]
        if parameter.default is parameter.empty:
            required.append(name)
            fields.append((name, hints[name]))
        else:
            fields.append((name, hints[name], None))
    struct = msgspec.defstruct("Arguments", fields, forbid_unknown_fields=True, kw_only=True)
    return types_of_arguments, tuple(required), struct


def _type_schema(kind: Any) -> dict[str, Any]:
    """The JSON schema of a type; `T | None` is a nullable `T`, as chat templates know no unions."""
    if get_origin(kind) in (Union, types.UnionType) and type(None) in get_args(kind):
        alternatives = [part for part in get_args(kind) if part is not type(None)]
        return {**_type_schema(reduce(or_, alternatives)), "nullable": True}
    return msgspec.json.schema(kind)
