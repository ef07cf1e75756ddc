"""Logs of agents, whichever API or framework wrote them, to chat messages: one file per format,
found by its name.
"""

import pkgutil
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import lru_cache
from importlib import import_module
from typing import Any, NamedTuple

import msgspec

from .. import columns, loose_json
from ..errors import DataError
from ..trajectory import Step, Trajectory
from .base import Chat, Format, Messages, mapping, mappings
from .chat import TAGLIKE
from .message_parts import speaker
from .messages import is_chat
from .rag import with_contexts

__all__ = [
    "Chat",
    "Content",
    "Format",
    "content",
    "decode",
    "formats",
    "group",
    "of_text",
    "read",
    "refusal",
]
_TAGS = re.compile(r"</[A-Za-z_]{2,30}>|<\|[a-z_]{2,40}\|>")
# Columns that hold a reply, beside a request in messages
_REPLIES = (
    *("response", "output", "completion", "reply", "generation", "generated_text"),
    *("prediction", "final_output", "final_answer"),
)
# How the name of a column begins that holds no reply, but what one should have been
_EXPECTED = re.compile(r"(?i:expected|reference|gold|golden|correct|ideal|target|label)s?(?![a-z])")
_STEP = frozenset(Step.__struct_fields__)
_TRAJECTORY = frozenset(Trajectory.__struct_fields__)
_ENDED = frozenset(("stop_reason", "dialect"))  # fields of each trajectory that is written


class Content(NamedTuple):
    """What an agent wrote, as a row holds it.

    Attributes:
        value: what it wrote.
        place: where in the row it stood: a column's name, or what a person calls such a record.
    """

    value: Trajectory | Chat | str
    place: str


@lru_cache(maxsize=1)
def formats() -> dict[str, Format]:
    """All formats by name; those of ordinary columns last."""
    by_name: dict[str, Format] = {}
    for file_name in sorted(info.name for info in pkgutil.iter_modules(__path__)):
        module = import_module(f".{file_name}", __name__)
        if hasattr(module, "FORMAT"):
            by_name[file_name] = module.FORMAT
    names = sorted(by_name, key=lambda name: by_name[name].generality)
    return {name: by_name[name] for name in names}


def content(row: Any, column: str | None = None, as_written: bool = False) -> Content:
    """What the agent wrote in a row of anybody's file: this is asked once, here.

    In this order: the `column` that was named; a trajectory of our own; a record in one of the
    `formats`; the usual columns (`columns.MESSAGES`, `columns.TEXTS`); the only other column that
    holds a record in one of the formats, or a text with tags. With `as_written` a column with a
    text is the agent's own words, whatever record they resemble.

    Raises `DataError` where there is none, naming what the row resembles.

    Example:
        >>> content({"id": 1, "output": "<answer>Ada</answer>"})
        Content(value='<answer>Ada</answer>', place='output')
        >>> content({"trace": {"contents": [{"role": "user", "parts": [{"text": "Who?"}]}]}}).place
        'trace'
    """
    if isinstance(row, str):
        return Content(of_text(row), "")
    if column is not None:
        return _in_column(row, column, as_written)
    if _is_ours(row):
        return Content(_stored(row), "")
    chat = read(row)
    if chat is not None:
        place = chat.format or "messages"
        return Content(_with_columns(chat, row, place, as_written), place)
    if not isinstance(row, Mapping):
        raise DataError(refusal(row))
    for name in columns.named(row, (*columns.MESSAGES, *columns.TEXTS)):
        value = _understood(row[name], as_written)
        if value is not None:
            with_prompt = _with_prompt(value, name, row)
            return Content(_with_columns(with_prompt, row, name, as_written), name)
    expected = _expected(row)
    others = {name: cell for name, cell in row.items() if name not in expected}
    for columns_read in (_records(others, as_written), _tagged_texts(others)):
        contents = list(columns_read)
        if len(contents) == 1:
            [(value, place)] = contents
            return Content(_with_columns(value, row, place, as_written), place)
    has = ", ".join(map(str, row)) or "nothing"
    golds = {name: row[name] for name in expected}
    for content_read in (*_records(golds, as_written), *_tagged_texts(golds)):
        raise DataError(
            f"no column with messages or text of the agent; it has: {has}. By its name, "
            f"{content_read.place!r} is what was expected: if the agent wrote it, name it as the "
            "column of the text (--text_column)"
        )
    otherwise = _nearest(row) or "It is no record of a known format either (docs/dialects.md)"
    raise DataError(f"no column with messages or text; it has: {has}. {otherwise}")


