"""Traces, streams and sessions that hold more than one conversation or answer, and records that
hold more than messages: one is read, and the rest is counted.
"""

import json
from typing import Any

import pytest
from one_search import ANSWER, ARGUMENTS, ASKED, CALL, PASSAGE, QUESTION, RESULT

from faithful_search.reading.rows import READER, read_trajectories
from faithful_search.trajectory import Trajectory

PAGE = "https://ex.org/ada"
CALLED = {"role": "assistant", "content": None, "tool_calls": [CALL]}
TITLED = {"role": "assistant", "content": "A birthplace"}
SUB = [
    {"role": "user", "content": "List rivers."},
    *[CALLED, RESULT] * 3,
    {"role": "assistant", "content": "The Sule."},
]


def read(row: Any) -> Trajectory:
    return READER.parse(json.dumps(row).encode())


def read_lines(path: Any, values: list[Any]) -> list[Trajectory | None]:
    path.write_text("".join(json.dumps(value) + "\n" for value in values))
    return [row.trajectory for row in read_trajectories(path)]


def whys(trajectory: Trajectory) -> list[str]:
    return [issue.why for issue in trajectory.all_issues() if issue.kind == "content_unread"]


def texts(trajectory: Trajectory) -> list[str]:
    return [passage.text for passage in trajectory.passages]


def generation(time: int, given: Any, output: Any) -> dict[str, Any]:
    times = {"startTime": f"2026-01-01T00:00:0{time}Z"}
    return {"type": "GENERATION", "traceId": "t", "input": given, "output": output, **times}


def langfuse(*observations: dict[str, Any]) -> dict[str, Any]:
    return {"trace": {"id": "t", "input": QUESTION}, "observations": list(observations)}


def span(time: int, attributes: dict[str, Any], name: str = "") -> dict[str, Any]:
    return {
        "context": {"trace_id": "t", "span_id": name or f"s{time}"},
        "start_time": f"2026-01-01T00:00:0{time}Z",
        "attributes": attributes,
    }


def chat(time: int, given: list[Any], output: Any) -> dict[str, Any]:
    messages = {"gen_ai.input.messages": given, "gen_ai.output.messages": [output]}
    return span(time, messages)


AGENT = (generation(1, [ASKED], CALLED), generation(5, [ASKED, CALLED, RESULT], ANSWER))
TITLE = generation(6, [{"role": "system", "content": "Make a title."}, ASKED], TITLED)
SEARCHER = generation(3, SUB[:-1], SUB[-1])
SPANS = [chat(1, [ASKED], CALLED), chat(5, [ASKED, CALLED, RESULT], ANSWER)]


def test_a_longer_conversation_of_a_sub_agent_is_not_the_agents():
    assert read(langfuse(*AGENT, SEARCHER)).answer == "Veldt"


def test_nor_is_it_among_spans(tmp_path):
    [trajectory] = read_lines(tmp_path / "t.jsonl", [*SPANS, chat(3, SUB[:-1], SUB[-1])])
    assert trajectory.answer == "Veldt"


@pytest.mark.parametrize("further", [TITLE, SEARCHER], ids=["title", "sub-agent"])
def test_calls_of_another_conversation_are_counted(further):
    why = "left out: 1 calls of a model in another conversation"
    assert whys(read(langfuse(*AGENT, further))) == [why]


def test_calls_of_one_conversation_are_no_issue():
    assert whys(read(langfuse(*AGENT))) == []


TOOLS: dict[str, dict[str, Any]] = {
    "OpenTelemetry": {
        "gen_ai.operation.name": "execute_tool",
        "gen_ai.tool.name": "search",
        "gen_ai.tool.call.arguments": ARGUMENTS,
        "gen_ai.tool.call.result": PASSAGE,
    },
    "OpenInference": {
        "openinference.span.kind": "TOOL",
        "tool.name": "search",
        "input.value": ARGUMENTS,
        "output.value": PASSAGE,
    },
    "a retriever": {
        "openinference.span.kind": "RETRIEVER",
        "input.value": "Ada",
        "retrieval.documents.0.document.content": PASSAGE,
    },
    "OpenTelemetry's retrieval": {
        "gen_ai.operation.name": "retrieval",
        "gen_ai.retrieval.query.text": "Ada",
        "gen_ai.retrieval.documents": json.dumps([{"id": "d1", "content": PASSAGE}]),
    },
}


