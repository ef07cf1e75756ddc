"""Exact search on GPUs by FAISS, where its package for them is installed (faiss-gpu).

Tested with a stand-in for FAISS; it was never run on a GPU.
"""

import logging
import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from .flat_file import chunks

_UPLOADED = 262_144  # vectors that are sent at a time
_log = logging.getLogger(__name__)


class GpuVectors:
    """Vectors in the memory of all GPUs, each with an equal share of consecutive ones.

    Args:
        faiss: the package.
        blocks: arrays of (rows, dimension), one after the other.
        half: keep them in half precision there, which takes half the memory.

    Raises `RuntimeError`, FAISS's, where they do not fit.
    """

    def __init__(self, faiss: Any, blocks: Sequence[np.ndarray], half: bool) -> None:
        total = sum(map(len, blocks))
        dimension = blocks[0].shape[1]
        devices = faiss.get_num_gpus()
        share = math.ceil(total / devices)
        self.shares: list[tuple[int, Any]] = []
        self._resources: list[Any] = []  # FAISS does not keep them alive
        for device in range(devices):
            first = device * share
            if first >= total:
                break
            settings = faiss.GpuIndexFlatConfig()
            settings.device = device
            settings.useFloat16 = half
            resources = faiss.StandardGpuResources()
            index = faiss.GpuIndexFlatIP(resources, dimension, settings)
            last = min(first + share, total)
            for _, part in chunks(blocks, _UPLOADED, first, last):
                index.add(part)
            self.shares.append((first, index))
            self._resources.append(resources)

    def search(
        self, queries: np.ndarray, count: int
    ) -> Iterator[tuple[int, np.ndarray, np.ndarray]]:
        """Of each share: where it begins, and the scores and places of its nearest."""
        for first, index in self.shares:
            scores, places = index.search(queries, min(count, index.ntotal))
            yield first, scores, places


def on_gpus(faiss: Any, blocks: Sequence[np.ndarray], half: bool) -> GpuVectors | None:
    """The vectors on the GPUs; `None` where FAISS sees none, or, with a warning, no room."""
    if not getattr(faiss, "get_num_gpus", int)():
        return None
    try:
        return GpuVectors(faiss, blocks, half)
    except (RuntimeError, AttributeError) as error:
        _log.warning("searching on the CPU, since the vectors are not on the GPUs: %s", error)
        return None
