"""Indexes of passages: built in one go or killed anywhere, they are the same; what they find is the
best by formula.
"""

import json
import math
import os
import pickle
import random
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction
from functools import cache, partial
from itertools import count
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import msgspec
import numpy as np
import pytest
import tiny_bert
import torch
from agent_rows import file_of
from hypothesis import given, settings, strategies as st
from imports import import_again
from served import invoked

from faithful_search.errors import ConfigError, DataError
from faithful_search.inference.encoder import Encoder, known_prefixes
from faithful_search.tools.retrieval.dense import DenseIndex, Embedder, load_faiss
from faithful_search.tools.retrieval.index import HybridIndex, Index, Passages, store
from faithful_search.tools.retrieval.index_folder import (
    build_folder,
    open_folder,
    open_index,
    read_manifest,
)
from faithful_search.tools.words import words
from faithful_search.trajectory import Evidence

QUERIES = [f"w{n} w{n + 1}" for n in range(40)]


def rows(number: int, seed: int = 0) -> list[dict[str, str]]:
    """Rows of some words each, common and rare ones."""
    source = random.Random(seed)
    vocabulary = [f"word{n}" for n in range(500)]
    weights = [1 / (n + 1) for n in range(500)]
    return [
        {
            "id": f"p{n}",
            "title": f"Title {n}",
            "text": " ".join(source.choices(vocabulary, weights, k=12)),
        }
        for n in range(number)
    ]


