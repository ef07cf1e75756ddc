"""The policy never makes its own evidence: no field of it holds words of the call that no source
returned.

Every tool is called with a nonce in each of its arguments, at services on loopback that answer,
fail, or fail for the nonce alone. No source knows the nonce: where it stands in evidence, the
policy put it there.
"""

import asyncio
import json
import random
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import msgspec
import pytest
from dialect_texts import verdict
from faulty_server import FaultyServer, Request
from web_site import Page, WebSite

from faithful_search.dialects import load
from faithful_search.evidence import supporting
from faithful_search.rewards import AnswerSupport, SourceGated
from faithful_search.tools import (
    Browse,
    Cassette,
    Irrelevant,
    KnowledgeGraph,
    LocalSearch,
    Observation,
    Patience,
    RemoteSearch,
    Tool,
    Toolbox,
    WebSearch,
    Wikidata,
    schema_of,
)
from faithful_search.tools.browse import Fetch, Jina
from faithful_search.tools.graphs.facts import Triple
from faithful_search.tools.web.pages import PageSettings
from faithful_search.tools.web.providers.searxng import SearXNG
from faithful_search.tools.web.providers.serper import Serper
from faithful_search.trajectory import Evidence, Step, ToolCall, Trajectory
from faithful_search.wire.cache import Cache
from faithful_search.wire.guard import Guard
from faithful_search.wire.http import Http

pytest.importorskip("trafilatura")
NONCE = "Quorvex"
FORMS = (
    "{}", "The answer is {}.", "is it {}", "capital of {}", "lighthouse {} Freedonia", "!!x {}", "<answer>{}</answer>",
    "http://{}.example/", "http://127.0.0.1:9/{}", "{site}/is-it/{}", "{site}/gone/{}", "ftp://{}",
    "{site}/is-it/The%20answer%20is%20{}", "{site}/untitled.txt?say={}", "{site}/article#{}",
    '{{"query": "{}"}}', "{}\n\n{}",
)  # fmt: skip
SENSIBLE = ("lighthouse of Vardal", "{site}/article", "capital of Freedonia")
FAILING = ("busy", "error", "missing", "forbidden", "closed", "cut")
NO_WAIT = Http(timeout=2.0, patience=Patience(retries=0))
ROWS = [{"id": "p1", "title": "Vardal", "text": "The lighthouse of Vardal was built in 1887."}]
HIT = {"title": "Vardal", "link": "https://vardal.example/", "url": "https://vardal.example/"}
HIT |= {"snippet": "Built in 1887.", "content": "Built in 1887."}
DOCUMENT = {"document": {"id": "p1", "contents": '"Vardal"\nBuilt in 1887.'}, "score": 1.0}
ANSWERS: dict[str, Any] = {
    "/search": {"organic": [HIT], "results": [HIT]},
    "/retrieve": {"result": [[DOCUMENT]]},
    "/recall": [["Built in 1887."], [1.0]],
    "/": {"data": {"title": "", "content": "The lighthouse was built in 1887."}},
}


class Services(FaultyServer):
    """Search services whose answers do not depend on what they are asked; in mode "picky" they
    refuse a request that holds the nonce.
    """

    def reply(self, mode: Any, request: Request) -> tuple[int, Any]:
        if mode == "picky":
            asked = request.target + request.data.decode("utf-8", "replace")
            return (500, {}) if NONCE in asked else (200, ANSWERS.get(request.path, {}))
        return super().reply(mode, request)


class Repeating:
    """A condenser that writes down what it is told to look for."""

    name = "repeating"

    async def condense(self, query: str, passages: Any) -> str:
        last = query.split()[-1]
        return f"It was built in 1887. You asked for {query}. It is {last.title()}, or {last}."


@pytest.fixture(scope="module")
def site() -> Iterator[WebSite]:
    with WebSite() as made:
        made.pages["/untitled.txt"] = Page(b"Nobody knows who built it.", "text/plain")
        for form in FORMS:  # pages that are there under whatever address the policy made up
            path = form.format(NONCE, NONCE, site="").replace("#", "?").partition("?")[0]
            if path.startswith("/is-it/"):
                made.pages[path] = Page(b"<p>Nobody knows who built the lighthouse.</p>")
        yield made


@pytest.fixture(scope="module")
def services() -> Iterator[Services]:
    with Services(lambda request: (200, ANSWERS.get(request.path, {}))) as made:
        yield made


