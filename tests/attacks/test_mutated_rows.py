"""Rows of every format with slips in their structure, their bytes and their depth: each is read, or
refused in the package's own words, and what was read can be stored, rendered and scored.
"""

import json
import math
from functools import cache
from random import Random
from typing import Any

import pytest
from format_rows import rows

import faithful_search as fs
from faithful_search.dialects import load, names
from faithful_search.errors import FaithfulSearchError
from faithful_search.measure import metrics
from faithful_search.reading.rows import READER, Raw
from faithful_search.trajectory import Trajectory, encoded

WORDS = (
    *(
        "",
        "x",
        " ",
        "\ud83d",
        "\x00",
        "<tool_call>",
        "</think><answer>x</answer>",
        "{",
        '{"a": [',
        "[1",
    ),
    *(
        "['a'",
        "1e400",
        "NaN",
        "9" * 5000,
        "null",
        "\ufeff{}",
        "A" * 300,
        "[" * 900 + "]" * 900,
        "\u2028",
    ),
)
VALUES = (
    None,
    True,
    False,
    0,
    -1,
    10**30,
    1.5,
    -0.0,
    math.nan,
    math.inf,
    [],
    {},
    [[]],
    [None],
    {"": None},
)
BYTES = (
    b"\xff", b"\xc3", b"\x00", b"\xef\xbb\xbf", b"\\ud800", b"\\udc00", b"1e400", b"-1e999", b"NaN",
    b"-Infinity", b"9" * 5000, b'"', b"\\", b"{", b"}", b"[", b"]", b",", b"\n", b"[" * 900,
)  # fmt: skip


def places(value: Any) -> list[tuple[Any, Any]]:
    """Every list and object in a value with each of its keys."""
    found: list[tuple[Any, Any]] = []
    stack = [value]
    seen: set[int] = set()  # a value may hold itself
    while stack:
        item = stack.pop()
        if isinstance(item, dict | list) and id(item) not in seen:
            seen.add(id(item))
            keys = list(item) if isinstance(item, dict) else list(range(len(item)))
            found += [(item, key) for key in keys]
            stack += [item[key] for key in keys]
    return found


def nested(value: Any, levels: int, random: Random) -> Any:
    for _ in range(levels):
        value = random.choice(([value], {"a": value}, {"content": value}, {"query": value}))
    return value


def changed(value: Any, other: Any, random: Random) -> Any:
    """What may stand in the place of a value."""
    kind = random.choice(
        ("odd", "text", "other", "many", "part", "json", "printed", "nested", "nested", "foreign")
    )
    if kind == "odd":
        return random.choice(VALUES)
    if kind == "text":
        return random.choice(WORDS)
    if kind == "many":
        return [value] * random.choice((1, 2, 30))
    if kind == "part":
        return {"type": random.choice(("text", "tool_use", "tool_result", "x")), "text": value}
    if kind == "json":
        return json.dumps(value)
    if kind == "printed":
        return str(value)
    if kind == "nested":
        return nested(value, random.choice((3, 90, 190, 320, 900)), random)
    return other if kind == "other" else random.choice(list(rows().values()))


def mutated(row: Any, random: Random) -> Any:
    """The row after some slips of the program that wrote it."""
    row = json.loads(json.dumps(row))
    for _ in range(random.randint(1, 4)):
        found = places(row)
        if not found:
            break
        holder, key = random.choice(found)
        other_holder, other_key = random.choice(found)
        slip = random.randint(0, 9)
        if slip == 0:
            holder.pop(key)
        elif slip == 1 and isinstance(holder, dict):
            holder[str(other_key)] = holder.pop(key)
        else:
            holder[key] = changed(holder[key], other_holder[other_key], random)
        try:
            row = json.loads(json.dumps(row))  # what is shared, or holds itself, is apart again
        except (RecursionError, ValueError):
            break
    return row


def slipped(data: bytes, random: Random) -> bytes:
    """The row's JSON after slips of what copied it."""
    for _ in range(random.randint(1, 3)):
        at = random.randint(0, len(data))
        end = min(len(data), at + random.choice((0, 0, 1, 2, 20)))
        data = data[:at] + random.choice((b"", *BYTES)) + data[end:]
    return data[: random.choice((len(data), len(data), random.randint(0, len(data))))]


def assert_usable(trajectory: Trajectory) -> None:
    stored = encoded(trajectory)
    assert Trajectory.from_json(stored) is not None
    if trajectory.dialect in names():
        load(trajectory.dialect).render(trajectory)
    for step in trajectory.steps:
        for start, end in step.spans.values():
            assert 0 <= start <= end <= len(trajectory.text)
    for name, reward in rewards().items():
        low, high = reward.bounds
        value = reward.measure(reward.score(trajectory))
        assert value is None or low <= value <= high, name


@cache
def rewards() -> dict[str, Any]:
    """Those that ask no model, by the names of their results."""
    found: dict[str, Any] = {}
    for name in metrics.names():
        found |= metrics.load(name)
    return {name: reward for name, reward in found.items() if not reward.needs_policy}


@pytest.mark.parametrize("name", rows())
def test_a_row_with_slips_is_read_or_refused_in_the_packages_own_words(
    name: str, rounds: int
) -> None:
    random = Random(name)
    for _ in range(rounds):
        value = mutated(rows()[name], random)
        try:
            data = json.dumps(value).encode()
        except (RecursionError, ValueError):
            continue
        for given in (data, slipped(data, random)):
            row = READER(Raw.of(1, given))
            assert not row.error.startswith("could not be parsed"), (row.error, given)
            if row.trajectory is not None:
                assert_usable(row.trajectory)


@pytest.mark.parametrize("name", rows())
def test_a_value_with_slips_is_parsed_or_refused(name: str, rounds: int) -> None:
    random = Random(name)
    for _ in range(rounds):
        value = mutated(rows()[name], random)
        found = places(value)
        if found and random.random() < 0.3:  # a value of Python may hold itself
            holder, key = random.choice(found)
            holder[key] = random.choice(
                (value, holder, random.choice(found)[0], b"x", {1, 2}, (1,))
            )
        try:
            fs.parse(value)
        except FaithfulSearchError as error:
            assert str(error)