def tree(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


@pytest.fixture
def corpus(tmp_path) -> Path:
    return file_of(tmp_path / "corpus.jsonl", rows(120))


@pytest.fixture
def index(corpus, tmp_path) -> Path:
    build_folder(corpus, tmp_path / "index")
    return tmp_path / "index"


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_killed_before_any_step_it_goes_on_to_the_same_index(index, corpus, tmp_path, monkeypatch):
    monkeypatch.setattr("faithful_search.tools.retrieval.index.BATCH", 50)

    def built(target: Path, point: int = 0) -> bool:
        """In a child, which dies instead of taking this step."""
        child = os.fork()
        if child == 0:
            steps = count(1)
            for name in ("replace", "rename", "unlink", "rmdir", "mkdir"):
                setattr(os, name, partial(step, getattr(os, name), steps, point))
            build_folder(corpus, target)
            os._exit(0)
        return os.waitpid(child, 0)[1] == 0

    def step(real, steps, point, *arguments, **named):
        if next(steps) == point:
            os.kill(os.getpid(), signal.SIGKILL)
        return real(*arguments, **named)

    expected = tree(index)
    for point in count(1):
        target = tmp_path / f"killed-{point}"
        if built(target, point):
            break
        assert not target.exists() or tree(target) == expected, f"half an index after {point}"
        assert built(target), f"another index after {point}"
        assert tree(target) == expected, f"another index after {point}"
    assert point > 5


# another corpus, other settings, other builders


def test_another_corpus_does_not_replace_an_index(index, corpus):
    before = {path: path.stat().st_mtime_ns for path in index.rglob("*")}
    moved = corpus.rename(corpus.with_name("elsewhere.jsonl"))
    assert build_folder(moved, index) == read_manifest(index)
    something_else = r"made of something else \({}\): name another folder, or --overwrite"
    with pytest.raises(ConfigError, match=something_else.format("limit None")):
        build_folder(moved, index, limit=3)
    file_of(corpus, rows(5))
    with pytest.raises(ConfigError, match=something_else.format("its corpus")):
        build_folder(corpus, index)
    assert {path: path.stat().st_mtime_ns for path in index.rglob("*")} == before
    build_folder(corpus, index, overwrite=True)
    assert len(open_folder(index)) == 5


def test_the_old_index_stays_until_the_new_one_is_there(index, corpus):
    before = tree(index)
    for limit in (7, 8):
        with pytest.MonkeyPatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(
                "faithful_search.tools.retrieval.index.progress",
                Mock(side_effect=KeyboardInterrupt),
            )
            build_folder(corpus, index, limit=limit, overwrite=True)
        assert list(index.parent.glob(f"{index.name}.*.building"))
    assert tree(index) == before
    assert build_folder(corpus, index) == read_manifest(index)
    build_folder(corpus, index, limit=7, overwrite=True)
    assert len(open_folder(index)) == 7
    assert [path.name for path in sorted(index.parent.iterdir())] == ["corpus.jsonl", "index"]


def test_what_is_no_index_is_not_touched(corpus, tmp_path):
    for name in ("mine", "new.old", "new.building"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "thesis.txt").write_text("precious")
    for target in (tmp_path / "mine", corpus):
        with pytest.raises(ConfigError, match="exists and is not an index"):
            build_folder(corpus, target, overwrite=True)
    with pytest.raises(DataError, match=r"cannot write .*corpus\.jsonl/out"):
        build_folder(corpus, corpus / "out")
    (tmp_path / "empty").mkdir()
    assert build_folder(corpus, tmp_path / "empty").passages == 120
    for limit in (2, 3):
        build_folder(corpus, tmp_path / "new", limit=limit, overwrite=True)
    assert [path.parent.name for path in sorted(tmp_path.glob("*/thesis.txt"))] == [
        "mine",
        "new.building",
        "new.old",
    ]


def test_a_full_disk_is_an_error_and_harms_nothing(index, tmp_path):
    resource = pytest.importorskip("resource")
    before, limits = tree(index), resource.getrlimit(resource.RLIMIT_FSIZE)
    # of words of one character a passage takes less than its scores, so that some limits stop the
    # one and not the other
    text = "".join(map(chr, range(0x4E00, 0x4E00 + 400)))
    corpus = file_of(tmp_path / "other.jsonl", [{"id": str(n), "text": text} for n in range(10)])
    for most in (100, 2000, 13500, 16100):
        resource.setrlimit(resource.RLIMIT_FSIZE, (most, limits[1]))
        try:
            with pytest.raises(DataError, match="File too large") as told:
                build_folder(corpus, index, overwrite=True)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        assert str(index) in str(told.value)
        assert tree(index) == before
    assert build_folder(corpus, index, overwrite=True).passages == 10


def test_two_builders_of_one_index(corpus, tmp_path, monkeypatch):
    def another(*_: object) -> None:
        with pytest.raises(ConfigError, match="another process is building in"):
            build_folder(corpus, tmp_path / "out")
        raise KeyboardInterrupt

    monkeypatch.setattr("faithful_search.tools.retrieval.index.progress", another)
    with pytest.raises(KeyboardInterrupt):
        build_folder(corpus, tmp_path / "out")
    monkeypatch.undo()
    assert build_folder(corpus, tmp_path / "out").passages == 120


# damage


@pytest.mark.parametrize("name", ["passages.jsonl", "passages.offsets", "bm25/data.npy"])
def test_a_byte_that_changed_is_one_line(index, corpus, name, monkeypatch):
    data = bytearray((index / name).read_bytes())
    data[-3] ^= 0x80
    (index / name).write_bytes(data)
    with pytest.raises(
        DataError, match=rf"the index .* is damaged \({name} not as written\): build it again"
    ):
        open_folder(index)
    monkeypatch.setattr("faithful_search.tools.retrieval.index_folder._ALWAYS_CHECKED_BYTES", 0)
    with pytest.raises(DataError, match=f"{name} not as written"):
        build_folder(corpus, index)
    if name == "passages.jsonl":  # of a large index, whose sums are not compared when it is opened
        with pytest.raises(
            DataError, match=r"the index .* is damaged \(passage 119: .*\): build it again"
        ):
            open_folder(index).passages.get(119)


@pytest.mark.parametrize(
    "name", ["manifest.json", "bm25/data.npy", "bm25/vocabulary.txt", "passages.offsets"]
)
def test_a_damaged_index_is_not_opened(index, name):
    data = (index / name).read_bytes()
    for damage in (data[:-2], b"", data + b"x"):
        (index / name).write_bytes(damage)
        with pytest.raises(DataError, match=r"build (it|the index) again"):
            open_folder(index)
    (index / name).unlink()
    with pytest.raises(
        DataError, match=r"is damaged|is no index \(No such file or directory\): make one with"
    ):
        open_folder(index)


def test_an_index_of_another_version_is_not_opened(index):
    manifest = (index / "manifest.json").read_text()
    (index / "manifest.json").write_text(manifest.replace('"version": 3', '"version": 2'))
    with pytest.raises(
        DataError, match=r"was not written by this version .*: build the index again"
    ):
        open_folder(index)
    with pytest.raises(ConfigError, match="build the index again, with --overwrite"):
        build_folder(rows(3), index)
    assert build_folder(rows(3), index, overwrite=True).passages == 3


# BM25


def scored(texts: list[list[str]], query: list[str]) -> list[tuple[float, int]]:
    """Lucene's BM25 by its formula: score and place of what has a word of the query, best first,
    then by place.
    """
    mean = sum(map(len, texts)) / len(texts)
    found = {}
    for word in query:
        having = [place for place, text in enumerate(texts) if word in text]
        idf = math.log(1 + (len(texts) - len(having) + 0.5) / (len(having) + 0.5))
        for place in having:
            count, norm = (
                texts[place].count(word),
                1.5 * (1 - 0.75 + 0.75 * len(texts[place]) / mean),
            )
            found[place] = found.get(place, 0) + idf * count / (count + norm)
    return sorted(
        ((score, place) for place, score in found.items()), key=lambda pair: (-pair[0], pair[1])
    )


@cache
def found_in() -> tuple[Index, list[list[str]]]:
    """An index, and the words of its passages."""
    some = rows(300, seed=3)
    return open_index(some), [words(f"{row['title']} {row['text']}") for row in some]


@settings(max_examples=40)
@given(
    st.lists(st.one_of(st.integers(0, 20), st.integers(0, 510)), max_size=15),
    st.sampled_from([1, 3, 10, 5000]),
)
def test_what_is_found_is_the_best_by_the_formula(numbers, top_k):
    query, (index, texts) = " ".join(f"word{n}" for n in numbers), found_in()
    got, expected = index.search(query, top_k), scored(texts, words(query))
    scores = dict((f"p{place}", score) for score, place in expected)
    assert [item.score for item in got] == pytest.approx(
        [score for score, _ in expected[:top_k]], abs=1e-4
    )
    assert [item.score for item in got] == pytest.approx(
        [scores[item.source] for item in got], abs=1e-4
    )


# several as one


class Ranking(Index):
    """Finds the same passages for every query, in this order."""

    def __init__(self, *sources: str) -> None:
        self.sources, self.asked = sources, []

    def search_batch(self, queries: Sequence[str], top_k: int) -> list[list[Evidence]]:
        self.asked.append(top_k)
        return [
            [Evidence(text=f"text {s}", source=s, score=9.0) for s in self.sources[:top_k]]
            for _ in queries
        ]

    def __len__(self) -> int:
        return len(self.sources)


def test_scores_are_the_sums_worked_by_hand():
    hybrid = HybridIndex((Ranking("a", "b", "c", "a"), Ranking("c", "d", "a")))
    both, second = float(Fraction(1, 61) + Fraction(1, 63)), float(Fraction(1, 62))
    for index in (hybrid, pickle.loads(pickle.dumps(hybrid))):
        assert [(e.source, e.score) for e in index.search("?", 10)] == [
            *((name, round(both, 6)) for name in "ac"),  # ties go to the first part's
            *((name, round(second, 6)) for name in "bd"),
        ]
    hybrid.search("?", 70)
    assert hybrid.parts[0].asked == [50, 70]  # parts are asked deeper than the answer
    assert (len(hybrid), hybrid.inline) == (4, False)


def test_each_query_is_fused_by_itself():
    class ByQuery(Ranking):
        def search_batch(self, queries, top_k):
            return [[Evidence(text=f"{q}{n}", source=q) for n in range(2)] for q in queries]

    hybrid = HybridIndex((ByQuery(), ByQuery()))
    assert [[e.text for e in row] for row in hybrid.search_batch(["x", "y"], 9)] == [
        ["x0", "x1"],
        ["y0", "y1"],
    ]
    assert hybrid.search_batch([], 3) == []


@given(st.lists(st.lists(st.sampled_from("abcdefg"), unique=True), min_size=1, max_size=4))
def test_the_order_is_that_of_exact_sums(rankings):
    exact: dict[str, Fraction] = {}
    for ranking in rankings:
        for rank, name in enumerate(ranking, start=1):
            exact[name] = exact.get(name, Fraction(0)) + Fraction(1, 60 + rank)
    found = HybridIndex(tuple(Ranking(*ranking) for ranking in rankings)).search("?", 10)
    assert [item.source for item in found] == sorted(exact, key=lambda name: -exact[name])


# dense: a small random encoder against numpy


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> str:
    return tiny_bert.saved(tmp_path_factory.mktemp("encoder"))


@pytest.fixture(scope="module")
def passages(tmp_path_factory) -> Passages:
    folder = tmp_path_factory.mktemp("passages")
    store(folder, tiny_bert.corpus())
    return Passages(folder)


@pytest.fixture(scope="module")
def folder(tmp_path_factory, model, passages) -> Path:
    folder = tmp_path_factory.mktemp("index") / "dense"
    DenseIndex.build(folder, passages, model=model, hnsw=True, batch_size=8)
    return folder


def vectors_of(folder: Path, precision: str = "float32") -> np.ndarray:
    return np.fromfile(folder / "vectors", dtype=precision).reshape(-1, 16)


def test_exact_search_equals_numpy(tmp_path, model, folder, passages):
    index, rows = DenseIndex(folder, passages, exact=True), tiny_bert.corpus()
    cosines = (
        Encoder.from_pretrained(model).encode(tiny_bert.QUERIES, "query") @ vectors_of(folder).T
    )
    for top_k in (5, tiny_bert.COUNT + 10):
        for row, hits in zip(cosines, index.search_batch(tiny_bert.QUERIES, top_k), strict=True):
            numbers = [int(hit.source[1:]) for hit in hits]
            assert len(set(numbers)) == len(hits) == min(top_k, tiny_bert.COUNT)
            assert np.allclose([hit.score for hit in hits], np.sort(row)[::-1][:top_k], atol=1e-4)
            assert np.allclose([hit.score for hit in hits], row[numbers], atol=1e-4)
            assert [msgspec.structs.replace(hit, score=None) for hit in hits] == [
                rows[number] for number in numbers
            ]
    assert index.search_batch([], 3) == []
    assert (len(index), index.inline) == (
        tiny_bert.COUNT,
        False,
    )
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
        return float(
            np.mean(
                [
                    len(set(a) & set(b)) / 10
                    for a, b in zip(found.tolist(), truth.tolist(), strict=True)
                ]
            )
        )

    assert recall(200) > 0.98
    assert recall(200) >= recall(10)


def test_half_precision_takes_half_the_place_and_pooling_is_kept(
    tmp_path, model, passages, folder, monkeypatch
):
    monkeypatch.setattr("faithful_search.tools.retrieval.dense._BLOCK", 64)  # several blocks
    DenseIndex.build(tmp_path / "half", passages, model=model, precision="float16")
    half, whole = DenseIndex(tmp_path / "half", passages), DenseIndex(folder, passages, exact=True)
    assert (tmp_path / "half" / "vectors").stat().st_size * 2 == (folder / "vectors").stat().st_size
    found, expected = (
        {hit.source: hit.score for hit in each.search("w1", tiny_bert.COUNT)}
        for each in (half, whole)
    )
    assert found == pytest.approx(expected, abs=0.002)
    assert [*found.values()] == sorted(found.values(), reverse=True)
    how: dict[str, Any] = {
        "pooling": "cls",
        "limit": 9,
        "query_prefix": "w9 ",
        "passage_prefix": "w8 ",
    }
    DenseIndex.build(tmp_path / "dense", passages, model=model, **how)
    queries = DenseIndex(tmp_path / "dense", passages).embedder.queries(["w1 w2"])
    texts = [f"{each.title}\n{each.text}" for each in tiny_bert.corpus()]
    encoder = Encoder.from_pretrained(model, **how)
    assert np.allclose(queries, encoder.encode(["w1 w2"], "query"), atol=1e-6)
    assert np.allclose(vectors_of(tmp_path / "dense"), encoder.encode(texts, "passage"), atol=1e-6)


@pytest.mark.parametrize("damage", ["vectors", "hnsw.faiss", "manifest.json"])
def test_a_damaged_or_foreign_index_is_refused(tmp_path, folder, passages, damage):
    shutil.copytree(folder, tmp_path / "dense")
    (tmp_path / "dense" / damage).write_bytes((folder / damage).read_bytes()[:-7])
    store(tmp_path, tiny_bert.corpus(10))
    for place, own in ((tmp_path / "dense", passages), (folder, Passages(tmp_path))):
        with pytest.raises(ValueError):
            DenseIndex(place, own)
    for size in (16, 32):
        with pytest.raises(ConfigError, match="gives other vectors than"):
            DenseIndex(folder, passages, model=tiny_bert.other_model(tmp_path / str(size), size))


def test_a_killed_build_goes_on_and_encodes_nothing_twice(
    tmp_path, model, passages, folder, monkeypatch
):
    torn, encoded, encode, most = tmp_path / "torn", [], Embedder.passages, [128]

    def counted(self, part):
        if sum(encoded) >= most[0]:
            raise KeyboardInterrupt
        encoded.append(len(part))
        return encode(self, part)

    monkeypatch.setattr(Embedder, "passages", counted)
    with pytest.raises(KeyboardInterrupt):
        DenseIndex.build(torn, passages, model=model, batch_size=4)
    with (torn / "vectors").open("ab") as file:
        file.write(b"torn")
    with pytest.raises(ValueError):
        DenseIndex(torn, passages)
    for how, says in (
        ({"model": tiny_bert.other_model(tmp_path / "other")}, "gives other vectors than"),
        ({"model": model, "precision": "float16"}, "were begun with other settings"),
    ):
        with pytest.raises(ConfigError, match=says):
            DenseIndex.build(torn, passages, **how)
    most[0] = tiny_bert.COUNT
    DenseIndex.build(torn, passages, model=model, batch_size=4)
    assert sum(encoded) == tiny_bert.COUNT
    assert np.allclose(vectors_of(torn), vectors_of(folder), atol=1e-6)


@pytest.mark.parametrize("missing", ["faiss", "torch"])
def test_a_missing_package_is_named(tmp_path, passages, missing, monkeypatch):
    import_again(monkeypatch, "faithful_search.inference.encoder")
    monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(ConfigError) as told:
        DenseIndex.build(tmp_path / "x", passages, model="m")
    assert str(told.value) == f"dense search needs {missing}: pip install 'faithful-search[dense]'"


@pytest.fixture
def on_two_threads(request):
    faiss = load_faiss()
    threads = torch.get_num_threads()
    for setting in (torch.set_num_threads, faiss.omp_set_num_threads):
        request.addfinalizer(partial(setting, threads))
        setting(2)


def test_threads_and_copies_search_alike(folder, passages, on_two_threads):
    index = DenseIndex(folder, passages, exact=True, beam=33)
    data = pickle.dumps(index)
    copy = pickle.loads(data)
    assert len(data) < 5_000
    assert (copy.exact, copy.beam) == (True, 33)
    expected = copy.search_batch(QUERIES, 5)
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(lambda query: index.search(query, 5), QUERIES)) == expected


