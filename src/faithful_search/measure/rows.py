"""Trajectories out of files written by anyone: JSON lines, a JSON array or Parquet, row by row, larger than memory.

```
file ─ read_rows ─> Raw (number, digest, JSON of the row) ─ parse_row ─> Trajectory, or the reason why there is none
```
"""

from __future__ import annotations

import ast
import json
import os
import re
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from hashlib import blake2b
from itertools import chain, islice
from pathlib import Path
from typing import Any

import msgspec

from .. import dialects, formats
from ..dialects.turns import episode_start
from ..errors import DataError, DialectError
from ..tasks import ANSWER_COLUMNS, ANSWER_SPLIT, QUESTION_COLUMNS
from ..trajectory import Step, Trajectory
from .failures import told
from .files import called, count_rows, read_json
from .invented import SearchedCorpus

MESSAGES_COLUMNS = ("messages", "conversation", "conversations", "chat")
TEXT_COLUMNS = (
    *("text", "trajectory", "completion", "response", "output", "solution", "gen_text_store", "rollout"),
    *("prediction", "generation", "generated_text", "full_response", "completions", "responses", "sequence"),
)
KNOWN_COLUMNS = ("steps", *MESSAGES_COLUMNS, *TEXT_COLUMNS)
PROMPT_COLUMNS = ("prompt", "input")
GOLD_COLUMNS = (*ANSWER_COLUMNS, "gts")
ID_COLUMNS = ("id", "_id", "qid", "uid")
_STEP = frozenset(Step.__struct_fields__)
_QUOTED = r"""(?:'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")"""
_PRINTED_LIST = re.compile(rf"\s*\[\s*(?:{_QUOTED}(?:[\s,]+{_QUOTED})*+)?[\s,]*\]\s*", re.DOTALL)
_ASKED = re.compile(r".*\bQuestion:\s*(\S.*?)\s*\Z", re.DOTALL)


class Raw(msgspec.Struct, frozen=True):
    """One row as it lies in the file: `data` is its JSON, `digest` the hex of that."""

    number: int
    digest: str
    data: bytes


class Row(msgspec.Struct, frozen=True):
    """One row that was read: its trajectory, or the `error` that kept it from being one. `number` counts from 1."""

    number: int
    digest: str
    trajectory: Trajectory | None
    error: str = ""


@dataclass(frozen=True)
class Reader:
    """Makes trajectories of rows; picklable. `usual` as in `dialects.parse`; `corpus`: what was searched, if known."""

    dialect: str | None = None
    text_column: str | None = None
    usual: str | None = None
    corpus: SearchedCorpus | None = None

    def __call__(self, raw: Raw) -> Row:
        """The row's trajectory, or the reason why it has none; never raises."""
        try:
            read = parse_row(raw.data, self.dialect, self.text_column, self.usual)
            return Row(raw.number, raw.digest, self.corpus.without_invented(read) if self.corpus else read)
        except (DataError, DialectError) as error:
            return Row(raw.number, raw.digest, None, str(error))
        except Exception as error:  # whatever a row holds, the others are read
            return Row(raw.number, raw.digest, None, f"could not be parsed: {told('parsing', error)}")


READER = Reader()


