"""Chat messages in one form, whichever API or framework wrote them.

Calls stand in `tool_calls`, in the legacy `function_call` or among the content's parts (`blocks`), results in messages
of their own or among the parts of a user's. A call of a tool that only hands in the answer is that answer.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any, NamedTuple

from ..errors import DataError
from .blocks import Part, as_json, call, first, parts, result

_ROLES = {
    "human": "user", "gpt": "assistant", "ai": "assistant", "model": "assistant", "AIMessageChunk": "assistant",
    "developer": "system", "function": "tool", "observation": "tool", "ipython": "tool", "toolResult": "tool",
    "tool-response": "tool", "tool-call": "assistant",
}  # fmt: skip
_TYPES = frozenset(
    ("human", "ai", "AIMessageChunk", "system", "tool", "function")
)  # LangChain's, instead of a role
# Tools that hand in the answer and do nothing else.
ANSWERING = frozenset(("final_answer", "submit_answer", "submit_final_answer", "submit", "finish"))
TAGLIKE = re.compile(r"<(?=\s*/?\s*[A-Za-z_|])")
HEAD, END = "<|im_start|>{}\n", "<|im_end|>\n"


class Message(NamedTuple):
    """One message of the system, a user, an assistant or a tool."""

    role: str
    said: str = ""
    ids: tuple[str, ...] = ()  # of its structured calls, or of the call that it answers
    unread: tuple[str, ...] = ()  # the kinds of parts that were not understood
    thought: str = ""
    made: str = ""  # structured calls, or an answer that was handed in, as text
    handed: str = ""  # an answer that was handed in beside other calls
    hushed: frozenset[str] = frozenset()  # calls whose results are left out

    @property
    def text(self) -> str:
        thought, said = self.thought, self.said
        if (
            thought and self.made and not TAGLIKE.search(said)
        ):  # what is said beside a call is a thought, too
            thought, said = "\n".join(filter(None, (thought, said))), ""
        return "\n".join(filter(None, (thought and f"<think>{thought}</think>", said, self.made)))

    @property
    def written(self) -> str:
        return f"{HEAD.format(self.role)}{self.text}{END}"


def is_chat(value: Any) -> bool:
    """Whether this is a list of messages."""
    return (
        isinstance(value, list | tuple)
        and bool(value)
        and all(_role(item) is not None for item in value)
    )


def read(messages: Sequence[Mapping[str, Any]]) -> list[Message]:
    """The messages in one form, with thoughts, structured calls and handed-in answers as blocks of text.

    Consecutive messages of the agent are one turn, and tool messages stand in the order of the calls whose ids they
    name, an empty one for a call that was never answered. Raises `DataError` for what is not a mapping with a role.
    """
    found: list[Message] = []
    hushed: frozenset[str] = frozenset()
    waiting = ""  # an answer, to be given when the results of the calls beside it have come
    for number, message in enumerate(messages):
        role = _role(message)
        if role is None:
            raise DataError(f"message {number} is not a mapping with a role: {str(message)[:80]!r}")
        for one in _split(role, _parts(role, message)):
            if one.role != "tool":
                found += [Message("assistant", waiting)] if waiting else []
                waiting, hushed = one.handed, one.hushed if one.role == "assistant" else hushed
            elif (one.ids or ("",))[0] in hushed:
                continue  # the response to a handed-in answer is no evidence
            found.append(one)
    found += [Message("assistant", waiting)] if waiting else []
    return _in_order(list(_joined(found)))


def _joined(chat: Sequence[Message]) -> Iterator[Message]:
    """The chat with consecutive messages of the agent as one."""
    for role, group in groupby(chat, key=lambda message: message.role):
        own = list(group)
        if role != "assistant" or len(own) == 1:
            yield from own
            continue
        said, thought, made = (
            "\n".join(filter(None, (getattr(one, name) for one in own)))
            for name in ("said", "thought", "made")
        )
        ids, unread = (
            tuple(item for one in own for item in getattr(one, name)) for name in ("ids", "unread")
        )
        yield Message(role, said, ids, unread, thought, made)


def _in_order(chat: Sequence[Message]) -> list[Message]:
    found: list[Message] = []
    at = 0
    while at < len(chat):
        asked = chat[at].ids if chat[at].role == "assistant" else ()
        end = next((k for k in range(at + 1, len(chat)) if chat[k].role != "tool"), len(chat))
        tools = chat[at + 1 : end]
        named = {message.ids[0]: message for message in tools if message.ids}
        known = len(named) == len(tools) and named.keys() <= set(asked)
        # Calls at the very end may still be running: nothing is missing there.
        if len(asked) > 1 and known and (tools or end < len(chat)):
            tools = [named.get(name, Message("tool")) for name in asked]
        found += [chat[at], *tools]
        at = end
    return found


def _role(message: Any) -> str | None:
    """Who speaks: system, user, assistant, tool or a role of another name; `None` for other values."""
    if not isinstance(message, Mapping):
        return None
    role = message.get("role", message.get("from"))
    kind = message.get("type")
    if role is None and "content" in message and isinstance(kind, str) and kind in _TYPES:
        role = kind
    return _ROLES.get(role, role) if isinstance(role, str) else None


def _parts(role: str, message: Mapping[str, Any]) -> list[Part]:
    """What the message holds, in its content and beside it."""
    content = message.get("content", message.get("value", message.get("parts")))
    if role not in ("system", "user", "assistant"):
        within = list(parts(content)) if isinstance(content, list | tuple) else []
        if any(part.kind == "result" for part in within):
            return within
        return list(
            result({**message, "content": content, "id": None})
        )  # its id is the message's own
    if role != "assistant":
        return list(parts(content))
    thought = first(message, ("reasoning_content", "reasoning", "thinking"))
    beside = [Part("thought", thought)] if isinstance(thought, str) and thought else []
    calls: list[Part] = []
    for name in ("tool_calls", "invalid_tool_calls", "function_call"):
        given = message.get(name)
        listed = given if isinstance(given, list | tuple) else [given] if given else []
        calls += [Part("call", asked, asked["id"]) for asked in map(call, listed)]
    # Some APIs list the same call among the content's parts and beside it.
    known = {asked.id for asked in calls if asked.id}
    said = [part for part in parts(content) if part.kind != "call" or part.id not in known]
    return [*beside, *said, *calls]


def _split(role: str, said: Sequence[Part]) -> list[Message]:
    """The parts up to each result as one message, and the result as another; one message at least."""
    found: list[Message] = []
    own: list[Part] = []
    for part in said:
        if part.kind == "result":
            found += [_spoken(role, own)] if own else []
            found.append(Message("tool", part.value, (part.id,) if part.id else ()))
            own = []
        elif part.kind == "unread" and found and not own:  # an image of that result
            found[-1] = found[-1]._replace(unread=(*found[-1].unread, str(part.value)))
        else:
            own.append(part)
    return [*found, _spoken(role, own)] if own or not said else found


def _spoken(role: str, own: Sequence[Part]) -> Message:
    text = "".join(part.value for part in own if part.kind == "text")
    unread = tuple(str(part.value) for part in own if part.kind == "unread")
    if role != "assistant":
        stray = tuple(part.kind for part in own if part.kind in ("call", "thought"))
        return Message(role, text, unread=(*unread, *stray))
    thought = "\n".join(part.value for part in own if part.kind == "thought")
    made = [part.value for part in own if part.kind == "call"]
    handed = {asked["id"]: answer for asked in made if (answer := _handed(asked)) is not None}
    calls = [asked for asked in made if _handed(asked) is None]
    answer = "\n".join(f"<answer>{one}</answer>" for one in handed.values())
    if not calls:  # a result that names no call answers the one that handed in
        return Message(
            role,
            text,
            (),
            unread,
            thought,
            answer,
            hushed=frozenset([*handed, ""] if handed else ()),
        )
    ids, written = tuple(asked["id"] for asked in calls), "\n".join(map(_written, calls))
    return Message(role, text, ids, unread, thought, written, answer, frozenset(handed) - {""})


def _handed(asked: Mapping[str, Any]) -> str | None:
    """The answer that this call hands in; `None` for any other call."""
    given = asked["arguments"]
    if asked["name"] not in ANSWERING or not given:
        return None
    if isinstance(given, str):
        try:
            given = json.loads(given)
        except (ValueError, RecursionError):
            return str(given)
    if isinstance(given, Mapping):
        alone = next(iter(given.values()), None) if len(given) < 2 else given
        said = first(given, ("answer", "final_answer", "result", "response", "text"))
        given = alone if said is None else said
    return given if given is None or isinstance(given, str) else as_json(given)


def _written(asked: Mapping[str, Any]) -> str:
    """A structured call between tags; arguments that are not JSON stay as they are, and become an issue there."""
    arguments = asked["arguments"]
    if not isinstance(arguments, str):
        arguments = as_json({} if arguments is None else arguments)
    written = f'{{"name": {as_json(asked["name"])}, "arguments": {arguments.strip() or "{}"}}}'
    # Text in the arguments that looks like a tag must not end the call.
    return "<tool_call>\n" + TAGLIKE.sub(r"\\u003c", written) + "\n</tool_call>"
