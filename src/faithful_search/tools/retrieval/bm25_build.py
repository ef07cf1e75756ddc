"""The making of a BM25 index: words are counted in batches that survive a kill, then sorted by word on disk."""

from __future__ import annotations

import math
import os
import shutil
from collections.abc import Sequence
from itertools import islice
from pathlib import Path

import msgspec
import numpy as np

from ...trajectory import Evidence
from ..words import words
from .passages import Passages, Progress, silent
from .spool import Spool, write_whole

K1, B = 1.5, 0.75
INFO, VOCABULARY = "bm25.json", "vocabulary.txt"
_POSTINGS = ("rows", "columns", "counts")
_SPOOLED = ("words", "lengths", *_POSTINGS)
_CHUNK = 1 << 21


def build(folder: Path, passages: Passages, progress: Progress = silent) -> None:
    """Write the index of `passages` into `folder`; where an earlier call was killed, go on where it was.

    In memory are the vocabulary, a number for each word and each passage, and some batches.
    """
    info, work = folder / INFO, folder / "spool"
    if not info.exists():
        _count(work, passages, progress)
        _score(folder, work, progress)
        said = {"k1": K1, "b": B, "form": "lucene", "passages": len(passages)}
        write_whole(info, msgspec.json.encode(said))
    shutil.rmtree(work, ignore_errors=True)


def _count(work: Path, passages: Passages, progress: Progress) -> None:
    """Which word (column) occurs how often in which passage (row): one posting each, in corpus order."""
    with Spool(work, "counted", _SPOOLED) as spool:
        done = spool.state.get("passages", 0)
        known = (work / "words").read_text(encoding="utf-8").split("\n")[:-1]
        vocabulary = {word: column for column, word in enumerate(known)}
        with progress(desc="counting words", unit=" passages", initial=done, total=len(passages)) as bar:
            for batch in passages.batches(done):
                _count_batch(spool, batch, done, vocabulary)
                done += len(batch)
                spool.commit(passages=done)
                bar.update(len(batch))


def _count_batch(spool: Spool, batch: Sequence[Evidence], first: int, vocabulary: dict[str, int]) -> None:
    before = len(vocabulary)
    columns = [
        np.array([vocabulary.setdefault(word, len(vocabulary)) for word in words(f"{item.title} {item.text}")], "<i8")
        for item in batch
    ]
    lengths = np.array([len(found) for found in columns], "<i4")
    rows = np.repeat(np.arange(len(batch), dtype="<i8"), lengths)
    pairs, counts = np.unique(rows << 32 | np.concatenate(columns), return_counts=True)
    new = [*islice(reversed(vocabulary), len(vocabulary) - before)][::-1]
    spool.append("words", "".join(f"{word}\n" for word in new).encode())
    spool.append("lengths", lengths.data)
    spool.append("rows", ((pairs >> 32) + first).astype("<i4").data)
    spool.append("columns", (pairs & 0xFFFFFFFF).astype("<i4").data)
    spool.append("counts", counts.astype("<i4").data)


def _score(folder: Path, work: Path, progress: Progress) -> None:
    """The scores of all postings, sorted by word: each batch goes to the places that its words have left."""
    rows, columns, counts = (_read(work / name) for name in _POSTINGS)
    lengths, vocabulary = _read(work / "lengths"), (work / "words").read_bytes()
    frequencies = _frequencies(columns, vocabulary.count(b"\n"))
    idf, norms = _idf(frequencies, len(lengths)), _norms(lengths)
    indptr = np.concatenate([[0], np.cumsum(frequencies)]).astype("<i8")
    data, indices = (
        _created(folder / f"{name}.npy", kind, len(rows)) for name, kind in (("data", "<f4"), ("indices", "<i4"))
    )
    maxima, left = np.zeros(len(idf), "<f4"), indptr[:-1].copy()
    with progress(desc="scoring words", unit=" postings", total=len(rows)) as bar:
        for start in range(0, len(rows), _CHUNK):
            part = slice(start, start + _CHUNK)
            order = np.argsort(columns[part], kind="stable")
            column, row, count = columns[part][order], rows[part][order], counts[part][order].astype(np.float32)
            values = (idf[column] * (count / (norms[row] + count))).astype(np.float32)
            places = _places(column, left)
            data[places], indices[places] = values, row
            np.maximum.at(maxima, column, values)
            bar.update(len(order))
    np.save(folder / "indptr.npy", indptr)
    np.save(folder / "maxima.npy", maxima)
    (folder / VOCABULARY).write_bytes(vocabulary)


def _frequencies(columns: np.ndarray, size: int) -> np.ndarray:
    found = np.zeros(size, "<i8")
    for start in range(0, len(columns), _CHUNK):
        found += np.bincount(columns[start : start + _CHUNK], minlength=size)
    return found


def _idf(frequencies: np.ndarray, passages: int) -> np.ndarray:
    """Lucene's, float32, for each word; the same for words in as many passages."""
    different, which = np.unique(frequencies, return_inverse=True)
    found = [math.log(1 + (passages - count + 0.5) / (count + 0.5)) for count in different.tolist()]
    return np.array(found, "<f4")[which]


def _norms(lengths: np.ndarray) -> np.ndarray:
    """What is added to a word's count for a passage of this length, float64."""
    mean = lengths.mean(dtype=np.float64) if lengths.any() else 1.0
    return K1 * ((1 - B) + B * lengths / mean)


def _places(columns: np.ndarray, left: np.ndarray) -> np.ndarray:
    """Where the postings of these sorted columns go; `left`, the next free place of each, moves on."""
    begins = np.flatnonzero(np.diff(columns, prepend=-1))
    sizes = np.diff(begins, append=len(columns))
    here = columns[begins]
    places: np.ndarray = np.repeat(left[here] - begins, sizes) + np.arange(len(columns))
    left[here] += sizes
    return places


def _read(path: Path) -> np.ndarray:
    return np.asarray(np.memmap(path, "<i4", mode="r")) if path.stat().st_size else np.zeros(0, "<i4")


def _created(path: Path, kind: str, size: int) -> np.ndarray:
    if not size:  # nothing can be mapped
        np.save(path, np.zeros(0, kind))
        return np.zeros(0, kind)
    created = np.lib.format.open_memmap(path, "w+", kind, (size,))
    if hasattr(os, "posix_fallocate"):
        with path.open("r+b") as file:  # a full disk must be an error here, not a crash when the page is written
            os.posix_fallocate(file.fileno(), 0, path.stat().st_size)
    return created
