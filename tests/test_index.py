"""The folder of an index: built in one go or killed anywhere, it is the same; never is half of one taken for it."""

from __future__ import annotations

import asyncio
import json
import pickle
import random
import subprocess
import sys
import textwrap
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from faithful_search.cli import cli
from faithful_search.errors import ConfigError, DataError, ToolError
from faithful_search.tools import LocalSearch, Toolbox, local_search
from faithful_search.tools.retrieval import bm25
from faithful_search.tools.retrieval.bm25 import BM25Index
from faithful_search.tools.retrieval.corpus import BrokenRow
from faithful_search.tools.retrieval.hybrid import HybridIndex
from faithful_search.tools.retrieval.index import Index
from faithful_search.tools.retrieval.index_folder import Dense, build_folder, open_folder, read_manifest
from faithful_search.tools.retrieval.passages import Passages, store
from faithful_search.tools.retrieval.spool import Spool
from faithful_search.tools.words import words
from faithful_search.trajectory import Evidence, ToolCall

ROOT = Path(__file__).parent.parent
REAL = ROOT.parent / "shared" / "data" / "qa"


def rows(count: int, seed: int = 0) -> list[dict[str, str]]:
    """Rows of some words each, common and rare ones."""
    source = random.Random(seed)
    vocabulary = [f"word{n}" for n in range(500)]
    weights = [1 / (n + 1) for n in range(500)]
    return [
        {"id": f"p{n}", "title": f"Title {n}", "text": " ".join(source.choices(vocabulary, weights, k=12))}
        for n in range(count)
    ]


def write(path: Path, found: Sequence[object]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in found))
    return path


