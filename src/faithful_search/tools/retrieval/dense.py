"""Search by meaning: passages and queries as vectors of an encoder, compared by FAISS, exactly or
approximately by a graph (HNSW).
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
# The files of a dense index
VECTORS = "vectors"
GRAPH = "hnsw.faiss"
MANIFEST = "manifest.json"
_BLOCK = 8_192  # vectors that are copied before they are compared: more do not fit caches
_LINKS = 32  # of each vector in the graph: FAISS's M
_BUILD_BEAM = 200  # candidates for these links: FAISS's efConstruction
_LINKED_AT_ONCE = 4096  # vectors that are added to the graph at a time
_BATCHES_AHEAD = 8  # batches that are sorted by length together, and written together
_TYPICAL_TOKENS = 128  # of a passage
# A fixed query, whose vector shows whether a model of the same name is still the same model. Of two
# such vectors the cosine stays above the limit in another precision, but not with other weights.
_PROBE = "Which river flows through the capital of the country whose flag shows a red maple leaf?"
_LEAST_PROBE_COSINE = 0.995
# Of an encoder, what its vectors depend on
_SETTINGS = ("pooling", "limit", "query_prefix", "passage_prefix")


class Described(msgspec.Struct, frozen=True):
    """The encoder that made some vectors, of `dimension` components.

    `probe` is the vector of a fixed query; the other fields are those of
    `inference.encoder.Encoder`.
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
    """An encoder by its name. A forked child encodes on one thread.

    Args:
        model: a Hub id or a directory, of sentence-transformers or plain Transformers.
        batch_size: passages of usual length that are encoded at once.
        knobs: those of `inference.encoder.Encoder.from_pretrained`.

    Raises:
        ConfigError: a package is missing, or the model cannot be opened.
    """

    def __init__(self, model: str, *, batch_size: int | None = None, **knobs: Any) -> None:
        if batch_size is not None:
            knobs["batch_tokens"] = batch_size * _TYPICAL_TOKENS
        # Absolute, since it is written into a manifest that may be read from another directory.
        self.model = os.path.abspath(model) if os.path.isdir(model) else model
        self.knobs = knobs
        with needs("dense search", "dense"):
            from ...inference.encoder import Encoder
        self._encoder = Encoder.from_pretrained(self.model, **knobs)
        self._lock = threading.Lock()
        self._process = os.getpid()

    @classmethod
    def reopen(cls, described: Described, model: str | None = None, **knobs: Any) -> "Embedder":
        """The embedder that made some vectors, from where it was or from `model`. Raises
        `ConfigError` as `check`.
        """
        settings: dict[str, Any] = {name: getattr(described, name) for name in _SETTINGS}
        settings["revision"] = described.revision if model is None else None
        embedder = cls(model or described.model, **(settings | knobs))
        embedder.check(described)
        return embedder

    def queries(self, texts: Sequence[str]) -> np.ndarray:
        """Unit vectors of queries; (texts, dimension), float32."""
        return self._encode(texts, "query")

    def passages(self, passages: Sequence[Evidence]) -> np.ndarray:
        """Unit vectors of passages, the title on a line of its own before the text; (passages,
        dimension), float32.
        """
        texts = []
        for passage in passages:
            texts.append(f"{passage.title}\n{passage.text}" if passage.title else passage.text)
        return self._encode(texts, "passage")

    def described(self) -> Described:
        """What an index writes down about this encoder."""
        config = self._encoder.model.config
        probe = self.queries([_PROBE])[0]
        return Described(
            model=self.model,
            dimension=config.hidden_size,
            probe=tuple(round(float(component), 5) for component in probe),
            revision=getattr(config, "_commit_hash", None) or self.knobs.get("revision"),
            **{name: getattr(self._encoder, name) for name in _SETTINGS},
        )

    def check(self, described: Described) -> None:
        """Raise `ConfigError` where another encoder made the `described` vectors: with this one's
        they could be compared, but a search would return anything.
        """
        this = self.described()
        # A comparison of probes needs the same dimension.
        names = (*_SETTINGS, "dimension")
        is_same = all(getattr(this, name) == getattr(described, name) for name in names)
        if not is_same or float(np.dot(this.probe, described.probe)) < _LEAST_PROBE_COSINE:
            raise ConfigError(
                f"{self.model!r} gives other vectors than {described.model!r}, with which the "
                "index was built: open it with that model, at the revision it had then, or build "
                "it anew"
            )

    def _encode(self, texts: Sequence[str], kind: Literal["query", "passage"]) -> np.ndarray:
        if os.getpid() != self._process:
            # In a forked child torch would wait for threads of its parent, and the copy of the lock
            # may be held for ever.
            from ...inference.loading import choose_threads

            choose_threads(1)
            self._lock = threading.Lock()
            self._process = os.getpid()
        with self._lock:  # tokenizers refuse to be used by two threads at once
            return self._encoder.encode(texts, kind)

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(Embedder, **self.knobs), (self.model,)


