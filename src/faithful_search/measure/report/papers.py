"""Results in the shape of the papers' tables: a method a row, a question set or a metric a column,
the best one in bold, as Markdown, LaTeX or a page; with the papers' own numbers beside them.
"""

import json
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

import msgspec

from ...errors import ConfigError
from ...escape import as_line, as_markdown
from ..comparison import Comparison
from ..metrics import about
from ..stats import NOTHING, Estimate
from ..suite_comparison import SuiteComparison
from ..writing import write_whole
from . import page

FILES = {"markdown": "results.md", "latex": "results.tex", "html": "results.html"}
"""The names of the files that `write` writes, by their format."""
FIRST = ("exact_match", "f1", "lm_accuracy")
"""The metrics that are shown by default, where they were measured."""
MACRO = "macro mean"
HALF = "± is half of the 95 % interval, the longer one where they differ."
"""How a LaTeX table, which has less room than a page, shows intervals."""
_LATEX = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
_LATEX |= {character: f"\\{character}" for character in "&%$#_{}"}
# At the beginning of a row the first two would belong to the line break before it; the others are
# other characters in LaTeX's usual fonts
_LATEX |= {"[": "{[}", "*": "{*}", "<": r"\textless{}", ">": r"\textgreater{}", "|": r"\textbar{}"}
_LATEX |= {"†": r"$^\dagger$", "±": r"$\pm$", "−": "$-$", "×": r"$\times$", "…": r"\dots{}"}
_LATEX |= {"α": r"$\alpha$", "β": r"$\beta$", "λ": r"$\lambda$", "τ": r"$\tau$"}


class PaperLine(msgspec.Struct, frozen=True):
    """A row of a table: a method and its cells. `theirs` names the paper whose number it is."""

    name: str
    cells: list[Estimate]
    theirs: str = ""


class PaperTable(msgspec.Struct, frozen=True):
    """A table.

    Attributes:
        title: what it shows.
        columns: their headings.
        directions: of each column 1 where more is better, -1 where less is, 0 for neither.
        lines: the rows; only our own can be the best of a column.
        notes: sentences below it.
    """

    title: str
    columns: list[str]
    directions: Sequence[int]
    lines: list[PaperLine]
    notes: list[str] = []

    def best(self, place: int) -> float | None:
        """The best one of our own values in a column; `None` where no direction is better, or all
        values are the same.
        """
        cells = [line.cells[place].value for line in self.lines if not line.theirs]
        values = [value for value in cells if value is not None]
        direction = self.directions[place]
        if not direction or len(set(values)) < 2:
            return None
        return max(values) if direction > 0 else min(values)


def tables(
    comparison: Comparison | SuiteComparison,
    metrics: Sequence[str] = (),
    beside: str | None = None,
) -> list[PaperTable]:
    """The tables of a comparison: one for each metric with a column for each set, or a single one
    with a column for each metric where there are no sets.

    Args:
        comparison: of what is shown.
        metrics: by default those of `FIRST` that were measured.
        beside: the paper whose numbers stand beside ours, as data/published_results.json names it; only next to sets.

    Raises `ConfigError` for a metric that was not measured, and for a paper without sets.
    """
    unknown = [metric for metric in metrics if metric not in comparison.rows]
    if unknown:
        raise ConfigError(
            f"no result is called {unknown[0]!r}; there are: {', '.join(comparison.rows)}"
        )
    chosen = list(metrics) or [metric for metric in FIRST if metric in comparison.rows]
    chosen = chosen or list(comparison.rows)[: len(FIRST)]
    if isinstance(comparison, SuiteComparison):
        return [_of_sets(comparison, metric, beside) for metric in chosen]
    if beside is not None:
        raise ConfigError(
            "--beside needs evaluations of suites: the papers' numbers are by question set"
        )
    lines = []
    for place, name in enumerate(comparison.names):
        lines.append(PaperLine(name, [comparison.rows[metric][place] for metric in chosen]))
    directions = [about(metric).direction for metric in chosen]
    return [PaperTable("Results", chosen, directions, lines, comparison.notes)]


def _of_sets(comparison: SuiteComparison, metric: str, beside: str | None) -> PaperTable:
    columns = [*comparison.sets, MACRO]
    lines = []
    for place, name in enumerate(comparison.names):
        by_set = comparison.rows[metric][place]
        cells = [by_set[set_name] for set_name in comparison.sets]
        lines.append(PaperLine(name, [*cells, comparison.macro[metric][place]]))
    notes = list(comparison.notes)
    if beside is not None:
        paper, table = published(beside, metric)
        for name, values in table["rows"].items():
            by_set = dict(zip(table["sets"], map(_published, values), strict=True))
            cells = [by_set.get(set_name, NOTHING) for set_name in comparison.sets]
            theirs = [cell.value for cell in cells if cell.value is not None]
            # Only of the very sets that ours is of
            complete = len(theirs) == len(cells)
            mean = _published(sum(theirs) / len(theirs)) if complete else NOTHING
            lines.append(PaperLine(name, [*cells, mean], theirs=paper["paper"]))
        if table["rows"]:
            notes.append(
                f"† {paper['paper']}, {table['from']}: the paper's own numbers, not measured here. "
                f"Theirs are of {paper['measured_on']}. Models, corpora and questions differ from "
                "those of the other rows, so that only differences within a part compare methods."
            )
        else:
            notes.append(f"{paper['paper']} has no numbers of {metric} by question set.")
    direction = about(metric).direction
    return PaperTable(metric, columns, [direction] * len(columns), lines, notes)


