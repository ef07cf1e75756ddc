"""Services: what the results of web searches become, and every way in which a service of search or
facts can fail.
"""

import asyncio
import logging
import pickle
import sys
import threading
import time
from contextlib import suppress
from types import SimpleNamespace

import pytest
from faulty_server import FaultyServer
from hypothesis import given, settings, strategies as st
from search_servers import KEY, STRANGE, Request, SearchServer, searxng, serper, wikidata
from served import Shelf, command, passage, running

from faithful_search.errors import ConfigError, ToolError
from faithful_search.serving.retrieval import Retrieval
from faithful_search.tools import RemoteSearch, Tool, Toolbox, Wikidata, method_of, outcome
from faithful_search.tools.base import Partial
from faithful_search.tools.browse import Jina
from faithful_search.tools.remote_search import TOKEN
from faithful_search.tools.retrieval import OpenSearchIndex
from faithful_search.tools.web.providers import Provider, load, names, page
from faithful_search.tools.web.providers.ddgs import Ddgs
from faithful_search.tools.web.providers.searxng import SearXNG
from faithful_search.tools.web.providers.serper import Serper
from faithful_search.tools.web_search import WebSearch
from faithful_search.trajectory import Evidence, ToolCall
from faithful_search.wire.http import Http
from faithful_search.wire.retry import Patience

QUICK = Http(timeout=2, patience=Patience(retries=1, first=0.01))


@pytest.fixture(autouse=True)
def fresh(monkeypatch):
    monkeypatch.setenv("SERPER_API_KEY", KEY)
    outcome._logged_reasons.clear()


@pytest.fixture(scope="module", params=[serper, searxng], ids=["serper", "searxng"])
def service(request):
    with SearchServer(request.param) as server:
        yield server


def tool(server: SearchServer, **knobs) -> WebSearch:
    return WebSearch(
        (Serper if server.answer is serper else SearXNG)(url=server.url, http=QUICK), **knobs
    )


def search(tool: WebSearch, *queries: str) -> list[Evidence]:
    return asyncio.run(
        tool.web_search(
            **({"query": queries[0]} if len(queries) == 1 else {"query_list": [*queries]})
        )
    )


def fails(tool: WebSearch, *queries: str, match: str | None = None) -> ToolError:
    with pytest.raises(ToolError, match=match) as caught:
        search(tool, *queries)
    return caught.value


def test_a_page_is_its_title_address_and_snippet_with_its_date(service):
    first, second, *rest = search(tool(service), "rivers")
    url = "https://site1.example/rivers"
    assert first == Evidence(
        text="What site 1 says about rivers.", title="rivers 1", source=url, url=url
    )
    assert second.text.startswith(("Mar 3, 2024: What", "2024-03-03: What"))
    assert len(rest) == 3
    found = search(
        tool(service), "facts"
    )  # answers that name their page come first, and their page once
    answer = "The fact of the matter." if service.answer is serper else "42"
    assert [item.text for item in found[:2]] == [answer, "What is the case."]
    assert len({item.url for item in found}) == 5


def test_several_queries_are_interleaved_by_rank(service):
    found = search(tool(service), "red", "blue", "green")
    urls = [
        f"https://site{n}.example/{color}"
        for n in range(1, 6)
        for color in ("red", "blue", "green")
    ]
    assert [item.url for item in found] == urls[:10]
    before = len(service.requests)
    assert len(search(tool(service), "red", " red")) == 5
    assert len(service.requests) == before + 1
    assert (
        search(tool(service), "a\ud800b")[0].title == "a?b 1"
    )  # what cannot be encoded is searched for all the same


class Said(Provider):
    """Answers each query as told; raises what is an exception."""

    def __init__(self, **answers: list[str] | Exception) -> None:
        self.answers = answers

    async def search(self, query: str, count: int) -> list[Evidence]:
        answer = self.answers[query]
        if isinstance(answer, Exception):
            raise answer
        return [Evidence(f"About {query}.", title=url, url=url) for url in answer]


