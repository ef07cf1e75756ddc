"""Search by meaning: passages and queries as vectors of an encoder, compared by FAISS, exactly or
by a graph (HNSW).
"""

import os
import sys
import threading
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal

import msgspec
import numpy as np

from ...errors import ConfigError, DataError, needs
from ...trajectory import Evidence
from ...wire.files import replacing
from .flat_file import check_made_by, chunks, link, mapped
from .index import Index, Passages, progress, write_whole
from .on_gpu import on_gpus

Precision = Literal["float32", "float16"]
VECTORS, GRAPH, MANIFEST = "vectors", "hnsw.faiss", "manifest.json"
_BLOCK = 65_536  # half-precision vectors turned to float32 at a time
_LINKS, _WIDTH = 32, 200  # FAISS's M and efConstruction
_AHEAD = 8  # batches that are sorted by length together, and written together
_TYPICAL = 128  # tokens of a passage
_PROBE = "Which river flows through the capital of the country whose flag shows a red maple leaf?"
_SAME = 0.995  # cosine of the probe's vectors: lower precision keeps it above, other weights do not
_SETTINGS = ("pooling", "limit", "query_prefix", "passage_prefix")


class Described(msgspec.Struct, frozen=True):
    """What made some vectors; `probe` is the vector of a fixed query, which tells whether a model
    of the same name is still the same model.
    """

    model: str
    pooling: str
    limit: int
    query_prefix: str
    passage_prefix: str
    dimension: int
    probe: tuple[float, ...]
    revision: str | None = None


class Embedder:
    """An encoder by its name: a Hub id or a directory, of sentence-transformers or plain
    Transformers. `batch_size` is in passages of usual length, `knobs` are those of
    `inference.encoder.Encoder.from_pretrained`. A forked child encodes on one thread. Raises
    `ConfigError` when a package is missing, or the model cannot be opened.
    """

    def __init__(self, model: str, *, batch_size: int | None = None, **knobs: Any) -> None:
        if batch_size is not None:
            knobs["batch_tokens"] = batch_size * _TYPICAL
        # absolute, since it is written down and read elsewhere
        self.model = os.path.abspath(model) if os.path.isdir(model) else model
        self.knobs = knobs
        with needs("dense search", "dense"):
            from ...inference.encoder import Encoder
        self._encoder = Encoder.from_pretrained(self.model, **knobs)
        self._lock, self._process = threading.Lock(), os.getpid()

    @classmethod
    def reopen(cls, described: Described, model: str | None = None, **knobs: Any) -> "Embedder":
        """The embedder that made some vectors, from where it was or from `model`; raises as
        `check`.
        """
        made: dict[str, Any] = {name: getattr(described, name) for name in _SETTINGS}
        made["revision"] = described.revision if model is None else None
        embedder = cls(model or described.model, **(made | knobs))
        embedder.check(described)
        return embedder

    def queries(self, texts: Sequence[str]) -> np.ndarray:
        """Unit vectors of queries; (texts, dimension), float32."""
        return self._encode(texts, "query")

    def passages(self, passages: Sequence[Evidence]) -> np.ndarray:
        """Unit vectors of passages, the title on a line of its own before the text; (passages,
        dimension), float32.
        """
        return self._encode(
            [f"{p.title}\n{p.text}" if p.title else p.text for p in passages], "passage"
        )

    def described(self) -> Described:
        return Described(
            model=self.model,
            dimension=self._encoder.model.config.hidden_size,
            probe=tuple(round(float(x), 5) for x in self.queries([_PROBE])[0]),
            revision=getattr(self._encoder.model.config, "_commit_hash", None)
            or self.knobs.get("revision"),
            **{name: getattr(self._encoder, name) for name in _SETTINGS},
        )

    def check(self, described: Described) -> None:
        """Raise `ConfigError` where another encoder made the `described` vectors: they would be
        compared all the same, and find anything.
        """
        mine = self.described()
        settings = all(
            getattr(mine, name) == getattr(described, name) for name in (*_SETTINGS, "dimension")
        )
        if not settings or float(np.dot(mine.probe, described.probe)) < _SAME:
            message = f"{self.model!r} gives other vectors than {described.model!r}, with which the index was built"
            raise ConfigError(
                f"{message}: open it with that model, at the revision it had then, or build it anew"
            )

    def _encode(self, texts: Sequence[str], kind: Literal["query", "passage"]) -> np.ndarray:
        # torch's threads do not cross a fork and would be waited for, and a lock may have been held
        # at that moment
        if os.getpid() != self._process:
            from ...inference.loading import choose_threads

            choose_threads(1)
            self._lock, self._process = threading.Lock(), os.getpid()
        with self._lock:  # tokenizers refuse to be used by two threads at once
            return self._encoder.encode(texts, kind)

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(Embedder, **self.knobs), (self.model,)


