"""Reads web pages, fetched by this machine or by Jina Reader, and returns the paragraphs that fit a
query.
"""

import asyncio
import importlib.util
import logging
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Annotated
from urllib.parse import urldefrag, urlsplit

import msgspec
from msgspec import Meta

from ..errors import ConfigError, ToolError
from ..escape import as_line
from ..trajectory import Evidence
from ..wire.cache import Cache, key_of
from ..wire.guard import Guard, as_address
from ..wire.http import Http, Reply
from ..wire.redact import carried
from .base import MOST, Condenser, Partial, Tool, entry, one_or_several
from .cassette import kept
from .outcome import unavailable
from .retrieval.bm25 import rank
from .setup import Setup
from .summaries import summary_of
from .untrusted import check_address, section
from .web import pages
from .web.documents import READABLE, clean
from .web.pages import PageSettings

_LONGEST_TITLE = 300
_KEY = "JINA_API_KEY"
# Labels right below a country's, as in co.uk, under which sites register their names
_SECOND_LEVEL = frozenset(("ac", "co", "com", "edu", "go", "gov", "mil", "ne", "net", "or", "org"))
_NOTHING = "No results: what was read says nothing about the query."
_MATERIAL = 12  # paragraphs of a page that a summary is made of
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Fetch:
    """Fetches pages from this machine. The agent chooses the URLs, so the client must have a guard."""

    http: Http = field(default_factory=lambda: Http(guard=Guard()))

    def __post_init__(self) -> None:
        if self.http.guard is None:
            raise ConfigError("pages are fetched with a guard only: Fetch(Http(guard=Guard()))")

    async def fetch(self, url: str) -> tuple[Reply, str]:
        """The document at a URL, and its title where it is known already."""
        return await self.http.get(url, accept=READABLE), ""


@dataclass(frozen=True)
class Jina:
    """Fetches pages as Markdown through Jina Reader, which also runs their scripts.

    The key is read from the environment for each request; without one fewer requests a minute are
    allowed. `guard` judges the URLs as they are written: the service resolves their names.
    """

    url: str = "https://r.jina.ai"
    guard: Guard = field(default_factory=Guard)
    http: Http = field(default_factory=Http, repr=False)

    def __post_init__(self) -> None:
        check_address(self.url, "https://r.jina.ai", _KEY)

    async def fetch(self, url: str) -> tuple[Reply, str]:
        """The document at a URL, and its title where it is known already."""
        url = self.guard.check(url, resolved_here=False)
        key = carried(os.environ.get(_KEY, ""))
        if key is None:
            raise _refused("there is an accent or a line break in the key")
        # Pictures would be long addresses in the text.
        headers = {"Accept": "application/json", "X-Retain-Images": "none"}
        if key:
            headers["Authorization"] = f"Bearer {key}"
        try:
            reply = await self.http.post(
                self.url.rstrip("/") + "/", json={"url": url}, headers=headers
            )
        except ToolError as error:
            if error.status in (401, 402, 403):
                why = f"Jina Reader answers {error.status}; is the key wrong or unpaid?"
                raise _refused(why) from None
            raise
        data = section(reply.json(), "data")
        title = data.get("title")
        content = data.get("content")
        if not isinstance(content, str):
            raise ToolError("the reading service gave no content for this page")
        if not isinstance(title, str):
            title = ""
        page = content.encode("utf-8", "replace")
        markdown = Reply(status=200, headers={"content-type": "text/markdown"}, body=page, url=url)
        return markdown, title[:_LONGEST_TITLE]


Reader = Fetch | Jina
"""Fetches a document by its URL. The representation of one is a part of cache keys."""


def _refused(reason: str) -> ToolError:
    message = "the reading service refuses to read; use another tool"
    return unavailable(message, f"pages cannot be read: {reason} (environment variable {_KEY})")


