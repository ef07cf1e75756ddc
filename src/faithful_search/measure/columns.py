"""One row of anybody's file to a Trajectory: which of its columns hold the text, the question, the gold answers."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import msgspec

from .. import dialects, formats
from ..dialects.turns import episode_start
from ..errors import DataError
from ..tasks import first, row_answers, row_question
from ..trajectory import Step, Trajectory

MESSAGES_COLUMNS = ("messages", "conversation", "conversations", "chat")
TEXT_COLUMNS = (
    *("text", "trajectory", "completion", "response", "output", "solution", "gen_text_store", "rollout"),
    *("prediction", "generation", "generated_text", "full_response", "completions", "responses", "sequence"),
)
KNOWN_COLUMNS = ("steps", *MESSAGES_COLUMNS, *TEXT_COLUMNS)
PROMPT_COLUMNS = ("prompt", "input")
ID_COLUMNS = ("id", "_id", "qid", "uid")
_STEP = frozenset(Step.__struct_fields__)
_ASKED = re.compile(r".*\bQuestion:\s*(\S.*?)\s*\Z", re.DOTALL)


def parse_row(
    data: bytes, dialect: str | None = None, text_column: str | None = None, usual: str | None = None
) -> Trajectory:
    """Read one row's JSON; `usual` as in `dialects.parse`.

    Raises `DataError` naming what is wrong (not JSON, no text, fields that are not a trajectory's), and `DialectError`
    when its dialect is unknown, or none fits.

    Example:
        >>> row = {"question": "Where?", "output": "<think>So.</think><answer>Paris</answer>", "answers": "['Paris']"}
        >>> found = parse_row(json.dumps(row).encode(), "search_r1")
        >>> found.question, found.answer, found.answers
        ('Where?', 'Paris', ('Paris',))
    """
    row = _decode(data)
    if isinstance(row, str):
        row = {"text": row}
    if not isinstance(row, dict):
        raise DataError(f"expected a JSON object, found {type(row).__name__}")
    if text_column is None and _is_ours(row):  # a named column wins over our own fields
        return _stored(row)
    written = (None if text_column else formats.read(row)) or _written(row, text_column)
    if isinstance(written, dict) and (_is_ours(written) or formats.read(written) is None):
        return _annotated(_stored(written), row)
    own = row.get("dialect")  # files may mix dialects, a column for each row's
    name = dialect or (own if isinstance(own, str) and own else None)
    return _annotated(dialects.parse(written, name, question=_question(row), usual=usual), row)


def _decode(data: bytes) -> Any:
    with suppress(msgspec.MsgspecError, ValueError, RecursionError):
        return msgspec.json.decode(data)
    try:  # what strict JSON forbids but files still contain: NaN, a byte order mark, half a surrogate pair
        text = json.dumps(json.loads(data), ensure_ascii=False)
        return json.loads(text.encode("utf-8", "replace"))
    except RecursionError:
        raise DataError("not JSON that can be read: nested too deeply") from None
    except ValueError as error:
        cut = "" if data.endswith(b"\n") else "; the file ends in this row, which seems cut off"
        raise DataError(f"not JSON ({error}){cut}") from None


def _is_ours(row: Mapping[str, Any]) -> bool:
    """Whether these are the fields of a `Trajectory`: others have columns named `steps`, too."""
    steps = row.get("steps")
    if not isinstance(steps, list) or not all(isinstance(step, dict) for step in steps):
        return False
    return all(step.keys() <= _STEP for step in steps) and (any(steps) or bool(row.get("dialect") or row.get("text")))


def _stored(row: Mapping[str, Any]) -> Trajectory:
    """The trajectory whose fields these are; other columns beside them are left out."""
    own = {name: value for name, value in row.items() if name in Trajectory.__struct_fields__}
    with suppress(msgspec.ValidationError):
        return msgspec.convert(own, Trajectory)
    try:  # Parquet has `None` where a field was left out
        return msgspec.convert(_without_none(own), Trajectory)
    except msgspec.ValidationError as error:
        raise DataError(f"not a trajectory: {error}") from None


def _without_none(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _without_none(item) for name, item in value.items() if item is not None}
    return [_without_none(item) for item in value] if isinstance(value, list) else value


def _written(row: Mapping[str, Any], text_column: str | None) -> Any:
    """What the agent wrote: a text, a list of messages, or a trajectory's own fields."""
    named = (text_column,) if text_column else (*MESSAGES_COLUMNS, *TEXT_COLUMNS)
    column = next((name for name in named if _is_written(row.get(name))), None)
    if column is None:
        has = ", ".join(map(str, row)) or "nothing"
        if not text_column:
            raise DataError(f"no column with messages or text; it has: {has}. {formats.refusal(row)}")
        if text_column not in row:
            raise DataError(f"no column {text_column!r}; it has: {has}")
        raise DataError(f"column {text_column!r} holds no text")
    value = row[column]
    if not isinstance(value, list) or column in MESSAGES_COLUMNS:
        return value
    # trainers log a chat in two columns: what was asked, and what was sampled
    return [*(first(row, PROMPT_COLUMNS, _is_messages) or ()), *value]


def _is_written(value: Any) -> bool:
    return (isinstance(value, str) and bool(value.strip())) or isinstance(value, dict) or _is_messages(value)


def _is_messages(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(item, dict) for item in value)


def _annotated(trajectory: Trajectory, row: Mapping[str, Any]) -> Trajectory:
    """With the row's gold answers, id and question, where the trajectory itself has none."""
    known: dict[str, Any] = {}
    if (golds := row_answers(row)) and not trajectory.answers:
        known["answers"] = golds
    if (name := first(row, ID_COLUMNS)) is not None and not trajectory.id:
        known["id"] = str(name)
    if trajectory.question is None and (question := _question(row)) is not None:
        known["question"] = question
    return msgspec.structs.replace(trajectory, **known) if known else trajectory


def _question(row: Mapping[str, Any]) -> str | None:
    """The question's own column, or what the prompt asks last."""
    if (asked := row_question(row)) is not None:
        return asked
    prompt = first(row, PROMPT_COLUMNS, _is_written)
    if isinstance(prompt, list):
        users = [item.get("content") for item in prompt if item.get("role") == "user"]
        prompt = users[-1] if users else None
    elif isinstance(prompt, str):
        prompt = episode_start(prompt, "<tool_response>")[1] or prompt
    if not isinstance(prompt, str):
        return None
    match = _ASKED.match(prompt)  # recipes put instructions and examples before it
    return (match[1] if match else prompt).strip() or None
