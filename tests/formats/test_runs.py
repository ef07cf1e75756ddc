"""Runs as frameworks keep them: question, calls, evidence, answer and citations."""

import json
from pathlib import Path
from typing import Any

import pytest

import faithful_search as fs
from faithful_search.citations import read_answer
from faithful_search.reading.rows import read_trajectories
from faithful_search.trajectory import Trajectory

QUESTION = "Where was Ada born?"
BORN = "Ada was born in Veldt."
PAGE = {"title": "Ada", "url": "https://ex.org/ada", "text": BORN}
ARGUMENTS = {"query": "Ada"}
ASKED = {"role": "user", "content": QUESTION}
CALL = {"id": "1", "type": "function", "function": {"name": "search", "arguments": ARGUMENTS}}
CALLING = {"role": "assistant", "content": None, "tool_calls": [CALL]}
RESULT = {"role": "tool", "tool_call_id": "1", "content": BORN}
REPLY = {"role": "assistant", "content": "Veldt"}
ITEMS = [
    {"type": "function_call", "call_id": "1", "name": "search", "arguments": json.dumps(ARGUMENTS)},
    {"type": "function_call_output", "call_id": "1", "output": BORN},
    {"type": "message", "id": "m", "role": "assistant", "content": "Veldt"},
]
GOOGLES = [
    {"type": "thought", "summary": [{"type": "text", "text": "I look."}]},
    {"type": "google_search_call", "id": "1", "arguments": {"queries": ["Ada"]}},
    {"type": "google_search_result", "call_id": "1", "result": [{**PAGE, "snippet": BORN}]},
]
CITING = {"type": "text", "text": "Veldt", "annotations": [{"end_index": 5, "source": PAGE["url"]}]}
AI_SDK_CALL = {"toolCallId": "1", "toolName": "search"}
AUTOGEN = [
    {"source": "user", "type": "TextMessage", "content": QUESTION},
    {"source": "agent", "type": "ThoughtEvent", "content": "I look."},
    {
        "source": "agent",
        "type": "ToolCallRequestEvent",
        "content": [{"id": "1", "name": "search", "arguments": json.dumps(ARGUMENTS)}],
    },
    {
        "source": "agent",
        "type": "ToolCallExecutionEvent",
        "content": [{"call_id": "1", "name": "search", "content": BORN, "is_error": False}],
    },
    {"source": "agent", "type": "ToolCallSummaryMessage", "content": BORN},
    {"source": "agent", "type": "TextMessage", "content": "Veldt"},
]
RUNS: dict[str, Any] = {
    "Agents SDK": {
        "input": QUESTION,
        "new_items": [{"type": "item", "raw_item": item} for item in ITEMS],
        "final_output": "Veldt",
    },
    "AI SDK": {
        "prompt": QUESTION,
        "text": "Veldt",
        "steps": [
            {
                "content": [
                    {**AI_SDK_CALL, "type": "tool-call", "input": ARGUMENTS},
                    {**AI_SDK_CALL, "type": "tool-result", "output": BORN},
                ],
                "finishReason": "tool-calls",
            },
            {"content": [{"type": "text", "text": "Veldt"}], "finishReason": "stop"},
        ],
    },
    "AI SDK, older": {
        "messages": [ASKED],
        "text": "Veldt",
        "steps": [
            {
                "reasoning": "I look.",
                "toolCalls": [{**AI_SDK_CALL, "args": ARGUMENTS}],
                "toolResults": [{**AI_SDK_CALL, "result": BORN}],
            },
            {"text": "Veldt", "toolCalls": [], "finishReason": "stop"},
        ],
    },
    "AutoGen": {"messages": AUTOGEN, "stop_reason": "done"},
    "MiroFlow": {
        "input": {"task_description": QUESTION},
        "main_agent_message_history": {
            "system_prompt": "Search.",
            "message_history": [ASKED, CALLING, RESULT, REPLY],
        },
        "final_boxed_answer": "Veldt",
    },
    "LangGraph, newest state first": [
        {"values": {"messages": [ASKED, CALLING, RESULT, REPLY][:count]}, "next": []}
        for count in (4, 3, 2)
    ],
    "LlamaIndex": {
        "question": QUESTION,
        "response": {"role": "assistant", "blocks": [{"block_type": "text", "text": "Veldt"}]},
        "tool_calls": [
            {
                "tool_name": "search",
                "tool_kwargs": ARGUMENTS,
                "tool_output": {"blocks": [{"block_type": "text", "text": BORN}]},
            }
        ],
    },
    "SkyRL": {
        "input_prompt": f"<|im_start|>user\n{QUESTION}<|im_end|>\n<|im_start|>assistant\n",
        "output_response": f"<search>Ada</search><information>{BORN}</information>"
        "<answer>Veldt</answer>",
        "stop_reason": "stop",
    },
    "steps with a plan": {
        "question": QUESTION,
        "steps": [
            {"plan": "a", "action": {"name": "search", "args": ARGUMENTS}, "observation": BORN}
        ],
        "final_answer": "Veldt",
    },
    "calls as JSON": {
        "messages": [
            ASKED,
            {**CALLING, "tool_calls": [json.dumps(CALL)]},
            RESULT,
            REPLY,
        ]
    },
    "all calls as JSON": {
        "messages": [ASKED, {**CALLING, "tool_calls": json.dumps([CALL])}, RESULT, REPLY]
    },
}


