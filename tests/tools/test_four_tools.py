"""The paper's four tools by flags: what they are, what they need, and a dry run from the cassette
that is shipped.
"""

import re
import shlex

import pytest
from agent_rows import file_of
from paths import RECIPES, ROOT
from search_servers import KEY
from trl import ModelConfig

from faithful_search import __version__
from faithful_search.errors import ConfigError
from faithful_search.json_lines import read_rows
from faithful_search.judges.condensing import Condensing
from faithful_search.recipes import pou
from faithful_search.rollout.arguments import EnvironmentArguments
from faithful_search.tools.browse import Fetch
from faithful_search.tools.retrieval.index_folder import build_folder
from faithful_search.training.arguments import SearchGRPOConfig
from faithful_search.training.starting import parse_recipe
from faithful_search.trajectory import ToolCall

SHIPPED = RECIPES / "cassettes" / "four_tools.jsonl"


def configured(*flags: str) -> EnvironmentArguments:
    """What a configuration and flags of `recipes/pou.py` give."""
    script, _, _ = parse_recipe(
        (pou.PoUArguments, SearchGRPOConfig, ModelConfig), list(flags), pou.DEFAULT_CONFIG
    )
    return script


def test_the_dry_runs_tools_answer_without_network_or_key(monkeypatch):
    for name in ("SERPER_API_KEY", "JINA_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(ROOT)
    shipped = list(read_rows(SHIPPED))
    calls = [ToolCall(row["tool"], row["arguments"]) for row in shipped]
    calls += [
        ToolCall("local_search", {"query": "capital of Peru"}),
        ToolCall("knowledge_graph", {"query": "Peru"}),
    ]
    with configured(
        "--config", str(RECIPES / "configs" / "pou_four_tools_dry.yaml")
    ).toolbox() as toolbox:
        found = toolbox.run_batch(calls, [toolbox.session() for _ in calls])
        [miss] = toolbox.run_batch(
            [ToolCall("web_search", {"query": "capital of Perù"})], [toolbox.session()]
        )
    assert toolbox.names == ["web_search", "browse", "local_search", "knowledge_graph"]
    for row, answer in zip(shipped, found, strict=False):
        assert [item.text for item in answer.evidence] == [
            item["text"] for item in row.get("evidence", ())
        ]
        failed = f"Error: {row['error']}" if "error" in row else ""
        assert answer.note == (failed or ("" if answer.evidence else "No results."))
    assert [answer.error for answer in found].count(True) == 2
    assert found[-1].evidence
    assert found[-2].evidence
    assert miss.error
    assert "capital of Peru" in miss.note


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"web_search": "searxng"}, "searxng_url"),
        ({"web_search": "ddgs", "searxng_url": "http://localhost:1"}, "go together"),
        (
            {"web_search": "bing"},
            "unknown web_search 'bing'; there are: ddgs, searxng, serper, none",
        ),
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
        calls = [
            ToolCall("local_search", {"query": "tea"}),
            ToolCall("biomedical_search", {"query": "cells"}),
        ]
        found = toolbox.run_batch(calls, [toolbox.session() for _ in calls])
    assert toolbox.names == [
        "local_search",
        "knowledge_graph",
        "biomedical_search",
        "garden_almanac",
    ]
    assert [item.evidence[0].source for item in found] == ["p1", "b1"]
    assert toolbox.schemas[2]["function"]["description"] == "Search papers of medicine."
    assert [passage.title for passage in script.corpus_passages()] == ["Tea"]


def test_the_passages_of_a_corpus_are_those_that_its_tool_searches(tmp_path):
    corpus = file_of(tmp_path / "c.jsonl", [{"title": "Tea", "text": "A drink."}, {"text": ""}])
    script = EnvironmentArguments(corpus=str(corpus))
    assert [passage.title for passage in script.corpus_passages()] == ["Tea"]


def test_browsing_is_guarded_until_an_allow_list_opens_it():
    server, page = (
        ToolCall("local_search", {"query": "tea"}),
        ToolCall("browse", {"url": "http://127.0.0.1:9/"}),
    )
    notes, flags = [], {"corpus": "http://127.0.0.1:9/retrieve", "browse": "fetch"}
    for allow in ("", "127.0.0.0/8, intranet.example"):
        script = EnvironmentArguments(**flags, browse_allow=allow, tool_timeout=5, tool_retries=0)
        with script.toolbox() as toolbox:
            failed, read = toolbox.run_batch([server, page], [toolbox.session()] * 2)
        assert failed.error
        assert failed.note == "Error: Search failed: the service could not be reached."
        notes.append(read.note)
    assert "not public" in notes[0]
    assert "not public" not in notes[1]
    with pytest.raises(ConfigError, match="cannot be read from here"):
        script.corpus_passages()


