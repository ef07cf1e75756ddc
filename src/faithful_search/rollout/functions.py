"""The tools of a toolbox as plain async functions: for `GRPOTrainer(tools=[…])` and for agent frameworks."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from inspect import signature
from typing import Any

from .. import dialects
from ..dialects.base import Dialect
from ..tools.base import Observation, Tool
from ..tools.session import Session
from ..tools.toolbox import Toolbox
from ..trajectory import ToolCall
from .environment import inner_text, template_fence
from .signatures import as_function


def tool_functions(
    toolbox: Toolbox, dialect: Dialect | str = "pou", special_tokens: Iterable[str] = (), tokenizer: Any = None
) -> list[Callable[..., Any]]:
    """One async function per tool: typed, documented, returning what a policy reads; failures are text too.

    A function does not know whose rollout calls it, so evidence ids run on over all of its calls: they are unique in a
    rollout, but do not start at `E1` in each. `SearchEnvironment` knows its rollout and begins anew.

    Args:
        toolbox: the tools; its time-outs, limits and cache hold.
        dialect: a dialect or its name; it writes the evidence. The block around it is left to the chat template.
        special_tokens: more strings that retrieved text must not contain.
        tokenizer: the policy's; retrieved text must not contain its control tokens.

    Raises:
        ConfigError: for a tool whose name cannot be a function's.
        DialectError: for an unknown dialect.
        TemplateError: for a tokenizer from whose markup retrieved text cannot be kept apart.

    Example:
        >>> import asyncio
        >>> from faithful_search.tools import LocalSearch
        >>> toolbox = Toolbox([LocalSearch.from_corpus([{"title": "Paris", "text": "The capital of France."}])])
        >>> [search] = tool_functions(toolbox)
        >>> asyncio.run(search("capital of France"))
        'Paris [E1]: The capital of France.'
    """
    known = dialects.load(dialect) if isinstance(dialect, str) else dialect
    fence, session = template_fence(known, special_tokens, tokenizer), toolbox.session()

    def write(observation: Observation) -> str:
        return inner_text(observation, known, fence)

    return [_function(toolbox, tool, session, write) for tool in toolbox.tools.values()]


def _function(
    toolbox: Toolbox, tool: Tool, session: Session, write: Callable[[Observation], str]
) -> Callable[..., Any]:
    async def call(*values: Any, **arguments: Any) -> str:
        given = {**dict(zip(signature(call).parameters, values, strict=False)), **arguments}
        return write(await toolbox.call(ToolCall(tool.name, given), session))

    return as_function(call, tool)
