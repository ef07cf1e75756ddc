"""`faithful-search serve`: a corpus as a retrieval server, or its tools over MCP."""

from __future__ import annotations

import os
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ..errors import ConfigError
from .options import config, debug, read_yaml

if TYPE_CHECKING:
    from socket import socket

    from ..serving.app import App
    from ..serving.wire import Limits
    from ..tools import Toolbox

_LOOPBACK = ("127.0.0.1", "localhost", "::1")
_AT_LEAST_1 = click.IntRange(min=1)
_SECONDS = click.FloatRange(min=0.1)


@click.command()
@click.argument("corpus")
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on; 0.0.0.0 for all.")
@click.option("--port", type=click.IntRange(0, 65535), default=8000, show_default=True, help="0 takes a free one.")
@click.option("--topk", type=_AT_LEAST_1, default=3, show_default=True, help="Passages where no number is asked for.")
@click.option("--topk-limit", type=_AT_LEAST_1, default=100, show_default=True, help="Most passages for a query.")
@click.option("--queries-limit", type=_AT_LEAST_1, default=8192, show_default=True, help="Most queries in a request.")
@click.option("--body-limit", type=_AT_LEAST_1, default=16_000_000, show_default=True, help="Most bytes of a request.")
@click.option("--batch", type=_AT_LEAST_1, default=64, show_default=True, help="Queries searched for at once.")
@click.option("--timeout", type=_SECONDS, default=120.0, show_default=True, help="Seconds an answer may take.")
@click.option(
    "--drain", type=_SECONDS, default=10.0, show_default=True, help="Seconds for running requests at the end."
)
@click.option("--mcp", is_flag=True, help="Serve tools over MCP instead, on standard input and output.")
@click.option("--mcp-http", is_flag=True, help="Serve tools over MCP instead, at /mcp.")
@click.option("--triples", help="Facts for the MCP tool knowledge_graph; world brings its own.")
@click.option(
    "--tools",
    type=click.Path(dir_okay=False, path_type=Path),
    help="For MCP: a YAML file with the recipes' flags of more tools, such as `web_search: ddgs`.",
)
@config
@debug
def serve(
    corpus: str,
    host: str,
    port: int,
    topk: int,
    topk_limit: int,
    queries_limit: int,
    body_limit: int,
    batch: int,
    timeout: float,
    drain: float,
    mcp: bool,
    mcp_http: bool,
    triples: str | None,
    tools: Path | None,
) -> None:
    """Serve CORPUS to training code: "world", a corpus, an index that `faithful-search index` made, or a search engine
    (qdrant+URL, opensearch+URL).

    Speaks the Search-R1 format (POST /retrieve) and ReCall's (POST /search and /batch_search), and has GET /health and
    /metrics. Where the environment has FAITHFUL_SEARCH_SERVE_TOKEN, clients must send it as a bearer token.
    """
    if mcp and mcp_http:
        raise click.UsageError("--mcp and --mcp-http exclude each other")
    if (triples or tools) and not (mcp or mcp_http):
        raise click.UsageError("--triples and --tools are for --mcp and --mcp-http")
    if mcp:
        from ..serving.mcp import serve_stdio

        with _toolbox(corpus, topk, triples, tools) as toolbox:
            return serve_stdio(toolbox)
    from ..serving.server import bind, url_of
    from ..serving.wire import Limits

    bound = bind(host, port)  # before the index, which may take long to open
    if mcp_http:
        app, line = _mcp_app(_toolbox(corpus, topk, triples, tools), host), f"MCP tools at {url_of(bound)}/mcp"
    else:
        limits = Limits(body_limit, queries_limit, top_k=topk_limit, seconds=timeout)
        app, line = _retrieval(corpus, topk, limits, batch, url_of(bound))
    run_app(app, bound, host, drain, line)


def run_app(app: App, bound: socket, host: str, drain: float, line: str) -> None:
    """Serve for those who know the token of the environment, all where there is none; `line` says that it is ready."""
    from ..serving.app import guarded
    from ..serving.server import serve as run
    from ..tools.remote_search import TOKEN

    token = os.environ.get(TOKEN, "")
    if not (token or host in _LOOPBACK):
        click.echo(f"anybody who reaches this address can use it: set {TOKEN} to change that", err=True)
    run(guarded(app, token), bound, drain, ready=lambda: click.echo(line))


def _retrieval(corpus: str, topk: int, limits: Limits, batch: int, url: str) -> tuple[App, str]:
    from ..serving.app import application
    from ..serving.metrics import RetrievalMetrics
    from ..serving.retrieval import Retrieval
    from ..tools import LocalSearch
    from ..tools.opening import open_search

    search, metrics = open_search(corpus, top_k=topk), RetrievalMetrics()
    if not isinstance(search, LocalSearch):
        raise ConfigError(f"{corpus} is served already: use it as it is, or over MCP with --mcp or --mcp-http")
    index = search.index
    retrieval = Retrieval(index, topk, limits, metrics, batch)
    app = application(retrieval.answers, limits=limits, metrics=metrics, about={"passages": len(index)})
    example = f'curl {url}/retrieve -d \'{{"queries": ["capital"], "topk": {topk}}}\''
    return app, f"{len(index):,} passages of {corpus} at {url}, try: {example}"


def _mcp_app(toolbox: Toolbox, host: str) -> App:
    from ..serving.mcp import mcp_server

    return mcp_server(toolbox).streamable_http_app(host=host)


def _toolbox(corpus: str, topk: int, triples: str | None, more: Path | None) -> Toolbox:
    from ..tools.arguments import ToolArguments

    own = {"corpus": corpus, "search_top_k": topk, **({"triples": triples} if triples else {})}
    flags = {"triples": "world" if corpus == "world" else "none", **(read_yaml(more) if more else {}), **own}
    if unknown := flags.keys() - {item.name for item in fields(ToolArguments)}:
        raise ConfigError(f"{more}: no flag of the recipes' tools is called {', '.join(sorted(unknown))}")
    return ToolArguments(**flags).build_toolbox()
