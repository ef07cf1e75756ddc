"""`faithful-search data wiki18`: what it says before it begins, and the indexes that it makes, of a
corpus that is small.
"""

import gzip
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny_bert
from click.testing import CliRunner

from faithful_search.cli import cli
from faithful_search.tools.local_search import open_search
from faithful_search.tools.retrieval import wiki18
from faithful_search.tools.retrieval.dense import Embedder, load_faiss
from faithful_search.tools.retrieval.index_folder import open_folder, read_manifest
from faithful_search.tools.retrieval.wiki18 import Download, cost

CUT = 1001
"""Where the file of vectors is cut in two: within a vector."""


@pytest.fixture(scope="module")
def published(tmp_path_factory) -> Path:
    """What Search-R1 publishes: the corpus, its vectors in two parts; and the encoder."""
    folder = tmp_path_factory.mktemp("published")
    corpus = tiny_bert.corpus()
    with gzip.open(folder / "wiki-18.jsonl.gz", "wt") as file:
        for place, passage in enumerate(corpus):
            row = {"id": str(place), "contents": f'"{passage.title}"\n{passage.text}'}
            file.write(json.dumps(row) + "\n")
    encoder = tiny_bert.saved(folder / "encoder")
    faiss = load_faiss()
    index = faiss.IndexFlatIP(16)
    index.add(Embedder(encoder).passages(corpus))
    faiss.write_index(index, str(folder / "whole"))
    content = (folder / "whole").read_bytes()
    (folder / "part_aa").write_bytes(content[:CUT])
    (folder / "part_ab").write_bytes(content[CUT:])
    return folder


@pytest.fixture
def hub(published, tmp_path, monkeypatch):
    """In place of the Hub; gives the names of the files that were downloaded."""
    downloads: list[str] = []

    def download(repository: str, name: str, repo_type: str, local_dir: Path) -> str:
        downloads.append(f"{repository}/{name}")
        target = local_dir / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if not target.exists():
            shutil.copy(published / name, target)
        return str(target)

    def small(file: Download) -> Download:
        size = (published / file.name).stat().st_size
        return Download(file.repository, file.name, size)

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("huggingface_hub.hf_hub_download", download)
    monkeypatch.setattr(wiki18, "CORPUS", small(wiki18.CORPUS))
    monkeypatch.setattr(wiki18, "VECTORS", tuple(map(small, wiki18.VECTORS)))
    monkeypatch.setattr(wiki18, "PASSAGES", tiny_bert.COUNT)
    monkeypatch.setattr(wiki18, "MODEL", str(published / "encoder"))
    return downloads


def run(*arguments: str, code: int = 0) -> str:
    result = CliRunner().invoke(cli, ["data", "wiki18", *arguments])
    assert result.exit_code == code, result.output
    return result.output


@pytest.mark.parametrize("kind", ["bm25", "dense", "search-r1-e5"])
def test_each_kind_is_a_corpus_to_search(hub, kind):
    run("--kind", kind, "--out", "index", "--yes")
    search = open_search("index", top_k=2)
    assert len(search.index.search("w1 w2", 2)) == 2


def test_the_published_vectors_find_what_encoded_ones_find(hub):
    run("--kind", "dense", "--out", "encoded", "--yes")
    run("--kind", "search-r1-e5", "--out", "published", "--yes")
    encoded, published = open_folder("encoded"), open_folder("published")
    assert published.search("w5 w6", 9) == encoded.search("w5 w6", 9)


def test_the_published_vectors_are_not_copied(hub):
    run("--kind", "search-r1-e5", "--out", "index", "--yes")
    part = Path("index/dense/vectors.faiss.1")
    assert part.samefile("index.downloads/part_ab")


def test_an_index_outlives_its_downloads(hub):
    run("--kind", "search-r1-e5", "--out", "index", "--yes")
    shutil.rmtree("index.downloads")
    assert open_folder("index").search("w1", 1)


@pytest.mark.parametrize("kind", ["bm25", "dense", "search-r1-e5"])
def test_a_finished_index_is_not_downloaded_again(hub, kind):
    run("--kind", kind, "--out", "index", "--yes")
    shutil.rmtree("index.downloads")
    hub.clear()
    assert "in index, which was there already" in run("--kind", kind, "--out", "index", "--yes")
    assert hub == []


def test_another_kind_does_not_replace_an_index(hub):
    run("--kind", "dense", "--out", "index", "--yes")
    before = read_manifest(Path("index"))
    output = run("--kind", "search-r1-e5", "--out", "index", "--yes", code=1)
    assert "index is made of something else" in output
    assert read_manifest(Path("index")) == before


