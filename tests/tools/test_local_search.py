"""Local corpora: every kind is read as the same passages, BM25 finds them in any script, and a
cache survives.
"""

import asyncio
import gzip
import json
import os
import pickle
import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import numpy as np
import pytest
from agent_rows import file_of
from hypothesis import given, settings, strategies as st
from served import Shelf

from faithful_search.errors import ConfigError, DataError, ToolError
from faithful_search.tools import LocalSearch, RemoteSearch
from faithful_search.tools.local_search import open_search
from faithful_search.tools.retrieval import index_folder
from faithful_search.tools.retrieval.corpus import digest, passages
from faithful_search.tools.words import paragraphs, words
from faithful_search.trajectory import Evidence
from faithful_search.wire import files

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
        ("CAPITAL germany?", "p3"),
        ("столица россии", "p4"),
        ("中国的首都是北京吗", "p5"),
        ("عاصمة مصر", "p6"),
        ("राजधानी", "p7"),
        ("what is C", "p8"),
    ],
)
def test_finds_the_passage_in_any_script(search, query, best):
    assert find(search, query)[0] == best


def test_a_query_without_a_known_word_finds_nothing(
    search,
):
    assert [find(search, query) for query in ("", "zebra", "?!…", "\ud800", "🦓", "\x00")] == [
        []
    ] * 6
    wordless = LocalSearch.from_corpus([{"text": "…"}, {"text": "?"}])
    assert len(wordless.index) == 2
    assert find(wordless, "anything") == []
    rows = [{"id": f"r{n}", "text": "same words here"} for n in range(50)]
    assert find(LocalSearch.from_corpus(rows, top_k=4), "words") == ["r0", "r1", "r2", "r3"]


@settings(max_examples=60)
@given(st.text(), st.text())
def test_words_are_whole_and_parted_by_spaces(left, right):
    assert words(f"{left} {right}") == words(left) + words(right)
    assert all(word.split() == [word] for word in words(left))
    assert words("Saint-Denis, 法国 is №1_x Straße") == [
        "saint",
        "denis",
        "法",
        "国",
        "is",
        "no1",
        "x",
        "strasse",
    ]


# the cache


def test_a_cached_index_is_reused_until_the_corpus_changes(tmp_path, monkeypatch):
    corpus = tmp_path / "c.jsonl"
    corpus.write_text(json.dumps({**ROWS[0], "text": "Paris is a hero of Troy."}))
    assert find(LocalSearch.from_corpus(corpus), "capital") == []
    file_of(corpus, ROWS)
    built = LocalSearch.from_corpus(corpus)
    monkeypatch.setattr(index_folder, "_build", lambda *_, **__: pytest.fail("built again"))
    again = LocalSearch.from_corpus(corpus)
    assert again.index.folder == built.index.folder
    assert find(again, "capital") == find(built, "capital") == ["p1", "p3"]
    assert isinstance(again.index.model.scores["data"].base, np.memmap)


