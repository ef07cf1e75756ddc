"""Which words of a query may be an entity's name, where there is no list of names to look in."""

from __future__ import annotations

import re
from itertools import groupby

from ..words import words

_APOSTROPHE = "['\u2019]"
_TOKEN = re.compile(r"[^\s,;:!?()\[\]\"\u201c\u201d\u00ab\u00bb]+")
_QUOTED = re.compile(r"[\"\u201c\u00ab]([^\"\u201c\u201d\u00ab\u00bb]{2,100})[\"\u201d\u00bb]")
_OF = re.compile(rf"\b(?:of|for|in|by|from|about)\b|{_APOSTROPHE}s\b", re.IGNORECASE)
_OWNER = re.compile(rf"{_APOSTROPHE}s$")
_LINKS = frozenset(
    words("a an at in of on the to de la le du da di del von van der den and f\u00fcr und et y al el bin ibn")
)
_ASKING = frozenset(
    words(
        "a an the what who whom whose which when where why how is are was were do does did has have had in on at of "
        "name find give tell list and"
    )
)


def candidates(query: str, most: int) -> list[str]:
    """Names to try, best first: the whole query, what is quoted, capitalised words, what "of" and "'s" divide.

    Where there is none of these, shorter parts of the query.

    Example:
        >>> candidates("Where was the director of Lost in Translation born?", 4)[1:]
        ['Lost in Translation', 'Lost', 'Translation']
        >>> candidates("capital of france", 3)
        ['capital of france', 'france', 'capital']
    """
    whole = " ".join(query.split()).rstrip("?.! ")
    # what is written as a name comes before what only may be one
    parts = [*_QUOTED.findall(query), *_capitalised(whole), *_divided(whole)]
    found = [whole, *(parts or _shortened(whole))]
    named = [name for name in (each.strip(" -\u2013'\u2019") for each in found) if name.casefold() not in _ASKING]
    return list(dict.fromkeys(name for name in named if name))[:most]


def _capitalised(text: str) -> list[str]:
    """Runs of words with capitals, longest first; small words like "of" may link them, and are tried without, too."""
    runs: list[list[str]] = [[]]
    for token in _TOKEN.findall(text):
        word = _OWNER.sub("", token)
        small = word[0].isdigit() or _is_link(word)
        if word[0].isupper() or (runs[-1] and small):
            runs[-1].append(word)
        # "Ann's": what follows belongs to another name
        if word is not token or not (word[0].isupper() or small):
            runs.append([])
    whole = [run for run in map(_trimmed, runs) if run]
    parts = [list(part) for run in whole for linked, part in groupby(run, key=_is_link) if not linked]
    return [" ".join(run) for run in [*sorted(whole, key=len, reverse=True), *parts]]


def _is_link(word: str) -> bool:
    return word.casefold() in _LINKS


def _trimmed(run: list[str]) -> list[str]:
    """Without "Who" and "The" at its beginning and "of" at its end."""
    while len(run) > 1 and run[0].casefold() in _ASKING:
        run = run[1:]
    while run and _is_link(run[-1]):
        run = run[:-1]
    return run


def _divided(text: str) -> list[str]:
    """The parts between "of" and the like, the last first: it is the entity in "population of the capital of x"."""
    parts = [part.strip() for part in _OF.split(text)]
    return [re.sub(r"^(?:the|a|an) ", "", part) for part in reversed(parts) if part] if len(parts) > 1 else []


def _shortened(text: str) -> list[str]:
    told = text.split()
    return [" ".join(told[:-1]), told[0], told[-1]] if len(told) > 1 else []
