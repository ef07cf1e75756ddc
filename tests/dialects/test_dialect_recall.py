"""ReCall's dialect: pre-filled thoughts, parallel calls, sections of a response, the boxed answer."""

from __future__ import annotations

import pytest

from faithful_search.dialects import load
from faithful_search.trajectory import Trajectory

D = load("recall")
CALL = '<tool_call>\n{"name": "wikipedia_search", "arguments": {"query": "%s"}}\n</tool_call>'
BLOCK = '<tool_response>\n{"name": "wikipedia_search", "arguments": {}}\nresult: \n"%s"\ntext of %s\n</tool_response>'
END = "so it is</think> The answer is \\[ \\boxed{\\text{Ada}} \\]"


def test_parallel_calls_are_steps_of_one_turn() -> None:
    text = f"two things</think>\n{CALL % 'a'}\n{CALL % 'b'}<|im_end|>\n<|im_start|>user\n{BLOCK % ('A', 'A')}\n"
    text += f"{BLOCK % ('B', 'B')}\n<|im_end|>\n<|im_start|>assistant\n<think>{END}<|im_end|>"
    t = D.parse(text)
    assert [(s.think, s.same_turn, [(e.id, e.title, e.text) for e in s.evidence]) for s in t.steps] == [
        ("two things", False, [("E1", "A", "text of A")]),
        (None, True, [("E2", "B", "text of B")]),
        ("so it is", False, []),
    ]
    assert t.answer == "\\text{Ada}" and t.stop_reason == "answered" and not t.all_issues()
    again = D.parse(D.render(t), fenced=True)
    assert [(s.think, s.evidence, s.answer, s.same_turn) for s in again.steps] == [
        (s.think, s.evidence, s.answer, s.same_turn) for s in t.steps
    ]


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("a</think> \\boxed x", "x"),
        ("a</think> \\boxed{1} \\boxed{2}", "2"),
        ("a</think> \\boxed{cut", None),
        ("a</think> Ada", None),
    ],
)
def test_answers(text: str, answer: str | None) -> None:
    assert D.parse(text).answer == answer


def test_a_box_in_a_turn_with_calls_is_no_answer() -> None:
    assert D.parse(f"<think>a</think> maybe \\boxed{{x}} {CALL % 'q'}").answer is None


def test_errors_are_notes_and_bad_calls_issues() -> None:
    text = "<think>a</think><tool_call>{oops</tool_call>\n<tool_response>\nerror: execution timed out\n</tool_response>"
    (step,) = D.parse(text).steps
    assert step.note == "execution timed out" and not step.evidence and step.call is None
    assert [issue.kind for issue in step.issues] == ["call_json"]


def test_a_second_call_that_is_broken_and_a_missing_response() -> None:
    text = f"<think>a</think>{CALL % 'a'}<tool_call>{{oops</tool_call><tool_response>\noutput: \n7\n</tool_response>"
    first, second = D.parse(text).steps
    assert first.evidence[0].text == "7" and {i.kind for i in second.issues} == {"call_json", "response_missing"}
    assert second.same_turn and second.call is None


def test_nothing_is_an_empty_trajectory() -> None:
    assert D.parse("") == Trajectory(dialect="recall")
