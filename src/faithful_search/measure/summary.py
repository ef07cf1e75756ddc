"""What an audit found, summed up from its `scores.jsonl` in one pass: estimates over questions, tools, problems."""

from __future__ import annotations

import math
import os
from array import array
from collections import Counter
from collections.abc import Mapping
from hashlib import blake2b
from typing import Any

import msgspec

from ..errors import DataError
from .evaluation import ENTROPY, Evaluation, entropy_estimate
from .metrics import WARNINGS
from .report.tables import aligned, interval, table
from .scores import Line, read_scores
from .stats import NOTHING, Estimate, left_out, mean_ci
from .tool_use import tool_ratios

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
        bare: how many of them have neither a call nor evidence.
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
    bare: int = 0
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
        rows = {**self.rows, ENTROPY: self.tools.entropy}
        measured = table(Evaluation(rows=rows, questions=[], values={}, tool_calls={}), names=("estimate", ""))
        apart = aligned([["by dialect", *self.by_dialect], *self.divided()]) if self.by_dialect else ""
        said = "\n".join(self.warnings)
        parts = (self._overview(), measured, said, apart, self._problems(), self._calls(), self._usage())
        return "\n\n".join(filter(None, parts))

    @property
    def warnings(self) -> list[str]:
        """What must be known to read the numbers: sentences, to stand where they stand."""
        found = [f"{name} {why}" for name, why in WARNINGS.items() if self.rows.get(name, NOTHING).n]
        if self.bare * 2 > self.n:
            found.insert(0, f"no searches found in {self.bare} of {self.n} rows: is this the right column?")
        return found

    def divided(self) -> list[list[str]]:
        """A line for each metric, a cell for each dialect: the estimate with its interval and n."""
        columns = self.by_dialect.values()
        cells = {name: [own.get(name, NOTHING) for own in columns] for name in self.rows}
        return [[name, *(f"{interval(cell)} (n={cell.n})" for cell in own)] for name, own in cells.items()]

    def _overview(self) -> str:
        read = f"{self.n} {'trajectory' if self.n == 1 else 'trajectories'}, judge {self.settings.get('judge')}"
        without = f"\nwithout a question: {self.unasked}, each counts as one of its own" if self.unasked else ""
        return f"{read}\ndialect: {_listed(self.dialects)}\nended: {_listed(self.stop_reasons)}{without}"

    def _problems(self) -> str:
        read = f"read without issues: {self.clean} of {self.n}"
        lines = [f"  {count:>7}  {kind}" for kind, count in self.issues.items()]
        return "\n".join([f"{read}; issues by kind:", *lines]) if lines else read

    def _calls(self) -> str:
        counts, ratios = self.tools.counts, self.tools.ratios
        if not counts:
            return "no tool was called"
        lines = [f"  {counts[name]:>7}  {ratios[name]:6.1%}  {name}" for name in list(counts)[:NAMED]]
        lines += [f"  and {len(counts) - NAMED} more names"] if len(counts) > NAMED else []
        return "\n".join(["calls by tool:", *lines])

    def _usage(self) -> str:
        """Requests, tokens and cost, where the judge counts them."""
        used = self.usage
        if not used:
            return ""
        names = {"calls": "calls", "hits": "answers from the cache", "retries": "retries", "failures": "failures"}
        work = ", ".join(f"{used.get(name, 0):,} {shown}" for name, shown in names.items())
        tokens = f"{used.get('prompt_tokens', 0):,} + {used.get('completion_tokens', 0):,} tokens"
        return f"judge: {work}; {tokens}" + (f", cost {used['cost']:.4f}" if used.get("cost") else "")


