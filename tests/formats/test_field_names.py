"""Messages whose fields have other names: each is read, or what is not read is an issue."""

import json
from typing import Any

import pytest
from one_search import ANSWER, ARGUMENTS, ASKED, CALL, PASSAGE, QUESTION, RESULT

from faithful_search.dialects import parse
from faithful_search.formats.field_names import unread, usual
from faithful_search.reading.rows import READER
from faithful_search.trajectory import Trajectory

THOUGHT = "I look it up first."
LANGCHAIN = {"name": "search", "args": {"query": "Ada"}, "id": "1", "type": "tool_call"}
STORED = {"state": "result", "toolCallId": "1", "toolName": "search", "args": {"query": "Ada"}}


def agent(**fields: Any) -> dict[str, Any]:
    return {"role": "assistant", **fields}


def blocks(role: str, field: str, *parts: dict[str, Any]) -> dict[str, Any]:
    return {"role": role, field: list(parts)}


def kind(name: str, **fields: Any) -> dict[str, Any]:
    """A part of LlamaIndex's, Semantic Kernel's and Microsoft's agents' messages."""
    return {"block_type": name, **fields}


def read(*messages: dict[str, Any]) -> Trajectory:
    return READER.parse(json.dumps({"messages": messages}).encode())


def calls(trajectory: Trajectory) -> list[tuple[Any, list[str]]]:
    """The argument of each call, and the texts that it returned."""
    steps = [step for step in trajectory.steps if step.call]
    return [
        (next(iter(step.call.arguments.values())), [passage.text for passage in step.evidence])
        for step in steps
    ]


def kinds(trajectory: Trajectory) -> list[str]:
    return [issue.kind for issue in trajectory.all_issues() if issue.kind != "dialect_assumed"]