class VectorsManifest(msgspec.Struct, frozen=True):
    """What a dense index holds when it is complete, and the encoder that can search it. With fewer
    than `passages` vectors its build was not finished.

    With `parts` the vectors are in these files of FAISS; see `flat_file`.
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

    Raises:
        ConfigError: a package or the encoder is missing, or the encoder is another one.
        OSError, ValueError: the folder holds no finished dense index, a damaged one, or one of
            other passages.
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
        self.folder = folder
        self.passages = passages
        self.exact = exact
        self.beam = beam
        self.manifest = msgspec.json.decode((folder / MANIFEST).read_bytes(), type=VectorsManifest)
        if len(passages) != self.manifest.passages:
            raise ValueError(f"{self.manifest.passages} vectors for {len(passages)} passages")
        self._faiss = load_faiss()
        self._process = os.getpid()
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
            raise ConfigError(
                f"{error}\nThe index {folder} was built with {self.manifest.encoder.model!r}; if "
                "that is elsewhere now, say where: open_folder(…, model=…)"
            ) from error

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
        """Encode `passages` into `folder`. Where an earlier call was killed, the next goes on after
        what that one wrote.

        Args:
            model, batch_size, knobs: see `Embedder`.
            hnsw: build a graph for approximate search, worth it from some hundred thousand passages
                on.
            precision: of the vectors on disk; float16 takes half the place and changes a cosine by
                some 0.0005.
            vectors: the files of a flat FAISS index of these passages by this model, in the order
                of their parts: they are taken as they are, and nothing is encoded but a sample, to
                see whether that is so. See `flat_file`, which says what is raised.

        Raises:
            ConfigError: as `Embedder`; or the vectors in `folder` were begun with another model or
                other settings.
        """
        faiss = load_faiss()  # a missing package must not show after hours of encoding
        embedder = Embedder(model, batch_size=batch_size, **knobs)
        manifest = VectorsManifest(embedder.described(), precision, len(passages), hnsw)
        folder.mkdir(parents=True, exist_ok=True)
        if (folder / MANIFEST).exists():
            begun = msgspec.json.decode((folder / MANIFEST).read_bytes(), type=VectorsManifest)
            # The encoders are compared by what they do: this one's probe may differ in a digit.
            begun_here = msgspec.structs.replace(begun, encoder=manifest.encoder, parts=())
            parts_left_out = bool(begun.parts) and not vectors
            if begun_here != manifest or parts_left_out:
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
            _write_vectors(folder, passages, embedder, manifest, batch_size * _BATCHES_AHEAD)
        if hnsw:
            _write_graph(folder, manifest, faiss)

    def search_batch(self, queries: Sequence[str], top_k: int) -> list[list[Evidence]]:
        if not queries:
            return []
        cosines, numbers = self.nearest(self.embedder.queries(queries), top_k)
        results = []
        for query_cosines, query_numbers in zip(cosines.tolist(), numbers.tolist(), strict=True):
            evidence = []
            for cosine, number in zip(query_cosines, query_numbers, strict=True):
                if number >= 0:  # -1 where the graph found fewer than were asked for
                    evidence.append(self.passages.get(number, cosine))
            results.append(evidence)
        return results

    def nearest(self, vectors: np.ndarray, top_k: int) -> tuple[np.ndarray, np.ndarray]:
        """The passages that are nearest to queries.

        Args:
            vectors: unit vectors of the queries; (queries, dimension).
            top_k: passages for each query; fewer where the index has fewer.

        Returns:
            Their cosines and their numbers, both (queries, top_k), best first, of equals the
            earlier passage. The number is -1 where the graph found fewer.
        """
        if os.getpid() != self._process:
            # A forked child has neither its parent's threads, for which FAISS would wait, nor its
            # GPU.
            self._faiss.omp_set_num_threads(1)
            self._process = os.getpid()
            self._gpus = None
        vectors = np.ascontiguousarray(vectors, dtype=np.float32)
        count = min(top_k, len(self))
        if self._graph is not None:
            parameters = self._faiss.SearchParametersHNSW(efSearch=max(self.beam, count))
            cosines, numbers = self._graph.search(vectors, count, params=parameters)
        else:
            best = self._faiss.ResultHeap(len(vectors), count, keep_max=True)
            search = self._search_here if self._gpus is None else self._gpus.search
            for start, block_cosines, places in search(vectors, count):
                best.add_result(block_cosines, places + start)
            best.finalize()
            cosines, numbers = best.D, best.I
        # FAISS returns equals in any order; policies are trained on what a query returns.
        order = np.lexsort((numbers, -cosines))
        return np.take_along_axis(cosines, order, 1), np.take_along_axis(numbers, order, 1)

    def _search_here(
        self, vectors: np.ndarray, count: int
    ) -> Iterator[tuple[int, np.ndarray, np.ndarray]]:
        """For each block of vectors: where it begins, and the cosines of the nearest and their
        places in it.
        """
        # FAISS reads aligned float32 as it is; others are turned into that block by block.
        as_they_are = all(
            block.dtype == np.float32 and block.flags.aligned for block in self._blocks
        )
        metric = self._faiss.METRIC_INNER_PRODUCT
        for start, block in chunks(self._blocks, len(self) if as_they_are else _BLOCK):
            most = min(count, len(block))
            cosines, places = self._faiss.knn(vectors, block, most, metric=metric)
            yield start, cosines, places

    def __len__(self) -> int:
        return self.manifest.passages

    def __reduce__(self) -> tuple[Any, ...]:
        opened = partial(DenseIndex, exact=self.exact, beam=self.beam, **self._knobs)
        return opened, (self.folder, self.passages)


def _write_vectors(
    folder: Path, passages: Passages, embedder: Embedder, manifest: VectorsManifest, chunk: int
) -> None:
    """Encode the passages, `chunk` at a time, from where an earlier call was killed."""
    vector_bytes = np.dtype(manifest.precision).itemsize * manifest.encoder.dimension
    with (folder / VECTORS).open("ab") as file, progress("encoding", len(passages)) as bar:
        done = file.tell() // vector_bytes
        if done < len(passages):
            # An incomplete chunk is encoded anew: a vector depends a little on those that it was
            # encoded with, and the same chunks give the same index.
            done -= done % chunk
            file.truncate(done * vector_bytes)
        bar.update(done)
        for batch in passages.batches(done, chunk):
            file.write(embedder.passages(batch).astype(manifest.precision).tobytes())
            file.flush()
            bar.update(len(batch))


def _write_graph(folder: Path, manifest: VectorsManifest, faiss: Any) -> None:
    """Link the vectors on disk to a graph, and write it beside them."""
    dimension = manifest.encoder.dimension
    index = faiss.IndexHNSWFlat(dimension, _LINKS, faiss.METRIC_INNER_PRODUCT)
    index.hnsw.efConstruction = _BUILD_BEAM
    with progress("linking", manifest.passages) as bar:
        for _, part in chunks(_read_vectors(folder, manifest), _LINKED_AT_ONCE):
            index.add(part)
            bar.update(len(part))
    with replacing(folder / GRAPH) as partial_file:
        faiss.write_index(index, str(partial_file))


def _read_vectors(folder: Path, manifest: VectorsManifest) -> list[np.ndarray]:
    """The vectors, mapped from disk, as one or several arrays of (passages, dimension). They are
    plain arrays over the maps, since slicing a memmap is slow.

    Raises `ValueError` where there are not as many as the manifest says.
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
        # There FAISS and torch each bring an OpenMP, and crash when both have threads.
        faiss.omp_set_num_threads(1)
    return faiss