@pytest.mark.parametrize("attributes", TOOLS.values(), ids=TOOLS)
def test_what_a_tool_returned_stands_in_its_own_span(attributes, tmp_path):
    spans = [chat(1, [ASKED], CALLED), span(2, attributes), chat(3, [ASKED], ANSWER)]
    [trajectory] = read_lines(tmp_path / "t.jsonl", spans)
    assert texts(trajectory) == [PASSAGE]


@pytest.mark.parametrize("attributes", TOOLS.values(), ids=TOOLS)
def test_the_last_span_has_the_answer(attributes, tmp_path):
    spans = [chat(1, [ASKED], CALLED), span(2, attributes), chat(3, [ASKED], ANSWER)]
    [trajectory] = read_lines(tmp_path / "t.jsonl", spans)
    assert trajectory.answer == "Veldt"


AT_ONCE = {
    "role": "assistant",
    "tool_calls": [
        {"id": "1", "function": {"name": "search", "arguments": '{"query": "Ada"}'}},
        {"id": "2", "function": {"name": "search", "arguments": '{"query": "Bob"}'}},
    ],
}


def ran(time: int, query: str, **fields: str) -> dict[str, Any]:
    attributes = {
        "gen_ai.operation.name": "execute_tool",
        "gen_ai.tool.name": "search",
        "gen_ai.tool.call.result": f"about {query}",
        **fields,
    }
    return span(time, attributes)


RAN = {
    "ids": [
        ran(2, "Bob", **{"gen_ai.tool.call.id": "2"}),
        ran(3, "Ada", **{"gen_ai.tool.call.id": "1"}),
    ],
    "arguments": [
        ran(2, "Bob", **{"gen_ai.tool.call.arguments": '{"query":"Bob"}'}),
        ran(3, "Ada", **{"gen_ai.tool.call.arguments": '{"query":"Ada"}'}),
    ],
}


@pytest.mark.parametrize("tools", RAN.values(), ids=RAN)
def test_tools_that_ran_side_by_side_keep_their_results(tools, tmp_path):
    spans = [chat(1, [ASKED], AT_ONCE), *tools, chat(4, [ASKED], ANSWER)]
    [trajectory] = read_lines(tmp_path / "t.jsonl", spans)
    assert texts(trajectory) == ["about Ada", "about Bob"]


def test_an_answer_whose_input_was_not_recorded_is_read(tmp_path):
    last = span(3, {"gen_ai.output.messages": json.dumps([ANSWER])})
    spans = [chat(1, [ASKED], CALLED), span(2, TOOLS["OpenTelemetry"]), last]
    [trajectory] = read_lines(tmp_path / "t.jsonl", spans)
    assert trajectory.answer == "Veldt"


def weave(time: int, given: list[Any], message: Any) -> dict[str, Any]:
    return {
        "op_name": "weave:///o/p/op/openai.chat.completions.create:v1",
        "trace_id": "t",
        "started_at": f"2026-01-01T00:00:0{time}Z",
        "inputs": {"messages": given},
        "output": {"choices": [{"message": message}]},
    }


LINES: dict[str, list[Any]] = {
    "Langfuse": [*AGENT],
    "Weave": [weave(1, [ASKED], CALLED), weave(2, [ASKED, CALLED, RESULT], ANSWER)],
    "LangGraph": [
        {"agent": {"messages": [{"type": "ai", "content": "", "tool_calls": [CALL]}]}},
        {"tools": {"messages": [{"type": "tool", "content": PASSAGE, "tool_call_id": "1"}]}},
        {"agent": {"messages": [{"type": "ai", "content": "Veldt"}]}},
    ],
}


@pytest.mark.parametrize("values", LINES.values(), ids=LINES)
def test_lines_of_one_trace_are_one_conversation(values, tmp_path):
    [trajectory] = read_lines(tmp_path / "t.jsonl", values)
    assert (texts(trajectory), trajectory.answer) == ([PASSAGE], "Veldt")


def test_runs_are_told_apart(tmp_path):
    values = [{**message, "run_id": run} for run in ("1", "2") for message in (ASKED, ANSWER)]
    assert len(read_lines(tmp_path / "t.jsonl", values)) == 2


def chunk(content: str, index: int = 0, **beside: Any) -> dict[str, Any]:
    choice = {"index": index, "delta": {"content": content}}
    return {"object": "chat.completion.chunk", "choices": [choice], **beside}


def anthropic(*texts: str) -> list[dict[str, Any]]:
    """Events of one message for each text."""
    events: list[dict[str, Any]] = []
    for text in texts:
        delta = {"type": "text_delta", "text": text}
        events.append({"type": "message_start", "message": {"role": "assistant"}})
        events.append({"type": "content_block_delta", "index": 0, "delta": delta})
    return events


