"""Joins an agent's messages in a row to one turn, and splits a turn behind its calls."""

from collections.abc import Iterable, Iterator, Sequence

from ..trajectory import Citation
from .chat import Call, Message, Problem
from .cited import moved


def as_turns(chat: Iterable[Message], paired: bool = False) -> Iterator[Message]:
    """The chat with consecutive messages of the agent as one.

    Args:
        paired: whether results stand right behind the turns whose calls they belong to. If so, a
            message of the agent right behind one with a call says that no result came: its words
            begin a turn of their own. So does a final answer behind a call, a call behind a final
            answer, and a final answer behind a different one.

    Example:
        >>> chat = [Message("assistant", "I"), Message("assistant", "go")]
        >>> [turn.content for turn in as_turns(chat)]
        ['I\\ngo']
    """
    turn: list[Message] = []
    for message in chat:
        if message.role != "assistant":
            if turn:
                yield joined(turn)
            turn = []
            yield message
            continue
        if turn and (
            _are_of_two(turn[-1], message) or (paired and _stand_apart(turn[-1], message))
        ):
            yield joined(turn)
            turn = []
        turn.append(message)
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
        name=messages[-1].name if messages[-1].role == "assistant" else "",
        content="\n".join(contents),
        citations=tuple(citations),
        thought="\n".join(thoughts),
        calls=tuple(calls),
        unread=tuple(unread),
        problems=tuple(problems),
        apart=tuple(apart),
    )


def split_behind_calls(turn: Message) -> tuple[Message, Message | None]:
    """A turn up to its last call, and what it says behind that: `None` if it says nothing there.
    The turn has a call.

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


def _are_of_two(message: Message, follower: Message) -> bool:
    """Whether two agents with names of their own said these messages, both in words alone."""
    names = {message.name, follower.name}
    has_calls = bool(message.calls or follower.calls)
    return len(names) > 1 and "" not in names and not has_calls


def _stand_apart(message: Message, follower: Message) -> bool:
    """Whether two messages of the agent in a row are two turns, as `as_turns` has it. `requests`
    are calls of tools, `answers` final answers that were handed in by a call.
    """
    if follower.requests:
        return bool(message.answers)
    if message.answers and follower.answers:
        return message.answers != follower.answers
    return bool(message.requests) and bool(follower.answers or follower.content.strip())
