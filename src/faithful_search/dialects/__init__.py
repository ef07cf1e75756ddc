"""Text to `Trajectory` and back, one file per dialect; `load("pou")` finds `pou.py`.

`detect` tells in which dialect a text is written, from the marks and signs that each dialect's file declares.
"""

import difflib
import json
import re
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from typing import Any

import msgspec

from .. import formats, registry
from ..errors import DataError, DialectError
from ..formats import Chat
from ..formats.messages import TAGLIKE, read
from ..trajectory import Issue, Trajectory
from .base import Dialect

# How confident `detect` must be before a dialect other than the one asked for becomes an issue, and before a text is
# read in another than the rows beside it.
_CLEARLY, _FAINTLY = 0.5, 0.2
USUAL_OF = 64  # rows that `usual` looks at
_ANY = "r1_searcher"  # reads a text of thought and answer alone, also one whose opening think tag was in the prompt
_PLAIN = "openai"  # reads messages without any tags
_TAG = re.compile(r"<\|?/?([A-Za-z_0-9]{2,24})\|?>")
_LOOK_AT = 200_000  # characters; a dialect shows itself long before
_BEGINNING = 80  # characters of a response: how it begins tells a dialect, its evidence does not
_HALF_WEIGHT = 2.0  # marks of this weight give a confidence of one half

__all__ = ["Detection", "Dialect", "detect", "load", "names", "parse", "usual"]


@dataclass(frozen=True)
class Detection:
    """What `detect` found."""

    dialect: str | None  # `None` when none fits
    confidence: float  # in [0, 1]
    why: str  # the marks that decided
    tags: tuple[str, ...] = ()  # names of the tags that occur outside of evidence


def names() -> list[str]:
    """The names of all dialects, sorted."""
    return list(_dialects())


@lru_cache(maxsize=1)
def _dialects() -> dict[str, Dialect]:
    package = sys.modules[__name__]
    return {
        name: registry.load(package, name, Dialect)() for name in registry.names(package, Dialect)
    }


def load(name: str) -> Dialect:
    """The dialect of that name. Raises `DialectError` for an unknown one, naming those there are and the nearest.

    Example:
        >>> load("pou").stop
        ('</tool_call>', '</answer>')
    """
    if name not in _dialects():
        near = difflib.get_close_matches(name, _dialects(), n=1, cutoff=0.5)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise DialectError(f"unknown dialect {name!r}; there are: {', '.join(_dialects())}{hint}")
    return _dialects()[name]


