"""Thoughts in the markup of a model whose server left them in the content of a message.

The dialects read `<think>`; everything else that opens a message as a thought is read here.
"""

import re
from typing import NamedTuple

_NAMES = "thinking|thoughts?|think|reasoning|seed:think"
_OPENS = re.compile(
    rf"\s*+(?:<(?P<tag>{_NAMES})>|(?P<mistral>\[THINK\])|(?P<kimi>\u25c1think\u25b7)"
    r"|(?P<command><\|START_THINKING\|>)|(?P<gemma><\|channel>thought\b))",
    re.IGNORECASE,
)
_CLOSES = {
    "mistral": re.compile(r"\[/THINK\]"),
    "kimi": re.compile("\u25c1/think\u25b7"),
    "command": re.compile(r"<\|END_THINKING\|>"),
    "gemma": re.compile(r"<channel\|>"),
}
# How a sentence goes on that only names the two tags
_GOES_ON = re.compile(r"[ \t]{1,9}[a-z]")
_MOST_NAMED = 4  # words between two tags that are named
_CLOSES_TAG = re.compile(rf"</(?:{_NAMES})>", re.IGNORECASE)
# What some templates put around the words behind a thought
_REPLY = re.compile(r"\s*+(?:<response>|<\|START_RESPONSE\|>|<\|START_TEXT\|>)")
_REPLY_ENDS = ("</response>", "<|END_RESPONSE|>", "<|END_TEXT|>")


class Divided(NamedTuple):
    """A message's words, divided."""

    thought: str
    reply: str


def divided(content: str) -> Divided | None:
    """The thought with which a content begins, and what is said behind it; `None` where it begins
    with none, with one that the dialects read, or with a sentence about the tags.

    A thought that is not closed takes up the whole content.

    Example:
        >>> divided("<thinking>It is Lima.</thinking>Lima")
        Divided(thought='It is Lima.', reply='Lima')
    """
    opening = _OPENS.match(content)
    if opening is None or opening["tag"] == "think":
        return None
    closing = _CLOSES.get(opening.lastgroup or "", _CLOSES_TAG).search(content, opening.end())
    if closing is None:
        thought = content[opening.end() :].strip()
        return Divided(thought, "") if thought else None
    thought = content[opening.end() : closing.start()].strip()
    reply = content[closing.end() :]
    if len(thought.split()) <= _MOST_NAMED and _GOES_ON.match(reply):
        return None
    starts = _REPLY.match(reply)
    if starts is not None:
        reply = reply[starts.end() :].rstrip()
        for ending in _REPLY_ENDS:
            reply = reply.removesuffix(ending)
    return Divided(thought, reply.strip())
