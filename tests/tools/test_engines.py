"""Engines by URL, from the command line on: filled, gone on with, opened, refused."""

import asyncio
import gzip
import json
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from tiny_bert import saved

from faithful_search.cli import cli
from faithful_search.errors import ConfigError, DataError, ToolError
from faithful_search.tools import LocalSearch
from faithful_search.tools.arguments import ToolArguments
from faithful_search.tools.local_search import open_search
from faithful_search.tools.retrieval.dense import Embedder
from faithful_search.tools.retrieval.engines import fill_engine, open_engine
from faithful_search.tools.retrieval.opensearch import OpenSearchIndex
from faithful_search.tools.retrieval.qdrant import QdrantIndex

COUNT = 30


@pytest.fixture
def corpus(tmp_path) -> Path:
    path = tmp_path / "corpus.jsonl.gz"
    rows = [{"id": f"d{n}", "title": f"Title {n}", "text": f"w{n} of all"} for n in range(COUNT)]
    path.write_bytes(gzip.compress("".join(json.dumps(row) + "\n" for row in rows).encode()))
    return path


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> str:
    return saved(tmp_path_factory.mktemp("encoder"))


def invoke(*arguments: object) -> tuple[int, str, str]:
    done = CliRunner().invoke(cli, ["index", *map(str, arguments)])
    return done.exit_code, done.stdout, done.stderr


def found(tool: Any, query: str) -> list[str]:
    return [item.source for item in asyncio.run(tool.local_search(query))]


def test_opensearch_from_the_command_to_the_tool(engine, corpus):
    url = f"opensearch+{engine.url}/wiki"
    corpus.write_bytes(corpus.read_bytes() + gzip.compress(b'{"body": "?"}\n'))
    code, said, told = invoke(corpus, url)
    assert code == 0 and said.startswith(f"{COUNT} passages of {corpus} in {url}, "), told
    assert f"line {COUNT + 1}: no column 'text'" in told and "rows left out: 1\n" in told
    assert f"serve it: faithful-search serve {url}" in said
    tool = open_search(url, name="wiki", top_k=1)
    assert isinstance(tool, LocalSearch) and isinstance(tool.index, OpenSearchIndex) and tool.name == "wiki"
    assert found(tool, "w7") == ["d7"]
    arguments = ToolArguments(corpus=url, triples="none", domain_corpus=url, domain_name="other", tool_timeout=10)
    tools = arguments.build_toolbox().tools
    assert [(tool.name, found(tool, "w7"), tool.index.timeout) for tool in tools.values()] == [
        ("local_search", ["d7"], 8.5),
        ("other", ["d7"], 8.5),
    ]


def test_qdrant_from_the_command_to_the_tool(tmp_path, corpus, model):
    pytest.importorskip("qdrant_client")
    url = f"qdrant+{tmp_path}/store/wiki"
    code, said, told = invoke(corpus, url, "--model", model, "--batch-size", 8, "--limit", 20)
    assert code == 0 and said.startswith(f"20 passages of {corpus} in {url}, "), told
    tool = open_search(url, top_k=3)
    assert isinstance(tool, LocalSearch) and isinstance(tool.index, QdrantIndex)
    with closing(tool.index) as index:
        query = "Title 7\nw7 of all"
        nearest = Embedder(model).queries([query]) @ index.embedder.passages(index.search("w7", 20)).T
        assert index.embedder.model == model and len(index) == 20
        assert found(tool, query) == [index.search("w7", 20)[n].source for n in (-nearest[0]).argsort()[:3]]


