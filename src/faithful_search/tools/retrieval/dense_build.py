"""Builds a dense index in steps that survive a kill: no passage is encoded twice."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np

from ...errors import ConfigError
from .dense_files import (
    BEGUN,
    GRAPH,
    MANIFEST,
    VECTORS,
    Graph,
    Manifest,
    Precision,
    load_faiss,
    read_manifest,
    read_vectors,
)
from .embedder import Embedder
from .passages import Passages, Progress, silent, write_whole

_TYPICAL = 128  # tokens of a passage
_AHEAD = 8  # batches that are sorted by length together, and written together


def build_dense(
    folder: Path,
    passages: Passages,
    embedder: Embedder,
    *,
    graph: Graph | None = None,
    precision: Precision = "float32",
    batch_size: int = 64,
    progress: Progress = silent,
) -> Manifest:
    """Write the vectors of `passages`, and the graph if wanted, into `folder`; see `DenseIndex.build`."""
    plan = Manifest(embedder.described(), precision, len(passages))
    _write_vectors(folder, passages, embedder, plan, batch_size * _AHEAD, progress)
    if graph is not None:
        plan = msgspec.structs.replace(plan, graph=graph)
        _write_graph(folder, plan, graph, progress)
    write_whole(folder / MANIFEST, msgspec.json.encode(plan))
    return plan


def batch_tokens(batch_size: int) -> int:
    """The token budget of a batch of so many passages of usual length."""
    if batch_size < 1:
        raise ConfigError(f"a batch has at least 1 passage, got {batch_size}")
    return batch_size * _TYPICAL


def _write_vectors(
    folder: Path, passages: Passages, embedder: Embedder, plan: Manifest, chunk: int, progress: Progress
) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    if (folder / BEGUN).exists():
        _check_same(folder, read_manifest(folder, BEGUN), plan, embedder)
    else:
        (folder / VECTORS).unlink(missing_ok=True)
        write_whole(folder / BEGUN, msgspec.json.encode(plan))
    size = np.dtype(plan.precision).itemsize * embedder.dimension
    with (folder / VECTORS).open("ab") as file, progress(desc="encoding", unit=" passages", total=len(passages)) as bar:
        done = file.tell() // size
        if done < len(passages):
            done -= done % chunk  # what a kill left of a chunk is made anew: the same chunks give the same vectors
            file.truncate(done * size)
        bar.update(done)
        for batch in passages.batches(done, chunk):
            file.write(embedder.passages(batch).astype(plan.precision).tobytes())
            file.flush()
            bar.update(len(batch))


def _check_same(folder: Path, begun: Manifest, plan: Manifest, embedder: Embedder) -> None:
    if (begun.precision, begun.passages) != (plan.precision, plan.passages) or not embedder.same(begun.encoder):
        raise ConfigError(
            f"the vectors in {folder} were begun with {begun.encoder.model!r} as {begun.precision} for "
            f"{begun.passages} passages, not with {embedder.model!r} as {plan.precision} for {plan.passages}: go on "
            "with that, or delete the folder and begin anew"
        )


def _write_graph(folder: Path, plan: Manifest, graph: Graph, progress: Progress) -> None:
    faiss = load_faiss()
    index = faiss.IndexHNSWFlat(plan.encoder.dimension, graph.links, faiss.METRIC_INNER_PRODUCT)
    index.hnsw.efConstruction = graph.width
    vectors = read_vectors(folder, plan)
    step = 4096
    with progress(desc="linking", unit=" passages", total=len(vectors)) as bar:
        for start in range(0, len(vectors), step):
            part = np.ascontiguousarray(vectors[start : start + step], dtype=np.float32)
            index.add(part)
            bar.update(len(part))
    beside = folder / f"{GRAPH}.new"
    faiss.write_index(index, str(beside))
    beside.replace(folder / GRAPH)
