"""Every regular expression of the package takes time in proportion to the text's length, however it
is used.

The texts come from the patterns themselves, as `re` parses them: a beginning that a match may have,
then over and over what may come next, then something or nothing. Each pattern matches them, and
searches them unless the package only ever matches with it. Times are processor times; a text four
times as long may take `MOST` times as long.
"""

import ast
import importlib
import re
import time
from collections import Counter, deque
from collections.abc import Iterator
from functools import cache
from itertools import islice, product
from pathlib import Path
from random import Random
from re import (
    _compiler as compiler,  # what `re` is made of has no public name
    _constants as op,
    _parser as parser,
)
from typing import Any, NamedTuple

import pytest

import faithful_search
from faithful_search import dialects

ROOT = Path(faithful_search.__file__).parent
SIZE, MANY = 3_000, 8
FEW, LONG = 24, 0.05
"""In a text of few characters, nothing takes long that is not exponential."""
FLOOR = 0.001
"""A text that is looked through in less is taken to need so many seconds."""
MOST = 8.0
"""Four times the text may take so many times as long: linear is 4, quadratic 16."""
BOUNDED = {
    "dialects.turns._TAIL": "searched in the last 200 characters of a turn",
    "dialects.tool_calls._ROLE_BEFORE": "searched in the last 200 characters before a response",
    "text._ABBREVIATION": "searched in the 12 characters before the end of a sentence",
    "columns._LITERAL": "only found in what is a printed list, where each quote is closed",
}
"""Patterns that are never given a long text, or not such a one, and why."""
NOT_IMPORTED = (
    *("training", "coldstart", "distil", "inference", "judges.nli", "measure.metric"),
    *("adapters.", "analysis", "hub", "cli", "recipes", "serving", "demo.app"),
)
"""Modules that are not imported here, as they load large packages: of them only patterns that are
written out are found.
"""
USES = ("compile", "search", "match", "fullmatch", "split", "sub", "subn", "findall", "finditer")
SAMPLES = ' \n<x1A"'
CHARACTERS = " \n\t\"'<x1A\\"
TAILS = ("", "\x00", "x")


