"""What is read: segments of a text, each of somebody. The messages of a chat are segments as they stand.

A dialect cuts a text into segments by its own rules (`Dialect.split`). The borders between a chat's messages are
trusted, so nothing in a message can end it or begin another: what a tool returned stays what a tool returned, whatever
it says.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any, Literal, NamedTuple

from ..errors import DataError
from ..trajectory import Issue, Span

_ROLES = {
    "human": "user", "gpt": "assistant", "model": "assistant", "developer": "system", "function": "tool",
    "observation": "tool", "ipython": "tool",
}  # fmt: skip
_TAGLIKE = re.compile(r"<(?=\s*/?\s*[A-Za-z_|])")
_CALL = "<tool_call>"
_HEAD, _END = "<|im_start|>{}\n", "<|im_end|>\n"


Who = Literal["agent", "tool", "controller", "prompt"]


class Segment(NamedTuple):
    """A stretch of a trajectory's text that one party wrote.

    Attributes:
        who: "agent"; "tool", whose inner text (without the response's tags) this is; "controller", who steers the
            agent; or "prompt", which begins another episode.
        text: the whole text in which the segment stands.
        span: its place there.
        fenced: whether our own `render_observation` wrote it. Only then is escaping undone.
        closed: whether a tool response has its end.
    """

    who: Who
    text: str
    span: Span
    fenced: bool = False
    closed: bool = True

    @property
    def body(self) -> str:
        """The segment's own text."""
        return self.text[self.span[0] : self.span[1]]


class Borders(NamedTuple):
    """What encloses a tool response, and whether one message may hold the responses to several calls."""

    opening: str
    closing: str
    parallel: bool


class Message(NamedTuple):
    """One message: `role` is system, user, assistant or tool; `ids` name its structured calls, or the call answered."""

    role: str
    text: str
    ids: tuple[str, ...] = ()
    calls: int = 0


class Chat(NamedTuple):
    """A chat as one text for people to read, and its segments there.

    Attributes:
        text: the messages, written as ChatML.
        segments: what the agent said and what it received, without the prompt.
        asked: the prompt's last user message.
        inline: whether the agent's segments hold tool responses too, because no message brings any.
        issues: what is wrong with it as a chat.
    """

    text: str
    segments: tuple[Segment, ...]
    asked: str | None
    inline: bool
    issues: tuple[Issue, ...]


def read_chat(
    messages: Sequence[Mapping[str, Any]],
    borders: Borders,
    is_controller: Callable[[str], bool] = lambda text: False,
    fenced: bool = False,
) -> Chat:
    """Make segments of the messages that `read` accepts; what stands before the agent's first message is the prompt.

    Raises:
        DataError: for something that is not a message.
    """
    chat = _in_order(read(messages))
    begin = next((number for number, message in enumerate(chat) if message.role == "assistant"), len(chat))
    prompt = [message for message in chat[:begin] if message.role != "tool"]
    inline = _is_inline(chat[begin:], borders.opening)
    parts = [_written(message) for message in prompt]
    at = sum(map(len, parts))
    spans: list[tuple[Who, Span]] = []
    calls = 0
    for message in _joined(chat[begin:]):
        parts.append(_written(message))
        start, at = at + len(_HEAD.format(message.role)), at + len(parts[-1])
        end = at - len(_END)
        if message.role == "assistant":
            spans.append(("agent", (start, end)))
            calls = message.text.count(_CALL)
        elif is_controller(message.text) and not message.text.lstrip().startswith(borders.opening):
            spans.append(("controller", (start, end)))
        else:
            most = max(calls, 1) if borders.parallel else 1
            spans += [("tool", (start + a, start + b)) for a, b in _responses(message.text, borders, most)]
    text = "".join(parts)
    segments = tuple(Segment(who, text, span, fenced) for who, span in spans)
    why = "a tool's message before the agent said anything: left out"
    issues = (Issue("response_unasked", why),) if len(prompt) < begin else ()
    asked = next((message.text.strip() for message in reversed(prompt) if message.role == "user"), None)
    return Chat(text, segments, asked, inline, issues)


def read(messages: Sequence[Mapping[str, Any]]) -> list[Message]:
    """The messages in one form: `role`/`content` or `from`/`value`; text parts joined; structured calls as text.

    `reasoning_content` becomes a `<think>` block and each of `tool_calls` a `<tool_call>` block, as chat templates do.

    Raises:
        DataError: for a message that is not a mapping, or has no role.
    """
    return [_message(number, message) for number, message in enumerate(messages)]


def decode(text: str) -> list[dict[str, Any]] | None:
    """The messages of a JSON array of messages, or of an object with `messages`; `None` for any other text."""
    head = text[:200].lstrip()
    if not (head.startswith("[") or (head.startswith("{") and '"messages"' in text)):
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
    return f"{_CALL}\n{_TAGLIKE.sub(lambda _: chr(92) + 'u003c', written)}\n</tool_call>"


def _in_order(chat: list[Message]) -> list[Message]:
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


def _written(message: Message) -> str:
    return f"{_HEAD.format(message.role)}{message.text}{_END}"


def _joined(body: list[Message]) -> Iterator[Message]:
    """The agent's messages in a row as one: they are one turn."""
    for role, group in groupby(body, key=lambda message: message.role):
        if role == "assistant":
            yield Message(role, "\n".join(message.text for message in group))
        else:
            yield from group


def _is_inline(body: list[Message], opening: str) -> bool:
    """Whether what the environment wrote stands inside the agent's messages."""
    others = [message for message in body if message.role != "assistant"]
    if any(message.role == "tool" or opening in message.text for message in others):
        return False
    return not others or any(opening in message.text for message in body if message.role == "assistant")


def _responses(text: str, borders: Borders, most: int) -> list[Span]:
    """Where the inner texts of responses are, `most` at most; the whole message where it does not begin with one."""
    start = len(text) - len(text.lstrip())
    if not text.startswith(borders.opening, start):
        return [(0, len(text))]
    start += len(borders.opening)
    end = max(start, len(text.rstrip()))
    if text.endswith(borders.closing, start, end):
        end -= len(borders.closing)
    between = re.compile(rf"{re.escape(borders.closing)}\s*+{re.escape(borders.opening)}")
    found: list[Span] = []
    while len(found) < most - 1 and (border := between.search(text, start, end)):
        found.append((start, border.start()))
        start = border.end()
    return [*found, (start, end)]
