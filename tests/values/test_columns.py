"""Which columns hold the question, the gold answers and the id."""

import json
import time

import pytest
from growth import MOST, growth
from hypothesis import given, strategies as st

from faithful_search import columns
from faithful_search.errors import DataError

ANSWERS = [
    ("['late 1967' '1967']", ("late 1967", "1967")),
    ("['a', \"b's\"]", ("a", "b's")),
    ("['September\\xa017']", ("September\xa017",)),
    ("[sic] a title", ("[sic] a title",)),
    ('["Veldt", null]', ("Veldt",)),
    ([["x"], "y"], ("x", "y")),
    (["[0, 1]"], ("[0, 1]",)),
    (["x", "x", None, "", float("nan")], ("x",)),
    ({"target": ["x"]}, ("x",)),
    ("{'target': ['x', \"y's\"]}", ("x", "y's")),
    ("{'target': array(['x]', 'y'], dtype=object)}", ("x]", "y")),
    ("{'target': array(['x'], dtype='<U3')}", ("x",)),
    ("{'target': array(['Ada\\'s \"x\"', \"d'Arc\"], dtype=object)}", ('Ada\'s "x"', "d'Arc")),
    ("{'target': array([array(['x'], dtype=object), ['y']], dtype=object)}", ("x", "y")),
    ("{'target': array([1, None, 'x'], dtype=object)}", ("1", "x")),
    ("{'text': ['x'], 'answer_start': array([515], dtype=int32)}", ("x",)),
    ("{'value': 'x', 'type': nan}", ("x",)),
    ("{'target': np.str_('x')}", ("x",)),
    ("[np.str_('x'), np.str_('y')]", ("x", "y")),
    ("['x', None]", ("x",)),
    ("{'target': ['x' 'y']}", ("{'target': ['x' 'y']}",)),
    ("['x' ['y']]", ("['x' ['y']]",)),
    ("{'target': array(['x', ..., 'y'])}", ("{'target': array(['x', ..., 'y'])}",)),
    ("[(1, 2)]", ("[(1, 2)]",)),
    ("{'x'}", ("{'x'}",)),
    ({"text": ["Veldt"], "answer_start": [515]}, ("Veldt",)),
    (
        {"value": "Ada", "aliases": ["A. Mirov"], "type": "WikipediaEntity", "matched_wiki": ""},
        ("Ada", "A. Mirov"),
    ),
    ({"short_answers": [{"text": ["Veldt"], "start_token": [3]}], "yes_no_answer": -1}, ("Veldt",)),
    ({"output": "Veldt"}, ("Veldt",)),
    ({"expected": ["Veldt", "Old Veldt"], "source": "wiki"}, ("Veldt", "Old Veldt")),
    ({"answer": "Veldt", "output": "a long text"}, ("Veldt",)),
    ({"short_answers": [], "yes_no_answer": "YES"}, ("yes",)),
    ("x<|answer_split|>y", ("x", "y")),
    (42, ("42",)),
    (1.5, ("1.5",)),
    (True, ("yes",)),
    (False, ("no",)),
    (None, ()),
    ("", ()),
    ("  ", ()),
    (float("nan"), ()),
]


@pytest.mark.parametrize(("value", "expected"), ANSWERS)
def test_answers_however_they_were_stored(value, expected):
    assert columns.answers(value) == expected


@pytest.mark.parametrize(
    "cell", ["{'ground_truth': {'target': array(['x'], dtype=object)}}", '{"ground_truth": "x"}']
)
def test_gold_answers_in_an_object_that_is_a_text(cell):
    assert columns.golds({"reward_model": cell}) == (("x",), "reward_model.ground_truth")


@given(st.dictionaries(st.text(max_size=9), st.text(max_size=20), max_size=4))
def test_printed_objects_of_any_text_come_back(answers):
    held = tuple(dict.fromkeys(answer for answer in answers.values() if answer.strip()))
    assert columns.answers(str({"target": list(answers.values()), "more": answers})) == held


@given(st.lists(st.text(max_size=20), max_size=4))
def test_printed_lists_of_any_text_come_back(answers):
    held = tuple(dict.fromkeys(answer for answer in answers if answer.strip()))
    assert columns.answers(str(answers)) == held


@given(st.lists(st.text(max_size=20), max_size=4))
def test_lists_printed_as_json_come_back(answers):
    held = tuple(dict.fromkeys(answer for answer in answers if answer.strip()))
    assert columns.answers(json.dumps(answers)) == held