STREAMS = {
    "OpenAI": [chunk("Vel"), chunk("Oslo", index=1), chunk("dt")],
    "Anthropic": anthropic("Veldt", "Oslo"),
}


@pytest.mark.parametrize("events", STREAMS.values(), ids=STREAMS)
def test_two_streamed_answers_are_not_mixed(events):
    assert read({"messages": [ASKED], "chunks": events}).answer == "Veldt"


@pytest.mark.parametrize("events", STREAMS.values(), ids=STREAMS)
def test_the_further_one_is_counted(events):
    assert whys(read({"messages": [ASKED], "chunks": events})) == ["left out: 1 further answers"]


def test_what_was_searched_comes_with_the_last_pieces():
    pages = [{"url": PAGE, "snippet": PASSAGE}]
    row = {"messages": [ASKED], "chunks": [chunk("Veldt"), chunk("", search_results=pages)]}
    assert texts(read(row)) == [PASSAGE]


def test_streamed_citations_are_kept():
    cited = {"type": "citations_delta", "citation": {"url": PAGE, "cited_text": PASSAGE}}
    events = [*anthropic("Veldt"), {"type": "content_block_delta", "index": 0, "delta": cited}]
    [citation] = read({"messages": [ASKED], "events": events}).steps[-1].citations
    assert citation.target == PAGE


def response(*items: dict[str, Any]) -> dict[str, Any]:
    content = [{"type": "output_text", "text": "Veldt"}]
    answer = {"type": "message", "id": "m", "role": "assistant", "content": content}
    return {"object": "response", "input": [ASKED], "output": [*items, answer]}


CALLS = (
    {"type": "function_call", "call_id": "1", "name": "search", "arguments": ARGUMENTS},
    {"type": "function_call_output", "call_id": "1", "output": PASSAGE},
)


@pytest.mark.parametrize("kind", ["compaction", "item_reference", "something_new"])
def test_a_response_with_an_unknown_item_is_read(kind):
    assert texts(read(response(*CALLS, {"type": kind, "text": "Oslo"}))) == [PASSAGE]


@pytest.mark.parametrize("kind", ["compaction", "item_reference", "something_new"])
def test_the_unknown_item_is_an_issue(kind):
    [why] = whys(read(response(*CALLS, {"type": kind, "text": "Oslo"})))
    assert kind in why


def test_what_code_printed_is_evidence():
    code = {"type": "code_interpreter_call", "id": "c", "code": "print(1)"}
    logs = [{"type": "logs", "logs": PASSAGE}]
    assert texts(read(response({**code, "outputs": logs}))) == [PASSAGE]


def test_a_picture_is_no_text():
    drawn = {"type": "image_generation_call", "id": "g", "result": "iVBORw0KGgoAAAANSUhEUg"}
    assert texts(read(response(drawn))) == []


def gemini(**beside: Any) -> dict[str, Any]:
    content = {"role": "model", "parts": [{"text": "Veldt"}]}
    asked = {"role": "user", "parts": [{"text": QUESTION}]}
    return {"contents": [asked], "candidates": [{"content": content, **beside}]}


OPENED = {"urlContextMetadata": {"urlMetadata": [{"retrievedUrl": PAGE}]}}
PLACES = {"groundingMetadata": {"groundingChunks": [{"maps": {"uri": PAGE, "title": "Ada"}}]}}
EVENT = {"content": {"role": "model", "parts": [{"text": "Veldt"}]}, "author": "agent"}
GROUNDED = {"groundingChunks": [{"web": {"uri": PAGE, "title": "Ada"}}]}
GEMINI = {
    "pages that it opened": gemini(**OPENED),
    "places on a map": gemini(**PLACES),
    "pages that it opened and offers to search for": gemini(
        **OPENED, groundingMetadata={"searchEntryPoint": {"renderedContent": "<div>Ada</div>"}}
    ),
    "a page that it opened and cites": gemini(**OPENED, groundingMetadata=GROUNDED),
    "an event of a session": {"events": [{**EVENT, "groundingMetadata": GROUNDED}]},
}


@pytest.mark.parametrize("row", GEMINI.values(), ids=GEMINI)
def test_what_google_read_is_the_result_of_a_search(row):
    assert [passage.url for passage in read(row).passages] == [PAGE]


