"""Which dialect a text or a chat is written in, from the marks and signs that each dialect's file declares."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .. import formats
from ..formats.messages import TAGLIKE, joined, read

_TAG = re.compile(r"<\|?/?([A-Za-z_0-9]{2,24})\|?>")
_LOOK_AT = 200_000  # characters; a dialect shows itself long before
_BEGINNING = 80  # characters of a response: how it begins tells a dialect, its evidence does not
_HALF_WEIGHT = 2.0  # marks of this weight give a confidence of one half
_STRUCTURED = "<|structured_calls|>"


@dataclass(frozen=True)
class Detection:
    """`dialect` is `None` when none fits; `confidence` in [0, 1]; `why` names the marks that decided.

    `tags` are the names of the tags that occur outside of evidence.
    """

    dialect: str | None
    confidence: float
    why: str
    tags: tuple[str, ...] = ()


def detect(text: str | Sequence[Mapping[str, Any]]) -> Detection:
    """The dialect whose marks the text bears, and none that speak against it. Looks at the first 200,000 characters.

    Args:
        text: what an agent and its environment wrote, or chat messages, or the JSON of these.

    Each dialect declares `marks` (names of tags) and `signs` (patterns) with a weight, negative where they speak
    against it. A dialect's score is the sum over those that occur; of a tool response only the beginning counts, so
    that evidence does not decide. confidence = (best - second best) / (best + 2), so that a single mark is not yet a
    certainty. Where two fit equally well none is named, and `why` says which.

    Raises:
        DataError: when something in a chat is not a message.

    Example:
        >>> detect("<think>a</think><search>b</search><information>Doc 1(Title: c) d</information>").dialect
        'search_r1'
    """
    package = sys.modules[__package__]  # loaded by now; importing it here would be a circle
    skeleton = _skeleton(_text(text))
    tags = tuple(dict.fromkeys(match[1] for match in _TAG.finditer(skeleton)))
    found: dict[str, dict[str, float]] = {}
    for name in package.names():
        dialect = package.load(name)
        found[name] = {f"<{tag}>": weight for tag, weight in dialect.marks.items() if tag in tags}
        for pattern, weight in dialect.signs.items():
            if match := re.search(pattern, skeleton):
                found[name][repr(" ".join(match[0].split())[:60])] = weight
    scores = {name: sum(marks.values()) for name, marks in found.items()}
    first, second, *_ = sorted(scores, key=lambda name: scores[name], reverse=True)
    best, next_best = scores[first], max(0.0, scores[second])
    # A mark must speak for it that is worth more than those that all dialects have.
    if best <= 0 or not any(weight >= 1.0 for weight in found[first].values()):
        return Detection(None, 0.0, f"no dialect's marks among its tags: {', '.join(tags[:8]) or 'it has none'}", tags)
    if next_best == best:
        *equal, last = [name for name in scores if scores[name] == best]
        return Detection(None, 0.0, f"{', '.join(equal)} and {last} fit equally well", tags)
    why = f"it has {', '.join(mark for mark, weight in found[first].items() if weight > 0)}"
    if next_best > 0:
        why += f"; next would be {second}"
    return Detection(first, (best - next_best) / (best + _HALF_WEIGHT), why, tags)


def _text(source: str | Sequence[Mapping[str, Any]]) -> str:
    """The text to look at; of a chat's tool responses, which roles tell, the beginning only."""
    found = formats.decode(source) if isinstance(source, str) else formats.read(source)
    if isinstance(source, str) and found is None:
        return source[:_LOOK_AT]
    messages: Any = source if found is None else found.messages
    chat = list(joined(read(messages)))
    begin = next((k for k, message in enumerate(chat) if message.role == "assistant"), len(chat))
    shown = []
    for number, message in enumerate(chat):
        text = message.text
        if number > begin and message.role != "assistant":
            text = text.lstrip()
            tag = _TAG.match(text)
            opening = tag[0] if tag else "<tool_response>" if message.role == "tool" else ""
            text = opening + _beginning(text.removeprefix(opening))
        shown.append(text)
    structured = _STRUCTURED if any(message.calls for message in chat) else ""
    return structured + "\n".join(shown)[:_LOOK_AT]


def _beginning(response: str) -> str:
    """The first of a tool response, in which no tag counts."""
    return TAGLIKE.sub("&lt;", response[:_BEGINNING])


def _skeleton(text: str) -> str:
    """The text with no more of each closed tool response than its beginning, and no tag in that."""
    package = sys.modules[__package__]
    closings = {dialect.opening: dialect.closing for dialect in map(package.load, package.names())}
    opens = re.compile("|".join(map(re.escape, closings)))
    parts: list[str] = []
    done = 0
    unclosed: set[str] = set()  # looking for these tags again would take quadratic time
    while match := opens.search(text, done):
        closing = closings[match[0]]
        end = -1 if closing in unclosed else text.find(closing, match.end())
        parts.append(text[done : match.end()])
        done = match.end()
        if end < 0:
            unclosed.add(closing)
        else:
            parts.append(_beginning(text[done:end]))
            done = end
    return "".join([*parts, text[done:]])
