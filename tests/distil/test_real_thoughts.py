"""Labelled pairs made of thoughts that agents really had."""

import random

import pytest

from faithful_search.distil.real_thoughts import (
    RealThought,
    answered_pairs,
    edited_thoughts,
    places_of,
    presumed_label,
)

ADA = "Ada Lind\nAda Lind (born 3 May 1902) was a painter from Norway. She lived with Nils Berg."
SCHOOL = "Art schools\nThe painter Ada Lind studied in Bergen until 1921."
QUESTION = "Where did the painter of The Blue Pier study?"
FOUND = "From the search results, I can see that Ada Lind was a painter from Norway."
SEARCHES = f"{FOUND} I'll use a search query to find out where she studied:"
DENIES = f"{FOUND} I couldn't find specific information about her school."
CONCLUDES = "Ada Lind studied in Bergen. Therefore, the answer is Bergen."
DATED = "Ada Lind was born on May 3, 1902, while Nils Berg was born on 18 January 1910."
INVENTED = "Ada Lind was born on May 4, 1902, while Nils Berg was born on 18 January 1910."
BOTH = f"{ADA}\n\n{SCHOOL}"
SEEDS = range(80)


def thought(evidence: str, text: str, answers=("Bergen",)) -> RealThought:
    return RealThought(evidence, text, QUESTION, answers)


@pytest.mark.parametrize(
    ("evidence", "text", "label"),
    [
        (ADA, SEARCHES, True),
        (BOTH, SEARCHES, False),
        (ADA, DENIES, True),
        (BOTH, DENIES, False),
        (BOTH, CONCLUDES, True),
        (ADA, CONCLUDES, False),
        (ADA, DATED, True),
        (ADA, INVENTED, False),
        (ADA, "She was born on 4 May 1902.", False),
        (BOTH, f"{CONCLUDES} I will search for more.", None),
        (ADA, FOUND, None),
    ],
)
def test_answers_and_dates_say_what_a_label_may_be(evidence, text, label):
    assert presumed_label(thought(evidence, text)) is label


@pytest.mark.parametrize("answers", [(), ("yes",), ("no",), ("Blue Pier",)])
def test_an_answer_that_tells_nothing_gives_no_label(answers):
    assert presumed_label(thought(BOTH, SEARCHES, answers)) is None


def test_wrong_words_have_their_places():
    assert places_of("a b a", ["b", "a", "c", ""]) == ((2, 3), (0, 1))


def edits():
    pairs = []
    for seed in SEEDS:
        pairs += edited_thoughts(thought(BOTH, f"{DATED} {CONCLUDES}"), random.Random(seed))
    return pairs


def test_an_edited_thought_has_errors_of_many_kinds():
    kinds = {pair.kind for pair in edits()}
    assert {"name", "number", "date", "evidence_only", "both_sides"} <= kinds


def test_only_the_same_exchange_on_both_sides_leaves_a_thought_true():
    assert {pair.kind for pair in edits() if pair.label} == {"both_sides"}


def test_the_place_of_an_error_lies_in_the_thought():
    places = {pair.hypothesis[start:end] for pair in edits() for start, end in pair.spans}
    assert "" not in places


def test_after_an_exchange_in_the_evidence_the_thought_is_as_it_was():
    texts = {pair.hypothesis for pair in edits() if pair.kind == "evidence_only"}
    assert texts == {f"{DATED} {CONCLUDES}"}


def test_what_the_evidence_does_not_say_is_not_edited():
    olds = {"18 January 1910" in pair.hypothesis for pair in edits() if pair.kind == "date"}
    assert olds == {True}


def test_pairs_keep_the_question_by_which_they_are_split():
    assert {pair.question for pair in edits()} == {QUESTION}


@pytest.mark.parametrize("text", [SEARCHES, DENIES])
def test_a_search_for_what_is_now_returned_is_false(text):
    [pair] = answered_pairs(thought(ADA, text), [ADA, SCHOOL], random.Random(0))
    assert (pair.kind, pair.label, SCHOOL in pair.premise) == ("answered", False, True)


def test_a_search_for_what_is_no_longer_returned_is_true():
    [pair] = answered_pairs(thought(BOTH, SEARCHES), [], random.Random(0))
    assert (pair.kind, pair.label, pair.premise) == ("unanswered", True, ADA)


@pytest.mark.parametrize(
    ("evidence", "text"),
    [
        (BOTH, CONCLUDES),  # it does not go on
        (ADA, SEARCHES),  # no other search returned the answer
        (SCHOOL, SEARCHES),  # nothing else was returned
        (f"{SCHOOL}\n\nOslo\nA town.", SEARCHES),  # what it found would be gone
    ],
)
def test_other_thoughts_give_no_such_pair(evidence, text):
    assert list(answered_pairs(thought(evidence, text), [ADA], random.Random(0))) == []