def test_pages_that_gemini_opened_stand_before_those_that_it_searched():
    chunks = [{"web": {"uri": "https://a.org/other", "title": "Other"}}]
    row = gemini(**OPENED, groundingMetadata={"groundingChunks": chunks})
    assert [passage.url for passage in read(row).passages] == [PAGE, "https://a.org/other"]


def test_what_googles_client_called_by_itself_stands_before_the_answer():
    parts = [
        {"functionCall": {"name": "search", "args": {"query": "Ada"}}},
        {"functionResponse": {"name": "search", "response": {"result": PASSAGE}}},
    ]
    row = gemini()
    called = [{"role": "model", "parts": parts[:1]}, {"role": "user", "parts": parts[1:]}]
    row["automaticFunctionCallingHistory"] = [*row["contents"], *called]
    assert texts(read(row)) == [PASSAGE]


def test_of_several_answers_the_first_is_read():
    choices = [{"index": 1, "message": TITLED}, {"index": 0, "message": ANSWER}]
    assert read({"messages": [ASKED], "response": {"choices": choices}}).answer == "Veldt"


THOUGHT = "I look it up first."
MISTRAL = [{"type": "thinking", "thinking": [{"type": "text", "text": THOUGHT}]}]
THOUGHTS = {
    "a conversation of Mistral's": {
        "outputs": [
            {"type": "message.output", "content": [*MISTRAL, {"type": "text", "text": "Veldt"}]}
        ]
    },
    "a streamed one": {
        "messages": [ASKED],
        "chunks": [
            {"object": "chat.completion.chunk", "choices": [{"delta": {"thinking": THOUGHT}}]},
            chunk("Veldt"),
        ],
    },
    "OpenLLMetry": {
        "trace_id": "t",
        "attributes": {
            "gen_ai.prompt.0.role": "user",
            "gen_ai.prompt.0.content": QUESTION,
            "gen_ai.completion.0.reasoning": THOUGHT,
            "gen_ai.completion.0.content": "Veldt",
        },
    },
}


@pytest.mark.parametrize("row", THOUGHTS.values(), ids=THOUGHTS)
def test_a_thought_is_not_lost(row):
    assert read(row).steps[0].think == THOUGHT


def test_a_failure_of_the_api_is_no_answer(tmp_path):
    failed = {"role": "assistant", "content": [{"type": "text", "text": "API Error: 529"}]}
    values = [
        {"type": "user", "sessionId": "s", "message": ASKED},
        {"type": "assistant", "sessionId": "s", "message": failed, "isApiErrorMessage": True},
    ]
    [trajectory] = read_lines(tmp_path / "t.jsonl", values)
    assert trajectory.answer is None


@pytest.mark.parametrize("outcome", ["denied", "failed"])
def test_a_tool_that_did_not_run_returned_no_evidence(outcome):
    parts = [
        {"kind": "request", "parts": [{"part_kind": "user-prompt", "content": QUESTION}]},
        {
            "kind": "response",
            "parts": [
                {"part_kind": "tool-call", "tool_name": "s", "args": ARGUMENTS, "tool_call_id": "1"}
            ],
        },
        {
            "kind": "request",
            "parts": [
                {
                    "part_kind": "tool-return",
                    "content": "Not in Veldt.",
                    "tool_call_id": "1",
                    "outcome": outcome,
                }
            ],
        },
    ]
    assert texts(read(parts)) == []


OBSERVED = f"Thought: {THOUGHT}\nAction: search\nAction Input: {ARGUMENTS}\nObservation: {PASSAGE}"
CREW = [
    ASKED,
    {"role": "assistant", "content": OBSERVED},
    {"role": "assistant", "content": "Thought: So.\nFinal Answer: Veldt"},
]


def test_the_answer_of_a_crew_is_the_final_one():
    assert read({"messages": CREW}).answer == "Veldt"


def test_an_observation_in_the_agents_own_message_is_an_issue():
    assert "response_forged" in [issue.kind for issue in read({"messages": CREW}).all_issues()]


def test_a_server_tools_fields_are_read():
    parts = [
        {
            "type": "server_tool_call",
            "id": "1",
            "name": "web",
            "server_tool_call": {"query": "Ada"},
        },
        {
            "type": "server_tool_call_response",
            "id": "1",
            "server_tool_call_response": {"results": [{"title": "Ada", "text": PASSAGE}]},
        },
        {"type": "text", "content": "Veldt"},
    ]
    asked = {"role": "user", "parts": [{"type": "text", "content": QUESTION}]}
    assert texts(read(chat(1, [asked], {"role": "assistant", "parts": parts}))) == [PASSAGE]
