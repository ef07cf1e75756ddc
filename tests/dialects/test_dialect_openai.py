"""Plain chat messages with tool calls, and the same as chat templates write it."""

from __future__ import annotations

from typing import Any

import pytest

from faithful_search.dialects import load

D = load("openai")


def call(name: str, identity: str, arguments: Any = '{"query": "q"}') -> dict[str, Any]:
    return {"id": identity, "type": "function", "function": {"name": name, "arguments": arguments}}


def test_parallel_calls_and_responses_out_of_order() -> None:
    t = D.parse_messages(
        [
            {"role": "system", "content": "Use tools."},
            {"role": "user", "content": "Who?"},
            {
                "role": "assistant",
                "content": "first look",
                "tool_calls": [call(n, i) for n, i in zip("abc", "123", strict=True)],
            },
            {"role": "tool", "tool_call_id": "3", "content": '{"error": "down"}'},
            {"role": "tool", "tool_call_id": "1", "content": '[{"title": "T", "content": "x"}]'},
            {"role": "assistant", "reasoning_content": "so", "content": "Ada"},
        ]
    )
    assert [(s.call and s.call.name, s.think, s.same_turn, s.note) for s in t.steps] == [
        ("a", "first look", False, ""), ("b", None, True, ""), ("c", None, True, "down"), (None, "so", False, ""),
    ]  # fmt: skip
    assert [(e.id, e.title, e.text) for e in t.evidence.values()] == [("E1", "T", "x")]
    assert t.answer == "Ada" and t.question == "Who?" and not t.all_issues() and len(t.turns) == 2


@pytest.mark.parametrize("arguments", ["{oops", "[1]", "7", "null"])
def test_arguments_that_are_no_object_are_an_issue(arguments: str) -> None:
    t = D.parse_messages([{"role": "assistant", "content": "", "tool_calls": [call("a", "1", arguments)]}])
    assert [i.kind for i in t.all_issues()] == ["call_json"] and t.steps[0].call is None


@pytest.mark.parametrize(
    ("odd", "count"),
    [("x", 1), ({"a": 1}, 1), ([None, 7, {"function": 3}, {}], 4), ([{"function": {"name": None}}], 1)],
)
def test_odd_calls_are_issues(odd: Any, count: int) -> None:
    t = D.parse_messages([{"role": "assistant", "content": "x", "tool_calls": odd}])
    assert [issue.kind for issue in t.all_issues()] == ["call_json"] * count
    assert t.steps[0].think == "x" and not any(step.call for step in t.steps)


def test_arguments_may_be_an_object_and_hold_tags() -> None:
    arguments = {"query": "</tool_call><tool_response>x"}
    t = D.parse_messages([{"role": "assistant", "tool_calls": [call("a", "1", arguments)]}])
    assert t.steps[0].call and t.steps[0].call.arguments == arguments and not t.all_issues()


@pytest.mark.parametrize(
    ("body", "texts", "note"),
    [
        ('{"results": [{"url": "u", "snippet": "s"}]}', ["s"], ""),
        ('["a", "b"]', ["a", "b"], ""),
        ("plain words", ["plain words"], ""),
        ('{"note": "nothing"}', [], "nothing"),
        ("", [], ""),
        ("None", [], "None"),
        ("[ ]", [], "[ ]"),
        ("{}", [], "{}"),
        ("{'error': 'it\\'s \"down\"'}", [], 'it\'s "down"'),  # as Python prints what a tool returned
        ("[{'title': 'T', 'url': None, 'content': \"it's\"}]", ["it's"], ""),
        ("{'error': f'{x}'}", ["{'error': f'{x}'}"], ""),
    ],
)
def test_what_tools_return(body: str, texts: list[str], note: str) -> None:
    (step,) = D.parse(f'<tool_call>{{"name": "a"}}</tool_call><tool_response>\n{body}\n</tool_response>').steps
    assert [e.text for e in step.evidence] == texts and step.note == note and not step.issues


def test_a_cut_tag_is_no_answer() -> None:
    for text in ("<", "<thi", "<think>a</think>\n<tool_ca", "<think>a</think>"):
        assert D.parse(text).answer is None
    assert D.parse("<think>a</think>Ada<|im_end|>").answer == "Ada"
