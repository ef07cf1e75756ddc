"""Trajectories in other formats: nothing is lost, their own packages take them, and secrets are
found.
"""

import gzip
import json

import pytest
from agent_rows import file_of, lines_of, rollout
from pydantic import TypeAdapter
from served import invoked

from faithful_search.dialects import parse
from faithful_search.errors import ConfigError, DataError
from faithful_search.measure.audit import audit
from faithful_search.measure.comparison import compare, open_sides
from faithful_search.measure.convert import SCORED, WRITERS, convert
from faithful_search.trajectory import Citation, Evidence, Step, ToolCall, Trajectory, read_jsonl

FOUND = (
    Evidence("Vienna lies on the Danube.", "Vienna", "E1", url="https://a.org"),
    Evidence("Graz lies on the Mur.", id="E2"),
)
STEPS = (
    Step("Two searches.", ToolCall("search", {"query": "Vienna"}), FOUND),
    Step(call=ToolCall("browse", {"url": "https://b.org"}), note="404 not found", same_turn=True),
    Step("E1 says it.", helpful=True, refs=("E1",), answer="the Danube"),
)
EPISODE = Trajectory(
    STEPS, "Which river?", "the Danube", "answered", "pou", id="q/1", answers=("Danube",)
)


@pytest.fixture
def source(tmp_path):
    return file_of(tmp_path / "a.jsonl", [EPISODE.to_json(), json.dumps(rollout(3)), "{half"])


def test_a_chat_of_it_gets_the_same_scores(tmp_path):
    path = file_of(tmp_path / "a.jsonl", [rollout(n) for n in range(9)])
    audit(path, tmp_path / "before", workers=1)
    found = convert(path, tmp_path / "chat.jsonl", "openai", scores=tmp_path / "before")
    assert (found.written, found.scored, found.unread, found.secrets) == (9, 9, [], [])
    audit(tmp_path / "chat.jsonl", tmp_path / "after", workers=1)
    made = compare(open_sides([tmp_path / "before", tmp_path / "after"]))
    assert {change.value for [change] in made.differences.values()} == {0.0, None}
    assert made.rows["info_think_lexical"][1].value == 1.0


def test_the_scores_travel_with_their_rows(source, tmp_path):
    audit(source, tmp_path / "audit", workers=1)
    found = convert(
        source, tmp_path / "out.jsonl", "openai", scores=tmp_path / "audit" / "scores.jsonl"
    )
    assert (found.written, found.scored) == (2, 2)
    assert found.unread[0].startswith("row 3: not JSON")
    rows = lines_of(tmp_path / "out.jsonl")
    assert rows[0]["metadata"]["scores"]["exact_match_unicode"] == 1.0
    assert rows[0]["metadata"]["verdicts"] == {"3": {"helpful": True, "refs": ["E1"]}}
    assert rows[0]["metadata"]["gold_answers"] == ["Danube"]
    assert rows[1]["metadata"]["read_as"] == "search_r1"
    with pytest.raises(DataError, match="row 1 is not the row that was scored"):
        convert(
            file_of(tmp_path / "b.jsonl", [rollout(7)]),
            tmp_path / "b",
            "atif",
            scores=tmp_path / "audit",
        )


@pytest.mark.parametrize(("read", "written"), [("a.jsonl", "a.jsonl"), ("", "a.jsonl"), ("", "")])
def test_what_is_read_is_not_written_over(source, tmp_path, read, written):
    before = source.read_bytes()
    with pytest.raises(ConfigError, match="name another file or folder"):
        convert(tmp_path / read, tmp_path / written, "openai")
    assert source.read_bytes() == before
    assert list(tmp_path.iterdir()) == [source]


def test_a_file_is_not_written_over_by_its_own_row(source):
    path = source.rename(source.with_name("000001-q-1.jsonl"))
    with pytest.raises(ConfigError, match="name another file or folder"):
        convert(path, path.parent, "pi")


def test_a_folder_with_files_of_an_earlier_conversion_is_an_error(source, tmp_path):
    out = tmp_path / "out"
    convert(source, out, "openai")
    convert(source, out, "atif")  # the same rows: their files are replaced
    fewer = file_of(tmp_path / "b.jsonl", [EPISODE.to_json()])
    with pytest.raises(ConfigError, match=r"also holds 1 files .*000002-.*another folder"):
        convert(fewer, out, "openai")


def test_a_refused_conversion_leaves_the_folder_as_it_was(source, tmp_path):
    out = tmp_path / "out"
    convert(source, out, "openai")
    before = {path.name: path.read_bytes() for path in out.iterdir()}
    fewer = file_of(tmp_path / "b.jsonl", [EPISODE.to_json()])
    with pytest.raises(ConfigError):
        convert(fewer, out, "atif")
    assert {path.name: path.read_bytes() for path in out.iterdir()} == before


def test_a_name_that_ends_in_gz_makes_a_packed_file(source, tmp_path):
    convert(source, tmp_path / "out.jsonl", "trajectory")
    convert(source, tmp_path / "out.jsonl.gz", "trajectory")
    packed = (tmp_path / "out.jsonl.gz").read_bytes()
    assert gzip.decompress(packed) == (tmp_path / "out.jsonl").read_bytes()