def read(row: Any, folder: Path) -> Trajectory:
    path = folder / "run.jsonl"
    path.write_text(json.dumps(row))
    [only] = read_trajectories(path)
    assert only.trajectory is not None, only.error
    return only.trajectory


@pytest.mark.parametrize("row", RUNS.values(), ids=RUNS)
def test_a_run_has_its_question_and_answer(row, tmp_path):
    trajectory = read(row, tmp_path)
    assert (trajectory.question, trajectory.answer) == (QUESTION, "Veldt")


@pytest.mark.parametrize("row", RUNS.values(), ids=RUNS)
def test_a_run_has_its_call(row, tmp_path):
    calls = [step.call for step in read(row, tmp_path).steps if step.call]
    assert [(call.name, call.arguments) for call in calls] == [("search", ARGUMENTS)]


@pytest.mark.parametrize("row", RUNS.values(), ids=RUNS)
def test_a_run_has_its_evidence(row, tmp_path):
    steps = read(row, tmp_path).steps
    assert [passage.text for step in steps for passage in step.evidence] == [BORN]


def test_a_session_of_the_agents_sdk_is_told_by_its_id(tmp_path):
    path = tmp_path / "sessions.jsonl"
    lines = []
    for item in [ASKED, *ITEMS]:
        for session in "ab":
            lines.append({"session_id": session, "message_data": json.dumps(item)})
    path.write_text("\n".join(map(json.dumps, lines)))
    answers = [row.trajectory.answer for row in read_trajectories(path) if row.trajectory]
    assert answers == ["Veldt", "Veldt"]


def test_snapshots_of_a_thread_on_lines_are_one_run(tmp_path):
    path = tmp_path / "history.jsonl"
    lines = []
    for thread in "ab":
        config = {"configurable": {"thread_id": thread}}
        for count in (4, 3, 2):
            values = {"messages": [ASKED, CALLING, RESULT, REPLY][:count]}
            lines.append({"values": values, "next": [], "config": config})
    path.write_text("\n".join(map(json.dumps, lines)))
    answers = [row.trajectory.answer for row in read_trajectories(path) if row.trajectory]
    assert answers == ["Veldt", "Veldt"]


# requests and answers that are kept apart

REPLIES = {
    "a text": "Veldt",
    "a message": REPLY,
    "a list": [REPLY],
    "an object with messages": {"messages": [REPLY]},
    "the whole chat": [ASKED, CALLING, RESULT, REPLY],
}


@pytest.mark.parametrize("reply", REPLIES.values(), ids=REPLIES)
@pytest.mark.parametrize("column", ["response", "output", "completion"])
@pytest.mark.parametrize("request_column", ["messages", "input", "prompt"])
def test_a_reply_beside_its_request_is_the_answer(reply, column, request_column):
    row = {request_column: [ASKED, CALLING, RESULT], column: reply}
    trajectory = fs.parse(row)
    assert (trajectory.answer, len(trajectory.passages)) == ("Veldt", 1)


@pytest.mark.parametrize("column", ["said", "labelled", "Final Answer", 5])
def test_a_message_in_a_column_of_any_other_name_is_the_reply(column):
    assert fs.parse({"messages": [ASKED], column: REPLY}).answer == "Veldt"


@pytest.mark.parametrize("role", ["system", "user"])
def test_a_message_of_another_speaker_in_a_column_is_no_reply(role):
    row = {"messages": [ASKED, CALLING, RESULT], "said": {"role": role, "content": "Be brief."}}
    trajectory = fs.parse(row)
    assert (trajectory.question, len(trajectory.passages)) == (QUESTION, 1)


def test_a_chat_that_has_its_reply_takes_no_other():
    row = {"messages": [ASKED, CALLING, RESULT, REPLY], "output": "Oslo"}
    assert fs.parse(row).answer == "Veldt"


