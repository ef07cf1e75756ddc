"""Results in the form of the papers' tables, as Markdown, LaTeX or a page. A row is a method, a
column a question set or a metric, and the best value of a column is bold. The papers' own numbers
may stand beside them.
"""

import json
from collections.abc import Mapping, Sequence
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
_LATEX = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    # At the beginning of a row these two would be read as arguments of the line break before it
    "[": "{[}",
    "*": "{*}",
    # In LaTeX's usual fonts these are other characters
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    "†": r"$^\dagger$",
    "±": r"$\pm$",
    "−": "$-$",
    "×": r"$\times$",
    "…": r"\dots{}",
    "α": r"$\alpha$",
    "β": r"$\beta$",
    "λ": r"$\lambda$",
    "τ": r"$\tau$",
    **{character: f"\\{character}" for character in "&%$#_{}"},
}
"""How LaTeX writes a character, where it is not as it is."""


class PaperLine(msgspec.Struct, frozen=True):
    """A row of a table: a method and its cells. `theirs` is the paper that the numbers are from;
    empty for our own.
    """

    name: str
    cells: list[Estimate]
    theirs: str = ""


class PaperTable(msgspec.Struct, frozen=True):
    """A table.

    Attributes:
        title: what it shows.
        columns: their headings.
        directions: for each column 1 if more is better, -1 if less is, 0 for neither.
        lines: the rows. Only our own values are marked as the best of a column.
        notes: sentences below it.
    """

    title: str
    columns: list[str]
    directions: Sequence[int]
    lines: list[PaperLine]
    notes: list[str] = []

    def best(self, place: int) -> float | None:
        """The best of our own values in a column. `None` if neither direction is better, or if
        there are no two different values.
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
    """The tables of a comparison. Of suites there is one for each metric, with a column for each
    set. Of single evaluations there is one table, with a column for each metric.

    Args:
        comparison: what is shown.
        metrics: by default those of `FIRST` that were measured.
        beside: the paper whose numbers stand beside ours, by its name in
            data/published_results.json. For suites only.

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
    """The table of a metric with a column for each set and one for the macro mean."""
    columns = [*comparison.sets, MACRO]
    lines = []
    for place, name in enumerate(comparison.names):
        by_set = comparison.rows[metric][place]
        cells = [by_set[set_name] for set_name in comparison.sets]
        lines.append(PaperLine(name, [*cells, comparison.macro[metric][place]]))
    notes = list(comparison.notes)
    if beside is not None:
        paper, table = published(beside, metric)
        lines += _lines_of_paper(paper["paper"], table, comparison.sets)
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


def _lines_of_paper(paper: str, table: Mapping[str, Any], sets: Sequence[str]) -> list[PaperLine]:
    """The lines of a paper's own table, with its numbers on these sets and their mean."""
    lines = []
    for name, values in table["rows"].items():
        by_set = dict(zip(table["sets"], map(_published, values), strict=True))
        cells = [by_set.get(set_name, NOTHING) for set_name in sets]
        numbers = [cell.value for cell in cells if cell.value is not None]
        # A mean of other sets than ours could not be compared with ours
        mean = NOTHING
        if len(numbers) == len(cells):
            mean = _published(sum(numbers) / len(numbers))
        lines.append(PaperLine(name, [*cells, mean], theirs=paper))
    return lines


def _published(value: float | None) -> Estimate:
    """A number from a paper, which has no interval."""
    return msgspec.structs.replace(NOTHING, value=value)


def published_file() -> Path:
    """The file with the papers' own numbers, by paper, table and set."""
    return Path(str(files("faithful_search") / "data" / "published_results.json"))


