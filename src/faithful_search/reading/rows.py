"""Reads trajectories from files that anyone wrote, row by row, also from files larger than memory.

```
file ─ read_json ─> Raw (number, digest, JSON of the row) ─ Reader ─> Row (trajectory, or why there is none)
```
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from itertools import chain, islice
from typing import Any

import msgspec

from .. import columns, dialects, formats, loose_json
from ..dialects.prompt_ends import episode_start
from ..dialects.segments import Responses
from ..errors import DataError, DialectError
from ..trajectory import Issue, Trajectory
from ..wire.failures import FailureLog
from .files import TWINS, Data, PathLike, read_json
from .settings import WHOLE, ReadingSettings

# A row's JSON is decoded for its samples only where a column that may hold a list of them begins
# with a bracket: most files have no such column, and are read faster
_MAY_HAVE_SAMPLES = re.compile(rf'"(?:{"|".join(columns.SAMPLES)})"\s*+:\s*+\['.encode())
_MOST_TWINS = 100  # further values that a row may have under names that stand there already
_failures = FailureLog(__name__)


class Raw(msgspec.Struct, frozen=True):
    """One row as it stands in the file.

    Attributes:
        number: counts from 1.
        digest: the hash of `data` without blanks around it, as hex.
        data: the row's JSON.
        error: why there is no JSON; else empty.
    """

    number: int
    digest: str
    data: bytes
    error: str = ""

    @staticmethod
    def of(number: int, data: Data) -> "Raw":
        """The row with this number, from its JSON or the error that stands in its place."""
        if isinstance(data, DataError):
            return Raw(number, digest="", data=b"", error=str(data))
        # The digest is of stripped data, so that an audit recognises a row in a file that was
        # packed, or written on another system.
        return Raw(number, blake2b(data.strip(), digest_size=16).hexdigest(), data)


class Row(msgspec.Struct, frozen=True):
    """One row that was read.

    Attributes:
        number: the row's number, from 1.
        digest: as in `Raw`.
        trajectory: what the row holds; `None` where it cannot be read.
        error: why it cannot be read; else empty.
        taken: the columns of the text ("text"), of the question ("question") and of the gold
            answers ("gold"), see `Reader.read`; empty where it cannot be read.
    """

    number: int
    digest: str
    trajectory: Trajectory | None
    error: str = ""
    taken: dict[str, str] = {}


@dataclass(frozen=True)
class Reader:
    """Makes trajectories of rows.

    Attributes:
        dialect: of all rows; `None` takes each row's own `dialect` column or detects it.
        text_column: the column of the text. Here and in the next three, `None` looks for the usual
            names.
        question_column: the column of the question.
        gold_column: the column of the gold answers.
        id_column: the column of the row's id.
        answer_tool: the tool whose last call hands in the answer. This and the next three are
            handed to `dialects.parse`, which says what they do.
        usual: the dialect in which to read rows that show no marks of one.
        fenced: whether our own engine rendered the rows, with escaping in tool responses.
        responses: where tool responses may stand: "anywhere", or in "messages" of their own alone.
        revise: changes each trajectory that was read (`measure.invented` takes evidence out of it).
    """

    dialect: str | None = None
    text_column: str | None = None
    question_column: str | None = None
    gold_column: str | None = None
    id_column: str | None = None
    answer_tool: str | None = None
    usual: str | None = None
    fenced: bool = False
    responses: Responses = "anywhere"
    revise: Callable[[Trajectory], Trajectory] | None = None

    def beside(self, rows: Iterable[Raw]) -> "Reader":
        """A copy of this reader for a file that begins with these rows. It reads rows that show no
        marks of a dialect in the one that most of these rows are in.
        """
        if self.dialect:
            return self
        return replace(self, usual=dialects.usual(self(raw).trajectory for raw in rows))

    def __call__(self, raw: Raw) -> Row:
        """The row's trajectory, or the reason why it has none; never raises."""
        if raw.error:
            return Row(raw.number, raw.digest, trajectory=None, error=raw.error)
        try:
            trajectory, taken = self.read(raw.data)
            if self.revise is not None:
                trajectory = self.revise(trajectory)
            return Row(raw.number, raw.digest, trajectory, taken=taken)
        except (DataError, DialectError) as error:
            why = str(error)
        except Exception as error:  # whatever a row holds, the others are read
            kind = _failures.add("parsing", error)
            why = f"could not be parsed: {kind}"
        return Row(raw.number, raw.digest, trajectory=None, error=why)

    def parse(self, data: bytes) -> Trajectory:
        """Read one row's JSON.

        Raises `DataError` naming what is wrong (not JSON, no text, fields that are not a
        trajectory's, columns of one name that give different trajectories), and `DialectError` when
        its dialect is unknown, or none fits.

        Example:
            >>> text = "<think>So.</think><answer>Paris</answer>"
            >>> row = {"question": "Where?", "output": text, "answers": "['Paris']"}
            >>> trajectory = Reader("search_r1").parse(msgspec.json.encode(row))
            >>> trajectory.question, trajectory.answer, trajectory.answers
            ('Where?', 'Paris', ('Paris',))
        """
        trajectory, _ = self.read(data)
        return trajectory

    def read(self, data: bytes) -> tuple[Trajectory, dict[str, str]]:
        """Read one row's JSON, and report from which columns it was taken.

        The second value names the columns of the text ("text"), of the question ("question") and
        of the gold answers ("gold"); what the row does not have is "". A question or gold answers
        that stand within the text, such as a chat's, have the text's place. Where the text is the
        whole row, its place is the name of the format or "the trajectory". If the question or the
        gold answers are missing, "unused" names the columns that may hold them. Raises as `parse`
        does.
        """
        row, repairs = decoded(data)
        twins = row.pop(TWINS, None) if isinstance(row, dict) else None
        trajectory, taken = self.read_row(row)
        if isinstance(twins, dict):
            self._check_twins(trajectory, row, twins)
        if repairs:
            issues = (Issue("text_repaired", repair) for repair in repairs)
            trajectory = msgspec.structs.replace(trajectory, issues=(*trajectory.issues, *issues))
        return trajectory, taken

    def _check_twins(
        self, trajectory: Trajectory, row: dict[str, Any], twins: Mapping[str, Sequence[Any]]
    ) -> None:
        """Raise `DataError` where the row gives another trajectory, or none, with the value of
        another column of the same name.
        """
        total = sum(map(len, twins.values()))
        if total > _MOST_TWINS:  # each costs a reading of the row
            raise DataError(
                f"{total} columns differ from one of the same name: remove or rename all but one "
                "of each name"
            )
        for name, values in twins.items():
            for value in values:
                try:
                    other, _ = self.read_row({**row, name: value})
                except (DataError, DialectError):
                    other = None
                if other != trajectory:
                    raise DataError(
                        f"columns called {name!r} that differ: what is read depends on them, so "
                        "remove or rename all but one"
                    )

    def read_row(self, row: Any) -> tuple[Trajectory, dict[str, str]]:
        """As `read`, of a row that was decoded already."""
        content = formats.content(
            row,
            self.text_column,
            # Where each tool response is a message of its own, a text is the agent's words alone
            as_written=self.responses == "messages",
        )
        fields = row if isinstance(row, dict) else {}  # a row may be a text alone
        question = _question(fields, self.question_column)
        value = content.value
        agent_columns = value.agents if isinstance(value, formats.Chat) else frozenset()
        if isinstance(value, Trajectory):
            trajectory = value
            if not content.place:
                # The row itself is the trajectory, so its `answer` is the agent's, and not gold
                agent_columns = frozenset(Trajectory.__struct_fields__)
        else:
            trajectory = dialects.parse(
                value,
                self._dialect_of(fields),
                question=question.value if question else None,
                fenced=self.fenced,
                usual=self.usual,
                responses=self.responses,
                answer_tool=self.answer_tool,
            )
        return self._annotated(
            trajectory,
            fields,
            place=content.place or "the trajectory",
            question=question,
            agent_columns=agent_columns,
        )

    def _dialect_of(self, row: Mapping[str, Any]) -> str | None:
        """The dialect to read a row in: the reader's, or else the one that the row names itself,
        since files may mix dialects. `None` detects it.
        """
        named_in_row = row.get("dialect")
        if self.dialect or not isinstance(named_in_row, str):
            return self.dialect
        return named_in_row or None

    def _annotated(
        self,
        trajectory: Trajectory,
        row: Mapping[str, Any],
        place: str,
        question: columns.Field | None,
        agent_columns: frozenset[str],
    ) -> tuple[Trajectory, dict[str, str]]:
        """The trajectory with the row's gold answers, id and question, where it has none itself;
        and the columns they were taken from, as in `read`. Gold answers and an id in a column that
        was named come before its own.

        `place` is where in the row the trajectory stood. `agent_columns` hold what the agent said.
        Gold answers and an id are taken from them only where they are in a column that was named.
        """
        changes: dict[str, Any] = {}
        taken = {"text": place, "question": place, "gold": place}
        row_beside = {name: value for name, value in row.items() if name not in agent_columns}
        if self.gold_column is not None or not trajectory.answers:
            row_with_golds = row_beside if self.gold_column is None else row
            golds = columns.golds(row_with_golds, self.gold_column)
            changes["answers"] = golds.value if golds else ()
            taken["gold"] = golds.column if golds else ""
        if self.id_column is not None or not trajectory.id:
            row_with_id = row_beside if self.id_column is None else row
            identity = columns.identity(row_with_id, self.id_column)
            changes["id"] = identity.value if identity else ""
        # A text or chat was parsed with the row's question already. A stored trajectory keeps its
        # own, also where the row has another one.
        if question is not None and trajectory.question in (None, question.value):
            changes["question"] = question.value
            taken["question"] = question.column
        elif trajectory.question is None:
            taken["question"] = ""
        if not (taken["gold"] and taken["question"]):
            # A field inside a column is named `column.field`
            used_columns = {name.split(".")[0] for name in taken.values()}
            unused = columns.unused(row_beside, used_columns)
            if unused:
                taken["unused"] = ", ".join(unused)
        if changes:
            trajectory = msgspec.structs.replace(trajectory, **changes)
        return trajectory, taken


