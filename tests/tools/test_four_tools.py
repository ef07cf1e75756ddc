"""The paper's four tools by flags: what they are, what they need, and a dry run from the cassette that is shipped."""

import re
import shlex

import pytest
from paths import RECIPES, ROOT
from recipe_runs import run
from search_servers import KEY, Request, SearchServer, searxng

from faithful_search import __version__, dialects
from faithful_search.errors import ConfigError
from faithful_search.judges.condensing import Condensing
from faithful_search.rollout.arguments import EnvironmentArguments
from faithful_search.tools import Toolbox
from faithful_search.tools.browse import Browse, Fetch, Jina
from faithful_search.tools.cassette import Cassette
from faithful_search.tools.retrieval.index_folder import build_folder
from faithful_search.tools.web.providers.serper import Serper
from faithful_search.tools.web_search import WebSearch
from faithful_search.training.starting import parse_recipe
from faithful_search.trajectory import ToolCall, read_jsonl

SHIPPED = RECIPES / "cassettes" / "four_tools.jsonl"
PAGES = {
    "https://atlas.example/peru": (
        "Peru",
        "Peru lies on the west coast of South America.\n\nIts government sits in Lima.\n\nThe sol is its money.",
    ),
    "https://rivers.example/danube": (
        "The Danube",
        "The Danube rises in the Black Forest.\n\nIt flows through Vienna and Budapest to the Black Sea.",
    ),
}
RESULTS = {
    "capital of Peru": [("Peru", "https://atlas.example/peru", "A short portrait of Peru and of Lima, its capital.")],
    "source of the Danube": [("The Danube", "https://rivers.example/danube", "Where the river rises.")],
    "a word that no page has": [],
}
CALLS = [
    *(ToolCall("web_search", {"query": query}) for query in RESULTS),
    ToolCall("web_search", {"query_list": ["capital of Peru", "source of the Danube"]}),
    ToolCall("browse", {"url": "https://atlas.example/peru", "query": "where does the government sit"}),
    ToolCall("browse", {"url_list": list(PAGES), "query": "Black Forest"}),
    ToolCall("browse", {"url": "https://atlas.example/chile", "query": "capital"}),
    ToolCall("browse", {"url": "http://192.168.1.1/admin"}),
]


def found_by_serper(request: Request) -> tuple[int, dict]:
    rows = RESULTS.get(request.body["q"], [])
    return 200, {"organic": [{"title": title, "link": link, "snippet": text} for title, link, text in rows]}


def read_by_jina(request: Request) -> tuple[int, dict]:
    title, content = PAGES.get(request.body["url"], ("", ""))
    if not content:
        return 404, {"code": 404, "message": "Not Found"}
    return 200, {"code": 200, "data": {"title": title, "content": content, "url": request.body["url"]}}


def configured(*flags: str) -> EnvironmentArguments:
    """What a configuration and flags of `recipes/pou.py` give."""
    import pou
    from trl import ModelConfig

    from faithful_search.training.arguments import SearchGRPOConfig

    script, _, _ = parse_recipe((pou.PoUArguments, SearchGRPOConfig, ModelConfig), list(flags), pou.DEFAULT_CONFIG)
    return script


def test_the_shipped_cassette_is_what_recording_gives(tmp_path, monkeypatch):
    """It was made with the real tools against stand-ins of their services."""
    monkeypatch.setenv("SERPER_API_KEY", KEY)
    with SearchServer(found_by_serper) as searching, SearchServer(read_by_jina) as reading:
        tools = [WebSearch(Serper(url=searching.url), top_k=3), Browse(Jina(url=reading.url), top_k=3)]
        cassette = Cassette(tmp_path / "four_tools.jsonl", "record")
        with cassette, Toolbox(tools, cassette=cassette) as toolbox:
            observations = toolbox.run_batch(CALLS, [toolbox.session() for _ in CALLS])
    assert [item.error for item in observations] == [False] * 6 + [True] * 2
    assert "Its government sits in Lima." in observations[4].evidence[0].text
    assert cassette.path.read_text(encoding="utf-8") == SHIPPED.read_text(encoding="utf-8")
    assert KEY not in SHIPPED.read_text(encoding="utf-8")


