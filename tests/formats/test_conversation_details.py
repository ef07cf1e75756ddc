"""The bounds of what is one conversation: where the rules of `test_several_conversations` end."""

from typing import Any

import pytest
from test_several_conversations import (
    AGENT,
    ANSWER,
    ASKED,
    CALLED,
    RESULT,
    generation,
    langfuse,
    read,
    read_lines,
    whys,
)


def test_a_word_that_a_store_left_of_an_input_is_no_conversation():
    further = generation(6, [{"role": "user", "content": "input"}], ANSWER)
    assert whys(read(langfuse(*AGENT, further))) == []


def test_of_calls_with_the_same_input_the_last_counts():
    asked = [ASKED, CALLED, RESULT]
    first = generation(1, asked, {"role": "assistant", "content": "Cusco"})
    assert read(langfuse(first, generation(2, asked, ANSWER))).answer == "Veldt"


def block(place: int, content: dict[str, Any]) -> dict[str, Any]:
    return {"type": "content_block_start", "index": place, "content_block": content}


def test_a_streamed_reply_behind_a_call_is_no_further_answer():
    start = {"type": "message_start", "message": {"role": "assistant"}}
    call = {"type": "tool_use", "id": "1", "name": "search", "input": {}}
    events = [start, block(0, call), start, block(0, {"type": "text", "text": "Veldt"})]
    assert whys(read({"messages": [ASKED], "events": events})) == []


def test_what_a_sub_agent_printed_is_left_out(tmp_path):
    lines = [
        {"type": "user", "session_id": "s", "message": ASKED},
        {"type": "assistant", "session_id": "s", "message": ANSWER},
        {
            "type": "assistant",
            "session_id": "s",
            "parent_tool_use_id": "1",
            "message": {"role": "assistant", "content": "The Sule."},
        },
    ]
    [trajectory] = read_lines(tmp_path / "s.jsonl", lines)
    assert trajectory.answer == "Veldt"
    assert whys(trajectory) == ["left out: 1 messages of sub-agents"]


@pytest.mark.parametrize(("partial", "answer"), [(True, "Veldt"), (False, "Vel\nVeldt")])
def test_a_partial_event_of_a_session_is_left_out(partial, answer):
    events = [
        {"content": {"role": "user", "parts": [{"text": "Where was Ada born?"}]}},
        {"content": {"role": "model", "parts": [{"text": "Vel"}]}, "partial": partial},
        {"content": {"role": "model", "parts": [{"text": "Veldt"}]}},
    ]
    assert read({"events": events}).answer == answer


@pytest.mark.parametrize("texts", [["Veldt"], ["Vel", "dt"]], ids=["one", "two"])
def test_pieces_beside_contents_are_an_answer(texts):
    pieces = [{"candidates": [{"content": {"parts": [{"text": text}]}}]} for text in texts]
    contents = [{"role": "user", "parts": [{"text": "Where was Ada born?"}]}]
    assert read({"contents": contents, "response": pieces}).answer == "Veldt"
