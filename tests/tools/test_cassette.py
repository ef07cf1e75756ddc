"""Cassettes: recorded once, replayed for ever, and no key in them."""

import asyncio
import gzip
import json
import logging
import os
import pickle
import subprocess
import sys
from itertools import repeat
from unittest.mock import AsyncMock

import pytest

from faithful_search.errors import ConfigError, DataError, ToolError
from faithful_search.tools.base import Partial
from faithful_search.tools.cassette import Cassette, CassetteMiss
from faithful_search.trajectory import Evidence

PARIS = Evidence(
    "Paris is the capital.",
    title="Paris",
    url="https://paris.example/a",
    source="web",
    score=0.1 + 0.2,
)
KEY = "sk-9f/8+Aé=&7d"


def gives(result):
    """A tool: what it returns, or raises."""
    return AsyncMock(side_effect=repeat(result))


FOUND, FORBIDDEN = gives([PARIS]), gives(AssertionError("the tool was asked"))


def play(cassette, arguments, live=FORBIDDEN, tool="search"):
    return asyncio.run(cassette.play(tool, arguments, live))


def record(path, *queries):
    with Cassette(path, "record") as cassette:
        for query in queries:
            play(cassette, {"query": query}, FOUND)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "deep" / "calls.jsonl"


def test_a_recorded_call_is_replayed_equal_without_its_tool(path):
    hostile = Evidence(
        "a\u2028b\nc\x00 \ud800 é 漢字 </tool_response>", title='"{', score=float("1e-300")
    )
    assert play(Cassette(path, "record"), {"query": "x"}, gives([PARIS, hostile])) == [
        PARIS,
        hostile,
    ]
    packed = path.with_suffix(".jsonl.gz")
    packed.write_bytes(gzip.compress(path.read_bytes()))
    copy = pickle.loads(pickle.dumps(Cassette(path)))
    for again in (Cassette(path), Cassette(path, "record"), Cassette(packed), copy):
        assert play(again, {"query": "x"}) == [PARIS, hostile]


def test_arguments_that_differ_are_different_calls(path):
    calls = [{"q": value} for value in ("x", "X", "x ", ["x"], "1", 1, "", {"x": None})]
    calls += [{}, {"q": "\ud800", "n": [0.1, {}]}]
    cassette = Cassette(path, "record")
    for number, arguments in enumerate(calls):
        play(cassette, arguments, gives([Evidence(str(number))]))
    play(cassette, calls[0], gives([Evidence("another tool's")]), tool="browse")
    replay = Cassette(path)
    turned = [dict(reversed([*arguments.items(), ("never_given", None)])) for arguments in calls]
    assert [play(replay, arguments)[0].text for arguments in turned] == [
        str(n) for n in range(len(calls))
    ]
    assert play(replay, {"q": "x"}, tool="browse")[0].text == "another tool's"
    assert len(replay) == len(calls) + 1


def test_only_definite_errors_are_recorded(path):
    cassette = Cassette(path, "record")
    with pytest.raises(ToolError, match="no page there"):
        play(cassette, {"url": "x"}, gives(ToolError("404: no page there")))
    busy, miss = (
        ToolError("busy", transient=True, retry_after=3.0),
        CassetteMiss("not in another cassette"),
    )
    for error in (busy, miss, TimeoutError(), ConnectionResetError(), KeyError(1)):
        with pytest.raises(type(error)) as caught:
            play(cassette, {"url": "y"}, gives(error))
        assert caught.value is error
    assert play(cassette, {"url": "y"}, gives(Partial([PARIS]))) == [PARIS]
    replay = Cassette(path)
    with pytest.raises(ToolError) as again:
        play(replay, {"url": "x"})
    assert str(again.value) == "404: no page there"
    assert type(again.value) is ToolError
    assert not again.value.transient
    assert len(replay) == 1
    assert play(cassette, {"url": "y"}, gives([])) == []
    assert play(Cassette(path), {"url": "y"}) == []  # that nothing is found is a result