@pytest.mark.parametrize(
    "name", ["out.json", "out.csv", "out.parquet", "out.ndjson.gz", "OUT.JSONL.GZ"]
)
def test_a_name_of_another_kind_of_file_makes_no_folder(source, tmp_path, name):
    with pytest.raises(ConfigError, match=r"ends in \.jsonl or \.jsonl\.gz, or a folder"):
        convert(source, tmp_path / name, "openai")
    assert not (tmp_path / name).exists()


def test_a_conversion_is_not_written_to_the_standard_output(source, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match="not written to the standard output: name a file"):
        convert(source, "-", "openai")
    assert [*tmp_path.iterdir()] == [source]


@pytest.mark.parametrize("name", ["out.jsonl", "out.jsonl.gz", "out"])
def test_where_no_row_can_be_read_nothing_is_written(tmp_path, name):
    unreadable = file_of(tmp_path / "b.jsonl", ['{"nothing": 1}', "{half"])
    conversion = convert(unreadable, tmp_path / name, "openai")
    assert len(conversion.unread) == 2
    assert not (tmp_path / name).exists()


def test_nor_is_what_was_there_replaced(tmp_path):
    unreadable = file_of(tmp_path / "b.jsonl", ["{half"])
    (tmp_path / "out.jsonl").write_text("earlier")
    convert(unreadable, tmp_path / "out.jsonl", "openai")
    assert (tmp_path / "out.jsonl").read_text() == "earlier"


def test_openais_own_types_take_the_messages(source, tmp_path):
    convert(source, tmp_path / "own.jsonl", "trajectory")
    first, second = read_jsonl(tmp_path / "own.jsonl")
    assert first.steps == EPISODE.steps
    assert second.steps == parse(rollout(3)["output"]).steps
    chat = pytest.importorskip("openai.types.chat")
    convert(source, tmp_path / "out.jsonl", "openai")
    for row in lines_of(tmp_path / "out.jsonl"):
        TypeAdapter(list[chat.ChatCompletionMessageParam]).validate_python(row["messages"])


def test_citations_of_an_api_come_out_as_they_went_in(tmp_path):
    citations = (
        Citation((0, 6), "https://a.org", "api"),
        Citation((7, 13), "doc_7", "api", "It is the Danube."),
        Citation((0, 0), "https://b.org", "api"),
    )
    steps = (Step(answer="Danube Danube", citations=citations),)
    row = Trajectory(steps, "Which river?", "Danube Danube", dialect="openai").to_json()
    convert(file_of(tmp_path / "a.jsonl", [row]), tmp_path / "out", "openai")
    (path,) = (tmp_path / "out").glob("*.json")
    assert parse(path.read_text()).steps[-1].citations == citations


def test_atifs_own_model_takes_the_documents(source, tmp_path):
    convert(source, tmp_path / "out", "atif")
    made = json.loads((tmp_path / "out" / "000001-q-1.json").read_text())
    assert [step["source"] for step in made["steps"]] == ["user", "agent", "agent"]
    turn = made["steps"][1]
    assert turn["reasoning_content"] == "Two searches."
    assert len(turn["tool_calls"]) == 2
    found, failed = turn["observation"]["results"]
    assert json.loads(found["content"])[0]["url"] == "https://a.org"
    assert failed == {"source_call_id": "call_2", "content": "404 not found"}
    pytest.importorskip("atif").Trajectory.model_validate(made)


def test_a_pi_session_is_a_chain_of_messages_with_scores(source, tmp_path):
    convert(source, tmp_path / "out", "pi")
    header, *entries = lines_of(tmp_path / "out" / "000001-q-1.jsonl")
    assert (header["type"], header["version"], header["id"]) == ("session", 3, "q/1")
    assert [entry["parentId"] for entry in entries] == [
        None,
        *(entry["id"] for entry in entries[:-1]),
    ]
    messages = [entry["message"] for entry in entries[:-1]]
    assert [message["role"] for message in messages] == [
        "user",
        "assistant",
        "toolResult",
        "toolResult",
        "assistant",
    ]
    assert [part["type"] for part in messages[1]["content"]] == ["thinking", "toolCall", "toolCall"]
    assert [message.get("isError") for message in messages[2:4]] == [False, True]
    assert entries[-1]["type"] == "custom"
    assert entries[-1]["data"]["gold_answers"] == ["Danube"]
    with pytest.raises(ConfigError, match="name a folder"):
        convert(source, tmp_path / "out.jsonl", "pi")


@pytest.mark.parametrize("to", sorted(set(WRITERS) - set(SCORED)))
def test_keys_are_counted_and_on_request_taken_out(tmp_path, monkeypatch, to):
    monkeypatch.chdir(tmp_path)
    key = "hf_" + "a1B2" * 8
    told = {**rollout(0), "output": rollout(0)["output"].replace("stands in", f"({key}) stands in")}
    file_of(tmp_path / "a.jsonl", [rollout(1), told, "{half"])
    for flags, said in (
        ([], "are still there: --scrub takes them out"),
        (["--scrub"], "were taken out"),
    ):
        done = invoked("convert", "a.jsonl", "out", "--to", to, *flags)
        assert done.exit_code == 3
        assert f"2 trajectories as {to}" in done.stdout
        assert f"in rows 2, {said}" in done.stderr
        assert "row 3: not JSON" in done.stderr
        assert any(key in path.read_text() for path in (tmp_path / "out").iterdir()) is not bool(
            flags
        )
