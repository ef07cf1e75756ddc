"""Cached tool results: hits and puts per second of `Cache` beside a whole-file JSON cache, at 10,000 entries.

The peer is the cache that many research repositories carry: one JSON file, read whole and written whole. It is timed as
several processes have to use it (the file is read for each lookup) and as a single process may (read once, then kept in
memory; such a hit is a dictionary's, and blind to what other processes find). An entry is what a search returns: five
passages with title, URL and about 400 characters each. Hits are also timed through `Toolbox.call` with a tool that is
never reached.

    python benchmarks/bench_cache.py [--entries 10000] [--hits 5000] [--slow-hits 10] [--repeats 3]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import statistics
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import msgspec

from faithful_search.cache import Cache, key_of
from faithful_search.tools import Tool, Toolbox
from faithful_search.trajectory import Evidence, ToolCall

WORDS = [f"{a}{b}" for a in ("ka", "ri", "to", "mel", "su", "ven", "do") for b in ("ra", "lin", "mo", "tesk", "via")]


class JsonFile:
    """The whole-file cache: a dictionary in a JSON file."""

    def __init__(self, path: Path, in_memory: bool) -> None:
        self.path, self.in_memory = path, in_memory
        self.kept = self._read()

    def _read(self) -> dict[str, Any]:
        return json.loads(self.path.read_text()) if self.path.exists() else {}

    def get(self, key: str) -> Any:
        """The value under `key`."""
        if not self.in_memory:
            self.kept = self._read()
        return self.kept[key]

    def put(self, key: str, value: Any) -> None:
        """Read, add, write whole."""
        if not self.in_memory:
            self.kept = self._read()
        self.kept[key] = value
        self.path.write_text(json.dumps(self.kept))


class Search(Tool):
    """A tool whose results are all cached already."""

    name = "search"
    cache_key = "bench"

    def __init__(self) -> None:
        self.results: dict[str, list[Evidence]] = {}

    async def search(self, query: str) -> list[Evidence]:
        """Search.

        Args:
            query: The words to search for.
        """
        return self.results.pop(query)  # a second call for the same query would fail


def passages(number: int) -> list[Evidence]:
    """Five made-up passages."""
    chance = random.Random(number)

    def passage(rank: int) -> Evidence:
        text = " ".join(chance.choices(WORDS, k=70))
        return Evidence(text, title=text[:30], url=f"https://pages.example/{number}/{rank}", score=chance.random())

    return [passage(rank) for rank in range(5)]


def rate(work: Callable[[Any], Any], items: Iterable[Any]) -> float:
    """Items per second."""
    listed = list(items)
    start = time.perf_counter()
    for item in listed:
        work(item)
    return len(listed) / (time.perf_counter() - start)


def time_sqlite(
    path: Path, results: dict[str, list[Evidence]], asked: list[str], new: list[str]
) -> tuple[float, float]:
    """Hits and puts per second of `Cache`, results encoded and decoded as well."""
    cache = Cache(path)
    for key, found in results.items():
        cache.put(key, msgspec.json.encode(found))
    decode = msgspec.json.Decoder(list[Evidence]).decode
    some = next(iter(results.values()))
    hits = rate(lambda key: decode(cache.get(key) or b""), asked)
    return hits, rate(lambda key: cache.put(key, msgspec.json.encode(some)), new)


def time_json(
    path: Path, results: dict[str, Any], asked: list[str], new: list[str], memory: bool
) -> tuple[float, float]:
    """Hits and puts per second of the whole-file cache."""
    plain = {key: msgspec.to_builtins(found) for key, found in results.items()}
    path.write_text(json.dumps(plain))
    cache = JsonFile(path, memory)
    some = next(iter(plain.values()))
    hits = rate(lambda key: [Evidence(**item) for item in cache.get(key)], asked)
    return hits, rate(lambda key: cache.put(key, some), new)


def time_toolbox(path: Path, results: dict[str, list[Evidence]], count: int, at_once: int) -> float:
    """Hits per second through `Toolbox.call`: one call after the other, or many at once."""
    tool = Search()
    tool.results = dict(results)
    toolbox = Toolbox([tool], cache=Cache(path))

    async def ask(query: str) -> None:
        observation = await toolbox.call(ToolCall("search", {"query": query}), toolbox.session())
        if len(observation.evidence) != 5:
            raise RuntimeError(f"no hit: {observation.note}")

    async def main() -> float:
        for query in results:
            await ask(query)
        queries = random.Random(0).choices(list(results), k=count)
        start = time.perf_counter()
        for place in range(0, count, at_once):
            await asyncio.gather(*map(ask, queries[place : place + at_once]))
        return count / (time.perf_counter() - start)

    return asyncio.run(main())


def main() -> None:
    """Print the median rates and their ratios."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--entries", type=int, default=10_000)
    parser.add_argument("--hits", type=int, default=5_000)
    parser.add_argument("--slow-hits", type=int, default=10)
    parser.add_argument("--repeats", type=int, default=3)
    given = parser.parse_args()
    results = {key_of(query=number): passages(number) for number in range(given.entries)}
    asked = random.Random(0).choices(list(results), k=given.hits)
    slow, few, many = asked[: given.slow_hits], [f"new {n}" for n in range(3)], [f"new {n}" for n in range(1000)]
    size = len(msgspec.json.encode(list(results.values()))) / given.entries
    print(f"{given.entries} entries of {size:.0f} bytes, median of {given.repeats}")

    def median(measure: Callable[[Path], tuple[float, float]]) -> tuple[float, float]:
        found = []
        for _ in range(given.repeats):
            with tempfile.TemporaryDirectory() as folder:
                found.append(measure(Path(folder) / "cache"))
        hits, puts = zip(*found, strict=True)
        return statistics.median(hits), statistics.median(puts)

    ours = median(lambda path: time_sqlite(path, results, asked, many))
    read = median(lambda path: time_json(path, results, slow, few, memory=False))
    held = median(lambda path: time_json(path, results, asked, few, memory=True))
    print(f"{'':<32} {'hits/s':>10} {'ratio':>8} {'puts/s':>10} {'ratio':>8}")
    for name, (hits, puts) in (("Cache", ours), ("JSON file, shared", read), ("JSON file, in memory", held)):
        print(f"{name:<32} {hits:>10.0f} {ours[0] / hits:>7.2f}x {puts:>10.1f} {ours[1] / puts:>7.0f}x")
    for at_once in (1, 64):
        rates = median(lambda path, n=at_once: (time_toolbox(path, results, given.hits, n), 1.0))
        name = f"Toolbox.call, {at_once} at once"
        print(f"{name:<32} {rates[0]:>10.0f} {rates[0] / read[0]:>7.0f} times a shared JSON file")


if __name__ == "__main__":
    main()
