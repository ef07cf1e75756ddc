"""The search engine by URL, against a loopback server that takes and gives what OpenSearch and Elasticsearch do."""

import base64
import pickle
import time
from collections.abc import Iterator

import msgspec
import pytest
from opensearch_server import answered

from faithful_search.errors import ToolError
from faithful_search.tools.retrieval import engines, opensearch
from faithful_search.tools.retrieval.opensearch import OpenSearchIndex
from faithful_search.trajectory import Evidence

PASSAGES = [
    Evidence(text="The Loire is the longest river of France.", title="Loire", source="d1", url="http://x/1"),
    Evidence(text="Nantes lies on the Loire.", title="Nantes", source="d2"),
    Evidence(text="Paris is the capital of France.", title="Paris", source="d3"),
]


@pytest.fixture(autouse=True)
def no_keys(monkeypatch) -> None:
    for prefix in ("OPENSEARCH", "ELASTICSEARCH"):
        for name in ("API_KEY", "USERNAME", "PASSWORD"):
            monkeypatch.delenv(f"{prefix}_{name}", raising=False)


@pytest.fixture
def empty(engine) -> OpenSearchIndex:
    return OpenSearchIndex(f"{engine.url}/", "wiki", timeout=10)


@pytest.fixture
def index(engine, empty) -> OpenSearchIndex:
    empty.upload(PASSAGES)
    engine.requests.clear()
    return empty


def test_what_was_uploaded_is_found(index):
    found = index.search_batch(["longest river loire", "capital", "nothing"], 2)
    assert [[hit.source for hit in row] for row in found] == [["d1", "d2"], ["d3"], []]
    assert found[0][0] == msgspec.structs.replace(PASSAGES[0], score=3.1235)
    assert len(index) == 3 and index.search_batch([], 2) == []


def test_a_batch_is_one_request_of_the_engines_form(engine, index):
    index.search_batch(["a\nb", 'c"}' + " word" * 5000], 4)
    [request] = engine.requests
    head, question, _, second = request.body
    kind = request.headers["Content-Type"]
    assert (request.method, request.path, kind) == ("POST", "/_msearch", "application/x-ndjson")
    assert head == {"index": "wiki", "allow_partial_search_results": False}
    assert (question["size"], question["query"]["multi_match"]["fields"]) == (4, ["title", "text"])
    assert [q["query"]["multi_match"]["query"] for q in (question, second)] == ["a b", 'c"}' + " word" * 249]
    with pytest.raises(ToolError, match="not valid Unicode"):
        index.search("\ud800", 1)


def test_documents_of_others_need_no_source(engine, index):
    document = {"title": None, "text": "river", "source": None}
    engine.found = lambda question: answered([{"_id": "abc", "_source": document}])
    assert index.search("river", 1) == [Evidence(text="river", source="abc")]


@pytest.mark.parametrize(
    ("mode", "passing", "says"),
    [
        ("401", False, "401 Unauthorized"),
        ("403", False, "403 Forbidden"),
        ("404", False, "404 Not Found"),
        ("400", False, "400 Bad Request"),
        ("429", True, "429 Too Many Requests"),
        ("500", True, "500 Internal Server Error"),
        ("503", True, "503 Service Unavailable"),
        ("garbage", False, "the answer is not JSON"),
        ("redirect", False, "302"),
        ("cut", True, "broke off"),
        ("refused", False, "refused the query: parsing_exception"),
        ("shards", True, "only a part"),
        ("timed_out", True, "only a part"),
        ("overload", True, "circuit_breaking_exception"),
        ("no_hits", False, "refused the query"),
        ("short", False, "1 answers to 2 queries"),
        ("drip", True, "took longer than 0.4 seconds"),
        ("hang", True, "took longer than 0.4 seconds"),
        ("bomb", False, "more than 1,000,000 bytes"),
    ],
)
def test_each_fault_is_a_tool_error(engine, index, mode, passing, says, monkeypatch):
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


@pytest.mark.parametrize("name", ["HTTP_PROXY", "ALL_PROXY"])
def test_an_engine_on_this_machine_is_asked_without_a_proxy(engine, monkeypatch, name):
    for variable in ("NO_PROXY", "no_proxy"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv(name, "http://127.0.0.1:9")
    assert OpenSearchIndex(engine.url, "wiki").search("river", 1) == []


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
    with pytest.raises(ToolError, match="is there a line break or an accent in a header or key") as caught:
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
        yield from PASSAGES

    engine.retry_after = "9"  # longer than a single request waits
    monkeypatch.setattr(engines.time, "sleep", pause)
    for mode in ("busy", "503"):
        engine.documents.clear()
        assert empty.upload(stream(mode)) == 3
        assert [engine.documents[str(n)]["source"] for n in range(3)] == ["d1", "d2", "d3"]
        assert engine.requests[-1].path == "/wiki/_refresh"  # from now on it is found
    assert pauses == [0.5, 1.0, 9.0, 9.0]  # our own, then those that the engine asked for


def test_an_interrupted_upload_goes_on_with_the_batch_it_was_in(engine, empty, monkeypatch):
    monkeypatch.setattr(engines, "_PAUSES", ())
    monkeypatch.setattr(OpenSearchIndex, "batch", 4)
    passages = [Evidence(text=f"text {n}", source=f"d{n}") for n in range(10)]

    def stream() -> Iterator[Evidence]:
        yield from passages[:4]
        engine.mode = "busy"  # every other passage of the second batch stays out
        yield from passages[4:]

    with pytest.raises(ToolError, match=r"too busy to write\. 4 passages are written: the same call goes on") as caught:
        empty.upload(stream())
    assert caught.value.passing and sorted(engine.documents) == ["0", "1", "2", "3", "4", "6"]
    engine.mode = "ok"
    engine.requests.clear()
    assert empty.upload(passages) == 10
    assert [engine.documents[str(n)]["source"] for n in range(10)] == [f"d{n}" for n in range(10)]
    assert sum(len(request.body) // 2 for request in engine.requests if request.path == "/_bulk") == 6
    assert empty.upload(passages) == 10


def test_a_refused_passage_is_named(engine, empty):
    engine.mode = "bad"
    with pytest.raises(ToolError, match="refused passage 1: mapper_parsing_exception"):
        empty.upload(PASSAGES)


def test_the_index_is_made_once_and_knows_what_it_is_of(engine, empty):
    assert empty.made_of() is None
    empty.upload(PASSAGES, made_of={"digest": "abc"})
    empty.upload(PASSAGES, made_of={"digest": "other"})
    assert empty.made_of() == {"digest": "abc"}
    [made] = [request for request in engine.requests if request.method == "PUT"]
    assert (made.path, made.headers["Content-Type"]) == ("/wiki", "application/json")
    assert set(made.body["mappings"]["properties"]) == {"title", "text", "source", "url"}
    for engine.mode, says in (("401", "401"), ("400", "400")):
        for call in (empty.made_of, lambda: empty.upload(PASSAGES)):
            with pytest.raises(ToolError, match=says):
                call()


def test_an_index_that_is_there_and_empty_keeps_its_settings(engine, empty):
    engine.made = {"settings": {"number_of_shards": 5}, "mappings": {"properties": {"text": {"analyzer": "german"}}}}
    assert empty.upload(PASSAGES, made_of={"digest": "abc"}) == 3
    assert empty.made_of() == {"digest": "abc"}
    assert engine.made["settings"] == {"number_of_shards": 5}
    assert engine.made["mappings"]["properties"] == {"text": {"analyzer": "german"}}
