"""Files of trajectories as people have them: every layout, every way to be broken."""

import csv
import gzip
import io
import json
import re
from pathlib import Path
from unittest.mock import Mock

import httpx2
import pytest
from agent_rows import file_of
from huggingface_hub import errors
from hypothesis import given, settings, strategies as st

from faithful_search.dialects import load
from faithful_search.errors import DataError, DialectError
from faithful_search.reading.files import total_rows
from faithful_search.reading.rows import READER, Raw, Reader, RowSource, read_trajectories
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
    "name", ["a.jsonl", "A.JSONL", "a.jsonl.gz", "A.JSONL.GZ", "a.json", "a.json.gz", "a.parquet"]
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
    assert [row.number for row in found] == [1, 2, 3, 4, 5]
    assert len({row.digest for row in found}) == 5
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


def test_a_trajectorys_own_json_is_read_from_any_column(tmp_path):
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
    assert first == second == own
    assert (third.id, third.steps) == ("x", own.steps)
    mixed = [
        {"text": TEXT},
        {"text": load("pou").render(own)},
        {"text": TEXT, "dialect": "search_r1"},
    ]
    found = [
        row.trajectory.dialect for row in read_trajectories(file_of(tmp_path / "b.jsonl", mixed))
    ]
    assert found == ["search_r1", "pou", "search_r1"]


@pytest.mark.parametrize(
    ("beside", "gold"), [({}, ()), ({"answers": ["Orvik"]}, ("Orvik",)), ({"gt": "Gal"}, ("Gal",))]
)
def test_a_trajectorys_answer_is_no_gold_answer(beside, gold):
    unknown = Trajectory((Step(answer="Veldt"),), "Where?", "Veldt", dialect="pou")
    row = {**json.loads(unknown.to_json()), **beside}
    trajectory, _ = READER.read_row(row)
    assert trajectory.answers == gold


def test_messages_are_read_from_text_and_from_split_columns():
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
        assert (row.number, row.trajectory) == (number, None)
        assert expected in row.error


def test_what_strict_json_forbids_is_read_nevertheless():
    text = json.dumps({"text": TEXT, "score": float("nan"), "note": "half an emoji \ud83d"})
    assert Reader("search_r1").parse(text.encode()).answer == "Orvik"
    assert Reader("search_r1").parse(b"\xef\xbb\xbf" + text.encode()).answer == "Orvik"
    latin = json.dumps({"text": TEXT.replace("Orvik", "Örvik")}, ensure_ascii=False)
    assert Reader("search_r1").parse(latin.encode("latin-1")).answer == "?rvik"
    with pytest.raises(DataError):
        READER.parse(b"[" * 200_000 + b"\n")


def test_prompts_hold_questions_and_named_columns_texts(tmp_path):
    asked = "Answer the given question. For example, <answer> Beijing </answer>. Question: where is it?\n"
    chat = [{"role": "user", "content": asked}]
    for prompt in (asked, chat, f"<|im_start|>user\n{asked}<|im_end|>\n<|im_start|>assistant\n"):
        found = Reader("search_r1").parse(json.dumps({"prompt": prompt, "response": TEXT}).encode())
        assert (found.question, found.answer) == ("where is it?", "Orvik")
    path = file_of(tmp_path / "a.jsonl", [{"text": "not this", "mine": TEXT}, {"text": TEXT}])
    first, second = read_trajectories(path, "search_r1", text_column="mine")
    assert (first.trajectory.answer, first.trajectory.question) == ("Orvik", None)
    assert second.error == "no column 'mine' with text; it has: text"


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.jsonl", b"\n \n", "no rows in it"),
        ("a.json", b"[]", "no rows in it"),
        ("a.txt", b"a,b\n", r"expected \.jsonl"),
        ("a.csv", b"question,output\n", "no rows in it"),
        ("a.csv", b'question,output\n"Where?', "unexpected end of data"),
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


