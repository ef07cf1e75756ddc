"""One episode as every format writes it: each is read to the same steps, and so gets the same scores.

The agent makes two calls at once, of which one fails, finds nothing, reads a page with an image, and answers. Where a
format's package is installed, its own classes check or make the rows.
"""

from __future__ import annotations

import contextlib
import importlib
import json
from typing import Any

import msgspec
import pytest

from faithful_search import formats
from faithful_search.measure import metrics
from faithful_search.measure.rows import parse_row
from faithful_search.trajectory import Trajectory

QUESTION = "Where was the author of Faust born?"
FAUST = '[{"title": "Faust", "url": "https://e.org/faust", "text": "Faust is a play by Goethe."}]'
PAGE = "Goethe was born in Frankfurt."
THOUGHTS = ["I look up both.", "One failed: once more.", "I open his page.", "So it is Frankfurt."]
CALLS = [
    [("c1", "search", {"query": "author of Faust"}), ("c2", "search", {"query": "Goethe born"})],
    [("c3", "search", {"query": "Goethe birthplace"})],
    [("c4", "browse", {"url": "https://e.org/goethe"})],
]
FORMATS: dict[str, Any] = {}


def checked(name: str, kind: str, value: Any, **options: Any) -> Any:
    """The value as this class of a package dumps it, where the package is installed."""
    try:
        found = getattr(importlib.import_module(name), kind).model_validate(value)
    except ImportError:
        return value
    return json.loads(found.model_dump_json(exclude_none=True, **options))


def written(make: Any) -> Any:
    FORMATS[make.__name__] = make
    return make


def openai_messages(name: str = "c{}") -> list[dict[str, Any]]:
    """The episode as chat completions have it; the image stands beside the page's text."""
    messages: list[dict[str, Any]] = [{"role": "user", "content": QUESTION}]
    returned = {"c1": FAUST, "c2": '{"error": "time-out"}', "c3": "[]", "c4": PAGE}
    for thought, calls in zip(THOUGHTS, CALLS, strict=False):
        made = [{"id": i, "type": "function", "function": {"name": n, "arguments": json.dumps(a)}} for i, n, a in calls]
        messages.append({"role": "assistant", "content": thought, "tool_calls": made})
        messages += [{"role": "tool", "tool_call_id": i, "content": returned[i]} for i, _, _ in calls]
    messages[-1]["content"] = [{"type": "text", "text": PAGE}, {"type": "image_url", "image_url": {"url": "data:…"}}]
    return [*messages, {"role": "assistant", "reasoning_content": THOUGHTS[3], "content": "Frankfurt"}]


@written
def openai() -> Any:
    messages = openai_messages()
    own = [message["role"] == "assistant" for message in messages]
    return {
        "messages": [
            checked("openai.types.chat", "ChatCompletionMessage", message) if said else message
            for message, said in zip(messages, own, strict=True)
        ]
    }


@written
def anthropic() -> Any:
    results = {
        "c1": {"content": [{"type": "search_result", "source": "https://e.org/faust", "title": "Faust",
                            "content": [{"type": "text", "text": "Faust is a play by Goethe."}]}]},
        "c2": {"content": "time-out", "is_error": True},
        "c3": {"content": "[]"},
        "c4": {"content": [{"type": "text", "text": PAGE}, {"type": "image", "source": {"type": "base64"}}]},
    }  # fmt: skip
    messages: list[dict[str, Any]] = [{"role": "user", "content": QUESTION}]
    for thought, calls in zip(THOUGHTS, CALLS, strict=False):
        uses = [{"type": "tool_use", "id": i, "name": n, "input": a} for i, n, a in calls]
        messages.append({"content": [{"type": "text", "text": thought}, *uses]})
        back = [{"type": "tool_result", "tool_use_id": i, **results[i]} for i, _, _ in reversed(calls)]
        messages.append({"role": "user", "content": back})
    thinking = {"type": "thinking", "thinking": THOUGHTS[3], "signature": "x"}
    messages.append({"content": [thinking, {"type": "text", "text": "Frankfurt"}]})
    usage = {"input_tokens": 1, "output_tokens": 1}
    whole = {
        "id": "m", "type": "message", "role": "assistant", "model": "m", "stop_reason": None, "stop_sequence": None,
    }  # fmt: skip
    dumped = [
        message if "role" in message else checked("anthropic.types", "Message", {**whole, "usage": usage, **message})
        for message in messages
    ]
    return {"system": "Search.", "messages": dumped}


