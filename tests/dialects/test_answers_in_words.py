"""A chat that ends in words is read as one, whatever its calls resemble."""

import json

import pytest

from faithful_search.dialects import parse

QUERY = {"query_list": ["Peru"]}
LIMA = "Lima is the capital of Peru."
DOCUMENTS = json.dumps({"result": f'Doc 1 (Title: "Peru")\n{LIMA}'})
WRITTEN = f"<tool_call>\n{json.dumps({'name': 'search', 'arguments': QUERY})}\n</tool_call>"
CALL = {"id": "1", "function": {"name": "search", "arguments": json.dumps(QUERY)}}
CALLING = [
    {"role": "assistant", "content": "<think>a</think>", "tool_calls": [CALL]},
    {"role": "assistant", "content": None, "tool_calls": [CALL]},
    {"role": "assistant", "content": f"<think>a</think>\n{WRITTEN}"},
]


def chat(
    calling: dict[str, object], reply: str, prompt: str = "Capital of Peru?"
) -> list[dict[str, object]]:
    return [
        {"role": "user", "content": prompt},
        calling,
        {"role": "tool", "tool_call_id": "1", "content": DOCUMENTS},
        {"role": "assistant", "content": reply},
    ]


@pytest.mark.parametrize("calling", CALLING)
@pytest.mark.parametrize("reply", ["It is Lima.", "<think>b</think>\nIt is Lima."])
def test_the_words_at_the_end_are_the_answer(calling, reply):
    assert parse(chat(calling, reply)).answer == "It is Lima."


def test_such_a_reading_is_said():
    [issue] = parse(chat(CALLING[0], "It is Lima.")).issues
    assert issue.kind == "dialect_assumed"


@pytest.mark.parametrize("calling", CALLING)
def test_an_answer_between_tags_is_of_its_dialect(calling):
    trajectory = parse(chat(calling, "<think>b</think><answer>Lima</answer>"))
    assert (trajectory.dialect, trajectory.answer) == ("search_r1_like", "Lima")


@pytest.mark.parametrize("calling", CALLING)
def test_words_are_no_answer_where_the_prompt_asks_for_tags(calling):
    prompt = "Answer between <answer> and </answer>. Capital of Peru?"
    assert parse(chat(calling, "It is Lima.", prompt)).answer is None


def test_words_are_no_answer_where_the_rows_beside_it_have_tags():
    messages = chat(CALLING[0], "It is Lima.")
    assert parse(messages, usual="search_r1_like").answer is None


def test_words_are_no_answer_in_a_dialect_that_was_named():
    messages = chat(CALLING[0], "It is Lima.")
    assert parse(messages, "search_r1_like").answer is None
