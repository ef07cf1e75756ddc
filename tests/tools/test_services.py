"""Every way in which a service of web search or of facts can fail: the policy reads an error, in time, without keys."""

import asyncio
import time

import pytest
from search_servers import KEY, STRANGE, Request, SearchServer, searxng, serper, wikidata

from faithful_search.errors import ConfigError, ToolError
from faithful_search.tools import RemoteSearch, Tool, Toolbox, Wikidata, method_of
from faithful_search.tools.browse import Jina
from faithful_search.tools.retrieval import OpenSearchIndex, QdrantIndex
from faithful_search.tools.web.providers.searxng import SearXNG
from faithful_search.tools.web.providers.serper import Serper
from faithful_search.tools.web_search import WebSearch
from faithful_search.trajectory import Evidence, ToolCall
from faithful_search.wire.http import Http
from faithful_search.wire.retry import Patience

QUICK = Http(timeout=2, patience=Patience(retries=1, first=0.01))
FAULTS = ["unauthorized", "forbidden", "busy", "patient", "error", "unavailable", "cut", "garbage", "html", "closed"]


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


@pytest.fixture(autouse=True)
def key(monkeypatch):
    monkeypatch.setenv("SERPER_API_KEY", KEY)


def failing(answer, mode: str, after: int = 0, **how) -> SearchServer:
    """Fails in this way after so many good answers."""

    def late(request: Request):
        if len(server.requests) >= after:
            server.mode = mode
        return answer(request)

    server = SearchServer(late, "ok" if after else mode, **how)
    return server


def search(tool: Tool) -> list[Evidence]:
    return asyncio.run(method_of(tool)(query="Freedonia"))


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize(("answer", "after"), FAULTY)
def test_every_fault_is_an_error_that_the_policy_reads(fault, answer, after):
    with failing(answer, fault, after) as server, Toolbox([TOOLS[answer](server.url, QUICK)], timeout=10) as box:
        start = time.monotonic()
        [found] = box.run_batch([ToolCall(box.names[0], {"query": "Freedonia"})], [box.session()])
    assert found.error and found.note and time.monotonic() - start < 9
    assert KEY not in found.note and server.url.removeprefix("http://") not in found.note


@pytest.mark.parametrize("strange", STRANGE)
@pytest.mark.parametrize(("answer", "after"), PLACES)
def test_json_of_another_form_is_an_error_or_nothing(strange, answer, after):
    with failing(answer, strange, after) as server:
        try:
            assert search(TOOLS[answer](server.url, QUICK)) == []
        except ToolError as error:
            assert "something else than" in str(error) or "none of the search engines" in str(error)


@pytest.mark.parametrize(
    ("mode", "limit"), [("hang", {"timeout": 0.3}), ("drip", {"timeout": 0.3}), ("ok", {"max_bytes": 60})]
)
@pytest.mark.parametrize("answer", TOOLS)
def test_a_service_that_hangs_or_sends_too_much_is_given_up(mode, limit, answer):
    http, told = Http(patience=Patience(retries=0), **limit), r"than (0\.3 seconds|60 bytes)"
    with SearchServer(answer, mode) as server, pytest.raises(ToolError, match=told):
        search(TOOLS[answer](server.url, http))


@pytest.mark.parametrize("mode", ["unavailable", "busy"])
@pytest.mark.parametrize("answer", TOOLS)
def test_a_failure_that_passes_is_not_noticed(mode, answer):
    with SearchServer(answer, mode=mode, faults=1) as server:
        assert search(TOOLS[answer](server.url, QUICK))


ADDRESSED = {
    "serper": Serper,
    "searxng": SearXNG,
    "jina": Jina,
    "wikidata": lambda url: Wikidata(url=url),
    "retrieval server": RemoteSearch,
    "opensearch": lambda url: OpenSearchIndex(url, "wiki"),
    "qdrant": lambda url: QdrantIndex("wiki", where=url),
}
ADDRESSES = ["localhost:8888", "ftp://host/x", "http://", "http://[", "file:///etc/passwd", "http://me:secret@host:1"]


# to Qdrant, what is no address is a folder
@pytest.mark.parametrize(("name", "url"), [(n, u) for n in ADDRESSED for u in ADDRESSES if n != "qdrant" or "://" in u])
def test_an_address_that_is_none_or_holds_a_password_is_refused_at_once(name, url):
    if name == "qdrant":
        pytest.importorskip("qdrant_client")
    with pytest.raises(ConfigError, match="must look like") as told:
        ADDRESSED[name](url)
    assert "secret" not in str(told.value)
    with pytest.raises(ConfigError, match="neither a query nor a fragment"):
        OpenSearchIndex("http://host/?key=secret", "wiki")