def test_an_upload_that_is_done_encodes_no_more_than_its_last_batch(tmp_path, corpus, model, monkeypatch):
    """And a model named from here is found from elsewhere."""
    pytest.importorskip("qdrant_client")
    url, encoded = f"qdrant+{tmp_path}/store/wiki", []
    monkeypatch.chdir(Path(model).parent)
    encode = Embedder.passages
    monkeypatch.setattr(Embedder, "passages", lambda self, part: encoded.append(len(part)) or encode(self, part))
    monkeypatch.setattr(QdrantIndex, "batch", 6)
    for _ in range(2):
        assert fill_engine(corpus, url, model=Path(model).name, limit=10) == 10
    assert encoded == [6, 4, 4]
    monkeypatch.chdir(tmp_path)
    with closing(open_engine("qdrant+store/wiki")) as index:
        assert len(index) == 10


def test_passages_of_something_else_are_not_mixed_in(tmp_path, engine, corpus, model):
    urls = {f"opensearch+{engine.url}/wiki": (), f"qdrant+{tmp_path}/store/wiki": ("--model", model)}
    for url, options in urls.items():
        assert invoke(corpus, url, *options, "--limit", 5)[0] == 0
        code, _, said = invoke(corpus, url, *options)
        assert code == 1 and f"{url} is made of something else ({corpus}" in said
        code, _, said = invoke("world", url, *options, "--limit", 5)
        assert code == 1 and "made of something else" in said
    engine.made = {"mappings": {}}
    code, _, said = invoke(corpus, f"opensearch+{engine.url}/wiki", "--limit", 5)
    assert code == 1 and "passages of another origin" in said


def test_nothing_to_search_is_said(tmp_path, engine):
    for engine.made in (None, {"mappings": {}}):
        with pytest.raises(DataError, match="has no passages: fill it with: faithful-search index CORPUS opensearch"):
            open_engine(f"opensearch+{engine.url}/wiki")
    with pytest.raises(ConfigError, match="could not be reached"):
        open_engine("opensearch+http://127.0.0.1:9/wiki")
    with pytest.raises(ConfigError, match="cannot be read from here"):
        ToolArguments(corpus="qdrant+store/wiki").corpus_passages()
    with pytest.raises(DataError, match="there is no folder"):
        open_engine(f"qdrant+{tmp_path}/none/wiki")
    assert not (tmp_path / "none").exists()


def test_a_collection_that_names_no_encoder_needs_one(tmp_path, model):
    pytest.importorskip("qdrant_client")
    QdrantIndex("wiki", Embedder(model), tmp_path / "store").close()
    with pytest.raises(ToolError, match="no collection 'wiki'"):
        QdrantIndex("wiki", where=tmp_path / "store")
    with closing(QdrantIndex("wiki", Embedder(model), tmp_path / "store")) as index:
        index._prepare(None)
    with pytest.raises(ConfigError, match="does not say which encoder"):
        open_engine(f"qdrant+{tmp_path}/store/wiki")


@pytest.mark.parametrize(
    "url",
    [
        "http://h:1/wiki",
        "elastic+http://h:1/wiki",
        "qdrant+wiki",
        "qdrant+http://host",
        "qdrant+http:///wiki",
        "opensearch+http://h:1/",
        "opensearch+/a?key=x",
    ],
)
def test_urls_that_are_none(url, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match="an engine is named like") as caught:
        open_engine(url)
    assert "key=x" not in str(caught.value)
    code, _, said = invoke("world", url, "--model", "none")
    assert code == 1 and "error: an engine is named like qdrant+http://" in said and not list(tmp_path.iterdir())


def test_wrong_usage(tmp_path, corpus, model):
    for url, options, code, told in (
        ("qdrant+store/wiki", (), 1, "Qdrant needs --model"),
        ("opensearch+http://127.0.0.1:9/wiki", ("--model", model), 1, "search by words: no --model"),
        ("opensearch+http://127.0.0.1:9/wiki", ("--overwrite",), 2, "are for the index of a folder"),
        ("opensearch+http://127.0.0.1:9/wiki", ("--kind", "bm25"), 2, "are for the index of a folder"),
        ("opensearch+http://127.0.0.1:9/wiki", (), 1, "could not be reached"),
    ):
        done, _, said = invoke(corpus, url, *options)
        assert done == code and told in said