# In a program of its own: the threads of other tests do not end in its fork
SEARCHED_IN_A_FORK = """
import os, pickle, sys, torch
from faithful_search.tools.retrieval.dense import load_faiss
torch.set_num_threads(2)
load_faiss().omp_set_num_threads(2)
index, queries = pickle.load(sys.stdin.buffer)
expected = index.search_batch(queries, 5)
child = os.fork()
if child == 0:
    os._exit(0 if index.search_batch(queries, 5) == expected else 3)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


def test_a_fork_searches_alike(folder, passages):
    """A child without the threads of its parent, for which it would wait for ever."""
    data = pickle.dumps((DenseIndex(folder, passages, exact=True), QUERIES))
    command = [sys.executable, "-c", SEARCHED_IN_A_FORK]
    searched = subprocess.run(command, input=data, stderr=subprocess.PIPE, timeout=300)
    assert searched.returncode == 0, searched.stderr.decode()


# the encoder's own files


def test_prefixes_of_files_and_arguments_win_over_names(
    tmp_path,
):
    plain = Encoder.from_pretrained(tiny_bert.saved(tmp_path / "e5-base-v2"))
    assert (plain.query_prefix, plain.passage_prefix) == ("query: ", "passage: ")
    prompts = {"prompts": {"query": "ask: "}}
    said = Encoder.from_pretrained(
        tiny_bert.saved(tmp_path / "x" / "e5-base-v2", config_sentence_transformers=prompts)
    )
    assert (said.query_prefix, said.passage_prefix) == ("ask: ", "")
    given = Encoder.from_pretrained(str(tmp_path / "e5-base-v2"), query_prefix="")
    assert (given.query_prefix, given.passage_prefix) == ("", "passage: ")
    for name, query, passage in (
        ("intfloat/e5-small-unsupervised", "query: ", "passage: "),
        ("intfloat/multilingual-e5-large-instruct", "Instruct: Given a web search query, ", ""),
        ("BAAI/bge-base-en-v1.5", "Represent this sentence for searching relevant passages: ", ""),
    ):
        assert known_prefixes(name)[0].startswith(query), name
        assert known_prefixes(name)[1] == passage, name
    assert (
        known_prefixes("BAAI/bge-m3") == known_prefixes("someone/not-e5-base-v2-at-all") == ("", "")
    )
    (tmp_path / "e5-base-v2" / "modules.json").write_text("[{")
    with pytest.raises(ConfigError, match=r"cannot open the model .*modules\.json"):
        Embedder(str(tmp_path / "e5-base-v2"))


# the command


def test_a_hybrid_index_by_the_command(tmp_path, monkeypatch):
    pytest.importorskip("faiss")
    model, out = tiny_bert.saved(tmp_path / "model"), tmp_path / "out"
    options = ("--kind", "hybrid", "--model", model, "--half", "--limit", 30, "--batch-size", 8)
    done = invoked("index", "world", out, *options)
    assert done.exit_code == 0, done.stderr
    assert done.stdout.startswith("30 passages of world"), done.stderr
    index = open_folder(out)
    assert isinstance(index, HybridIndex)
    assert len(index) == 30
    title = index.search("anything", 1)[0].title
    assert title in [item.title for item in index.search(title, 3)]
    dense = read_manifest(out).plan.dense
    assert dense == {"model": model, "revision": None, "hnsw": False, "precision": "float16"}
    done = invoked("index", "world", out, "--kind", "bm25", "--limit", 30)
    assert done.exit_code == 1
    assert "made of something else (kind hybrid, dense" in done.stderr
    moved = (tmp_path / "model").rename(tmp_path / "elsewhere")
    with pytest.raises(ConfigError, match=r"say where: open_folder\(…, model=…\)"):
        open_folder(out)
    # a change that the checks of sizes and sums would not see
    monkeypatch.setattr(
        "faithful_search.tools.retrieval.index_folder._check_files", lambda *_, **__: None
    )
    (out / "dense" / "vectors").write_bytes(b"short")
    with pytest.raises(DataError, match=r"the index .* is damaged .*build it again"):
        open_folder(out, model=str(moved))


def test_the_command_says_what_it_made_and_left_out(tmp_path):
    corpus = file_of(
        tmp_path / "c.jsonl", [{"text": "One sentence. Another one."}, *[{"body": "?"}] * 7]
    )
    done = invoked("index", corpus, tmp_path / "out", "--paragraph-characters", 15)
    assert done.exit_code == 0
    assert done.stdout.startswith(f"2 passages of {corpus} in {tmp_path / 'out'}: bm25, 0.0 MB, ")
    assert f"{corpus}, line 2: no column 'text'" in done.stderr
    assert done.stderr.count("left out: ") == 6
    assert "rows left out: 7; all of them are in" in done.stderr
    skipped = [
        json.loads(line) for line in (tmp_path / "out" / "skipped.jsonl").read_text().splitlines()
    ]
    assert [row["where"] for row in skipped] == [
        f"{corpus}, line {number}" for number in range(2, 9)
    ]
    assert (read_manifest(tmp_path / "out").passages, read_manifest(tmp_path / "out").skipped) == (
        2,
        7,
    )


@pytest.mark.parametrize(
    ("corpus", "options", "code", "told"),
    [
        ("world", ("--kind", "dense"), 2, "--kind dense needs --model"),
        ("world", ("--hnsw",), 2, "are for --kind dense or hybrid"),
        ("world", ("--paragraph-characters", "0"), 2, "not in the range"),
        ("none.jsonl", (), 1, "error: cannot read"),
    ],
)
def test_wrong_usage(tmp_path, corpus, options, code, told):
    done = invoked("index", corpus, tmp_path / "out", *options)
    assert done.exit_code == code
    assert told in done.stderr
    for wrong, why in (
        ({"kind": "hybrid"}, "'hybrid' needs a model"),
        ({"dense": {"model": "m"}}, "has no model"),
    ):
        with pytest.raises(ConfigError, match=why):
            build_folder("world", tmp_path / "out", **wrong)
    assert list(tmp_path.iterdir()) == []
