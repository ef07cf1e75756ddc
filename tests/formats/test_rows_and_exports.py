"""Rows of retrieval-augmented generation, exports of chats, ReAct as a chat, further roles."""

import json

import pytest
from paths import SHARED

from faithful_search.errors import DataError
from faithful_search.reading.rows import READER, read_trajectories
from faithful_search.trajectory import Trajectory

REAL = SHARED / "data" / "real" / "react"
QUESTION = "Where was Ada born?"
FOUND = ["Ada was born in Veldt.", "Veldt lies on the Sule."]


def read(row: object) -> Trajectory:
    return READER.parse(json.dumps(row).encode())


def texts(trajectory: Trajectory) -> list[str]:
    return [passage.text for passage in trajectory.evidence.values()]


RAG = {
    "ragas 1": {"question": QUESTION, "contexts": FOUND, "answer": "Oslo", "ground_truth": "Veldt"},
    "ragas 2": {
        "user_input": QUESTION,
        "retrieved_contexts": FOUND,
        "response": "Oslo",
        "reference": "Veldt",
    },
    "DeepEval": {
        "input": QUESTION,
        "retrieval_context": FOUND,
        "actual_output": "Oslo",
        "expected_output": "Veldt",
    },
    "ALCE": {
        "question": QUESTION,
        "docs": [{"title": "t", "text": text} for text in FOUND],
        "output": "Oslo",
        "answer": "Veldt",
    },
    "LlamaIndex": {
        "query": QUESTION,
        "source_nodes": [{"node": {"text": text}, "score": 0.5} for text in FOUND],
        "response": "Oslo",
        "reference": "Veldt",
    },
    "Dify": {
        "query": QUESTION,
        "retriever_resources": [{"content": text, "document_name": "d"} for text in FOUND],
        "answer": "Oslo",
        "expected_answer": "Veldt",
    },
    "Exa": {
        "query": QUESTION,
        "citations": [{"url": "https://e.org", "text": text} for text in FOUND],
        "answer": "Oslo",
        "ground_truth": "Veldt",
    },
    "Tavily": {
        "query": QUESTION,
        "results": [{"url": "https://e.org", "content": text} for text in FOUND],
        "answer": "Oslo",
        "ground_truth": "Veldt",
    },
    "a table's cell": {
        "question": QUESTION,
        "contexts": str(FOUND),
        "response": "Oslo",
        "ground_truth": "Veldt",
    },
}


@pytest.mark.parametrize("name", RAG)
def test_contexts_are_the_evidence_of_a_rag_row(name):
    trajectory = read(RAG[name])
    assert trajectory.question == QUESTION
    assert texts(trajectory) == FOUND
    assert trajectory.answer == "Oslo"
    assert trajectory.answers == ("Veldt",)


def test_the_answer_of_a_rag_row_is_no_gold_answer():
    row = {"question": QUESTION, "contexts": FOUND, "answer": "Oslo"}
    assert read(row).answers == ()


def test_a_transcript_with_contexts_is_a_transcript():
    text = "<think>a</think><search>Ada</search><information>x</information><answer>Veldt</answer>"
    trajectory = read({"question": QUESTION, "docs": FOUND, "output": text})
    assert texts(trajectory) == ["x"]


@pytest.mark.parametrize("missing", ["contexts", "answer"])
def test_half_a_rag_row_is_named(missing):
    row = {"question": QUESTION, "contexts": FOUND, "answer": "Oslo", "n": 1}
    del row[missing]
    with pytest.raises(DataError):
        read(row)


def test_runs_of_browsecomp_plus_are_read():
    call = {
        "type": "tool_call",
        "tool_name": "search",
        "arguments": '{"query": "Ada"}',
        "output": json.dumps([{"docid": "5", "snippet": FOUND[0]}]),
    }
    thought = {"type": "reasoning", "tool_name": None, "arguments": None, "output": ["I look."]}
    answer = {"type": "output_text", "tool_name": None, "arguments": None, "output": "Veldt"}
    trajectory = read({"query_id": "12", "result": [thought, call, answer]})
    assert trajectory.id == "12"
    assert texts(trajectory) == FOUND[:1]
    assert trajectory.answer == "Veldt"


