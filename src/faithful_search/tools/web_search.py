"""Search the open web: one tool, and the service behind it as a value."""

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import chain, zip_longest
from typing import Annotated
from urllib.parse import urlsplit

from msgspec import Meta

from ..errors import ConfigError, ToolError
from ..text import well_formed
from ..trajectory import Evidence
from .base import MOST, Partial, Tool, one_or_several
from .web.providers import Provider
from .web.providers.serper import Serper

_TOGETHER = 10  # pages that several queries return
_LONGEST = 400  # characters of a query
_SPARE = 10  # results asked for at least: a service's page, of which some are dropped as doubles


@dataclass(frozen=True)
class WebSearch(Tool):
    """Pages of the open web with their snippets, through Serper, a SearXNG server, or ddgs.

    Several queries run at once, their results interleaved by rank; a page that several found comes once, and a query
    that fails among others is a result that says so.

    Args:
        provider: the service, such as `Serper()`, or `providers.load("searxng")("http://localhost:8888")`.
        top_k: pages that a query returns at most; several queries return ten all together.
    """

    provider: Provider = field(default_factory=Serper)
    name: str = "web_search"
    description: str = ""
    top_k: int = 5

    def __post_init__(self) -> None:
        if self.top_k < 1:
            raise ConfigError(f"top_k must be at least 1, got {self.top_k}")

    @property
    def cache_key(self) -> str:  # type: ignore[override]
        return f"{self.provider} {self.top_k}"

    def check(self) -> None:
        self.provider.check()

    async def web_search(
        self,
        query: str = "",
        query_list: Annotated[list[str], Meta(min_length=1, max_length=MOST)] | None = None,
    ) -> list[Evidence]:
        """Search the web and return the titles, addresses and snippets of the pages that match best.

        Args:
            query: The words to search for.
            query_list: Instead of query, up to five queries to search for at once.
        """
        queries = [well_formed(each) for each in one_or_several("query", query, query_list)]
        if (length := max(map(len, queries))) > _LONGEST:
            raise ToolError(f"A query of {length} characters is too long; use at most {_LONGEST}.")
        found = await asyncio.gather(*map(self._search, queries))
        failed = [item for item in found if isinstance(item, ToolError)]
        if len(failed) == len(queries):
            raise failed[0]
        told = [
            [Evidence(text=f"Not searched: {result}", title=each)]
            if isinstance(result, ToolError)
            else result
            for each, result in zip(queries, found, strict=True)
        ]
        # every query's first, then every query's second
        mixed = _distinct(
            item for item in chain.from_iterable(zip_longest(*told)) if item is not None
        )
        results = mixed[: self.top_k if len(queries) == 1 else _TOGETHER]
        return Partial(results) if any(error.passing for error in failed) else results

    async def _search(self, query: str) -> list[Evidence] | ToolError:
        try:
            found = await self.provider.search(query, max(self.top_k, _SPARE))
        except ToolError as error:  # a value: the other queries count
            return error
        return _distinct(found)[: self.top_k]


def _distinct(found: Iterable[Evidence]) -> list[Evidence]:
    """Each page where it comes first, whatever its scheme, fragment, `www.` or a slash at its end."""
    kept: dict[str, Evidence] = {}
    for item in found:
        parts = urlsplit(item.url)
        page = f"{parts.netloc.lower().removeprefix('www.')}{parts.path.rstrip('/')}?{parts.query}"
        kept.setdefault(page if item.url else item.title, item)
    return list(kept.values())
