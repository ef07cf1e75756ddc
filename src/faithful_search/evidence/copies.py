"""Copies of what the agent wrote in a call, in what the call returned.

A tool often says what it was asked: "Search results for '…':". Such a copy is the agent's own word.
It is told from the same words in a source by the frame around it: it stands alone on its line,
between quotes or behind a label, in a line that speaks of the call.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any
from urllib.parse import unquote_plus, urlsplit

from ..trajectory import ToolCall
from .phrases import COPY, says_what_was_asked, speaks_of_a_call

_MOST_TEXTS, _MOST_PLACES, _SHORTEST, _DEEPEST = 50, 100, 2, 6
_LINE = 300  # characters on either side of a copy that are looked at
_FRAME = 12  # words of a line around a copy
_CODE = frozenset(("code", "command", "script", "source", "program"))
_LITERAL = re.compile(r"\"([^\"\n]{2,2000})\"|'([^'\n]{2,2000})'")
_CLOSES = "\"'`\u2019\u201d\u201c\u00bb\u300d\u300f<>)]}.:,; "
_DIVIDES = "-|\u2013\u2014\u00b7"
# The name of a field of JSON, or of a tag, right before its text.
_KEY = re.compile(r"[\"'](\w{1,60})[\"']\s?:\s?[\"']\Z|<(\w{1,60})>\Z")
_QUOTES = frozenset("\"'`\u2018\u2019\u201c\u201d\u201e\u00ab\u00bb\u300c\u300d\u300e\u300f")
_LINE_END = re.compile(r"[\n\u2028]|[.!?\u3002\uff01\uff1f](?=\s|\Z)")


def texts_of(call: ToolCall | None) -> tuple[str, ...]:
    """The texts that the agent wrote in a call, longest first: those among its arguments, the parts
    of addresses, and what its code has between quotes; of a call that could not be read all of it.

    Example:
        >>> texts_of(ToolCall("browse", {"url": "https://tarn.example/The_answer?q=Oslo+it+is"}))
        ('https://tarn.example/The_answer?q=Oslo+it+is', 'The_answer', 'Oslo it is', 'The answer')
    """
    if call is None:
        return ()
    texts: dict[str, None] = {}  # in order, each once
    for name, argument in _strings(call.arguments or call.raw, "", 0):
        for text in (argument, *_within(name, argument)):
            if len(text.strip()) >= _SHORTEST:
                texts[text.strip()] = None
        if len(texts) >= _MOST_TEXTS:
            break
    return tuple(sorted(texts, key=len, reverse=True))


def _strings(value: Any, name: str, depth: int) -> Iterator[tuple[str, str]]:
    """The texts in an argument, each with the argument's name."""
    if isinstance(value, str):
        yield name, value
    elif depth > _DEEPEST:
        return
    elif isinstance(value, dict):
        for key, entry in value.items():
            yield from _strings(entry, str(key), depth + 1)
    elif isinstance(value, list | tuple):
        for entry in value:
            yield from _strings(entry, name, depth + 1)


def _within(name: str, text: str) -> Iterable[str]:
    """The texts within an argument: the words of an address, and what code may print."""
    if name in _CODE:
        return [first or second for first, second in _LITERAL.findall(text)]
    if not text.startswith(("http://", "https://")):
        return ()
    try:
        parts = urlsplit(text)
    except ValueError:
        return ()
    values = [pair.partition("=")[2] for pair in parts.query.split("&")]
    texts = [unquote_plus(part) for part in (*parts.path.split("/"), *values, parts.fragment)]
    return [*texts, *(re.sub("[_-]", " ", text) for text in texts)]


def any_copy(text: str, texts: Iterable[str]) -> bool:
    """Whether one of the texts may stand in this one. A quick look: most passages hold none."""
    lowered = text.lower()
    return any(each.lower() in lowered or each in text for each in texts)


def marked(text: str, texts: Iterable[str]) -> str:
    """The text with `COPY` in the place of each copy, wherever it stands, whatever its case."""
    for copied in texts:
        text = _with_marks(text, copied, _places(text, copied))
    return text


def _with_marks(text: str, copied: str, places: Sequence[int]) -> str:
    """The text with `COPY` in the place of the copies that begin at these places."""
    pieces = []
    end = 0
    for place in places:
        pieces.append(text[end:place])
        end = place + len(copied)
    return COPY.join([*pieces, text[end:]])


def unframed(text: str, texts: Iterable[str], *, alone: bool = True) -> str:
    """The text with `COPY` for each copy that its line shows to be one; `alone`: also where several
    words are all that the line holds. A title may be what was asked for.

    Example:
        >>> said = ["Oslo"]
        >>> unframed("Results for 'Oslo'. It is a city.", said).replace(COPY, "...")
        "Results for '...'. It is a city."
        >>> unframed("Oslo is a city.", said)
        'Oslo is a city.'
    """
    for copied in texts:
        places = [
            place
            for place in _places(text, copied)
            if _is_framed(text, place, place + len(copied), alone)
        ]
        text = _with_marks(text, copied, places)
    return text


def _places(text: str, copied: str) -> list[int]:
    """Where copies begin, as whole words, whatever their case; the first `_MOST_PLACES`."""
    lowered, target = text.lower(), copied.lower()
    if len(lowered) != len(text) or len(target) != len(copied):  # of a few letters it is longer
        lowered, target = text, copied
    places: list[int] = []
    start = lowered.find(target)
    for _ in range(_MOST_PLACES):
        if start < 0:
            break
        end = start + len(target)
        begins_word = not _joins(lowered[start - 1 : start], target[0])
        is_whole = begins_word and not _joins(target[-1], lowered[end : end + 1])
        if is_whole:
            places.append(start)
        start = lowered.find(target, end if is_whole else start + 1)
    return places


def _joins(left: str, right: str) -> bool:
    """Whether two characters are of one word. Scripts without spaces have no such borders."""
    return left.isalnum() and right.isalnum() and left.isascii() and right.isascii()


def _is_framed(text: str, start: int, end: int, alone: bool) -> bool:
    """Whether the line around a copy shows that it is one."""
    before = _LINE_END.split(text[max(0, start - _LINE) : start])[-1].strip()
    after = _LINE_END.split(text[end : end + _LINE], maxsplit=1)[0].strip()
    words_copied = len(text[start:end].split())
    if key := _KEY.search(before):
        is_closed = after[:1] in _QUOTES or after.startswith("</")
        return is_closed and says_what_was_asked(key[1] or key[2])
    frame = f"{before} {after}"
    if not any(map(str.isalnum, frame)):
        return alone and words_copied > 1
    if before.endswith((":", "\uff1a", "=")) and not after.strip(_CLOSES):
        return says_what_was_asked(before)
    if len(frame.split()) > _FRAME or not speaks_of_a_call(frame):
        return False
    if before[-1:] in _QUOTES and after[:1] in _QUOTES:
        return True
    if after in (":", "\uff1a") or before.startswith("#"):
        return True  # the copy is a heading
    return words_copied > 2 and (not after or after[0] in _DIVIDES)
