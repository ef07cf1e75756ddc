"""What a format is: one way in which a program stores what an agent did."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

Messages = list[Mapping[str, Any]]


@dataclass(frozen=True)
class Chat:
    """A conversation as a format stores it.

    Attributes:
        messages: of any API's shape, as `messages.read` takes them.
        question: where it stands apart from the messages.
        answers: gold answers, as they are stored.
        id: the episode's.
        left_out: what is not among the messages, in words.
    """

    messages: Messages
    question: str | None = None
    answers: Any = None
    id: str = ""
    left_out: tuple[str, ...] = ()


class Format(ABC):
    """One format. A subclass in `formats/<name>.py` is found by its file's name.

    Attributes:
        what: what a person calls such a record.
        marks: names of fields that such a record has, by which one that cannot be read is named.
        needs: what such a one lacks, or what to do.
    """

    what: ClassVar[str]
    marks: ClassVar[frozenset[str]] = frozenset()
    needs: ClassVar[str] = "it holds no message"

    @abstractmethod
    def read(self, value: Any) -> Chat | None:
        """The conversation in this value of JSON; `None` where it is of another format."""

    def group(self, value: Any) -> str | None:
        """Which episode this line of a file is a part of, where one episode takes many lines; else `None`."""
        return None


def only_mappings(value: Any) -> list[Mapping[str, Any]]:
    """The list where it holds mappings and nothing else; else nothing."""
    found = mappings(value)
    return found if found and len(found) == len(value) else []


def mappings(value: Any) -> list[Mapping[str, Any]]:
    """The mappings in a list; nothing for any other value."""
    return [item for item in value if isinstance(item, Mapping)] if isinstance(value, list | tuple) else []


def mapping(value: Any, *names: str) -> Mapping[str, Any]:
    """The mapping under these names, one inside the other; an empty one where there is none."""
    for name in names:
        value = value.get(name) if isinstance(value, Mapping) else None
    return value if isinstance(value, Mapping) else {}


def text(value: Any) -> str | None:
    """The value where it is a text with something in it."""
    return value if isinstance(value, str) and value.strip() else None