class VectorsManifest(msgspec.Struct, frozen=True):
    """What a dense index holds, and the encoder that can search it; fewer vectors are an unfinished
    build's. With `parts` they are in these files of FAISS, see `flat_file`.
    """

    encoder: Described
    precision: Precision
    passages: int
    hnsw: bool
    parts: tuple[str, ...] = ()


class DenseIndex(Index):
    """Passages by the cosine between their vector and the query's, from the folder that `build`
    completed.

    Without a graph the search is exact and the vectors stay on disk, mapped, or are in the memory
    of the GPUs where there is faiss-gpu and `device` is not "cpu"; with a graph it is approximate
    and they are read into memory. Thread-safe. FAISS and torch use as many threads as
    `OMP_NUM_THREADS` says, by default all cores; in a forked child one.

    Args:
        exact: search without the graph, also where there is one.
        beam: candidates that a search of the graph follows (efSearch): more find more and take
            longer.
        knobs: of the encoder: `model` (where it is now, if no longer where it was), `device`,
            `dtype`, `batch_tokens`.

    Raises `ConfigError` when a package or the encoder is missing, or it is another one; `OSError`
    or `ValueError` when the folder holds no finished dense index, a damaged one, or other
    passages'.
    """

    def __init__(
        self,
        folder: Path,
        passages: Passages,
        *,
        exact: bool = False,
        beam: int = 128,
        **knobs: Any,
    ) -> None:
        self.folder, self.passages, self.exact, self.beam = folder, passages, exact, beam
        self.manifest = msgspec.json.decode((folder / MANIFEST).read_bytes(), type=VectorsManifest)
        if len(passages) != self.manifest.passages:
            raise ValueError(f"{self.manifest.passages} vectors for {len(passages)} passages")
        self._faiss, self._process = load_faiss(), os.getpid()
        self._blocks = _read_vectors(folder, self.manifest)
        self._graph = None
        if self.manifest.hnsw and not exact:
            try:
                self._graph = self._faiss.read_index(str(folder / GRAPH))
            except RuntimeError as error:
                raise ValueError(f"{GRAPH} cannot be read") from error
        self._gpus = None
        if self._graph is None and knobs.get("device") != "cpu":
            half = self.manifest.precision == "float16"
            self._gpus = on_gpus(self._faiss, self._blocks, half)
        self._knobs = knobs
        try:
            self.embedder = Embedder.reopen(self.manifest.encoder, **knobs)
        except ConfigError as error:
            built = f"The index {folder} was built with {self.manifest.encoder.model!r}"
            mend = "if that is elsewhere now, say where: open_folder(…, model=…)"
            raise ConfigError(f"{error}\n{built}; {mend}") from error

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
        vectors: Sequence[str] = (),
        **knobs: Any,
    ) -> None:
        """Encode `passages` into `folder`; where an earlier call was killed, the next goes on after
        what it wrote.

        Args:
            model, batch_size, knobs: see `Embedder`, which says what is raised; `ConfigError` also
                when another model began the vectors.
            hnsw: build a graph for approximate search, worth it from some hundred thousand passages
                on.
            precision: of the vectors on disk; float16 takes half the place and changes a cosine by
                some 0.0005.
            vectors: the files of a flat FAISS index of these passages by this model, in the order
                of their parts: they are taken as they are, and nothing is encoded but a sample, to
                see whether that is so. See `flat_file`, which says what is raised.
        """
        faiss = load_faiss()  # a missing package must not show after hours of encoding
        embedder = Embedder(model, batch_size=batch_size, **knobs)
        manifest = VectorsManifest(embedder.described(), precision, len(passages), hnsw)
        folder.mkdir(parents=True, exist_ok=True)
        if (folder / MANIFEST).exists():
            begun = msgspec.json.decode((folder / MANIFEST).read_bytes(), type=VectorsManifest)
            same = msgspec.structs.replace(begun, encoder=manifest.encoder, parts=())
            if same != manifest or bool(begun.parts) > bool(vectors):
                raise ConfigError(
                    f"the vectors in {folder} were begun with other settings: name another place"
                )
            embedder.check(begun.encoder)
        else:
            write_whole(folder / MANIFEST, msgspec.json.encode(manifest))
        if vectors:
            files = [Path(name) for name in vectors]
            check_made_by(mapped(files), passages, embedder.passages, files)
            manifest = msgspec.structs.replace(manifest, parts=link(files, folder))
            write_whole(folder / MANIFEST, msgspec.json.encode(manifest))
        else:
            _write_vectors(folder, passages, embedder, manifest, batch_size * _AHEAD)
        if hnsw:
            index = faiss.IndexHNSWFlat(
                manifest.encoder.dimension, _LINKS, faiss.METRIC_INNER_PRODUCT
            )
            index.hnsw.efConstruction = _WIDTH
            with progress("linking", len(passages)) as bar:
                for _, part in chunks(_read_vectors(folder, manifest), 4096):
                    index.add(part)
                    bar.update(len(part))
            with replacing(folder / GRAPH) as beside:
                faiss.write_index(index, str(beside))

    def search_batch(self, queries: Sequence[str], top_k: int) -> list[list[Evidence]]:
        if not queries:
            return []
        scores, numbers = self.nearest(self.embedder.queries(queries), top_k)
        return [
            [
                self.passages.get(number, score)
                for score, number in zip(*row, strict=True)
                if number >= 0
            ]
            for row in zip(scores.tolist(), numbers.tolist(), strict=True)
        ]

    def nearest(self, vectors: np.ndarray, top_k: int) -> tuple[np.ndarray, np.ndarray]:
        """Cosines and passage numbers of the nearest to unit vectors, (queries, dimension); each
        (queries, top_k), the number -1 where a graph found none.
        """
        if os.getpid() != self._process:
            self._faiss.omp_set_num_threads(
                1
            )  # the parent's OpenMP threads do not exist here, and are waited for
            self._process, self._gpus = os.getpid(), None  # nor does its GPU
        vectors, count = np.ascontiguousarray(vectors, dtype=np.float32), min(top_k, len(self))
        if self._graph is not None:
            parameters = self._faiss.SearchParametersHNSW(efSearch=max(self.beam, count))
            scores, numbers = self._graph.search(vectors, count, params=parameters)
        else:
            best = self._faiss.ResultHeap(len(vectors), count, keep_max=True)
            search = self._search_here if self._gpus is None else self._gpus.search
            for start, near, where in search(vectors, count):
                best.add_result(near, where + start)
            best.finalize()
            scores, numbers = best.D, best.I
        # FAISS returns equals in any order; policies are trained on what a query returns
        order = np.lexsort((numbers, -scores))
        return np.take_along_axis(scores, order, 1), np.take_along_axis(numbers, order, 1)

    def _search_here(
        self, vectors: np.ndarray, count: int
    ) -> Iterator[tuple[int, np.ndarray, np.ndarray]]:
        """Of each block: where it begins, and the cosines and places of its nearest."""
        ready = all(block.dtype == np.float32 and block.flags.aligned for block in self._blocks)
        metric = self._faiss.METRIC_INNER_PRODUCT
        for start, block in chunks(self._blocks, len(self) if ready else _BLOCK):
            near, where = self._faiss.knn(vectors, block, min(count, len(block)), metric=metric)
            yield start, near, where

    def __len__(self) -> int:
        return self.manifest.passages

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(DenseIndex, exact=self.exact, beam=self.beam, **self._knobs), (
            self.folder,
            self.passages,
        )


