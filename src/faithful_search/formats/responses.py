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
        output = response.get("output", _raw_items(value))
        if not isinstance(output, list | tuple):
            return None
        value = [*_request(value, response), *output]
    entries = mappings(value, pure=True)
    if not entries or not (is_response or any(map(is_item, entries))):
        return None
    if not all("role" in entry or text(entry.get("type")) for entry in entries):
        return None
    return Chat(as_messages(entries), id=name)


def _raw_items(value: Mapping[str, Any]) -> list[Mapping[str, Any]] | None:
    """The items that a run of OpenAI's Agents SDK added (`new_items`); `None`: it is none."""
    items = [mapping(entry, "raw_item") for entry in mappings(value, "new_items")]
    return items if items and all(items) else None


def _request(value: Mapping[str, Any], response: Mapping[str, Any]) -> Messages:
    """What was asked, beside the response or in it."""
    request = mapping(value, "responses_create_params")  # NeMo Gym's
    prompt = request.get("input", value.get("input", response.get("input")))
    messages: Messages = mappings(prompt)
    if text(prompt):
        messages = [{"role": "user", "content": prompt}]
    if text(request.get("instructions")):
        messages = [{"role": "system", "content": request["instructions"]}, *messages]
    return messages


def is_item(entry: Mapping[str, Any]) -> bool:
    """Whether this is an item of the API and not a message of a chat."""
    kind = entry.get("type")
    if kind == "message" and entry.get("role") == "assistant":
        return "id" in entry
    if not isinstance(kind, str) or "role" in entry:
        return False
    return kind == "reasoning" or kind.endswith(_ENDS)


def as_messages(entries: list[Mapping[str, Any]]) -> Messages:
    """The items as messages. One without a role is a part of the agent's message, or a result; one
    of an unknown kind is a part that is not read, and is counted.

    After a call that the server ran stands its result, an empty one if need be: what the agent says
    next it says after the result, and not beside the call.
    """
    messages: Messages = []
    for entry, follower in zip(entries, [*entries[1:], {}], strict=True):
        if "role" in entry:
            messages.append(entry)
            continue
        is_known = is_item(entry) or _is_output(entry)
        part = entry if is_known else {"type": entry.get("type")}
        messages.append({"role": "assistant", "content": [part]})
        identity = first(entry, ("call_id", "id"))
        if _is_output(follower) and follower.get("call_id") in (None, identity):
            continue
        if _ran_on_the_server(entry) and not _holds_result(entry):
            messages.append({"role": "tool", "tool_call_id": identity, "content": ""})
    return messages


def _is_output(entry: Mapping[str, Any]) -> bool:
    """Whether this is what a call returned."""
    kind = entry.get("type")
    return isinstance(kind, str) and kind.endswith("_output")


def _holds_result(call: Mapping[str, Any]) -> bool:
    """Whether a call brings its result itself."""
    return any(part.kind == "result" for part in parts([call]))


def _ran_on_the_server(entry: Mapping[str, Any]) -> bool:
    kind = entry.get("type")
    return isinstance(kind, str) and kind.endswith("_call") and kind not in _CLIENTS


FORMAT = Format(
    "OpenAI Responses or a NeMo Gym rollout",
    read,
    frozenset(("output", "previous_response_id", "responses_create_params")),
    "it holds no item of the agent",
)
