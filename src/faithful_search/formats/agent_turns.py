"""An agent's messages in a row as one turn, and a turn in what it said before and behind calls."""

from collections.abc import Iterable, Iterator, Sequence

from ..trajectory import Citation
from .chat import Call, Message, Problem
from .cited import moved


def as_turns(chat: Iterable[Message], paired: bool = False) -> Iterator[Message]:
    """The chat with consecutive messages of the agent as one.

    Args:
        paired: results stand right behind the turns whose calls they answer. Then words behind a
            call that nothing answered are a turn of their own, and so is an answer handed in there,
            before a call or after another answer.

    Example:
        >>> chat = [Message("assistant", "I"), Message("assistant", "go")]
        >>> [turn.content for turn in as_turns(chat)]
        ['I\\ngo']
    """
    turn: list[Message] = []
    for message in chat:
        ends = message.role != "assistant" or (paired and turn and _stand_apart(turn[-1], message))
        if turn and ends:
            yield joined(turn)
            turn = []
        if message.role == "assistant":
            turn.append(message)
        else:
            yield message
    if turn:
        yield joined(turn)


def joined(messages: Sequence[Message]) -> Message:
    """Messages of the agent, at least one, as one: each content is a line, and so is each thought.

    Example:
        >>> joined([Message("assistant", "I"), Message("assistant", "go")]).content
        'I\\ngo'
    """
    if len(messages) == 1:
        return messages[0]
    contents: list[str] = []
    thoughts: list[str] = []
    citations: list[Citation] = []
    calls: list[Call] = []
    unread: list[str] = []
    problems: list[Problem] = []
    apart: list[Message] = []
    offset = 0
    for message in messages:
        if message.content:
            contents.append(message.content)
            citations += moved(message.citations, offset)
            offset += len(message.content) + 1
        if message.thought:
            thoughts.append(message.thought)
        calls += message.calls
        unread += message.unread
        problems += message.problems
        apart += message.apart or (message,)
    return Message(
        role=messages[0].role,
        content="\n".join(contents),
        citations=tuple(citations),
        thought="\n".join(thoughts),
        calls=tuple(calls),
        unread=tuple(unread),
        problems=tuple(problems),
        apart=tuple(apart),
    )


def split_behind_calls(turn: Message) -> tuple[Message, Message | None]:
    """A turn with calls up to its last call, and what it says behind that; `None`: nothing.

    Example:
        >>> call = Message("assistant", calls=(Call("1", "look", "…"),))
        >>> split_behind_calls(joined([call, Message("assistant", "Ada")]))[1].content
        'Ada'
    """
    parts = turn.apart or (turn,)
    end = max(number for number, part in enumerate(parts, start=1) if part.calls)
    behind = parts[end:]
    if not any(part.content.strip() for part in behind):
        return turn, None
    return joined(parts[:end]), joined(behind)


def _stand_apart(message: Message, follower: Message) -> bool:
    """Whether one of two messages of the agent calls something and the other is an answer, or they
    hand in different answers.
    """
    if follower.requests:
        return bool(message.answers)
    if message.answers and follower.answers:
        return message.answers != follower.answers
    return bool(message.requests) and bool(follower.answers or follower.content.strip())
