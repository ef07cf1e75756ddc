"""A tool as a function that others can describe: its signature and docstring give the schema that the toolbox gives."""

from __future__ import annotations

import inspect
import keyword
from collections.abc import Callable
from typing import Any, get_type_hints

from ..errors import ConfigError
from ..tools.base import Tool, method_of, schema_of


def as_function(run: Callable[..., Any], tool: Tool, bound: bool = True) -> Callable[..., Any]:
    """`run`, under the tool's name and with its signature, annotations and docstring.

    Args:
        run: takes the tool's arguments by keyword, after `self` unless it is `bound`.
        tool: what it calls.
        bound: whether it is a plain function rather than one to be a method.

    Raises:
        ConfigError: for a tool whose name cannot be a function's, or whose schema cannot be made.
    """
    if not tool.name.isidentifier() or keyword.iskeyword(tool.name) or tool.name.startswith("_"):
        raise ConfigError(f"the tool {tool.name!r} cannot be a function or a method; give it another name")
    hints = get_type_hints(method_of(tool))
    parameters = [
        parameter.replace(annotation=hints[key])
        for key, parameter in inspect.signature(method_of(tool)).parameters.items()
    ]
    itself = [] if bound else [inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD)]
    run.__signature__ = inspect.Signature([*itself, *parameters])  # type: ignore[attr-defined]
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    run.__name__ = run.__qualname__ = tool.name
    run.__doc__ = _docstring(schema_of(tool)["function"])
    return run


def _docstring(function: dict[str, Any]) -> str:
    arguments = function["parameters"]["properties"]
    lines = [f"    {name}: {about['description']}" for name, about in arguments.items()]
    return "\n".join([function["description"], *(["", "Args:", *lines] if lines else [])]) + "\n"