READER = Reader()


class RowSource:
    """An open file of rows, to be iterated over once.

    Args:
        path: as in `read_trajectories`.
        settings: which rows are read, and from which of their columns.
        growing: somebody still writes the file, so its last line may be half a row.

    Attributes:
        reader: makes trajectories of its rows.
        error: why the file could not be read to its end; else empty. It is known after the last
            row.

    Raises:
        DataError: the file cannot be read at all, or has no rows.
    """

    def __init__(
        self, path: PathLike, settings: ReadingSettings = WHOLE, growing: bool = False
    ) -> None:
        self.error = ""
        rows = self._read(path, growing)
        head = list(islice(rows, dialects.USUAL_OF))
        if not head:
            raise DataError(self.error or f"{path}: no rows in it")
        if settings.limit is not None and settings.limit <= len(head):
            self.error = ""  # all rows that are asked for were read before the file broke off
        self._rows = islice(chain(head, rows), settings.limit)
        reader = Reader(
            dialect=settings.dialect,
            text_column=settings.text_column,
            question_column=settings.question_column,
            gold_column=settings.gold_column,
            id_column=settings.id_column,
            answer_tool=settings.answer_tool,
        )
        self.reader = reader.beside(head)

    def __iter__(self) -> Iterator[Raw]:
        return self._rows

    def _read(self, path: PathLike, growing: bool) -> Iterator[Raw]:
        """The rows of the file. Where it breaks off they end, and `error` says why."""
        rows_added = 0  # a row with several samples becomes several, and later numbers go up
        try:
            for number, data in read_json(path, growing):
                samples = _samples(data)
                for place, sample in enumerate(samples):
                    yield Raw.of(number + rows_added + place, sample)
                rows_added += len(samples) - 1
        except DataError as error:
            self.error = str(error)