@dataclass(frozen=True)
class Browse(Tool):
    """Returns paragraphs of web pages, PDFs and texts, ranked by BM25 against the query; without a
    query the first ones.

    Several pages are read at once and their paragraphs are ranked together, but each page shows its
    best one, as far as `top_k` allows; a note names pages that could not be read. `source` is
    `URL#paragraph-n`, where n counts from 1 in the page; the page number of a PDF is in the title.

    Args:
        reader: what fetches the pages: `Fetch()` or `Jina()`.
        name: what the policy calls the tool; Pokee's agents know it as `web_read`.
        top_k: how many results a call returns, for all pages together.
        timeout: seconds that a call may take. A page that has not come by then is given up, the
            others are returned. Keep it below the toolbox's time-out.
        reading: how documents are read and divided into paragraphs.
        cache: keeps pages that were read, for other queries; give it a `max_age`.
        condenser: summarises what a page says about the query. One summary for each page is then
            returned instead of paragraphs; where one fails, the paragraphs are.
    """

    reader: Reader = field(default_factory=Fetch)
    name: str = "browse"
    description: str = ""
    top_k: int = 5
    timeout: float = 25.0
    reading: PageSettings = field(default_factory=PageSettings)
    cache: Cache | None = None
    condenser: Condenser | None = None

    def __post_init__(self) -> None:
        if min(self.top_k, self.timeout) <= 0:
            raise ConfigError(f"top_k and timeout must be positive; got {self}")

    @classmethod
    def open(cls, source: str, setup: Setup) -> Tool:
        # Agents choose what is read. The guard refuses what is not public, also where another
        # machine would fetch it.
        allowed = [entry.strip() for entry in setup.flags.browse_allow.split(",")]
        guard = Guard(tuple(entry for entry in allowed if entry))
        reader: Reader
        if source == "fetch":
            reader = Fetch(setup.http(guard=guard))
        elif source == "jina":
            reader = Jina(guard=guard, http=setup.http())
        else:
            raise ConfigError(f"unknown browse {source!r}; there are: fetch, jina, none")
        return cls(
            reader,
            timeout=setup.timeout,
            cache=setup.cache,
            condenser=setup.condenser,
            **setup.about,
        )

    @property
    def cache_key(self) -> str:  # type: ignore[override]
        condenser = self.condenser.name if self.condenser else ""
        return (
            f"{self.reader} {self.top_k} {self.reading.shortest} {self.reading.longest} {condenser}"
        )

    def check(self) -> None:
        if not isinstance(self.reader, Fetch):
            return
        for package in ("trafilatura", "pypdf"):
            if importlib.util.find_spec(package) is None:
                raise ConfigError(f"browsing needs {package}: pip install 'faithful-search[web]'")

    async def browse(
        self,
        url: str = "",
        url_list: Annotated[list[str], Meta(min_length=1, max_length=MOST)] | None = None,
        query: str = "",
    ) -> list[Evidence]:
        """Read web pages or PDFs and return the paragraphs that are relevant to a query.

        Args:
            url: The address of the page to read.
            url_list: Instead of url, up to five addresses to read at once.
            query: What to look for on the pages.
        """
        urls = one_or_several("url", url, url_list)
        deadline = time.monotonic() + self.timeout
        outcomes = await asyncio.gather(*(self._page(address, deadline) for address in urls))
        paragraphs: list[list[Evidence]] = []
        notes: list[str] = []
        transient = False
        for address, outcome in zip(urls, outcomes, strict=True):
            if isinstance(outcome, ToolError):
                notes.append(f"{entry('url', address, url_list)} was not read: {outcome}.")
                transient = transient or outcome.transient
            else:
                paragraphs.append(outcome)
        if not paragraphs:
            raise ToolError(" ".join(notes), transient=transient, retried=True)
        results = await self._condensed(query, paragraphs, deadline)
        if results is None:
            # In a thread: ranking some thousand paragraphs would hold up the event loop.
            results = await asyncio.to_thread(_best_of_each, query, paragraphs, self.top_k)
        elif not results:
            notes.insert(0, _NOTHING)
        results = results[: self.top_k]
        return Partial(results, " ".join(notes), transient) if notes else results

    async def _page(self, url: str, deadline: float) -> list[Evidence] | ToolError:
        """The paragraphs of a page in order, or the error, returned so that other pages count."""

        async def read() -> list[Evidence]:
            reply, title = await self.reader.fetch(url)
            kind = reply.headers.get("content-type", "")
            page = await asyncio.to_thread(pages.read, reply.body, kind, self.reading, deadline)
            address = urldefrag(reply.url).url
            title = clean(title) or page.title or site_of(address)
            cut = f"only {page.cut} were read" if page.cut else ""
            evidence = []
            for number, paragraph in enumerate(page.paragraphs, start=1):
                remarks = "; ".join(filter(None, (paragraph.place, cut)))
                evidence.append(
                    Evidence(
                        text=paragraph.text,
                        title=f"{title} ({remarks})" if remarks else title,
                        source=f"{address}#paragraph-{number}",
                        url=address,
                    )
                )
            return evidence

        key = key_of(page=url, reader=repr(self.reader), reading=repr(self.reading))
        seconds = deadline - time.monotonic()
        try:
            async with asyncio.timeout(seconds):
                return await kept(self.cache, key, read, max(0.0, seconds))
        except TimeoutError:
            return ToolError(f"it took longer than {self.timeout:g} seconds", transient=True)
        except ToolError as error:
            return error

    async def _condensed(
        self, query: str, paragraphs: Sequence[list[Evidence]], deadline: float
    ) -> list[Evidence] | None:
        """The summary of each page that says something about the query.

        `None`: there is no condenser or no query, or a summary failed or came too late.
        """
        condenser = self.condenser
        if condenser is None or not query.strip():
            return None

        async def summary(page: list[Evidence]) -> Evidence:
            best = await asyncio.to_thread(_best_of_each, query, [page], _MATERIAL)
            text = await summary_of(condenser, query, [paragraph.text for paragraph in best])
            first = page[0]
            return Evidence(text, first.title, source=f"{first.url}#summary", url=first.url)

        try:
            async with asyncio.timeout(deadline - time.monotonic()):
                summaries = await asyncio.gather(*map(summary, paragraphs))
            return [summary for summary in summaries if summary.text]
        except (TimeoutError, ToolError) as error:
            _log.warning(
                "no summary, so the paragraphs themselves are shown: %s",
                as_line(str(error)) or "it took too long",
            )
            return None


