"""Read web pages, got by this machine itself or by Jina Reader, and return what has to do with what is looked for."""

import asyncio
import importlib.util
import logging
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated
from urllib.parse import unquote, urldefrag, urlsplit

import msgspec
from msgspec import Meta

from ..errors import ConfigError, ToolError
from ..text import shortened
from ..trajectory import Evidence
from ..wire.cache import Cache, key_of
from ..wire.guard import Guard
from ..wire.http import Http, Reply
from ..wire.redact import carried
from .base import MOST, Condenser, Partial, Tool, one_or_several
from .cassette import kept
from .outcome import unavailable
from .retrieval.bm25 import rank
from .untrusted import check_address, section
from .web import pages
from .web.documents import READABLE, clean
from .web.pages import Reading

_LONGEST_TITLE = 300
_KEY = "JINA_API_KEY"
_MATERIAL = 12  # paragraphs of a page that a summary is made from
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Fetch:
    """This machine asks the site itself, as far as the client's guard lets it: the agent chooses these URLs."""

    http: Http = field(default_factory=lambda: Http(guard=Guard()))

    def __post_init__(self) -> None:
        if self.http.guard is None:
            raise ConfigError("pages are fetched with a guard only: Fetch(Http(guard=Guard()))")

    async def fetch(self, url: str) -> tuple[Reply, str]:
        """What came, and the page's title where it is known."""
        return await self.http.get(url, accept=READABLE), ""


@dataclass(frozen=True)
class Jina:
    """Jina Reader, at r.jina.ai or elsewhere, which also runs a page's scripts, gives it as Markdown.

    The key is read from the environment for each request; without one there are fewer requests a minute. `guard` judges
    the URLs that are handed over, as written: the service resolves their names.
    """

    url: str = "https://r.jina.ai"
    guard: Guard = field(default_factory=Guard)
    http: Http = field(default_factory=Http, repr=False)

    def __post_init__(self) -> None:
        check_address(self.url, "https://r.jina.ai", _KEY)

    async def fetch(self, url: str) -> tuple[Reply, str]:
        url = self.guard.check(url, resolved_here=False)
        if (key := carried(os.environ.get(_KEY, ""))) is None:
            raise _refused("there is an accent or a line break in the key")
        # pictures would be long addresses in the text
        headers = {"Accept": "application/json", "X-Retain-Images": "none"}
        headers |= {"Authorization": f"Bearer {key}"} if key else {}
        try:
            reply = await self.http.post(
                self.url.rstrip("/") + "/", json={"url": url}, headers=headers
            )
        except ToolError as error:
            if error.status in (401, 402, 403):
                raise _refused(
                    f"Jina Reader answers {error.status}; is the key wrong or unpaid?"
                ) from None
            raise
        data = section(reply.json(), "data")
        title, content = data.get("title"), data.get("content")
        if not isinstance(content, str):
            raise ToolError("the reading service gave no content for this page")
        read = Reply(
            200, {"content-type": "text/markdown"}, content.encode("utf-8", "replace"), url
        )
        return read, title[:_LONGEST_TITLE] if isinstance(title, str) else ""


Reader = Fetch | Jina
"""Gets a document by its URL; its text is a part of cache keys."""


def _refused(reason: str) -> ToolError:
    told = "the reading service refuses to read; use another tool"
    return unavailable(told, f"pages cannot be read: {reason} (environment variable {_KEY})")


