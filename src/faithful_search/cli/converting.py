"""`faithful-search convert`: trajectories in another format."""

from pathlib import Path
from typing import Any, get_args

import click

from ..measure.settings import Format, Reading
from .options import ANY_PATH, UNFINISHED, echo, flags, taken


@click.command()
@click.argument("file")
@click.argument("out", type=ANY_PATH)
@click.option("--to", required=True, type=click.Choice(get_args(Format)), help="The format.")
@click.option("--scores", type=ANY_PATH, help="An audit of FILE, whose scores become metadata.")
@click.option("--scrub", is_flag=True, help="Take out what looks like a key or password.")
@flags(Reading)
def convert(file: str, out: Path, to: str, scores: Path | None, scrub: bool, **given: Any) -> None:
    """Write the trajectories in FILE in another format: OUT.jsonl with a row a line, or a folder with a file for each.

    FILE is what audit reads. A pi session is always a file of its own. Where rows could not be read the exit code is 3.
    """
    from ..measure.convert import convert as write

    found = write(file, out, to, scores=scores, scrub=scrub, **vars(taken(Reading, given)))
    with_scores = f", {found.scored:,} with scores" if scores else ""
    echo(f"{found.written:,} trajectories as {to}{with_scores} in {out}")
    if lines := found.told(scrub):
        echo("\n".join(lines), err=True)
    if found.unread:
        raise click.exceptions.Exit(UNFINISHED)
