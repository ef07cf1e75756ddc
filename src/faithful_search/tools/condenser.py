"""What can shorten text for a tool: pages to what a query asks for, facts to a paragraph."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable


@runtime_checkable
class Condenser(Protocol):
    """Writes what the passages say about the query, from them alone.

    Attributes:
        name: which model and prompt write, for the cache's key.
    """

    @property
    def name(self) -> str: ...

    async def condense(self, query: str, passages: Sequence[str]) -> str:
        """One paragraph; empty when the passages say nothing about the query. Raises `ToolError` when none was had."""
        ...
