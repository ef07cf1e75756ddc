"""The folder of an index: built in one go or killed anywhere, it is the same; never is half of one taken for it."""

import json
import math
import os
import pickle
import random
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction
from functools import partial
from itertools import count
from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import given, settings, strategies as st

from faithful_search.cli import cli
from faithful_search.errors import ConfigError, DataError
from faithful_search.tools.retrieval.index import HybridIndex, Index
from faithful_search.tools.retrieval.index_folder import build_folder, open_folder, open_index, read_manifest
from faithful_search.tools.words import words
from faithful_search.trajectory import Evidence


def rows(number: int, seed: int = 0) -> list[dict[str, str]]:
    """Rows of some words each, common and rare ones."""
    source = random.Random(seed)
    vocabulary = [f"word{n}" for n in range(500)]
    weights = [1 / (n + 1) for n in range(500)]
    return [
        {"id": f"p{n}", "title": f"Title {n}", "text": " ".join(source.choices(vocabulary, weights, k=12))}
        for n in range(number)
    ]


def write(path: Path, found: Sequence[object]) -> Path:
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in found))
    return path


def tree(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def invoke(*arguments: object) -> tuple[int, str, str]:
    done = CliRunner().invoke(cli, ["index", *map(str, arguments)])
    return done.exit_code, done.stdout, done.stderr


@pytest.fixture
def corpus(tmp_path) -> Path:
    return write(tmp_path / "corpus.jsonl", rows(120))


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
        assert built(target) and tree(target) == expected, f"another index after {point}"
    assert point > 5


# another corpus, other settings, other builders


def killed_build(corpus: Path, out: Path, **settings: object) -> None:
    """Leave an unfinished build of `out`."""

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr("faithful_search.tools.retrieval.index.progress", stop)
        build_folder(corpus, out, **settings)
    assert list(out.parent.glob(f"{out.name}.*.building"))


def test_a_changed_corpus_or_other_settings_are_refused(index, corpus):
    something_else = r"made of something else \({}\): name another folder, or --overwrite"
    with pytest.raises(ConfigError, match=something_else.format("limit None")):
        build_folder(corpus, index, limit=3)
    write(corpus, rows(5))
    with pytest.raises(ConfigError, match=something_else.format("its corpus")):
        build_folder(corpus, index)
    assert len(open_folder(index)) == 120
    build_folder(corpus, index, overwrite=True)
    assert len(open_folder(index)) == 5


def test_the_old_index_stays_until_the_new_one_is_there_and_unfinished_builds_of_others_go_then(index, corpus):
    before = tree(index)
    for limit in (7, 8):
        killed_build(corpus, index, limit=limit, overwrite=True)
    assert tree(index) == before
    assert build_folder(corpus, index) == read_manifest(index)
    build_folder(corpus, index, limit=7, overwrite=True)
    assert len(open_folder(index)) == 7
    assert [path.name for path in sorted(index.parent.iterdir())] == ["corpus.jsonl", "index"]


def test_a_finished_index_is_left_as_it_is(index, corpus):
    before = {path: path.stat().st_mtime_ns for path in index.rglob("*")}
    moved = corpus.rename(corpus.with_name("elsewhere.jsonl"))
    assert build_folder(moved, index) == read_manifest(index)
    assert {path: path.stat().st_mtime_ns for path in index.rglob("*")} == before


def test_what_is_no_index_is_not_touched(corpus, tmp_path):
    for name in ("mine", "new.old", "new.building"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "thesis.txt").write_text("precious")
    for target in (tmp_path / "mine", corpus):
        with pytest.raises(ConfigError, match="is there already and is no index"):
            build_folder(corpus, target, overwrite=True)
    with pytest.raises(DataError, match=r"cannot write .*corpus\.jsonl/out"):
        build_folder(corpus, corpus / "out")
    (tmp_path / "empty").mkdir()
    assert build_folder(corpus, tmp_path / "empty").passages == 120
    for limit in (2, 3):
        build_folder(corpus, tmp_path / "new", limit=limit, overwrite=True)
    assert [path.parent.name for path in sorted(tmp_path.glob("*/thesis.txt"))] == ["mine", "new.building", "new.old"]


def test_a_full_disk_is_an_error_and_harms_nothing(index, tmp_path):
    before = tree(index)
    # of words of one character a passage takes less than its scores, so that some limits stop the one and not the other
    text = "".join(map(chr, range(0x4E00, 0x4E00 + 400)))
    corpus = write(tmp_path / "other.jsonl", [{"id": str(n), "text": text} for n in range(10)])
    code = """
        import resource, sys
        from faithful_search.errors import DataError
        from faithful_search.tools.retrieval.index_folder import build_folder

        for most in (100, 2000, 13500, 16100):
            resource.setrlimit(resource.RLIMIT_FSIZE, (most, -1))
            try:
                build_folder(sys.argv[1], sys.argv[2], overwrite=True)
            except DataError as error:
                print(error)
        resource.setrlimit(resource.RLIMIT_FSIZE, (-1, -1))
        print(build_folder(sys.argv[1], sys.argv[2], overwrite=True).passages)
    """
    command = [sys.executable, "-c", textwrap.dedent(code), str(corpus), str(index)]
    *failures, last = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    assert len(failures) == 4 and all("File too large" in line and str(index) in line for line in failures)
    assert last == "10" and tree(index) != before


def test_two_builders_of_one_index(corpus, tmp_path, monkeypatch):
    entered, leave = threading.Event(), threading.Event()

    def wait(*_: object) -> None:
        entered.set()
        leave.wait(60)
        raise KeyboardInterrupt

    def build() -> None:
        with pytest.raises(KeyboardInterrupt):
            build_folder(corpus, tmp_path / "out")

    monkeypatch.setattr("faithful_search.tools.retrieval.index.progress", wait)
    first = threading.Thread(target=build)
    first.start()
    assert entered.wait(60)
    with pytest.raises(ConfigError, match="another process is building in"):
        build_folder(corpus, tmp_path / "out")
    leave.set()
    first.join()
    monkeypatch.undo()
    assert build_folder(corpus, tmp_path / "out").passages == 120


# damage


def flipped(path):
    data = bytearray(path.read_bytes())
    data[-3] ^= 0x80
    path.write_bytes(data)


@pytest.mark.parametrize("name", ["passages.jsonl", "passages.offsets", "bm25/data.npy"])
def test_a_byte_that_changed_is_one_line(index, corpus, name, monkeypatch):
    flipped(index / name)
    with pytest.raises(DataError, match=rf"the index .* is damaged \({name} not as written\): build it again"):
        open_folder(index)
    monkeypatch.setattr("faithful_search.tools.retrieval.index_folder._QUICK", 0)
    with pytest.raises(DataError, match=f"{name} not as written"):
        build_folder(corpus, index)
    if name == "passages.jsonl":  # of a large index, whose sums are not compared when it is opened
        with pytest.raises(DataError, match=r"the index .* is damaged \(passage 119: .*\): build it again"):
            open_folder(index).passages.get(119)


@pytest.mark.parametrize("name", ["manifest.json", "bm25/data.npy", "bm25/vocabulary.txt", "passages.offsets"])
def test_a_damaged_index_is_not_opened(index, name):
    data = (index / name).read_bytes()
    for damage in (data[:-2], b"", data + b"x"):
        (index / name).write_bytes(damage)
        with pytest.raises(DataError, match=r"build (it|the index) again"):
            open_folder(index)
    (index / name).unlink()
    with pytest.raises(DataError, match=r"is damaged|is no index \(No such file or directory\): make one with"):
        open_folder(index)


def test_an_index_of_another_version_is_not_opened(index):
    manifest = (index / "manifest.json").read_text()
    (index / "manifest.json").write_text(manifest.replace('"version": 3', '"version": 2'))
    with pytest.raises(DataError, match=r"was not written by this version .*: build the index again"):
        open_folder(index)
    with pytest.raises(ConfigError, match="build the index again, with --overwrite"):
        build_folder(rows(3), index)
    assert build_folder(rows(3), index, overwrite=True).passages == 3


# BM25


def scored(texts: list[list[str]], query: list[str]) -> list[tuple[float, int]]:
    """Lucene's BM25 by its formula: score and place of what has a word of the query, best first, then by place."""
    mean = sum(map(len, texts)) / len(texts)
    found = {}
    for word in query:
        having = [place for place, text in enumerate(texts) if word in text]
        idf = math.log(1 + (len(texts) - len(having) + 0.5) / (len(having) + 0.5))
        for place in having:
            count, norm = texts[place].count(word), 1.5 * (1 - 0.75 + 0.75 * len(texts[place]) / mean)
            found[place] = found.get(place, 0) + idf * count / (count + norm)
    return sorted(((score, place) for place, score in found.items()), key=lambda pair: (-pair[0], pair[1]))


@settings(deadline=None, max_examples=40)
@given(st.lists(st.one_of(st.integers(0, 20), st.integers(0, 510)), max_size=15), st.sampled_from([1, 3, 10, 5000]))
def test_what_is_found_is_the_best_by_the_formula(numbers, top_k):
    query, found = " ".join(f"word{n}" for n in numbers), rows(300, seed=3)
    index = open_index(found)
    got = index.search(query, top_k)
    expected = scored([words(f"{row['title']} {row['text']}") for row in found], words(query))
    scores = dict((f"p{place}", score) for score, place in expected)
    assert [item.score for item in got] == pytest.approx([score for score, _ in expected[:top_k]], abs=1e-4)
    assert [item.score for item in got] == pytest.approx([scores[item.source] for item in got], abs=1e-4)


def test_many_threads_search_as_one(index):
    found = open_folder(index)
    queries = [f"word{n % 7} word{n} word{3 * n}" for n in range(150)]
    expected = found.search_batch(queries, 3)
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(lambda query: found.search(query, 3), queries * 4)) == expected * 4