@pytest.mark.parametrize(
    "name",
    ["bm25/data.npy", "bm25/indptr.npy", "bm25/vocabulary.txt", "passages.jsonl", "manifest.json"],
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


def test_concurrent_callers_build_a_cached_index_once(cache, monkeypatch):
    built: list[int] = []
    real = index_folder.store
    monkeypatch.setattr(
        index_folder, "store", lambda *args, **named: built.append(1) or real(*args, **named)
    )
    with ThreadPoolExecutor(8) as threads:
        found = list(threads.map(lambda _: find(LocalSearch.from_corpus(ROWS), "Berlin"), range(8)))
    assert found == [["p3"]] * 8
    assert built == [1]
    assert not list(cache.rglob("*.building"))


def test_a_folder_removed_before_its_lock_is_made_again(cache, monkeypatch):
    taken, opens = [], os.open

    def late(path, flags):
        if len(taken) < 2:
            taken.append(path)
            os.rmdir(path)
        return opens(path, flags)

    with monkeypatch.context() as patch:
        patch.setattr(files, "os", SimpleNamespace(open=late, O_RDONLY=os.O_RDONLY, close=os.close))
        assert find(LocalSearch.from_corpus(ROWS), "Berlin") == ["p3"]
    assert len(taken) == 2
    assert str(taken[0]).endswith(".building")


def test_a_killed_first_command_is_gone_on_with(cache, monkeypatch):
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(index_folder.BM25Index, "build", Mock(side_effect=KeyboardInterrupt))
        LocalSearch.from_corpus(ROWS)
    monkeypatch.setattr(
        index_folder, "store", lambda *_: pytest.fail("the passages were written already")
    )
    assert find(LocalSearch.from_corpus(ROWS), "Berlin") == ["p3"]
    assert not list(cache.rglob("*.building"))


@pytest.mark.usefixtures("cache")
def test_a_broken_row_is_left_out_with_a_warning(caplog):
    search = LocalSearch.from_corpus([ROWS[0], {"body": "?"}, ROWS[2]])
    assert len(search.index) == 2
    assert "1 of its rows are left out" in caplog.text
    assert "corpus, row 2: no column 'text'" in caplog.text


@pytest.mark.usefixtures("cache")
def test_an_index_from_the_cache_warns_of_broken_rows_again(caplog):
    rows = [ROWS[0], {"body": "?"}]
    LocalSearch.from_corpus(rows)
    caplog.clear()
    LocalSearch.from_corpus(rows)
    assert "1 of its rows are left out" in caplog.text


def test_a_refused_corpus_leaves_nothing(cache, monkeypatch):
    with pytest.raises(DataError, match=r"corpus: no passages in it.*row 1: no column 'text'"):
        LocalSearch.from_corpus([{"body": "?"}])
    assert list(cache.rglob("*.*")) == []
    monkeypatch.setenv("FAITHFUL_SEARCH_CACHE", str(cache.with_name("file")))
    cache.with_name("file").write_text("in the way")
    with pytest.raises(DataError, match="FAITHFUL_SEARCH_CACHE"):
        LocalSearch.from_corpus(ROWS)


def test_one_refused_query_does_not_fail_those_beside_it():
    async def searched(queries: list[str]) -> list[str]:
        results = await asyncio.gather(*map(tool.local_search, queries), return_exceptions=True)
        return [
            str(result) if isinstance(result, ToolError) else result[0].text for result in results
        ]

    tool = pickle.loads(pickle.dumps(LocalSearch(Shelf())))
    assert asyncio.run(searched(["a", "broken", "b"])) == [
        "text of a #0",
        "the engine is broken",
        "text of b #0",
    ]
    assert asyncio.run(searched(["a", "busy"])) == ["the engine is busy"] * 2
    assert [len(queries) for queries, _ in tool.index.batches] == [
        3,
        1,
        1,
        1,
        2,
    ]  # when it is busy, asked once


def test_whatever_a_corpus_is_it_is_opened(tmp_path):
    corpus = file_of(tmp_path / "corpus.jsonl", ROWS)
    index_folder.build_folder(corpus, tmp_path / "index", limit=3)
    assert len(open_search("world", top_k=1).index) > 100
    assert len(open_search(str(corpus), top_k=1).index) == len(ROWS)
    assert len(open_search(str(tmp_path / "index"), top_k=1).index) == 3
    with pytest.raises(ConfigError, match="top_k must be at least 1, got 0"):
        open_search("world", top_k=0)
    remote = open_search("http://127.0.0.1:8000", name="docs", top_k=7)
    assert isinstance(remote, RemoteSearch)
    assert (remote.name, remote.top_k) == ("docs", 7)


# what a corpus may be

MIXED = [
    {"id": "a", "title": "Ada", "text": "Ada wrote notes.", "url": "https://one.example/a"},
    {"id": 7, "title": None, "text": "Nobody's title.\nTwo lines."},
    {"text": "Bare.", "extra": {"deep": [1, None]}},
]
EXPECTED = [
    Evidence(text="Ada wrote notes.", title="Ada", source="a", url="https://one.example/a"),
    Evidence(text="Nobody's title.\nTwo lines.", source="7"),
    Evidence(text="Bare.", source="3"),
]


def write_parquet(path: Path, rows: list[dict[str, object]]) -> Path:
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    parquet.write_table(pyarrow.Table.from_pylist(rows), path, row_group_size=2)
    return path


def test_rows_and_files_are_read_alike(tmp_path):
    plain = file_of(tmp_path / "c.jsonl", MIXED)
    packed = file_of(tmp_path / "c.jsonl.gz", MIXED)
    assert list(passages(MIXED)) == list(passages(plain)) == list(passages(str(packed))) == EXPECTED
    rows = [
        {"id": str(row.get("id") or ""), "title": row.get("title"), "text": row["text"]}
        for row in MIXED
    ]
    found = list(
        passages(write_parquet(tmp_path / "c.parquet", [{**row, "vector": [1.0]} for row in rows]))
    )
    assert found == list(passages(rows))
    # as Python writes it, with a mark
    for line in (b'{"text": "fine", "score": NaN}', b'\xef\xbb\xbf{"text": "fine"}'):
        plain.write_bytes(line)
        assert [item.text for item in passages(plain)] == ["fine"]


def test_a_folder_is_its_files_in_order_and_numbers_run_on(tmp_path):
    file_of(tmp_path / "data" / "b.jsonl", [{"text": "second"}])
    file_of(tmp_path / "data" / "a.jsonl.gz", [{"text": "first"}, {"text": "next"}])
    write_parquet(tmp_path / "data" / "c.parquet", [{"text": "third"}])
    (tmp_path / "README.md").write_text("no rows")
    found = [(item.source, item.text) for item in passages(tmp_path)]
    assert found == [("1", "first"), ("2", "next"), ("3", "second"), ("4", "third")]


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        ({"id": "1", "contents": '"Nile"\nA river.\nLong.'}, ("Nile", "A river.\nLong.", "1")),
        ({"id": "1", "contents": "Nile\nA river."}, ("Nile", "A river.", "1")),
        ({"id": "1", "contents": ' "Nile"\r\nA river.'}, ("Nile", "A river.", "1")),
        (
            {"id": "1", "contents": "A long line. " * 30 + "\nA river."},
            ("", "A long line. " * 30 + "\nA river.", "1"),
        ),
        ({"id": "1", "contents": '"\nA river.'}, ('"', "A river.", "1")),
        (
            {"_id": "9", "contents": "A river.\nLong.", "title": "Nile"},
            ("Nile", "A river.\nLong.", "9"),
        ),
        (
            {"docid": "9", "contents": '"Nile"\nA river.', "title": "Nile"},
            ("Nile", "A river.", "9"),
        ),
        ({"id": "1", "contents": '"Nile"\nA river.', "text": "Own text."}, ("", "Own text.", "1")),
    ],
)
def test_rows_of_search_r1_and_beir(row, expected):
    [found] = passages([row])
    assert (found.title, found.text, found.source) == expected


