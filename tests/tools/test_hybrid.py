"""Reciprocal rank fusion, against sums done by hand."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from faithful_search.errors import ConfigError
from faithful_search.tools.retrieval.index import HybridIndex, Index
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
    found = HybridIndex((Ranking("a", "b", "c", "a"), Ranking("c", "d", "a"))).search("?", 10)
    both, second = float(Fraction(1, 61) + Fraction(1, 63)), float(Fraction(1, 62))
    assert [(e.source, e.score) for e in found] == [
        *((name, round(both, 6)) for name in "ac"),  # ties go to the first part's
        *((name, round(second, 6)) for name in "bd"),
    ]


def test_each_query_is_fused_by_itself_and_paragraphs_of_one_source_stay_apart():
    class ByQuery(Ranking):
        def search_batch(self, queries, top_k):
            return [[Evidence(text=f"{q}{n}", source=q) for n in range(2)] for q in queries]

    hybrid = HybridIndex((ByQuery(), ByQuery()))
    assert [[e.text for e in row] for row in hybrid.search_batch(["x", "y"], 9)] == [["x0", "x1"], ["y0", "y1"]]
    assert hybrid.search_batch([], 3) == []


def test_parts_are_asked_deeper_than_the_answer():
    parts = Ranking(*"abc"), Ranking(*"cba")
    for top_k in (3, 70):
        HybridIndex(parts).search("?", top_k)
    assert parts[0].asked == parts[1].asked == [50, 70]


@given(st.lists(st.lists(st.sampled_from("abcdefg"), unique=True), min_size=1, max_size=4))
def test_the_order_is_that_of_exact_sums(rankings):
    exact: dict[str, Fraction] = {}
    for ranking in rankings:
        for rank, name in enumerate(ranking, start=1):
            exact[name] = exact.get(name, Fraction(0)) + Fraction(1, 60 + rank)
    assert order(HybridIndex(tuple(Ranking(*r) for r in rankings))) == sorted(exact, key=lambda n: -exact[n])


def test_it_is_a_value_with_parts():
    with pytest.raises(ConfigError, match="needs parts"):
        HybridIndex(())
    hybrid = HybridIndex([Ranking("a", "b")])
    assert (len(hybrid), hybrid.inline) == (2, False)
    assert order(pickle.loads(pickle.dumps(hybrid))) == ["a", "b"]