# several as one


class Ranking(Index):
    """Finds the same passages for every query, in this order."""

    def __init__(self, *sources: str) -> None:
        self.sources, self.asked = sources, []

    def search_batch(self, queries: Sequence[str], top_k: int) -> list[list[Evidence]]:
        self.asked.append(top_k)
        return [[Evidence(text=f"text {s}", source=s, score=9.0) for s in self.sources[:top_k]] for _ in queries]

    def __len__(self) -> int:
        return len(self.sources)


def order(index: Index, top_k: int = 10) -> list[str]:
    return [found.source for found in index.search("?", top_k)]


def test_scores_are_the_sums_worked_by_hand():
    found = HybridIndex((Ranking("a", "b", "c", "a"), Ranking("c", "d", "a"))).search("?", 10)
    both, second = float(Fraction(1, 61) + Fraction(1, 63)), float(Fraction(1, 62))
    assert [(e.source, e.score) for e in found] == [
        *((name, round(both, 6)) for name in "ac"),  # ties go to the first part's
        *((name, round(second, 6)) for name in "bd"),
    ]


def test_each_query_is_fused_by_itself_and_paragraphs_of_one_source_stay_apart():
    class ByQuery(Ranking):
        def search_batch(self, queries, top_k):
            return [[Evidence(text=f"{q}{n}", source=q) for n in range(2)] for q in queries]

    hybrid = HybridIndex((ByQuery(), ByQuery()))
    assert [[e.text for e in row] for row in hybrid.search_batch(["x", "y"], 9)] == [["x0", "x1"], ["y0", "y1"]]
    assert hybrid.search_batch([], 3) == []


