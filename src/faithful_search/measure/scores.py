"""Rows of a file to lines of `scores.jsonl`, and the file itself.

```
Row ─ RowScorer ─> JSON line ─ ScoreLog ─> scores.jsonl ─ read_scores ─> Line
```

While an audit runs, the file only grows, so that no judge is asked twice; a later line of a row
replaces the earlier ones. When the audit ends, the file is put in the order of the source, with one
line for each row.
"""

from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property, partial
from itertools import chain, islice
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from ..dialects.handing_in import ends_in
from ..errors import DataError, needs
from ..evidence import notes_of
from ..inference.base import Generator
from ..json_lines import read_lines
from ..judges import GroundingJudge, Judge, Pair, Verdict
from ..reading.files import PathLike
from ..reading.rows import READER, Raw, Reader, Row
from ..rewards import JudgedReward, Reward, Score
from ..rewards.base import StepPair
from ..scoring import each, failed_score, scores_of
from ..trajectory import Trajectory
from ..wire.failures import FailureLog
from . import metrics
from .behaviour import tool_counts
from .ledger import Ledger
from .settings import How

SCORES = "scores.jsonl"
ENCODER = msgspec.json.Encoder(
    enc_hook=lambda value: value.tolist() if hasattr(value, "tolist") else str(value)
)
"""Writes numbers and arrays of numpy as Python's, whatever else JSON has no form for as text."""
TRAJECTORY_FIELDS = (
    "id",
    "question",
    "answer",
    "answers",
    "dialect",
    "stop_reason",
    "evidence_from",
)
"""The fields of a trajectory that its line repeats."""
_failures = FailureLog(__name__)


def open_policy(policy: str, feature: str, trust_remote_code: bool = False) -> Generator:
    """Load the model in a directory or Hub repository.

    Raises `ConfigError` where packages are missing: it names them, and the `feature` that needs
    them.
    """
    with needs(feature, "train"):
        from ..inference.loading import open_generator
    return open_generator(policy, trust_remote_code=trust_remote_code)


@dataclass(frozen=True)
class RowScorer:
    """Scores rows by several metrics, a batch at a time.

    The judge is asked about the pairs of all metrics and all rows of a batch at once, and once
    about equal pairs. This is why rows are not scored by one `Scoring` for each metric.

    It is pickled for the processes that score; each of them makes its own rewards when its first
    batch comes.

    Args:
        metrics: names of `measure.metrics`.
        judge: for the metrics that ask one; by default words are compared.
        how: the normaliser that compares answers.
        policy: the model that wrote the rows, for metrics that ask it.
        reader: makes trajectories of the rows.
        knobs: fields of the metrics' rewards, by name.
    """

    metrics: tuple[str, ...]
    judge: Judge | None = None
    how: How = "unicode"
    policy: Generator | None = None
    reader: Reader = READER
    knobs: Mapping[str, Any] = field(default_factory=dict)

    @property
    def asks_model(self) -> bool:
        """Whether the judge is a model and not a comparison of words."""
        return self.judge is not None and not self.judge.lexical

    @cached_property
    def rewards(self) -> dict[str, Reward]:
        """The rewards by the names of their results."""
        bound = {} if self.policy is None else {"policy": self.policy}
        rewards: dict[str, Reward] = {}
        for metric in self.metrics:
            for name, reward in metrics.load(metric, self.judge, self.how, **self.knobs).items():
                rewards[name] = reward.bind(**bound)
        return rewards

    def score(self, batch: Sequence[Raw]) -> dict[int, bytes]:
        """A JSON line for each row, by the row's number.

        A row that cannot be read has a line that says why, and a metric that fails on a row has no
        value there. Raises `JudgeError` when the judge cannot be asked at all.
        """
        return self.score_rows([self.reader(raw) for raw in batch])

    def score_rows(self, rows: Sequence[Row]) -> dict[int, bytes]:
        """`score`, for rows that have been read."""
        readable = [row.number for row in rows if row.trajectory is not None]
        trajectories = [row.trajectory for row in rows if row.trajectory is not None]
        pairs = {
            name: pairs_of_each(reward, trajectories)
            for name, reward in self.rewards.items()
            if isinstance(reward, JudgedReward) and reward.judge is not None
        }
        verdicts = self._verdicts(pairs)
        scores: dict[int, dict[str, Score]] = {number: {} for number in readable}
        for name, reward in self.rewards.items():
            if isinstance(reward, JudgedReward) and name in pairs:
                column = _judged(reward, trajectories, pairs[name], verdicts)
            else:
                column = scores_of(reward, trajectories)
            for number, score in zip(readable, column, strict=True):
                scores[number][name] = score
        return {row.number: self._line(row, scores.get(row.number, {})) for row in rows}

    def _verdicts(self, pairs: Mapping[str, list[list[StepPair]]]) -> dict[Pair, Verdict]:
        """The judge's verdict on each different pair; `pairs` are by metric, then by trajectory.

        The judge is asked trajectory by trajectory, so that one that dies on the way leaves whole
        rows.
        """
        open_pairs: dict[Pair, None] = {}
        for pairs_of_trajectory in zip(*pairs.values(), strict=True):
            for step_pair in chain.from_iterable(pairs_of_trajectory):
                if step_pair.settled is None:
                    open_pairs[step_pair.pair] = None
        if not open_pairs:
            return {}
        judge = self.judge or GroundingJudge()
        verdicts = each(judge.judge_batch, list(open_pairs), partial(_no_verdict, judge.name))
        return dict(zip(open_pairs, verdicts, strict=True))

    def _line(self, row: Row, scores: Mapping[str, Score]) -> bytes:
        place: dict[str, Any] = {"row": row.number, "digest": row.digest}
        trajectory = row.trajectory
        if trajectory is None:
            return ENCODER.encode({**place, "error": row.error}) + b"\n"
        issues = Counter(issue.kind for issue in trajectory.all_issues())
        record = {
            **place,
            **{name: getattr(trajectory, name) for name in TRAJECTORY_FIELDS},
            "taken": row.taken,
            "ends_in": ends_in(trajectory),
            "scores": {name: self._cell(name, score) for name, score in scores.items()},
            "tools": dict(sorted(tool_counts([trajectory]).items())),
            "evidence": sum(len(step.evidence) for step in trajectory.steps),
            "notes": notes_of(trajectory),
            "issues": dict(sorted(issues.items())),
        }
        try:
            return ENCODER.encode(record) + b"\n"
        except (TypeError, ValueError) as error:  # a judge's reason may hold half a surrogate pair
            why = f"its scores have no JSON form ({error})"
            return ENCODER.encode({**place, "error": why}) + b"\n"

    def _cell(self, name: str, score: Score) -> dict[str, Any]:
        return {
            "value": self.rewards[name].measure(score),
            "why": metrics.reason(name, score),
            "parts": score.parts,
        }


