"""Conversations in pieces: streamed answers, a message a line, speakers in a text; and what stands
beside a message.
"""

import json
import time
from pathlib import Path
from typing import Any

import pytest
from growth import MOST, growth

from faithful_search.errors import DataError
from faithful_search.formats import streams
from faithful_search.reading.rows import READER, Raw, read_trajectories
from faithful_search.trajectory import Trajectory

QUESTION = "Where was Ada born?"
PASSAGE = "Ada was born in Veldt."
USER = {"role": "user", "content": QUESTION}
CALL = {"id": "1", "function": {"name": "search", "arguments": '{"query": "Ada"}'}}
CHAT = [
    {"role": "system", "content": "Be brief."},
    USER,
    {"role": "assistant", "content": "", "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": "1", "content": PASSAGE},
    {"role": "assistant", "content": "Veldt"},
]


def read(row: Any) -> Trajectory:
    return READER.parse(json.dumps(row).encode())


def read_file(path: Path) -> list[Trajectory]:
    trajectories = [row.trajectory for row in read_trajectories(path)]
    assert None not in trajectories
    return trajectories


def lines_of(path: Path, values: list[Any]) -> Path:
    path.write_text("".join(json.dumps(value) + "\n" for value in values))
    return path


def texts(trajectory: Trajectory) -> list[str]:
    return [passage.text for passage in trajectory.evidence.values()]


def chunk(**delta: Any) -> dict[str, Any]:
    return {"id": "c", "object": "chat.completion.chunk", "choices": [{"delta": delta}]}


def piece(name: str = "", arguments: str = "") -> dict[str, Any]:
    return {"index": 0, "function": {"name": name, "arguments": arguments}}


def piece_of_gemini(text: str, response: str = "r", **beside: Any) -> dict[str, Any]:
    content = {"role": "model", "parts": [{"text": text}]}
    return {"candidates": [{"content": content}], "responseId": response, **beside}


STREAMS: dict[str, list[dict[str, Any]]] = {
    "OpenAI": [chunk(role="assistant", content="Vel"), chunk(content="dt"), chunk()],
    "Anthropic": [
        {"type": "message_start", "message": {"type": "message", "role": "assistant"}},
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "Vel"}},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "dt"}},
        {"type": "message_stop"},
    ],
    "Responses": [
        {"type": "response.created", "response": {"id": "r", "output": []}},
        {"type": "response.output_text.delta", "delta": "Vel"},
        {
            "type": "response.completed",
            "response": {
                "object": "response",
                "output": [
                    {
                        "type": "message",
                        "role": "assistant",
                        "content": [{"type": "output_text", "text": "Veldt"}],
                    }
                ],
            },
        },
    ],
    "Gemini": [piece_of_gemini("Vel"), piece_of_gemini("dt")],
}


@pytest.mark.parametrize("api", STREAMS)
def test_a_streamed_answer_is_put_together(api):
    trajectory = read({"request": {"messages": [USER]}, "response": STREAMS[api]})
    assert (trajectory.question, trajectory.answer) == (QUESTION, "Veldt")


@pytest.mark.parametrize("api", STREAMS)
def test_an_event_may_be_a_line(api, tmp_path):
    (trajectory,) = read_file(lines_of(tmp_path / "a.jsonl", STREAMS[api]))
    assert trajectory.answer == "Veldt"


def test_events_of_gemini_name_their_response(tmp_path):
    events = [*STREAMS["Gemini"], piece_of_gemini("Os", "s"), piece_of_gemini("lo", "s")]
    trajectories = read_file(lines_of(tmp_path / "a.jsonl", events))
    assert [trajectory.answer for trajectory in trajectories] == ["Veldt", "Oslo"]


def test_answers_of_gemini_may_come_in_one_piece_each(tmp_path):
    events = [piece_of_gemini("Veldt", "r"), piece_of_gemini("Oslo", "s")]
    trajectories = read_file(lines_of(tmp_path / "a.jsonl", events))
    assert [trajectory.answer for trajectory in trajectories] == ["Veldt", "Oslo"]


