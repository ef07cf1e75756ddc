"""`faithful-search index`: a corpus made searchable."""

import time
from collections.abc import Mapping
from itertools import count
from pathlib import Path
from typing import Any

import click

from .options import AT_LEAST_1, config, echo

_SHOWN = 5


@click.command()
@click.argument("corpus")
@click.argument("out")
@click.option(
    "--kind", type=click.Choice(["bm25", "dense", "hybrid"]), help="How a folder is searched; bm25 by default."
)
@click.option("--model", help="Encoder of the vectors, for dense, hybrid and Qdrant: Hub id or directory.")
@click.option("--revision", help="Revision of the model on the Hub.")
@click.option("--hnsw", is_flag=True, help="A graph for approximate search, quick in millions of passages.")
@click.option("--half", is_flag=True, help="Vectors in half precision: half the size.")
@click.option("--device", help="Where the encoder runs; by default a GPU if there is one.")
@click.option("--batch-size", type=AT_LEAST_1, help="Passages the encoder is given at a time; default 64.")
@click.option(
    "--paragraph-characters",
    type=AT_LEAST_1,
    help="Cut longer texts into paragraphs of at most this many characters; by default a row is a passage.",
)
@click.option("--limit", type=AT_LEAST_1, help="Only this many of the first passages.")
@click.option("--overwrite", is_flag=True, help="Replace another index in OUT.")
@config
def index(corpus: str, out: str, kind: str | None, model: str | None, overwrite: bool, **given: Any) -> None:
    """Make CORPUS searchable: write its index into the folder OUT, or its passages into the search engine OUT.

    CORPUS is "world" (bundled), a .jsonl, .jsonl.gz or .parquet file, a folder of such, or a dataset of the Hub
    (OWNER/NAME or OWNER/NAME:SPLIT). Rows have text, and id, title and url if they like; or contents, as Search-R1's. A
    row that cannot be read is reported and left out. Stopped at any point, the same command goes on where it was.

    An engine is qdrant+http://HOST:PORT/COLLECTION, which needs --model, or qdrant+FOLDER/COLLECTION without a server;
    or opensearch+http://HOST:PORT/INDEX, which may be Elasticsearch. Keys are read from the environment:
    QDRANT_API_KEY, OPENSEARCH_API_KEY, ELASTICSEARCH_API_KEY.
    """
    from ..tools.retrieval.engines import fill_engine, is_engine
    from ..tools.retrieval.index_folder import build_folder

    numbers = count(1)

    def left_out(where: str, why: str) -> None:
        if next(numbers) <= _SHOWN:  # a folder's own list has them all
            echo(f"left out: {where}: {why}", err=True)

    encoder = {name: given[name] for name in ("device", "batch_size") if given[name] is not None}
    reading: dict[str, Any] = {name: given[name] for name in ("paragraph_characters", "limit")}
    reading["on_broken"] = left_out
    start, more = time.monotonic(), ""  # an engine says neither kind nor size
    try:
        if is_engine(out):
            if kind or given["hnsw"] or given["half"] or overwrite:
                raise click.UsageError("--kind, --hnsw, --half and --overwrite are for the index of a folder")
            encoder |= {"revision": given["revision"]} if given["revision"] else {}
            passages = fill_engine(corpus, out, model=model, knobs=encoder, **reading)
            skipped, listed = next(numbers) - 1, ""
        else:
            how: dict[str, Any] = {"kind": kind or "bm25", "dense": _dense(kind, model, given), "knobs": encoder}
            made = build_folder(corpus, Path(out), overwrite=overwrite, **how, **reading)
            passages, skipped, listed = made.passages, made.skipped, f"; all of them are in {out}/skipped.jsonl"
            more = f": {made.plan.kind}, {made.bytes / 1e6:,.1f} MB"
    except KeyboardInterrupt:
        raise KeyboardInterrupt("stopped; the same command goes on where it was") from None
    if skipped:
        echo(f"rows left out: {skipped:,}{listed}", err=True)
    echo(f"{passages:,} passages of {corpus} in {out}{more}, {time.monotonic() - start:,.1f} s")
    echo(f"serve it: faithful-search serve {out}")


def _dense(kind: str | None, model: str | None, given: Mapping[str, Any]) -> dict[str, Any] | None:
    if kind in ("dense", "hybrid") and model:
        precision = "float16" if given["half"] else "float32"
        return {"model": model, "revision": given["revision"], "hnsw": given["hnsw"], "precision": precision}
    if kind in ("dense", "hybrid"):
        raise click.UsageError(f"--kind {kind} needs --model, the encoder: --model intfloat/e5-base-v2, for example")
    if model or given["revision"] or given["hnsw"] or given["half"]:
        raise click.UsageError("--model, --revision, --hnsw and --half are for --kind dense or hybrid")
    return None
