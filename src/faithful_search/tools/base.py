"""What a tool is: an object with one public async method, typed and documented for the policy."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from ..errors import ConfigError
from ..trajectory import Evidence
from .schema import function_schema


class Observation(msgspec.Struct, frozen=True, omit_defaults=True):
    """What the environment returns for a call: evidence with ids, or a note the policy can act on."""

    evidence: tuple[Evidence, ...] = ()
    note: str = ""
    error: bool = False


NO_RESULTS = Observation(note="No results.")


class Partial(list[Evidence]):
    """A result that lacks what could not be had for the moment: shown to the policy, neither cached nor recorded."""


class Tool:
    """Base class of the package's tools; any object of the same shape will do.

    A tool has a `name` and one public async method with typed arguments and a Google-style docstring. The method
    returns `list[Evidence]` without ids (the toolbox gives them) and raises `ToolError` with a message for the policy.
    It must not block its event loop for long: what waits is awaited, what computes for more than some milliseconds goes
    through `asyncio.to_thread`.

    Attributes:
        name: what the policy calls it; need not be the method's name, so that two corpora can be two tools of a class.
        description: what the policy is told about it; empty for what the method's docstring says.
        top_k: of the package's own tools, the most passages that a query returns.
        cache_key: what a result depends on besides the arguments (service, corpus, how many results), in one string;
            calls of a tool without one are never cached. Read when a toolbox is made.
    """

    name: str
    description: str = ""
    cache_key: str = ""

    def check(self) -> None:
        """Raise `ConfigError` where no call could succeed, saying which key or package is missing and how to give it. A
        replayed tool is not checked."""


def method_of(tool: Tool) -> Callable[..., Awaitable[list[Evidence]]]:
    """The bound async method that the policy calls: the one named as the tool, or else the only public one. Raises
    `ConfigError` when the tool has none, or several and none of its own name."""
    kind = type(tool)
    # read from the class: a property of the instance might open a connection
    public = [key for key in dir(kind) if not key.startswith("_") and inspect.iscoroutinefunction(getattr(kind, key))]
    if tool.name in public or len(public) == 1:
        method: Callable[..., Awaitable[list[Evidence]]] = getattr(
            tool, tool.name if tool.name in public else public[0]
        )
        return method
    found = f"it has {', '.join(public)}" if public else "it has no public async method"
    raise ConfigError(f"{kind.__name__}: a tool named {tool.name!r} needs `async def {tool.name}(self, …)`; {found}")


def schema_of(tool: Tool) -> dict[str, Any]:
    """The JSON schema of the tool's method, under the tool's own name and description; see `function_schema`."""
    return function_schema(method_of(tool), tool.name, getattr(tool, "description", ""))
