"""What an audit found, summed up from its `scores.jsonl` in one pass: estimates over questions, tools, problems."""

from __future__ import annotations

import math
import os
from array import array
from collections import Counter
from collections.abc import Iterable, Mapping
from hashlib import blake2b
from typing import Any

import msgspec

from ...errors import DataError
from .. import report
from ..stats import NOTHING, Estimate, left_out, mean_ci
from ..suite import ENTROPY, Evaluation, entropy_estimate
from ..tool_use import tool_ratios
from .score_log import Line, read_scores

NAMED = 20
"""How many rows that could not be read, or judged, are named; the others are counted."""
TOOLS = 32
"""The entropy is over this many tools at most, those called most: agents also call tools that do not exist."""
PRIMARY = (
    *("info_think_faithfulness", "info_think_lexical", "think_answer_faithfulness", "think_answer_sub_em"),
    *("citation_validity", "answer_support", "answer_support_lexical"),
)
"""What a row's faithfulness is judged by when the worst are shown: the first of these that was measured."""


class Tools(msgspec.Struct, frozen=True):
    """Calls of each tool, their shares, and the normalised entropy with its bootstrap interval over questions."""

    counts: dict[str, int] = {}
    ratios: dict[str, float] = {}
    entropy: Estimate = NOTHING


class Unread(msgspec.Struct, frozen=True):
    """A row that could not be read."""

    row: int
    error: str


class Unjudged(msgspec.Struct, frozen=True):
    """A score without a verdict."""

    row: int
    metric: str
    why: str


class Audit(msgspec.Struct, frozen=True):
    """What was measured on a file of trajectories.

    Attributes:
        rows: each metric's estimate over questions (a row without one is its own); `answered` and `calls` besides.
        n: trajectories read and scored.
        clean: how many of them were read without any issue.
        errors: rows that could not be read; the first are named in `unread`.
        abstained: rows with a score that no judge gave; the first are named in `unjudged`.
        unasked: trajectories without a question.
        issues: problems by kind, and how often.
        dialects, stop_reasons: how many trajectories of each.
        by_dialect: `rows` for the trajectories of each dialect alone, where there are several.
        tools: which tools were called.
        bounds: what each metric's values can be.
        settings: what was measured and how: source, judge, metrics, normaliser, dialect, version.
        source_error: why the source could not be read to its end, if so.
        usage: what the judge reports of its own work, where it does, over all runs that came to their end.
        finished: `False` in the file of an audit that has not ended.
    """

    rows: dict[str, Estimate] = {}
    n: int = 0
    clean: int = 0
    errors: int = 0
    unread: list[Unread] = []
    abstained: int = 0
    unjudged: list[Unjudged] = []
    unasked: int = 0
    issues: dict[str, int] = {}
    dialects: dict[str, int] = {}
    stop_reasons: dict[str, int] = {}
    by_dialect: dict[str, dict[str, Estimate]] = {}
    tools: Tools = Tools()
    bounds: dict[str, tuple[float, float]] = {}
    settings: dict[str, Any] = {}
    source_error: str = ""
    usage: dict[str, Any] = {}
    finished: bool = True

    @property
    def complete(self) -> bool:
        """Whether every row was read and judged."""
        return not (self.errors or self.abstained or self.source_error)

    @property
    def primary(self) -> str | None:
        """The metric that stands for faithfulness as a whole."""
        return next((name for name in PRIMARY if name in self.rows and self.rows[name].value is not None), None)

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON types; `from_dict` reads it back."""
        found: dict[str, Any] = msgspec.to_builtins(self)
        return found

    @staticmethod
    def from_dict(data: Mapping[str, Any]) -> Audit:
        """Read what `to_dict` gave. Raises `DataError` for anything else."""
        try:
            return msgspec.convert(dict(data), Audit)
        except msgspec.ValidationError as error:
            raise DataError(f"not an audit: {error}") from error

    def __str__(self) -> str:
        parts = (_overview(self), _measured(self), _divided(self), _problems(self), _called(self), _used(self))
        return "\n\n".join(filter(None, parts))


def summarize(
    scores: str | os.PathLike[str],
    rows: int | None = None,
    bounds: Mapping[str, tuple[float, float]] | None = None,
    **known: Any,
) -> Audit:
    """Sum up the first `rows` lines of a `scores.jsonl`.

    Memory grows with the number of rows by a few numbers each, not with their text.

    Args:
        scores: the file.
        rows: how many lines belong to the audit; default all.
        bounds: what each metric's values can be, for the intervals; default [0, 1].
        known: further fields of `Audit`.

    Raises:
        DataError: when the file cannot be read.
    """
    tally = _Tally()
    for line in read_scores(scores, rows):
        tally.add(line)
    found = tally.audit(bounds or {}, known)
    if len(found.dialects) < 2:
        return found
    return msgspec.structs.replace(found, by_dialect=_by_dialect(read_scores(scores, rows), bounds or {}))


def _by_dialect(lines: Iterable[Line], bounds: Mapping[str, tuple[float, float]]) -> dict[str, dict[str, Estimate]]:
    """Each dialect's own estimates, the most frequent dialect first."""
    tallies: dict[str, _Tally] = {}
    for line in lines:
        if line.error is None:
            tallies.setdefault(line.dialect or "unknown", _Tally()).add(line)
    ordered = sorted(tallies.items(), key=lambda item: -len(item[1].questions))
    return {name: tally.audit(bounds, {}).rows for name, tally in ordered}