def parse(
    source: str | Sequence[Mapping[str, Any]] | Mapping[str, Any] | Chat,
    dialect: str | None = None,
    question: str | None = None,
    *,
    fenced: bool = False,
    usual: str | None = None,
) -> Trajectory:
    """Read a trajectory.

    Args:
        source: a model's text, prompt included or not; chat messages or a log in any of the `formats`, or the JSON of
            one; or the JSON that `Trajectory.to_json` wrote (which names its own dialect).
        dialect: its name; `None` detects it.
        question: overrides the question found in the prompt.
        fenced: whether our own engine rendered it, so that escaping in its tool responses is undone.
        usual: the dialect of the rows beside it, for a text that shows none of its own.

    A text that shows no dialect of its own gets an `Issue` of kind `dialect_assumed`; one that the given dialect cannot
    read and that is clearly another's one of kind `dialect_mismatch`.

    Raises:
        DialectError: for an unknown `dialect`, or with `None` when no dialect fits.
        DataError: when `source` is neither text nor a conversation in a known format.

    Example:
        >>> parse("<think>I know that.</think><answer>Ada</answer>").answer
        'Ada'
    """
    text = source if isinstance(source, str) else ""
    if text.startswith("{"):
        with suppress(DataError):
            stored = Trajectory.from_json(text)
            if stored.steps or stored.text or stored.dialect:
                return (
                    stored
                    if question is None
                    else msgspec.structs.replace(stored, question=question)
                )
    chat = (
        source
        if isinstance(source, Chat)
        else formats.decode(text)
        if text
        else formats.read(source)
    )
    if chat is None and not isinstance(source, str):
        raise DataError(formats.refusal(source))
    issues: list[Issue] = []
    if (name := dialect) is None:
        shown = detect(chat.messages if chat else text)
        if chat is None and shown.dialect is None and (chat := formats.read(text)) is not None:
            shown = detect(chat.messages)
        faint = usual is not None and shown.confidence < _FAINTLY
        name = (
            (None if faint else shown.dialect)
            or _assumed(shown, usual, chat is not None)
            or shown.dialect
        )
        if name is None:
            raise DialectError(_refusal(text, shown))
        if name != shown.dialect:
            beside = ", like the rows beside it" if name == usual else ""
            issues.append(
                Issue(
                    "dialect_assumed",
                    f"the text shows no dialect of its own; read as {name}{beside}",
                )
            )
    read_as = load(name)
    if chat is None:
        found = read_as.parse(text, question=question, fenced=fenced)
    else:
        found = read_as.parse_messages(
            chat.messages, question=question or chat.question, fenced=fenced
        )
        issues += [
            Issue("content_unread", f"left out: {n} {what}")
            for what, n in chat.left_out.items()
            if n
        ]
    # Looking for another dialect takes longer than reading: only where the named one read nothing of its own.
    if dialect is not None and not _makes_sense(found, read_as):
        shown = detect(chat.messages if chat else text)
        if shown.dialect not in (None, dialect) and shown.confidence >= _CLEARLY:
            why = f"read as {dialect}, but the text looks like {shown.dialect}: {shown.why}"
            issues.append(Issue("dialect_mismatch", why))
    known: dict[str, Any] = {"issues": (*found.issues, *issues)} if issues else {}
    if chat is not None and (chat.id or chat.answers):
        answers = chat.answers if isinstance(chat.answers, list | tuple) else [chat.answers]
        known |= {
            "id": chat.id,
            "answers": tuple(answer for answer in answers if isinstance(answer, str)),
        }
    return msgspec.structs.replace(found, **known) if known else found


def usual(rows: Iterable[Any]) -> str | None:
    """The dialect of most of the first 64 rows, for `parse` to read others with; `None` when none shows one."""
    read = (row for row in islice(rows, USUAL_OF) if isinstance(row, Trajectory) and row.dialect)
    counts = Counter(
        row.dialect for row in read if all(issue.kind != "dialect_assumed" for issue in row.issues)
    )
    return counts.most_common(1)[0][0] if counts else None


def _assumed(found: Detection, usual: str | None, chat: bool) -> str | None:
    """The dialect as which a text or chat is read that shows none of its own."""
    tags = set(found.tags)
    protocol = {tag for dialect in _dialects().values() for tag in dialect.marks}
    if chat and usual in (None, _PLAIN) and not tags & (protocol - {"think"}):
        return _PLAIN
    alone = "answer" in tags and tags & protocol <= {"think", "answer"}
    blind = alone and usual not in (None, _PLAIN) and load(str(usual)).answer_opening is None
    if usual is not None and tags & set(load(usual).marks) and not blind:
        return usual
    return _ANY if alone else None


def _refusal(text: str, found: Detection) -> str:
    """Why no dialect fits, and what to do."""
    said = f"no dialect fits this text ({found.why})"
    if text.lstrip()[:1] in ("{", "["):
        with suppress(ValueError, RecursionError):
            return f"{said}: {formats.refusal(json.loads(text))}"
        return f"{said}: it begins like JSON, but is none"
    if not found.tags:
        return f"{said}: it is plain text without a thought, a call or an answer between tags; is it the right column?"
    known = ", ".join(name for name in _dialects() if name != _PLAIN)
    return f"{said}; if you know which it is, name it, one of: {known}"


