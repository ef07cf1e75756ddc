"""Corpora, and what can be searched in them: by words, by vectors, by both, here or in an engine
elsewhere.
"""

from .dense import DenseIndex, Embedder
from .index_folder import build_folder, open_folder
from .opensearch import OpenSearchIndex

__all__ = [
    "DenseIndex",
    "Embedder",
    "OpenSearchIndex",
    "build_folder",
    "open_folder",
]
