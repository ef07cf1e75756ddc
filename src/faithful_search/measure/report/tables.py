"""Evaluations as tables to read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..evaluation import Evaluation, difference
from ..stats import Estimate
from .asks import warning

Evaluated = Evaluation | Mapping[str, Any]
EMPTY = "-"
MIN_PAIRS = 6
"""With fewer pairs no sign test can reach the 5 % level, 2 / 2^n: such a difference is never marked."""


def table(before: Evaluated, after: Evaluated | None = None, names: tuple[str, str] = ("cold start", "GRPO")) -> str:
    """An aligned text table of one or two evaluations, or what their `to_dict` gave.

    `n` counts questions; `+3 n/a` is 3 rollouts that a metric says nothing about, `+1 abstained` one whose judge gave
    no verdict; two values stand for before and after. A difference over at least six questions whose interval leaves
    out 0 is marked `*`.
    """
    rows = table_rows(before, after, names)
    told = warning({row[0]: row for row in rows})
    return aligned(rows) + (f"\n{told}" if told else "")


def table_rows(
    before: Evaluated, after: Evaluated | None = None, names: tuple[str, str] = ("cold start", "GRPO")
) -> list[list[str]]:
    """The cells of `table`, header first."""
    first = as_evaluation(before)
    if after is None:
        rows = [[name, interval(estimate), _count(estimate)] for name, estimate in first.rows.items()]
        return [["metric", f"{names[0]} [95% CI]", "n"], *rows]
    second = as_evaluation(after)
    rows = [["metric", f"{names[0]} [95% CI]", f"{names[1]} [95% CI]", "paired difference [95% CI]", "n"]]
    for metric in dict.fromkeys((*first.rows, *second.rows)):
        one, two = first.rows.get(metric), second.rows.get(metric)
        counts = dict.fromkeys(_count(estimate) for estimate in (one, two) if estimate is not None)
        change = marked(difference(first, second, metric))
        rows.append([metric, interval(one), interval(two), change, " / ".join(counts)])
    return rows


def aligned(rows: list[list[str]]) -> str:
    """Cells as text in columns, the first row the header, underlined."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    return "\n".join([lines[0], "  ".join("─" * width for width in widths), *lines[1:]])


def as_evaluation(evaluated: Evaluated) -> Evaluation:
    """An evaluation as it is, or read from what `to_dict` gave."""
    return evaluated if isinstance(evaluated, Evaluation) else Evaluation.from_dict(evaluated)


def interval(estimate: Estimate | None, sign: bool = False) -> str:
    """`0.750 [0.301, 0.954]`, or a dash."""
    if estimate is None or estimate.value is None:
        return EMPTY
    form = "+.3f" if sign else ".3f"
    band = "" if estimate.low is None or estimate.high is None else f" [{estimate.low:{form}}, {estimate.high:{form}}]"
    return f"{estimate.value:{form}}{band}"


def is_clear(change: Estimate) -> bool:
    """Whether a paired difference is over enough questions and its interval leaves out 0."""
    apart = change.low is not None and change.high is not None and (change.low > 0 or change.high < 0)
    return apart and change.n >= MIN_PAIRS


def marked(change: Estimate) -> str:
    """A paired difference with its sign, and `*` where it is clear."""
    return interval(change, sign=True) + (" *" if is_clear(change) else "")


def _count(estimate: Estimate) -> str:
    notes = [f"+{estimate.not_applicable} n/a"] if estimate.not_applicable else []
    notes += [f"+{estimate.abstained} abstained"] if estimate.abstained else []
    return " ".join([str(estimate.n), *notes])
