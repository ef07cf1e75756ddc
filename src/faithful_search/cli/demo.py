"""`faithful-search demo`: the faithfulness explorer in a browser."""

from __future__ import annotations

import click

from .options import debug


@click.command()
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on; 0.0.0.0 for all.")
@click.option("--port", type=click.IntRange(1, 65535), default=7860, show_default=True, help="Port to listen on.")
@debug
def demo(host: str, port: int) -> None:
    """Serve a page to ask an agent, audit trajectories, and change evidence to see who follows it."""
    from ..demo.app import launch

    launch(host, port)