@written
def responses() -> Any:
    output: list[dict[str, Any]] = []
    returned = {"c1": FAUST, "c2": '{"error": "time-out"}', "c3": "[]"}
    for number, (thought, calls) in enumerate(zip(THOUGHTS, CALLS, strict=False)):
        output.append(reasoning(number, thought))
        output += [
            {"type": "function_call", "id": f"f{i}", "call_id": i, "name": n, "arguments": json.dumps(a)}
            for i, n, a in calls
        ]
        output += [
            {"type": "function_call_output", "call_id": i, "output": returned.get(i, PAGE_ITEMS)} for i, *_ in calls
        ]
    said = {"type": "output_text", "text": "Frankfurt", "annotations": []}
    output += [reasoning(9, THOUGHTS[3]), {"type": "message", "id": "m", "role": "assistant", "content": [said]}]
    classes = {"function_call": "ResponseFunctionToolCall", "reasoning": "ResponseReasoningItem"}
    output = [
        checked("openai.types.responses", classes[item["type"]], item) if item["type"] in classes else item
        for item in output
    ]
    return {"object": "response", "id": "r", "input": QUESTION, "output": output}


PAGE_ITEMS = [{"type": "input_text", "text": PAGE}, {"type": "input_image", "image_url": "data:…"}]


def reasoning(number: int, thought: str) -> dict[str, Any]:
    return {"type": "reasoning", "id": f"r{number}", "summary": [{"type": "summary_text", "text": thought}]}


@written
def langchain() -> Any:
    return {"messages": pytest.importorskip("langchain_core.load").dumpd(langchain_objects())}


def langchain_objects() -> list[Any]:
    messages = pytest.importorskip("langchain_core.messages")
    made: list[Any] = [messages.HumanMessage(QUESTION)]
    returned: dict[str, Any] = {"c1": FAUST, "c2": "time-out", "c3": "[]"}
    returned["c4"] = [{"type": "text", "text": PAGE}, {"type": "image_url", "image_url": {"url": "data:…"}}]
    for thought, calls in zip(THOUGHTS, CALLS, strict=False):
        asked = [{"id": i, "name": n, "args": a, "type": "tool_call"} for i, n, a in calls]
        made.append(messages.AIMessage(thought, tool_calls=asked))
        for i, *_ in calls:
            made.append(messages.ToolMessage(returned[i], tool_call_id=i, status="error" if i == "c2" else "success"))
    said = [{"type": "reasoning", "reasoning": THOUGHTS[3]}, {"type": "text", "text": "Frankfurt"}]
    return [*made, messages.AIMessage(content=said)]


@written
def langchain_dicts() -> Any:
    dumped = pytest.importorskip("langchain_core.messages").messages_to_dict(langchain_objects())
    return {"values": {"messages": dumped}}


@written
def gemini() -> Any:
    contents: list[dict[str, Any]] = [{"role": "user", "parts": [{"text": QUESTION}]}]
    returned: dict[str, Any] = {"c1": {"result": json.loads(FAUST)}, "c2": {"error": "time-out"}, "c3": {"result": []}}
    for thought, calls in zip(THOUGHTS, CALLS, strict=False):
        asked = [{"functionCall": {"id": i, "name": n, "args": a}} for i, n, a in calls]
        contents.append({"role": "model", "parts": [{"text": thought, "thought": True}, *asked]})
        back = [
            {"functionResponse": {"id": i, "name": n, "response": returned.get(i, {"output": PAGE})}}
            for i, n, _ in calls
        ]
        contents.append({"role": "user", "parts": back})
    contents[-1]["parts"].append({"inlineData": {"data": "eA==", "mimeType": "image/png"}})
    said = [{"text": THOUGHTS[3], "thought": True}, {"text": "Frankfurt"}]
    contents.append({"role": "model", "parts": said})
    dumped = [checked("google.genai.types", "Content", item, by_alias=True) for item in contents]
    return {"contents": dumped[:-1], "candidates": [{"content": dumped[-1]}]}