def read_trajectories(
    path: PathLike, dialect: str | None = None, text_column: str | None = None
) -> Iterator[Row]:
    """Read every row of a file: its trajectory, or the reason why it has none.

    A row is what `Trajectory.to_json` wrote, an object with chat `messages`, or an object with a
    column of text. Its question, gold answers and id are taken from the columns that are usual for
    them.

    Args:
        path: `.jsonl`, `.json` (an array, or objects that follow one another), both also `.gz`,
            `.parquet`, `.eval`, a folder of these, `hf://datasets/…`, or `"-"` for JSON lines on
            the standard input.
        dialect: of all rows; `None` takes each row's own `dialect` column or detects it, so
            dialects may be mixed.
        text_column: which column holds the text; `None` looks for a known name.

    Raises:
        DataError: the file cannot be read, or has no rows. Where it breaks off, this is raised
            after the rows before.
        DialectError: `dialect` is unknown.
    """
    source = RowSource(path, ReadingSettings(dialect, text_column))
    yield from map(source.reader, source)
    if source.error:
        raise DataError(source.error)


def pick(
    path: PathLike,
    rows: Iterable[int],
    settings: ReadingSettings = WHOLE,
    revise: Callable[[Trajectory], Trajectory] | None = None,
) -> Iterator[tuple[int, Trajectory]]:
    """Read the rows of these numbers again; yields the number and trajectory of each that can be
    read.

    Args:
        path: as in `read_trajectories`.
        rows: the numbers, from 1.
        settings: those that the file was read with. Their `limit` is replaced, since no row is read
            after the last one that is asked for.
        revise: as in `Reader`.

    Raises:
        DataError: the file cannot be read at all, or has no rows.
    """
    numbers = set(rows)
    if not numbers:
        return
    source = RowSource(path, replace(settings, limit=max(numbers)))
    reader = replace(source.reader, revise=revise)
    for raw in source:
        if raw.number not in numbers:
            continue
        trajectory = reader(raw).trajectory
        if trajectory is not None:
            yield raw.number, trajectory


