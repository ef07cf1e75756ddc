"""Web search: what each service's results become, several queries at once, and what only one service does."""

import asyncio
import logging
import pickle
import sys
import threading
from types import SimpleNamespace

import pytest
from hypothesis import given, settings, strategies as st
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
    outcome._told.clear()


@pytest.fixture(scope="module", params=[serper, searxng], ids=["serper", "searxng"])
def service(request):
    with SearchServer(request.param) as server:
        yield server


def tool(server: SearchServer, **knobs) -> WebSearch:
    kind = Serper if server.answer is serper else SearXNG
    return WebSearch(kind(url=server.url, http=QUICK), **knobs)


def search(tool: WebSearch, *queries: str) -> list[Evidence]:
    return asyncio.run(tool.web_search(**({"query": queries[0]} if len(queries) == 1 else {"query_list": [*queries]})))


def fails(tool: WebSearch, *queries: str, match: str | None = None) -> ToolError:
    with pytest.raises(ToolError, match=match) as caught:
        search(tool, *queries)
    return caught.value


def urls(found: list[Evidence]) -> list[str]:
    return [item.url.removeprefix("https://") for item in found]


def test_a_page_is_its_title_address_and_snippet_with_its_date(service):
    first, second, *rest = search(tool(service), "rivers")
    url = "https://site1.example/rivers"
    assert first == Evidence(text="What site 1 says about rivers.", title="rivers 1", source=url, url=url)
    assert second.text.startswith(("Mar 3, 2024: What", "2024-03-03: What")) and len(rest) == 3


def test_answers_that_name_their_page_come_first_and_their_page_once(service):
    found = search(tool(service), "facts")
    answer = "The fact of the matter." if service.answer is serper else "42"
    assert [item.text for item in found[:2]] == [answer, "What is the case."]
    assert len(set(urls(found))) == 5


def test_several_queries_run_at_once_each_once_and_are_interleaved_by_rank(service):
    found = search(tool(service), "red", "blue", "green")
    assert urls(found) == [f"site{n}.example/{color}" for n in range(1, 6) for color in ("red", "blue", "green")][:10]
    before = len(service.requests)
    assert len(search(tool(service), "red", " red")) == 5 and len(service.requests) == before + 1
    assert search(tool(service), "a\ud800b")[0].title == "a?b 1"  # what cannot be encoded is searched for all the same


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
    found = search(WebSearch(Said(red=same, blue=other)), "red", "blue")
    assert [item.url for item in found] == [same[0], *other]


def test_an_error_that_is_no_tools_is_not_shown_as_a_result():
    with pytest.raises(ValueError, match="a bug at"):
        search(WebSearch(Said(red=["https://tea.example/a"], blue=ValueError("a bug at 10.0.0.7"))), "red", "blue")


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        *(({}, "Give either query"), ({"query": "  "}, "Give either query")),
        *(({"query": "a", "query_list": ["b"]}, "not both"), ({"query_list": ["a", " "]}, "empty")),
        *(({"query_list": list("abcdef")}, "length <= 5"), ({"query_list": []}, "length >= 1")),
        ({"query": "x" * 401}, "401 characters is too long; use at most 400"),
    ],
)
def test_a_wrong_call_says_what_to_do_and_asks_nobody(service, arguments, told):
    before = len(service.requests)
    with Toolbox([tool(service)]) as box:
        [found] = box.run_batch([ToolCall("web_search", arguments)], [box.session()])
    assert found.error and told in found.note and len(service.requests) == before


def test_a_query_that_fails_among_others_says_so_and_the_others_count():
    def sometimes(request: Request):
        return (500, {}) if request.parameters["q"] == "bad" else searxng(request)

    with SearchServer(sometimes) as server:
        found = search(tool(server, top_k=2), "red", "bad", "blue")
        assert [item.title for item in found] == ["red 1", "bad", "blue 1", "red 2", "blue 2"]
        assert found[1].text.startswith("Not searched: Web search failed: ") and found[1].url == ""
        fails(tool(server), "bad", "bad ", match="Web search failed")


def test_what_is_no_address_of_a_page_is_dropped_and_a_snippet_stays_on_one_line():
    wrong = "javascript:alert(1)", "file:///etc/passwd", "//a.example", "http://", "http://[", "https://a b/", 7, None
    assert [page("t", url, "text") for url in wrong] == [[]] * len(wrong)
    [long] = page("t" * 9_000, "https://a.example", "word " * 9_000)
    assert (len(long.title), len(long.text)) <= (300, 2_000)
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


