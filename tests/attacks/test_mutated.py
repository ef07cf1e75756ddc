"""Transcripts with slips, real ones and arbitrary text: parsers raise nothing, point into the text,
read a turn at once as they read it taken apart into tags, and what they read can be stored and
rendered.
"""

import json
from random import Random

import pytest
from dialect_texts import (
    PIECES,
    SLOT,
    TEXTS,
    assert_read,
    frames,
    mutated,
    spans,
    taken_apart,
    written,
)
from hypothesis import given, settings, strategies as st
from real_texts import real, samples

from faithful_search.dialects import load, parse
from faithful_search.errors import FaithfulSearchError
from faithful_search.trajectory import Step, ToolCall

TURNS = [
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
    *("<|endoftext|>", "</s>", "user", "assistant\n", "\\boxed{c}", "x"),
]
ANY = st.lists(
    st.sampled_from(TURNS) | st.sampled_from(PIECES) | TEXTS | st.text(max_size=5), max_size=14
).map("".join)


def transcripts(name: str, random: Random) -> str:
    frame = random.choice(list(frames(name).values()))
    return frame.replace(SLOT, "".join(random.choice(PIECES) for _ in range(random.randint(0, 6))))


@settings(max_examples=50)
@given(text=ANY | st.text())
def test_arbitrary_text(name: str, text: str) -> None:
    assert_read(name, text)


@given(before=st.sampled_from(["", " ", "x"]), text=ANY, data=st.data())
def test_a_stretch_of_a_text(before: str, text: str, data: st.DataObject) -> None:
    start, end = sorted(
        (data.draw(st.integers(0, len(text))), data.draw(st.integers(0, len(text))))
    )
    dialect = load("search_r1")
    at_once = dialect.read_turns(before + text, start, end, first=True)
    with taken_apart(dialect.grammar):
        assert dialect.read_turns(before + text, start, end, first=True) == at_once


@pytest.mark.parametrize("name", ["search_r1", "research", "self_eval", "recall", "web_dancer"])
def test_a_well_formed_turn_is_not_taken_apart(name: str) -> None:
    text = load(name).render_turn(Step(think="a", call=ToolCall("search", {"query": "q"})))
    found = load(name).grammar.turn.fullmatch(text)
    assert found
    assert found["think"] == "a"
    assert not load(name).parse_turn(text, first=True).issues


def test_a_mutated_transcript_is_read(name: str, rounds: int) -> None:
    random = Random(name)
    others = [transcripts(name, random) for _ in range(10)]
    for _ in range(rounds):
        text = mutated(transcripts(name, random), random, others)
        assert load(name).parse(text) == assert_read(name, text)
        load(name).repair_call(text)


@real
def test_a_mutated_real_trajectory_is_read(name: str, rounds: int) -> None:
    random = Random(f"real {name}")
    for _ in range(2 * rounds):
        assert_read(name, mutated(random.choice(samples()), random, samples()))


def test_a_mutated_chat_is_read(name: str, rounds: int) -> None:
    dialect, random = load(name), Random(name)
    for _ in range(rounds):
        roles = [
            random.choice(("system", "user", "assistant", "tool"))
            for _ in range(random.randint(1, 5))
        ]
        contents = [mutated(transcripts(name, random), random, ["x"]) for _ in roles]
        chat = [
            {"role": role, "content": content}
            for role, content in zip(roles, contents, strict=True)
        ]
        found = dialect.parse_messages(chat)
        assert all(0 <= start <= end <= len(found.text) for start, end in spans(found))
        assert parse(chat, name).steps == found.steps


def test_any_source_is_read_or_refused_in_the_packages_own_words(name: str, rounds: int) -> None:
    random = Random(name)
    text = load(name).render(written(name))
    chat = [{"role": "user", "content": "Who?"}, {"role": "assistant", "content": text}]
    sources = [written(name).to_json(), json.dumps(chat), json.dumps({"messages": chat}), text]
    for _ in range(rounds):
        for dialect in (None, name):
            try:
                parse(mutated(random.choice(sources), random, sources), dialect)
            except FaithfulSearchError as error:
                assert str(error)