def node(name: str, parent: str | None, role: str, *parts: str) -> dict:
    message = {"author": {"role": role}, "content": {"content_type": "text", "parts": list(parts)}}
    return {"id": name, "parent": parent, "message": message}


def test_of_a_chatgpt_export_the_branch_shown_last_is_read():
    nodes = [
        {"id": "root", "parent": None, "message": None},
        node("u", "root", "user", QUESTION),
        node("a", "u", "assistant", "Oslo"),
        node("b", "u", "assistant", "Veldt"),
    ]
    row = {"mapping": {each["id"]: each for each in nodes}, "current_node": "b"}
    trajectory = read(row)
    assert trajectory.question == QUESTION
    assert trajectory.answer == "Veldt"


def test_a_chatgpt_export_with_a_circle_ends():
    nodes = [node("u", "a", "user", QUESTION), node("a", "u", "assistant", "Veldt")]
    row = {"mapping": {each["id"]: each for each in nodes}, "current_node": "a"}
    assert read(row).answer == "Veldt"


MISTRAL = {
    "object": "conversation.response",
    "conversation_id": "c",
    "outputs": [
        {"type": "tool.execution", "name": "web_search", "arguments": '{"query": "Ada"}'},
        {
            "type": "message.output",
            "content": [
                {"type": "text", "text": "Veldt"},
                {
                    "type": "tool_reference",
                    "tool": "web_search",
                    "title": "Ada",
                    "url": "https://e.org",
                    "description": FOUND[0],
                },
            ],
        },
    ],
}


def test_what_mistral_refers_to_is_what_its_search_returned():
    trajectory = read({**MISTRAL, "question": QUESTION})
    assert trajectory.steps[0].call.arguments == {"query": "Ada"}
    assert texts(trajectory) == FOUND[:1]
    assert trajectory.answer == "Veldt"
    assert [citation.target for citation in trajectory.steps[-1].citations] == ["https://e.org"]


def test_mistrals_functions_are_calls_with_results():
    entries = [
        {"type": "message.input", "role": "user", "content": QUESTION},
        {"type": "function.call", "tool_call_id": "1", "name": "search", "arguments": "{}"},
        {"type": "function.result", "tool_call_id": "1", "result": FOUND[0]},
        {"type": "message.output", "content": "Veldt"},
    ]
    trajectory = read({"object": "conversation.history", "entries": entries})
    assert trajectory.question == QUESTION
    assert texts(trajectory) == FOUND[:1]
    assert trajectory.answer == "Veldt"


def test_openai_evals_events_of_a_sample_are_one_episode(tmp_path):
    def event(kind: str, **data: object) -> dict[str, object]:
        return {"run_id": "r", "event_id": 0, "sample_id": "s.0", "type": kind, "data": data}

    prompt = [{"role": "user", "content": QUESTION}]
    lines = [
        {"spec": {"eval_name": "e", "run_id": "r"}},
        event("sampling", prompt=prompt, sampled=["Veldt"]),
        event("match", expected="Veldt", correct=True),
        {"final_report": {"accuracy": 1.0}},
    ]
    path = tmp_path / "log.jsonl"
    path.write_text("\n".join(map(json.dumps, lines)))
    header, row = read_trajectories(path)
    assert "OpenAI's evals" in header.error
    assert row.trajectory.question == QUESTION
    assert row.trajectory.answer == "Veldt"
    assert row.trajectory.answers == ("Veldt",)