class Source:
    """An open file of rows: iterate over it once.

    Attributes:
        reader: reads its rows; a row without marks of a dialect is read as most of the first rows are.
        error: why the file could not be read to its end. An error before the first row is raised at once instead.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        dialect: str | None = None,
        text_column: str | None = None,
        limit: int | None = None,
    ) -> None:
        self.error = ""
        rows = read_rows(path, text_column)
        head = [next(rows)]
        rows = self._whole(rows)
        head += islice(rows, dialects.USUAL_OF - 1)
        if limit is not None and limit <= len(head):
            self.error = ""  # the file is broken only after the last row that is wanted
        self._rows = islice(chain(head, rows), limit)
        reader = Reader(dialect, text_column)
        usual = None if dialect else dialects.usual(reader(raw).trajectory for raw in head)
        self.reader = replace(reader, usual=usual)

    def __iter__(self) -> Iterator[Raw]:
        return self._rows

    def _whole(self, rows: Iterator[Raw]) -> Iterator[Raw]:
        """The rows as far as they can be read."""
        try:
            yield from rows
        except DataError as error:
            self.error = str(error)


def total_rows(paths: Iterable[Path], limit: int | None) -> int | None:
    """How many rows will be read, for a progress bar; `None` where that is not quickly known."""
    total = 0
    for path in paths:
        count = count_rows(path)
        if count is None:
            return None
        total += count if limit is None else min(count, limit)
    return total


def read_trajectories(
    path: str | os.PathLike[str],
    dialect: str | None = None,
    text_column: str | None = None,
    only: Container[int] | None = None,
    corpus: SearchedCorpus | None = None,
) -> Iterator[Row]:
    """Yield every row of a file: its trajectory, or the reason why it has none. A broken row never ends the run.

    A row is what `Trajectory.to_json` wrote, an object with chat `messages`, or an object with a column of text
    (`TEXT_COLUMNS`, or `text_column`). Question, gold answers and id are taken from the columns that are usual for
    them.

    Args:
        path: `.jsonl`, `.json` (an array, or objects that follow one another), both also `.gz`, `.parquet`, `.eval`, a
            folder of these, `hf://datasets/…`, or `"-"` for JSON lines on the standard input.
        dialect: of all rows; `None` takes each row's own `dialect` column or detects it, so dialects may be mixed. A
            row that bears no dialect's marks is read as most of the first rows are (`usual` of `dialects.parse`).
        text_column: which column holds the text; `None` looks for a known name.
        only: numbers of rows; the others are passed over unread.
        corpus: what was searched: evidence that it does not hold is left out, with an `Issue`.

    Raises:
        DataError: when the file cannot be read (any more), is empty, or has none of the columns needed.
        DialectError: for an unknown `dialect`.
    """
    if dialect is not None:
        dialects.load(dialect)
    source = Source(path, dialect, text_column)
    read = replace(source.reader, corpus=corpus)
    for raw in source:
        if only is None or raw.number in only:
            yield read(raw)
    if source.error:
        raise DataError(source.error)


def pick(
    source: str | os.PathLike[str],
    rows: Iterable[int],
    dialect: str | None = None,
    text_column: str | None = None,
    corpus: SearchedCorpus | None = None,
) -> Iterator[tuple[int, Trajectory]]:
    """Read those rows of a source again, with their numbers; what cannot be read is left out."""
    wanted = set(rows)
    if not wanted:
        return
    for row in read_trajectories(source, dialect, text_column, only=wanted, corpus=corpus):
        if row.trajectory is not None:
            yield row.number, row.trajectory
        wanted.remove(row.number)
        if not wanted:  # the rest of a long file need not be read
            return


def read_rows(path: str | os.PathLike[str], text_column: str | None = None) -> Iterator[Raw]:
    """Yield the rows of a file without looking into them; `path` and errors as in `read_trajectories`."""
    found = 0
    for number, data in read_json(path, text_column, KNOWN_COLUMNS):
        found += 1
        yield Raw(number, blake2b(data.strip(), digest_size=16).hexdigest(), data)
    if not found:
        raise DataError(f"{called(path)}: no rows in it")


def parse_row(
    data: bytes, dialect: str | None = None, text_column: str | None = None, usual: str | None = None
) -> Trajectory:
    """Read one row's JSON; `usual` as in `dialects.parse`.

    Raises:
        DataError: naming what is wrong: not JSON, no text, or fields that are not a trajectory's.
        DialectError: when its dialect is unknown, or none fits.

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
    if text_column is None and _is_ours(row):
        return _stored(row)
    written = (None if text_column else formats.read(row)) or _written(row, text_column)
    if isinstance(written, dict) and (_is_ours(written) or formats.read(written) is None):
        return _annotated(_stored(written), row)
    own = row.get("dialect")
    name = dialect or (own if isinstance(own, str) and own else None)
    return _annotated(dialects.parse(written, name, question=_question(row), usual=usual), row)


def gold_answers(value: Any) -> tuple[str, ...]:
    """Gold answers however they were stored: text, lists in lists, `{"target": …}`, or a list that was printed.

    Example:
        >>> gold_answers("['late 1967' '1967']"), gold_answers([["a"], "b"]), gold_answers("x<|answer_split|>y")
        (('late 1967', '1967'), ('a', 'b'), ('x', 'y'))
    """
    if value is None:
        return ()
    if isinstance(value, Mapping):
        return gold_answers(value.get("target", list(value.values())))
    if isinstance(value, (list, tuple)):
        return tuple(answer for item in value for answer in gold_answers(item))
    text = str(value)
    if _PRINTED_LIST.fullmatch(text):
        return tuple(_unquoted(item) for item in re.findall(_QUOTED, text, re.DOTALL))
    return tuple(text.split(ANSWER_SPLIT))


