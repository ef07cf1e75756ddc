"""Commands that serve something, and the one that makes an index.

`index` makes a corpus searchable. `serve` serves a corpus as a retrieval server, or tools over MCP;
`serve-judge` a judge, for runs that should not load its model; `serve-reward` a reward, for
trainers; `demo` the faithfulness explorer, for a browser.
"""

import os
import shlex
import time
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import click
import msgspec

from ..errors import ConfigError
from .options import (
    AT_LEAST_1,
    FILE,
    SHOWN,
    F,
    NumberRange,
    config,
    echo,
    old_name,
    read_yaml,
    say,
    together,
    trust_remote_code,
)

if TYPE_CHECKING:
    from ..dialects.segments import Responses
    from ..serving.app import App, ServerLimits
    from ..tools import Toolbox

_SECONDS = NumberRange(min=0.1)
_FOLDER_OPTIONS = ("model", "revision", "device", "batch_size", "hnsw", "half", "vectors")
"""The options of `index` that a search engine does not take."""
_host = click.option(
    "--host", default="127.0.0.1", help="Address to listen on. 0.0.0.0 listens on all addresses."
)


@click.command()
@click.argument("corpus")
@click.argument("out")
@click.option(
    "--kind",
    type=click.Choice(["bm25", "dense", "hybrid"]),
    help="Kind of index in a folder: by words, by vectors, or both. By default bm25.",
)
@click.option(
    "--model", help="Encoder for --kind dense and hybrid: a Hub id or a directory. Required there."
)
@click.option("--revision", help="Revision of the encoder on the Hub. By default main.")
@click.option(
    "--hnsw",
    is_flag=True,
    help="Build a graph for approximate search, which is fast in millions of passages.",
)
@click.option(
    "--half", is_flag=True, help="Store vectors in half precision, which takes half the space."
)
@click.option(
    "--vectors",
    type=FILE,
    multiple=True,
    help="File of a flat FAISS index of these passages by --model, which is taken instead of "
    "encoding them. Repeat it for the parts of one, in their order.",
)
@click.option("--device", help="Device of the encoder. By default a GPU if there is one.")
@click.option(
    "--batch-size", type=AT_LEAST_1, help="Batch size of the encoder, in passages. By default 64."
)
@click.option(
    "--paragraph-characters",
    type=AT_LEAST_1,
    help="Maximum length of a passage in characters: longer texts are cut into paragraphs. By "
    "default texts are not cut.",
)
@click.option(
    "--limit",
    type=AT_LEAST_1,
    help="Number of passages to index, from the first on. By default all.",
)
@click.option("--overwrite", is_flag=True, help="Replace another index in OUT.")
@config
def index(corpus: str, out: str, kind: str | None, overwrite: bool, **options: Any) -> None:
    """Make a corpus searchable, in a folder or a search engine.

    CORPUS is "world" (bundled), a .jsonl, .jsonl.gz or .parquet file, a folder of such files, or a
    dataset on the Hub (OWNER/NAME or OWNER/NAME:SPLIT). A row has a text and optionally an id, a
    title and a url; or it has contents, as in Search-R1's corpora. A row that cannot be read,
    or whose text is empty, is reported and left out.

    OUT is the folder of the index, or the address of a search engine, OpenSearch or Elasticsearch:
    opensearch+http://HOST:PORT/INDEX. An engine searches by words. Its key is read from
    OPENSEARCH_API_KEY or ELASTICSEARCH_API_KEY in the environment.

    To continue after an interruption, run the same command again.
    """
    from ..tools.retrieval.index_folder import build_folder
    from ..tools.retrieval.opensearch import fill_engine, is_engine

    skipped = 0

    def report_skipped(where: str, why: str) -> None:
        nonlocal skipped
        skipped += 1
        if skipped <= SHOWN:  # a folder has the list of all
            say(f"left out: {where}: {why}", err=True)

    reading: dict[str, Any] = {
        "paragraph_characters": options["paragraph_characters"],
        "limit": options["limit"],
        "on_broken": report_skipped,
    }
    start = time.monotonic()
    try:
        if is_engine(out):
            if kind or overwrite or any(options[name] for name in _FOLDER_OPTIONS):
                raise click.UsageError(
                    "a search engine searches by words: leave off --kind, --model, --revision, "
                    "--device, --batch-size, --hnsw, --half, --vectors and --overwrite"
                )
            passages = fill_engine(corpus, out, **reading)
            listed = size = ""  # an engine has neither a list nor a size in bytes
        else:
            plan = _folder_plan(kind or "bm25", options)
            folder = build_folder(corpus, Path(out), overwrite=overwrite, **plan, **reading)
            passages, skipped = folder.passages, folder.skipped
            listed = f"; all of them are in {out}/skipped.jsonl"
            size = f": {folder.plan.kind}, {folder.bytes / 1e6:,.1f} MB"
    except KeyboardInterrupt:
        raise KeyboardInterrupt("stopped; the same command goes on where it was") from None
    if skipped:
        say(f"rows left out: {skipped:,}{listed}", err=True)
    say(f"{passages:,} passages of {corpus} in {out}{size}, {time.monotonic() - start:,.1f} s")
    say(f"serve it: faithful-search serve {shlex.quote(out)}")


