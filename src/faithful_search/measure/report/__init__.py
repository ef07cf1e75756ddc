"""Results for people: sentences about an audit (`sentences`) or a training (`changes`), and tables
of estimates (`evaluation_table`). `page` makes HTML of them.
"""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from ...escape import as_line
from ...rollout.served import FAILED
from ...trajectory import NO_TRACE, NOT_REACHABLE
from ..evaluation import Evaluation, difference
from ..invented import NOT_IN_CORPUS
from ..metrics import WARNINGS, about, arrow, asks, warning as warning_of
from ..stats import Estimate

if TYPE_CHECKING:
    from ..summary import Audit

MIN_PAIRS = 6
"""A difference over fewer questions is never marked: no sign test on them can reach the 5 % level,
2 / 2^n.
"""
SHOWN = 5
"""The number of results that the text of an audit shows, unless all are asked for."""
RIGHTNESS = {
    "exact_match": "the answer is a gold answer",
    "sub_em": "it contains one",
    "answer_correctness": "the judge finds it right",
}
"""What a result says whose name begins with the key: whether answers are right."""
RIGHT = tuple(RIGHTNESS)
CITATIONS = ("citation_returned", "citation_support", "citation_coverage")
"""The results about citations, by the beginnings of their names. They are shown together, since a
rate over few citations says little.
"""
TELLING = (
    "sub_em",
    "answer_correctness",
    "answer_support",
    "citation",
    "info_think",
    "think_search",
    "think_answer",
    "unused_evidence",
    "repeated_calls",
    "declined",
    "answered",
)
"""The results that say most, by the beginnings of their names, the most telling first."""
PAIRED = (
    "A difference is over the questions that have a value on both sides, so it need not be that of "
    f"the two columns; * its interval leaves out 0, over at least {MIN_PAIRS} questions."
)
"""The line below a table of two sides."""


def warning(names: Iterable[str]) -> str:
    """The lines below a table with these results: warnings about those that compare words."""
    endings = {name.rpartition("_")[2] for name in names}
    return "\n".join(f"…_{ending}: {why}" for ending, why in WARNINGS.items() if ending in endings)


def telling(audit: "Audit") -> list[str]:
    """The names of the results that say most, at most `SHOWN`.

    They are those that the sentences name, then those about citations if most answers cite, then
    others in the order of `TELLING`.
    """
    valued = [name for name, row in audit.rows.items() if row.value is not None or row.abstained]
    by_importance = list(extremes(audit) or ())
    about_citations = [name for name in valued if name.startswith(CITATIONS)]
    if any(_applies_to_most(audit, name) for name in about_citations):
        by_importance += about_citations
    by_importance += sorted(valued, key=_rank)
    first = list(dict.fromkeys(by_importance))[:SHOWN]
    return [name for name in audit.rows if name in first]


def _applies_to_most(audit: "Audit", name: str) -> bool:
    """Whether a metric applies to at least half of the trajectories."""
    return 2 * audit.rows[name].not_applicable <= audit.n


def _rank(name: str) -> int:
    """The place of a result in `TELLING`; those that are not in it come last."""
    for place, stem in enumerate(TELLING):
        if name.startswith(stem):
            return place
    return len(TELLING)


def extremes(audit: "Audit") -> tuple[str, str] | None:
    """The best and the worst result of an audit, apart from those that say whether answers are
    right. `None` if there are fewer than two to choose from, or all are equally good in whole per
    cent, as the sentences say them.
    """
    shares = _shares(audit)
    if len({f"{share:.0%}" for share in shares.values()}) < 2:
        return None
    # Of equal ones the one that says most
    best = min(shares, key=lambda name: (-shares[name], _rank(name)))
    worst = min(shares, key=lambda name: (shares[name], _rank(name)))
    return best, worst


def _shares(audit: "Audit") -> dict[str, float]:
    """The share of what is good, for each result that is a share with a good and a bad end."""
    shares = {}
    for name, row in audit.rows.items():
        result = about(name)
        if row.value is None or not result.good or name.startswith(RIGHT):
            continue
        if audit.bounds.get(name, (0.0, 1.0)) == (0.0, 1.0):
            shares[name] = 1 - row.value if result.direction < 0 else row.value
    return shares


