"""OpenSearch by URL: searched, filled, and from the command to the tool."""

import asyncio
import base64
import gzip
import pickle
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from agent_rows import file_of
from opensearch_server import Engine, answered
from served import invoked

from faithful_search.errors import ConfigError, DataError, ToolError
from faithful_search.tools import LocalSearch
from faithful_search.tools.arguments import ToolArguments
from faithful_search.tools.local_search import open_search
from faithful_search.tools.retrieval import opensearch
from faithful_search.tools.retrieval.opensearch import OpenSearchIndex, open_engine
from faithful_search.trajectory import Evidence

RIVERS = [
    Evidence(
        text="The Loire is the longest river of France.",
        title="Loire",
        source="d1",
        url="http://x/1",
    ),
    Evidence(text="Nantes lies on the Loire.", title="Nantes", source="d2"),
    Evidence(text="Paris is the capital of France.", title="Paris", source="d3"),
]
ROWS = 30
OPENSEARCH = "opensearch+http://127.0.0.1:9/wiki"


@pytest.fixture
def engine() -> Iterator[Engine]:
    with Engine() as engine:
        yield engine


@pytest.fixture
def empty(engine) -> OpenSearchIndex:
    return OpenSearchIndex(f"{engine.url}/", "wiki", timeout=10)


@pytest.fixture
def index(engine, empty) -> OpenSearchIndex:
    empty.upload(RIVERS)
    engine.requests.clear()
    return empty


@pytest.fixture
def corpus(tmp_path) -> Path:
    rows = [{"id": f"d{n}", "title": f"Title {n}", "text": f"w{n} of all"} for n in range(ROWS)]
    return file_of(tmp_path / "corpus.jsonl.gz", rows)


def test_what_was_uploaded_is_found(engine, index):
    found = index.search_batch(["longest river loire", "capital", "nothing"], 2)
    assert [[hit.source for hit in row] for row in found] == [["d1", "d2"], ["d3"], []]
    assert found[0][0] == msgspec.structs.replace(RIVERS[0], score=3.1235)
    assert len(index) == 3
    assert index.search_batch([], 2) == []
    engine.found = lambda question: answered(
        [{"_id": "abc", "_source": {"title": None, "text": "x", "source": None}}]
    )
    assert index.search("river", 1) == [
        Evidence(text="x", source="abc")
    ]  # documents of others need no source


def test_a_batch_is_one_request_of_the_engines_form(engine, index):
    index.search_batch(["a\nb", 'c"}' + " word" * 5000], 4)
    [request] = engine.requests
    head, question, _, second = request.body
    kind = request.headers["Content-Type"]
    assert (request.method, request.path, kind) == ("POST", "/_msearch", "application/x-ndjson")
    assert head == {"index": "wiki", "allow_partial_search_results": False}
    assert (question["size"], question["query"]["multi_match"]["fields"]) == (4, ["title", "text"])
    assert [q["query"]["multi_match"]["query"] for q in (question, second)] == [
        "a b",
        'c"}' + " word" * 249,
    ]
    with pytest.raises(ToolError, match="not valid Unicode"):
        index.search("\ud800", 1)


@pytest.mark.parametrize(
    ("mode", "transient", "says"),
    [
        ("400", False, "400 Bad Request"),
        ("401", False, "401 Unauthorized"),
        ("403", False, "403 Forbidden"),
        ("404", False, "404 Not Found"),
        ("429", True, "429 Too Many Requests"),
        ("500", True, "500 Internal Server Error"),
        ("503", True, "503 Service Unavailable"),
        ("garbage", False, "the answer is not JSON"),
        ("redirect", False, "302"),
        ("cut", True, "broke off"),
        ("refused", False, "refused the query: parsing_exception"),
        *((mode, True, "only a part") for mode in ("shards", "timed_out")),
        ("overload", True, "circuit_breaking_exception"),
        ("no_hits", False, "refused the query"),
        ("short", False, "1 answers to 2 queries"),
        *((mode, True, "took longer than 0.4 seconds") for mode in ("drip", "hang")),
        ("bomb", False, "more than 1,000,000 bytes"),
    ],
)
def test_each_fault_of_opensearch_is_a_tool_error(
    engine, index, mode, transient, says, monkeypatch
):
    monkeypatch.setattr(opensearch, "_MAX_BYTES", 1_000_000)
    engine.mode, start = mode, time.monotonic()
    asked = OpenSearchIndex(engine.url, "wiki", timeout=0.4 if "took" in says else 5)
    with pytest.raises(ToolError, match=says) as caught:
        asked.search_batch(["river", "paris"], 2)
    assert caught.value.transient is transient
    assert time.monotonic() - start < 8
    assert caught.value.retry_after == (7 if mode in ("429", "503") else None)
    for secret in ("127.0.0.1", "10.1.2.3", "169.254", engine.url):
        assert secret not in str(caught.value)
    engine.mode = "ok"
    assert index.search("paris", 1)


