"""A BM25 index over passages that is built once, kept on disk and memory-mapped."""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from ..bundled import world_file
from ..errors import DataError
from ..tasks import read_rows
from ..trajectory import Evidence
from .words import words

Corpus = str | os.PathLike[str] | Iterable[Mapping[str, Any]]
"""`"world"`, the path of a `.jsonl[.gz]` file of rows `id`, `title`, `text`, or the rows themselves."""

K1, B = 1.5, 0.75
_LAYOUT = f"1 lucene k1={K1} b={B} words=1"
_ARRAYS = ("data", "indices", "indptr", "offsets")
_FILES = (*(f"{name}.npy" for name in _ARRAYS), "vocabulary.json", "passages.jsonl")


class BM25Index:
    """Passages and their BM25 scores (Lucene's form, k1 = 1.5, b = 0.75), read from the folder `save` wrote.

    `data`, `indices`, `indptr` are the columns of the sparse matrix passage x word. They and the passages stay on disk,
    mapped. Pickles as its folder's name.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        _check_sizes(folder)
        self.vocabulary = msgspec.json.decode((folder / "vocabulary.json").read_bytes(), type=dict[str, int])
        self.data, self.indices, self.indptr, self.offsets = (_mapped(folder, name) for name in _ARRAYS)
        self.passages = np.memmap(folder / "passages.jsonl", dtype=np.uint8, mode="r")
        if self.indptr[-1] != len(self.data) or self.offsets[-1] != len(self.passages):
            raise ValueError("the parts do not fit each other")

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __reduce__(self) -> tuple[type[BM25Index], tuple[Path]]:
        return BM25Index, (self.folder,)

    def passage(self, number: int) -> Evidence:
        """The passage at `number` in corpus order, its corpus id as `source`."""
        return _PASSAGE.decode(self.passages[self.offsets[number] : self.offsets[number + 1]].tobytes())

    def search(self, query: str, top_k: int) -> list[Evidence]:
        """The best passages that share a word with the query, best first; of equals the one earlier in the corpus."""
        scores = self.scores(query)
        hits = np.flatnonzero(scores > 0)
        if len(hits) > top_k:
            worst = np.partition(scores[hits], -top_k)[-top_k]
            hits = hits[scores[hits] >= worst]
        best = hits[np.argsort(-scores[hits], kind="stable")][:top_k]
        return [msgspec.structs.replace(self.passage(n), score=round(float(scores[n]), 4)) for n in best]

    def scores(self, query: str) -> np.ndarray:
        """BM25 of every passage; shape (passages,), float32. A word said twice counts twice."""
        scores = np.zeros(len(self), dtype=np.float32)
        for word in words(query):
            column = self.vocabulary.get(word)
            if column is not None:
                start, end = self.indptr[column], self.indptr[column + 1]
                scores[self.indices[start:end]] += self.data[start:end]
        return scores


def open_index(corpus: Corpus, cache_dir: str | os.PathLike[str] | None = None) -> BM25Index:
    """The index of a corpus, from the cache when its content was indexed before.

    Args:
        corpus: see `Corpus`.
        cache_dir: where indexes are kept; by default `FAITHFUL_SEARCH_CACHE` or `~/.cache/faithful_search`.

    Raises:
        DataError: an unreadable file, a row without text, no rows at all, or a cache folder that cannot be written.
    """
    if isinstance(corpus, (str, os.PathLike)):
        path = world_file("passages.jsonl.gz") if str(corpus) == "world" else Path(corpus)
        return _cached(_file_key(path), _passages(read_rows(path), str(path)), _cache_root(cache_dir), str(path))
    passages = list(_passages(corpus, "corpus"))
    return _cached(_rows_key(passages), iter(passages), _cache_root(cache_dir), "corpus")


def _cached(key: str, passages: Iterator[Evidence], root: Path, where: str) -> BM25Index:
    folder = root / "bm25" / key
    try:
        return BM25Index(folder)
    except (OSError, ValueError, IndexError):  # none yet, or a damaged one
        pass
    kept = list(passages)
    if not kept:
        raise DataError(f"{where}: no passages in it")
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        _publish(kept, folder)
    except OSError as error:
        raise DataError(f"cannot write {folder}: {error}; name another place in FAITHFUL_SEARCH_CACHE") from error
    return BM25Index(folder)


def _publish(passages: list[Evidence], folder: Path) -> None:
    """Build beside `folder` and move it there whole: nobody ever sees half an index."""
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".building-") as work:
        build = Path(work) / "index"
        save(passages, build)
        if folder.exists():
            folder.rename(Path(work) / "damaged")
        try:
            build.rename(folder)
        except OSError:
            if not folder.exists():  # else another process was first, with the same content
                raise


def save(passages: list[Evidence], folder: Path) -> None:
    """Write the index of `passages` into `folder`, which is created."""
    import bm25s

    folder.mkdir(parents=True)
    vocabulary: dict[str, int] = {}
    tokens = [[vocabulary.setdefault(w, len(vocabulary)) for w in words(f"{p.title} {p.text}")] for p in passages]
    parts = {"data": np.zeros(0, "float32"), "indices": np.zeros(0, "int32"), "indptr": np.zeros(1, "int32")}
    if vocabulary:
        model = bm25s.BM25(k1=K1, b=B, method="lucene", backend="numpy")
        model.index((tokens, vocabulary), show_progress=False)
        parts = {name: np.asarray(model.scores[name]) for name in parts}
    lines = [_ENCODER.encode(passage) + b"\n" for passage in passages]
    parts["offsets"] = np.cumsum([0, *map(len, lines)], dtype=np.int64)
    for name in _ARRAYS:
        np.save(folder / f"{name}.npy", parts[name])
    (folder / "vocabulary.json").write_bytes(msgspec.json.encode(vocabulary))
    (folder / "passages.jsonl").write_bytes(b"".join(lines))
    (folder / "sizes.json").write_text(json.dumps({name: (folder / name).stat().st_size for name in _FILES}))


def _mapped(folder: Path, name: str) -> np.ndarray:
    return np.asarray(np.load(folder / f"{name}.npy", mmap_mode="r"))  # as a plain array: slicing a memmap is slow


def _check_sizes(folder: Path) -> None:
    sizes = json.loads((folder / "sizes.json").read_text())
    wrong = [name for name in _FILES if (folder / name).stat().st_size != sizes[name]]
    if wrong:
        raise ValueError(f"{folder}: {', '.join(wrong)} not as written")


def _passages(rows: Iterable[Mapping[str, Any]], where: str) -> Iterator[Evidence]:
    for number, row in enumerate(rows, start=1):
        if not isinstance(row, Mapping) or not isinstance(row.get("text"), str):
            has = ", ".join(map(str, row)) if isinstance(row, Mapping) else type(row).__name__
            raise DataError(f"{where}, row {number}: no column 'text' with a string; it has: {has or 'nothing'}")
        title, source, url = ("" if row.get(key) is None else str(row[key]) for key in ("title", "id", "url"))
        passage = Evidence(text=row["text"], title=title, source=source or str(number), url=url)
        try:
            _ENCODER.encode(passage)
        except UnicodeEncodeError as error:
            raise DataError(f"{where}, row {number}: not valid Unicode ({error.reason})") from error
        yield passage


def _file_key(path: Path) -> str:
    try:
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256")
    except OSError as error:
        raise DataError(f"cannot read {path}: {error}") from error
    digest.update(_LAYOUT.encode())
    return digest.hexdigest()[:32]


def _rows_key(passages: list[Evidence]) -> str:
    digest = hashlib.sha256(_LAYOUT.encode())
    for passage in passages:
        digest.update(_ENCODER.encode(passage) + b"\n")
    return digest.hexdigest()[:32]


def _cache_root(cache_dir: str | os.PathLike[str] | None) -> Path:
    return Path(cache_dir or os.environ.get("FAITHFUL_SEARCH_CACHE") or Path.home() / ".cache" / "faithful_search")


_ENCODER = msgspec.json.Encoder()
_PASSAGE = msgspec.json.Decoder(Evidence)
