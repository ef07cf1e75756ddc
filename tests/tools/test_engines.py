"""Search engines by URL: a server like OpenSearch, Qdrant embedded for real, and the command that fills them."""

import asyncio
import base64
import gzip
import pickle
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from agent_rows import file_of
from faulty_server import FaultyServer, Request
from opensearch_server import Engine, answered
from served import invoked
from tiny_bert import QUERIES, corpus as passages, other_model, saved

from faithful_search.errors import ConfigError, DataError, ToolError
from faithful_search.tools import LocalSearch
from faithful_search.tools.arguments import ToolArguments
from faithful_search.tools.local_search import open_search
from faithful_search.tools.retrieval import engines, opensearch
from faithful_search.tools.retrieval.dense import Embedder
from faithful_search.tools.retrieval.engines import open_engine
from faithful_search.tools.retrieval.opensearch import OpenSearchIndex
from faithful_search.tools.retrieval.qdrant import QdrantIndex
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
ROWS, COUNT = 30, 60
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


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> str:
    pytest.importorskip("qdrant_client")
    return saved(tmp_path_factory.mktemp("encoder"))


@pytest.fixture(scope="module")
def embedder(model) -> Embedder:
    return Embedder(model)


@pytest.fixture
def corpus(tmp_path) -> Path:
    rows = [{"id": f"d{n}", "title": f"Title {n}", "text": f"w{n} of all"} for n in range(ROWS)]
    return file_of(tmp_path / "corpus.jsonl.gz", rows)


@pytest.fixture
def encoded(monkeypatch) -> list[int]:
    """How many passages were encoded, batch by batch."""
    counts: list[int] = []
    encode = Embedder.passages
    monkeypatch.setattr(
        Embedder, "passages", lambda self, part: counts.append(len(part)) or encode(self, part)
    )
    return counts


# OpenSearch