@written
def inspect_ai() -> Any:
    log = pytest.importorskip("inspect_ai.log")
    model = pytest.importorskip("inspect_ai.model")
    tool = pytest.importorskip("inspect_ai.tool")
    messages: list[Any] = [model.ChatMessageUser(content=QUESTION)]
    returned: dict[str, Any] = {"c1": FAUST, "c2": "", "c3": "[]"}
    returned["c4"] = [model.ContentText(text=PAGE), model.ContentImage(image="data:…")]
    for thought, calls in zip(THOUGHTS, CALLS, strict=False):
        asked = [tool.ToolCall(id=i, function=n, arguments=a) for i, n, a in calls]
        messages.append(model.ChatMessageAssistant(content=thought, tool_calls=asked))
        for i, n, _ in calls:
            failed = tool.ToolCallError(type="timeout", message="time-out") if i == "c2" else None
            messages.append(model.ChatMessageTool(content=returned[i], tool_call_id=i, function=n, error=failed))
    submit = tool.ToolCall(id="s", function="submit", arguments={"answer": "Frankfurt"})
    messages.append(
        model.ChatMessageAssistant(content=[model.ContentReasoning(reasoning=THOUGHTS[3])], tool_calls=[submit])
    )
    messages.append(model.ChatMessageTool(content="Frankfurt", tool_call_id="s", function="submit"))
    sample = log.EvalSample(
        id="7", epoch=1, input=QUESTION, target=["Frankfurt", "Frankfurt am Main"], messages=messages
    )
    return json.loads(sample.model_dump_json())


@written
def atif() -> Any:
    returned: dict[str, Any] = {"c1": FAUST, "c2": '{"error": "time-out"}', "c3": "[]"}
    image = {"type": "image", "source": {"media_type": "image/png", "path": "a.png"}}
    returned["c4"] = [{"type": "text", "text": PAGE}, image]
    steps: list[dict[str, Any]] = [{"source": "user", "message": QUESTION}]
    for thought, calls in zip(THOUGHTS, CALLS, strict=False):
        asked = [{"tool_call_id": i, "function_name": n, "arguments": a} for i, n, a in calls]
        results = [{"source_call_id": i, "content": returned[i]} for i, *_ in calls]
        steps.append({"source": "agent", "message": thought, "tool_calls": asked, "observation": {"results": results}})
    steps.append({"source": "agent", "message": "Frankfurt", "reasoning_content": THOUGHTS[3]})
    numbered = [{"step_id": number, **step} for number, step in enumerate(steps, start=1)]
    agent = {"name": "a", "version": "1"}
    document = {"schema_version": "ATIF-v1.7", "session_id": "s", "agent": agent, "steps": numbered}
    return checked("atif", "Trajectory", document)


@written
def smolagents() -> Any:
    memory = pytest.importorskip("smolagents.memory")
    Timing = pytest.importorskip("smolagents.monitoring").Timing
    steps: list[Any] = [memory.SystemPromptStep("Search."), memory.TaskStep(QUESTION)]
    for number, (thought, calls) in enumerate(zip(THOUGHTS, CALLS, strict=False), start=1):
        asked = [memory.ToolCall(name=n, arguments=a, id=i) for i, n, a in calls]
        seen = ["", "[]", PAGE][number - 1]
        steps.append(memory.ActionStep(number, Timing(0.0), tool_calls=asked, model_output=thought, observations=seen))
    final = memory.ToolCall(name="final_answer", arguments={"answer": "Frankfurt"}, id="f")
    steps.append(
        memory.ActionStep(4, Timing(0.0), tool_calls=[final], model_output=THOUGHTS[3], observations="Frankfurt",
                          action_output="Frankfurt", is_final_answer=True)
    )  # fmt: skip
    steps.append(memory.FinalAnswerStep("Frankfurt"))
    dumped = [step.dict() for step in steps]
    dumped[2]["observations"] = FAUST  # what both calls returned, together
    dumped[4]["observations_images"] = ["…"]
    return {"steps": json.loads(json.dumps(dumped))}