def _folder_plan(kind: str, options: dict[str, Any]) -> dict[str, Any]:
    """The arguments of `build_folder` that say which kind of index is built. Raises `UsageError`
    for options that do not fit the kind.
    """
    encoder = {}
    for name in ("device", "batch_size"):
        if options[name] is not None:
            encoder[name] = options[name]
    if kind not in ("dense", "hybrid"):
        if any(options[name] for name in ("model", "revision", "hnsw", "half", "vectors")):
            raise click.UsageError(
                "--model, --revision, --hnsw, --half and --vectors are for --kind dense or hybrid"
            )
        return {"kind": kind, "dense": None, "knobs": encoder}
    if not options["model"]:
        raise click.UsageError(
            f"--kind {kind} needs --model, the encoder, such as intfloat/e5-base-v2"
        )
    if options["half"] and options["vectors"]:
        raise click.UsageError("--vectors are taken as they are: leave off --half")
    dense = {
        "model": options["model"],
        "revision": options["revision"],
        "hnsw": options["hnsw"],
        "precision": "float16" if options["half"] else "float32",
    }
    if options["vectors"]:
        dense["vectors"] = [str(path.absolute()) for path in options["vectors"]]
    return {"kind": kind, "dense": dense, "knobs": encoder}


def _listening(port: int) -> Callable[[F], F]:
    """The options that say where a command listens, and for whom. `_listen` reads them."""
    return together(
        _host,
        click.option(
            "--port",
            type=click.IntRange(0, 65535),
            default=port,
            help="Port to listen on. 0 takes a free one.",
        ),
        click.option(
            "--allow-host",
            help="Host names that clients may use for this server, separated by commas. IP "
            "addresses are always allowed.",
        ),
        click.option(
            "--without-token",
            is_flag=True,
            help="Serve requests without a token although other machines can reach the address.",
        ),
        click.option(
            "--drain",
            type=_SECONDS,
            default=10.0,
            help="Seconds that running requests get to finish when the server stops.",
        ),
        click.option(
            "--body-limit",
            type=AT_LEAST_1,
            default=16_000_000,
            help="Maximum size of a request in bytes.",
        ),
    )


