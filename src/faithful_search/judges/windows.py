"""Long texts cut into overlapping windows of a limited number of tokens, between sentences where possible."""

from collections.abc import Callable, Sequence
from itertools import pairwise

from ..text import sentences

Count = Callable[[Sequence[str]], list[int]]  # how many tokens each text has


def windows(text: str, size: int, stride: int, count: Count) -> list[str]:
    """Slices of `text` of at most `size` tokens each that cover it; neighbours share up to `stride` tokens.

    Cuts lie between sentences or paragraphs; a sentence longer than a window is halved at blanks until it fits. A
    window's tokens are reckoned as the sum of its sentences'.
    """
    if count([text])[0] <= size:
        return [text]
    starts, at = [], 0
    for sentence in sentences(text):
        starts.append(text.index(sentence, at))
        at = starts[-1] + len(sentence)
    # the sentences with the blanks behind them: joined they are `text`
    pieces = [text[start:end] for start, end in pairwise([0, *starts[1:], len(text)])]
    # `count` runs a tokenizer: it is called once for all units, not for each window that is tried
    units = [unit for piece in pieces for unit in _fitting(piece, size, count)]
    found = ["".join(units[start:end]).strip() for start, end in _spans(count(units), size, stride)]
    return [window for window in found if window]


def _fitting(piece: str, size: int, count: Count) -> list[str]:
    """A sentence, halved at the blank nearest to its middle until each part fits."""
    if len(piece) < 2 or count([piece])[0] <= size:
        return [piece]
    middle = len(piece) // 2
    blank = piece.rfind(" ", middle // 2, middle + 1)
    if blank < 0:
        blank = piece.find(" ", middle, middle + middle // 2)
    cut = middle if blank < 0 else blank + 1  # a text without blanks is cut in the middle of a word
    return _fitting(piece[:cut], size, count) + _fitting(piece[cut:], size, count)


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
            # the next window shares the last units, as far as the stride goes and the next unit still fits
            room, last, start = min(stride, size - tokens[end]), start, end
            while start - 1 > last and tokens[start - 1] <= room:
                start -= 1
                room -= tokens[start]
    return spans
