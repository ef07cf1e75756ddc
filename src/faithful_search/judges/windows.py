"""Long texts cut into overlapping windows of at most so many tokens, between sentences where possible."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

from ..text import sentences

Count = Callable[[Sequence[str]], list[int]]
"""How many tokens each text has."""


def windows(text: str, size: int, stride: int, count: Count) -> list[str]:
    """Slices of `text` of at most `size` tokens each that cover it; neighbours share up to `stride` tokens.

    Cuts lie between sentences or paragraphs; a sentence longer than a window is halved at blanks until it fits. A
    window's tokens are reckoned as the sum of its sentences'.

    Example:
        >>> words = lambda texts: [len(text.split()) for text in texts]
        >>> windows("One two. Three four. Five six.", 4, 2, words)
        ['One two. Three four.', 'Three four. Five six.']
    """
    if count([text])[0] <= size:
        return [text]
    units = [unit for piece in _pieces(text) for unit in _fitting(piece, size, count)]
    found = ["".join(units[start:end]).strip() for start, end in _spans(count(units), size, stride)]
    return [window for window in found if window]


def _pieces(text: str) -> list[str]:
    """The sentences with the blanks behind them: joined they are `text`."""
    starts, at = [], 0
    for sentence in sentences(text):
        starts.append(text.index(sentence, at))
        at = starts[-1] + len(sentence)
    return [text[start:end] for start, end in pairwise([0, *starts[1:], len(text)])]


def _fitting(piece: str, size: int, count: Count) -> list[str]:
    if len(piece) < 2 or count([piece])[0] <= size:
        return [piece]
    middle = _blank_near(piece, len(piece) // 2)
    return _fitting(piece[:middle], size, count) + _fitting(piece[middle:], size, count)


def _blank_near(text: str, middle: int) -> int:
    """A place to cut: behind the blank nearest to the middle on its left, else its right, else the middle itself."""
    blank = text.rfind(" ", middle // 2, middle + 1)
    if blank < 0:
        blank = text.find(" ", middle, middle + middle // 2)
    return middle if blank < 0 else blank + 1


def _spans(tokens: Sequence[int], size: int, stride: int) -> list[tuple[int, int]]:
    spans: list[tuple[int, int]] = []
    start = end = 0
    while end < len(tokens):
        held = sum(tokens[start:end])
        while end < len(tokens) and (end == start or held + tokens[end] <= size):
            held += tokens[end]
            end += 1
        spans.append((start, end))
        if end < len(tokens):
            start = _step_back(tokens, start, end, min(stride, size - tokens[end]))
    return spans


def _step_back(tokens: Sequence[int], start: int, end: int, room: int) -> int:
    """Where the next window begins so that it shares at most `room` tokens with the one before."""
    back = end
    while back - 1 > start and tokens[back - 1] <= room:
        back -= 1
        room -= tokens[back]
    return back