def sentences(audit: "Audit") -> list[str]:
    """An audit in sentences: first what looks like a mistake, then how often answers are right,
    which result is best and which worst, and how sure that is.
    """
    lines = _suspicions(audit)
    right = _right(audit)
    if right:
        lines.append(right)
    best_and_worst = extremes(audit)
    if best_and_worst is not None:
        best, worst = best_and_worst
        lines.append(f"Best: in {_share_of_good(audit, best)}.")
        lines.append(f"Worst: in {_share_of_good(audit, worst)}.")
    shares = _shares(audit)
    if best_and_worst is None and len(shares) > 1:
        share = max(shares.values())
        lines.append(
            f"Neither best nor worst: all {len(shares)} shares of what is good are {share:.0%}."
        )
    lines.append(_how_sure(audit, best_and_worst or ()))
    return lines


def _suspicions(audit: "Audit") -> list[str]:
    """Sentences about what looks as if the rows were read wrongly, or could not be measured."""
    lines = []
    reports = audit.issues.get(NO_TRACE, 0)
    unreachable = audit.issues.get(NOT_REACHABLE, 0)
    if reports and not audit.evidence:
        lines.append(
            f"Reports without a trace: {reports:,} of {audit.n:,} rows; what they cite was not "
            "read, so nothing says whether it carries them. --fetch reads each cited address once."
        )
    elif unreachable:
        lines.append(
            f"Not reachable: {unreachable:,} of what reports cite; a sentence that cites nothing "
            "else has no verdict."
        )
    elif audit.bare * 2 > audit.n:
        lines.append(
            f"No searches found in {audit.bare:,} of {audit.n:,} rows: is this the right column?"
        )
    gold_is_named = audit.settings.get("gold_column") is not None
    if audit.own_gold * 2 > audit.n and not gold_is_named:
        lines.append(
            f"The gold answers of {audit.own_gold:,} of {audit.n:,} rows are what the agent itself "
            "said, word for word: is this the right column? --gold-column names another."
        )
    unanswered = _unanswered(audit)
    if unanswered is not None:
        lines.append(unanswered)
    invented = audit.issues.get(NOT_IN_CORPUS, 0)
    if invented > audit.evidence:
        passages = f"{invented:,} of {invented + audit.evidence:,} passages of evidence"
        lines.append(
            f"{passages} are not in {audit.settings.get('corpus')}: is this the corpus that was "
            "searched?"
        )
    return lines


def changes(before: Evaluation, after: Evaluation) -> list[str]:
    """What a training changed, in sentences: how often answers are right, the largest clear change
    for the better, the largest for the worse, and how sure that is.
    """
    names = [name for name in before.rows if name in after.rows]
    by_metric = {name: difference(before, after, name) for name in names}
    clear = [name for name in names if is_clear(by_metric[name])]
    right = next((name for name in names if name.startswith(RIGHT)), None)
    lines = []
    if right is not None:
        change = _change_in_words(before, after, right, by_metric[right])
        stem = next(stem for stem in RIGHT if right.startswith(stem))
        lines.append(f"Right: {RIGHTNESS[stem]} in {change}.")

    def size(name: str) -> float:
        return abs(by_metric[name].value or 0.0)

    others = [name for name in clear if name != right]
    others.sort(key=size, reverse=True)
    for word in ("better", "worse"):
        changed = [name for name in others if meaning(name, by_metric[name]) == word]
        shares = [name for name in changed if about(name).good]
        if shares:
            largest = shares[0]
            change = _change_in_words(before, after, largest, by_metric[largest])
            lines.append(f"{word.capitalize()}: most of all, {about(largest).good} in {change}.")
        elif changed:  # no share of anything, so its question says what it is
            largest = changed[0]
            change = interval(by_metric[largest], sign=True)
            lines.append(f"{word.capitalize()}: {largest} by {change}: {asks(largest)}")
        else:
            lines.append(f"{word.capitalize()}: nothing else is clearly {word}.")
    compared = sum(by_metric[name].value is not None for name in names)
    could_be_clear = sum(by_metric[name].n >= MIN_PAIRS for name in names)
    questions = _counted(len({*before.questions} & {*after.questions}), "question")
    lines.append(
        f"How sure: {questions} and one run; {len(clear)} of {compared} differences are clear "
        f"(had nothing changed, about {round(could_be_clear / 20)} would be)."
    )
    return lines