def _expected(row: Mapping[str, Any]) -> list[str]:
    """The columns that hold what the agent should have said, by their names."""
    golds = set(columns.named(row, columns.CERTAINLY_GOLD))
    return [name for name in row if name in golds or _EXPECTED.match(str(name))]


def _records(row: Mapping[str, Any], as_written: bool) -> Iterator[Content]:
    """The columns that hold a record in a known format, or the JSON of one."""
    for name, value in row.items():
        if not isinstance(value, str):
            record = _understood(value)
        elif as_written:
            continue
        else:
            record = decode(value) or read(value)
        if record is not None:
            yield Content(record, str(name))


def _tagged_texts(row: Mapping[str, Any]) -> Iterator[Content]:
    """The columns that hold a text with tags."""
    for name, value in row.items():
        if isinstance(value, str) and _TAGS.search(value):
            yield Content(value, name)


def _in_column(row: Any, column: str, as_written: bool) -> Content:
    """What the agent wrote in the column that was named. Raises `DataError` where it is nothing."""
    value = mapping(row).get(column)
    if isinstance(value, str):
        chat = read(row)
        if chat is not None and column in chat.agents:
            return Content(chat, column)  # the row says more than the column alone
    understood = _understood(value, as_written)
    if understood is not None:
        return Content(_with_prompt(understood, column, mapping(row)), column)
    if isinstance(value, Mapping | list):
        raise DataError(f"column {column!r}: {refusal(value)}")
    has = ", ".join(map(str, mapping(row))) or "nothing"
    raise DataError(f"no column {column!r} with text; it has: {has}")


def _understood(value: Any, as_written: bool = False) -> Trajectory | Chat | str | None:
    """What an agent wrote, where a column's value is that."""
    if isinstance(value, str):
        if not value.strip():
            return None
        return value if as_written else of_text(value)
    if isinstance(value, Mapping) and _is_ours(value):
        return _stored(value)
    return read(value)


def of_text(text: str) -> Trajectory | Chat | str:
    """The text, or what its JSON holds."""
    if text[:1] == "{":
        with suppress(DataError):
            stored = Trajectory.from_json(text)
            if stored.steps or stored.text or stored.dialect:
                return stored
    chat = decode(text)
    return text if chat is None else chat


def _with_prompt(
    value: Trajectory | Chat | str, name: str, row: Mapping[str, Any]
) -> Trajectory | Chat | str:
    """What was sampled, behind the messages that were asked: trainers log a chat in two columns.
    Words alone are put behind messages in which an agent or a tool has spoken already; a chat that
    begins with what was asked is returned as it is.
    """
    prompt = columns.first(row, columns.PROMPTS, is_chat)
    if prompt is None or name in columns.MESSAGES:
        return value
    is_continued = speaker(prompt.value[-1]) not in ("system", "user")
    if isinstance(value, str) and not TAGLIKE.search(value) and is_continued:
        reply = {"role": "assistant", "content": value}
        return Chat([*prompt.value, reply], agents=frozenset((name,)))
    if not isinstance(value, Chat) or not value.messages:
        return value
    first_message = value.messages[0]
    if isinstance(row[name], list):
        is_whole = first_message == prompt.value[0]
    else:  # a message alone, or a format that tells a whole episode
        is_whole = bool(value.format) or speaker(first_message) in ("system", "user")
    if is_whole:
        return value
    return replace(value, messages=[*prompt.value, *value.messages])


