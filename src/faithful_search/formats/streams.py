"""Answers of chat APIs as they were streamed: pieces, one an event, put together to the answer.

| API | an event |
|---|---|
| OpenAI's chat completions and what copies them | `choices[0].delta` |
| Anthropic's Messages | `message_start`, `content_block_start`, `content_block_delta` |
| OpenAI's Responses | `response.completed`, with the whole response |
| Gemini | a response whose candidate is a piece |

They stand in a list, in a row beside the request, or one a line of a file. Gemini's stand one a
line only where they name their response (`responseId`): without it a piece looks like a short
answer of its own.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any

from .base import Chat, Format, Messages, first, mapping, mappings, reread
from .blocks import as_json

_CHUNK = "chat.completion.chunk"
_RESPONSES_EVENTS = "response."  # with this the types of the Responses' events begin
_ENDS_OF_RESPONSES = ("response.completed", "response.incomplete", "response.failed")
_ANTHROPIC_EVENTS = frozenset(
    (
        *("message_start", "content_block_start", "content_block_delta", "content_block_stop"),
        *("message_delta", "message_stop", "ping"),
    )
)
# The field that holds the text of a piece of Anthropic's, by the type of the piece
_TEXT_FIELDS = {
    "text_delta": "text",
    "thinking_delta": "thinking",
    "input_json_delta": "partial_json",
}
# All that an event of Gemini's has: what stands beside it in a row tells of an episode
_GEMINI_EVENT = frozenset(
    (
        "candidates",
        *("responseId", "response_id"),
        *("modelVersion", "model_version"),
        *("usageMetadata", "usage_metadata"),
        *("promptFeedback", "prompt_feedback"),
        *("createTime", "create_time"),
        *("sdkHttpResponse", "sdk_http_response"),
        "parsed",  # the text once more
    )
)
# What Gemini sends beside a piece of what its answer rests on
_GROUNDING = (
    *("groundingMetadata", "grounding_metadata"),
    *("urlContextMetadata", "url_context_metadata"),
)
# Fields of a row that may hold a list of events
_LISTS = ("response", "output", "chunks", "events", "stream", "completion")
# What an API sends with a piece, or beside it, of what it searched for
_SOURCES = ("citations", "search_results")
# Texts in a piece of a thought, as OpenRouter and LiteLLM send them
_THOUGHT_TEXTS = ("text", "thinking", "summary")


def group(value: Any) -> str | None:
    """The id of the answer that an event begins or is a part of, empty for one without an id.
    `None`: this neither begins an answer nor names the one that it belongs to.
    """
    event = mapping(value)
    if event.get("object") == _CHUNK:
        return str(event.get("id") or "")
    kind = event.get("type")
    if kind in ("message_start", "response.created"):
        return ""
    return _gemini_response_id(event)


def _gemini_response_id(event: Mapping[str, Any]) -> str | None:
    """The id of the response that this event of Gemini's is a piece of; `None` where it names none,
    and for anything else.
    """
    if not mappings(event, "candidates"):
        return None
    filled_fields = {name for name, value in event.items() if value}
    identity = first(event, ("responseId", "response_id"))
    is_bare = filled_fields <= _GEMINI_EVENT
    return identity if is_bare and isinstance(identity, str) and identity else None


def read(value: Any) -> Chat | None:
    """A list of events, or a row that holds one beside the request."""
    if isinstance(value, list | tuple):
        return _answer(mappings(value, pure=True))
    fields = mapping(value)
    lines = mappings(fields, "lines")  # of a file that holds one event a line
    if lines and group(lines[0]) is not None:
        is_whole = len(lines) == 1 and bool(_candidate(lines[0]))
        return reread(lines[0]) if is_whole else _answer(lines)
    for name in _LISTS:
        chat = _answer(mappings(fields, name, pure=True))
        if chat is not None:
            return replace(chat, messages=[*_asked(fields), *chat.messages])
    return None


def _asked(row: Mapping[str, Any]) -> Messages:
    """The messages of the request beside the events."""
    for request in (mapping(row, "request"), mapping(row, "input"), mapping(row, "body"), row):
        chat = reread(request.get("messages")) or reread(request.get("contents"))
        if chat is not None:
            return list(chat.messages)
    chat = reread(row.get("input"))
    return [] if chat is None else list(chat.messages)


def _answer(events: Sequence[Mapping[str, Any]]) -> Chat | None:
    """The answer that these events are pieces of; `None` where they are no events of a stream, or
    say nothing.
    """
    if not _are_events(events):
        return None
    if any(event.get("type") in _ENDS_OF_RESPONSES for event in events):
        return _of_responses(events)
    if any(_delta(event) is not None for event in events):
        return _of_chunks(events)
    if any(event.get("type") in _ANTHROPIC_EVENTS for event in events):
        return _of_anthropic(events)
    return _of_gemini(events)


def _are_events(events: Sequence[Mapping[str, Any]]) -> bool:
    """Whether these are the events of a stream, by the first of them."""
    if not events:
        return False
    event = events[0]
    kind = event.get("type")
    if isinstance(kind, str) and (kind in _ANTHROPIC_EVENTS or kind.startswith(_RESPONSES_EVENTS)):
        return True
    if _delta(event) is not None:
        return True
    return len(events) > 1 and bool(_candidate(event))  # one alone is a response of Gemini's


def _chat(messages: Messages, further_answers: int) -> Chat | None:
    """The answer in these messages; `None` where there are none."""
    return Chat(messages, left_out={"further answers": further_answers}) if messages else None


def _of_responses(events: Sequence[Mapping[str, Any]]) -> Chat | None:
    """The first whole response among the events of OpenAI's Responses."""
    responses: list[Mapping[str, Any]] = []
    for event in events:
        if event.get("type") in _ENDS_OF_RESPONSES:
            responses.append(mapping(event, "response"))
    chat = reread(responses[0])
    if chat is None:
        return None
    further_answers = len({str(response.get("id")) for response in responses}) - 1
    return replace(chat, left_out={**chat.left_out, "further answers": further_answers})