@click.command()
@click.argument("corpus")
@_listening(8000)
@click.option(
    "--search-top-k",
    "topk",
    type=AT_LEAST_1,
    default=3,
    help="Number of passages for a query that does not name one.",
)
@old_name("--topk", "--search-top-k")
@click.option(
    "--search-top-k-limit",
    "topk_limit",
    type=AT_LEAST_1,
    default=100,
    help="Maximum number of passages for a query.",
)
@old_name("--topk-limit", "--search-top-k-limit")
@click.option(
    "--queries-limit",
    type=AT_LEAST_1,
    default=8192,
    help="Maximum number of queries in a request.",
)
@click.option(
    "--batch", type=AT_LEAST_1, default=64, help="Maximum number of queries searched together."
)
@click.option("--timeout", type=_SECONDS, default=120.0, help="Seconds that a response may take.")
@click.option("--mcp", is_flag=True, help="Serve tools over MCP on standard input and output.")
@click.option("--mcp-http", is_flag=True, help="Serve tools over MCP at /mcp.")
@click.option(
    "--triples",
    help="Facts for the MCP tool knowledge_graph. By default the world's with its corpus, else "
    "none.",
)
@click.option(
    "--tools",
    type=FILE,
    help="YAML file with more tools for MCP, as the recipes' flags: `web_search: ddgs`.",
)
@config
def serve(corpus: str, topk: int, mcp: bool, mcp_http: bool, **options: Any) -> None:
    """Serve a corpus for retrieval, or tools over MCP.

    CORPUS is "world", a corpus, an index that `faithful-search index` made, or a search engine
    (opensearch+URL).

    The server speaks the formats of Search-R1 (POST /retrieve) and ReCall (POST /search and
    /batch_search), and has GET /health and /metrics. If FAITHFUL_SEARCH_SERVE_TOKEN is set in the
    environment, clients must send it as a bearer token. An address that other machines can reach
    needs a token.
    """
    if mcp and mcp_http:
        raise click.UsageError("--mcp and --mcp-http exclude each other")
    if (options["triples"] or options["tools"]) and not (mcp or mcp_http):
        raise click.UsageError("--triples and --tools are for --mcp and --mcp-http")
    if topk > options["topk_limit"] and not (mcp or mcp_http):
        raise click.UsageError(
            f"--search-top-k {topk} is above --search-top-k-limit {options['topk_limit']}"
        )
    if mcp:
        from ..serving.mcp import serve_stdio

        with _toolbox(corpus, topk, options) as toolbox:
            return serve_stdio(toolbox)
    # The port is taken before the index is opened, which may take long
    url, serve_there = _listen(options)
    from ..serving.app import ServerLimits

    limits = ServerLimits(
        options["body_limit"],
        options["queries_limit"],
        top_k=options["topk_limit"],
        seconds=options["timeout"],
    )
    if mcp_http:
        from ..serving.mcp import mcp_app

        return serve_there(
            mcp_app(_toolbox(corpus, topk, options), limits), limits, f"MCP tools at {url}/mcp"
        )
    from ..serving.retrieval import Retrieval
    from ..tools.local_search import LocalSearch, open_search

    search = open_search(corpus, top_k=topk)
    if not isinstance(search, LocalSearch):
        raise ConfigError(
            f"{corpus} is served already: use it as it is, or over MCP with --mcp or --mcp-http"
        )
    retrieval = Retrieval(search.index, topk, limits, options["batch"])
    example = f'curl {url}/retrieve -d \'{{"queries": ["capital"], "topk": {topk}}}\''
    serve_there(
        retrieval, limits, f"{len(search.index):,} passages of {corpus} at {url}, try: {example}"
    )


