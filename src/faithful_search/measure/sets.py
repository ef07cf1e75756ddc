"""What an agent did on a suite of question sets: a row for each set, and their macro mean."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from ..escape import as_line
from .behaviour import error_rows
from .evaluation import Evaluation, Measured
from .report import aligned, interval
from .stats import Estimate
from .workers import chunks

ANSWERS = ("exact_match", "f1", "lm_accuracy", "valid_format", "answered")
"""The results that a suite's first table shows."""
FAITHFULNESS = (
    "citation",
    "answer_support",
    "evidence_sensitivity",
    "info_think",
    "think_search",
    "think_answer",
    "verdict_gap",
    "follow_rate",
    "memory_share",
    "decorated",
)
"""The results beside them, by the beginnings of their names. The files hold all results."""
COLUMNS = 4
"""The number of results in a table, so that it fits into a terminal."""


class MacroMean(Estimate, frozen=True, kw_only=True):
    """The mean of a result over question sets, each of which counts alike.

    Attributes:
        sets: the names of the sets that have the result.
    """

    sets: list[str]


def macro_mean(estimates: Mapping[str, Estimate]) -> MacroMean:
    """The mean of the sets' values, with the 95 % interval of these very sets.

    ```
    value = Σ v_s / S
    low   = value − √(Σ (v_s − low_s)²) / S
    high  = value + √(Σ (high_s − v_s)²) / S
    ```

    The interval is of sums of independent means from their own intervals (Zou and Donner, 2008,
    "Construction of confidence intervals about effect measures", section 2), so that it is not
    empty where every answer of a set is wrong. It says how much other questions of the same sets
    would change the mean, not other sets. `n` is the number of questions of all sets.

    Example:
        >>> half = Estimate(0.5, 0.4, 0.6, n=100, stderr=0.05)
        >>> print(macro_mean({"nq": half, "popqa": half}))
        0.500 [0.429, 0.571] (n=200)
    """
    valued = {name: row for name, row in estimates.items() if row.value is not None}
    rows = list(valued.values())
    value = low = high = stderr = None
    if rows:
        value = math.fsum(row.value or 0.0 for row in rows) / len(rows)
    if value is not None and all(row.low is not None for row in rows):
        below: list[float] = []
        above: list[float] = []
        stderrs: list[float] = []
        for row in rows:
            below.append((row.value or 0.0) - (row.low or 0.0))
            above.append((row.high or 0.0) - (row.value or 0.0))
            stderrs.append(row.stderr or 0.0)
        low = value - math.hypot(*below) / len(rows)
        high = value + math.hypot(*above) / len(rows)
        stderr = math.hypot(*stderrs) / len(rows)
    return MacroMean(
        value=value,
        low=low,
        high=high,
        n=sum(row.n for row in rows),
        stderr=stderr,
        not_applicable=sum(row.not_applicable for row in estimates.values()),
        abstained=sum(row.abstained for row in estimates.values()),
        sets=list(valued),
    )


class SuiteResults(Measured, msgspec.Struct, frozen=True):
    """What an agent did on the question sets of a suite.

    Attributes:
        sets: the evaluation of each set, by its name.
        left_out: a line for each set of the suite that was not measured: which, and why.
        samples: the number of rollouts of each question.
    """

    sets: dict[str, Evaluation]
    left_out: list[str] = []
    samples: int = 1

    @property
    def macro(self) -> dict[str, MacroMean]:
        """The macro mean of each result that a set has."""
        rows_by_result: dict[str, dict[str, Estimate]] = {}
        for set_name, run in self.sets.items():
            for result, row in run.rows.items():
                rows_by_result.setdefault(result, {})[set_name] = row
        return {result: macro_mean(rows) for result, rows in rows_by_result.items()}

    def to_dict(self) -> dict[str, Any]:
        return {
            "sets": {name: evaluation.to_dict() for name, evaluation in self.sets.items()},
            "macro": msgspec.to_builtins(self.macro),
            "left_out": self.left_out,
            "samples": self.samples,
        }

    def __str__(self) -> str:
        """Tables with a row for each set: answers, faithfulness, and why episodes failed."""
        measured = [name for name, mean in self.macro.items() if mean.sets]
        answers = [name for name in ANSWERS if name in measured]
        faithfulness = [name for name in measured if name.startswith(FAITHFULNESS)]
        groups = {f"answers{mean_at(self.samples)}": answers, "faithfulness": faithfulness}
        parts = []
        for title, metrics in groups.items():
            for metrics_of_table in chunks(metrics, COLUMNS):
                parts.append(aligned(self._rows(title, metrics_of_table)))
        errors = {name: run.errors for name, run in self.sets.items() if run.errors is not None}
        if errors:
            parts.append(aligned(error_rows(errors)))
        notes = [f"left out: {line}" for line in self.left_out]
        for name, run in self.sets.items():
            if run.failed:
                notes.append(
                    f"{name}: {run.failed} episodes failed and count nowhere ({run.failed_because})"
                )
        if notes:
            parts.append("\n".join(map(as_line, notes)))
        return "\n\n".join(parts)

    def _rows(self, title: str, metrics: Sequence[str]) -> list[list[str]]:
        """The cells of a table of these results, header first; the macro mean is the last row."""
        rows = [[f"{title} [95% CI]", "questions", *metrics]]
        total = 0
        for name, run in self.sets.items():
            questions = len(set(run.questions))
            total += questions
            cells = []
            for metric in metrics:
                estimate = run.rows.get(metric)
                cell = interval(estimate)
                # `n` is told where the result has a value for only some of the questions
                if estimate is not None and estimate.n not in (0, questions):
                    cell += f" n={estimate.n}"
                cells.append(cell)
            rows.append([name, str(questions), *cells])
        if len(self.sets) > 1:
            macro = self.macro
            cells = [self._macro_cell(macro[metric]) for metric in metrics]
            rows.append([f"macro mean of {len(self.sets)}", str(total), *cells])
        return rows

    def _macro_cell(self, mean: MacroMean) -> str:
        """The macro mean, and the number of its sets where some lack the result. A dash where fewer
        than two sets have it.
        """
        if len(mean.sets) < 2:
            return "-"
        cell = interval(mean)
        if len(mean.sets) < len(self.sets):
            cell += f" of {len(mean.sets)}"
        return cell


def mean_at(samples: int) -> str:
    """What a table's title says of the number of rollouts of each question; nothing of one rollout.

    Example:
        >>> mean_at(4), mean_at(1)
        (', mean@4', '')
    """
    return f", mean@{samples}" if samples > 1 else ""