def _write_vectors(
    folder: Path, passages: Passages, embedder: Embedder, manifest: VectorsManifest, chunk: int
) -> None:
    """Chunk by chunk, from where an earlier call was killed: no passage is encoded twice."""
    size = np.dtype(manifest.precision).itemsize * manifest.encoder.dimension
    with (folder / VECTORS).open("ab") as file, progress("encoding", len(passages)) as bar:
        done = file.tell() // size
        if done < len(passages):
            done -= (
                done % chunk
            )  # an incomplete chunk is made anew: the same chunks give the same vectors
            file.truncate(done * size)
        bar.update(done)
        for batch in passages.batches(done, chunk):
            file.write(embedder.passages(batch).astype(manifest.precision).tobytes())
            file.flush()
            bar.update(len(batch))


def _read_vectors(folder: Path, manifest: VectorsManifest) -> list[np.ndarray]:
    """The vectors, mapped, as one or several arrays of (passages, dimension). Plain arrays over the
    map, since slicing a memmap is slow.
    """
    if manifest.parts:
        try:
            return mapped([folder / name for name in manifest.parts])
        except DataError as error:
            raise ValueError(str(error)) from error
    vectors = np.asarray(np.memmap(folder / VECTORS, dtype=manifest.precision, mode="r"))
    return [vectors.reshape(manifest.passages, manifest.encoder.dimension)]


def load_faiss() -> Any:
    """The FAISS package. Raises `ConfigError` where it is missing."""
    with needs("dense search", "dense"):
        import faiss
    if sys.platform == "darwin":
        faiss.omp_set_num_threads(
            1
        )  # FAISS and torch bring an OpenMP each there, which crash when both have threads
    return faiss
