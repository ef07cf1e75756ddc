"""Dense search with a small random encoder, against numpy; builds that are killed; models that are not the same."""

import os
import pickle
import shutil
import signal
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from tiny_bert import COUNT, QUERIES, corpus, other_model, saved

from faithful_search.errors import ConfigError
from faithful_search.inference.encoder import Encoder, known_prefixes
from faithful_search.tools.retrieval.dense import DenseIndex, Embedder, load_faiss
from faithful_search.tools.retrieval.index import Passages, store
from faithful_search.trajectory import Evidence


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> str:
    return saved(tmp_path_factory.mktemp("encoder"))


@pytest.fixture(scope="module")
def passages(tmp_path_factory) -> Passages:
    folder = tmp_path_factory.mktemp("passages")
    store(folder, corpus())
    return Passages(folder)


@pytest.fixture(scope="module")
def folder(tmp_path_factory, model, passages) -> Path:
    folder = tmp_path_factory.mktemp("index") / "dense"
    DenseIndex.build(folder, passages, model=model, hnsw=True, batch_size=8)
    return folder


def vectors_of(folder: Path, precision: str = "float32") -> np.ndarray:
    return np.fromfile(folder / "vectors", dtype=precision).reshape(-1, 16)


def test_equal_passages_come_in_corpus_order(tmp_path, model):
    store(tmp_path, [Evidence(text="w5 w6", source=str(n)) for n in range(20)])
    DenseIndex.build(tmp_path / "dense", Passages(tmp_path), model=model)
    found = DenseIndex(tmp_path / "dense", Passages(tmp_path)).search("w5", 20)
    assert [hit.source for hit in found] == [str(n) for n in range(20)]


def test_the_graph_finds_nearly_all_and_more_with_a_wider_beam(folder, passages):
    exact = DenseIndex(folder, passages, exact=True)
    draw = np.random.default_rng(1).normal(size=(100, 16)).astype(np.float32)
    queries = draw / np.linalg.norm(draw, axis=1, keepdims=True)
    truth = exact.nearest(queries, 10)[1]

    def recall(beam: int) -> float:
        found = DenseIndex(folder, passages, beam=beam).nearest(queries, 10)[1]
        return float(np.mean([len(set(a) & set(b)) / 10 for a, b in zip(found.tolist(), truth.tolist(), strict=True)]))

    assert recall(200) > 0.98
    assert recall(200) >= recall(10)


def test_half_precision_takes_half_the_place_and_finds_the_same(tmp_path, model, passages, folder, monkeypatch):
    monkeypatch.setattr("faithful_search.tools.retrieval.dense._BLOCK", 64)  # several blocks
    DenseIndex.build(tmp_path / "half", passages, model=model, precision="float16")
    half, whole = DenseIndex(tmp_path / "half", passages), DenseIndex(folder, passages, exact=True)
    assert (tmp_path / "half" / "vectors").stat().st_size * 2 == (folder / "vectors").stat().st_size
    for a, b in zip(half.search_batch(QUERIES, 10), whole.search_batch(QUERIES, 10), strict=True):
        assert np.allclose([hit.score for hit in a], [hit.score for hit in b], atol=2e-3)
    found, expected = half.search("w1", COUNT), {item.source: item.score for item in whole.search("w1", COUNT)}
    assert {item.source: item.score for item in found} == pytest.approx(expected, abs=0.002)
    assert found[-1].score < found[0].score


def test_an_index_keeps_its_pooling_and_prefixes(tmp_path, model, passages):
    how: dict[str, Any] = {"pooling": "cls", "limit": 9, "query_prefix": "w9 ", "passage_prefix": "w8 "}
    DenseIndex.build(tmp_path / "dense", passages, model=model, **how)
    index = DenseIndex(tmp_path / "dense", passages)
    expected = Encoder.from_pretrained(model, **how)
    assert np.allclose(index.embedder.queries(["w1 w2"]), expected.encode(["w1 w2"], "query"), atol=1e-6)
    texts = [f"{passage.title}\n{passage.text}" for passage in corpus()]
    assert np.allclose(vectors_of(tmp_path / "dense"), expected.encode(texts, "passage"), atol=1e-6)


@pytest.mark.parametrize("damage", ["vectors", "hnsw.faiss", "manifest.json"])
def test_a_damaged_index_and_other_passages_are_refused(tmp_path, folder, passages, damage):
    shutil.copytree(folder, tmp_path / "dense")
    (tmp_path / "dense" / damage).write_bytes((folder / damage).read_bytes()[:-7])
    store(tmp_path, corpus(10))
    for place, own in ((tmp_path / "dense", passages), (folder, Passages(tmp_path))):
        with pytest.raises(ValueError):
            DenseIndex(place, own)


def test_exact_search_is_that_of_numpy(model, folder, passages):
    index, rows = DenseIndex(folder, passages, exact=True), corpus()
    cosines = Encoder.from_pretrained(model).encode(QUERIES, "query") @ vectors_of(folder).T
    for top_k in (1, 5, COUNT, COUNT + 10):
        for row, hits in zip(cosines, index.search_batch(QUERIES, top_k), strict=True):
            numbers = [int(hit.source[1:]) for hit in hits]
            assert len(set(numbers)) == len(hits) == min(top_k, COUNT)
            assert np.allclose([hit.score for hit in hits], np.sort(row)[::-1][:top_k], atol=1e-4)
            assert np.allclose([hit.score for hit in hits], row[numbers], atol=1e-4)
            assert [msgspec.structs.replace(hit, score=None) for hit in hits] == [rows[number] for number in numbers]
    assert index.search_batch([], 3) == [] and (len(index), index.inline) == (COUNT, False)


