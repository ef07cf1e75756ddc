"""Files of trajectories as people have them: every layout, every way to be broken."""

import json
from pathlib import Path

import pytest
from agent_rows import file_of
from hypothesis import given, settings, strategies as st

from faithful_search.dialects import load
from faithful_search.errors import DataError, DialectError
from faithful_search.measure.rows import READER, Raw, Reader, Source, read_trajectories
from faithful_search.tasks import gold_answers
from faithful_search.trajectory import Evidence, Step, ToolCall, Trajectory

TEXT = (
    "<think>I look it up.</think>\n<search>where is the lighthouse</search>\n"
    "<information>Doc 1(Title: Lighthouse) It stands in Orvik.</information>\n"
    "<think>It stands in Orvik.</think>\n<answer>Orvik</answer>"
)
ROW = {
    "id": "q1",
    "question": "Where is the lighthouse?",
    "output": TEXT,
    "golden_answers": ["Orvik"],
}


def parquet(path: Path, rows: list[dict]) -> Path:
    table = pytest.importorskip("pyarrow").Table.from_pylist(rows)
    pytest.importorskip("pyarrow.parquet").write_table(table, path, row_group_size=2)
    return path


@pytest.mark.parametrize(
    "name", ["a.jsonl", "A.JSONL", "a.jsonl.gz", "a.json", "a.json.gz", "a.parquet"]
)
def test_every_layout_gives_the_same_trajectories(tmp_path, name):
    rows = [{**ROW, "id": f"q{number}"} for number in range(5)]
    if name.endswith(".parquet"):
        path = parquet(tmp_path / name, rows)
    else:
        path = file_of(
            tmp_path / name, rows if ".jsonl" in name.lower() else [json.dumps(rows, indent=2)]
        )
    found = list(read_trajectories(path, "search_r1"))
    assert [row.number for row in found] == [1, 2, 3, 4, 5] and len(
        {row.digest for row in found}
    ) == 5
    assert [row.trajectory for row in found] == [
        Reader("search_r1").parse(json.dumps(row).encode()) for row in rows
    ]
    first = found[0].trajectory
    assert (first.question, first.answer, first.answers, first.id) == (
        ROW["question"],
        "Orvik",
        ("Orvik",),
        "q0",
    )


def test_a_trajectorys_own_json_comes_back_whole_in_any_column_and_dialects_may_be_mixed(tmp_path):
    found = (Evidence("It is in Orvik.", id="E1"),)
    search = Step(think="Look.", call=ToolCall("search", {"query": "x"}), evidence=found)
    last = Step(think="Orvik.", helpful=True, refs=("E1",), answer="Orvik")
    own = Trajectory((search, last), "Where?", "Orvik", dialect="pou", answers=("Orvik",))
    plain = json.loads(own.to_json())
    path = file_of(
        tmp_path / "a.jsonl",
        [own.to_json(), {**plain, "reward": 0.5}, {"trajectory": plain, "id": "x"}],
    )
    first, second, third = (row.trajectory for row in read_trajectories(path))
    assert first == second == own and (third.id, third.steps) == ("x", own.steps)
    mixed = [
        {"text": TEXT},
        {"text": load("pou").render(own)},
        {"text": TEXT, "dialect": "search_r1"},
    ]
    found = [
        row.trajectory.dialect for row in read_trajectories(file_of(tmp_path / "b.jsonl", mixed))
    ]
    assert found == ["search_r1", "pou", "search_r1"]


def test_messages_are_read_also_when_they_were_stored_as_text_or_split_into_prompt_and_completion():
    user, assistant = (
        [{"role": role, "content": text}]
        for role, text in (("user", "Where?"), ("assistant", TEXT))
    )
    for row in (
        {"messages": json.dumps([*user, *assistant])},
        {"prompt": user, "completion": assistant},
        {"prompt": user, "completion": json.dumps(assistant)},
    ):
        found = Reader("search_r1").parse(json.dumps(row).encode())
        assert (found.question, found.answer) == ("Where?", "Orvik")


def test_broken_rows_are_named_and_never_end_the_run(tmp_path):
    bad = {
        '{"text": "half': "not JSON",
        "[1, 2]": "found list",
        '{"question": "Where?"}': "it has: question",
        '{"text": "  "}': "no column",
        json.dumps({"text": TEXT, "dialect": "klingon"}): "unknown dialect 'klingon'",
        '{"text": "nothing that any agent writes"}': "no dialect fits",
        '{"steps": [{"think": 3}]}': "not a trajectory",
        json.dumps(ROW)[:40]: "seems cut off",
    }
    path = file_of(tmp_path / "a.jsonl", [ROW, *bad])
    path.write_bytes(path.read_bytes().rstrip())  # the last one is half a line
    first, *broken = read_trajectories(path)
    assert first.trajectory is not None
    for number, (row, expected) in enumerate(zip(broken, bad.values(), strict=True), start=2):
        assert (row.number, row.trajectory) == (number, None) and expected in row.error


def test_what_strict_json_forbids_is_read_nevertheless():
    text = json.dumps({"text": TEXT, "score": float("nan"), "note": "half an emoji \ud83d"})
    assert Reader("search_r1").parse(text.encode()).answer == "Orvik"
    assert Reader("search_r1").parse(b"\xef\xbb\xbf" + text.encode()).answer == "Orvik"
    with pytest.raises(DataError, match="not JSON"):
        READER.parse(b'{"text": "\xff\xfe"}\n')
    with pytest.raises(DataError):
        READER.parse(b"[" * 200_000 + b"\n")


