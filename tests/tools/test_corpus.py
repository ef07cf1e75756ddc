"""Corpora: every kind is read as the same stream of passages, and what cannot be read is told."""

import gzip
import json
import re
from itertools import count, islice
from pathlib import Path

import pytest
from hypothesis import given, settings, strategies as st

from faithful_search.errors import DataError
from faithful_search.tools.retrieval.corpus import digest, passages
from faithful_search.tools.words import paragraphs
from faithful_search.trajectory import Evidence

ROWS = [
    {"id": "a", "title": "Ada", "text": "Ada wrote notes.", "url": "https://one.example/a"},
    {"id": 7, "title": None, "text": "Nobody's title.\nTwo lines."},
    {"text": "", "extra": {"deep": [1, None]}},
]
EXPECTED = [
    Evidence(text="Ada wrote notes.", title="Ada", source="a", url="https://one.example/a"),
    Evidence(text="Nobody's title.\nTwo lines.", source="7"),
    Evidence(text="", source="3"),
]


def write_jsonl(path: Path, rows: list[object]) -> Path:
    data = "".join(json.dumps(row) + "\n" for row in rows).encode()
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return path


def write_parquet(path: Path, rows: list[dict[str, object]]) -> Path:
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    parquet.write_table(pyarrow.Table.from_pylist(rows), path, row_group_size=2)
    return path


def test_rows_and_files_are_read_alike(tmp_path):
    plain = write_jsonl(tmp_path / "c.jsonl", ROWS)
    packed = write_jsonl(tmp_path / "c.jsonl.gz", ROWS)
    assert list(passages(ROWS)) == list(passages(plain)) == list(passages(str(packed))) == EXPECTED
    rows = [{"id": str(row.get("id") or ""), "title": row.get("title"), "text": row["text"]} for row in ROWS]
    found = list(passages(write_parquet(tmp_path / "c.parquet", [{**row, "vector": [1.0]} for row in rows])))
    assert found == list(passages(rows))


def test_a_folder_is_its_files_in_order_and_numbers_run_on(tmp_path):
    (tmp_path / "data").mkdir()
    write_jsonl(tmp_path / "data" / "b.jsonl", [{"text": "second"}])
    write_jsonl(tmp_path / "data" / "a.jsonl.gz", [{"text": "first"}, {"text": "next"}])
    write_parquet(tmp_path / "data" / "c.parquet", [{"text": "third"}])
    (tmp_path / "README.md").write_text("no rows")
    found = [(item.source, item.text) for item in passages(tmp_path)]
    assert found == [("1", "first"), ("2", "next"), ("3", "second"), ("4", "third")]


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        ({"id": "1", "contents": '"Nile"\nA river.\nLong.'}, ("Nile", "A river.\nLong.", "1")),
        ({"id": "1", "contents": "Nile\nA river."}, ("Nile", "A river.", "1")),
        ({"id": "1", "contents": "A river."}, ("", "A river.", "1")),
        ({"id": "1", "contents": ' "Nile"\r\nA river.'}, ("Nile", "A river.", "1")),
        ({"id": "1", "contents": "A long line. " * 30 + "\nA river."}, ("", "A long line. " * 30 + "\nA river.", "1")),
        ({"id": "1", "contents": '"\nA river.'}, ('"', "A river.", "1")),
        ({"id": "1", "contents": "", "title": "Nile"}, ("Nile", "", "1")),
        ({"_id": "9", "contents": "A river.\nLong.", "title": "Nile"}, ("Nile", "A river.\nLong.", "9")),
        ({"docid": "9", "contents": '"Nile"\nA river.', "title": "Nile"}, ("Nile", "A river.", "9")),
        ({"id": "1", "contents": '"Nile"\nA river.', "text": "Own text."}, ("", "Own text.", "1")),
    ],
)
def test_rows_of_search_r1_and_beir(row, expected):
    [found] = passages([row])
    assert (found.title, found.text, found.source) == expected


def test_a_hub_dataset_and_its_splits(tmp_path, monkeypatch):
    datasets = pytest.importorskip("datasets")
    monkeypatch.chdir(tmp_path)
    rows = [{"id": str(number), "contents": f'"T{number}"\ntext {number}'} for number in range(2500)]
    local = tmp_path / "wiki"
    local.mkdir()
    write_jsonl(local / "train.jsonl", rows)
    made = {split: datasets.Dataset.from_list(rows[:size]) for split, size in (("train", 2500), ("test", 3))}
    monkeypatch.setattr(datasets, "load_dataset", lambda name, split: {"some/wiki": made}[name][split])
    assert list(passages("some/wiki")) == list(passages(local))
    assert [item.title for item in passages("some/wiki:test")] == ["T0", "T1", "T2"]
    assert digest("some/wiki") == digest("some/wiki") != digest("some/wiki:test")
    with pytest.raises(DataError, match="'nobody-here/nothing:train' is no file or folder here"):
        next(passages("nobody-here/nothing:train"))


