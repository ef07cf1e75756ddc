"""An observation shortened to a number of tokens, with its tags whole."""

from bisect import bisect_left
from collections.abc import Callable

import msgspec

from ..tools.base import Observation
from ..trajectory import Evidence

_CHARS_PER_TOKEN = 4
_LONGEST_WORD = 30


def fit(observation: Observation, size: Callable[[Observation], int], limit: int) -> Observation:
    """The observation, shortened until `size` of it is at most `limit` tokens; as it is where it fits.

    Leading passages stay whole, the last one that fits is shortened (at a word's end where one is near), those behind
    it are dropped; a title is never cut. A note is shortened likewise. Where not even the first passage's beginning
    fits, nothing is left of it: the caller sees to it that an empty observation fits. `size` is what the policy sees of
    an observation, in tokens; it is asked some 20 times at most, and of a long one only about its beginning.

    Example:
        >>> long = Observation((Evidence("one two three", "A"), Evidence("four five", "B")))
        >>> words = lambda seen: sum(len(f"{item.title} {item.text}".split()) for item in seen.evidence)
        >>> [item.text for item in fit(long, words, 6).evidence]
        ['one two three', 'four']
    """
    length = sum(1 + len(item.title) + len(item.text) for item in observation.evidence) or len(observation.note)

    def too_long(chars: int) -> bool:
        return size(_beginning(observation, chars)) > limit

    # Twice as much from a guess on, then halves between: of a long observation only the beginning is measured.
    low, high = 0, min(length, _CHARS_PER_TOKEN * limit)
    while not too_long(high):
        if high == length:
            return observation
        low, high = high, min(length, 2 * high)
    return _beginning(observation, low + bisect_left(range(low + 1, high), True, key=too_long))


def _beginning(observation: Observation, chars: int) -> Observation:
    """The observation's first `chars` characters, those of titles counted and one more for each passage."""
    if not observation.evidence:
        return msgspec.structs.replace(observation, note=_cut(observation.note, chars))
    kept: list[Evidence] = []
    for item in observation.evidence:
        room = chars - 1 - len(item.title)
        if room < len(item.text):
            if text := _cut(item.text, max(0, room)):
                kept.append(msgspec.structs.replace(item, text=text))
            break
        kept.append(item)
        chars = room - len(item.text)
    return msgspec.structs.replace(observation, evidence=tuple(kept), note=observation.note if kept else "")


def _cut(text: str, chars: int) -> str:
    if len(text) <= chars:
        return text
    cut = text[:chars]
    words = cut.rstrip() if text[chars].isspace() else cut[: max(cut.rfind(" "), cut.rfind("\n")) + 1].rstrip()
    return words if words and len(cut) - len(words) <= _LONGEST_WORD else cut.rstrip()