def test_flags_reach_every_client(tmp_path):
    sources = {
        "corpus": "http://127.0.0.1:9",
        "triples": "wikidata",
        "browse": "jina",
        "browse_allow": "wiki.example",
    }
    sources |= {"web_search": "searxng", "searxng_url": "http://127.0.0.1:9"}
    bounds = {
        "tool_timeout": 10,
        "tool_retries": 4,
        "tool_concurrency": 7,
        "search_top_k": 3,
        "contact": "me@a.org",
    }
    kept = {
        "tool_cache": str(tmp_path / "t.sqlite"),
        "tool_cache_days": 2,
        "tool_cache_megabytes": 50,
    }
    with EnvironmentArguments(**sources, **bounds, **kept).toolbox() as toolbox:
        web, page, search, graph = toolbox.tools.values()
        clients = [web.provider.http, page.reader.http, search.http, graph.http]
        assert (
            [client.patience.retries for client in clients]
            == [4] * 4
            == [toolbox.patience.retries] * 4
        )
        assert {client.timeout for client in clients} | {page.timeout} == {8.5}
        assert (toolbox.timeout, toolbox.concurrency, web.top_k) == (10, 7, 3)
        assert (
            graph.http.max_bytes == 20_000_000 > page.reader.http.max_bytes
        )  # one entity takes megabytes
        assert page.reader.guard.allow == ("wiki.example",)
        assert page.cache.path == toolbox.cache.path
        assert (toolbox.cache.max_age, toolbox.cache.max_bytes) == (2 * 86_400, 50_000_000)
        assert (
            graph.http.user_agent == f"faithful-search/{__version__} (me@a.org)"
        )  # services are told who asks
    with EnvironmentArguments(triples="wikidata").toolbox() as toolbox:
        assert toolbox.tools["knowledge_graph"].http.user_agent == f"faithful-search/{__version__}"
    with pytest.raises(ConfigError, match="user agent"):
        EnvironmentArguments(triples="wikidata", contact="me\nX-Key: 1").toolbox()


def test_the_papers_configuration_has_its_tools(monkeypatch, tmp_path):
    for name in ("SERPER_API_KEY", "JINA_API_KEY"):
        monkeypatch.setenv(name, KEY)
    flags = f"--judge_url http://127.0.0.1:9/v1 --judge_model m --corpus http://127.0.0.1:9 \
        --bf16 false --use_cpu true \
        --tool_cache {tmp_path}/tools.sqlite --judge_cache none --questions a.jsonl --eval_questions b.jsonl"
    script = configured(
        "--config", str(RECIPES / "configs" / "pou_qwen2.5-7b.yaml"), *shlex.split(flags)
    )
    with script.toolbox(pou.build_condenser(script)) as toolbox:
        kinds = [type(tool).__name__ for tool in toolbox.tools.values()]
        assert not any(
            KEY in getattr(tool, "cache_key", "") + repr(tool) for tool in toolbox.tools.values()
        )
    assert kinds == ["WebSearch", "Browse", "RemoteSearch", "Wikidata"]


def test_pokees_agents_find_the_tools_they_know():
    script = EnvironmentArguments(
        dialect="pokee", web_search="ddgs", browse="fetch", corpus="none", triples="none"
    )
    with script.toolbox() as toolbox:
        assert toolbox.names == ["web_search", "web_read"]
        assert isinstance(toolbox.tools["web_read"].reader, Fetch)
    search, read = (schema["function"]["parameters"]["properties"] for schema in toolbox.schemas)
    assert search["query_list"]["maxItems"] == read["url_list"]["maxItems"] == 5


def test_the_judges_model_condenses_when_asked():
    flags = [
        "--judge",
        "endpoint",
        "--judge_url",
        "http://127.0.0.1:9/v1",
        "--judge_model",
        "m",
        "--condense",
        "true",
    ]
    script = configured(*flags, "--browse", "fetch", "--judge_cache", "none")
    condenser = pou.build_condenser(script)
    assert isinstance(condenser, Condensing)
    with script.toolbox(condenser) as toolbox:
        assert toolbox.tools["browse"].condenser is condenser
        assert toolbox.tools["knowledge_graph"].condenser is condenser
    with pytest.raises(ConfigError, match="--condense"):
        pou.parse(["--condense", "true"])
