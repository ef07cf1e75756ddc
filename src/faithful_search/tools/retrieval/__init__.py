"""Corpora, and what can be searched in them: by words, by vectors, by both, here or in an engine elsewhere."""

from .bm25 import BM25Index
from .dense import DenseIndex, Embedder
from .engines import fill_engine, open_engine
from .index import HybridIndex, Index
from .index_folder import build_folder, open_folder, open_index
from .opensearch import OpenSearchIndex
from .qdrant import QdrantIndex

__all__ = [
    "BM25Index",
    "DenseIndex",
    "Embedder",
    "HybridIndex",
    "Index",
    "OpenSearchIndex",
    "QdrantIndex",
    "build_folder",
    "fill_engine",
    "open_engine",
    "open_folder",
    "open_index",
]
