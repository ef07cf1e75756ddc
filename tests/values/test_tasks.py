"""Tasks from the bundled world and from files: formats, column mappings, and errors that name what
is wrong.
"""

import gzip
import json
from pathlib import Path

import pytest
from agent_rows import file_of

from faithful_search import suites
from faithful_search.bundled import tiny_policy
from faithful_search.coldstart.plans import plan_world
from faithful_search.errors import DataError
from faithful_search.tasks import Task, load_tasks, task_from_row, world_context

ROWS = [
    {"id": "a", "question": "Where?", "answers": ["Rome", "Roma"], "kind": "place"},
    {"id": "b", "question": "Whén?", "answers": ["1900"], "kind": "time"},
]


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    """What `datasets` prepares of a file belongs to the test that made the file."""
    import datasets

    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")


def lines(rows: list) -> list[str]:
    return [json.dumps(row, ensure_ascii=False) for row in rows]


def write(path: Path, rows: list[dict]) -> Path:
    if path.suffix != ".parquet":
        return file_of(path, [json.dumps(rows)] if path.suffix == ".json" else lines(rows))
    import pyarrow.parquet

    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    return path


@pytest.mark.parametrize("name", ["t.jsonl", "t.jsonl.gz", "t.json", "t.parquet"])
def test_every_format_gives_the_same_tasks(tmp_path, name):
    path = write(tmp_path / name, ROWS)
    tasks = [
        Task("a", "Where?", ("Rome", "Roma"), meta={"kind": "place"}),
        Task("b", "Whén?", ("1900",), meta={"kind": "time"}),
    ]
    assert load_tasks(path) == load_tasks(str(path)) == tasks
    assert load_tasks(path, limit=1) == tasks[:1]


def test_csv_splits_its_answers(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text(
        'query,answer\r\n"Where, then?",Rome<|answer_split|>Roma\r\nWhen?,1900\r\n', newline=""
    )
    assert load_tasks(path) == [
        Task("0", "Where, then?", ("Rome", "Roma")),
        Task("1", "When?", ("1900",)),
    ]


@pytest.mark.parametrize(
    ("columns", "answers"),
    [
        ({"answers": ["Rome", "Roma"]}, ("Rome", "Roma")),
        ({"answer": "Rome, Italy"}, ("Rome, Italy",)),
        ({"answer": "Rome<|answer_split|>Roma"}, ("Rome", "Roma")),
        ({"answer": 42}, ("42",)),
        ({"golden_answers": None, "answer": "Rome"}, ("Rome",)),
        ({"ground_truth": {"target": ["Rome"]}}, ("Rome",)),
        (
            {"reward_model": {"ground_truth": "Rome<|answer_split|>Roma", "style": "rule"}},
            ("Rome", "Roma"),
        ),
        ({"reward_model": {"ground_truth": {"target": ["Rome", "Roma"]}}}, ("Rome", "Roma")),
        ({"reward_model": {"ground_truth": "Milan"}, "golden_answers": ["Rome"]}, ("Rome",)),
    ],
)
def test_answers_by_any_of_their_names(columns, answers):
    assert task_from_row({"question": "Where?", **columns}).answers == answers


@pytest.mark.parametrize(
    "columns",
    [
        {"query": "Where?"},
        {"problem": "Where?"},
        {"extra_info": {"question": "Where?", "index": 3}},
        {
            "prompt": [
                {"role": "system", "content": "Be brief."},
                {"role": "user", "content": "Where?"},
            ]
        },
        {"question": "Where?", "prompt": [{"role": "user", "content": "Answer this: Where?"}]},
        {"question": "Where?", "extra_info": "not a mapping", "meta": "nor this"},
    ],
)
def test_question_by_any_of_its_names(columns):
    assert task_from_row({"answer": "Rome", **columns}).question == "Where?"


def test_ids_supporting_evidence_and_other_columns_are_kept():
    rows = [{"id": 7}, {"id": 0}, {"id": None}, {}]
    assert [task_from_row({**row, "question": "?", "answer": "!"}, 3).id for row in rows] == [
        "7",
        "0",
        "3",
        "3",
    ]
    row = {**ROWS[0], "supporting_ids": ["P1"], "supporting_titles": ["Rome"], "meta": {"hops": 2}}
    meta = {"kind": "place", "hops": 2}
    assert task_from_row(row) == Task(
        "a", "Where?", ("Rome", "Roma"), ("P1",), ("Rome",), meta=meta
    )


@pytest.mark.parametrize(
    ("row", "why"),
    [
        (
            {"text": "x", "label": 1},
            "no column question and no column answers; it has: text, label",
        ),
        ({"question": "Where?"}, "no column answers; it has: question"),
        (
            {"prompt": [{"role": "system", "content": "x"}], "answer": "y"},
            "no column question; it has: prompt, answer",
        ),
        ({}, "it has: nothing"),
    ],
)
def test_missing_columns_are_named_with_those_there_are(tmp_path, row, why):
    path = write(tmp_path / "t.jsonl", [ROWS[0], row])
    with pytest.raises(DataError, match=rf"t\.jsonl, row 2: .*{why}$"):
        load_tasks(path)


@pytest.mark.parametrize(
    ("name", "content", "why"),
    [
        (
            "t.jsonl",
            b'{"question": "Where?", "answer": "Rome"}\n{"question": \n',
            r"t\.jsonl, line 2: not JSON",
        ),
        (
            "t.jsonl",
            b'\n\n["a", "list"]\n',
            r"t\.jsonl, line 3: expected a JSON object, found list",
        ),
        ("t.jsonl", b'{"question": "\xff"}\n', r"t\.jsonl, line 1: not JSON"),
        ("t.jsonl.gz", b'{"question": "not gzip"}\n', r"cannot read .*t\.jsonl\.gz"),
        (
            "t.jsonl.gz",
            gzip.compress("\n".join(lines(ROWS)).encode())[:-9],
            r"cannot read .*t\.jsonl\.gz",
        ),
        ("t.parquet", b"PAR1 but nothing more", r"cannot read .*t\.parquet"),
        ("t.json", b"{nothing", r"cannot read .*t\.json"),
        ("t.csv", b"\xef\xbb\xbfanswer,answer\nA,B\n", "2 columns are called 'answer'"),
        ("t.csv", b"\r\n \nquestion,question\nWho?,A\n", "2 columns are called 'question'"),
        ("t.csv", "question,é,è\n1,2,3\n".encode("latin-1"), r"cannot read .*t\.csv"),
        ("t.csv", b"question,answer,answer\nWho?,A,B\n", "2 columns are called 'answer'"),
        ("t.txt", b"Where? Rome", r"expected \.jsonl, \.jsonl\.gz, \.json, \.csv or \.parquet"),
        ("t.jsonl", b"", "no questions in it"),
        ("t.jsonl.gz", gzip.compress(b"", mtime=0), "no questions in it"),
        ("nothing_here.jsonl", None, r"nothing_here\.jsonl' is neither a file here nor a dataset"),
    ],
)
def test_unreadable_files_are_named(tmp_path, name, content, why):
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=why):
        load_tasks(tmp_path / name)


