"""`faithful-search serve`: a corpus as a retrieval server, or its tools over MCP; `serve-judge`: a judge for runs that
must not hold its model; `demo`: the faithfulness explorer in a browser.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec

from ..errors import ConfigError
from .options import AT_LEAST_1, FILE, F, config, echo, read_yaml, together, trust_remote_code

if TYPE_CHECKING:
    from socket import socket

    from ..serving.app import App, Limits
    from ..tools import Toolbox

_SECONDS = click.FloatRange(min=0.1)
_host = click.option("--host", default="127.0.0.1", help="Address to listen on; 0.0.0.0 for all.")


def _listening(port: int) -> Callable[[F], F]:
    """The options of where a command listens and for whom; `_bind` and `_serve` read them."""
    return together(
        _host,
        click.option("--port", type=click.IntRange(0, 65535), default=port, help="0 takes a free one."),
        click.option("--allow-host", help="Names that clients call this server by, comma-separated; IPs need none."),
        click.option("--without-token", is_flag=True, help="Serve everybody at an address that others can reach."),
        click.option("--drain", type=_SECONDS, default=10.0, help="Seconds for running requests at the end."),
        click.option("--body-limit", type=AT_LEAST_1, default=16_000_000, help="Most bytes of a request."),
    )


@click.command()
@click.argument("corpus")
@_listening(8000)
@click.option("--topk", type=AT_LEAST_1, default=3, help="Passages where no number is asked for.")
@click.option("--topk-limit", type=AT_LEAST_1, default=100, help="Most passages for a query.")
@click.option("--queries-limit", type=AT_LEAST_1, default=8192, help="Most queries in a request.")
@click.option("--batch", type=AT_LEAST_1, default=64, help="Queries searched for at once.")
@click.option("--timeout", type=_SECONDS, default=120.0, help="Seconds an answer may take.")
@click.option("--mcp", is_flag=True, help="Serve tools over MCP instead, on standard input and output.")
@click.option("--mcp-http", is_flag=True, help="Serve tools over MCP instead, at /mcp.")
@click.option("--triples", help="Facts for the MCP tool knowledge_graph; world brings its own.")
@click.option(
    "--tools",
    type=FILE,
    help="For MCP: a YAML file with the recipes' flags of more tools, such as `web_search: ddgs`.",
)
@config
def serve(corpus: str, topk: int, mcp: bool, mcp_http: bool, **given: Any) -> None:
    """Serve CORPUS to training code: "world", a corpus, an index that `faithful-search index` made, or a search engine
    (qdrant+URL, opensearch+URL).

    Speaks the Search-R1 format (POST /retrieve) and ReCall's (POST /search and /batch_search), and has GET /health and
    /metrics. Where the environment has FAITHFUL_SEARCH_SERVE_TOKEN, clients must send it as a bearer token; an address
    that other machines reach needs one.
    """
    if mcp and mcp_http:
        raise click.UsageError("--mcp and --mcp-http exclude each other")
    if (given["triples"] or given["tools"]) and not (mcp or mcp_http):
        raise click.UsageError("--triples and --tools are for --mcp and --mcp-http")
    if topk > given["topk_limit"] and not (mcp or mcp_http):
        raise click.UsageError(f"--topk {topk} is above --topk-limit {given['topk_limit']}")
    if mcp:
        from ..serving.mcp import serve_stdio

        with _toolbox(corpus, topk, given) as toolbox:
            return serve_stdio(toolbox)
    from ..serving.server import url_of

    bound = _bind(given)  # before the index, which may take long to open
    from ..serving.app import Limits

    url = url_of(bound)
    limits = Limits(given["body_limit"], given["queries_limit"], top_k=given["topk_limit"], seconds=given["timeout"])
    if mcp_http:
        from ..serving.mcp import mcp_app

        app = mcp_app(_toolbox(corpus, topk, given), limits)
        return _serve(app, limits, bound, given, f"MCP tools at {url}/mcp")
    from ..serving.retrieval import Retrieval
    from ..tools.local_search import LocalSearch, open_search

    search = open_search(corpus, top_k=topk)
    if not isinstance(search, LocalSearch):
        raise ConfigError(f"{corpus} is served already: use it as it is, or over MCP with --mcp or --mcp-http")
    retrieval = Retrieval(search.index, topk, limits, given["batch"])
    example = f'curl {url}/retrieve -d \'{{"queries": ["capital"], "topk": {topk}}}\''
    _serve(retrieval, limits, bound, given, f"{len(search.index):,} passages of {corpus} at {url}, try: {example}")


@click.command("serve-judge")
@click.argument("spec")
@_listening(8001)
@click.option(
    "--cache",
    type=FILE,
    help="A SQLite file that keeps the verdicts for the next start; without it they last as long as the server.",
)
@click.option("--batch", type=AT_LEAST_1, default=256, help="Pairs judged at once.")
@click.option("--pairs-limit", type=AT_LEAST_1, default=4096, help="Most pairs in a request.")
@click.option("--timeout", type=_SECONDS, default=600.0, help="Seconds an answer may take.")
@trust_remote_code
@config
def serve_judge(spec: str, cache: Path | None, **given: Any) -> None:
    """Serve the judge SPEC (KIND, KIND:MODEL or endpoint:MODEL@URL, such as generator:DIR) to runs that ask it with
    `--judge remote --judge_url URL`.

    Identical pairs of all clients are judged once. Speaks JSON at POST /judge, and has GET /health and /metrics. Where
    the environment has FAITHFUL_SEARCH_SERVE_TOKEN, clients must send it as a bearer token; an address that other
    machines reach needs one.
    """
    from ..judges import distilled
    from ..measure.agreement import parse_judge
    from ..serving.server import url_of
    from ..wire.cache import Cache
    from ..wire.redact import redact

    bound = _bind(given)  # before the model, which may take long to open
    from ..serving.app import Limits
    from ..serving.judging import Judging

    limits = Limits(given["body_limit"], seconds=given["timeout"], pairs=given["pairs_limit"])
    name, judge = parse_judge(spec, given["trust_remote_code"])
    verdicts = None if cache is None else Cache(cache)
    if verdicts is not None:
        len(verdicts)  # opens it: a file that cannot be used is told now, not with the first verdict
    kind, _, model = spec.partition(":")
    own = distilled.read(model) if kind in ("nli", "generator") else None
    about = {"model": redact(model) or None, "task": own.task if own else None}
    judging = Judging(judge, verdicts, limits, given["batch"], about)
    url = url_of(bound)
    _serve(judging, limits, bound, given, f"{name} at {url}, use: --judge remote --judge_url {url}")


@click.command()
@_host
@click.option("--port", type=click.IntRange(1, 65535), default=7860, help="Port to listen on.")
@click.option("--endpoint", help="Base URL of an OpenAI-compatible server that visitors may ask, with keys of theirs.")
@click.option("--model", help="The model that it serves.")
def demo(host: str, port: int, endpoint: str | None, model: str | None) -> None:
    """Serve a page to ask an agent, audit trajectories, and change evidence to see who follows it."""
    if (endpoint is None) is not (model is None):  # visitors choose neither
        raise click.UsageError("--endpoint and --model go together")
    from ..demo.agents import Served
    from ..demo.app import launch

    launch(host, port, Served(endpoint, model) if endpoint and model else None)


def _bind(given: dict[str, Any]) -> socket:
    """A socket, not yet listening.

    Raises:
        ConfigError: when the address cannot be had, or when others can reach it and there is no token.
    """
    from ..serving.server import bind, is_public
    from ..tools.remote_search import TOKEN

    bound = bind(given["host"], given["port"])
    if is_public(bound) and not given["without_token"] and not os.environ.get(TOKEN):
        bound.close()
        raise ConfigError(
            f"anybody who reaches {given['host']} could use this server: set {TOKEN} to a token that clients must "
            "send, or say --without-token"
        )
    return bound


def _serve(app: App, limits: Limits, bound: socket, given: dict[str, Any], line: str) -> None:
    """Serve to clients that send the environment's token, to all where it has none; `line` says that it is ready."""
    from ..serving.app import Guarded
    from ..serving.server import serve
    from ..tools.remote_search import TOKEN

    # A request must name this server by one of these, against DNS rebinding
    names = [name.strip() for name in (given["host"], *(given["allow_host"] or "").split(",")) if name.strip()]
    serve(Guarded(app, limits, os.environ.get(TOKEN, ""), names), bound, given["drain"], lambda: echo(line))


def _toolbox(corpus: str, topk: int, given: dict[str, Any]) -> Toolbox:
    from ..tools.arguments import ToolArguments

    triples, more = given["triples"], given["tools"]
    # What is typed wins over the file, the file over the world's facts
    own = {"corpus": corpus, "search_top_k": topk, **({"triples": triples} if triples else {})}
    flags = {"triples": "world" if corpus == "world" else "none", **(read_yaml(more) if more else {}), **own}
    if unknown := flags.keys() - {item.name for item in fields(ToolArguments)}:
        raise ConfigError(f"{more}: the recipes' tools have no flag {', '.join(sorted(unknown))}")
    try:
        arguments = msgspec.convert(flags, ToolArguments)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{more}: {error}") from error
    return arguments.build_toolbox()
