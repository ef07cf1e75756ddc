"""Stores of traces and records of frameworks: the conversation in what they keep."""

import json

import pytest
from paths import SHARED

from faithful_search.errors import DataError
from faithful_search.reading.rows import READER
from faithful_search.trajectory import Trajectory

REAL = SHARED / "data" / "real"
QUESTION = "Where was Ada born?"
FOUND = "Ada was born in Veldt."
ASKED = {"role": "user", "content": QUESTION}
CALL = {
    "id": "1",
    "type": "function",
    "function": {"name": "search", "arguments": '{"query": "Ada"}'},
}
CALLS = {"role": "assistant", "content": "", "tool_calls": [CALL]}
RESULT = {"role": "tool", "tool_call_id": "1", "content": FOUND}
ANSWER = {"role": "assistant", "content": "Veldt"}


def read(row: object) -> Trajectory:
    return READER.parse(json.dumps(row).encode())


def generation(time: int, given: object, output: object) -> dict:
    return {
        "type": "GENERATION",
        "startTime": f"2026-01-01T00:00:0{time}Z",
        "input": given,
        "output": output,
    }


def tool(time: int, given: object, output: object) -> dict:
    return {
        "type": "TOOL",
        "name": "search",
        "startTime": f"2026-01-01T00:00:0{time}Z",
        "input": given,
        "output": output,
    }


def openinference(message: dict) -> dict:
    flat = {"message.role": message["role"], "message.content": message["content"]}
    if "tool_calls" in message:
        function = CALL["function"]
        names = {
            "tool_call.function.name": function["name"],
            "tool_call.function.arguments": function["arguments"],
        }
        flat["message.tool_calls"] = [{**names, "tool_call.id": "1"}]
    if "tool_call_id" in message:
        flat["message.tool_call_id"] = "1"
    return flat


SPAN = {"context": {"trace_id": "t", "span_id": "s"}, "name": "llm"}
LISTED = {
    "llm.input_messages": [openinference(message) for message in (ASKED, CALLS, RESULT)],
    "llm.output_messages": [openinference(ANSWER)],
}
FLAT = {
    f"{name}.{number}.{field}": value
    for name, messages in LISTED.items()
    for number, message in enumerate(messages)
    for field, value in message.items()
    if field != "message.tool_calls"
} | {
    "llm.input_messages.1.message.tool_calls.0.tool_call.function.name": "search",
    "llm.input_messages.1.message.tool_calls.0.tool_call.function.arguments": '{"query": "Ada"}',
    "llm.input_messages.1.message.tool_calls.0.tool_call.id": "1",
}
PYDANTIC = [
    {"kind": "request", "parts": [{"part_kind": "user-prompt", "content": QUESTION}]},
    {
        "kind": "response",
        "parts": [
            {"part_kind": "thinking", "content": "I look."},
            {
                "part_kind": "tool-call",
                "tool_name": "search",
                "args": {"query": "Ada"},
                "tool_call_id": "1",
            },
        ],
    },
    {
        "kind": "request",
        "parts": [
            {
                "part_kind": "tool-return",
                "tool_name": "search",
                "content": FOUND,
                "tool_call_id": "1",
            }
        ],
    },
    {"kind": "response", "parts": [{"part_kind": "text", "content": "Veldt"}]},
]
DSPY = {
    "question": QUESTION,
    "trajectory": {
        "thought_0": "I look.",
        "tool_name_0": "search",
        "tool_args_0": {"query": "Ada"},
        "observation_0": FOUND,
        "thought_1": "Enough.",
        "tool_name_1": "finish",
        "tool_args_1": {},
        "observation_1": "Completed.",
    },
    "reasoning": "Born in Veldt.",
    "answer": "Veldt",
}
NEMO = {
    "responses_create_params": {
        "input": [
            ASKED,
            {
                "type": "function_call",
                "call_id": "1",
                "name": "search",
                "arguments": '{"query": "Ada"}',
            },
            {"type": "function_call_output", "call_id": "1", "output": FOUND},
        ]
    },
    "response": {
        "output": [
            {
                "type": "message",
                "id": "m",
                "role": "assistant",
                "content": [{"type": "output_text", "text": "Veldt"}],
            }
        ]
    },
    "reward": 1.0,
}
AI_SDK = {
    "messages": [
        {"role": "user", "parts": [{"type": "text", "text": QUESTION}]},
        {
            "role": "assistant",
            "parts": [
                {"type": "step-start"},
                {
                    "type": "tool-search",
                    "toolCallId": "1",
                    "state": "output-available",
                    "input": {"query": "Ada"},
                    "output": FOUND,
                },
                {"type": "text", "text": "Veldt"},
            ],
        },
    ]
}
AI_SDK_MODEL = {
    "messages": [
        ASKED,
        {
            "role": "assistant",
            "content": [
                {
                    "type": "tool-call",
                    "toolCallId": "1",
                    "toolName": "search",
                    "input": {"query": "Ada"},
                }
            ],
        },
        {
            "role": "tool",
            "content": [
                {
                    "type": "tool-result",
                    "toolCallId": "1",
                    "toolName": "search",
                    "output": {"type": "text", "value": FOUND},
                }
            ],
        },
        ANSWER,
    ]
}
ALL_GIVEN = [
    generation(1, [ASKED], CALLS),
    tool(2, {"query": "Ada"}, FOUND),
    generation(3, [ASKED, CALLS, RESULT], ANSWER),
]
ONLY_NEW = [generation(1, [ASKED], CALLS), generation(3, [RESULT], ANSWER)]
WITHOUT_CALLS = [
    generation(1, QUESTION, ""),
    tool(2, {"query": "Ada"}, FOUND),
    generation(3, "", "Veldt"),
]
RECORDS = {
    "Langfuse, each call given all": {"trace": {"id": "t"}, "observations": ALL_GIVEN},
    "Langfuse, each given what is new": {"trace": {"id": "t"}, "observations": ONLY_NEW},
    "Langfuse, texts": {"trace": {"id": "t", "input": QUESTION}, "observations": WITHOUT_CALLS},
    "Langfuse, JSON as text": {
        "trace": {"id": "t"},
        "observations": [
            {**each, "input": json.dumps(each["input"]), "output": json.dumps(each["output"])}
            for each in ALL_GIVEN
        ],
    },
    "OpenInference, lists": {**SPAN, "attributes": LISTED},
    "OpenInference, flat": {**SPAN, "attributes": FLAT},
    "Pydantic AI": PYDANTIC,
    "DSPy": DSPY,
    "NeMo Gym": NEMO,
    "AI SDK, a page's messages": AI_SDK,
    "AI SDK, a model's messages": AI_SDK_MODEL,
}