def _published(value: float | None) -> Estimate:
    return msgspec.structs.replace(NOTHING, value=value)


def published_file() -> Path:
    """The file with the papers' own numbers, by paper, table and set."""
    return Path(str(files("faithful_search") / "data" / "published_results.json"))


def published(paper: str, metric: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """What a paper says of itself, and its table of this metric; one without rows if it has none.

    Raises `ConfigError` for a paper that is not known.
    """
    data = json.loads(published_file().read_bytes())
    if paper not in data:
        raise ConfigError(f"no numbers of a paper called {paper!r}; there are: {', '.join(data)}")
    for table in data[paper]["tables"]:
        if table["metric"] == metric:
            return data[paper], table
    return data[paper], {"rows": {}, "sets": [], "from": ""}


def write(paper_tables: Sequence[PaperTable], form: str, folder: Path) -> Path:
    """Write the tables to a file of a format of `FILES`. Returns its path."""
    path = folder / FILES[form]
    if form == "html":
        rows = [(table, cells_of(table)) for table in paper_tables]
        return page.render(path, "results.html", tables=rows)
    text = as_markdown_text(paper_tables) if form == "markdown" else as_latex(paper_tables)
    return write_whole(path, text.encode("utf-8", "replace"))


def as_markdown_text(paper_tables: Sequence[PaperTable]) -> str:
    """The tables as Markdown."""
    parts = []
    for table in paper_tables:
        columns = [as_markdown(column) for column in ("method", *table.columns)]
        lines = [f"**{as_markdown(table.title)}**", "", f"| {' | '.join(columns)} |"]
        lines.append(f"|---{'|---:' * len(table.columns)}|")
        for line in table.lines:
            cells = [str(as_markdown(line.name)) + (" †" if line.theirs else "")]
            for place, estimate in enumerate(line.cells):
                bold = "**{}**" if _is_best(table, line, place) else "{}"
                cells.append(_cell(estimate, bold))
            lines.append(f"| {' | '.join(cells)} |")
        notes = [f"{as_markdown(note)}" for note in table.notes]
        parts.append("\n".join([*lines, "", *notes]).rstrip())
    return "\n\n".join(parts) + "\n"


def as_latex(paper_tables: Sequence[PaperTable]) -> str:
    """The tables as LaTeX with the package booktabs; each needs `\\usepackage{booktabs}`.

    pdfLaTeX knows Latin letters and a few others; names in other scripts need LuaLaTeX or XeLaTeX
    and a font that has them.
    """
    parts = []
    for table in paper_tables:
        lines = [r"\begin{table*}", r"\centering\small"]
        lines += [rf"\begin{{tabular}}{{l{'r' * len(table.columns)}}}", r"\toprule"]
        lines += [" & ".join(map(_latex, ("method", *table.columns))) + r" \\", r"\midrule"]
        were_ours = True
        for line in table.lines:
            if line.theirs and were_ours:
                lines.append(r"\midrule")
                were_ours = False
            cells = [_latex(line.name) + (r"$^\dagger$" if line.theirs else "")]
            for place, estimate in enumerate(line.cells):
                bold = r"\textbf{{{}}}" if _is_best(table, line, place) else "{}"
                cells.append(_narrow_cell(estimate, bold))
            lines.append(" & ".join(cells) + r" \\")
        lines += [r"\bottomrule", r"\end{tabular}"]
        caption = " ".join([f"{table.title}. {HALF}", *table.notes])
        lines += [rf"\caption{{{_latex(caption)}}}", r"\end{table*}"]
        parts.append("\n".join(lines))
    return "% needs \\usepackage{booktabs}\n" + "\n\n".join(parts) + "\n"


def cells_of(table: PaperTable) -> list[dict[str, Any]]:
    """The rows of a table for a page: name, whose they are, and each cell's text with whether it is
    the best of its column.
    """
    rows: list[dict[str, Any]] = []
    for line in table.lines:
        cells = [
            (_cell(estimate), _is_best(table, line, place))
            for place, estimate in enumerate(line.cells)
        ]
        rows.append({"name": line.name, "theirs": line.theirs, "cells": cells})
    return rows


def _is_best(table: PaperTable, line: PaperLine, place: int) -> bool:
    best = table.best(place)
    return not line.theirs and best is not None and line.cells[place].value == best


def _cell(estimate: Estimate, bold: str = "{}") -> str:
    """A value with its interval; a dash without a value. `bold` marks the value."""
    if estimate.value is None:
        return "-"
    text = bold.format(f"{estimate.value:.3f}")
    if estimate.low is None or estimate.high is None:
        return text
    return f"{text} [{estimate.low:.3f}, {estimate.high:.3f}]"


def _narrow_cell(estimate: Estimate, bold: str) -> str:
    """A value with half its interval, in LaTeX."""
    if estimate.value is None:
        return "-"
    text = bold.format(f"{estimate.value:.3f}")
    if estimate.low is None or estimate.high is None:
        return text
    half = max(estimate.value - estimate.low, estimate.high - estimate.value)
    return rf"{text} {{\scriptsize $\pm${half:.3f}}}"


def _latex(text: str) -> str:
    """`text` as LaTeX shows it; two hyphens stay two."""
    escaped = "".join(_LATEX.get(character, character) for character in as_line(text))
    return escaped.replace("--", "-{}-")