@click.command("serve-judge")
@click.argument("spec")
@_listening(8001)
@click.option(
    "--cache",
    type=FILE,
    help="SQLite file that keeps verdicts for the next start. By default they are not kept.",
)
@click.option(
    "--batch", type=AT_LEAST_1, default=256, help="Maximum number of pairs judged together."
)
@click.option(
    "--pairs-limit", type=AT_LEAST_1, default=4096, help="Maximum number of pairs in a request."
)
@click.option("--timeout", type=_SECONDS, default=600.0, help="Seconds that a response may take.")
@trust_remote_code
@config
def serve_judge(spec: str, cache: Path | None, **options: Any) -> None:
    """Serve a judge to runs that should not load it themselves.

    SPEC is KIND, KIND:MODEL or endpoint:MODEL@URL, such as generator:DIR. Runs ask the server with
    `--judge remote --judge-url URL` (recipes: `--judge_url`). Equal pairs of all clients are judged
    once.

    The server speaks JSON at POST /judge, where each pair says by its task what is asked about it.
    It has GET /health, which tells the tasks that a distilled judge was trained for, and /metrics.
    If FAITHFUL_SEARCH_SERVE_TOKEN is set in the environment, clients must send it as a bearer token.
    An address that other machines can reach needs a token.
    """
    from ..measure.agreement import parse_judge
    from ..wire.cache import Cache
    from ..wire.redact import redact

    # The port is taken before the model is opened, which may take long
    url, serve_there = _listen(options)
    from ..serving.app import ServerLimits
    from ..serving.judging import Judging

    limits = ServerLimits(
        options["body_limit"], seconds=options["timeout"], pairs=options["pairs_limit"]
    )
    name, judge = parse_judge(spec, options["trust_remote_code"])
    verdicts = None if cache is None else Cache(cache)
    if verdicts is not None:
        # `len` opens the file, so that one that cannot be used is an error now
        len(verdicts)
    kind, _, model = spec.partition(":")
    details = {"model": redact(model) or None, "task": _task_of(kind, model)}
    judging = Judging(judge, verdicts, limits, options["batch"], details)
    serve_there(
        judging,
        limits,
        f"{name} at {url}, use: --judge remote --judge-url {url} (recipes: --judge_url)",
    )


def _task_of(kind: str, model: str) -> str | tuple[str, ...] | None:
    """What a distilled judge was trained to be asked, one task or several; `None` for any other."""
    from ..judges import distilled

    if kind not in get_args(distilled.Kind):
        return None
    judge_file = distilled.read(model)
    return judge_file.task if judge_file else None


@click.command("serve-reward")
@click.option(
    "--mix", "--reward", "mix", default="veritas", help="Name of the mix, or of a single reward."
)
@click.option(
    "--dialect",
    help="Dialect that the policy writes. By default that of the mix's paper, else it is detected.",
)
@click.option(
    "--responses",
    type=click.Choice(["messages", "anywhere"]),
    default="messages",
    help="Where tool responses may stand: only in messages of tools, or anywhere in a text.",
)
@click.option(
    "--judge",
    "spec",
    help="Judge: KIND, KIND:MODEL or endpoint:MODEL@URL. By default words are compared.",
)
@click.option(
    "--abstained",
    type=float,
    help="Reward for a rollout without a value. By default the request fails.",
)
@_listening(8002)
@click.option(
    "--rollouts-limit",
    type=AT_LEAST_1,
    default=8192,
    help="Maximum number of rollouts in a request.",
)
@click.option("--timeout", type=_SECONDS, default=600.0, help="Seconds that a response may take.")
@trust_remote_code
@config
def serve_reward(
    mix: str,
    dialect: str | None,
    responses: "Responses",
    spec: str | None,
    abstained: float | None,
    **options: Any,
) -> None:
    """Serve a reward to trainers that ask for it over HTTP.

    The server speaks OpenRLHF's POST /get_reward, CaRR's POST /evaluate and NeMo Gym's POST
    /verify, and has GET /health and /metrics. Rollouts of all clients are scored in batches, equal
    ones once. If FAITHFUL_SEARCH_SERVE_TOKEN is set in the environment, clients must send it as a
    bearer token. An address that other machines can reach needs a token.

    The whole of a text counts as written by the policy, so that tool responses in it are no
    evidence. If your training loop wrote them, say so with --responses anywhere.
    """
    from ..measure.agreement import parse_judge
    from ..scoring import Scoring

    judge = None
    if spec is not None:
        _, judge = parse_judge(spec, options["trust_remote_code"])
    scoring = Scoring(mix, dialect=dialect, responses=responses, judge=judge, abstained=abstained)
    url, serve_there = _listen(options)
    from ..serving.app import ServerLimits
    from ..serving.rewarding import Rewarding

    limits = ServerLimits(
        options["body_limit"], options["rollouts_limit"], seconds=options["timeout"]
    )
    ready = f"{mix} at {url}, use: --reward.remote_url {url}/get_reward (OpenRLHF)"
    serve_there(Rewarding(scoring, limits), limits, ready)