def test_a_page_under_several_addresses_comes_once():
    same = ["https://tea.example/a", "http://www.tea.example/a/", "https://TEA.example/a#steep"]
    other = ["https://tea.example/a?b=1", "https://tea.example/A"]
    assert [item.url for item in search(WebSearch(Said(red=same, blue=other)), "red", "blue")] == [
        same[0],
        *other,
    ]
    with pytest.raises(ValueError, match="a bug at"):
        search(WebSearch(Said(red=same, blue=ValueError("a bug at 10.0.0.7"))), "red", "blue")


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ({"query": "  "}, "Give either query"),
        ({"query": "a", "query_list": ["b"]}, "not both"),
        ({"query_list": ["a", " "]}, "empty"),
        ({"query_list": list("abcdef")}, "length <= 5"),
        ({"query": "x" * 401}, "401 characters is too long; use at most 400"),
    ],
)
def test_a_wrong_call_says_what_to_do_and_asks_nobody(service, arguments, told):
    before = len(service.requests)
    with Toolbox([tool(service)]) as box:
        [found] = box.run_batch([ToolCall("web_search", arguments)], [box.session()])
    assert found.error
    assert told in found.note
    assert len(service.requests) == before


def test_a_failed_query_leaves_the_others_results():
    def sometimes(request: Request):
        return (500, {}) if request.parameters["q"] == "bad" else searxng(request)

    with SearchServer(sometimes) as server:
        found = search(tool(server, top_k=2), "red", " red", "bad", "blue")
        assert [item.title for item in found] == ["red 1", "blue 1", "red 2", "blue 2"]
        assert isinstance(found, Partial)
        assert found.note.startswith("Entry 3 of query_list was not searched: Web search failed: ")
        assert found.transient
        assert not isinstance(search(tool(server), "red"), Partial)
        assert fails(tool(server), "bad", "bad ", match="Web search failed").retried


def test_results_without_a_page_address_are_dropped():
    wrong = (
        "javascript:alert(1)",
        "file:///etc/passwd",
        "//a.example",
        "http://",
        "http://[",
        "https://a b/",
        7,
        None,
    )
    assert [page("t", url, "text") for url in wrong] == [[]] * len(wrong)
    [long] = page("t" * 9_000, "https://a.example", "word " * 9_000)
    assert (len(long.title), len(long.text)) <= (300, 2_000)
    [found] = page("a\nb", "https://a.example", "c\r\n\r\nd\u2028e")
    assert (found.title, found.text) == ("a b", "c d e")


NAMES = [
    "results",
    "answers",
    "infoboxes",
    "organic",
    "answerBox",
    "knowledgeGraph",
    "result",
    "document",
]
FIELDS = [
    "title",
    "url",
    "link",
    "content",
    "snippet",
    "answer",
    "id",
    "publishedDate",
    "contents",
    "text",
    "score",
]
LEAVES = (
    st.none() | st.booleans() | st.floats() | st.text(max_size=9) | st.just("https://a.example/b")
)


def nested(inner):
    return st.lists(inner, max_size=3) | st.dictionaries(
        st.sampled_from(FIELDS + NAMES), inner, max_size=4
    )


@settings(max_examples=60)
@given(
    st.dictionaries(st.sampled_from(NAMES), st.recursive(LEAVES, nested, max_leaves=8))
    | nested(LEAVES)
)
def test_whatever_json_a_service_sends_only_evidence_comes_out(document):
    async def answer(*_, **__):
        return SimpleNamespace(body=b"", json=lambda: document)

    http, found = SimpleNamespace(get=answer, post=answer), []
    for provider in (SearXNG("http://x.example", http=http), Serper(http=http)):
        with suppress(*([] if isinstance(document, dict) else [ToolError])):
            found += asyncio.run(provider.search("tea", 9))
    assert all(item.url.startswith(("http://", "https://")) and item.title for item in found)
    for wire in ("search_r1", "recall"):
        with suppress(ToolError):
            found += remote(RemoteSearch("http://h", wire, http=http))
    for item in found:
        assert (type(item.text), type(item.title), type(item.source), type(item.url)) == (
            str,
            str,
            str,
            str,
        )
        if item.url:
            item.text.encode()


def test_a_missing_key_is_named_before_the_first_call(monkeypatch, caplog):
    with SearchServer(serper) as server:
        assert "refuses to search" in search(tool(server), "red", "broke").note
        assert "credits" in caplog.text
    for wrong in ("", "broken\nkey"):
        monkeypatch.setenv("SERPER_API_KEY", wrong)
        with pytest.raises(ConfigError, match=r"SERPER_API_KEY.*SearXNG.*ddgs"):
            Toolbox([WebSearch()])