def test_a_killed_build_goes_on_and_encodes_nothing_twice(hub, monkeypatch):
    encode = Embedder.passages
    encoded: list[int] = []

    def counted(self: Embedder, part: Any) -> np.ndarray:
        if len(encoded) == 3:  # two to time the encoder, then the first of the corpus
            encoded.append(0)
            raise KeyboardInterrupt
        encoded.append(len(part))
        return encode(self, part)

    monkeypatch.setattr("faithful_search.tools.retrieval.dense._BATCHES_AHEAD", 1)
    monkeypatch.setattr(Embedder, "passages", counted)
    run("--kind", "dense", "--out", "index", "--yes", code=130)
    run("--kind", "dense", "--out", "index", "--yes")
    before, after = encoded[2:3], encoded[6:]
    assert sum(before + after) == tiny_bert.COUNT


def test_half_precision_takes_half_the_bytes(hub):
    run("--kind", "dense", "--out", "index", "--half", "--yes")
    assert Path("index/dense/vectors").stat().st_size == tiny_bert.COUNT * 16 * 2


def test_nothing_begins_before_it_was_agreed_to(hub):
    output = run("--kind", "bm25", "--out", "index", code=2)
    assert "nothing was downloaded: give --yes to begin" in output
    assert hub == []


def test_it_says_what_it_takes_first(hub, monkeypatch):
    monkeypatch.undo()
    output = run("--kind", "search-r1-e5", "--out", "/nowhere/index", code=_refused())
    assert "21,015,324 passages" in output
    assert "download: 69.7 GB" in output
    assert "vectors: 64.6 GB in float32" in output


def _refused() -> int:
    """1 where the disk has too little room, 2 where only --yes is missing."""
    needs = cost("search-r1-e5").disk
    return 1 if shutil.disk_usage("/").free < needs else 2


def test_a_disk_without_room_is_refused(hub, monkeypatch):
    usage = shutil.disk_usage(".")._replace(free=10)
    monkeypatch.setattr(wiki18.shutil, "disk_usage", lambda path: usage)
    output = run("--kind", "bm25", "--out", "index", "--yes", code=1)
    assert "GB free and" in output
    assert hub == []


def test_what_is_there_already_needs_no_room(hub, monkeypatch, published):
    Path("index.downloads").mkdir()
    shutil.copy(published / "wiki-18.jsonl.gz", "index.downloads")
    needs = cost("bm25")
    room = needs.disk - Path("index.downloads/wiki-18.jsonl.gz").stat().st_blocks * 512
    usage = shutil.disk_usage(".")._replace(free=room)
    monkeypatch.setattr(wiki18.shutil, "disk_usage", lambda path: usage)
    run("--kind", "bm25", "--out", "index", "--yes")
    assert Path("index").is_dir()


def test_a_download_of_another_size_is_refused(hub, monkeypatch):
    monkeypatch.setattr(wiki18, "CORPUS", Download("a/b", "wiki-18.jsonl.gz", 7))
    output = run("--kind", "bm25", "--out", "index", "--yes", code=1)
    assert "and 7 were expected" in output


def test_a_failed_download_says_how_to_go_on(hub, monkeypatch):
    def refuse(*named: Any, **more: Any) -> str:
        raise OSError("connection reset")

    monkeypatch.setattr("huggingface_hub.hf_hub_download", refuse)
    output = run("--kind", "bm25", "--out", "index", "--yes", code=1)
    assert "connection reset. The same command goes on where it was" in output


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ((), "wiki18 needs --kind and --out"),
        (("nq",), "wiki18 is made by itself"),
        (("--kind", "bm25", "--out", "i", "--limit", "3"), "wiki18 is made by itself"),
        (("--kind", "search-r1-e5", "--out", "i", "--half"), "--half is for --kind dense"),
        (("--kind", "bm25", "--out", "i", "--hnsw"), "--hnsw for vectors"),
    ],
)
def test_wrong_usage_is_refused(hub, arguments, why):
    assert why in run(*arguments, code=2)


def test_vectors_are_four_bytes_a_number():
    vectors = 21_015_324 * 768 * 4
    assert cost("dense").searching == vectors == 64_559_075_328


def test_the_published_files_are_these_vectors_and_a_header():
    assert sum(file.size for file in wiki18.VECTORS) == cost("dense").searching + 45


def test_encoding_takes_as_long_as_the_encoder_says():
    assert cost("dense", passages_a_second=21_015_324 / 3600).seconds == pytest.approx(3600)
