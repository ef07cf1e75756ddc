"""The results of an audit: `summarize` reads the lines of `scores.jsonl` once and makes an `Audit`
of them.
"""

import math
import re
import sys
from array import array
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from hashlib import blake2b
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from ..reading.files import PathLike
from ..rewards.correctness import DIFFERS
from ..rewards.declined import declined
from ..rewards.format import TRANSCRIPT
from ..trajectory import NO_TRACE, Trajectory
from . import gates
from .behaviour import POOLED_ENTROPY, tool_ratios
from .evaluation import ENTROPY, Evaluation, Measured
from .report import aligned, evaluation_table, interval, sentences, telling
from .scores import Line, read_scores
from .stats import NOTHING, Estimate, left_out, mean_ci, pooled_estimate
from .writing import filled

SUMMARY = "audit.json"
NAMED = 20
"""How many rows that could not be read, or judged, an audit names; the others it counts."""
MOST_TOOLS = 32
"""The largest number of tools that the entropy is over where nobody names the tools that could be
called: then the most called ones are taken. Agents also call tools that do not exist, and each of
those names would be a further column.
"""
ALWAYS = {"answered": (0.0, 1.0), "calls": (0.0, math.inf), ENTROPY: (0.0, 1.0)}
"""The results that every audit has, whatever its metrics are, with the bounds of their values."""
_WORDS_OF_A_SENTENCE = 6
_HAN_OR_KANA = re.compile("[\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff]")
NOTE_KINDS = {
    "error": "errors",
    "empty": "nothing found",
    "wall": "pages that could not be seen",
    "echo": "only the call again",
    "other": "others",
}
"""In what words the text of an audit names each kind of note. A note is a response or a passage in
which a tool speaks of itself; see `Audit.noted`.
"""
PRIMARY = (
    "info_think_faithfulness",
    "info_think_lexical",
    "think_answer_faithfulness",
    "think_answer_sub_em",
    "citation_validity",
    "answer_support",
    "answer_support_lexical",
    "info_think_containment",
    "answer_support_containment",
)
"""The metrics that may stand for faithfulness as a whole, the best first; see `Audit.primary`."""


class Tools(msgspec.Struct, frozen=True):
    """How often each tool was called (`counts`), its share of the calls (`ratios`), and how evenly
    the tools were used: the normalised entropy of the shares, from 0 to 1.
    """

    counts: dict[str, int] = {}
    ratios: dict[str, float] = {}
    entropy: Estimate = NOTHING


class MissingScore(msgspec.Struct, frozen=True, omit_defaults=True):
    """A row that could not be read, or a score that no judge gave.

    Attributes:
        row: the number of the row, from 1.
        why: the reason.
        metric: the metric whose judge gave no verdict; empty for a row that could not be read.
    """

    row: int
    why: str
    metric: str = ""


