"""Reads what one message holds, in its content and in fields beside it, as parts (`blocks`)."""

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from .. import loose_json
from ..errors import DataError
from . import blocks
from .base import first, mapping, mappings
from .blocks import Part
from .cited import divided, grounded, sent_with
from .field_names import role_of, unread, unread_attachments
from .searches import (
    all_executed_are_read,
    grounding_metadata,
    places_beside,
    searched_beside,
)

# Roles by other names of theirs, in lower case
_ROLES = {
    "human": "user", "gpt": "assistant", "ai": "assistant", "model": "assistant",
    "aimessagechunk": "assistant", "developer": "system", "function": "tool",
    "observation": "tool", "ipython": "tool", "toolresult": "tool", "tool-response": "tool",
    "tool-call": "assistant", "function_call": "assistant", "tool_call": "assistant",
    "tool_response": "tool", "bot": "assistant", "agent": "assistant", "chatbot": "assistant",
}  # fmt: skip
# LangChain's types, which stand for a role
_TYPES = frozenset(("human", "ai", "aimessagechunk", "system", "tool", "function"))
# Senders that are roles, in messages without one
_SENDERS = frozenset(("system", "user", "human", "assistant", "ai", "bot", "agent", "gpt", "tool"))
# Roles, as they are written, of messages that are nothing but calls
_CALL_ROLES = frozenset(("function_call", "tool_call"))
# Fields that hold what a message says
_CONTENT_FIELDS = frozenset(("content", "value", "text", "message"))
_THOUGHTS = (
    "reasoning_content",
    "reasoning",
    "thinking",
    "thought",
    "thinking_blocks",
    "reasoning_details",
)
_PLAN = "tool_plan"  # Cohere's: a thought that may stand beside another
_CALLS = ("tool_calls", "invalid_tool_calls", "function_call")
_RESULTS_IN_CALL = ("result", "output", "response")  # fields of a call with what it returned
# Fields of an agent's message that are no unread ones: they are read here, in `field_names` or in
# `searches`, or say once more what was said elsewhere
_READ = (
    *_THOUGHTS,
    _PLAN,
    *_CALLS,
    "tool_results",
    "toolInvocations",
    "executed_tools",
    "search_results",
    "web_search_results",
    "retriever_resources",
)
# How Open WebUI exports the calls, results and thoughts before an answer
_DETAILS = re.compile(r"<details type=\"(?:tool_calls|reasoning|code_interpreter)\"")


def speaker(message: Any) -> str | None:
    """Who speaks: "system", "user", "assistant", "tool", or a role of another name. `None`: this is
    not a message.
    """
    if not isinstance(message, Mapping):
        return None
    role = role_of(message)
    if role is None and not _CONTENT_FIELDS.isdisjoint(message):
        role = _sender(message)
    if role is None and "content" in message:
        role = _type_as_role(message)
    if not isinstance(role, str):
        return None
    return _ROLES.get(role.casefold(), role.casefold())


def _sender(message: Mapping[str, Any]) -> str | None:
    """Who speaks in a message that names its sender and no role."""
    if isinstance(message.get("isCreatedByUser"), bool):  # LibreChat's
        return "user" if message["isCreatedByUser"] else "assistant"
    for name in ("sender", "speaker", "author"):
        sender = message.get(name)
        if isinstance(sender, str) and sender.casefold() in _SENDERS:
            return sender
    return None


def _type_as_role(message: Mapping[str, Any]) -> str | None:
    """The type of one of LangChain's messages, which have no role."""
    kind = message.get("type")
    if isinstance(kind, str) and kind.casefold() in _TYPES:
        return kind
    return None


def all_parts(role: str, message: Mapping[str, Any], programs_respond: bool) -> list[Part]:
    """What the message holds, and for what was not read a part that says so.

    `programs_respond`: a program may have written results into an agent's own calls. Where a policy
    is rewarded it may have done that itself.
    """
    parts = parts_of(role, message)
    results = _results_beside(message) if role == "assistant" else []
    if results and programs_respond:
        parts = _with_results(parts, results)
    elif results:
        parts.append(Part("unread", "a result in the agent's own call"))
    return [*parts, *_unread_fields(role, message, parts)]