def tree(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def run_python(code: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", textwrap.dedent(code), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.fixture
def corpus(tmp_path) -> Path:
    return write(tmp_path / "corpus.jsonl", rows(120))


@pytest.fixture
def index(corpus, tmp_path) -> Path:
    build_folder(corpus, tmp_path / "index")
    return tmp_path / "index"


# killed and gone on

_KILLED_EVERYWHERE = """
    import os, signal, sys
    from pathlib import Path
    from faithful_search.tools.retrieval import bm25_build, index_folder, passages, spool

    corpus, out = sys.argv[1], Path(sys.argv[2])
    passages.BATCH, bm25_build._CHUNK, spool._SETTLE = 50, 300, 0.0

    def build(target, point=None):
        made = 0
        def counted(real):
            def call(*arguments, **named):
                nonlocal made
                made += 1
                if made == point:
                    os.kill(os.getpid(), signal.SIGKILL)
                return real(*arguments, **named)
            return call
        if point is not None:
            for name in ("fsync", "replace", "rename", "unlink", "rmdir", "mkdir"):
                setattr(os, name, counted(getattr(os, name)))
        index_folder.build_folder(corpus, target)

    def in_child(work):
        child = os.fork()
        if child == 0:
            work()
            os._exit(0)
        return os.waitpid(child, 0)[1]

    def tree(folder):
        return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}

    in_child(lambda: build(out / "whole"))
    expected, point = tree(out / "whole"), 1
    while True:
        target = out / f"killed-{point}"
        if in_child(lambda: build(target, point)) == 0:
            break
        assert not target.exists() or tree(target) == expected, f"half an index after {point}"
        assert in_child(lambda: build(target)) == 0, f"not gone on after {point}"
        assert tree(target) == expected, f"another index after {point}"
        point += 1
    print(point)
"""


def test_killed_before_any_step_it_goes_on_to_the_same_index(corpus, tmp_path):
    done = run_python(_KILLED_EVERYWHERE, corpus, tmp_path)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 30


def test_what_was_written_after_the_last_commit_is_cut_off(tmp_path):
    found = [Evidence(text=f"text {n}") for n in range(10)]
    with Spool(tmp_path, "passages", ("passages.jsonl", "passages.offsets")) as spool:
        assert spool.state == {}
    store(tmp_path, found[:4])
    for name in ("passages.jsonl", "passages.offsets"):
        with (tmp_path / name).open("ab") as file:
            file.write(b"half a li")
    assert store(tmp_path, found) == 10
    assert [Passages(tmp_path).get(n) for n in range(10)] == found


def test_a_spool_that_lost_data_says_so(tmp_path):
    with Spool(tmp_path, "log", ["lines"]) as spool:
        spool.append("lines", b"12345")
        spool.commit()
    (tmp_path / "lines").write_bytes(b"123")
    with pytest.raises(DataError, match="has 3 bytes where 5 were written"):
        Spool(tmp_path, "log", ["lines"])
    (tmp_path / "log.checkpoint").write_bytes(b"{")
    with pytest.raises(DataError, match=r"cannot go on from .*log\.checkpoint"):
        Spool(tmp_path, "log", ["lines"])


# another corpus, other settings, other builders


def killed_build(corpus: Path, out: Path, **settings: object) -> None:
    """Leave an unfinished build of `out`."""

    def stop(**_: object) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        build_folder(corpus, out, progress=stop, **settings)
    assert out.with_name(out.name + ".building").is_dir()


def test_a_changed_corpus_or_other_settings_are_refused(index, corpus, tmp_path):
    with pytest.raises(
        ConfigError, match=r"made of something else \(limit None\): name another folder, or --overwrite"
    ):
        build_folder(corpus, index, limit=3)
    write(corpus, rows(5))
    with pytest.raises(ConfigError, match=r"made of something else \(its corpus\)"):
        build_folder(corpus, index)
    assert len(open_folder(index)) == 120
    build_folder(corpus, index, overwrite=True)
    assert len(open_folder(index)) == 5


def test_an_unfinished_build_of_something_else_is_refused(corpus, tmp_path):
    out = tmp_path / "out"
    killed_build(corpus, out, paragraph_characters=20)
    with pytest.raises(ConfigError, match=r"out\.building is made of something else \(paragraph_characters 20\)"):
        build_folder(corpus, out)
    build_folder(corpus, out, overwrite=True)
    assert len(open_folder(out)) == 120 and not (tmp_path / "out.building").exists()


def test_the_old_index_stays_until_the_new_one_is_there(index, corpus):
    before = tree(index)
    killed_build(corpus, index, limit=7, overwrite=True)
    assert tree(index) == before
    build_folder(corpus, index, limit=7, overwrite=True)
    assert len(open_folder(index)) == 7
    assert [path.name for path in sorted(index.parent.iterdir())] == ["corpus.jsonl", "index"]


def test_a_finished_index_is_left_as_it_is(index, corpus):
    before = {path: path.stat().st_mtime_ns for path in index.rglob("*")}
    moved = corpus.rename(corpus.with_name("elsewhere.jsonl"))
    assert build_folder(moved, index) == read_manifest(index)
    assert {path: path.stat().st_mtime_ns for path in index.rglob("*")} == before


def test_what_is_no_index_is_not_touched(corpus, tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("precious")
    for target in (tmp_path / "mine", corpus):
        with pytest.raises(ConfigError, match="is there already and is no index"):
            build_folder(corpus, target, overwrite=True)
    assert (tmp_path / "mine" / "thesis.txt").read_text() == "precious"
    (tmp_path / "empty").mkdir()
    assert build_folder(corpus, tmp_path / "empty").passages == 120


def test_two_builders_of_one_index(corpus, tmp_path):
    entered, leave = threading.Event(), threading.Event()

    def wait(**_: object) -> None:
        entered.set()
        leave.wait(60)
        raise KeyboardInterrupt

    def build() -> None:
        with pytest.raises(KeyboardInterrupt):
            build_folder(corpus, tmp_path / "out", progress=wait)

    first = threading.Thread(target=build)
    first.start()
    assert entered.wait(60)
    with pytest.raises(ConfigError, match="another process is building in"):
        build_folder(corpus, tmp_path / "out")
    leave.set()
    first.join()
    assert build_folder(corpus, tmp_path / "out").passages == 120


def test_a_place_that_cannot_be_written_is_named(corpus, tmp_path):
    with pytest.raises(DataError, match=r"cannot write .*corpus\.jsonl/out"):
        build_folder(corpus, corpus / "out")


def test_a_full_disk_is_an_error_and_harms_nothing(index, corpus):
    before = tree(index)
    code = """
        import resource, sys
        from faithful_search.errors import DataError
        from faithful_search.tools.retrieval.index_folder import build_folder

        for most in (100, 2000, 6000):
            resource.setrlimit(resource.RLIMIT_FSIZE, (most, -1))
            try:
                build_folder(sys.argv[1], sys.argv[2], limit=100, overwrite=True)
            except DataError as error:
                print(error)
        resource.setrlimit(resource.RLIMIT_FSIZE, (-1, -1))
        print(build_folder(sys.argv[1], sys.argv[2], limit=100, overwrite=True).passages)
    """
    done = run_python(code, corpus, index)
    assert done.returncode == 0, done.stderr
    *failures, last = done.stdout.splitlines()
    assert len(failures) == 3 and all("File too large" in line and str(index) in line for line in failures)
    assert last == "100" and tree(index) != before


# what is in it


def test_broken_rows_are_listed_and_counted(tmp_path):
    corpus = write(tmp_path / "c.jsonl", [{"text": "one"}, {"body": "?"}, {"text": "two"}, 5])
    told: list[BrokenRow] = []
    made = build_folder(corpus, tmp_path / "out", on_broken=told.append)
    assert (made.passages, made.skipped) == (2, 2)
    lines = [json.loads(line) for line in (tmp_path / "out" / "skipped.jsonl").read_text().splitlines()]
    assert [(line["where"], line["why"]) for line in lines] == [(row.where, row.why) for row in told]
    assert [row.where for row in told] == [f"{corpus}, line 2", f"{corpus}, line 4"]


def test_paragraphs_and_a_limit(tmp_path):
    long = [{"id": f"d{n}", "title": f"T{n}", "text": "One sentence here. Another sentence there."} for n in range(5)]
    build_folder(long, tmp_path / "out", paragraph_characters=25, limit=3)
    index = open_folder(tmp_path / "out")
    assert isinstance(index, BM25Index)
    assert [index.passages.get(n).source for n in range(len(index))] == ["d0", "d0#2", "d1"]


def test_rows_that_can_be_read_only_once(tmp_path):
    assert build_folder(iter(rows(5)), tmp_path / "out").passages == 5
    assert len(LocalSearch.from_corpus(iter(rows(5)), tmp_path / "cache").index) == 5


def test_a_hybrid_index_by_the_command(tmp_path):
    pytest.importorskip("faiss")
    from test_judge_embedding import saved

    (tmp_path / "model").mkdir()
    model, out = saved(tmp_path / "model"), tmp_path / "out"
    options = ("--kind", "hybrid", "--model", model, "--half", "--limit", 30, "--batch-size", 8)
    code, said, told = invoke("index", "world", out, *options)
    assert code == 0 and said.startswith("30 passages of world"), told
    index = open_folder(out)
    assert isinstance(index, HybridIndex) and len(index) == 30
    title = index.search("anything", 1)[0].title
    assert title in [item.title for item in index.search(title, 3)]
    assert read_manifest(out).plan.dense == Dense(model, precision="float16")
    code, _, said = invoke("index", "world", out, "--kind", "bm25", "--limit", 30)
    assert code == 1 and "made of something else (kind hybrid, dense" in said


def test_a_model_and_a_kind_belong_together(corpus, tmp_path):
    with pytest.raises(ConfigError, match="'hybrid' needs a model"):
        build_folder(corpus, tmp_path / "out", kind="hybrid")
    with pytest.raises(ConfigError, match="'bm25' has no model"):
        build_folder(corpus, tmp_path / "out", dense=Dense("some/model"))


def flipped(path, place):
    data = bytearray(path.read_bytes())
    data[place] ^= 0x80
    path.write_bytes(data)


@pytest.mark.parametrize("name", ["passages.jsonl", "passages.offsets", "bm25/data.npy"])
def test_a_byte_that_changed_is_one_line(index, corpus, name, monkeypatch):
    flipped(index / name, -3)
    with pytest.raises(DataError, match=rf"the index .* is damaged \({name} not as written\): build it again"):
        open_folder(index)
    monkeypatch.setattr("faithful_search.tools.retrieval.index_folder._QUICK", 0)
    with pytest.raises(DataError, match=f"{name} not as written"):
        build_folder(corpus, index)


def test_a_passage_that_changed_in_a_large_index_is_one_line(index, monkeypatch):
    flipped(index / "passages.jsonl", 0)
    monkeypatch.setattr("faithful_search.tools.retrieval.index_folder._QUICK", 0)
    with pytest.raises(DataError, match=r"the index .* is damaged \(passage 0: .*\): build it again"):
        open_folder(index).passages.get(0)


@pytest.mark.parametrize("name", ["manifest.json", "bm25/data.npy", "bm25/bm25.json", "passages.offsets"])
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
    (index / "manifest.json").write_text(manifest.replace('"version": 2', '"version": 99'))
    with pytest.raises(DataError, match="is of version 99, not 2: build the index again"):
        open_folder(index)
    with pytest.raises(ConfigError, match="build the index again, with --overwrite"):
        build_folder(rows(3), index)
    assert build_folder(rows(3), index, overwrite=True).passages == 3


# BM25


def brute(index: BM25Index, query: str, top_k: int) -> list[tuple[str, float]]:
    scores = index.scores(query)
    best = sorted((n for n in range(len(index)) if scores[n] > 0), key=lambda n: (-scores[n], n))[:top_k]
    return [(index.passages.get(n).source, round(float(scores[n]), 4)) for n in best]


def found(index: BM25Index, query: str, top_k: int) -> list[tuple[str | None, float | None]]:
    return [(item.source, item.score) for item in index.search(query, top_k)]


@pytest.fixture(scope="module")
def pruned(tmp_path_factory) -> BM25Index:
    folder = tmp_path_factory.mktemp("pruned")
    build_folder([{"id": str(n), "text": row["text"]} for n, row in enumerate(rows(3000, seed=3))], folder / "index")
    index = open_folder(folder / "index")
    assert isinstance(index, BM25Index)
    return index


@settings(deadline=None, max_examples=150)
@given(st.lists(st.one_of(st.integers(0, 20), st.integers(0, 510)), max_size=15), st.sampled_from([1, 3, 10, 5000]))
def test_what_is_not_scored_could_not_have_been_found(pruned, numbers, top_k):
    query = " ".join(f"word{n}" for n in numbers)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bm25, "_SMALL", 0)
        assert found(pruned, query, top_k) == brute(pruned, query, top_k)


@settings(deadline=None, max_examples=40)
@given(st.text(alphabet="abc ", max_size=30), st.lists(st.text(alphabet="abc ", max_size=12), min_size=1, max_size=9))
def test_so_it_is_with_many_equals(tmp_path_factory, query, texts):
    folder = tmp_path_factory.mktemp("equals") / "index"
    build_folder([{"id": str(n), "text": text} for n, text in enumerate(texts)], folder)
    index = open_folder(folder)
    assert isinstance(index, BM25Index)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bm25, "_SMALL", 0)
        for top_k in (1, 2, 5):
            assert found(index, query, top_k) == brute(index, query, top_k)


def test_the_scores_are_those_of_bm25s(pruned):
    bm25s = pytest.importorskip("bm25s")
    texts = [words(pruned.passages.get(n).text) for n in range(len(pruned))]
    model = bm25s.BM25(k1=1.5, b=0.75, method="lucene", backend="numpy")
    model.index(texts, show_progress=False)
    for query in ("word0 word17", "word1 word1 word400", "word3 word499 word250 word2 word77"):
        expected = model.get_scores(query.split())
        assert pruned.scores(query) == pytest.approx(expected, rel=1e-6)


def test_many_threads_search_as_one(pruned, monkeypatch):
    monkeypatch.setattr(bm25, "_SMALL", 0)
    queries = [f"word{n % 7} word{n} word{3 * n}" for n in range(150)]
    expected = pruned.search_batch(queries, 3)
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(lambda query: pruned.search(query, 3), queries * 4)) == expected * 4


