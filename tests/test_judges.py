import doctest

import pytest

from faithful_search.errors import ConfigError
from faithful_search.judges import Judge, LexicalJudge, Pair
from faithful_search.judges import lexical as module


def label(premise: str, hypothesis: str, how: str = "squad") -> bool:
    return LexicalJudge(how).judge_batch([Pair(premise, hypothesis)])[0].label


def test_doctests():
    assert doctest.testmod(module).failed == 0


@pytest.mark.parametrize(
    ("premise", "hypothesis", "supported"),
    [
        ("Paris is the capital.", "paris", True),
        ("It stands in The Hague.", "the Hague!", True),
        ("A Parisian café.", "Paris", False),
        ("born in 1984", "1984", True),
        ("born in 19845", "1984", False),
        ("anything", "", False),
        ("", "Paris", False),
        ("the, a, an", "the", False),  # nothing is left of it
        ("yes, they are", "yes", False),
        ("there is no doubt", "No.", False),
        ("He moved to New\n\nYork is a city", "New York", False),  # not across documents
        ("He moved to New\nYork", "New York", True),
    ],
)
def test_containment_on_word_boundaries(premise, hypothesis, supported):
    assert label(premise, hypothesis) is supported


def test_the_normaliser_is_a_knob():
    assert label("an act of the U S A", "U.S.A.", "pokee")
    assert not label("an act of the U S A", "U.S.A.", "squad")
    with pytest.raises(ConfigError):
        label("a", "b", "other")


def test_verdicts_come_in_order_with_p_and_name():
    verdicts = LexicalJudge().judge_batch([Pair("x y", "y"), Pair("x", "y")])
    assert [(v.p, v.label, v.judge) for v in verdicts] == [(1.0, True, "lexical"), (0.0, False, "lexical")]
    assert isinstance(LexicalJudge(), Judge)
    assert LexicalJudge().judge_batch([]) == []
