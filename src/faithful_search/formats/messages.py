"""Reads chat messages into one form, whichever API or framework wrote them.

Calls stand in `tool_calls`, in the legacy `function_call` or among the content's parts (`blocks`),
results in messages of their own or among the parts of a user's. A call of a tool that only hands in
the answer is that answer. A result belongs to the call whose id it names (`pairing`).
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import chain, islice
from typing import Any

from .. import loose_json
from ..errors import DataError
from ..trajectory import Citation
from . import blocks, call_markup, chat_templates
from .agent_turns import as_turns
from .base import first, mapping
from .blocks import Part, as_json
from .chat import TAGLIKE, Call, Message, Problem
from .cited import grounded, moved, sent_with
from .pairing import paired
from .searches import ReturnedPages, searched_beside
from .tagged_results import TaggedResults, outside_tags

# Roles by other names of theirs, in lower case
_ROLES = {
    "human": "user", "gpt": "assistant", "ai": "assistant", "model": "assistant",
    "aimessagechunk": "assistant", "developer": "system", "function": "tool",
    "observation": "tool", "ipython": "tool", "toolresult": "tool", "tool-response": "tool",
    "tool-call": "assistant", "function_call": "assistant", "tool_call": "assistant",
    "tool_response": "tool", "bot": "assistant", "agent": "assistant",
}  # fmt: skip
# LangChain's types, which stand for a role
_TYPES = frozenset(("human", "ai", "aimessagechunk", "system", "tool", "function"))
# Tools that hand in the answer and do nothing else
_ANSWER_TOOLS = frozenset(
    ("final_answer", "submit_answer", "submit_final_answer", "submit", "finish")
)
# Roles, as they are written, of messages that are nothing but calls
_CALL_ROLES = frozenset(("function_call", "tool_call"))
_ANSWER_FIELDS = ("answer", "final_answer", "result", "response", "text")
_SENDERS = frozenset(("system", "user", "human", "assistant", "ai", "bot", "agent", "gpt", "tool"))
# Fields that hold what a message says
_CONTENT_FIELDS = frozenset(("content", "value", "text", "message"))


def is_chat(value: Any) -> bool:
    """Whether this is a list of messages."""
    if not isinstance(value, list | tuple) or not value:
        return False
    return all(_role(message) is not None for message in value)


def lifted(message: Mapping[str, Any]) -> Mapping[str, Any]:
    """The message with the calls that LangChain keeps in `additional_kwargs` as its `tool_calls`."""
    calls = mapping(message, "additional_kwargs").get("tool_calls")
    if calls and not message.get("tool_calls"):
        return {**message, "tool_calls": calls}
    return message


def hands_in(tool: Any) -> bool:
    """Whether this is the name of a tool that hands in the answer, in any case."""
    return isinstance(tool, str) and tool.casefold() in _ANSWER_TOOLS


def answer_message(answer: str) -> dict[str, Any]:
    """A message in which the agent hands in this answer by a call, so that nothing in the answer is
    read as markup.
    """
    call = {"name": "final_answer", "arguments": {"answer": answer}}
    return {"role": "assistant", "tool_calls": [call]}


def read(messages: Sequence[Mapping[str, Any]], users_respond: bool = True) -> list[Message]:
    """Read messages into the one form.

    Consecutive messages of the agent become one turn. Each result stands after the turn whose call
    it answers, and says which call that is. A result of a call that handed in the answer is left
    out.

    Args:
        users_respond: in a chat without tools' messages, a user's message right after a call in the
            agent's words is the call's result.

    Raises:
        DataError: for a message that is not a mapping with a role.
    """
    chat: list[Message] = []
    asked = OpenQuestion()
    for number, pieces in enumerate(_split_each(messages, users_respond)):
        message = messages[number]
        if _role(message) == "assistant":
            # What the API searched by itself, Perplexity's say, stands before the reply
            for search in searched_beside(message, asked.question, number, asked.returned):
                chat += _split(search["role"], _parts(search["role"], search))
        asked.add(pieces)
        chat += pieces
    # Results that moved may leave two of the agent's messages side by side
    return list(as_turns(paired(as_turns(chat)), paired=True))


class OpenQuestion:
    """What a chat asks, and what tools have returned since.

    A user's message that holds only results of tools, as parts (Anthropic's API) or within tags
    (Qwen's template), asks nothing, nor do blanks, or words that introduce results.

    Attributes:
        question: the user's last words.
        returned: the pages that tools returned since.
    """

    def __init__(self) -> None:
        self.question = ""
        self.returned = ReturnedPages()

    def add(self, pieces: Sequence[Message]) -> None:
        """Add the next message, of these pieces."""
        questions: list[str] = []
        results: list[str] = []
        for piece in pieces:
            in_tags = piece.role == "user" and chat_templates.opens_results(piece.content)
            if piece.role == "tool" or in_tags:
                results.append(piece.content)
            elif piece.role == "user" and _asks(piece):
                unclear = bool(piece.problems)  # results are among its words
                questions.append(outside_tags(piece.content) if unclear else piece.content)
        if questions:
            self.question = questions[-1]
            self.returned = ReturnedPages()
        for result in results:
            self.returned.add(result)


def _asks(words: Message) -> bool:
    """Whether a user's words are more than blanks, or than what introduces the results beside them
    ("The tool returned:").
    """
    content = words.content.rstrip()
    introduces = words.beside_results and content.endswith((":", "\uff1a"))
    return bool(content) and not introduces


def asked_at_the_end(messages: Sequence[Mapping[str, Any]]) -> OpenQuestion:
    """What these messages ask. Raises `DataError` as `read` does."""
    asked = OpenQuestion()
    for pieces in _split_each(messages, users_respond=True):
        asked.add(pieces)
    return asked


def _split_each(
    messages: Sequence[Mapping[str, Any]], users_respond: bool
) -> Iterator[list[Message]]:
    """For each message its pieces, in which calls and results that stood in words are told from
    other words. Raises `DataError` as `read` does.
    """
    chat: list[Message] = []
    counts: list[int] = []  # of each message's pieces in `chat`
    tagged_results = TaggedResults(users_respond)
    for number, message in enumerate(messages):
        role = _role(message)
        if role is None:
            raise DataError(f"message {number} is not a mapping with a role: {str(message)[:80]!r}")
        before = len(chat)
        for piece in _split(role, _parts(role, message)):
            chat += tagged_results.set_apart(piece)
        counts.append(len(chat) - before)
    rewritten = _with_calls_in_words(chat, users_respond)
    for count in counts:
        yield list(chain.from_iterable(islice(rewritten, count)))


def _with_calls_in_words(chat: Sequence[Message], users_respond: bool) -> Iterator[list[Message]]:
    """What becomes of each message of the chat: calls that a server left in the agent's words
    become its `calls`, and the user's message right after them a tool's.
    """
    users_respond = users_respond and all(message.role != "tool" for message in chat)
    has_called = False  # whether the message before holds such a call
    for number, message in enumerate(chat):
        if message.role == "tool":
            yield [_without_id_line(message)]
        elif message.role == "assistant" and not message.calls:
            follower = chat[number + 1].role if number + 1 < len(chat) else ""
            answered = follower == "tool" or (follower == "user" and users_respond)
            messages = _with_calls(message, answered)
            yield messages
            has_called = any(message.calls for message in messages)
            continue
        elif has_called and message.role == "user" and users_respond:
            yield [message._replace(role="tool")]
        else:
            yield [message]
        has_called = False


def _without_id_line(message: Message) -> Message:
    """A tool's message whose first line names its call, without that line."""
    identity, content = call_markup.split_return_line(message.content)
    return message._replace(content=content, id=identity) if identity else message


def _with_calls(message: Message, answered: bool) -> list[Message]:
    """The agent's message with the calls in its words as `calls`, as one message or several.

    `answered`: a result follows.
    """
    channels = chat_templates.channels(message.content)
    if channels is not None:
        pieces: list[Message] = []
        for channel in channels:
            pieces += _of_channel(channel)
        return pieces
    parts = call_markup.split_calls(message.content, answered)
    in_thought = parts is None and not message.content.strip()
    if in_thought:
        parts = call_markup.split_calls(message.thought, answered, thought=True)
    if parts is None:
        return [message]
    words = "\n".join(part.value for part in parts if part.kind == "text")
    calls = tuple(_structured(part.value) for part in parts if part.kind == "call")
    if in_thought:
        return [message._replace(thought=words, calls=calls)]
    return [message._replace(content=words, calls=calls)]


def _of_channel(message: Mapping[str, Any]) -> list[Message]:
    """One channel of an agent's message. A tool's message among the channels was written by the
    agent, so it is no evidence.
    """
    if message["role"] != "assistant":
        why = "the agent wrote a tool's message itself: it is no evidence"
        return [Message("assistant", problems=(Problem("response_forged", why),))]
    return _split("assistant", _parts("assistant", message))


def _role(message: Any) -> str | None:
    """Who speaks: "system", "user", "assistant", "tool", or a role of another name. `None`: this is
    not a message.
    """
    if not isinstance(message, Mapping):
        return None
    role = message.get("role", message.get("from"))
    if role is None and not _CONTENT_FIELDS.isdisjoint(message):
        role = _sender(message)
    if role is None and "content" in message:
        kind = message.get("type")
        if isinstance(kind, str) and kind.casefold() in _TYPES:
            role = kind
    if not isinstance(role, str):
        return None
    return _ROLES.get(role.casefold(), role.casefold())


def _sender(message: Mapping[str, Any]) -> str | None:
    """Who speaks in a message that names its sender and no role."""
    if isinstance(message.get("isCreatedByUser"), bool):  # LibreChat's
        return "user" if message["isCreatedByUser"] else "assistant"
    for name in ("sender", "speaker", "author"):
        sender = message.get(name)
        if isinstance(sender, str) and sender.casefold() in _SENDERS:
            return sender
    return None


def _parts(role: str, message: Mapping[str, Any]) -> list[Part]:
    """What the message holds, in its content and beside it."""
    content = message.get("content", message.get("value", message.get("parts")))
    if content is None and "role" not in message:
        content = message.get("text", message.get("message"))
    if role not in ("system", "user", "assistant"):
        inner = list(blocks.parts(content)) if isinstance(content, list | tuple) else []
        if any(part.kind == "result" for part in inner):
            return inner
        # An `id` would be the message's own, and not its call's.
        return list(blocks.result({**message, "content": content, "id": None}))
    if role != "assistant":
        return list(blocks.parts(content))
    if _written_role(message) in _CALL_ROLES and isinstance(content, str):
        written = _calls_in(content)
        if written:
            return written
    thoughts: list[Part] = []
    thought = first(message, ("reasoning_content", "reasoning", "thinking"))
    if isinstance(thought, str) and thought:
        thoughts.append(Part("thought", thought))
    calls: list[Part] = []
    for name in ("tool_calls", "invalid_tool_calls", "function_call"):
        calls += _call_parts(message.get(name) or [])
    # Some APIs list the same call among the content's parts and beside it.
    known_ids = {part.id for part in calls if part.id}
    inner = [
        part for part in blocks.parts(content) if part.kind != "call" or part.id not in known_ids
    ]
    return [*thoughts, *_with_sources(inner, message), *calls]


def _call_parts(written: Any) -> list[Part]:
    """The calls in a list of calls, or the one call."""
    calls = written if isinstance(written, list | tuple) else [written]
    call_fields = [blocks.call(call) for call in calls]
    return [Part("call", fields, fields["id"]) for fields in call_fields]


def _with_sources(content: list[Part], message: Mapping[str, Any]) -> list[Part]:
    """The content's parts, of which the first text cites what the message lists beside it."""
    text = "".join(part.value for part in content if part.kind == "text")
    sent = sent_with(text, message) + grounded(text, mapping(message, "groundingMetadata"))
    if not sent:
        return content
    for number, part in enumerate(content):
        if part.kind == "text":
            content[number] = part._replace(citations=part.citations + sent)
            break
    return content


def _written_role(message: Mapping[str, Any]) -> str:
    """The role as the message has it, in lower case."""
    return str(message.get("role", message.get("from"))).casefold()


def _calls_in(content: str) -> list[Part]:
    """The calls in the JSON of a message that is nothing else: LLaMA-Factory's and ms-swift's."""
    try:
        written = loose_json.decode(content)
    except DataError:
        return []
    calls = written if isinstance(written, list) else [written]
    if not all(isinstance(fields, Mapping) and "name" in fields for fields in calls):
        return []
    return _call_parts(calls)


def _split(role: str, parts: Sequence[Part]) -> list[Message]:
    """The parts as messages, at least one: each result is a message of its own. Blanks beside
    results are none, unless the agent says them.
    """
    has_results = any(part.kind == "result" for part in parts)
    ignores_blanks = has_results and role != "assistant"
    chat: list[Message] = []
    pending: list[Part] = []  # since the last result
    unread: defaultdict[int, list[str]] = defaultdict(list)  # of results, by their places in `chat`
    for part in parts:
        if part.kind == "result":
            if pending:
                chat.append(_message(role, pending))
            chat.append(Message("tool", part.value, id=part.id, name=part.name))
            pending = []
        elif part.kind == "unread" and chat and not pending:  # an image of that result
            unread[len(chat) - 1].append(str(part.value))
        elif pending or not ignores_blanks or part.kind != "text" or part.value.strip():
            pending.append(part)
    for place, kinds in unread.items():
        chat[place] = chat[place]._replace(unread=tuple(kinds))
    if pending or not parts:
        chat.append(_message(role, pending))
    if has_results:
        chat = [message._replace(beside_results=message.role == "user") for message in chat]
    return chat


def _message(role: str, parts: Sequence[Part]) -> Message:
    """One message of these parts, none of which is a result."""
    content, citations = _texts(parts)
    unread = tuple(str(part.value) for part in parts if part.kind == "unread")
    if role != "assistant":
        stray = tuple(part.kind for part in parts if part.kind in ("call", "thought"))
        return Message(role, content, unread=(*unread, *stray))
    thought = "\n".join(part.value for part in parts if part.kind == "thought")
    calls = tuple(_structured(part.value) for part in parts if part.kind == "call")
    if not content.strip() and not calls and "</think>" in thought:
        # A server that did not recognise the thought's end put all into the field for the thought.
        thought, _, content = thought.partition("</think>")
    stretches = _stretches(parts)
    apart = [_message(role, stretch) for stretch in stretches] if len(stretches) > 1 else []
    return Message(
        role=role,
        content=content,
        thought=thought,
        calls=calls,
        citations=citations,
        unread=unread,
        apart=tuple(apart),
    )


def _stretches(parts: Sequence[Part]) -> list[list[Part]]:
    """The parts in stretches, each of which ends with its calls."""
    stretches: list[list[Part]] = []
    last_kind = "call"
    for part in parts:
        if (last_kind == "call" and part.kind != "call") or not stretches:
            stretches.append([])
        stretches[-1].append(part)
        last_kind = part.kind
    return stretches


def _texts(parts: Sequence[Part]) -> tuple[str, tuple[Citation, ...]]:
    """The texts among these parts as one text, and what that cites."""
    texts: list[str] = []
    citations: list[Citation] = []
    offset = 0
    for part in parts:
        if part.kind == "text":
            texts.append(part.value)
            citations += moved(part.citations, offset)
            offset += len(part.value)
    return "".join(texts), tuple(citations)


def _structured(fields: Mapping[str, Any]) -> Call:
    """The call with the fields of `blocks.call`, and the text that it becomes.

    Arguments that are no JSON object become a JSON string: that is no call in any dialect, and so
    an issue there, and nothing in them can be read as another part of the call.
    """
    name = str(fields["name"] or "")
    arguments = fields["arguments"]
    brackets = ""
    if isinstance(arguments, str):
        arguments, brackets = _decoded(arguments)
    written = as_json({"name": name, "arguments": {} if arguments is None else arguments})
    # The superfluous brackets stay, so that the dialect reports the malformed call. Text in the
    # arguments that looks like a tag must not end the call.
    written = TAGLIKE.sub(r"\\u003c", f"{written}{brackets}")
    return Call(
        id=fields["id"],
        name=name,
        written=f"<tool_call>\n{written}\n</tool_call>",
        answer=_answer_of(name, arguments),
    )


def _decoded(arguments: str) -> tuple[Any, str]:
    """The object in a call's JSON, and superfluous closing brackets after it. `None` for nothing;
    of anything else the text itself.
    """
    text = arguments.strip()
    if not text:
        return None, ""
    try:
        value, end = loose_json.decode_start(text)
    except DataError:
        return arguments, ""
    brackets = text[end:]
    if value is None and not brackets:
        return None, ""
    if not isinstance(value, dict) or brackets.strip("]} \n"):
        return arguments, ""
    return value, brackets


def _answer_of(name: str, arguments: Any) -> str | None:
    """The answer that this call hands in; `None` for any other call."""
    if not hands_in(name) or not arguments:
        return None
    answer = arguments
    if isinstance(answer, str):
        with suppress(DataError):
            answer = loose_json.decode(answer)
    if isinstance(answer, Mapping):
        answer = _answer_in(answer)
    if answer is None or isinstance(answer, str):
        return answer
    return as_json(answer)


def _answer_in(fields: Mapping[str, Any]) -> Any:
    """The answer in a call's arguments: the field for it, else the only one, else all of them."""
    answer = first(fields, _ANSWER_FIELDS)
    if answer is not None:
        return answer
    if len(fields) > 1:
        return fields
    return next(iter(fields.values()), None)
