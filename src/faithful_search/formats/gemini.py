"""Gemini: `contents` of roles and parts and the candidate that the model gave to them, or the steps
of an interaction, or a session of the Agent Development Kit.

What Google searched for the model stands beside the candidate (`groundingMetadata`): it becomes a
call with its sources, before the answer.
"""

from collections.abc import Mapping
from itertools import groupby
from typing import Any

from .base import Chat, Format, Messages, mapping, mappings
from .messages import is_chat
from .searches import passage

_SPOKEN = ("model_output", "user_input")  # types of steps that are messages
_PARTS = ("text", "image", "audio", "video", "document")  # types of an answer's parts
# What stands beside a message of what it rests on, by the usual name and the other one
_METADATA = (
    ("groundingMetadata", "grounding_metadata"),
    ("urlContextMetadata", "url_context_metadata"),
)


def read(value: Any) -> Chat | None:
    """A request with `contents`, a response with `candidates`, both, an interaction's `steps`, or a
    session's `events`.
    """
    pieces = [piece for piece in mappings(value, "response") if mappings(piece, "candidates")]
    if len(pieces) > 1:
        return None  # of a stream
    contents = mappings(value, "contents", pure=True)
    contents = contents or mappings(mapping(value, "request"), "contents", pure=True)
    response = value if mappings(value, "candidates") else mapping(value, "response")
    candidates = mappings(pieces[0] if pieces else response, "candidates")
    # What Google's client called by itself before it had the answer, behind what it was asked
    history = mappings(response, "automaticFunctionCallingHistory", pure=True)
    history = history or mappings(response, "automatic_function_calling_history", pure=True)
    if is_chat(history):
        contents = history
    if is_chat(contents) or (candidates and mapping(candidates[0], "content")):
        messages: Messages = list(contents)
        if candidates:
            messages.append(_answer(candidates[0]))
        return Chat(messages, left_out={"further candidates": len(candidates[1:])})
    steps = mappings(value, "steps", pure=True) or _steps_of_outputs(mapping(value))
    if steps and all(_is_step(step) for step in steps):
        is_asked = any(step["type"] == "user_input" for step in steps)
        question = [] if is_asked else _question(mapping(value).get("input"))
        messages = [*question, *_interaction(steps)]
        return Chat(messages, id=str(mapping(value).get("id") or ""))
    spoken = _session(mappings(value, "events", pure=True))
    if spoken:
        return Chat(spoken, id=str(mapping(value).get("id") or ""))
    return None


def _answer(candidate: Mapping[str, Any]) -> Mapping[str, Any]:
    """The candidate's message, with what it is grounded on."""
    return _with_grounding({"role": "model", **mapping(candidate, "content")}, candidate)


def _session(events: list[Mapping[str, Any]]) -> Messages:
    """What was said in the events of a session."""
    messages: Messages = []
    for event in events:
        if event.get("partial") is True:  # a piece of a later one
            continue
        content = _with_grounding(mapping(event, "content"), event)
        if mappings(content, "parts"):
            messages.append(content)
    return messages


def _with_grounding(content: Mapping[str, Any], beside: Mapping[str, Any]) -> Mapping[str, Any]:
    """The content with what the API searched and read for it, which it keeps beside it."""
    metadata = {}
    for name, spelled in _METADATA:
        sent = mapping(beside, name) or mapping(beside, spelled)
        if sent:
            metadata[name] = sent
    return {**content, **metadata} if metadata else content


def _steps_of_outputs(interaction: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The steps of an interaction whose `outputs` hold the answer's parts beside them; none for
    anything else.
    """
    outputs = mappings(interaction, "outputs", pure=True)
    if interaction.get("object") != "interaction" and not any(map(_is_googles, outputs)):
        return []
    steps: list[Mapping[str, Any]] = []
    for is_spoken, together in groupby(outputs, _is_part):
        run = list(together)
        steps += [{"type": "model_output", "content": run}] if is_spoken else run
    return steps


def _is_part(output: Mapping[str, Any]) -> bool:
    """Whether this is a part of what the agent says."""
    return output.get("type") in _PARTS


def _is_googles(step: Mapping[str, Any]) -> bool:
    """Whether only Google's API has such steps."""
    kind = step.get("type")
    return kind == "thought" or (isinstance(kind, str) and kind.endswith("_result"))


def _question(request: Any) -> Messages:
    """What an interaction was asked: a text, parts, or turns with roles."""
    turns = mappings(request, pure=True)
    if turns and is_chat(turns):
        return turns
    return [{"role": "user", "content": request}] if request else []


def _is_step(step: Mapping[str, Any]) -> bool:
    kind = step.get("type")
    if not isinstance(kind, str):
        return False
    return kind in ("thought", *_SPOKEN) or kind.endswith(("_call", "_result"))


def _interaction(steps: list[Mapping[str, Any]]) -> Messages:
    """The steps as messages. The API may list what it searched behind the answer that rests on it."""
    searched = [step for step in steps if step["type"] not in _SPOKEN]
    spoken = [step for step in steps if step["type"] in _SPOKEN]
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


def _is_googles_search(step: Mapping[str, Any]) -> bool:
    """Whether Google's own search returned this, of which only pages are told to the model."""
    return step["type"] == "google_search_result"


def _returned(step: Mapping[str, Any]) -> Mapping[str, Any]:
    """A result without what is only for display."""
    content: Any = step.get("result")
    pages = []
    for page in mappings(content):
        if page.get("url") or page.get("uri"):
            pages.append(passage(page, page.get("snippet") or page.get("text")))
    if pages or _is_googles_search(step):
        content = pages
    return {"role": "tool", "tool_call_id": step.get("call_id"), "content": content or ""}


FORMAT = Format("Gemini contents", read, frozenset(("contents", "candidates", "groundingMetadata")))
