"""Answers that the last call hands in."""

import pytest
from agent_rows import file_of

import faithful_search as fs
from faithful_search.dialects.handing_in import may_hand_in
from faithful_search.measure.audit import audit


def chat(name: str, arguments: dict, then: str | None = None) -> list[dict]:
    searched = {"id": "1", "function": {"name": "search", "arguments": {"query": "Ada"}}}
    last = {"id": "2", "function": {"name": name, "arguments": arguments}}
    messages = [
        {"role": "user", "content": "Where?"},
        {"role": "assistant", "content": None, "tool_calls": [searched]},
        {"role": "tool", "tool_call_id": "1", "content": "Ada was born in Veldt."},
        {"role": "assistant", "content": None, "tool_calls": [last]},
        {"role": "tool", "tool_call_id": "2", "content": "received: Veldt"},
    ]
    return [*messages, {"role": "assistant", "content": then}] if then else messages


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("submit_final_result", {"final_result": "Veldt"}),
        ("attempt_completion", {"result": "Veldt"}),
        ("StructuredOutput", {"answer": "Veldt", "confidence": 0.9}),
        ("completeTask", {"summary": "Veldt"}),
        ("done", {"text": "Veldt", "success": True}),
        ("terminate", {"answer": "Veldt"}),
    ],
)
def test_the_last_call_hands_in_the_answer(name, arguments):
    trajectory = fs.parse(chat(name, arguments))
    assert trajectory.answer == "Veldt"
    assert [step.call.name for step in trajectory.steps if step.call] == ["search"]
    assert [passage.text for passage in trajectory.evidence.values()] == ["Ada was born in Veldt."]


@pytest.mark.parametrize("name", ["get_result", "fetch_final_answer", "open_report", "calculator"])
def test_calls_of_other_tools_hand_in_nothing(name):
    assert fs.parse(chat(name, {"id": "Veldt"})).answer is None


def test_a_call_before_the_answer_hands_in_nothing():
    trajectory = fs.parse(chat("complete_step", {"text": "Oslo"}, then="Veldt"))
    assert trajectory.answer == "Veldt"


def test_a_call_without_content_hands_in_nothing():
    assert fs.parse(chat("ResearchComplete", {})).answer is None


def test_a_tool_of_any_name_can_be_named():
    messages = chat("emit_payload", {"payload": "Veldt"})
    assert fs.parse(messages).answer is None
    assert fs.parse(messages, answer_tool="emit_payload").answer == "Veldt"


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("final_result", True),
        ("submitAnswer", True),
        ("get_result", False),
        ("search_done", False),
        ("mcp__x__submit", True),
        ("sear<answer>ch", False),
    ],
)
def test_names_by_their_words(name, expected):
    assert may_hand_in(name) is expected


def test_audits_ask_whether_the_last_call_is_the_answer(tmp_path):
    rows = [{"messages": chat("emit_payload", {"payload": "Veldt"})}] * 2
    result = audit(file_of(tmp_path / "rows.jsonl", rows), tmp_path / "out")
    first = str(result).splitlines()[0]
    assert first == (
        "2 of 2 rows end without an answer, 2 of them in a call of emit_payload: "
        "is it the answer? (--answer-tool emit_payload)"
    )


def test_a_box_in_a_chat_is_no_dialect():
    messages = [
        {"role": "user", "content": "Where?"},
        {"role": "assistant", "content": "So: \\boxed{Veldt}"},
    ]
    assert fs.parse(messages).dialect == "openai"