def _is_answered(messages: Sequence[Any]) -> bool:
    """Whether an agent or a tool has spoken in these messages."""
    return any(speaker(message) not in ("system", "user") for message in messages)


def _with_columns(
    value: Trajectory | Chat | str, row: Any, place: str, as_written: bool
) -> Trajectory | Chat | str:
    """A chat with what other columns of its row say of the same episode; anything else as it is.
    `place` is the chat's own column.
    """
    value = _with_reply(value, row, place, as_written)
    return with_contexts(value, mapping(row)) if isinstance(value, Chat) else value


def _with_reply(
    value: Trajectory | Chat | str, row: Any, place: str, as_written: bool
) -> Trajectory | Chat | str:
    """A chat that ends before its agent replies, with the reply that stands in another column: many
    stores keep a request and its answer apart. `place` is the chat's own column. Anything else
    stays as it is, and so does what a format of whole episodes has told.
    """
    if not isinstance(value, Chat) or value.format or not value.messages:
        return value
    if speaker(value.messages[-1]) == "assistant":
        return value
    others = {name: cell for name, cell in mapping(row).items() if name != place}
    golds = {*_expected(others), *columns.named(others, columns.GOLD_ANSWERS)}
    messages_beside = [name for name in others if is_chat([others[name]]) and name not in golds]
    columns_of_replies = list(_REPLIES)
    if len(messages_beside) == 1:
        columns_of_replies += messages_beside
    for name in columns_of_replies:
        reply = _reply_in(others.get(name), as_written)
        if _is_answered(reply):
            is_whole = speaker(reply[0]) in ("system", "user")
            messages = reply if is_whole else [*value.messages, *reply]
            return replace(value, messages=messages, agents=value.agents | {name})
    return value


def _reply_in(value: Any, as_written: bool) -> Messages:
    """The messages of a column that may hold a reply: a text, a message or several."""
    if is_chat([value]):
        return [value]
    understood = _understood(value, as_written)
    if isinstance(understood, str):
        return [{"role": "assistant", "content": understood}]
    return list(understood.messages) if isinstance(understood, Chat) else []


def _is_ours(row: Any) -> bool:
    """Whether these are the fields of a `Trajectory`: others have columns named `steps`, too."""
    row = mapping(row)
    if "steps" not in row:  # nothing is written of an episode that ended before its first step
        return _ENDED <= row.keys() <= _TRAJECTORY
    steps = row["steps"]
    if not isinstance(steps, list):
        return False
    if not all(isinstance(step, dict) and step.keys() <= _STEP for step in steps):
        return False
    return any(steps) or bool(row.get("dialect") or row.get("text"))


def _stored(row: Mapping[str, Any]) -> Trajectory:
    """The trajectory whose fields these are; other columns beside them are left out."""
    fields = {name: value for name, value in row.items() if name in _TRAJECTORY}
    try:
        with suppress(msgspec.ValidationError):
            return msgspec.convert(fields, Trajectory)
        # Parquet has `None` where a field was left out
        return msgspec.convert(_without_none(fields), Trajectory)
    except (msgspec.ValidationError, UnicodeError) as error:
        raise DataError(f"not a trajectory: {error}") from None


def _without_none(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _without_none(entry) for name, entry in value.items() if entry is not None}
    if isinstance(value, list):
        return [_without_none(entry) for entry in value]
    return value