def test_credentials_come_from_the_environment(engine, index, monkeypatch):
    monkeypatch.setenv("ELASTICSEARCH_USERNAME", "ann")
    monkeypatch.setenv("ELASTICSEARCH_PASSWORD", "pässword")
    index.search("river", 1)
    monkeypatch.setenv("OPENSEARCH_API_KEY", "abc==")
    index.search("river", 1)
    sent = [request.headers["Authorization"] for request in engine.requests]
    assert sent == ["Basic " + base64.b64encode("ann:pässword".encode()).decode(), "ApiKey abc=="]
    assert "abc==" not in repr(index)
    assert b"abc==" not in pickle.dumps(index)
    monkeypatch.setenv("OPENSEARCH_API_KEY", "abc\nX: 1")
    with pytest.raises(
        ToolError, match="is there a line break or an accent in a header or key"
    ) as caught:
        index.search("river", 1)
    assert "abc" not in str(caught.value)


def test_upload_sends_again_what_the_engine_was_too_busy_for(engine, empty, monkeypatch):
    pauses: list[float] = []

    def pause(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) % 2 == 0:
            engine.mode = "ok"

    def stream(mode: str) -> Iterator[Evidence]:
        engine.mode = mode
        yield from RIVERS

    engine.retry_after = "9"  # longer than a single request waits
    monkeypatch.setattr(opensearch.time, "sleep", pause)
    for mode in ("busy", "503"):
        engine.documents.clear()
        assert empty.upload(stream(mode)) == 3
        assert [engine.documents[str(n)]["source"] for n in range(3)] == ["d1", "d2", "d3"]
        assert engine.requests[-1].path == "/wiki/_refresh"  # from now on it is found
    assert pauses == [0.5, 1.0, 9.0, 9.0]  # our own, then those that the engine asked for
    engine.mode = "bad"
    engine.documents.clear()
    with pytest.raises(ToolError, match="refused passage 1: mapper_parsing_exception"):
        empty.upload(RIVERS)