def test_a_key_goes_into_the_header_alone(monkeypatch, caplog):
    monkeypatch.setenv("SERPER_API_KEY", "wrong-key-123\n")
    with SearchServer(serper) as server, caplog.at_level(logging.DEBUG):
        asked = tool(server)
        for each in (asked, pickle.loads(pickle.dumps(asked)), asked):
            said = str(fails(each, "red"))
        assert fails(tool(server), "red").transient  # so that it gets into no cache and no cassette
    assert said == "The search service refuses to search; use another tool."
    [error] = [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR]
    assert "SERPER_API_KEY" in error
    request = server.requests[0]
    assert request.headers["x-api-key"] == "wrong-key-123"
    assert not request.parameters
    assert request.body == {"q": "red", "num": 10}
    for shown in (caplog.text, repr(asked), asked.cache_key, str(pickle.dumps(asked))):
        assert "wrong-key-123" not in shown


def test_searxng_without_json_or_engines_says_so(caplog):
    with SearchServer(searxng, mode="forbidden") as server:
        fails(tool(server), "red")
        assert "JSON format is disabled" in caplog.text
        assert "settings.yml" in caplog.text
        server.mode = "ok"
        assert fails(tool(server), "outage", match="none of the search engines").transient
        assert search(tool(server), "unheard of") == []


def test_what_ddgs_itself_makes_of_its_engines_results(monkeypatch):
    from ddgs.engines import ENGINES
    from ddgs.results import TextResult

    class Engine:
        name = provider = "near"
        priority = 1

        def __init__(self, proxy, timeout, verify):
            pass

        def search(
            self, query, region, safesearch, timelimit, page
        ):  # a knob it does not know would fail
            return [
                TextResult(title=f"red {n}", href=f"https://a.example/{n}", body=f"B{n} red")
                for n in range(12)
            ]

    monkeypatch.setitem(ENGINES, "text", {"near": Engine, "far": None})
    found = search(WebSearch(Ddgs(), top_k=20), "red")
    wanted = sorted((f"red {n}", f"https://a.example/{n}", f"B{n} red") for n in range(12))
    assert sorted((item.title, item.url, item.text) for item in found) == wanted
    assert len(search(WebSearch(Ddgs(), top_k=3), "red")) == 3


def test_ddgs_that_fails_finds_nothing_blocks_or_is_not_there(monkeypatch):
    from ddgs.ddgs import DDGS
    from ddgs.exceptions import DDGSException, RatelimitException, TimeoutException

    threads, said = [], SimpleNamespace()

    def text(self, query, **knobs):
        threads.append(threading.current_thread())
        if isinstance(said.answer, Exception):
            raise said.answer
        return said.answer

    monkeypatch.setattr(DDGS, "text", text)
    for said.answer in (
        RatelimitException("202"),
        TimeoutException("late"),
        DDGSException("connection refused"),
    ):
        assert fails(WebSearch(Ddgs()), "red", match="Web search failed").transient
    # to the package an engine that refuses is one that finds nothing
    said.answer = DDGSException("No results found.")
    assert fails(WebSearch(Ddgs()), "red", match="no search engine answered").transient
    for said.answer in (
        None,
        "x",
        [1, None],
        [{"title": 3}],
        {"a": 1},
    ):
        assert search(WebSearch(Ddgs()), "red") == []
    assert threading.current_thread() not in threads
    monkeypatch.setitem(sys.modules, "ddgs", None)
    with pytest.raises(ConfigError, match=r"faithful-search\[web\]"):
        WebSearch(Ddgs()).check()


def test_providers_are_loaded_by_name():
    assert names() == ["ddgs", "searxng", "serper"]
    assert load("searxng") is SearXNG
    with pytest.raises(ConfigError, match="ddgs, searxng, serper"):
        load("gopher")
    with pytest.raises(ConfigError, match="top_k must be at least 1"):
        WebSearch(top_k=0)
    services = [Serper("http://localhost:1"), SearXNG("http://localhost:1"), Ddgs()]
    tools = [*map(WebSearch, services), WebSearch(), WebSearch(top_k=4)]
    assert len({each.cache_key for each in tools}) == len(tools)


# a retrieval server


def remote(tool: RemoteSearch, query: str = "q") -> list[Evidence]:
    return asyncio.run(tool.search(query))


def test_our_servers_results_come_back_whole():
    call = ToolCall("local_search", {"query": "where"})
    with running(Retrieval(Shelf())) as url:
        for path, wire in (("", "search_r1"), ("/retrieve", "search_r1"), ("/", "recall")):
            assert remote(RemoteSearch(url + path, wire, top_k=2), "w") == [
                passage("w", 0),
                passage("w", 1),
            ]
        toolbox = Toolbox([RemoteSearch(url, http=QUICK)])
        assert toolbox.run_batch([call], [toolbox.session()])[0].evidence
    for found in toolbox.run_batch([call] * 8, [toolbox.session() for _ in range(8)]):
        assert found.error
        assert not found.evidence
        assert found.note
    toolbox.close()


