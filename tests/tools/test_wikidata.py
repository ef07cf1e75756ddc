"""Wikidata: how entities are found, what their statements become, and every way the service can fail."""

import asyncio
import copy
import pickle
import time
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st
from search_servers import Request, SearchServer, wikidata

from faithful_search.errors import ConfigError, ToolError
from faithful_search.tools import Toolbox, wikidata as module
from faithful_search.tools.wikidata import Wikidata, candidates
from faithful_search.trajectory import Evidence, ToolCall
from faithful_search.wire.http import Http
from faithful_search.wire.retry import Patience

QUICK = Http(timeout=2, patience=Patience(retries=1, first=0.01))


@pytest.fixture(scope="module")
def server():
    with SearchServer(wikidata) as running:
        yield running


@pytest.fixture
def graph(server) -> Wikidata:
    return tool(server)


def tool(server: SearchServer, **knobs) -> Wikidata:
    return Wikidata(url=f"{server.url}/w/api.php", **{"http": QUICK, **knobs})


def ask(graph: Wikidata, query: str) -> list[Evidence]:
    return asyncio.run(graph.knowledge_graph(query))


def texts(graph: Wikidata, query: str) -> list[str]:
    return [item.text for item in ask(graph, query)]


def test_a_fact_is_a_line_with_its_entity_page_and_property(graph):
    assert ask(graph, "What is the population of Freedonia?")[0] == Evidence(
        text="Freedonia, population: 1,234,567 (as of 2020).",
        title="Freedonia (country in Europe)",
        source="Q1-P1082",
        url="https://www.wikidata.org/wiki/Q1",
    )


def test_every_kind_of_value_but_identifiers_media_and_unknown_ones(graph, server):
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
        ("daughter of Rufus Firefly", "Rufus Firefly, child: Ann Firefly, Bo Firefly and Cy Firefly."),
        ("Firefly's children", "Rufus Firefly, child: Ann Firefly"),
        ("FREEDONIA", "Freedonia, instance of"),
    ],
)
def test_entities_are_found_and_relations_ranked_by_any_of_their_names(graph, query, first):
    assert texts(graph, query)[0].startswith(first)


def claim(value: Any, kind: str = "string", rank: str = "normal") -> dict[str, Any]:
    """A statement as the service sends it."""
    types = {"wikibase-item": "wikibase-entityid"}
    datavalue = {"type": types.get(kind, kind), "value": value}
    return {"rank": rank, "mainsnak": {"datatype": kind, "datavalue": datavalue}}


def labelled(*ids: str, **labels: str) -> dict[str, dict[str, Any]]:
    """Entities with labels alone."""
    named = {id: f"label {id}" for id in ids} | labels
    return {id: {"id": id, "labels": {"en": {"value": label}}} for id, label in named.items()}


def test_words_of_the_entitys_name_rank_nothing_and_a_name_that_fits_wholly_comes_first():
    def bureau(request: Request):
        asked = request.parameters
        if asked["action"] == "wbsearchentities":
            named = asked["search"] == "Population Bureau"
            return 200, {"search": [{"id": "Q9", "match": {"text": asked["search"]}}] if named else []}
        found = labelled(Q1="Population Bureau", P1="population", P2="head office address", P3="head")
        claims = {name: [claim("Ann")] for name in ("P1", "P2", "P3")}
        found["Q1"] |= {"claims": claims, "redirects": {"from": "Q9", "to": "Q1"}}  # Q9 was merged into it
        return 200, {"entities": found}

    with SearchServer(bureau) as server:
        found = texts(tool(server), "Who is head of Population Bureau?")
    assert found[0] == "Population Bureau, head: Ann." and len(found) == 3


def test_a_property_whose_values_have_no_label_is_left_out():
    def unlabelled(request: Request):
        asked = request.parameters
        if asked["action"] == "wbsearchentities":
            return 200, {"search": [{"id": "Q1", "match": {"text": asked["search"]}}]}
        found = labelled("Q1", "P1", "P2")
        found["Q1"]["claims"] = {"P1": [claim({"id": "Q7"}, "wikibase-item")], "P2": [claim("Ann")]}
        return 200, {"entities": found}

    with SearchServer(unlabelled) as server:
        assert texts(tool(server), "thing") == ["label Q1, label P2: Ann."]