def verifiers() -> Any:
    """Nodes of a trace; a branch that was left stands among them."""
    nodes = [{"parent": k - 1 if k else None, "message": message} for k, message in enumerate(openai_messages())]
    for node in nodes:
        calls = node["message"].pop("tool_calls", [])
        if calls:  # flat, unlike OpenAI's
            node["message"]["tool_calls"] = [{"id": one["id"], "type": "function", **one["function"]} for one in calls]
    nodes[-1]["parent"] = len(nodes) - 2
    nodes.insert(len(nodes) - 1, {"parent": 0, "message": {"role": "assistant", "content": "another try"}})
    nodes = [checked("verifiers.v1.graph", "MessageNode", node) for node in nodes]
    data = {"prompt": QUESTION, "answer": "Frankfurt"}
    return {"version": 1, "id": "t", "task": {"type": "Search", "data": data}, "nodes": nodes}


FORMATS["verifiers"] = verifiers


@written
def claude_code() -> Any:
    whole = anthropic()["messages"]
    lines: list[dict[str, Any]] = [{"type": "summary", "summary": "Faust", "leafUuid": "u"}]
    lines.append({"type": "user", "isMeta": True, "sessionId": "s", "message": {"role": "user", "content": "caveat"}})
    for number, message in enumerate(whole):
        line = {"parentUuid": str(number), "sessionId": "s", "uuid": str(number + 1), "isSidechain": False}
        lines.append({**line, "type": message["role"], "message": message})
    lines.append(
        {**line, "type": "assistant", "isSidechain": True, "message": {"role": "assistant", "content": "side"}}
    )
    return {"lines": lines}


@written
def codex() -> Any:
    def line(kind: str, payload: Any) -> dict[str, Any]:
        return {"timestamp": "t", "type": kind, "payload": payload}

    def user(text: str) -> dict[str, Any]:
        return {"type": "message", "role": "user", "content": [{"type": "input_text", "text": text}]}

    items = [user("<environment_context>\n</environment_context>"), user(QUESTION), *responses()["output"]]
    events = [line("event_msg", {"type": "token_count"}), line("turn_context", {"cwd": "/"})]
    return {"lines": [line("session_meta", {"id": "s"}), *events, *(line("response_item", item) for item in items)]}


@written
def pi() -> Any:
    messages: list[dict[str, Any]] = [{"role": "user", "content": [{"type": "text", "text": QUESTION}]}]
    returned: dict[str, Any] = {"c1": FAUST, "c2": "time-out", "c3": "[]", "c4": PAGE}
    for thought, calls in zip(THOUGHTS, CALLS, strict=False):
        asked = [{"type": "toolCall", "id": i, "name": n, "arguments": a} for i, n, a in calls]
        messages.append({"role": "assistant", "content": [{"type": "thinking", "thinking": thought}, *asked]})
        for i, n, _ in calls:
            content = [{"type": "text", "text": returned[i]}]
            content += [{"type": "image", "data": "…"}] if i == "c4" else []
            result = {"role": "toolResult", "toolCallId": i, "toolName": n, "content": content, "isError": i == "c2"}
            messages.append(result)
    said = [{"type": "thinking", "thinking": THOUGHTS[3]}, {"type": "text", "text": "Frankfurt"}]
    messages.append({"role": "assistant", "content": said})
    lines: list[dict[str, Any]] = [{"type": "session", "version": 3, "id": "s", "timestamp": "t", "cwd": "/"}]
    for number, message in enumerate(messages):
        parent = str(number - 1) if number else None
        lines.append({"type": "message", "id": str(number), "parentId": parent, "message": message})
    lines.insert(
        3, {"type": "message", "id": "b", "parentId": "0", "message": {"role": "assistant", "content": "other"}}
    )
    return {"lines": lines}