STEPS = {
    "words in brackets": [
        {"thought": "a", "action": "search[Ada]", "observation": FOUND[0]},
        {"thought": "b", "action": "finish[Veldt]"},
    ],
    "an input": [
        {"thought": "a", "action": "search", "action_input": "Ada", "observation": FOUND[0]},
        {"thought": "b", "action": "final_answer", "action_input": {"answer": "Veldt"}},
    ],
    "words in brackets between blanks": [
        {"thought": "a", "action": " search[Ada]\n", "observation": FOUND[0]},
        {"thought": "b", "action": "finish[Veldt]\n"},
    ],
    "an object, its input beside it": [
        {
            "thought": "a",
            "action": {"name": "search"},
            "action_input": "Ada",
            "observation": FOUND[0],
        },
        {"thought": "b", "action": {"name": "finish"}, "action_input": {"answer": "Veldt"}},
    ],
    "a tool": [
        {
            "thought": "a",
            "tool": "search",
            "tool_input": {"query": "Ada"},
            "observation": FOUND[0],
        },
        {"tool": "finish", "tool_input": {"answer": "Veldt"}},
    ],
    "a tool with an input and an output": [
        {"thought": "a", "tool": "search", "input": {"query": "Ada"}, "output": FOUND[0]},
        {"tool": "finish", "input": {"answer": "Veldt"}},
    ],
    "a tool with a query": [
        {"thought": "a", "tool_name": "search", "query": "Ada", "observation": FOUND[0]},
        {"tool_name": "finish", "input": {"answer": "Veldt"}},
    ],
    "a tool with words in brackets": [
        {"thought": "a", "tool": "search[Ada]", "observation": FOUND[0]},
        {"tool": "finish[Veldt]"},
    ],
    "words in brackets beside the tool's name": [
        {
            "thought": "a",
            "action": "search[Ada]",
            "tool_name": "search",
            "observation": FOUND[0],
        },
        {"action": "finish[Veldt]", "tool_name": "search"},
    ],
    "an object": [
        {
            "reasoning": "a",
            "action": {"tool": "search", "args": {"query": "Ada"}},
            "observation": [{"title": "t", "text": FOUND[0], "url": "https://e.org"}],
        },
        {"action": {"name": "finish", "arguments": {"answer": "Veldt"}}, "observation": "done"},
    ],
}


@pytest.mark.parametrize("action", STEPS)
@pytest.mark.parametrize("column", ["trajectory", "steps", "history"])
def test_lists_of_react_steps_are_read(action, column):
    trajectory = read({"question": QUESTION, column: STEPS[action], "answer": "Veldt"})
    assert texts(trajectory) == FOUND[:1]
    assert trajectory.steps[0].call.arguments == {"query": "Ada"}
    assert trajectory.steps[0].think == "a"
    assert trajectory.answer == "Veldt"


TOOLS_BESIDE = [
    ({"action": "call a tool", "tool_name": "search", "args": {"query": "Ada"}}, {"query": "Ada"}),
    ({"action": "use", "tool": "search", "action_input": "Ada"}, {"query": "Ada"}),
    ({"action": "look[Ada]", "tool_name": "search"}, {"query": "Ada"}),
    ({"action": "Look for Ada", "tool_name": "search"}, {"action": "Look for Ada"}),
    ({"action": "search", "tool_name": "none", "action_input": "Ada"}, {"query": "Ada"}),
    ({"action": "search", "tool_name": "N/A", "action_input": "Ada"}, {"query": "Ada"}),
    ({"action": "call a tool", "tool_name": "search[Ada]"}, {"query": "Ada"}),
    ({"action": "Look for Ada", "tool_name": "search", "query": "Ada"}, {"query": "Ada"}),
]


@pytest.mark.parametrize(("step", "arguments"), TOOLS_BESIDE)
def test_a_tool_beside_an_action_is_what_was_called(step, arguments):
    trajectory = read({"question": QUESTION, "steps": [{**step, "observation": FOUND[0]}]})
    [step_read] = trajectory.steps
    assert (step_read.call.name, step_read.call.arguments) == ("search", arguments)