def test_nothing_known_is_no_evidence_and_no_name_is_told(graph):
    assert ask(graph, "zzz unheard of") == []
    with Toolbox([graph]) as box:
        empty, none = box.run_batch(
            [ToolCall("knowledge_graph", {"query": query}) for query in ("?!", "zzz")], [box.session(), box.session()]
        )
    assert empty.error and "names no entity" in empty.note and (none.error, none.note) == (False, "No results.")


def test_an_exact_name_needs_one_search_and_known_labels_are_not_asked_for_again(server):
    graph, before = tool(server), len(server.requests)
    ask(graph, "Freedonia")
    actions = [request.parameters["action"] for request in server.requests[before:]]
    assert actions == ["wbsearchentities"] + ["wbgetentities"] * 3  # the entity, its properties, its values
    ask(graph, "Freedonia")
    assert len(server.requests) - before == 4 + 2


def test_requests_are_bounded_whatever_the_query(server):
    graph, before = tool(server), len(server.requests)
    ask(graph, "Freedonia of Firefly of Glooston of Ann Firefly " * 200)
    searches = [each for each in server.requests[before:] if each.parameters["action"] == "wbsearchentities"]
    assert len(searches) == 4 and all(len(each.parameters["search"]) <= 250 for each in searches)
    assert len(server.requests) - before <= 4 + 4 + 2


def test_labels_are_asked_for_fifty_at_a_time():
    claims = {f"P{n}": [claim({"id": f"Q{n}"}, "wikibase-item")] for n in range(1000, 1120)}

    def many(request: Request):
        asked = request.parameters
        if asked["action"] == "wbsearchentities":
            return 200, {"search": [{"id": "Q1", "match": {"text": asked["search"]}}]}
        found = labelled(*asked["ids"].split("|"))
        assert len(found) <= 50
        return 200, {
            "entities": {key: value | {"claims": claims if key == "Q1" else []} for key, value in found.items()}
        }

    with SearchServer(many) as server:
        found = texts(tool(server, top_k=100), "thing")
        asked = [len(each.parameters["ids"].split("|")) for each in server.requests if "ids" in each.parameters]
    assert len(found) == 100 and found[0] == "label Q1, label P1000: label Q1000."
    assert sorted(asked) == sorted([1, 50, 50, 20, 50, 50, 3])


def test_labels_of_another_language():
    def german(request: Request):
        status, document = wikidata(request)
        for entity in document.get("entities", {}).values():
            entity["labels"] = {"de": {"language": "de", "value": f"{entity['id']}-de"}}
        assert (request.parameters.get("languages") or request.parameters["language"]) == "de"
        return status, document

    with SearchServer(german) as server:
        graph = tool(server, language="de", top_k=3)
        assert texts(graph, "Freedonia") == [
            "Q1-de, P31-de: Q10-de.",
            "Q1-de, P36-de: Q2-de. Other values: Q9-de (until 1901).",
            "Q1-de, P1082-de: 1,234,567 (as of 2020).",
        ]


class Writer:
    """Writes how many facts it was given, or fails."""

    name = "writer"

    def __init__(self, fails: bool = False) -> None:
        self.fails = fails

    async def condense(self, query, passages) -> str:
        if self.fails:
            raise ToolError("no writer")
        return f"{query}: {len(passages)} facts, first: {passages[0]}"


def test_a_condenser_writes_one_paragraph_for_each_entity_and_where_it_fails_the_facts_are_given(server, graph):
    [found] = ask(tool(server, condenser=Writer()), "Freedonia population")
    assert found.text == ("Freedonia population: 7 facts, first: Freedonia, population: 1,234,567 (as of 2020).")
    assert (found.title, found.url) == ("Freedonia (country in Europe)", "https://www.wikidata.org/wiki/Q1")
    assert ask(tool(server, condenser=Writer(fails=True)), "Freedonia population") == ask(graph, "Freedonia population")


@pytest.mark.parametrize(("code", "passes"), [("maxlag", True), ("no-such-entity", False), ({"a": 1}, False)])
def test_errors_of_the_api_itself(code, passes):
    answer = lambda request: (200, {"error": {"code": code, "info": "for developers"}})  # noqa: E731
    with SearchServer(answer) as server, pytest.raises(ToolError, match="refused to answer") as caught:
        ask(tool(server), "Freedonia")
    assert caught.value.passing is passes


