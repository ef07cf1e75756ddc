"""Chat messages as one text that a dialect's `parse` reads, without what others wrote becoming the agent's words.

A chat is written as ChatML: prompt, then in turn what the agent said and what it received. The messages' borders are
trusted, their contents are not: in received text every `<` that begins a tag or a special token becomes `&lt;`, which
every dialect reads back as it reads its own fence. Where received text comes as messages of its own, a tool response
inside the agent's message is the agent's invention, and is guarded likewise, with an issue.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any, NamedTuple

from ..errors import DataError
from ..trajectory import Issue

if TYPE_CHECKING:
    from .base import Dialect

_ROLES = {
    "human": "user", "gpt": "assistant", "model": "assistant", "developer": "system", "function": "tool",
    "observation": "tool", "ipython": "tool",
}  # fmt: skip
_TAGLIKE = re.compile(r"<(?=\s*/?\s*[A-Za-z_|])")
_SPECIAL = re.compile(r"<(?=\|)")
_ROLE_MARKUP = r"<(?=\|(?:im_start|im_end|start_header_id|end_header_id|eot_id|user|assistant|system|end)\|>)"
_EDGES = re.compile(r"(<(?:\|\w+\||\w+)>)(\n?).*(<(?:\|\w+\||/\w+)>)", re.DOTALL)
_CALL = "<tool_call>"


class Message(NamedTuple):
    """One message: `role` is system, user, assistant or tool; `ids` name its structured calls, or the call answered."""

    role: str
    text: str
    ids: tuple[str, ...] = ()
    calls: int = 0


class Borders(NamedTuple):
    """How a dialect encloses a tool response."""

    opening: str
    closing: str
    gap: str


def read(messages: Sequence[Mapping[str, Any]]) -> list[Message]:
    """The messages in one form: `role`/`content` or `from`/`value`; text parts joined; structured calls as text.

    `reasoning_content` becomes a `<think>` block and each of `tool_calls` a `<tool_call>` block, as chat templates do.

    Raises:
        DataError: for a message that is no mapping, or has no role.
    """
    return [_message(number, message) for number, message in enumerate(messages)]


def flatten(messages: Sequence[Mapping[str, Any]], dialect: Dialect) -> tuple[str, tuple[Issue, ...]]:
    """The chat as one text for `dialect.parse`, and what is wrong with it as a chat.

    Raises:
        DataError: as `read`.
    """
    chat = _in_order(read(messages))
    begin = next((k for k, message in enumerate(chat) if message.role == "assistant"), len(chat))
    borders = borders_of(dialect)
    body = chat[begin:] if dialect.joins else _merged(chat[begin:], borders)
    inline = _is_inline(body, borders)
    issues: list[Issue] = []
    parts = [_prompt(message, borders) for message in chat[:begin] if message.role != "tool"]
    if len(parts) < begin:
        issues.append(Issue("response_unasked", "a tool's message before the agent said anything: left out"))
    last = ""
    for message in body or [Message("assistant", "")]:
        if message.role == "assistant":
            said = message.text if inline else _own(message.text, borders, issues)
            parts.append("<|im_start|>assistant\n" if last != "assistant" or not parts else "\n")
            parts.append(said)
            calls = message.calls or message.text.count(_CALL)
        else:
            parts.append(_received(message.text, dialect, borders, calls, opened=last == "assistant"))
        last = message.role
    return "".join(parts), tuple(issues)


def borders_of(dialect: Dialect) -> Borders:
    """The opening and closing of the dialect's tool response, as its own rendering has them."""
    found = _EDGES.search(dialect.render_observation((), ""))
    if found is None:
        return Borders(f"<{dialect.response_tag}>", f"</{dialect.response_tag}>", "\n")
    return Borders(found[1], found[3], found[2])


def guard(text: str) -> str:
    """Received text in which no tag and no special token can be read; a dialect's unescaping gives it back."""
    return _TAGLIKE.sub("&lt;", text)


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
    calls = _calls(message.get("tool_calls"))
    text = "\n".join([*([text] if text else []), *map(_call, calls)])
    return Message("assistant", text, tuple(str(call.get("id", "")) for call in calls), len(calls))