BROKEN = [
    (b'{"text": "cut', "not JSON"),
    (b'"just text"', "expected an object with 'text'; it is str"),
    (b'{"id": 1, "body": "?"}', "no column 'text' with a string; it has: id, body"),
    (b"{}", "it has: nothing"),
    (b'{"text": 3}', "no column 'text'"),
    (b'{"text": "\\ud800"}', "not valid Unicode"),
    (b'{"text": "\xff"}', "not JSON"),
    (b"[" * 100_000, "not JSON"),
]


@pytest.mark.parametrize(("line", "why"), BROKEN)
def test_a_broken_row_is_told_and_left_out(tmp_path, line, why):
    path = tmp_path / "c.jsonl"
    path.write_bytes(b'{"text": "one"}\n\n' + line + b'\n{"text": "four"}\n')
    told: list[tuple[str, str]] = []
    found = passages(path, on_broken=lambda where, why: told.append((where, why)))
    assert [(item.source, item.text) for item in found] == [("1", "one"), ("3", "four")]
    [(where, said)] = told
    assert where == f"{path}, line 3" and why in said
    with pytest.raises(DataError, match=re.escape(f"{where}: {said}")):
        list(passages(path))


def test_the_digest_is_the_contents(tmp_path):
    one, same, other = (
        write_jsonl(tmp_path / name, rows)
        for name, rows in (("a.jsonl", ROWS), ("b.jsonl", ROWS), ("c.jsonl", ROWS[:2]))
    )
    assert digest(one) == digest(same) != digest(other)
    with pytest.raises(DataError, match="cannot read"):
        digest(tmp_path / "missing.jsonl")
    assert digest(ROWS) == digest([*ROWS]) != digest(ROWS[:2])
    assert digest([{"text": "a", "title": "b"}]) != digest([{"text": "b", "title": "a"}])
    assert digest([]) and digest([{"text": "\ud800"}])


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


def test_paragraphs_prefer_the_best_border():
    assert list(paragraphs("aaaa bbbb\ncccc dddd", 16)) == ["aaaa bbbb", "cccc dddd"]
    assert list(paragraphs("aaaa bbbb. cccc dddd eeee", 20)) == ["aaaa bbbb.", "cccc dddd eeee"]
    assert list(paragraphs("这是第一句。这是第二句话。", 9)) == ["这是第一句。", "这是第二句话。"]
    assert list(paragraphs("abcdefghij", 4)) == ["abcd", "efgh", "ij"]
    assert list(paragraphs("Title\n\n" + "word " * 8, 30)) == ["Title\n\nword word word word", "word word word word"]
    assert list(paragraphs(" \n ", 1)) == []


@settings(deadline=None)
@given(st.text(alphabet="ab .\n。\u2028", max_size=200), st.integers(1, 40))
def test_paragraphs_lose_nothing_and_keep_to_the_length(text, most):
    parts = list(paragraphs(text, most))
    assert all(part and len(part) <= most and part == part.strip() for part in parts)
    assert "".join("".join(parts).split()) == "".join(text.split())


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("missing", "there is no such file or folder"),
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
    write_jsonl(tmp_path / "broken.jsonl", [{"a": 1}, {"b": 2}])
    with pytest.raises(DataError, match=re.escape(told)) as caught:
        list(passages(tmp_path / name, on_broken=lambda *_: None))
    assert name in str(caught.value)


def test_a_name_without_an_owner_is_not_looked_for_on_the_hub():
    with pytest.raises(DataError, match="cannot read mistyped: there is no such file or folder"):
        list(passages("mistyped"))


def test_a_stream_without_end_is_read_as_it_comes_and_json_as_python_writes_it(tmp_path):
    endless = ({"text": f"row {number}"} for number in count())
    assert [item.text for item in islice(passages(endless), 3)] == ["row 0", "row 1", "row 2"]
    for line in (b'{"text": "fine", "score": NaN}', b'\xef\xbb\xbf{"text": "fine"}'):
        (tmp_path / "c.jsonl").write_bytes(line)
        assert [item.text for item in passages(tmp_path / "c.jsonl")] == ["fine"]
