"""Text to `Trajectory` and back, one file per dialect; `load("pou")` finds `pou.py`."""

from __future__ import annotations

import difflib
import sys
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import msgspec

from .. import registry
from ..errors import DataError, DialectError
from ..trajectory import Issue, Trajectory
from .base import Dialect
from .detect import Detection, detect
from .messages import decode, is_chat

_CLEARLY = 0.5
"""The confidence from which on another dialect than the one asked for is worth an issue."""

__all__ = ["Detection", "Dialect", "detect", "load", "names", "parse"]


def names() -> list[str]:
    """The dialects there are, sorted."""
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
    source: str | Sequence[Mapping[str, Any]], dialect: str | None = None, question: str | None = None
) -> Trajectory:
    """Read a trajectory.

    Args:
        source: a model's text, prompt included or not; chat messages, or the JSON of a list of them; or the JSON that
            `Trajectory.to_json` wrote (which names its own dialect).
        dialect: its name; `None` detects it.
        question: overrides the question found in the prompt.

    A source that clearly is another dialect's than the one asked for gets an `Issue` of kind `dialect_mismatch`.

    Raises:
        DialectError: for an unknown `dialect`, or with `None` when no dialect fits.
        DataError: when `source` is neither text nor a list of messages.

    Example:
        >>> parse([{"role": "user", "content": "Who?"}, {"role": "assistant", "content": "Ada"}], "openai").answer
        'Ada'
    """
    stored = _stored(source) if isinstance(source, str) else None
    if stored is not None:
        return stored if question is None else msgspec.structs.replace(stored, question=question)
    chat = decode(source) if isinstance(source, str) else source
    if not isinstance(source, str) and not is_chat(source):
        raise DataError(f"neither a text nor a list of chat messages with roles: {str(source)[:80]!r}")
    found = detect(source if chat is None else chat)
    if dialect is None:
        if found.dialect is None:
            raise DialectError(f"no dialect fits this text ({found.why}); name one of: {', '.join(_names())}")
        return _read(load(found.dialect), source, chat, question)
    trajectory = _read(load(dialect), source, chat, question)
    if found.dialect in (None, dialect) or found.confidence < _CLEARLY:
        return trajectory
    issue = Issue("dialect_mismatch", f"read as {dialect}, but the text looks like {found.dialect}: {found.why}")
    return msgspec.structs.replace(trajectory, issues=(*trajectory.issues, issue))


def _read(dialect: Dialect, source: Any, chat: Sequence[Mapping[str, Any]] | None, question: str | None) -> Trajectory:
    if chat is None:
        return dialect.parse(source, question=question)
    return dialect.parse_messages(chat, question=question)


def _stored(text: str) -> Trajectory | None:
    if not text.startswith("{"):
        return None
    try:
        stored = Trajectory.from_json(text)
    except DataError:
        return None
    return stored if stored.steps or stored.text or stored.dialect else None
