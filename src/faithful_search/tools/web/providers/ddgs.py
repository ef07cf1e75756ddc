"""Free search engines through the `ddgs` package: no key, no server, and no promise."""

import asyncio
import importlib.util
from dataclasses import dataclass
from itertools import chain
from typing import Any

from ....errors import ConfigError, ToolError
from ....trajectory import Evidence
from ...untrusted import rows
from . import Provider, page


@dataclass(frozen=True)
class Ddgs(Provider):
    """What `ddgs` gathers from several engines' result pages; engines limit and change at will: for
    trials.
    """

    def check(self) -> None:
        if importlib.util.find_spec("ddgs") is None:
            raise ConfigError(
                "web search through ddgs needs that package: pip install 'faithful-search[web]'"
            )

    async def search(self, query: str, count: int) -> list[Evidence]:
        results = rows({"results": await asyncio.to_thread(_text, query, count)}, "results")
        pages = (page(row.get("title"), row.get("href"), row.get("body")) for row in results)
        return list(chain.from_iterable(pages))[:count]


def _text(query: str, count: int) -> Any:
    from ddgs import DDGS
    from ddgs.exceptions import DDGSException

    try:
        return DDGS(timeout=10).text(query, max_results=count)
    except DDGSException as error:
        # An engine that refuses is to the package one that finds nothing: whether there is nothing
        # to find cannot be told
        if "no results" in str(error).casefold():
            raise ToolError(
                "Web search failed: no search engine answered with results.",
                transient=True,
                retried=True,
            ) from error
        raise ToolError(
            "Web search failed: none of the search engines answered.", transient=True
        ) from error