_JUNK = st.none() | st.booleans() | st.floats() | st.text(max_size=5) | st.just([]) | st.just({}) | st.just(["x", {}])


@settings(max_examples=150)
@given(st.data())
def test_an_entity_with_anything_anywhere_is_still_read(data):
    request = Request("GET", "/w/api.php", {}, {}, None)
    request.parameters.update(action="wbgetentities", format="json", ids="Q1", props="labels|aliases|claims")
    entity = copy.deepcopy(wikidata(request)[1]["entities"]["Q1"])
    for _ in range(data.draw(st.integers(1, 4))):
        place, spot = entity, data.draw(st.sampled_from(sorted(entity)))
        while isinstance(place[spot], (dict, list)) and place[spot] and data.draw(st.integers(0, 4)):
            place = place[spot]
            spot = data.draw(st.sampled_from(range(len(place)) if isinstance(place, list) else sorted(place)))
        place[spot] = data.draw(_JUNK)
    for told in module.statements(entity).values():
        for each in told:
            text = module.text_of(each, {"Q2": "Glooston"})
            assert isinstance(text, str) and all(isinstance(key, str) for key in module.ids_in([each]))
            text.encode()
    found = module.named(entity, "en")
    assert all(isinstance(name, str) for name in (found.label, *found.aliases))


@pytest.mark.parametrize(
    ("time", "precision", "told"),
    [
        *(("+2001-12-31", 11, "31 December 2001"), ("+2001-12-00", 11, "December 2001")),
        *(("+2001-12-00", 10, "December 2001"), ("+2001-00-00", 9, "2001"), ("+2001-00-00", 8, "2000s")),
        *(
            ("+2000-00-00", 7, "20th century"),
            ("-0300-00-00", 7, "3rd century BCE"),
            ("+1101-00-00", 7, "12th century"),
        ),
        *(("+2000-00-00", 6, "2nd millennium"), ("-13798000000-00-00", 3, "about 13,798,000,000 BCE")),
        *(("+2001-99-99", 11, "2001"), ("tomorrow", 11, ""), (None, 11, ""), ("+2001-12-31", "11", "")),
    ],
)
def test_times_to_their_precision(time, precision, told):
    assert module.time_text(f"{time}T00:00:00Z" if time else time, precision) == told


def test_amounts():
    amounts = ["+9999", "+10000", "-1234567.50", "+0.001", "1e9", "9" * 41, 7]
    assert [*map(module.amount_text, amounts)] == ["9999", "10,000", "-1,234,567.50", "0.001", "", "", ""]


@pytest.mark.parametrize(
    ("query", "names"),
    [
        ("population of the United States of America", ["United States of America", "United States", "America"]),
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
    for query in ("Lost in Translation of " * 20_000, '"' * 50_000, "The of " * 60_000, "Lost " + "of the " * 60_000):
        candidates(query)
    assert time.process_time() - start < 4


def test_it_survives_pickling_and_tells_its_results_apart(graph, server):
    assert ask(pickle.loads(pickle.dumps(graph)), "Freedonia") == ask(graph, "Freedonia")
    knobs = [{}, {"top_k": 4}, {"language": "fr"}, {"condenser": Writer()}]
    assert len({tool(server, **each).cache_key for each in knobs}) == len(knobs)
    for wrong in ({"top_k": 0}, {"language": ""}):
        with pytest.raises(ConfigError, match="top_k must be at least 1, and language given"):
            Wikidata(**wrong)


def test_the_preferred_value_is_kept_however_many_there_are_and_half_characters_are_mended():
    entity = {"labels": {"en": {"value": "a\ud800\nb"}}, "aliases": {"en": [{"value": "\udfff"}]}}
    assert module.named(entity, "en") == module.Named("a? b", ("?",))
    values = [claim({"amount": f"+{n}", "unit": "1"}, "quantity") for n in range(60)]
    best = claim({"amount": "+77", "unit": "1"}, "quantity", "preferred")
    [told] = module.statements({"claims": {"P1082": [*values, best]}}).values()
    assert module.text_of(told[0], {}) == "77" and told[0].preferred and len(told) == 20


def test_labels_in_memory_are_bounded(server, monkeypatch):
    monkeypatch.setattr(module, "_KEPT", 3)
    graph = tool(server)
    for query in ("Freedonia", "Rufus Firefly"):
        assert ask(graph, query) and len(graph._known) == 3
