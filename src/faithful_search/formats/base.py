"""What a format is: one way in which a program stores what an agent did."""

from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass, field
from typing import Any

Messages = list[Mapping[str, Any]]


@dataclass(frozen=True)
class Chat:
    """A conversation as a format stores it.

    Attributes:
        messages: of any API's shape, as `messages.read` takes them.
        question: where it stands apart from the messages.
        answers: gold answers, as they are stored.
        id: the episode's.
        left_out: what is not among the messages, in words, and how many of them.
    """

    messages: Messages
    question: str | None = None
    answers: Any = None
    id: str = ""
    left_out: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Format:
    """One format, the value `FORMAT` of the file that has its name.

    Attributes:
        what: what a person calls such a record.
        read: the conversation in a value of JSON; `None`, or one without messages, where it is of another format.
        marks: names of fields that such a record has, by which one that cannot be read is named.
        needs: what such a one lacks, or what to do.
        group: which episode a line of a file is a part of, where one episode takes many lines, which `read` then gets
            as `{"lines": […]}`; else `None`.
    """

    what: str
    read: Callable[[Any], Chat | None]
    marks: Set[str] = frozenset()
    needs: str = "it holds no message"
    group: Callable[[Any], str | None] = lambda value: None


def mappings(value: Any, name: str | None = None, pure: bool = False) -> list[Mapping[str, Any]]:
    """The mappings in a list, or in the one under this name; nothing if it holds others, too, and must be `pure`."""
    given = value if name is None else mapping(value).get(name)
    items = given if isinstance(given, list | tuple) else ()
    found = [item for item in items if isinstance(item, Mapping)]
    return [] if pure and len(found) < len(items) else found


def mapping(value: Any, *names: str) -> Mapping[str, Any]:
    """The mapping under these names, one inside the other; an empty one where there is none."""
    for name in names:
        value = value.get(name) if isinstance(value, Mapping) else None
    return value if isinstance(value, Mapping) else {}


def text(value: Any) -> str | None:
    """The value where it is a text with something in it."""
    return value if isinstance(value, str) and value.strip() else None


def branch(nodes: Mapping[str, Mapping[str, Any]], parent: str) -> list[Mapping[str, Any]]:
    """Of nodes by their names, each with its `parent`'s: those on the way from a root to the last one."""
    rest, path = dict(nodes), []
    at = next(reversed(rest), "")
    while at in rest:  # what was passed is no longer there: parents that go in a circle end, too
        path.append(rest.pop(at))
        at = str(path[-1].get(parent))
    return path[::-1]
