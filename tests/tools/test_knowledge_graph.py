"""Knowledge graphs, from triples, RDF and Wikidata: which entities a query names and which facts it
gets.
"""

import asyncio
import copy
import gzip
import pickle
import re
import sys
import time
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st
from imports import import_again
from search_servers import FREEDONIA, Request, SearchServer, wikidata

from faithful_search.errors import ConfigError, DataError, ToolError
from faithful_search.tools import KnowledgeGraph, Toolbox, wikidata as module
from faithful_search.tools.base import Partial
from faithful_search.tools.graphs.facts import read_triples
from faithful_search.tools.wikidata import Wikidata, candidates
from faithful_search.trajectory import Evidence, ToolCall
from faithful_search.wire.cache import Cache
from faithful_search.wire.http import Http
from faithful_search.wire.retry import Patience

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
ROWS = [
    {"id": f"t{n}", "subject": s, "relation": r, "object": o} for n, (s, r, o) in enumerate(FACTS)
]


@pytest.fixture(scope="module")
def graph() -> KnowledgeGraph:
    return KnowledgeGraph.from_triples(ROWS)


def facts(graph: KnowledgeGraph | Wikidata, query: str) -> list[Evidence]:
    return asyncio.run(graph.knowledge_graph(query))


def texts(graph: KnowledgeGraph | Wikidata, query: str) -> list[str]:
    return [item.text for item in facts(graph, query)]


def about(*relations: str, subject: str = "Ann") -> list[dict[str, str]]:
    """A fact about somebody for each relation, numbered."""
    return [
        {"subject": subject, "relation": name, "object": f"F{n}"}
        for n, name in enumerate(relations)
    ]


def test_the_relation_asked_for_comes_first_then_the_order_given(graph):
    for query in ("continent France", "Paris, France continent"):  # a fact of both comes once
        assert texts(graph, query) == [
            "The continent of France is Europe.",
            "The capital of France is Paris.",
            "The largest city of France is Paris.",
        ]
    assert texts(graph, "largest city France")[0] == "The largest city of France is Paris."


@pytest.mark.parametrize(
    ("query", "entities"),
    [
        ("capital of Equatorial Guinea", ["Equatorial Guinea"]),
        ("capital of Guinea", ["Guinea"]),
        ("Guinea or Papua New Guinea", ["Guinea", "Papua New Guinea"]),
        ("polish", ["polish"]),
        ("POLISH", ["Polish", "polish"]),
        ("the New York City Council", ["York City Council"]),
        ("New York, York City Council", ["New York", "York City Council"]),
        ("столица россия", ["Россия"]),
        ("法国的首都是什么", ["法国"]),
        ("ما عاصمة مصر؟", ["مصر"]),
        ("\ud800 ?", []),
    ],
)
def test_entities_by_the_longest_label(graph, query, entities):
    assert graph.entities(query) == entities


def test_a_fact_is_a_sentence_with_its_source(graph):
    twice = KnowledgeGraph.from_triples(
        [ROWS[0], {**ROWS[0], "id": "again"}]
    )  # of two sources both are kept
    first, second = facts(twice, "What is the capital of France?")
    assert first == Evidence("The capital of France is Paris.", title="France", source="t0")
    assert second.source == "again"
    assert texts(graph, "a/b <c> d 20") == [
        'The odd of a/b <c> "d" %20 is line\nbreak.'
    ]  # no IRI either
    with Toolbox([graph]) as toolbox:
        [found] = toolbox.run_batch(
            [ToolCall("knowledge_graph", {"query": "Atlantis"})], [toolbox.session()]
        )
    assert (found.note, found.error) == ("No results.", False)


