"""OpenAI's Responses: items in and out, each a message, a thought, a call or what it returned."""

from collections.abc import Mapping
from typing import Any

from .base import Chat, Format, Messages, first, mapping, mappings, text
from .blocks import parts

# Calls that the user's program runs; all others the server ran before it went on.
_CLIENTS = frozenset(
    ("function_call", "custom_tool_call", "computer_call", "local_shell_call", "tool_call")
)
_ENDS = ("_call", "_call_output", "_approval_request", "_list_tools")


def read(value: Any) -> Chat | None:
    """A response, an object with `input` and `output`, or a list of items."""
    name, is_response = "", False
    if isinstance(value, Mapping):
        response = mapping(value, "response") or value
        response = mapping(response, "body") or response  # in a line of a batch
        is_response = response.get("object") == "response"
        name = text(value.get("custom_id")) or text(response.get("id")) or ""
        output = response.get("output")
        if not isinstance(output, list | tuple):
            return None
        value = [*_request(value, response), *output]
    items = mappings(value, pure=True)
    if not items or not (is_response or any(map(is_item, items))):
        return None
    if not all("role" in item or is_item(item) for item in items):
        return None
    return Chat(as_messages(items), id=name)


def _request(value: Mapping[str, Any], response: Mapping[str, Any]) -> Messages:
    """What was asked, beside the response or in it."""
    request = mapping(value, "responses_create_params")  # NeMo Gym's
    written = request.get("input", value.get("input", response.get("input")))
    messages: Messages = mappings(written)
    if text(written):
        messages = [{"role": "user", "content": written}]
    if text(request.get("instructions")):
        messages = [{"role": "system", "content": request["instructions"]}, *messages]
    return messages


def is_item(item: Mapping[str, Any]) -> bool:
    """Whether this is an item of the API and not a message of a chat."""
    kind = item.get("type")
    if kind == "message" and item.get("role") == "assistant":
        return "id" in item
    if not isinstance(kind, str) or "role" in item:
        return False
    return kind == "reasoning" or kind.endswith(_ENDS)


def as_messages(items: list[Mapping[str, Any]]) -> Messages:
    """The items as messages. One without a role is a part of the agent's message, or a result.

    After a call that the server ran stands its result, an empty one if need be: what the agent says
    next it says after the result, and not beside the call.
    """
    messages: Messages = []
    for item in items:
        if "role" in item:
            messages.append(item)
            continue
        messages.append({"role": "assistant", "content": [item]})
        if _ran_on_the_server(item) and not any(part.kind == "result" for part in parts([item])):
            identity = first(item, ("call_id", "id"))
            messages.append({"role": "tool", "tool_call_id": identity, "content": ""})
    return messages


def _ran_on_the_server(item: Mapping[str, Any]) -> bool:
    kind = item.get("type")
    return isinstance(kind, str) and kind.endswith("_call") and kind not in _CLIENTS


FORMAT = Format(
    "OpenAI Responses or a NeMo Gym rollout",
    read,
    frozenset(("output", "previous_response_id", "responses_create_params")),
    "it holds no item of the agent",
)