STEPS_WITH_QUERIES = [
    ({"action": "search", "query": "Ada"}, "Ada"),
    ({"action": "search", "parameters": {"query": "Ada"}}, "Ada"),
    ({"action": "search[Ada]", "query": QUESTION}, "Ada"),
    ({"action": "search", "action_input": "Ada", "query": QUESTION}, "Ada"),
    ({"action": "search", "action_input": 'who said "yes"'}, 'who said "yes"'),
    ({"action": "search", "action_input": '"Ada" and "Eva"'}, '"Ada" and "Eva"'),
    ({"action": "search", "action_input": "'Ada's mother'"}, "Ada's mother"),
]


@pytest.mark.parametrize(("step", "query"), STEPS_WITH_QUERIES)
def test_the_query_of_a_step_is_read(step, query):
    trajectory = read({"question": QUESTION, "steps": [{**step, "observation": FOUND[0]}]})
    assert trajectory.steps[0].call.arguments == {"query": query}


def test_a_last_step_may_have_its_answer_in_a_field_of_its_own():
    last = {"action": "finish", "query": QUESTION, "answer": "Veldt"}
    assert read({"question": QUESTION, "steps": [*STEPS["an input"][:1], last]}).answer == "Veldt"


def test_what_a_model_wrote_beside_its_action_is_no_observation():
    step = {"thought": "a", "action": "search", "action_input": "Ada", "output": "Action: search"}
    assert texts(read({"question": QUESTION, "steps": [step]})) == []


def test_react_steps_without_actions_are_passed_over():
    notes = [{"thought": "a plan"}]
    trajectory = read({"steps": notes, "history": STEPS["an input"], "question": QUESTION})
    assert trajectory.answer == "Veldt"


@pytest.mark.parametrize(
    ("prompt", "earlier"),
    [
        (f"Question: {QUESTION}", 0),
        (f"Answer in steps.\nQuestion: {QUESTION}", 0),
        (f"Question: Who?\nThought: b\nAction: finish[Bob]\nQuestion: {QUESTION}", 1),
        (QUESTION, 0),
    ],
)
def test_the_question_of_a_react_chat_is_the_prompts_last(prompt, earlier):
    chat = [
        {"role": "user", "content": prompt},
        {"role": "assistant", "content": "Thought: a\nAction: search[Ada]"},
        {"role": "user", "content": f"Observation: {FOUND[0]}"},
        {"role": "assistant", "content": "Thought: b\nAction: finish[Veldt]"},
    ]
    trajectory = read({"messages": chat})
    left_out = [issue.why for issue in trajectory.all_issues() if issue.kind == "content_unread"]
    assert trajectory.question == QUESTION
    assert left_out == ["left out: 1 questions before the last"] * earlier


@pytest.mark.parametrize(
    ("beside", "answer", "golds"),
    [
        ({"prediction": "Oslo", "answer": "Veldt"}, "Oslo", ("Veldt",)),
        ({"answer": "Oslo", "gold": "Veldt"}, "Oslo", ("Veldt",)),
        ({"answer": "Veldt"}, None, ("Veldt",)),
    ],
)
def test_an_answer_beside_react_steps(beside, answer, golds):
    trajectory = read({"question": QUESTION, "steps": STEPS["an input"][:1], **beside})
    assert trajectory.answer == answer
    assert trajectory.answers == golds


def printed(**line: object) -> dict[str, object]:
    return {"session_id": "s", **line}


def test_a_printed_claude_session_is_one_episode(tmp_path):
    call = {"type": "tool_use", "id": "1", "name": "WebSearch", "input": {"query": "Ada"}}
    result = {"type": "tool_result", "tool_use_id": "1", "content": FOUND[0]}
    lines = [
        printed(type="system", subtype="init", tools=["WebSearch"]),
        printed(type="assistant", message={"role": "assistant", "content": [call]}),
        printed(type="user", message={"role": "user", "content": [result]}),
        printed(
            type="assistant",
            parent_tool_use_id="2",
            message={"role": "assistant", "content": "a sub-agent's"},
        ),
        printed(type="assistant", message={"role": "assistant", "content": "Veldt"}),
        printed(type="result", subtype="success", result="Veldt"),
    ]
    path = tmp_path / "session.jsonl"
    path.write_text("\n".join(map(json.dumps, lines)))
    [row] = read_trajectories(path)
    trajectory = row.trajectory
    assert trajectory.answer == "Veldt"
    assert texts(trajectory) == FOUND[:1]
    assert trajectory.id == "s"


