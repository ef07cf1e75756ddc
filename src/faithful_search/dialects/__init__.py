"""Text to `Trajectory` and back, one file per dialect; `load("pou")` finds `pou.py`."""

from __future__ import annotations

import difflib
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from itertools import islice
from typing import Any

import msgspec

from .. import registry
from ..errors import DataError, DialectError
from ..trajectory import Issue, Trajectory
from .base import Dialect
from .detect import Detection, detect
from .segments import decode, is_chat

_CLEARLY = 0.5
"""How confident `detect` must be before a dialect other than the one asked for becomes an issue."""
USUAL_OF = 64
"""How many rows `usual` looks at."""
_ANY = "r1_searcher"
"""Reads a text of thought and answer alone, also one whose opening think tag was in the prompt."""

__all__ = ["Detection", "Dialect", "detect", "load", "names", "parse", "usual"]


def names() -> list[str]:
    """The names of all dialects, sorted."""
    return list(_names())


@lru_cache(maxsize=1)
def _names() -> tuple[str, ...]:
    return tuple(registry.names(sys.modules[__name__], Dialect))


@lru_cache(maxsize=64)
def load(name: str) -> Dialect:
    """The dialect of that name.

    Raises:
        DialectError: when there is none, naming those there are and the nearest.

    Example:
        >>> load("pou").stop
        ('</tool_call>', '</answer>')
    """
    if name not in _names():
        near = difflib.get_close_matches(name, _names(), n=1, cutoff=0.5)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise DialectError(f"unknown dialect {name!r}; there are: {', '.join(_names())}{hint}")
    found: type[Dialect] = registry.load(sys.modules[__name__], name, Dialect)
    return found()


def parse(
    source: str | Sequence[Mapping[str, Any]],
    dialect: str | None = None,
    question: str | None = None,
    *,
    fenced: bool = False,
    usual: str | None = None,
) -> Trajectory:
    """Read a trajectory.

    Args:
        source: a model's text, prompt included or not; chat messages, or the JSON of a list of them; or the JSON that
            `Trajectory.to_json` wrote (which names its own dialect).
        dialect: its name; `None` detects it.
        question: overrides the question found in the prompt.
        fenced: whether our own engine rendered it, so that what was escaped in its tool responses is given back.
            Any other text is kept as it is.
        usual: the dialect of the texts beside it, for one that shows none of its own (a search without a response,
            say).

    A text of thought and answer alone is read as every dialect reads it, and like one read as `usual` gets an `Issue`
    of kind `dialect_assumed`. One of which the dialect asked for makes no sense (no answer, or calls or issues and no
    evidence), and that clearly is another's, gets one of kind `dialect_mismatch`.

    Raises:
        DialectError: for an unknown `dialect`, or with `None` when no dialect fits.
        DataError: when `source` is neither text nor a list of messages.

    Example:
        >>> parse([{"role": "user", "content": "Who?"}, {"role": "assistant", "content": "Ada"}], "openai").answer
        'Ada'
        >>> parse("<think>I know that.</think><answer>Ada</answer>").answer
        'Ada'
    """
    text = source if isinstance(source, str) else ""
    if text.startswith("{") and (stored := _stored(text)) is not None:
        return stored if question is None else msgspec.structs.replace(stored, question=question)
    chat = decode(text) if isinstance(source, str) else source
    if not isinstance(source, str) and not is_chat(source):
        raise DataError(f"neither a text nor a list of chat messages with roles: {str(source)[:80]!r}")
    name, issue = dialect, None
    if name is None:
        shown = detect(chat or text)
        name = shown.dialect or _assumed(shown, usual)
        if name is None:
            raise DialectError(f"no dialect fits this text ({shown.why}); name one of: {', '.join(_names())}")
        if shown.dialect is None:
            beside = ", like the rows beside it" if name == usual else ""
            issue = Issue("dialect_assumed", f"the text shows no dialect of its own; read as {name}{beside}")
    read = load(name)
    if chat is None:
        trajectory = read.parse(text, question=question, fenced=fenced)
    else:
        trajectory = read.parse_messages(chat, question=question, fenced=fenced)
    # Looking for another dialect takes longer than reading: only where the named one read nothing of its own.
    if dialect is not None and not _makes_sense(trajectory, read):
        shown = detect(chat or text)
        if shown.dialect not in (None, dialect) and shown.confidence >= _CLEARLY:
            why = f"read as {dialect}, but the text looks like {shown.dialect}: {shown.why}"
            issue = Issue("dialect_mismatch", why)
    return trajectory if issue is None else msgspec.structs.replace(trajectory, issues=(*trajectory.issues, issue))


def usual(rows: Iterable[Any]) -> str | None:
    """The dialect of most of the first 64 rows, for `parse` to read others with; `None` when none shows one.

    A row that could not be read may be anything that is not a `Trajectory`.
    """
    read = (row for row in islice(rows, USUAL_OF) if isinstance(row, Trajectory))
    shown = (row for row in read if all(issue.kind != "dialect_assumed" for issue in row.issues))
    counts = Counter(row.dialect for row in shown if row.dialect)
    return counts.most_common(1)[0][0] if counts else None


def _assumed(found: Detection, usual: str | None) -> str | None:
    """The dialect to read a text as that shows none of its own."""
    tags = set(found.tags)
    protocol = {tag for name in _names() for tag in load(name).marks}
    alone = "answer" in tags and tags & protocol <= {"think", "answer"}
    if usual is not None and tags & {"think", "answer"} and not (alone and load(usual).answer_opening is None):
        return usual
    return _ANY if alone else None


def _makes_sense(trajectory: Trajectory, read_as: Dialect) -> bool:
    """Whether the dialect that was asked for read what it should."""
    if trajectory.answer is None or "</" in trajectory.answer:
        return False
    if any(step.call and step.evidence for step in trajectory.steps):
        return True
    # An agent that did not search shows only an answer; where an answer has no tag, any text looks like one.
    searched = any(step.call for step in trajectory.steps)
    return read_as.answer_opening is not None and not searched and not trajectory.all_issues()


def _stored(text: str) -> Trajectory | None:
    try:
        stored = Trajectory.from_json(text)
    except DataError:
        return None
    return stored if stored.steps or stored.text or stored.dialect else None