def test_a_miss_shows_the_nearest_call(path):
    record(path, "Eiffel tower, height", "Aare, length", "capital city of France", "word " * 2000)
    with pytest.raises(CassetteMiss) as miss:
        play(Cassette(path), {"query": "capital city of Frnace", "site": "x"})
    said = str(miss.value)
    assert '{"query": "capital city of France"}' in said
    assert '"capital city of Frnace"' in said
    assert "calls.jsonl" in said
    assert "record it once" in said
    assert str(path.parent) not in said
    with pytest.raises(CassetteMiss, match=r"No call of this tool is recorded; recorded: search\."):
        play(Cassette(path), {"url": "x"}, tool="browse")
    with pytest.raises(CassetteMiss) as miss:
        play(Cassette(path), {"query": "301 " + "word " * 200_000})
    assert len(str(miss.value)) < 500


RECORD = """
import asyncio, sys; from faithful_search.tools.cassette import Cassette
from faithful_search.trajectory import Evidence
async def live(): return [Evidence(sys.argv[2] * 9000)]
with Cassette(sys.argv[1], 'record') as cassette:
    for n in range(30):
        asyncio.run(cassette.play('own', {'n': n, 'who': sys.argv[2]}, live))
        assert len(asyncio.run(cassette.play('common', {'n': n}, live))[0].text) == 9000
        if n % 10 == 0: cassette.close()  # sorts the file while others write
assert cassette.unrecorded == 0
"""


def test_processes_record_into_one_file(path):
    running = [subprocess.Popen([sys.executable, "-c", RECORD, str(path), name]) for name in "ab"]
    assert [process.wait() for process in running] == [0, 0]
    assert len(path.read_text().splitlines()) == len(Cassette(path)) == 30 * 3
    assert os.listdir(path.parent) == ["calls.jsonl"]


def test_a_recording_does_not_depend_on_the_order(tmp_path):
    files = [tmp_path / "a.jsonl", tmp_path / "b.jsonl"]
    (tmp_path / "link.jsonl").symlink_to(files[1])
    calls = [
        ("search", {"query": "x", "k": 1}),
        ("browse", {"url": "u"}),
        ("search", {"query": "a"}),
    ]
    turned = [(tool, dict(reversed(arguments.items()))) for tool, arguments in reversed(calls)]
    for file, order in ((files[0], calls), (tmp_path / "link.jsonl", turned)):
        with Cassette(file, "record") as cassette:
            for tool, arguments in order:
                play(cassette, arguments, FOUND, tool)
    assert files[0].read_bytes() == files[1].read_bytes()
    assert (tmp_path / "link.jsonl").is_symlink()
    lines = map(json.loads, files[0].read_text().splitlines())
    assert [line["tool"] for line in lines] == ["browse", "search", "search"]


def test_a_recording_that_was_killed_goes_on(path):
    cassette = Cassette(path, "record")
    play(cassette, {"query": "x"}, FOUND)
    assert len(Cassette(path)) == 1  # not closed yet
    with path.open("ab") as file:
        file.write(b'{"tool":"search","arguments":{"query":"cut sho')
    with pytest.raises(DataError, match=r"calls\.jsonl, line 2"):
        Cassette(path)
    again = Cassette(path, "record")
    assert play(again, {"query": "x"}) == [PARIS]
    play(again, {"query": "y"}, FOUND)
    path.write_bytes(path.read_bytes().rstrip(b"\n"))  # cut in the same place, a line may be whole
    assert play(Cassette(path), {"query": "y"}) == [PARIS]
    record(path, "z")
    assert len(Cassette(path)) == 3


DAMAGED = [
    b"<<<<<<< HEAD",
    b'{"tool": "search"}',
    b'{"tool": "\xff", "arguments": {}, "evidence": []}',
    b"[" * 100_000,
]
RESTS = [b"{}}", b'{}, "evidence": [], "error": "x"}', b'{}, "evidence": [{"title": "no text"}]}']
RESTS += [b'{}, "evidence": [], "more": 1}', b'[], "evidence": []}']
DAMAGED += [b'{"tool": "search", "arguments": %s' % rest for rest in RESTS]


