"""Dense search with a small random encoder, against numpy; builds that are killed; models that are not the same."""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from tiny_bert import COUNT, QUERIES, corpus, other_model, saved

from faithful_search.errors import ConfigError, DataError
from faithful_search.inference.encoder import Encoder, known_prefixes
from faithful_search.tools.retrieval.dense import DenseIndex
from faithful_search.tools.retrieval.embedder import Embedder
from faithful_search.tools.retrieval.passages import Passages, store
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


def test_vectors_are_the_encoders_of_title_and_text(model, folder):
    texts = [f"{passage.title}\n{passage.text}" for passage in corpus()]
    expected = Encoder.from_pretrained(model).encode(texts, "passage")
    assert np.allclose(vectors_of(folder), expected, atol=1e-6)


@pytest.mark.parametrize("top_k", [1, 5, COUNT, COUNT + 10])
def test_exact_search_is_that_of_numpy(model, folder, passages, top_k):
    found = DenseIndex.open(folder, passages, exact=True).search_batch(QUERIES, top_k)
    cosines = Encoder.from_pretrained(model).encode(QUERIES, "query") @ vectors_of(folder).T
    for row, hits in zip(cosines, found, strict=True):
        assert len(hits) == min(top_k, COUNT)
        assert np.allclose([hit.score for hit in hits], np.sort(row)[::-1][:top_k], atol=1e-4)
        assert all(abs(row[int(hit.source[1:])] - hit.score) < 1e-4 for hit in hits)
        assert len({hit.source for hit in hits}) == len(hits)
        assert all(msgspec.structs.replace(hit, score=None) == corpus()[int(hit.source[1:])] for hit in hits)


def test_a_batch_finds_what_single_queries_find(folder, passages):
    index = DenseIndex.open(folder, passages, exact=True)
    assert index.search_batch(QUERIES, 3) == [index.search(query, 3) for query in QUERIES]
    assert index.search_batch([], 3) == []
    assert (len(index), index.inline) == (COUNT, False)


def test_equal_passages_come_in_corpus_order(tmp_path, model):
    store(tmp_path, [Evidence(text="w5 w6", source=str(n)) for n in range(20)])
    DenseIndex.build(tmp_path / "dense", Passages(tmp_path), model=model)
    found = DenseIndex.open(tmp_path / "dense", Passages(tmp_path)).search("w5", 20)
    assert [hit.source for hit in found] == [str(n) for n in range(20)]


def test_the_graph_finds_nearly_all_and_more_with_a_wider_beam(folder, passages):
    exact = DenseIndex.open(folder, passages, exact=True)
    draw = np.random.default_rng(1).normal(size=(100, 16)).astype(np.float32)
    queries = draw / np.linalg.norm(draw, axis=1, keepdims=True)
    truth = exact.nearest(queries, 10)[1]

    def recall(beam: int) -> float:
        found = DenseIndex.open(folder, passages, beam=beam).nearest(queries, 10)[1]
        return float(np.mean([len(set(a) & set(b)) / 10 for a, b in zip(found.tolist(), truth.tolist(), strict=True)]))

    assert recall(200) > 0.98
    assert recall(200) >= recall(10)


def test_half_precision_takes_half_the_place_and_finds_the_same(tmp_path, model, passages, folder, monkeypatch):
    monkeypatch.setattr("faithful_search.tools.retrieval.dense._BLOCK", 64)  # several blocks
    DenseIndex.build(tmp_path / "half", passages, model=model, precision="float16")
    half, whole = DenseIndex.open(tmp_path / "half", passages), DenseIndex.open(folder, passages, exact=True)
    assert (tmp_path / "half" / "vectors").stat().st_size * 2 == (folder / "vectors").stat().st_size
    for a, b in zip(half.search_batch(QUERIES, 10), whole.search_batch(QUERIES, 10), strict=True):
        assert np.allclose([hit.score for hit in a], [hit.score for hit in b], atol=2e-3)
    found, expected = half.search("w1", COUNT), {item.source: item.score for item in whole.search("w1", COUNT)}
    assert {item.source: item.score for item in found} == pytest.approx(expected, abs=0.002)
    assert found[-1].score < found[0].score


def test_batches_of_any_size_give_the_same(tmp_path, model, passages, folder):
    DenseIndex.build(tmp_path / "dense", passages, model=model, batch_size=1)
    assert np.allclose(vectors_of(tmp_path / "dense"), vectors_of(folder), atol=1e-6)


