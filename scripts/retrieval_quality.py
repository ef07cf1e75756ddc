"""Compare BM25, dense and hybrid retrieval on multi-hop questions: how many of a question's gold
passages are among the first five results.

    python scripts/retrieval_quality.py DATA indexes --model sentence-transformers/all-mpnet-base-v2

DATA has the folders `hotpotqa`, `2wikimultihopqa` and `musique`, each with `corpus.jsonl.gz` (id,
title, text) and `test.jsonl.gz` (id, question, supporting_titles). The indexes are kept in the
second folder, so that nothing is encoded twice; the same command continues an interrupted run.
Prints two Markdown tables, and draws recall@5 into `recall.png` in the second folder.
"""

import random
import time
from collections.abc import Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

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
TIMED = 200
"""The number of queries whose time is taken."""
Row = Mapping[str, Any]


class Quality(NamedTuple):
    """What was measured on one dataset.

    Attributes:
        scores: by way to search, the `MEASURES` of each question; of shape (questions, measures).
        graph: rows of cells that compare approximate search with the exact one.
    """

    scores: dict[str, np.ndarray]
    graph: list[list[str]]


@click.command()
@click.argument("data", type=click.Path(exists=True, path_type=Path))
@click.argument("folder", type=click.Path(path_type=Path))
@click.option("--model", required=True, help="Hub id or directory of the encoder.")
@click.option("--dtype", default="float32", show_default=True, help="Precision of the encoder.")
@click.option(
    "--sample",
    type=int,
    help="Number of passages to search in each corpus: the gold ones and a fixed draw of others. "
    "By default all.",
)
def main(data: Path, folder: Path, model: str, dtype: str, sample: int | None) -> None:
    """Measure the retrieval of the questions in DATA, with indexes kept in FOLDER."""
    scores: dict[str, dict[str, np.ndarray]] = {}
    graphs: dict[str, list[list[str]]] = {}
    for name in DATASETS:
        quality = measured(data / name, folder / name, model, dtype, sample)
        scores[name] = quality.scores
        graphs[name] = quality.graph
    print_quality(scores)
    print_graph(graphs)
    print(f"\n{draw(scores, folder / 'recall.png')}")


def measured(data: Path, folder: Path, model: str, dtype: str, sample: int | None) -> Quality:
    """Build the indexes of a dataset, or open those in the folder, and search them."""
    questions = list(read_rows(data / "test.jsonl.gz"))
    corpus = drawn(list(read_rows(data / "corpus.jsonl.gz")), questions, sample)
    dense = {"model": model, "hnsw": True}
    build_folder(corpus, folder, kind="hybrid", dense=dense, knobs={"dtype": dtype})
    passages = Passages(folder)
    bm25 = BM25Index(folder / "bm25", passages)
    graph = DenseIndex(folder / "dense", passages, dtype=dtype)
    exact = DenseIndex(folder / "dense", passages, exact=True, dtype=dtype)
    scores = {
        "BM25": scores_of(bm25, questions),
        "dense": scores_of(exact, questions),
        "hybrid": scores_of(HybridIndex((bm25, exact)), questions),
    }
    return Quality(scores, graph_costs(graph, exact, questions))


def drawn(corpus: list[Row], questions: Sequence[Row], count: int | None) -> list[Row]:
    """The gold passages first, then others drawn with seed 0, `count` in all; the whole corpus, in
    its order, where `count` is `None`.
    """
    if count is None:
        return corpus
    gold_titles: set[str] = set()
    for row in questions:
        gold_titles.update(row["supporting_titles"])
    gold = [row for row in corpus if row["title"] in gold_titles]
    distractors = [row for row in corpus if row["title"] not in gold_titles]
    random.Random(0).shuffle(distractors)
    return (gold + distractors)[:count]


def scores_of(index: Index, questions: Sequence[Row]) -> np.ndarray:
    """The `MEASURES` of each question; of shape (questions, measures)."""
    results = index.search_batch([row["question"] for row in questions], TOP_K)
    rows = []
    for question, hits in zip(questions, results, strict=True):
        rows.append(measures(question["supporting_titles"], hits))
    return np.array(rows)