@pytest.mark.parametrize("source", ["world", "world_pairs"])
def test_the_facts_of_bundled_questions_are_known(source):
    assert suites.facts_are_known(source)


@pytest.mark.parametrize("source", ["questions.jsonl", "hotpotqa/hotpot_qa"])
def test_the_facts_of_other_questions_are_not(source):
    assert not suites.facts_are_known(source)


def test_a_rollout_in_the_world_as_it_is_has_no_context():
    assert world_context({"chain": []}) == ""


def test_world_passages_has_the_questions_that_passages_answer():
    passages_alone = load_tasks("world_passages", "validation")
    every = load_tasks("world", "validation")
    assert passages_alone == [
        task for task in every if all(fact["passage"] for fact in task.meta["chain"])
    ]


def test_a_pair_asks_two_questions_of_the_world():
    single = {task.question: task for task in load_tasks("world_passages", "validation")}
    pairs = load_tasks("world_pairs", "validation")
    assert len({task.id for task in pairs}) == len(pairs) == 3 * 62
    for task in pairs:
        first, second = (single[f"{part}?"] for part in task.question.removesuffix("?").split("? "))
        assert first is not second
        assert task.answers[0] == f"{first.answers[0]} and {second.answers[0]}"


def test_a_pair_needs_the_facts_of_both_chains():
    for task in load_tasks("world_pairs", "validation"):
        facts = [fact for chain in task.meta["chains"] for fact in chain]
        needs = [f"the {fact['relation']} of {fact['subject']}" for fact in facts]
        assert [hop.need for hop in plan_world(task)] == needs
        assert len(needs) == 2


def test_what_the_package_lacks_is_said():
    with pytest.raises(DataError, match=r"world has no split 'dev'; it has: train, validation, te"):
        load_tasks("world", "dev")
    with pytest.raises(
        DataError, match="no tiny policy writes the dialect 'recall'; there are: pou, search_r1"
    ):
        tiny_policy("recall")


def test_a_seed_draws_from_all_rows_in_their_order(tmp_path):
    rows = [{"question": f"q{number}?", "answers": [str(number)]} for number in range(1000)]
    path = write(tmp_path / "t.jsonl.gz", rows)
    drawn = load_tasks(path, limit=50, seed=0)
    places = [int(task.answers[0]) for task in drawn]
    assert len(places) == 50
    assert places == sorted(set(places))
    assert places != list(range(50))
    assert [task.id for task in drawn] == [str(place) for place in places]
    assert drawn == load_tasks(path, limit=50, seed=0)
    assert drawn != load_tasks(path, limit=50, seed=1)
    assert [task.id for task in load_tasks(path, limit=50)] == [str(place) for place in range(50)]
    for limit in (None, 1000, 5000):  # which leaves nothing out
        assert load_tasks(path, limit=limit, seed=3) == load_tasks(path)


def test_the_recipes_draw_their_questions_by_their_flags():
    from faithful_search.training.starting import RunArguments

    drawn = RunArguments(eval_limit=5, eval_sample_seed=0).held_out()
    assert drawn == load_tasks("world", "validation", 5, seed=0)
    assert RunArguments(eval_limit=5).held_out() == load_tasks("world", "validation", 5) != drawn
    assert RunArguments(eval_limit=0, eval_sample_seed=0).held_out() == []
