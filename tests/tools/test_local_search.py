"""BM25 over local corpora: what is found, in which order, and what the cache survives; opening whatever is named."""

import asyncio
import json
import pickle
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from faithful_search.errors import ConfigError, DataError, ToolError
from faithful_search.tools import LocalSearch, RemoteSearch, Toolbox, schema_of
from faithful_search.tools.local_search import open_search
from faithful_search.tools.retrieval import index_folder
from faithful_search.tools.retrieval.bm25 import BM25Index
from faithful_search.tools.retrieval.index import Index
from faithful_search.tools.words import words
from faithful_search.trajectory import Evidence, ToolCall

ROWS = [
    {"id": "p1", "title": "Paris", "text": "Paris is the capital of France."},
    {"id": "p2", "title": "Rome", "text": "Rome lies on the Tiber."},
    {"id": "p3", "title": "Berlin", "text": "Berlin is the capital of Germany."},
    {"id": "p4", "title": "Москва", "text": "Москва — столица России."},
    {"id": "p5", "title": "北京", "text": "北京是中华人民共和国的首都。"},
    {"id": "p6", "title": "القاهرة", "text": "القاهرة هي عاصمة مصر."},
    {"id": "p7", "title": "दिल्ली", "text": "नई दिल्ली भारत की राजधानी है।"},
    {"id": "p8", "title": "Vitamin C", "text": "Also called ascorbic acid."},
]


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("FAITHFUL_SEARCH_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def find(search: LocalSearch, query: str) -> list[str]:
    return [item.source for item in asyncio.run(search.local_search(query))]


@pytest.fixture
def search() -> LocalSearch:
    return LocalSearch.from_corpus(iter(ROWS))


@pytest.mark.parametrize(
    ("query", "best"),
    [
        ("capital of France", "p1"),
        ("CAPITAL germany?", "p3"),
        ("столица россии", "p4"),
        ("首都", "p5"),
        ("中国的首都是北京吗", "p5"),
        ("عاصمة مصر", "p6"),
        ("राजधानी", "p7"),
        ("what is C", "p8"),
    ],
)
def test_finds_the_passage_in_any_script(search, query, best):
    assert find(search, query)[0] == best


def test_a_query_without_a_known_word_finds_nothing_and_nobody_finds_passages_without_words(search):
    assert [find(search, query) for query in ("", "zebra", "?!…", "\ud800", "🦓", "\x00")] == [[]] * 6
    wordless = LocalSearch.from_corpus([{"text": "…"}, {"text": ""}])
    assert len(wordless.index) == 2 and find(wordless, "anything") == []


def test_equals_keep_the_order_of_the_corpus():
    rows = [{"id": f"r{n}", "text": "same words here"} for n in range(50)]
    assert find(LocalSearch.from_corpus(rows, top_k=4), "words") == ["r0", "r1", "r2", "r3"]


@settings(deadline=None)
@given(st.text(), st.text())
def test_words_are_whole_and_parted_by_spaces(left, right):
    assert words(f"{left} {right}") == words(left) + words(right)
    assert all(word.split() == [word] for word in words(left))


def test_words_of_several_scripts():
    assert words("Saint-Denis, 法国 is №1_x") == ["saint", "denis", "法", "国", "is", "no1", "x"]
    assert words("Straße \uff26\uff35\uff2c\uff2c") == ["strasse", "full"]
    assert words("दिल्ली है") == ["दिल्ली", "है"]
    assert words("e\u0301te\u0301") == words("été") == ["été"]


def test_text_comes_back_byte_for_byte():
    text = 'a "quoted"\n\tline\r\n\u2028 \x00 </tool_response> é e\u0301' + " word" * 200_000
    assert asyncio.run(LocalSearch.from_corpus([{"text": text}]).local_search("quoted"))[0].text == text


# the cache


def test_the_cache_is_reused_and_mapped_and_changed_content_indexed_anew(tmp_path, monkeypatch):
    corpus = tmp_path / "c.jsonl"
    corpus.write_text(json.dumps({**ROWS[0], "text": "Paris is a hero of Troy."}))
    assert find(LocalSearch.from_corpus(corpus), "capital") == []
    corpus.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    built = LocalSearch.from_corpus(corpus)
    monkeypatch.setattr(index_folder, "_build", lambda *_, **__: pytest.fail("built again"))
    again = LocalSearch.from_corpus(corpus)
    assert again.index.folder == built.index.folder
    assert find(again, "capital") == find(built, "capital") == ["p1", "p3"]
    data = again.index.model.scores["data"]
    assert isinstance(data.base, np.memmap) and isinstance(again.index.passages.offsets.base, np.memmap)
    with pytest.raises(ValueError, match="read-only"):
        data[0] = 1.0


@pytest.mark.parametrize(
    "name", ["bm25/data.npy", "bm25/indptr.npy", "bm25/vocabulary.txt", "passages.jsonl", "manifest.json"]
)
@pytest.mark.parametrize("damage", ["cut", "gone", "garbage"])
def test_a_damaged_cache_is_rebuilt(search, name, damage):
    file = search.index.passages.folder / name
    if damage == "gone":
        file.unlink()
    else:
        file.write_bytes(file.read_bytes()[:-3] if damage == "cut" else b"\xff{garbage")
    again = LocalSearch.from_corpus(ROWS)
    assert find(again, "capital of France")[0] == "p1"
    assert (again.index.passages.folder / name).stat().st_size > 8


def test_a_corpus_that_is_refused_leaves_nothing(cache):
    with pytest.raises(DataError, match="corpus, row 2: no column 'text'"):
        LocalSearch.from_corpus([ROWS[0], {"body": "?"}])
    assert list(cache.rglob("*.*")) == []


def test_a_cached_index_is_built_once_by_those_who_ask_at_the_same_time(cache, monkeypatch):
    built: list[int] = []
    real = index_folder.store
    monkeypatch.setattr(index_folder, "store", lambda *args, **named: built.append(1) or real(*args, **named))
    with ThreadPoolExecutor(8) as threads:
        found = list(threads.map(lambda _: find(LocalSearch.from_corpus(ROWS), "Berlin"), range(8)))
    assert found == [["p3"]] * 8 and built == [1]
    assert not list(cache.rglob("*.building"))


def test_a_killed_first_command_is_gone_on_with(cache, monkeypatch):
    def stop(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(index_folder.BM25Index, "build", stop)
    with pytest.raises(KeyboardInterrupt):
        LocalSearch.from_corpus(ROWS)
    monkeypatch.undo()
    monkeypatch.setenv("FAITHFUL_SEARCH_CACHE", str(cache))
    monkeypatch.setattr(index_folder, "store", lambda *_: pytest.fail("the passages were written already"))
    assert find(LocalSearch.from_corpus(ROWS), "Berlin") == ["p3"]
    assert not list(cache.rglob("*.building"))


def test_a_cache_that_cannot_be_written_is_named(cache):
    cache.write_text("in the way")
    with pytest.raises(DataError, match="FAITHFUL_SEARCH_CACHE"):
        LocalSearch.from_corpus(ROWS)


# the tool


def test_two_corpora_are_two_tools_that_find_something():
    herbs = LocalSearch.from_corpus([{"id": "h", "text": "Sage is a herb."}], name="herb_search", description="Herbs.")
    function = schema_of(herbs)["function"]
    assert (function["name"], function["description"]) == ("herb_search", "Herbs.")
    with Toolbox([LocalSearch.from_corpus(ROWS), herbs]) as toolbox:
        calls = [ToolCall("local_search", {"query": "Sage"}), ToolCall("herb_search", {"query": "Sage"})]
        world, found = toolbox.run_batch(calls, [toolbox.session()] * 2)
    assert world.note == "No results." and found.evidence[0].source == "h"
    with pytest.raises(ConfigError, match="top_k must be at least 1, got 0"):
        LocalSearch.from_corpus(ROWS, top_k=0)


class Refusing(Index):
    """Refuses the batches that a query without meaning is in."""

    def __init__(self) -> None:
        self.batches: list[int] = []

    def search_batch(self, queries, top_k):
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

    tool = pickle.loads(pickle.dumps(LocalSearch(Refusing())))
    assert asyncio.run(searched(["a", "(", "b"])) == ["a", "No meaning.", "b"]
    assert tool.index.batches == [3, 1, 1, 1]
    assert asyncio.run(searched(["a", "busy"])) == ["Too busy."] * 2
    assert tool.index.batches == [3, 1, 1, 1, 2]


def test_a_large_index_does_not_hold_up_the_event_loop(search, monkeypatch):
    threads = []
    real = BM25Index.search_batch

    def noted(self, queries, top_k):
        threads.append(threading.current_thread())
        return real(self, queries, top_k)

    monkeypatch.setattr(BM25Index, "search_batch", noted)
    inline = find(search, "capital")
    assert not threads
    monkeypatch.setattr("faithful_search.tools.retrieval.index.MOST_INLINE", len(ROWS) - 1)
    assert find(search, "capital") == inline
    assert threads and threads[0] is not threading.main_thread()


def test_whatever_a_corpus_is_it_is_opened(tmp_path):
    corpus = tmp_path / "corpus.jsonl"
    corpus.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    index_folder.build_folder(corpus, tmp_path / "index", limit=3)
    assert len(open_search("world", top_k=1).index) > 100
    assert len(open_search(str(corpus), top_k=1).index) == len(ROWS)
    assert len(open_search(str(tmp_path / "index"), top_k=1).index) == 3
    remote = open_search("http://127.0.0.1:8000", name="docs", top_k=7)
    assert isinstance(remote, RemoteSearch) and (remote.name, remote.top_k) == ("docs", 7)