DOCUMENTS = [{"id": "1", "contents": "T\nX"}, {"id": "2", "contents": "T\nY"}]


@pytest.mark.parametrize(
    ("answer", "found"),
    [
        ({"result": [[]]}, []),
        (
            {"result": [[{"id": 7, "contents": "Paris\nText"}]]},
            [Evidence("Text", title="Paris", source="7")],
        ),
        ({"result": [[{"title": "T", "text": "X"}]]}, [Evidence("X", title="T")]),
        ({"result": [[{"document": "bare text", "score": 2}]]}, [Evidence("bare text", score=2.0)]),
        (
            {"result": [[{"document": {"contents": '"T"\nX', "url": 5}, "score": "high"}]]},
            [Evidence("X", title="T")],
        ),
        ({"result": [[{"contents": "a"}] * 9], "more": 1}, [Evidence("a")] * 3),
        (DOCUMENTS, [Evidence("X", "T", source="1"), Evidence("Y", "T", source="2")]),
        (
            [DOCUMENTS, [0.5, 2]],
            [Evidence("X", "T", source="1", score=0.5), Evidence("Y", "T", source="2", score=2.0)],
        ),
    ],
)
def test_what_other_servers_of_the_family_send(answer, found):
    with FaultyServer(lambda request: (200, answer)) as server:
        assert (
            remote(RemoteSearch(server.url, "recall" if isinstance(answer, list) else "search_r1"))
            == found
        )


JUNK = [b"", b"<html>", b"\xff\xfe", b"null", b"[]", b"[" * 100_000]
RESULTS = [b"null", b"[]", b"[[], []]", b'["text"]', b"[[1]]", b'[[{"document": {"contents": 5}}]]']
RESULTS += [b'[[{"document": {"title": 5, "text": "x"}}]]']


@pytest.mark.parametrize("body", [*JUNK, *(b'{"result": %s}' % result for result in RESULTS)])
def test_what_is_no_result_is_told_to_the_policy(body):
    with FaultyServer(lambda request: (200, body)) as server, pytest.raises(ToolError) as failed:
        remote(RemoteSearch(server.url, http=QUICK))
    assert server.url.removeprefix("http://") not in str(failed.value)
    assert str(failed.value)


def test_the_token_comes_from_the_environment(monkeypatch, caplog):
    outcome._logged_reasons.clear()
    with running(Retrieval(Shelf()), token="s3cret") as url:
        tool = RemoteSearch(url, top_k=1, http=QUICK)
        monkeypatch.setenv(TOKEN, "token-of-another-server")
        with pytest.raises(ToolError, match=r"^Search is not available now") as refused:
            remote(tool)
        monkeypatch.setenv(TOKEN, "s3cret")
        assert remote(tool) == [passage("q", 0)]
    assert refused.value.transient
    assert refused.value.retried
    assert TOKEN in caplog.text
    assert "token-of-another-server" not in caplog.text
    assert "s3cret" not in f"{tool!r} {tool.cache_key}"
    assert b"s3cret" not in pickle.dumps(tool)


def test_a_server_killed_in_the_midst_is_told_to_the_policy():
    with command("world") as (process, url), Toolbox([RemoteSearch(url, http=QUICK)]) as toolbox:
        calls, sessions = (
            [ToolCall("local_search", {"query": "capital"})] * 8,
            [toolbox.session() for _ in range(8)],
        )
        assert all(found.evidence for found in toolbox.run_batch(calls, sessions))
        process.kill()
        process.wait(20)
        for found in toolbox.run_batch(calls, sessions):
            assert found.error
            assert not found.evidence
            assert found.note


def test_cache_keys_hold_no_secrets_of_the_address():
    tools = [
        RemoteSearch(url)
        for url in ("http://a/s", "http://a/s?key=x", "http://a/s?key=y", "http://b/s")
    ]
    tools.append(RemoteSearch("http://a/s", "recall"))
    assert tools[1].endpoint == "http://a/s?key=x"
    keys = {tool.cache_key for tool in (*tools, RemoteSearch("http://a/s", top_k=5))}
    assert len(keys) == 6
    assert not any("key=x" in key for key in keys)
    for name, wrong in (("wire", "soap"), ("top_k", 0)):
        with pytest.raises(ConfigError, match=name):
            RemoteSearch("http://a", **{name: wrong})


