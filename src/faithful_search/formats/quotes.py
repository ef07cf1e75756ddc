"""What an agent only shows: code, as Markdown writes it, and markup within a sentence."""

import re
from collections.abc import Collection

from .chat import TAGLIKE

# Where code begins, or a block in which backticks are no code.
_OPENS = re.compile(r"(?P<fence>`{3}|~{3})|(?P<ticks>``?)|<(?P<block>[a-z_]{1,24})>")
# The end of what stands before a call that is no part of a sentence.
_APART = re.compile(r"[\n>.!?\u2026\u3002\uff01\uff1f][ \t]*+\Z")
_BEFORE = 100  # characters before a call that tell whether it stands apart


def without_code(text: str, blocks: Collection[str]) -> str:
    """The text with the tags in its code as entities. In these blocks, by the names of their tags,
    backticks are no code.
    """
    parts: list[str] = []
    done = 0
    for start, end in zip(*code_of(text, blocks), strict=True):
        parts += (text[done:start], TAGLIKE.sub("&lt;", text[start:end]))
        done = end
    return "".join([*parts, text[done:]])


def code_of(text: str, blocks: Collection[str]) -> tuple[list[int], list[int]]:
    """Where code in the text begins and ends. In these blocks, by the names of their tags,
    backticks are no code.
    """
    starts: list[int] = []
    ends: list[int] = []
    unclosed: set[str] = set()  # looking for these again would take quadratic time
    at = line_end = 0
    while opens := _OPENS.search(text, at):
        at = opens.end()
        closing, until = opens[0], len(text)
        if opens["block"]:
            closing = f"</{opens['block']}>"
            if opens["block"] not in blocks:
                continue
        if opens["ticks"]:
            if line_end < at:
                line_end = text.find("\n", at)
                line_end = len(text) if line_end < 0 else line_end
            until = line_end
        end = -1 if closing in unclosed else text.find(closing, at, until)
        if end < 0 and not opens["ticks"]:
            unclosed.add(closing)
        if end < 0:
            continue
        if not opens["block"]:
            starts.append(opens.start())
            ends.append(end)
        at = end + len(closing)
    return starts, ends


def stands_apart(text: str, done: int, start: int) -> bool:
    """Whether a call that begins at `start`, behind what was read up to `done`, is no part of a
    sentence.
    """
    if not text[done:start].strip():
        return True
    return _APART.search(text, max(done, start - _BEFORE), start) is not None
