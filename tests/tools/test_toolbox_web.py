"""The toolbox around tools that try again by themselves and that return a part: nobody counts or keeps these twice."""

from collections import Counter

import pytest
from search_servers import KEY, SearchServer, serper

from faithful_search.errors import ConfigError
from faithful_search.tools import Patience, Tool, Toolbox
from faithful_search.tools.cassette import Cassette
from faithful_search.tools.web.providers.serper import Serper
from faithful_search.tools.web_search import WebSearch
from faithful_search.trajectory import Evidence, ToolCall
from faithful_search.wire.cache import Cache
from faithful_search.wire.http import Http


class OneFails(SearchServer):
    """Answers, but for the query that is `down`."""

    down = "rivers"

    def now(self, request):
        super().now(request)
        return "unavailable" if request.body["q"] == self.down else "ok"

    @property
    def asked(self) -> Counter[str]:
        return Counter(request.body["q"] for request in self.requests)


@pytest.fixture(autouse=True)
def key(monkeypatch):
    monkeypatch.setenv("SERPER_API_KEY", KEY)


def tool(server: SearchServer, retries: int = 0) -> WebSearch:
    return WebSearch(Serper(url=server.url, http=Http(timeout=20, patience=Patience(retries, first=0.01))))


BOTH = ToolCall("web_search", {"query_list": ["rivers", "lakes"]})


def ask(toolbox: Toolbox, *calls: ToolCall) -> list:
    return toolbox.run_batch(list(calls), [toolbox.session() for _ in calls])


def texts(observation) -> list[str]:
    return [item.text for item in observation.evidence]


@pytest.mark.parametrize("retries", [0, 2])
def test_what_tries_again_by_itself_is_not_tried_again_nor_counted_against_it(retries):
    with SearchServer(serper, mode="unavailable") as server:
        patience = Patience(retries=3, first=0.01)
        with Toolbox([tool(server, retries)], patience=patience, failures=1) as toolbox:
            [found] = ask(toolbox, ToolCall("web_search", {"query": "rivers"}))
            made = len(server.requests)
            server.mode = "ok"
            [after] = ask(toolbox, ToolCall("web_search", {"query": "rivers"}))
            stats = toolbox.stats()["web_search"]
    assert made == 1 + retries and found.error and "503" in found.note
    assert after.evidence  # one failure would have put the tool out of order
    assert (stats.calls, stats.made, stats.errors) == (2, 2, 1)


@pytest.mark.parametrize("keeps", ["cache", "cassette", "both"])
def test_a_part_is_shown_to_all_who_asked_and_asked_for_again(tmp_path, keeps):
    cache = Cache(tmp_path / "cache.sqlite") if keeps != "cassette" else None
    cassette = Cassette(tmp_path / "calls.jsonl", "record") if keeps != "cache" else None
    with OneFails(serper) as server, Toolbox([tool(server)], cache=cache, cassette=cassette) as toolbox:
        first, *others = ask(toolbox, *[BOTH] * 5)
        assert texts(first)[0].startswith("Not searched: ") and "503" in texts(first)[0] and len(first.evidence) > 1
        assert all(other == first for other in others)
        assert server.asked == {"rivers": 1, "lakes": 1}
        assert not (cache and len(cache)) and not (cassette and len(cassette))
        server.down = ""
        [whole] = ask(toolbox, BOTH)
        assert not any("Not searched" in text for text in texts(whole)) and len(whole.evidence) == 10
        assert ask(toolbox, BOTH) == [whole]
        assert server.asked == {"rivers": 2, "lakes": 2}
        assert len(cache if cassette is None else cassette) == 1
    if cache:
        cache.close()


def test_what_a_cache_has_is_recorded_too(tmp_path):
    call, cache = ToolCall("web_search", {"query": "rivers"}), Cache(tmp_path / "cache.sqlite")
    with SearchServer(serper) as server:
        with Toolbox([tool(server)], cache=cache) as toolbox:
            found = ask(toolbox, call)
        with Cassette(tmp_path / "calls.jsonl", "record") as cassette:
            with Toolbox([tool(server)], cache=cache, cassette=cassette) as toolbox:
                assert ask(toolbox, call) == found
            assert len(cassette) == len(server.requests) == 1
    cache.close()


class Local(Tool):
    """Answers from here: it has no `cache_key`."""

    name = "local"
    ready = True

    def __init__(self) -> None:
        self.asked = 0

    def check(self) -> None:
        if not self.ready:
            raise ConfigError("local needs an index")

    async def local(self, query: str) -> list[Evidence]:
        """Search here.

        Args:
            query: What to look for.
        """
        self.asked += 1
        return [Evidence(f"Answer {self.asked}.")]


def test_a_cassette_holds_tools_that_have_a_cache_key_and_replays_them_without_one(tmp_path, monkeypatch):
    path, local = tmp_path / "calls.jsonl", Local()
    calls = [ToolCall("local", {"query": "a"}), ToolCall("web_search", {"query": "a"})]
    with SearchServer(serper) as server:
        web = tool(server)
        with Cassette(path, "record") as cassette, Toolbox([local, web], cassette=cassette) as toolbox:
            recorded = ask(toolbox, *calls)
        assert len(cassette) == 1 and KEY not in path.read_text()
        monkeypatch.delenv("SERPER_API_KEY")
        with Toolbox([local, web], cassette=Cassette(path)) as toolbox:
            played = ask(toolbox, *calls)
            [miss] = ask(toolbox, ToolCall("web_search", {"query": "b"}))
        assert len(server.requests) == 1
    assert played[1] == recorded[1]
    assert [texts(found[0]) for found in (recorded, played)] == [["Answer 1."], ["Answer 2."]]
    assert miss.error and "The nearest recorded call" in miss.note
    local.ready = False
    with pytest.raises(ConfigError, match="local needs an index"):
        Toolbox([local, web], cassette=Cassette(path))