def choose_rows(scores: str | os.PathLike[str], metric: str | None, count: int, rows: int | None = None) -> list[int]:
    """Which rows to show: half of them those that `metric` says the worst of, the others spread evenly over the file.

    The same file gives the same rows, ascending. Rows that could not be read are not among them.
    """
    found = [(_value(line, metric), line.row) for line in read_scores(scores, rows) if line.error is None]
    if len(found) <= count:
        return [row for _, row in found]
    judged = sorted(pair for pair in found if pair[0] is not None)
    worst = {row for _, row in judged[: (count + 1) // 2]}
    rest = [row for _, row in found if row not in worst]
    wanted = count - len(worst)
    return sorted([*worst, *(rest[i * len(rest) // wanted] for i in range(wanted))])


def _value(line: Line, metric: str | None) -> float | None:
    cell = line.scores.get(metric or "")
    return None if cell is None else cell.value


class _Tally:
    """Everything counted on the way through the file."""

    def __init__(self) -> None:
        self.questions: list[int] = []
        self.numbers: dict[bytes, int] = {}
        self.columns: dict[str, array[float]] = {}
        self.abstentions: Counter[str] = Counter()
        self.calls: Counter[str] = Counter()
        self.called: list[dict[str, int]] = []
        self.same_calls: dict[tuple[tuple[str, int], ...], dict[str, int]] = {}
        self.issues: Counter[str] = Counter()
        self.dialects: Counter[str] = Counter()
        self.endings: Counter[str] = Counter()
        self.unread: list[Unread] = []
        self.unjudged: list[Unjudged] = []
        self.errors = self.abstained = self.unasked = self.clean = 0

    def add(self, line: Line) -> None:
        if line.error is not None:
            self.errors += 1
            self._name(self.unread, Unread(line.row, line.error))
            return
        self.questions.append(self._question(line))
        self.issues.update(line.issues)
        self.clean += not line.issues
        self.dialects[line.dialect or "unknown"] += 1
        self.endings[_ending(line)] += 1
        self.calls.update(line.tools)
        self.called.append(self.same_calls.setdefault(tuple(line.tools.items()), line.tools))
        self._scores(line)

    def audit(self, bounds: Mapping[str, tuple[float, float]], known: Mapping[str, Any]) -> Audit:
        limits = {"calls": (0.0, math.inf), **bounds}
        return Audit(
            rows={name: self._estimate(name, limits.get(name, (0.0, 1.0))) for name in self.columns},
            n=len(self.questions),
            clean=self.clean,
            errors=self.errors,
            unread=self.unread,
            abstained=self.abstained,
            unjudged=self.unjudged,
            unasked=self.unasked,
            issues=dict(self.issues.most_common()),
            dialects=dict(self.dialects.most_common()),
            stop_reasons=dict(self.endings.most_common()),
            tools=self._tools(),
            bounds=dict(bounds),
            **known,
        )

    def _scores(self, line: Line) -> None:
        own = {name: cell.value for name, cell in line.scores.items()}
        own |= {"answered": float(line.answer is not None), "calls": float(sum(line.tools.values()))}
        for name, value in own.items():
            column = self.columns.setdefault(name, array("d"))
            column.extend([math.nan] * (len(self.questions) - 1 - len(column)))
            column.append(math.nan if value is None else value)
        missing = [name for name, cell in line.scores.items() if cell.parts.abstained]
        self.abstentions.update(missing)
        self.abstained += bool(missing)
        for name in missing:
            self._name(self.unjudged, Unjudged(line.row, name, line.scores[name].why))

    def _name(self, names: list[Any], item: Any) -> None:
        if len(names) < NAMED:
            names.append(item)

    def _question(self, line: Line) -> int:
        """A number for the question; a row without one is a question of its own."""
        asked = line.question.strip() if line.question else ""
        self.unasked += not asked
        key = blake2b(asked.encode(), digest_size=12).digest() if asked else b"row %d" % line.row
        return self.numbers.setdefault(key, len(self.numbers))

    def _estimate(self, name: str, bounds: tuple[float, float]) -> Estimate:
        pairs = zip(self.columns[name], self.questions, strict=False)  # a column ends with its last value
        kept = [(value, question) for value, question in pairs if not math.isnan(value)]
        estimate = mean_ci([value for value, _ in kept], [question for _, question in kept], bounds)
        without = len(self.questions) - len(kept) - self.abstentions[name]
        return left_out(estimate, len(kept), without, self.abstentions[name])

    def _tools(self) -> Tools:
        names = [name for name, _ in self.calls.most_common(TOOLS)]
        table = {name: [own.get(name, 0) for own in self.called] for name in names}
        entropy = entropy_estimate(table, self.questions) if names and self.questions else NOTHING
        return Tools(dict(self.calls.most_common()), tool_ratios(self.calls, list(self.calls)), entropy)


def _ending(line: Line) -> str:
    return line.stop_reason or ("answered" if line.answer is not None else "no_answer")


def _overview(audit: Audit) -> str:
    without = f"\nwithout a question: {audit.unasked}, each counts as one of its own" if audit.unasked else ""
    judge = audit.settings.get("judge")
    read = f"{audit.n} {'trajectory' if audit.n == 1 else 'trajectories'}"
    written, ended = _listed(audit.dialects), _listed(audit.stop_reasons)
    return f"{read}, judge {judge}\ndialect: {written}\nended: {ended}{without}"


def _listed(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {count}" for name, count in counts.items())


def _measured(audit: Audit) -> str:
    evaluation = Evaluation(rows={**audit.rows, ENTROPY: audit.tools.entropy}, questions=[], values={}, tool_calls={})
    return report.table(evaluation, names=("estimate", ""))


def _divided(audit: Audit) -> str:
    if not audit.by_dialect:
        return ""
    return report.aligned([["by dialect", *audit.by_dialect], *divided(audit)])


def divided(audit: Audit) -> list[list[str]]:
    """A line for each metric, a cell for each dialect: the estimate with its interval and n."""
    return [[name, *(_cell(own.get(name, NOTHING)) for own in audit.by_dialect.values())] for name in audit.rows]


def _cell(estimate: Estimate) -> str:
    return f"{report.interval(estimate)} (n={estimate.n})"


def _problems(audit: Audit) -> str:
    if not audit.issues:
        return f"read without issues: {audit.clean} of {audit.n}"
    lines = [f"  {count:>7}  {kind}" for kind, count in audit.issues.items()]
    return "\n".join([f"read without issues: {audit.clean} of {audit.n}; issues by kind:", *lines])


def _called(audit: Audit) -> str:
    if not audit.tools.counts:
        return "no tool was called"
    shown = list(audit.tools.counts.items())[:NAMED]
    lines = [f"  {count:>7}  {audit.tools.ratios[name]:6.1%}  {name}" for name, count in shown]
    more = len(audit.tools.counts) - len(shown)
    return "\n".join(["calls by tool:", *lines, *([f"  and {more} more names"] if more else [])])


def _used(audit: Audit) -> str:
    """What a judge that counts its work says of it."""
    counted = audit.usage
    if not counted:
        return ""
    names = {"calls": "calls", "hits": "answers from the cache", "retries": "retries", "failures": "failures"}
    work = ", ".join(f"{counted.get(name, 0):,} {shown}" for name, shown in names.items())
    tokens = f"{counted.get('prompt_tokens', 0):,} + {counted.get('completion_tokens', 0):,} tokens"
    cost = f", cost {counted['cost']:.4f}" if counted.get("cost") else ""
    return f"judge: {work}; {tokens}{cost}"
