"""What can be searched: passages behind one interface, in this process or in a search engine elsewhere."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar

from ...trajectory import Evidence
from .passages import Progress, silent


class Index(ABC):
    """Passages that can be searched, many queries at once.

    Attributes:
        inline: whether a search takes well under a millisecond, so that it may run on an event loop. The others are
            collected to batches and run on a thread.
    """

    inline: ClassVar[bool] = False

    @abstractmethod
    def search_batch(self, queries: Sequence[str], top_k: int) -> list[list[Evidence]]:
        """The best passages for each query, best first, with `score` and the corpus's id as `source`.

        Safe to call from several threads.

        Raises:
            ToolError: when an engine elsewhere does not answer as it should.
        """

    def search(self, query: str, top_k: int) -> list[Evidence]:
        """The best passages for one query."""
        return self.search_batch([query], top_k)[0]

    @abstractmethod
    def __len__(self) -> int:
        """How many passages there are."""


class EngineIndex(Index):
    """An index whose passages a search engine keeps."""

    @abstractmethod
    def upload(
        self, passages: Iterable[Evidence], *, made_of: Mapping[str, Any] | None = None, progress: Progress = silent
    ) -> int:
        """Write passages, after making what holds them; returns how many there are now.

        After an interruption the same call goes on: what is there already is passed over.

        Args:
            passages: all of them, in corpus order.
            made_of: what they are of, kept beside them.
            progress: shows how many are written.

        Raises:
            ToolError: when the engine fails or refuses.
        """

    @abstractmethod
    def made_of(self) -> dict[str, Any] | None:
        """What `upload` was told that the passages are of; `None` where nothing was kept, or there are none."""

    def close(self) -> None:
        """Let go of what it holds here; it cannot be used afterwards."""
