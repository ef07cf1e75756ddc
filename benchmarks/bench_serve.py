"""Queries per second of `faithful-search serve` beside a server of the Search-R1 kind, over the
same BM25 index.

The peer does what Search-R1's does: one handler in the thread pool for each request, which loops
over its queries one by one; its requests are read with pydantic and its answers written with the
standard library's JSON. It is Starlette (which comes with `faithful-search[mcp]`), runs under
uvicorn as ours does, and asks the same index. Servers and clients are processes of their own; each
client sends its next request when it has its answer, as a rollout does. All queries are different.

    python benchmarks/bench_serve.py [--documents 100000] [--clients 1 16 128] [--queries 1]
    [--seconds 6]

With `--dense MODEL` (a folder or a name of the Hub) both serve a dense index of `--dense-documents`
passages instead. On a machine that does other things too, compare the servers' own CPU time for a
query.
"""

import argparse
import asyncio
import itertools
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

WORDS, SEED = 50_000, 7


def write_corpus(path: Path, documents: int) -> None:
    """Synthetic documents of 60 words each, drawn by Zipf's law."""
    draw = np.random.default_rng(SEED)
    numbers = np.minimum(draw.zipf(1.2, (documents, 60)), WORDS)
    with path.open("w") as file:
        for number, row in enumerate(numbers.tolist()):
            text = " ".join(f"w{word}" for word in row)
            file.write(
                json.dumps({"id": f"d{number}", "title": f"Document {number}", "text": text}) + "\n"
            )


def queries(seed: int) -> Iterator[str]:
    """Five words each, of which the commonest 20 are left out, as of a question without its
    function words.
    """
    draw = random.Random(seed)
    while True:
        yield " ".join(f"w{min(20 + int(draw.paretovariate(0.35)), WORDS)}" for _ in range(5))


def serve_peer(corpus: str) -> None:
    """The server of the Search-R1 kind."""
    import uvicorn
    from pydantic import BaseModel
    from starlette.applications import Starlette
    from starlette.concurrency import run_in_threadpool
    from starlette.responses import JSONResponse
    from starlette.routing import Route

    from faithful_search.serving.server import bind, url_of
    from faithful_search.tools.local_search import open_search

    index = open_search(corpus).index

    class Asked(BaseModel):
        queries: list[str]
        topk: int | None = None
        return_scores: bool = False

    def retrieve(asked: Asked) -> dict[str, Any]:
        result = []
        for query in asked.queries:
            found = index.search(query, asked.topk or 3)
            result.append([{"document": _document(item), "score": item.score} for item in found])
        return {"result": result}

    async def endpoint(request: Any) -> JSONResponse:
        asked = Asked(**await request.json())
        return JSONResponse(await run_in_threadpool(retrieve, asked))

    bound = bind("127.0.0.1", 0)
    bound.listen(2048)
    print(f"peer at {url_of(bound)}", flush=True)
    app = Starlette(routes=[Route("/retrieve", endpoint, methods=["POST"])])
    uvicorn.Server(uvicorn.Config(app, log_level="warning", access_log=False)).run(sockets=[bound])


def _document(item: Any) -> dict[str, str]:
    return {"id": item.source, "contents": f'"{item.title}"\n{item.text}'}


@contextmanager
def server(kind: str, corpus: str, cache: str) -> Iterator[tuple[str, int, int]]:
    """Host, port and process id of a server in a process of its own."""
    ours = [
        sys.executable,
        "-c",
        "from faithful_search.cli import main; main()",
        "serve",
        corpus,
        "--port",
        "0",
    ]
    peer = [sys.executable, __file__, "--serve-peer", corpus]
    environment = {**os.environ, "FAITHFUL_SEARCH_CACHE": cache}
    process = subprocess.Popen(
        ours if kind == "ours" else peer, stdout=subprocess.PIPE, text=True, env=environment
    )
    try:
        line = process.stdout.readline()
        address = line.split("http://", 1)[1].split()[0].rstrip(",/")
        host, port = address.split(":")
        yield host, int(port), process.pid
    finally:
        process.terminate()
        process.wait(20)


async def client(
    host: str, port: int, stream: Iterator[str], many: int, until: float, took: list[float]
) -> None:
    """One rollout: ask, wait, ask again, on one connection."""
    reader, writer = await asyncio.open_connection(host, port)
    while time.perf_counter() < until:
        asked = {"queries": list(itertools.islice(stream, many)), "topk": 3, "return_scores": True}
        body = json.dumps(asked).encode()
        start = time.perf_counter()
        writer.write(
            b"POST /retrieve HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: %d\r\n\r\n%s"
            % (len(body), body)
        )
        head = await reader.readuntil(b"\r\n\r\n")
        length = int(head.lower().split(b"content-length:")[1].split(b"\r\n")[0])
        await reader.readexactly(length)
        took.append(time.perf_counter() - start)
        assert b" 200 " in head[:20], head
    writer.close()