def test_claude_exports_are_read():
    messages = [{"sender": "human", "text": QUESTION}, {"sender": "assistant", "text": "Veldt"}]
    trajectory = read({"uuid": "u", "chat_messages": messages})
    assert trajectory.question == QUESTION
    assert trajectory.answer == "Veldt"


def test_threads_of_assistants_are_read_in_order():
    def message(role: str, text: str, time: int) -> dict:
        content = [{"type": "text", "text": {"value": text, "annotations": []}}]
        return {"object": "thread.message", "role": role, "created_at": time, "content": content}

    row = {
        "object": "list",
        "data": [message("assistant", "Veldt", 2), message("user", QUESTION, 1)],
    }
    trajectory = read(row)
    assert trajectory.question == QUESTION
    assert trajectory.answer == "Veldt"


REACT = [
    {"role": "user", "content": QUESTION},
    {"role": "assistant", "content": "Thought: I look.\nAction: search[Ada]"},
    {"role": "user", "content": f"Observation: {FOUND[0]}"},
    {"role": "assistant", "content": "Thought: So.\nAction: finish[Veldt]"},
    {"role": "user", "content": "Observation: Episode finished, reward = True"},
]
ALPACA = (
    f"### Instruction:\n{QUESTION}\n\n### Response:\nThought: I look.\nAction: search[Ada]\n"
    f"Observation: {FOUND[0]}\nThought: So.\nAction: finish[Veldt]\n"
    "Observation: Episode finished, reward = True\n"
)


@pytest.mark.parametrize("row", [{"messages": REACT}, {"traj": REACT}, {"traj": ALPACA}])
def test_react_in_chats_and_in_prompts_of_alpaca(row):
    trajectory = read(row)
    assert trajectory.question == QUESTION
    assert texts(trajectory) == FOUND[:1]
    assert trajectory.answer == "Veldt"


def test_a_chat_that_only_begins_like_react_is_a_chat():
    messages = [
        {"role": "user", "content": QUESTION},
        {"role": "assistant", "content": "Thought: hm"},
        {"role": "user", "content": "Go on"},
        {"role": "assistant", "content": "Veldt"},
    ]
    assert read({"messages": messages}).answer == "Veldt"


@pytest.mark.parametrize(
    ("calling", "returning"),
    [("function_call", "observation"), ("tool_call", "tool_response"), ("tool_call", "tool")],
)
def test_roles_of_llama_factory_and_ms_swift(calling, returning):
    call = json.dumps({"name": "search", "arguments": {"query": "Ada"}})
    roles = ("human", calling, returning, "gpt")
    said = (QUESTION, call, FOUND[0], "Veldt")
    turns = [{"from": role, "value": text} for role, text in zip(roles, said, strict=True)]
    trajectory = read({"conversations": turns})
    assert [step.call.arguments for step in trajectory.steps if step.call] == [{"query": "Ada"}]
    assert texts(trajectory) == FOUND[:1]
    assert trajectory.answer == "Veldt"


def test_a_text_with_tags_is_read_from_any_column():
    row = {"q": "Where?", "trace": "<think>a</think><answer>Veldt</answer>", "note": "none"}
    assert read(row).answer == "Veldt"


@pytest.mark.skipif(not REAL.is_dir(), reason="the real traces are not beside this checkout")
@pytest.mark.parametrize("name", ["fireact_alpaca.jsonl", "fireact_chat.jsonl"])
def test_every_row_of_fireact_has_question_and_answer(name):
    for line in (REAL / name).read_text().splitlines():
        trajectory = read(json.loads(line))
        assert trajectory.question
        assert trajectory.answer is not None
        assert not any("Episode finished" in text for text in texts(trajectory))