def test_the_dry_runs_tools_answer_without_network_or_key(monkeypatch):
    for name in ("SERPER_API_KEY", "JINA_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(ROOT)
    script = configured("--config", str(RECIPES / "configs" / "pou_four_tools_dry.yaml"))
    more = [ToolCall("local_search", {"query": "capital of Peru"}), ToolCall("knowledge_graph", {"query": "Peru"})]
    with script.toolbox() as toolbox:
        observations = toolbox.run_batch([*CALLS, *more], [toolbox.session() for _ in (*CALLS, *more)])
        [miss] = toolbox.run_batch([ToolCall("web_search", {"query": "capital of Perù"})], [toolbox.session()])
    assert toolbox.names == ["web_search", "browse", "local_search", "knowledge_graph"]
    assert [place for place, item in enumerate(observations) if not item.evidence] == [2, 6, 7]
    assert observations[2].note == "No results." and not observations[2].error
    assert "not public" in observations[7].note
    assert miss.error and "capital of Peru" in miss.note


@pytest.mark.slow
def test_the_dry_run_trains_two_steps(tmp_path):
    command = ("recipes/pou.py", "--config", "recipes/configs/pou_four_tools_dry.yaml")
    small = "--output_dir {} --eval_limit 4 --per_device_train_batch_size 8 --max_completion_length 512"
    printed = run(*command, *shlex.split(small.format(shlex.quote(str(tmp_path)))))
    assert "step    2/2" in printed
    assert len(list(read_jsonl(tmp_path / "trajectories.jsonl"))) == 16


def test_each_of_five_queries_gets_results_by_flags():
    with SearchServer(searxng) as server:
        flags = {"corpus": "none", "triples": "none", "web_search": "searxng", "searxng_url": server.url}
        with EnvironmentArguments(**flags, search_top_k=3).toolbox() as toolbox:
            call = ToolCall("web_search", {"query_list": ["a", "b", "c", "d", "e"]})
            [found] = toolbox.run_batch([call], [toolbox.session()])
    assert {item.title[0] for item in found.evidence} == set("abcde")


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"web_search": "searxng"}, "searxng_url"),
        ({"web_search": "ddgs", "searxng_url": "http://localhost:1"}, "go together"),
        ({"web_search": "bing"}, "unknown web_search 'bing'; there are: ddgs, searxng, serper, none"),
        ({"browse": "lynx"}, "unknown browse 'lynx'; there are: fetch, jina, none"),
        ({"corpus": "none", "triples": "none"}, "no tools"),
        ({"dialect": "search_r1", "triples": "none", "browse": "fetch"}, "has one tool"),
        ({"cassette": str(SHIPPED), "cassette_mode": "rewind"}, "rewind"),
    ],
)
def test_what_has_no_meaning_is_refused(flags, message):
    with pytest.raises(ConfigError, match=re.escape(message)):
        EnvironmentArguments(**flags).toolbox()


def test_the_flags_name_every_source_of_a_corpus(tmp_path):
    build_folder([{"id": "p1", "title": "Tea", "text": "Steep it."}], tmp_path / "index")
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"id": "b1", "title": "Cells", "text": "They divide."}\n')
    script = EnvironmentArguments(
        corpus=str(tmp_path / "index"),
        triples="wikidata",
        domain_corpus=str(rows),
        domain_name="biomedical_search",
        domain_description="Search papers of medicine.",
        negative_tool=True,
    )
    with script.toolbox() as toolbox:
        calls = [ToolCall("local_search", {"query": "tea"}), ToolCall("biomedical_search", {"query": "cells"})]
        found = toolbox.run_batch(calls, [toolbox.session() for _ in calls])
    assert toolbox.names == ["local_search", "knowledge_graph", "biomedical_search", "garden_almanac"]
    assert [item.evidence[0].source for item in found] == ["p1", "b1"]
    assert toolbox.schemas[2]["function"]["description"] == "Search papers of medicine."
    assert [passage.title for passage in script.corpus_passages()] == ["Tea"]


def test_a_servers_url_is_a_corpus_too():
    script = EnvironmentArguments(
        corpus="http://127.0.0.1:9/retrieve", triples="none", dialect="search_r1", tool_timeout=5
    )
    with script.toolbox() as toolbox:
        [answer] = toolbox.run_batch([ToolCall("search", {"query": "tea"})], [toolbox.session()])
    assert answer.error and answer.note == "Search failed: the service could not be reached."
    with pytest.raises(ConfigError, match="cannot be read from here"):
        script.corpus_passages()


def test_browsing_is_guarded_and_the_allow_list_opens_it(monkeypatch):
    call = ToolCall("browse", {"url": "http://127.0.0.1:9/"})
    notes = []
    for allow in ("", "127.0.0.0/8, intranet.example"):
        script = EnvironmentArguments(browse="fetch", browse_allow=allow, tool_timeout=5, tool_retries=0)
        with script.toolbox() as toolbox:
            notes.append(toolbox.run_batch([call], [toolbox.session()])[0].note)
    assert "not public" in notes[0] and "not public" not in notes[1]


