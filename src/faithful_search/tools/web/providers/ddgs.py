"""Free search engines through the `ddgs` package: no key, no server, and no promise."""

from __future__ import annotations

import asyncio
import importlib.util
from dataclasses import dataclass
from typing import Any, ClassVar

from ....errors import ConfigError, ToolError
from ....trajectory import Evidence
from ...untrusted import rows
from .base import Provider, page, pages


@dataclass(frozen=True)
class Ddgs(Provider):
    """What `ddgs` gathers from several engines' result pages. Engines limit and change at will: for trying things out.

    Args:
        region: country and language, such as `us-en`.
        backend: the engines to ask, separated by commas; `auto` for all.
        timeout: seconds an engine gets.
    """

    region: str = "us-en"
    backend: str = "auto"
    timeout: int = 10
    name: ClassVar[str] = "ddgs"

    @property
    def cache_key(self) -> str:
        """The engines and the region asked for."""
        return f"ddgs {self.region} {self.backend}"

    def check(self) -> None:
        """Raise `ConfigError` when the package is missing."""
        if importlib.util.find_spec("ddgs") is None:
            raise ConfigError("web search through ddgs needs that package: pip install 'faithful-search[web]'")

    async def search(self, query: str, count: int) -> list[Evidence]:
        """See `Provider.search`."""
        found = {"results": await asyncio.to_thread(self._text, query, count)}
        return pages(
            (page(row.get("title"), row.get("href"), row.get("body")) for row in rows(found, "results")), count
        )

    def _text(self, query: str, count: int) -> Any:
        from ddgs import DDGS
        from ddgs.exceptions import DDGSException, RatelimitException, TimeoutException

        try:
            engines = DDGS(timeout=self.timeout)
            return engines.text(query, region=self.region, backend=self.backend, max_results=count)
        except RatelimitException as error:
            raise ToolError(
                "Web search failed: the search engines limit how often they answer.", passing=True
            ) from error
        except TimeoutException as error:
            raise ToolError("Web search failed: the search engines did not answer in time.", passing=True) from error
        except DDGSException as error:
            # the package raises where there is nothing to find
            if "no results" in str(error).casefold():
                return []
            raise ToolError("Web search failed: none of the search engines answered.", passing=True) from error