KILLED = """
import os, signal, sys
from pathlib import Path
from contextlib import contextmanager
from faithful_search.tools.retrieval.dense import DenseIndex
from faithful_search.tools.retrieval.passages import Passages

@contextmanager
def killer(**_):
    class Bar:
        written = 0
        def update(self, count):
            self.written += count
            if self.written >= int(sys.argv[4]):
                with open(Path(sys.argv[1]) / "vectors", "ab") as file:
                    file.write(b"torn")
                os.kill(os.getpid(), signal.SIGKILL)
    yield Bar()

DenseIndex.build(Path(sys.argv[1]), Passages(Path(sys.argv[2])), model=sys.argv[3], batch_size=4, progress=killer)
"""


def test_a_killed_build_goes_on_with_its_own_encoder_and_encodes_nothing_twice(tmp_path, model, passages, monkeypatch):
    torn = tmp_path / "torn"
    done = subprocess.run([sys.executable, "-c", KILLED, torn, passages.folder, model, "100"], env=os.environ)
    assert done.returncode == -signal.SIGKILL
    with pytest.raises(DataError, match="no finished dense index"):
        DenseIndex.open(torn, passages)
    with pytest.raises(ConfigError, match="were begun with"):
        DenseIndex.build(torn, passages, model=other_model(tmp_path / "other"))
    with pytest.raises(ConfigError, match=r"as float32 .* not with .* as float16"):
        DenseIndex.build(torn, passages, model=model, precision="float16")
    encoded: list[int] = []
    encode = Embedder.passages
    monkeypatch.setattr(Embedder, "passages", lambda self, part: encoded.append(len(part)) or encode(self, part))
    DenseIndex.build(torn, passages, model=model, batch_size=4)
    assert sum(encoded) == COUNT - 128  # four chunks of 32 were written
    DenseIndex.build(tmp_path / "whole", passages, model=model, batch_size=4)
    assert (torn / "vectors").read_bytes() == (tmp_path / "whole" / "vectors").read_bytes()


def test_another_model_is_refused(tmp_path, model, folder, passages):
    with pytest.raises(ConfigError, match="gives other vectors than") as caught:
        DenseIndex.open(folder, passages, model=other_model(tmp_path / "a"))
    assert model in str(caught.value) and "DenseIndex.open(…, model=…)" in str(caught.value)
    with pytest.raises(ConfigError, match="vectors of 32 numbers, the index has 16"):
        DenseIndex.open(folder, passages, model=other_model(tmp_path / "b", size=32))


def test_weights_that_changed_in_place_are_noticed(tmp_path, passages):
    place = saved(tmp_path / "model")
    DenseIndex.build(tmp_path / "dense", passages, model=place)
    other_model(tmp_path / "model")
    with pytest.raises(ConfigError, match="other vectors"):
        DenseIndex.open(tmp_path / "dense", passages)


def test_a_model_that_is_gone_can_be_named_where_it_is_now(tmp_path, passages):
    place = saved(tmp_path / "model")
    DenseIndex.build(tmp_path / "dense", passages, model=place)
    (tmp_path / "model").rename(tmp_path / "moved")
    with pytest.raises(ConfigError, match=r"cannot open the model .*[\s\S]*say where: DenseIndex.open\(…, model=…\)"):
        DenseIndex.open(tmp_path / "dense", passages)
    assert DenseIndex.open(tmp_path / "dense", passages, model=str(tmp_path / "moved")).search("w1", 1)


def test_an_index_keeps_its_pooling_and_prefixes(tmp_path, model, passages):
    how: dict[str, Any] = {"pooling": "cls", "limit": 9, "query_prefix": "w9 ", "passage_prefix": "w8 "}
    DenseIndex.build(tmp_path / "dense", passages, model=model, **how)
    index = DenseIndex.open(tmp_path / "dense", passages)
    expected = Encoder.from_pretrained(model, **how)
    assert np.allclose(index.embedder.queries(["w1 w2"]), expected.encode(["w1 w2"], "query"), atol=1e-6)
    texts = [f"{passage.title}\n{passage.text}" for passage in corpus()]
    assert np.allclose(vectors_of(tmp_path / "dense"), expected.encode(texts, "passage"), atol=1e-6)


def test_passages_of_another_corpus_are_refused(tmp_path, folder):
    store(tmp_path, corpus(10))
    with pytest.raises(DataError, match=f"{COUNT} vectors for 10 passages"):
        DenseIndex.open(folder, Passages(tmp_path))


@pytest.mark.parametrize("damage", ["vectors", "hnsw.faiss", "manifest.json"])
def test_a_damaged_index_is_refused(tmp_path, folder, passages, damage):
    for file in folder.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    (tmp_path / damage).write_bytes((folder / damage).read_bytes()[:-7])
    with pytest.raises(DataError, match="anew"):
        DenseIndex.open(tmp_path, passages)


