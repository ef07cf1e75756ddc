"""An index whose passages a search engine keeps: what OpenSearch and Qdrant have in common."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from typing import Any, ClassVar

from ...errors import ToolError
from ...trajectory import Evidence
from ...wire.retry import TRANSIENT
from .index import Index
from .passages import Progress, silent

FIELDS = ("title", "text", "source", "url")
"""What an engine keeps of a passage."""


class EngineIndex(Index):
    """An index whose passages a search engine keeps.

    Attributes:
        batch: passages that are written at a time.
    """

    batch: ClassVar[int]

    def upload(
        self,
        passages: Iterable[Evidence],
        *,
        batch: int | None = None,
        made_of: Mapping[str, Any] | None = None,
        progress: Progress = silent,
    ) -> int:
        """Write passages, after making what holds them; returns how many there are now.

        A passage is kept under its number, so that writing it again changes nothing: the same call after an
        interruption goes on with the batch in which that was.

        Args:
            passages: all of them, in corpus order.
            batch: as many at a time; the same number when it goes on.
            made_of: what they are of, kept beside them.
            progress: shows how many are written.

        Raises:
            ToolError: when the engine fails or refuses.
        """
        size = batch or self.batch
        # in the last batch some may be missing, whatever the count says
        done = self._prepare(made_of) // size * size
        rest = islice(passages, done, None)
        with progress(desc="uploading", unit=" passages", initial=done) as bar:
            while part := list(islice(rest, size)):
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
        """What `upload` was told that the passages are of; `None` where nothing was kept, or there are none."""

    def close(self) -> None:
        """Let go of what it holds here; it cannot be used afterwards."""

    @abstractmethod
    def _prepare(self, made_of: Mapping[str, Any] | None) -> int:
        """Make what holds the passages, where that is missing; returns how many are there."""

    @abstractmethod
    def _write(self, part: Sequence[Evidence], start: int, made_of: Mapping[str, Any] | None) -> None:
        """Write passages, the first under the number `start`."""

    def _finish(self) -> None:
        """All are written."""


def document_of(passage: Evidence) -> dict[str, str]:
    """A passage as engines keep it."""
    return {name: getattr(passage, name) for name in FIELDS}


def passage_of(document: Mapping[str, Any], number: object, score: object) -> Evidence:
    """A document found by an engine, which others may have filled: `number` is the source of one that names none."""
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
