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
"""Entries of an argument that is a list."""
_WHERE = re.compile(r" - at `\$\.?([^`]*)`$")
# How msgspec begins to speak of a name or a value that was made up, which it repeats.
_UNKNOWN, _NO_CHOICE = "Object contains unknown field", "Invalid enum value"


class Observation(msgspec.Struct, frozen=True, omit_defaults=True):
    """What the environment returns for a call: evidence with ids, a note that the policy can act
    on, or both where only a part could be had.
    """

    evidence: tuple[Evidence, ...] = ()
    note: str = ""
    error: bool = False


NO_RESULTS = Observation(note="No results.")
ERROR = "Error"
"""What the note of a call that failed begins with."""


class Partial(list[Evidence]):
    """A result that lacks something.

    What failed is no evidence: `note` says it to the policy, in words of the tool's own. Where it
    may succeed later (`transient`), the result is neither cached nor recorded.
    """

    def __init__(
        self, found: Iterable[Evidence] = (), note: str = "", transient: bool = True
    ) -> None:
        super().__init__(found)
        self.note, self.transient = note, transient


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
    """Shortens texts for a tool: writes what the passages say about the query, from them alone.
    `name` says which model and prompt write, for the cache's key.
    """

    @property
    def name(self) -> str: ...

    async def condense(self, query: str, passages: Sequence[str]) -> str:
        """One paragraph; empty when the passages say nothing about the query. Raises `ToolError`
        where it fails.
        """
        ...


def method_of(tool: Tool) -> Callable[..., Awaitable[list[Evidence]]]:
    """The bound async method that the policy calls: the one named as the tool, or else the only
    public one. Raises `ConfigError` when the tool has none, or several and none of its own name.
    """
    kind = type(tool)
    # read from the class: a property of the instance might open a connection
    public = [
        key
        for key in dir(kind)
        if not key.startswith("_") and inspect.iscoroutinefunction(getattr(kind, key))
    ]
    if tool.name in public or len(public) == 1:
        method: Callable[..., Awaitable[list[Evidence]]]
        method = getattr(tool, tool.name if tool.name in public else public[0])
        return method
    methods = f"it has {', '.join(public)}" if public else "it has no public async method"
    raise ConfigError(
        f"{kind.__name__}: a tool named {tool.name!r} needs `async def {tool.name}(self, …)`; "
        f"{methods}"
    )


def schema_of(tool: Tool) -> dict[str, Any]:
    """`{"type": "function", "function": {…}}`, as chat templates and OpenAI-compatible servers want
    it: what `transformers.utils.get_json_schema` gives, which imports torch, with the tool's own
    name and description. Raises `ConfigError` when an argument has no type or is not described
    under `Args:`.
    """
    method: Any = method_of(tool)
    summary, descriptions = summary_and_arguments(inspect.getdoc(method) or "")
    if not summary:
        raise ConfigError(f"{method.__qualname__} needs a docstring: it is what the policy reads")
    properties: dict[str, Any] = {}
    # the function can be hashed, whatever the method is bound to
    kinds, required, _ = _arguments(getattr(method, "__func__", method))
    for argument, kind in kinds.items():
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
    _, required, struct = _arguments(getattr(method, "__func__", method))
    try:
        msgspec.convert(arguments, struct)
    except msgspec.ValidationError as error:
        # msgspec speaks of JSON objects and JSONPaths, which the policy has not seen
        if str(error).startswith(_UNKNOWN):
            return "unknown argument"
        where = _WHERE.search(str(error))
        text = _WHERE.sub("", str(error)).replace(
            "Object missing required field", "missing required argument"
        )
        if text.startswith(_NO_CHOICE):
            text = "none of the values that it takes"
        text = text[:1].lower() + text[1:].replace("`", "'")
        return f"argument {where[1]!r}: {text}" if where and where[1] else text
    # an argument without a default is what the call is about, so it must not be empty either
    return next(
        (f"argument {name!r} is empty" for name in required if _is_empty(arguments[name])), ""
    )


def one_or_several(name: str, one: str, several: Sequence[str] | None) -> list[str]:
    """What was given as the argument `name` or `name_list`: each once, without white space around
    it. Raises `ToolError` when neither or both are given, an entry is empty, or there are more than
    `MOST`.

    Example:
        >>> one_or_several("query", "", ["tea", " tea ", "milk"])
        ['tea', 'milk']
    """
    if bool(one.strip()) == bool(several):
        raise ToolError(f"Give either {name}, which must not be empty, or {name}_list, not both.")
    entries = list(dict.fromkeys(each.strip() for each in several or [one]))
    if len(entries) > MOST:
        raise ToolError(f"{name}_list has {len(entries)} entries; give at most {MOST}.")
    if not all(entries):
        raise ToolError(f"An entry of {name}_list is empty.")
    return entries


def entry(name: str, value: str, several: Sequence[str] | None) -> str:
    """What a note calls the argument `name`, or the entry of `name_list` that is `value`: by its
    place, since notes do not repeat what the agent wrote.

    Example:
        >>> entry("url", "b", ["a", " b"]), entry("url", "a", None)
        ('Entry 2 of url_list', 'The url')
    """
    if not several:
        return f"The {name}"
    return f"Entry {[each.strip() for each in several].index(value) + 1} of {name}_list"


def _is_empty(value: Any) -> bool:
    """Whether it is a blank text, or a list of nothing else."""
    return (
        not value.strip()
        if isinstance(value, str)
        else isinstance(value, list) and all(map(_is_empty, value))
    )


@cache
def _arguments(
    function: Callable[..., Any],
) -> tuple[dict[str, Any], tuple[str, ...], type[msgspec.Struct]]:
    """The types of the arguments, which of them are required, and all of them as a struct."""
    parameters = dict(inspect.signature(function).parameters)
    parameters.pop("self", None)
    hints = get_type_hints(function, include_extras=True)
    if missing := [name for name in parameters if name not in hints]:
        raise ConfigError(f"{function.__qualname__}: argument {missing[0]!r} has no type")
    kinds = {name: hints[name] for name in parameters}
    required = tuple(
        name for name, parameter in parameters.items() if parameter.default is parameter.empty
    )
    fields: list[Any] = [
        (name, kind) if name in required else (name, kind, None) for name, kind in kinds.items()
    ]
    return (
        kinds,
        required,
        msgspec.defstruct("Arguments", fields, forbid_unknown_fields=True, kw_only=True),
    )


def _type_schema(kind: Any) -> dict[str, Any]:
    if get_origin(kind) in (Union, types.UnionType) and type(None) in get_args(kind):
        alternatives = [part for part in get_args(kind) if part is not type(None)]
        # chat templates know no unions
        return {**_type_schema(reduce(or_, alternatives)), "nullable": True}
    return msgspec.json.schema(kind)