def test_words_behind_the_results_in_a_prompt_are_the_answer():
    row = {"prompt": [ASKED, CALLING, RESULT], "completion": "Veldt"}
    assert fs.parse(row).answer == "Veldt"


def test_words_behind_an_example_in_a_prompt_are_no_chat():
    example = {"role": "assistant", "content": "<think>a</think><answer>Oslo</answer>"}
    with pytest.raises(fs.FaithfulSearchError, match="contexts"):
        fs.parse({"prompt": [ASKED, example, ASKED], "response": "Veldt"})


@pytest.mark.parametrize(
    "column",
    [
        *("reference", "expectedOutput", "Ground Truth", "expected_response", "idealReply"),
        *("reference_message", "label"),
    ],
)
def test_a_message_that_is_the_gold_answer_is_no_reply(column):
    assert fs.parse({"messages": [ASKED, CALLING, RESULT], column: REPLY}).answer is None


@pytest.mark.parametrize(
    "column", ["reference_outputs", "referenceOutputs", "expected_output", "gold_trajectory"]
)
@pytest.mark.parametrize("expected", [{"messages": [ASKED, REPLY]}, [REPLY], "<answer>V</answer>"])
def test_a_chat_that_should_have_been_is_not_the_agents(column, expected):
    with pytest.raises(fs.FaithfulSearchError, match=f"{column}' is what was expected"):
        fs.parse({"inputs": {"question": QUESTION}, column: expected})


def test_the_agents_chat_is_told_from_it(tmp_path):
    wrong = {"role": "assistant", "content": "Oslo"}
    row = {"run": [ASKED, wrong], "reference_outputs": {"messages": [ASKED, REPLY]}}
    assert read(row, tmp_path).answer == "Oslo"


@pytest.mark.parametrize("expected", [{"messages": [ASKED, REPLY]}, [ASKED, REPLY], REPLY])
def test_the_reply_that_should_have_been_is_the_gold_answer(expected, tmp_path):
    row = {"messages": [ASKED, REPLY], "reference_outputs": expected}
    assert read(row, tmp_path).answers == ("Veldt",)


def test_what_a_tool_should_have_returned_is_no_gold_answer(tmp_path):
    row = {"messages": [ASKED, REPLY], "reference_outputs": [ASKED, CALLING, RESULT]}
    assert read(row, tmp_path).answers == ()


def test_a_reply_is_no_gold_answer(tmp_path):
    row = {"messages": [ASKED], "output": "Veldt", "target": "Oslo"}
    assert read(row, tmp_path).answers == ("Oslo",)


# what is cited


@pytest.mark.parametrize(
    "row",
    [
        {"object": "interaction", "input": QUESTION, "outputs": [*GOOGLES, CITING]},
        {"input": [{"type": "text", "text": QUESTION}], "outputs": [*GOOGLES, CITING]},
        {"input": [ASKED], "outputs": [*GOOGLES, CITING]},
    ],
)
def test_an_interaction_is_read_from_its_outputs(row):
    trajectory = fs.parse(row)
    assert (trajectory.question, trajectory.answer) == (QUESTION, "Veldt")
    assert trajectory.steps[0].think == "I look."
    assert [len(source.passages) for source in read_answer(trajectory).sources] == [1]


CITED_BY = {
    "Bedrock": {
        "role": "assistant",
        "content": [
            {
                "citationsContent": {
                    "content": [{"text": "Veldt"}],
                    "citations": [
                        {
                            "location": {"web": {"url": PAGE["url"]}},
                            "sourceContent": [{"text": BORN}],
                        }
                    ],
                }
            }
        ],
    },
    "Cohere": {
        "role": "assistant",
        "content": "Veldt",
        "citations": [
            {"start": 0, "end": 5, "sources": [{"id": "1:0", "type": "tool", "tool_output": PAGE}]}
        ],
    },
}


@pytest.mark.parametrize("reply", CITED_BY.values(), ids=CITED_BY)
def test_what_an_api_says_is_cited_is_found(reply):
    trajectory = fs.parse([ASKED, CALLING, {**RESULT, "content": [PAGE]}, reply])
    [source] = read_answer(trajectory).sources
    assert [passage.text for passage in source.passages] == [BORN]


def test_bedrocks_citation_has_its_quote():
    trajectory = fs.parse([ASKED, CITED_BY["Bedrock"]])
    assert trajectory.steps[-1].citations[0].quote == BORN