@click.command()
@_host
@click.option("--port", type=click.IntRange(1, 65535), default=7860, help="Port to listen on.")
@click.option(
    "--endpoint",
    help="Base URL of an OpenAI-compatible server that visitors may ask with their own keys.",
)
@click.option(
    "--model",
    help="Policy to offer beside the bundled ones: the directory or Hub id of a model or an "
    "adapter, or with --endpoint the model's name there.",
)
@click.option(
    "--dialect", help="Dialect that --model writes. By default the one it was trained in."
)
@trust_remote_code
def demo(
    host: str,
    port: int,
    endpoint: str | None,
    model: str | None,
    dialect: str | None,
    trust_remote_code: bool,
) -> None:
    """Open a page to try agents and audit trajectories.

    Change evidence and see which agent follows it, ask an agent, or audit a file. To try a policy
    that you trained: faithful-search demo --model outputs/pou.
    """
    if endpoint is not None and model is None:  # visitors choose neither
        raise click.UsageError("--endpoint needs the name of the model there: give --model NAME")
    if dialect is not None and (endpoint is not None or model is None):
        raise click.UsageError(
            "--dialect is of a policy that runs here: give --model, no --endpoint"
        )
    from ..demo.agents import Local, Served
    from ..demo.app import launch

    served = Served(endpoint, model) if endpoint and model else None
    policy = Local.of(model, dialect, trust_remote_code) if model and not endpoint else None
    page = launch(host, port, served, policy, prevent_thread_lock=True)
    echo(f"the faithfulness explorer at {page.local_url} (Ctrl-C ends it)")
    try:
        while page.is_running:
            time.sleep(0.2)
    finally:
        page.close(verbose=False)


def _listen(options: dict[str, Any]) -> "tuple[str, Callable[[App, ServerLimits, str], None]]":
    """Take the port, and return the server's URL and a function that serves an application there.

    The function is called with the application, its limits, and the line to print when the server
    is ready. Clients must send the token of the environment, if there is one.

    Raises `ConfigError` when the address cannot be used, and when other machines can reach it and
    there is no token.
    """
    from ..serving.server import bind, is_public, serve, url_of
    from ..tools.remote_search import TOKEN

    bound = bind(options["host"], options["port"])
    token = os.environ.get(TOKEN, "")
    if is_public(bound) and not (options["without_token"] or token):
        bound.close()
        raise ConfigError(
            f"anybody who reaches {options['host']} could use this server: set {TOKEN} to a token "
            "that clients must send, or say --without-token"
        )
    # A request must name this server by one of these, against DNS rebinding
    names = [options["host"], *(options["allow_host"] or "").split(",")]
    names = [name.strip() for name in names if name.strip()]

    def serve_there(app: "App", limits: "ServerLimits", ready: str) -> None:
        from ..serving.app import Guarded

        serve(Guarded(app, limits, token, names), bound, options["drain"], lambda: echo(ready))

    return url_of(bound), serve_there


def _toolbox(corpus: str, topk: int, options: dict[str, Any]) -> "Toolbox":
    """The tools for MCP. Raises `ConfigError` for flags in the file of --tools that are unknown."""
    from ..tools.arguments import ToolArguments

    tools_file = options["tools"]
    # The file wins over the default of the facts, and the command line over the file
    flags: dict[str, Any] = {"triples": "world" if corpus == "world" else "none"}
    if tools_file:
        flags |= read_yaml(tools_file)
    flags |= {"corpus": corpus, "search_top_k": topk}
    if options["triples"]:
        flags["triples"] = options["triples"]
    unknown = flags.keys() - {setting.name for setting in fields(ToolArguments)}
    if unknown:
        raise ConfigError(
            f"{tools_file}: the recipes' tools have no flag {', '.join(sorted(unknown))}"
        )
    try:
        arguments = msgspec.convert(flags, ToolArguments)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{tools_file}: {error}") from error
    return arguments.build_toolbox()
