"""The toolbox for loops that others run: an environment of TRL's own tool loop, and plain functions.

Masks, turns and stopping are then the loop's; evidence ids, fencing, time-outs and failure notes stay the toolbox's.
"""

import inspect
import keyword
from collections import deque
from collections.abc import Callable, MutableSequence
from functools import partial
from typing import Any, ClassVar, Self

from .. import dialects
from ..dialects.base import Dialect
from ..dialects.fence import Fence, tags
from ..errors import ConfigError
from ..inference.fencing import check_reader, guarded
from ..tools.base import Observation, Tool, method_of, schema_of
from ..tools.toolbox import Session, Toolbox
from ..trajectory import ToolCall

_RESERVED = ("factory", "get_reward", "reset")  # names that TRL calls, and our own
_TEMPLATE_TAGS = tags("tool_call", "tool_response") + r"|<\|"


class SearchEnvironment:
    """One rollout's view of a toolbox: each tool is a method, and evidence ids run on until `reset`.

    Use `SearchEnvironment.factory(toolbox)`; the class itself has no tools. `observations` is what the calls since the
    last `reset` returned; TRL hands reward functions the `environments`.

    Example:
        ```python
        trainer = GRPOTrainer(
            model, reward_funcs=my_reward, train_dataset=prompts, environment_factory=SearchEnvironment.factory(toolbox)
        )
        ```
    """

    _toolbox: ClassVar[Toolbox]
    _written: ClassVar["staticmethod[[Observation], str]"]  # what a policy reads of an observation

    @classmethod
    def factory(
        cls, toolbox: Toolbox, dialect: Dialect | str = "pou", tokenizer: Any = None
    ) -> Callable[[], Self]:
        """A class whose instances are environments with the toolbox's tools as async methods.

        Args:
            toolbox: the tools; one toolbox serves all environments.
            dialect: a dialect or its name; it writes the evidence. The block around it is left to the chat template.
            tokenizer: the policy's; retrieved text must not contain its control tokens. Without it only the dialect's
                tags, `<tool_call>`, `<tool_response>` and ChatML's `<|` are kept out: not `</s>` or `<end_of_turn>`.

        Raises:
            ConfigError: for a tool whose name cannot be a method's here, or whose schema cannot be made.
            DialectError: for an unknown dialect.
            TemplateError: for a tokenizer from whose markup retrieved text cannot be kept apart.
        """
        known = dialects.load(dialect) if isinstance(dialect, str) else dialect
        written = partial(inner_text, dialect=known, fence=template_fence(known, tokenizer))
        members: dict[str, Any] = {name: _method(tool) for name, tool in toolbox.tools.items()}
        members |= {"_toolbox": toolbox, "_written": staticmethod(written)}
        return type(
            cls.__name__, (cls,), {"__doc__": cls.__doc__, "__module__": cls.__module__, **members}
        )

    def __init__(self) -> None:
        self._session = Session()
        self.reset()

    def reset(self, **row: Any) -> None:
        """Begin a new rollout: ids start at `E1` again, calls of the old one are cancelled. `row` is not used."""
        self._session.close()
        self.observations: MutableSequence[Observation] = []
        self._session = self._toolbox.session()


def tool_functions(
    toolbox: Toolbox, dialect: Dialect | str = "pou", tokenizer: Any = None
) -> list[Callable[..., Any]]:
    """One async function per tool, for `GRPOTrainer(tools=[…])` and agent frameworks; arguments and errors as above.

    Each is typed and documented and returns what a policy reads; failures are text, too. Evidence ids run on over all
    calls, since a function does not know whose rollout calls it: they are unique, but do not start at `E1` in each.

    Example:
        >>> import asyncio
        >>> from faithful_search.tools import LocalSearch
        >>> toolbox = Toolbox([LocalSearch.from_corpus([{"title": "Paris", "text": "The capital of France."}])])
        >>> [search] = tool_functions(toolbox)
        >>> asyncio.run(search("capital of France"))
        'Paris [E1]: The capital of France.'
    """
    environment = SearchEnvironment.factory(toolbox, dialect, tokenizer)()
    environment.observations = deque(
        maxlen=0
    )  # nobody reads them, and these functions serve whole trainings
    return [getattr(environment, name) for name in toolbox.tools]


def inner_text(observation: Observation, dialect: Dialect, fence: Fence) -> str:
    """What a dialect writes for an observation, without the block around it, which a chat template makes itself."""
    text = dialect.render_observation(observation.evidence, observation.note, fence)
    return text[slice(*dialect.response_span(text))].removeprefix("\n").removesuffix("\n")


def template_fence(dialect: Dialect, tokenizer: Any = None) -> Fence:
    """The dialect's fence, which also keeps out what chat templates and the tokenizer treat as control."""
    fence = Fence(f"{dialect.fence.pattern}|{_TEMPLATE_TAGS}")
    if tokenizer is None:
        return fence
    check_reader(tokenizer, dialect)
    return guarded(fence, tokenizer)


def _method(tool: Tool) -> Callable[..., Any]:
    """The tool as a method with its own name, signature and docstring: TRL makes its schema of these."""
    name = tool.name
    if (
        not name.isidentifier()
        or keyword.iskeyword(name)
        or name.startswith("_")
        or name in _RESERVED
    ):
        raise ConfigError(
            f"the tool {name!r} cannot be a function or a method; give it another name"
        )
    # Annotations may be strings, of names that are not known here.
    own = inspect.signature(method_of(tool), eval_str=True).parameters

    # Whatever the model passes goes to the toolbox, which checks it and answers with a note the policy can act on.
    async def method(self: SearchEnvironment, /, *values: Any, **arguments: Any) -> str:
        observations = (
            self.observations
        )  # of this rollout, also if it is over when the tool returns
        given = {**dict(zip(own, values, strict=False)), **arguments}
        observation = await self._toolbox.call(ToolCall(name, given), self._session)
        observations.append(observation)
        return self._written(observation)

    this = inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD)
    method.__signature__ = inspect.Signature([this, *own.values()])  # type: ignore[attr-defined]
    method.__annotations__ = {key: parameter.annotation for key, parameter in own.items()}
    method.__name__ = method.__qualname__ = name
    schema = schema_of(tool)["function"]
    told = [
        f"    {key}: {about['description']}"
        for key, about in schema["parameters"]["properties"].items()
    ]
    method.__doc__ = (
        "\n".join([schema["description"], *(["", "Args:", *told] if told else [])]) + "\n"
    )
    return method
