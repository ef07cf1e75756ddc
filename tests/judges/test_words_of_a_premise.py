"""Few words are looked for in a premise one by one, many among all of its words: with one result."""

from hypothesis import given, settings, strategies as st

from faithful_search.judges import lexical

# Words that share beginnings, plurals, other scripts, accents, numbers, letters that fold to others
TEXT = (
    "Paris parish class classes The boss Café naïve 1889 1,889 1889s 5kg U.S. co-op x_y isle islet "
    "island islands reading readings straße İstanbul Σίσυφος 日本 \u017fmith \u212a \ufb01ne "
    "it\u2019s"
)
WORDS = TEXT.split()


def lacking(claimed, premise: str) -> list[str]:
    words, beginnings = lexical._words_of(premise)
    return [
        key
        for key, word in claimed.items()
        if key not in words
        and f"{key}s" not in words
        and (word.marked or key[:6] not in beginnings)
    ]


@given(
    claim=st.lists(st.sampled_from(WORDS), min_size=1, max_size=6).map(" ".join),
    premise=st.lists(st.sampled_from([*WORDS, ".", "\n\n", "\u2014"]), max_size=30).map(" ".join),
)
@settings(max_examples=400, deadline=None)
def test_few_words_are_found_as_many_are(claim, premise):
    claimed = lexical.claims(claim)
    assert lexical._missing(claimed, premise) == lacking(claimed, premise)
