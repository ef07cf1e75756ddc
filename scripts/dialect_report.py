"""Report how well the dialects read files of trajectories: which dialect each row is in, how many
rows are read without Issues, and how many answers are those that were recorded.

    python scripts/dialect_report.py rollouts.jsonl more/ [--dialect NAME] [--json]

A recorded answer is what the system that wrote the row took for its answer, in a column `pred_ans`
or `extracted`; gold answers are none. It must be the same to the letter, apart from blanks around
it. Shares have Wilson's 95 % interval.
"""

import argparse
import json
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from faithful_search.errors import DataError, FaithfulSearchError
from faithful_search.escape import as_code, as_line, as_markdown
from faithful_search.measure.stats import Estimate, mean_ci
from faithful_search.reading.rows import RowSource
from faithful_search.reading.settings import ReadingSettings

ENDINGS = (".jsonl", ".jsonl.gz", ".json", ".json.gz", ".parquet")
RECORDED = ("pred_ans", "extracted")


@dataclass
class Report:
    """The figures of one file.

    Attributes:
        file: its name.
        rows: the number of rows.
        unread: the rows that could not be read, by the reason.
        dialects: the rows that were read, by their dialect.
        issues: the rows with an Issue of a kind, by the kind.
        clean: for each row that was read, whether it has no Issues.
        agree: for each row with a recorded answer, whether it is the answer that was read.
        answered: the number of rows with an answer.
        steps: the number of steps in all rows.
        evidence: the number of passages in all rows.
    """

    file: str
    rows: int = 0
    unread: Counter[str] = field(default_factory=Counter)
    dialects: Counter[str] = field(default_factory=Counter)
    issues: Counter[str] = field(default_factory=Counter)
    clean: list[bool] = field(default_factory=list)
    agree: list[bool] = field(default_factory=list)
    answered: int = 0
    steps: int = 0
    evidence: int = 0


def main(argv: Sequence[str] | None = None) -> int:
    """Print the table, or JSON; returns 1 if a file could not be read, else 0."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "paths", nargs="+", type=Path, help="files, or folders that are searched for them"
    )
    parser.add_argument("--dialect", help="dialect of all rows; by default detected for each row")
    parser.add_argument("--json", action="store_true", help="print JSON")
    arguments = parser.parse_args(argv)
    reports, failed = [], False
    for path in files(arguments.paths):
        try:
            reports.append(report(path, arguments.dialect))
        except FaithfulSearchError as error:
            print(as_line(str(error)), file=sys.stderr)
            failed = True
    print(as_json(reports) if arguments.json else as_table(reports))
    return int(failed)


def files(paths: Sequence[Path]) -> Iterator[Path]:
    """These files, and in the place of a folder the files of trajectories in it."""
    for path in paths:
        if path.is_dir():
            yield from sorted(file for file in path.rglob("*") if file.name.endswith(ENDINGS))
        else:
            yield path


def report(path: Path, dialect: str | None = None) -> Report:
    """Read one file. Raises `DataError` when it cannot be read."""
    figures = Report(path.name)
    source = RowSource(path, ReadingSettings(dialect))
    for raw in source:
        row = source.reader(raw)
        figures.rows += 1
        trajectory = row.trajectory
        if trajectory is None:
            figures.unread[row.error] += 1
            continue
        issues = trajectory.all_issues()
        figures.dialects[trajectory.dialect] += 1
        figures.issues.update(sorted({issue.kind for issue in issues}))
        figures.clean.append(not issues)
        figures.answered += trajectory.answer is not None
        figures.steps += len(trajectory.steps)
        figures.evidence += sum(len(step.evidence) for step in trajectory.steps)
        recorded = recorded_answer(raw.data)
        if recorded is not None:
            figures.agree.append((trajectory.answer or "") == recorded)
    if source.error:
        raise DataError(source.error)
    return figures


def recorded_answer(row: bytes) -> str | None:
    """The answer that the system which wrote the row took from its text; `None` where none is
    recorded.
    """
    try:
        columns = json.loads(row)
    except ValueError:
        return None
    if not isinstance(columns, dict):
        return None
    for name in RECORDED:
        if name in columns:
            answer = columns[name]
            return answer.strip() if isinstance(answer, str) else None
    return None


def as_table(reports: Sequence[Report]) -> str:
    """A Markdown table, and the Issues of each file below it."""
    lines = [
        "| file | rows | unread | dialects | answered | without Issues | answers as recorded |",
        "|---|---|---|---|---|---|---|",
    ]
    for figures in reports:
        counts = figures.dialects.most_common()
        dialects = ", ".join(f"{as_code(name)} {count}" for name, count in counts)
        cells = [
            as_code(figures.file),
            figures.rows,
            figures.unread.total(),
            dialects,
            figures.answered,
            share(figures.clean),
            share(figures.agree),
        ]
        lines.append(f"| {' | '.join(map(str, cells))} |")
    for figures in reports:
        counts = figures.issues.most_common()
        kinds = ", ".join(f"{kind} {count}" for kind, count in counts)
        lines.append("")
        lines.append(
            f"{as_markdown(figures.file)}: {figures.steps} steps, {figures.evidence} pieces of "
            f"evidence; rows with Issues: {kinds or 'none'}"
        )
        for error, count in figures.unread.most_common(5):
            lines.append(f"  unread, {count} rows: {as_markdown(error)}")
    return "\n".join(lines)


def as_json(reports: Sequence[Report]) -> str:
    """The same figures, shares as value, low, high and n."""
    rows = []
    for figures in reports:
        shares = {"clean": interval(figures.clean), "agree": interval(figures.agree)}
        rows.append({**vars(figures), **shares})
    return json.dumps(rows, ensure_ascii=False, indent=2)


def share(values: Sequence[bool]) -> str:
    """A share with its interval, for a cell of the table."""
    return str(estimate(values)) if values else "-"


def interval(values: Sequence[bool]) -> dict[str, float | int | None]:
    """A share with its interval, as a mapping."""
    result = estimate(values)
    return {"value": result.value, "low": result.low, "high": result.high, "n": result.n}


def estimate(values: Sequence[bool]) -> Estimate:
    """The share of true values with Wilson's interval."""
    return mean_ci([float(value) for value in values])


if __name__ == "__main__":
    sys.exit(main())