def test_events_that_pythons_client_writes_are_pieces(tmp_path):
    rows = []
    for piece in STREAMS["Gemini"]:
        fields = {"response_id": "r", "automatic_function_calling_history": [], "parsed": None}
        rows.append({"candidates": piece["candidates"], **fields})
    [trajectory] = read_file(lines_of(tmp_path / "a.jsonl", rows))
    assert trajectory.answer == "Veldt"


def test_a_response_of_gemini_beside_a_question_is_no_event(tmp_path):
    rows = [piece_of_gemini(text, question=QUESTION) for text in ("Veldt", "Oslo")]
    trajectories = read_file(lines_of(tmp_path / "a.jsonl", rows))
    assert [trajectory.answer for trajectory in trajectories] == ["Veldt", "Oslo"]
    assert trajectories[1].question == QUESTION


def test_streamed_calls_are_put_together():
    pieces = [
        chunk(tool_calls=[{**piece("search"), "id": "1"}]),
        chunk(tool_calls=[piece(arguments='{"que')]),
        chunk(tool_calls=[piece(arguments='ry": "Ada"}')]),
    ]
    trajectory = read({"messages": [USER], "response": pieces})
    assert trajectory.steps[0].call.arguments == {"query": "Ada"}


def whole_call(identity: str, query: Any, **place: int) -> dict[str, Any]:
    return {"id": identity, "function": {"name": "search", "arguments": query}, **place}


@pytest.mark.parametrize("place", [{}, {"index": 0}])
def test_streamed_calls_without_a_number_of_their_own_are_apart(place):
    queries = '{"query": "Ada"}', '{"query": "Bob"}'
    pieces = [
        chunk(tool_calls=[whole_call(str(number), query, **place)])
        for number, query in enumerate(queries)
    ]
    steps = read({"messages": [USER], "response": pieces}).steps
    assert [step.call.arguments["query"] for step in steps] == ["Ada", "Bob"]


def test_streamed_arguments_may_be_an_object():
    pieces = [chunk(tool_calls=[whole_call("1", {"query": "Ada"}, index=0)])]
    [step] = read({"messages": [USER], "response": pieces}).steps
    assert step.call.arguments == {"query": "Ada"}


def test_a_name_that_is_streamed_with_each_piece_is_one_name():
    pieces = [
        chunk(tool_calls=[piece("search", '{"query"')]),
        chunk(tool_calls=[piece("search", ': "Ada"}')]),
    ]
    [step] = read({"messages": [USER], "response": pieces}).steps
    assert (step.call.name, step.call.arguments) == ("search", {"query": "Ada"})


def test_a_streamed_refusal_is_the_answer():
    pieces = [chunk(content="", refusal="I can"), chunk(refusal="not.")]
    assert read({"messages": [USER], "response": pieces}).answer == "I cannot."


def test_a_tool_that_was_streamed_before_its_result_is_called_once():
    running = {"index": 0, "type": "search", "arguments": '{"query": "Ada"}'}
    results = {"results": [{"title": "Ada", "url": "https://a.org", "content": PASSAGE}]}
    pieces = [
        chunk(executed_tools=[running]),
        chunk(executed_tools=[{**running, "search_results": results}]),
        chunk(content="Veldt"),
    ]
    first, _ = read({"messages": [USER], "response": pieces}).steps
    assert [passage.text for passage in first.evidence] == [PASSAGE]


def test_a_streamed_answer_that_is_spoken_is_put_together():
    pieces = [
        chunk(audio={"id": "a"}),
        chunk(audio={"transcript": "Vel"}),
        chunk(audio={"transcript": "dt"}),
    ]
    assert read({"messages": [USER], "response": pieces}).answer == "Veldt"


def test_other_documents_of_the_same_number_are_kept():
    pieces = [chunk(documents=[{"index": 0, "text": text}]) for text in ("A page.", "Another.")]
    trajectory = read({"messages": [USER], "response": [*pieces, chunk(content="Veldt")]})
    assert texts(trajectory) == ["A page.", "Another."]


