"""How well the dialects read files of trajectories: detection, Issues, and answers against those
recorded beside them.

    python scripts/dialect_report.py rollouts.jsonl more/ [--dialect NAME] [--json]

A row counts as clean when its trajectory was parsed without Issues; the interval is Wilson's at 95
%. Recorded answers are looked for in `pred_ans` and `extracted` (what the system's own code took
for the answer), never among the gold answers, and compared to the letter after blanks are stripped.
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
    """One file's figures; `clean` and `agree` are shares of the rows that were read, `issues`
    counts rows by kind.
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
    """Print the table, or JSON; 1 when a file could not be read."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "paths", nargs="+", type=Path, help="files, or folders that are searched for them"
    )
    parser.add_argument("--dialect", help="read all rows in this dialect; else each is detected")
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
    """The files named, and those in the folders named."""
    for path in paths:
        if path.is_dir():
            yield from sorted(found for found in path.rglob("*") if found.name.endswith(ENDINGS))
        else:
            yield path


def report(path: Path, dialect: str | None = None) -> Report:
    """Read one file.

    Raises:
        DataError: when it cannot be read.
    """
    found = Report(path.name)
    source = RowSource(path, ReadingSettings(dialect))
    for raw in source:
        row = source.reader(raw)
        found.rows += 1
        if row.trajectory is None:
            found.unread[row.error] += 1
            continue
        trajectory, issues = row.trajectory, row.trajectory.all_issues()
        found.dialects[trajectory.dialect] += 1
        found.issues.update({issue.kind for issue in issues})
        found.clean.append(not issues)
        found.answered += trajectory.answer is not None
        found.steps += len(trajectory.steps)
        found.evidence += sum(len(step.evidence) for step in trajectory.steps)
        recorded = recorded_answer(raw.data)
        if recorded is not None:
            found.agree.append((trajectory.answer or "") == recorded)
    if source.error:
        raise DataError(source.error)
    return found


def recorded_answer(row: bytes) -> str | None:
    """The answer that the system which wrote the row took from its text, if it is recorded."""
    try:
        columns = json.loads(row)
    except ValueError:
        return None
    values = (
        [columns[name] for name in RECORDED if name in columns] if isinstance(columns, dict) else []
    )
    return values[0].strip() if values and isinstance(values[0], str) else None


def as_table(reports: Sequence[Report]) -> str:
    """A Markdown table, and the Issues of each file below it."""
    lines = [
        "| file | rows | unread | dialects | answered | without Issues | answers as recorded |",
        "|---|---|---|---|---|---|---|",
    ]
    for one in reports:
        counts = one.dialects.most_common()
        dialects = ", ".join(f"{as_code(name)} {count}" for name, count in counts)
        cells = [
            as_code(one.file),
            one.rows,
            one.unread.total(),
            dialects,
            one.answered,
            share(one.clean),
            share(one.agree),
        ]
        lines.append(f"| {' | '.join(map(str, cells))} |")
    for one in reports:
        kinds = ", ".join(f"{kind} {count}" for kind, count in one.issues.most_common()) or "none"
        lines += [
            "",
            f"{as_markdown(one.file)}: {one.steps} steps, {one.evidence} pieces of evidence; rows with Issues: {kinds}",
        ]
        for error, count in one.unread.most_common(5):
            lines.append(f"  unread, {count} rows: {as_markdown(error)}")
    return "\n".join(lines)


def as_json(reports: Sequence[Report]) -> str:
    """The same figures, shares as value, low, high and n."""
    rows = [
        {**vars(one), "clean": interval(one.clean), "agree": interval(one.agree)} for one in reports
    ]
    return json.dumps(rows, ensure_ascii=False, indent=2)


def share(values: Sequence[bool]) -> str:
    """A share with its interval, in words for a table."""
    return str(estimate(values)) if values else "-"


def interval(values: Sequence[bool]) -> dict[str, float | int | None]:
    """A share with its interval, as a mapping."""
    found = estimate(values)
    return {"value": found.value, "low": found.low, "high": found.high, "n": found.n}


def estimate(values: Sequence[bool]) -> Estimate:
    """The share of true values with Wilson's interval."""
    return mean_ci([float(value) for value in values])


if __name__ == "__main__":
    sys.exit(main())