def published(paper: str, metric: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """The entry of a paper, and its table of this metric; a table without rows if it has none.

    Raises `ConfigError` for an unknown paper.
    """
    data = json.loads(published_file().read_bytes())
    if paper not in data:
        raise ConfigError(f"no numbers of a paper called {paper!r}; there are: {', '.join(data)}")
    for table in data[paper]["tables"]:
        if table["metric"] == metric:
            return data[paper], table
    return data[paper], {"rows": {}, "sets": [], "from": ""}


def write(paper_tables: Sequence[PaperTable], form: str, folder: Path) -> Path:
    """Write the tables to a file in this format, one of `FILES`. Returns its path."""
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
            name = as_markdown(line.name)
            cells = [f"{name} †" if line.theirs else f"{name}"]
            for place, estimate in enumerate(line.cells):
                form = "**{}**" if _is_best(table, line, place) else "{}"
                cells.append(_cell(estimate, form))
            lines.append(f"| {' | '.join(cells)} |")
        notes = [f"{as_markdown(note)}" for note in table.notes]
        parts.append("\n".join([*lines, "", *notes]).rstrip())
    return "\n\n".join(parts) + "\n"


def as_latex(paper_tables: Sequence[PaperTable]) -> str:
    """The tables as LaTeX. The document needs `\\usepackage{booktabs}`.

    pdfLaTeX knows Latin letters and a few others. Names in other scripts need LuaLaTeX or XeLaTeX,
    and a font that has them.
    """
    parts = []
    for table in paper_tables:
        alignment = "l" + "r" * len(table.columns)
        header = " & ".join(map(_latex, ("method", *table.columns)))
        lines = [
            r"\begin{table*}",
            r"\centering\small",
            rf"\begin{{tabular}}{{{alignment}}}",
            r"\toprule",
            rf"{header} \\",
            r"\midrule",
        ]
        has_rule = False  # between our rows and those of a paper
        for line in table.lines:
            if line.theirs and not has_rule:
                lines.append(r"\midrule")
                has_rule = True
            name = _latex(line.name)
            cells = [rf"{name}$^\dagger$" if line.theirs else name]
            for place, estimate in enumerate(line.cells):
                form = r"\textbf{{{}}}" if _is_best(table, line, place) else "{}"
                cells.append(_narrow_cell(estimate, form))
            lines.append(" & ".join(cells) + r" \\")
        caption = " ".join([f"{table.title}. {HALF}", *table.notes])
        lines += [
            r"\bottomrule",
            r"\end{tabular}",
            rf"\caption{{{_latex(caption)}}}",
            r"\end{table*}",
        ]
        parts.append("\n".join(lines))
    return "% needs \\usepackage{booktabs}\n" + "\n\n".join(parts) + "\n"


def cells_of(table: PaperTable) -> list[dict[str, Any]]:
    """The rows of a table for a page: the name, the paper that it is from, and for each cell its
    text and whether it is the best of its column.
    """
    rows: list[dict[str, Any]] = []
    for line in table.lines:
        cells = []
        for place, estimate in enumerate(line.cells):
            cells.append((_cell(estimate), _is_best(table, line, place)))
        rows.append({"name": line.name, "theirs": line.theirs, "cells": cells})
    return rows


def _is_best(table: PaperTable, line: PaperLine, place: int) -> bool:
    """Whether the cell of this row and column is the best of its column."""
    best = table.best(place)
    return not line.theirs and best is not None and line.cells[place].value == best


def _cell(estimate: Estimate, form: str = "{}") -> str:
    """A value with its interval; a dash without a value. `form` is the format of the value, such as
    a bold one.
    """
    if estimate.value is None:
        return "-"
    text = form.format(f"{estimate.value:.3f}")
    if estimate.low is None or estimate.high is None:
        return text
    return f"{text} [{estimate.low:.3f}, {estimate.high:.3f}]"


def _narrow_cell(estimate: Estimate, form: str) -> str:
    """As `_cell`, with half of the interval, in LaTeX."""
    if estimate.value is None:
        return "-"
    text = form.format(f"{estimate.value:.3f}")
    if estimate.low is None or estimate.high is None:
        return text
    half = max(estimate.value - estimate.low, estimate.high - estimate.value)
    return rf"{text} {{\scriptsize $\pm${half:.3f}}}"


def _latex(text: str) -> str:
    """The text escaped for LaTeX."""
    escaped = "".join(_LATEX.get(character, character) for character in as_line(text))
    return escaped.replace("--", "-{}-")  # LaTeX would make a dash of two hyphens
