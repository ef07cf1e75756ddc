"""`faithful-search index` makes a corpus searchable; `serve`: it as a retrieval server, or its tools over MCP;
`serve-judge`: a judge for runs that must not hold its model; `demo`: the faithfulness explorer in a browser.
"""

import os
import time
from collections.abc import Callable
from dataclasses import fields
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec

from ..errors import ConfigError
from .options import (
    AT_LEAST_1,
    FILE,
    SHOWN,
    F,
    config,
    echo,
    read_yaml,
    together,
    trust_remote_code,
)

if TYPE_CHECKING:
    from ..serving.app import App, Limits
    from ..tools import Toolbox

_SECONDS = click.FloatRange(min=0.1)
_host = click.option("--host", default="127.0.0.1", help="Address to listen on; 0.0.0.0 for all.")


@click.command()
@click.argument("corpus")
@click.argument("out")
@click.option(
    "--kind", type=click.Choice(["bm25", "dense", "hybrid"]), help="Of a folder; by default bm25."
)
@click.option(
    "--model", help="Encoder of the vectors, for dense, hybrid and Qdrant: Hub id or directory."
)
@click.option("--revision", help="Revision of the model on the Hub.")
@click.option(
    "--hnsw", is_flag=True, help="A graph for approximate search, quick in millions of passages."
)
@click.option("--half", is_flag=True, help="Vectors in half precision: half the size.")
@click.option("--device", help="Where the encoder runs; by default a GPU if there is one.")
@click.option(
    "--batch-size", type=AT_LEAST_1, help="Passages the encoder is given at a time; default 64."
)
@click.option(
    "--paragraph-characters",
    type=AT_LEAST_1,
    help="Cut longer texts into paragraphs of at most so many.",
)
@click.option("--limit", type=AT_LEAST_1, help="Only this many of the first passages.")
@click.option("--overwrite", is_flag=True, help="Replace another index in OUT.")
@config
def index(corpus: str, out: str, kind: str | None, overwrite: bool, **given: Any) -> None:
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
        if next(numbers) <= SHOWN:  # a folder's own list has them all
            echo(f"left out: {where}: {why}", err=True)

    model, revision, hnsw, half = (given[name] for name in ("model", "revision", "hnsw", "half"))
    encoder = {name: given[name] for name in ("device", "batch_size") if given[name] is not None}
    reading: dict[str, Any] = {name: given[name] for name in ("paragraph_characters", "limit")}
    reading["on_broken"] = left_out
    start = time.monotonic()
    try:
        if is_engine(out):
            if kind or hnsw or half or overwrite:
                raise click.UsageError(
                    "--kind, --hnsw, --half and --overwrite are for the index of a folder"
                )
            encoder |= {"revision": revision} if revision else {}
            passages = fill_engine(corpus, out, model=model, knobs=encoder, **reading)
            skipped, about, listed = (
                next(numbers) - 1,
                "",
                "",
            )  # an engine says neither kind nor size
        else:
            by_vectors = kind in ("dense", "hybrid")
            if by_vectors and not model:
                raise click.UsageError(
                    f"--kind {kind} needs --model, the encoder, such as intfloat/e5-base-v2"
                )
            if not by_vectors and (model or revision or hnsw or half):
                raise click.UsageError(
                    "--model, --revision, --hnsw and --half are for --kind dense or hybrid"
                )
            dense = {
                "model": model,
                "revision": revision,
                "hnsw": hnsw,
                "precision": "float16" if half else "float32",
            }
            how: dict[str, Any] = {
                "kind": kind or "bm25",
                "dense": dense if by_vectors else None,
                "knobs": encoder,
            }
            made = build_folder(corpus, Path(out), overwrite=overwrite, **how, **reading)
            passages, skipped, listed = (
                made.passages,
                made.skipped,
                f"; all of them are in {out}/skipped.jsonl",
            )
            about = f": {made.plan.kind}, {made.bytes / 1e6:,.1f} MB"
    except KeyboardInterrupt:
        raise KeyboardInterrupt("stopped; the same command goes on where it was") from None
    if skipped:
        echo(f"rows left out: {skipped:,}{listed}", err=True)
    echo(f"{passages:,} passages of {corpus} in {out}{about}, {time.monotonic() - start:,.1f} s")
    echo(f"serve it: faithful-search serve {out}")


def _listening(port: int) -> Callable[[F], F]:
    """The options of where a command listens and for whom; `_listen` reads them."""
    return together(
        _host,
        click.option(
            "--port", type=click.IntRange(0, 65535), default=port, help="0 takes a free one."
        ),
        click.option(
            "--allow-host",
            help="Names that clients call this server by, comma-separated; IPs need none.",
        ),
        click.option(
            "--without-token",
            is_flag=True,
            help="Serve everybody at an address that others can reach.",
        ),
        click.option(
            "--drain", type=_SECONDS, default=10.0, help="Seconds for running requests at the end."
        ),
        click.option(
            "--body-limit", type=AT_LEAST_1, default=16_000_000, help="Most bytes of a request."
        ),
    )


