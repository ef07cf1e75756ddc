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
    units: list[str] = []  # sentences, or parts of long ones: a cut may lie between two of them
    for sentence in _with_blanks(text):
        units += _fitting(sentence, size, count)
    # `count` runs a tokenizer: it is called once for all units, not for each window that is tried.
    tokens = count(units)
    slices = []
    for start, end in _spans(tokens, size, stride):
        window = "".join(units[start:end]).strip()
        if window:
            slices.append(window)
    return slices


def _with_blanks(text: str) -> list[str]:
    """The sentences with the blanks after them: joined they are the text."""
    starts = []
    end = 0
    for sentence in sentences(text):
        start = text.index(sentence, end)
        starts.append(start)
        end = start + len(sentence)
    # Blanks before the first sentence belong to it.
    bounds = [0, *starts[1:], len(text)]
    return [text[start:end] for start, end in pairwise(bounds)]


def _fitting(sentence: str, size: int, count: Count) -> list[str]:
    """A sentence, halved at a blank near its middle until each part fits."""
    if len(sentence) < 2 or count([sentence])[0] <= size:
        return [sentence]
    middle = len(sentence) // 2
    blank = sentence.rfind(" ", middle // 2, middle + 1)
    if blank < 0:
        blank = sentence.find(" ", middle, middle + middle // 2)
    # Without a blank near the middle it is cut inside a word.
    cut = blank + 1 if blank >= 0 else middle
    first_half = _fitting(sentence[:cut], size, count)
    second_half = _fitting(sentence[cut:], size, count)
    return first_half + second_half


def _spans(tokens: Sequence[int], size: int, stride: int) -> list[tuple[int, int]]:
    """For each window its first unit and the one behind its last. `tokens` has the number of
    tokens of each unit.
    """
    spans: list[tuple[int, int]] = []
    start = end = 0
    while end < len(tokens):
        # Take one unit at least, and further ones as long as they fit.
        total = sum(tokens[start:end])
        while end < len(tokens) and (end == start or total + tokens[end] <= size):
            total += tokens[end]
            end += 1
        spans.append((start, end))
        if end == len(tokens):
            break
        # The next window begins with the last units of this one, as far as the stride allows and
        # leaves room for the next unit. It never begins where this one did.
        room = min(stride, size - tokens[end])
        previous_start = start
        start = end
        while start - 1 > previous_start and tokens[start - 1] <= room:
            start -= 1
            room -= tokens[start]
    return spans
