"""The toolbox as an environment of TRL's own tool loop (`GRPOTrainer(environment_factory=…)`).

For those who want TRL to run the episodes. Masks, turns and stopping are then TRL's and the model's chat template's;
evidence ids, fencing, time-outs and failure notes stay the toolbox's and the dialect's.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, ClassVar, Self

from .. import dialects
from ..dialects.base import Dialect
from ..dialects.fence import Fence, tags
from ..errors import ConfigError
from ..inference.chat import guarded, require_marked_roles
from ..inference.reading import require_lines
from ..tools.base import Observation, Tool
from ..tools.session import Session
from ..tools.toolbox import Toolbox
from ..trajectory import ToolCall
from .signatures import as_function

_RESERVED = ("factory", "get_reward", "reset")
_TEMPLATE_TAGS = tags("tool_call", "tool_response") + r"|<\|"
_BLOCK = re.compile(r"\s*<(\w+)>\n?(.*?)\n?</\1>\s*", re.DOTALL)


class SearchEnvironment:
    """One rollout's view of a toolbox: each tool is a method, and evidence ids run on until `reset`.

    Use `SearchEnvironment.factory(toolbox)`; the class itself has no tools.

    Attributes:
        observations: what the calls since the last `reset` returned; TRL hands reward functions the `environments`.

    Example:
        ```python
        trainer = GRPOTrainer(
            model, reward_funcs=my_reward, train_dataset=prompts, environment_factory=SearchEnvironment.factory(toolbox)
        )
        ```
    """

    _toolbox: ClassVar[Toolbox]
    _dialect: ClassVar[Dialect]
    _fence: ClassVar[Fence]
    _session: Session

    @classmethod
    def factory(
        cls,
        toolbox: Toolbox,
        dialect: Dialect | str = "pou",
        special_tokens: Iterable[str] = (),
        tokenizer: Any = None,
    ) -> Callable[[], Self]:
        """A class whose instances are environments with the toolbox's tools as async methods.

        Args:
            toolbox: the tools; one toolbox serves all environments.
            dialect: a dialect or its name; it writes the evidence. The block around it is left to the chat template.
            special_tokens: more strings that retrieved text must not contain.
            tokenizer: the policy's; retrieved text must not contain its control tokens. Without it only the dialect's
                tags, `<tool_call>`, `<tool_response>` and ChatML's `<|` are kept out: not `</s>` or `<end_of_turn>`.

        Raises:
            ConfigError: for a tool whose name cannot be a method's here, or whose schema cannot be made.
            DialectError: for an unknown dialect.
            TemplateError: for a tokenizer from whose markup retrieved text cannot be kept apart.
        """
        known = dialects.load(dialect) if isinstance(dialect, str) else dialect
        members: dict[str, Any] = {name: _method(tool) for name, tool in toolbox.tools.items()}
        members |= {"_toolbox": toolbox, "_dialect": known, "_fence": template_fence(known, special_tokens, tokenizer)}
        return type(cls.__name__, (cls,), {"__doc__": cls.__doc__, "__module__": cls.__module__, **members})

    def __init__(self) -> None:
        self._session = self._toolbox.session()
        self.reset()

    def reset(self, **row: Any) -> None:
        """Begin a new rollout: ids start at `E1` again, calls of the old one are cancelled. `row` is not used."""
        self._session.close()
        self.observations: list[Observation] = []
        self._session = self._toolbox.session()

    async def _run(self, name: str, arguments: dict[str, Any]) -> str:
        session, observations = self._session, self.observations
        observation = await self._toolbox.call(ToolCall(name, arguments), session)
        observations.append(observation)
        return inner_text(observation, self._dialect, self._fence)


def inner_text(observation: Observation, dialect: Dialect, fence: Fence) -> str:
    """What a dialect writes for an observation, without the block around it, which a chat template makes itself."""
    text = fence.whole(partial(dialect.render_observation, observation.evidence, observation.note))
    block = _BLOCK.fullmatch(text)
    return block[2] if block else text.strip()


def template_fence(dialect: Dialect, special_tokens: Iterable[str] = (), tokenizer: Any = None) -> Fence:
    """The dialect's fence, which also keeps out what chat templates and the tokenizer treat as control."""
    patterns = [pattern for pattern in (dialect.fence.pattern, _TEMPLATE_TAGS) if pattern]
    fence = Fence("|".join(patterns), dialect.fence.tokens).with_tokens(special_tokens)
    if tokenizer is None:
        return fence
    require_lines(tokenizer, dialect)
    require_marked_roles(tokenizer)
    return guarded(fence, tokenizer)


def _method(tool: Tool) -> Callable[..., Any]:
    if tool.name in _RESERVED:
        raise ConfigError(f"the tool {tool.name!r} cannot be a method of an environment; give it another name")

    # whatever the model passes goes to the toolbox, which checks it and answers with a note the policy can act on
    async def method(self: SearchEnvironment, /, **arguments: Any) -> str:
        return await self._run(tool.name, arguments)

    return as_function(method, tool, bound=False)