@settings(max_examples=50)
@given(
    st.lists(
        st.tuples(*[st.text("abAB -'", min_size=1).filter(str.strip)] * 3), min_size=1, max_size=6
    ),
    st.text("abAB -'"),
)
def test_every_fact_is_of_the_graph_and_names_its_entity(triples, query):
    rows = [{"subject": s, "relation": r, "object": o} for s, r, o in triples]
    graph = KnowledgeGraph.from_triples(rows, top_k=100)
    for item in facts(graph, query):
        subject, _, object_ = triples[int(item.source) - 1]
        assert item.title in (subject, object_)
        assert item.title in graph.entities(query)


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
            "row 2: no relation and no object; it has: subject, object",
        ),
        ([{"subject": None, "relation": "r", "object": "o"}], "row 1: no subject"),
        ([{"subject": "\ud800", "relation": "r", "object": "o"}], "row 1: not valid Unicode"),
        (["a b c"], "row 1: expected an object with subject, relation, object; it is str"),
    ],
)
def test_unusable_triples_say_why(rows, told):
    with pytest.raises(DataError, match=re.escape(told)):
        KnowledgeGraph.from_triples(rows)


def test_lists_count_the_values_beyond_ten():
    many = KnowledgeGraph(read_triples([*about(*["friend"] * 14), *about("boss")]), lists=True)
    friends = "Ann, friend: F0, F1, F2, F3, F4, F5, F6, F7, F8, F9 and 4 more."
    assert texts(many, "Ann") == [friends, "Ann, boss: F0."]
    assert len(texts(KnowledgeGraph(many.triples), "Ann")) == 3
    rows = [{"subject": f"m{n}", "relation": "type", "object": "Human"} for n in range(3_000)]
    rows.append({"subject": "Human", "relation": "latin", "object": "homo"})
    found = texts(KnowledgeGraph(read_triples(rows), lists=True), "latin Human")
    assert found[0] == "Human, latin: homo."
    assert found[1].endswith(" and 1990 more, type: Human.")


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


def test_turtle_gives_one_line_for_a_relation(rdf):
    [best, *_] = facts(rdf, "official language of Sylvania")
    assert best.text == "Sylvania, official language: Sylvanian."
    assert (best.title, best.url, best.source) == (
        "Sylvania",
        "http://graph.example/entity/5",
        "5-officialLanguage",
    )
    assert set(texts(rdf, "Land of the Free")) == {
        "Rufus Firefly and Ann Lee, leads: Freedonia.",
        "Freedonia, area: 812.5.",
        "Freedonia, capital: Glooston.",
        "Freedonia, motto: For the brave.",
        "Freedonia, official language: Freedonian and Sylvanian.",
        "Glooston, located in: Freedonia.",
    }
    found = facts(rdf, "kind of Freedonia")  # namesakes stay apart
    assert set(rdf.entities("Freedonia")) == {
        "http://graph.example/entity/1",
        "http://graph.example/entity/6",
    }
    assert (found[0].text, found[0].url) == (
        "Freedonia, kind: Old Film.",
        "http://graph.example/entity/6",
    )
    assert all(item.url.endswith("/1") for item in found[1:])
    assert len(found) == 7
    for query, best in (
        (
            "Fredonien capital",
            "Freedonia, capital: Glooston.",
        ),  # asked for in any language, told in English
        ("Farbe", "Tint, shade: Red."),  # a regional one is English, too
        ("Maison", "House, shade: White."),  # none before another
        ("Baum", "Baum, shade: Grün."),
        ("ann lee", "Ann Lee, leads: Freedonia."),  # without a label by its IRI
    ):
        assert texts(rdf, query)[0] == best
    [tint] = facts(rdf, "Farbe")  # whom the nameless one likes nobody knows
    assert (tint.url, tint.source) == ("", "1-shade")


def test_without_pyoxigraph_rdf_names_the_extra(turtle, monkeypatch):
    import_again(monkeypatch, "faithful_search.tools.graphs.rdf")
    monkeypatch.setitem(sys.modules, "pyoxigraph", None)
    assert KnowledgeGraph.from_triples("world").triples
    with pytest.raises(
        ConfigError, match=r"needs pyoxigraph: pip install 'faithful-search\[rdf\]'"
    ):
        KnowledgeGraph.from_triples(turtle)