def test_the_flags_reach_every_client_and_each_gives_up_before_the_toolbox_does(tmp_path):
    sources = {"corpus": "http://127.0.0.1:9", "triples": "wikidata", "browse": "jina", "browse_allow": "wiki.example"}
    bounds = {"tool_timeout": 10, "tool_retries": 4, "tool_concurrency": 7}
    kept = {"tool_cache": str(tmp_path / "t.sqlite"), "tool_cache_days": 2, "tool_cache_megabytes": 50}
    with EnvironmentArguments(**sources, **bounds, **kept).toolbox() as toolbox:
        page, search, graph = (toolbox.tools[name] for name in ("browse", "local_search", "knowledge_graph"))
        clients = [page.reader.http, search.http, graph.http]
        assert [client.patience.retries for client in clients] == [4] * 3 == [toolbox.patience.retries] * 3
        assert {client.timeout for client in clients} | {page.timeout} == {8.5}
        assert (toolbox.timeout, toolbox.concurrency) == (10, 7)
        assert graph.http.max_bytes == 20_000_000 > page.reader.http.max_bytes  # one entity takes megabytes
        assert page.reader.guard.allow == ("wiki.example",) and page.cache.path == toolbox.cache.path
        assert (toolbox.cache.max_age, toolbox.cache.max_bytes) == (2 * 86_400, 50_000_000)


def test_services_are_told_who_asks_and_whom_to_write_to():
    agents = {}
    for contact in ("", "me@example.org"):
        with EnvironmentArguments(triples="wikidata", contact=contact).toolbox() as toolbox:
            agents[contact] = toolbox.tools["knowledge_graph"].http.user_agent
    assert agents == {
        "": f"faithful-search/{__version__}",
        "me@example.org": f"faithful-search/{__version__} (me@example.org)",
    }
    with pytest.raises(ConfigError, match="user agent"):
        EnvironmentArguments(triples="wikidata", contact="me\nX-Key: 1").toolbox()


def test_the_papers_configuration_has_its_tools_when_the_keys_are_there(monkeypatch, tmp_path):
    for name in ("SERPER_API_KEY", "JINA_API_KEY"):
        monkeypatch.setenv(name, KEY)
    import pou

    flags = (
        f"--judge_url http://127.0.0.1:9/v1 --judge_model m --corpus http://127.0.0.1:9 --bf16 false --use_cpu true \
        --tool_cache {tmp_path}/tools.sqlite --judge_cache none --questions a.jsonl --eval_questions b.jsonl"
    )
    script = configured("--config", str(RECIPES / "configs" / "pou_four_tools.yaml"), *shlex.split(flags))
    with script.toolbox(pou.build_condenser(script)) as toolbox:
        kinds = [type(tool).__name__ for tool in toolbox.tools.values()]
        assert not any(KEY in getattr(tool, "cache_key", "") + repr(tool) for tool in toolbox.tools.values())
    assert kinds == ["WebSearch", "Browse", "RemoteSearch", "Wikidata"]


def test_pokees_agents_find_the_tools_they_know():
    script = EnvironmentArguments(dialect="pokee", web_search="ddgs", browse="fetch", corpus="none", triples="none")
    with script.toolbox() as toolbox:
        assert toolbox.names == ["web_search", "web_read"]
        assert isinstance(toolbox.tools["web_read"].reader, Fetch)
    properties = {schema["function"]["name"]: schema["function"]["parameters"] for schema in toolbox.schemas}
    assert properties["web_search"]["properties"]["query_list"]["maxItems"] == 5
    assert properties["web_read"]["properties"]["url_list"]["maxItems"] == 5
    assert dialects.load("pokee").tool_names["browse"] in toolbox.names


def test_the_judges_model_condenses_when_asked(monkeypatch):
    import pou

    flags = ["--judge", "endpoint", "--judge_url", "http://127.0.0.1:9/v1", "--judge_model", "m", "--condense", "true"]
    script = configured(*flags, "--browse", "fetch", "--judge_cache", "none")
    condenser = pou.build_condenser(script)
    assert isinstance(condenser, Condensing)
    with script.toolbox(condenser) as toolbox:
        assert toolbox.tools["browse"].condenser is condenser
        assert toolbox.tools["knowledge_graph"].condenser is condenser
    with pytest.raises(ConfigError, match="--condense"):
        pou.parse(["--condense", "true"])