CHATS: dict[str, list[dict[str, Any]]] = {
    "Mistral's TypeScript": [
        ASKED,
        agent(toolCalls=[CALL]),
        {"role": "tool", "toolCallId": "1", "content": PASSAGE},
        ANSWER,
    ],
    "Oracle": [
        {"role": "USER", "content": [{"type": "TEXT", "text": QUESTION}]},
        {"role": "ASSISTANT", "toolCalls": [{"id": "1", "name": "search", "arguments": ARGUMENTS}]},
        {"role": "TOOL", "toolCallId": "1", "content": [{"type": "TEXT", "text": PASSAGE}]},
        {"role": "ASSISTANT", "content": [{"type": "TEXT", "text": "Veldt"}]},
    ],
    "LangChain's keyword arguments": [
        ASKED,
        {"type": "ai", "content": "", "additional_kwargs": {"tool_calls": [CALL]}},
        {"type": "tool", "content": PASSAGE, "tool_call_id": "1"},
        {"type": "ai", "content": "Veldt"},
    ],
    "LlamaIndex": [
        blocks("user", "blocks", kind("text", text=QUESTION)),
        blocks(
            "assistant",
            "blocks",
            kind("tool_call", tool_call_id="1", tool_name="search", tool_kwargs={"query": "Ada"}),
        ),
        {
            **blocks("tool", "blocks", kind("text", text=PASSAGE)),
            "additional_kwargs": {"tool_call_id": "1"},
        },
        blocks("assistant", "blocks", kind("text", text="Veldt")),
    ],
    "Semantic Kernel": [
        blocks("user", "items", {"content_type": "text", "text": QUESTION}),
        blocks(
            "assistant",
            "items",
            {
                "content_type": "function_call",
                "id": "1",
                "name": "web-search",
                "arguments": ARGUMENTS,
            },
        ),
        blocks("tool", "items", {"content_type": "function_result", "id": "1", "result": PASSAGE}),
        blocks("assistant", "items", {"content_type": "text", "text": "Veldt"}),
    ],
    "Microsoft's agents": [
        {"role": {"value": "user"}, "contents": [{"$type": "text", "text": QUESTION}]},
        blocks(
            "assistant",
            "contents",
            {
                "$type": "functionCall",
                "callId": "1",
                "name": "search",
                "arguments": {"query": "Ada"},
            },
        ),
        blocks("tool", "contents", {"$type": "functionResult", "callId": "1", "result": PASSAGE}),
        blocks("assistant", "contents", {"$type": "text", "text": "Veldt"}),
    ],
    "Haystack": [
        {"_role": "user", "_content": [{"text": QUESTION}]},
        {
            "_role": "assistant",
            "_content": [
                {"tool_call": {"tool_name": "search", "arguments": {"query": "Ada"}, "id": "1"}}
            ],
        },
        {
            "_role": "tool",
            "_content": [{"tool_call_result": {"result": PASSAGE, "origin": {"id": "1"}}}],
        },
        {"_role": "assistant", "_content": [{"text": "Veldt"}]},
    ],
    "the AI SDK's pages": [
        ASKED,
        agent(content="Veldt", toolInvocations=[{**STORED, "result": PASSAGE}]),
    ],
    "parts beside the content": [
        ASKED,
        agent(
            content="Veldt",
            parts=[
                {"type": "tool-invocation", "toolInvocation": {**STORED, "result": PASSAGE}},
                {"type": "text", "text": "Veldt"},
            ],
        ),
    ],
    "Gemini's own tools": [
        {"role": "user", "parts": [{"text": QUESTION}]},
        {
            "role": "model",
            "parts": [
                {
                    "toolCall": {
                        "toolType": "GOOGLE_SEARCH_WEB",
                        "args": {"query": "Ada"},
                        "id": "1",
                    }
                },
                {"toolResponse": {"response": {"result": PASSAGE}, "id": "1"}},
                {"text": "Veldt"},
            ],
        },
    ],
    "Gemini with all its fields": [
        {"role": "user", "parts": [{"text": QUESTION, "functionCall": None}]},
        {
            "role": "model",
            "parts": [{"text": None, "functionCall": {"name": "search", "args": {"query": "Ada"}}}],
        },
        {
            "role": "user",
            "parts": [
                {"functionCall": None, "functionResponse": {"response": {"result": PASSAGE}}}
            ],
        },
        {"role": "model", "parts": [{"text": "Veldt", "functionCall": None}]},
    ],
    "Cohere's first API": [
        {"role": "USER", "message": QUESTION},
        {
            "role": "CHATBOT",
            "tool_calls": [{"name": "search", "parameters": {"query": "Ada"}}],
        },
        {
            "role": "TOOL",
            "tool_results": [{"call": {"name": "search"}, "outputs": [{"text": PASSAGE}]}],
        },
        {"role": "CHATBOT", "message": "Veldt"},
    ],
    "Cohere's documents": [
        ASKED,
        agent(tool_calls=[CALL]),
        {
            **RESULT,
            "content": [
                {"type": "document", "document": {"data": json.dumps({"text": PASSAGE}), "id": "d"}}
            ],
        },
        ANSWER,
    ],
    "LibreChat": [
        {"isCreatedByUser": True, "text": QUESTION},
        {
            "isCreatedByUser": False,
            "content": [
                {
                    "type": "tool_call",
                    "tool_call": {"id": "1", "name": "web", "args": ARGUMENTS, "output": PASSAGE},
                },
                {"type": "text", "text": "Veldt"},
            ],
        },
    ],
    "one part for a content": [
        {"role": "user", "content": {"type": "text", "text": QUESTION}},
        agent(content={"type": "tool_use", "id": "1", "name": "search", "input": {"query": "Ada"}}),
        {
            "role": "user",
            "content": {"type": "tool_result", "tool_use_id": "1", "content": PASSAGE},
        },
        agent(content={"type": "text", "text": "Veldt"}),
    ],
    "outputs that are handed in": [
        ASKED,
        agent(tool_calls=[CALL]),
        {"role": "tool", "tool_outputs": [{"tool_call_id": "1", "output": PASSAGE}]},
        ANSWER,
    ],
    "a custom tool": [
        ASKED,
        agent(
            tool_calls=[{"id": "1", "type": "custom", "custom": {"name": "find", "input": "Ada"}}]
        ),
        RESULT,
        ANSWER,
    ],
    "a result in the call": [
        ASKED,
        agent(content="Veldt", tool_calls=[{**CALL, "result": PASSAGE}]),
    ],
    "a result beside the call": [
        ASKED,
        agent(
            content="Veldt",
            tool_calls=[CALL],
            tool_results=[{"tool_call_id": "1", "content": PASSAGE}],
        ),
    ],
    "a result between other tags": [
        ASKED,
        agent(content=f'<tool_call>{{"name": "search", "arguments": {ARGUMENTS}}}</tool_call>'),
        {"role": "user", "content": f"<tool_result>{PASSAGE}</tool_result>"},
        ANSWER,
    ],
}