@pytest.mark.parametrize(
    ("name", "content", "told"),
    [
        (
            "g.nt",
            b"<http://e/a> <http://e/b> <http://e/c> .\n<http://e/a> broken .\n",
            "g.nt, line 2: ",
        ),
        (
            "g.ttl",
            b"@prefix e: <http://e/> .\ne:a e:b e:c .\ne:a e:b e:c e:d .\n",
            "g.ttl, line 3: ",
        ),
        ("g.nt", b"\xff\xfe\x00", "g.nt, line 1: "),
        ("g.nt", b"", "g.nt: no triples"),
        (
            "g.nt.gz",
            gzip.compress(b"<http://e/a> <http://e/b> <http://e/c> .\n" * 99, mtime=0)[:-12],
            "cannot read ",
        ),
        ("g.nt.gz", b"not packed", "cannot read "),
        ("g.nt", None, "cannot read "),
    ],
)
def test_rdf_is_read_in_any_syntax(tmp_path, name, content, told):
    line = b"<http://e.example/a> <http://e.example/knows> <http://e.example/b> .\n"
    for suffix in (".nt", ".ttl.gz", ".nq"):
        good = tmp_path / f"good{suffix}"
        good.write_bytes(gzip.compress(line) if suffix.endswith(".gz") else line)
        assert texts(KnowledgeGraph.from_triples(good), "a") == ["a, knows: b."]
    path = tmp_path / name
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(DataError, match=re.escape(told)) as caught:
        KnowledgeGraph.from_triples(path)
    assert str(path) in str(caught.value)


@settings(max_examples=30)
@given(st.text(max_size=40), st.text(max_size=20))
def test_any_literal_and_any_query(tmp_path_factory, value, query):
    from pyoxigraph import Literal, NamedNode, Quad, RdfFormat, serialize

    quad = Quad(
        NamedNode("http://e.example/Ann"), NamedNode("http://e.example/note"), Literal(value)
    )
    path = tmp_path_factory.mktemp("rdf") / "g.nt"
    path.write_bytes(serialize([quad], format=RdfFormat.N_TRIPLES))
    graph = KnowledgeGraph.from_triples(path)
    facts(graph, query)
    assert texts(graph, "Ann") == [f"Ann, note: {' '.join(value.split())}."]


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
    found = facts(
        KnowledgeGraph.from_triples(turtle, condenser=Writer("Facts:")), "Sylvania and Freedonia"
    )
    assert sorted((item.title, item.url[-1], item.text) for item in found) == [
        ("Freedonia", "1", "Facts: 6"),
        ("Freedonia", "6", "Facts: 1"),
        ("Sylvania", "5", "Facts: 1"),
    ]
    rows = about(*(f"part {n}" for n in range(40)))
    assert texts(KnowledgeGraph.from_triples(rows, condenser=Writer("Facts:")), "Ann") == [
        "Facts: 30"
    ]  # at most
    silent = KnowledgeGraph.from_triples(turtle, condenser=Writer(""))
    assert texts(silent, "capital of Sylvania") == ["Sylvania, official language: Sylvanian."]


def test_an_entity_without_facts_makes_room():
    rows = []
    for subject, part in (("Klopstokia", "part"), ("Freedonia", "city"), ("Sylvania", "part")):
        rows += about(*(f"{part} {n}" for n in range(5)), subject=subject)
    graph = KnowledgeGraph.from_triples(rows, condenser=Writer("Well:"), top_k=3)
    found = facts(graph, "Klopstokia Freedonia Sylvania")
    assert [item.text for item in found] == [
        "Well: 5",
        "Freedonia, city 0: F0.",
        "Freedonia, city 1: F1.",
    ]
    assert isinstance(found, Partial)
    whole = facts(graph, "Klopstokia Sylvania")
    assert [item.text for item in whole] == ["Well: 5"]
    assert not isinstance(whole, Partial)