def pairs_of_each(reward: JudgedReward, trajectories: Sequence[Trajectory]) -> list[list[StepPair]]:
    """The pairs of each trajectory. One that the reward fails on has a single pair, which is
    settled by a verdict that abstains and says why.
    """

    def failed(error: Exception) -> list[StepPair]:
        return [StepPair(step=0, pair=Pair("", ""), settled=_no_verdict(reward.name, error))]

    return each(reward.pairs_batch, trajectories, failed)


def _judged(
    reward: JudgedReward,
    trajectories: Sequence[Trajectory],
    pairs: Sequence[list[StepPair]],
    verdicts: Mapping[Pair, Verdict],
) -> list[Score]:
    """The scores of trajectories with these pairs, whose open ones have these verdicts."""
    scores: list[Score] = []
    for trajectory, step_pairs in zip(trajectories, pairs, strict=True):
        try:
            if step_pairs:
                answers = [pair.settled or verdicts[pair.pair] for pair in step_pairs]
                score = reward.judged(trajectory, step_pairs, answers)
            else:
                score = reward.empty(trajectory)
        except Exception as error:  # a trajectory that a metric fails on must not cost the others
            score = failed_score(reward.name, error)
        scores.append(score)
    return scores


def _no_verdict(name: str, error: Exception) -> Verdict:
    return Verdict(None, None, f"failed: {_failures.add(name, error)}", name)


class Cell(msgspec.Struct, frozen=True):
    """One metric's score in a line. Its `parts` are most of the file, so they are decoded only
    where `score` is asked for.
    """

    value: float | None = None
    why: str = ""
    parts: msgspec.Raw = msgspec.Raw(b"{}")

    @property
    def score(self) -> Score:
        return Score(self.value, self.why, msgspec.json.decode(self.parts))

    @property
    def abstained(self) -> bool:
        if self.value is not None or not self.has_part("abstained"):
            return False
        return bool(self.score.parts.get("abstained"))

    def has_part(self, name: str) -> bool:
        """Whether the score, or something within it, has a part of this name. Decodes nothing."""
        return f'"{name}":'.encode() in bytes(self.parts)


