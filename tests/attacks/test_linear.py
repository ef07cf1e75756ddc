"""Reading takes time in proportion to the text's length, whatever stands in it.

The texts are made from every pattern that takes part: what nearly matches it, over and over, as
backtracking takes longest with that. Times are processor times and compared with those for a
sixteenth of the text.
"""

import importlib
import pkgutil
import re
import time
from collections.abc import Iterator
from functools import partial
from random import Random
from re import (
    _compiler as compiler,  # what `re` is made of has no public name
    _constants as op,
    _parser as parser,
)
from typing import Any

import pytest
from dialect_texts import SLOT, frames, written
from growth import MOST, growth

from faithful_search import dialects
from faithful_search.dialects import Dialect, load, pokee, turns
from faithful_search.formats import call_arguments, call_forms, call_markup, chat_templates

SIZE, LARGE = 64_000, 5_000_000
KNOWN = [
    ("", "Doc 1 (Title: x", ""),
    ("1. [x", "](", ""),
    ("1. [x](", "](x", ""),
    ("x", "<verification>", "<verification_result>CORRECT</verification_result>"),
    ("x", "<|im_start|>user\n", "<tool_response>"),
    ("\nUser: x", "A conversation between User and Assistant.", ""),
    ("x", "\n \n", "x"),
    ("x", " ", "x"),
]
"""What once took quadratic time, or could."""
TAILS = [
    "",
    "x",
    "\n",
    ")",
    "</think>",
    "<answer>",
    "<tool_response>",
    "</tool_response>",
    "<information>",
]
CHARACTERS = [*'x <"1\n', *map(chr, range(0x110000))]


def patterns_of(dialect: Dialect) -> list[re.Pattern[str]]:
    """Every pattern of the modules a dialect is written in, of its class, and its grammar's."""
    modules = {
        module.__name__: module for module in map(importlib.import_module, _modules(type(dialect)))
    }
    grammar = getattr(dialect, "grammar", None)
    owners = [*modules.values(), *type(dialect).__mro__, *([grammar] if grammar else [])]
    found = [
        value for owner in owners for value in vars(owner).values() if isinstance(value, re.Pattern)
    ]
    found += [re.compile(text) for text in (*dialect.signs, dialect.fence.pattern)]
    return list({pattern.pattern: pattern for pattern in found}.values())


def _modules(kind: type[Dialect]) -> set[str]:
    """The module of this dialect and all of the package that are no dialect's own."""
    own = {f"{dialects.__name__}.{name}" for name in dialects.names()}
    every = {
        f"{dialects.__name__}.{found.name}" for found in pkgutil.iter_modules(dialects.__path__)
    }
    return {parent.__module__ for parent in kind.__mro__ if parent.__module__ in every} | (
        every - own
    )


def nearly(pattern: re.Pattern[str]) -> Iterator[tuple[str, str]]:
    """Beginnings and what to repeat behind them: each stretch of a match, without what would end
    it.
    """
    for match in _pieces(parser.parse(pattern.pattern, pattern.flags & ~re.UNICODE)):
        pieces = _joined(match)
        for start in range(len(pieces)):
            for end in range(start + 1, len(pieces) + 1):
                yield "".join(pieces[:start]), "".join(pieces[start:end])


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
        return [["", *pieces, ""] for pieces in _pieces(value[2])]
    if kind is op.LITERAL:
        return [[chr(value)]]
    if kind in (op.IN, op.ANY, op.NOT_LITERAL):
        one = compiler.compile(parser.SubPattern(tree.state, [item]))
        return [["", next(filter(one.fullmatch, CHARACTERS)), ""]]
    return [[""]]


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


def seconds(dialect: Dialect, text: str) -> float:
    start = time.process_time()
    dialect.parse(text)
    return time.process_time() - start