@pytest.mark.parametrize("name", RECORDS)
def test_question_call_evidence_and_answer_are_read(name):
    trajectory = read(RECORDS[name])
    calls = [step.call for step in trajectory.steps if step.call]
    assert trajectory.question == QUESTION
    assert [(call.name, call.arguments) for call in calls] == [("search", {"query": "Ada"})]
    assert [passage.text for passage in trajectory.evidence.values()] == [FOUND]
    assert trajectory.answer == "Veldt"


def test_the_answer_of_a_dspy_prediction_is_no_gold_answer():
    assert read(DSPY).answers == ()
    assert read({**DSPY, "gold": "Veldt"}).answers == ("Veldt",)


def said(role: str, **part: object) -> dict:
    return {"author": role, "content": {"role": role, "parts": [part]}}


ADK = {
    "id": "s1",
    "appName": "researcher",
    "userId": "u",
    "state": {},
    "events": [
        said("user", text=QUESTION),
        said("model", functionCall={"id": "1", "name": "search", "args": {"query": "Ada"}}),
        said("user", functionResponse={"id": "1", "name": "search", "response": {"result": FOUND}}),
        {**said("model", text="Vel"), "partial": True},
        said("model", text="Veldt"),
        {"author": "model", "actions": {"stateDelta": {}}},
    ],
}


def test_a_session_of_the_agent_development_kit_is_read():
    found = read(ADK)
    assert found.question == QUESTION
    assert found.answer == "Veldt"
    assert found.id == "s1"
    assert found.steps[0].call.arguments == {"query": "Ada"}
    assert FOUND in found.steps[0].evidence[0].text


@pytest.mark.parametrize("expected", [{"answer": "Veldt"}, {"output": "Veldt"}, "Veldt"])
def test_what_a_langsmith_run_expects_is_its_gold_answer(expected):
    run = {
        "run_type": "chain",
        "inputs": {"messages": [ASKED]},
        "outputs": {"messages": [ASKED, CALLS, RESULT, ANSWER]},
        "reference_outputs": expected,
    }
    assert read(run).answers == ("Veldt",)


def test_gold_answers_of_nemo_gym_are_read():
    assert read({**NEMO, "expected_answer": "Veldt"}).answers == ("Veldt",)


def test_an_export_without_messages_is_named():
    with pytest.raises(DataError, match="Langfuse"):
        read({"trace": {"id": "t"}, "observations": [{"type": "SPAN", "input": None}]})


@pytest.mark.skipif(not REAL.is_dir(), reason="the real traces are not beside this checkout")
@pytest.mark.parametrize(
    ("name", "question", "calls", "answer"),
    [
        (
            "claude-agent-2025-12-22",
            "What's the weather like in Berlin and New York?",
            2,
            "Great! Here's",
        ),
        ("crewai-2025-07-11", "Current Task: Define the HTML", 0, "I now can give a great answer"),
        ("google-adk-2025-08-28", "hi", 1, "Hello Langfuse"),
        ("koog-2025-08-26", "Greet and say goodbye", 2, "Hello my darling Bob!"),
        ("langgraph-python-2025-08-22", "Search the web for 'example'", 1, "The search for"),
        ("llamaindex-2025-06-05", "What is Langfuse?", 0, "Langfuse is a tool"),
        (
            "microsoft-agent-2025-12-17",
            "What's the weather in Tokyo?",
            1,
            "Current conditions in Tokyo",
        ),
        ("openai-agents-2025-09-30", "What's the weather in Tokyo?", 1, "The weather in Tokyo"),
        ("pydantic-ai-tools-2025-12-04", "Select and call THREE", 3, "Why do programmers"),
        ("vertex-ai-2025-08-01", "What is Langfuse?", 0, "**Langfuse** is"),
    ],
)
def test_exports_of_langfuse(name, question, calls, answer):
    trajectory = read(json.loads((REAL / "langfuse" / f"{name}.json").read_text()))
    assert trajectory.question.startswith(question)
    assert sum(step.call is not None for step in trajectory.steps) == calls
    assert trajectory.answer.startswith(answer)
