"""`faithful-search audit`: measure a file of trajectories."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ..measure.settings import AuditSettings
from .flags import Progress, estimate, flags, judge_flags, judge_of, taken, told_bill
from .options import FOLDER, config, debug, echo, trust_remote_code

if TYPE_CHECKING:
    from ..measure.audit import Audit

UNFINISHED = 3


@click.command()
@click.argument("file")
@judge_flags
@flags(AuditSettings)
@click.option(
    "--policy", type=click.Path(path_type=Path), help="The model that wrote the rows: adds evidence_sensitivity."
)
@trust_remote_code
@click.option("--out", type=FOLDER, help="Folder of the results; by default NAME-audit here.")
@estimate
@click.option("--overwrite", is_flag=True, help="Start over and replace what the folder holds.")
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
    policy: Path | None,
    trust_remote_code: bool,
    out: Path | None,
    estimate: bool,
    overwrite: bool,
    no_report: bool,
    report_rows: int,
    **given: Any,
) -> None:
    """Measure how faithful the trajectories in FILE are to their evidence.

    FILE is .jsonl, .json (both also .gz), .parquet, or - for JSON lines on the standard input; its rows are texts, chat
    messages or trajectories, in any known dialect. Run the same command again to go on after an interruption.
    """
    from ..measure.audit import SPOOLED
    from ..measure.audit import audit as measure
    from ..measure.scoring import open_policy

    settings, judge, progress = taken(AuditSettings, given), judge_of(given), Progress()
    if estimate:
        return echo(told_bill([file], judge, **vars(settings)))
    name = "stdin" if file == "-" else Path(file.removesuffix(".gz")).stem or "trajectories"
    folder = out or Path(f"{name}-audit")
    found = measure(
        file,
        folder,
        judge=progress.of(judge),
        policy=None if policy is None else open_policy(str(policy), "--policy", trust_remote_code),
        resume=not overwrite,
        on_progress=progress,
        **vars(settings),
    )
    echo(f"{found}\n")
    source = folder / SPOOLED if file == "-" else Path(file)
    written = ["audit.json", "scores.jsonl"]
    if not no_report and _report(folder, found, source, settings, report_rows):
        written.insert(0, "report.html")
    echo(f"{', '.join(written)} in {folder}")
    if not found.complete:
        echo(_incomplete(found), err=True)
        ctx.exit(UNFINISHED)


def _report(folder: Path, found: Audit, source: Path, settings: AuditSettings, rows: int) -> bool:
    """Write the page: some rows are chosen from the scores and read once more. The audit stands without it."""
    from ..measure.audit import SCORES, choose_rows, pick
    from ..measure.invented import KEPT, SearchedCorpus
    from ..measure.report import page

    try:
        chosen = choose_rows(folder / SCORES, found.primary, rows, found.n + found.errors)
        corpus = SearchedCorpus(str(folder / KEPT)) if settings.corpus is not None else None
        shown = pick(source, chosen, settings.dialect, settings.text_column, corpus)
        page.write(folder / "report.html", found, folder / SCORES, shown)
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
