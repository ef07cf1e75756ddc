"""`faithful-search index`: a corpus made searchable."""

from __future__ import annotations

import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from .options import config, debug, echo

if TYPE_CHECKING:
    from ..tools.retrieval.corpus import BrokenRow
    from ..tools.retrieval.index_folder import Dense

_SHOWN = 5


@click.command()
@click.argument("corpus")
@click.argument("out")
@click.option(
    "--kind", type=click.Choice(["bm25", "dense", "hybrid"]), help="How to search a folder's index; bm25 by default."
)
@click.option("--model", help="Encoder of the vectors, for dense, hybrid and Qdrant: Hub id or directory.")
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
    out: str,
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
    """Make CORPUS searchable: write its index into the folder OUT, or its passages into the search engine OUT.

    CORPUS is "world" (bundled), a .jsonl, .jsonl.gz or .parquet file, a folder of such, or a dataset of the Hub
    (OWNER/NAME or OWNER/NAME:SPLIT). Rows have text, and id, title and url if they like; or contents, as Search-R1's. A
    row that cannot be read is reported and left out. Stopped at any point, the same command goes on where it was.

    An engine is qdrant+http://HOST:PORT/COLLECTION, which needs --model, or qdrant+FOLDER/COLLECTION without a server;
    or opensearch+http://HOST:PORT/INDEX, which may be Elasticsearch. Keys are read from the environment:
    QDRANT_API_KEY, OPENSEARCH_API_KEY, ELASTICSEARCH_API_KEY.
    """
    from tqdm.auto import tqdm

    from ..tools.retrieval.engines import is_engine

    encoder = {key: value for key, value in (("device", device), ("batch_size", batch_size)) if value is not None}
    reading: dict[str, Any] = {
        "paragraph_characters": paragraph_characters,
        "limit": limit,
        "on_broken": _Broken(),
        "progress": partial(tqdm, disable=None),
    }
    start = time.monotonic()
    try:
        if is_engine(out):
            if kind or hnsw or half or overwrite:
                raise click.UsageError("--kind, --hnsw, --half and --overwrite are for the index of a folder")
            said = _upload(corpus, out, model, encoder | ({"revision": revision} if revision else {}), reading)
        else:
            dense = _dense(kind, model, revision, hnsw, half)
            how = {"kind": kind or "bm25", "dense": dense, "knobs": encoder, "overwrite": overwrite}
            said = _build(corpus, Path(out), how | reading)
    except KeyboardInterrupt:
        raise KeyboardInterrupt("stopped; the same command goes on where it was") from None
    echo(f"{said}, {time.monotonic() - start:,.1f} s")
    echo(f"serve it: faithful-search serve {out}")


def _build(corpus: str, out: Path, how: dict[str, Any]) -> str:
    from ..tools.retrieval.index_folder import build_folder

    made = build_folder(corpus, out, **how)
    if made.skipped:
        echo(f"rows left out: {made.skipped:,}; all of them are in {out / 'skipped.jsonl'}", err=True)
    return f"{made.passages:,} passages of {corpus} in {out}: {made.plan.kind}, {made.bytes / 1e6:,.1f} MB"


def _upload(corpus: str, out: str, model: str | None, encoder: dict[str, Any], reading: dict[str, Any]) -> str:
    from ..tools.retrieval.engines import fill_engine

    filled = fill_engine(corpus, out, model=model, knobs=encoder, **reading)
    if filled.skipped:
        echo(f"rows left out: {filled.skipped:,}", err=True)
    return f"{filled.passages:,} passages of {corpus} in {out}"


class _Broken:
    """Shows the first rows left out; what is left of them is in the index's own list."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, row: BrokenRow) -> None:
        self.count += 1
        if self.count <= _SHOWN:
            echo(f"left out: {row}", err=True)


def _dense(kind: str | None, model: str | None, revision: str | None, hnsw: bool, half: bool) -> Dense | None:
    from ..tools.retrieval.index_folder import Dense

    if kind in ("dense", "hybrid") and model:
        return Dense(model, revision, hnsw, "float16" if half else "float32")
    if kind in ("dense", "hybrid"):
        raise click.UsageError(f"--kind {kind} needs --model, the encoder: --model intfloat/e5-base-v2, for example")
    if model or revision or hnsw or half:
        raise click.UsageError("--model, --revision, --hnsw and --half are for --kind dense or hybrid")
    return None