@pytest.mark.parametrize("chat", CHATS.values(), ids=CHATS)
def test_a_call_has_its_result(chat):
    assert calls(read(*chat)) == [("Ada", [PASSAGE])]


@pytest.mark.parametrize("chat", CHATS.values(), ids=CHATS)
def test_the_answer_is_read(chat):
    assert read(*chat).answer == "Veldt"


@pytest.mark.parametrize("chat", CHATS.values(), ids=CHATS)
def test_the_question_is_read(chat):
    assert read(*chat).question == QUESTION


@pytest.mark.parametrize("chat", CHATS.values(), ids=CHATS)
def test_nothing_is_missing(chat):
    assert kinds(read(*chat)) == []


IDS = {
    "numbers": lambda number: {"tool_call_id": int(number)},
    "callId": lambda number: {"toolCallId": number},
    "metadata": lambda number: {"metadata": {"tool_call_id": number}},
    "None, and metadata": lambda number: {
        "tool_call_id": None,
        "metadata": {"tool_call_id": number},
    },
    "the call": lambda number: {"tool_call": {"id": number}},
}


@pytest.mark.parametrize("naming", IDS.values(), ids=IDS)
def test_results_in_another_order_go_to_their_calls(naming):
    second = {**CALL, "id": "2", "function": {"name": "search", "arguments": '{"query": "Veldt"}'}}
    returned = [
        {"role": "tool", "content": text, **naming(i)} for i, text in (("2", "b"), ("1", "a"))
    ]
    trajectory = read(ASKED, agent(tool_calls=[CALL, second]), *returned, ANSWER)
    assert calls(trajectory) == [("Ada", ["a"]), ("Veldt", ["b"])]


def test_numbers_as_ids_are_told_apart():
    first, second = {**CALL, "id": 1}, {**CALL, "id": 2}
    returned = [
        {"role": "tool", "tool_call_id": i, "content": text} for i, text in ((2, "b"), (1, "a"))
    ]
    trajectory = read(ASKED, agent(tool_calls=[first, second]), *returned, ANSWER)
    assert [texts for _, texts in calls(trajectory)] == [["a"], ["b"]]


def test_each_call_has_its_own_of_several_responses():
    second = {**CALL, "id": "2"}
    both = [{"tool_call_id": "1", "content": "a"}, {"tool_call_id": "2", "content": "b"}]
    result = {"role": "tool", "content": "a\n\nb", "tool_responses": both}
    trajectory = read(ASKED, agent(tool_calls=[CALL, second]), result, ANSWER)
    assert [texts for _, texts in calls(trajectory)] == [["a"], ["b"]]


THOUGHTS: dict[str, dict[str, Any]] = {
    "reasoningContent": {"reasoningContent": THOUGHT},
    "toolPlan": {"toolPlan": THOUGHT},
    "tool_plan": {"tool_plan": THOUGHT},
    "thought": {"thought": THOUGHT},
    "additional_kwargs": {"additional_kwargs": {"reasoning_content": THOUGHT}},
    "reasoning_details": {"reasoning_details": [{"type": "reasoning.text", "text": THOUGHT}]},
    "thinking_blocks": {"thinking_blocks": [{"type": "thinking", "thinking": THOUGHT}]},
    "Haystack": {"content": [{"reasoning": {"reasoning_text": THOUGHT}}]},
    "think": {"content": [{"type": "think", "think": THOUGHT}]},
    "text_reasoning": {"contents": [{"type": "text_reasoning", "text": THOUGHT}]},
}


