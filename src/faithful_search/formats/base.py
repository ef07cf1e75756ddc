"""What a format is: one way in which a program stores what an agent did."""

from collections.abc import Callable, Iterable, Mapping, Set
from dataclasses import dataclass, field
from typing import Any

from .chat import Problem

Messages = list[Mapping[str, Any]]


@dataclass(frozen=True)
class Chat:
    """A conversation as a format stores it.

    Attributes:
        messages: of any API's shape, as `messages.read` takes them.
        question: the question, where it stands apart from the messages.
        answers: gold answers, as they are stored.
        left_out: what is not among the messages, with how many there are of it.
        agents: columns of the row that hold what the agent said, whatever their names promise.
        dialect: the dialect, where the format has only one, whatever tags stand in its texts.
        problems: what makes the reading uncertain.
        format: what a person calls such a record; empty for a list of messages.
        of_text: whether roles and results were told apart within one text.
    """

    messages: Messages
    question: str | None = None
    answers: Any = None
    id: str = ""
    left_out: dict[str, int] = field(default_factory=dict)
    agents: frozenset[str] = frozenset()
    dialect: str = ""
    problems: tuple[Problem, ...] = ()
    format: str = ""
    of_text: bool = False


@dataclass(frozen=True)
class Format:
    """One format, the value `FORMAT` of the file that has its name.

    Attributes:
        what: what a person calls such a record.
        read: the conversation in a JSON value; `None`, or one without messages, where the value is
            of another format.
        marks: fields of such a record, by which one that cannot be read is named.
        needs: what a record lacks that cannot be read, or what to do.
        group: for a format that spreads an episode over many lines of a file: the name of the
            episode that a line belongs to. `read` then gets them as `{"lines": […]}`.
        generality: how ordinary the format's columns are. Formats of ordinary columns are asked
            last, and not at all where a usual column says what the agent wrote.
    """

    what: str
    read: Callable[[Any], Chat | None]
    marks: Set[str] = frozenset()
    needs: str = "it holds no message"
    group: Callable[[Any], str | None] = lambda value: None
    generality: int = 0


def mappings(value: Any, name: str | None = None, pure: bool = False) -> list[Mapping[str, Any]]:
    """The mappings in a list, or in the list under `name`; with `pure` none where the list holds
    anything else.
    """
    entries = value if name is None else mapping(value).get(name)
    if not isinstance(entries, list | tuple):
        return []
    objects = [entry for entry in entries if isinstance(entry, (dict, Mapping))]
    return [] if pure and len(objects) < len(entries) else objects


def mapping(value: Any, *names: str) -> Mapping[str, Any]:
    """The mapping under these names, one inside the other; an empty one where there is none."""
    for name in names:
        # `dict` first: asking the abstract class takes five times as long
        value = value.get(name) if isinstance(value, (dict, Mapping)) else None
    return value if isinstance(value, (dict, Mapping)) else {}


def first(fields: Mapping[str, Any], names: Iterable[str]) -> Any:
    """The first of these fields that holds something; `None` where none does."""
    for name in names:
        value = fields.get(name)
        if value is not None:
            return value
    return None


def reread(value: Any) -> Chat | None:
    """The conversation in a part of a record, in any of the formats."""
    from . import read  # here: that module imports the formats, and they import this one

    return read(value)


def text(value: Any) -> str | None:
    """The value where it is a text with something in it."""
    return value if isinstance(value, str) and value.strip() else None


def branch(nodes: Mapping[str, Mapping[str, Any]], parent: str) -> list[Mapping[str, Any]]:
    """The nodes on the way from a root to the last node. `parent` is the field with the name of a
    node's parent.
    """
    unvisited = dict(nodes)  # so that parents in a circle come to an end
    path = []
    name = next(reversed(unvisited), "")
    while name in unvisited:
        path.append(unvisited.pop(name))
        name = str(path[-1].get(parent))
    return path[::-1]