@pytest.mark.parametrize("name", ["a.jsonl", "a.json", "a.md"])
def test_a_packed_file_without_gz_in_its_name_is_unpacked(tmp_path, name):
    path = file_of(tmp_path / name, [ROW])
    plain = [row.trajectory for row in read_trajectories(path)]
    path.write_bytes(gzip.compress(path.read_bytes()))
    assert [row.trajectory for row in read_trajectories(path)] == plain


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


def hub_error(kind, status=404):
    """An error as the Hub's client raises it."""
    response = httpx2.Response(status, request=httpx2.Request("GET", "https://hub"))
    return kind("secret", response=response)


def not_in_cache(cause):
    error = errors.LocalEntryNotFoundError("secret")
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    ("error", "why"),
    [
        (hub_error(errors.RepositoryNotFoundError), "there is no data set x/y, or it is private"),
        (hub_error(errors.GatedRepoError, 403), "it is gated: ask for access at https://"),
        (hub_error(errors.RevisionNotFoundError), "x/y has no such revision"),
        (hub_error(errors.HfHubHTTPError, 401), r"the Hub refused access \(401\): log in"),
        (hub_error(errors.HfHubHTTPError, 503), "the Hub answered with status 503; try again"),
        (not_in_cache(hub_error(errors.GatedRepoError, 403)), "it is gated"),
        (not_in_cache(errors.OfflineModeIsEnabled("secret")), "it is not in the cache, and HF_HUB"),
        (not_in_cache(httpx2.ConnectError("secret")), "the Hub cannot be reached"),
        (errors.HFValidationError("secret"), "expected hf://datasets/OWNER/NAME"),
    ],
)
def test_what_the_hub_does_not_give_is_told_with_its_cause(monkeypatch, error, why):
    monkeypatch.setattr("huggingface_hub.snapshot_download", Mock(side_effect=error))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    with pytest.raises(DataError, match=f"cannot download hf://datasets/x/y: {why}") as told:
        list(read_trajectories("hf://datasets/x/y"))
    assert "secret" not in str(told.value)


def table(rows, delimiter=","):
    """The rows as a table that spreadsheets write."""
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, rows[0], delimiter=delimiter)
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue().encode("utf-8-sig")


ASKED = {"question": "Where, then; and when?", "answers": '["Orvik", "the town"]', "output": TEXT}


@pytest.mark.parametrize(
    ("name", "delimiter"), [("a.csv", ","), ("a.CSV", ";"), ("a.tsv", "\t"), ("a.csv.gz", ",")]
)
def test_tables_are_read(tmp_path, name, delimiter):
    data = table([ASKED, ASKED], delimiter)
    (tmp_path / name).write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
    _, second = read_trajectories(tmp_path / name)
    assert second.trajectory.question == ASKED["question"]
    assert second.trajectory.answer == "Orvik"
    assert second.trajectory.answers == ("Orvik", "the town")


def test_a_cell_of_a_table_may_hold_a_chat(tmp_path):
    chat = [{"role": "user", "content": "Where?"}, {"role": "assistant", "content": "Orvik"}]
    (tmp_path / "a.csv").write_bytes(table([{"id": 7, "messages": json.dumps(chat)}]))
    [row] = read_trajectories(tmp_path / "a.csv")
    assert row.trajectory.answer == "Orvik"


def test_a_cell_of_a_table_may_be_long(tmp_path):
    (tmp_path / "a.csv").write_bytes(table([{**ASKED, "notes": "x" * 200_000}]))
    [row] = read_trajectories(tmp_path / "a.csv")
    assert row.trajectory.answer == "Orvik"


@pytest.mark.parametrize("line", [b"only a question\n", b"Where,then,<answer>x</answer>,more\n"])
def test_a_row_with_other_cells_than_names_is_left_out(tmp_path, line):
    (tmp_path / "a.csv").write_bytes(table([ASKED]) + line + table([ASKED]).split(b"\n", 1)[1])
    first, second, third = read_trajectories(tmp_path / "a.csv")
    assert re.match(r"\d cells under 3 names of columns: is a .* missing\?", second.error)
    assert first.trajectory == third.trajectory


