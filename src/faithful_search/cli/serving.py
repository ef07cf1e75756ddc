"""`faithful-search serve`: a corpus as a retrieval server, or its tools over MCP."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ..errors import ConfigError
from .address import Address, address_options
from .options import config, debug, read_yaml

if TYPE_CHECKING:
    from ..serving.app import App
    from ..serving.wire import Limits
    from ..tools import Toolbox

_AT_LEAST_1 = click.IntRange(min=1)
_SECONDS = click.FloatRange(min=0.1)


@click.command()
@click.argument("corpus")
@address_options(8000)
@click.option("--topk", type=_AT_LEAST_1, default=3, show_default=True, help="Passages where no number is asked for.")
@click.option("--topk-limit", type=_AT_LEAST_1, default=100, show_default=True, help="Most passages for a query.")
@click.option("--queries-limit", type=_AT_LEAST_1, default=8192, show_default=True, help="Most queries in a request.")
@click.option("--body-limit", type=_AT_LEAST_1, default=16_000_000, show_default=True, help="Most bytes of a request.")
@click.option("--batch", type=_AT_LEAST_1, default=64, show_default=True, help="Queries searched for at once.")
@click.option("--timeout", type=_SECONDS, default=120.0, show_default=True, help="Seconds an answer may take.")
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
    topk: int,
    topk_limit: int,
    queries_limit: int,
    body_limit: int,
    batch: int,
    timeout: float,
    mcp: bool,
    mcp_http: bool,
    triples: str | None,
    tools: Path | None,
    **where: Any,
) -> None:
    """Serve CORPUS to training code: "world", a corpus, an index that `faithful-search index` made, or a search engine
    (qdrant+URL, opensearch+URL).

    Speaks the Search-R1 format (POST /retrieve) and ReCall's (POST /search and /batch_search), and has GET /health and
    /metrics. Where the environment has FAITHFUL_SEARCH_SERVE_TOKEN, clients must send it as a bearer token; an address
    that other machines reach needs one.
    """
    if mcp and mcp_http:
        raise click.UsageError("--mcp and --mcp-http exclude each other")
    if (triples or tools) and not (mcp or mcp_http):
        raise click.UsageError("--triples and --tools are for --mcp and --mcp-http")
    if mcp:
        from ..serving.mcp import serve_stdio

        with _toolbox(corpus, topk, triples, tools) as toolbox:
            return serve_stdio(toolbox)
    from ..serving.server import url_of
    from ..serving.wire import Limits

    address = Address(**where)
    bound = address.bind()  # before the index, which may take long to open
    limits = Limits(body_limit, queries_limit, top_k=topk_limit, seconds=timeout)
    if mcp_http:
        from ..serving.mcp import mcp_app

        app, line = mcp_app(_toolbox(corpus, topk, triples, tools), limits), f"MCP tools at {url_of(bound)}/mcp"
    else:
        app, line = _retrieval(corpus, topk, limits, batch, url_of(bound))
    address.serve(app, bound, line)


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


def _toolbox(corpus: str, topk: int, triples: str | None, more: Path | None) -> Toolbox:
    from ..tools.arguments import ToolArguments

    own = {"corpus": corpus, "search_top_k": topk, **({"triples": triples} if triples else {})}
    flags = {"triples": "world" if corpus == "world" else "none", **(read_yaml(more) if more else {}), **own}
    if unknown := flags.keys() - {item.name for item in fields(ToolArguments)}:
        raise ConfigError(f"{more}: no flag of the recipes' tools is called {', '.join(sorted(unknown))}")
    return ToolArguments(**flags).build_toolbox()