def test_a_location_leaves_the_quote_of_another_service():
    citation = {"url": PAGE["url"], "cited_text": BORN, "location": {"page": 1}}
    reply = {"role": "assistant", "content": "Veldt", "citations": [citation]}
    assert fs.parse([ASKED, reply]).steps[-1].citations[0].quote == BORN


def test_a_result_that_a_tool_of_coheres_did_not_name_keeps_its_id():
    source = {"id": "1:0", "type": "tool", "tool_output": {"content": BORN}}
    reply = {**CITED_BY["Cohere"], "citations": [{"start": 0, "end": 5, "sources": [source]}]}
    assert fs.parse([ASKED, reply]).steps[-1].citations[0].target == "1:0"


# what else a run holds


def test_words_that_a_server_of_an_interaction_returned_are_evidence():
    called = {"type": "mcp_server_tool_call", "id": "1", "name": "search", "arguments": ARGUMENTS}
    result = [{"type": "text", "text": BORN}]
    returned = {"type": "mcp_server_tool_result", "call_id": "1", "result": result}
    trajectory = fs.parse({"input": QUESTION, "outputs": [called, returned, CITING]})
    assert [item.text for item in trajectory.passages] == [BORN]


def test_words_before_a_call_of_an_interaction_are_no_answer():
    outputs = [{"type": "text", "text": "I look."}, *GOOGLES, CITING]
    assert fs.parse({"input": QUESTION, "outputs": outputs}).answer == "Veldt"


def test_parts_of_a2a_are_words():
    messages = [
        {"role": role, "parts": [{"kind": "text", "text": words}]}
        for role, words in (("user", QUESTION), ("agent", "Veldt"))
    ]
    trajectory = fs.parse({"history": messages})
    assert (trajectory.question, trajectory.answer) == (QUESTION, "Veldt")


def spoken(role: str, words: str) -> dict[str, Any]:
    return {"kind": "message", "role": role, "parts": [{"kind": "text", "text": words}]}


TASK = {"id": "1", "contextId": "c", "kind": "task", "status": {"state": "completed"}}
ASKED_BY_A2A = spoken("user", QUESTION)
ARTIFACT = {"artifactId": "a", "parts": [{"kind": "text", "text": "Veldt"}]}
DATA = {"artifactId": "b", "parts": [{"kind": "data", "data": {"results": [PAGE]}}]}
DONE = {"state": "completed", "message": spoken("agent", "I am done.")}
A2A: dict[str, dict[str, Any]] = {
    "an artifact": {**TASK, "history": [ASKED_BY_A2A], "artifacts": [ARTIFACT]},
    "words on the way": {
        **TASK,
        "history": [ASKED_BY_A2A, spoken("agent", "I look.")],
        "artifacts": [ARTIFACT],
    },
    "words at the end": {
        **TASK,
        "status": DONE,
        "history": [ASKED_BY_A2A],
        "artifacts": [ARTIFACT],
    },
    "words alone": {
        **TASK,
        "status": {"state": "completed", "message": spoken("agent", "Veldt")},
        "history": [ASKED_BY_A2A],
    },
    "data beside it": {**TASK, "history": [ASKED_BY_A2A], "artifacts": [DATA, ARTIFACT]},
    "without kinds": {
        "contextId": "c",
        "status": {"state": "TASK_STATE_COMPLETED"},
        "history": [{"role": "ROLE_USER", "content": [{"text": QUESTION}]}],
        "artifacts": [{"parts": [{"text": "Veldt"}]}],
    },
}


@pytest.mark.parametrize("task", A2A.values(), ids=A2A)
def test_what_a_task_of_a2a_hands_over_is_the_answer(task):
    assert fs.parse(task).answer == "Veldt"


@pytest.mark.parametrize("task", A2A.values(), ids=A2A)
def test_it_answers_what_was_asked_in_its_history(task):
    assert fs.parse(task).question == QUESTION


@pytest.mark.parametrize("task", A2A.values(), ids=A2A)
def test_an_artifact_of_a2a_is_no_evidence(task):
    assert fs.parse(task).passages == []


def test_what_an_agent_of_a2a_asks_back_stays_in_its_place():
    asked_back = [spoken("agent", "Which Ada?"), spoken("user", "Mirov.")]
    read_task = fs.parse({**TASK, "history": [ASKED_BY_A2A, *asked_back], "artifacts": [ARTIFACT]})
    assert [step.answer for step in read_task.steps] == ["Which Ada?", "Veldt"]


def test_a_message_of_a2a_is_not_read_twice():
    history = [ASKED_BY_A2A, DONE["message"]]
    assert fs.parse({**TASK, "status": DONE, "history": history}).answer == "I am done."