def test_the_question_may_stand_in_the_prompt_and_the_text_in_a_named_column(tmp_path):
    asked = "Answer the given question. For example, <answer> Beijing </answer>. Question: where is it?\n"
    chat = [{"role": "user", "content": asked}]
    for prompt in (asked, chat, f"<|im_start|>user\n{asked}<|im_end|>\n<|im_start|>assistant\n"):
        found = Reader("search_r1").parse(json.dumps({"prompt": prompt, "response": TEXT}).encode())
        assert (found.question, found.answer) == ("where is it?", "Orvik")
    path = file_of(tmp_path / "a.jsonl", [{"text": "not this", "mine": TEXT}, {"text": TEXT}])
    first, second = read_trajectories(path, "search_r1", text_column="mine")
    assert (first.trajectory.answer, first.trajectory.question) == ("Orvik", None)
    assert second.error == "no column 'mine' with text; it has: text"


ANSWERS = [
    ("['late 1967' '1967']", ("late 1967", "1967")),
    ("['a', \"b's\"]", ("a", "b's")),
    ("['September\\xa017']", ("September\xa017",)),
    ("[sic] a title", ("[sic] a title",)),
    ([["x"], "y"], ("x", "y")),
    ({"target": ["x"]}, ("x",)),
    ("x<|answer_split|>y", ("x", "y")),
    (None, ()),
]


@pytest.mark.parametrize(("value", "expected"), ANSWERS)
def test_gold_answers_however_they_were_stored(value, expected):
    assert gold_answers(value) == expected


@given(st.lists(st.text(max_size=20), max_size=4))
def test_printed_lists_of_any_text_come_back(answers):
    assert gold_answers(str(answers)) == tuple(answers)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.jsonl", b"\n \n", "no rows in it"),
        ("a.json", b"[]", "no rows in it"),
        ("a.csv", b"a,b\n", r"expected \.jsonl"),
        ("a.jsonl.gz", b"this is no gzip", "cannot read"),
        ("a.parquet", b"this is no parquet", "cannot read"),
        ("a.json", b'[{"text": "x"},', "not closed after row 1"),
        ("a.json", b'[{"text": "x"}] [1]', "text after the end"),
        ("none.jsonl", None, "cannot read"),
        ("none.parquet", None, "cannot read"),
    ],
)
def test_files_that_cannot_be_read_say_why(tmp_path, name, content, message):
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=message) as error:
        list(read_trajectories(tmp_path / name))
    assert name in str(error.value)
    with pytest.raises(DataError, match="not on this machine: download it first"):
        list(read_trajectories(f"https://host/{name}"))
    with pytest.raises(DialectError, match="klingon"):
        list(read_trajectories(tmp_path / name, "klingon"))


def test_a_data_set_of_the_hub_is_downloaded(tmp_path, monkeypatch):
    asked = []

    def download(name, **options):
        asked.append((name, options["revision"], options["allow_patterns"][0]))
        if name == "x/none":
            raise OSError("secret")
        return str(tmp_path)

    monkeypatch.setattr("huggingface_hub.snapshot_download", download)
    (tmp_path / "runs").mkdir()
    file_of(tmp_path / "runs" / "a.jsonl", [ROW])
    for address in (
        "hf://datasets/x/y",
        "hf://datasets/x/y@main/runs",
        "hf://datasets/x/y/runs/a.jsonl",
    ):
        assert len(list(read_trajectories(address))) == 1
    assert asked == [
        ("x/y", None, "*.jsonl"),
        ("x/y", "main", "runs"),
        ("x/y", None, "runs/a.jsonl"),
    ]
    with pytest.raises(DataError, match=r"no b.jsonl in that data set"):
        list(read_trajectories("hf://datasets/x/y/b.jsonl"))
    with pytest.raises(DataError, match=r"cannot download hf://datasets/x/none: OSError\Z"):
        list(read_trajectories("hf://datasets/x/none"))


OBJECTS = st.dictionaries(
    st.text(max_size=5), st.text(alphabet='ab"\\{}[],\u00e9', max_size=8), max_size=3
)


@settings(max_examples=40)
@given(st.lists(OBJECTS, min_size=1), st.sampled_from([None, 2]), st.booleans())
def test_an_arrays_elements_are_found_whatever_they_hold(tmp_path_factory, rows, indent, array):
    text = (
        json.dumps(rows, indent=indent)
        if array
        else "\n".join(json.dumps(row, indent=indent) for row in rows)
    )
    path = tmp_path_factory.mktemp("array") / "a.json"
    path.write_text(text)
    assert [json.loads(raw.data) for raw in Source(path)] == rows


def test_an_array_is_read_up_to_an_element_that_is_broken(tmp_path):
    path = tmp_path / "a.json"
    for broken in ('{"text": nonsense}', "[" * 200_000, f"{json.dumps(ROW)[:40]}"):
        path.write_text(
            f"[{json.dumps(ROW)}, 3, {broken}, {json.dumps(ROW)}]", encoding="utf-8-sig"
        )
        source = Source(path)
        assert [bool(source.reader(raw).error) for raw in source] == [False, True]
        assert "a.json: row 3 is not JSON" in source.error


@given(st.text(max_size=200), st.sampled_from([None, "pou", "search_r1"]))
def test_no_row_raises_anything_else_than_the_errors_of_this_package(text, dialect):
    for data in (text.encode("utf-8", "replace"), json.dumps({"text": text}).encode()):
        row = Reader(dialect)(Raw(1, "", data))
        assert (row.trajectory is None) == bool(
            row.error
        ) and "could not be parsed" not in row.error