class Line(msgspec.Struct, frozen=True):
    """One line of `scores.jsonl`, read back. `error` says why a row has no scores; it is `None` for
    one that was scored.
    """

    row: int
    digest: str
    error: str | None = None
    id: str = ""
    question: str | None = None
    answer: str | None = None
    answers: tuple[str, ...] = ()
    stop_reason: str | None = None
    dialect: str = ""
    evidence_from: str = ""
    scores: dict[str, Cell] = {}
    tools: dict[str, int] = {}
    evidence: int = 0
    notes: dict[str, int] = {}
    issues: dict[str, int] = {}
    taken: dict[str, str] = {}
    ends_in: str = ""

    @property
    def values(self) -> dict[str, float | None]:
        """The value of each metric, and two more: `answered` (0 or 1) and the count of `calls`."""
        values = {name: cell.value for name, cell in self.scores.items()}
        return values | {
            "answered": float(self.answer is not None),
            "calls": float(sum(self.tools.values())),
        }

    @property
    def complete(self) -> bool:
        """Whether the row was read and no judge abstained: such a row is not scored again."""
        return self.error is None and not any(cell.abstained for cell in self.scores.values())


LINE = msgspec.json.Decoder(Line)


def read_scores(path: PathLike, at_most: int | None = None) -> Iterator[Line]:
    """Yield the lines of a `scores.jsonl`, or the first `at_most` of them. Raises `DataError` for a
    line that holds no row's scores.
    """
    for number, data in islice(read_lines(path), at_most):
        try:
            line = LINE.decode(data)
        except ValueError as error:
            raise DataError(f"{path}, line {number}: not a row's scores ({error})") from error
        yield line


class ScoreLog(Ledger):
    """The open `scores.jsonl` of an audit.

    A row that an earlier run scored is recognised by its digest, wherever it stands in the source
    now. `rows` are the rows of this run, and `places` the offsets in the file at which their lines
    begin: the lines themselves stay on disk.
    """

    def __init__(self, path: Path, resume: bool = True) -> None:
        super().__init__(path, "audit", anew=not resume)
        self.rows = array("q")
        self.places = array("q")
        self._earlier: dict[str, int] = {}  # places of the lines of earlier runs, by digest
        for place, data in self.read():
            with suppress(ValueError):  # a damaged line: its row is scored again
                line = LINE.decode(data)
                # a later line counts, also where its judge abstained: the row is scored again
                self._earlier.pop(line.digest, None)
                if line.complete:
                    self._earlier[line.digest] = place

    @property
    def scored_before(self) -> int:
        """How many rows earlier runs scored completely."""
        return len(self._earlier)

    def scored_but_not_in(self, rows: Iterable[Raw]) -> set[str]:
        """The digests of rows that earlier runs scored and that are none of these."""
        missing = set(self._earlier)
        for raw in rows:
            missing.discard(raw.digest)
            if not missing:
                break
        return missing

    def reuse(self, row: int, digest: str) -> bool:
        """Whether an earlier run scored this row completely. If so, its line is one of this run."""
        if digest not in self._earlier:
            return False
        self.rows.append(row)
        self.places.append(self._earlier[digest])
        return True

    def add(self, lines: Mapping[int, bytes]) -> None:
        """Append the lines, which are by the numbers of their rows."""
        self.places.extend(self.append(list(lines.values())))
        self.rows.extend(lines)

    def finish(self, whole: bool) -> None:
        """Put the file in the source's order, with one line for each row. The file is replaced only
        when the new one is complete.

        Where this run saw the `whole` source, lines of other rows are left out: they are of a
        source that has changed since. Otherwise they follow at the end.
        """
        first_run = not self._earlier and self.count == len(self.places)
        if first_run:
            return  # its lines are in order
        self.replace(chain(self._lines_of_this_run(), () if whole else self._other_lines()))

    def _lines_of_this_run(self) -> Iterator[bytes]:
        for index in np.argsort(self.rows):
            yield self._numbered(self.rows[index], self.places[index])

    def _other_lines(self) -> Iterator[bytes]:
        rows = set(self.rows)
        places = set(self.places)
        for place in sorted(self._earlier.values()):
            if place in places:
                continue
            line = self.line(place)
            if LINE.decode(line).row not in rows:
                yield line

    def _numbered(self, row: int, place: int) -> bytes:
        """The line at this place with the row's present number, which may have changed since it was
        scored.
        """
        line = self.line(place)
        if line.startswith(b'{"row":%d,' % row):
            return line
        return msgspec.json.encode({**msgspec.json.decode(line), "row": row}) + b"\n"