def read(value: Any) -> Chat | None:
    """The conversation in a value of JSON: a list of messages, an object with `messages`, or a log
    of any format.

    Example:
        >>> read({"contents": [{"role": "user", "parts": [{"text": "Who?"}]}]}).messages[0]["role"]
        'user'
    """
    if isinstance(value, str):  # two formats are plain text
        return _as(formats()["react"], value) or _as(formats()["role_lines"], value)
    if not isinstance(value, (dict, list, tuple, Mapping)):
        return None
    if is_chat(value):
        return formats()["react"].read(value) or Chat(list(value))
    is_stated = states_an_episode(value)
    for candidate in formats().values():
        if candidate.generality and is_stated:
            continue
        chat = _as(candidate, value)
        if chat is not None:
            return chat
    # An object with `messages` may have more to say in one of the formats.
    messages: Any = mapping(value).get("messages")
    return read(messages) if is_chat(messages) else None


def states_an_episode(row: Any) -> bool:
    """Whether a usual column of a row says what an agent wrote: a chat, or a text with tags.

    What else stands in such a row is about the episode: contexts, gold answers, a grader's steps.
    """
    if not isinstance(row, Mapping):
        return False
    if any(is_chat(row.get(name)) for name in columns.MESSAGES):
        return True
    texts = [row.get(name) for name in columns.TEXTS]
    return any(isinstance(text, str) and TAGLIKE.search(text) is not None for text in texts)


def _as(candidate: Format, value: Any) -> Chat | None:
    """The conversation in a value, where that is of this format."""
    chat = candidate.read(value)
    if chat is None or not is_chat(chat.messages):
        return None
    lines = mapping(value).get("lines")
    if isinstance(lines, list):
        broken = sum(not isinstance(line, dict) for line in lines)
        chat.left_out["lines that are no JSON objects"] = broken
    return replace(chat, format=candidate.what)


def decode(text: str) -> Chat | None:
    """The same for the JSON of such a value; `None` for any other text."""
    if text[:200].lstrip()[:1] not in ("[", "{"):
        return None
    try:
        value = loose_json.decode(text)
    except DataError:
        return None
    return read(value)


def group(value: Any) -> str | None:
    """Which episode this line of a file is a part of, where a format spreads one over many
    lines. A line that states an episode of its own is a part of none.
    """
    if states_an_episode(value):
        return None
    for name, candidate in formats().items():
        key = candidate.group(value)
        if key is not None:
            return f"{name} {key}"
    return None


def refusal(value: Any) -> str:
    """What a value that no format reads looks like, and what to do."""
    entries = value if isinstance(value, list | tuple) else [value]
    not_messages = [number for number, entry in enumerate(entries) if not is_chat([entry])]
    some_are_messages = len(not_messages) < len(entries)
    if not_messages and some_are_messages:
        number = not_messages[0]
        return f"message {number} is not a mapping with a role: {str(entries[number])[:80]!r}"
    objects = mappings(entries)
    fields = objects[0] if objects else {}
    nearest = _nearest(fields)
    if nearest is not None:
        return nearest
    if not fields:
        return (
            "expected an object, a text or a list of chat messages, found "
            f"{type(value).__name__}: {str(value)[:80]!r}"
        )
    has = ", ".join(map(str, list(fields)[:8]))
    return f"an object with {has} is no record of a known format (docs/dialects.md lists them)"


def _nearest(fields: Mapping[str, Any]) -> str | None:
    """Which format's record this resembles, or what lies in one of its columns."""
    records: dict[str, Mapping[str, Any]] = {"it": fields}
    for name, value in fields.items():
        record = value[0] if isinstance(value, list) and value else value
        if isinstance(record, Mapping):
            records[f"what is in {name!r}"] = record
    for place, record in records.items():
        nearest = _most_alike(record)
        shared = nearest.marks & record.keys()
        if shared:
            has = ", ".join(sorted(shared))
            like = f"looks like {nearest.what} (it has {has})"
            return f"{place} {like}, but cannot be read: {nearest.needs}"
    return None


def _most_alike(record: Mapping[str, Any]) -> Format:
    """The format most of whose marks a record has."""
    return max(formats().values(), key=lambda candidate: len(candidate.marks & record.keys()))