def _unquoted(literal: str) -> str:
    try:
        return str(ast.literal_eval(literal))
    except (ValueError, SyntaxError):  # an escape that Python does not know, or a line break
        return literal[1:-1]


def _decode(data: bytes) -> Any:
    try:
        return msgspec.json.decode(data)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return _lenient(data)


def _lenient(data: bytes) -> Any:
    """What strict JSON forbids and files hold nevertheless: NaN, a byte order mark, half a surrogate pair."""
    try:
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
    try:
        return msgspec.convert(own, Trajectory)
    except msgspec.ValidationError as error:
        pruned = _without_nothing(own)
        if pruned == own:
            raise DataError(f"not a trajectory: {error}") from None
        return _stored(pruned)


def _without_nothing(value: Any) -> Any:
    """Without the `None`s that columns put where a field was left out."""
    if isinstance(value, dict):
        return {name: _without_nothing(item) for name, item in value.items() if item is not None}
    return [_without_nothing(item) for item in value] if isinstance(value, list) else value


def _written(row: Mapping[str, Any], text_column: str | None) -> Any:
    """What the agent wrote: a text, a list of messages, or a trajectory's own fields."""
    column = text_column or _first(row, (*MESSAGES_COLUMNS, *TEXT_COLUMNS), _is_written)
    if column is None or column not in row:
        has = ", ".join(map(str, row)) or "nothing"
        if text_column:
            raise DataError(f"no column {text_column!r}; it has: {has}")
        raise DataError(f"no column with messages or text; it has: {has}. {formats.refusal(row)}")
    value = row[column]
    if not _is_written(value):
        raise DataError(f"column {column!r} holds no text")
    prompt = row.get(_first(row, PROMPT_COLUMNS, _is_messages) or "")
    return [*prompt, *value] if prompt and isinstance(value, list) and column not in MESSAGES_COLUMNS else value


def _is_written(value: Any) -> bool:
    return (isinstance(value, str) and bool(value.strip())) or isinstance(value, dict) or _is_messages(value)


def _is_messages(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(item, dict) for item in value)


def _annotated(trajectory: Trajectory, row: Mapping[str, Any]) -> Trajectory:
    """With the row's gold answers, id and question, where it has them."""
    known: dict[str, Any] = {}
    answers = next((row[name] for name in GOLD_COLUMNS if row.get(name) is not None), None)
    if answers is None:
        answers = _mapping(row, "reward_model").get("ground_truth")
    if (golds := gold_answers(answers)) and not trajectory.answers:
        known["answers"] = golds
    name = _first(row, ID_COLUMNS, lambda value: value is not None)
    if name is not None and not trajectory.id:
        known["id"] = str(row[name])
    if trajectory.question is None and (question := _question(row)) is not None:
        known["question"] = question
    return msgspec.structs.replace(trajectory, **known) if known else trajectory


def _question(row: Mapping[str, Any]) -> str | None:
    """The question's own column, or what the prompt asks last."""
    for place in (row, _mapping(row, "extra_info")):
        column = _first(place, QUESTION_COLUMNS, lambda value: isinstance(value, str) and bool(value.strip()))
        if column is not None:
            return str(place[column]).strip()
    prompt = row.get(_first(row, PROMPT_COLUMNS, _is_written) or "")
    if isinstance(prompt, list):
        asked = [item.get("content") for item in prompt if item.get("role") == "user"]
        prompt = asked[-1] if asked and isinstance(asked[-1], str) else None
    elif isinstance(prompt, str):
        prompt = episode_start(prompt, "<tool_response>")[1] or prompt
    if not isinstance(prompt, str):
        return None
    match = _ASKED.match(prompt)
    return (match[1] if match else prompt).strip() or None


def _first(row: Mapping[str, Any], names: tuple[str, ...], fits: Callable[[Any], bool]) -> str | None:
    return next((name for name in names if name in row and fits(row[name])), None)


def _mapping(row: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    value = row.get(name)
    return value if isinstance(value, Mapping) else {}