@click.command()
@click.argument("corpus")
@_listening(8000)
@click.option("--topk", type=AT_LEAST_1, default=3, help="Passages where no number is asked for.")
@click.option("--topk-limit", type=AT_LEAST_1, default=100, help="Most passages for a query.")
@click.option("--queries-limit", type=AT_LEAST_1, default=8192, help="Most queries in a request.")
@click.option("--batch", type=AT_LEAST_1, default=64, help="Queries searched for at once.")
@click.option("--timeout", type=_SECONDS, default=120.0, help="Seconds an answer may take.")
@click.option(
    "--mcp", is_flag=True, help="Serve tools over MCP instead, on standard input and output."
)
@click.option("--mcp-http", is_flag=True, help="Serve tools over MCP instead, at /mcp.")
@click.option("--triples", help="Facts for the MCP tool knowledge_graph; world brings its own.")
@click.option(
    "--tools",
    type=FILE,
    help="For MCP: more tools, as the recipes' flags in YAML: `web_search: ddgs`.",
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
    url, serve_there = _listen(given)  # before the index, which may take long to open
    from ..serving.app import Limits

    limits = Limits(
        given["body_limit"],
        given["queries_limit"],
        top_k=given["topk_limit"],
        seconds=given["timeout"],
    )
    if mcp_http:
        from ..serving.mcp import mcp_app

        return serve_there(
            mcp_app(_toolbox(corpus, topk, given), limits), limits, f"MCP tools at {url}/mcp"
        )
    from ..serving.retrieval import Retrieval
    from ..tools.local_search import LocalSearch, open_search

    search = open_search(corpus, top_k=topk)
    if not isinstance(search, LocalSearch):
        raise ConfigError(
            f"{corpus} is served already: use it as it is, or over MCP with --mcp or --mcp-http"
        )
    retrieval = Retrieval(search.index, topk, limits, given["batch"])
    example = f'curl {url}/retrieve -d \'{{"queries": ["capital"], "topk": {topk}}}\''
    serve_there(
        retrieval, limits, f"{len(search.index):,} passages of {corpus} at {url}, try: {example}"
    )


@click.command("serve-judge")
@click.argument("spec")
@_listening(8001)
@click.option(
    "--cache", type=FILE, help="A SQLite file that keeps the verdicts for the next start."
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
    from ..wire.cache import Cache
    from ..wire.redact import redact

    url, serve_there = _listen(given)  # before the model, which may take long to open
    from ..serving.app import Limits
    from ..serving.judging import Judging

    limits = Limits(given["body_limit"], seconds=given["timeout"], pairs=given["pairs_limit"])
    name, judge = parse_judge(spec, given["trust_remote_code"])
    verdicts = None if cache is None else Cache(cache)
    if verdicts is not None:
        len(
            verdicts
        )  # opens it: a file that cannot be used is told now, not with the first verdict
    kind, _, model = spec.partition(":")
    own = distilled.read(model) if kind in ("nli", "generator") else None
    about = {"model": redact(model) or None, "task": own.task if own else None}
    judging = Judging(judge, verdicts, limits, given["batch"], about)
    serve_there(judging, limits, f"{name} at {url}, use: --judge remote --judge_url {url}")


@click.command()
@_host
@click.option("--port", type=click.IntRange(1, 65535), default=7860, help="Port to listen on.")
@click.option(
    "--endpoint",
    help="Base URL of an OpenAI-compatible server that visitors may ask, with keys of theirs.",
)
@click.option("--model", help="The model that it serves.")
def demo(host: str, port: int, endpoint: str | None, model: str | None) -> None:
    """Serve a page to ask an agent, audit trajectories, and change evidence to see who follows it."""
    if (endpoint is None) is not (model is None):  # visitors choose neither
        raise click.UsageError("--endpoint and --model go together")
    from ..demo.agents import Served
    from ..demo.app import launch

    launch(host, port, Served(endpoint, model) if endpoint and model else None)


def _listen(given: dict[str, Any]) -> "tuple[str, Callable[[App, Limits, str], None]]":
    """The URL of a socket that is taken from now on, and what serves an application there; the text says that it is
    ready. Clients send the environment's token, where it has one.

    Raises:
        ConfigError: when the address cannot be had, or when others can reach it and there is no token.
    """
    from ..serving.server import bind, is_public, serve, url_of
    from ..tools.remote_search import TOKEN

    bound, token = bind(given["host"], given["port"]), os.environ.get(TOKEN, "")
    if is_public(bound) and not (given["without_token"] or token):
        bound.close()
        told = f"anybody who reaches {given['host']} could use this server"
        raise ConfigError(
            f"{told}: set {TOKEN} to a token that clients must send, or say --without-token"
        )
    # A request must name this server by one of these, against DNS rebinding
    names = [
        name.strip()
        for name in (given["host"], *(given["allow_host"] or "").split(","))
        if name.strip()
    ]

    def serve_there(app: "App", limits: "Limits", ready: str) -> None:
        from ..serving.app import Guarded

        serve(Guarded(app, limits, token, names), bound, given["drain"], lambda: echo(ready))

    return url_of(bound), serve_there


def _toolbox(corpus: str, topk: int, given: dict[str, Any]) -> "Toolbox":
    from ..tools.arguments import ToolArguments

    triples, more = given["triples"], given["tools"]
    # What is typed wins over the file, the file over the world's facts
    own = {"corpus": corpus, "search_top_k": topk, **({"triples": triples} if triples else {})}
    flags = {
        "triples": "world" if corpus == "world" else "none",
        **(read_yaml(more) if more else {}),
        **own,
    }
    if unknown := flags.keys() - {item.name for item in fields(ToolArguments)}:
        raise ConfigError(f"{more}: the recipes' tools have no flag {', '.join(sorted(unknown))}")
    try:
        arguments = msgspec.convert(flags, ToolArguments)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{more}: {error}") from error
    return arguments.build_toolbox()