def test_documents_that_are_streamed_twice_count_once():
    documents = [{"title": "Ada", "text": PASSAGE}]
    pieces = [chunk(documents=documents), chunk(documents=documents, content="Veldt")]
    assert texts(read({"messages": [USER], "response": pieces})) == [PASSAGE]


def mistral(thought: str) -> list[dict[str, Any]]:
    return [{"type": "thinking", "thinking": [{"type": "text", "text": thought}]}]


STREAMED_THOUGHTS: dict[str, list[dict[str, Any]]] = {
    "Mistral": [chunk(content=mistral("Look ")), chunk(content=mistral("at it."))],
    "OpenRouter": [
        chunk(reasoning_details=[{"type": "reasoning.text", "text": text}])
        for text in ("Look ", "at it.")
    ],
    "OpenRouter, a word twice": [
        chunk(reasoning_details=[{"type": "reasoning.text", "text": text}])
        for text in ("L", "o", "o", "k at it.")
    ],
    "of another name": [chunk(thought="Look "), chunk(thought="at it.")],
}


@pytest.mark.parametrize("api", STREAMED_THOUGHTS)
def test_a_streamed_thought_is_put_together(api):
    pieces = [*STREAMED_THOUGHTS[api], chunk(content="Vel"), chunk(content="dt")]
    [step] = read({"messages": [USER], "response": pieces}).steps
    assert (step.think, step.answer) == ("Look at it.", "Veldt")


def test_a_streamed_call_of_a_function_is_put_together():
    pieces = [
        chunk(function_call={"name": "search", "arguments": ""}),
        chunk(function_call={"arguments": '{"query": "Ada"}'}),
    ]
    [step] = read({"messages": [USER], "response": pieces}).steps
    assert step.call.arguments == {"query": "Ada"}


def test_a_streamed_field_that_is_not_known_is_reported():
    pieces = [chunk(retrieved="A page "), chunk(retrieved="of text."), chunk(content="Veldt")]
    trajectory = read({"messages": [USER], "response": pieces})
    assert any("retrieved" in issue.why for issue in trajectory.issues)


@pytest.mark.parametrize("content", [{}, {"content": {"role": "model", "parts": [{"text": ""}]}}])
def test_pages_that_a_streamed_answer_rests_on_are_kept(content):
    pages = {"urlContextMetadata": {"urlMetadata": [{"retrievedUrl": "https://a.org/veldt"}]}}
    events = [*STREAMS["Gemini"], {"candidates": [{**content, **pages}]}]
    trajectory = read({"messages": [USER], "response": events})
    assert [page.url for page in trajectory.evidence.values()] == ["https://a.org/veldt"]


def test_a_streamed_input_of_anthropic_is_put_together():
    block = {"type": "tool_use", "id": "1", "name": "search", "input": {}}
    deltas = [{"type": "input_json_delta", "partial_json": text} for text in ('{"q": ', '"Ada"}')]
    events = [
        {"type": "message_start", "message": {}},
        {"type": "content_block_start", "index": 0, "content_block": block},
        *({"type": "content_block_delta", "index": 0, "delta": delta} for delta in deltas),
    ]
    assert read({"messages": [USER], "events": events}).steps[0].call.arguments == {"q": "Ada"}


def reply_of_anthropic(*blocks: dict[str, Any]) -> list[dict[str, Any]]:
    starts = [
        {"type": "content_block_start", "index": place, "content_block": block}
        for place, block in enumerate(blocks)
    ]
    return [{"type": "message_start", "message": {}}, *starts]


def response_of_openai(number: int) -> dict[str, Any]:
    content = [{"type": "output_text", "text": f"answer {number}"}]
    output = [{"type": "message", "role": "assistant", "content": content}]
    response = {"object": "response", "id": str(number), "output": output}
    return {"type": "response.completed", "response": response}


def candidate_of_gemini(index: int) -> dict[str, Any]:
    return {
        "index": index,
        "content": {"role": "model", "parts": [{"text": f"answer {index + 1}"}]},
    }


