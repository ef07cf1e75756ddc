"""`scores.jsonl`: how rows get their lines, a batch at a time, and how the lines are kept and read back.

While an audit runs the file only grows, so that no judge is asked twice, and a later line of a row stands for the
earlier ones. When it ends, the file is put in the order of the source, each row once.
"""

from array import array
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property, partial
from itertools import chain, islice
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import msgspec
import numpy as np

from ..errors import ConfigError, DataError, JudgeError
from ..inference.base import Generator
from ..judges import Judge, Pair, Request, Verdict, Writer, is_lexical
from ..rewards import Reward, Score
from ..rewards.judged import JudgedReward
from ..trajectory import read_lines
from . import metrics
from .behaviour import tool_counts
from .failures import told
from .files import PathLike
from .ledger import Ledger
from .rows import READER, Raw, Reader, Row
from .settings import How

T = TypeVar("T")
R = TypeVar("R")
SCORES = "scores.jsonl"
ENCODER = msgspec.json.Encoder(enc_hook=lambda value: value.tolist() if hasattr(value, "tolist") else str(value))
"""Writes numbers and arrays of numpy as Python's, whatever else JSON has no form for as text."""
_TOLD = ("id", "question", "answer", "answers", "dialect", "stop_reason")
"""What a line says of its trajectory besides the scores."""


def open_policy(policy: str, what: str, trust_remote_code: bool = False) -> Generator:
    """The model in a directory or Hub repository. Raises `ConfigError` saying `what` needs which package."""
    try:
        from ..inference.loading import open_generator
    except ImportError as error:
        raise ConfigError(f"{what} needs {error.name}: pip install 'faithful-search[train]'") from error
    return open_generator(policy, trust_remote_code=trust_remote_code)


def each(function: Callable[[Sequence[T]], list[R]], items: Sequence[T], instead: Callable[[Exception], R]) -> list[R]:
    """The function of all items at once; when it fails, of each alone, with `instead` for those that it fails on."""
    try:
        return function(items)
    except Exception as error:  # an item that a metric fails on must not cost the others
        if len(items) == 1:
            return [instead(error)]
        return [found for item in items for found in each(function, [item], instead)]


class Batch(NamedTuple):
    """The lines of some rows, in their order; `refusal` is what a judge said that could not be asked at all."""

    rows: list[int]
    lines: list[bytes]
    refusal: str


