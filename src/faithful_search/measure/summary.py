"""What an audit found, summed up from its `scores.jsonl` in one pass: estimates over questions, tools, problems."""

import math
from array import array
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from hashlib import blake2b
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from .behaviour import tool_ratios
from .evaluation import ENTROPY, Evaluation, Measured, entropy_estimate
from .files import PathLike
from .report import aligned, interval, sentences, table
from .scores import Line, read_scores
from .stats import NOTHING, Estimate, left_out, mean_ci
from .writing import filled

SUMMARY = "audit.json"
NAMED = 20
"""How many rows that could not be read, or judged, are named; the others are counted."""
TOOLS = 32
"""The entropy is over this many tools at most, those called most: agents also call tools that do not exist."""
PRIMARY = (
    *("info_think_faithfulness", "info_think_lexical", "think_answer_faithfulness", "think_answer_sub_em"),
    *("citation_validity", "answer_support", "answer_support_lexical"),
)
"""What a row's faithfulness is judged by when the worst are shown: the first of these that was measured."""
_USAGE = {"calls": "calls", "hits": "answers from the cache", "retries": "retries", "failures": "failures"}


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


class Audit(Measured, msgspec.Struct, frozen=True):
    """What was measured on a file of trajectories.

    Attributes:
        rows: each metric's estimate over questions (a row without one is its own); `answered` and `calls` besides.
        n: trajectories read and scored; `clean` ones without any issue, `bare` ones with neither a call nor evidence,
            `unasked` ones without a question.
        evidence: passages of evidence in them; those that a corpus does not hold are counted in `issues` alone.
        errors: rows that could not be read; the first are named in `unread`.
        abstained: rows with a score that no judge gave; the first are named in `unjudged`.
        issues, dialects, stop_reasons: how many of each.
        by_dialect: `rows` for the trajectories of each dialect alone, where there are several.
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
    evidence: int = 0
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

    def __str__(self) -> str:
        rows = {**self.rows, ENTROPY: self.tools.entropy}
        text = filled(
            __package__,
            "report/audit.txt.j2",
            audit=self,
            sentences=sentences(self),
            measured=table(Evaluation(rows, questions=[], values={}, tool_calls={}), names=("estimate", "")),
            divided=aligned([["by dialect", *self.by_dialect], *self.divided()]),
            named=NAMED,
            usage=_USAGE,
        )
        return text.rstrip("\n")

    def divided(self) -> list[list[str]]:
        """A line for each metric, a cell for each dialect: the estimate with its interval and n."""
        cells = {name: [own.get(name, NOTHING) for own in self.by_dialect.values()] for name in self.rows}
        return [[name, *(f"{interval(cell)} (n={cell.n})" for cell in own)] for name, own in cells.items()]

    def notes(self) -> list[str]:
        """What readers should know about the judge, for example that another model answered."""
        return [f"judge: {what} ({count:,} times)" for what, count in self.usage.get("notes", {}).items()]


def read_audit(folder: Path) -> Audit:
    """The `audit.json` of a folder. Raises `OSError` or `ValueError` where it cannot be read, or is not one."""
    return Audit.from_dict(msgspec.json.decode((folder / SUMMARY).read_bytes()))


def summarize(lines: Iterable[Line], bounds: Mapping[str, tuple[float, float]], **known: Any) -> Audit:
    """Sum up the lines of a `scores.jsonl`; memory grows by a few numbers a row, not with its text.

    `bounds` are what each metric's values can be, for the intervals; `known` are further fields of `Audit`.
    """
    tally = _Tally()
    for line in lines:
        tally.add(line)
    limits = {"calls": (0.0, math.inf), **bounds}
    numbers = Counter(tally.written).most_common()
    names = list(tally.dialects)
    divided = {names[number]: tally.estimates(limits, number) for number, _ in numbers} if len(names) > 1 else {}
    counts: Mapping[str, Any] = tally.counts
    return Audit(
        rows=tally.estimates(limits),
        n=len(tally.questions),
        unread=tally.unread,
        unjudged=tally.unjudged,
        **counts,
        issues=dict(tally.issues.most_common()),
        dialects={names[number]: count for number, count in numbers},
        stop_reasons=dict(tally.endings.most_common()),
        by_dialect=divided,
        tools=tally.tools(),
        bounds=dict(bounds),
        **known,
    )


class _Tally:
    """Everything counted on the way through the file."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()  # rows, by the field of `Audit` that counts them
        self.issues: Counter[str] = Counter()
        self.endings: Counter[str] = Counter()
        self.unread: list[Unread] = []
        self.unjudged: list[Unjudged] = []
        self.questions = array("q")  # a number for each row's question
        self.written = array("i")  # the number of each row's dialect
        self.dialects: dict[str, int] = {}
        # values by metric: NaN where it does not apply, infinite where a judge abstained
        self.columns: defaultdict[str, array[float]] = defaultdict(lambda: array("d"))
        self.called: list[dict[str, int]] = []
        self.same_calls: dict[tuple[tuple[str, int], ...], dict[str, int]] = {}  # most rows share one of a few

    def add(self, line: Line) -> None:
        if line.error is not None:
            self.counts["errors"] += 1
            if len(self.unread) < NAMED:
                self.unread.append(Unread(line.row, line.error))
            return
        asked = line.question.strip() if line.question else ""
        # A row without a question is a question of its own; a digest, since a million texts take much memory
        named = (asked or f"\0{line.row}").encode("utf-8", "surrogatepass")
        self.questions.append(int.from_bytes(blake2b(named, digest_size=8).digest(), "little", signed=True))
        self.written.append(self.dialects.setdefault(line.dialect or "unknown", len(self.dialects)))
        self.endings[line.stop_reason or ("answered" if line.answer is not None else "no_answer")] += 1
        self.issues.update(line.issues)
        self.called.append(self.same_calls.setdefault(tuple(line.tools.items()), line.tools))
        missing = [name for name, cell in line.scores.items() if cell.abstained]
        for name, value in line.values.items():
            self.columns[name].append(math.inf if name in missing else math.nan if value is None else value)
        unjudged = [Unjudged(line.row, name, line.scores[name].why) for name in missing]
        self.unjudged = [*self.unjudged, *unjudged][:NAMED]
        so = {"clean": not line.issues, "bare": not (line.tools or line.evidence), "unasked": not asked}
        self.counts.update(name for name, holds in (so | {"abstained": bool(missing)}).items() if holds)
        self.counts["evidence"] += line.evidence

    def tools(self) -> Tools:
        calls: Counter[str] = Counter()
        for own in self.called:
            calls.update(own)
        columns = {name: [own.get(name, 0) for own in self.called] for name, _ in calls.most_common(TOOLS)}
        entropy = entropy_estimate(columns, np.array(self.questions)) if columns else NOTHING
        return Tools(dict(calls.most_common()), tool_ratios(calls, list(calls)), entropy)

    def estimates(self, limits: Mapping[str, tuple[float, float]], dialect: int | None = None) -> dict[str, Estimate]:
        """Each metric's mean over the questions of all rows, or of those in one dialect."""
        written, questions = np.array(self.written), np.array(self.questions)
        within = np.full(len(written), True) if dialect is None else written == dialect
        found = {}
        for name, column in self.columns.items():
            values, asked = np.array(column)[within], questions[within]
            kept = np.isfinite(values)
            estimate = mean_ci(values[kept], asked[kept], limits.get(name, (0.0, 1.0)))
            left = int(np.isnan(values).sum()), int(np.isinf(values).sum())
            found[name] = left_out(estimate, int(kept.sum()), *left)
        return found


