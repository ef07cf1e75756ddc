"""Text to `Trajectory` and back, one file per dialect; `load("pou")` finds `pou.py`."""

from __future__ import annotations

import difflib
import json
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from itertools import islice
from typing import Any

import msgspec

from .. import formats, registry
from ..errors import DataError, DialectError
from ..formats import Chat
from ..trajectory import Issue, Trajectory
from .base import Dialect
from .detect import Detection, detect

# How confident `detect` must be before a dialect other than the one asked for becomes an issue, and before a text is
# read in another than the rows beside it.
_CLEARLY, _FAINTLY = 0.5, 0.2
USUAL_OF = 64
"""How many rows `usual` looks at."""
_ANY = "r1_searcher"  # reads a text of thought and answer alone, also one whose opening think tag was in the prompt
_PLAIN = "openai"  # reads messages without any tags

__all__ = ["Detection", "Dialect", "detect", "load", "names", "parse", "usual"]


def names() -> list[str]:
    """The names of all dialects, sorted."""
    return list(_dialects())


@lru_cache(maxsize=1)
def _dialects() -> dict[str, Dialect]:
    package = sys.modules[__name__]
    return {name: registry.load(package, name, Dialect)() for name in registry.names(package, Dialect)}


def load(name: str) -> Dialect:
    """The dialect of that name.

    Raises:
        DialectError: for an unknown name; the message lists the known ones and the nearest.

    Example:
        >>> load("pou").stop
        ('</tool_call>', '</answer>')
    """
    found = _dialects().get(name)
    if found is None:
        near = difflib.get_close_matches(name, _dialects(), n=1, cutoff=0.5)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise DialectError(f"unknown dialect {name!r}; there are: {', '.join(_dialects())}{hint}")
    return found


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
        fenced: whether our own engine rendered it, so that escaping in its tool responses is undone; any other text
            is kept as it is.
        usual: the dialect of the rows beside it, for a text that shows none of its own (a search without a response,
            say).

    A text of thought and answer alone, or one read as `usual`, gets an `Issue` of kind `dialect_assumed`. One that the
    given dialect cannot read (no answer, or calls or issues and no evidence) and that is clearly another's gets one of
    kind `dialect_mismatch`.

    Raises:
        DialectError: for an unknown `dialect`, or with `None` when no dialect fits.
        DataError: when `source` is neither text nor a conversation in a known format.

    Example:
        >>> parse([{"role": "user", "content": "Who?"}, {"role": "assistant", "content": "Ada"}], "openai").answer
        'Ada'
        >>> parse("<think>I know that.</think><answer>Ada</answer>").answer
        'Ada'
    """
    text = source if isinstance(source, str) else ""
    if text.startswith("{"):
        with suppress(DataError):
            stored = Trajectory.from_json(text)
            if stored.steps or stored.text or stored.dialect:
                return stored if question is None else msgspec.structs.replace(stored, question=question)
    if isinstance(source, Chat):
        chat: Chat | None = source
    else:
        chat = formats.decode(source) if isinstance(source, str) else formats.read(source)
    if chat is None and not isinstance(source, str):
        raise DataError(formats.refusal(source))
    name, issues = dialect, []
    if name is None:
        shown = detect(chat.messages if chat else text)
        if chat is None and shown.dialect is None and (chat := formats.read(text)) is not None:
            shown = detect(chat.messages)
        faint = usual is not None and shown.confidence < _FAINTLY
        name = (None if faint else shown.dialect) or _assumed(shown, usual, chat is not None) or shown.dialect
        if name is None:
            raise DialectError(_refusal(text, shown))
        if name != shown.dialect:
            beside = ", like the rows beside it" if name == usual else ""
            issues.append(Issue("dialect_assumed", f"the text shows no dialect of its own; read as {name}{beside}"))
    read = load(name)
    if chat is None:
        trajectory = read.parse(text, question=question, fenced=fenced)
    else:
        trajectory = read.parse_messages(chat.messages, question=question or chat.question, fenced=fenced)
        issues += [Issue("content_unread", f"left out: {what}") for what in chat.left_out]
    # Looking for another dialect takes longer than reading: only where the named one read nothing of its own.
    if dialect is not None and not _makes_sense(trajectory, read):
        shown = detect(chat.messages if chat else text)
        if shown.dialect not in (None, dialect) and shown.confidence >= _CLEARLY:
            why = f"read as {dialect}, but the text looks like {shown.dialect}: {shown.why}"
            issues.append(Issue("dialect_mismatch", why))
    known: dict[str, Any] = {"issues": (*trajectory.issues, *issues)} if issues else {}
    if chat is not None and (chat.id or chat.answers):
        answers = chat.answers if isinstance(chat.answers, list | tuple) else [chat.answers]
        known |= {"id": chat.id, "answers": tuple(answer for answer in answers if isinstance(answer, str))}
    return msgspec.structs.replace(trajectory, **known) if known else trajectory


def usual(rows: Iterable[Any]) -> str | None:
    """The dialect of most of the first 64 rows, for `parse` to read others with; `None` when none shows one.

    A row that could not be read may be anything that is not a `Trajectory`.
    """
    read = (row for row in islice(rows, USUAL_OF) if isinstance(row, Trajectory) and row.dialect)
    counts = Counter(row.dialect for row in read if all(issue.kind != "dialect_assumed" for issue in row.issues))
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
        try:
            return f"{said}: {formats.refusal(json.loads(text))}"
        except (ValueError, RecursionError):
            return f"{said}: it begins like JSON, but is none"
    if not found.tags:
        return f"{said}: it is plain text without a thought, a call or an answer between tags; is it the right column?"
    return (
        f"{said}; if you know which it is, name it, one of: {', '.join(name for name in _dialects() if name != _PLAIN)}"
    )


def _makes_sense(trajectory: Trajectory, read_as: Dialect) -> bool:
    """Whether the dialect that was asked for read what such a text holds."""
    if trajectory.answer is None or "</" in trajectory.answer:
        return False
    if any(step.call and step.evidence for step in trajectory.steps):
        return True
    # An agent that did not search shows only an answer; where an answer has no tag, any text looks like one.
    searched = any(step.call for step in trajectory.steps)
    return read_as.answer_opening is not None and not searched and not trajectory.all_issues()
