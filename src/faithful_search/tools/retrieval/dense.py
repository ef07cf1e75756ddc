"""Search by meaning: passages and queries as vectors of an encoder, compared by FAISS, exactly or by a graph (HNSW).

On disk: `vectors` (passages x dimension), perhaps `hnsw.faiss`, and `manifest.json`, written last.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal

import msgspec
import numpy as np

from ...errors import ConfigError
from ...trajectory import Evidence
from ...wire.files import replacing
from .embedder import Described, Embedder
from .index import Index
from .passages import Passages, Progress, silent, write_whole

Precision = Literal["float32", "float16"]
VECTORS, GRAPH, MANIFEST = "vectors", "hnsw.faiss", "manifest.json"
BEGUN = "begun.json"
"""What an unfinished build is of."""
_BLOCK = 65_536  # half-precision vectors turned to float32 at a time
_HNSW = {"links": 32, "width": 200}  # FAISS's M, and efConstruction
_AHEAD = 8  # batches that are sorted by length together, and written together


class Manifest(msgspec.Struct, frozen=True):
    """What a dense index holds, and the encoder that can search it."""

    encoder: Described
    precision: Precision
    passages: int
    graph: dict[str, int] | None = None


class DenseIndex(Index):
    """Passages by the cosine between their vector and the query's; from `open`, after `build`.

    Without a graph the search is exact and the vectors stay on disk, mapped; with one it is approximate and they are
    read into memory. Thread-safe; pickles as its folder's name and settings. FAISS and torch use as many threads as
    `OMP_NUM_THREADS` says, by default all cores; in a forked child one.
    """

    def __init__(
        self, folder: Path, passages: Passages, manifest: Manifest, embedder: Embedder, *, exact: bool, beam: int
    ) -> None:
        self.folder, self.passages, self.manifest, self.embedder = folder, passages, manifest, embedder
        self.exact, self.beam = exact, beam
        self._faiss, self._process = load_faiss(), os.getpid()
        self._vectors = _read_vectors(folder, manifest)
        self._graph = None
        if manifest.graph is not None and not exact:
            try:
                self._graph = self._faiss.read_index(str(folder / GRAPH))
            except RuntimeError as error:
                raise ValueError(f"{GRAPH} cannot be read") from error

    @classmethod
    def build(
        cls,
        folder: Path,
        passages: Passages,
        *,
        model: str,
        hnsw: bool = False,
        precision: Precision = "float32",
        batch_size: int = 64,
        progress: Progress = silent,
        **knobs: Any,
    ) -> Manifest:
        """Encode `passages` into `folder`; where an earlier call was killed, the next goes on after what it wrote.

        Args:
            model: a Hub id or a directory, of sentence-transformers or plain Transformers. The prefixes are those of
                its files, or of its family (E5, BGE) where they say nothing.
            hnsw: build a graph for approximate search, worth it from some hundred thousand passages on.
            precision: of the vectors on disk; float16 takes half the place and changes a cosine by some 0.0005.
            batch_size: passages of usual length that are encoded at a time; does not change the result.
            knobs: of the encoder: `device`, `dtype`, `revision`, `pooling`, `limit`, `query_prefix`, `passage_prefix`.

        Raises:
            ConfigError: when a package is missing, the model cannot be opened, or another one began the vectors there.
        """
        faiss = load_faiss()  # a missing package must not show after hours of encoding
        embedder = Embedder(model, batch_size=batch_size, **knobs)
        manifest = Manifest(embedder.described(), precision, len(passages))
        _write_vectors(folder, passages, embedder, manifest, batch_size * _AHEAD, progress)
        if hnsw:
            manifest = msgspec.structs.replace(manifest, graph=_HNSW)
            vectors = _read_vectors(folder, manifest)
            index = faiss.IndexHNSWFlat(manifest.encoder.dimension, _HNSW["links"], faiss.METRIC_INNER_PRODUCT)
            index.hnsw.efConstruction = _HNSW["width"]
            with progress(desc="linking", unit=" passages", total=len(vectors)) as bar:
                for start in range(0, len(vectors), 4096):
                    part = np.ascontiguousarray(vectors[start : start + 4096], dtype=np.float32)
                    index.add(part)
                    bar.update(len(part))
            with replacing(folder / GRAPH) as beside:
                faiss.write_index(index, str(beside))
        write_whole(folder / MANIFEST, msgspec.json.encode(manifest))
        return manifest

    @classmethod
    def open(
        cls,
        folder: Path,
        passages: Passages,
        model: str | None = None,
        *,
        exact: bool = False,
        beam: int = 128,
        **knobs: Any,
    ) -> DenseIndex:
        """The index that `build` completed in `folder`, with the encoder it was built with.

        Args:
            model: where the encoder is now, if no longer where it was.
            exact: search without the graph, also where there is one.
            beam: candidates that a search of the graph follows (efSearch): more find more and take longer.
            knobs: of the encoder: `device`, `dtype`, `batch_tokens`.

        Raises:
            ConfigError: when a package or the encoder is missing, or it is not the one of the index.
            OSError, ValueError: when the folder holds no finished dense index, a damaged one, or other passages'.
        """
        manifest = msgspec.json.decode((folder / MANIFEST).read_bytes(), type=Manifest)
        if len(passages) != manifest.passages:
            raise ValueError(f"{manifest.passages} vectors for {len(passages)} passages")
        try:
            embedder = Embedder.reopen(manifest.encoder, model, **knobs)
        except ConfigError as error:
            raise ConfigError(
                f"{error}\nThe index {folder} was built with {manifest.encoder.model!r}; if that is elsewhere now, say "
                "where: open_folder(…, model=…)"
            ) from error
        return cls(folder, passages, manifest, embedder, exact=exact, beam=beam)

    def search_batch(self, queries: Sequence[str], top_k: int) -> list[list[Evidence]]:
        """The nearest passages for each query; `score` is the cosine. Of equals the one earlier in the corpus."""
        if not queries:
            return []
        found = self.nearest(self.embedder.queries(queries), top_k)
        return [
            [
                msgspec.structs.replace(self.passages.get(int(number)), score=round(float(score), 4))
                for score, number in zip(*row, strict=True)
                if number >= 0
            ]
            for row in zip(*found, strict=True)
        ]

    def nearest(self, vectors: np.ndarray, top_k: int) -> tuple[np.ndarray, np.ndarray]:
        """Cosines and passage numbers of the nearest to unit vectors, (queries, dimension); each (queries, top_k), the
        number -1 where a graph found none."""
        if os.getpid() != self._process:
            self._faiss.omp_set_num_threads(1)  # the parent's OpenMP threads do not exist here, and are waited for
            self._process = os.getpid()
        vectors, count = np.ascontiguousarray(vectors, dtype=np.float32), min(top_k, len(self))
        if self._graph is not None:
            how = self._faiss.SearchParametersHNSW(efSearch=max(self.beam, count))
            scores, numbers = self._graph.search(vectors, count, params=how)
        else:
            size = len(self) if self._vectors.dtype == np.float32 else _BLOCK
            best = self._faiss.ResultHeap(len(vectors), count, keep_max=True)
            for start in range(0, len(self), size):
                block = self._vectors[start : start + size].astype(np.float32, copy=False)
                metric = self._faiss.METRIC_INNER_PRODUCT
                near, where = self._faiss.knn(vectors, block, min(count, len(block)), metric=metric)
                best.add_result(near, where + start)
            best.finalize()
            scores, numbers = best.D, best.I
        # FAISS returns equals in any order; policies are trained on what a query returns
        order = np.lexsort((numbers, -scores))
        return np.take_along_axis(scores, order, 1), np.take_along_axis(numbers, order, 1)

    def __len__(self) -> int:
        return self.manifest.passages

    def __reduce__(self) -> tuple[Any, ...]:
        again = partial(DenseIndex, exact=self.exact, beam=self.beam)
        return again, (self.folder, self.passages, self.manifest, self.embedder)


def _write_vectors(
    folder: Path, passages: Passages, embedder: Embedder, plan: Manifest, chunk: int, progress: Progress
) -> None:
    """Chunk by chunk, from where an earlier call was killed: no passage is encoded twice."""
    folder.mkdir(parents=True, exist_ok=True)
    if (folder / BEGUN).exists():
        begun = msgspec.json.decode((folder / BEGUN).read_bytes(), type=Manifest)
        # the folder of the index knows its model's name and the other settings, but not what the name stands for now
        if begun.precision != plan.precision or not embedder.same(begun.encoder):
            made, now = f"{begun.encoder.model!r} as {begun.precision}", f"{embedder.model!r} as {plan.precision}"
            told = f"the vectors in {folder} were begun with {made}, not with {now}"
            raise ConfigError(f"{told}: go on with that, or delete the folder and begin anew")
    else:
        (folder / VECTORS).unlink(missing_ok=True)
        write_whole(folder / BEGUN, msgspec.json.encode(plan))
    size = np.dtype(plan.precision).itemsize * embedder.dimension
    with (folder / VECTORS).open("ab") as file, progress(desc="encoding", unit=" passages", total=len(passages)) as bar:
        done = file.tell() // size
        if done < len(passages):
            done -= done % chunk  # an incomplete chunk is made anew: the same chunks give the same vectors
            file.truncate(done * size)
        bar.update(done)
        for batch in passages.batches(done, chunk):
            file.write(embedder.passages(batch).astype(plan.precision).tobytes())
            file.flush()
            bar.update(len(batch))


def _read_vectors(folder: Path, manifest: Manifest) -> np.ndarray:
    """The vectors, mapped; (passages, dimension)."""
    vectors = np.memmap(folder / VECTORS, dtype=manifest.precision, mode="r")
    # a plain array over the same map: slicing a memmap is slow
    return np.asarray(vectors).reshape(manifest.passages, manifest.encoder.dimension)


def load_faiss() -> Any:
    """The FAISS package. Raises `ConfigError` where it is missing."""
    try:
        import faiss
    except ImportError as error:
        raise ConfigError("dense search needs faiss: pip install 'faithful-search[dense]'") from error
    if sys.platform == "darwin":
        faiss.omp_set_num_threads(1)  # FAISS and torch bring an OpenMP each there, which crash when both have threads
    return faiss