def test_an_interrupted_upload_goes_on_with_the_batch_it_was_in(engine, empty, monkeypatch):
    monkeypatch.setattr(opensearch, "_PAUSES", ())
    monkeypatch.setattr(OpenSearchIndex, "batch", 4)
    found = [Evidence(text=f"text {n}", source=f"d{n}") for n in range(10)]

    def stream() -> Iterator[Evidence]:
        yield from found[:4]
        engine.mode = "busy"  # every other passage of the second batch stays out
        yield from found[4:]

    with pytest.raises(
        ToolError, match=r"too busy to write\. 4 passages are written: the same call goes on"
    ) as caught:
        empty.upload(stream())
    assert caught.value.transient
    assert sorted(engine.documents) == ["0", "1", "2", "3", "4", "6"]
    engine.mode = "ok"
    engine.requests.clear()
    assert empty.upload(found) == 10
    assert [engine.documents[str(n)]["source"] for n in range(10)] == [f"d{n}" for n in range(10)]
    assert (
        sum(len(request.body) // 2 for request in engine.requests if request.path == "/_bulk") == 6
    )


def test_an_index_is_made_once_and_keeps_its_settings(engine, empty):
    assert empty.made_of() is None
    empty.upload(RIVERS, made_of={"digest": "abc"})
    empty.upload(RIVERS, made_of={"digest": "other"})
    assert empty.made_of() == {"digest": "abc"}
    [made] = [request for request in engine.requests if request.method == "PUT"]
    assert (made.path, made.headers["Content-Type"]) == ("/wiki", "application/json")
    assert set(made.body["mappings"]["properties"]) == {"title", "text", "source", "url"}
    german = {"properties": {"text": {"analyzer": "german"}}}
    engine.made = {"settings": {"number_of_shards": 5}, "mappings": dict(german)}
    engine.documents.clear()
    assert empty.upload(RIVERS, made_of={"digest": "abc"}) == 3
    assert empty.made_of() == {"digest": "abc"}
    assert engine.made["settings"] == {"number_of_shards": 5}
    assert engine.made["mappings"]["properties"] == german["properties"]
    for engine.mode, says in (("401", "401"), ("400", "400")):
        for call in (empty.made_of, lambda: empty.upload(RIVERS)):
            with pytest.raises(ToolError, match=says):
                call()


@pytest.mark.parametrize("name", ["HTTP_PROXY", "ALL_PROXY"])
def test_an_engine_is_asked_without_a_proxy(engine, monkeypatch, name):
    for variable in ("NO_PROXY", "no_proxy"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv(name, "http://127.0.0.1:9")
    assert OpenSearchIndex(engine.url, "wiki").search("river", 1) == []


def found(tool: Any, query: str) -> list[str]:
    return [item.source for item in asyncio.run(tool.local_search(query))]


def test_opensearch_from_the_command_to_the_tool(engine, corpus):
    url = f"opensearch+{engine.url}/wiki"
    corpus.write_bytes(corpus.read_bytes() + gzip.compress(b'{"body": "?"}\n'))
    done = invoked("index", corpus, url)
    assert done.exit_code == 0, done.stderr
    assert done.stdout.startswith(f"{ROWS} passages of {corpus} in {url}, "), done.stderr
    assert f"line {ROWS + 1}: no column 'text'" in done.stderr
    assert "rows left out: 1\n" in done.stderr
    assert f"serve it: faithful-search serve {url}" in done.stdout
    tool = open_search(url, name="wiki", top_k=1)
    assert isinstance(tool, LocalSearch)
    assert isinstance(tool.index, OpenSearchIndex)
    assert tool.name == "wiki"
    assert found(tool, "w7") == ["d7"]
    arguments = ToolArguments(
        corpus=url, triples="none", domain_corpus=url, domain_name="other", tool_timeout=10
    )
    tools = arguments.build_toolbox().tools
    assert [*tools] == [tool.name for tool in tools.values()] == ["local_search", "other"]
    assert [(found(tool, "w7"), tool.index.timeout) for tool in tools.values()] == [
        (["d7"], 8.5)
    ] * 2


@pytest.mark.parametrize(
    ("corpus_or_world", "options"), [("corpus", ()), ("world", ("--limit", 5))]
)
def test_passages_of_another_corpus_are_not_added(engine, corpus, corpus_or_world, options):
    url = f"opensearch+{engine.url}/wiki"
    assert invoked("index", corpus, url, "--limit", 5).exit_code == 0
    other = corpus if corpus_or_world == "corpus" else "world"
    refused = invoked("index", other, url, *options)
    assert refused.exit_code == 1
    assert f"{url} is made of something else ({corpus}" in refused.stderr


def test_an_index_that_others_filled_is_not_added_to(engine, index, corpus):
    engine.made = {"mappings": {}}
    refused = invoked("index", corpus, f"opensearch+{engine.url}/wiki")
    assert refused.exit_code == 1
    assert "passages of another origin" in refused.stderr


@pytest.mark.parametrize("made", [None, {"mappings": {}}])
def test_an_engine_without_passages_says_how_to_fill_it(engine, made):
    engine.made = made
    how_to = "has no passages: fill it with: faithful-search index CORPUS opensearch"
    with pytest.raises(DataError, match=how_to):
        open_engine(f"opensearch+{engine.url}/wiki")


def test_an_engine_that_cannot_be_reached():
    with pytest.raises(ConfigError, match="could not be reached"):
        open_engine(OPENSEARCH)


def test_passages_of_an_engine_cannot_be_read_for_training():
    with pytest.raises(ConfigError, match="cannot be read from here"):
        ToolArguments(corpus=OPENSEARCH).corpus_passages()


@pytest.mark.parametrize(
    "url",
    [
        "elastic+http://h:1/wiki",
        "qdrant+http://h:1/wiki",
        "opensearch+wiki",
        "opensearch+http:///wiki",
        "opensearch+http://h:1/",
        "opensearch+/a?key=x",
    ],
)
def test_what_names_no_index_is_refused(tmp_path, monkeypatch, url):
    monkeypatch.chdir(tmp_path)
    refused = invoked("index", "world", url)
    assert refused.exit_code == 1
    assert "error: name a search engine as opensearch+http://" in refused.stderr
    assert "key=x" not in refused.stderr
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("option", ["--model=any", "--revision=1", "--kind=bm25", "--hnsw"])
def test_options_of_a_folder_are_refused_for_an_engine(option):
    refused = invoked("index", "world", OPENSEARCH, option)
    assert refused.exit_code == 2
    assert "a search engine searches by words: leave off" in refused.stderr