def test_what_was_uploaded_is_found(engine, index):
    found = index.search_batch(["longest river loire", "capital", "nothing"], 2)
    assert [[hit.source for hit in row] for row in found] == [["d1", "d2"], ["d3"], []]
    assert found[0][0] == msgspec.structs.replace(RIVERS[0], score=3.1235)
    assert len(index) == 3 and index.search_batch([], 2) == []
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
    ("mode", "passing", "says"),
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
def test_each_fault_of_opensearch_is_a_tool_error(engine, index, mode, passing, says, monkeypatch):
    monkeypatch.setattr(opensearch, "_MAX_BYTES", 1_000_000)
    engine.mode, start = mode, time.monotonic()
    asked = OpenSearchIndex(engine.url, "wiki", timeout=0.4 if "took" in says else 5)
    with pytest.raises(ToolError, match=says) as caught:
        asked.search_batch(["river", "paris"], 2)
    assert caught.value.passing is passing and time.monotonic() - start < 8
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
    assert "abc==" not in repr(index) and b"abc==" not in pickle.dumps(index)
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
    monkeypatch.setattr(engines.time, "sleep", pause)
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
    monkeypatch.setattr(engines, "_PAUSES", ())
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
    assert caught.value.passing and sorted(engine.documents) == ["0", "1", "2", "3", "4", "6"]
    engine.mode = "ok"
    engine.requests.clear()
    assert empty.upload(found) == 10
    assert [engine.documents[str(n)]["source"] for n in range(10)] == [f"d{n}" for n in range(10)]
    assert (
        sum(len(request.body) // 2 for request in engine.requests if request.path == "/_bulk") == 6
    )


def test_the_index_is_made_once_or_keeps_its_settings_and_knows_what_it_is_of(engine, empty):
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
    assert empty.made_of() == {"digest": "abc"} and engine.made["settings"] == {
        "number_of_shards": 5
    }
    assert engine.made["mappings"]["properties"] == german["properties"]
    for engine.mode, says in (("401", "401"), ("400", "400")):
        for call in (empty.made_of, lambda: empty.upload(RIVERS)):
            with pytest.raises(ToolError, match=says):
                call()


# Qdrant


def test_search_is_that_of_numpy(embedder):
    cosines = embedder.queries(QUERIES) @ embedder.passages(passages(COUNT)).T
    with closing(QdrantIndex("wiki", embedder)) as index:
        assert len(index) == 0
        with pytest.raises(ToolError, match="wiki"):
            index.search("w1", 1)
        assert index.upload(passages(COUNT)) == COUNT
        for row, hits in zip(cosines, index.search_batch(QUERIES, 7), strict=True):
            assert np.allclose([hit.score for hit in hits], np.sort(row)[::-1][:7], atol=1e-3)
            assert all(abs(row[int(hit.source[1:])] - hit.score) < 1e-3 for hit in hits)
            found = [msgspec.structs.replace(hit, score=None) for hit in hits]
            assert found == [passages(COUNT)[int(hit.source[1:])] for hit in hits]
        assert len(index.search("w1", COUNT + 5)) == COUNT and index.search_batch([], 3) == []
        with pytest.raises(ConfigError, match="belongs to one process"):
            pickle.dumps(index)


def test_an_interrupted_upload_goes_on_in_its_folder(tmp_path, embedder, encoded, monkeypatch):
    def stops() -> Iterator[Evidence]:
        yield from passages(COUNT)[:40]
        raise KeyboardInterrupt

    monkeypatch.setattr(QdrantIndex, "batch", 16)
    with (
        closing(QdrantIndex("wiki", embedder, tmp_path / "store")) as index,
        pytest.raises(KeyboardInterrupt),
    ):
        index.upload(stops())
    encoded.clear()
    with closing(QdrantIndex("wiki", embedder, tmp_path / "store")) as index:
        assert len(index) == 32
        assert index.upload(passages(COUNT)) == COUNT and encoded == [16, 12]
        assert index.upload(passages(COUNT)) == COUNT and encoded == [
            16,
            12,
            12,
        ]  # at most the last batch again
        resumed = index.search_batch(QUERIES, 9)
        with pytest.raises(ConfigError, match="is in use elsewhere"):
            QdrantIndex("wiki", embedder, tmp_path / "store")
    with closing(QdrantIndex("wiki", embedder)) as whole:
        whole.upload(passages(COUNT))
        assert whole.search_batch(QUERIES, 9) == resumed


def test_a_batch_of_which_a_server_took_only_the_end_is_written_again(embedder, monkeypatch):
    monkeypatch.setattr(QdrantIndex, "batch", 4)
    with closing(QdrantIndex("torn", embedder)) as index:
        index.upload(passages(4))
        index._write(passages(6)[5:], 5, None)
        assert index.upload(passages(8)) == len(index) == 8
        assert {item.source for item in index.search("w1", 8)} == {
            item.source for item in passages(8)
        }


def test_another_encoder_is_refused_and_without_one_its_name_is_needed(tmp_path, embedder):
    store = tmp_path / "store"
    with closing(QdrantIndex("wiki", embedder, store)) as index:
        index.upload(passages(5))
    for size in (16, 32):
        with pytest.raises(ConfigError, match="gives other vectors than"):
            QdrantIndex("wiki", Embedder(other_model(tmp_path / str(size), size=size)), store)
    with closing(QdrantIndex("wiki", embedder, store)) as index:
        assert len(index) == 5
    with pytest.raises(ToolError, match="no collection 'nameless'"):
        QdrantIndex("nameless", where=store)
    with closing(QdrantIndex("nameless", embedder, store)) as index:
        index._prepare(None)
    with pytest.raises(ConfigError, match="does not say which encoder"):
        open_engine(f"qdrant+{store}/nameless")


def answer(request: Request) -> tuple[int, Any]:
    found = {"id": 4, "version": 1, "score": 0.5, "payload": {"text": "found", "title": None}}
    results: dict[str, Any] = {"exists": {"exists": True}, "points": [], "count": {"count": 5}}
    results["batch"] = [{"points": [found]}]
    return 200, {"time": 0.1, "status": "ok", "result": results[request.path.split("/")[-1]]}


@pytest.fixture
def server() -> Iterator[FaultyServer]:
    with FaultyServer(answer) as server:
        yield server


@pytest.mark.filterwarnings("ignore:Api key is used with an insecure connection")
def test_a_server_is_asked_with_the_key_of_the_environment(server, embedder, monkeypatch):
    monkeypatch.setenv("QDRANT_API_KEY", "k-123")
    index = QdrantIndex("wiki", embedder, server.url)
    assert index.search("w1", 1) == [Evidence(text="found", source="4", score=0.5)]
    assert len(index) == 5
    assert {headers["api-key"] for headers in server.headers} == {"k-123"}
    data = pickle.dumps(index)
    assert b"k-123" not in data and pickle.loads(data).search("w1", 1) == index.search("w1", 1)


@pytest.mark.parametrize("name", ["HTTP_PROXY", "ALL_PROXY"])
def test_engines_on_this_machine_are_asked_without_a_proxy(
    engine, server, embedder, monkeypatch, name
):
    for variable in ("NO_PROXY", "no_proxy"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv(name, "http://127.0.0.1:9")
    assert OpenSearchIndex(engine.url, "wiki").search("river", 1) == []
    assert len(QdrantIndex("wiki", embedder, server.url)) == 5


@pytest.mark.parametrize(
    ("fault", "passing", "says"),
    [
        *((fault, False, "does not accept the credentials") for fault in (401, 403)),
        (404, False, "no collection 'wiki'"),
        (400, False, "refused the request"),
        *((fault, True, "not available at the moment") for fault in (429, 500, 503)),
        *(
            (fault, False, "answer cannot be read") for fault in (200, 0)
        ),  # the former is JSON without a result
    ],
)
def test_each_fault_of_qdrant_is_a_tool_error(server, embedder, fault, passing, says):
    index = QdrantIndex("wiki", embedder, server.url)
    server.answer = lambda request: (200, b"<html>")
    server.mode = (fault, "secret 10.1.2.3") if fault else "ok"
    for server.retry_after in (
        "3",
        "",
        "soon",
    ):  # 429 and 503 say it; perhaps nothing that can be read
        with pytest.raises(ToolError, match=says) as caught:
            index.search("w1", 1)
        assert caught.value.passing is passing
        assert "10.1.2.3" not in str(caught.value) and "127.0.0.1" not in str(caught.value)


# by URL and by the command


def found(tool: Any, query: str) -> list[str]:
    return [item.source for item in asyncio.run(tool.local_search(query))]


def test_opensearch_from_the_command_to_the_tool(engine, corpus):
    url = f"opensearch+{engine.url}/wiki"
    corpus.write_bytes(corpus.read_bytes() + gzip.compress(b'{"body": "?"}\n'))
    done = invoked("index", corpus, url)
    assert done.exit_code == 0 and done.stdout.startswith(
        f"{ROWS} passages of {corpus} in {url}, "
    ), done.stderr
    assert (
        f"line {ROWS + 1}: no column 'text'" in done.stderr and "rows left out: 1\n" in done.stderr
    )
    assert f"serve it: faithful-search serve {url}" in done.stdout
    tool = open_search(url, name="wiki", top_k=1)
    assert (
        isinstance(tool, LocalSearch)
        and isinstance(tool.index, OpenSearchIndex)
        and tool.name == "wiki"
    )
    assert found(tool, "w7") == ["d7"]
    arguments = ToolArguments(
        corpus=url, triples="none", domain_corpus=url, domain_name="other", tool_timeout=10
    )
    tools = arguments.build_toolbox().tools
    assert [*tools] == [tool.name for tool in tools.values()] == ["local_search", "other"]
    assert [(found(tool, "w7"), tool.index.timeout) for tool in tools.values()] == [
        (["d7"], 8.5)
    ] * 2


def test_qdrant_from_the_command_to_the_tool_also_from_elsewhere(
    tmp_path, corpus, model, monkeypatch
):
    monkeypatch.chdir(Path(model).parent)
    url = f"qdrant+{tmp_path}/store/wiki"
    done = invoked(
        "index", corpus, url, "--model", Path(model).name, "--batch-size", 8, "--limit", 20
    )
    assert done.exit_code == 0 and done.stdout.startswith(f"20 passages of {corpus} in {url}, "), (
        done.stderr
    )
    monkeypatch.chdir(tmp_path)
    tool = open_search("qdrant+store/wiki", top_k=3)
    assert isinstance(tool, LocalSearch) and isinstance(tool.index, QdrantIndex)
    with closing(tool.index) as index:
        query = "Title 7\nw7 of all"
        nearest = (
            Embedder(model).queries([query]) @ index.embedder.passages(index.search("w7", 20)).T
        )
        assert index.embedder.model == model and len(index) == 20
        assert found(tool, query) == [
            index.search("w7", 20)[n].source for n in (-nearest[0]).argsort()[:3]
        ]


def test_passages_of_something_else_are_not_mixed_in(tmp_path, engine, corpus, model):
    def refused(*arguments: object) -> str:
        done = invoked("index", *arguments)
        assert done.exit_code == 1
        return done.stderr

    urls = {
        f"opensearch+{engine.url}/wiki": (),
        f"qdrant+{tmp_path}/store/wiki": ("--model", model),
    }
    for url, options in urls.items():
        assert invoked("index", corpus, url, *options, "--limit", 5).exit_code == 0
        assert f"{url} is made of something else ({corpus}" in refused(corpus, url, *options)
        assert "made of something else" in refused("world", url, *options, "--limit", 5)
    engine.made = {"mappings": {}}
    assert "passages of another origin" in refused(
        corpus, f"opensearch+{engine.url}/wiki", "--limit", 5
    )


def test_nothing_to_search_is_said(tmp_path, engine, embedder):
    for engine.made in (None, {"mappings": {}}):
        with pytest.raises(
            DataError,
            match="has no passages: fill it with: faithful-search index CORPUS opensearch",
        ):
            open_engine(f"opensearch+{engine.url}/wiki")
    with pytest.raises(ConfigError, match="could not be reached"):
        open_engine(OPENSEARCH)
    with pytest.raises(ToolError, match="cannot be reached") as caught:
        QdrantIndex("wiki", embedder, "http://127.0.0.1:9")
    assert caught.value.passing
    with pytest.raises(ConfigError, match="cannot be read from here"):
        ToolArguments(corpus="qdrant+store/wiki").corpus_passages()
    with pytest.raises(DataError, match="there is no folder"):
        open_engine(f"qdrant+{tmp_path}/none/wiki")
    assert not (tmp_path / "none").exists()


NAMED_LIKE = "error: an engine is named like qdrant+http://"


@pytest.mark.parametrize(
    ("arguments", "code", "told"),
    [
        (("elastic+http://h:1/wiki",), 1, NAMED_LIKE),
        (("qdrant+wiki", "--model", "none"), 1, NAMED_LIKE),
        (("qdrant+http:///wiki", "--model", "none"), 1, NAMED_LIKE),
        (("opensearch+http://h:1/",), 1, NAMED_LIKE),
        (("opensearch+/a?key=x",), 1, NAMED_LIKE),
        (("qdrant+store/wiki",), 1, "Qdrant needs --model"),
        ((OPENSEARCH, "--model", "any"), 1, "search by words: no --model"),
        ((OPENSEARCH, "--kind", "bm25"), 2, "are for the index of a folder"),
        ((OPENSEARCH,), 1, "could not be reached"),
    ],
)
def test_wrong_usage(tmp_path, monkeypatch, arguments, code, told):
    monkeypatch.chdir(tmp_path)
    done = invoked("index", "world", *arguments)
    assert done.exit_code == code and told in done.stderr and "key=x" not in done.stderr
    assert not list(tmp_path.iterdir())