@pytest.mark.parametrize("missing", ["faiss", "torch"])
def test_a_missing_package_is_named(tmp_path, passages, missing):
    code = (
        f"import sys; sys.modules[{missing!r}] = None\n"
        "from pathlib import Path\n"
        "from faithful_search.errors import ConfigError\n"
        "from faithful_search.tools.retrieval.dense import DenseIndex\n"
        "from faithful_search.tools.retrieval.passages import Passages\n"
        "try:\n"
        f"    DenseIndex.build(Path({str(tmp_path / 'x')!r}), Passages(Path({str(passages.folder)!r})), model='m')\n"
        "except ConfigError as error:\n"
        "    print(error)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=os.environ)
    assert done.stdout.strip() == f"dense search needs {missing}: pip install 'faithful-search[dense]'"


def test_threads_get_what_one_caller_gets(folder, passages):
    index = DenseIndex.open(folder, passages)
    expected = [index.search(query, 5) for query in QUERIES * 10]
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(lambda query: index.search(query, 5), QUERIES * 10)) == expected


def test_it_pickles(folder, passages):
    index = DenseIndex.open(folder, passages, exact=True, beam=33)
    data = pickle.dumps(index)
    copy = pickle.loads(data)
    assert len(data) < 5_000
    assert (copy.exact, copy.beam) == (True, 33)
    assert copy.search_batch(QUERIES, 4) == index.search_batch(QUERIES, 4)


FORKED = """
import os, sys, time
from pathlib import Path
import torch, faiss
torch.set_num_threads(2); faiss.omp_set_num_threads(2)
from faithful_search.tools.retrieval.dense import DenseIndex
from faithful_search.tools.retrieval.passages import Passages
index = DenseIndex.open(Path(sys.argv[1]), Passages(Path(sys.argv[2])), exact=True)
queries = [f"w{n} w{n + 1}" for n in range(150)]
expected = index.search_batch(queries, 5)
child = os.fork()
if child == 0:
    os._exit(0 if index.search_batch(queries, 5) == expected else 3)
deadline = time.monotonic() + 60
while time.monotonic() < deadline:
    done, status = os.waitpid(child, os.WNOHANG)
    if done:
        sys.exit(os.waitstatus_to_exitcode(status))
    time.sleep(0.02)
os.kill(child, 9)
sys.exit(4)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_forked_child_searches(folder, passages):
    done = subprocess.run([sys.executable, "-c", FORKED, folder, passages.folder], env=os.environ, capture_output=True)
    assert done.returncode == 0, done.stderr.decode()[-2000:]


def test_a_broken_file_beside_a_model_is_named(tmp_path):
    model = saved(tmp_path)
    (tmp_path / "modules.json").write_text("[{")
    with pytest.raises(ConfigError, match=r"cannot open the model .*modules\.json"):
        Embedder(model)


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        ("intfloat/e5-base-v2", ("query: ", "passage: ")),
        ("intfloat/e5-large", ("query: ", "passage: ")),
        ("intfloat/e5-small-unsupervised", ("query: ", "passage: ")),
        ("intfloat/multilingual-e5-small", ("query: ", "passage: ")),
        ("/models/E5-Base-v2/", ("query: ", "passage: ")),
        ("BAAI/bge-base-en-v1.5", ("Represent this sentence for searching relevant passages: ", "")),
        ("BAAI/bge-m3", ("", "")),
        ("sentence-transformers/all-mpnet-base-v2", ("", "")),
        ("someone/not-e5-base-v2-at-all", ("", "")),
    ],
)
def test_prefixes_are_known_by_name(model, expected):
    assert known_prefixes(model) == expected


def test_instructed_e5_gets_a_task():
    query, passage = known_prefixes("intfloat/multilingual-e5-large-instruct")
    assert query.startswith("Instruct: ") and query.endswith("\nQuery: ") and passage == ""


def test_prefixes_by_name_yield_to_those_of_files_and_arguments(tmp_path):
    plain = Encoder.from_pretrained(saved(tmp_path / "e5-base-v2"))
    assert (plain.query_prefix, plain.passage_prefix) == ("query: ", "passage: ")
    prompts = {"prompts": {"query": "ask: "}}
    said = Encoder.from_pretrained(saved(tmp_path / "x" / "e5-base-v2", config_sentence_transformers=prompts))
    assert (said.query_prefix, said.passage_prefix) == ("ask: ", "")
    given = Encoder.from_pretrained(str(tmp_path / "e5-base-v2"), query_prefix="")
    assert (given.query_prefix, given.passage_prefix) == ("", "passage: ")