FURTHER_ANSWERS = {
    "Anthropic, behind a call": [
        *reply_of_anthropic({"type": "tool_use", "id": "1", "name": "search", "input": {}}),
        *reply_of_anthropic({"type": "text", "text": "answer 1"}),
        *reply_of_anthropic({"type": "text", "text": "answer 2"}),
    ],
    "OpenAI, whole": [response_of_openai(1), response_of_openai(2)],
    "Gemini, in one piece": [
        {"candidates": [candidate_of_gemini(0), candidate_of_gemini(1)]},
        {"candidates": []},
    ],
    "Gemini, in pieces": [
        {"candidates": [candidate_of_gemini(0)]},
        {"candidates": [candidate_of_gemini(1)]},
    ],
}


@pytest.mark.parametrize("index", [None, {}, "0"])
def test_a_streamed_candidate_without_a_number_is_the_first(index):
    events = [{"candidates": [{**candidate_of_gemini(0), "index": index}]}, {"candidates": []}]
    assert read({"messages": [USER], "events": events}).answer == "answer 1"


@pytest.mark.parametrize("api", FURTHER_ANSWERS)
def test_a_further_streamed_answer_is_counted(api):
    trajectory = read({"messages": [USER], "events": FURTHER_ANSWERS[api]})
    assert trajectory.answer == "answer 1"
    assert any("1 further answers" in issue.why for issue in trajectory.issues)