@dataclass(frozen=True)
class Scorer:
    """What is measured, and how. A judge is asked about all pairs of a batch at once, each different one once.

    Pickled it travels to the processes that score; each makes its own rewards when the first batch comes. `knobs` are
    fields of the rewards.
    """

    metrics: tuple[str, ...]
    judge: Judge | None = None
    how: How = "squad"
    policy: Generator | None = None
    reader: Reader = READER
    knobs: Mapping[str, Any] = field(default_factory=dict)

    @cached_property
    def shared(self) -> "_Shared | None":
        """The judge, where it is a model and not a comparison of words."""
        if self.judge is None or is_lexical(self.judge):
            return None
        return _SharedWriter(self.judge) if isinstance(self.judge, Writer) else _Shared(self.judge)

    @cached_property
    def rewards(self) -> dict[str, Reward]:
        """The rewards by the names of their results."""
        bound = {} if self.policy is None else {"policy": self.policy}
        loaded = (metrics.load(name, self.shared or self.judge, self.how, **self.knobs) for name in self.metrics)
        return {name: reward.bind(**bound) for own in loaded for name, reward in own.items()}

    def score(self, batch: Sequence[Raw]) -> Batch:
        """One line a row. Raises nothing that a row or a metric did."""
        return self.score_rows([self.reader(raw) for raw in batch])

    def score_rows(self, rows: Sequence[Row]) -> Batch:
        """The same for rows that were read."""
        read = [row.trajectory for row in rows if row.trajectory is not None]
        if self.shared is not None:
            self.shared.forget()
            judged = [r for r in self.rewards.values() if isinstance(r, JudgedReward) and r.judge is self.shared]
            with suppress(Exception):  # which row and metric it was shows when they are scored
                # All pairs at once, row by row, so that a judge that dies on the way leaves whole rows
                pairs = zip(*[reward.pairs_batch(read) for reward in judged], strict=True)
                asked = (item for row in pairs for own in row for item in own)
                self.shared.judge_batch([item.pair for item in asked if item.settled is None])
        # Iterators, since the columns have no entry for rows that could not be read
        columns = {
            name: iter(each(reward.score_batch, read, partial(_failed, reward.name)))
            for name, reward in self.rewards.items()
        }
        lines = [self._line(row, columns) for row in rows]
        return Batch([row.number for row in rows], lines, self.shared.refusal if self.shared else "")

    def _line(self, row: Row, columns: Mapping[str, Iterator[Score]]) -> bytes:
        """The row's line; takes its own scores off the columns."""
        known: dict[str, Any] = {"row": row.number, "digest": row.digest}
        trajectory, why = row.trajectory, row.error
        if trajectory is not None:
            scores = {name: (self.rewards[name], next(column)) for name, column in columns.items()}
            record = {
                **known,
                **{name: getattr(trajectory, name) for name in _TOLD},
                "scores": {
                    name: {"value": reward.measure(score), "why": score.why, "parts": score.parts}
                    for name, (reward, score) in scores.items()
                },
                "tools": dict(sorted(tool_counts([trajectory]).items())),
                "evidence": sum(len(step.evidence) for step in trajectory.steps),
                "issues": dict(sorted(Counter(issue.kind for issue in trajectory.all_issues()).items())),
            }
            try:
                return ENCODER.encode(record) + b"\n"
            except (TypeError, ValueError) as error:  # a judge's reason may hold half a surrogate pair
                why = f"its scores have no JSON form ({error})"
        return ENCODER.encode({**known, "error": why}) + b"\n"


def _failed(name: str, error: Exception) -> Score:
    return Score(None, f"failed: {told(name, error)}", {"abstained": True})


class _Shared:
    """A judge that remembers what it said about the batch at hand, since several metrics ask about the same pairs.

    `refusal`: why it could not be asked.
    """

    def __init__(self, judge: Any) -> None:
        self.name: str = judge.name
        self._judge = judge
        self.forget()

    def forget(self) -> None:
        """Make room for the next batch."""
        self.refusal = ""
        self._verdicts: dict[Pair, Verdict] = {}
        self._texts: dict[str, str | None] = {}

    def judge_batch(self, pairs: Sequence[Pair]) -> list[Verdict]:
        """Ask about the pairs that are new, all at once."""
        new = [pair for pair in dict.fromkeys(pairs) if pair not in self._verdicts]
        try:
            verdicts = self._judge.judge_batch(new) if new else []
        except JudgeError as error:
            self.refusal = str(error)
            verdicts = [Verdict(None, None, str(error), self.name)] * len(new)
        self._verdicts.update(zip(new, verdicts, strict=True))
        return [self._verdicts[pair] for pair in pairs]


class _SharedWriter(_Shared):
    """One that also writes; rewards look for `write_batch`, which what only judges must not have."""

    def write_batch(self, requests: Sequence[Request]) -> list[str | None]:
        keys = [str(request) for request in requests]  # a `Request` cannot be hashed
        new = {key: one for key, one in zip(keys, requests, strict=True) if key not in self._texts}
        if new:
            self._texts.update(zip(new, self._judge.write_batch(list(new.values())), strict=True))
        return [self._texts[key] for key in keys]


class Marked(msgspec.Struct, frozen=True):
    """One metric's score as a whole: the value as a measurement, the reason, and what it consists of."""

    value: float | None = None
    why: str = ""
    parts: dict[str, Any] = {}


