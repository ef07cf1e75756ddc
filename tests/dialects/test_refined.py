"""AutoRefine and Graph-R1: hand-worked texts, as their environments write them."""

import json
from typing import Any

import pytest
from dialect_texts import kinds

from faithful_search.dialects import detect, load, parse

DOCS = "Doc 1(Title: Seine) runs through Paris\nDoc 2(Title: Loire) is long\n"
ASKED = f"<think>plan</think>\n<search> which river </search>\n\n<documents>{DOCS}</documents>\n\n"
THEIRS = (
    "You are a helpful assistant excel at answering questions with multi-turn search engine "
    "calling. "
    "To answer questions, you must first reason through the available information using <think> "
    "and </think>. "
    "You may issue a search request using <search> query </search> at any time. The retrieval "
    "system will provide "
    "you with documents enclosed in <documents> and </documents>. After each search, you need to "
    "summarize and "
    "refine the existing documents in <refine> and </refine>. Provide a final answer using "
    "<answer> and </answer>. "
    "For example, <answer> Donald Trump </answer>. Question: Which river?\n"
)


def thoughts(text: str) -> list[str | None]:
    return [step.think for step in parse(text, "auto_refine").steps]


@pytest.mark.parametrize(
    "prompt", ["", THEIRS, f"<|im_start|>user\n{THEIRS}<|im_end|>\n<|im_start|>assistant\n"]
)
def test_auto_refine(prompt: str) -> None:
    text = f"{prompt}{ASKED}<refine>It is the Seine.</refine>\n<think>so</think>\n<answer> Seine </answer>"
    read = parse(text)
    first, last = read.steps
    assert (read.dialect, read.answer, kinds(read)) == ("auto_refine", "Seine", [])
    assert read.question == ("Which river?" if prompt else None)
    assert first.call is not None
    assert first.call.arguments == {"query": "which river"}
    assert [(item.title, item.text) for item in first.evidence] == [
        ("Seine", "runs through Paris"),
        ("Loire", "is long"),
    ]
    assert last.think == "It is the Seine.\nso"
    start, end = last.spans["think"]
    assert text[start:end] == "It is the Seine.</refine>\n<think>so"


def test_a_joined_thought_spans_its_first_block_to_its_last() -> None:
    text = f"{ASKED}<think>so</think><refine>one</refine><answer>x</answer>"
    start, end = parse(text).steps[-1].spans["think"]
    assert text[start:end] == "so</think><refine>one"


def test_what_was_refined_is_a_thought() -> None:
    again = ASKED.removeprefix("<think>plan</think>\n")
    assert thoughts(
        f"{ASKED}<refine>one</refine>\n{again}<refine>two</refine><answer>x</answer>"
    ) == ["plan", "one", "two"]
    assert thoughts(f"{ASKED}<think>so</think><refine>one</refine><answer>x</answer>") == [
        "plan",
        "one\nso",
    ]
    assert thoughts(f"{ASKED}<refine>a</refine><refine>b</refine><answer>x</answer>") == [
        "plan",
        "a\nb",
    ]


@pytest.mark.parametrize(
    ("said", "kind"),
    [
        ("<refine>one<answer>x</answer>", "tag_unbalanced"),
        ("one</refine><answer>x</answer>", "tag_unbalanced"),
        ("<think>a<refine>b</refine></think><answer>x</answer>", "nested"),
        ("<refine>a</refine>words<answer>x</answer>", "text_outside"),
    ],
)
def test_a_refinement_that_is_not_one_is_an_issue(said: str, kind: str) -> None:
    read = parse(ASKED + said, "auto_refine")
    assert kind in kinds(read)
    assert read.answer == "x"


def test_refining_does_not_hide_what_follows() -> None:
    """Several turns in one stretch: each has its own refinement."""
    read = parse(
        "<refine>a</refine><search>q</search><refine>b</refine><think>c</think><answer>x</answer>",
        "auto_refine",
    )
    assert read.steps[0].call is not None
    assert read.answer == "x"
    assert "response_missing" in kinds(read)


def knowledge(body: Any) -> str:
    response = f"<knowledge>\n{body}\n</knowledge>"
    return f"<|im_end|>\n<|im_start|>user\n{response}<|im_end|>\n<|im_start|>assistant\n"


RESULTS = json.dumps(
    {
        "results": [
            {"<knowledge>": "The Seine runs <b>.", "<coherence>": 0.5},
            {"<knowledge>": "It is long.", "<coherence>": 0.1},
        ]
    }
)


@pytest.mark.parametrize(
    "query", ['\n{\n  "query": "which river"\n}\n', '{"query": "which river"}', " which river "]
)
def test_graph_r1(query: str) -> None:
    asked = load("graph_r1").prompt("Which?", [])[-1]["content"]
    text = (
        f"<|im_start|>user\n{asked}<|im_end|>\n<|im_start|>assistant\n<think>\nplan\n</think>\n<query>{query}</query>"
        f"{knowledge(RESULTS)}<think>\nso\n</think>\n<answer>\nSeine\n</answer><|im_end|>"
    )
    read = parse(text)
    assert (read.dialect, read.answer, read.question, kinds(read)) == (
        "graph_r1",
        "Seine",
        "Which?",
        [],
    )
    assert read.steps[0].call is not None
    assert read.steps[0].call.arguments == {"query": "which river"}
    assert [item.text for item in read.steps[0].evidence] == ["The Seine runs <b>.", "It is long."]


def test_graph_r1_as_a_chat() -> None:
    chat = [
        {"role": "user", "content": "Which?"},
        {"role": "assistant", "content": '<think>plan</think>\n<query>{"query": "q"}</query>'},
        {"role": "user", "content": f"<knowledge>\n{RESULTS}\n</knowledge>"},
        {"role": "assistant", "content": "<think>so</think>\n<answer>Seine</answer>"},
    ]
    read = parse(chat)
    assert (read.dialect, read.answer, kinds(read)) == ("graph_r1", "Seine", [])
    assert len(read.steps[0].evidence) == 2
    assert read.evidence_from == "messages"


@pytest.mark.parametrize(
    ("body", "texts", "note"),
    [
        ('{"results": []}', [], '{"results": []}'),
        ('{"results": ["plain", {"other": 1}, 5, null]}', ["plain", "5"], ""),
        (
            'Invalid tool call format. Please use <query>{"query": "statement"}</query> format.',
            None,
            None,
        ),
        ("A passage in prose.", ["A passage in prose."], ""),
    ],
)
def test_what_graph_r1_returns(body: str, texts: list[str] | None, note: str | None) -> None:
    read = parse(
        f"<think>a</think><query>q</query>{knowledge(body)}<think>b</think><answer>x</answer>",
        "graph_r1",
    )
    assert read.answer == "x"
    if texts is not None:
        assert ([item.text for item in read.steps[0].evidence], read.steps[0].note) == (texts, note)


def test_a_query_in_graph_r1_without_words_is_an_issue() -> None:
    for raw in ("", "  ", '{"query": ""}', '{"other": "x"}'):
        read = parse(f"<think>a</think><query>{raw}</query><answer>x</answer>", "graph_r1")
        assert "call_empty" in kinds(read)


def test_they_are_told_from_the_others() -> None:
    assert detect(ASKED).dialect == "auto_refine"
    assert detect("<think>a</think><query>q</query><knowledge>x</knowledge>").dialect == "graph_r1"
