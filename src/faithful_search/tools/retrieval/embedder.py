"""Queries and passages as vectors: an encoder opened by name, safe for threads, forks and pickles."""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from functools import partial
from typing import Any, Literal

import msgspec
import numpy as np

from ...errors import ConfigError
from ...trajectory import Evidence

_PROBE = "Which river flows through the capital of the country whose flag shows a red maple leaf?"
_SETTINGS = ("pooling", "limit", "query_prefix", "passage_prefix")
_TYPICAL = 128  # tokens of a passage
_SAME = 0.995  # cosine of the probe's vectors: lower precision keeps it above, other weights do not


class Described(msgspec.Struct, frozen=True):
    """What made some vectors, as it is written beside them.

    `probe` is the vector of a fixed query: it tells whether a model of the same name still is the same model.
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
    """An encoder by its name: a Hub id or a directory, of sentence-transformers or plain Transformers.

    Encodes one batch at a time. A pickle carries name and settings; a forked child encodes on one thread.

    Args:
        model: Hub id or directory.
        knobs: of `inference.encoder.Encoder.from_pretrained`: `device`, `dtype`, `revision`, `pooling`, `limit`,
            `query_prefix`, `passage_prefix`, `batch_tokens`, `trust_remote_code`; or `batch_size`, passages of usual
            length in a batch.
    """

    def __init__(self, model: str, *, batch_size: int | None = None, **knobs: Any) -> None:
        if batch_size is not None:
            if batch_size < 1:
                raise ConfigError(f"a batch has at least 1 passage, got {batch_size}")
            knobs["batch_tokens"] = batch_size * _TYPICAL
        # absolute, since it is written down and read elsewhere
        self.model = os.path.abspath(model) if os.path.isdir(model) else model
        self.knobs = knobs
        try:
            from ...inference.encoder import Encoder
        except ImportError as error:
            raise ConfigError(f"dense search needs {error.name}: pip install 'faithful-search[dense]'") from error
        self._encoder = Encoder.from_pretrained(self.model, **knobs)
        self._lock, self._process = threading.Lock(), os.getpid()

    @classmethod
    def reopen(cls, described: Described, model: str | None = None, **knobs: Any) -> Embedder:
        """The embedder that made some vectors, from where it was or from `model`. Raises `ConfigError` when it cannot
        be opened, or gives other vectors."""
        made: dict[str, Any] = {name: getattr(described, name) for name in _SETTINGS}
        made["revision"] = described.revision if model is None else None
        embedder = cls(model or described.model, **(made | knobs))
        embedder.check(described)
        return embedder

    @property
    def dimension(self) -> int:
        return int(self._encoder.model.config.hidden_size)

    def queries(self, texts: Sequence[str]) -> np.ndarray:
        """Unit vectors of queries; shape (texts, dimension), float32."""
        return self._encode(texts, "query")

    def passages(self, passages: Sequence[Evidence]) -> np.ndarray:
        """Unit vectors of passages, the title on a line of its own before the text; (passages, dimension), float32."""
        return self._encode([f"{p.title}\n{p.text}" if p.title else p.text for p in passages], "passage")

    def described(self) -> Described:
        """What these vectors are made with."""
        return Described(
            model=self.model,
            dimension=self.dimension,
            probe=tuple(round(float(x), 5) for x in self.queries([_PROBE])[0]),
            revision=getattr(self._encoder.model.config, "_commit_hash", None) or self.knobs.get("revision"),
            **{name: getattr(self._encoder, name) for name in _SETTINGS},
        )

    def same(self, described: Described) -> bool:
        """Whether `described` vectors can be compared with this embedder's."""
        mine = self.described()
        settings = all(getattr(mine, name) == getattr(described, name) for name in (*_SETTINGS, "dimension"))
        return settings and float(np.dot(mine.probe, described.probe)) >= _SAME

    def check(self, described: Described) -> None:
        """Raise `ConfigError` where another encoder made the `described` vectors."""
        if not self.same(described):
            raise ConfigError(
                f"{self.model!r} gives other vectors than {described.model!r}, with which the index was built: open it "
                "with that model, at the revision it had then, or build it anew"
            )

    def _encode(self, texts: Sequence[str], kind: Literal["query", "passage"]) -> np.ndarray:
        # torch's threads do not cross a fork, and a lock may have been held at that moment
        if os.getpid() != self._process:
            from ...inference.encoder import one_thread

            one_thread()
            self._lock, self._process = threading.Lock(), os.getpid()
        with self._lock:  # tokenizers refuse to be used by two threads at once
            return self._encoder.encode(texts, kind)

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(Embedder, **self.knobs), (self.model,)
