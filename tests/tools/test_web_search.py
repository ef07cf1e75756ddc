"""Web search: what each service's results become, several queries at once, and every way a service can fail."""

import asyncio
import logging
import pickle
import sys
import threading
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from search_servers import KEY, Request, SearchServer, searxng, serper

from faithful_search.errors import ConfigError, ToolError
from faithful_search.tools import Toolbox, outcome
from faithful_search.tools.cassette import Cassette
from faithful_search.tools.web.providers import Provider, load, names, page
from faithful_search.tools.web.providers.ddgs import Ddgs
from faithful_search.tools.web.providers.searxng import SearXNG
from faithful_search.tools.web.providers.serper import Serper
from faithful_search.tools.web_search import WebSearch
from faithful_search.trajectory import Evidence, ToolCall
from faithful_search.wire.cache import Cache
from faithful_search.wire.http import Http
from faithful_search.wire.retry import Patience

QUICK = Http(timeout=2, patience=Patience(retries=1, first=0.01))


@pytest.fixture(autouse=True)
def fresh(monkeypatch):
    monkeypatch.setenv("SERPER_API_KEY", KEY)
    outcome._tell_operator.cache_clear()


@pytest.fixture(scope="module", params=[serper, searxng], ids=["serper", "searxng"])
def service(request):
    with SearchServer(request.param) as server:
        yield server


def tool(server: SearchServer, http: Http = QUICK, **knobs) -> WebSearch:
    provider = Serper(url=server.url, http=http) if server.answer is serper else SearXNG(server.url, http=http)
    return WebSearch(provider, **knobs)


def search(tool: WebSearch, *queries: str) -> list[Evidence]:
    return asyncio.run(tool.web_search(**({"query": queries[0]} if len(queries) == 1 else {"query_list": [*queries]})))


def urls(found: list[Evidence]) -> list[str]:
    return [item.url.removeprefix("https://") for item in found]


def test_a_page_is_its_title_address_and_snippet_with_its_date(service):
    first, second, *rest = search(tool(service), "rivers")
    assert first == Evidence(
        text="What site 1 says about rivers.",
        title="rivers 1",
        source="https://site1.example/rivers",
        url="https://site1.example/rivers",
    )
    assert second.text.startswith(("Mar 3, 2024: What", "2024-03-03: What")) and len(rest) == 3


def test_answers_that_name_their_page_come_first_and_their_page_once(service):
    found = search(tool(service), "facts")
    assert [item.text for item in found[:2]] == [
        "The fact of the matter." if service.answer is serper else "42",
        "What is the case.",
    ]
    assert len(set(urls(found))) == 5


def test_several_queries_run_at_once_each_once_and_are_interleaved_by_rank(service):
    found = search(tool(service), "red", "blue", "green")
    assert urls(found) == [f"site{n}.example/{color}" for n in range(1, 6) for color in ("red", "blue", "green")][:10]
    before = len(service.requests)
    assert len(search(tool(service), "red", " red")) == 5 and len(service.requests) == before + 1
    assert search(tool(service), "a\ud800b")[0].title == "a?b 1"  # what cannot be encoded is searched for all the same


class Said(Provider):
    """Answers each query as told; raises what is an exception."""

    cache_key = "said"

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
    found = search(WebSearch(Said(red=same, blue=other)), "red", "blue")
    assert [item.url for item in found] == [same[0], *other]


def test_an_error_that_is_no_tools_is_not_shown_as_a_result():
    with pytest.raises(ValueError, match="a bug at"):
        search(WebSearch(Said(red=["https://tea.example/a"], blue=ValueError("a bug at 10.0.0.7"))), "red", "blue")


def test_excluded_hosts_and_their_subdomains_are_replaced_by_what_follows(service):
    found = search(tool(service, top_k=3, exclude=("site2.example", "EXAMPLE.org", "te1.example")), "red")
    assert urls(found) == ["site1.example/red", "site3.example/red", "site4.example/red"]
    assert search(tool(service, exclude=("example",)), "red") == []


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ({}, "Give either query"),
        ({"query": "  "}, "Give either query"),
        ({"query": "a", "query_list": ["b"]}, "not both"),
        ({"query_list": ["a", " "]}, "empty"),
        ({"query_list": list("abcdef")}, "at most 5|length <= 5"),
        ({"query_list": []}, "Give either query|length >= 1"),
        ({"query": "x" * 401}, "401 characters is too long; use at most 400"),
    ],
)
def test_a_wrong_call_says_what_to_do_and_asks_nobody(service, arguments, told):
    before = len(service.requests)
    with Toolbox([tool(service)]) as box:
        [found] = box.run_batch([ToolCall("web_search", arguments)], [box.session()])
    assert found.error and any(part in found.note for part in told.split("|")), found.note
    assert len(service.requests) == before