def site_of(address: str) -> str:
    """What a page without a title is called: the registered name of its host, without subdomains.

    The agent wrote the rest of the address itself, subdomains too: some hosts answer for any.

    Example:
        >>> site_of("https://rome-is-it.tarn.example/The%20answer"), site_of("http://a.bbc.co.uk:80/")
        ('tarn.example', 'bbc.co.uk')
    """
    host = urlsplit(address).hostname or ""
    if as_address(host) is not None:
        return host
    labels = host.split(".")
    below_country = len(labels) > 1 and len(labels[-1]) == 2 and labels[-2] in _SECOND_LEVEL
    return ".".join(labels[-3:] if below_country else labels[-2:])


def _best_of_each(query: str, pages: Sequence[list[Evidence]], top_k: int) -> list[Evidence]:
    """The best paragraphs of all pages, best first; in the pages' order where none fits the query.

    Each page has its best one among them before any page has a second.
    """
    paragraphs = list(chain.from_iterable(pages))
    texts = [f"{paragraph.title}\n{paragraph.text}" for paragraph in paragraphs]
    best = []
    for place, score in rank(query, texts):
        best.append(msgspec.structs.replace(paragraphs[place], score=score))
    if not best:
        best = paragraphs
    # A page of which nothing fits the query is there by its first paragraph.
    fitting_pages = {paragraph.url for paragraph in best}
    for page in pages:
        if page[0].url not in fitting_pages:
            best.append(msgspec.structs.replace(page[0], score=0.0))
    best_of_pages: dict[str, Evidence] = {}
    for paragraph in best:
        best_of_pages.setdefault(paragraph.url, paragraph)
    firsts = list(best_of_pages.values())
    sources_of_firsts = {paragraph.source for paragraph in firsts}
    others = [paragraph for paragraph in best if paragraph.source not in sources_of_firsts]
    chosen = [*firsts, *others][:top_k]
    selected = {paragraph.source for paragraph in chosen}
    return [paragraph for paragraph in best if paragraph.source in selected]
