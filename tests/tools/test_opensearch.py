"""The search engine by URL, against a loopback server that takes and gives what OpenSearch and Elasticsearch do."""

from __future__ import annotations

import base64
import json
import pickle
import time
from collections.abc import Iterator
from typing import Any

import pytest
from opensearch_server import answered

from faithful_search.errors import ConfigError, ToolError
from faithful_search.tools.retrieval import opensearch
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
def index(engine) -> OpenSearchIndex:
    index = OpenSearchIndex(f"{engine.url}/", "wiki", timeout=10)
    index.upload(PASSAGES)
    engine.requests.clear()
    return index


def test_what_was_uploaded_is_found(index):
    found = index.search_batch(["longest river loire", "capital", "nothing"], 2)
    assert [[hit.source for hit in row] for row in found] == [["d1", "d2"], ["d3"], []]
    assert found[0][0] == Evidence(**{**fields(PASSAGES[0]), "score": 3.1235})
    assert len(index) == 3


def fields(passage: Evidence) -> dict[str, Any]:
    return {"text": passage.text, "title": passage.title, "source": passage.source, "url": passage.url}


def test_a_batch_is_one_request_of_the_engines_form(engine, index):
    index.search_batch(["a\nb", 'c"}' + " word" * 5000], 4)
    [(method, path, headers, body)] = engine.requests
    assert (method, path, headers["Content-Type"]) == ("POST", "/_msearch", "application/x-ndjson")
    assert body.endswith(b"\n")
    with pytest.raises(ToolError, match="not valid Unicode"):
        index.search("\ud800", 1)
    head, question, _, second = [json.loads(line) for line in body.splitlines()]
    assert head == {"index": "wiki", "allow_partial_search_results": False}
    assert question["size"] == 4
    assert question["query"]["multi_match"]["fields"] == ["title", "text"]
    assert [q["query"]["multi_match"]["query"] for q in (question, second)] == ["a b", 'c"}' + " word" * 249]


def test_documents_of_others_need_no_source(engine, index):
    engine.documents = {"abc": {"title": None, "text": "river", "source": None}}
    engine.found = lambda question: answered([{"_id": "abc", "_source": engine.documents["abc"]}])
    assert index.search("river", 1) == [Evidence(text="river", source="abc")]


@pytest.mark.parametrize(
    ("fault", "passing", "says"),
    [
        ("401", False, "does not accept the credentials"),
        ("403", False, "does not accept the credentials"),
        ("404", False, "404: some_exception"),
        ("400", False, "400: some_exception"),
        ("429", True, "not available at the moment"),
        ("500", True, "not available at the moment"),
        ("503", True, "not available at the moment"),
        ("garbage", False, "cannot be read"),
        ("redirect", False, "302"),
        ("cut", True, "cannot be reached"),
        ("refused", False, "refused the query: parsing_exception"),
        ("shards", True, "only a part"),
        ("timed_out", True, "only a part"),
        ("overload", True, "circuit_breaking_exception"),
        ("no_hits", False, "refused the query"),
        ("short", False, "1 answers to 2 queries"),
    ],
)
def test_each_fault_is_a_tool_error(engine, index, fault, passing, says):
    engine.fault = fault
    with pytest.raises(ToolError, match=says) as caught:
        index.search_batch(["river", "paris"], 2)
    assert caught.value.passing is passing
    assert caught.value.retry_after == (7 if fault in ("429", "503") else None)
    for secret in ("127.0.0.1", "10.1.2.3", "169.254", engine.url):
        assert secret not in str(caught.value)
    engine.fault = ""
    assert index.search("paris", 1)


@pytest.mark.parametrize(
    ("fault", "told", "passing"),
    [("drip", "in time", True), ("silent", "in time", True), ("bomb", "longer than 1000000 bytes", False)],
)
def test_a_slow_or_endless_answer_is_left(engine, fault, told, passing, monkeypatch):
    monkeypatch.setattr(opensearch, "_MAX_BYTES", 1_000_000)
    engine.fault, start = fault, time.monotonic()
    with pytest.raises(ToolError, match=told) as caught:
        OpenSearchIndex(engine.url, "wiki", timeout=0.4 if passing else 10).search("river", 1)
    assert caught.value.passing is passing and time.monotonic() - start < 5


