"""Reads chat messages into one form, whichever API or framework wrote them.

Calls stand in `tool_calls`, in the legacy `function_call` or among the content's parts
(`message_parts`), results in messages of their own or among the parts of a user's. A call of a tool
that only hands in the answer is that answer (`call_texts`). A result belongs to the call whose id
it names (`pairing`).
"""

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain, islice
from typing import Any

from ..errors import DataError
from ..trajectory import Citation
from . import call_markup, call_texts, chat_templates, thought_markup
from .agent_turns import as_turns
from .blocks import Part
from .chat import Call, Message, Problem
from .cited import moved
from .field_names import usual
from .message_parts import all_parts, parts_of, speaker
from .pairing import paired
from .searches import ReturnedPages, reported_search, searched_beside
from .tagged_results import TaggedResults, outside_tags

# What opens a result in a user's message, beside the dialects' own tag
_OPENS_RESULT = re.compile(r"\s*+<(?P<tag>tool_result|function_results)\b[^<>\n]{0,200}>")
# The end of a thought that is no quotation
_THOUGHT_ENDS = re.compile("(?<!`)</think>(?!`)")


def is_chat(value: Any) -> bool:
    """Whether this is a list of messages."""
    if not isinstance(value, list | tuple) or not value:
        return False
    return all(speaker(message) is not None for message in value)


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
    open_question = OpenQuestion()
    for number, pieces in enumerate(_split_each(messages, users_respond)):
        message = messages[number]
        question, returned = open_question.question, open_question.returned
        if speaker(message) == "assistant":
            # What the API searched by itself, Perplexity's say, stands before the reply
            chat += _of_searches(searched_beside(message, question, number, returned))
        elif speaker(message) == "tool" and (not chat or chat[-1].role in ("system", "user")):
            pieces = _of_searches(reported_search(message, question, number)) or pieces
        open_question.add(pieces)
        chat += pieces
    # Results that moved may leave two of the agent's messages side by side
    return list(as_turns(paired(as_turns(chat)), paired=True))


def _of_searches(searches: Sequence[Mapping[str, Any]]) -> list[Message]:
    """The messages of searches that an API reports, in the one form."""
    pieces: list[Message] = []
    for message in searches:
        pieces += _split(message["role"], parts_of(message["role"], message))
    return pieces


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
    open_question = OpenQuestion()
    for pieces in _split_each(messages, users_respond=True):
        open_question.add(pieces)
    return open_question


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
        role = speaker(message)
        if role is None:
            raise DataError(f"message {number} is not a mapping with a role: {str(message)[:80]!r}")
        before = len(chat)
        for piece in _split(role, all_parts(role, usual(message), users_respond)):
            if role == "assistant" and isinstance(message.get("name"), str):
                piece = piece._replace(name=message["name"])
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
        elif message.role == "user" and users_respond and _answers_a_call(chat, number):
            yield _between_tags(message)
        else:
            yield [message]
        has_called = False


def _answers_a_call(chat: Sequence[Message], number: int) -> bool:
    """Whether a user's message is a result between tags other than the dialects' own, right behind
    a call that the agent wrote.
    """
    agent = chat[number - 1] if number else Message("")
    has_called = agent.role == "assistant" and "</tool_call>" in agent.content
    content = chat[number].content
    opening = _OPENS_RESULT.match(content) if has_called else None
    return opening is not None and f"</{opening['tag']}>" in content


def _between_tags(message: Message) -> list[Message]:
    """The result in a message that such a tag opens, and the user's words behind it."""
    opening = _OPENS_RESULT.match(message.content)
    if opening is None:
        return [message]
    result, _, words = message.content[opening.end() :].rpartition(f"</{opening['tag']}>")
    messages = [message._replace(role="tool", content=result.strip())]
    if words.strip():
        messages.append(Message("user", words.strip(), beside_results=True))
    return messages


def _without_id_line(message: Message) -> Message:
    """A tool's message whose first line names its call, without that line. Where the message names
    another call, no template wrote that line.
    """
    identity, content = call_markup.split_return_line(message.content)
    names_its_call = bool(identity) and message.id in ("", identity)
    return message._replace(content=content, id=identity) if names_its_call else message


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
    calls = _calls(parts)
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
    return _split("assistant", parts_of("assistant", message))


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
        is_blank = part.kind == "text" and not part.value.strip()
        if part.kind == "result":
            if pending:
                chat.append(_message(role, pending))
            chat.append(Message("tool", part.value, id=part.id, name=part.name))
            pending = []
        elif part.kind == "unread" and chat and not pending:  # an image of that result
            unread[len(chat) - 1].append(str(part.value))
        elif pending or not (ignores_blanks and is_blank):
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
    calls = _calls(parts)
    if not content.strip() and not calls and "</think>" in thought:
        # A server that did not recognise the thought's end put all into the field for the thought.
        end = _THOUGHT_ENDS.search(thought)
        if end is not None:
            thought, content = thought[: end.start()], thought[end.end() :]
    # Citations are places in the content
    divided = None if thought or citations else thought_markup.divided(content)
    if divided is not None:
        thought, content = divided
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


def _calls(parts: Sequence[Part]) -> tuple[Call, ...]:
    return tuple(call_texts.with_text(part.value) for part in parts if part.kind == "call")


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
