"""`faithful-search demo`: the faithfulness explorer in a browser."""

from __future__ import annotations

import click

from .options import debug


@click.command()
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on; 0.0.0.0 for all.")
@click.option("--port", type=click.IntRange(1, 65535), default=7860, show_default=True, help="Port to listen on.")
@click.option("--endpoint", help="Base URL of an OpenAI-compatible server that visitors may ask, with keys of theirs.")
@click.option("--model", help="The model that it serves.")
@debug
def demo(host: str, port: int, endpoint: str | None, model: str | None) -> None:
    """Serve a page to ask an agent, audit trajectories, and change evidence to see who follows it."""
    if (endpoint is None) is not (model is None):
        raise click.UsageError("--endpoint and --model go together")
    from ..demo.agents import Served
    from ..demo.app import launch

    launch(host, port, Served(endpoint, model) if endpoint and model else None)