class Audit(Measured, msgspec.Struct, frozen=True):
    """What was measured on a file of trajectories.

    Attributes:
        rows: the estimate of each metric, and of `answered` and `calls`: the rows of the table of
            results, not those of the file. Trajectories of the same question are averaged first;
            one without a question counts as a question of its own.
        n: number of trajectories that were read and scored.
        clean: number of trajectories in which the agent made no mistake of form.
        bare: number of trajectories with neither a call nor evidence.
        unbacked: number of trajectories that answer although no evidence was retrieved. Answers
            that claim nothing, and reports without a trace, are not counted.
        own_gold: number of trajectories whose gold answer, from a column `answer` or `answers`, is
            a sentence that the agent itself said, word for word.
        unasked: number of trajectories without a question.
        in_text: number of trajectories whose evidence stands in the agent's own text
            (`Trajectory.evidence_from`).
        otherwise: number of trajectories whose exact match would have another value if answers were
            compared under SQuAD's normaliser.
        unanswered: number of trajectories without an answer.
        evidence: number of passages of evidence. Passages that a corpus does not hold are counted
            in `issues` alone.
        noted: number of responses and passages that are notes, by kind. In a note a tool speaks of
            itself, for example of an error, which is no evidence (`faithful_search.evidence`).
        errors: number of rows that could not be read.
        unread: the first of these rows, with the reasons.
        abstained: number of trajectories with at least one metric whose judge gave no verdict.
        unjudged: the first scores that are missing for this reason.
        issues: number of issues, by kind.
        dialects: number of trajectories, by dialect.
        stop_reasons: number of trajectories, by the reason for which they ended.
        by_dialect: `rows` for the trajectories of each dialect alone, where there are several.
        taken: for each of `text`, `question` and `gold` the columns that it was taken from, with
            the number of rows; the column is empty for rows that have none. `unused` has the other
            columns of rows that lack a question or gold answers.
        ends_in: number of trajectories that end in a call and without an answer, by the tool that
            was called.
        tools: the calls of all trajectories.
        bounds: the lowest and highest value that each metric can have.
        settings: the source, judge, metrics, normaliser, dialect and version of the audit.
        source_error: why the source could not be read to its end; empty if it was.
        usage: what the judge reports of its requests, over all finished runs of the audit.
        finished: `False` in the file of an audit that has not ended.
    """

    rows: dict[str, Estimate] = {}
    n: int = 0
    clean: int = 0
    bare: int = 0
    evidence: int = 0
    noted: dict[str, int] = {}
    errors: int = 0
    unread: list[MissingScore] = []
    abstained: int = 0
    unjudged: list[MissingScore] = []
    unbacked: int = 0
    own_gold: int = 0
    unasked: int = 0
    in_text: int = 0
    otherwise: int = 0
    unanswered: int = 0
    taken: dict[str, dict[str, int]] = {}
    ends_in: dict[str, int] = {}
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
        """The metric by which the worst rows are chosen: the first of `PRIMARY` that has a value
        for at least half of the rows, else the one with most values; `None` without any.
        """
        measured: dict[str, int] = {}  # the number of rows that each metric has a value for
        for name in PRIMARY:
            estimate = self.rows.get(name)
            if estimate is not None and estimate.value is not None:
                measured[name] = self.n - estimate.not_applicable - estimate.abstained
        for name, count in measured.items():
            if 2 * count >= self.n:
                return name
        return max(measured, key=measured.__getitem__, default=None)

    @property
    def estimates(self) -> dict[str, Estimate]:
        """All results: `rows` and the entropy of the tools."""
        return {**self.rows, ENTROPY: self.tools.entropy}

    def unmet(self, *requirements: str) -> list[str]:
        """A sentence for each requirement that the audit does not meet. A result without a value
        meets no requirement. `--require` does the same on the command line.

        Raises `ConfigError` for a requirement that cannot be parsed, or whose result the audit does
        not have.

        Example:
            >>> Audit({"declined": Estimate(0.5, 0.095, 0.905, 4, 0.25)}).unmet("declined <= 0.1")
            ['declined is 0.500 [0.095, 0.905] (n=4), required: declined <= 0.1']
        """
        gates.check(requirements, self.all_bounds)
        return gates.unmet(requirements, self.estimates)

    @property
    def mistakes(self) -> dict[str, int]:
        """The issues, by kind, that are mistakes of the agent."""
        return {kind: count for kind, count in self.issues.items() if kind not in TRANSCRIPT}

    @property
    def all_bounds(self) -> dict[str, tuple[float, float]]:
        """The lowest and the highest possible value of each result."""
        known_bounds = {**ALWAYS, **self.bounds}
        return {name: known_bounds.get(name, gates.SHARE) for name in self.estimates}

    @property
    def readings(self) -> dict[str, int]:
        """The issues, by kind, that say how rows were read, or what their writers left out."""
        return {kind: count for kind, count in self.issues.items() if kind in TRANSCRIPT}

    def __str__(self) -> str:
        return self.text()

    def text(self, all_rows: bool = False) -> str:
        """The audit in words and tables: the results that say most, or with `all_rows` all."""
        estimates = self.estimates
        names = list(estimates) if all_rows else telling(self)
        evaluation = Evaluation(
            rows={name: estimates[name] for name in names},
            questions=[],
            values={},
            tool_calls={},
        )
        header = ["by dialect", *self.by_dialect]
        text = filled(
            __package__,
            "report/audit.txt.j2",
            audit=self,
            sentences=sentences(self),
            # Compared with no other evaluation, so the second name is not used
            measured=evaluation_table(evaluation, None, ("estimate", "")),
            more=len(estimates) - len(names),
            divided=aligned([header, *self.divided(names)]),
            named=NAMED,
        )
        return text.rstrip("\n")

    @property
    def notes_told(self) -> str:
        """The number of notes and of each kind, in words; empty where there is none."""
        if not self.noted:
            return ""
        kinds = ", ".join(f"{NOTE_KINDS[kind]} {count:,}" for kind, count in self.noted.items())
        return f"{sum(self.noted.values()):,} ({kinds})"

    def divided(self, names: Sequence[str] | None = None) -> list[list[str]]:
        """The cells of a table of results by dialect: one row for each of the named metrics, by
        default all, and one column for each dialect with its estimate, interval and n. Names that
        are not among `rows`, such as the entropy of the tools, have no row.
        """
        if names is None:
            names = list(self.rows)
        table_rows: list[list[str]] = []
        for name in names:
            if name not in self.rows:
                continue
            cells = [name]
            for rows_of_dialect in self.by_dialect.values():
                estimate = rows_of_dialect.get(name, NOTHING)
                cells.append(f"{interval(estimate)} (n={estimate.n})")
            table_rows.append(cells)
        return table_rows

    def notes(self) -> list[str]:
        """What readers should know about the judge, for example that another model answered. These
        are not the notes of tools, which `noted` counts.
        """
        return [
            f"judge: {note} ({count:,} times)"
            for note, count in self.usage.get("notes", {}).items()
        ]


