"""Trajectories out of files written by anyone, row by row, larger than memory.

```
file ─ read_json ─> Raw (number, digest, JSON of the row) ─ Reader ─> Trajectory, or the reason why there is none
```
"""

import json
import logging
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from hashlib import blake2b
from itertools import chain, islice
from typing import Any

import msgspec

from .. import dialects, formats
from ..dialects.segments import episode_start
from ..errors import DataError, DialectError, kind_of
from ..tasks import first, row_answers, row_question
from ..tools.outcome import log_failure
from ..trajectory import Step, Trajectory
from .files import PathLike, read_json
from .invented import SearchedCorpus
from .settings import WHOLE, Reading

MESSAGES_COLUMNS = ("messages", "conversation", "conversations", "chat")
TEXT_COLUMNS = (
    *(
        "text",
        "trajectory",
        "completion",
        "response",
        "output",
        "solution",
        "gen_text_store",
        "rollout",
    ),
    *(
        "prediction",
        "generation",
        "generated_text",
        "full_response",
        "completions",
        "responses",
        "sequence",
    ),
)
PROMPT_COLUMNS = ("prompt", "input")
ID_COLUMNS = ("id", "_id", "qid", "uid")
_STEP = frozenset(Step.__struct_fields__)
_ASKED = re.compile(r".*\bQuestion:\s*(\S.*?)\s*\Z", re.DOTALL)
_log = logging.getLogger(__name__)
_known_failures: set[tuple[str, str]] = set()


def told(what: str, error: Exception) -> str:
    """The kind of an unexpected error, for results; its words, which may hold keys, go to the local log."""
    log_failure(_log, _known_failures, what, error)
    return kind_of(error)


class Raw(msgspec.Struct, frozen=True):
    """One row as it lies in the file: `number` counts from 1, `data` is its JSON, `digest` the hex of that."""

    number: int
    digest: str
    data: bytes

    @staticmethod
    def of(number: int, data: bytes) -> "Raw":
        # Stripped: an audit knows a row again in a file that was packed, or written on another system
        return Raw(number, blake2b(data.strip(), digest_size=16).hexdigest(), data)


class Row(msgspec.Struct, frozen=True):
    """One row that was read: its trajectory, or the `error` that kept it from being one."""

    number: int
    digest: str
    trajectory: Trajectory | None
    error: str = ""


@dataclass(frozen=True)
class Reader:
    """Makes trajectories of rows; `usual` and `fenced` as in `dialects.parse`, `corpus` is what was searched."""

    dialect: str | None = None
    text_column: str | None = None
    usual: str | None = None
    corpus: SearchedCorpus | None = None
    fenced: bool = False

    def beside(self, rows: Iterable[Raw]) -> "Reader":
        """The reader for these rows: one without marks of a dialect is read as most of the first ones are."""
        if self.dialect:
            return self
        return replace(self, usual=dialects.usual(self(raw).trajectory for raw in rows))

    def __call__(self, raw: Raw) -> Row:
        """The row's trajectory, or the reason why it has none; never raises."""
        try:
            read = self.parse(raw.data)
            return Row(
                raw.number, raw.digest, self.corpus.without_invented(read) if self.corpus else read
            )
        except (DataError, DialectError) as error:
            why = str(error)
        except Exception as error:  # whatever a row holds, the others are read
            why = f"could not be parsed: {told('parsing', error)}"
        return Row(raw.number, raw.digest, None, why)

    def parse(self, data: bytes) -> Trajectory:
        """Read one row's JSON.

        Raises `DataError` naming what is wrong (not JSON, no text, fields that are not a trajectory's), and
        `DialectError` when its dialect is unknown, or none fits.

        Example:
            >>> text = "<think>So.</think><answer>Paris</answer>"
            >>> row = {"question": "Where?", "output": text, "answers": "['Paris']"}
            >>> found = Reader("search_r1").parse(json.dumps(row).encode())
            >>> found.question, found.answer, found.answers
            ('Where?', 'Paris', ('Paris',))
        """
        row = _decode(data)
        if isinstance(row, str):
            row = {"text": row}
        if not isinstance(row, dict):
            raise DataError(f"expected a JSON object, found {type(row).__name__}")
        if self.text_column is None and _is_ours(row):  # a named column wins over our own fields
            return _stored(row)
        written = (None if self.text_column else formats.read(row)) or _written(
            row, self.text_column
        )
        if isinstance(written, dict) and (_is_ours(written) or formats.read(written) is None):
            return _annotated(_stored(written), row)
        own = row.get("dialect")  # files may mix dialects, a column for each row's
        name = self.dialect or (own if isinstance(own, str) and own else None)
        read = dialects.parse(
            written, name, question=_question(row), fenced=self.fenced, usual=self.usual
        )
        return _annotated(read, row)