class Cell(msgspec.Struct, frozen=True):
    """The same in a line: `value` is `None` where the metric does not apply or the judge abstained.

    The `parts` are most of the file, and are decoded only where they are asked for.
    """

    value: float | None = None
    why: str = ""
    parts: msgspec.Raw = msgspec.Raw(b"{}")

    @property
    def whole(self) -> Marked:
        return Marked(self.value, self.why, msgspec.json.decode(self.parts))

    @property
    def abstained(self) -> bool:
        """Whether the judge gave no verdict."""
        return self.value is None and b"abstained" in bytes(self.parts) and bool(self.whole.parts.get("abstained"))


class Line(msgspec.Struct, frozen=True):
    """What is read back of one line; `error` is set for a row that could not be read."""

    row: int
    digest: str
    error: str | None = None
    id: str = ""
    question: str | None = None
    answer: str | None = None
    stop_reason: str | None = None
    dialect: str = ""
    scores: dict[str, Cell] = {}
    tools: dict[str, int] = {}
    evidence: int = 0
    issues: dict[str, int] = {}

    @property
    def values(self) -> dict[str, float | None]:
        """Of each metric, and whether there is an answer and how many calls."""
        own = {name: cell.value for name, cell in self.scores.items()}
        return own | {"answered": float(self.answer is not None), "calls": float(sum(self.tools.values()))}

    @property
    def complete(self) -> bool:
        """Whether the row was read and no judge abstained: such a row is not scored again."""
        return self.error is None and not any(cell.abstained for cell in self.scores.values())


LINE = msgspec.json.Decoder(Line)


def read_scores(path: PathLike, at_most: int | None = None) -> Iterator[Line]:
    """Yield the lines of a `scores.jsonl`, or only the first `at_most` of them.

    Raises `DataError` when the file cannot be read, or a line does not hold a row's scores.
    """
    for number, data in islice(read_lines(path), at_most):
        try:
            line = LINE.decode(data)
        except ValueError as error:
            raise DataError(f"{path}, line {number}: not a row's scores ({error})") from error
        yield line


class ScoreLog(Ledger):
    """The open file. What an earlier run left in it is found by the row's digest, wherever the row stands now.

    `rows` are those of this run, `places` where their lines begin: kept instead of the lines, which may be larger than
    memory.
    """

    def __init__(self, path: Path, resume: bool = True) -> None:
        super().__init__(path, "audit", anew=not resume)
        self.rows, self.places = array("q"), array("q")
        self._known: dict[str, int] = {}
        for place, data in self.read():
            with suppress(ValueError):  # a damaged line: its row is scored again
                line = LINE.decode(data)
                self._known.pop(line.digest, None)  # also where the later line abstained: it is asked again
                if line.complete:
                    self._known[line.digest] = place

    def holds(self, row: int, digest: str) -> bool:
        """Whether an earlier run scored this row completely; it then counts as a row of this run."""
        if digest in self._known:
            self.rows.append(row)
            self.places.append(self._known[digest])
        return digest in self._known

    def add(self, rows: Sequence[int], lines: Sequence[bytes]) -> None:
        """Append the lines of these rows; errors as those of `Ledger.append`."""
        self.places.extend(self.append(lines))
        self.rows.extend(rows)

    def finish(self, whole: bool) -> None:
        """Put the file in the source's order, each row once; it is replaced only when the new one is complete.

        Where this run saw the `whole` source, lines of other rows are of a source that has changed, and go; otherwise
        they follow at the end.
        """
        if not self._known and self.count == len(self.places):
            return  # a first run, whose lines are in order
        rows, places = set(self.rows), set(self.places)
        others = [] if whole else [place for place in sorted(self._known.values()) if place not in places]
        rest = (line for line in map(self.line, others) if LINE.decode(line).row not in rows)
        self.replace(chain((self._numbered(self.rows[at], self.places[at]) for at in np.argsort(self.rows)), rest))

    def _numbered(self, row: int, place: int) -> bytes:
        """The line at this place as that of the row, which may stand elsewhere than when it was scored."""
        line = self.line(place)
        if line.startswith(b'{"row":%d,' % row):
            return line
        return msgspec.json.encode({**msgspec.json.decode(line), "row": row}) + b"\n"
