"""What a passage looks like, whatever it says: how long it is, how it ends, how it names its
title.
"""

import re

from ..text import holds, unqualified

# What sets a site's name apart in a page's title.
_SITE = re.compile(r" [-|\u2013\u2014\u00b7] |: ")
SENTENCE_ENDS = (".", "!", "?", "\u3002", "\uff01", "\uff1f")
_BREAKS = (". ", "! ", "? ", "\n", "\u3002", "\uff01", "\uff1f")


def slack(text: str) -> int:
    """By how many characters another text of the same form may be longer or shorter."""
    return max(16, len(text) // 8)


def names_of(title: str) -> list[str]:
    """A title as a text may write it: whole, without a qualifier in brackets, without the name of a
    site.

    Example:
        >>> names_of("Mercury (planet) - An Encyclopedia")
        ['Mercury (planet) - An Encyclopedia', 'Mercury (planet)', 'Mercury']
    """
    page = _SITE.split(title, maxsplit=1)[0]
    names = (title, unqualified(title), page, unqualified(page))
    distinct = dict.fromkeys(map(str.strip, names))
    return [name for name in distinct if name]


def mention(title: str, text: str) -> str:
    """How the text names its title; empty where it does not."""
    for name in names_of(title):
        if holds(text, name):
            return name
    return ""


def renamed(text: str, old: str, new: str) -> str:
    """The text with a name in the place of another, as whole words."""
    return re.sub(rf"(?<!\w){re.escape(old)}(?!\w)", lambda _: new, text)


def gap(text: str) -> str:
    """What stands between two parts of a text like this one: an empty line, a line break, or a
    blank.
    """
    for separator in ("\n\n", "\n"):
        if separator in text:
            return separator
    return " "


def cut(text: str, length: int, leeway: int) -> str:
    """The beginning of a text that is longer than `length` by more than `leeway`: up to the end of
    a sentence within `leeway` of that length, or else of a word.

    Example:
        >>> cut("It rains. It pours. It snows all night.", 20, 5)
        'It rains. It pours.'
    """
    if len(text) <= length + leeway:
        return text
    shortest = max(length - leeway, 1)
    head = text[: length + leeway]
    end_of_sentence = max(head.rfind(mark) for mark in _BREAKS) + 1
    if end_of_sentence >= shortest:
        return head[:end_of_sentence].rstrip()
    end_of_word = head.rfind(" ", shortest, length)
    if end_of_word < 0:  # one long word is cut
        end_of_word = length
    return head[:end_of_word].rstrip()


def ended_like(text: str, other: str) -> str:
    """The text with the marks at its end that the other one has: a full stop, dots, none."""
    return text[: _last_letter(text)] + other[_last_letter(other) :]


def _last_letter(text: str) -> int:
    """Where the last letter or digit of the text ends; where it has none, the text."""
    for place in range(len(text), 0, -1):
        if text[place - 1].isalnum():
            return place
    return len(text)
