"""A row of every format that is read, for attacks on its reader."""

import importlib.util
from functools import cache
from typing import Any

from paths import ROOT

CHAT = [
    {"role": "user", "content": "Who wrote the first program?"},
    {
        "role": "assistant",
        "content": "",
        "reasoning_content": "I look it up.",
        "tool_calls": [
            {"id": "1", "function": {"name": "search", "arguments": '{"query": "first program"}'}}
        ],
    },
    {"role": "tool", "tool_call_id": "1", "content": '[{"title": "Ada", "text": "She did."}]'},
    {"role": "assistant", "content": "Ada"},
]
OTHERS: dict[str, Any] = {
    "text": {
        "id": 1,
        "question": "Who?",
        "output": "<think>a</think><answer>Ada</answer>",
        "answers": "['Ada']",
    },
    "prompt": {"prompt": "Question: who?", "completion": "<answer>Ada</answer>", "gold": ["Ada"]},
    "chat": {"messages": CHAT, "answers": [["Ada"], "A. L."], "id": "7"},
    "samples": {"question": "Who?", "responses": ["<answer>Ada</answer>", "<answer>Bob</answer>"]},
    "rag": {"question": "Who?", "contexts": ["Ada did."], "answer": "Ada", "ground_truth": "Ada"},
    "react_steps": {
        "question": "Who?",
        "trajectory": [
            {"thought": "a", "action": "search[Ada]", "observation": "Ada did."},
            {"thought": "b", "action": {"name": "finish", "arguments": {"answer": "Ada"}}},
        ],
        "gold": "Ada",
    },
    "mistral": {
        "conversation_id": "c",
        "outputs": [
            {"type": "tool.execution", "name": "web_search", "arguments": "{}"},
            {
                "type": "message.output",
                "content": [
                    {"type": "text", "text": "Ada"},
                    {"type": "tool_reference", "title": "Ada", "url": "https://e.org"},
                ],
            },
        ],
    },
    "langfuse": {
        "id": "t",
        "observations": [
            {
                "type": "GENERATION",
                "startTime": f"2026-01-01T00:00:0{time}Z",
                "input": CHAT[:given],
                "output": CHAT[given],
            }
            for time, given in ((1, 1), (2, 3))
        ],
    },
    "chatgpt": {
        "title": "c",
        "mapping": {
            str(place): {
                "id": str(place),
                "parent": str(place - 1) if place else None,
                "message": {
                    "author": {"role": message["role"]},
                    "content": {"content_type": "text", "parts": [message["content"]]},
                },
            }
            for place, message in enumerate(CHAT)
        },
        "current_node": "3",
    },
    "claude": {
        "uuid": "c",
        "chat_messages": [
            {"sender": "human", "content": [{"type": "text", "text": "Who?"}]},
            {"sender": "assistant", "content": [{"type": "text", "text": "Ada"}]},
        ],
    },
    "response": {
        "choices": [{"message": CHAT[3], "finish_reason": "stop"}],
        "citations": ["https://e.org/ada"],
    },
    "beside": {
        "messages": [
            CHAT[0],
            {
                "role": "assistant",
                "content": "Ada [1]",
                "search_results": [{"url": "https://e.org/ada", "snippet": "She did."}],
                "sources": [{"source": {"name": "a"}, "document": ["d"], "metadata": [{}]}],
                "provider_specific_fields": {"citations": ["https://e.org/ada"]},
            },
        ]
    },
    "role_lines": {"log": "User: Who?\nAssistant: I look.\nTool: Ada did.\nAssistant: Ada"},
    "autogen": {
        "messages": [
            {"source": "user", "type": "TextMessage", "content": "Who?"},
            {
                "source": "agent",
                "type": "ToolCallRequestEvent",
                "content": [{"id": "1", "name": "search", "arguments": "{}"}],
            },
            {
                "source": "agent",
                "type": "ToolCallExecutionEvent",
                "content": [{"call_id": "1", "content": "Ada did."}],
            },
            {"source": "agent", "type": "MemoryQueryEvent", "content": [{"content": "Ada"}]},
            {"source": "agent", "type": "ToolCallSummaryMessage", "content": "Ada"},
        ]
    },
    "a2a": {
        "contextId": "c",
        "kind": "task",
        "status": {"state": "completed", "message": {"role": "agent", "parts": [{"text": "Done"}]}},
        "history": [{"role": "user", "parts": [{"kind": "text", "text": "Who?"}]}],
        "artifacts": [{"parts": [{"kind": "text", "text": "Ada"}, {"kind": "data", "data": {}}]}],
    },
    "miroflow": {
        "input": {"task_description": "Who?"},
        "main_agent_message_history": {"system_prompt": "s", "message_history": CHAT},
        "sub_agent_message_history_sessions": {"a": {}},
    },
    "ai_sdk": {
        "prompt": "Who?",
        "steps": [
            {
                "text": "I look.",
                "toolCalls": [{"toolCallId": "1", "toolName": "search", "args": {"q": "Ada"}}],
                "toolResults": [{"toolCallId": "1", "toolName": "search", "result": "Ada did."}],
            },
            {"content": [{"type": "text", "text": "Ada"}], "finishReason": "stop"},
        ],
    },
    "agents_sdk": {
        "input": "Who?",
        "new_items": [{"raw_item": {"type": "message", "id": "m", **CHAT[3]}}],
    },
    "message_lines": {"lines": [{**message, "session_id": "s"} for message in CHAT]},
    "stream": {
        "request": {"messages": CHAT[:1]},
        "response": [
            {"object": "chat.completion.chunk", "choices": [{"delta": {"content": "A"}}]},
            {
                "object": "chat.completion.chunk",
                "choices": [
                    {
                        "delta": {
                            "tool_calls": [
                                {"index": 0, "id": "1", "function": {"name": "s", "arguments": "{"}}
                            ]
                        }
                    }
                ],
            },
        ],
    },
    "stream_of_anthropic": {
        "lines": [
            {"type": "message_start", "message": {"role": "assistant"}},
            {"type": "content_block_start", "index": 0, "content_block": {"type": "text"}},
            {
                "type": "content_block_delta",
                "index": 0,
                "delta": {"type": "text_delta", "text": "Ada"},
            },
        ]
    },
    "stream_of_gemini": {
        "response": [
            {"candidates": [{"content": {"role": "model", "parts": [{"text": text}]}}]}
            for text in "ab"
        ]
    },
    "senders": {"messages": [{"sender": "User", "isCreatedByUser": True, "text": "Who?"}]},
    "trajectory": {
        "dialect": "search_r1",
        "question": "Who?",
        "answer": "Ada",
        "steps": [
            {
                "think": "a",
                "call": {"name": "search", "arguments": {"query": "q"}},
                "evidence": [{"text": "Ada did.", "title": "Ada", "id": "E1"}],
            },
            {"answer": "Ada", "refs": ["E1"], "issues": [{"kind": "k", "why": "w"}]},
        ],
    },
}


@cache
def rows() -> dict[str, Any]:
    """By the format's name. Those of packages are as their tests write them."""
    path = ROOT / "tests" / "formats" / "test_formats.py"
    spec = importlib.util.spec_from_file_location("rows_of_formats", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return {**OTHERS, **module.installed("author")}
