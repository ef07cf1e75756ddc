"""What is read: segments of a text, each of somebody.

A dialect cuts a text into segments by its own rules (`Dialect.split`). A chat's messages (`formats.messages`) are
segments as they stand: their borders are trusted, so nothing in a message can end it or begin another, and what a tool
returned stays what a tool returned, whatever it says.
"""

from __future__ import annotations

import re
from typing import Literal

import msgspec

from ..trajectory import Span


class Segment(msgspec.Struct, frozen=True, gc=False):
    """A stretch of a trajectory's text that one party wrote.

    Attributes:
        who: "agent"; "tool", whose inner text (without the response's tags) this is; "forged", the same written by the
            agent itself; "controller", who steers the agent; or "prompt", which begins another episode.
        text: the whole text in which the segment stands.
        span: its place there.
        fenced: whether our own `render_observation` wrote it. Only then is escaping undone.
        closed: whether a tool response has its end.
    """

    who: Literal["agent", "tool", "forged", "controller", "prompt"]
    text: str
    span: Span
    fenced: bool = False
    closed: bool = True


def responses(text: str, opening: str, closing: str, most: int) -> list[Span]:
    """Where the inner texts of responses are, `most` at most; the whole message where it does not begin with one."""
    start = len(text) - len(text.lstrip())
    if not text.startswith(opening, start):
        return [(0, len(text))]
    start += len(opening)
    end = max(start, len(text.rstrip()))
    if text.endswith(closing, start, end):
        end -= len(closing)
    between = re.compile(rf"{re.escape(closing)}\s*+{re.escape(opening)}")
    found: list[Span] = []
    while len(found) < most - 1 and (border := between.search(text, start, end)):
        found.append((start, border.start()))
        start = border.end()
    return [*found, (start, end)]
