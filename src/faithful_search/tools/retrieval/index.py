"""What can be searched: passages behind one interface, in this process or in a search engine elsewhere."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from typing import Any, ClassVar

from ...errors import ToolError
from ...trajectory import Evidence
from ...wire.retry import TRANSIENT
from .passages import Progress, silent

FIELDS = ("title", "text", "source", "url")
"""What an engine keeps of a passage."""


class Index(ABC):
    """Passages that can be searched, many queries at once.

    `inline` says whether a search takes well under a millisecond, so that it may run on an event loop. Searches of
    other indexes are collected to batches and run on a thread.
    """

    inline: ClassVar[bool] = False

    @abstractmethod
    def search_batch(self, queries: Sequence[str], top_k: int) -> list[list[Evidence]]:
        """The best passages for each query, best first, with `score` and the corpus's id as `source`. Thread-safe.
        Raises `ToolError` when an engine elsewhere does not answer as it should."""

    def search(self, query: str, top_k: int) -> list[Evidence]:
        """The best passages for one query."""
        return self.search_batch([query], top_k)[0]

    @abstractmethod
    def __len__(self) -> int:
        """How many passages there are."""


class EngineIndex(Index):
    """An index whose passages a search engine keeps, `batch` written at a time: what OpenSearch and Qdrant share."""

    batch: ClassVar[int]

    def upload(
        self,
        passages: Iterable[Evidence],
        *,
        made_of: Mapping[str, Any] | None = None,
        progress: Progress = silent,
    ) -> int:
        """Write passages, after making what holds them; returns how many there are now.

        A passage is kept under its number, so writing it again changes nothing: after an interruption the same call
        goes on with the batch that was interrupted. Raises `ToolError` when the engine fails or refuses.

        Args:
            passages: all of them, in corpus order.
            made_of: what they are made of, kept beside them.
        """
        # in the last batch some may be missing, whatever the count says
        done = self._prepare(made_of) // self.batch * self.batch
        rest = islice(passages, done, None)
        with progress(desc="uploading", unit=" passages", initial=done) as bar:
            while part := list(islice(rest, self.batch)):
                try:
                    self._write(part, done, made_of)
                except ToolError as error:
                    raise error.retold(f"{error} {done} passages are written: the same call goes on there.") from error
                done += len(part)
                bar.update(len(part))
        self._finish()
        return done

    @abstractmethod
    def made_of(self) -> dict[str, Any] | None:
        """What `upload` was told that the passages are made of, or `None`."""

    def close(self) -> None:
        """Release connections and locks; the index cannot be used afterwards."""

    @abstractmethod
    def _prepare(self, made_of: Mapping[str, Any] | None) -> int:
        """Make what holds the passages where it is missing; returns how many are there."""

    @abstractmethod
    def _write(self, part: Sequence[Evidence], start: int, made_of: Mapping[str, Any] | None) -> None:
        """Write passages, the first under the number `start`."""

    def _finish(self) -> None:
        """Called when all are written."""


def document_of(passage: Evidence) -> dict[str, str]:
    """A passage as engines keep it."""
    return {name: getattr(passage, name) for name in FIELDS}


def passage_of(document: Mapping[str, Any], number: object, score: object) -> Evidence:
    """A document that an engine found; others may have written it, and without a source `number` takes its place."""
    title, text, source, url = (str(document.get(name) or "") for name in FIELDS)
    # digits beyond these differ between machines
    rounded = round(score, 4) if isinstance(score, float | int) else None
    return Evidence(text=text, title=title, source=source or str(number), url=url, score=rounded)


def refusal(status: int, why: str, retry_after: float | None = None) -> ToolError:
    """What the policy reads of an answer with this status; the engine's own words may quote documents and addresses."""
    if status in (401, 403):
        return ToolError(f"The search engine does not accept the credentials ({status}).")
    if status in TRANSIENT:
        busy = f"The search engine is not available at the moment ({status})."
        return ToolError(busy, passing=True, retry_after=retry_after)
    return ToolError(f"The search engine refused the request ({status}: {why}).")
