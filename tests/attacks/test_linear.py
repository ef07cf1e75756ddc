"""Reading takes time in proportion to the text's length, whatever stands in it.

The texts are made from every pattern that takes part: many times what nearly matches it. Times are processor times and
compared with those for a quarter of the text; below the floor no time counts as long.
"""

import time
from random import Random

import pytest
from dialect_texts import EVERY, SLOT, frames, written
from patterns import nearly, patterns_of

from faithful_search.dialects import Dialect, load

SIZE, LARGE = 16_000, 5_000_000
FLOOR = 0.004
"""A quarter of a text that is read in less is taken to need so many seconds."""
MOST = 8.0
"""Four times the text may take so many times as long: linear is 4, quadratic 16."""
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
TAILS = ["", "x", "\n", ")", "</think>", "<answer>", "<tool_response>", "</tool_response>", "<information>"]


def seconds(dialect: Dialect, text: str) -> float:
    start = time.process_time()
    dialect.parse(text)
    return time.process_time() - start


def filled(frame: str, attack: tuple[str, str, str], size: int) -> str:
    beginning, unit, tail = attack
    return frame.replace(SLOT, beginning + unit * (size // len(unit)) + tail)


def growth(dialect: Dialect, frame: str, attack: tuple[str, str, str]) -> float:
    """How many times as long four times the attack takes; the least of three, for the machine's other work."""
    found = float("inf")
    for _ in range(3):
        long = seconds(dialect, filled(frame, attack, 4 * SIZE))
        if long <= MOST * FLOOR:
            return long / FLOOR
        found = min(found, long / max(FLOOR, seconds(dialect, filled(frame, attack, SIZE))))
        if found <= MOST:
            break
    return found


def slow(dialect: Dialect, attacks: list[tuple[str, str, tuple[str, str, str]]]) -> dict[tuple[str, str], float]:
    found = {(place, str(attack)): growth(dialect, frame, attack) for place, frame, attack in attacks}
    return {attack: times for attack, times in found.items() if times > MOST}


@pytest.mark.parametrize("name", EVERY)
def test_what_once_was_slow(name: str) -> None:
    attacks = [(place, frame, attack) for attack in KNOWN for place, frame in frames(name).items()]
    assert not slow(load(name), attacks)


@pytest.mark.slow
@pytest.mark.parametrize("name", EVERY)
def test_five_megabytes_are_read_in_two_seconds(name: str) -> None:
    """Of what takes longest at a hundredth of the size, of plain text, and of transcripts one after the other."""
    dialect = load(name)
    near = {found for pattern in patterns_of(dialect) for found in nearly(pattern)}
    near |= {
        ("", unit) for unit in ("Paris. ", "<", "\n", "{", "{}", "\\boxed{", "&lt;", dialect.render(written(name)))
    }
    attacks = [(frame, (*found, "")) for found in sorted(near) for frame in frames(name).values()]
    attacks.sort(key=lambda attack: -seconds(dialect, filled(*attack, LARGE // 100)))
    worst = max(attacks[:8], key=lambda attack: seconds(dialect, filled(*attack, LARGE)))
    assert min(seconds(dialect, filled(*worst, LARGE)) for _ in range(3)) < 2.0, worst


@pytest.mark.parametrize("name", EVERY)
def test_near_matches_of_every_pattern_over_and_over(name: str, rounds: int) -> None:
    dialect, random = load(name), Random(name)
    near = list(dict.fromkeys(found for pattern in patterns_of(dialect) for found in nearly(pattern)))
    units = [unit for _, unit in near]
    attacks = []
    for _ in range(rounds):
        beginning, unit = random.choice(near)
        place, frame = random.choice(list(frames(name).items()))
        unit += random.choice(("", "", "x", random.choice(units)))
        tail = random.choice((*TAILS, random.choice(units), random.choice(units) * (SIZE // 50)))
        attacks.append((place, frame, (beginning, unit, tail)))
    assert not slow(dialect, attacks)


def test_every_pattern_of_a_dialect_is_attacked() -> None:
    from faithful_search.dialects import pokee, turns

    found = patterns_of(load("pokee"))
    assert {pokee._CHECK.pattern, turns.GAP.pattern, load("pokee").grammar.turn.pattern} <= {p.pattern for p in found}
    assert ("", "<verification>") in nearly(pokee._CHECK)
