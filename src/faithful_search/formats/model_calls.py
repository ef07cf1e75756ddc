"""Puts a conversation together from the recorded calls of a model, as stores of traces keep them.

Most frameworks send the whole conversation with each call: the call with the longest input and its
output are the conversation. Where each call is sent only what is new, the outputs of the model and
of the tools are joined in the order of their times.

A trace may hold several conversations: those of sub-agents, or a title that is made of the answer.
The one whose question was asked first counts; calls that are no part of it are counted
(`calls_apart`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .. import loose_json
from ..errors import DataError
from . import role_lines
from .base import Messages, mapping, mappings, reread, text
from .call_texts import with_text
from .chat import Call, Message
from .field_names import usual
from .messages import is_chat, read as normalised

_FIELDS = ("messages", "input", "prompt", "question", "query", "content", "text")


@dataclass(frozen=True)
class Recorded:
    """A call of a model, or of a tool with its `name`, as it was recorded; `id` is that of the
    model's call of the tool, where it was recorded, too.
    """

    input: Any
    output: Any
    time: str = ""
    name: str = ""
    id: str = ""


def conversation(
    models: Sequence[Recorded], tools: Sequence[Recorded] = (), question: Any = None
) -> Messages:
    """The messages of a trace; empty where nothing in it is a message.

    `question` is the input of the trace as a whole, for traces whose calls do not have it.
    """
    models = _without_repeats(sorted(models, key=lambda call: call.time))
    inputs = [messages_of(call.input, "user") for call in models]
    longest = _longest(inputs)
    if longest is not None:
        return [*inputs[longest], *messages_of(models[longest].output, "assistant")]
    opening = messages_of(question, "user") if len(models) > 1 else []
    opening = opening or next((messages for messages in inputs if messages), [])
    return [*opening, *_in_turn(models, tools)]


def calls_apart(models: Sequence[Recorded], messages: Messages) -> int:
    """How many calls of a model gave what is not among these messages, or were asked what is not:
    a sub-agent's, for example.
    """
    if not is_chat(messages):
        return 0
    conversation = normalised(messages)
    contents = {message.content.strip() for message in conversation}
    words = "\n".join(message.content for message in conversation)
    calls = {call.written for message in conversation for call in message.calls}

    def holds(message: Message) -> bool:
        content = message.content.strip()
        if not {call.written for call in message.calls} <= calls:
            return False
        return content in contents or content in words

    apart = 0
    for model in models:
        inputs = messages_of(model.input, "user")
        outputs = messages_of(model.output, "assistant")
        if not is_chat([*inputs, *outputs]):
            continue
        questions = [message for message in normalised(inputs) if _is_question(message)]
        replies = [message for message in normalised(outputs) if message.role == "assistant"]
        apart += not all(map(holds, [*questions, *replies]))
    return apart


def _is_question(message: Message) -> bool:
    """Whether the user says something. A single word does not count: of some inputs, stores kept
    only the name of a field.
    """
    return message.role == "user" and len(message.content.split(maxsplit=1)) > 1


def _longest(inputs: Sequence[Messages]) -> int | None:
    """The number of the last call whose input is longest, among those that are asked what was asked
    first. `None`: each call is sent only a question, or what is new.
    """
    candidates = [
        number for number, messages in enumerate(inputs) if _has_more_than_a_question(messages)
    ]
    if not candidates:
        return None
    openings = [_opening(messages) for messages in inputs]
    first = min(candidates, key=lambda number: openings.index(openings[number]))
    alike = [number for number in candidates if openings[number] == openings[first]]
    return max(alike, key=lambda number: (len(inputs[number]), number))


def _opening(messages: Messages) -> str:
    """What the user says first."""
    for message in messages:
        if not is_chat([message]):
            continue
        for piece in normalised([message]):
            if piece.role == "user" and piece.content.strip():
                return piece.content
    return ""


def _without_repeats(models: Sequence[Recorded]) -> list[Recorded]:
    """The calls without repetitions: several layers of a framework may record one, each in turn."""
    distinct: list[Recorded] = []
    last_output: Messages | None = None
    for call in models:
        output = messages_of(call.output, "assistant")
        if output != last_output:
            distinct.append(call)
            last_output = output
    return distinct


def _has_more_than_a_question(messages: Messages) -> bool:
    if not is_chat(messages):
        return False
    roles = {message.role for message in normalised(messages)}
    return "user" in roles and not roles.isdisjoint(("assistant", "tool"))


def _in_turn(models: Sequence[Recorded], tools: Sequence[Recorded]) -> Messages:
    """What the model and its tools said, by time."""
    events = [(call.time, 0, call) for call in models] + [(call.time, 1, call) for call in tools]
    messages: Messages = []
    for _, is_tool, call in sorted(events, key=lambda event: event[:2]):
        if is_tool:
            messages += _returned(call, messages)
            continue
        if not tools and messages:  # what the tools returned stands only in the next call's input
            sent = messages_of(call.input, "user")
            messages += [message for message in sent if message.get("role") == "tool"]
        messages += messages_of(call.output, "assistant")
    return messages


def _returned(tool: Recorded, before: Messages) -> Messages:
    """The result of a tool, after a call of it where the model's own call was not recorded."""
    content = decoded(tool.output)
    inner = mapping(content).get("content")
    content = inner if isinstance(inner, list) else content
    result = {"role": "tool", "name": tool.name, "content": content}
    earlier = normalised(before) if before else []
    calls = [call for message in earlier for call in message.calls]
    results = [message for message in earlier if message.role == "tool"]
    if len(calls) > len(results):
        return [{**result, "tool_call_id": _call_id(tool, calls, results)}]
    function = {"name": tool.name, "arguments": decoded(tool.input)}
    call = {"id": f"recorded {len(before)}", "type": "function", "function": function}
    return [
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {**result, "tool_call_id": call["id"]},
    ]