def summarize(
    lines: Iterable[Line],
    bounds: Mapping[str, tuple[float, float]],
    available: Sequence[str] | None = None,
    *,
    settings: Mapping[str, Any] | None = None,
    source_error: str = "",
    usage: Mapping[str, Any] | None = None,
) -> Audit:
    """Sum up the lines of a `scores.jsonl`. Memory grows by a few numbers a row, not with its text.

    Args:
        lines: one line for each row. All that were read have a value, or `None`, for the same
            metrics.
        bounds: the lowest and highest value of each metric, for the intervals; for a metric without
            bounds they are 0 and 1.
        available: the tools that could be called; by default those that were called.
        settings, source_error, usage: fields of `Audit`.
    """
    tally = _Tally()
    for line in lines:
        if line.error is None:
            tally.add(line)
        else:
            tally.add_unread(line.row, line.error)
    all_bounds = {**ALWAYS, **bounds}
    dialects = _ordered(Counter(tally.dialects))
    by_dialect = {}
    if len(dialects) > 1:
        by_dialect = {dialect: tally.estimates(all_bounds, dialect) for dialect in dialects}
    counts: dict[str, Any] = dict(tally.counts)  # their keys are names of fields of `Audit`
    return Audit(
        rows=tally.estimates(all_bounds),
        n=len(tally.questions),
        unread=tally.unread,
        unjudged=tally.unjudged,
        taken={content: _ordered(names) for content, names in tally.taken.items()},
        ends_in=_ordered(tally.last_calls),
        issues=_ordered(tally.issues),
        noted=_ordered(tally.notes),
        dialects=dialects,
        stop_reasons=_ordered(tally.stop_reasons),
        by_dialect=by_dialect,
        tools=_tools(tally.calls, np.array(tally.questions), available),
        bounds=dict(bounds),
        settings=dict(settings or {}),
        source_error=source_error,
        usage=dict(usage or {}),
        **counts,
    )


