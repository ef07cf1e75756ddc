"""Answers compared as people read them: the normaliser `unicode`."""

import time

import pytest
from growth import MOST, growth
from hypothesis import given, strategies as st

from faithful_search.answer_tokens import tokens
from faithful_search.text import exact_match, f1, normalize, sub_exact_match

SAME = [
    ("Adventures of a Taxi Driver", "Adventures Of A Taxi Driver"),
    ("Beyonce\u0301", "Beyonc\u00e9"),
    ("O\u2019Brien", "O'Brien"),
    ("1939\u20131945", "1939-1945"),
    ("\uff36\uff45\uff4c\uff44\uff54", "Veldt"),
    ("don\u00a0Quixote", "Don Quixote"),
    ("co\u00adoperate", "cooperate"),
    ("\ufb01nance", "finance"),
    ("\u201cHamlet\u201d", "Hamlet"),
    ("**The Louvre**", "Louvre"),
    ("Tom &amp; Jerry", "Tom & Jerry"),
    ("U.S.A.", "USA"),
    ("J. K. Rowling", "J.K. Rowling"),
    ("1,200,300", "1 200 300"),
    ("1'200'300", "1200300"),
    ("1.200.300", "1,200,300"),
    ("1.50", "1.5"),
    ("+5", "5"),
    ("\u22125", "-5"),
    ("\u0663", "3"),
    ("\u20ac5", "5 \u20ac"),
    ("$3.2 million", "3.2 million $"),
    ("50 percent", "50%"),
    ("3\u00bd", "3 1/2"),
    ("H\u2082O", "H2O"),
    ("October 1st, 1949", "1 October 1949"),
    ("Oct. 1, 1949", "1949-10-01"),
    ("1949\u5e7410\u67081\u65e5", "1949\u5e7410\u670801\u65e5"),
    ("May 1999", "1999\u5e745\u6708"),
    ("the 4th of July", "July 4"),
    ("\u5317\u4eac\u3002", "\u5317\u4eac"),
    ("\u300a\u7ea2\u697c\u68a6\u300b", "\u7ea2\u697c\u68a6"),
    ("\u30af\u30ed\u30fc\u30c9\u30fb\u30e2\u30cd", "\u30af\u30ed\u30fc\u30c9\u30e2\u30cd"),
    ("No.", "no"),
    ("True", "yes"),
    ("false", "No"),
]
OTHER = [
    ("1.5", "15"),
    ("-5", "5"),
    ("3.2 million", "32 million"),
    ("$2.50", "$250"),
    ("50%", "50"),
    ("C++", "C"),
    ("F#", "F"),
    ("A+", "A"),
    ("10/1", "101"),
    ("10:30", "1030"),
    ("10\u00b2", "102"),
    ("3\u00bd", "31/2"),
    ("1.2.3", "1.23"),
    ("007", "7"),
    ("Vitamin A", "Vitamin"),
    ("Vitamin A Deficiency", "Vitamin Deficiency"),
    ("m\u00b2", "m"),
    ("10 May 1999", "11 May 1999"),
]


@pytest.mark.parametrize(("answer", "gold"), SAME)
def test_other_typography_is_the_same_answer(answer, gold):
    assert exact_match(answer, [gold], "unicode") == 1.0


@pytest.mark.parametrize(("answer", "gold"), OTHER)
def test_another_meaning_is_another_answer(answer, gold):
    assert exact_match(answer, [gold], "unicode") == 0.0


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        ("1939-1945", ("1939", "1945")),
        ("COVID-19", ("covid", "19")),
        ("-0.0", ("0",)),
        ("A Tale of the City", ("tale", "of", "city")),
        ("February 31st, 1949", ("2m", "31d", "1949")),
        ("1949-13-01", ("1949", "13", "01")),
        ("\u2026", ()),
    ],
)
def test_tokens_worked_out_by_hand(answer, expected):
    assert sorted(tokens(answer)) == sorted(expected)


@given(st.text())
def test_tokens_hold_no_blanks(text):
    assert all(token and not token.isspace() for token in tokens(text))


@given(st.text(alphabet="ab .,-1'0é\u5317", max_size=40))
def test_case_makes_no_difference(text):
    assert tokens(text.lower()) == tokens(text.lower().upper().lower())


@pytest.mark.parametrize(
    ("answer", "gold", "expected"),
    [
        ("Yes, both were American.", "yes", 1.0),
        ("The answer is no", "no", 1.0),
        ("Unknown", "no", 0.0),
        ("Norway", "no", 0.0),
        ("There is no source that says so", "no", 0.0),
        ("I cannot know", "no", 0.0),
        ("Yes and no", "yes", 0.0),
        ("Yes and no", "no", 0.0),
        ("Yes, yes", "yes", 1.0),
        ("He was born in Veldt, Oran.", "Veldt", 1.0),
        ("Veldtham", "Veldt", 0.0),
        ("He was born on 1 October 1949.", "1949", 1.0),
        ("1 October 1949", "10", 0.0),
        ("\u4ed6\u751f\u4e8e\u5317\u4eac\u3002", "\u5317\u4eac", 1.0),
    ],
)
def test_sub_em_looks_for_whole_words(answer, gold, expected):
    assert sub_exact_match(answer, [gold], "unicode") == expected


@pytest.mark.parametrize(
    ("answer", "gold", "expected"),
    [
        ("\u4e2d\u534e\u4eba\u6c11\u5171\u548c\u56fd", "\u4e2d\u56fd", 2 * 2 / (7 + 2)),
        ("Ada King Lovelace", "Ada Lovelace", 0.8),
        ("1 October 1949", "October 1949", 0.8),
        ("no way", "no", 0.0),
        ("the the", "", 0.0),
    ],
)
def test_f1_by_words_and_characters(answer, gold, expected):
    assert f1(answer, [gold], "unicode") == pytest.approx(expected)


@pytest.mark.parametrize(
    "pump",
    [
        "1,",
        "1 ",
        "1'",
        "a. ",
        ".1",
        "1.",
        "$",
        "-",
        "may ",
        "\u00b2",
        "&amp",
        "'",
        "1\u5e74",
        "the ",
    ],
)
def test_long_answers_take_linear_time(pump):
    def seconds(size: int) -> float:
        text = pump * (size // len(pump))
        start = time.process_time()
        normalize(text + "x", "unicode")
        return time.process_time() - start

    assert growth(seconds, 80_000) <= MOST
