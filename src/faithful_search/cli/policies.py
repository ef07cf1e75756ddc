"""`faithful-search merge`: a trained adapter as a full model."""

from __future__ import annotations

from pathlib import Path

import click

from .options import FOLDER, debug, echo, trust_remote_code


@click.command()
@click.argument("adapter")
@click.argument("out", type=FOLDER)
@click.option(
    "--dtype",
    type=click.Choice(["bfloat16", "float16", "float32"]),
    help="Of the weights; by default that of the base model's files.",
)
@trust_remote_code
@debug
def merge(adapter: str, out: Path, dtype: str | None, trust_remote_code: bool) -> None:
    """Write the full model of the LoRA adapter in ADAPTER, a folder or Hub id, to the folder OUT.

    What lies at OUT is replaced when all is written. It is done on the CPU and takes the memory of the full model.
    """
    from ..hub import merged_card
    from ..training.saving import merge_adapter

    merge_adapter(adapter, out, dtype, trust_remote_code)
    if Path(adapter).is_dir():
        merged_card(adapter, out)
    echo(f"the merged model is in {out}")