def test_a_killed_build_goes_on_with_its_own_encoder_and_encodes_nothing_twice(
    tmp_path, model, passages, folder, monkeypatch
):
    torn, encoded = tmp_path / "torn", []

    @contextmanager
    def killer(*_: object) -> Iterator[Any]:
        class Bar:
            def update(self, count: int) -> None:
                if sum(encoded) >= 100:
                    with (torn / "vectors").open("ab") as file:
                        file.write(b"torn")
                    raise KeyboardInterrupt

        yield Bar()

    encode = Embedder.passages
    monkeypatch.setattr(Embedder, "passages", lambda self, part: encoded.append(len(part)) or encode(self, part))
    with pytest.MonkeyPatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr("faithful_search.tools.retrieval.dense.progress", killer)
        DenseIndex.build(torn, passages, model=model, batch_size=4)
    with pytest.raises(ValueError):
        DenseIndex(torn, passages)
    for how, says in (
        ({"model": other_model(tmp_path / "other")}, "gives other vectors than"),
        ({"model": model, "precision": "float16"}, "were begun with other settings"),
    ):
        with pytest.raises(ConfigError, match=says):
            DenseIndex.build(torn, passages, **how)
    assert sum(encoded) == 128  # four chunks of 32 were written
    DenseIndex.build(torn, passages, model=model, batch_size=4)
    assert sum(encoded) == COUNT
    assert np.allclose(vectors_of(torn), vectors_of(folder), atol=1e-6)


def test_another_model_is_refused_also_under_the_same_name_and_one_that_moved_is_named(tmp_path, passages):
    place, index = saved(tmp_path / "model"), tmp_path / "dense"
    DenseIndex.build(index, passages, model=place)
    (tmp_path / "model").rename(tmp_path / "moved")
    with pytest.raises(ConfigError, match=r"cannot open the model .*[\s\S]*say where: open_folder\(…, model=…\)"):
        DenseIndex(index, passages)
    assert DenseIndex(index, passages, model=str(tmp_path / "moved")).search("w1", 1)
    with pytest.raises(ConfigError, match="gives other vectors than"):
        DenseIndex(index, passages, model=other_model(tmp_path / "larger", size=32))
    (tmp_path / "model").mkdir()
    other_model(tmp_path / "model")
    with pytest.raises(ConfigError, match="gives other vectors than"):
        DenseIndex(index, passages)


@pytest.mark.parametrize("missing", ["faiss", "torch"])
def test_a_missing_package_is_named(tmp_path, passages, missing, monkeypatch):
    monkeypatch.delitem(sys.modules, "faithful_search.inference.encoder")
    monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(ConfigError) as told:
        DenseIndex.build(tmp_path / "x", passages, model="m")
    assert str(told.value) == f"dense search needs {missing}: pip install 'faithful-search[dense]'"


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_threads_copies_and_a_forked_child_get_what_one_caller_gets(folder, passages, request):
    """A child without the threads of its parent, for which it would wait for ever."""
    faiss, threads = load_faiss(), torch.get_num_threads()
    for setting in (torch.set_num_threads, faiss.omp_set_num_threads):
        request.addfinalizer(partial(setting, threads))
        setting(2)
    index = DenseIndex(folder, passages, exact=True, beam=33)
    data = pickle.dumps(index)
    copy = pickle.loads(data)
    assert len(data) < 5_000 and (copy.exact, copy.beam) == (True, 33)
    queries = [f"w{n} w{n + 1}" for n in range(150)]
    expected = copy.search_batch(queries, 5)
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(lambda query: index.search(query, 5), queries)) == expected
    child = os.fork()
    if child == 0:
        signal.alarm(60)
        os._exit(0 if index.search_batch(queries, 5) == expected else 3)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


# the encoder's own files


def test_a_broken_file_beside_a_model_is_named(tmp_path):
    model = saved(tmp_path)
    (tmp_path / "modules.json").write_text("[{")
    with pytest.raises(ConfigError, match=r"cannot open the model .*modules\.json"):
        Embedder(model)


def test_prefixes_by_name_yield_to_those_of_files_and_arguments(tmp_path):
    plain = Encoder.from_pretrained(saved(tmp_path / "e5-base-v2"))
    assert (plain.query_prefix, plain.passage_prefix) == ("query: ", "passage: ")
    prompts = {"prompts": {"query": "ask: "}}
    said = Encoder.from_pretrained(saved(tmp_path / "x" / "e5-base-v2", config_sentence_transformers=prompts))
    assert (said.query_prefix, said.passage_prefix) == ("ask: ", "")
    given = Encoder.from_pretrained(str(tmp_path / "e5-base-v2"), query_prefix="")
    assert (given.query_prefix, given.passage_prefix) == ("", "passage: ")


@pytest.mark.parametrize(
    ("model", "query", "passage"),
    [
        ("intfloat/e5-base-v2", "query: ", "passage: "),
        ("intfloat/e5-small-unsupervised", "query: ", "passage: "),
        ("intfloat/multilingual-e5-small", "query: ", "passage: "),
        ("/models/E5-Base-v2/", "query: ", "passage: "),
        ("intfloat/multilingual-e5-large-instruct", "Instruct: Given a web search query, ", ""),
        ("BAAI/bge-base-en-v1.5", "Represent this sentence for searching relevant passages: ", ""),
        ("BAAI/bge-m3", "", ""),
        ("sentence-transformers/all-mpnet-base-v2", "", ""),
        ("someone/not-e5-base-v2-at-all", "", ""),
    ],
)
def test_prefixes_are_known_by_name(model, query, passage):
    found = known_prefixes(model)
    assert found[0].startswith(query) and bool(found[0]) == bool(query) and found[1] == passage
