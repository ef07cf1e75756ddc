"""Known names in text: whole words only, so that "Algiers" is not found in "Algiersville"."""

import re
from collections import defaultdict
from collections.abc import Callable, Mapping
from functools import lru_cache

from .errors import DataError

WORD = re.compile(r"\w+")


class NameFinder:
    """Finds known names in text: whole words only, the longest first, left to right.

    A text takes one pass over its words, with a dictionary from first words to the names that they open.

    Example:
        >>> NameFinder({"Ann": "person", "Ann Lee": "person"}).sub(str.upper, "Ann Lee met Ann, not Annie.")
        'ANN LEE met ANN, not Annie.'
    """

    def __init__(self, names: Mapping[str, str]) -> None:
        self.names = dict(names)
        opened: defaultdict[str, list[tuple[str, int]]] = defaultdict(list)
        for name in sorted(names, key=len, reverse=True):  # "Ann Lee" is found before "Ann"
            first = WORD.search(name)
            if first is None:
                raise DataError(f"the name {name!r} has no letter or digit, so it cannot be found in text")
            opened[first.group()].append((name, first.start()))
        self._opened = dict(opened)
        # The same passages are looked through again and again.
        self.segments = lru_cache(maxsize=65536)(self._segments)

    def sub(self, image: Callable[[str], str], text: str) -> str:
        """`text` with every name replaced by `image(name)`."""
        return "".join(image(part) if number % 2 else part for number, part in enumerate(self.segments(text)))

    def find(self, text: str) -> tuple[str, ...]:
        """The names in `text`, in order, repeats included."""
        return self.segments(text)[1::2]

    def _segments(self, text: str) -> tuple[str, ...]:
        """Text between names and names, alternating; joined they are `text` again."""
        parts: list[str] = []
        end = 0
        for match in WORD.finditer(text):
            for name, offset in self._opened.get(match.group(), ()):
                start = match.start() - offset
                if start >= end and text.startswith(name, start) and _whole(text, start, start + len(name)):
                    parts += (text[end:start], name)
                    end = start + len(name)
                    break
        return (*parts, text[end:])


def holds(text: str, name: str) -> bool:
    """Whether `name` stands in `text` as a whole; one without a letter or digit never does."""
    start = text.find(name) if WORD.search(name) else -1
    while start >= 0 and not _whole(text, start, start + len(name)):
        start = text.find(name, start + 1)
    return start >= 0


def unqualified(title: str) -> str:
    """A title without a bracketed qualifier at its end, case kept."""
    return re.sub(r"\s*\([^()]*\)\s*$", "", title)


def plain(title: str) -> str:
    """Case-folded, one space between words, without a qualifier: an annotation names a page with or without it."""
    return " ".join(unqualified(title).casefold().split())


def _whole(text: str, start: int, end: int) -> bool:
    opens = start == 0 or not (_in_word(text[start - 1]) and _in_word(text[start]))
    return opens and (end == len(text) or not (_in_word(text[end - 1]) and _in_word(text[end])))


def _in_word(character: str) -> bool:
    return character.isalnum() or character == "_"
