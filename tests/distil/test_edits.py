"""Edits of statements: what they change, and where they say that the error is."""

import random
from typing import Any

import pytest

from faithful_search.distil.edits import ERRORS, REWORDINGS, Edited, exchange, names

STATEMENT = (
    "Ada Lovelace was born in London on 10 December 1815 and was directed by Charles Babbage."
)
TEXTS = (
    "Mary Somerville lived for many years in Edinburgh. She was born on 26 March 1780, "
    "and Sophie Germain in 1776.",
)


def edited(kind: str, statement: str = STATEMENT, seed: int = 0) -> Any:
    return (ERRORS | REWORDINGS)[kind](statement, TEXTS, random.Random(seed))


@pytest.mark.parametrize("kind", list(ERRORS))
def test_an_error_changes_the_statement(kind):
    assert edited(kind).text != STATEMENT


@pytest.mark.parametrize("kind", list(ERRORS))
def test_an_error_says_where_it_is(kind):
    result = edited(kind)
    places = [result.text[start:end] for start, end in result.spans]
    unchanged = [place for place in places if place in STATEMENT and kind != "roles"]
    assert (len(places) > 0, unchanged) == (True, [])


@pytest.mark.parametrize("kind", list(ERRORS))
def test_what_is_outside_the_span_is_unchanged(kind):
    result = edited(kind)
    start = result.spans[0][0]
    assert result.text[:start] == STATEMENT[:start]


@pytest.mark.parametrize("kind", list(REWORDINGS))
def test_a_rewording_has_no_error(kind):
    statement = "The Bear (a film) was directed by Jo Ray on May 3, 2001, which critics liked."
    assert edited(kind, statement).spans == ()


@pytest.mark.parametrize("kind", ["name", "number", "date", "negation", "relation", "roles"])
def test_an_edit_that_does_not_apply_gives_none(kind):
    assert edited(kind, "so they say") is None


def test_a_negation_is_taken_back():
    assert edited("negation", "He was not born in Rome.").text == "He was born in Rome."


def test_roles_are_swapped():
    text = "Ada Lovelace was taught by Charles Babbage."
    assert edited("roles", text).text == "Charles Babbage was taught by Ada Lovelace."


def test_a_passive_becomes_active():
    text = "The Bear was directed by Jo Ray."
    assert edited("reworded", text).text == "Jo Ray directed The Bear."


def test_a_date_is_written_in_the_other_order():
    assert "3 May 2001" in edited("reworded", "It opened on May 3, 2001.").text


def test_months_are_no_names():
    assert names("It opened in Paris.") == ["Paris"]


def test_an_exchange_is_repeated_elsewhere():
    change = Edited("", "name", (), "Paris", "Rome")
    assert exchange("In Paris, Parisians live.", change) == "In Rome, Parisians live."
