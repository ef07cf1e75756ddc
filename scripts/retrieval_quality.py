"""How many of a question's gold passages are among the first five: BM25, dense and hybrid, on
multi-hop questions.

    python scripts/retrieval_quality.py DATA indexes --model sentence-transformers/all-mpnet-base-v2

DATA has the folders `hotpotqa`, `2wikimultihopqa` and `musique`, each with `corpus.jsonl.gz` (id,
title, text) and `test.jsonl.gz` (id, question, supporting_titles). The indexes are kept in the
second folder, so that nothing is encoded twice; an interrupted run goes on. Prints Markdown, and
draws recall@5 in that folder.
"""

import random
import time
from collections.abc import Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import click
import msgspec
import numpy as np

from faithful_search.analysis.figures import bars
from faithful_search.json_lines import read_rows
from faithful_search.measure.stats import Estimate, bootstrap
from faithful_search.tools.retrieval.bm25 import BM25Index
from faithful_search.tools.retrieval.dense import DenseIndex
from faithful_search.tools.retrieval.index import HybridIndex, Index, Passages
from faithful_search.tools.retrieval.index_folder import build_folder
from faithful_search.trajectory import Evidence

DATASETS = ("hotpotqa", "2wikimultihopqa", "musique")
TOP_K = 5
MEASURES = ("recall@5", "all found@5", "MRR@5")
BEAMS = (16, 32, 64, 128)
Row = Mapping[str, Any]


@click.command()
@click.argument("data", type=click.Path(exists=True, path_type=Path))
@click.argument("folder", type=click.Path(path_type=Path))
@click.option("--model", required=True, help="Hub id or directory of the encoder.")
@click.option("--dtype", default="float32", show_default=True, help="Precision of the encoder.")
@click.option(
    "--sample",
    type=int,
    help="Search only so many passages of each corpus: the gold ones and a fixed draw.",
)
def main(data: Path, folder: Path, model: str, dtype: str, sample: int | None) -> None:
    """Measure the retrieval of the questions in DATA, with indexes kept in FOLDER."""
    tables = {name: measured(data / name, folder / name, model, dtype, sample) for name in DATASETS}
    print_quality({name: scores for name, (scores, _) in tables.items()})
    print_graph({name: graph for name, (_, graph) in tables.items()})
    print(
        f"\n{draw({name: scores for name, (scores, _) in tables.items()}, folder / 'recall.png')}"
    )


def measured(
    data: Path, folder: Path, model: str, dtype: str, sample: int | None
) -> tuple[dict[str, np.ndarray], list[list[str]]]:
    """Scores (questions x measures) of each way to search, and what the graph costs against the
    exact search.
    """
    questions = list(read_rows(data / "test.jsonl.gz"))
    corpus = drawn(list(read_rows(data / "corpus.jsonl.gz")), questions, sample)
    how = {"model": model, "hnsw": True}
    build_folder(corpus, folder, kind="hybrid", dense=how, knobs={"dtype": dtype})
    passages = Passages(folder)
    bm25 = BM25Index(folder / "bm25", passages)
    graph = DenseIndex(folder / "dense", passages, dtype=dtype)
    exact = DenseIndex(folder / "dense", passages, exact=True, dtype=dtype)
    ways: dict[str, Index] = {"BM25": bm25, "dense": exact, "hybrid": HybridIndex((bm25, exact))}
    return {name: scores(index, questions) for name, index in ways.items()}, graph_costs(
        graph, exact, questions
    )


def drawn(corpus: list[Row], questions: Sequence[Row], count: int | None) -> list[Row]:
    """The gold passages and others drawn with seed 0, `count` in all; by default the whole corpus
    as it is.
    """
    if count is None:
        return corpus
    gold = {title for row in questions for title in row["supporting_titles"]}
    first, rest = (
        [row for row in corpus if (row["title"] in gold) is wanted] for wanted in (True, False)
    )
    random.Random(0).shuffle(rest)
    return (first + rest)[:count]