def test_parts_are_asked_deeper_than_the_answer():
    parts = Ranking(*"abc"), Ranking(*"cba")
    for top_k in (3, 70):
        HybridIndex(parts).search("?", top_k)
    assert parts[0].asked == parts[1].asked == [50, 70]


@given(st.lists(st.lists(st.sampled_from("abcdefg"), unique=True), min_size=1, max_size=4))
def test_the_order_is_that_of_exact_sums(rankings):
    exact: dict[str, Fraction] = {}
    for ranking in rankings:
        for rank, name in enumerate(ranking, start=1):
            exact[name] = exact.get(name, Fraction(0)) + Fraction(1, 60 + rank)
    assert order(HybridIndex(tuple(Ranking(*r) for r in rankings))) == sorted(exact, key=lambda n: -exact[n])


def test_it_is_a_value_with_parts():
    hybrid = HybridIndex([Ranking("a", "b")])
    assert (len(hybrid), hybrid.inline) == (2, False)
    assert order(pickle.loads(pickle.dumps(hybrid))) == ["a", "b"]


# the command


def test_a_hybrid_index_by_the_command(tmp_path, monkeypatch):
    pytest.importorskip("faiss")
    from tiny_bert import saved

    (tmp_path / "model").mkdir()
    model, out = saved(tmp_path / "model"), tmp_path / "out"
    options = ("--kind", "hybrid", "--model", model, "--half", "--limit", 30, "--batch-size", 8)
    code, said, told = invoke("world", out, *options)
    assert code == 0 and said.startswith("30 passages of world"), told
    index = open_folder(out)
    assert isinstance(index, HybridIndex) and len(index) == 30
    title = index.search("anything", 1)[0].title
    assert title in [item.title for item in index.search(title, 3)]
    settings = {"model": model, "revision": None, "hnsw": False, "precision": "float16"}
    assert read_manifest(out).plan.dense == settings
    code, _, said = invoke("world", out, "--kind", "bm25", "--limit", 30)
    assert code == 1 and "made of something else (kind hybrid, dense" in said
    moved = (tmp_path / "model").rename(tmp_path / "elsewhere")
    with pytest.raises(ConfigError, match=r"say where: open_folder\(…, model=…\)"):
        open_folder(out)
    # a change that the checks of sizes and sums would not see
    monkeypatch.setattr("faithful_search.tools.retrieval.index_folder._check_files", lambda *_, **__: None)
    (out / "dense" / "vectors").write_bytes(b"short")
    with pytest.raises(DataError, match=r"the index .* is damaged .*build it again"):
        open_folder(out, model=str(moved))