async def load(host: str, port: int, clients: int, many: int, seconds: float) -> list[float]:
    """Seconds of every request of so many clients at the same time."""
    took: list[float] = []
    until = time.perf_counter() + seconds
    streams = (queries(number) for number in range(clients))
    await asyncio.gather(*(client(host, port, stream, many, until, took) for stream in streams))
    return took


@dataclass
class Run:
    """Seconds of every request, and CPU seconds of the server meanwhile."""

    took: list[float] = field(default_factory=list)
    cpu: float = 0.0

    def go_on(
        self, host: str, port: int, process: int, clients: int, many: int, seconds: float
    ) -> None:
        """Add the requests of so many seconds."""
        before = cpu_seconds(process)
        self.took += asyncio.run(load(host, port, clients, many, seconds))
        self.cpu += cpu_seconds(process) - before


Runs = dict[str, list[Run]]
"""By server, for each number of clients."""


def measure(
    corpus: str, cache: str, clients: list[int], many: int, seconds: float, rounds: int
) -> Runs:
    """A run for each number of clients; both servers in turn, for what else the machine does to be
    shared fairly.
    """
    runs = {kind: [Run() for _ in clients] for kind in ("ours", "peer")}
    with server("ours", corpus, cache) as ours, server("peer", corpus, cache) as peer:
        for turn in range(-1, rounds):
            order = [("ours", ours), ("peer", peer)][:: 1 if turn % 2 else -1]
            for place, number in enumerate(clients):
                for kind, address in order:
                    run = runs[kind][place] if turn >= 0 else Run()  # the first round warms up
                    run.go_on(*address, number, many, seconds / rounds)
    return runs


def cpu_seconds(process: int) -> float:
    """What a process used since its start (Linux)."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def report(clients: list[int], many: int, seconds: float, runs: Runs) -> None:
    """A table; latencies in milliseconds."""
    print(f"{many} queries a request, {seconds:g} s each")
    print(
        "| clients | q/s, ours and peer | ratio | CPU ms a query | ours p50 / p95 ms | peer p50 / p95 ms |"
    )
    print("|---|---|---|---|---|---|")
    for place, number in enumerate(clients):
        ours, peer = runs["ours"][place], runs["peer"][place]
        done = [len(run.took) * many for run in (ours, peer)]
        rates = f"{done[0] / seconds:,.0f}, {done[1] / seconds:,.0f} | {done[0] / done[1]:.2f}"
        cpu = f"{1000 * ours.cpu / done[0]:.2f}, {1000 * peer.cpu / done[1]:.2f}"
        print(f"| {number} | {rates} | {cpu} | {_quantiles(ours.took)} | {_quantiles(peer.took)} |")


def _quantiles(took: list[float]) -> str:
    cuts = statistics.quantiles(took, n=20)
    return f"{1000 * cuts[9]:.1f} / {1000 * cuts[18]:.1f}"


def prepare(corpus: str, cache: str, dense: str | None) -> str:
    """Index the corpus once for both; the folder or file to be served."""
    os.environ["FAITHFUL_SEARCH_CACHE"] = cache
    if dense is None:
        from faithful_search.tools import LocalSearch

        LocalSearch.from_corpus(corpus)
        return corpus
    from faithful_search.cli import cli

    out = f"{cache}/dense"
    cli(["index", corpus, out, "--kind", "dense", "--model", dense], standalone_mode=False)
    return out


def main() -> None:
    """Read the command line, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--documents", type=int, default=100_000)
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 16, 128])
    parser.add_argument("--queries", type=int, default=1, help="in each request")
    parser.add_argument("--seconds", type=float, default=6.0)
    parser.add_argument("--rounds", type=int, default=4, help="that the seconds are divided into")
    parser.add_argument("--dense", metavar="MODEL")
    parser.add_argument("--dense-documents", type=int, default=500)
    parser.add_argument("--serve-peer", metavar="CORPUS", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.serve_peer:
        return serve_peer(args.serve_peer)
    with tempfile.TemporaryDirectory() as scratch:
        corpus = f"{scratch}/corpus.jsonl"
        write_corpus(Path(corpus), args.dense_documents if args.dense else args.documents)
        served = prepare(corpus, scratch, args.dense)
        runs = measure(served, scratch, args.clients, args.queries, args.seconds, args.rounds)
    report(args.clients, args.queries, args.seconds, runs)


if __name__ == "__main__":
    main()