def tools_of(site: WebSite, services: Services) -> dict[str, Tool]:
    """Every tool there is, at these services."""
    guard = Guard(allow=(f"{site.host}:{site.port}",))
    fetch = Fetch(Http(timeout=2.0, patience=Patience(retries=0), guard=guard))
    reading = PageSettings(seconds=30, shortest=20)
    triples = [Triple("t1", "Freedonia", "capital", "Vardal")]
    return {
        "browse": Browse(fetch, timeout=30, reading=reading),
        "browse, condensed": Browse(fetch, timeout=30, reading=reading, condenser=Repeating()),
        "jina": Browse(Jina(services.url, Guard(allow=("127.0.0.1",)), NO_WAIT), reading=reading),
        "serper": WebSearch(Serper(services.url, NO_WAIT)),
        "searxng": WebSearch(SearXNG(services.url, NO_WAIT)),
        "search_r1": RemoteSearch(f"{services.url}/retrieve", http=NO_WAIT),
        "recall": RemoteSearch(f"{services.url}/recall", "recall", http=NO_WAIT),
        "wikidata": Wikidata(url=f"{services.url}/w/api.php", http=NO_WAIT),
        "knowledge graph": KnowledgeGraph(triples),
        "knowledge graph, condensed": KnowledgeGraph(triples, condenser=Repeating()),
        "local search": LocalSearch.from_corpus(ROWS),
        "almanac": Irrelevant(),
    }


NAMES = ("browse", "browse, condensed", "jina", "serper", "searxng", "search_r1", "recall", "wikidata",
         "knowledge graph", "knowledge graph, condensed", "local search", "almanac")  # fmt: skip


def arguments_of(tool: Tool, site: WebSite, draw: random.Random) -> dict[str, Any]:
    """Arguments for a tool, of its own names and types, the nonce in at least one of them."""

    def value(nonce: bool) -> str:
        form = draw.choice(FORMS if nonce else SENSIBLE)
        return form.format(NONCE, NONCE, site=site.url("").rstrip("/"))

    properties = schema_of(tool)["function"]["parameters"]["properties"]
    several = [name for name, kind in properties.items() if kind.get("type") == "array"]
    singles = [name for name in properties if name not in several]
    made: dict[str, Any] = {}
    if several and draw.random() < 0.6:
        name = several[0]
        made[name] = [value(True), *(value(draw.random() < 0.5) for _ in range(3))]
        draw.shuffle(made[name])
        singles.remove(name.removesuffix("_list"))
    for name in singles:
        made[name] = value(draw.random() < 0.8 or not made)
    if draw.random() < 0.1:
        made[NONCE] = NONCE
    return made


def words_of(item: Evidence, addresses: bool) -> str:
    """All that a piece of evidence says; of `addresses`, which an agent may choose, only where they
    are none of a page that answered.
    """
    where = [] if addresses else [item.url, item.source]
    return "\n".join([item.text, item.title, item.id, *where])


def call(box: Toolbox, name: str, arguments: dict[str, Any]) -> Observation:
    [found] = box.run_batch([ToolCall(name, arguments)], [box.session()])
    return found


@pytest.mark.parametrize("mode", ["ok", "picky", *FAILING])
@pytest.mark.parametrize("kind", NAMES)
def test_no_evidence_holds_words_of_the_call(kind, mode, site, services, rounds, monkeypatch):
    monkeypatch.setenv("SERPER_API_KEY", "key")
    draw = random.Random(f"{kind} {mode}")
    services.mode = mode
    tool = tools_of(site, services)[kind]
    browses = isinstance(tool, Browse)
    seen = 0
    with Toolbox([tool], failures=10**6, patience=Patience(0)) as box:
        for _ in range(rounds):
            found = call(box, tool.name, arguments_of(tool, site, draw))
            seen += len(found.evidence)
            assert [item for item in found.evidence if NONCE in words_of(item, browses)] == []
            assert found.evidence or found.note
    assert seen or mode != "ok" or kind == "wikidata"  # something was there to look at


def test_an_address_is_evidence_only_where_a_page_answered(site, services):
    tool = tools_of(site, services)["browse"]
    bad = [f"http://{NONCE}.example/", f"The answer is {NONCE}.", site.url(f"/gone/{NONCE}")]
    with Toolbox([tool]) as box:
        found = call(box, "browse", {"url_list": [site.url("/article"), *bad]})
    assert {item.url for item in found.evidence} == {site.url("/article")}
    assert "Entry 3 of url_list was not read" in found.note


def test_a_page_without_a_title_is_called_by_its_host(site, services):
    path = f"/is-it/The%20answer%20is%20{NONCE}"
    with Toolbox([tools_of(site, services)["browse"]]) as box:
        found = call(box, "browse", {"url": site.url(path)})
    assert [item.title for item in found.evidence] == ["127.0.0.1"]


@pytest.mark.parametrize("kept", ["cache", "cassette"])
def test_what_is_kept_holds_no_words_of_the_call(kept, site, services, tmp_path):
    tool = tools_of(site, services)["browse"]
    arguments = {"url_list": [site.url("/article"), site.url(f"/gone/{NONCE}")]}
    with ExitStack() as opened:
        cache = Cache(tmp_path / "cache.sqlite") if kept == "cache" else None
        tape = Cassette(tmp_path / "tape.jsonl", "record") if kept == "cassette" else None
        box = opened.enter_context(Toolbox([tool], timeout=60, cache=cache, cassette=tape))
        first, again = (call(box, "browse", arguments) for _ in range(2))
    assert again == first
    assert again.note == "Entry 2 of url_list was not read: 127.0.0.1: 404 Not Found."
    assert NONCE not in "".join(words_of(item, addresses=False) for item in again.evidence)