def test_a_row_whose_columns_of_one_name_differ_is_left_out(tmp_path):
    header, line = table([ASKED]).rstrip().split(b"\r\n")
    doubtful = [header + b",answers", line + b",elsewhere", line + b',"[""Orvik"", ""the town""]"']
    (tmp_path / "a.csv").write_bytes(b"\r\n".join(doubtful))
    first, second = read_trajectories(tmp_path / "a.csv")
    assert "columns called 'answers' that differ" in first.error
    assert second.trajectory.answers == ("Orvik", "the town")


def columns_twice(tmp_path, name: str, first: str, second: str):
    """The row of a table that has the columns of `ASKED` and two of one name."""
    path = tmp_path / "a.csv"
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow([*ASKED, name, name])
        writer.writerow([*ASKED.values(), first, second])
    [row] = read_trajectories(path)
    return row


def test_columns_of_one_name_that_are_not_read_may_differ(tmp_path):
    row = columns_twice(tmp_path, "cost", "1", "2")
    assert row.trajectory.answer == "Orvik"


@pytest.mark.parametrize("name", ["id", "gold_answers", "messages", "metadata"])
def test_columns_of_one_name_that_are_read_may_not(tmp_path, name):
    values = {
        "messages": ('[{"role": "assistant", "content": "a"}]', "none"),
        "metadata": ('{"gold_answer": "Orvik"}', '{"gold_answer": "Veldt"}'),
    }
    row = columns_twice(tmp_path, name, *values.get(name, ("1", "2")))
    assert f"columns called {name!r} that differ" in row.error


def test_a_row_with_very_many_columns_of_one_name_is_left_out(tmp_path):
    header = ",".join(["output", *["cost"] * 200])
    line = ",".join(["<answer>x</answer>", *map(str, range(200))])
    (tmp_path / "a.csv").write_text(f"{header}\n{line}\n")
    [row] = read_trajectories(tmp_path / "a.csv")
    assert "199 columns differ from one of the same name" in row.error


def test_very_many_columns_without_a_name_may_differ(tmp_path):
    header = ",".join(["output", *[""] * 200])
    line = ",".join(["<answer>x</answer>", *map(str, range(200))])
    (tmp_path / "a.csv").write_text(f"{header}\n{line}\n")
    [row] = read_trajectories(tmp_path / "a.csv")
    assert row.error == ""


@pytest.mark.parametrize("values", [("", "7"), ("7", "")])
def test_of_columns_of_one_name_the_filled_one_counts(tmp_path, values):
    assert columns_twice(tmp_path, "id", *values).trajectory.id == "7"


def test_columns_without_a_name_may_differ(tmp_path):
    (tmp_path / "a.csv").write_bytes(b"output,,\n<answer>x</answer>,1,2\n")
    [row] = read_trajectories(tmp_path / "a.csv")
    assert row.trajectory.answer == "x"


def test_rows_are_counted_in_a_folder_that_is_called_like_a_file(tmp_path):
    (tmp_path / "a.parquet").mkdir()
    parquet(tmp_path / "a.parquet" / "part-0.parquet", [ROW, ROW, ROW])
    assert total_rows([tmp_path / "a.parquet"], limit=None) == 3


def test_rows_of_a_file_that_cannot_be_read_are_not_counted(tmp_path):
    pytest.importorskip("pyarrow.parquet")
    (tmp_path / "a.parquet").write_bytes(b"this is no parquet")
    assert total_rows([tmp_path / "a.parquet"], limit=None) is None


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
    assert [json.loads(raw.data) for raw in RowSource(path)] == rows


def test_an_array_is_read_up_to_an_element_that_is_broken(tmp_path):
    path = tmp_path / "a.json"
    for broken in ('{"text": nonsense}', "[" * 200_000, f"{json.dumps(ROW)[:40]}"):
        path.write_text(
            f"[{json.dumps(ROW)}, 3, {broken}, {json.dumps(ROW)}]", encoding="utf-8-sig"
        )
        source = RowSource(path)
        assert [bool(source.reader(raw).error) for raw in source] == [False, True]
        assert "a.json: row 3 is not JSON" in source.error


