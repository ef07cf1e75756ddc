"""`faithful-search label`: a judge's verdicts over trajectories, as a dataset."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ..measure.settings import LabelSettings
from .auditing import UNFINISHED
from .flags import Progress, estimate, flags, judge_flags, judge_of, taken, told_bill
from .options import FOLDER, config, debug, echo

if TYPE_CHECKING:
    from ..measure.label import Provenance

_SHOWN = 5


@click.command()
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path))
@judge_flags
@flags(LabelSettings)
@click.option("--out", type=FOLDER, default=Path("labels"), show_default=True, help="Folder of the dataset.")
@estimate
@click.option("--push-to", metavar="REPO", help="Upload the folder to this dataset of the Hub, OWNER/NAME.")
@click.option("--private", is_flag=True, help="Make that dataset a private one.")
@config
@debug
@click.pass_context
def label(
    ctx: click.Context,
    files: tuple[Path, ...],
    out: Path,
    estimate: bool,
    push_to: str | None,
    private: bool,
    **given: Any,
) -> None:
    """Ask a judge about the pairs of texts in the trajectories of FILES, and keep its labels as a dataset.

    FILES are what audit reads. Run the same command again to go on after an interruption, and to ask again about pairs
    that the judge abstained from. For a second opinion of the same judge use another --out and --judge-cache none, then
    faithful-search agreement FIRST/pairs.jsonl --judge labels:SECOND/pairs.jsonl.
    """
    from ..measure.label import label as collect

    settings, judge, progress = taken(LabelSettings, given), judge_of(given), Progress()
    if estimate:
        from ..measure.metrics import names

        reading = {name: getattr(settings, name) for name in ("dialect", "text_column", "limit")}
        metric = settings.metric if settings.metric in names() else f"{settings.metric}_faithfulness"
        return echo(told_bill(files, judge, metrics=(metric,), **reading))
    found = collect(files, out, judge=progress.of(judge), on_progress=progress, **vars(settings))
    echo(_summary(found))
    echo(f"pairs.jsonl, provenance.json, README.md in {out}")
    if push_to:
        from ..hub import Repository, push

        echo(push(out, Repository(push_to, "dataset", private), "Upload labelled pairs"))
    if not found.complete:
        echo(_incomplete(found), err=True)
        ctx.exit(UNFINISHED)


def _summary(found: Provenance) -> str:
    share = f", {found.positives:,} true ({found.positives / found.pairs:.1%})" if found.pairs else ""
    cut, settled = sum(file.pairs for file in found.files), sum(file.settled for file in found.files)
    without = f", of which {settled:,} need no judge and are left out" if settled else ""
    return f"{found.pairs:,} pairs labelled by {found.judge} for {found.metric}{share}\n{cut:,} pairs met{without}"


def _incomplete(found: Provenance) -> str:
    lines: list[str] = []
    for file in found.files:
        lines += [f"{file.name} could not be read to its end: {file.broken_off}"] if file.broken_off else []
        lines += [f"{file.name}: {file.skipped} of {file.rows} rows could not be read"] if file.skipped else []
        lines += [f"  {why}" for why in file.reasons[:_SHOWN]]
    if found.abstained:
        lines.append(f"pairs without a label: {found.abstained:,}; the same command asks again about these only")
        lines += [f"  {why}" for why in found.unjudged[:_SHOWN]]
    return "\n".join([*lines, "more of them are in provenance.json"])