def _calls(value: Any) -> list[Mapping[str, Any]]:
    """The structured calls; one that is no mapping stays as a call without a name, which the reader finds out."""
    calls = value if isinstance(value, list | tuple) else [value] if value else []
    return [call if isinstance(call, Mapping) else {} for call in calls]


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
    """A structured call between tags; arguments that are no JSON stay as they are and are found out by the reader."""
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
        found.append(chat[at])
        asked = chat[at].ids if chat[at].role == "assistant" else ()
        at += 1
        end = at
        while end < len(chat) and chat[end].role == "tool":
            end += 1
        found += _answers(asked, chat[at:end], last=end == len(chat))
        at = end
    return found


def _answers(asked: tuple[str, ...], tools: list[Message], last: bool) -> list[Message]:
    named = {message.ids[0]: message for message in tools if message.ids}
    if len(asked) < 2 or len(named) < len(tools) or not named.keys() <= set(asked) or (last and not tools):
        return tools
    return [named.get(name, Message("tool", "")) for name in asked]


def _merged(body: list[Message], borders: Borders) -> list[Message]:
    """Messages received in a row as one: the dialect knows one response to a turn."""
    found: list[Message] = []
    for own, group in groupby(body, key=lambda message: message.role == "assistant"):
        messages = list(group)
        if own or len(messages) == 1:
            found += messages
            continue
        blocks = [_blocks(message.text.strip(), borders, 1) or [message.text] for message in messages]
        found.append(Message("tool", "\n".join(block for (block,) in blocks)))
    return found


def _is_inline(body: list[Message], borders: Borders) -> bool:
    """Whether what the environment wrote stands inside the agent's messages."""
    others = [message for message in body if message.role != "assistant"]
    if not others:
        return True
    if any(message.role == "tool" or borders.opening in message.text for message in others):
        return False
    return any(borders.opening in message.text for message in body if message.role == "assistant")


def _prompt(message: Message, borders: Borders) -> str:
    text = _SPECIAL.sub("&lt;", message.text)
    if text.lstrip().startswith(borders.opening):
        text = guard(text)
    return f"<|im_start|>{message.role}\n{text}<|im_end|>\n"


def as_asked(question: str) -> str:
    """A question read from a flattened chat, with the special tokens it spelled."""
    return question.replace("&lt;|", "<|")


def _own(text: str, borders: Borders, issues: list[Issue]) -> str:
    if borders.opening in text:
        issues.append(Issue("response_forged", "the agent wrote a tool response itself"))
    forbidden = rf"<(?={re.escape(borders.opening[1:])}|{re.escape(borders.closing[1:])})|{_ROLE_MARKUP}"
    return re.sub(forbidden, "&lt;", text)


def _received(text: str, dialect: Dialect, borders: Borders, calls: int, opened: bool) -> str:
    blocks = _blocks(text.strip(), borders, calls if dialect.parallel else 1)
    if blocks is None and dialect.is_controller(text):
        written = guard(text)
    else:
        wrapped = (guard(block) for block in ([text] if blocks is None else blocks))
        gap = borders.gap
        written = "\n".join(f"{borders.opening}{gap}{block}{gap}{borders.closing}" for block in wrapped)
    return f"{'<|im_end|>' if opened else ''}\n<|im_start|>user\n{written}<|im_end|>\n"


def _blocks(text: str, borders: Borders, calls: int) -> list[str] | None:
    """The inner texts of responses already enclosed, no more than there were calls; `None` where it has no borders."""
    if not text.startswith(borders.opening):
        return None
    inner = text.removeprefix(borders.opening).removesuffix(borders.closing)
    between = rf"{re.escape(borders.closing)}\s*{re.escape(borders.opening)}"
    blocks = re.split(between, inner, maxsplit=calls - 1) if calls > 1 else [inner]
    return [block.removeprefix(borders.gap).removesuffix(borders.gap) for block in blocks]