def test_a_missing_key_is_told_before_the_first_call(monkeypatch):
    for wrong in (None, "broken\nkey"):
        monkeypatch.delenv("SERPER_API_KEY") if wrong is None else monkeypatch.setenv("SERPER_API_KEY", wrong)
        with pytest.raises(ConfigError, match=r"SERPER_API_KEY.*SearXNG.*ddgs"):
            Toolbox([WebSearch()])


def test_a_refused_key_is_neutral_to_the_policy_and_loud_once_in_the_log_without_the_key(monkeypatch, caplog):
    monkeypatch.setenv("SERPER_API_KEY", "wrong-key-123")
    with SearchServer(serper) as server, caplog.at_level(logging.DEBUG):
        for _ in range(3):
            said = str(fails(tool(server), "red", "blue"))
    assert said == "The search service refuses to search; use another tool."
    [error] = [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR]
    assert "SERPER_API_KEY" in error and "wrong-key-123" not in caplog.text


def test_what_the_operator_can_mend_is_loud_and_neither_repeated_nor_kept(tmp_path, caplog):
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


def test_the_key_goes_into_the_header_and_nowhere_else(monkeypatch):
    monkeypatch.setenv("SERPER_API_KEY", KEY + "\n")
    with SearchServer(serper, mode="error") as server:
        asked = tool(server)
        said = str(fails(pickle.loads(pickle.dumps(asked)), "red"))
    request = server.requests[0]
    assert request.headers["x-api-key"] == KEY and not request.parameters
    assert request.body == {"q": "red", "num": 10}
    assert not any(KEY in text for text in (repr(asked), said, asked.cache_key, str(pickle.dumps(asked))))


def test_searxng_says_that_json_is_disabled_and_an_outage_of_all_engines_passes(caplog):
    with SearchServer(searxng, mode="forbidden") as server:
        fails(tool(server), "red")
        assert "JSON format is disabled" in caplog.text and "settings.yml" in caplog.text
        server.mode = "ok"
        assert fails(tool(server), "outage", match="none of the search engines").passing
        assert search(tool(server), "unheard of") == []


@pytest.fixture
def engines(monkeypatch):
    """What the package `ddgs` gives instead of asking."""
    from ddgs.ddgs import DDGS

    return lambda answer: monkeypatch.setattr(DDGS, "text", lambda self, query, **knobs: answer())


def test_what_ddgs_itself_makes_of_its_engines_results(monkeypatch):
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
            return [TextResult(title=f"red {n}", href=f"https://a.example/{n}", body=f"B{n} red") for n in range(12)]

    monkeypatch.setitem(ENGINES, "text", {"near": Engine, "far": None})
    found = search(WebSearch(Ddgs(), top_k=20), "red")
    wanted = sorted((f"red {n}", f"https://a.example/{n}", f"B{n} red") for n in range(12))
    assert sorted((item.title, item.url, item.text) for item in found) == wanted
    assert len(search(WebSearch(Ddgs(), top_k=3), "red")) == 3 and asked == ["red"] * 2


def test_ddgs_that_fails_finds_nothing_blocks_or_is_not_there(engines, monkeypatch):
    from ddgs.exceptions import DDGSException, RatelimitException, TimeoutException

    def raising(error):
        raise error

    for error in (RatelimitException("202"), TimeoutException("late"), DDGSException("connection refused")):
        engines(lambda error=error: raising(error))
        assert fails(WebSearch(Ddgs()), "red", match="Web search failed").passing
    engines(lambda: raising(DDGSException("No results found.")))
    assert search(WebSearch(Ddgs()), "red") == []
    for strange in (None, "x", [1, None], [{"title": 3}], {"a": 1}):
        engines(lambda strange=strange: strange)
        assert search(WebSearch(Ddgs()), "red") == []
    threads = []
    engines(lambda: threads.append(threading.current_thread()) or [])
    assert search(WebSearch(Ddgs()), "red") == [] and threads[0] is not threading.current_thread()
    monkeypatch.setitem(sys.modules, "ddgs", None)
    with pytest.raises(ConfigError, match=r"faithful-search\[web\]"):
        WebSearch(Ddgs()).check()


def test_providers_are_found_by_name_and_settings_that_cannot_be_are_refused():
    assert names() == ["ddgs", "searxng", "serper"] and load("searxng") is SearXNG
    with pytest.raises(ConfigError, match="ddgs, searxng, serper"):
        load("gopher")
    with pytest.raises(ConfigError, match="top_k must be at least 1"):
        WebSearch(top_k=0)


def test_the_cache_key_tells_apart_what_gives_other_results():
    services = [Serper("http://localhost:1"), SearXNG("http://localhost:1"), Ddgs()]
    tools = [*map(WebSearch, services), WebSearch(), WebSearch(top_k=4)]
    assert len({each.cache_key for each in tools}) == len(tools)
