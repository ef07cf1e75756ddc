"""Dialects are told apart: on a sample of each, and by the names of their tools."""

import json
import time

import pytest
from dialect_texts import EVERY, written

from faithful_search.dialects import detect, load, parse
from faithful_search.errors import DialectError
from faithful_search.trajectory import Step, ToolCall

CALLS = [
    ("pokee", "web_search", {"query_list": ["q"]}),
    ("pokee", "web_read", {"url_list": ["u"]}),
    ("deep_researcher", "web_search", {"query": ["q"]}),
    ("deep_researcher", "browse_webpage", {"url_list": ["u"]}),
    ("web_dancer", "search", {"query": ["q"]}),
    ("web_dancer", "visit", {"url": ["u"], "goal": "g"}),
    ("search_r1_like", "search", {"query_list": ["q"]}),
    ("recall", "wikipedia_search", {"query": "q"}),
]


def sample(name: str, evidence: str = "text") -> str:
    return load(name).render(written(name, text=evidence))


@pytest.mark.parametrize("name", EVERY)
@pytest.mark.parametrize("other", EVERY)
def test_evidence_does_not_decide(name: str, other: str) -> None:
    assert detect(sample(name, evidence=f"x{'.' * 80} {sample(other)}")).dialect == name


@pytest.mark.parametrize(("name", "tool", "arguments"), CALLS)
def test_a_first_call_is_enough(name: str, tool: str, arguments: dict[str, object]) -> None:
    assert detect(load(name).render_turn(Step(think="plan", call=ToolCall(tool, arguments)))).dialect == name


def test_prompts_of_the_systems() -> None:
    agent = '<think>a</think><tool_call>{"name": "finder", "arguments": {}}</tool_call>'
    for name in ("pokee", "search_r1_like", "recall"):
        messages = [*load(name).prompt("Who?", []), {"role": "assistant", "content": agent}]
        assert detect(messages).dialect == name


def test_structured_calls_are_plain_messages() -> None:
    call = {"id": "1", "function": {"name": "finder", "arguments": "{}"}}
    messages = [
        {"role": "user", "content": "Who?"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "1", "content": "<search>x</search><information>y</information>"},
        {"role": "assistant", "content": "Ada"},
    ]
    assert detect(messages).dialect == detect(json.dumps(messages)).dialect == "openai"
    assert parse(messages).answer == "Ada"


def test_ambiguity_is_said_and_nobody_is_named() -> None:
    call = '<think>a</think><tool_call>{"name": "finder", "arguments": {}}</tool_call><answer>b</answer>'
    query = "<think>a</think><search>q</search><answer>x</answer>"
    for text in (call, query, "", "Ada", "<b>x</b>", "<think>a</think><answer>b</answer>"):
        found = detect(text)
        assert (found.dialect, found.confidence) == (None, 0.0) and found.why
    assert detect(query).why == "research, search_r1 and self_eval fit equally well"
    for text, said in ((call, "no dialect fits"), ("Hello.", r"no dialect fits.*plain text")):
        with pytest.raises(DialectError, match=said):
            parse(text)
    assert parse("Hello.", "pou").issues == ()


@pytest.mark.parametrize(("name", "other"), [("pokee", "search_r1"), ("search_r1", "pou")])
def test_another_dialect_than_asked_for_is_said(name: str, other: str) -> None:
    whys = [issue.why for issue in parse(sample(name), other).issues if issue.kind == "dialect_mismatch"]
    assert len(whys) == 1 and f"looks like {name}" in whys[0]
    assert not parse(sample(name), name).issues


@pytest.mark.parametrize("name", EVERY)
def test_detected_by_its_own_text_and_by_no_other(name: str) -> None:
    found = detect(sample(name))
    assert found.dialect == name == load(name).name and 0.5 < found.confidence <= 1 and found.why
    assert parse(sample(name), question="Who?").question == "Who?"


def test_an_unknown_dialect_is_answered_with_the_known() -> None:
    with pytest.raises(DialectError, match=r"'serch_r1'.*pou.*did you mean 'search_r1'"):
        load("serch_r1")
    with pytest.raises(DialectError, match="there are: "):
        parse("x", "base")


@pytest.mark.parametrize(
    "unit",
    ["<tool_response>", "a</answer>user\n", "x<|im_end|> ", "</answer>user\nx\nassistant\n", "<", "<|im_start|>user\n"],
)
def test_detection_takes_linear_time(unit: str) -> None:
    """With room for a busy machine; quadratic would take minutes."""
    start = time.process_time()
    detect("x" + unit * (300_000 // len(unit)))
    assert time.process_time() - start < 1.0
