"""Search the open web: one tool, and the service behind it as a value."""

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import chain, zip_longest
from typing import Annotated, Any
from urllib.parse import urlsplit

from msgspec import Meta

from ..errors import ConfigError, ToolError
from ..text import well_formed
from ..trajectory import Evidence
from .base import MOST, Partial, Tool, entry, one_or_several
from .setup import Setup
from .web import providers
from .web.providers import Provider
from .web.providers.serper import Serper

_TOGETHER = 10  # pages that several queries return
_LONGEST = 400  # characters of a query
_SPARE = 10  # results asked for at least: a service's page, of which some are dropped as doubles


@dataclass(frozen=True)
class WebSearch(Tool):
    """Pages of the open web with their snippets, through Serper, a SearXNG server, or ddgs.

    Several queries run at once, their results interleaved by rank; a page that several found comes
    once, and a note tells of a query that failed among others.

    Args:
        provider: the service, such as `Serper()`, or
            `providers.load("searxng")("http://localhost:8888")`.
        top_k: pages that a query returns at most; several queries return ten all together.
    """

    provider: Provider = field(default_factory=Serper)
    name: str = "web_search"
    description: str = ""
    top_k: int = 5

    def __post_init__(self) -> None:
        if self.top_k < 1:
            raise ConfigError(f"top_k must be at least 1, got {self.top_k}")

    @classmethod
    def open(cls, source: str, setup: Setup) -> Tool:
        if source not in providers.names():
            names = ", ".join(providers.names())
            raise ConfigError(f"unknown web_search {source!r}; there are: {names}, none")
        url = setup.flags.searxng_url
        if (source == "searxng") != (url is not None):
            raise ConfigError("--web_search searxng and --searxng_url go together")
        service: dict[str, Any] = {}
        if source != "ddgs":  # the package behind it brings its own client
            service["http"] = setup.http()
        if url is not None:
            service["url"] = url
        return cls(providers.load(source)(**service), **setup.about)

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
        """Search the web and return the titles, addresses and snippets of the pages that match
        best.

        Args:
            query: The words to search for.
            query_list: Instead of query, up to five queries to search for at once.
        """
        as_written = one_or_several("query", query, query_list)
        queries = list(map(well_formed, as_written))
        length = max(map(len, queries))
        if length > _LONGEST:
            raise ToolError(f"A query of {length} characters is too long; use at most {_LONGEST}.")
        outcomes = await asyncio.gather(*map(self._search, queries))
        pages: list[list[Evidence]] = []
        errors: list[ToolError] = []
        notes: list[str] = []
        for text, outcome in zip(as_written, outcomes, strict=True):
            if isinstance(outcome, ToolError):
                errors.append(outcome)
                notes.append(f"{entry('query', text, query_list)} was not searched: {outcome}")
            else:
                pages.append(outcome)
        if not pages:
            raise errors[0]
        # every query's first, then every query's second
        in_turn = chain.from_iterable(zip_longest(*pages))
        distinct = _distinct(page for page in in_turn if page is not None)
        results = distinct[: self.top_k if len(queries) == 1 else _TOGETHER]
        if not errors:
            return results
        return Partial(results, " ".join(notes), transient=any(error.transient for error in errors))

    async def _search(self, query: str) -> list[Evidence] | ToolError:
        try:
            pages = await self.provider.search(query, max(self.top_k, _SPARE))
        except ToolError as error:  # a value: the other queries count
            return error
        return _distinct(pages)[: self.top_k]


def _distinct(pages: Iterable[Evidence]) -> list[Evidence]:
    """Each page where it comes first, whatever its scheme, fragment, `www.` or a slash at its
    end.
    """
    by_address: dict[str, Evidence] = {}
    for page in pages:
        parts = urlsplit(page.url)
        host = parts.netloc.lower().removeprefix("www.")
        address = f"{host}{parts.path.rstrip('/')}?{parts.query}"
        by_address.setdefault(address if page.url else page.title, page)
    return list(by_address.values())