def test_batches_of_a_build_do_not_show_in_its_scores(tmp_path, monkeypatch):
    found = rows(700)
    build_folder(found, tmp_path / "one")
    monkeypatch.setattr("faithful_search.tools.retrieval.passages.BATCH", 33)
    monkeypatch.setattr("faithful_search.tools.retrieval.bm25_build._CHUNK", 101)
    build_folder(found, tmp_path / "many")
    assert tree(tmp_path / "one") == tree(tmp_path / "many")


def test_real_questions_find_the_same_pruned_or_not(tmp_path, monkeypatch):
    if not REAL.exists():
        pytest.skip("no shared data here")
    build_folder(REAL / "musique" / "corpus.jsonl.gz", tmp_path / "index")
    index = open_folder(tmp_path / "index")
    assert isinstance(index, BM25Index)
    from faithful_search.tasks import load_tasks

    questions = [task.question for task in load_tasks(REAL / "musique" / "test.jsonl.gz", limit=100)]
    expected = index.search_batch(questions, 5)
    monkeypatch.setattr(bm25, "_SMALL", 0)
    assert index.search_batch(questions, 5) == expected


# the tool and the command


def test_an_index_that_is_not_inline_is_searched_in_batches(index):
    part = open_folder(index)
    tool = LocalSearch(HybridIndex((part, part)), top_k=2)
    assert not tool.index.inline
    queries = [f"word{n} title" for n in range(20)]
    for copy in (tool, pickle.loads(pickle.dumps(tool))):
        with Toolbox([copy]) as toolbox:
            calls = [ToolCall("local_search", {"query": query}) for query in queries]
            results = toolbox.run_batch(calls, [toolbox.session() for _ in calls])
        assert [[item.source for item in result.evidence] for result in results] == [
            [item.source for item in row] for row in part.search_batch(queries, 2)
        ]


