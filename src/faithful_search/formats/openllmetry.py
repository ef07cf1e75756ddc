"""OpenLLMetry's attributes of a span, which AgentOps and Agent-Lightning keep, too: a message's
fields are numbered (`gen_ai.prompt.1.tool_calls.0.name`, `gen_ai.completion.0.content`).
"""

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from .. import loose_json
from ..errors import DataError
from .base import Messages, mapping
from .openinference import items, nested


def is_call(attributes: Mapping[str, Any]) -> bool:
    """Whether these are the attributes of a model's call with its messages."""
    return bool(messages(attributes, "prompt"))


def messages(attributes: Mapping[str, Any], which: str) -> Messages:
    """The messages that a model's call was given (`prompt`), or that it gave (`completion`).

    Example:
        >>> messages({"gen_ai.prompt.0.role": "user", "gen_ai.prompt.0.content": "Who?"}, "prompt")
        [{'role': 'user', 'content': 'Who?'}]
    """
    prefix = f"gen_ai.{which}."
    numbered = {
        name.removeprefix(prefix): value
        for name, value in attributes.items()
        if name.startswith(prefix) and name.removeprefix(prefix)[:1].isdecimal()
    }
    # a completion may have no role, and is a model's
    return [_message({"role": "assistant", **fields}) for fields in items(nested(numbered))]


def _message(fields: Mapping[str, Any]) -> dict[str, Any]:
    message = {"role": fields["role"], "content": _content(fields.get("content"))}
    if isinstance(fields.get("reasoning"), str):
        message["reasoning_content"] = fields["reasoning"]
    calls = []
    for call in items(fields.get("tool_calls")):
        function = {"name": call.get("name", ""), "arguments": call.get("arguments", "{}")}
        calls.append({"id": call.get("id") or "", "type": "function", "function": function})
    if calls:
        message["tool_calls"] = calls
    if fields.get("tool_call_id"):
        message["tool_call_id"] = fields["tool_call_id"]
    return message


def _content(content: Any) -> Any:
    """The content, whose blocks are kept as JSON."""
    if not isinstance(content, str) or not content.startswith('[{"'):
        return content or ""
    with suppress(DataError):
        blocks = loose_json.decode(content)
        if isinstance(blocks, list) and all("type" in mapping(block) for block in blocks):
            return blocks
    return content