def scores(index: Index, questions: Sequence[Row]) -> np.ndarray:
    """The measures of each question; shape (questions, measures)."""
    found = index.search_batch([row["question"] for row in questions], TOP_K)
    return np.array(
        [
            measures(row["supporting_titles"], hits)
            for row, hits in zip(questions, found, strict=True)
        ]
    )


def measures(gold: Sequence[str], hits: Sequence[Evidence]) -> tuple[float, float, float]:
    """The share of the gold titles found, whether all were, and one by the rank of the first.

    Example:
        >>> measures(["a", "b"], [Evidence("…", title="c"), Evidence("…", title="a")])
        (0.5, 0.0, 0.5)
    """
    wanted, titles = set(gold), [hit.title for hit in hits[:TOP_K]]
    share = len(wanted & set(titles)) / len(wanted)
    first = next((1 / rank for rank, title in enumerate(titles, start=1) if title in wanted), 0.0)
    return share, float(share == 1), first


def graph_costs(graph: DenseIndex, exact: DenseIndex, questions: Sequence[Row]) -> list[list[str]]:
    """Share of the exact search's passages that the graph finds, and microseconds of a query, one
    query at a time.
    """
    vectors = graph.embedder.queries([row["question"] for row in questions])
    (_, truth), slow = timed(exact, vectors)
    rows = [["exact", "1.000", f"{slow:.0f}"]]
    for beam in BEAMS:
        graph.beam = beam
        (_, numbers), quick = timed(graph, vectors)
        same = np.mean(
            [
                len(set(a) & set(b)) / TOP_K
                for a, b in zip(numbers.tolist(), truth.tolist(), strict=True)
            ]
        )
        rows.append([f"HNSW, beam {beam}", f"{same:.3f}", f"{quick:.0f}"])
    return rows


def timed(index: DenseIndex, vectors: np.ndarray) -> tuple[tuple[np.ndarray, np.ndarray], float]:
    """What is nearest to all vectors, and the median time of one of them alone in microseconds."""
    times = []
    for row in islice(vectors, 200):
        start = time.perf_counter()
        index.nearest(row[None], TOP_K)
        times.append(time.perf_counter() - start)
    return index.nearest(vectors, TOP_K), float(np.median(times)) * 1e6


def print_quality(tables: Mapping[str, Mapping[str, np.ndarray]]) -> None:
    """One row a dataset and way to search; 95 % bootstrap intervals over the questions."""
    print(
        f"| questions | n | search | {' | '.join(MEASURES)} |\n|---|---|---|{'---|' * len(MEASURES)}"
    )
    for name, ways in tables.items():
        for way, values in ways.items():
            cells = [bootstrap(values[:, [column]]) for column in range(len(MEASURES))]
            print(f"| {name} | {len(values)} | {way} | {' | '.join(map(percent, cells))} |")


def draw(tables: Mapping[str, Mapping[str, np.ndarray]], path: Path) -> Path:
    """Recall@5 of each way to search, a group of bars for each dataset."""
    ways = {
        way: {name: bootstrap(tables[name][way][:, [0]]) for name in tables}
        for way in tables[DATASETS[0]]
    }
    rows = {way: {"rows": msgspec.to_builtins(found)} for way, found in ways.items()}
    return bars(rows, list(tables), path, title="Gold titles among the first five passages")


def percent(estimate: Estimate) -> str:
    """The value and its interval in percent."""
    value, low, high = (
        100 * (part or 0.0) for part in (estimate.value, estimate.low, estimate.high)
    )
    return f"{value:.1f} [{low:.1f}, {high:.1f}]"


def print_graph(tables: Mapping[str, Sequence[Sequence[str]]]) -> None:
    """What approximate search finds of what the exact one does, and how long a query takes."""
    print("\n| passages of | search | same as exact@5 | µs a query |\n|---|---|---|---|")
    for name, rows in tables.items():
        for row in rows:
            print(f"| {name} | {' | '.join(row)} |")


if __name__ == "__main__":
    main()
