"""Gemini: `contents` of roles and parts and the candidate that the model gave to them, or the steps
of an interaction, or a session of the Agent Development Kit.

What Google searched for the model stands beside the candidate (`groundingMetadata`): it becomes a
call with its sources, before the answer.
"""

from collections.abc import Mapping
from typing import Any

from .base import Chat, Format, Messages, mapping, mappings
from .messages import is_chat
from .searches import passage


def read(value: Any) -> Chat | None:
    """A request with `contents`, a response with `candidates`, both, an interaction's `steps`, or a
    session's `events`.
    """
    contents = mappings(value, "contents", pure=True)
    contents = contents or mappings(mapping(value, "request"), "contents", pure=True)
    candidates = mappings(value, "candidates") or mappings(mapping(value, "response"), "candidates")
    if is_chat(contents) or (candidates and mapping(candidates[0], "content")):
        messages = [*contents, *(_answered(candidates[0]) if candidates else [])]
        return Chat(messages, left_out={"further candidates": len(candidates[1:])})
    steps = mappings(value, "steps", pure=True)
    if steps and all(_is_step(step) for step in steps):
        return Chat(_interaction(steps), id=str(mapping(value).get("id") or ""))
    events = mappings(value, "events", pure=True)
    contents = [
        mapping(event, "content")
        for event in events
        if event.get("partial") is not True  # a piece of a later one
    ]
    spoken = [content for content in contents if mappings(content, "parts")]
    if spoken:
        return Chat(spoken, id=str(mapping(value).get("id") or ""))
    return None


def _answered(candidate: Mapping[str, Any]) -> Messages:
    """The candidate's message, with what it is grounded on."""
    metadata = mapping(candidate, "groundingMetadata") or mapping(candidate, "grounding_metadata")
    return [{"role": "model", **mapping(candidate, "content"), "groundingMetadata": metadata}]


def _is_step(step: Mapping[str, Any]) -> bool:
    kind = step.get("type")
    known = ("thought", "model_output", "user_input")
    return isinstance(kind, str) and (kind in known or kind.endswith(("_call", "_result")))


def _interaction(steps: list[Mapping[str, Any]]) -> Messages:
    """The steps as messages. The API may list what it searched behind the answer that rests on it."""
    said = ("model_output", "user_input")
    searched = [step for step in steps if step["type"] not in said]
    spoken = [step for step in steps if step["type"] in said]
    answers = [step for step in spoken if step["type"] == "model_output"]
    ordered = steps
    if len(answers) == 1:
        questions = [step for step in spoken if step["type"] == "user_input"]
        ordered = [*questions, *searched, *answers]
    messages: Messages = []
    for step in ordered:
        if step["type"] == "user_input":
            messages.append({"role": "user", "content": step.get("content")})
        elif step["type"] == "model_output":
            messages.append({"role": "assistant", "content": step.get("content")})
        elif step["type"].endswith("_result"):
            messages.append(_returned(step))
        else:
            messages.append({"role": "assistant", "content": [step]})
    return messages


def _returned(step: Mapping[str, Any]) -> Mapping[str, Any]:
    """A result without what is only for display."""
    results = [
        passage(result, result.get("snippet") or result.get("text"))
        for result in mappings(step, "result")
        if result.get("url") or result.get("uri")
    ]
    content: Any = results if isinstance(step.get("result"), list) else step.get("result")
    return {"role": "tool", "tool_call_id": step.get("call_id"), "content": content or ""}


FORMAT = Format("Gemini contents", read, frozenset(("contents", "candidates", "groundingMetadata")))
