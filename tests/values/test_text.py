"""The normalisers and answer comparisons, on cases worked by hand."""

import pytest
from hypothesis import given, settings, strategies as st

from faithful_search.errors import ConfigError
from faithful_search.text import (
    as_markdown,
    content_words,
    exact_match,
    f1,
    normalize,
    printable,
    sentences,
    shortened,
    sub_exact_match,
    well_formed,
)


@pytest.mark.parametrize(
    ("text", "squad", "pokee"),
    [
        ("The U.S.A. co-op", "usa coop", "the u s a co op"),
        ("  A  man,\na plan ", "man plan", "a man a plan"),
        ("Theatre", "theatre", "theatre"),
        ("an_apple", "anapple", "an apple"),
        ("a.n.", "", "a n"),
        ("l\u2019été", "l\u2019été", "l\u2019été"),
        ("", "", ""),
    ],
)
def test_normalisers_differ_as_documented(text: str, squad: str, pokee: str) -> None:
    assert normalize(text) == squad
    assert normalize(text, "pokee") == pokee


@settings(deadline=None)
@given(st.text())
def test_pokee_normalisation_is_idempotent_and_squad_has_no_outer_blanks(text: str) -> None:
    once = normalize(text, "pokee")
    assert normalize(once, "pokee") == once
    assert normalize(text) == normalize(text).strip()


def test_unknown_normaliser_is_named_with_those_there_are() -> None:
    with pytest.raises(ConfigError, match=r"'triviaqa'.*squad, pokee"):
        normalize("x", "triviaqa")
    with pytest.raises(ConfigError):
        f1("x", ["x"], "triviaqa")


def test_exact_match_takes_any_gold_and_nothing_matches_nothing() -> None:
    assert exact_match("the Eiffel Tower!", ["Louvre", "Eiffel tower"]) == 1.0
    assert exact_match("the Eiffel Tower", ["Eiffel tower"], "pokee") == 0.0
    assert exact_match(None, ["x"]) == exact_match("x", []) == 0.0
    assert exact_match("A", ["A"]) == exact_match(" + ", ["+"]) == 1.0  # without content, as some golds are
    assert exact_match("the", ["A"]) == exact_match(".", ["+"]) == exact_match(" ", [""]) == 0.0


def test_sub_exact_match_looks_for_the_gold_in_the_prediction_and_not_the_reverse() -> None:
    assert sub_exact_match("It is Paris, France.", ["paris"]) == 1.0
    assert sub_exact_match("Paris", ["Paris, France"]) == sub_exact_match(None, ["x"]) == 0.0
    assert sub_exact_match("anything", ["the"]) == 0.0, "a gold that normalises to nothing is in everything"


@pytest.mark.parametrize(
    ("prediction", "golds", "squad", "pokee"),
    [
        ("Ada King Lovelace", ["Ada Lovelace"], 0.8, 0.8),  # 3 tokens against 2, 2 common: P 2/3, R 1
        ("new new new", ["new"], 0.5, 1.0),  # multiset: one common of 3 and 1 tokens; as sets both are {"new"}
        ("x", ["y", "x"], 1.0, 1.0),
        ("x", [], 0.0, 0.0),
        (None, ["x"], 0.0, 0.0),
        ("", [""], 0.0, 0.0),
        ("yes it is", ["yes"], 0.0, 0.5),  # HotpotQA's rule: closed answers get no partial credit
        ("no", ["no way"], 0.0, 2 / 3),
        ("Yes.", ["yes"], 1.0, 1.0),
    ],
)
def test_f1_counts_tokens_in_squad_and_sets_in_pokee(prediction, golds, squad, pokee) -> None:
    assert [f1(prediction, golds, how) for how in ("squad", "pokee")] == pytest.approx([squad, pokee])


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("One. Two! Three?", ["One.", "Two!", "Three?"]),
        ("Dr. J. R. Smith met Mrs. Jones. They left.", ["Dr. J. R. Smith met Mrs. Jones.", "They left."]),
        ("It cost 3.5 million. 12 died.", ["It cost 3.5 million.", "12 died."]),
        ("He lives in the U.S. and works.", ["He lives in the U.S. and works."]),
        ("first line\nsecond line", ["first line", "second line"]),
        ('He said "Go." Then left.', ['He said "Go."', "Then left."]),
        ("", []),
        (" \n ", []),
    ],
)
def test_sentences(text: str, expected: list[str]) -> None:
    assert sentences(text) == expected


@settings(deadline=None)
@given(st.text(alphabet="aB. \n!?\"'Dr"))
def test_sentences_lose_nothing_but_blanks(text: str) -> None:
    assert "".join("".join(sentences(text)).split()) == "".join(text.split())


def test_content_words_drop_function_words_and_keep_order_and_repeats() -> None:
    assert content_words("The Seine is in Paris, and Paris is on the Seine; it's 777 km") == [
        "seine", "paris", "paris", "seine", "it's", "777", "km",
    ]  # fmt: skip
    assert content_words("of the") == []


def test_text_made_safe_to_show() -> None:
    assert as_markdown("a|b <i>\n[c](d)") == r"a\|b \<i\> \[c\](d)" and printable("a\x1b[2J\nb") == "a\\x1b[2J\nb"
    assert (well_formed("a\ud800b"), shortened("abcdef", 4), shortened("abcd", 4)) == ("a?b", "abc…", "abcd")
