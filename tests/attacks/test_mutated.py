"""Transcripts with slips: parsers raise nothing, point into the text, and what they read can be stored and rendered."""

from __future__ import annotations

import json
from collections.abc import Iterator
from random import Random

import pytest
from transcripts import PIECES, SLOT, frames, mutated, written

from faithful_search.dialects import Dialect, detect, load, names, parse
from faithful_search.errors import FaithfulSearchError
from faithful_search.trajectory import Span, Trajectory

EVERY = names()


def spans(found: Trajectory) -> Iterator[Span]:
    for step in found.steps:
        yield from step.spans.values()
        yield from (issue.span for issue in step.issues if issue.span)
    yield from (issue.span for issue in found.issues if issue.span)


def assert_consistent(dialect: Dialect, found: Trajectory, text: str) -> None:
    assert found.dialect == dialect.name and found.text == text
    assert all(0 <= start <= end <= len(text) for start, end in spans(found))
    assert all(issue.kind and issue.why for issue in found.all_issues())
    if "\ud800" not in text:
        assert Trajectory.from_json(found.to_json()) == found
    again = dialect.parse(text)
    assert again == found


def transcripts(dialect: Dialect, random: Random) -> str:
    frame = random.choice(list(frames(dialect).values()))
    return frame.replace(SLOT, "".join(random.choice(PIECES) for _ in range(random.randint(0, 6))))


@pytest.mark.parametrize("name", EVERY)
def test_a_mutated_transcript_is_read(name: str, rounds: int) -> None:
    dialect, random = load(name), Random(name)
    for _ in range(rounds):
        text = mutated(transcripts(dialect, random), random)
        assert_consistent(dialect, dialect.parse(text), text)
        for first in (True, False):
            dialect.parse_turn(text, first=first)
        dialect.repair_call(text)
        detect(text)


@pytest.mark.parametrize("name", EVERY)
def test_a_mutated_chat_is_read(name: str, rounds: int) -> None:
    dialect, random = load(name), Random(name)
    for _ in range(rounds):
        roles = [random.choice(("system", "user", "assistant", "tool", "ipython")) for _ in range(random.randint(1, 5))]
        chat = [{"role": role, "content": mutated(transcripts(dialect, random), random)} for role in roles]
        found = dialect.parse_messages(chat)
        assert all(0 <= start <= end <= len(found.text) for start, end in spans(found))
        assert parse(chat, name).steps == found.steps


@pytest.mark.parametrize("name", EVERY)
def test_any_source_is_read_or_refused_in_the_packages_own_words(name: str, rounds: int) -> None:
    random = Random(name)
    chat = [
        {"role": "user", "content": "Who?"},
        {"role": "assistant", "content": load(name).render(written(load(name)))},
    ]
    sources = [written(load(name)).to_json(), json.dumps(chat), json.dumps({"messages": chat}), chat[1]["content"]]
    for _ in range(rounds):
        for dialect in (None, name):
            try:
                parse(mutated(random.choice(sources), random), dialect)
            except FaithfulSearchError as error:
                assert str(error)


@pytest.mark.parametrize("name", EVERY)
def test_what_is_rendered_of_any_evidence_is_read_back(name: str, rounds: int) -> None:
    dialect, random = load(name), Random(name)
    for _ in range(rounds):
        text, note = ("".join(random.choice(PIECES) for _ in range(random.randint(1, 8))) for _ in range(2))
        for given in (written(dialect, text=text), written(dialect, note=note)):
            found = dialect.parse(dialect.render(given), fenced=True)
            assert [step.evidence for step in found.steps] == [step.evidence for step in given.steps]
            assert [(step.note, step.answer) for step in found.steps] == [(s.note, s.answer) for s in given.steps]
            assert dialect.render(found) == dialect.render(given) and not found.all_issues()