@pytest.mark.parametrize("name", [NONCE, f"The answer is {NONCE}", "almanac " + NONCE * 9])
def test_a_note_does_not_repeat_the_name_of_an_unknown_tool(name):
    with Toolbox([Irrelevant()]) as box:
        found = call(box, name, {"query": NONCE})
    assert found.evidence == ()
    assert NONCE not in found.note


@pytest.mark.parametrize(
    "arguments",
    [
        {NONCE: "x"},
        {"query": {NONCE: NONCE}},
        {"query": "x", f"x` - at `$.{NONCE}": 1},
        {"query": [NONCE]},
    ],
)
def test_a_note_on_wrong_arguments_does_not_repeat_them(arguments):
    with Toolbox([Irrelevant()]) as box:
        found = call(box, "garden_almanac", arguments)
    assert found.error
    assert NONCE not in found.note


def test_a_summary_keeps_what_the_passages_say(site, services):
    tool = tools_of(site, services)["browse, condensed"]
    found = asyncio.run(tool.browse(site.url("/article"), query=f"is it {NONCE}"))
    assert [item.text for item in found] == ["It was built in 1887."]


def repeating(form: str) -> Tool:
    """Somebody's tool that returns what it is told, in this form."""

    class Foreign(Tool):
        name = "foreign"

        async def foreign(self, thought: str, items: list[dict[str, str]] | None = None):
            """Do something.

            Args:
                thought: What to think.
                items: What to do.
            """
            said = {"thought": thought, "items": items}
            return [Evidence(form.format(thought=thought, items=items, all=json.dumps(said)))]

    return Foreign()


ECHOES = ["{thought}", "Thought recorded: {thought}", "Noted “{thought}”.", "{all}"]
ECHOES += [
    "Updated todo list to {items}",
    "Error: cannot think {thought}",
    "No results for {thought}.",
]
ECHOES += [
    "Unknown page '{thought}'",
    "{thought}\n{thought}",
    '{{"query": "{thought}", "results": []}}',
]
FRAMES = [
    "Results for '{thought}':\nVardal.",
    "Search: {thought}\n\nVardal.",
    "# Query {thought}\nVardal.",
]


@pytest.mark.parametrize("form", ECHOES)
def test_what_a_foreign_tool_only_repeats_is_a_note(form):
    arguments = {"thought": f"it must be {NONCE}", "items": [{"content": f"find {NONCE}"}]}
    with Toolbox([repeating(form)]) as box:
        found = call(box, "foreign", arguments)
    assert found.evidence == ()
    assert NONCE in found.note


@pytest.mark.parametrize("form", FRAMES)
def test_what_a_foreign_tool_repeats_beside_a_source_supports_nothing(form):
    asked = ToolCall("foreign", {"thought": f"it must be {NONCE}"})
    with Toolbox([repeating(form)]) as box:
        found = call(box, "foreign", asked.arguments)
    [item] = supporting(Step(call=asked, evidence=found.evidence))
    assert NONCE not in item.text
    assert "Vardal" in item.text


FAILED = [
    ToolCall(f"{NONCE} is the answer", {"query": "x"}),
    ToolCall("garden_almanac", {NONCE: NONCE}),
    ToolCall("garden_almanac", {"query": {"is": NONCE}}),
    ToolCall("foreign", {"thought": f"it must be {NONCE}"}),
    ToolCall("browse", {"url": f"The answer is {NONCE}"}),
    ToolCall("browse", {"url_list": [f"http://{NONCE}.example/"]}),
]


@pytest.mark.parametrize("fenced", [True, False])
@pytest.mark.parametrize("asked", FAILED)
def test_in_no_dialect_a_note_is_read_as_evidence(name, asked, fenced, site, services):
    tools = [
        Irrelevant(),
        repeating("Thought recorded: {thought}"),
        tools_of(site, services)["browse"],
    ]
    with Toolbox(tools, timeout=60) as box:
        found = call(box, asked.name, asked.arguments)
    dialect = load(name)
    query = ToolCall(dialect.search_tool or asked.name, {"query": f"it must be {NONCE}"})
    first = Step(think="Look.", call=query, note=found.note)
    last = Step(think="So.", answer=NONCE, **verdict(name))
    read = dialect.parse(dialect.render(Trajectory((first, last))), fenced=fenced)
    assert found.error or asked.name == "foreign"
    assert [step.evidence for step in read.steps] == [(), ()]
    assert not AnswerSupport().score(read).value
    assert not SourceGated().score(msgspec.structs.replace(read, answers=(NONCE,))).value


def test_a_call_that_could_not_be_read_is_told_so_in_a_note(name):
    dialect = load(name)
    with Toolbox([Irrelevant()]) as box:
        note = box.describe_malformed("it is not JSON", dialect.call_form(box.names)).note
    call = ToolCall(dialect.search_tool or "search", {"query": "x"})
    first = Step(think="Look.", call=call, note=note)
    read = dialect.parse(dialect.render(Trajectory((first, Step(think="So.", answer="x")))))
    assert read.steps[0].evidence == ()
