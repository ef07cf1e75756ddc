"""Search engines that run elsewhere, named by URL: opened, and filled from a corpus.

`qdrant+http://localhost:6333/wiki` is a collection of a Qdrant server, `qdrant+/data/store/wiki` of an embedded one,
`opensearch+https://localhost:9200/wiki` an index of OpenSearch or Elasticsearch.
"""

import os
import time
from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from itertools import islice
from typing import Any, ClassVar

from ...errors import ConfigError, DataError, ToolError
from ...trajectory import Evidence
from .corpus import Corpus, OnBroken, called, digest, passages, readable_twice, refuse
from .dense import Embedder
from .index import Index, progress

FIELDS = ("title", "text", "source", "url")
"""What an engine keeps of a passage."""
TIMEOUT = 20.0
_LIKE = "qdrant+http://localhost:6333/COLLECTION, qdrant+FOLDER/COLLECTION or opensearch+http://localhost:9200/INDEX"
_PAUSES = (0.5, 1.0, 2.0, 4.0, 8.0)
"""Seconds before a batch is sent again for which the engine was too busy."""


class EngineIndex(Index):
    """Passages that a search engine keeps, `batch` written at a time: what OpenSearch and Qdrant share."""

    batch: ClassVar[int]

    def upload(self, passages: Iterable[Evidence], made_of: Mapping[str, Any] | None = None) -> int:
        """Write all passages, in corpus order, with what they are `made_of`; returns how many there are now. After an
        interruption the same call goes on with the batch that was interrupted. Raises `ToolError` when the engine
        fails or refuses."""
        # in the last batch some may be missing, whatever the count says
        done = self._prepare(made_of) // self.batch * self.batch
        rest = islice(passages, done, None)
        with progress("uploading", initial=done) as bar:
            while part := list(islice(rest, self.batch)):
                try:
                    self._write_patiently(part, done, made_of)
                except ToolError as error:
                    raise error.retold(
                        f"{error} {done} passages are written: the same call goes on there."
                    ) from error
                done += len(part)
                bar.update(len(part))
        self._finish()
        return done

    def _write_patiently(
        self, part: Sequence[Evidence], start: int, made_of: Mapping[str, Any] | None
    ) -> None:
        for pause in (*_PAUSES, None):
            try:
                return self._write(part, start, made_of)
            except ToolError as error:
                if pause is None or not error.passing:
                    raise
                time.sleep(max(pause, error.retry_after or 0.0))

    @abstractmethod
    def made_of(self) -> dict[str, Any] | None:
        """What `upload` was told that the passages are made of, or `None`."""

    @abstractmethod
    def _prepare(self, made_of: Mapping[str, Any] | None) -> int:
        """Make what holds the passages where it is missing; returns how many are there."""

    @abstractmethod
    def _write(
        self, part: Sequence[Evidence], start: int, made_of: Mapping[str, Any] | None
    ) -> None:
        """Write passages, the first under the number `start`."""

    def _finish(self) -> None:
        """Called when all are written."""

    def close(self) -> None:
        """Release connections and locks; the index cannot be used afterwards."""


def is_engine(name: str) -> bool:
    """Whether it is the URL of a search engine, or of anything else that is not a file."""
    # a mistyped address is reported as such, and not looked for on the Hub
    return "://" in name or name.startswith(("qdrant+", "opensearch+"))


def open_engine(url: str, timeout: float = TIMEOUT) -> EngineIndex:
    """The passages that a search engine at a URL (see above) has, searched with the encoder that filled it. Raises
    `DataError` when it has none, and `ConfigError` when it cannot be opened."""
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
) -> int:
    """Write the passages of a corpus into the search engine at a URL (see above), and return their number; after an
    interruption the same call goes on.

    Args:
        corpus, paragraph_characters, on_broken: see `corpus.passages`.
        model: encoder of the vectors, for Qdrant only: Hub id or directory.
        knobs: how the encoder runs: `device`, `revision`, `batch_size`.
        limit: write only the first passages.

    Raises `DataError` for an unusable corpus, `ConfigError` for settings that do not fit what is there, and `ToolError`
    when the engine fails or refuses.
    """
    corpus = readable_twice(corpus)
    # kept in the engine: nothing here remembers what it was filled with
    made_of = {
        "digest": digest(corpus),
        "paragraph_characters": paragraph_characters,
        "limit": limit,
    }
    by_words = _parts(url)[0] != "qdrant"
    if by_words and (model is not None or knobs):
        raise ConfigError(
            "OpenSearch and Elasticsearch search by words: no --model, nor what goes with it"
        )
    if not by_words and model is None:
        raise ConfigError(
            "Qdrant needs --model, the encoder: --model intfloat/e5-base-v2, for example"
        )
    index = _engine(url, TIMEOUT, None if model is None else Embedder(model, **(knobs or {})))
    with closing(index):
        there = index.made_of()
        if there is None and len(index):
            there = {"corpus": "passages of another origin"}
        if there is not None and any(there.get(key) != value for key, value in made_of.items()):
            other = there.get("corpus")
            raise ConfigError(
                f"{url} is made of something else ({other}): name another, or delete it there"
            )
        found = passages(corpus, paragraph_characters=paragraph_characters, on_broken=on_broken)
        return index.upload(islice(found, limit), made_of | {"corpus": called(corpus)})


def _parts(url: str) -> tuple[str, str, str]:
    """Which engine, where it is, and what holds the passages there."""
    kind, _, rest = url.partition("+")
    where, _, name = rest.rstrip("/").rpartition("/")
    known = kind in ("qdrant", "opensearch") and not {"?", "#"} & set(rest)
    if not known or not where or not name or where.endswith((":/", "://")):
        raise ConfigError(f"an engine is named like {_LIKE}")
    return kind, where, name


def _engine(url: str, timeout: float, embedder: Embedder | None = None) -> EngineIndex:
    kind, where, name = _parts(url)
    if kind == "opensearch":
        from .opensearch import OpenSearchIndex

        return OpenSearchIndex(where, name, timeout=timeout)
    from .qdrant import QdrantIndex

    where = where if "://" in where else os.path.expanduser(where)
    if (
        embedder is None and "://" not in where and not os.path.isdir(where)
    ):  # which opening would make
        raise DataError(f"there is no folder {where} of an embedded Qdrant")
    return QdrantIndex(name, embedder, where, timeout)


def document_of(passage: Evidence) -> dict[str, Any]:
    """A passage as engines keep it."""
    return {name: getattr(passage, name) for name in FIELDS}


def passage_of(document: Mapping[str, Any], number: object, score: object) -> Evidence:
    """A document that an engine found; others may have written it, and without a source `number` takes its place."""
    title, text, source, url = (str(document.get(name) or "") for name in FIELDS)
    # digits beyond these differ between machines
    rounded = round(score, 4) if isinstance(score, float | int) else None
    return Evidence(text=text, title=title, source=source or str(number), url=url, score=rounded)
