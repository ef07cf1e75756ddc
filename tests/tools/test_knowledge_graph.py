"""The knowledge graph: which entities a query names and which facts it gets."""

import asyncio
import gzip
import re
import sys
import time
from pathlib import Path

import pytest
from hypothesis import given, settings, strategies as st

from faithful_search.errors import ConfigError, DataError, ToolError
from faithful_search.tools import KnowledgeGraph, Toolbox
from faithful_search.tools.base import Partial
from faithful_search.tools.graphs.facts import read_triples
from faithful_search.trajectory import Evidence, ToolCall
from faithful_search.wire.cache import Cache

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


def about(*relations: str, subject: str = "Ann") -> list[dict[str, str]]:
    """A fact about somebody for each relation, numbered."""
    return [{"subject": subject, "relation": name, "object": f"F{n}"} for n, name in enumerate(relations)]


def test_the_relation_asked_for_comes_first_then_the_order_given(graph):
    for query in ("continent France", "Paris, France continent"):  # a fact of both comes once
        assert ask(graph, query) == [
            "The continent of France is Europe.",
            "The capital of France is Paris.",
            "The largest city of France is Paris.",
        ]
    assert ask(graph, "largest city France")[0] == "The largest city of France is Paris."


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


def test_no_entity_no_evidence(graph):
    assert ask(graph, "a/b <c> d 20") == ['The odd of a/b <c> "d" %20 is line\nbreak.']  # no IRI either
    with Toolbox([graph]) as toolbox:
        [found] = toolbox.run_batch([ToolCall("knowledge_graph", {"query": "Atlantis"})], [toolbox.session()])
    assert (found.note, found.error) == ("No results.", False)


def test_a_fact_is_a_sentence_with_its_source_and_the_same_from_two_sources_keeps_both():
    graph = KnowledgeGraph.from_triples([ROWS[0], {**ROWS[0], "id": "again"}])
    first, second = asyncio.run(graph.knowledge_graph("What is the capital of France?"))
    assert first == Evidence("The capital of France is Paris.", title="France", source="t0")
    assert second.source == "again"


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


def test_linking_takes_time_linear_in_the_query(graph):
    start = time.process_time()
    assert graph.entities("Papua New York City " * 20_000) == ["New York"]
    assert time.process_time() - start < 3


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


def test_lists_have_all_values_of_a_relation_and_count_those_beyond_ten():
    many = KnowledgeGraph(read_triples([*about(*["friend"] * 14), *about("boss")]), lists=True)
    friends = "F0, F1, F2, F3, F4, F5, F6, F7, F8, F9 and 4 more"
    assert ask(many, "Ann") == [f"Ann, friend: {friends}.", "Ann, boss: F0."]
    assert len(ask(KnowledgeGraph(many.triples), "Ann")) == 3


def test_of_an_entity_with_very_many_facts_so_many_at_most_are_looked_at():
    rows = [{"subject": f"m{n}", "relation": "type", "object": "Human"} for n in range(3_000)]
    rows.append({"subject": "Human", "relation": "latin", "object": "homo"})
    found = ask(KnowledgeGraph(read_triples(rows), lists=True), "latin Human")
    assert found[0] == "Human, latin: homo." and found[1].endswith(" and 1990 more, type: Human.")


# RDF

TURTLE = """
@prefix e: <http://graph.example/entity/> .
@prefix p: <http://graph.example/property#> .
@prefix rdfs: <http://www.w3.org/2000/01/rdf-schema#> .
@prefix skos: <http://www.w3.org/2004/02/skos/core#> .
@prefix schema: <https://schema.org/> .
p:capital rdfs:label "capital"@en, "Hauptstadt"@de .
e:1 rdfs:label "Freedonia"@en, "Fredonien"@de ; skos:altLabel "Land of the Free" ;
    p:capital e:2 ; p:officialLanguage e:3, e:4 ; p:motto "For the brave"@en, "Mutig voran"@de ; p:area 812.5 ;
    p:address [ p:street "Main Street" ] .
e:2 skos:prefLabel "Glooston" ; p:locatedIn e:1 .
e:3 schema:name "Freedonian" . e:4 schema:name "Sylvanian" . e:5 rdfs:label "Sylvania"@en ; p:officialLanguage e:4 .
e:6 rdfs:label "Freedonia" ; p:kind e:Old_Film .
e:Rufus_Firefly p:leads e:1 . e:Ann%20Lee p:leads e:1 .
<urn:x:1> rdfs:label "Farbe"@de, "Tint"@en-GB ; p:shade "Red" .
<urn:x:2> rdfs:label "Maison"@fr, "House" ; p:shade "White" .
<urn:x:3> rdfs:label "Baum"@de ; p:shade "Grün"@de .
[] p:likes <urn:x:1> .
"""