def filled(frame: str, attack: tuple[str, str, str], size: int) -> str:
    beginning, unit, tail = attack
    return frame.replace(SLOT, beginning + unit * (size // len(unit)) + tail)


def slow(
    dialect: Dialect, attacks: list[tuple[str, str, tuple[str, str, str]]]
) -> dict[tuple[str, str], float]:
    """The attacks whose time grows too much with their length, and how it grows."""
    powers = {}
    for place, frame, attack in attacks:

        def taken(size: int, frame: str = frame, attack: tuple[str, str, str] = attack) -> float:
            return seconds(dialect, filled(frame, attack, size))

        power = growth(taken, SIZE)
        if power > MOST:
            powers[place, str(attack)] = power
    return powers


def test_what_once_was_slow(name: str) -> None:
    assert not slow(
        load(name),
        [(place, frame, attack) for attack in KNOWN for place, frame in frames(name).items()],
    )


@pytest.mark.slow
def test_five_megabytes_are_read_in_two_seconds(name: str) -> None:
    """Of what takes longest at a hundredth of the size, of plain text, and of transcripts one after
    the other.
    """
    dialect = load(name)
    near = {found for pattern in patterns_of(dialect) for found in nearly(pattern)}
    near |= {
        ("", one)
        for one in (
            "Paris. ",
            "<",
            "\n",
            "{",
            "{}",
            "\\boxed{",
            "&lt;",
            dialect.render(written(name)),
        )
    }
    attacks = [(frame, (*found, "")) for found in sorted(near) for frame in frames(name).values()]
    attacks.sort(key=lambda attack: -seconds(dialect, filled(*attack, LARGE // 100)))
    worst = max(attacks[:8], key=lambda attack: seconds(dialect, filled(*attack, LARGE)))
    assert min(seconds(dialect, filled(*worst, LARGE)) for _ in range(3)) < 2.0, worst


def test_near_matches_of_every_pattern_over_and_over(name: str, rounds: int) -> None:
    dialect, random = load(name), Random(name)
    near = list(
        dict.fromkeys(found for pattern in patterns_of(dialect) for found in nearly(pattern))
    )
    units = [unit for _, unit in near]
    attacks = []
    for _ in range(rounds):
        beginning, unit = random.choice(near)
        place, frame = random.choice(list(frames(name).items()))
        unit += random.choice(("", "", "x", random.choice(units)))
        tail = random.choice((*TAILS, random.choice(units), random.choice(units) * (SIZE // 200)))
        attacks.append((place, frame, (beginning, unit, tail)))
    assert not slow(dialect, attacks)


def test_every_pattern_of_a_dialect_is_attacked() -> None:
    found = patterns_of(load("pokee"))
    assert {pokee._CHECK.pattern, turns.GAP.pattern, load("pokee").grammar.turn.pattern} <= {
        p.pattern for p in found
    }
    assert ("", "<verification>") in nearly(pokee._CHECK)


CHAT_UNITS = [
    *("<tool_call>", "</tool_call>", "<think>", "`", "``", "```", "~~~", "`<answer>` ", "< "),
    *("`\n", "<tool_call>x</tool_call> a ", "<answer>", "\ue000<b>", "</think>"),
]


@pytest.mark.parametrize("unit", CHAT_UNITS)
@pytest.mark.parametrize("field", ["content", "reasoning_content", "arguments", "answer"])
def test_messages_take_linear_time(field: str, unit: str) -> None:
    """Quoted markup is looked for in every field of a message."""

    def seconds(size: int) -> float:
        text = unit * (size // len(unit))
        message: dict[str, Any] = {"role": "assistant", "content": "a"}
        if field in message or field == "reasoning_content":
            message[field] = text
        else:
            name = "search" if field == "arguments" else "final_answer"
            message["tool_calls"] = [{"name": name, "arguments": {"answer": text}}]
        start = time.process_time()
        dialects.parse([{"role": "user", "content": "Who?"}, message], "openai")
        return time.process_time() - start

    assert growth(seconds, SIZE) <= MOST


def markup_patterns() -> list[re.Pattern[str]]:
    """Every pattern with which calls in models' own markup and their templates are read."""
    found = [
        value
        for module in (call_arguments, call_forms, call_markup, chat_templates)
        for value in vars(module).values()
        if isinstance(value, re.Pattern)
    ]
    for form in (*call_forms.FORMS, call_forms.HERMES):
        found += [form.head, *([form.tail] if form.tail else [])]
    for layout in chat_templates.LAYOUTS:
        found += [layout.head, layout.ends, *layout.result]
    return list({pattern.pattern: pattern for pattern in found}.values())


MARKUP_READERS = {
    "answered": lambda text: call_markup.split_calls(text, answered=True),
    "quoted": lambda text: call_markup.split_calls(text, answered=False),
    "thought": lambda text: call_markup.split_calls(text, answered=True, thought=True),
    "text": chat_templates.read,
    "body": call_markup.read_tool_call_body,
}


@pytest.mark.parametrize("reader", MARKUP_READERS)
def test_markup_of_models_takes_linear_time(reader: str, rounds: int) -> None:
    read, random = MARKUP_READERS[reader], Random(reader)
    near = list(dict.fromkeys(pair for each in markup_patterns() for pair in nearly(each)))
    units = [*(unit for _, unit in near), *CHAT_UNITS, '{"a":"', "[" * 50, '"', "\n"]
    signs = [form.sign for form in call_forms.FORMS]
    signs += [sign for layout in chat_templates.LAYOUTS for sign in layout.signs]

    def seconds(attack: tuple[str, str, str], size: int) -> float:
        beginning, unit, tail = attack
        text = beginning + unit * (size // len(unit)) + tail
        start = time.process_time()
        read(text)
        return time.process_time() - start

    slow = {}
    for _ in range(8 * rounds):
        beginning, unit = random.choice(near)
        sign = random.choice(signs)
        unit += random.choice(("", "", "x", random.choice(units)))
        attack = (sign + beginning, unit, random.choice((*TAILS, random.choice(units))))
        power = growth(partial(seconds, attack), SIZE)
        if power > MOST:
            slow[attack] = power
    assert not slow