@pytest.mark.parametrize("name", ["HTTP_PROXY", "ALL_PROXY"])
def test_an_engine_on_this_machine_is_asked_without_a_proxy(engine, monkeypatch, name):
    for variable in ("NO_PROXY", "no_proxy"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv(name, "http://127.0.0.1:9")
    opensearch._client.cache_clear()  # it reads the environment once
    assert OpenSearchIndex(engine.url, "wiki").search("river", 1) == []


def test_credentials_come_from_the_environment(engine, index, monkeypatch):
    monkeypatch.setenv("ELASTICSEARCH_USERNAME", "ann")
    monkeypatch.setenv("ELASTICSEARCH_PASSWORD", "pässword")
    index.search("river", 1)
    monkeypatch.setenv("OPENSEARCH_API_KEY", "abc==")
    index.search("river", 1)
    sent = [headers["Authorization"] for _, _, headers, _ in engine.requests]
    assert sent == ["Basic " + base64.b64encode("ann:pässword".encode()).decode(), "ApiKey abc=="]
    assert "abc==" not in repr(index) and b"abc==" not in pickle.dumps(index)
    monkeypatch.setenv("OPENSEARCH_API_KEY", "abc\nX: 1")
    with pytest.raises(ConfigError, match="OPENSEARCH_API_KEY") as caught:
        index.search("river", 1)
    assert "abc" not in str(caught.value)


def test_upload_sends_again_what_the_engine_was_too_busy_for(engine, monkeypatch):
    pauses: list[float] = []
    monkeypatch.setattr(opensearch.time, "sleep", pauses.append)

    def stream(fault: str) -> Iterator[Evidence]:
        engine.fault, engine.faults = fault, 2
        yield from PASSAGES

    for fault in ("busy", "503"):
        engine.documents.clear()
        assert OpenSearchIndex(engine.url, "wiki").upload(stream(fault)) == 3
        assert [engine.documents[str(n)]["source"] for n in range(3)] == ["d1", "d2", "d3"]
        assert engine.requests[-1][:2] == ("POST", "/wiki/_refresh")  # from now on it is found
    assert pauses == [0.5, 7.0, 7.0]  # our own, then those that the engine asked for


def test_an_interrupted_upload_goes_on_with_the_batch_it_was_in(engine, monkeypatch):
    monkeypatch.setattr(opensearch, "_RETRIES", 0)
    monkeypatch.setattr(OpenSearchIndex, "batch", 4)
    passages = [Evidence(text=f"text {n}", source=f"d{n}") for n in range(10)]
    index = OpenSearchIndex(engine.url, "wiki")

    def stream() -> Iterator[Evidence]:
        yield from passages[:4]
        engine.fault = "busy"  # every other passage of the second batch stays out
        yield from passages[4:]

    with pytest.raises(ToolError, match=r"too busy to write\. 4 passages are written: the same call goes on") as caught:
        index.upload(stream())
    assert caught.value.passing and sorted(engine.documents) == ["0", "1", "2", "3", "4", "6"]
    engine.fault = ""
    engine.requests.clear()
    assert index.upload(passages) == 10
    assert [engine.documents[str(n)]["source"] for n in range(10)] == [f"d{n}" for n in range(10)]
    assert sum(body.count(b'"_id"') for _, path, _, body in engine.requests if path == "/_bulk") == 6
    assert index.upload(passages) == 10


def test_a_refused_passage_is_named(engine):
    engine.fault = "bad"
    with pytest.raises(ToolError, match="refused passage 1: mapper_parsing_exception"):
        OpenSearchIndex(engine.url, "wiki").upload(PASSAGES)


def test_the_index_is_made_once_and_knows_what_it_is_of(engine):
    index = OpenSearchIndex(engine.url, "wiki")
    assert index.made_of() is None
    index.upload(PASSAGES, made_of={"digest": "abc"})
    method, path, headers, body = next(request for request in engine.requests if request[0] == "PUT")
    assert (method, path, headers["Content-Type"]) == ("PUT", "/wiki", "application/json")
    assert set(json.loads(body)["mappings"]["properties"]) == {"title", "text", "source", "url"}
    index.upload(PASSAGES, made_of={"digest": "other"})
    assert index.made_of() == {"digest": "abc"}
    assert [request[0] for request in engine.requests].count("PUT") == 1
    for fault, says in (("401", "credentials"), ("400", "some_exception")):
        engine.fault = fault
        for call in (index.made_of, lambda: index.upload(PASSAGES)):
            with pytest.raises(ToolError, match=says):
                call()


def test_an_index_that_is_there_and_empty_keeps_its_settings(engine):
    engine.made = {"settings": {"number_of_shards": 5}, "mappings": {"properties": {"text": {"analyzer": "german"}}}}
    index = OpenSearchIndex(engine.url, "wiki")
    assert index.upload(PASSAGES, made_of={"digest": "abc"}) == 3
    assert index.made_of() == {"digest": "abc"}
    assert engine.made["settings"] == {"number_of_shards": 5}
    assert engine.made["mappings"]["properties"] == {"text": {"analyzer": "german"}}
