"""What an audit found, summed up from its `scores.jsonl` in one pass: estimates over questions, tools, problems."""

import math
import sys
from array import array
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from hashlib import blake2b
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from .behaviour import normalized_entropy, tool_ratios
from .evaluation import ENTROPY, Evaluation, Measured
from .files import PathLike
from .report import aligned, interval, sentences, table
from .scores import Line, read_scores
from .stats import NOTHING, Estimate, left_out, mean_ci, pooled_estimate
from .writing import filled

SUMMARY = "audit.json"
NAMED = 20
"""How many rows that could not be read, or judged, are named; the others are counted."""
TOOLS = 32
"""The entropy is over this many tools at most, those called most: agents also call tools that do not exist."""
PRIMARY = (
    *(
        "info_think_faithfulness",
        "info_think_lexical",
        "think_answer_faithfulness",
        "think_answer_sub_em",
    ),
    *("citation_validity", "answer_support", "answer_support_lexical"),
)
"""The first of these that was measured stands for faithfulness as a whole."""


class Tools(msgspec.Struct, frozen=True):
    """Calls of each tool, their shares, and the normalised entropy with its interval over questions."""

    counts: dict[str, int] = {}
    ratios: dict[str, float] = {}
    entropy: Estimate = NOTHING


class Left(msgspec.Struct, frozen=True, omit_defaults=True):
    """A row that could not be read, or a score that no judge gave, and why."""

    row: int
    why: str
    metric: str = ""


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
    unread: list[Left] = []
    abstained: int = 0
    unjudged: list[Left] = []
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
        """What a row's faithfulness is judged by when the worst are shown."""
        return next(
            (name for name in PRIMARY if name in self.rows and self.rows[name].value is not None),
            None,
        )

    def __str__(self) -> str:
        rows = {**self.rows, ENTROPY: self.tools.entropy}
        text = filled(
            __package__,
            "report/audit.txt.j2",
            audit=self,
            sentences=sentences(self),
            measured=table(
                Evaluation(rows, questions=[], values={}, tool_calls={}), None, ("estimate", "")
            ),
            divided=aligned([["by dialect", *self.by_dialect], *self.divided()]),
            named=NAMED,
        )
        return text.rstrip("\n")

    def divided(self) -> list[list[str]]:
        """A line for each metric, a cell for each dialect: the estimate with its interval and n."""
        cells = {
            name: [own.get(name, NOTHING) for own in self.by_dialect.values()] for name in self.rows
        }
        return [
            [name, *(f"{interval(cell)} (n={cell.n})" for cell in own)]
            for name, own in cells.items()
        ]

    def notes(self) -> list[str]:
        """What readers should know about the judge, for example that another model answered."""
        return [
            f"judge: {what} ({count:,} times)"
            for what, count in self.usage.get("notes", {}).items()
        ]


