"""What was measured, to read: what each result asks, findings in plain words, and tables; `page` makes HTML of it."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from ..evaluation import Evaluation, difference
from ..invented import NOT_IN_CORPUS
from ..metrics import WARNING, about
from ..stats import Estimate

if TYPE_CHECKING:
    from ..summary import Audit

MIN_PAIRS = 6
"""With fewer pairs no sign test can reach the 5 % level, 2 / 2^n: such a difference is never marked."""


def warning(names: Mapping[str, object]) -> str:
    """What stands below a table with results that rest on the comparison of words."""
    return f"…_lexical: {WARNING}" if any(name.endswith("_lexical") for name in names) else ""


def extremes(audit: "Audit") -> tuple[str, str] | None:
    """The results that the audit is best and worst at; `None` with fewer than two that are shares with a direction."""
    shares = {
        name: 1 - row.value if about(name).direction < 0 else row.value
        for name, row in audit.rows.items()
        if row.value is not None
        and about(name).good
        and audit.bounds.get(name, (0.0, 1.0)) == (0.0, 1.0)
    }
    if len(shares) < 2:
        return None
    # of equal ones the first is best and the last worst, so that these are two even where all are equal
    return max(shares, key=shares.__getitem__), min(reversed(shares), key=shares.__getitem__)


def sentences(audit: "Audit") -> list[str]:
    """Three sentences: what is good, what is worst, and how sure that is; before them what looks like a mistake."""
    found = []
    if audit.bare * 2 > audit.n:
        found.append(
            f"No searches found in {audit.bare:,} of {audit.n:,} rows: is this the right column?"
        )
    invented = audit.issues.get(NOT_IN_CORPUS, 0)
    if invented > audit.evidence:
        passages = f"{invented:,} of {invented + audit.evidence:,} passages of evidence"
        found.append(
            f"{passages} are not in {audit.settings.get('corpus')}: is this the corpus that was searched?"
        )
    named = extremes(audit) or ()
    for label, name in zip(("Best", "Worst"), named, strict=False):
        row = audit.rows[name]
        value, low, high = row.value or 0.0, row.low, row.high
        if (
            about(name).direction < 0
        ):  # the share of what is good is the rest, and its interval is turned round
            value, low, high = (
                1 - value,
                None if high is None else 1 - high,
                None if low is None else 1 - low,
            )
        band = "" if low is None or high is None else f" (95% interval {low:.0%} to {high:.0%})"
        found.append(
            f"{label}: in {value:.0%}{band}, {about(name).good} ({name}, {row.n:,} questions)."
        )
    sure = [
        f"{audit.n:,} trajectories{' are' if named else ', nothing that is good or bad could be'} measured"
    ]
    sure += [f"{audit.errors:,} rows could not be read"] if audit.errors else []
    sure += [f"{audit.abstained:,} were not judged completely"] if audit.abstained else []
    sure += ["the file could not be read to its end"] if audit.source_error else []
    sure += [WARNING] if any(name.endswith("_lexical") for name in named) else []
    sure += (
        ["a single question has no interval"]
        if any(audit.rows[name].low is None for name in named)
        else []
    )
    return [*found, f"How sure: {'; '.join(sure)}."]


def table(before: Evaluation, after: Evaluation | None, names: tuple[str, str]) -> str:
    """An aligned text table of one or two evaluations.

    `n` counts questions; `+3 n/a` is 3 rollouts that a metric says nothing about, `+1 abstained` one whose judge gave
    no verdict; two values stand for before and after. A difference over at least six questions whose interval leaves
    out 0 is marked `*`.
    """
    rows = table_rows(before, after, names)
    return "\n".join(filter(None, [aligned(rows), warning({row[0]: row for row in rows})]))


def table_rows(
    before: Evaluation, after: Evaluation | None, names: tuple[str, str]
) -> list[list[str]]:
    """The cells of `table`, header first."""
    if after is None:
        rows = [
            [name, interval(estimate), _count(estimate)] for name, estimate in before.rows.items()
        ]
        return [["metric", f"{names[0]} [95% CI]", "n"], *rows]
    rows = [
        [
            "metric",
            f"{names[0]} [95% CI]",
            f"{names[1]} [95% CI]",
            "paired difference [95% CI]",
            "n",
        ]
    ]
    for metric in dict.fromkeys((*before.rows, *after.rows)):
        one, two = before.rows.get(metric), after.rows.get(metric)
        counts = dict.fromkeys(_count(estimate) for estimate in (one, two) if estimate is not None)
        change = marked(difference(before, after, metric))
        rows.append([metric, interval(one), interval(two), change, " / ".join(counts)])
    return rows


def aligned(rows: list[list[str]]) -> str:
    """Cells as text in columns, the first row the header, underlined."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]
    return "\n".join([lines[0], "  ".join("─" * width for width in widths), *lines[1:]])


def interval(estimate: Estimate | None, sign: bool = False) -> str:
    """`0.750 [0.301, 0.954]`, or a dash."""
    if estimate is None or estimate.value is None:
        return "-"
    form = "+.3f" if sign else ".3f"
    band = (
        ""
        if estimate.low is None or estimate.high is None
        else f" [{estimate.low:{form}}, {estimate.high:{form}}]"
    )
    return f"{estimate.value:{form}}{band}"


def is_clear(change: Estimate) -> bool:
    """Whether a paired difference is over enough questions and its interval leaves out 0."""
    apart = (
        change.low is not None and change.high is not None and (change.low > 0 or change.high < 0)
    )
    return apart and change.n >= MIN_PAIRS


def marked(change: Estimate) -> str:
    """A paired difference with its sign, and `*` where it is clear."""
    return interval(change, sign=True) + (" *" if is_clear(change) else "")


def _count(estimate: Estimate) -> str:
    notes = [f"+{estimate.not_applicable} n/a"] if estimate.not_applicable else []
    notes += [f"+{estimate.abstained} abstained"] if estimate.abstained else []
    return " ".join([str(estimate.n), *notes])
