"""`faithful-search audit`: measure a file of trajectories."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ..errors import ConfigError
from .judge_options import Progress, judge_of, judge_options
from .options import FOLDER, config, debug, echo, trust_remote_code

if TYPE_CHECKING:
    from ..inference.base import Generator
    from ..measure.audit import Audit

UNFINISHED = 3


@click.command()
@click.argument("file")
@judge_options
@click.option("--metrics", help="Names, separated by commas; by default all that need no policy.")
@click.option(
    "--how", type=click.Choice(["squad", "pokee"]), default="squad", show_default=True, help="Normaliser of answers."
)
@click.option("--dialect", help="How all rows are written; by default each row's is detected.")
@click.option("--text-column", help="The column that holds the text; by default a known name.")
@click.option(
    "--policy", type=click.Path(path_type=Path), help="The model that wrote the rows: adds evidence_sensitivity."
)
@trust_remote_code
@click.option("--out", type=FOLDER, help="Folder of the results; by default NAME-audit here.")
@click.option("--limit", type=click.IntRange(min=1), help="Read only so many of the first rows.")
@click.option("--workers", type=click.IntRange(min=1), help="Processes; by default one for each core.")
@click.option("--overwrite", is_flag=True, help="Begin anew and replace what the folder holds.")
@click.option("--no-report", is_flag=True, help="Write no report.html.")
@click.option(
    "--report-rows", type=click.IntRange(min=0), default=200, show_default=True, help="Rows shown in the report."
)
@config
@debug
@click.pass_context
def audit(
    ctx: click.Context,
    file: str,
    metrics: str | None,
    how: Any,
    dialect: str | None,
    text_column: str | None,
    policy: Path | None,
    trust_remote_code: bool,
    out: Path | None,
    limit: int | None,
    workers: int | None,
    overwrite: bool,
    no_report: bool,
    report_rows: int,
    **judging: Any,
) -> None:
    """Measure how faithful the trajectories in FILE are to their evidence.

    FILE is .jsonl, .json (both also .gz), .parquet, or - for JSON lines on the standard input; its rows are texts, chat
    messages or trajectories, in any known dialect. Run the same command again to go on after an interruption.
    """
    from ..measure.audit import SPOOLED
    from ..measure.audit import audit as measure

    folder, progress = out or Path(_name(file) + "-audit"), Progress()
    asked = judge_of(judging)
    found = measure(
        file,
        folder,
        metrics=None if metrics is None else [name.strip() for name in metrics.split(",") if name.strip()],
        judge=progress.of(asked),
        how=how,
        dialect=dialect,
        text_column=text_column,
        policy=None if policy is None else _generator(policy, trust_remote_code),
        workers=workers,
        limit=limit,
        resume=not overwrite,
        on_progress=progress,
    )
    echo(f"{found}\n")
    source = folder / SPOOLED if file == "-" else Path(file)
    written = ["audit.json", "scores.jsonl"]
    if not no_report and _report(folder, found, source, dialect, text_column, report_rows):
        written.insert(0, "report.html")
    echo(f"{', '.join(written)} in {folder}")
    if not found.complete:
        echo(_incomplete(found), err=True)
        ctx.exit(UNFINISHED)


def _name(file: str) -> str:
    """`rollouts` of `some/rollouts.jsonl.gz`."""
    if file == "-":
        return "stdin"
    return Path(file.removesuffix(".gz")).stem or "trajectories"


def _generator(policy: Path, trust_remote_code: bool) -> Generator:
    try:
        from ..inference.loading import open_generator
    except ImportError as error:
        raise ConfigError(f"--policy needs {error.name}: pip install 'faithful-search[train]'") from error
    return open_generator(str(policy), trust_remote_code=trust_remote_code)


def _report(folder: Path, found: Audit, source: Path, dialect: str | None, text_column: str | None, rows: int) -> bool:
    """Write the page: some rows are chosen from the scores and read once more. The audit stands without it."""
    from ..measure.audit import SCORES, choose_rows, pick

    try:
        from ..analysis import audit_page

        chosen = choose_rows(folder / SCORES, found.primary, rows, found.n + found.errors)
        shown = pick(source, chosen, dialect, text_column)
        audit_page.write(folder / "report.html", found, folder / SCORES, shown)
    except OSError as error:
        echo(f"no report.html: it cannot be written: {error}", err=True)
        return False
    return True


def _incomplete(found: Audit) -> str:
    lines = [f"the source could not be read to its end: {found.source_error}"] if found.source_error else []
    if found.errors:
        lines.append(f"rows that could not be read: {found.errors}")
        lines += [f"  row {item.row}: {item.error}" for item in found.unread[:5]]
    if found.abstained:
        lines.append(f"rows not judged completely: {found.abstained}; the same command asks again about these only")
        lines += [f"  row {item.row}, {item.metric}: {item.why}" for item in found.unjudged[:5]]
        lines.append("where more than a tenth is open no mean is given: what needs no judge is no sample of the rest")
    return "\n".join([*lines, "all of them are in scores.jsonl"])