class _Tally:
    """The sums and columns over the lines that were added.

    The columns `questions`, `dialects`, `calls` and each of `values` have one entry for each row
    that was read.
    """

    def __init__(self) -> None:
        # Numbers of rows and passages, by the name of their field in `Audit`
        self.counts: Counter[str] = Counter()
        self.issues: Counter[str] = Counter()
        self.notes: Counter[str] = Counter()
        self.stop_reasons: Counter[str] = Counter()
        self.last_calls: Counter[str] = Counter()
        self.taken: defaultdict[str, Counter[str]] = defaultdict(Counter)
        self.unread: list[MissingScore] = []
        self.unjudged: list[MissingScore] = []
        self.questions = array("q")
        self.dialects: list[str] = []
        self.calls: list[dict[str, int]] = []
        # By metric. NaN stands for a metric that does not apply, infinity for a judge that
        # abstained: an array of floats holds no `None`
        self.values: defaultdict[str, array[float]] = defaultdict(lambda: array("d"))
        # Rows with the same calls share one dictionary, which saves memory: most rows have the same
        # calls as another one
        self._shared_calls: dict[tuple[tuple[str, int], ...], dict[str, int]] = {}

    def add_unread(self, row: int, error: str) -> None:
        """Count a row that could not be read."""
        self.counts["errors"] += 1
        if len(self.unread) < NAMED:
            self.unread.append(MissingScore(row, error))

    def add(self, line: Line) -> None:
        """Count a row that was read."""
        question = line.question.strip() if line.question else ""
        self.questions.append(_question_number(question, line.row))
        self.dialects.append(sys.intern(line.dialect or "unknown"))
        calls = self._shared_calls.setdefault(tuple(line.tools.items()), line.tools)
        self.calls.append(calls)
        self.issues.update(line.issues)
        self.notes.update(line.notes)
        ending = "no_answer" if line.answer is None else "answered"
        self.stop_reasons[line.stop_reason or ending] += 1
        if line.ends_in:
            self.last_calls[line.ends_in] += 1
        for content, column in line.taken.items():
            self.taken[content][column] += 1
        abstained_metrics = [name for name, cell in line.scores.items() if cell.abstained]
        self._add_values(line, abstained_metrics)
        self._add_unjudged(line, abstained_metrics)
        self.counts["evidence"] += line.evidence
        traits = {
            "clean": line.issues.keys() <= TRANSCRIPT,
            "bare": not (line.tools or line.evidence),
            "unbacked": _is_unbacked(line),
            "own_gold": _is_own_gold(line),
            "unasked": not question,
            "unanswered": line.answer is None,
            "in_text": bool(line.evidence) and line.evidence_from == "text",
            "abstained": bool(abstained_metrics),
            "otherwise": any(cell.has_part(DIFFERS) for cell in line.scores.values()),
        }
        self.counts.update(name for name, holds in traits.items() if holds)

    def _add_values(self, line: Line, abstained_metrics: Sequence[str]) -> None:
        """Add the row's value of each metric."""
        for name, value in line.values.items():
            if name in abstained_metrics:
                number = math.inf
            elif value is None:
                number = math.nan
            else:
                number = value
            self.values[name].append(number)

    def _add_unjudged(self, line: Line, abstained_metrics: Sequence[str]) -> None:
        """Keep the reasons why a judge abstained, up to `NAMED` of all rows."""
        for name in abstained_metrics:
            if len(self.unjudged) < NAMED:
                self.unjudged.append(MissingScore(line.row, line.scores[name].why, name))

    def estimates(
        self, bounds: Mapping[str, tuple[float, float]], dialect: str | None = None
    ) -> dict[str, Estimate]:
        """The estimate of each metric over the rows of one dialect, by default over all rows."""
        chosen = np.full(len(self.dialects), True)
        if dialect is not None:
            chosen = np.array(self.dialects) == dialect
        questions = np.array(self.questions)[chosen]
        estimates = {}
        for name, column in self.values.items():
            values = np.array(column)[chosen]
            has_value = np.isfinite(values)
            estimates[name] = left_out(
                mean_ci(values[has_value], questions[has_value], bounds.get(name, gates.SHARE)),
                rows=int(has_value.sum()),
                not_applicable=int(np.isnan(values).sum()),
                abstained=int(np.isinf(values).sum()),
            )
        return estimates