@pytest.mark.parametrize(
    ("row", "value", "column"),
    [
        ({"answer": "Oslo", "ground_truth": "Veldt"}, ("Veldt",), "ground_truth"),
        ({"answer": "Oslo", "expected_answer": "Veldt"}, ("Veldt",), "expected_answer"),
        ({"answers": ["Oslo"], "golden_answers": ["Veldt"]}, ("Veldt",), "golden_answers"),
        ({"answer": "Veldt"}, ("Veldt",), "answer"),
        ({"target": "Veldt"}, ("Veldt",), "target"),
        ({"target": "", "answer": "Veldt"}, ("Veldt",), "answer"),
        ({"target": ""}, (), "target"),
        ({"answer": "US", "answer_aliases": ["USA"]}, ("US", "USA"), "answer"),
        ({"possible_answers": '["US", "USA"]'}, ("US", "USA"), "possible_answers"),
        ({"reward_model": {"ground_truth": "Veldt"}}, ("Veldt",), "reward_model.ground_truth"),
        ({"doc": {"answers": ["Veldt"]}}, ("Veldt",), "doc.answers"),
        ({"metadata": {"gold_answer": "Veldt"}}, ("Veldt",), "metadata.gold_answer"),
        ({"metadata": '{"groundTruth": "Veldt"}'}, ("Veldt",), "metadata.groundTruth"),
        (
            {"answer": "Oslo", "metadata": {"gold_answers": ["Veldt"]}},
            ("Veldt",),
            "metadata.gold_answers",
        ),
        ({"gold": "Veldt", "metadata": {"gold_answer": "Oslo"}}, ("Veldt",), "gold"),
        ({"answer": "Veldt", "metadata": {"ground_truth": True}}, ("Veldt",), "answer"),
        ({"answer": "Veldt", "metadata": {"gold_answer": ""}}, ("Veldt",), "answer"),
        ({"Ground Truth": "Veldt", "Answer": "Oslo"}, ("Veldt",), "Ground Truth"),
        ({"Answer": "Veldt"}, ("Veldt",), "Answer"),
        ({"Final answer": "Veldt", "final_answer": "Oslo"}, ("Veldt",), "Final answer"),
        ({"true_answer": "Veldt", "answer": "Oslo"}, ("Veldt",), "true_answer"),
        ({"answer": "Veldt", "ANSWER": "Oslo"}, ("Veldt",), "answer"),
    ],
)
def test_gold_answers_are_looked_for_in_a_fixed_order(row, value, column):
    assert columns.golds(row) == (value, column)


@pytest.mark.parametrize("name", ["answer", "answers", "target", "references", "expected"])
def test_metadata_may_name_other_things_so(name):
    assert columns.golds({"metadata": {name: "Oslo"}}) is None


def test_rows_without_a_gold_column_have_none():
    assert columns.golds({"question": "Where?", "prediction": "Oslo", "final_answer": "a"}) is None


@pytest.mark.parametrize(
    ("row", "value", "column"),
    [
        ({"query": "Where?"}, "Where?", "query"),
        ({"Question": "Where?"}, "Where?", "Question"),
        ({"user_input": "Where?"}, "Where?", "user_input"),
        ({"extra_info": {"question": "Where?"}}, "Where?", "extra_info.question"),
        ({"prompt": [{"role": "user", "content": "Where?"}]}, "Where?", "prompt"),
        (
            {"prompt": [{"role": "user", "content": "Be brief. Question: where? "}]},
            "where?",
            "prompt",
        ),
    ],
)
def test_questions_by_their_usual_names(row, value, column):
    assert columns.question(row) == (value, column)


@pytest.mark.parametrize(
    ("row", "expected"), [({"qid": 7}, ("7", "qid")), ({"id": "", "uid": "u"}, ("u", "uid"))]
)
def test_ids_by_their_usual_names(row, expected):
    assert columns.identity(row) == expected


def test_a_named_column_wins_over_usual_names():
    row = {
        "question": "Where?",
        "asked": "When?",
        "gold": "a",
        "mine": {"right": ["b"]},
        "id": 1,
        "n": 2,
    }
    assert columns.question(row, "asked").value == "When?"
    assert columns.golds(row, "mine.right").value == ("b",)
    assert columns.identity(row, "n").value == "2"


def test_a_named_column_that_is_missing_is_an_error():
    with pytest.raises(DataError, match="no column 'mine'; it has: question"):
        columns.golds({"question": "Where?"}, "mine")


@pytest.mark.parametrize(
    "pump", ["[", "[ ", "['a' ", "['a\\", '["', "{", "{'", "{'a': array(['", "x<|answer_split|>"]
)
def test_long_answers_take_linear_time(pump):
    def seconds(size: int) -> float:
        text = pump * (size // len(pump)) + "x"
        start = time.process_time()
        columns.answers(text)
        return time.process_time() - start

    assert growth(seconds, 160_000) <= MOST


@pytest.mark.parametrize("blanks", [4_000, 64_000])
def test_long_prompts_are_read_at_once(blanks):
    start = time.process_time()
    columns.asked("Question: a" + " " * blanks + "b")
    assert time.process_time() - start < 0.05
