"""Cached tool results: hits and puts per second of `Cache` beside a whole-file JSON cache, at
10,000 entries.

The peer is the cache that many research repositories carry: one JSON file, read whole and written
whole. It is timed as several processes have to use it (the file is read for each lookup) and as a
single process may (read once, then kept in memory; such a hit is a dictionary's, and blind to what
other processes find). An entry is what a search returns: five passages with title, URL and about
400 characters each. `Cache` is timed as it is, with entries of late in memory, and from its file
alone. Hits are also timed through `Toolbox.call` with a tool that is never reached. A rate is the
best of the repeats, and CPU the processor's time per hit, which other work on the machine disturbs
least; the ratios are of our rate to the peer's.

    python benchmarks/bench_cache.py [--entries 10000] [--hits 5000] [--slow-hits 10] [--repeats 3]
"""

import argparse
import asyncio
import json
import math
import random
import tempfile
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from faithful_search.tools import Tool, Toolbox
from faithful_search.trajectory import Evidence, ToolCall
from faithful_search.wire.cache import Cache, key_of

MEMORY = 64_000_000
WORDS = [
    f"{a}{b}"
    for a in ("ka", "ri", "to", "mel", "su", "ven", "do")
    for b in ("ra", "lin", "mo", "tesk", "via")
]


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
        return Evidence(
            text,
            title=text[:30],
            url=f"https://pages.example/{number}/{rank}",
            score=chance.random(),
        )

    return [passage(rank) for rank in range(5)]


@dataclass(frozen=True)
class Rates:
    """Hits and puts per second, and microseconds of processor time per hit."""

    hits: float
    cpu: float
    puts: float = float("nan")

    @classmethod
    def best(cls, measured: "Iterable[Rates]") -> "Rates":
        """The best of each."""
        hits, cpu, puts = zip(
            *((rates.hits, rates.cpu, rates.puts) for rates in measured), strict=True
        )
        return cls(max(hits), min(cpu), max(puts))


def rate(work: Callable[[Any], Any], items: Iterable[Any]) -> tuple[float, float]:
    """Items per second, and microseconds of processor time per item."""
    listed = list(items)
    start, used = time.perf_counter(), time.process_time()
    for item in listed:
        work(item)
    return len(listed) / (time.perf_counter() - start), (time.process_time() - used) / len(
        listed
    ) * 1e6


def time_sqlite(
    path: Path, results: dict[str, list[Evidence]], asked: list[str], new: list[str], memory: int
) -> Rates:
    """`Cache`, results encoded and decoded as well."""
    cache = Cache(path, memory=memory)
    for key, found in results.items():
        cache.put(key, msgspec.json.encode(found))
    decode = msgspec.json.Decoder(list[Evidence]).decode
    some = next(iter(results.values()))
    hits = rate(lambda key: decode(cache.get(key) or b""), asked)
    return Rates(*hits, rate(lambda key: cache.put(key, msgspec.json.encode(some)), new)[0])


def time_json(
    path: Path, results: dict[str, Any], asked: list[str], new: list[str], memory: bool
) -> Rates:
    """The whole-file cache."""
    plain = {key: msgspec.to_builtins(found) for key, found in results.items()}
    path.write_text(json.dumps(plain))
    cache = JsonFile(path, memory)
    some = next(iter(plain.values()))
    hits = rate(lambda key: [Evidence(**item) for item in cache.get(key)], asked)
    return Rates(*hits, rate(lambda key: cache.put(key, some), new)[0])


def time_toolbox(
    path: Path, results: dict[str, list[Evidence]], asked: list[str], memory: int, at_once: int
) -> Rates:
    """Hits through `Toolbox.call`: one call after the other, or many at once."""
    tool = Search()
    tool.results = dict(results)
    toolbox = Toolbox([tool], cache=Cache(path, memory=memory))

    async def ask(query: str) -> None:
        observation = await toolbox.call(ToolCall("search", {"query": query}), toolbox.session())
        if len(observation.evidence) != 5:
            raise RuntimeError(f"no hit: {observation.note}")

    async def main() -> Rates:
        for query in results:
            await ask(query)
        start, used = time.perf_counter(), time.process_time()
        for place in range(0, len(asked), at_once):
            await asyncio.gather(*map(ask, asked[place : place + at_once]))
        took, used = time.perf_counter() - start, time.process_time() - used
        return Rates(len(asked) / took, used / len(asked) * 1e6)

    return asyncio.run(main())


def main() -> None:
    """Print the best rates and their ratios."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--entries", type=int, default=10_000)
    parser.add_argument("--hits", type=int, default=5_000)
    parser.add_argument("--slow-hits", type=int, default=10)
    parser.add_argument("--repeats", type=int, default=3)
    given = parser.parse_args()
    results = {key_of(query=number): passages(number) for number in range(given.entries)}
    asked = random.Random(0).choices(list(results), k=given.hits)
    slow, few, many = (
        asked[: given.slow_hits],
        [f"new {n}" for n in range(3)],
        [f"new {n}" for n in range(1000)],
    )
    size = len(msgspec.json.encode(list(results.values()))) / given.entries
    print(f"{given.entries} entries of {size:.0f} bytes, best of {given.repeats}")

    def best(measure: Callable[[Path], Rates]) -> Rates:
        found = []
        for _ in range(given.repeats):
            with tempfile.TemporaryDirectory() as folder:
                found.append(measure(Path(folder) / "cache"))
        return Rates.best(found)

    shared = best(lambda path: time_json(path, results, slow, few, memory=False))
    held = best(lambda path: time_json(path, results, asked, few, memory=True))
    rows = {"JSON file, read each time": shared, "JSON file, held in memory": held}
    for name, memory in (("Cache", MEMORY), ("Cache, file alone", 0)):
        rows[name] = best(
            lambda path, memory=memory: time_sqlite(path, results, asked, many, memory)
        )
    for at_once in (1, 64):
        for name, memory in (("", MEMORY), (", file alone", 0)):
            measure = partial(
                time_toolbox, results=results, asked=asked, memory=memory, at_once=at_once
            )
            rows[f"Toolbox.call, {at_once} at once{name}"] = best(measure)
    print(
        f"{'':<36} {'hits/s':>9} {'CPU us':>8} {'to read':>9} {'to held':>8} {'puts/s':>8} {'to held':>8}"
    )
    for name, rates in rows.items():
        ratios = f"{rates.hits / shared.hits:>8.0f}x {rates.hits / held.hits:>7.2f}x"
        puts = (
            "" if math.isnan(rates.puts) else f" {rates.puts:>8.1f} {rates.puts / held.puts:>7.1f}x"
        )
        print(f"{name:<36} {rates.hits:>9.0f} {rates.cpu:>8.1f} {ratios}{puts}")


if __name__ == "__main__":
    main()
