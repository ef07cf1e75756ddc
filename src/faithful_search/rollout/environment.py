"""The toolbox for other libraries' loops: an environment for TRL's tool loop, and plain functions.

Masks, turns and stopping are then the loop's business; evidence ids, fencing, time-outs and failure
notes stay the toolbox's.
"""

import inspect
import keyword
from collections import deque
from collections.abc import Callable, Mapping, MutableSequence, Sequence
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
from .episode import fit

_RESERVED = ("factory", "get_reward", "reset")  # names that TRL calls, and our own
_TEMPLATE_TAGS = tags("tool_call", "tool_response") + r"|<\|"


class SearchEnvironment:
    """One rollout's view of a toolbox: each tool is a method, and evidence ids run on until
    `reset`.

    Use `SearchEnvironment.factory(toolbox)`; the class itself has no tools. TRL hands reward
    functions the `environments`, of which `trl_reward` reads both attributes.

    Attributes:
        observations: what the calls since the last `reset` returned.
        responses: the same as texts, as the policy read them.

    Example:
        ```python
        trainer = GRPOTrainer(
            model, trl_reward("pou"), train_dataset=prompts, environment_factory=SearchEnvironment.factory(toolbox)
        )
        ```
    """

    _toolbox: ClassVar[Toolbox]
    _shortened: ClassVar["staticmethod[[Observation], Observation]"]
    _text_of: ClassVar["staticmethod[[Observation], str]"]  # what a policy reads of an observation

    @classmethod
    def factory(
        cls,
        toolbox: Toolbox,
        dialect: Dialect | str = "pou",
        tokenizer: Any = None,
        observation_tokens: int = 0,
    ) -> Callable[[], Self]:
        """A class whose instances are environments with the toolbox's tools as async methods.

        Args:
            toolbox: the tools; one toolbox serves all environments.
            dialect: a dialect or its name; it writes the evidence. The block around it is left to
                the chat template.
            tokenizer: the policy's, whose control tokens must not stand in retrieved text. Without
                it only the dialect's tags, `<tool_call>`, `<tool_response>` and ChatML's `<|` are
                kept out: not `</s>` or `<end_of_turn>`.
            observation_tokens: as `Limits.observation_tokens`; 0 for no limit.

        Raises:
            ConfigError: for a tool whose name cannot be a method's here, or whose schema cannot be
                made; for `observation_tokens` without a tokenizer.
            DialectError: for an unknown dialect.
            TemplateError: for a tokenizer from whose markup retrieved text cannot be kept apart.
        """
        if observation_tokens and tokenizer is None:
            raise ConfigError("observation_tokens are those of a tokenizer: give it, too")
        opened = dialects.load(dialect) if isinstance(dialect, str) else dialect
        fence = template_fence(opened, tokenizer)
        text_of = partial(inner_text, dialect=opened, fence=fence)

        def shortened(observation: Observation) -> Observation:
            if not observation_tokens:
                return observation

            def size(seen: Observation) -> int:
                text = opened.render_observation(seen.evidence, seen.note, fence)
                return len(tokenizer(text, add_special_tokens=False)["input_ids"])

            return fit(observation, size, observation_tokens)

        members: dict[str, Any] = {name: _method(tool) for name, tool in toolbox.tools.items()}
        members |= {
            "_toolbox": toolbox,
            "_shortened": staticmethod(shortened),
            "_text_of": staticmethod(text_of),
        }
        return type(
            cls.__name__, (cls,), {"__doc__": cls.__doc__, "__module__": cls.__module__, **members}
        )

    def __init__(self) -> None:
        self._session = Session()
        self.reset()

    def reset(self, edits: Mapping[str, str | None] | None = None, **row: Any) -> None:
        """Begin a new rollout: ids start at `E1` again, and calls of the old one are cancelled.

        Args:
            edits: texts that this rollout reads in the place of others, see `Task.edits`.
            row: the row of the dataset, as TRL passes it; not used.
        """
        self._session.close()
        self.observations: MutableSequence[Observation] = []
        self.responses: MutableSequence[str] = []
        self._session = self._toolbox.session(edits)