def _of_chunks(events: Sequence[Mapping[str, Any]]) -> Chat | None:
    """The message whose pieces are the chunks of OpenAI's chat completions."""
    deltas: list[Mapping[str, Any]] = []
    answers: set[int] = set()
    for event in events:
        delta = _delta(event)
        if delta is not None:
            deltas.append(delta)
        answers.update(map(_index, mappings(event, "choices")))
    message: dict[str, Any] = {"role": "assistant", "content": _content(deltas)}
    for name in dict.fromkeys(chain.from_iterable(deltas)):
        if name not in message and name not in _SOURCES:
            join = _JOIN_OF_FIELD.get(name, _joined)
            message[name] = join(deltas, name)
    for name in _SOURCES:  # each list has all so far
        for sent in (*deltas, *events):
            if sent.get(name):
                message[name] = sent[name]
    return _chat([message], max(len(answers) - 1, 0))


def _delta(event: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The piece of the first answer in a chunk of OpenAI's; `None` for any other event. The last
    chunk may be empty, and only count tokens.
    """
    choices = mappings(event, "choices")
    if not choices:
        return {} if event.get("object") == _CHUNK else None
    if not any("delta" in choice for choice in choices):
        return None
    firsts = [mapping(choice, "delta") for choice in choices if _index(choice) == 0]
    return firsts[0] if firsts else {}


def _content(deltas: Sequence[Mapping[str, Any]]) -> str | list[dict[str, Any]] | None:
    """The content in these pieces: a text; of Mistral's models that think, a list of blocks. `None`
    where it is empty, as beside a refusal.
    """
    contents = [delta.get("content") for delta in deltas]
    if not any(isinstance(content, list) for content in contents):
        return "".join([content for content in contents if isinstance(content, str)]) or None
    blocks: list[dict[str, Any]] = []
    for content in contents:
        listed = [{"type": "text", "text": content}] if isinstance(content, str) else content
        for block in mappings(listed):
            kind = block.get("type")
            if kind not in ("text", "thinking"):
                blocks.append(dict(block))
                continue
            if not blocks or blocks[-1].get("type") != kind:
                blocks.append({"type": kind, kind: []})
            blocks[-1][kind].append(_text_of(block.get(kind)))
    for block in blocks:  # joined at the end: a text that grows piece by piece takes long
        kind = block.get("type")
        if kind in ("text", "thinking"):
            block[kind] = "".join(block[kind])
    return blocks


def _text_of(pieces: Any) -> str:
    """The text of a block that came as a text; of a thought also in a list of pieces."""
    if isinstance(pieces, str):
        return pieces
    texts = [first(piece, _THOUGHT_TEXTS) for piece in mappings(pieces)]
    return "".join([text for text in texts if isinstance(text, str)])


def _joined(deltas: Sequence[Mapping[str, Any]], name: str) -> Any:
    """A field of a message that came in these pieces: texts and lists are joined, of anything else
    the last counts.
    """
    pieces = [delta[name] for delta in deltas if delta.get(name) is not None]
    if not pieces:
        return None
    if all(isinstance(piece, str) for piece in pieces):
        return "".join(pieces)
    if all(isinstance(piece, list) for piece in pieces):
        return _each_once(list(chain.from_iterable(pieces)))
    return pieces[-1]


def _calls(deltas: Sequence[Mapping[str, Any]], name: str) -> list[dict[str, Any]]:
    """The calls in these pieces."""
    pieces: list[Mapping[str, Any]] = []
    for delta in deltas:
        pieces += mappings(delta, name)
    return [_call(pieces_of_call) for pieces_of_call in _by_call(pieces)]


def _function_call(deltas: Sequence[Mapping[str, Any]], name: str) -> Any:
    """The call in these pieces, as the API had it before `tool_calls`; `None` for none."""
    pieces = [{"function": delta[name]} for delta in deltas if mapping(delta, name)]
    return _call(pieces)["function"] if pieces else None


def _annotations(deltas: Sequence[Mapping[str, Any]], name: str) -> list[Mapping[str, Any]]:
    """The annotations in these pieces, each also where an equal one came before."""
    annotations: list[Mapping[str, Any]] = []
    for delta in deltas:
        annotations += mappings(delta, name)
    return annotations


def _thought(deltas: Sequence[Mapping[str, Any]], name: str) -> list[dict[str, str]]:
    """A thought that came in lists of pieces."""
    texts = [_text_of(delta.get(name)) for delta in deltas]
    return [{"text": "".join(texts)}]


def _spoken(deltas: Sequence[Mapping[str, Any]], name: str) -> dict[str, str]:
    """What was said aloud in these pieces."""
    texts = [mapping(delta, name).get("transcript") for delta in deltas]
    return {"transcript": "".join([text for text in texts if text])}


# How these fields of a message are put together; all others by `_joined`
_JOIN_OF_FIELD: dict[str, Callable[[Sequence[Mapping[str, Any]], str], Any]] = {
    "tool_calls": _calls,
    "function_call": _function_call,
    "annotations": _annotations,
    "reasoning_details": _thought,  # OpenRouter's, as the next one LiteLLM's
    "thinking_blocks": _thought,
    "audio": _spoken,
}


def _each_once(entries: list[Any]) -> list[Any]:
    """Entries of lists that came one after the other: equal ones once, and of a tool that was sent
    while it ran and again with its result, the last.
    """
    if len(mappings(entries)) < len(entries):
        return entries
    distinct: dict[str, dict[str, Any]] = {}
    latest: dict[int, str] = {}  # the last entry of each index
    for entry in entries:
        key = as_json(entry)
        index = entry.get("index")
        if isinstance(index, int):
            before = distinct.get(latest.get(index, ""), {})
            if before and all(entry.get(name) == value for name, value in before.items() if value):
                del distinct[latest[index]]
            latest[index] = key
        distinct[key] = entry
    return list(distinct.values())


def _by_call(pieces: Sequence[Mapping[str, Any]]) -> list[list[Mapping[str, Any]]]:
    """The pieces of each call. Some servers number all calls 0, or none: there a name with another
    id begins a call.
    """
    calls: list[list[Mapping[str, Any]]] = []
    last_at: dict[int, list[Mapping[str, Any]]] = {}
    for piece in pieces:
        call = last_at.get(_index(piece))
        is_named = bool(mapping(piece, "function").get("name") and piece.get("id"))
        if call is None or (is_named and piece["id"] != call[0].get("id")):
            call = []
            last_at[_index(piece)] = call
            calls.append(call)
        call.append(piece)
    return calls


def _call(pieces: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The call that was streamed in these pieces."""
    identity = next((str(piece["id"]) for piece in pieces if piece.get("id")), "")
    functions = [mapping(piece, "function") for piece in pieces]
    names = [str(piece["name"]) for piece in functions if piece.get("name")]
    if len(set(names)) == 1:  # some servers send the whole name with each piece
        names = names[:1]
    arguments = [_text_of_arguments(piece.get("arguments")) for piece in functions]
    return {
        "id": identity,
        "function": {"name": "".join(names), "arguments": "".join(arguments)},
    }


def _text_of_arguments(arguments: Any) -> str:
    """A piece of a call's arguments; some servers send them whole, as an object."""
    if isinstance(arguments, str):
        return arguments
    return as_json(arguments) if arguments else ""


def _of_anthropic(events: Sequence[Mapping[str, Any]]) -> Chat | None:
    """The messages of Anthropic's events."""
    contents = [blocks for blocks in map(_of_blocks, _replies(events)) if blocks]
    messages: Messages = []
    for blocks in contents:
        messages.append({"role": "assistant", "content": blocks})
        # Behind a call of a tool the next reply goes on; else it is another answer.
        if not any(block.get("type") == "tool_use" for block in blocks):
            break
    return _chat(messages, len(contents) - len(messages))


def _replies(events: Sequence[Mapping[str, Any]]) -> list[list[Mapping[str, Any]]]:
    """The events of each of Anthropic's messages."""
    replies: list[list[Mapping[str, Any]]] = [[]]
    for event in events:
        if event.get("type") == "message_start" and replies[-1]:
            replies.append([])
        replies[-1].append(event)
    return replies


def _of_blocks(events: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The blocks of Anthropic's events."""
    blocks: dict[int, dict[str, Any]] = {}
    pieces: dict[tuple[int, str], list[str]] = {}
    for event in events:
        place = _index(event)
        if event.get("type") == "content_block_start":
            blocks[place] = dict(mapping(event, "content_block"))
        delta = mapping(event, "delta")
        if delta.get("type") == "citations_delta":
            block = blocks.setdefault(place, {"type": "text", "text": ""})
            block["citations"] = [*(block.get("citations") or []), delta.get("citation")]
        field = _TEXT_FIELDS.get(str(delta.get("type")))
        if field is not None:
            pieces.setdefault((place, field), []).append(str(delta.get(field) or ""))
    for (place, field), texts in pieces.items():
        block = blocks.setdefault(place, {"type": "text", "text": ""})
        if field == "partial_json":
            block["input"] = "".join(texts)
        else:
            block[field] = "".join([str(block.get(field) or ""), *texts])
    return list(blocks.values())


def _index(event: Mapping[str, Any]) -> int:
    """The index of the block or call that an event or a piece belongs to."""
    index = event.get("index")
    return index if isinstance(index, int) else 0


def _candidate(event: Mapping[str, Any]) -> Mapping[str, Any]:
    """The first candidate of an event of Gemini's; empty for any other event."""
    candidates = mappings(event, "candidates")
    return candidates[0] if candidates and mapping(candidates[0], "content") else {}


def _of_gemini(events: Sequence[Mapping[str, Any]]) -> Chat | None:
    """The message of the first candidate in Gemini's pieces. What it is grounded on comes with the
    last pieces, which may say nothing themselves.
    """
    parts: list[Mapping[str, Any]] = []
    metadata: dict[str, Any] = {}
    indices: set[int] = set()
    for event in events:
        for place, candidate in enumerate(mappings(event, "candidates")):
            index = candidate.get("index")
            if not isinstance(index, int):
                index = place
            indices.add(index)
            if index != 0:
                continue
            parts += mappings(mapping(candidate, "content"), "parts")
            for name in _GROUNDING:
                if candidate.get(name):
                    metadata[name] = candidate[name]
    messages: Messages = [{"role": "model", "parts": parts, **metadata}] if parts else []
    return _chat(messages, len(indices - {0}))


FORMAT = Format("a streamed answer of a chat API", read, frozenset(("delta",)), group=group)
