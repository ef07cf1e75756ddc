"""What a format is: one way in which a program stores what an agent did."""

from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass, field
from typing import Any

Messages = list[Mapping[str, Any]]


@dataclass(frozen=True)
class Chat:
    """A conversation as a format stores it."""

    messages: Messages  # of any API's shape, as `messages.read` takes them
    question: str | None = None  # where it stands apart from the messages
    answers: Any = None  # gold answers, as they are stored
    id: str = ""
    left_out: dict[str, int] = field(
        default_factory=dict
    )  # what is not among the messages, and how many of them


@dataclass(frozen=True)
class Format:
    """One format, the value `FORMAT` of the file that has its name."""

    what: str  # what a person calls such a record
    # The conversation in a value of JSON; `None`, or one without messages, where it is of another format.
    read: Callable[[Any], Chat | None]
    marks: Set[str] = (
        frozenset()
    )  # fields of such a record, by which one that cannot be read is named
    needs: str = "it holds no message"  # what such a one lacks, or what to do
    # Which episode a line of a file is a part of, if one takes many lines; `read` then gets them as `{"lines": […]}`.
    group: Callable[[Any], str | None] = lambda value: None


def mappings(value: Any, name: str | None = None, pure: bool = False) -> list[Mapping[str, Any]]:
    """The mappings in a list, or in the one under this name; none if it must be `pure` and holds others, too."""
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
