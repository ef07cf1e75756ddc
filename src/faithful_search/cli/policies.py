"""`faithful-search merge` and `push`: a trained adapter as a full model, and folders as repositories of the Hub."""

from __future__ import annotations

from pathlib import Path

import click

from .options import FOLDER, debug, echo, trust_remote_code

_SHOWN = 10


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


@click.command()
@click.argument("folder", type=FOLDER)
@click.argument("repository")
@click.option("--merged", is_flag=True, help="Push the full model in FOLDER/merged, too, as REPOSITORY-merged.")
@click.option("--private", is_flag=True, help="Only for those who may see the owner's private repositories.")
@debug
def push(folder: Path, repository: str, merged: bool, private: bool) -> None:
    """Upload the policy or judge in FOLDER to the model REPOSITORY, OWNER/NAME, of the Hub.

    Weights, tokenizer, configuration, card, metrics and plots are uploaded, and nothing else that lies there. An
    adapter is of use to others only where its base model is: when that is a folder here, push it --merged.
    """
    from ..hub import push_run, stays

    echo("\n".join(push_run(folder, repository, merged=merged, private=private)))
    if left := stays(folder):
        echo(f"not uploaded: {', '.join(left[:_SHOWN])}{' …' if len(left) > _SHOWN else ''}", err=True)