def test_a_hub_dataset_and_its_splits(tmp_path, monkeypatch):
    datasets = pytest.importorskip("datasets")
    monkeypatch.chdir(tmp_path)
    rows = [
        {"id": str(number), "contents": f'"T{number}"\ntext {number}'} for number in range(2500)
    ]
    local = file_of(tmp_path / "wiki" / "train.jsonl", rows).parent
    made = {
        split: datasets.Dataset.from_list(rows[:size])
        for split, size in (("train", 2500), ("test", 3))
    }
    monkeypatch.setattr(
        datasets, "load_dataset", lambda name, split: {"some/wiki": made}[name][split]
    )
    assert list(passages("some/wiki")) == list(passages(local))
    assert [item.title for item in passages("some/wiki:test")] == ["T0", "T1", "T2"]
    assert digest("some/wiki") == digest("some/wiki") != digest("some/wiki:test")
    with pytest.raises(DataError, match="'nobody-here/nothing:train' is no file or folder here"):
        next(passages("nobody-here/nothing:train"))


@pytest.mark.parametrize(
    ("line", "why"),
    [
        (b'{"text": "cut', "not JSON"),
        (b'"just text"', "expected an object with 'text'; it is str"),
        (b'{"id": 1, "body": "?"}', "no column 'text' with a string; it has: id, body"),
        (b"{}", "it has: nothing"),
        (b'{"text": 3}', "no column 'text'"),
        (b'{"text": " "}', "its text is empty"),
        (b'{"title": "Rome", "text": ""}', "its text is empty"),
        (b'{"contents": "Rome\\n"}', "its text is empty"),
        (b'{"text": "\\ud800"}', "not valid Unicode"),
        (b'{"text": "\xff"}', "not valid Unicode"),
        (b"[" * 100_000, "not JSON"),
    ],
)
def test_a_broken_row_is_told_and_left_out(tmp_path, line, why):
    path = tmp_path / "c.jsonl"
    path.write_bytes(b'{"text": "one"}\n\n' + line + b'\n{"text": "four"}\n')
    told: list[tuple[str, str]] = []
    found = passages(path, on_broken=lambda where, why: told.append((where, why)))
    assert [(item.source, item.text) for item in found] == [("1", "one"), ("3", "four")]
    [(where, said)] = told
    assert where == f"{path}, line 3"
    assert why in said
    with pytest.raises(DataError, match=re.escape(f"{where}: {said}")):
        list(passages(path))