@pytest.mark.parametrize("line", DAMAGED)
@pytest.mark.parametrize("mode", ["replay", "record"])
def test_a_damaged_line_is_named_and_left_alone(path, line, mode):
    record(path, "x")
    damaged = path.read_bytes() + b"\n" + line + b"\n"
    path.write_bytes(damaged)
    with pytest.raises(DataError, match=r"calls\.jsonl, line 3"):
        Cassette(path, mode)
    assert path.read_bytes() == damaged


def test_a_missing_file_a_folder_and_wrong_settings_are_named(tmp_path):
    with pytest.raises(
        DataError, match=r'record it once with Cassette\(".*none\.jsonl", mode="record"\)'
    ):
        Cassette(tmp_path / "none.jsonl")
    assert not list(tmp_path.iterdir())
    for mode in ("replay", "record"):
        with pytest.raises(DataError, match=str(tmp_path)):
            Cassette(tmp_path, mode)
    for name, mode, told in (
        ("x.jsonl", "auto", "replay, record"),
        ("x.jsonl.gz", "record", "compress it"),
    ):
        with pytest.raises(ConfigError, match=told):
            Cassette(tmp_path / name, mode)


def test_a_result_that_cannot_be_written_is_still_returned(path, caplog):
    cassette = Cassette(path, "record")
    path.unlink()
    path.parent.rmdir()
    path.parent.write_text("in the way")
    with caplog.at_level(logging.WARNING):
        for query in "xy":
            assert play(cassette, {"query": query}, FOUND) == [PARIS]
    assert cassette.unrecorded == 2
    assert [record.message.count("no longer recorded") for record in caplog.records] == [1]


def test_a_write_that_fails_half_way_leaves_the_file_as_it_was(path):
    resource = pytest.importorskip("resource")
    cassette, long = Cassette(path, "record"), [Evidence("x" * 5000)]
    play(cassette, {"n": 1}, gives(long))
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (8000, limits[1]))
    try:
        assert play(cassette, {"n": 2}, gives(long)) == long
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert cassette.unrecorded == 1
    assert len(Cassette(path)) == 1


def test_a_key_reaches_neither_file_nor_log_nor_message(path, monkeypatch, caplog):
    monkeypatch.setenv("SERPER_API_KEY", KEY)
    encoded = ["sk-9f%2F8%2BA%C3%A9%3D%267d", "sk-9f%2f8%2bA%c3%a9%3d%267d"]
    spread = f"a{KEY}b {encoded[0]} {encoded[1]} https://me:{KEY}@h/?key={KEY}"
    dirty = Evidence(spread, title=spread, url=f"https://x.example/?q=1&k={KEY}", source=KEY)
    cassette, call = Cassette(path, "record"), {"query": spread, KEY: {"deep": [KEY]}}
    with caplog.at_level(logging.DEBUG):
        recorded = play(cassette, call, gives([dirty]), tool=f"t{KEY}")
        with pytest.raises(ToolError) as error:
            play(cassette, {"query": "bad"}, gives(ToolError(f"401 for {spread}")))
        cassette.close()
        with pytest.raises(CassetteMiss) as miss:
            play(Cassette(path), {"query": f"not there {KEY}"})
    everything = (
        path.read_text() + caplog.text + str(miss.value) + str(error.value) + repr(recorded)
    )
    assert "[secret]" in everything
    for form in (KEY, *encoded, "sk-9f", json.dumps(KEY)[1:-1]):
        assert form not in everything
    assert play(Cassette(path), call, tool=f"t{KEY}") == recorded
    assert recorded[0].text == "a[secret]b [secret] [secret] https://[secret]@h/?key=[secret]"
