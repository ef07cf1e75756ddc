"""Rows in, scores out: what one process of an audit does with a batch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import msgspec

from ...errors import JudgeError
from ...inference.base import Generator
from ...judges import Judge, Pair, Request, Verdict, Writer, is_lexical
from ...rewards import Reward, Score
from ...rewards.judged import JudgedReward
from ...trajectory import Trajectory
from .. import metrics as metric_names
from ..failures import told
from ..tool_use import tool_counts
from .sources import Raw, Row, read_row


@dataclass(frozen=True)
class Plan:
    """What is measured, and how; pickled it travels to the processes that do it. `usual` as in `parse_row`."""

    metrics: tuple[str, ...]
    judge: Judge | None = None
    how: metric_names.How = "squad"
    dialect: str | None = None
    text_column: str | None = None
    usual: str | None = None
    policy: Generator | None = None

    @property
    def asks_a_model(self) -> bool:
        """Whether a judge is asked that is more than a comparison of words."""
        return self.judge is not None and not is_lexical(self.judge)

    def rewards(self, judge: Judge | None = None) -> dict[str, Reward]:
        """The rewards by the names of their results; `judge` stands in for the plan's."""
        found: dict[str, Reward] = {}
        for name in self.metrics:
            found |= metric_names.load(name, judge or self.judge, self.how)
        bound = {} if self.policy is None else {"policy": self.policy}
        return {name: reward.bind(**bound) for name, reward in found.items()}


class Batch(msgspec.Struct, frozen=True):
    """The lines of some rows, in their order, and how many of them abstained or could not be read.

    `refusal` is what a judge said that could not be asked at all.
    """

    rows: list[int]
    lines: list[bytes]
    abstained: int
    unread: int
    refusal: str = ""


class Scorer:
    """Scores batches of rows. A judge is asked about all pairs of a batch at once, each different one once."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.shared = _shared(plan.judge) if plan.judge is not None and plan.asks_a_model else None
        self.rewards = plan.rewards(self.shared)
        self._encoder = msgspec.json.Encoder(enc_hook=_plain)

    def score(self, batch: Sequence[Raw]) -> Batch:
        """One line a row. Raises nothing that a row or a metric did."""
        rows = [read_row(raw, self.plan.dialect, self.plan.text_column, self.plan.usual) for raw in batch]
        read = [row.trajectory for row in rows if row.trajectory is not None]
        if self.shared is not None:
            self._ask(self.shared, read)
        columns = {name: iter(_column(reward, read)) for name, reward in self.rewards.items()}
        records = [self._record(row, columns) for row in rows]
        return Batch(
            [row.number for row in rows],
            [self._line(record) for record in records],
            sum(any(_abstained(cell) for cell in record.get("scores", {}).values()) for record in records),
            sum("error" in record for record in records),
            self.shared.refusal if self.shared is not None else "",
        )

    def _ask(self, shared: _Shared, trajectories: Sequence[Trajectory]) -> None:
        """Ask at once what the metrics will ask, so far as they can tell beforehand.

        Row by row, so that a judge that dies on the way leaves whole rows.
        """
        shared.forget()
        judged = [r for r in self.rewards.values() if isinstance(r, JudgedReward) and r.judge is shared]
        with suppress(Exception):  # which row and metric it was shows when they are scored
            rows = zip(*[reward.pairs_batch(trajectories) for reward in judged], strict=True)
            asked = (item for row in rows for own in row for item in own)
            shared.learn([item.pair for item in asked if item.settled is None])

    def _record(self, row: Row, columns: Mapping[str, Iterator[Score]]) -> dict[str, Any]:
        """The row's line; takes its own scores off the columns."""
        trajectory = row.trajectory
        if trajectory is None:
            return {"row": row.number, "digest": row.digest, "error": row.error}
        return {
            "row": row.number,
            "digest": row.digest,
            "id": trajectory.id,
            "question": trajectory.question,
            "answer": trajectory.answer,
            "answers": trajectory.answers,
            "dialect": trajectory.dialect,
            "stop_reason": trajectory.stop_reason,
            "scores": {name: self._cell(name, next(column)) for name, column in columns.items()},
            "tools": dict(sorted(tool_counts([trajectory]).items())),
            "issues": dict(sorted(Counter(issue.kind for issue in trajectory.all_issues()).items())),
        }

    def _cell(self, name: str, score: Score) -> dict[str, Any]:
        return {"value": self.rewards[name].measure(score), "why": score.why, "parts": score.parts}

    def _line(self, record: dict[str, Any]) -> bytes:
        try:
            return self._encoder.encode(record) + b"\n"
        except (TypeError, ValueError, msgspec.MsgspecError) as error:
            record["error"] = f"its scores have no JSON form ({error})"
            return self._encoder.encode({name: record[name] for name in ("row", "digest", "error")}) + b"\n"


class _Shared:
    """A judge that remembers what it said about the batch at hand. `refusal` is why it could not be asked, at last."""

    def __init__(self, judge: Judge) -> None:
        self.refusal = ""
        self._judge = judge
        self._verdicts: dict[Pair, Verdict] = {}
        self._texts: dict[tuple[str, tuple[tuple[str, str], ...]], str | None] = {}

    @property
    def name(self) -> str:
        return self._judge.name

    def forget(self) -> None:
        """Make room for the next batch."""
        self.refusal = ""
        self._verdicts, self._texts = {}, {}

    def learn(self, pairs: Sequence[Pair]) -> None:
        """Ask about the pairs that are new, all at once."""
        new = [pair for pair in dict.fromkeys(pairs) if pair not in self._verdicts]
        try:
            verdicts = self._judge.judge_batch(new) if new else []
        except JudgeError as error:
            self.refusal = str(error)
            verdicts = [Verdict(None, None, str(error), self.name)] * len(new)
        self._verdicts.update(zip(new, verdicts, strict=True))

    def judge_batch(self, pairs: Sequence[Pair]) -> list[Verdict]:
        self.learn(pairs)
        return [self._verdicts[pair] for pair in pairs]


class _SharedWriter(_Shared):
    """The same for a judge that also writes."""

    def write_batch(self, requests: Sequence[Request]) -> list[str | None]:
        keys = [(request.prompt, tuple(sorted(request.fields.items()))) for request in requests]
        new = {key: request for key, request in zip(keys, requests, strict=True) if key not in self._texts}
        if new:
            texts = self._judge.write_batch(list(new.values()))  # type: ignore[attr-defined]
            self._texts.update(zip(new, texts, strict=True))
        return [self._texts[key] for key in keys]


def _shared(judge: Judge) -> _Shared:
    return _SharedWriter(judge) if isinstance(judge, Writer) else _Shared(judge)


def _column(reward: Reward, trajectories: Sequence[Trajectory]) -> list[Score]:
    """The batch's scores; when one of them fails, each by itself, and the one that fails has none."""
    try:
        return reward.score_batch(trajectories)
    except Exception:  # a metric that fails on a row must not cost the others
        return [_alone(reward, trajectory) for trajectory in trajectories]


def _alone(reward: Reward, trajectory: Trajectory) -> Score:
    try:
        return reward.score_batch([trajectory])[0]
    except Exception as error:
        return Score(None, f"failed: {told(reward.name, error)}", {"abstained": True})


def _abstained(cell: dict[str, Any]) -> bool:
    return bool(cell["parts"].get("abstained"))


def _plain(value: Any) -> Any:
    return value.item() if hasattr(value, "item") else str(value)
