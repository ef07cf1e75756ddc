"""Long texts cut into overlapping windows of a limited number of tokens, between sentences where
possible.
"""

from collections.abc import Callable, Sequence
from itertools import pairwise

from ..text import sentences

Count = Callable[[Sequence[str]], list[int]]  # how many tokens each text has


def windows(text: str, size: int, stride: int, count: Count) -> list[str]:
    """Slices of `text` of at most `size` tokens each that cover it; neighbours share up to `stride`
    tokens.

    Cuts lie between sentences or paragraphs; a sentence longer than a window is halved at blanks
    until it fits. A window's tokens are reckoned as the sum of its sentences'.
    """
    if count([text])[0] <= size:
        return [text]
    units: list[str] = []
    for sentence in _with_blanks(text):
        units += _fitting(sentence, size, count)
    # `count` runs a tokenizer: it is called once for all units, not for each window that is tried
    spans = _spans(count(units), size, stride)
    texts = ["".join(units[start:end]).strip() for start, end in spans]
    return [window for window in texts if window]


def _with_blanks(text: str) -> list[str]:
    """The sentences with the blanks after them: joined they are the text."""
    starts = []
    end = 0
    for sentence in sentences(text):
        start = text.index(sentence, end)
        starts.append(start)
        end = start + len(sentence)
    return [text[start:end] for start, end in pairwise([0, *starts[1:], len(text)])]


def _fitting(sentence: str, size: int, count: Count) -> list[str]:
    """A sentence, halved at a blank near its middle until each part fits."""
    if len(sentence) < 2 or count([sentence])[0] <= size:
        return [sentence]
    middle = len(sentence) // 2
    blank = sentence.rfind(" ", middle // 2, middle + 1)
    if blank < 0:
        blank = sentence.find(" ", middle, middle + middle // 2)
    cut = middle if blank < 0 else blank + 1  # a text without blanks is cut in the middle of a word
    return _fitting(sentence[:cut], size, count) + _fitting(sentence[cut:], size, count)


def _spans(tokens: Sequence[int], size: int, stride: int) -> list[tuple[int, int]]:
    """The first unit of each window and the one after its last; `tokens` are those of each unit."""
    spans: list[tuple[int, int]] = []
    start = end = 0
    while end < len(tokens):
        total = sum(tokens[start:end])
        while end < len(tokens) and (end == start or total + tokens[end] <= size):
            total += tokens[end]
            end += 1
        spans.append((start, end))
        if end < len(tokens):
            # the next window shares the last units, as far as the stride goes and the next unit
            # still fits
            room = min(stride, size - tokens[end])
            previous, start = start, end
            while start - 1 > previous and tokens[start - 1] <= room:
                start -= 1
                room -= tokens[start]
    return spans
