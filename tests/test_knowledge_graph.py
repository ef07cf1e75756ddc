"""The knowledge graph: which entities a query names and which facts it gets."""

import asyncio
import gzip
import json
import pickle
import re
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from faithful_search.bundled import world_file
from faithful_search.errors import DataError
from faithful_search.tasks import read_rows
from faithful_search.tools import KnowledgeGraph, Toolbox
from faithful_search.trajectory import ToolCall

FACTS = [
    ("France", "capital", "Paris"),
    ("France", "continent", "Europe"),
    ("France", "largest city", "Paris"),
    ("Guinea", "capital", "Conakry"),
    ("Equatorial Guinea", "capital", "Malabo"),
    ("Papua New Guinea", "capital", "Port Moresby"),
    ("Poland", "language", "Polish"),
    ("nail varnish", "kind", "polish"),
    ("New York", "state", "New York State"),
    ("York City Council", "seat", "York"),
    ("Россия", "столица", "Москва"),
    ("法国", "首都", "巴黎"),
    ("مصر", "عاصمة", "القاهرة"),
    ('a/b <c> "d" %20', "odd", "line\nbreak"),
]
ROWS = [{"id": f"t{n}", "subject": s, "relation": r, "object": o} for n, (s, r, o) in enumerate(FACTS)]


@pytest.fixture(scope="module")
def graph() -> KnowledgeGraph:
    return KnowledgeGraph.from_triples(ROWS)


def ask(graph: KnowledgeGraph, query: str) -> list[str]:
    return [item.text for item in asyncio.run(graph.knowledge_graph(query))]


def test_a_fact_is_a_sentence_with_its_source(graph):
    [best, *_] = asyncio.run(graph.knowledge_graph("What is the capital of France?"))
    assert (best.text, best.title, best.source) == ("The capital of France is Paris.", "France", "t0")
    assert best.id == "" and best.score is None


def test_the_relation_asked_for_comes_first_then_the_order_given(graph):
    assert ask(graph, "continent France") == [
        "The continent of France is Europe.",
        "The capital of France is Paris.",
        "The largest city of France is Paris.",
    ]
    assert ask(graph, "largest city France")[0] == "The largest city of France is Paris."


def test_both_directions(graph):
    assert ask(graph, "Conakry") == ["The capital of Guinea is Conakry."]


def test_a_fact_between_two_named_entities_comes_once(graph):
    assert ask(graph, "France Paris capital") == [
        "The capital of France is Paris.",
        "The continent of France is Europe.",
        "The largest city of France is Paris.",
    ]


@pytest.mark.parametrize(
    ("query", "entities"),
    [
        ("capital of Equatorial Guinea", ["Equatorial Guinea"]),
        ("capital of Guinea", ["Guinea"]),
        ("Guinea or Papua New Guinea", ["Guinea", "Papua New Guinea"]),
        ("equatorial guinea", ["Equatorial Guinea"]),
        ("Guineans", []),
        ("Polish", ["Polish"]),
        ("polish", ["polish"]),
        ("POLISH", ["Polish", "polish"]),
        ("the New York City Council", ["York City Council"]),
        ("New York, York City Council", ["New York", "York City Council"]),
        ("New York State", ["New York State"]),
        ("столица россия", ["Россия"]),
        ("法国的首都是什么", ["法国"]),
        ("ما عاصمة مصر؟", ["مصر"]),
        ("Paris, Paris", ["Paris"]),
        ("", []),
        ("\ud800 ?", []),
    ],
)
def test_entities_by_the_longest_label(graph, query, entities):
    assert graph.entities(query) == entities


def test_other_scripts_are_answered(graph):
    assert ask(graph, "法国的首都是什么") == ["The 首都 of 法国 is 巴黎."]
    assert ask(graph, "Москва") == ["The столица of Россия is Москва."]


def test_labels_that_are_no_iris(graph):
    assert ask(graph, "a/b <c> d 20") == ['The odd of a/b <c> "d" %20 is line\nbreak.']


def test_no_entity_no_evidence(graph):
    assert ask(graph, "capital of Atlantis") == []
    with Toolbox([graph]) as toolbox:
        [found] = toolbox.run_batch([ToolCall("knowledge_graph", {"query": "Atlantis"})], [toolbox.session()])
    assert (found.note, found.error) == ("No results.", False)


def test_top_k(graph):
    assert len(ask(KnowledgeGraph.from_triples(ROWS, top_k=1), "France")) == 1
    assert len(ask(KnowledgeGraph.from_triples(ROWS, top_k=9), "Paris France")) == 3


def test_the_same_fact_from_two_sources_keeps_both():
    graph = KnowledgeGraph.from_triples([ROWS[0], {**ROWS[0], "id": "again"}])
    assert [item.source for item in asyncio.run(graph.knowledge_graph("Paris"))] == ["t0", "again"]


@settings(deadline=None)
@given(
    st.lists(st.tuples(*[st.text("abAB -'", min_size=1).filter(str.strip)] * 3), min_size=1, max_size=6),
    st.text("abAB -'"),
)
def test_every_fact_returned_is_one_of_the_graph_and_names_its_entity(triples, query):
    rows = [{"subject": s, "relation": r, "object": o} for s, r, o in triples]
    graph = KnowledgeGraph.from_triples(rows, top_k=100)
    for item in asyncio.run(graph.knowledge_graph(query)):
        subject, _, object_ = triples[int(item.source) - 1]
        assert item.title in (subject, object_) and item.title in graph.entities(query)


def test_pickles(graph):
    assert ask(pickle.loads(pickle.dumps(graph)), "Conakry") == ask(graph, "Conakry")


def test_files(tmp_path):
    path = tmp_path / "t.jsonl.gz"
    path.write_bytes(gzip.compress("".join(json.dumps(row) + "\n" for row in ROWS).encode()))
    assert ask(KnowledgeGraph.from_triples(path), "Malabo") == ["The capital of Equatorial Guinea is Malabo."]


@pytest.mark.parametrize(
    ("rows", "told"),
    [
        ([], "no triples"),
        (
            [ROWS[0], {"subject": "a", "object": " "}],
            "triples, row 2: no relation and no object; it has: subject, object",
        ),
        ([{"subject": None, "relation": "r", "object": "o"}], "row 1: no subject"),
        ([{"subject": "\ud800", "relation": "r", "object": "o"}], "row 1: not valid Unicode"),
        (["a b c"], "row 1: expected an object with subject, relation, object; it is str"),
    ],
)
def test_unusable_triples_say_why(rows, told):
    with pytest.raises(DataError, match=re.escape(told)):
        KnowledgeGraph.from_triples(rows)


def test_linking_is_linear_in_the_query(graph):
    graph.entities("warm")
    start = time.perf_counter()
    assert graph.entities("Papua New York City " * 20_000) == ["New York"]
    assert time.perf_counter() - start < 3


def test_the_bundled_world_answers_from_its_own_facts():
    row = next(iter(read_rows(world_file("triples.jsonl.gz"))))
    graph = KnowledgeGraph.from_triples("world", top_k=50)
    found = asyncio.run(graph.knowledge_graph(f"{row['relation']} of {row['subject']}"))
    assert row["id"] in {item.source for item in found}
