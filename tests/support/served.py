"""A small index whose answers are known; `faithful-search serve` and `serve-judge` as real
processes.
"""

import os
import re
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from click.testing import CliRunner, Result
from paths import ROOT

from faithful_search.cli import cli
from faithful_search.errors import ToolError
from faithful_search.serving.app import App, Guarded, ServerLimits
from faithful_search.serving.retrieval import Retrieval
from faithful_search.serving.server import bind, server_of, url_of
from faithful_search.tools.retrieval.index import Index
from faithful_search.trajectory import Evidence

PARSERS = ("httptools_impl.HttpToolsProtocol", "h11_impl.H11Protocol")
COMMAND = (sys.executable, "-c", "from faithful_search.cli import main; main()")


class Shelf(Index):
    """Passage n of query q is `q #n`; the words of a query are orders to misbehave."""

    def __init__(self, seconds: float = 0.0, inline: bool = False) -> None:
        self.seconds, self.inline, self.batches = seconds, inline, []

    def __len__(self) -> int:
        return 7

    def search_batch(self, queries, top_k):
        self.batches.append((list(queries), top_k))
        time.sleep(self.seconds)
        if "busy" in queries:
            raise ToolError("the engine is busy", transient=True)
        if "broken" in queries:
            raise ToolError("the engine is broken")
        if "crash" in queries:
            raise ZeroDivisionError("secret detail")
        if "slow" in queries:
            time.sleep(1.5)
        return [[passage(query, number) for number in range(top_k)] for query in queries]


class Held(Shelf):
    """Says when it has begun to search, and goes on while its gate is open."""

    def __init__(self, seconds: float = 0.0, inline: bool = False) -> None:
        super().__init__(seconds, inline)
        self.begun, self.gate = threading.Event(), threading.Event()
        self.gate.set()

    def search_batch(self, queries, top_k):
        self.begun.set()
        assert self.gate.wait(30)
        return super().search_batch(queries, top_k)


def passage(query: str, number: int) -> Evidence:
    """What `Shelf` finds in place `number`."""
    return Evidence(
        text=f"text of {query} #{number}",
        title=f"{query} #{number}",
        source=f"p{number}",
        score=1 / (1 + number),
    )


@contextmanager
def running(app: App, limits: ServerLimits | None = None, token: str = "") -> Iterator[str]:
    """The URL of an application that a thread serves on a free port."""
    bound = bind("127.0.0.1", 0)
    server = server_of(Guarded(app, limits or ServerLimits(), token), drain=10.0)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [bound]}, daemon=True)
    thread.start()
    while (
        not server.started and thread.is_alive()
    ):  # one that cannot start would be waited for without end
        time.sleep(0.005)
    try:
        yield url_of(bound)
    finally:
        server.should_exit = True
        thread.join(15)
        bound.close()


@contextmanager
def retrieving(index: Index, limits: ServerLimits | None = None, **settings) -> Iterator[str]:
    """The URL of a retrieval server."""
    with running(Retrieval(index, limits=limits, **settings), limits) as url:
        yield url


def use_parser(monkeypatch: pytest.MonkeyPatch, parser: str) -> None:
    """Serve with one of the `PARSERS` that uvicorn knows."""
    module, _, name = parser.rpartition(".")
    protocol = getattr(pytest.importorskip(f"uvicorn.protocols.http.{module}"), name)
    monkeypatch.setattr("uvicorn.protocols.http.auto.AutoHTTPProtocol", protocol)


def free_port() -> int:
    """A port of this machine at which nobody listens."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


CLIENT = {
    "protocolVersion": "2025-06-18",
    "capabilities": {},
    "clientInfo": {"name": "c", "version": "1"},
}
OPENED = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": CLIENT}
"""How a client of MCP begins."""


def connected(url: str, timeout: float = 30.0) -> socket.socket:
    """A bare connection, for what no client would send."""
    host, _, port = url.removeprefix("http://").rpartition(":")
    return socket.create_connection((host, int(port)), timeout)


def head(length: int | bytes, path: str = "/retrieve", more: bytes = b"") -> bytes:
    """The head of a request whose body is said to have so many bytes."""
    said = length if isinstance(length, bytes) else b"%d" % length
    return b"POST %s HTTP/1.1\r\nHost: 127.0.0.1\r\n%sContent-Length: %s\r\n\r\n" % (
        path.encode(),
        more,
        said,
    )


def invoked(*arguments: object, **settings: Any) -> Result:
    """What `faithful-search ARGUMENTS` ends with, in this process, where it is not told to
    serve.
    """
    return CliRunner().invoke(cli, [str(item) for item in arguments], **settings)


def environment(**more: str) -> dict[str, str]:
    """Where a child process finds the package."""
    source = str(ROOT / "src")
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([source, os.environ.get("PYTHONPATH", "")]),
        **more,
    }


@contextmanager
def command(
    *arguments: str, verb: str = "serve", port: int = 0, **more: str
) -> Iterator[tuple[subprocess.Popen, str]]:
    """`faithful-search serve ARGUMENTS`, or another verb, and its URL, once it says that it is
    ready.
    """
    process = subprocess.Popen(
        [*COMMAND, verb, *arguments, "--port", str(port)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=environment(**more),
    )
    seen = ""
    try:
        for line in process.stdout:
            seen += line
            if found := re.search(r"http://[\w.:\[\]]+", line):
                yield process, found[0]
                break
        else:
            raise AssertionError(f"the server did not start: {seen}")
    finally:
        process.kill()
        process.wait(20)
        process.stdout.close()
