"""Records that only look like something else, and what lies beside a message, are not read wrongly
in silence.
"""

import json
from typing import Any

import pytest
from dialect_texts import kinds

from faithful_search.dialects import parse
from faithful_search.reading.rows import READER
from faithful_search.trajectory import Trajectory

USER = {"role": "user", "content": "Capital of Peru?"}
CALL = {"id": "1", "type": "function", "function": {"name": "search", "arguments": "{}"}}
CALLED = {"role": "assistant", "content": None, "tool_calls": [CALL]}
ANSWER = {"role": "assistant", "content": "Lima"}


def read(row: Any) -> Trajectory:
    return READER.parse(json.dumps(row).encode())


@pytest.mark.parametrize(
    "written",
    [
        {"name": "add", "parameters": {"type": "object", "properties": {"a": {"type": "number"}}}},
        {"name": "add", "parameters": {"type": "object"}},
    ],
)
def test_the_schema_of_a_tool_is_no_call(written):
    trajectory = parse([USER, {"role": "assistant", "content": json.dumps(written)}])
    assert [step.call for step in trajectory.steps] == [None]
    assert json.loads(trajectory.answer or "") == written


@pytest.mark.parametrize("arguments", [{"type": "object", "colour": "red"}, {"type": "city"}])
def test_a_call_may_have_an_argument_called_type(arguments):
    written = json.dumps({"name": "find", "parameters": arguments})
    [step] = parse([USER, {"role": "assistant", "content": written}]).steps
    assert step.call is not None
    assert step.call.arguments == arguments


def test_texts_with_titles_in_a_result_are_passages():
    pages = [
        {"type": "article", "title": "Peru", "text": "Lima is it."},
        {"type": "article", "title": "Chile", "text": "Santiago is it."},
    ]
    result = {"role": "tool", "tool_call_id": "1", "content": pages}
    passages = parse([USER, CALLED, result, ANSWER]).passages
    assert [(passage.title, passage.text) for passage in passages] == [
        ("Peru", "Lima is it."),
        ("Chile", "Santiago is it."),
    ]


@pytest.mark.parametrize("title", [{}, {"title": ""}, {"title": None}])
def test_texts_without_titles_in_a_result_are_one_text(title):
    parts = [{"type": "text", "text": text, **title} for text in ("Lima ", "is it.")]
    result = {"role": "tool", "tool_call_id": "1", "content": parts}
    [passage] = parse([USER, CALLED, result, ANSWER]).passages
    assert passage.text == "Lima is it."


def test_a_stream_beside_contents_is_read():
    pieces = [{"candidates": [{"content": {"parts": [{"text": text}]}}]} for text in ("Li", "ma")]
    contents = [{"role": "user", "parts": [{"text": "Capital of Peru?"}]}]
    trajectory = read({"contents": contents, "response": pieces})
    assert (trajectory.question, trajectory.answer) == ("Capital of Peru?", "Lima")


ATTACHED = {"attachments": [{"name": "atlas.pdf", "text": "Lima is it."}]}


@pytest.mark.parametrize("fields", [ATTACHED, {"documents": ["Lima is it."]}, {"file": "a b"}])
def test_what_is_attached_to_a_question_is_an_issue(fields):
    assert "content_unread" in kinds(parse([{**USER, **fields}, ANSWER]))


@pytest.mark.parametrize(
    "fields", [{"attachments": []}, {"attachment_ids": ["a b"]}, {"profile": "a user's"}]
)
def test_what_holds_no_document_is_none(fields):
    assert "content_unread" not in kinds(parse([{**USER, **fields}, ANSWER]))


def test_what_is_attached_and_stands_in_the_question_is_none():
    asked = {"role": "user", "content": "Lima is it. Capital?", **ATTACHED}
    assert "content_unread" not in kinds(parse([asked, ANSWER]))