def test_condensed_facts_are_cached_by_facts_and_writer(tmp_path, turtle):
    def key(source, says="Facts:", name="writer", **knobs):
        return KnowledgeGraph.from_triples(source, condenser=Writer(says, name), **knobs).cache_key

    keys = {
        key(turtle),
        key(turtle, top_k=9),
        key(turtle, name="another"),
        key(ROWS),
        key(ROWS[1:]),
    }
    assert len(keys) == 5
    assert key(ROWS) in keys
    assert KnowledgeGraph.from_triples(ROWS).cache_key == ""
    writer = Writer(None)
    graph = KnowledgeGraph.from_triples(turtle, condenser=writer)
    with Toolbox([graph], cache=Cache(tmp_path / "cache.sqlite")) as box:
        call, told = ToolCall("knowledge_graph", {"query": "Sylvania"}), []
        for writer.says in (None, "First:", "Second:"):
            told += [box.run_batch([call], [box.session()])[0].evidence[0].text]
    assert told == ["Sylvania, official language: Sylvanian.", "First: 1", "First: 1"]


# Wikidata

QUICK = Http(timeout=2, patience=Patience(retries=1, first=0.01))


@pytest.fixture(scope="module")
def server():
    with SearchServer(wikidata) as running:
        yield running


@pytest.fixture
def wiki(server) -> Wikidata:
    return tool(server)


def tool(server: SearchServer, **knobs) -> Wikidata:
    return Wikidata(url=f"{server.url}/w/api.php", **{"http": QUICK, **knobs})


def test_every_kind_of_value_is_a_line(wiki, server):
    assert facts(wiki, "What is the population of Freedonia?")[0] == Evidence(
        text="Freedonia, population: 1,234,567 (as of 2020).",
        title="Freedonia (country in Europe)",
        source="Q1-P1082",
        url="https://www.wikidata.org/wiki/Q1",
    )
    assert texts(tool(server, top_k=50), "Freedonia") == [
        "Freedonia, instance of: country.",
        "Freedonia, capital: Glooston. Other values: Old Glooston (until 1901).",
        "Freedonia, population: 1,234,567 (as of 2020).",
        "Freedonia, elevation above sea level: 812.5 metre.",
        "Freedonia, coordinate location: 45.5° N, 7.25° W.",
        "Freedonia, official name: Land of the Free.",
        "Freedonia, official website: https://freedonia.example/.",
    ]


@pytest.mark.parametrize(
    ("query", "first"),
    [
        ("freedonia inhabitants", "Freedonia, population: 1,234,567 (as of 2020)."),
        ("seat of government of Freedonia", "Freedonia, capital: Glooston. Other values: Old"),
        ("When was Rufus Firefly born?", "Rufus Firefly, date of birth: 2 October 1890."),
        (
            "daughter of Rufus Firefly",
            "Rufus Firefly, child: Ann Firefly, Bo Firefly and Cy Firefly.",
        ),
        ("FREEDONIA", "Freedonia, instance of"),
    ],
)
def test_entities_and_relations_go_by_any_name(wiki, query, first):
    assert texts(wiki, query)[0].startswith(first)


def claim(value: Any, kind: str = "string", rank: str = "normal") -> dict[str, Any]:
    """A statement as the service sends it."""
    datavalue = {"type": "wikibase-entityid" if kind == "wikibase-item" else kind, "value": value}
    return {"rank": rank, "mainsnak": {"datatype": kind, "datavalue": datavalue}}


def labelled(*ids: str, **labels: str) -> dict[str, dict[str, Any]]:
    """Entities with labels alone."""
    named = {id: f"label {id}" for id in ids} | labels
    return {id: {"id": id, "labels": {"en": {"value": label}}} for id, label in named.items()}


def small(entities: dict[str, dict[str, Any]], name: str = "", found: str = "Q1") -> SearchServer:
    """A service of these entities; a search for `name`, or for anything, finds one."""

    def answer(request: Request):
        asked = request.parameters
        if asked["action"] == "wbsearchentities":
            hit = {"id": found, "match": {"text": asked["search"]}}
            return 200, {"search": [hit] if asked["search"] == name or not name else []}
        ids = asked["ids"].split("|")
        assert len(ids) <= 50
        return 200, {
            "entities": {
                key: entities[key] for key in entities if key in ids or "redirects" in entities[key]
            }
        }

    return SearchServer(answer)


