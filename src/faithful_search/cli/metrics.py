"""`faithful-search metrics`: the metrics as modules for `evaluate`."""

from __future__ import annotations

from pathlib import Path

import click

from .options import FOLDER, debug, echo


@click.group()
def metrics() -> None:
    """The metrics as modules for `evaluate`."""


@metrics.command("list")
def list_metrics() -> None:
    """Name the metrics there are."""
    from ..measure.metrics import names

    echo("\n".join(names()))


@metrics.command("install")
@click.option("--cache", type=FOLDER, help="The modules cache; by default the one that evaluate looks into.")
@debug
def install_metrics(cache: Path | None) -> None:
    """Put the metrics where evaluate.load("info_think_faithfulness") finds them by bare name."""
    from ..measure.install import install_metrics as install

    echo("\n".join(map(str, install(cache))))


@metrics.command("push")
@click.argument("organisation")
@click.option("--private", is_flag=True, help="Only for those who may see the organisation's private Spaces.")
@debug
def push_metrics(organisation: str, private: bool) -> None:
    """Upload the metrics as Spaces of ORGANISATION, whence evaluate.load("ORGANISATION/name") takes them."""
    from ..hub import push_metrics as push

    echo("\n".join(push(organisation, private=private)))
