"""PokeeResearch's dialect: two modes, its JSON, and chats decoded without special tokens."""

from __future__ import annotations

import json

from faithful_search.dialects import load
from faithful_search.trajectory import Step, Trajectory

D = load("pokee")
FOUND = json.dumps([{"query": "q", "search_results": [{"url": "u", "title": "T", "description": "d"}]}])
READ = json.dumps([{"url": "u", "information": "sum", "nested_urls": []}, {"url": "v", "error message": "down"}])
SEARCH = '<think>a user\nasked</think><tool_call>{"name": "web_search", "arguments": {"query_list": ["q"]}}</tool_call>'
WEB = '<think>b</think><tool_call>{"name": "web_read", "arguments": {"url_list": ["u", "v"]}}</tool_call>'
CONTROL = "user\nYou have provided an answer. ##The verification mode starts##.\nassistant\n"
WRONG = "user\nThe answer is verified to be incorrect. ##The research mode starts##.\nassistant\n"
DECODED = (
    "system\nYou research.\nuser\nWho? ##The research mode starts##\nassistant\n"
    f"{SEARCH}user\n<tool_response>\n{FOUND}\n</tool_response>\nassistant\n"
    f"{WEB}user\n<tool_response>\n{READ}\n</tool_response>\nassistant\n"
    f"<think>c</think><answer>Bob</answer>{CONTROL}"
    f"<verification>no</verification><verification_result>INCORRECT</verification_result>{WRONG}"
    f"<think>d</think><answer>Ada</answer>{CONTROL}"
    "<verification>yes</verification><verification_result>correct</verification_result>"
)


def test_a_decoded_rollout() -> None:
    t = D.parse(DECODED)
    assert t.question == "Who?" and t.answer == "Ada" and t.stop_reason == "answered" and not t.all_issues()
    assert [(s.think, s.answer, s.verified) for s in t.steps] == [
        ("a user\nasked", None, None), ("b", None, None), ("c", "Bob", None), ("no", None, False),
        ("d", "Ada", None), ("yes", None, True),
    ]  # fmt: skip
    assert [(e.id, e.title, e.text, e.url) for e in t.evidence.values()] == [
        ("E1", "T", "d", "u"),
        ("E2", "", "sum", "u"),
    ]
    assert t.steps[1].note == "down"
    for step in t.steps:
        assert t.text[slice(*step.spans["think"])] == step.think


def test_the_same_chat_as_messages() -> None:
    check = "<verification>no</verification><verification_result>INCORRECT</verification_result>"
    messages = [
        {"role": "user", "content": "Who? ##The research mode starts##"},
        {"role": "assistant", "content": SEARCH},
        {"role": "tool", "content": FOUND},
        {"role": "assistant", "content": "<think>c</think><answer>Bob</answer>"},
        {"role": "user", "content": "You answered. ##The verification mode starts##. <answer>x</answer>"},
        {"role": "assistant", "content": check},
    ]  # fmt: skip
    t = D.parse_messages(messages)
    assert [s.verified for s in t.steps] == [None, None, False] and t.steps[0].evidence[0].url == "u"
    assert t.answer == "Bob" and t.stop_reason is None and t.question == "Who?" and not t.all_issues()


def test_what_goes_wrong_is_a_note_or_an_issue() -> None:
    t = D.parse(f"{SEARCH}<tool_response>\nParsing failed: no JSON\n</tool_response>")
    assert t.steps[0].note == "Parsing failed: no JSON" and not t.evidence
    odd = D.parse("<verification>hm</verification><verification_result>MAYBE</verification_result>").steps[0]
    assert odd.verified is None and [i.kind for i in odd.issues] == ["verification_invalid"]
    both = D.parse_turn("<answer>x</answer><verification_result>CORRECT</verification_result>", first=False)
    assert both.verified is True and both.answer is None and [i.kind for i in both.issues] == ["think_missing"]
    assert D.parse(f"{SEARCH}<tool_response>\n{FOUND[:-9]}...(truncated)\n</tool_response>").steps[0].note


def test_a_verification_is_written_as_it_is_read() -> None:
    steps = (Step(think="a", answer="b"), Step(think="no", verified=False), Step(think="c", answer="d"))
    found = D.parse(D.render(Trajectory(steps)), fenced=True)
    assert [(s.think, s.answer, s.verified) for s in found.steps] == [(s.think, s.answer, s.verified) for s in steps]
