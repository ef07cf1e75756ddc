"""A turn that is as it should be is read without being taken apart into tags: with exactly the same outcome."""

from __future__ import annotations

from typing import Any

import pytest
from dialect_texts import EVERY, TEXTS, taken_apart, trajectories
from hypothesis import given, settings
from hypothesis import strategies as st
from real_texts import PIECES, R1, mutated, real, rows

from faithful_search.dialects import load
from faithful_search.dialects.turns import Grammar
from faithful_search.trajectory import Step, ToolCall

MARKUP = ["<|im_end|>", "<|endoftext|>", "</s>", "user", "assistant\n", "...", " ", "\n", "x", "&lt;", "\\boxed{c}"]
TURN = st.sampled_from(
    [
        "<think>a < b</think>\n<search> q </search>",
        "<think></think><search> </search>\n",
        "<think>a</think>\n\n<answer> b\n</answer>",
        "<think>a</think><answer>The final answer is \\[ \\boxed{b} \\]</answer>",
        '<think>a</think>\n<tool_call>\n{"name": "search", "arguments": {"query": "q"}}\n</tool_call>',
        "<think>a</think><tool_call>no JSON</tool_call>",
        "<think><helpful>yes</helpful><ref>E1</ref>a</think><answer>b</answer>",
        "<think> <helpful>no</helpful><ref>null</ref>a</think><tool_call>{}</tool_call>",
        "<think><helpful>yes</helpful><ref>E1,null</ref>a</think>",
        "<tool_response>\nT [E1]: x\n</tool_response>",
    ]
)
PARTS = TURN | st.sampled_from(PIECES) | st.sampled_from(MARKUP) | TEXTS
ANY = st.lists(PARTS, max_size=10).map("".join)


def grammar(name: str) -> Grammar:
    return load(name).grammar


def everything(name: str, text: str) -> list[object]:
    """All that is read from a text; also in which order the spans come, as they are written in JSON."""
    dialect = load(name)
    whole = dialect.parse(text)
    steps = [*whole.steps, dialect.parse_turn(text, first=True), dialect.parse_turn(text, first=False)]
    return [whole, steps, [list(step.spans) for step in steps]]


def assert_agree(name: str, text: str) -> None:
    at_once = everything(name, text)
    with taken_apart(grammar(name)):
        assert everything(name, text) == at_once


@pytest.mark.parametrize("name", EVERY)
@settings(max_examples=75, deadline=None)
@given(text=ANY | st.text())
def test_arbitrary_text(name: str, text: str) -> None:
    assert_agree(name, text)


@pytest.mark.parametrize("name", EVERY)
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_rendered_trajectories(name: str, data: st.DataObject) -> None:
    assert_agree(name, load(name).render(data.draw(trajectories(name))))


@given(before=st.sampled_from(["", " ", "x"]), text=ANY, data=st.data())
def test_a_stretch_of_a_text(before: str, text: str, data: st.DataObject) -> None:
    start, end = sorted((data.draw(st.integers(0, len(text))), data.draw(st.integers(0, len(text)))))
    one = grammar("search_r1")

    def read() -> list[Any]:
        return list(load("search_r1").read_turns(before + text, start, end, first=True))

    at_once = read()
    with taken_apart(one):
        assert read() == at_once


@real
@pytest.mark.parametrize("name", EVERY)
@settings(max_examples=60, deadline=None)
@given(text=mutated())
def test_mutated_real_trajectories(name: str, text: str) -> None:
    assert_agree(name, text)


@real
def test_real_trajectories() -> None:
    for row in rows("search_r1_ppo_3b"):
        for name in ("search_r1", "research", "self_eval"):
            assert_agree(name, row["solution"])
    for row in (row for name in R1 for row in rows(name)):
        assert_agree("r1_searcher", row["gen_text_store"])
    for row in rows("webdancer"):
        assert_agree("web_dancer", load("web_dancer").parse_messages(row["messages"]).text)


@pytest.mark.parametrize("name", ["search_r1", "research", "self_eval", "recall", "web_dancer"])
def test_a_well_formed_turn_is_not_taken_apart(name: str) -> None:
    text = load(name).render_turn(Step(think="a", call=ToolCall("search", {"query": "q"})))
    found = grammar(name).turn.fullmatch(text)
    assert found and found["think"] == "a" and not load(name).parse_turn(text, first=True).issues
