"""Tells in which dialect a text is written, from the marks and signs that each dialect declares.

A mark is a tag; a sign is a pattern. Each has a weight, which is below 0 where it speaks against
the dialect.
"""

import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

from .. import formats, registry
from ..formats.chat import TAGLIKE, Message
from ..formats.messages import read
from ..formats.quotes import without_code
from .base import Dialect

LOOK_AT = 200_000
"""The characters of a text that are looked at: a dialect shows itself long before."""
STRUCTURED_TAG = "structured_calls"
"""The tag that stands in for the calls of a chat in which they are structured."""
_STRUCTURED = f"<|{STRUCTURED_TAG}|>"
_AGAINST_TEXT = -6.0  # what that tag weighs for dialects whose calls and responses are text
_TAG = re.compile(r"<\|?/?([A-Za-z_0-9]{2,24})\|?>")
_BEGINNING = 80  # characters of a response: its beginning shows the dialect, its evidence does not
_TELLING = 1.0  # the least weight of a mark that not all dialects have
_HALF_WEIGHT = 2.0  # the score that gives a confidence of one half
_MOST_SHOWN = 60  # characters of a sign in a reason


@dataclass(frozen=True)
class Detection:
    """The dialect that a text is written in.

    Attributes:
        dialect: the dialect's name; `None` where none fits.
        confidence: how certain that is, in [0, 1].
        why: the marks that decided, or why no dialect fits.
        tags: names of the tags that occur outside of evidence.
    """

    dialect: str | None
    confidence: float
    why: str
    tags: tuple[str, ...] = ()


class DialectTable(NamedTuple):
    """All dialects, and what `detect` looks for.

    Attributes:
        dialects: by name.
        tags: the names of tags that are marks of any dialect.
        blocks: the names of tags in which agents write.
        closings: the closing tags of tool responses, by the opening ones.
        any_opening: finds the opening tag of a tool response.
        signs: the patterns of each dialect's signs, with their weights.
    """

    dialects: dict[str, Dialect]
    tags: frozenset[str]
    blocks: frozenset[str]
    closings: dict[str, str]
    any_opening: re.Pattern[str]
    signs: dict[str, dict[re.Pattern[str], float]]


@cache
def dialect_table() -> DialectTable:
    """The dialects in the files of this folder."""
    package = sys.modules[__package__]
    dialects: dict[str, Dialect] = {}
    for name in registry.names(package, Dialect):
        dialects[name] = registry.load(package, name, Dialect)()
    closings = {dialect.opening: dialect.closing for dialect in dialects.values()}
    return DialectTable(
        dialects=dialects,
        tags=frozenset().union(*(dialect.marks for dialect in dialects.values())),
        blocks=frozenset().union(*(dialect.grammar.blocks for dialect in dialects.values())),
        closings=closings,
        any_opening=re.compile("|".join(map(re.escape, closings))),
        signs={name: _signs_of(dialect) for name, dialect in dialects.items()},
    )


def _signs_of(dialect: Dialect) -> dict[re.Pattern[str], float]:
    signs = {re.compile(pattern): weight for pattern, weight in dialect.signs.items()}
    if dialect.observation_role is None:
        signs[re.compile(re.escape(_STRUCTURED))] = _AGAINST_TEXT
    return signs


def detect(text: str | Sequence[Mapping[str, Any]]) -> Detection:
    """Find out in which dialect a text is written, by the tags that occur in it.

    A dialect's score is the sum of the weights of its `marks` and `signs` that occur in the first
    200,000 characters; of a tool response only the beginning counts, so that evidence does not
    decide. confidence = (best - second best) / (best + 2). Where two dialects fit equally well none
    is named, and `why` says which they are.

    Args:
        text: what an agent and its environment wrote, or chat messages, or the JSON of these.

    Raises:
        DataError: for messages of which one is not a message.

    Example:
        >>> detect("<think>a</think><search>b</search><information>Doc 1(Title: c) d</information>").dialect
        'search_r1'
    """
    return by_marks(_excerpt(text))


