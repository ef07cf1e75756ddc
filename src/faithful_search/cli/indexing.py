"""`faithful-search index`: a corpus made searchable."""

from __future__ import annotations

import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from .options import FOLDER, config, debug

if TYPE_CHECKING:
    from ..tools.retrieval.corpus import BrokenRow
    from ..tools.retrieval.index_folder import Dense

_SHOWN = 5


@click.command()
@click.argument("corpus")
@click.argument("out", type=FOLDER)
@click.option(
    "--kind",
    type=click.Choice(["bm25", "dense", "hybrid"]),
    default="bm25",
    show_default=True,
    help="How to search it.",
)
@click.option("--model", help="Encoder of the vectors, for dense and hybrid: Hub id or directory.")
@click.option("--revision", help="Of the model on the Hub.")
@click.option("--hnsw", is_flag=True, help="A graph for approximate search, quick in millions of passages.")
@click.option("--half", is_flag=True, help="Vectors in half precision: half the size.")
@click.option("--device", help="Where the encoder runs; by default a GPU if there is one.")
@click.option("--batch-size", type=click.IntRange(min=1), help="Passages the encoder is given at a time; default 64.")
@click.option(
    "--paragraph-characters",
    type=click.IntRange(min=1),
    help="Cut longer texts into paragraphs of at most so many characters; by default a row is a passage.",
)
@click.option("--limit", type=click.IntRange(min=1), help="Only so many of the first passages.")
@click.option("--overwrite", is_flag=True, help="Replace another index in OUT.")
@config
@debug
def index(
    corpus: str,
    out: Path,
    kind: Any,
    model: str | None,
    revision: str | None,
    hnsw: bool,
    half: bool,
    device: str | None,
    batch_size: int | None,
    paragraph_characters: int | None,
    limit: int | None,
    overwrite: bool,
) -> None:
    """Make CORPUS searchable: write its index into the folder OUT.

    CORPUS is "world" (bundled), a .jsonl, .jsonl.gz or .parquet file, a folder of such, or a dataset of the Hub (NAME
    or NAME:SPLIT). Rows have text, and id, title and url if they like; or contents, as Search-R1's. A row that cannot
    be read is reported and left out. Stopped at any point, the same command goes on where it was.
    """
    from tqdm.auto import tqdm

    from ..tools.retrieval.index_folder import build_folder

    start, broken = time.monotonic(), _Broken()
    made = build_folder(
        corpus,
        out,
        kind=kind,
        dense=_dense(kind, model, revision, hnsw, half),
        knobs={key: value for key, value in (("device", device), ("batch_size", batch_size)) if value is not None},
        paragraph_characters=paragraph_characters,
        limit=limit,
        overwrite=overwrite,
        on_broken=broken,
        progress=partial(tqdm, disable=None),
    )
    if made.skipped:
        click.echo(f"rows left out: {made.skipped:,}; all of them are in {out / 'skipped.jsonl'}", err=True)
    size, seconds = made.bytes / 1e6, time.monotonic() - start
    click.echo(f"{made.passages:,} passages of {corpus} in {out}: {kind}, {size:,.1f} MB, {seconds:,.1f} s")
    click.echo(f"serve it: faithful-search serve {out}")


class _Broken:
    """Shows the first rows left out; what is left of them is in the index's own list."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, row: BrokenRow) -> None:
        self.count += 1
        if self.count <= _SHOWN:
            click.echo(f"left out: {row}", err=True)


def _dense(kind: str, model: str | None, revision: str | None, hnsw: bool, half: bool) -> Dense | None:
    from ..tools.retrieval.index_folder import Dense

    if kind != "bm25" and model:
        return Dense(model, revision, hnsw, "float16" if half else "float32")
    if kind != "bm25":
        raise click.UsageError(f"--kind {kind} needs --model, the encoder: --model intfloat/e5-base-v2, for example")
    if model or revision or hnsw or half:
        raise click.UsageError("--model, --revision, --hnsw and --half are for --kind dense or hybrid")
    return None