@pytest.mark.parametrize("fields", THOUGHTS.values(), ids=THOUGHTS)
def test_a_thought_is_one_under_any_name(fields):
    trajectory = read(ASKED, agent(**fields, tool_calls=[CALL]), RESULT, ANSWER)
    assert trajectory.steps[0].think == THOUGHT


@pytest.mark.parametrize("fields", THOUGHTS.values(), ids=THOUGHTS)
def test_it_is_no_issue(fields):
    assert kinds(read(ASKED, agent(**fields, tool_calls=[CALL]), RESULT, ANSWER)) == []


WORDS: dict[str, dict[str, Any]] = {
    "a refusal": {"content": None, "refusal": "Veldt"},
    "speech": {"content": None, "audio": {"id": "a", "transcript": "Veldt"}},
    "Bedrock's citations": {"content": [{"citationsContent": {"content": [{"text": "Veldt"}]}}]},
}


@pytest.mark.parametrize("fields", WORDS.values(), ids=WORDS)
def test_what_is_said_otherwise_is_the_answer(fields):
    assert read(ASKED, agent(**fields)).answer == "Veldt"


FAILURES: dict[str, dict[str, Any]] = {
    "Agno": {"content": "The host of Veldt hung up.", "tool_call_error": True},
    "the AI SDK": {
        "content": [
            {
                "type": "tool-result",
                "toolCallId": "1",
                "output": {"type": "execution-denied", "reason": "Not in Veldt."},
            }
        ]
    },
    "Haystack": {
        "content": [
            {"tool_call_result": {"result": "Veldt?", "origin": {"id": "1"}, "error": True}}
        ]
    },
}


@pytest.mark.parametrize("fields", FAILURES.values(), ids=FAILURES)
def test_a_failure_is_no_evidence(fields):
    assert calls(read(ASKED, agent(tool_calls=[CALL]), {**RESULT, **fields}, ANSWER)) == [
        ("Ada", [])
    ]


UNREAD: dict[str, list[dict[str, Any]]] = {
    "a list of calls": [ASKED, agent(content="Veldt", tool_log=[{"query": "Ada", "got": PASSAGE}])],
    "a list of another name": [ASKED, agent(content="Veldt", consulted=[{"body": PASSAGE}])],
    "sources whose fields are not known": [
        ASKED,
        agent(content="Veldt", sources=[{"body": PASSAGE}]),
    ],
    "items beside the content": [ASKED, agent(content="Veldt", items=[{"body": PASSAGE}])],
    "parts beside the content": [ASKED, agent(content="Veldt", parts=[{"body": PASSAGE}])],
    "a list beside a question": [{**ASKED, "context": [{"body": PASSAGE}]}, ANSWER],
    "a part among others": [ASKED, agent(content=[{"widget": {}}, {"type": "text", "text": "V"}])],
    "details of Open WebUI's": [
        ASKED,
        agent(content=f'<details type="tool_calls" result="{PASSAGE}"></details>Veldt'),
    ],
    "an agent's words": [ASKED, agent(content="", segments=[{"words": "It is Veldt."}])],
    "a user's words": [{"role": "user", "body": QUESTION}, ANSWER],
    "a result": [
        ASKED,
        agent(tool_calls=[CALL]),
        {"role": "tool", "tool_call_id": "1", "payload": PASSAGE},
        ANSWER,
    ],
}


@pytest.mark.parametrize("chat", UNREAD.values(), ids=UNREAD)
def test_what_is_not_read_is_an_issue(chat):
    assert "content_unread" in kinds(read(*chat))