def test_data_in_an_artifact_are_an_issue():
    issues = fs.parse(A2A["data beside it"]).all_issues()
    assert "content_unread" in [issue.kind for issue in issues]


def test_a_task_in_a_reply_is_read():
    reply = {"jsonrpc": "2.0", "id": "1", "result": A2A["an artifact"]}
    assert fs.parse(reply).answer == "Veldt"


def test_an_agents_span_of_pydantic_ai_is_read_where_none_is_of_a_model():
    parts = [("user", {"type": "text", "content": QUESTION})]
    parts.append(("assistant", {"type": "tool_call", "id": "1", "name": "search"}))
    parts.append(("user", {"type": "tool_call_response", "id": "1", "result": BORN}))
    parts.append(("assistant", {"type": "text", "content": "Veldt"}))
    messages = [{"role": role, "parts": [part]} for role, part in parts]
    attributes = {"pydantic_ai.all_messages": json.dumps(messages)}
    trajectory = fs.parse({"trace_id": "t", "span_id": "s", "attributes": attributes})
    assert (trajectory.answer, len(trajectory.passages)) == ("Veldt", 1)


def test_a_summary_at_the_end_of_autogens_run_is_the_answer():
    assert fs.parse(AUTOGEN[:-1]).answer == BORN


def test_what_autogen_remembers_is_evidence():
    memory = {"content": BORN, "metadata": {"title": "Ada"}}
    event = {"source": "agent", "type": "MemoryQueryEvent", "content": [memory]}
    trajectory = fs.parse([AUTOGEN[0], event, AUTOGEN[-1]])
    assert [(item.title, item.text) for item in trajectory.passages] == [("Ada", BORN)]


def test_events_of_autogen_that_are_not_known_are_counted():
    event = {"source": "agent", "type": "HandoffMessage", "content": "To you."}
    [issue] = fs.parse([*AUTOGEN, event, AUTOGEN[-1]]).issues
    assert issue.why == "left out: 1 messages of AutoGen of another type"


@pytest.mark.parametrize("kind", [None, [], {}, 1])
def test_a_message_without_a_type_is_none_of_autogens(kind):
    with pytest.raises(fs.FaithfulSearchError):
        fs.parse([*AUTOGEN, {"source": "agent", "type": kind}])


def test_why_a_condition_stopped_autogen_is_no_answer():
    stop = {"source": "MaxMessageTermination", "type": "StopMessage", "content": "5 reached"}
    trajectory = fs.parse([*AUTOGEN, stop])
    assert (trajectory.answer, len(trajectory.issues)) == ("Veldt", 1)


def test_an_agent_of_autogens_may_stop_with_its_answer():
    stop = {"source": "agent", "type": "StopMessage", "content": "Veldt"}
    assert fs.parse([*AUTOGEN[:-2], stop]).answer == "Veldt"


def test_words_of_autogens_user_proxy_are_no_answer():
    thanks = {"source": "user_proxy", "type": "TextMessage", "content": "Thanks."}
    assert fs.parse([*AUTOGEN, thanks]).answer == "Veldt"


def test_the_ai_sdks_messages_may_hold_its_steps():
    row = {**RUNS["AI SDK"], "messages": [ASKED, CALLING, RESULT, REPLY]}
    assert [step.answer for step in fs.parse(row).steps] == [None, "Veldt"]


def test_blocks_that_another_service_returned_are_not_all_of_its_result():
    output = {"text": BORN, "blocks": [{"type": "section"}]}
    result = {"type": "tool_result", "tool_use_id": "1", "content": output}
    chat = [ASKED, CALLING, {"role": "user", "content": [result]}, REPLY]
    assert [passage.text for passage in fs.parse(chat).passages] == [BORN]


def test_conversations_of_miroflows_other_agents_are_counted():
    row = {**RUNS["MiroFlow"], "sub_agent_message_history_sessions": {"browser_1": {}}}
    [issue] = fs.parse(row).issues
    assert issue.why == "left out: 1 conversations of other agents"


def test_the_task_of_smolagents_may_stand_beside_its_steps():
    step = {"step_number": 1, "action_output": "Veldt", "is_final_answer": True}
    assert fs.parse({"task": QUESTION, "steps": [step]}).question == QUESTION


@pytest.mark.parametrize("inputs", [QUESTION, [ASKED], [{**ASKED, "type": "message.input"}]])
def test_mistrals_request_is_the_question(inputs):
    outputs = [{"type": "message.output", "content": "Veldt"}]
    assert fs.parse({"inputs": inputs, "outputs": outputs}).question == QUESTION
