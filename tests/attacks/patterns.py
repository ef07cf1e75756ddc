"""Texts made from regular expressions that nearly match them, over and over: what backtracking takes longest with."""

import importlib
import pkgutil
import re
from collections.abc import Iterator
from re import (
    _constants as op,  # the parser of `re` has no public name
    _parser as parser,
)
from typing import Any

from faithful_search import dialects
from faithful_search.dialects import Dialect

_ONE_OF_EACH = {
    op.CATEGORY_DIGIT: "1", op.CATEGORY_NOT_DIGIT: "x", op.CATEGORY_SPACE: " ", op.CATEGORY_NOT_SPACE: "x",
    op.CATEGORY_WORD: "x", op.CATEGORY_NOT_WORD: " ",
}  # fmt: skip
_ANYTHING = 'x <"1\n'


def patterns_of(dialect: Dialect) -> list[re.Pattern[str]]:
    """Every pattern of the modules a dialect is written in, of its class, and its grammar's."""
    modules = {module.__name__: module for module in map(importlib.import_module, _modules(type(dialect)))}
    grammar = getattr(dialect, "grammar", None)
    owners = [*modules.values(), *type(dialect).__mro__, *([grammar] if grammar else [])]
    found = [value for owner in owners for value in vars(owner).values() if isinstance(value, re.Pattern)]
    found += [re.compile(text) for text in (*dialect.signs, dialect.fence.pattern)]
    return list({pattern.pattern: pattern for pattern in found}.values())


def _modules(kind: type[Dialect]) -> set[str]:
    """The module of this dialect and all of the package that are no dialect's own."""
    own = {f"{dialects.__name__}.{name}" for name in dialects.names()}
    every = {f"{dialects.__name__}.{found.name}" for found in pkgutil.iter_modules(dialects.__path__)}
    return {parent.__module__ for parent in kind.__mro__ if parent.__module__ in every} | (every - own)


def nearly(pattern: re.Pattern[str]) -> Iterator[tuple[str, str]]:
    """Beginnings and what to repeat behind them: each stretch of a match, without what would end it."""
    for match in _pieces(parser.parse(pattern.pattern, pattern.flags & ~re.UNICODE)):
        pieces = _joined(match)
        for start in range(len(pieces)):
            for end in range(start + 1, len(pieces) + 1):
                yield "".join(pieces[:start]), "".join(pieces[start:end])


def _pieces(tree: Any) -> list[list[str]]:
    """Matches of the pattern, one for each alternative, character by character; an empty one is a border."""
    matches: list[list[str]] = [[]]
    for kind, value in tree:
        options = _options(kind, value)
        first, *others = options
        matches = [[*match, *first] for match in matches] + [[*matches[0], *other] for other in others]
    return matches


def _options(kind: Any, value: Any) -> list[list[str]]:
    if kind is op.LITERAL:
        return [[chr(value)]]
    if kind is op.BRANCH:
        return [pieces for branch in value[1] for pieces in _pieces(branch)]
    if kind is op.SUBPATTERN:
        return _pieces(value[3])
    if kind is op.ATOMIC_GROUP:
        return _pieces(value)
    if kind in (op.MAX_REPEAT, op.MIN_REPEAT, op.POSSESSIVE_REPEAT):
        return [["", *pieces, ""] for pieces in _pieces(value[2])]
    if kind in (op.IN, op.ANY, op.NOT_LITERAL):
        return [["", _one(kind, value), ""]]
    if kind is op.ASSERT:
        return _pieces(value[1])
    return [[""]]


def _one(kind: Any, value: Any) -> str:
    if kind is op.ANY:
        return "x"
    if kind is op.NOT_LITERAL:
        return next(character for character in _ANYTHING if ord(character) != value)
    first, choice = value[0]
    if first is op.NEGATE:
        excluded = {chr(code) for what, code in value[1:] if what is op.LITERAL}
        return next(character for character in _ANYTHING if character not in excluded)
    if first is op.RANGE:
        return chr(choice[0])
    return _ONE_OF_EACH[choice] if first is op.CATEGORY else chr(choice)


def _joined(pieces: list[str]) -> list[str]:
    """What stands between two borders as one piece."""
    joined: list[str] = []
    border = True
    for piece in pieces:
        if not piece:
            border = True
        elif border:
            joined.append(piece)
            border = False
        else:
            joined[-1] += piece
    return joined