@given(st.text(max_size=200), st.sampled_from([None, "pou", "search_r1"]))
def test_rows_raise_only_the_packages_errors(text, dialect):
    for data in (text.encode("utf-8", "replace"), json.dumps({"text": text}).encode()):
        row = Reader(dialect)(Raw(1, "", data))
        assert (row.trajectory is None) == bool(row.error)
        assert "could not be parsed" not in row.error


OPENAI = [{"role": "user", "content": "Where?"}, {"role": "assistant", "content": "Veldt"}]


@pytest.mark.parametrize(
    ("row", "text", "question", "gold"),
    [
        ({"output": TEXT, "query": "Where?", "gt": "Orvik"}, "output", "query", "gt"),
        ({"messages": OPENAI}, "messages", "messages", ""),
        ({"run": OPENAI, "ground_truth": "Veldt"}, "run", "run", "ground_truth"),
        ({"run": json.dumps(OPENAI)}, "run", "run", ""),
        ({"prompt": "Question: where?", "text": TEXT}, "text", "prompt", ""),
    ],
)
def test_rows_say_what_was_taken_from_where(tmp_path, row, text, question, gold):
    [read] = read_trajectories(file_of(tmp_path / "a.jsonl", [row]))
    assert read.taken == {"text": text, "question": question, "gold": gold}


@pytest.mark.parametrize(
    ("row", "unused"),
    [
        ({"output": TEXT, "label": True, "respuesta": "x", "uid": 3}, "label, respuesta"),
        ({"output": TEXT, "logs": {"a": 1}, "note": "x" * 400}, None),
        ({"output": TEXT, "question": "?", "answer": "a", "split": "dev"}, None),
    ],
)
def test_columns_that_may_hold_what_is_missing_are_named(row, unused):
    _, taken = READER.read_row(row)
    assert taken.get("unused") == unused


def test_named_columns_win_over_usual_names():
    row = {"output": TEXT, "question": "?", "answers": ["x"], "q": "Where?", "right": "y", "n": 3}
    reader = Reader(question_column="q", gold_column="right", id_column="n")
    trajectory = reader.parse(json.dumps(row).encode())
    assert trajectory.question == "Where?"
    assert trajectory.answers == ("y",)
    assert trajectory.id == "3"


@pytest.mark.parametrize("gold_column", [None, "right"])
def test_the_id_of_a_stored_trajectory_may_be_named(gold_column):
    row = {**json.loads(Trajectory((Step(answer="Veldt"),), id="q1").to_json()), "right": "y"}
    trajectory, _ = Reader(id_column="id", gold_column=gold_column).read_row(row)
    assert trajectory.id == "q1"


@pytest.mark.parametrize("name", ["response", "output", "trajectory"])
def test_objects_of_no_known_format_are_refused(name):
    row = {"question": "Where?", name: {"strange": 1, "fields": [2]}}
    with pytest.raises(DataError, match="no column with messages or text"):
        READER.parse(json.dumps(row).encode())


def test_refusals_name_the_nearest_format():
    with pytest.raises(DataError, match=r"what is in .log. looks like .*Gemini"):
        READER.parse(json.dumps({"log": {"contents": [], "candidates": []}}).encode())


@pytest.mark.parametrize(
    ("samples", "last"),
    [
        ([TEXT, "<answer>Oslo</answer>"], {"text": TEXT}),
        ([OPENAI, OPENAI], {"messages": OPENAI}),
        ([[TEXT, TEXT]], {"text": TEXT}),
    ],
)
def test_several_samples_are_several_rows(tmp_path, samples, last):
    rows = [{"question": "Where?", "responses": samples}, last]
    read = list(read_trajectories(file_of(tmp_path / "a.jsonl", rows)))
    assert [row.number for row in read] == [1, 2, 3]
    assert [row.error for row in read] == ["", "", ""]


def test_a_row_of_no_known_format_is_refused_in_a_line():
    [row] = [Reader()(Raw.of(1, b'{"id": "r6", "foo": "bar"}'))]
    assert row.error == (
        "no column with messages or text; it has: id, foo. "
        "It is no record of a known format either (docs/dialects.md)"
    )
