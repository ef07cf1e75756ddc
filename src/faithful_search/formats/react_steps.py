"""ReAct as records: a list of steps with a thought, an action and an observation in fields of their
own, as research code logs its loops.
"""

from collections.abc import Mapping
from typing import Any

from .. import columns
from .base import Chat, Format, Messages, mapping, mappings, text
from .blocks import as_json
from .call_texts import answer_message, hands_in
from .messages import is_chat
from .react import action_of, in_brackets

_LISTS = (
    *("trajectory", "steps", "history", "scratchpad", "react_steps", "intermediate_steps"),
    "tool_calls",  # LlamaIndex's
)
_THOUGHTS = ("thought", "thoughts", "reasoning", "think")
_OBSERVATIONS = ("observation", "obs", "observations", "result", "tool_output")
_ACTIONS = ("action", "tool", "tool_name")
_TOOLS = ("tool_name", "tool")
# What stands for a tool's name in a step without one
_NO_TOOL = ("none", "null", "nil", "n/a", "na", "-")
_INPUTS = (
    *("action_input", "action_args", "action_arguments", "tool_input", "tool_args", "tool_kwargs"),
    *("arguments", "args"),
)
# What a tool is asked, and what an action hands in, where it has neither brackets nor an input
_QUERIES = ("query", "parameters")
_HANDED_IN = ("answer", "final_answer")
# In a step with a tool alone: beside an action these may be what the model read and wrote
_TOOL_INPUTS = (*_INPUTS, "input", *_QUERIES)
_TOOL_OBSERVATIONS = (*_OBSERVATIONS, "output")
_ANSWERS = ("final_answer", "prediction", "model_answer", "output", "response")


def read(value: Any) -> Chat | None:
    """A list of such steps, or an object that holds one and perhaps the final answer beside it."""
    fields = mapping(value)
    steps = _steps(value)
    if not steps:
        return None
    messages: Messages = []
    for number, step in enumerate(steps):
        messages += _messages(step, str(number))
    ended = any(_is_answer(message) for message in messages)
    column = None if ended else _answer_column(fields)
    response = fields.get("response")
    if column is not None:
        messages.append(answer_message(fields[column]))
    elif is_chat([response]) and not ended:
        messages.append(mapping(response))
    question = text(fields.get("question")) or text(fields.get("task"))
    prompt: Messages = [{"role": "user", "content": question}] if question else []
    agents = frozenset([column] if column else [])  # so that it is not taken for a gold answer
    return Chat([*prompt, *messages], question, agents=agents)


def _answer_column(fields: Mapping[str, Any]) -> str | None:
    """Where the answer stands beside the steps. What is called `answer` is the agent's where gold
    answers have a column of their own.
    """
    for name in _ANSWERS:
        if text(fields.get(name)):
            return name
    without_answer = {name: value for name, value in fields.items() if name != "answer"}
    if text(fields.get("answer")) and columns.golds(without_answer):
        return "answer"
    return None


def _steps(value: Any) -> list[Mapping[str, Any]]:
    """The first list in which every item is a step and one at least acts; none where there is none."""
    fields = mapping(value)
    lists = [value] if isinstance(value, list | tuple) else [fields.get(name) for name in _LISTS]
    for items in lists:
        steps = mappings(items, pure=True)
        if all(map(_is_step, steps)) and any(map(_action, steps)):
            return steps
    return []


def _is_step(step: Mapping[str, Any]) -> bool:
    acts = any(name in step for name in _ACTIONS)
    return "role" not in step and (acts or _first(step, _THOUGHTS) is not None)


def _is_of_tool(step: Mapping[str, Any]) -> bool:
    """Whether a step names a tool, and no action."""
    return not step.get("action") and _first(step, _ACTIONS) is not None


def _first(step: Mapping[str, Any], names: tuple[str, ...]) -> Any:
    """The value of the first of these fields that holds something."""
    return next((step[name] for name in names if step.get(name) not in (None, "", [])), None)


def _messages(step: Mapping[str, Any], number: str) -> Messages:
    """A thought, a call and its result. An observation counts only behind a call that is no answer."""
    thought = _first(step, _THOUGHTS)
    messages: Messages = []
    if thought is not None:
        messages.append({"role": "assistant", "reasoning_content": _as_text(thought)})
    action = _action(step)
    if action is None:
        return messages
    if _is_answer(action):
        return [*messages, action]
    [call] = action["tool_calls"]
    messages.append({**action, "tool_calls": [{**call, "id": number}]})
    observation = _first(step, _TOOL_OBSERVATIONS if _is_of_tool(step) else _OBSERVATIONS)
    if observation is not None:
        messages.append({"role": "tool", "tool_call_id": number, "content": observation})
    return messages


def _action(step: Mapping[str, Any]) -> dict[str, Any] | None:
    """The agent's message with the call of a step; `None` where it made none."""
    name, arguments = _named(step)
    if name is None:
        return None
    tool = None if hands_in(name) else _tool_beside(step)
    if arguments is None and tool is not None:
        names_the_tool = name.casefold() == tool.casefold()
        arguments = {} if names_the_tool else {"action": name}
        tool, arguments = in_brackets(tool) or (tool, arguments)
    elif arguments is None:
        arguments = "" if isinstance(step.get("action"), str) else {}
    name = tool or name
    if isinstance(arguments, str):
        return action_of(name, arguments)
    return {"role": "assistant", "tool_calls": [{"name": name, "arguments": arguments}]}


def _tool_beside(step: Mapping[str, Any]) -> str | None:
    """The name of the tool that stands beside an action in words, such as "call a tool" or what the
    tool is to do. `None` where there is no such name.
    """
    name = text(_first(step, _TOOLS))
    if name is None or not isinstance(step.get("action"), str):
        return None
    return None if name.strip().casefold() in _NO_TOOL else name.strip()


def _named(step: Mapping[str, Any]) -> tuple[str | None, Any]:
    """The name of a step's action, and its arguments: within the action, beside it, or in brackets
    behind the name, which come before a query.
    """
    action = _first(step, _ACTIONS)
    arguments = _first(step, _TOOL_INPUTS if _is_of_tool(step) else _INPUTS)
    if isinstance(action, Mapping):
        within = _first(action, ("arguments", "args", "input", *_INPUTS))
        arguments = arguments if within is None else within
        action = _first(action, ("name", "tool", "tool_name", "type", "action"))
    name = text(action)
    if name is None:
        return None, None
    name = name.strip()
    if arguments is not None:
        return name, arguments
    beside = _HANDED_IN if hands_in(name) else _QUERIES
    return in_brackets(name) or (name, _first(step, beside))


def _is_answer(message: Mapping[str, Any]) -> bool:
    calls = message.get("tool_calls") or []
    return any(hands_in(call["name"]) for call in calls)


def _as_text(value: Any) -> str:
    return value if isinstance(value, str) else as_json(value)


FORMAT = Format(
    "a list of ReAct steps",
    read,
    marks=frozenset(("thought", "observation")),
    needs="each step needs an action, as a text or an object with a name and arguments",
    generality=1,
)