def tool_functions(
    toolbox: Toolbox, dialect: Dialect | str = "pou", tokenizer: Any = None
) -> list[Callable[..., Any]]:
    """One async function for each tool, for `GRPOTrainer(tools=[…])` and agent frameworks.

    Arguments and errors are those of `SearchEnvironment.factory`. Each function is typed and
    documented, and returns the text that a policy reads, of a failure too. A function does not know
    which rollout calls it, so evidence ids run on over all calls: they are unique, but do not start
    at `E1` in each rollout.

    Example:
        >>> import asyncio
        >>> from faithful_search.tools import LocalSearch
        >>> toolbox = Toolbox([LocalSearch.from_corpus([{"title": "Paris", "text": "The capital of France."}])])
        >>> [search] = tool_functions(toolbox)
        >>> asyncio.run(search("capital of France"))
        'Paris [E1]: The capital of France.'
    """
    environment = SearchEnvironment.factory(toolbox, dialect, tokenizer)()
    # Keep none of them: nobody reads them, and these functions serve whole trainings.
    environment.observations, environment.responses = deque(maxlen=0), deque(maxlen=0)
    return [getattr(environment, name) for name in toolbox.tools]


def returned_observations(
    environment: SearchEnvironment, contents: Sequence[str]
) -> list[Observation | None]:
    """The environment's observation for each of these tool messages, in the order of a rollout.

    `None` for a message that it did not write: loops write some themselves, from the policy's
    words. Messages are recognised by their text, since calls made at once return in any order.
    """
    responses = list(environment.responses)
    observations = list(environment.observations)
    matched: list[Observation | None] = []
    for content in contents:
        if content in responses:
            place = responses.index(content)
            responses.pop(place)
            matched.append(observations.pop(place))
        else:
            matched.append(None)
    return matched


def inner_text(observation: Observation, dialect: Dialect, fence: Fence) -> str:
    """What a dialect writes for an observation, without the tags around it, which a chat template
    writes itself.
    """
    text = dialect.render_observation(observation.evidence, observation.note, fence)
    return text[slice(*dialect.response_span(text))].removeprefix("\n").removesuffix("\n")


def template_fence(dialect: Dialect, tokenizer: Any = None) -> Fence:
    """The dialect's fence, which also keeps out the control tokens of chat templates and of the
    tokenizer.
    """
    fence = Fence(f"{dialect.fence.pattern}|{_TEMPLATE_TAGS}")
    if tokenizer is None:
        return fence
    check_reader(tokenizer, dialect)
    return guarded(fence, tokenizer)


def _method(tool: Tool) -> Callable[..., Any]:
    """The tool as a method with the tool's name, signature and docstring, of which TRL makes the
    schema.
    """
    name = tool.name
    is_public_name = name.isidentifier() and not name.startswith("_")
    if not is_public_name or keyword.iskeyword(name) or name in _RESERVED:
        raise ConfigError(
            f"the tool {name!r} cannot be a function or a method; give it another name"
        )
    # Annotations may be strings, of names that are not known here.
    parameters = inspect.signature(method_of(tool), eval_str=True).parameters

    # Whatever the model passes goes to the toolbox, which checks it and answers with a note that
    # the policy can act on.
    async def method(self: SearchEnvironment, /, *values: Any, **arguments: Any) -> str:
        # The lists of this rollout: it may be over when the tool returns.
        observations, responses = self.observations, self.responses
        arguments = {**dict(zip(parameters, values, strict=False)), **arguments}
        observation = await self._toolbox.call(ToolCall(name, arguments), self._session)
        observation = self._shortened(observation)
        response = self._text_of(observation)
        observations.append(observation)
        responses.append(response)
        return response

    this = inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD)
    method.__signature__ = inspect.Signature([this, *parameters.values()])  # type: ignore[attr-defined]
    method.__annotations__ = {key: parameter.annotation for key, parameter in parameters.items()}
    method.__name__ = method.__qualname__ = name
    schema = schema_of(tool)["function"]
    lines = [schema["description"]]
    properties = schema["parameters"]["properties"]
    if properties:
        lines += ["", "Args:"]
    for key, parameter in properties.items():
        lines.append(f"    {key}: {parameter['description']}")
    method.__doc__ = "\n".join(lines) + "\n"
    return method