def summarize(
    lines: Iterable[Line],
    bounds: Mapping[str, tuple[float, float]],
    available: Sequence[str] | None = None,
    **known: Any,
) -> Audit:
    """Sum up the lines of a `scores.jsonl`; memory grows by a few numbers a row, not with its text.

    `bounds` are what each metric's values can be, for the intervals; `available` tools are default those that were
    called; `known` are further fields of `Audit`.
    """
    counts: Counter[str] = Counter()  # rows, by the field of `Audit` that counts them
    issues: Counter[str] = Counter()
    endings: Counter[str] = Counter()
    unread: list[Left] = []
    unjudged: list[Left] = []
    questions = array("q")  # of each row that was read, as `written` and `called`
    written: list[str] = []
    # values by metric: NaN where it does not apply, infinite where a judge abstained
    columns: defaultdict[str, array[float]] = defaultdict(lambda: array("d"))
    called: list[dict[str, int]] = []
    same_calls: dict[
        tuple[tuple[str, int], ...], dict[str, int]
    ] = {}  # most rows share one of a few
    for line in lines:
        if line.error is not None:
            counts["errors"] += 1
            unread = [*unread, Left(line.row, line.error)][:NAMED]
            continue
        asked = line.question.strip() if line.question else ""
        # A row without a question is a question of its own; a digest, since a million texts take much memory
        named = (asked or f"\0{line.row}").encode("utf-8", "surrogatepass")
        questions.append(
            int.from_bytes(blake2b(named, digest_size=8).digest(), "little", signed=True)
        )
        written.append(sys.intern(line.dialect or "unknown"))
        endings[line.stop_reason or ("answered" if line.answer is not None else "no_answer")] += 1
        issues.update(line.issues)
        called.append(same_calls.setdefault(tuple(line.tools.items()), line.tools))
        missing = [name for name, cell in line.scores.items() if cell.abstained]
        for name, value in line.values.items():
            columns[name].append(
                math.inf if name in missing else math.nan if value is None else value
            )
        unjudged = [*unjudged, *(Left(line.row, line.scores[name].why, name) for name in missing)][
            :NAMED
        ]
        bare = not (line.tools or line.evidence)
        so = {
            "clean": not line.issues,
            "bare": bare,
            "unasked": not asked,
            "abstained": bool(missing),
        }
        counts.update(name for name, holds in so.items() if holds)
        counts["evidence"] += line.evidence

    limits = {"calls": (0.0, math.inf), **bounds}
    dialects, units, of = Counter(written), np.array(questions), np.array(written)

    def estimates(dialect: str | None = None) -> dict[str, Estimate]:
        within = np.full(len(of), True) if dialect is None else of == dialect
        found = {}
        for name, own in columns.items():
            values = np.array(own)[within]
            kept = np.isfinite(values)
            estimate = mean_ci(values[kept], units[within][kept], limits.get(name, (0.0, 1.0)))
            found[name] = left_out(
                estimate, int(kept.sum()), int(np.isnan(values).sum()), int(np.isinf(values).sum())
            )
        return found

    fields: dict[str, Any] = {**counts, **known}
    return Audit(
        rows=estimates(),
        n=len(questions),
        unread=unread,
        unjudged=unjudged,
        issues=dict(issues.most_common()),
        dialects=dict(dialects.most_common()),
        stop_reasons=dict(endings.most_common()),
        by_dialect={name: estimates(name) for name, _ in dialects.most_common()}
        if len(dialects) > 1
        else {},
        tools=_tools(called, units, available),
        bounds=dict(bounds),
        **fields,
    )


def _tools(
    called: Sequence[Mapping[str, int]],
    questions: NDArray[np.int64],
    available: Sequence[str] | None,
) -> Tools:
    calls: Counter[str] = Counter()
    for own in called:
        calls.update(own)
    counts = dict(calls.most_common())
    names = list(counts) if available is None else list(available)
    columns = {name: [own.get(name, 0) for own in called] for name in names[:TOOLS]}
    entropy = pooled_estimate(columns, normalized_entropy, questions) if columns else NOTHING
    return Tools(counts, tool_ratios(calls, names), entropy)


def choose_rows(
    scores: PathLike, metric: str | None, count: int, rows: int | None = None
) -> list[int]:
    """Which rows to show, ascending: half of them are the lowest by `metric`, up to a quarter have each kind of issue
    once, the others are spread evenly over the file. Rows that could not be read are not among them.
    """
    found: list[int] = []
    judged: list[tuple[float, int]] = []
    kinds: dict[str, int] = {}  # the first row of each kind of issue
    for line in read_scores(scores, rows):
        if line.error is None:
            found.append(line.row)
            if (value := line.values.get(metric or "")) is not None:
                judged.append((value, line.row))
            for kind in line.issues:
                kinds.setdefault(kind, line.row)
    if len(found) <= count:
        return found
    chosen = dict.fromkeys(row for _, row in sorted(judged)[: (count + 1) // 2])
    fresh = dict.fromkeys(row for row in kinds.values() if row not in chosen)
    chosen |= dict.fromkeys([*fresh][: count // 4])
    rest = [
        row for row in found if row not in chosen
    ]  # evenly, since files are often sorted by something
    wanted = count - len(chosen)
    return sorted([*chosen, *(rest[place * len(rest) // wanted] for place in range(wanted))])