READER = Reader()


class Source:
    """An open file of rows: iterate over it once. `reader` reads them, `error` is why the file could not be read on.

    An error before the first row is raised at once instead.
    """

    def __init__(self, path: PathLike, given: Reading = WHOLE) -> None:
        self.error = ""
        rows = self._read(path)
        head = list(islice(rows, dialects.USUAL_OF))
        if not head:
            raise DataError(self.error or f"{path}: no rows in it")
        if given.limit is not None and given.limit <= len(head):
            self.error = ""  # the file is broken only after the last row that is wanted
        self._rows = islice(chain(head, rows), given.limit)
        self.reader = Reader(given.dialect, given.text_column).beside(head)

    def __iter__(self) -> Iterator[Raw]:
        return self._rows

    def _read(self, path: PathLike) -> Iterator[Raw]:
        try:
            yield from (Raw.of(number, data) for number, data in read_json(path))
        except DataError as error:
            self.error = str(error)


def read_trajectories(
    path: PathLike, dialect: str | None = None, text_column: str | None = None
) -> Iterator[Row]:
    """Yield every row of a file: its trajectory, or the reason why it has none.

    A row is what `Trajectory.to_json` wrote, an object with chat `messages`, or an object with a column of text; its
    question, gold answers and id are taken from the columns that are usual for them.

    Args:
        path: `.jsonl`, `.json` (an array, or objects that follow one another), both also `.gz`, `.parquet`, `.eval`, a
            folder of these, `hf://datasets/…`, or `"-"` for JSON lines on the standard input.
        dialect: of all rows; `None` takes each row's own `dialect` column or detects it, so dialects may be mixed.
        text_column: which column holds the text; `None` looks for a known name.

    Raises `DataError` when the file cannot be read (any more), or is empty.
    """
    source = Source(path, Reading(dialect, text_column))
    yield from map(source.reader, source)
    if source.error:
        raise DataError(source.error)


def pick(
    path: PathLike,
    rows: Iterable[int],
    given: Reading = WHOLE,
    corpus: SearchedCorpus | None = None,
) -> Iterator[tuple[int, Trajectory]]:
    """Read those rows of a source again, with their numbers; what cannot be read is left out."""
    if wanted := set(rows):
        source = Source(path, replace(given, limit=max(wanted)))
        read = replace(source.reader, corpus=corpus)
        for row in (read(raw) for raw in source if raw.number in wanted):
            if row.trajectory is not None:
                yield row.number, row.trajectory


def _decode(data: bytes) -> Any:
    with suppress(msgspec.MsgspecError, ValueError, RecursionError):
        return msgspec.json.decode(data)
    try:  # what strict JSON forbids but files still contain: NaN, a byte order mark, half a surrogate pair
        text = json.dumps(json.loads(data), ensure_ascii=False)
        return json.loads(text.encode("utf-8", "replace"))
    except (RecursionError, ValueError) as error:
        cut = "" if data.endswith(b"\n") else "; the file ends in this row, which seems cut off"
        raise DataError(f"not JSON that can be read ({error}){cut}") from None


def _is_ours(row: Mapping[str, Any]) -> bool:
    """Whether these are the fields of a `Trajectory`: others have columns named `steps`, too."""
    steps = row.get("steps")
    if not isinstance(steps, list) or not all(
        isinstance(step, dict) and step.keys() <= _STEP for step in steps
    ):
        return False
    return any(steps) or bool(row.get("dialect") or row.get("text"))


def _stored(row: Mapping[str, Any]) -> Trajectory:
    """The trajectory whose fields these are; other columns beside them are left out."""
    own = {name: value for name, value in row.items() if name in Trajectory.__struct_fields__}
    try:
        with suppress(msgspec.ValidationError):
            return msgspec.convert(own, Trajectory)
        return msgspec.convert(
            _without_none(own), Trajectory
        )  # Parquet has `None` where a field was left out
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
        missing = f"{text_column!r} with text" if text_column else "with messages or text"
        hint = "" if text_column else f". {formats.refusal(row)}"
        raise DataError(
            f"no column {missing}; it has: {', '.join(map(str, row)) or 'nothing'}{hint}"
        )
    value = row[column]
    if not isinstance(value, list) or column in MESSAGES_COLUMNS:
        return value
    # trainers log a chat in two columns: what was asked, and what was sampled
    return [*(first(row, PROMPT_COLUMNS, _is_messages) or ()), *value]


def _is_written(value: Any) -> bool:
    return (
        (isinstance(value, str) and bool(value.strip()))
        or isinstance(value, dict)
        or _is_messages(value)
    )


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