def _samples(data: Data) -> Sequence[Data]:
    """The row itself; or, where a column holds a list of texts or chats, a row for each of them."""
    if isinstance(data, DataError) or _MAY_HAVE_SAMPLES.search(data) is None:
        return [data]
    try:
        rows = loose_json.parts_of(data, _rows_of_samples)
    except DataError:  # reading the row reports it
        return [data]
    if rows is None:
        return [data]
    # `decoded` takes a row without a line's end for one that is cut off
    return [row + b"\n" for row in rows]


def _rows_of_samples(row: Any) -> list[Any] | None:
    """A row for each sample in a row; `None` where it has no list of samples."""
    if not isinstance(row, dict):
        return None
    for name in columns.SAMPLES:
        samples = row.get(name)
        while isinstance(samples, list) and len(samples) == 1 and isinstance(samples[0], list):
            samples = samples[0]  # lm-evaluation-harness has a list for each request
        if isinstance(samples, list) and samples and _are_samples(samples):
            return [{**row, name: sample} for sample in samples]
    return None


def _are_samples(values: list[Any]) -> bool:
    """Whether the values are all texts, or all chats."""
    if all(isinstance(value, str) for value in values):
        return True
    return all(isinstance(value, list) and formats.read(value) for value in values)


def decoded(data: bytes) -> loose_json.Decoded:
    """The value in a row's JSON, with the repairs that reading it took.

    Raises `DataError` where it is not JSON.
    """
    try:
        return loose_json.decoded(data)
    except DataError as error:
        cut_off = ""
        if not data.endswith(b"\n"):
            cut_off = "; the file ends in this row, which seems cut off"
        raise DataError(f"not JSON that can be read ({error}){cut_off}") from None


def _question(row: Mapping[str, Any], column: str | None = None) -> columns.Field | None:
    """The question in `column` or in a usual one. Without either it is the last one in the prompt,
    unless a `column` was named.
    """
    question = columns.question(row, column)
    if question is not None or column is not None:
        return question
    prompt = columns.first(row, columns.PROMPTS, lambda value: isinstance(value, str))
    if prompt is None:
        return None
    # A prompt may be a whole chat, in which responses of tools are user messages, too
    _, user_message = episode_start(prompt.value, "<tool_response>")
    text = columns.asked(user_message or prompt.value)
    return columns.Field(text, prompt.column) if text else None