def modules() -> Iterator[tuple[str, ast.Module, dict[str, Any]]]:
    """The name of each module, its syntax, and its names with their values."""
    for path in sorted(ROOT.rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        name = ".".join(part for part in parts if part != "__init__")
        tree = ast.parse(path.read_text(encoding="utf-8"))
        if name.startswith(NOT_IMPORTED):
            yield name, tree, {"re": re}
        else:
            module = importlib.import_module(f"faithful_search.{name}" if name else ROOT.name)
            yield name, tree, vars(module)


class Named(NamedTuple):
    """A pattern, and its names in the package or the line where it is written."""

    names: list[str]
    pattern: re.Pattern[Any]


@cache
def patterns() -> list[Named]:
    """Every pattern of the package."""
    by_text: dict[Any, Named] = {}

    def add(place: str, pattern: re.Pattern[Any]) -> None:
        by_text.setdefault(pattern.pattern, Named([], pattern)).names.append(place)

    for name, tree, names in modules():
        seen: set[int] = set()
        for key, value in list(names.items()):
            for place, pattern in _within(value, f"{name}.{key}", seen):
                add(place, pattern)
        for line, pattern in _written(tree, names):
            add(f"{name}:{line}", pattern)
    for name in dialects.names():
        for sign in dialects.load(name).signs:
            add(f"a sign of {name}", re.compile(sign))
    return list(by_text.values())


def unbounded() -> list[Named]:
    """Those that may be given any text."""
    return [found for found in patterns() if not BOUNDED.keys() & set(found.names)]


def _within(value: Any, place: str, seen: set[int], depth: int = 0) -> Iterator[Any]:
    """The patterns in a value: itself, or in its parts and attributes."""
    if isinstance(value, re.Pattern):
        yield place, value
        return
    if depth > 4 or id(value) in seen:
        return
    seen.add(id(value))
    parts: list[tuple[str, Any]] = []
    if isinstance(value, list | tuple | set | frozenset):
        parts = [(place, part) for part in value]
    elif isinstance(value, dict):
        parts = [(place, part) for part in value.values()]
    elif _is_ours(value):
        parts = [(f"{place}.{name}", part) for name, part in getattr(value, "__dict__", {}).items()]
    for inner, part in parts:
        yield from _within(part, inner, seen, depth + 1)


def _is_ours(value: Any) -> bool:
    """Whether this is a class of the package, or a value of one."""
    kind = value if isinstance(value, type) else type(value)
    return kind.__module__.startswith(ROOT.name)


def _written(tree: ast.Module, names: dict[str, Any]) -> Iterator[tuple[int, re.Pattern[Any]]]:
    """The patterns of calls such as `re.sub("x", …)`, where their values are known."""
    for node in ast.walk(tree):
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
            continue
        module = node.func.value
        if not (isinstance(module, ast.Name) and module.id == "re" and node.func.attr in USES):
            continue
        text = _value(node.args[0], names)
        flags = [*node.args[1:], *(keyword.value for keyword in node.keywords)]
        known = [_value(flag, names) for flag in flags]
        if isinstance(text, str | bytes):
            given = sum(flag for flag in known if isinstance(flag, re.RegexFlag))
            yield node.lineno, re.compile(text, given)


def _value(expression: ast.expr, names: dict[str, Any]) -> Any:
    """The value of an expression that names nothing but what its module knows."""
    try:
        return eval(compile(ast.Expression(expression), "", "eval"), dict(names, re=re))
    except Exception:  # it names what only its function knows
        return None


@cache
def attacks(pattern: re.Pattern[Any]) -> list[tuple[str, str]]:
    """What a match may begin with, and what to repeat behind it."""
    text = pattern.pattern
    text = text.decode("latin-1") if isinstance(text, bytes) else text
    tree = parser.parse(text, pattern.flags & ~re.UNICODE & ~re.LOCALE)
    beginnings = {""}
    found: dict[tuple[str, str], None] = {}
    for match in _pieces(tree):
        pieces = _joined(match)
        for start in range(len(pieces)):
            beginnings.add("".join(pieces[:start]))
            for end in range(start + 1, min(len(pieces), start + 6) + 1):
                found["".join(pieces[:start]), "".join(pieces[start:end])] = None
    atoms = sorted(set(_atoms(tree, tree.state)))[:24]
    for beginning in sorted(beginnings, key=len)[:40]:
        for atom in atoms:
            found[beginning, atom] = None
    return [attack for attack in found if attack[1]]


def _pieces(tree: parser.SubPattern) -> list[list[str]]:
    """Matches of the pattern, one for each alternative, character by character; an empty one is a
    border.
    """
    matches: list[list[str]] = [[]]
    for item in tree:
        first, *others = _options(tree, item)
        matches = [[*match, *first] for match in matches] + [
            [*matches[0], *other] for other in others
        ]
        matches = matches[:60]
    return matches


def _options(tree: parser.SubPattern, item: tuple[Any, Any]) -> list[list[str]]:
    kind, value = item
    if kind is op.BRANCH:
        return [pieces for branch in value[1] for pieces in _pieces(branch)]
    if kind is op.SUBPATTERN:
        return _pieces(value[3])
    if kind is op.ATOMIC_GROUP:
        return _pieces(value)
    if kind is op.ASSERT:
        return _pieces(value[1])
    if kind in (op.MAX_REPEAT, op.MIN_REPEAT, op.POSSESSIVE_REPEAT):
        times = max(1, min(value[0], 4))
        return [["", *pieces * times, ""] for pieces in _pieces(value[2])]
    if kind is op.LITERAL:
        return [[chr(value)]]
    if kind in (op.IN, op.ANY, op.NOT_LITERAL):
        return [["", next(_matching(tree.state, item, CHARACTERS)), ""]]
    return [[""]]


def _matching(state: Any, item: tuple[Any, Any], samples: str) -> Iterator[str]:
    """The samples that this atom matches, then characters that it names itself."""
    atom = compiler.compile(parser.SubPattern(state, [item]))
    kind, value = item
    named = (
        [given for part, given in value if part in (op.LITERAL, op.RANGE)] if kind is op.IN else []
    )
    own = [chr(given[0] if isinstance(given, tuple) else given) for given in named]
    yield from filter(atom.fullmatch, [*samples, *own, *map(chr, range(32, 0x3000))])


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


def _atoms(tree: parser.SubPattern, state: Any) -> Iterator[str]:
    """Characters that the pattern's atoms match, also of what must not come."""
    for kind, value in tree:
        inner: list[parser.SubPattern] = []
        if kind is op.BRANCH:
            inner = value[1]
        elif kind is op.SUBPATTERN:
            inner = [value[3]]
        elif kind is op.ATOMIC_GROUP:
            inner = [value]
        elif kind in (op.ASSERT, op.ASSERT_NOT):
            inner = [value[1]]
        elif kind in (op.MAX_REPEAT, op.MIN_REPEAT, op.POSSESSIVE_REPEAT):
            inner = [value[2]]
        elif kind is op.LITERAL:
            yield chr(value)
        elif kind in (op.IN, op.ANY, op.NOT_LITERAL):
            yield from islice(_matching(state, (kind, value), SAMPLES), 4)
        for part in inner:
            yield from _atoms(part, state)


def use(pattern: re.Pattern[Any], text: Any) -> None:
    """All that a pattern can be used for."""
    if pattern.pattern not in _only_matched():
        deque(pattern.finditer(text), maxlen=0)
    pattern.match(text)
    pattern.fullmatch(text)


@cache
def _only_matched() -> set[Any]:
    """The texts of patterns that the package matches at one place of a text, and never searches."""
    matched = set()
    for name, tree, _ in modules():
        matched |= {f"{name}.{variable}" for variable in _matched_variables(tree)}
    texts = set()
    for names, pattern in patterns():
        # The others say where it is written, as "columns:12"
        variables = [name for name in names if ":" not in name]
        if variables and matched.issuperset(variables):
            texts.add(pattern.pattern)
    return texts


def _matched_variables(tree: ast.Module) -> Iterator[str]:
    """The private variables of a module that are used as in `_NAME.fullmatch(text)` alone."""
    read, matched = Counter[str](), Counter[str]()
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
            read[node.id] += 1
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            matched[node.value.id] += node.attr in ("match", "fullmatch")
    for variable, times in matched.items():
        if variable.startswith("_") and 0 < times == read[variable]:
            yield variable


def seconds(pattern: re.Pattern[Any], text: str) -> float:
    data = text.encode("latin-1", "replace") if isinstance(pattern.pattern, bytes) else text
    _only_matched()  # reads all modules the first time
    start = time.process_time()
    use(pattern, data)
    return time.process_time() - start


def slow(pattern: re.Pattern[Any], beginning: str, unit: str, tail: str) -> str:
    """How the time grows with this text where it grows too much; empty where it does not."""

    def text(size: int) -> str:
        return beginning + unit * (size // len(unit) + 1) + tail

    attack = f"{beginning!r}, then {unit!r} over and over, then {tail!r}"
    if (few := seconds(pattern, text(FEW))) > LONG:
        return f"{attack}: {few:.2f} s for {FEW} characters"
    if seconds(pattern, text(SIZE)) < 2 * FLOOR:
        return ""
    for _ in range(3):  # the machine's other work may last longer than a measurement
        short = min(seconds(pattern, text(SIZE)) for _ in range(3))
        long = min(seconds(pattern, text(4 * SIZE)) for _ in range(3))
        growth = long / max(short, FLOOR)
        if growth <= MOST:
            return ""
    return f"{attack}: four times the text takes {growth:.0f} times"


def test_every_pattern_is_linear_in_what_nearly_matches_it(rounds: int) -> None:
    """At most `MANY` attacks on each, and more with `--attack`."""
    found = {}
    for names, pattern in unbounded():
        tried = list(product(attacks(pattern), TAILS))
        for (beginning, unit), tail in Random(7).sample(tried, min(len(tried), MANY * rounds)):
            if growth := slow(pattern, beginning, unit, tail):
                found[names[0]] = growth
                break
    assert not found


def test_and_in_pieces_of_other_patterns(rounds: int) -> None:
    random = Random(7)
    found = {}
    for _ in range(20 * rounds):
        names, pattern = random.choice(unbounded())
        beginning, unit = random.choice(attacks(pattern) or [("", "x")])
        units = [unit for _, unit in attacks(pattern)] or ["x"]
        others = [unit for _, unit in attacks(random.choice(unbounded()).pattern)] or ["x"]
        unit += random.choice(units) + random.choice(("", random.choice(others)))
        if growth := slow(pattern, beginning, unit, random.choice((*TAILS, *units))):
            found[names[0]] = growth
    assert not found


@pytest.mark.parametrize(
    "quadratic",
    [
        r"<(?=\s*/?\s*[A-Za-z_|])",
        r"\s*\[\s*(?:'[^']*')?[\s,]*\]\s*",
        r"<answer>(.*?)</answer>",
        r"\s+$",
        r"(?:\w|[a-z])+!",
    ],
)
def test_a_pattern_that_takes_longer_would_be_found(quadratic: str) -> None:
    pattern = re.compile(quadratic, re.DOTALL)
    tried = product(attacks(pattern), TAILS)
    assert any(slow(pattern, beginning, unit, tail) for (beginning, unit), tail in tried)


@pytest.mark.parametrize(
    "name",
    [
        "formats.chat.TAGLIKE",
        "columns._PRINTED_LIST",
        "wire.guard._URL",
        "answer_tokens._DATES",
        *BOUNDED,
    ],
)
def test_patterns_are_found_by_name(name: str) -> None:
    assert any(name in found.names for found in patterns())


@pytest.mark.parametrize(
    "use, variables",
    [
        ("_WORD.fullmatch(text)", ["_WORD"]),
        ("_WORD.match(text, place)", ["_WORD"]),
        ("_WORD.match(text) or _WORD.search(text)", []),
        ("split(text, _WORD)", []),
        ("WORD.match(text)", []),  # other modules may search it
    ],
)
def test_which_patterns_are_only_matched(use: str, variables: list[str]) -> None:
    assert list(_matched_variables(ast.parse(use))) == variables


@pytest.mark.parametrize("holds", ["Grammar", "fence", "border", "signs"])
def test_patterns_that_dialects_compose_are_found(holds: str) -> None:
    texts = {
        "Grammar": dialects.load("search_r1").grammar.turn.pattern,
        "fence": dialects.load("web_dancer").fence._forbidden.pattern,
        "border": dialects.load("research").response_ends.pattern,
        "signs": next(iter(dialects.load("pokee").signs)),
    }
    assert texts[holds] in {found.pattern.pattern for found in patterns()}
