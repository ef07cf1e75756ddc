"""Qdrant, embedded for real; a server's faults from a loopback one that speaks its wire form."""

import pickle
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import msgspec
import numpy as np
import pytest
from faulty_server import FaultyServer, Request
from tiny_bert import QUERIES, corpus, other_model, saved

from faithful_search.errors import ConfigError, ToolError
from faithful_search.tools.retrieval.dense import Embedder
from faithful_search.tools.retrieval.qdrant import QdrantIndex
from faithful_search.trajectory import Evidence

pytest.importorskip("qdrant_client")
COUNT = 60


@pytest.fixture(scope="module")
def embedder(tmp_path_factory) -> Embedder:
    return Embedder(saved(tmp_path_factory.mktemp("encoder")))


@pytest.fixture(scope="module")
def index(embedder) -> Iterator[QdrantIndex]:
    with closing(QdrantIndex("wiki", embedder)) as index:
        assert index.upload(corpus(COUNT)) == COUNT
        yield index


def test_search_is_that_of_numpy(index, embedder):
    cosines = embedder.queries(QUERIES) @ embedder.passages(corpus(COUNT)).T
    for row, hits in zip(cosines, index.search_batch(QUERIES, 7), strict=True):
        assert np.allclose([hit.score for hit in hits], np.sort(row)[::-1][:7], atol=1e-3)
        assert all(abs(row[int(hit.source[1:])] - hit.score) < 1e-3 for hit in hits)
        assert all(msgspec.structs.replace(hit, score=None) == corpus(COUNT)[int(hit.source[1:])] for hit in hits)
    assert len(index.search("w1", COUNT + 5)) == COUNT and index.search_batch([], 3) == []
    with pytest.raises(ConfigError, match="belongs to one process"):
        pickle.dumps(index)


def test_an_interrupted_upload_goes_on_in_its_folder(tmp_path, embedder, monkeypatch):
    def stops() -> Iterator[Evidence]:
        yield from corpus(COUNT)[:40]
        raise KeyboardInterrupt

    monkeypatch.setattr(QdrantIndex, "batch", 16)
    with closing(QdrantIndex("wiki", embedder, tmp_path / "store")) as index, pytest.raises(KeyboardInterrupt):
        index.upload(stops())
    encoded: list[int] = []
    encode = Embedder.passages
    monkeypatch.setattr(Embedder, "passages", lambda self, part: encoded.append(len(part)) or encode(self, part))
    with closing(QdrantIndex("wiki", embedder, tmp_path / "store")) as index:
        assert len(index) == 32
        assert index.upload(corpus(COUNT)) == COUNT
        assert sum(encoded) == COUNT - 32
        resumed = index.search_batch(QUERIES, 9)
    with closing(QdrantIndex("wiki", embedder)) as whole:
        whole.upload(corpus(COUNT))
        assert [[hit.source for hit in row] for row in whole.search_batch(QUERIES, 9)] == [
            [hit.source for hit in row] for row in resumed
        ]


def test_a_batch_of_which_a_server_took_only_the_end_is_written_again(embedder, monkeypatch):
    monkeypatch.setattr(QdrantIndex, "batch", 4)
    with closing(QdrantIndex("torn", embedder)) as index:
        index.upload(corpus(4))
        index._write(corpus(6)[5:], 5, None)
        assert index.upload(corpus(8)) == len(index) == 8
        assert {item.source for item in index.search("w1", 8)} == {item.source for item in corpus(8)}


def test_another_encoder_is_refused(tmp_path, embedder):
    with closing(QdrantIndex("wiki", embedder, tmp_path / "store")) as index:
        index.upload(corpus(5))
    for size in (16, 32):
        other = Embedder(other_model(tmp_path / str(size), size=size))
        with pytest.raises(ConfigError, match="gives other vectors than"):
            QdrantIndex("wiki", other, tmp_path / "store")
    with closing(QdrantIndex("wiki", embedder, tmp_path / "store")) as index:
        assert len(index) == 5


def test_a_collection_that_is_not_there_is_empty_and_says_so(embedder):
    with closing(QdrantIndex("wiki", embedder)) as index:
        assert len(index) == 0
        with pytest.raises(ToolError, match="wiki"):
            index.search("w1", 1)


def test_a_folder_in_use_is_refused(tmp_path, embedder):
    with (
        closing(QdrantIndex("wiki", embedder, tmp_path / "store")),
        pytest.raises(ConfigError, match="is in use elsewhere"),
    ):
        QdrantIndex("wiki", embedder, tmp_path / "store")


def test_an_index_left_open_ends_quietly(tmp_path):
    code = (
        "import builtins, sys; from faithful_search.tools.retrieval.qdrant import QdrantIndex\n"
        "class Fixed:\n    dimension = 4\n"
        "builtins.kept = QdrantIndex('wiki', Fixed(), sys.argv[1])  # outlives the modules"
    )
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=True)
    assert done.stderr == ""


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
    assert b"k-123" not in data
    assert pickle.loads(data).search("w1", 1) == index.search("w1", 1)


@pytest.mark.parametrize("name", ["HTTP_PROXY", "ALL_PROXY"])
def test_a_server_on_this_machine_is_asked_without_a_proxy(server, embedder, monkeypatch, name):
    for variable in ("NO_PROXY", "no_proxy"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv(name, "http://127.0.0.1:9")
    assert len(QdrantIndex("wiki", embedder, server.url)) == 5


@pytest.mark.parametrize(
    ("fault", "passing", "says"),
    [
        (401, False, "does not accept the credentials"),
        (403, False, "does not accept the credentials"),
        (404, False, "no collection 'wiki'"),
        (400, False, "refused the request"),
        (429, True, "not available at the moment"),
        (500, True, "not available at the moment"),
        (503, True, "not available at the moment"),
        (200, False, "answer cannot be read"),  # JSON without a result
        (0, False, "answer cannot be read"),
    ],
)
def test_each_fault_of_a_server_is_a_tool_error(server, embedder, fault, passing, says):
    index = QdrantIndex("wiki", embedder, server.url)
    server.answer = lambda request: (200, b"<html>")
    server.mode = (fault, "secret 10.1.2.3") if fault else "ok"
    for server.retry_after in ("3", "", "soon"):  # 429 and 503 say it; perhaps nothing that can be read
        with pytest.raises(ToolError, match=says) as caught:
            index.search("w1", 1)
        assert caught.value.passing is passing
        assert "10.1.2.3" not in str(caught.value) and "127.0.0.1" not in str(caught.value)


def test_nobody_listening_is_a_passing_failure(embedder):
    with pytest.raises(ToolError, match="cannot be reached") as caught:
        QdrantIndex("wiki", embedder, "http://127.0.0.1:9")
    assert caught.value.passing
