"""What can shorten text for a tool: pages to what a query asks for, facts to a paragraph."""

import asyncio
import logging
from collections.abc import Sequence
from typing import Protocol, runtime_checkable

import msgspec

from ..errors import ToolError
from ..trajectory import Evidence
from .base import Partial

_log = logging.getLogger(__name__)
MOST_FACTS = 30
"""Texts about an entity that a condenser is given."""


@runtime_checkable
class Condenser(Protocol):
    """Writes what the passages say about the query, from them alone.

    Attributes:
        name: which model and prompt write, for the cache's key.
    """

    @property
    def name(self) -> str: ...

    async def condense(self, query: str, passages: Sequence[str]) -> str:
        """One paragraph; empty when the passages say nothing about the query. Raises `ToolError` where it fails."""
        ...


async def condensed(condenser: Condenser, query: str, facts: Sequence[Evidence], top_k: int) -> list[Evidence]:
    """One paragraph about each entity, which `condenser` writes from the facts.

    An entity of which they say nothing that was asked is left out, unless all are. Where the condenser fails, the facts
    themselves come after the paragraphs, and what is returned is `Partial`.
    """
    by_entity: dict[tuple[str, str], list[Evidence]] = {}
    for item in facts:
        by_entity.setdefault((item.title, item.url), []).append(item)

    async def paragraph(items: list[Evidence]) -> str | None:
        try:
            return (await condenser.condense(query, [item.text for item in items[:MOST_FACTS]])).strip()
        except ToolError as error:
            _log.warning("no summary, so the facts themselves are shown: %s", error)
            return None

    # one request to a model each, so no more than will be shown
    about = list(by_entity.values())[:top_k]
    texts = await asyncio.gather(*map(paragraph, about))
    told = [msgspec.structs.replace(items[0], text=text) for text, items in zip(texts, about, strict=True) if text]
    untold = [item for text, items in zip(texts, about, strict=True) if text is None for item in items]
    found = ([*told, *untold] or list(facts))[:top_k]
    return Partial(found) if None in texts else found
