"""What is read: segments of a text, each of somebody; and chat messages, which are segments as they stand.

A dialect cuts a text into segments by its own rules (`Dialect.split`). The borders between a chat's messages are
trusted, so nothing in a message can end it or begin another: what a tool returned stays what a tool returned, whatever
it says.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any, Literal, NamedTuple

import msgspec

from ..errors import DataError
from ..trajectory import Span

_ROLES = {
    "human": "user", "gpt": "assistant", "model": "assistant", "developer": "system", "function": "tool",
    "observation": "tool", "ipython": "tool",
}  # fmt: skip
TAGLIKE = re.compile(r"<(?=\s*/?\s*[A-Za-z_|])")
HEAD, END = "<|im_start|>{}\n", "<|im_end|>\n"


class Segment(msgspec.Struct, frozen=True, gc=False):
    """A stretch of a trajectory's text that one party wrote.

    Attributes:
        who: "agent"; "tool", whose inner text (without the response's tags) this is; "controller", who steers the
            agent; or "prompt", which begins another episode.
        text: the whole text in which the segment stands.
        span: its place there.
        fenced: whether our own `render_observation` wrote it. Only then is escaping undone.
        closed: whether a tool response has its end.
    """

    who: Literal["agent", "tool", "controller", "prompt"]
    text: str
    span: Span
    fenced: bool = False
    closed: bool = True


class Message(NamedTuple):
    """One message: `role` is system, user, assistant or tool; `ids` name its structured calls, or the call answered."""

    role: str
    text: str
    ids: tuple[str, ...] = ()
    calls: int = 0

    @property
    def written(self) -> str:
        """The message as ChatML."""
        return f"{HEAD.format(self.role)}{self.text}{END}"


def read(messages: Sequence[Mapping[str, Any]]) -> list[Message]:
    """The messages in one form: `role`/`content` or `from`/`value`; text parts joined; structured calls as text.

    `reasoning_content` becomes a `<think>` block and each of `tool_calls` a `<tool_call>` block, as chat templates do.

    Raises:
        DataError: for a message that is not a mapping, or has no role.
    """
    return [_message(number, message) for number, message in enumerate(messages)]


def decode(text: str) -> list[dict[str, Any]] | None:
    """The messages of a JSON array of messages, or of an object with `messages`; `None` for any other text."""
    head = text[:200].lstrip()[:1]
    if head != "[" and not (head == "{" and '"messages"' in text):
        return None
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if isinstance(value, dict):
        value = value.get("messages")
    return value if is_chat(value) else None


def is_chat(value: Any) -> bool:
    """Whether this is a list of messages."""
    return (
        isinstance(value, list | tuple)
        and bool(value)
        and all(isinstance(item, Mapping) and isinstance(item.get("role", item.get("from")), str) for item in value)
    )


def in_order(chat: Sequence[Message]) -> list[Message]:
    """Tool messages in the order of the calls whose ids they name; an empty one for a call that was never answered."""
    found: list[Message] = []
    at = 0
    while at < len(chat):
        asked = chat[at].ids if chat[at].role == "assistant" else ()
        end = next((k for k in range(at + 1, len(chat)) if chat[k].role != "tool"), len(chat))
        tools = chat[at + 1 : end]
        named = {message.ids[0]: message for message in tools if message.ids}
        known = len(named) == len(tools) and named.keys() <= set(asked)
        if len(asked) > 1 and known and (tools or end < len(chat)):
            tools = [named.get(name, Message("tool", "")) for name in asked]
        found += [chat[at], *tools]
        at = end
    return found


def joined(body: Sequence[Message]) -> Iterator[Message]:
    """The agent's messages in a row as one: they are one turn."""
    for role, group in groupby(body, key=lambda message: message.role):
        if role == "assistant":
            yield Message(role, "\n".join(message.text for message in group))
        else:
            yield from group


def responses(text: str, opening: str, closing: str, most: int) -> list[Span]:
    """Where the inner texts of responses are, `most` at most; the whole message where it does not begin with one."""
    start = len(text) - len(text.lstrip())
    if not text.startswith(opening, start):
        return [(0, len(text))]
    start += len(opening)
    end = max(start, len(text.rstrip()))
    if text.endswith(closing, start, end):
        end -= len(closing)
    between = re.compile(rf"{re.escape(closing)}\s*+{re.escape(opening)}")
    found: list[Span] = []
    while len(found) < most - 1 and (border := between.search(text, start, end)):
        found.append((start, border.start()))
        start = border.end()
    return [*found, (start, end)]


def _message(number: int, message: Mapping[str, Any]) -> Message:
    role = message.get("role", message.get("from")) if isinstance(message, Mapping) else None
    if not isinstance(role, str):
        raise DataError(f"message {number} is not a mapping with a role: {str(message)[:80]!r}")
    role = _ROLES.get(role, role)
    text = _text(message.get("content", message.get("value")))
    if role != "assistant":
        answered = message.get("tool_call_id")
        ids = (answered,) if isinstance(answered, str) else ()
        return Message(role if role in ("system", "user") else "tool", text, ids)
    thought = message.get("reasoning_content", message.get("reasoning"))
    if isinstance(thought, str) and thought:
        text = f"<think>{thought}</think>\n{text}"
    given = message.get("tool_calls")
    listed = given if isinstance(given, list | tuple) else [given] if given else []
    # One that is not a mapping stays as a call without a name, which the reader notes.
    calls = [call if isinstance(call, Mapping) else {} for call in listed]
    text = "\n".join([*([text] if text else []), *map(_call, calls)])
    return Message("assistant", text, tuple(str(call.get("id", "")) for call in calls), len(calls))


def _text(content: Any) -> str:
    """A content: a string, parts of which the texts count, nothing, or data (written as JSON)."""
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if isinstance(content, list) and all(isinstance(part, Mapping) and "type" in part for part in content):
        return "".join(str(part["text"]) for part in content if isinstance(part.get("text"), str))
    return json.dumps(content, ensure_ascii=False, default=str)


def _call(call: Mapping[str, Any]) -> str:
    """A structured call between tags; arguments that are not JSON stay as they are, for the reader to note."""
    function = call.get("function")
    function = function if isinstance(function, Mapping) else call
    arguments = function.get("arguments", {})
    if not isinstance(arguments, str):
        arguments = json.dumps(arguments, ensure_ascii=False, default=str)
    name = function.get("name")
    name = json.dumps(name if isinstance(name, str) else "", ensure_ascii=False)
    written = f'{{"name": {name}, "arguments": {arguments.strip() or "{}"}}}'
    # Text in the arguments that looks like a tag must not end the call.
    return "<tool_call>\n" + TAGLIKE.sub(r"\\u003c", written) + "\n</tool_call>"
