"""`faithful-search label`: a judge's verdicts over trajectories, as a dataset."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from .auditing import UNFINISHED
from .judge_options import Progress, judge_of, judge_options
from .options import FOLDER, config, debug, echo

if TYPE_CHECKING:
    from ..measure.labelling import Provenance

_SHOWN = 5


@click.command()
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option(
    "--metric",
    type=click.Choice(["info_think", "think_search", "think_answer", "answer_support"]),
    default="info_think",
    show_default=True,
    help="Whose pairs are labelled.",
)
@judge_options
@click.option("--dialect", help="How all rows are written; by default each row's is detected.")
@click.option("--text-column", help="The column that holds the text; by default a known name.")
@click.option("--out", type=FOLDER, default=Path("labels"), show_default=True, help="Folder of the dataset.")
@click.option("--limit", type=click.IntRange(min=1), help="Read only so many of the first rows of each file.")
@click.option("--sample", type=click.IntRange(min=1), help="Label only so many pairs; more contain the fewer.")
@click.option("--seed", type=int, default=0, show_default=True, help="Of the sample.")
@click.option("--workers", type=click.IntRange(min=1), default=1, show_default=True, help="Processes that read rows.")
@click.option(
    "--license", "license_", default="", help="Of the labels, for the card: an id of the Hub's, as cc-by-4.0."
)
@click.option("--push-to", metavar="REPO", help="Upload the folder to this dataset of the Hub, OWNER/NAME.")
@click.option("--private", is_flag=True, help="Make that dataset a private one.")
@config
@debug
@click.pass_context
def label(
    ctx: click.Context,
    files: tuple[Path, ...],
    metric: str,
    dialect: str | None,
    text_column: str | None,
    out: Path,
    limit: int | None,
    sample: int | None,
    seed: int,
    workers: int,
    license_: str,
    push_to: str | None,
    private: bool,
    **judging: Any,
) -> None:
    """Ask a judge about the pairs of texts in the trajectories of FILES, and keep its labels as a dataset.

    FILES are what audit reads. Run the same command again to go on after an interruption, and to ask again about pairs
    that the judge abstained from. For a second opinion of the same judge use another --out and --judge-cache none, then
    faithful-search agreement FIRST/pairs.jsonl --judge labels:SECOND/pairs.jsonl.
    """
    from ..measure.labelling import label as collect

    progress = Progress()
    found = collect(
        files,
        out,
        metric=metric,
        judge=progress.of(judge_of(judging)),
        dialect=dialect,
        text_column=text_column,
        limit=limit,
        sample=sample,
        seed=seed,
        workers=workers,
        license=license_,
        on_progress=progress,
    )
    echo(_said(found))
    echo(f"pairs.jsonl, provenance.json, README.md in {out}")
    if push_to:
        from ..hub import push

        echo(push(out, push_to, private=private, message="Upload labelled pairs", repo_type="dataset"))
    if not found.complete:
        echo(_incomplete(found), err=True)
        ctx.exit(UNFINISHED)


def _said(found: Provenance) -> str:
    share = f", {found.positives:,} true ({found.positives / found.pairs:.1%})" if found.pairs else ""
    cut, settled = sum(file.pairs for file in found.files), sum(file.settled for file in found.files)
    without = f", of which {settled:,} need no judge and are left out" if settled else ""
    met = f"{cut:,} pairs met{without}"
    return f"{found.pairs:,} pairs labelled by {found.judge} for {found.metric}{share}\n{met}"


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
