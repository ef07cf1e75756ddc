"""Messages of chats as APIs have them, and what was read of a chat."""

import json
from typing import Any

from faithful_search.trajectory import Trajectory

TAGGED_CALL = '<tool_call>\n{"name": "search", "arguments": {"query": "Ada"}}\n</tool_call>'
"""A call in the agent's words, as Qwen's template writes it."""
TOKEN_CALL = "<function=search><parameter=query>Ada</parameter></function>"
"""The same as Qwen3-Coder's has it."""


def call(identity: str, name: str = "search", **arguments: str) -> dict[str, Any]:
    arguments = arguments or {"query": "Ada"}
    return {"id": identity, "function": {"name": name, "arguments": json.dumps(arguments)}}


def agent(content: Any = None, *calls: dict[str, Any], **fields: Any) -> dict[str, Any]:
    message = {"role": "assistant", "content": content, **fields}
    return {**message, "tool_calls": list(calls)} if calls else message


def user(*content: Any) -> dict[str, Any]:
    """A text, or parts."""
    is_text = len(content) == 1 and isinstance(content[0], str)
    return {"role": "user", "content": content[0] if is_text else list(content)}


def tool(text: str, identity: str = "") -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": identity, "content": text}


def text(words: str) -> dict[str, Any]:
    return {"type": "text", "text": words}


def use(identity: str) -> dict[str, Any]:
    return {"type": "tool_use", "id": identity, "name": "search", "input": {"query": "Ada"}}


def result(identity: str, content: str) -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": identity, "content": content}


def returned(trajectory: Trajectory) -> list[list[str]]:
    """Of each step with a call, the texts that it returned."""
    return [[item.text for item in step.evidence] for step in trajectory.steps if step.call]


def answers(trajectory: Trajectory) -> list[str]:
    return [step.answer for step in trajectory.steps if step.answer is not None]


def thoughts(trajectory: Trajectory) -> list[str]:
    return [step.think for step in trajectory.steps if step.think]
