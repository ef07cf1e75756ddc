"""BM25 search beside its peers, in one run: the best 3 of 100,000 made-up passages, each query
alone and in batches.

Words follow Zipf's law; a query is some words of one passage, so that common and rare ones are in
it as in a text. Ours is timed from the text of a query to its evidence, through the index and, as a
tool, through `Toolbox.run_batch`; the peers from a query split at its spaces (tantivy: parsed) to
numbers of passages. bm25s runs on numpy; with numba installed a second line shows that too. A peer
that is not installed is named and left out. The last column: how often the first passage is the
same (tantivy rounds the lengths of passages).

    python benchmarks/bench_bm25.py [--passages 100000] [--queries 500] [--repeats 3]
"""

import argparse
import importlib.util
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from faithful_search.tools import Toolbox
from faithful_search.tools.local_search import open_search
from faithful_search.tools.retrieval.index_folder import build_folder
from faithful_search.trajectory import ToolCall

TOP_K, VOCABULARY, LENGTHS, EXPONENT = 3, 200_000, (30, 90), 1.07
Numbers = list[list[int]]


class Peer(NamedTuple):
    """A way to search: `run` gives the passages' numbers for queries, `at_once` how many it is
    given together.
    """

    name: str
    run: Callable[[list[str]], Numbers]
    at_once: int
    share: float = 1.0


def corpus(passages: int, seed: int = 0) -> list[str]:
    """Made-up texts of 30 to 90 words drawn by Zipf's law."""
    random = np.random.default_rng(seed)
    chances = 1 / np.arange(1, VOCABULARY + 1) ** EXPONENT
    words = np.array([f"w{number}" for number in range(VOCABULARY)])
    lengths = random.integers(*LENGTHS, size=passages)
    drawn = words[random.choice(VOCABULARY, size=lengths.sum(), p=chances / chances.sum())]
    return [" ".join(part) for part in np.split(drawn, np.cumsum(lengths)[:-1])]


def questions(texts: Sequence[str], count: int, seed: int = 1) -> list[str]:
    """Four to ten words of some passage each."""
    random = np.random.default_rng(seed)
    drawn = (texts[number].split() for number in random.integers(len(texts), size=count))
    return [
        " ".join(random.choice(words, size=random.integers(4, 11), replace=False))
        for words in drawn
    ]


def ours(texts: Sequence[str], folder: Path) -> Iterator[Peer]:
    """The index, the tool, and the toolbox that trainings use."""
    build_folder([{"id": str(number), "text": text} for number, text in enumerate(texts)], folder)
    tool = open_search(str(folder), top_k=TOP_K)
    toolbox = Toolbox([tool], concurrency=64)
    sessions = [toolbox.session() for _ in range(64)]

    def call(queries: list[str]) -> Numbers:
        calls = [ToolCall("local_search", {"query": query}) for query in queries]
        return [
            _numbers(found.evidence) for found in toolbox.run_batch(calls, sessions[: len(calls)])
        ]

    yield Peer(
        "index", lambda queries: [_numbers(tool.index.search(query, TOP_K)) for query in queries], 1
    )
    yield Peer(
        "index", lambda queries: [*map(_numbers, tool.index.search_batch(queries, TOP_K))], 64
    )
    yield Peer("toolbox", call, 1)
    yield Peer("toolbox", call, 64)


def bm25s(texts: Sequence[str], backend: str) -> Iterator[Peer]:
    """bm25s with the same form of BM25."""
    import bm25s

    model = bm25s.BM25(k1=1.5, b=0.75, method="lucene", backend=backend)
    model.index([text.split() for text in texts], show_progress=False)

    def run(queries: list[str]) -> Numbers:
        found = model.retrieve([query.split() for query in queries], k=TOP_K, show_progress=False)
        return found.documents.tolist()

    for at_once in (1, 64):
        yield Peer(f"bm25s, {backend}", run, at_once)


def rank_bm25(texts: Sequence[str]) -> Iterator[Peer]:
    """rank-bm25, which scores all passages in Python: only some of the queries."""
    from rank_bm25 import BM25Okapi

    model = BM25Okapi([text.split() for text in texts])

    def run(queries: list[str]) -> Numbers:
        scores = (model.get_scores(query.split()) for query in queries)
        return [np.argsort(-row, kind="stable")[:TOP_K].tolist() for row in scores]

    yield Peer("rank-bm25", run, 1, 0.02)