def test_a_whole_name_comes_first():
    entities = labelled(
        Q1="Population Bureau", P1="population", P2="head office address", P3="head"
    )
    claims = {name: [claim("Ann")] for name in ("P1", "P2", "P3")}
    entities["Q1"] |= {
        "claims": claims,
        "redirects": {"from": "Q9", "to": "Q1"},
    }  # Q9 was merged into it
    with small(entities, "Population Bureau", "Q9") as server:
        found = texts(tool(server), "Who is head of Population Bureau?")
    assert found[0] == "Population Bureau, head: Ann."
    assert len(found) == 3


def test_labels_are_asked_for_fifty_at_a_time():
    numbers = range(1000, 1120)
    entities = labelled("Q1", *(f"{kind}{n}" for n in numbers for kind in "PQ"))
    entities["Q1"]["claims"] = {f"P{n}": [claim({"id": f"Q{n}"}, "wikibase-item")] for n in numbers}
    with small(entities) as server:
        found = texts(tool(server, top_k=100), "thing")
        asked = [
            len(each.parameters["ids"].split("|"))
            for each in server.requests
            if "ids" in each.parameters
        ]
    assert len(found) == 100
    assert found[0] == "label Q1, label P1000: label Q1000."
    assert sorted(asked) == sorted([1, 50, 50, 20, 50, 50, 3])
    del entities["Q1000"]
    with small(entities) as server:
        assert texts(tool(server), "thing")[0] == "label Q1, label P1001: label Q1001."


def test_nothing_known_is_no_evidence_and_no_name_is_told(wiki):
    assert facts(wiki, "zzz unheard of") == []
    with Toolbox([wiki]) as box:
        calls = [ToolCall("knowledge_graph", {"query": query}) for query in ("?!", "zzz")]
        empty, none = box.run_batch(calls, [box.session(), box.session()])
    assert empty.error
    assert "names no entity" in empty.note
    assert (none.error, none.note) == (False, "No results.")


def test_labels_of_another_language():
    entities = labelled("Q1", "P1")
    for entity in entities.values():
        entity["labels"]["de"] = {"value": f"{entity['id']}-de"}
    entities["Q1"]["claims"] = {"P1": [claim("Anna")]}
    with small(entities) as server:
        assert texts(tool(server, language="de"), "Freedonien") == ["Q1-de, P1-de: Anna."]
        asked = [request.parameters for request in server.requests]
    assert {each.get("languages") or each["language"] for each in asked} == {"de"}


def test_a_condenser_writes_a_paragraph_for_each_entity(server, wiki):
    [found] = facts(tool(server, condenser=Writer("Facts:")), "Freedonia population")
    assert found.text == "Facts: 7"
    assert (found.title, found.url) == (
        "Freedonia (country in Europe)",
        "https://www.wikidata.org/wiki/Q1",
    )
    assert facts(tool(server, condenser=Writer(None)), "Freedonia population") == facts(
        wiki, "Freedonia population"
    )


@pytest.mark.parametrize(
    ("code", "passes"), [("maxlag", True), ("no-such-entity", False), ({"a": 1}, False)]
)
def test_errors_of_the_api_itself(code, passes):
    answer = lambda request: (200, {"error": {"code": code, "info": "for developers"}})  # noqa: E731
    with (
        SearchServer(answer) as server,
        pytest.raises(ToolError, match="refused to answer") as caught,
    ):
        facts(tool(server), "Freedonia")
    assert caught.value.transient is passes


_JUNK = (
    st.none()
    | st.booleans()
    | st.floats()
    | st.text(max_size=5)
    | st.just([])
    | st.just({})
    | st.just(["x", {}])
)