LISTS_READ: dict[str, dict[str, Any]] = {
    "sources": {"sources": [{"url": "https://a.org", "date": "1 May 1907"}]},
    "citations": {"annotations": [{"url": "https://a.org", "title": "Ada of Veldt"}]},
    "the content": {"content": [{"type": "text", "text": "Veldt", "about": "A town."}]},
    "the content once more": {"content": PASSAGE, "blocks": [{"type": "text", "text": PASSAGE}]},
    "single words": {"safety": [{"category": "VIOLENCE", "probability": "LOW"}]},
    "what Open WebUI shows meanwhile": {"statusHistory": [{"description": "Searching the web"}]},
}


@pytest.mark.parametrize("fields", LISTS_READ.values(), ids=LISTS_READ)
def test_lists_that_are_read_or_say_nothing_are_no_issue(fields):
    assert "content_unread" not in kinds(read(ASKED, agent(**{"content": "Veldt", **fields})))


def test_a_chat_without_an_agent_is_an_issue():
    assert kinds(read(ASKED)) == ["no_action"]


def test_a_list_that_an_agent_answers_with_is_its_answer():
    assert read(ASKED, agent(content=[{"town": "Veldt"}])).answer == '[{"town": "Veldt"}]'


def test_an_agent_that_is_rewarded_writes_no_results():
    forged = [ASKED, agent(content="Veldt", tool_calls=[{**CALL, "result": PASSAGE}])]
    assert parse(forged, responses="messages").passages == []


def test_what_it_wrote_is_counted():
    forged = [ASKED, agent(content="Veldt", tool_calls=[{**CALL, "result": PASSAGE}])]
    assert "content_unread" in kinds(parse(forged, responses="messages"))


def test_of_two_agents_the_last_one_answers():
    searcher = agent(name="searcher", content="The sources say Veldt, on the Sule.")
    assert read(ASKED, searcher, agent(name="lead", content="Veldt")).answer == "Veldt"


def test_what_is_said_once_more_is_no_issue():
    assert unread({"reasoning_log": ["I look."]}, ["So I look."], []) == []


def test_usual_names_stay_as_they_are():
    message = {"role": "tool", "tool_call_id": "1"}
    assert usual(message) is message


IN_WORDS = agent(content=f'<tool_call>{{"name": "search", "arguments": {ARGUMENTS}}}</tool_call>')


def test_a_call_behind_which_the_user_speaks_has_no_response():
    trajectory = read(ASKED, IN_WORDS, {"role": "user", "content": PASSAGE}, ANSWER)
    assert kinds(trajectory) == ["response_missing"]


def test_that_is_one_issue_where_the_call_is_stored():
    trajectory = read(ASKED, agent(tool_calls=[CALL]), {"role": "user", "content": "Go."}, ANSWER)
    assert kinds(trajectory) == ["response_missing"]


def test_a_user_may_speak_before_the_result():
    chat = [ASKED, agent(tool_calls=[CALL]), {"role": "user", "content": "Go."}, RESULT, ANSWER]
    assert "response_missing" not in kinds(read(*chat))


@pytest.mark.parametrize("again", [{"tool_calls": [CALL]}, {"function_call": CALL["function"]}])
def test_a_call_that_is_kept_twice_is_one(again):
    message = {"type": "ai", "content": "", "tool_calls": [LANGCHAIN], "additional_kwargs": again}
    assert calls(read(ASKED, message, RESULT, ANSWER)) == [("Ada", [PASSAGE])]


def test_a_thought_that_is_kept_twice_is_one():
    parts = [{"type": "reasoning", "reasoning": THOUGHT}]
    trajectory = read(ASKED, agent(content=parts, reasoning_content=THOUGHT), ANSWER)
    assert trajectory.steps[0].think == THOUGHT


def test_the_texts_of_a_result_are_passages_of_their_own():
    texts = [f"[1] {PASSAGE}", "[2] Veldt lies on the Sule."]
    parts = [{"type": "text", "text": text} for text in texts]
    trajectory = read(ASKED, agent(tool_calls=[CALL]), {**RESULT, "content": parts}, ANSWER)
    assert calls(trajectory) == [("Ada", ["\n".join(texts)])]