def tantivy(texts: Sequence[str]) -> Iterator[Peer]:
    """tantivy, a search engine in Rust: an index on disk, one segment, any of the words."""
    import tantivy

    schema = (
        tantivy.SchemaBuilder()
        .add_text_field("text")
        .add_integer_field("number", stored=True)
        .build()
    )
    index = tantivy.Index(schema, path=tempfile.mkdtemp())
    writer = index.writer(200_000_000, 1)
    for number, text in enumerate(texts):
        writer.add_document(tantivy.Document(text=text, number=number))
    writer.commit()
    writer.wait_merging_threads()
    index.reload()
    searcher = index.searcher()

    def run(queries: list[str]) -> Numbers:
        hits = (
            searcher.search(index.parse_query(query, ["text"]), TOP_K).hits for query in queries
        )
        return [[searcher.doc(address)["number"][0] for _, address in found] for found in hits]

    yield Peer("tantivy", run, 1)


def timed(peer: Peer, queries: list[str]) -> tuple[float, Numbers]:
    """Queries per second, and what was found."""
    asked = queries[: max(1, int(len(queries) * peer.share))]
    batches = [asked[start : start + peer.at_once] for start in range(0, len(asked), peer.at_once)]
    start = time.perf_counter()
    found = [numbers for batch in batches for numbers in peer.run(batch)]
    return len(asked) / (time.perf_counter() - start), found


def _numbers(evidence: Sequence[Any]) -> list[int]:
    return [int(item.source) for item in evidence]


def _agreement(found: Numbers, expected: Numbers) -> float:
    """Share of the queries with the same first passage."""
    pairs = [(one, other) for one, other in zip(found, expected, strict=False) if one and other]
    return statistics.mean(one[0] == other[0] for one, other in pairs)


def _peers(texts: Sequence[str], folder: Path) -> Iterator[Peer]:
    yield from ours(texts, folder)
    for module, peers in (
        ("bm25s", lambda: bm25s(texts, "numpy")),
        ("numba", lambda: bm25s(texts, "numba")),
        ("tantivy", lambda: tantivy(texts)),
        ("rank_bm25", lambda: rank_bm25(texts)),
    ):
        if importlib.util.find_spec(module) is None:
            print(f"left out: {module} is not installed")
        else:
            yield from peers()


def main() -> None:
    """Print queries per second of each, and how many times ours is as fast as each, alone and in
    batches.
    """
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--passages", type=int, default=100_000)
    parser.add_argument("--queries", type=int, default=500)
    parser.add_argument("--repeats", type=int, default=3)
    given = parser.parse_args()
    texts = corpus(given.passages)
    queries = questions(texts, given.queries)
    print(
        f"best {TOP_K} of {given.passages:,} passages, {given.queries} queries, median of {given.repeats}"
    )
    print(f"{'':<16} {'at once':>7} {'queries/s':>10} {'ours is':>8} {'same first':>10}")
    with tempfile.TemporaryDirectory() as folder:
        _print_rates(list(_peers(texts, Path(folder) / "index")), queries, given.repeats)


def _print_rates(peers: list[Peer], queries: list[str], repeats: int) -> None:
    """All peers take turns, so that a busy moment of the machine is everybody's; medians. The first
    peer of each batch size is what the others are compared with.
    """
    for peer in peers:
        peer.run(queries[: peer.at_once])
    rounds = [[timed(peer, queries) for peer in peers] for _ in range(repeats)]
    speeds = [statistics.median(row[place][0] for row in rounds) for place in range(len(peers))]
    ours: dict[int, float] = {}
    for peer, speed, (_, found) in zip(peers, speeds, rounds[0], strict=True):
        ratio, same = (
            ours.setdefault(peer.at_once, speed) / speed,
            _agreement(found, rounds[0][0][1]),
        )
        print(f"{peer.name:<16} {peer.at_once:>7} {speed:>10,.0f} {ratio:>7.2f}x {same:>10.1%}")


if __name__ == "__main__":
    main()
