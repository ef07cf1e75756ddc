"""What can be searched: passages behind one interface, in this process or in a search engine elsewhere."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar

from ...trajectory import Evidence


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