def test_the_digest_is_the_contents(tmp_path):
    one, same = (file_of(tmp_path / name, MIXED) for name in ("a.jsonl", "b.jsonl"))
    assert digest(one) == digest(same) != digest(file_of(tmp_path / "c.jsonl", MIXED[:2]))
    assert digest(MIXED) == digest([*MIXED]) != digest(MIXED[:2])
    assert digest([{"text": "a", "title": "b"}]) != digest([{"text": "b", "title": "a"}])
    assert digest([{"text": "\ud800"}])


def test_long_documents_become_paragraphs_with_their_title(tmp_path):
    text = "First paragraph here.\n\nSecond one, longer than the first. It has two sentences.\n\nThird."
    row = {"id": "d", "title": "Doc", "text": text, "url": "u"}
    found = list(passages([row, {"id": "s", "text": "Short."}], paragraph_characters=50))
    assert [(item.source, item.title, item.url, item.text) for item in found] == [
        ("d", "Doc", "u", "First paragraph here."),
        ("d#2", "Doc", "u", "Second one, longer than the first."),
        ("d#3", "Doc", "u", "It has two sentences.\n\nThird."),
        ("s", "", "", "Short."),
    ]


@settings(max_examples=60)
@given(st.text(alphabet="ab .\n。\u2028", max_size=200), st.integers(1, 40))
def test_paragraphs_lose_nothing_and_keep_to_the_length(text, most):
    parts = list(paragraphs(text, most))
    assert all(part and len(part) <= most and part == part.strip() for part in parts)
    assert "".join("".join(parts).split()) == "".join(text.split())
    assert list(paragraphs("aaaa bbbb. cccc dddd eeee", 20)) == ["aaaa bbbb.", "cccc dddd eeee"]
    assert list(paragraphs("这是第一句。这是第二句话。", 9)) == ["这是第一句。", "这是第二句话。"]


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("missing", "cannot read missing: there is no such file or folder"),
        ("missing.parquet", "cannot read"),
        ("notes.txt", "notes.txt: expected a .jsonl"),
        ("bare", "no .jsonl, .jsonl.gz or .parquet file in it"),
        ("cut.jsonl.gz", "cannot read"),
        ("no.parquet", "cannot read"),
        ("other.parquet", "no column 'text' (or 'contents'); it has: id, body"),
        ("broken.jsonl", "no passages in it; the first row left out: "),
    ],
)
def test_files_that_cannot_be_read_are_named(tmp_path, name, told):
    (tmp_path / "notes.txt").touch()
    (tmp_path / "bare").mkdir()
    (tmp_path / "cut.jsonl.gz").write_bytes(gzip.compress(b'{"text": "a"}\n' * 1000)[:-20])
    (tmp_path / "no.parquet").write_bytes(b"PAR1 not at all")
    write_parquet(tmp_path / "other.parquet", [{"id": "1", "body": "?"}])
    file_of(tmp_path / "broken.jsonl", [{"a": 1}, {"b": 2}])
    with pytest.raises(DataError, match=re.escape(told)) as caught:
        list(passages(name if name == "missing" else tmp_path / name, on_broken=lambda *_: None))
    assert name in str(caught.value)