def test_a_query_that_fails_among_others_says_so_and_the_others_count():
    def sometimes(request: Request):
        return (500, {}) if request.parameters["q"] == "bad" else searxng(request)

    with SearchServer(sometimes) as server:
        found = search(tool(server, top_k=2), "red", "bad", "blue")
        assert [item.title for item in found] == ["red 1", "bad", "blue 1", "red 2", "blue 2"]
        assert found[1].text.startswith("Not searched: Web search failed: ") and found[1].url == ""
        with pytest.raises(ToolError, match="Web search failed"):
            search(tool(server), "bad", "bad ")


def test_a_huge_answer_is_cut_to_what_is_asked_for_and_texts_to_some_length():
    def huge(request: Request):
        row = {"title": "t" * 9_000, "url": "https://a.example/", "content": "word " * 9_000}
        return 200, {
            "results": [{**row, "url": f"https://a.example/{n}"} for n in range(60)],
            "unresponsive_engines": 1,
        }

    with SearchServer(huge) as server:
        found = search(tool(server), "red")
    assert len(found) == 5 and all(len(item.text) <= 2_000 and len(item.title) <= 300 for item in found)


def test_what_is_no_address_of_a_page_is_dropped_and_a_snippet_stays_on_one_line():
    wrong = "javascript:alert(1)", "file:///etc/passwd", "//a.example", "http://", "http://[", "https://a b/", 7, None
    assert [page("t", url, "text") for url in wrong] == [[]] * len(wrong)
    [found] = page("a\nb", "https://a.example", "c\r\n\r\nd\u2028e")
    assert (found.title, found.text) == ("a b", "c d e")


PARTS = st.sampled_from(["results", "answers", "infoboxes", "organic", "answerBox", "knowledgeGraph"])
FIELDS = st.sampled_from(["title", "url", "link", "content", "snippet", "answer", "id", "publishedDate"])
LEAVES = st.none() | st.booleans() | st.floats(allow_nan=False) | st.text(max_size=9) | st.just("https://a.example/b")


def nested(inner):
    return st.lists(inner, max_size=3) | st.dictionaries(FIELDS, inner)


@settings(max_examples=60)
@given(st.dictionaries(PARTS, st.recursive(LEAVES, nested, max_leaves=12)))
def test_whatever_json_a_service_sends_only_pages_come_out(document):
    async def answer(*_, **__):
        return SimpleNamespace(body=b"", json=lambda: document)

    http = SimpleNamespace(get=answer, post=answer)
    for provider in (SearXNG("http://x.example", http=http), Serper(http=http)):
        for item in asyncio.run(provider.search("tea", 9)):
            assert item.url.startswith(("http://", "https://")) and isinstance(item.text, str) and item.title
            item.text.encode()


class TestSerper:
    def test_a_missing_key_is_told_before_the_first_call(self, monkeypatch):
        monkeypatch.delenv("SERPER_API_KEY")
        with pytest.raises(ConfigError, match=r"SERPER_API_KEY.*SearXNG.*ddgs"):
            WebSearch().check()
        with pytest.raises(ConfigError, match="SERPER_API_KEY"):
            Toolbox([WebSearch()])
        monkeypatch.setenv("SERPER_API_KEY", "broken\nkey")
        with pytest.raises(ConfigError, match="SERPER_API_KEY"):
            WebSearch().check()

    def test_a_refused_key_is_neutral_to_the_policy_and_loud_once_in_the_log_without_the_key(self, monkeypatch, caplog):
        wrong = "wrong-key-123"
        monkeypatch.setenv("SERPER_API_KEY", wrong)
        with SearchServer(serper) as server, caplog.at_level(logging.DEBUG):
            for _ in range(3):
                with pytest.raises(ToolError) as caught:
                    search(tool(server), "red", "blue")
        assert str(caught.value) == "The search service refuses to search; use another tool."
        errors = [record for record in caplog.records if record.levelno >= logging.ERROR]
        assert len(errors) == 1 and "SERPER_API_KEY" in errors[0].getMessage()
        assert all(wrong not in record.getMessage() for record in caplog.records)

    def test_what_the_operator_can_mend_is_loud_and_neither_repeated_nor_kept(self, tmp_path, caplog):
        def unpaid(request: Request):
            return (400, {"message": "Not enough credits"}) if request.body["q"] == "blue" else serper(request)

        call = ToolCall("web_search", {"query_list": ["red", "blue"]})
        cassette = Cassette(tmp_path / "calls.jsonl", "record")
        with SearchServer(unpaid) as server, cassette:
            knobs = {"cache": Cache(tmp_path / "cache.sqlite"), "cassette": cassette}
            with Toolbox([WebSearch(Serper(url=server.url, http=QUICK))], **knobs) as box:
                [found] = box.run_batch([call], [box.session()])
                assert "refuses to search" in found.evidence[1].text and len(server.requests) == 2
                server.answer = serper
                [found] = box.run_batch([call], [box.session()])
        assert [item.title for item in found.evidence[:2]] == ["red 1", "blue 1"]
        assert "refuses" not in cassette.path.read_text(encoding="utf-8") and "credits" in caplog.text

    def test_the_key_goes_into_the_header_and_nowhere_else(self, monkeypatch):
        monkeypatch.setenv("SERPER_API_KEY", KEY + "\n")
        with SearchServer(serper, mode="error") as server:
            asked = tool(server)
            with pytest.raises(ToolError) as caught:
                search(pickle.loads(pickle.dumps(asked)), "red")
        request = server.requests[0]
        assert request.headers["x-api-key"] == KEY and not request.parameters
        assert request.body == {"q": "red", "num": 10}
        seen = repr(asked), str(caught.value), asked.cache_key, str(pickle.dumps(asked))
        assert not any(KEY in text for text in seen)