def _call_id(tool: Recorded, calls: Sequence[Call], results: Sequence[Message]) -> str:
    """The id of the call that a tool's result answers: the one that was recorded with it; else that
    of the next call without a result, of this tool and with these arguments where there is one.
    Tools that run side by side are recorded in any order.
    """
    if any(call.id == tool.id for call in calls if call.id):
        return tool.id
    answered = {result.id for result in results}
    open_calls = [call for call in calls if call.id not in answered]
    if not open_calls:  # calls without ids, of which the next one is meant
        return calls[len(results)].id
    of_tool = [call for call in open_calls if call.name == tool.name]
    sent = with_text({"id": "", "name": tool.name, "arguments": decoded(tool.input)}).written
    of_call = [call for call in of_tool if call.written == sent]
    return [*of_call, *of_tool, *open_calls][0].id


def messages_of(recorded: Any, role: str) -> Messages:
    """The messages in what was recorded; those without a role get `role`."""
    value = decoded(recorded)
    if isinstance(value, str):
        messages = role_lines.messages_in(value) if role == "user" else []
        if len(messages) > 1 or (messages and messages[0]["role"] == "system"):
            return messages
        return [{"role": role, "content": value}] if value.strip() else []
    if isinstance(value, list):
        if not is_chat(value) and (chat := _recorded_chat(value)) is not None:
            return chat
        if value and all("toolName" in mapping(entry) for entry in value):  # the AI SDK's calls
            calls = [{"type": "tool-call", **entry} for entry in value]
            return [{"role": "assistant", "content": calls}]
        return [message for entry in value for message in messages_of(entry, role)]
    if not isinstance(value, Mapping):
        return []
    if is_chat([value]):
        return _message(value)
    if (chat := _recorded_chat(value)) is not None:
        return chat
    inner = mapping(value, "content")
    if "parts" in inner:  # a candidate of Gemini's
        return [{"role": "model", **inner}]
    arguments = value.get("args")
    if isinstance(arguments, list) and len(arguments) == 1:
        return messages_of(arguments[0], role)
    for name in _FIELDS:
        if text(value.get(name)) or isinstance(value.get(name), list):
            return messages_of(value[name], role)
    return []


def _recorded_chat(value: Any) -> Messages | None:
    """What was recorded in one of the formats."""
    chat = reread(value)
    return None if chat is None else list(chat.messages)


def _message(message: Mapping[str, Any]) -> Messages:
    """A message of a chat; definitions of tools that stand among them are none."""
    content = decoded(message.get("content"))
    if message.get("role") != "tool":
        return [usual(message)]
    if "parameters" in mapping(content, "function"):
        return []
    calls = mappings(content)
    if calls and all(mapping(call, "function") and "id" in call for call in calls):
        return [{"role": "assistant", "content": "", "tool_calls": calls}]
    return [message]


def decoded(value: Any) -> Any:
    """The value in JSON that was written as text, perhaps several times over."""
    for _ in range(3):
        if not isinstance(value, str) or value.lstrip()[:1] not in ("{", "[", '"'):
            return value
        try:
            value = loose_json.decode(value)
        except DataError:
            return value
    return value