def test_the_command_says_what_it_made_and_left_out(tmp_path):
    corpus = write(tmp_path / "c.jsonl", [{"text": "One sentence. Another one."}, *[{"body": "?"}] * 7])
    code, said, told = invoke(corpus, tmp_path / "out", "--paragraph-characters", 15)
    assert code == 0 and said.startswith(f"2 passages of {corpus} in {tmp_path / 'out'}: bm25, 0.0 MB, ")
    assert told.count("left out: ") == 6
    assert f"{corpus}, line 2: no column 'text'" in told and "rows left out: 7; all of them are in" in told
    skipped = [json.loads(line) for line in (tmp_path / "out" / "skipped.jsonl").read_text().splitlines()]
    assert [row["where"] for row in skipped] == [f"{corpus}, line {number}" for number in range(2, 9)]
    assert (read_manifest(tmp_path / "out").passages, read_manifest(tmp_path / "out").skipped) == (2, 7)


def test_wrong_usage(tmp_path):
    for arguments, told in (
        (("--kind", "dense"), "--kind dense needs --model"),
        (("--hnsw",), "are for --kind dense or hybrid"),
        (("--paragraph-characters", "0"), "not in the range"),
    ):
        code, _, said = invoke("world", tmp_path / "out", *arguments)
        assert code == 2 and told in said
    code, _, said = invoke(tmp_path / "none.jsonl", tmp_path / "out")
    assert code == 1 and said.startswith("error: cannot read")
    for wrong, told in (
        ({"kind": "hybrid"}, "'hybrid' needs a model"),
        ({"dense": {"model": "m"}}, "'bm25' has no model"),
    ):
        with pytest.raises(ConfigError, match=told):
            build_folder("world", tmp_path / "out", **wrong)
    assert list(tmp_path.iterdir()) == []