def _change_in_words(before: Evaluation, after: Evaluation, name: str, change: Estimate) -> str:
    """The share of what is good before and after, with the paired difference of the result."""
    shares = []
    for run in (before, after):
        value = run.rows[name].value
        if value is not None and about(name).direction < 0:
            value = 1 - value
        shares.append("none" if value is None else f"{value:.0%}")
    return (
        f"{shares[0]} before and {shares[1]} after "
        f"(paired difference of {name} {interval(change, sign=True)})"
    )


def _right(audit: "Audit") -> str:
    """A sentence that says how often answers are right; empty if neither gold answers nor a judge
    say so.
    """
    parts = []
    names = []
    questions = 0
    for stem, meaning in RIGHTNESS.items():
        for name, row in audit.rows.items():
            if name.startswith(stem) and row.value is not None:
                parts.append(f"in {row.value:.0%} {meaning}")
                names.append(name)
                questions = max(questions, row.n)
    if not parts:
        return ""
    return f"Right: of {_counted(questions, 'question')}, {', '.join(parts)} ({', '.join(names)})."


def _share_of_good(audit: "Audit", name: str) -> str:
    """The share of what is good, with its interval, in words."""
    row = audit.rows[name]
    value = row.value or 0.0
    source = name
    if about(name).direction < 0:  # what is good is the remainder
        value = 1 - value
        source = f"1 − {name}"
    band = ""
    if row.low is not None and row.high is not None:
        low, high = row.low, row.high
        if about(name).direction < 0:
            low, high = 1 - row.high, 1 - row.low
        band = f" (95% interval {low:.0%} to {high:.0%})"
    return f"{value:.0%}{band}, {about(name).good} ({source}, {_counted(row.n, 'question')})"


def _how_sure(audit: "Audit", named: Sequence[str]) -> str:
    """A sentence with the number of trajectories, and with what makes the results uncertain.
    `named` are the results that the other sentences name.
    """
    measured = "measured"
    if not _shares(audit) and _right(audit):
        measured = "read, and nothing measured but whether answers are right"
    elif not _shares(audit):
        measured = "read, and nothing that is good or bad measured"
    sure = [f"{_counted(audit.n, 'trajectory', 'trajectories')} {measured}"]
    if failed := audit.stop_reasons.get(FAILED, 0):
        sure.append(f"{_counted(failed, 'episode')} failed, which says nothing about the agent")
    if audit.errors:
        sure.append(f"{_counted(audit.errors, 'row')} could not be read")
    if audit.abstained:
        sure.append(f"{_counted(audit.abstained, 'row')} not judged completely")
    if audit.source_error:
        sure.append("the file could not be read to its end")
    compared = [name for name in named if warning_of(name)]
    if compared:
        verb = "compares" if len(compared) == 1 else "compare"
        sure.append(f"{' and '.join(compared)} {verb} words, not meaning (docs/judges.md)")
    if any(audit.rows[name].low is None for name in named):
        sure.append("a single question has no interval")
    return f"How sure: {'; '.join(sure)}."


def _counted(count: int, singular: str, plural: str = "") -> str:
    noun = singular if count == 1 else plural or f"{singular}s"
    return f"{count:,} {noun}"


def _unanswered(audit: "Audit") -> str | None:
    """A sentence that says that most rows have no answer, and which call may be one; `None` if most
    have one.
    """
    if audit.unanswered * 2 <= audit.n:
        return None
    rows = f"{audit.unanswered:,} of {audit.n:,} rows end without an answer"
    if not audit.ends_in or sum(audit.ends_in.values()) * 2 < audit.unanswered:
        return f"{rows}."
    tool, calls = max(audit.ends_in.items(), key=lambda entry: entry[1])
    tool = as_line(tool)
    return (
        f"{rows}, {calls:,} of them in a call of {tool}: is it the answer? (--answer-tool {tool})"
    )


