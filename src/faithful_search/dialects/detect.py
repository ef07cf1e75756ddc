"""Which dialect a text is written in, from the marks that each dialect's file declares."""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass

from .base import Dialect

_TAG = re.compile(r"<\|?/?([A-Za-z_]{2,24})\|?>")
_LOOK_AT = 200_000
_HALF_WEIGHT = 2.0


@dataclass(frozen=True)
class Detection:
    """`dialect` is `None` when none fits; `confidence` in [0, 1]; `why` names the marks that decided."""

    dialect: str | None
    confidence: float
    why: str


def detect(text: str) -> Detection:
    """The dialect whose marks the text bears, and none that speak against it. Looks at the first 200,000 characters.

    Each dialect declares `marks`: tag names (as they stand in `<name>`) with a weight, negative where they speak
    against it. A dialect's score is the sum over the marks that occur.
    confidence = (best - second best) / (best + 2), so that a single mark is not yet a certainty.

    Example:
        >>> detect("<think>a</think><search>b</search><information>Doc 1(Title: c) d</information>").dialect
        'search_r1'
    """
    package = sys.modules[__package__]
    counts: dict[str, int] = {}
    for match in _TAG.finditer(text, 0, _LOOK_AT):
        counts[match[1]] = counts.get(match[1], 0) + 1
    scores = {name: _score(package.load(name), counts) for name in package.names()}
    ranked = sorted(scores, key=lambda name: scores[name], reverse=True)
    best = scores[ranked[0]]
    if best <= 0:
        return Detection(
            None, 0.0, f"no dialect's marks among its tags: {', '.join(list(counts)[:8]) or 'it has none'}"
        )
    second = max(0.0, scores[ranked[1]]) if len(ranked) > 1 else 0.0
    if second == best:
        return Detection(None, 0.0, f"{ranked[0]} and {ranked[1]} fit equally well")
    marks = [mark for mark, weight in package.load(ranked[0]).marks.items() if weight > 0 and mark in counts]
    return Detection(
        ranked[0], (best - second) / (best + _HALF_WEIGHT), f"it has {', '.join(f'<{mark}>' for mark in marks)}"
    )


def _score(dialect: Dialect, counts: dict[str, int]) -> float:
    return sum(weight for mark, weight in dialect.marks.items() if mark in counts)
