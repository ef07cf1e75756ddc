"""Exact match and F1 as published, on answers worked out by hand.

`squad` is SQuAD's normaliser with HotpotQA's rule for closed answers, as Search-R1 and FlashRAG
score; `pokee` turns punctuation into spaces, keeps articles and compares sets, as PokeeResearch and
DeepResearcher do.
"""

import pytest

from faithful_search.text import exact_match, f1, sub_exact_match

EXACT = [
    # answer, golds, squad, pokee
    ("Barack Obama", ["barack obama"], 1.0, 1.0),
    ("  Barack\tObama ", ["Barack Obama"], 1.0, 1.0),
    ("The Beatles", ["Beatles"], 1.0, 0.0),
    ("a man and an axe", ["man and axe"], 1.0, 0.0),
    ("Theatre", ["atre"], 0.0, 0.0),  # "the" is dropped as a word only
    ("J.R.R. Tolkien", ["JRR Tolkien"], 1.0, 0.0),
    ("J.R.R. Tolkien", ["J R R Tolkien"], 0.0, 1.0),
    ("co-founder", ["cofounder"], 1.0, 0.0),
    ("co-founder", ["co founder"], 0.0, 1.0),
    ("1,000", ["1000"], 1.0, 0.0),
    ("Paris, France", ["Paris"], 0.0, 0.0),
    ("Paris", ["Lyon", "PARIS!"], 1.0, 1.0),
    ("Obama Barack", ["Barack Obama"], 0.0, 0.0),
    ("Beyoncé", ["Beyonce"], 0.0, 0.0),  # accents count
    ("", ["Paris"], 0.0, 0.0),
    ("yes", ["Yes."], 1.0, 1.0),
]
F1 = [
    ("Barack Hussein Obama", ["Barack Obama"], 0.8, 0.8),  # P 2/3, R 1
    ("Obama Barack", ["Barack Obama"], 1.0, 1.0),  # order does not count
    ("Paris, France", ["Paris"], 2 / 3, 2 / 3),
    ("Paris", ["Lyon", "Paris France"], 2 / 3, 2 / 3),  # the best gold answer counts
    ("the cat", ["cat"], 1.0, 2 / 3),  # the article stays in pokee
    ("New York New York", ["New York"], 2 / 3, 1.0),  # 2 of 4 tokens; as sets both are the same
    ("yes", ["no"], 0.0, 0.0),
    ("no, it is not", ["no"], 0.0, 0.4),  # closed answers get no share in squad; P 1/4, R 1
    ("Rome", ["Oslo"], 0.0, 0.0),
    ("co-founder of Apple", ["cofounder of Apple"], 1.0, 4 / 7),  # 2 of 4 and 2 of 3 tokens
]


@pytest.mark.parametrize(("answer", "golds", "squad", "pokee"), EXACT)
def test_exact_match_by_hand(answer, golds, squad, pokee):
    assert [exact_match(answer, golds, how) for how in ("squad", "pokee")] == [squad, pokee]


@pytest.mark.parametrize(("answer", "golds", "squad", "pokee"), F1)
def test_f1_by_hand(answer, golds, squad, pokee):
    scores = [f1(answer, golds, how) for how in ("squad", "pokee")]
    assert scores == pytest.approx([squad, pokee])


@pytest.mark.parametrize("how", ["squad", "pokee", "unicode"])
@pytest.mark.parametrize(
    ("answer", "gold", "value"), [("A", "a", 1.0), ("+", "+", 1.0), ("+", "-", 0.0)]
)
def test_an_answer_without_content_agrees_as_much_in_every_score(answer, gold, value, how):
    """Choices are called A, and answers may be signs."""
    scores = [compare(answer, [gold], how) for compare in (exact_match, f1, sub_exact_match)]
    assert scores == [value] * 3