class _Refusing(Index):
    """Refuses the batches that a query without meaning is in."""

    def __init__(self) -> None:
        self.batches: list[int] = []

    def search_batch(self, queries: Sequence[str], top_k: int) -> list[list[Evidence]]:
        self.batches.append(len(queries))
        if "busy" in queries:
            raise ToolError("Too busy.", passing=True)
        if "(" in queries:
            raise ToolError("No meaning.")
        return [[Evidence(text=query)] for query in queries]

    def __len__(self) -> int:
        return 1


def test_one_refused_query_does_not_fail_those_beside_it():
    async def searched(queries: list[str]) -> list[str]:
        results = await asyncio.gather(*map(tool.local_search, queries), return_exceptions=True)
        return [str(result) if isinstance(result, ToolError) else result[0].text for result in results]

    tool = LocalSearch(_Refusing())
    assert asyncio.run(searched(["a", "(", "b"])) == ["a", "No meaning.", "b"]
    assert tool.index.batches == [3, 1, 1, 1]
    assert asyncio.run(searched(["a", "busy"])) == ["Too busy."] * 2
    assert tool.index.batches == [3, 1, 1, 1, 2]


def test_a_large_index_does_not_hold_up_the_event_loop(index, monkeypatch):
    threads = []
    real = BM25Index.search_batch

    def noted(self: BM25Index, queries: Sequence[str], top_k: int) -> list[list[Evidence]]:
        threads.append(threading.current_thread())
        return real(self, queries, top_k)

    monkeypatch.setattr(BM25Index, "search_batch", noted)
    tool = LocalSearch.open(index, top_k=1)
    inline = asyncio.run(tool.local_search("Title 7"))
    assert not threads
    monkeypatch.setattr(local_search, "_INLINE", 119)
    assert asyncio.run(tool.local_search("Title 7")) == inline
    assert threads and threads[0] is not threading.main_thread()