def _unread_fields(role: str, message: Mapping[str, Any], parts: Sequence[Part]) -> list[Part]:
    """The fields that may say something which is not among the parts of the message: any field of
    an agent's, and of a message of which nothing was read; of a user's, documents attached to it.
    """
    nothing_read = not any(part.value for part in parts)
    texts = [str(part.value) for part in parts if part.kind in ("text", "thought", "result")]
    names: list[str] = []
    if role == "assistant" or nothing_read:
        fields_read = [*_READ, *_fields_of_sources(message)]
        names = unread(message, texts, fields_read, nothing_read)
        if not all_executed_are_read(message):
            names.append("executed_tools")
    elif role == "user":
        names = unread_attachments(message, texts)
    if role == "assistant" and any(map(_DETAILS.search, texts)):
        names.append("details")
    return [Part("unread", name) for name in names]


def _fields_of_sources(message: Mapping[str, Any]) -> list[str]:
    """The fields of a message that list what it cites, or what an API retrieved for it, in a form
    that is read.
    """
    names: list[str] = []
    for name, value in message.items():
        if not isinstance(value, list | tuple | Mapping):
            continue
        field = {name: value}
        if sent_with("", field) or searched_beside(field, "", 0):
            names.append(name)
    return names


def parts_of(role: str, message: Mapping[str, Any]) -> list[Part]:
    """What the message, which has the usual names of fields, holds in its content and beside it."""
    content = _content(message)
    if role in ("system", "user"):
        return list(blocks.parts(content, spoken=True))
    if role != "assistant":
        return _returned(message, content)
    if isinstance(content, str) and _written_role(message) in _CALL_ROLES:
        calls = _calls_in(content)
        if calls:
            return calls
    return _of_agent(message, content)


def _content(message: Mapping[str, Any]) -> Any:
    """What the message says, under any of the names that it has."""
    # The first of these that is there counts, also if it holds `None`
    content = message.get("content", message.get("value", message.get("parts")))
    if content is not None:
        return content
    content = first(message, ("text", "message"))
    if "role" in message and not isinstance(content, str):
        return None  # only a message without a role may say an object there
    return content


def _written_role(message: Mapping[str, Any]) -> str:
    """The role as the message has it, in lower case."""
    return str(message.get("role", message.get("from"))).casefold()


def _of_agent(message: Mapping[str, Any], content: Any) -> list[Part]:
    """The thoughts, words and calls in an agent's message."""
    thoughts = _thoughts(message)
    calls: list[Part] = []
    for name in _CALLS:
        calls += _call_parts(message.get(name) or [])
    # Some APIs list the same call or thought among the content's parts and beside it.
    call_ids = {part.id for part in calls if part.id}
    words = []
    for part in blocks.parts(content, spoken=True):
        if part.kind == "text" and message.get("phase") == "commentary":
            part = Part("thought", part.value)  # OpenAI's: said on the way, not as the answer
        is_repeated = part.kind == "call" and part.id in call_ids
        if part not in thoughts and not is_repeated:
            words.append(part)
    return [*thoughts, *_with_sources(words or _unusual_words(message), message, content), *calls]


def _with_results(parts: Sequence[Part], results: Sequence[Part]) -> list[Part]:
    """The parts of an agent's message with the results of its calls, which a program wrote beside
    them. What the agent says beside such calls, it says after the results.
    """
    # A message may list a result among its content's parts and once more beside its call.
    ids_in_content = {part.id for part in parts if part.kind == "result"}
    new_results: list[Part] = []
    for result in results:
        if not result.id or result.id not in ids_in_content:
            new_results.append(result)
    if not new_results:
        return list(parts)
    before: list[Part] = []
    words: list[Part] = []
    for part in parts:
        side = before if part.kind in ("thought", "call") else words
        side.append(part)
    return [*before, *new_results, *words]


def _returned(message: Mapping[str, Any], content: Any) -> list[Part]:
    """The results in a tool's message."""
    if isinstance(content, list | tuple):
        content_parts = list(blocks.parts(content))
        if any(part.kind == "result" for part in content_parts):
            return content_parts
    results = _results_of(mappings(message, "tool_responses"))  # AutoGen's, each call's own
    for name in ("tool_results", "tool_outputs"):  # Cohere's and OpenAI's
        if not results and content is None:
            results = _results_of(mappings(message, name))
    if results:
        return results
    # An `id` would be the message's own, and not its call's.
    return list(blocks.result({**message, "content": content, "id": None}))


def _thoughts(message: Mapping[str, Any]) -> list[Part]:
    """The thoughts that stand in fields of an agent's message."""
    thoughts = []
    for names in (_THOUGHTS, (_PLAN,)):
        thought = first(message, names)
        if isinstance(thought, list | tuple):
            thought = _joined_thought(mappings(thought))
        if isinstance(thought, str) and thought:
            thoughts.append(Part("thought", thought))
    return thoughts


