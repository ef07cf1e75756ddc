"""Files that hold far more than they weigh, and files that are broken: a row that cannot be had is
one row's error, and no more is unpacked than there may be.
"""

import gzip
import json
import re
import zipfile
from pathlib import Path
from typing import Any

import pytest

from faithful_search import loose_json
from faithful_search.demo import auditing
from faithful_search.errors import DataError
from faithful_search.measure.audit import audit
from faithful_search.reading.rows import Row, read_trajectories
from faithful_search.wire import unpacking

GOOD = {"question": "Who?", "output": "<think>a</think><answer>Ada</answer>"}
SAMPLE = {
    "id": 1,
    "epoch": 1,
    "target": "Ada",
    "messages": [{"role": "user", "content": "Who?"}, {"role": "assistant", "content": "Ada"}],
}


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bounds that are quickly reached."""
    monkeypatch.setattr(unpacking, "MOST_LINE", 100_000)
    monkeypatch.setattr(loose_json, "MOST_BYTES", 100_000)
    monkeypatch.setattr(unpacking, "MOST_IN_MEMORY", 1_000_000)
    monkeypatch.setattr(unpacking, "_MOST_UNPACKED", 1_000_000)


def lines(*rows: Any) -> bytes:
    return b"".join(
        row if isinstance(row, bytes) else json.dumps(row).encode() + b"\n" for row in rows
    )


def packed(path: Path, samples: dict[str, bytes], kind: int = zipfile.ZIP_DEFLATED) -> Path:
    with zipfile.ZipFile(path, "w", kind) as log:
        for name, data in samples.items():
            log.writestr(f"samples/{name}.json", data)
    return path


def answers(rows: list[Row]) -> list[str | None]:
    return [row.trajectory and row.trajectory.answer for row in rows]


def read(path: Path) -> tuple[list[Row], str]:
    """The rows, and why there are no more."""
    rows: list[Row] = []
    try:
        for row in read_trajectories(path):
            rows.append(row)
    except DataError as error:
        return rows, str(error)
    return rows, ""


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("ending", ["jsonl", "jsonl.gz"])
def test_a_line_that_is_too_long_costs_no_other(tmp_path: Path, ending: str) -> None:
    path = tmp_path / f"rows.{ending}"
    data = lines(GOOD, b'{"text": "' + b"x" * 500_000 + b'"}\n', GOOD)
    path.write_bytes(gzip.compress(data) if ending.endswith("gz") else data)
    rows, _ = read(path)
    assert answers(rows) == ["Ada", None, "Ada"]
    assert "more than" in rows[1].error


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("unit", [b"\n", b"x", b'{"text": "x"}\n'])
@pytest.mark.parametrize("name", ["rows.jsonl.gz", "rows.jsonl"])
def test_a_packed_file_that_holds_too_much_is_left(tmp_path: Path, name: str, unit: bytes) -> None:
    path = tmp_path / name
    path.write_bytes(gzip.compress(lines(GOOD) + unit * (3_000_000 // len(unit))))
    rows, error = read(path)
    assert answers(rows[:1]) == ["Ada"]
    assert "unpacks to more than" in error


@pytest.mark.usefixtures("small")
def test_a_whole_file_that_holds_too_much_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "rows.json.gz"
    path.write_bytes(gzip.compress(b"[" + b" " * 2_000_000 + b"]"))
    assert "more than 1,000,000 bytes" in read(path)[1]


@pytest.mark.usefixtures("small")
def test_a_member_that_holds_too_much_costs_no_other(tmp_path: Path) -> None:
    members = {
        "1": json.dumps(SAMPLE).encode(),
        "2": b"[" * 500_000,
        "3": json.dumps(SAMPLE).encode(),
    }
    rows, _ = read(packed(tmp_path / "log.eval", members))
    assert answers(rows) == ["Ada", None, "Ada"]


@pytest.mark.usefixtures("small")
def test_members_that_together_hold_too_much_are_left(tmp_path: Path) -> None:
    members = {f"{number:03}": b" " * 90_000 for number in range(30)}
    members["000"] = json.dumps(SAMPLE).encode()
    assert "unpacks to more than" in read(packed(tmp_path / "log.eval", members))[1]


@pytest.mark.usefixtures("small")
def test_a_session_that_is_too_long_is_refused(tmp_path: Path) -> None:
    line = {"type": "user", "sessionId": "s", "message": {"role": "user", "content": "x" * 50_000}}
    path = tmp_path / "session.jsonl"
    path.write_bytes(lines(*[line] * 30))
    assert "must be in memory" in read(path)[1]


def test_a_text_that_many_rows_share_is_in_memory_once(tmp_path: Path) -> None:
    pa = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    held = ["<answer>Ada</answer>" + "x" * 5_000_000]
    text = pa.DictionaryArray.from_arrays(pa.array([0] * 100, pa.int32()), pa.array(held))
    path = tmp_path / "rows.parquet"
    parquet.write_table(pa.table({"text": text}), path, compression="zstd")
    before = pa.total_allocated_bytes()
    for number, _ in enumerate(read_trajectories(path)):
        if number == 70:
            break
    assert pa.total_allocated_bytes() - before < 100_000_000


def test_the_demo_counts_what_was_unpacked(monkeypatch: pytest.MonkeyPatch) -> None:
    bomb = gzip.compress(lines(GOOD) + b'{"text": "' + b"x" * 50_000_000 + b'"}\n')
    assert len(bomb) < 100_000
    monkeypatch.setattr(auditing, "_fetched", lambda address: bomb)
    with pytest.raises(DataError, match="unpacks to more than"):
        auditing.audited("hf://datasets/a/b/rows.jsonl.gz")


# Broken files


@pytest.mark.parametrize("kind", [zipfile.ZIP_DEFLATED, zipfile.ZIP_LZMA, zipfile.ZIP_BZIP2])
def test_a_damaged_member_costs_no_other(tmp_path: Path, kind: int) -> None:
    samples = {str(number): json.dumps({**SAMPLE, "id": number}).encode() for number in range(3)}
    path = packed(tmp_path / "log.eval", samples, kind)
    with zipfile.ZipFile(path) as log:
        member = log.getinfo("samples/1.json")
    data = bytearray(path.read_bytes())
    middle = member.header_offset + 45 + member.compress_size // 2
    data[middle : middle + 8] = b"\xff" * 8
    path.write_bytes(data)
    rows, error = read(path)
    assert not error
    assert [answer or "" for answer in answers(rows)][::2] == ["Ada", "Ada"]
    assert "samples/1.json is damaged" in rows[1].error


def test_an_encrypted_log_is_named(tmp_path: Path) -> None:
    path = packed(tmp_path / "log.eval", {"1": json.dumps(SAMPLE).encode()})
    data = bytearray(path.read_bytes())
    for mark, place in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        data[data.index(mark) + place] |= 1
    path.write_bytes(data)
    with pytest.raises(DataError, match="encrypted"):
        audit(path, tmp_path / "out", workers=1)


@pytest.mark.parametrize("name", ["x.jsonl.gz", "x.json.gz", "x.eval", "x.parquet", "x.json"])
def test_in_a_folder_a_broken_file_does_not_end_the_run(tmp_path: Path, name: str) -> None:
    folder = tmp_path / "runs"
    folder.mkdir()
    (folder / "a.jsonl").write_bytes(lines(GOOD))
    (folder / name).write_bytes(gzip.compress(lines(GOOD) * 100)[:60])
    (folder / "z.jsonl").write_bytes(lines(GOOD))
    found = audit(folder, tmp_path / "out", workers=1)
    assert found.n == 2
    assert re.search(rf"{re.escape(name)}", found.unread[0].why)


@pytest.mark.parametrize("kind", ["date", "timestamp", "zone", "duration", "nested"])
def test_dates_that_python_does_not_know_cost_no_row(tmp_path: Path, kind: str) -> None:
    pa = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    late = pa.array([2**62, 0], pa.int64())
    columns = {
        "date": pa.array([2**31 - 1, 0], pa.int32()).cast(pa.date32()),
        "timestamp": late.cast(pa.timestamp("us")),
        "zone": late.cast(pa.timestamp("us", tz="No/Where")),
        "duration": late.cast(pa.duration("us")),
        "nested": pa.StructArray.from_arrays([late.cast(pa.timestamp("us"))], ["at"]),
    }
    table = pa.table({"output": [GOOD["output"]] * 2, "when": columns[kind]})
    parquet.write_table(table, tmp_path / "rows.parquet")
    rows, _ = read(tmp_path / "rows.parquet")
    assert answers(rows) == ["Ada", "Ada"]


# What a line may hold


@pytest.mark.parametrize("broken", [b"\\ud83d", b"\xff", b"\\u0000", b"\x00"])
def test_an_odd_character_costs_a_session_no_line(tmp_path: Path, broken: bytes) -> None:
    session = [
        {"type": "user", "sessionId": "s", "message": {"role": "user", "content": "Who?ODD"}},
        {"type": "assistant", "sessionId": "s", "message": {"role": "assistant", "content": "Ada"}},
    ]
    path = tmp_path / "session.jsonl"
    path.write_bytes(lines(*session).replace(b"ODD", broken))
    rows, _ = read(path)
    assert answers(rows) == ["Ada"]
    assert rows[0].trajectory is not None
    assert not any("no JSON" in issue.why for issue in rows[0].trajectory.issues)


def test_a_broken_first_line_of_a_session_is_one_line(tmp_path: Path) -> None:
    line = {
        "type": "assistant",
        "sessionId": "s",
        "message": {"role": "assistant", "content": "Ada"},
    }
    path = tmp_path / "session.jsonl"
    path.write_bytes(lines(b'{"type": "user", "mess\n', line))
    rows, _ = read(path)
    assert answers(rows) == ["Ada"]
    assert rows[0].trajectory is not None
    assert any("1 lines that are no JSON" in issue.why for issue in rows[0].trajectory.issues)


@pytest.mark.parametrize("odd", ['"\\ud83d"', "1e400", "NaN", "[" * 900 + "]" * 900])
def test_an_odd_value_costs_an_inspect_log_one_sample_at_most(tmp_path: Path, odd: str) -> None:
    samples = [json.dumps(SAMPLE), json.dumps({**SAMPLE, "x": "ODD"}), json.dumps(SAMPLE)]
    text = f'{{"eval": {{}}, "samples": [{", ".join(samples)}]}}'.replace('"ODD"', odd)
    path = tmp_path / "log.json"
    path.write_text(text)
    rows, _ = read(path)
    assert answers(rows)[::2] == ["Ada", "Ada"]


def test_what_was_put_right_is_an_issue(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_bytes(lines(GOOD).replace(b"Who", b"Who\\ud83d"))
    rows, _ = read(path)
    assert rows[0].trajectory is not None
    assert "text_repaired" in [issue.kind for issue in rows[0].trajectory.issues]


def test_a_file_in_utf_16_says_so(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps(GOOD), encoding="utf-16")
    assert "UTF-16" in read(path)[1]