def measures(gold: Sequence[str], hits: Sequence[Evidence]) -> tuple[float, float, float]:
    """Recall of the gold titles among the first `TOP_K` hits, 1 if all are there (else 0), and the
    reciprocal rank of the first that is there.

    Example:
        >>> measures(["a", "b"], [Evidence("…", title="c"), Evidence("…", title="a")])
        (0.5, 0.0, 0.5)
    """
    gold_titles = set(gold)
    titles = [hit.title for hit in hits[:TOP_K]]
    recall = len(gold_titles.intersection(titles)) / len(gold_titles)
    reciprocal_rank = 0.0
    for rank, title in enumerate(titles, start=1):
        if title in gold_titles:
            reciprocal_rank = 1 / rank
            break
    return recall, float(recall == 1), reciprocal_rank


def graph_costs(graph: DenseIndex, exact: DenseIndex, questions: Sequence[Row]) -> list[list[str]]:
    """For the exact search and each beam of the graph: its name, which share of the exact search's
    passages it finds, and the microseconds that a query takes.
    """
    vectors = graph.embedder.queries([row["question"] for row in questions])
    rows = [["exact", "1.000", f"{microseconds(exact, vectors):.0f}"]]
    exact_numbers = nearest(exact, vectors)
    for beam in BEAMS:
        graph.beam = beam
        duration = microseconds(graph, vectors)
        shares = []
        for numbers, expected in zip(nearest(graph, vectors), exact_numbers, strict=True):
            shares.append(len(set(numbers) & set(expected)) / TOP_K)
        rows.append([f"HNSW, beam {beam}", f"{np.mean(shares):.3f}", f"{duration:.0f}"])
    return rows


def nearest(index: DenseIndex, vectors: np.ndarray) -> list[list[int]]:
    """The numbers of the passages that are nearest to each vector."""
    _, numbers = index.nearest(vectors, TOP_K)
    return numbers.tolist()


def microseconds(index: DenseIndex, vectors: np.ndarray) -> float:
    """The median time of a query, one query at a time, over the first `TIMED` of them."""
    times = []
    for vector in islice(vectors, TIMED):
        start = time.perf_counter()
        index.nearest(vector[None], TOP_K)
        times.append(time.perf_counter() - start)
    return float(np.median(times)) * 1e6


def print_quality(tables: Mapping[str, Mapping[str, np.ndarray]]) -> None:
    """A row for each dataset and way to search; 95 % bootstrap intervals over the questions."""
    print(f"| questions | n | search | {' | '.join(MEASURES)} |")
    print("|---|---|---|" + "---|" * len(MEASURES))
    for name, scores_by_way in tables.items():
        for way, scores in scores_by_way.items():
            estimates = [bootstrap(scores[:, [column]]) for column in range(len(MEASURES))]
            print(f"| {name} | {len(scores)} | {way} | {' | '.join(map(percent, estimates))} |")


def draw(tables: Mapping[str, Mapping[str, np.ndarray]], path: Path) -> Path:
    """Draw recall@5 of each way to search, a group of bars for each dataset; returns `path`."""
    bars_by_way: dict[str, Any] = {}
    for way in tables[DATASETS[0]]:
        recalls: dict[str, Estimate] = {}
        for name, scores_by_way in tables.items():
            recall = scores_by_way[way][:, [MEASURES.index("recall@5")]]
            recalls[name] = bootstrap(recall)
        bars_by_way[way] = {"rows": msgspec.to_builtins(recalls)}
    return bars(bars_by_way, list(tables), path, title="Gold titles among the first five passages")


def percent(estimate: Estimate) -> str:
    """The value and its interval in percent."""
    ends = (estimate.value, estimate.low, estimate.high)
    value, low, high = (100 * (end or 0.0) for end in ends)
    return f"{value:.1f} [{low:.1f}, {high:.1f}]"


def print_graph(tables: Mapping[str, Sequence[Sequence[str]]]) -> None:
    """Print how much of the exact search's results approximate search finds, and how fast it is."""
    print("\n| passages of | search | same as exact@5 | µs a query |")
    print("|---|---|---|---|")
    for name, rows in tables.items():
        for row in rows:
            print(f"| {name} | {' | '.join(row)} |")


if __name__ == "__main__":
    main()