@pytest.fixture
def turtle(tmp_path):
    path = tmp_path / "graph.ttl"
    path.write_text(TURTLE)
    return path


@pytest.fixture
def rdf(turtle) -> KnowledgeGraph:
    return KnowledgeGraph.from_triples(turtle, top_k=20)


def test_turtle_one_line_for_a_relation_with_all_its_values(rdf):
    [best, *_] = asyncio.run(rdf.knowledge_graph("official language of Sylvania"))
    assert best.text == "Sylvania, official language: Sylvanian."
    assert (best.title, best.url, best.source) == ("Sylvania", "http://graph.example/entity/5", "5-officialLanguage")
    assert set(ask(rdf, "Land of the Free")) == {
        "Rufus Firefly and Ann Lee, leads: Freedonia.",
        "Freedonia, area: 812.5.",
        "Freedonia, capital: Glooston.",
        "Freedonia, motto: For the brave.",
        "Freedonia, official language: Freedonian and Sylvanian.",
        "Glooston, located in: Freedonia.",
    }
    assert ask(rdf, "capital of Freedonia")[0] == "Freedonia, capital: Glooston."


def test_namesakes_stay_apart(rdf):
    found = asyncio.run(rdf.knowledge_graph("kind of Freedonia"))
    assert set(rdf.entities("Freedonia")) == {"http://graph.example/entity/1", "http://graph.example/entity/6"}
    assert (found[0].text, found[0].url) == ("Freedonia, kind: Old Film.", "http://graph.example/entity/6")
    assert all(item.url.endswith("/1") for item in found[1:]) and len(found) == 7


@pytest.mark.parametrize(
    ("query", "best"),
    [
        ("Fredonien capital", "Freedonia, capital: Glooston."),  # asked for in any language, told in English
        ("Farbe", "Tint, shade: Red."),  # a regional one is English, too
        ("Maison", "House, shade: White."),  # none before another
        ("Baum", "Baum, shade: Grün."),
        ("ann lee", "Ann Lee, leads: Freedonia."),  # without a label by its IRI
    ],
)
def test_languages_and_names(rdf, query, best):
    assert ask(rdf, query)[0] == best
    [tint] = asyncio.run(rdf.knowledge_graph("Farbe"))  # whom the nameless one likes nobody knows
    assert (tint.url, tint.source) == ("", "1-shade")


def test_other_syntaxes_packed_or_not(tmp_path):
    line = b"<http://e.example/a> <http://e.example/knows> <http://e.example/b> .\n"
    for suffix in (".nt", ".nt.gz", ".ttl.gz", ".nq"):
        path = tmp_path / f"g{suffix}"
        path.write_bytes(gzip.compress(line) if suffix.endswith(".gz") else line)
        assert ask(KnowledgeGraph.from_triples(path), "a") == ["a, knows: b."]


def test_without_pyoxigraph_triples_are_read_and_rdf_says_what_is_missing(turtle, monkeypatch):
    monkeypatch.delitem(sys.modules, "faithful_search.tools.graphs.rdf", raising=False)
    monkeypatch.setitem(sys.modules, "pyoxigraph", None)
    assert KnowledgeGraph.from_triples("world").triples
    with pytest.raises(ConfigError, match=r"needs pyoxigraph: pip install 'faithful-search\[rdf\]'"):
        KnowledgeGraph.from_triples(turtle)


@pytest.mark.parametrize(
    ("name", "content", "told"),
    [
        ("g.nt", b"<http://e/a> <http://e/b> <http://e/c> .\n<http://e/a> broken .\n", "g.nt, line 2: "),
        ("g.ttl", b"@prefix e: <http://e/> .\ne:a e:b e:c .\ne:a e:b e:c e:d .\n", "g.ttl, line 3: "),
        ("g.nt", b"\xff\xfe\x00", "g.nt, line 1: "),
        ("g.nt", b"", "g.nt: no triples"),
        ("g.nt.gz", gzip.compress(b"<http://e/a> <http://e/b> <http://e/c> .\n" * 99, mtime=0)[:-12], "cannot read "),
        ("g.nt.gz", b"not packed", "cannot read "),
        ("g.nt", None, "cannot read "),
    ],
)
def test_unreadable_rdf_says_which_file_and_line(tmp_path, name, content, told):
    path = tmp_path / name
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(DataError, match=re.escape(told)) as caught:
        KnowledgeGraph.from_triples(path)
    assert str(path) in str(caught.value)


