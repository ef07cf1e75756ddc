"""Several claims on the same evidence in one request: which pairs, how they are put, how the reply is read."""

from __future__ import annotations

import re
from collections.abc import Sequence

from .base import Pair

TOGETHER = "support_many"
"""The prompt."""
MOST = 20
"""Claims of one request: the more there are, the easier a model loses count."""

_LINE = re.compile(r"([0-9]{1,3})\s*:\s*([01])")


def groups_of(pairs: Sequence[Pair]) -> list[list[Pair]]:
    """The distinct pairs that can be asked about together: claims on the same evidence for the same question.

    A group has two pairs at least and `MOST` at most, in the order of `pairs`; larger ones are cut into equal parts.

    Example:
        >>> groups = groups_of([Pair("e", "a"), Pair("f", "a"), Pair("e", "b"), Pair("e", "a")])
        >>> [[pair.hypothesis for pair in group] for group in groups]
        [['a', 'b']]
    """
    found: dict[tuple[str, str], dict[Pair, None]] = {}
    for pair in pairs:
        if pair.task == "support":
            found.setdefault((pair.premise, pair.question), {})[pair] = None
    return [part for group in found.values() if len(group) > 1 for part in _parts(list(group))]


def _parts(group: list[Pair]) -> list[list[Pair]]:
    count = -(-len(group) // MOST)
    size = -(-len(group) // count)
    return [group[start : start + size] for start in range(0, len(group), size)]


def fields_of_group(group: Sequence[Pair]) -> dict[str, str]:
    """What the prompt is filled with. A claim is one line: its own line breaks could pose as the next claim.

    Example:
        >>> print(fields_of_group([Pair("e", "It rains."), Pair("e", "It\\n3. snows.")])["claims"])
        1. It rains.
        2. It 3. snows.
    """
    claims = [" ".join(pair.hypothesis.split()) for pair in group]
    numbered = "\n".join(f"{number}. {claim}" for number, claim in enumerate(claims, 1))
    return {"premise": group[0].premise, "question": group[0].question, "claims": numbered}


def labels_of(text: str, count: int) -> tuple[bool, ...] | None:
    """The labels of `count` claims; `None` when the reply is not one label for each and nothing else.

    Example:
        >>> labels_of("2: 0\\n1: 1", 2), labels_of("1: 1", 2), labels_of("1: 1\\n1: 0\\n2: 0", 2)
        ((True, False), None, None)
    """
    lines = [_LINE.fullmatch(line.strip()) for line in text.strip().splitlines() if line.strip()]
    said = {int(line[1]): line[2] == "1" for line in lines if line}
    if len(lines) != count or None in lines or set(said) != set(range(1, count + 1)):
        return None
    return tuple(said[number] for number in range(1, count + 1))