def _joined_thought(pieces: Sequence[Mapping[str, Any]]) -> str:
    """A thought in pieces, as OpenRouter and LiteLLM keep it."""
    texts = []
    for piece in pieces:
        text = first(piece, ("text", "thinking", "summary"))
        if isinstance(text, str):
            texts.append(text)
    return "\n".join(texts)


def _unusual_words(message: Mapping[str, Any]) -> list[Part]:
    """What an agent says in another form than its content: that it refuses, or aloud."""
    words = message.get("refusal") or mapping(message, "audio").get("transcript")
    return [Part("text", words)] if isinstance(words, str) and words else []


def _results_beside(message: Mapping[str, Any]) -> list[Part]:
    """The results that a program wrote into the agent's own message: in the calls, or in a list
    beside them.
    """
    entries = []
    for call in mappings(message, "tool_calls"):
        for fields in (call, mapping(call, "function")):
            if first(fields, _RESULTS_IN_CALL) is not None:
                entries.append({**fields, "id": blocks.call(call)["id"]})
                break
    return _results_of([*entries, *mappings(message, "tool_results")])


def _results_of(entries: Sequence[Mapping[str, Any]]) -> list[Part]:
    """The results in entries of which each is one. An entry without a name has that of the call
    that it holds.
    """
    parts: list[Part] = []
    for entry in entries:
        name = blocks.call(mapping(entry, "call"))["name"]
        if name:
            entry = {"name": name, **entry}
        parts += blocks.result(entry)
    return parts


def _call_parts(calls: Any) -> list[Part]:
    """The calls in a list of calls, or the one call; each, or all of them, may be JSON."""
    calls = _decoded(calls)
    parts = []
    for call in calls if isinstance(calls, list | tuple) else [calls]:
        call = _decoded(call)
        fields = blocks.call(call)
        parts.append(Part("call", fields, fields["id"]))
    return parts


def _decoded(calls: Any) -> Any:
    """The value of JSON where this is the JSON of an object or a list, else itself."""
    if isinstance(calls, str) and calls.lstrip().startswith(("{", "[")):
        with suppress(DataError):
            return loose_json.decode(calls)
    return calls


def _calls_in(content: str) -> list[Part]:
    """The calls in the JSON of a message that is nothing else: LLaMA-Factory's and ms-swift's."""
    try:
        value = loose_json.decode(content)
    except DataError:
        return []
    calls = value if isinstance(value, list) else [value]
    if not all(isinstance(call, Mapping) and "name" in call for call in calls):
        return []
    return _call_parts(calls)


def _with_sources(parts: list[Part], message: Mapping[str, Any], content: Any) -> list[Part]:
    """The parts of a message's content, of which the texts cite what the message lists beside it.

    The first text of a stretch between calls and results has all that this stretch cites, since
    each stretch may become a message.
    """
    text = "".join(part.value for part in parts if part.kind == "text")
    sent = sent_with(text, message)
    for fields in places_beside(message):
        metadata = grounding_metadata(fields)
        if metadata:
            sent += grounded(_texts_by_entry(content, text), metadata)
    if not sent:
        return parts
    stretches = _stretches_of_texts(parts)
    lengths: list[int] = []
    for stretch in stretches:
        lengths.append(sum(len(parts[number].value) for number in stretch))
    # Some APIs send a citation twice
    for stretch, citations in zip(stretches, divided(dict.fromkeys(sent), lengths), strict=True):
        part = parts[stretch[0]]
        cited = dict.fromkeys((*part.citations, *citations))
        parts[stretch[0]] = part._replace(citations=tuple(cited))
    return parts


def _stretches_of_texts(parts: Sequence[Part]) -> list[list[int]]:
    """Where texts stand among the parts, in stretches that calls and results end."""
    stretches: list[list[int]] = [[]]
    for number, part in enumerate(parts):
        if part.kind in ("call", "result"):
            stretches.append([])
        elif part.kind == "text":
            stretches[-1].append(number)
    return [stretch for stretch in stretches if stretch]


def _texts_by_entry(content: Any, text: str) -> list[str]:
    """For each entry of a list of parts what it says; the whole text where these are not all."""
    texts: list[str] = []
    for entry in content if isinstance(content, list | tuple) else [content]:
        parts = blocks.parts([entry], spoken=True)
        texts.append("".join([part.value for part in parts if part.kind == "text"]))
    return texts if "".join(texts) == text else [text]