def test_a_literal_that_spells_an_entitys_address_is_not_that_entity(tmp_path):
    path = tmp_path / "g.nt"
    told = '<http://e.example/Ann> <http://e.example/page> "http://e.example/Bo" .\n'
    path.write_text(told + "<http://e.example/Bo> <http://e.example/age> <http://e.example/Seven> .\n")
    assert ask(KnowledgeGraph.from_triples(path), "Bo") == ["Bo, age: Seven."]


@settings(max_examples=50)
@given(st.text(max_size=40), st.text(max_size=20))
def test_any_literal_and_any_query(tmp_path_factory, value, query):
    from pyoxigraph import Literal, NamedNode, Quad, RdfFormat, serialize

    quad = Quad(NamedNode("http://e.example/Ann"), NamedNode("http://e.example/note"), Literal(value))
    path = tmp_path_factory.mktemp("rdf") / "g.nt"
    path.write_bytes(serialize([quad], format=RdfFormat.N_TRIPLES))
    graph = KnowledgeGraph.from_triples(path)
    asyncio.run(graph.knowledge_graph(query))
    assert ask(graph, "Ann") == [f"Ann, note: {' '.join(value.split())}."]


# a condenser


class Writer:
    """Says how much it was given, nothing of Klopstokia; fails for cities, or always."""

    def __init__(self, says: str | None, name: str = "writer") -> None:
        self.says, self.name = says, name

    async def condense(self, query, passages) -> str:
        if self.says is None or "city" in passages[0]:
            raise ToolError("no writer")
        return "" if "Klopstokia" in passages[0] else self.says and f"{self.says} {len(passages)}"


def test_a_condenser_writes_one_paragraph_for_each_entity(turtle):
    graph = KnowledgeGraph.from_triples(turtle, condenser=Writer("Facts:"))
    found = asyncio.run(graph.knowledge_graph("Sylvania and Freedonia"))
    assert sorted((item.title, item.url[-1], item.text) for item in found) == [
        ("Freedonia", "1", "Facts: 6"),
        ("Freedonia", "6", "Facts: 1"),
        ("Sylvania", "5", "Facts: 1"),
    ]
    rows = about(*(f"part {n}" for n in range(40)))
    assert ask(KnowledgeGraph.from_triples(rows, condenser=Writer("Facts:")), "Ann") == ["Facts: 30"]  # at most


def test_where_a_condenser_fails_or_is_silent_the_facts_are_given(turtle):
    for says in (None, ""):
        graph = KnowledgeGraph.from_triples(turtle, condenser=Writer(says))
        assert ask(graph, "capital of Sylvania") == ["Sylvania, official language: Sylvanian."]


def test_an_entity_of_which_nothing_is_said_makes_room_and_facts_come_after_paragraphs():
    numbers = range(5)
    rows = about(*(f"part {n}" for n in numbers), subject="Klopstokia")
    rows += about(*(f"city {n}" for n in numbers), subject="Freedonia")
    rows += about(*(f"part {n}" for n in numbers), subject="Sylvania")
    graph = KnowledgeGraph.from_triples(rows, condenser=Writer("Well:"), top_k=3)
    found = asyncio.run(graph.knowledge_graph("Klopstokia Freedonia Sylvania"))
    assert [item.text for item in found] == ["Well: 5", "Freedonia, city 0: F0.", "Freedonia, city 1: F1."]
    assert isinstance(found, Partial)
    whole = asyncio.run(graph.knowledge_graph("Klopstokia Sylvania"))
    assert [item.text for item in whole] == ["Well: 5"] and not isinstance(whole, Partial)


def test_what_a_condenser_wrote_is_kept_by_facts_and_writer_and_not_what_it_failed_to(tmp_path, turtle):
    other = tmp_path / "other.ttl"
    other.write_text(Path(turtle).read_text() + "<urn:a> <urn:b> <urn:c> .\n")
    knobs = [{}, {"top_k": 9}, {"condenser": Writer("", "another")}, {"condenser": None}]
    keys = [
        KnowledgeGraph.from_triples(source, **{"condenser": Writer("Facts:"), **more}).cache_key
        for source, more in [*((turtle, more) for more in knobs), (other, {}), (ROWS, {}), (ROWS[1:], {}), (ROWS, {})]
    ]
    assert len(set(keys)) == len(keys) - 1 and keys[5] == keys[7] and keys[3] == ""
    writer = Writer(None)
    graph = KnowledgeGraph.from_triples(turtle, condenser=writer)
    with Toolbox([graph], cache=Cache(tmp_path / "cache.sqlite")) as box:
        call = ToolCall("knowledge_graph", {"query": "Sylvania"})
        texts = []
        for writer.says in (None, "First:", "Second:"):
            texts += [box.run_batch([call], [box.session()])[0].evidence[0].text]
    assert texts == ["Sylvania, official language: Sylvanian.", "First: 1", "First: 1"]