PYDANTIC = [
    {"kind": "request", "parts": [{"part_kind": "user-prompt", "content": QUESTION}]},
    {
        "kind": "response",
        "parts": [
            {"part_kind": "tool-call", "tool_name": "search", "args": {}, "tool_call_id": "1"}
        ],
    },
    {
        "kind": "request",
        "parts": [
            {
                "part_kind": "tool-return",
                "tool_name": "search",
                "content": PASSAGE,
                "tool_call_id": "1",
            }
        ],
    },
    {"kind": "response", "parts": [{"part_kind": "text", "content": "Veldt"}]},
]
ITEMS = [
    USER,
    {"type": "function_call", "call_id": "1", "name": "search", "arguments": "{}"},
    {"type": "function_call_output", "call_id": "1", "output": PASSAGE},
    {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Veldt"}]},
]
WHOLE = {"messages": CHAT, "Pydantic AI": PYDANTIC, "OpenAI's items": ITEMS}


@pytest.mark.parametrize("kind", WHOLE)
def test_a_file_may_hold_one_chat(kind, tmp_path):
    path = tmp_path / "chat.json"
    path.write_text(json.dumps(WHOLE[kind], indent=1))
    (trajectory,) = read_file(path)
    assert (trajectory.question, trajectory.answer) == (QUESTION, "Veldt")
    assert texts(trajectory) == [PASSAGE]


def test_a_file_may_hold_one_object_with_messages(tmp_path):
    path = tmp_path / "chat.json"
    path.write_text(json.dumps({"messages": CHAT, "answer": "Veldt"}, indent=1))
    (trajectory,) = read_file(path)
    assert (trajectory.answer, trajectory.answers) == ("Veldt", ("Veldt",))


def test_rows_of_answers_are_no_chat(tmp_path):
    answers = [
        {"type": "message", "role": "assistant", "content": [{"type": "text", "text": text}]}
        for text in ("Veldt", "Oslo")
    ]
    path = tmp_path / "answers.json"
    path.write_text(json.dumps(answers))
    assert [trajectory.answer for trajectory in read_file(path)] == ["Veldt", "Oslo"]


def test_a_message_may_be_a_line(tmp_path):
    (trajectory,) = read_file(lines_of(tmp_path / "a.jsonl", CHAT))
    assert (trajectory.answer, texts(trajectory)) == ("Veldt", [PASSAGE])


def test_lines_name_their_conversation(tmp_path):
    lines = [{**message, "session_id": name} for name in ("a", "b") for message in CHAT]
    trajectories = read_file(lines_of(tmp_path / "a.jsonl", lines))
    assert [trajectory.id for trajectory in trajectories] == ["a", "b"]
    assert [trajectory.answer for trajectory in trajectories] == ["Veldt", "Veldt"]


ROW = {"question": QUESTION, "messages": CHAT, "gold": "Veldt"}
WRAPPED = {
    "a list beside settings": {"run": "x", "scores": [1, 2], "results": [ROW, ROW]},
    "rows by their ids": {"q1": ROW, "q2": ROW},
}


@pytest.mark.parametrize("kind", WRAPPED)
def test_an_object_may_hold_the_rows(kind, tmp_path):
    path = tmp_path / "rows.json"
    path.write_text(json.dumps(WRAPPED[kind]))
    assert [trajectory.answers for trajectory in read_file(path)] == [("Veldt",), ("Veldt",)]


def test_rows_by_their_ids_have_them(tmp_path):
    path = tmp_path / "rows.json"
    path.write_text(json.dumps({"q1": ROW, "q2": {**ROW, "id": 7}}))
    assert [trajectory.id for trajectory in read_file(path)] == ["q1", "7"]


def test_two_lists_of_rows_are_not_chosen_from(tmp_path):
    path = tmp_path / "rows.json"
    path.write_text(json.dumps({"before": [ROW], "after": [ROW]}))
    assert "no column with messages or text" in next(read_trajectories(path)).error


SPOKEN = {
    "plain": f"User: {QUESTION}\nAssistant: Veldt",
    "human and AI": f"Human: {QUESTION}\n\nAI: Veldt\n",
    "with a system's": f"system: Be brief.\nuser: {QUESTION}\nassistant: Veldt",
    "bold": f"**User:** {QUESTION}\n\n**Assistant:** Veldt",
    "addressed": f"user (to assistant):\n{QUESTION}\nassistant (to user):\nVeldt",
}


@pytest.mark.parametrize("kind", SPOKEN)
def test_lines_of_a_text_may_name_the_speakers(kind):
    trajectory = read({"log": SPOKEN[kind], "gold": "Veldt"})
    assert (trajectory.question, trajectory.answer) == (QUESTION, "Veldt")


def test_a_tools_line_is_evidence_of_a_text():
    text = f"User: {QUESTION}\nAssistant: I search.\nTool: {PASSAGE}\nAssistant: Veldt"
    trajectory = read({"text": text})
    assert (trajectory.answer, trajectory.evidence_from) == ("Veldt", "text")
    assert texts(trajectory) == [PASSAGE]


@pytest.mark.parametrize(
    "text",
    ["He said: user: no", "Assistant: Veldt", "Note. User: who?\nAssistant: Veldt", "user: Who?"],
)
def test_other_texts_are_no_conversation(text):
    assert READER(row_of(text)).trajectory is None


def row_of(text: str) -> Raw:
    return Raw.of(1, json.dumps({"text": text}).encode())


def test_autogens_text_of_a_prompt_is_a_chat():
    generation = {
        "type": "GENERATION",
        "input": f"system: Be brief.\nuser: {QUESTION}",
        "output": "Veldt",
    }
    trajectory = read({"trace": {"id": "t"}, "observations": [generation]})
    assert (trajectory.question, trajectory.answer) == (QUESTION, "Veldt")


SOURCE = {"title": "Ada", "url": "https://e.org/ada"}
BESIDE: dict[str, dict[str, Any]] = {
    "search_results": {"search_results": [{**SOURCE, "snippet": PASSAGE}]},
    "sources": {"sources": [{**SOURCE, "content": PASSAGE}]},
    "Open WebUI": {
        "sources": [{"source": {"name": "Ada", "url": SOURCE["url"]}, "document": [PASSAGE]}]
    },
    "LangChain": {
        "source_documents": [{"page_content": PASSAGE, "metadata": {"source": SOURCE["url"]}}]
    },
    "LiteLLM": {"provider_specific_fields": {"search_results": [{**SOURCE, "text": PASSAGE}]}},
    "Gemini": {
        "groundingMetadata": {
            "groundingChunks": [{"retrievedContext": {"uri": SOURCE["url"], "text": PASSAGE}}]
        }
    },
}


@pytest.mark.parametrize("kind", BESIDE)
def test_what_stands_beside_a_message_was_retrieved(kind):
    answer = {"role": "assistant", "content": "Veldt [1]", **BESIDE[kind]}
    trajectory = read({"messages": [USER, answer]})
    assert [passage.url for passage in trajectory.evidence.values()] == [SOURCE["url"]]
    assert texts(trajectory) == [PASSAGE]
    assert trajectory.answer == "Veldt [1]"


def test_addresses_beside_a_message_were_returned():
    answer = {"role": "assistant", "content": "Veldt [1]", "citations": [SOURCE["url"]]}
    trajectory = read({"messages": [USER, answer]})
    assert [passage.url for passage in trajectory.evidence.values()] == [SOURCE["url"]]


def test_what_a_tool_returned_is_not_listed_twice():
    result = json.dumps([{**SOURCE, "text": PASSAGE}])
    answer = {"role": "assistant", "content": "Veldt", "sources": [{**SOURCE, "text": PASSAGE}]}
    trajectory = read({"messages": [*CHAT[:3], {**CHAT[3], "content": result}, answer]})
    assert texts(trajectory) == [PASSAGE]


SENDERS = {
    "LibreChat": [
        {"sender": "User", "isCreatedByUser": True, "text": QUESTION},
        {"sender": "GPT-4o", "isCreatedByUser": False, "text": "Veldt"},
    ],
    "speakers": [
        {"speaker": "human", "text": QUESTION},
        {"speaker": "bot", "text": "Veldt"},
    ],
}


@pytest.mark.parametrize("kind", SENDERS)
def test_messages_may_name_their_senders(kind):
    trajectory = read({"messages": SENDERS[kind]})
    assert (trajectory.question, trajectory.answer) == (QUESTION, "Veldt")


REQUESTS = {
    "W&B Weave": {"inputs": {"messages": [USER]}, "output": {"choices": [{"message": CHAT[4]}]}},
    "Helicone": {
        "request_body": {"messages": [USER]},
        "response_body": {"choices": [{"message": CHAT[4]}]},
    },
    "Gemini's batch": {
        "request": {"contents": [{"role": "user", "parts": [{"text": QUESTION}]}]},
        "response": {"candidates": [{"content": {"role": "model", "parts": [{"text": "Veldt"}]}}]},
    },
}


@pytest.mark.parametrize("kind", REQUESTS)
def test_the_request_has_the_question(kind):
    trajectory = read(REQUESTS[kind])
    assert (trajectory.question, trajectory.answer) == (QUESTION, "Veldt")


def test_columns_may_be_in_camel_case():
    trajectory = read({"userQuery": QUESTION, "messages": CHAT[2:], "expectedAnswer": "Veldt"})
    assert (trajectory.question, trajectory.answers) == (QUESTION, ("Veldt",))


def test_columns_may_be_chinese():
    trajectory = read({"问题": QUESTION, "messages": CHAT, "标准答案": ["Veldt"]})
    assert (trajectory.question, trajectory.answers) == (QUESTION, ("Veldt",))


def test_smolagents_calls_may_be_flat():
    call = {"name": "search", "arguments": {"query": "Ada"}, "id": "1"}
    final = {"name": "final_answer", "arguments": {"answer": "Veldt"}, "id": "2"}
    steps = [
        {"task": QUESTION},
        {"step_number": 1, "tool_calls": [call], "observations": PASSAGE},
        {"step_number": 2, "tool_calls": [final], "action_output": "Veldt"},
    ]
    trajectory = read({"steps": steps})
    assert (trajectory.answer, texts(trajectory)) == ("Veldt", [PASSAGE])


def test_a_broken_stream_is_refused():
    with pytest.raises(DataError):
        read({"response": [{"type": "message_start"}]})


def test_a_long_streamed_thought_takes_linear_time():
    def seconds(size: int) -> float:
        pieces = [chunk(content=mistral("a word "))] * size
        start = time.process_time()
        streams.read(pieces)
        return time.process_time() - start

    assert growth(seconds, 64_000) <= MOST