def by_marks(text: str) -> Detection:
    """The dialect whose marks and signs have the greatest weight in a text."""
    skeleton = _skeleton(text)
    tags = tuple(dict.fromkeys(_TAG.findall(skeleton)))
    weights = {name: _weights(name, skeleton, tags) for name in dialect_table().dialects}
    scores = {name: sum(of_dialect.values()) for name, of_dialect in weights.items()}
    first, second, *_ = sorted(scores, key=lambda name: scores[name], reverse=True)
    best = scores[first]
    next_best = max(0.0, scores[second])
    if best <= 0 or max(weights[first].values()) < _TELLING:
        why = f"no dialect's marks among its tags: {', '.join(tags[:8]) or 'it has none'}"
        return Detection(None, 0.0, why, tags)
    if next_best == best:
        *tied, last = [name for name in scores if scores[name] == best]
        return Detection(None, 0.0, f"{', '.join(tied)} and {last} fit equally well", tags)
    marks = [mark for mark, weight in weights[first].items() if weight > 0]
    why = f"it has {', '.join(marks)}"
    if next_best > 0:
        why += f"; next would be {second}"
    return Detection(first, (best - next_best) / (best + _HALF_WEIGHT), why, tags)


def _weights(name: str, skeleton: str, tags: Sequence[str]) -> dict[str, float]:
    """What of a dialect's marks and signs occurs, as it is shown in a reason, with its weight."""
    table = dialect_table()
    weights: dict[str, float] = {}
    for tag, weight in table.dialects[name].marks.items():
        if tag in tags:
            weights[f"<{tag}>"] = weight
    for sign, weight in table.signs[name].items():
        match = sign.search(skeleton)
        if match:
            words = " ".join(match[0].split())
            weights[repr(words[:_MOST_SHOWN])] = weight
    return weights


def _excerpt(source: str | Sequence[Mapping[str, Any]]) -> str:
    """What `detect` looks at, of a text or of messages."""
    if isinstance(source, str):
        chat = formats.decode(source)
        return source[:LOOK_AT] if chat is None else chat_excerpt(read(chat.messages))
    chat = formats.read(source)
    return chat_excerpt(read(source if chat is None else chat.messages))


def chat_excerpt(chat: Sequence[Message]) -> str:
    """What `detect` looks at of a chat: of what follows the agent's first message, the agent's
    words, and only the beginning of a tool response.
    """
    roles = [message.role for message in chat]
    begin = roles.index("assistant") if "assistant" in roles else len(chat)
    excerpt = [_STRUCTURED if any(message.calls for message in chat) else ""]
    for number, message in enumerate(chat):
        if message.role == "assistant":
            excerpt.append(_agent_words(message.text))
        elif number > begin:
            excerpt.append(_response_beginning(message))
        else:
            excerpt.append(message.text)
    return "\n".join(excerpt)[:LOOK_AT]


def _agent_words(text: str) -> str:
    """An agent's words without code in them, unless responses stand among them."""
    table = dialect_table()
    if any(opening in text for opening in table.closings):
        return text
    return without_code(text, table.blocks)


def _response_beginning(message: Message) -> str:
    """The beginning of a message to the agent, behind the tag that opens it."""
    text = message.text.lstrip()
    opening = "<tool_response>" if message.role == "tool" else ""
    tag = _TAG.match(text)
    if tag:
        opening = tag[0]
    return opening + _beginning(text.removeprefix(opening))


def _skeleton(text: str) -> str:
    """The text with only the beginning of each closed tool response, in which no tag counts."""
    table = dialect_table()
    parts: list[str] = []
    done = 0
    unclosed: set[str] = set()  # closing tags that do not come: to look again takes quadratic time
    while match := table.any_opening.search(text, done):
        closing = table.closings[match[0]]
        end = -1 if closing in unclosed else text.find(closing, match.end())
        parts.append(text[done : match.end()])
        done = match.end()
        if end < 0:
            unclosed.add(closing)
        else:
            parts.append(_beginning(text[done:end]))
            done = end
    return "".join([*parts, text[done:]])


def _beginning(response: str) -> str:
    """The beginning of a tool response, with its tags spelled out, so that none counts."""
    return TAGLIKE.sub("&lt;", response[:_BEGINNING])
