"""`faithful-search metrics`: the metrics as modules for `evaluate`."""

from pathlib import Path

import click

from .options import FOLDER, echo


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
def install_metrics(cache: Path | None) -> None:
    """Put the metrics where evaluate.load("info_think_faithfulness") finds them by bare name."""
    from ..measure.metrics import install_metrics as install

    echo("\n".join(map(str, install(cache))))
