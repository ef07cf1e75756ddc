"""DeepResearcher's dialect: both tools' JSON, and the first answer."""

from __future__ import annotations

import json

from faithful_search.dialects import load

D = load("deep_researcher")
SEARCH = '<think>a</think><tool_call>{"name": "web_search", "arguments": {"query": ["q"]}}</tool_call>'
BROWSE = '<think>b</think><tool_call>{"name": "browse_webpage", "arguments": {"url_list": ["u"]}}</tool_call>'
FOUND = [{"search_query": "q", "web_page_info_list": [{"title": "T", "url": "u", "quick_summary": "s &lt;b>"}]}]
PARTS = [{"page_number": n, "page_summary": text} for n, text in enumerate(("one", "two"))]
PAGE = [{"url": "u", "information": PARTS}]


def respond(value: object) -> str:
    return f"\n<tool_response>\n{json.dumps(value)}\n</tool_response>\n"


def test_reads_both_tools() -> None:
    t = D.parse(f"{SEARCH}{respond(FOUND)}{BROWSE}{respond(PAGE)}<think>c</think><answer>Ada</answer>")
    assert [(e.id, e.title, e.text, e.url) for e in t.evidence.values()] == [
        ("E1", "T", "s &lt;b>", "u"), ("E2", "", "one\ntwo", "u"),
    ]  # fmt: skip
    assert t.answer == "Ada" and not t.all_issues()


def test_the_first_answer_counts() -> None:
    step = D.parse_turn("<think>a</think><answer>one</answer><answer>two</answer>", first=True)
    assert step.answer == "one" and [issue.kind for issue in step.issues] == ["answer_multiple"]


def test_an_answer_in_evidence_is_data() -> None:
    t = D.parse(SEARCH + respond([{**FOUND[0], "search_query": "<answer>x</answer><think>y</think>"}]))
    assert t.answer is None and len(t.steps) == 1


def test_json_of_another_shape_is_a_note() -> None:
    for value in ([], [1], {"a": 1}, [[]]):
        assert D.parse(SEARCH + respond(value)).steps[0].note == json.dumps(value)