@settings(max_examples=60)
@given(st.data())
def test_an_entity_with_anything_anywhere_is_still_read(data):
    entity = copy.deepcopy(FREEDONIA["Q1"])
    for _ in range(data.draw(st.integers(1, 4))):
        place, spot = entity, data.draw(st.sampled_from(sorted(entity)))
        while (
            isinstance(place[spot], (dict, list)) and place[spot] and data.draw(st.integers(0, 4))
        ):
            place = place[spot]
            spot = data.draw(
                st.sampled_from(range(len(place)) if isinstance(place, list) else sorted(place))
            )
        place[spot] = data.draw(_JUNK)
    for told in module.statements(entity).values():
        for each in told:
            text = module.text_of(each, {"Q2": "Glooston"})
            assert isinstance(text, str)
            assert all(isinstance(key, str) for key in module.ids_in([each]))
            text.encode()
    found = module.named(entity, "en")
    assert all(isinstance(name, str) for name in (found.label, *found.aliases))


@pytest.mark.parametrize(
    ("time", "precision", "told"),
    [
        ("+2001-12-31", 11, "31 December 2001"),
        ("+2001-12-00", 11, "December 2001"),
        ("+2001-00-00", 9, "2001"),
        ("+2001-00-00", 8, "2000s"),
        ("+2000-00-00", 7, "20th century"),
        ("-0300-00-00", 7, "3rd century BCE"),
        ("+2000-00-00", 6, "2nd millennium"),
        ("-13798000000-00-00", 3, "about 13,798,000,000 BCE"),
        ("+2001-99-99", 11, "2001"),
        ("tomorrow", 11, ""),
        (None, 11, ""),
        ("+2001-12-31", "11", ""),
    ],
)
def test_times_to_their_precision_and_amounts(time, precision, told):
    assert module.time_text(f"{time}T00:00:00Z" if time else time, precision) == told
    amounts = ["+9999", "+10000", "-1234567.50", "+0.001", "1e9", "9" * 41, 7]
    assert [*map(module.amount_text, amounts)] == [
        "9999",
        "10,000",
        "-1,234,567.50",
        "0.001",
        "",
        "",
        "",
    ]


@pytest.mark.parametrize(
    ("query", "names"),
    [
        (
            "population of the United States of America",
            ["United States of America", "United States", "America"],
        ),
        ('director of "The Third Man"', ["The Third Man", "Third Man"]),
        ("What's Marie Curie's birthplace?", ["Marie Curie"]),
        ("einstein birth date", ["einstein birth", "einstein", "date"]),
        ("столица России", ["России"]),
    ],
)
def test_names_that_are_tried_after_the_whole_query(query, names):
    assert candidates(query)[1 : 1 + len(names)] == names


def test_looking_for_names_takes_time_linear_in_the_query():
    start = time.process_time()
    for query in (
        "Lost in Translation of " * 3_000,
        '"' * 10_000,
        "The of " * 10_000,
        "Lost " + "of the " * 10_000,
    ):
        candidates(query)
    assert time.process_time() - start < 2


def test_it_survives_pickling_and_tells_its_results_apart(wiki, server):
    assert facts(pickle.loads(pickle.dumps(wiki)), "Freedonia") == facts(wiki, "Freedonia")
    knobs = [{}, {"top_k": 4}, {"language": "fr"}, {"condenser": Writer("Facts:")}]
    assert len({tool(server, **each).cache_key for each in knobs}) == len(knobs)
    for wrong in ({"top_k": 0}, {"language": ""}):
        with pytest.raises(ConfigError, match="top_k must be at least 1, and language given"):
            Wikidata(**wrong)


def test_the_preferred_value_is_kept():
    entity = {"labels": {"en": {"value": "a\ud800\nb"}}, "aliases": {"en": [{"value": "\udfff"}]}}
    assert module.named(entity, "en") == module.Named("a? b", ("?",))
    values = [claim({"amount": f"+{n}", "unit": "1"}, "quantity") for n in range(60)]
    best = claim({"amount": "+77", "unit": "1"}, "quantity", "preferred")
    [told] = module.statements({"claims": {"P1082": [*values, best]}}).values()
    assert module.text_of(told[0], {}) == "77"
    assert told[0].preferred
    assert len(told) == 20