def evaluation_table(before: Evaluation, after: Evaluation | None, names: tuple[str, str]) -> str:
    """An aligned text table of one or two evaluations.

    An arrow says which direction is better. `n` counts questions; `+3 n/a` stands for 3 rollouts
    that the metric does not apply to, and `+1 abstained` for one without a verdict of its judge. If
    the two evaluations have different counts, both are shown. A difference is marked `*` if it is
    over at least six questions and its interval leaves out 0.
    """
    rows = evaluation_rows(before, after, names)
    lines = [aligned(rows)]
    if after is not None:
        lines.append(PAIRED)
    about_words = warning(row[0] for row in rows)
    if about_words:
        lines.append(about_words)
    return "\n".join(lines)


def evaluation_rows(
    before: Evaluation, after: Evaluation | None, names: tuple[str, str]
) -> list[list[str]]:
    """The cells of `evaluation_table`, header first."""
    if after is None:
        rows = [["metric", "better", f"{names[0]} [95% CI]", "n"]]
        for metric, estimate in before.rows.items():
            rows.append([metric, arrow(metric), interval(estimate), _count(estimate)])
        return rows
    sides = [f"{name} [95% CI]" for name in names]
    rows = [["metric", "better", *sides, "paired difference [95% CI]", "n"]]
    for metric in dict.fromkeys((*before.rows, *after.rows)):
        row_before = before.rows.get(metric)
        row_after = after.rows.get(metric)
        counts = dict.fromkeys(
            _count(estimate) for estimate in (row_before, row_after) if estimate is not None
        )
        change = marked(difference(before, after, metric))
        cells = [interval(row_before), interval(row_after), change, " / ".join(counts)]
        rows.append([metric, arrow(metric), *cells])
    return rows


def aligned(rows: list[list[str]]) -> str:
    """The cells as text in columns. The first row is the header, and underlined."""
    cells = _as_lines(rows)
    header, *lines = columns(cells)
    rule = "  ".join("─" * width for width in _widths(cells))
    return "\n".join([header, rule, *lines])


def columns(rows: list[list[str]]) -> list[str]:
    """The cells as lines of text, in columns. A line break in a cell begins no new line."""
    cells = _as_lines(rows)
    widths = _widths(cells)
    lines = []
    for row in cells:
        padded = [cell.ljust(width) for cell, width in zip(row, widths, strict=True)]
        lines.append("  ".join(padded).rstrip())
    return lines


def _as_lines(rows: list[list[str]]) -> list[list[str]]:
    return [[as_line(cell) for cell in row] for row in rows]


def _widths(rows: list[list[str]]) -> list[int]:
    return [max(map(len, column)) for column in zip(*rows, strict=True)]


def interval(estimate: Estimate | None, sign: bool = False) -> str:
    """`0.750 [0.301, 0.954]`, or a dash without a value. With `sign`, `+` stands before numbers
    above 0.
    """
    if estimate is None or estimate.value is None:
        return "-"
    form = "+.3f" if sign else ".3f"
    text = f"{estimate.value:{form}}"
    if estimate.low is not None and estimate.high is not None:
        text += f" [{estimate.low:{form}}, {estimate.high:{form}}]"
    return text


def is_clear(change: Estimate) -> bool:
    """Whether a paired difference is over enough questions and its interval leaves out 0."""
    if change.n < MIN_PAIRS or change.low is None or change.high is None:
        return False
    return change.low > 0 or change.high < 0


def meaning(name: str, change: Estimate) -> str:
    """The meaning of a paired difference of this result: "better" or "worse", or "higher" or
    "lower" for a result that is neither good nor bad. Empty for a difference that is not clear.
    """
    if not is_clear(change):
        return ""
    rises = (change.value or 0.0) > 0
    direction = about(name).direction
    if direction == 0:
        return "higher" if rises else "lower"
    return "better" if rises == (direction > 0) else "worse"


def marked(change: Estimate, after_holm: bool = False) -> str:
    """A paired difference with its sign, and `*` where it is clear, or `**` where it also is
    `after_holm`, after Holm's correction.
    """
    text = interval(change, sign=True)
    if not is_clear(change):
        return text
    return f"{text} **" if after_holm else f"{text} *"


def _count(estimate: Estimate) -> str:
    counts = [str(estimate.n)]
    if estimate.not_applicable:
        counts.append(f"+{estimate.not_applicable} n/a")
    if estimate.abstained:
        counts.append(f"+{estimate.abstained} abstained")
    return " ".join(counts)
