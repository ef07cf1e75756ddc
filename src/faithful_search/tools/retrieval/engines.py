"""Search engines that run elsewhere, named by URL: opened, and filled from a corpus.

qdrant+http://localhost:6333/wiki         a collection of a Qdrant server (https, too)
qdrant+/data/store/wiki                   a collection of an embedded Qdrant, which keeps the folder /data/store
opensearch+https://localhost:9200/wiki    an index of OpenSearch or Elasticsearch
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from itertools import islice
from typing import Any, NamedTuple

from ...errors import ConfigError, DataError, ToolError
from .corpus import BrokenRow, Corpus, OnBroken, called, digest, passages, readable_twice, refuse
from .embedder import Embedder
from .index import EngineIndex
from .opensearch import OpenSearchIndex
from .passages import Progress, silent
from .qdrant import QdrantIndex

TIMEOUT = 20.0
_ENGINES = ("qdrant", "opensearch")
_LIKE = "qdrant+http://localhost:6333/COLLECTION, qdrant+FOLDER/COLLECTION or opensearch+http://localhost:9200/INDEX"


class Filled(NamedTuple):
    """How an upload ended: passages in the engine, rows left out."""

    passages: int
    skipped: int


def is_engine(name: str) -> bool:
    """Whether it is the URL of a search engine, or of anything else that is not a file.

    Example:
        >>> [is_engine(name) for name in ("qdrant+store/wiki", "opensearch+http://localhost:9200/wiki", "wiki.jsonl")]
        [True, True, False]
    """
    # a mistyped address is reported as such, and not looked for on the Hub
    return "://" in name or name.startswith(tuple(f"{kind}+" for kind in _ENGINES))


def open_engine(url: str, timeout: float = TIMEOUT) -> EngineIndex:
    """The passages that a search engine at a URL (see above) has, searched with the encoder that filled it.

    Raises `DataError` when it has none, and `ConfigError` when the URL is wrong, a package or the encoder is missing,
    or the engine refuses.
    """
    try:
        index = _engine(url, timeout)
        if len(index):
            return index
    except ToolError as error:
        raise ConfigError(f"cannot open {url}: {error}") from error
    index.close()
    raise DataError(f"{url} has no passages: fill it with: faithful-search index CORPUS {url}")


def fill_engine(
    corpus: Corpus,
    url: str,
    *,
    model: str | None = None,
    knobs: Mapping[str, Any] | None = None,
    paragraph_characters: int | None = None,
    limit: int | None = None,
    on_broken: OnBroken = refuse,
    progress: Progress = silent,
) -> Filled:
    """Write the passages of a corpus into a search engine; after an interruption the same call goes on.

    Args:
        corpus, paragraph_characters, on_broken: see `corpus.passages`.
        url: see the head of this file.
        model: encoder of the vectors, needed for, and only for, Qdrant: Hub id or directory.
        knobs: how the encoder runs: `device`, `revision`, `batch_size`.
        limit: write only the first passages.

    Raises:
        DataError: an unusable corpus.
        ConfigError: when the engine has other passages there, the model or a package is missing, or the URL is wrong.
        ToolError: when the engine fails or refuses.
    """
    corpus, skipped = readable_twice(corpus), 0
    # kept in the engine: nothing here remembers what it was filled with
    made_of = {"digest": digest(corpus), "paragraph_characters": paragraph_characters, "limit": limit}

    def skip(broken: BrokenRow) -> None:
        nonlocal skipped
        on_broken(broken)
        skipped += 1

    by_words = _parts(url)[0] != "qdrant"
    if by_words and (model is not None or knobs):
        raise ConfigError("OpenSearch and Elasticsearch search by words: no --model, nor what goes with it")
    if not by_words and model is None:
        raise ConfigError("Qdrant needs --model, the encoder: --model intfloat/e5-base-v2, for example")
    index = _engine(url, TIMEOUT, None if model is None else Embedder(model, **(knobs or {})))
    try:
        # before the first passage is written
        there = index.made_of()
        if there is None and len(index):
            raise ConfigError(f"{url} has passages of another origin: name another, or delete it there")
        if there is not None and any(there.get(key) != value for key, value in made_of.items()):
            other = there.get("corpus")
            raise ConfigError(f"{url} is made of something else ({other}): name another, or delete it there")
        found = passages(corpus, paragraph_characters=paragraph_characters, on_broken=skip)
        count = index.upload(islice(found, limit), made_of=made_of | {"corpus": called(corpus)}, progress=progress)
    finally:
        index.close()
    return Filled(count, skipped)


def _parts(url: str) -> tuple[str, str, str]:
    """Which engine, where it is, and what holds the passages there."""
    kind, _, rest = url.partition("+")
    where, _, name = rest.rstrip("/").rpartition("/")
    if kind not in _ENGINES or not where or not name or where.endswith((":/", "://")) or {"?", "#"} & set(rest):
        raise ConfigError(f"an engine is named like {_LIKE}")
    return kind, where, name


def _engine(url: str, timeout: float, embedder: Embedder | None = None) -> EngineIndex:
    kind, where, name = _parts(url)
    if kind == "opensearch":
        return OpenSearchIndex(where, name, timeout=timeout)
    where = where if "://" in where else os.path.expanduser(where)
    if embedder is None and "://" not in where and not os.path.isdir(where):  # which opening would make
        raise DataError(f"there is no folder {where} of an embedded Qdrant")
    return QdrantIndex(name, embedder, where, timeout)