# every way in which a service can fail

FAULTS = [
    "unauthorized",
    "forbidden",
    "busy",
    "patient",
    "error",
    "unavailable",
    "cut",
    "garbage",
    "html",
    "closed",
]


def retrieval(request: Request):
    return 200, {"result": [[{"document": {"contents": "Freedonia\nIts capital is Glooston."}}]]}


TOOLS = {
    retrieval: lambda url, http: RemoteSearch(url, http=http),
    serper: lambda url, http: WebSearch(Serper(url=url, http=http)),
    searxng: lambda url, http: WebSearch(SearXNG(url, http=http)),
    wikidata: lambda url, http: Wikidata(url=f"{url}/w/api.php", http=http),
}
# Wikidata is asked several times for one call, and each of its answers may be the bad one
PLACES = [(serper, 0), (searxng, 0), (wikidata, 0), (wikidata, 1), (wikidata, 2)]
FAULTY = [*PLACES[:4], (retrieval, 0)]


def freedonia(tool: Tool) -> list[Evidence]:
    return asyncio.run(method_of(tool)(query="Freedonia"))


def failing(answer, mode: str, after: int = 0, **how) -> SearchServer:
    """Fails in this way after so many good answers."""

    def late(request: Request):
        if len(server.requests) >= after:
            server.mode = mode
        return answer(request)

    server = SearchServer(late, "ok" if after else mode, **how)
    return server


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize(("answer", "after"), FAULTY)
def test_every_fault_is_an_error_that_the_policy_reads(fault, answer, after):
    with (
        failing(answer, fault, after) as server,
        Toolbox([TOOLS[answer](server.url, QUICK)], timeout=10) as box,
    ):
        start = time.monotonic()
        [found] = box.run_batch([ToolCall(box.names[0], {"query": "Freedonia"})], [box.session()])
    assert found.error
    assert found.note
    assert time.monotonic() - start < 9
    assert KEY not in found.note
    assert server.url.removeprefix("http://") not in found.note


@pytest.mark.parametrize("strange", STRANGE)
@pytest.mark.parametrize(("answer", "after"), PLACES)
def test_json_of_another_form_is_an_error_or_nothing(strange, answer, after):
    with failing(answer, strange, after) as server:
        try:
            assert freedonia(TOOLS[answer](server.url, QUICK)) == []
        except ToolError as error:
            assert "something else than" in str(error) or "none of the search engines" in str(error)


@pytest.mark.parametrize(
    ("mode", "limit"),
    [("hang", {"timeout": 0.3}), ("drip", {"timeout": 0.3}), ("ok", {"max_bytes": 60})],
)
@pytest.mark.parametrize("answer", TOOLS)
def test_a_service_that_hangs_or_sends_too_much_is_given_up(mode, limit, answer):
    http, told = Http(patience=Patience(retries=0), **limit), r"than (0\.3 seconds|60 bytes)"
    with SearchServer(answer, mode) as server, pytest.raises(ToolError, match=told):
        freedonia(TOOLS[answer](server.url, http))


@pytest.mark.parametrize("mode", ["unavailable", "busy"])
@pytest.mark.parametrize("answer", TOOLS)
def test_a_failure_that_passes_is_not_noticed(mode, answer):
    with SearchServer(answer, mode=mode, faults=1) as server:
        assert freedonia(TOOLS[answer](server.url, QUICK))


ADDRESSED = {
    "serper": Serper,
    "searxng": SearXNG,
    "jina": Jina,
    "wikidata": lambda url: Wikidata(url=url),
    "retrieval server": RemoteSearch,
    "opensearch": lambda url: OpenSearchIndex(url, "wiki"),
}
ADDRESSES = [
    "localhost:8888",
    "ftp://host/x",
    "http://",
    "http://[",
    "file:///etc/passwd",
    "http://me:secret@host:1",
]


@pytest.mark.parametrize("name", ADDRESSED)
@pytest.mark.parametrize("url", ADDRESSES)
def test_an_address_that_is_none_is_refused_at_once(name, url):
    with pytest.raises(ConfigError, match="must look like") as told:
        ADDRESSED[name](url)
    assert "secret" not in str(told.value)
    with pytest.raises(ConfigError, match="neither a query nor a fragment"):
        OpenSearchIndex("http://host/?key=secret", "wiki")
