"""A small index whose answers are known; `faithful-search serve` and `serve-judge` as real processes."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from paths import ROOT

from faithful_search.errors import ToolError
from faithful_search.tools.retrieval.index import Index
from faithful_search.trajectory import Evidence

COMMAND = (sys.executable, "-c", "from faithful_search.cli import main; main()")


class Shelf(Index):
    """Passage n of query q is `q #n`; the words of a query are orders to misbehave."""

    def __init__(self, seconds: float = 0.0) -> None:
        self.seconds, self.batches = seconds, []

    def __len__(self) -> int:
        return 7

    def search_batch(self, queries, top_k):
        self.batches.append((list(queries), top_k))
        time.sleep(self.seconds)
        if "busy" in queries:
            raise ToolError("the engine is busy", passing=True)
        if "broken" in queries:
            raise ToolError("the engine is broken")
        if "crash" in queries:
            raise ZeroDivisionError("secret detail")
        if "slow" in queries:
            time.sleep(1.5)
        return [[passage(query, number) for number in range(top_k)] for query in queries]


def passage(query: str, number: int) -> Evidence:
    """What `Shelf` finds in place `number`."""
    return Evidence(
        text=f"text of {query} #{number}", title=f"{query} #{number}", source=f"p{number}", score=1 / (1 + number)
    )


def environment(**more: str) -> dict[str, str]:
    """Where a child process finds the package."""
    source = str(ROOT / "src")
    return {**os.environ, "PYTHONPATH": os.pathsep.join([source, os.environ.get("PYTHONPATH", "")]), **more}


@contextmanager
def command(*arguments: str, verb: str = "serve", port: int = 0, **more: str) -> Iterator[tuple[subprocess.Popen, str]]:
    """`faithful-search serve ARGUMENTS`, or another verb, and its URL, once it says that it is ready."""
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
