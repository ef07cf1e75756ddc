"""Rows in, scores out: what one process of an audit does with a batch of rows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any, TypeVar

import msgspec

from ..errors import ConfigError, JudgeError
from ..inference.base import Generator
from ..judges import Judge, Pair, Request, Verdict, Writer, is_lexical
from ..rewards import Reward, Score
from ..rewards.judged import JudgedReward
from . import metrics
from .behaviour import tool_counts
from .failures import told
from .files import Raw
from .rows import READER, Reader, Row
from .settings import How

T = TypeVar("T")
R = TypeVar("R")
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
    """The function of all items at once; when it fails, of each alone, with `instead` for those that it fails on.

    So an item that a metric cannot score costs the others nothing.
    """
    try:
        return function(items)
    except Exception as error:
        if len(items) == 1:
            return [instead(error)]
        return [found for item in items for found in each(function, [item], instead)]


class Batch(msgspec.Struct, frozen=True):
    """The lines of some rows, in their order, and how many of them abstained or could not be read.

    `refusal` is what a judge said that could not be asked at all.
    """

    rows: list[int]
    lines: list[bytes]
    abstained: int
    unread: int
    refusal: str = ""


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
    def shared(self) -> _Shared | None:
        """The judge, where it is a model and not a comparison of words."""
        return None if self.judge is None or is_lexical(self.judge) else _Shared(self.judge)

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
        records = [self._record(row, columns) for row in rows]
        lines = [_line(record) for record in records]
        cells = [record.get("scores", {}).values() for record in records]
        abstained = sum(any(cell["parts"].get("abstained") for cell in own) for own in cells)
        unread = sum("error" in record for record in records)
        return Batch([row.number for row in rows], lines, abstained, unread, self.shared.refusal if self.shared else "")

    def _record(self, row: Row, columns: Mapping[str, Iterator[Score]]) -> dict[str, Any]:
        """The row's line; takes its own scores off the columns."""
        trajectory = row.trajectory
        if trajectory is None:
            return {"row": row.number, "digest": row.digest, "error": row.error}
        scores = {name: (self.rewards[name], next(column)) for name, column in columns.items()}
        return {
            "row": row.number,
            "digest": row.digest,
            **{name: getattr(trajectory, name) for name in _TOLD},
            "scores": {
                name: {"value": reward.measure(score), "why": score.why, "parts": score.parts}
                for name, (reward, score) in scores.items()
            },
            "tools": dict(sorted(tool_counts([trajectory]).items())),
            "evidence": sum(len(step.evidence) for step in trajectory.steps),
            "issues": dict(sorted(Counter(issue.kind for issue in trajectory.all_issues()).items())),
        }


def _failed(name: str, error: Exception) -> Score:
    return Score(None, f"failed: {told(name, error)}", {"abstained": True})


def _line(record: dict[str, Any]) -> bytes:
    try:
        return ENCODER.encode(record) + b"\n"
    except (TypeError, ValueError) as error:  # a judge's reason may hold half a surrogate pair
        record["error"] = f"its scores have no JSON form ({error})"
        return ENCODER.encode({name: record[name] for name in ("row", "digest", "error")}) + b"\n"


class _Shared:
    """A judge that remembers what it said about the batch at hand, since several metrics ask about the same pairs.

    `refusal`: why it could not be asked.
    """

    def __init__(self, judge: Judge) -> None:
        self.name = judge.name
        self._judge = judge
        if isinstance(judge, Writer):  # rewards look for `write_batch`: what only judges must not have it
            self.write_batch = partial(self._write, judge)
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

    def _write(self, writer: Writer, requests: Sequence[Request]) -> list[str | None]:
        asked = {str(request): request for request in requests}  # `Request` cannot be hashed
        new = {key: request for key, request in asked.items() if key not in self._texts}
        if new:
            self._texts.update(zip(new, writer.write_batch(list(new.values())), strict=True))
        return [self._texts[str(request)] for request in requests]