@dataclass(frozen=True)
class Browse(Tool):
    """Paragraphs of web pages, PDFs and texts, ranked by BM25 against the query; without a query the first ones.

    Several pages are read at once and their paragraphs ranked together, but each page shows its best one, as far as
    `top_k` allows; one that could not be read is a result that says so. `source` is `URL#paragraph-n`, n counted from
    1 in the page; a PDF's page number is in the title.

    Args:
        reader: who gets the pages: `Fetch()`, or `Jina()`.
        name: what the policy calls it; Pokee's agents know it as `web_read`.
        top_k: results a call returns, all pages together.
        timeout: seconds a call may take; a page that has not come by then is given up, the others are returned. Keep it
            below the toolbox's.
        reading: how documents are read and cut to paragraphs.
        cache: a file of read pages, for other queries; give it a `max_age`.
        condenser: writes what a page says about the query; its summaries, one a page, are then returned instead of
            paragraphs. Where it fails, the paragraphs are.
    """

    reader: Reader = field(default_factory=Fetch)
    name: str = "browse"
    description: str = ""
    top_k: int = 5
    timeout: float = 25.0
    reading: Reading = field(default_factory=Reading)
    cache: Cache | None = None
    condenser: Condenser | None = None

    def __post_init__(self) -> None:
        if min(self.top_k, self.timeout) <= 0:
            raise ConfigError(f"top_k and timeout must be positive; got {self}")

    @property
    def cache_key(self) -> str:  # type: ignore[override]
        condenser = self.condenser.name if self.condenser else ""
        return (
            f"{self.reader} {self.top_k} {self.reading.shortest} {self.reading.longest} {condenser}"
        )

    def check(self) -> None:
        for package in ("trafilatura", "pypdf") if isinstance(self.reader, Fetch) else ():
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
        read = await asyncio.gather(*(self._page(each, deadline) for each in urls))
        found = [page for page in read if not isinstance(page, ToolError)]
        # as the agent wrote them, which may be anything
        shown = [shortened(clean(each), 200) for each in urls]
        failed = {
            each: page
            for each, page in zip(shown, read, strict=True)
            if isinstance(page, ToolError)
        }
        passing = any(error.passing for error in failed.values())
        if not found:
            told = " ".join(f"{each} was not read: {error}." for each, error in failed.items())
            raise ToolError(told, passing=passing, tried=True)
        # that a page was not read takes a place of its own, or the policy would ask for it again
        room = max(1, self.top_k - len(failed))
        results = await self._condensed(query, found, deadline)
        # ranking some thousand paragraphs would hold up the event loop
        results = results or await asyncio.to_thread(_chosen, query, found, room)
        notes = [
            Evidence(f"Not read: {error}.", each, source=each, url=each)
            for each, error in failed.items()
        ]
        return (Partial if passing else list)([*results[:room], *notes])

    async def _page(self, url: str, deadline: float) -> list[Evidence] | ToolError:
        """The paragraphs of a page in order, or why there are none: a value, so that the other pages count."""

        async def read() -> list[Evidence]:
            reply, title = await self.reader.fetch(url)
            kind = reply.headers.get("content-type", "")
            page = await asyncio.to_thread(pages.read, reply.body, kind, self.reading, deadline)
            address = urldefrag(reply.url).url
            parts = urlsplit(address)
            # a page without a title is called by the last part of its address
            last = clean(unquote(parts.path.rstrip("/").rpartition("/")[2], errors="replace"))
            title = clean(title) or page.title or last or parts.netloc
            cut = f"only {page.cut} were read" if page.cut else ""
            found = []
            for number, paragraph in enumerate(page.paragraphs, start=1):
                where = "; ".join(filter(None, (paragraph.place, cut)))
                named, source = (
                    f"{title} ({where})" if where else title,
                    f"{address}#paragraph-{number}",
                )
                found.append(Evidence(text=paragraph.text, title=named, source=source, url=address))
            return found

        key = key_of(page=url, reader=repr(self.reader), reading=repr(self.reading))
        try:
            async with asyncio.timeout(left := deadline - time.monotonic()):
                return await kept(self.cache, key, read, max(0.0, left))
        except TimeoutError:
            return ToolError(f"it took longer than {self.timeout:g} seconds", passing=True)
        except ToolError as error:
            return error

    async def _condensed(
        self, query: str, found: Sequence[list[Evidence]], deadline: float
    ) -> list[Evidence]:
        """A summary of each page, none where one of them could not be had in time."""
        condenser = self.condenser
        if (
            condenser is None or not query.strip()
        ):  # without a query there is nothing to condense to
            return []

        async def summary(page: list[Evidence]) -> Evidence:
            best = await asyncio.to_thread(_chosen, query, [page], _MATERIAL)
            told = (await condenser.condense(query, [item.text for item in best])).strip()
            text, source = told or "This page says nothing about it.", f"{page[0].url}#summary"
            return Evidence(text, page[0].title, source=source, url=page[0].url)

        try:
            async with asyncio.timeout(deadline - time.monotonic()):
                return list(await asyncio.gather(*map(summary, found)))
        except (TimeoutError, ToolError) as error:
            _log.warning(
                "no summary, so the paragraphs themselves are shown: %s",
                str(error) or "it took too long",
            )
            return []


def _chosen(query: str, found: Sequence[list[Evidence]], top_k: int) -> list[Evidence]:
    """The best paragraphs of all pages, best first, one of each page before a second; in the pages' order where no
    paragraph fits the query."""
    everything = [item for page in found for item in page]
    ranked = rank(query, [f"{item.title}\n{item.text}" for item in everything])
    best = [
        msgspec.structs.replace(everything[place], score=score) for place, score in ranked
    ] or everything
    fitting = {item.url for item in best}
    best += [
        msgspec.structs.replace(page[0], score=0.0) for page in found if page[0].url not in fitting
    ]
    # no page that was asked for goes unseen
    firsts = {item.url: item.source for item in reversed(best)}
    order = sorted(best, key=lambda item: item.source != firsts[item.url])
    taken = {item.source for item in order[:top_k]}
    return [item for item in best if item.source in taken]