def _makes_sense(trajectory: Trajectory, read_as: Dialect) -> bool:
    """Whether the dialect that was asked for read what such a text holds."""
    if trajectory.answer is None or "</" in trajectory.answer:
        return False
    if any(step.call and step.evidence for step in trajectory.steps):
        return True
    # An agent that did not search shows only an answer; where an answer has no tag, any text looks like one.
    searched = any(step.call for step in trajectory.steps)
    return read_as.answer_opening is not None and not searched and not trajectory.all_issues()


def detect(text: str | Sequence[Mapping[str, Any]]) -> Detection:
    """The dialect whose marks the text bears, and none that speak against it. Looks at the first 200,000 characters.

    `text` is what an agent and its environment wrote, or chat messages (`DataError` when something is not a message),
    or the JSON of these. A dialect's score is the sum of the weights of its `marks` and `signs` that occur; of a tool
    response only the beginning counts, so that evidence does not decide. confidence = (best - second best) /
    (best + 2). Where two fit equally well none is named, and `why` says which.

    Example:
        >>> detect("<think>a</think><search>b</search><information>Doc 1(Title: c) d</information>").dialect
        'search_r1'
    """
    skeleton = _skeleton(_shown(text))
    tags = tuple(dict.fromkeys(match[1] for match in _TAG.finditer(skeleton)))
    found: dict[str, dict[str, float]] = {}
    for name, dialect in _dialects().items():
        found[name] = {f"<{tag}>": weight for tag, weight in dialect.marks.items() if tag in tags}
        for pattern, weight in dialect.signs.items():
            if match := re.search(pattern, skeleton):
                found[name][repr(" ".join(match[0].split())[:60])] = weight
    scores = {name: sum(marks.values()) for name, marks in found.items()}
    first, second, *_ = sorted(scores, key=lambda name: scores[name], reverse=True)
    best, next_best = scores[first], max(0.0, scores[second])
    # A mark must speak for it that is worth more than those that all dialects have.
    if best <= 0 or not any(weight >= 1.0 for weight in found[first].values()):
        return Detection(
            None,
            0.0,
            f"no dialect's marks among its tags: {', '.join(tags[:8]) or 'it has none'}",
            tags,
        )
    if next_best == best:
        *equal, last = [name for name in scores if scores[name] == best]
        return Detection(None, 0.0, f"{', '.join(equal)} and {last} fit equally well", tags)
    why = f"it has {', '.join(mark for mark, weight in found[first].items() if weight > 0)}"
    if next_best > 0:
        why += f"; next would be {second}"
    return Detection(first, (best - next_best) / (best + _HALF_WEIGHT), why, tags)


def _shown(source: str | Sequence[Mapping[str, Any]]) -> str:
    """The text to look at; of a chat's tool responses, which roles tell, the beginning only."""
    found = formats.decode(source) if isinstance(source, str) else formats.read(source)
    if isinstance(source, str) and found is None:
        return source[:_LOOK_AT]
    chat = read(found.messages if found else source)  # type: ignore[arg-type]
    begin = next((k for k, message in enumerate(chat) if message.role == "assistant"), len(chat))
    shown = ["<|structured_calls|>" if any(message.made for message in chat) else ""]
    for number, message in enumerate(chat):
        text = message.text
        if number > begin and message.role != "assistant":
            text = text.lstrip()
            tag = _TAG.match(text)
            opening = tag[0] if tag else "<tool_response>" if message.role == "tool" else ""
            text = opening + _beginning(text.removeprefix(opening))
        shown.append(text)
    return "\n".join(shown)[:_LOOK_AT]


def _skeleton(text: str) -> str:
    """The text with no more of each closed tool response than its beginning, and no tag in that."""
    closings = {dialect.opening: dialect.closing for dialect in _dialects().values()}
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


def _beginning(response: str) -> str:
    """The first of a tool response, in which no tag counts."""
    return TAGLIKE.sub("&lt;", response[:_BEGINNING])
