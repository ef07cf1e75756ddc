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
from typing import Any, TypeVar

import msgspec
import numpy as np

from ..errors import DataError, JudgeError, needs
from ..inference.base import Generator
from ..judges import GroundingJudge, Judge, Pair, Verdict, is_lexical
from ..rewards import JudgedReward, Reward, Score
from ..rewards.base import Asked
from ..trajectory import Trajectory, read_lines
from . import metrics
from .behaviour import tool_counts
from .files import PathLike
from .ledger import Ledger
from .rows import READER, Raw, Reader, Row, told
from .settings import How

T = TypeVar("T")
R = TypeVar("R")
SCORES = "scores.jsonl"
ENCODER = msgspec.json.Encoder(
    enc_hook=lambda value: value.tolist() if hasattr(value, "tolist") else str(value)
)
"""Writes numbers and arrays of numpy as Python's, whatever else JSON has no form for as text."""
_TOLD = ("id", "question", "answer", "answers", "dialect", "stop_reason")
"""What a line says of its trajectory besides the scores."""


def open_policy(policy: str, what: str, trust_remote_code: bool = False) -> Generator:
    """The model in a directory or Hub repository. Raises `ConfigError` saying `what` needs which package."""
    with needs(what, "train"):
        from ..inference.loading import open_generator
    return open_generator(policy, trust_remote_code=trust_remote_code)


def each(
    function: Callable[[Sequence[T]], list[R]],
    items: Sequence[T],
    instead: Callable[[Exception], R],
) -> list[R]:
    """The function of all items at once; when it fails, of each alone, with `instead` for those that it fails on."""
    try:
        return function(items)
    except JudgeError:  # a judge that cannot be asked at all: no other item could be judged either
        raise
    except Exception as error:  # an item that a metric fails on must not cost the others
        if len(items) == 1:
            return [instead(error)]
        return [found for item in items for found in each(function, [item], instead)]


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

    @property
    def asks_model(self) -> bool:
        """Whether the judge is a model and not a comparison of words."""
        return self.judge is not None and not is_lexical(self.judge)

    @cached_property
    def rewards(self) -> dict[str, Reward]:
        """The rewards by the names of their results."""
        bound = {} if self.policy is None else {"policy": self.policy}
        loaded = (metrics.load(name, self.judge, self.how, **self.knobs) for name in self.metrics)
        return {name: reward.bind(**bound) for own in loaded for name, reward in own.items()}

    def score(self, batch: Sequence[Raw]) -> dict[int, bytes]:
        """A line for each row, by its number; what a row or a metric fails on is in it. Raises `JudgeError`."""
        return self.score_rows([self.reader(raw) for raw in batch])

    def score_rows(self, rows: Sequence[Row]) -> dict[int, bytes]:
        """The same for rows that were read."""
        read = [row.trajectory for row in rows if row.trajectory is not None]
        asked = {
            name: cut(reward, read)
            for name, reward in self.rewards.items()
            if isinstance(reward, JudgedReward) and reward.judge is not None
        }
        # Row by row, so that a judge that dies on the way leaves whole rows
        items = (item for row in zip(*asked.values(), strict=True) for own in row for item in own)
        pairs = list(dict.fromkeys(item.pair for item in items if item.settled is None))
        judge = self.judge or GroundingJudge()
        said = each(judge.judge_batch, pairs, partial(_silent, judge.name)) if pairs else []
        verdicts = dict(zip(pairs, said, strict=True))
        columns: dict[
            str, Iterator[Score]
        ] = {}  # iterators, since rows that could not be read have no entry in them
        for name, reward in self.rewards.items():
            failed = partial(_failed, reward.name)
            if isinstance(reward, JudgedReward) and name in asked:
                own = list(zip(read, asked[name], strict=True))
                columns[name] = iter(each(partial(_judged, reward, verdicts), own, failed))
            else:
                columns[name] = iter(each(reward.score_batch, read, failed))
        return {row.number: self._line(row, columns) for row in rows}

    def _line(self, row: Row, columns: Mapping[str, Iterator[Score]]) -> bytes:
        known: dict[str, Any] = {"row": row.number, "digest": row.digest}
        trajectory, why = row.trajectory, row.error
        if trajectory is not None:
            scores = {name: next(column) for name, column in columns.items()}
            record = {
                **known,
                **{name: getattr(trajectory, name) for name in _TOLD},
                "scores": {
                    name: {
                        "value": self.rewards[name].measure(one),
                        "why": one.why,
                        "parts": one.parts,
                    }
                    for name, one in scores.items()
                },
                "tools": dict(sorted(tool_counts([trajectory]).items())),
                "evidence": sum(len(step.evidence) for step in trajectory.steps),
                "issues": dict(
                    sorted(Counter(issue.kind for issue in trajectory.all_issues()).items())
                ),
            }
            try:
                return ENCODER.encode(record) + b"\n"
            except (
                TypeError,
                ValueError,
            ) as error:  # a judge's reason may hold half a surrogate pair
                why = f"its scores have no JSON form ({error})"
        return ENCODER.encode({**known, "error": why}) + b"\n"


