"""A dense index on disk: `vectors` (passages x dimension), perhaps `hnsw.faiss`, and `manifest.json`, written last."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, Literal

import msgspec
import numpy as np

from ...errors import ConfigError, DataError
from .embedder import Described

Precision = Literal["float32", "float16"]
VECTORS, GRAPH, MANIFEST = "vectors", "hnsw.faiss", "manifest.json"
BEGUN = "begun.json"
"""What an unfinished build is of."""


class Graph(msgspec.Struct, frozen=True):
    """An HNSW graph: `links` of each vector to others (FAISS's M), chosen among `width` candidates (efConstruction)."""

    links: int
    width: int


class Manifest(msgspec.Struct, frozen=True):
    """What a dense index holds, and the encoder that can search it."""

    encoder: Described
    precision: Precision
    passages: int
    graph: Graph | None = None


def read_manifest(folder: Path, name: str = MANIFEST) -> Manifest:
    """The manifest of a finished dense index, or of one that was begun. Raises `DataError` when there is none."""
    try:
        return msgspec.json.decode((folder / name).read_bytes(), type=Manifest)
    except FileNotFoundError as error:
        raise DataError(f"{folder} holds no finished dense index: build it, or go on building it") from error
    except (OSError, msgspec.DecodeError) as error:
        raise DataError(f"cannot read {folder / name} ({error}): build the index anew") from error


def read_vectors(folder: Path, manifest: Manifest) -> np.ndarray:
    """The vectors, mapped; (passages, dimension). Raises `DataError` when they are not as the manifest says."""
    try:
        vectors = np.memmap(folder / VECTORS, dtype=manifest.precision, mode="r")
        # a plain array over the same map: slicing a memmap is slow
        return np.asarray(vectors).reshape(manifest.passages, manifest.encoder.dimension)
    except (OSError, ValueError) as error:
        raise DataError(f"{folder / VECTORS} is not as it was written ({error}): build the index anew") from error


def read_graph(folder: Path, manifest: Manifest) -> Any:
    """The FAISS index, in memory. Raises `DataError` when it is not as the manifest says."""
    try:
        index = load_faiss().read_index(str(folder / GRAPH))
    except RuntimeError as error:
        raise DataError(f"cannot read {folder / GRAPH}: build the index anew") from error
    if (index.ntotal, index.d) != (manifest.passages, manifest.encoder.dimension):
        raise DataError(f"{folder / GRAPH} does not fit the vectors beside it: build the index anew")
    return index


def load_faiss() -> Any:
    """The FAISS package. Raises `ConfigError` where it is missing."""
    try:
        import faiss
    except ImportError as error:
        raise ConfigError("dense search needs faiss: pip install 'faithful-search[dense]'") from error
    if sys.platform == "darwin":
        faiss.omp_set_num_threads(1)  # FAISS and torch bring an OpenMP each there, which crash when both have threads
    return faiss