def test_the_tool_opens_a_folder(index):
    tool = LocalSearch.open(index, top_k=1, name="search", description="Words.")
    assert (tool.name, tool.description, tool.top_k, len(tool.index)) == ("search", "Words.", 1, 120)
    again = pickle.loads(pickle.dumps(tool))
    assert again.index.search("Title 7", 1) == tool.index.search("Title 7", 1)


def invoke(*arguments: object) -> tuple[int, str, str]:
    done = CliRunner().invoke(cli, list(map(str, arguments)))
    return done.exit_code, done.stdout, done.stderr


def test_the_command_says_what_it_made_and_left_out(tmp_path):
    corpus = write(tmp_path / "c.jsonl", [{"text": "one"}, *[{"body": "?"}] * 7])
    code, said, told = invoke("index", corpus, tmp_path / "out")
    assert code == 0 and said.startswith(f"1 passages of {corpus} in {tmp_path / 'out'}: bm25, 0.0 MB, ")
    assert told.count("left out: ") == 6
    assert f"{corpus}, line 2: no column 'text'" in told and "rows left out: 7; all of them are in" in told
    assert (tmp_path / "out" / "skipped.jsonl").read_text().count("\n") == 7


def test_the_command_reads_its_options_from_a_file(tmp_path):
    (tmp_path / "index.yaml").write_text("limit: 2\nparagraph_characters: 500\n")
    code, said, told = invoke("index", "world", tmp_path / "out", "--config", tmp_path / "index.yaml")
    assert code == 0 and said.startswith("2 passages of world"), told
    assert read_manifest(tmp_path / "out").plan.paragraph_characters == 500


def test_wrong_usage_of_the_command(tmp_path):
    for arguments, told in (
        (("--kind", "dense"), "--kind dense needs --model"),
        (("--hnsw",), "are for --kind dense or hybrid"),
        (("--paragraph-characters", "0"), "not in the range"),
    ):
        code, _, said = invoke("index", "world", tmp_path / "out", *arguments)
        assert code == 2 and told in said
    code, _, said = invoke("index", tmp_path / "none.jsonl", tmp_path / "out")
    assert code == 1 and said.startswith("error: cannot read")
    assert list(tmp_path.iterdir()) == []