def cut(reward: JudgedReward, trajectories: Sequence[Trajectory]) -> list[list[Asked]]:
    """The pairs of each trajectory; for one that the reward fails on, a pair that is settled by saying so."""

    def failed(error: Exception) -> list[Asked]:
        return [Asked(0, Pair("", ""), _silent(reward.name, error))]

    return each(reward.pairs_batch, trajectories, failed)


def _judged(
    reward: JudgedReward,
    verdicts: Mapping[Pair, Verdict],
    asked: Sequence[tuple[Trajectory, list[Asked]]],
) -> list[Score]:
    return [
        reward.judged(trajectory, own, [item.settled or verdicts[item.pair] for item in own])
        if own
        else reward.empty(trajectory)
        for trajectory, own in asked
    ]


def _silent(name: str, error: Exception) -> Verdict:
    return Verdict(None, None, f"failed: {told(name, error)}", name)


def _failed(name: str, error: Exception) -> Score:
    return Score(None, f"failed: {told(name, error)}", {"abstained": True})


class Cell(msgspec.Struct, frozen=True):
    """One metric's score in a line; the `parts` are most of the file, and decoded only where they are asked for."""

    value: float | None = None
    why: str = ""
    parts: msgspec.Raw = msgspec.Raw(b"{}")

    @property
    def whole(self) -> Score:
        return Score(self.value, self.why, msgspec.json.decode(self.parts))

    @property
    def abstained(self) -> bool:
        return (
            self.value is None
            and b"abstained" in bytes(self.parts)
            and bool(self.whole.parts.get("abstained"))
        )


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
        own = {name: cell.value for name, cell in self.scores.items()}
        return own | {
            "answered": float(self.answer is not None),
            "calls": float(sum(self.tools.values())),
        }

    @property
    def complete(self) -> bool:
        """Whether the row was read and no judge abstained: such a row is not scored again."""
        return self.error is None and not any(cell.abstained for cell in self.scores.values())


LINE = msgspec.json.Decoder(Line)


def read_scores(path: PathLike, at_most: int | None = None) -> Iterator[Line]:
    """Yield the lines of a `scores.jsonl`, or only the first `at_most`; raises `DataError` for one that is none."""
    for number, data in islice(read_lines(path), at_most):
        try:
            line = LINE.decode(data)
        except ValueError as error:
            raise DataError(f"{path}, line {number}: not a row's scores ({error})") from error
        yield line


class ScoreLog(Ledger):
    """The open file. What an earlier run left in it is found by the row's digest, wherever the row stands now.

    `rows` are those of this run, `places` where their lines begin, kept instead of the lines to save memory.
    """

    def __init__(self, path: Path, resume: bool = True) -> None:
        super().__init__(path, "audit", anew=not resume)
        self.rows, self.places = array("q"), array("q")
        self._known: dict[str, int] = {}
        for place, data in self.read():
            with suppress(ValueError):  # a damaged line: its row is scored again
                line = LINE.decode(data)
                self._known.pop(
                    line.digest, None
                )  # also where the later line abstained: it is asked again
                if line.complete:
                    self._known[line.digest] = place

    def holds(self, row: int, digest: str) -> bool:
        """Whether an earlier run scored this row completely; it then counts as a row of this run."""
        if digest in self._known:
            self.rows.append(row)
            self.places.append(self._known[digest])
        return digest in self._known

    def add(self, lines: Mapping[int, bytes]) -> None:
        self.places.extend(self.append(list(lines.values())))
        self.rows.extend(lines)

    def finish(self, whole: bool) -> None:
        """Put the file in the source's order, each row once; it is replaced only when the new one is complete.

        Where this run saw the `whole` source, lines of other rows are of a source that has changed, and go; otherwise
        they follow at the end.
        """
        if not self._known and self.count == len(self.places):
            return  # a first run, whose lines are in order
        rows, places = set(self.rows), set(self.places)
        others = (
            []
            if whole
            else [place for place in sorted(self._known.values()) if place not in places]
        )
        rest = (line for line in map(self.line, others) if LINE.decode(line).row not in rows)
        self.replace(
            chain(
                (self._numbered(self.rows[at], self.places[at]) for at in np.argsort(self.rows)),
                rest,
            )
        )

    def _numbered(self, row: int, place: int) -> bytes:
        """The line at this place as that of the row, which may stand elsewhere than when it was scored."""
        line = self.line(place)
        if line.startswith(b'{"row":%d,' % row):
            return line
        return msgspec.json.encode({**msgspec.json.decode(line), "row": row}) + b"\n"