def _is_unbacked(line: Line) -> bool:
    """Whether a row's answer claims something although its agent retrieved no evidence."""
    if line.answer is None or line.evidence or NO_TRACE in line.issues:
        return False
    # The metric `declined` may not be among those that were asked for
    return not declined(Trajectory(answer=line.answer, answers=line.answers))


def _is_own_gold(line: Line) -> bool:
    """Whether what is taken for a gold answer is likely the agent's own: a sentence of both, in a
    column whose name others use for what a model answered.
    """
    answer = (line.answer or "").strip()
    is_sentence = _word_count(answer) >= _WORDS_OF_A_SENTENCE
    ambiguous = line.taken.get("gold", "").lower() in ("answer", "answers")
    return is_sentence and ambiguous and answer in map(str.strip, line.answers)


def _word_count(text: str) -> int:
    """The number of words. Chinese and Japanese are written without blanks: two characters count as
    a word.
    """
    unspaced = len(_HAN_OR_KANA.findall(text)) // 2
    pieces = _HAN_OR_KANA.sub(" ", text).split()
    spaced = sum(any(map(str.isalnum, piece)) for piece in pieces)
    return spaced + unspaced


def _question_number(question: str, row: int) -> int:
    """A number that equal questions share; a row without a question has one of its own.

    A digest, since the texts of a million questions take much memory.
    """
    # A row's number stands for the missing question; with a NUL it equals no question of a file
    name = question or f"\0{row}"
    digest = blake2b(name.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "little", signed=True)


def _ordered(counts: Counter[str]) -> dict[str, int]:
    """The counts, the largest first."""
    return dict(counts.most_common())


def _tools(
    calls: Sequence[Mapping[str, int]],
    questions: NDArray[np.int64],
    available: Sequence[str] | None,
) -> Tools:
    """The calls of all rows. `calls` and `questions` have an entry for each row; `available` names
    the tools that could be called, by default those that were called.
    """
    totals: Counter[str] = Counter()
    for calls_of_row in calls:
        totals.update(calls_of_row)
    counts = _ordered(totals)
    if available is None:
        names = list(counts)
        names_in_entropy = names[:MOST_TOOLS]
    else:
        names = list(available)
        names_in_entropy = names
    columns = {}
    for name in names_in_entropy:
        columns[name] = [calls_of_row.get(name, 0) for calls_of_row in calls]
    entropy = NOTHING
    if columns:
        entropy = pooled_estimate(columns, POOLED_ENTROPY, questions)
    return Tools(counts, tool_ratios(totals, names), entropy)


def choose_rows(
    scores: PathLike, metric: str | None, count: int, rows: int | None = None
) -> list[int]:
    """The numbers of `count` rows to show, ascending.

    Half of them are the lowest by `metric`; up to a quarter are the first rows with each kind of
    issue; the others are spread evenly over the file. Rows that could not be read are not among
    them.

    Args:
        scores: the `scores.jsonl` of the audit.
        metric: the metric by which rows are lowest; without one there are no lowest rows.
        count: the number of rows to show. A file with fewer readable rows has all of them shown.
        rows: the number of lines of `scores` that are read, by default all.
    """
    readable: list[int] = []
    values: list[tuple[float, int]] = []
    first_with_issue: dict[str, int] = {}
    for line in read_scores(scores, rows):
        if line.error is not None:
            continue
        readable.append(line.row)
        value = line.values.get(metric) if metric is not None else None
        if value is not None:
            values.append((value, line.row))
        for kind in line.issues:
            first_with_issue.setdefault(kind, line.row)
    if len(readable) <= count:
        return readable
    lowest = sorted(values)[: (count + 1) // 2]
    chosen = {row for _, row in lowest}
    # A row may be the first with several kinds of issues
    rows_with_issues = list(dict.fromkeys(first_with_issue.values()))
    further_with_issues = [row for row in rows_with_issues if row not in chosen]
    chosen.update(further_with_issues[: count // 4])
    # Evenly, not the first ones: files are often sorted by something
    remaining = [row for row in readable if row not in chosen]
    missing = count - len(chosen)
    chosen.update(remaining[place * len(remaining) // missing] for place in range(missing))
    return sorted(chosen)
