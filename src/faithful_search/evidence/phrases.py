"""Which texts are notes by their phrases: errors, empty results, and walls in front of pages.

The phrases stand in `phrases.txt`.
"""

import re
from collections.abc import Iterator
from functools import cache
from importlib.resources import files
from itertools import islice
from typing import Literal

Kind = Literal["error", "empty", "wall", "echo"]

COPY = "\N{OBJECT REPLACEMENT CHARACTER}"
"""Stands in a text for each copy of what the agent wrote in its call."""

LONGEST = 1_500
"""Characters of a note; a longer text says something."""

_KINDS: tuple[Kind, ...] = ("empty", "wall", "error")
_OPENING_QUOTES = "\"'`\u2018\u201c\u201e\u00ab\u300c\u300e"
# Bullets, brackets and warning signs before the first word, or the tool's name in brackets
_TOOL = r"\[(?:[\w-]{1,40}\]:?|[\w -]{1,60}\]:)"
_BEFORE = rf"(?:[\W_]{{0,12}}|{_TOOL}\s{{0,2}})"
_BARE = re.compile(r"\W{0,12}+(?:none|null|nothing)\W{0,12}+", re.IGNORECASE)
_PART = re.compile(r"\{([A-Z]+)\}")
_SECTION = re.compile(r"\[([a-z]+)\]")
_SENTENCE_END = re.compile(
    r"(?:(?<![.!?\u2026])[.!?\u2026]++(?=\s|\Z)|[\u3002\uff01\uff1f\n])[\s\"'\u201d\u2019)\]]*+"
)
_MOST_SENTENCES = 60
_WORD = re.compile(r"[^\W_]+")
_FIRST_WORD = re.compile(r"[\W_]{0,12}+([^\W_]+)")
_CONNECTING = frozenset(
    ("a", "an", "and", "for", "i", "in", "my", "of", "the", "to", "with", "your")
)


def _sections() -> dict[str, list[str]]:
    """The patterns of `phrases.txt` by section, with their parts put in."""
    copy = f"[{_OPENING_QUOTES}<]?{COPY}"
    parts = {"SAID": copy, "COPY": f"(?:{copy}|[{_OPENING_QUOTES}])"}
    sections: dict[str, list[str]] = {}
    patterns: list[str] = []
    for line in (files(__package__) / "phrases.txt").read_text("utf-8").splitlines():
        if heading := _SECTION.fullmatch(line):
            patterns = sections.setdefault(heading[1], [])
        elif line and not line.startswith("#"):
            pattern = _PART.sub(lambda part: parts[part[1]], line)
            name, equals, part = pattern.partition(" = ")
            if patterns is sections["parts"] and equals:
                parts[name] = part
            patterns.append(pattern)
    return sections


_SECTIONS = _sections()
_BEGINNINGS, _ARTICLES, _SUBJECTS = (frozenset(line.split("|")) for line in _SECTIONS["first"])


def kind_of(text: str, share: float = 0.5, first: int = 3) -> Kind | None:
    """Which kind of note a text is; `None` where it says something.

    It is one if one of its `first` sentences begins with a phrase, and at least this share of its
    words stands in such sentences, or in the advice that follows them.

    Example:
        >>> kind_of("No results found. Try other words.")
        'empty'
        >>> kind_of("The committee found no results that could be repeated.")
    """
    if len(text) > LONGEST:
        return None
    kinds = (_phrase(sentence) for sentence in islice(_split(text), first))
    kind = next((kind for kind in kinds if kind is not None), None)
    if kind is None:
        return None
    words = words_of_notes = 0
    sentences = list(islice(_split(text), _MOST_SENTENCES + 1))
    if len(sentences) > _MOST_SENTENCES:
        return None
    for sentence in sentences:
        length = len(_WORD.findall(sentence))
        words += length
        if _phrase(sentence) or _begins("advice").match(sentence):
            words_of_notes += length
    return kind if words_of_notes >= share * words else None


def is_a_word_for_nothing(text: str) -> bool:
    """Whether a text is "None", "null" or "Nothing" and no more: of a tool a note, but in a field
    or on a page with a name it may be one itself, a song's for example.
    """
    return _BARE.fullmatch(text) is not None


def may_begin_a_note(text: str) -> bool:
    """Whether one of the phrases may stand at the beginning; a quick look at the first words."""
    match = _FIRST_WORD.match(text)
    if match is None:
        return False
    word = match[1].lower()
    if word not in _ARTICLES:
        return word in _BEGINNINGS or not word[0].isascii()
    match = _FIRST_WORD.match(text, match.end())
    return match is not None and match[1].lower() in _SUBJECTS


def says_what_was_asked(words: str) -> bool:
    """Whether one of these words is used by tools to say what they were asked."""
    return _words("asked").search(words) is not None


def speaks_of_a_call(words: str) -> bool:
    """Whether one of these words is used by tools to say what they were asked, or how much they
    found.
    """
    return _words("asked", "found").search(words) is not None


def only_confirms(text: str) -> bool:
    """Whether a text has no words but those with which a tool says that it was called."""
    without = _words("receipt", "asked", "found").sub(" ", text)
    return all(word.lower() in _CONNECTING for word in _WORD.findall(without))


def _phrase(sentence: str) -> Kind | None:
    return next((kind for kind in _KINDS if _begins(kind).match(sentence)), None)


def _split(text: str) -> Iterator[str]:
    """The sentences of a text."""
    start = 0
    for end in _SENTENCE_END.finditer(text):
        if sentence := text[start : end.end()].strip():
            yield sentence
        start = end.end()
    if sentence := text[start:].strip():
        yield sentence


@cache
def _begins(section: str) -> re.Pattern[str]:
    """The pattern of how sentences of a section begin. It is made when it is first needed: that
    takes a while.
    """
    return re.compile(rf"{_BEFORE}(?:{'|'.join(_SECTIONS[section])})", re.IGNORECASE)


@cache
def _words(*sections: str) -> re.Pattern[str]:
    """A pattern of any of these words; of those in scripts without spaces also within others."""
    patterns = [pattern for section in sections for pattern in _SECTIONS[section]]
    spaced = [pattern for pattern in patterns if pattern.startswith("(?:")]
    unspaced = [pattern for pattern in patterns if pattern not in spaced]
    alternatives = [rf"\b{pattern}\b" for pattern in spaced] + unspaced
    return re.compile("|".join(alternatives), re.IGNORECASE)
