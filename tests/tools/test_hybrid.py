"""Reciprocal rank fusion, against sums done by hand."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from faithful_search.errors import ConfigError, ToolError
from faithful_search.tools.retrieval.hybrid import HybridIndex
from faithful_search.tools.retrieval.index import Index
from faithful_search.trajectory import Evidence


class Ranking(Index):
    """Finds the same passages for every query, in this order."""

    def __init__(self, *sources: str) -> None:
        self.sources, self.asked = sources, []

    def search_batch(self, queries: Sequence[str], top_k: int) -> list[list[Evidence]]:
        self.asked.append(top_k)
        return [[Evidence(text=f"text {s}", source=s, score=9.0) for s in self.sources[:top_k]] for _ in queries]

    def __len__(self) -> int:
        return len(self.sources)


def order(index: Index, top_k: int = 10) -> list[str]:
    return [found.source for found in index.search("?", top_k)]


def test_scores_are_the_sums_worked_by_hand():
    found = HybridIndex((Ranking("a", "b", "c"), Ranking("c", "d", "a")), k=60).search("?", 10)
    both, second = float(Fraction(1, 61) + Fraction(1, 63)), float(Fraction(1, 62))
    assert [(e.source, e.score) for e in found] == [
        *((name, round(both, 6)) for name in "ac"),  # ties go to the first part's
        *((name, round(second, 6)) for name in "bd"),
    ]


def test_each_query_is_fused_by_itself_and_cut():
    class ByQuery(Ranking):
        def search_batch(self, queries, top_k):
            return [[Evidence(text=q, source=q)] for q in queries]

    hybrid = HybridIndex((ByQuery(), ByQuery()))
    assert [[e.source for e in row] for row in hybrid.search_batch(["x", "y"], 1)] == [["x"], ["y"]]
    assert hybrid.search_batch([], 3) == []


def test_a_passage_deep_in_both_parts_beats_one_first_in_one():
    parts = Ranking("a", *"bcdef"), Ranking("x", "c", *"uvw")
    assert order(HybridIndex(parts), 1) == ["c"]


def test_parts_are_asked_deeper_than_the_answer():
    parts = Ranking(*"abc"), Ranking(*"cba")
    HybridIndex(parts, depth=20).search("?", 3)
    HybridIndex(parts, depth=20).search("?", 30)
    assert parts[0].asked == parts[1].asked == [20, 30]


def test_what_one_part_names_twice_counts_once():
    found = HybridIndex((Ranking("a", "a", "b"),), k=0).search("?", 5)
    assert [(e.source, e.score) for e in found] == [("a", 1.0), ("b", 0.5)]


def test_paragraphs_of_one_source_stay_apart():
    class Paragraphs(Ranking):
        def search_batch(self, queries, top_k):
            return [[Evidence(text="one", source="doc"), Evidence(text="two", source="doc")] for _ in queries]

    assert [e.text for e in HybridIndex((Paragraphs(), Paragraphs())).search("?", 5)] == ["one", "two"]


@given(st.lists(st.lists(st.sampled_from("abcdefg"), unique=True), min_size=1, max_size=4), st.integers(0, 100))
def test_the_order_is_that_of_exact_sums(rankings, k):
    exact: dict[str, Fraction] = {}
    for ranking in rankings:
        for rank, name in enumerate(ranking, start=1):
            exact[name] = exact.get(name, Fraction(0)) + Fraction(1, k + rank)
    assert order(HybridIndex(tuple(Ranking(*r) for r in rankings), k=k)) == sorted(exact, key=lambda n: -exact[n])


def test_a_failing_part_is_a_failure():
    class Down(Ranking):
        def search_batch(self, queries, top_k):
            raise ToolError("down", passing=True)

    with pytest.raises(ToolError, match="down"):
        HybridIndex((Ranking("a"), Down())).search("?", 1)


def test_settings_that_mean_nothing_are_refused():
    for wrong in ({"parts": ()}, {"parts": (Ranking("a"),), "k": -1}, {"parts": (Ranking("a"),), "depth": 0}):
        with pytest.raises(ConfigError):
            HybridIndex(**wrong)


def test_it_is_a_value():
    hybrid = HybridIndex([Ranking("a", "b")])
    assert (len(hybrid), hybrid.inline) == (2, False)
    assert order(pickle.loads(pickle.dumps(hybrid))) == ["a", "b"]