def choose_rows(scores: PathLike, metric: str | None, count: int, rows: int | None = None) -> list[int]:
    """Which rows to show, ascending: half of them are the lowest by `metric`; up to a quarter have each kind of issue
    and each bar of the distributions once; the others are spread evenly over the file.

    The same file gives the same rows. Rows that could not be read are not among them.
    """
    found: list[int] = []
    judged: list[tuple[float, int]] = []
    examples: dict[tuple[str, int], int] = {}  # the first row of each
    for line in read_scores(scores, rows):
        if line.error is not None:
            continue
        found.append(line.row)
        values = {name: value for name, value in line.values.items() if value is not None}
        if metric in values:
            judged.append((values[metric], line.row))
        shows = [*((kind, -1) for kind in line.issues), *((name, int(20 * value)) for name, value in values.items())]
        for seen in shows:
            examples.setdefault(seen, line.row)
    if len(found) <= count:
        return found
    chosen = dict.fromkeys(row for _, row in sorted(judged)[: (count + 1) // 2])
    # Every kind of issue has a link on the page, so it gets its row before the bars do
    issues_first = sorted(examples.items(), key=lambda item: item[0][1] >= 0)
    fresh = dict.fromkeys(row for _, row in issues_first if row not in chosen)
    chosen |= dict.fromkeys([*fresh][: count // 4])
    rest = [row for row in found if row not in chosen]  # evenly, since files are often sorted by something
    wanted = count - len(chosen)
    return sorted([*chosen, *(rest[place * len(rest) // wanted] for place in range(wanted))])