def _listed(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {count}" for name, count in counts.items())


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
    tally = _Tally(bounds or {})
    for line in read_scores(scores, rows):
        tally.add(line)
    found = tally.audit(known)
    if len(found.dialects) < 2:
        return found
    apart = {name: _Tally(bounds or {}) for name in found.dialects}  # the most frequent first
    for line in read_scores(scores, rows):
        if line.error is None:
            apart[line.dialect or "unknown"].add(line)
    return msgspec.structs.replace(found, by_dialect={name: own.estimates() for name, own in apart.items()})


def choose_rows(scores: str | os.PathLike[str], metric: str | None, count: int, rows: int | None = None) -> list[int]:
    """Which rows to show: half of them those that `metric` says the worst of, the others spread evenly over the file.

    The same file gives the same rows, ascending. Rows that could not be read are not among them.
    """
    lines = (line for line in read_scores(scores, rows) if line.error is None)
    found = [(line.scores[metric].value if metric in line.scores else None, line.row) for line in lines]
    if len(found) <= count:
        return [row for _, row in found]
    judged = sorted((value, row) for value, row in found if value is not None)
    worst = {row for _, row in judged[: (count + 1) // 2]}
    rest = [row for _, row in found if row not in worst]
    wanted = count - len(worst)
    return sorted([*worst, *(rest[place * len(rest) // wanted] for place in range(wanted))])


class _Tally:
    """Everything counted on the way through the file."""

    def __init__(self, bounds: Mapping[str, tuple[float, float]]) -> None:
        self.bounds = bounds
        self.questions: list[int] = []  # a number for each row's question
        self.numbers: dict[bytes, int] = {}
        self.columns: dict[str, array[float]] = {}  # values by metric; NaN where there is none
        self.abstentions: Counter[str] = Counter()
        self.called: list[dict[str, int]] = []
        self.same_calls: dict[tuple[tuple[str, int], ...], dict[str, int]] = {}  # most rows share one of a few
        self.issues: Counter[str] = Counter()
        self.dialects: Counter[str] = Counter()
        self.endings: Counter[str] = Counter()
        self.unread: list[Unread] = []
        self.unjudged: list[Unjudged] = []
        self.errors = self.abstained = self.unasked = self.clean = self.bare = 0

    def add(self, line: Line) -> None:
        if line.error is not None:
            self.errors += 1
            if len(self.unread) < NAMED:
                self.unread.append(Unread(line.row, line.error))
            return
        # A digest in the place of the question's text; a row without a question is a question of its own
        asked = line.question.strip() if line.question else ""
        key = blake2b(asked.encode(), digest_size=12).digest() if asked else b"row %d" % line.row
        self.questions.append(self.numbers.setdefault(key, len(self.numbers)))
        self.unasked += not asked
        self.issues.update(line.issues)
        self.clean += not line.issues
        self.bare += not line.tools and not line.evidence
        self.dialects[line.dialect or "unknown"] += 1
        self.endings[line.stop_reason or ("answered" if line.answer is not None else "no_answer")] += 1
        self.called.append(self.same_calls.setdefault(tuple(line.tools.items()), line.tools))
        values = {name: cell.value for name, cell in line.scores.items()}
        values |= {"answered": float(line.answer is not None), "calls": float(sum(line.tools.values()))}
        for name, value in values.items():
            column = self.columns.setdefault(name, array("d"))
            column.extend([math.nan] * (len(self.questions) - 1 - len(column)))
            column.append(math.nan if value is None else value)
        missing = [name for name, cell in line.scores.items() if cell.parts.abstained]
        self.abstentions.update(missing)
        self.abstained += bool(missing)
        named = [Unjudged(line.row, name, line.scores[name].why) for name in missing]
        self.unjudged = [*self.unjudged, *named][:NAMED]

    def audit(self, known: Mapping[str, Any]) -> Audit:
        return Audit(
            rows=self.estimates(),
            n=len(self.questions),
            clean=self.clean,
            bare=self.bare,
            errors=self.errors,
            unread=self.unread,
            abstained=self.abstained,
            unjudged=self.unjudged,
            unasked=self.unasked,
            issues=dict(self.issues.most_common()),
            dialects=dict(self.dialects.most_common()),
            stop_reasons=dict(self.endings.most_common()),
            tools=self._tools(),
            bounds=dict(self.bounds),
            **known,
        )

    def estimates(self) -> dict[str, Estimate]:
        """Each metric's mean over questions."""
        limits = {"calls": (0.0, math.inf), **self.bounds}
        return {name: self._estimate(name, limits.get(name, (0.0, 1.0))) for name in self.columns}

    def _estimate(self, name: str, bounds: tuple[float, float]) -> Estimate:
        pairs = zip(self.columns[name], self.questions, strict=False)  # a column ends with its last value
        kept = [(value, question) for value, question in pairs if not math.isnan(value)]
        estimate = mean_ci([value for value, _ in kept], [question for _, question in kept], bounds)
        without = len(self.questions) - len(kept) - self.abstentions[name]
        return left_out(estimate, len(kept), without, self.abstentions[name])

    def _tools(self) -> Tools:
        calls: Counter[str] = Counter()
        for own in self.called:
            calls.update(own)
        table = {name: [own.get(name, 0) for own in self.called] for name, _ in calls.most_common(TOOLS)}
        entropy = entropy_estimate(table, self.questions) if table else NOTHING
        return Tools(dict(calls.most_common()), tool_ratios(calls, list(calls)), entropy)