class TestSearXNG:
    def test_403_says_that_json_is_disabled(self, caplog):
        with SearchServer(searxng, mode="forbidden") as server, pytest.raises(ToolError):
            search(tool(server), "red")
        assert "JSON format is disabled" in caplog.text and "settings.yml" in caplog.text

    def test_an_outage_of_all_engines_is_a_failure_that_passes_and_not_no_results(self):
        with SearchServer(searxng) as server, pytest.raises(ToolError, match="none of the search engines") as caught:
            search(tool(server), "outage")
        assert caught.value.passing
        with SearchServer(searxng) as server:
            assert search(tool(server), "unheard of") == []


class TestDdgs:
    @pytest.fixture
    def text(self, monkeypatch):
        from ddgs.ddgs import DDGS

        def install(answer):
            monkeypatch.setattr(DDGS, "text", lambda self, query, **knobs: answer(query, **knobs))

        return install

    def test_what_the_package_itself_makes_of_its_engines_results(self, monkeypatch):
        from ddgs.engines import ENGINES
        from ddgs.results import TextResult

        asked = []

        class Engine:
            name = provider = "near"
            priority = 1

            def __init__(self, proxy, timeout, verify):
                pass

            def search(self, query, region, safesearch, timelimit, page):  # a knob it does not know would fail
                asked.append(query)
                return [
                    TextResult(title=f"red {n}", href=f"https://a.example/{n}", body=f"B{n} red") for n in range(12)
                ]

        monkeypatch.setitem(ENGINES, "text", {"near": Engine, "far": None})
        found = search(WebSearch(Ddgs(), top_k=20), "red")
        assert sorted((item.title, item.url, item.text) for item in found) == sorted(
            (f"red {n}", f"https://a.example/{n}", f"B{n} red") for n in range(12)
        )
        assert len(search(WebSearch(Ddgs(), top_k=3), "red")) == 3
        assert asked == ["red"] * 2

    def test_exceptions(self, text):
        from ddgs.exceptions import DDGSException, RatelimitException, TimeoutException

        def raising(error):
            def answer(query, **knobs):
                raise error

            return answer

        for error in (RatelimitException("202"), TimeoutException("late"), DDGSException("connection refused")):
            text(raising(error))
            with pytest.raises(ToolError, match="Web search failed") as caught:
                search(WebSearch(Ddgs()), "red")
            assert caught.value.passing
        text(raising(DDGSException("No results found.")))
        assert search(WebSearch(Ddgs()), "red") == []

    def test_a_search_that_blocks_does_not_hold_up_the_event_loop(self, text):
        threads = []
        text(lambda query, **knobs: threads.append(threading.current_thread()) or [])
        assert search(WebSearch(Ddgs()), "red") == [] and threads[0] is not threading.current_thread()

    @pytest.mark.parametrize("strange", [None, "x", [1, None], [{"title": 3}], {"a": 1}])
    def test_strange_results(self, text, strange):
        text(lambda query, **knobs: strange)
        assert search(WebSearch(Ddgs()), "red") == []

    def test_a_missing_package_is_told_with_its_extra(self, monkeypatch):
        monkeypatch.setitem(sys.modules, "ddgs", None)
        with pytest.raises(ConfigError, match=r"faithful-search\[web\]"):
            WebSearch(Ddgs()).check()


def test_providers_are_found_by_name():
    assert names() == ["ddgs", "searxng", "serper"] and load("searxng") is SearXNG
    with pytest.raises(ConfigError, match="ddgs, searxng, serper"):
        load("gopher")


def test_the_cache_key_tells_apart_what_gives_other_results():
    tools = [
        WebSearch(),
        WebSearch(Serper("http://localhost:1")),
        WebSearch(SearXNG("http://localhost:1")),
        WebSearch(Ddgs()),
        WebSearch(top_k=4),
        WebSearch(exclude=("a.example",)),
    ]
    assert len({each.cache_key for each in tools}) == len(tools)
    assert WebSearch(exclude=("a.b", "c.d")).cache_key == WebSearch(exclude=("c.d", "a.b")).cache_key


@pytest.mark.parametrize(
    "knobs",
    [{"top_k": 0}, {"exclude": "a.example"}, {"exclude": ("https://a.example/",)}],
)
def test_settings_that_cannot_be(knobs):
    with pytest.raises(ConfigError):
        WebSearch(**knobs)