@written
def otel() -> Any:
    """The spans of two calls of a model: the later one was given all that came before."""
    told = []
    for message in openai_messages():
        role = message["role"]
        if role == "tool":
            content = message["content"] if isinstance(message["content"], str) else PAGE
            parts = [{"type": "tool_call_response", "id": message["tool_call_id"], "response": content}]
            parts += [{"type": "blob", "content": "…"}] if content == PAGE else []
        else:
            parts = [{"type": "text", "content": message["content"]}]
            parts += [{"type": "tool_call", "id": i["id"], **i["function"]} for i in message.get("tool_calls", [])]
            thought = message.get("reasoning_content")
            parts = [{"type": "reasoning", "content": thought}, *parts] if thought else parts
        told.append({"role": role, "parts": parts})

    def span(before: list[Any], after: list[Any]) -> dict[str, Any]:
        names = {"gen_ai.input.messages": before, "gen_ai.output.messages": after}
        attributes = [{"key": key, "value": {"stringValue": json.dumps(value)}} for key, value in names.items()]
        return {"traceId": "t", "spanId": "1", "name": "chat", "attributes": attributes}

    spans = [span(told[:1], told[1:2]), span(told[:-1], told[-1:]), {"traceId": "t", "attributes": []}]
    return {"resourceSpans": [{"scopeSpans": [{"spans": spans}]}]}


def installed() -> dict[str, Any]:
    """The rows of all formats whose packages are here."""
    rows = {}
    for name, make in FORMATS.items():
        with contextlib.suppress(pytest.skip.Exception):
            rows[name] = json.loads(json.dumps(make()))
    return rows


def steps(found: Trajectory) -> list[tuple[Any, ...]]:
    return [
        (
            step.think,
            step.call and (step.call.name, step.call.arguments),
            [(item.title, item.url, item.text) for item in step.evidence],
            step.note,
            step.answer,
            step.same_turn,
        )
        for step in found.steps
    ]


EXPECTED = [
    (THOUGHTS[0], CALLS[0][0][1:], [("Faust", "https://e.org/faust", "Faust is a play by Goethe.")], "", None, False),
    (None, CALLS[0][1][1:], [], "time-out", None, True),
    (THOUGHTS[1], CALLS[1][0][1:], [], "[]", None, False),
    (THOUGHTS[2], CALLS[2][0][1:], [("", "", PAGE)], "", None, False),
    (THOUGHTS[3], None, [], "", "Frankfurt", False),
]


@pytest.mark.parametrize("name", FORMATS)
def test_question_calls_evidence_thoughts_and_answer_come_out_right(name: str) -> None:
    found = parse_row(json.dumps(FORMATS[name]()).encode())
    expected = EXPECTED
    if name == "smolagents":  # observations of parallel calls are one text there
        (think, asked, evidence, *_), (*_, same) = EXPECTED[:2]
        expected = [
            (think, asked, [], "", None, False),
            (None, CALLS[0][1][1:], evidence, "", None, same),
            *EXPECTED[2:],
        ]
    assert [(think, tuple(call) if call else None, *rest) for think, call, *rest in steps(found)] == expected
    assert (found.question, found.answer, found.dialect) == (QUESTION, "Frankfurt", "openai")
    assert {issue.kind for issue in found.all_issues()} == {"content_unread"}  # the image; branches that were left


def test_the_same_episode_gets_the_same_scores() -> None:
    read = {name: parse_row(json.dumps(row).encode()) for name, row in installed().items() if name != "smolagents"}
    rows = {name: msgspec.structs.replace(row, answers=("Frankfurt",)) for name, row in read.items()}
    rewards = [
        reward for name in metrics.names() if name != "evidence_sensitivity" for reward in metrics.load(name).values()
    ]
    scores = {name: [reward.score(row).value for reward in rewards] for name, row in rows.items()}
    assert len({tuple(own) for own in scores.values()}) == 1 and len(scores) > 2


def test_each_format_is_read_by_one_reader_alone() -> None:
    for value in installed().values():
        assert sum(each.read(value) is not None for each in formats.formats().values()) <= 1
