"""Who gets a page for us: this machine itself, or Jina Reader. Either way the guard judges the URL first."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass, field

import msgspec

from ...errors import ConfigError, ToolError
from ...wire.endpoint import key_in
from ...wire.guard import Guard
from ...wire.http import Http
from ..outcome import unavailable
from ..untrusted import check_address, section
from .documents import READABLE

_TITLE = 300
_KEY = "JINA_API_KEY"


class Document(msgspec.Struct, frozen=True):
    """What came: the bytes, what they are said to be, where they came from in the end, the title where it is known."""

    body: bytes
    content_type: str
    url: str
    title: str = ""


@dataclass(frozen=True)
class Fetch:
    """This machine asks the site itself, as far as the client's guard lets it: the agent chooses these URLs."""

    http: Http = field(default_factory=lambda: Http(guard=Guard()))

    def __post_init__(self) -> None:
        if self.http.guard is None:
            raise ConfigError("pages are fetched with a guard only: Fetch(Http(guard=Guard()))")

    @property
    def cache_key(self) -> str:
        return f"fetch {self.http.max_bytes} {self.http.guard}"

    def check(self) -> None:
        for package in ("trafilatura", "pypdf"):
            if importlib.util.find_spec(package) is None:
                raise ConfigError(f"browsing needs {package}: pip install 'faithful-search[web]'")

    async def fetch(self, url: str) -> Document:
        reply = await self.http.get(url, accept=READABLE)
        return Document(reply.body, reply.headers.get("content-type", ""), reply.url)


@dataclass(frozen=True)
class Jina:
    """Jina Reader, which also runs a page's scripts, gives it as Markdown: `POST` with the URL, at r.jina.ai.

    The key is read from the environment for each request and kept nowhere; without one there are fewer requests a
    minute.

    Args:
        url: address of the service, or of one of your own.
        guard: judges the URLs that are handed over, as written: the service resolves their names.
        http: the client for the service.
    """

    url: str = "https://r.jina.ai"
    guard: Guard = field(default_factory=Guard)
    http: Http = field(default_factory=Http, repr=False)

    def __post_init__(self) -> None:
        check_address(self.url, "https://r.jina.ai", _KEY)

    @property
    def cache_key(self) -> str:
        return f"jina {self.url} {self.guard}"

    def check(self) -> None:
        """Nothing is needed."""

    async def fetch(self, url: str) -> Document:
        # the service resolves names itself; here only what is plainly not public is stopped
        url = self.guard.check(url, resolved_here=False)
        key = key_in(_KEY)
        if key is None:
            raise _refused("there is an accent or a line break in the key")
        # pictures would be long addresses in the text
        headers = {"Accept": "application/json", "X-Retain-Images": "none"}
        headers |= {"Authorization": f"Bearer {key}"} if key else {}
        try:
            reply = await self.http.post(self.url.rstrip("/") + "/", json={"url": url}, headers=headers)
        except ToolError as error:
            if error.status in (401, 402, 403):
                raise _refused(f"Jina Reader answers {error.status}; is the key wrong or unpaid?") from None
            raise
        data = section(reply.json(), "data")
        title, content = data.get("title"), data.get("content")
        if not isinstance(content, str):
            raise ToolError("the reading service gave no content for this page")
        title = title[:_TITLE] if isinstance(title, str) else ""
        return Document(content.encode("utf-8", "replace"), "text/markdown; charset=utf-8", url, title)


Reader = Fetch | Jina
"""Gets a document by its URL, or raises `ToolError` with a message for the policy."""


def _refused(reason: str) -> ToolError:
    told = "the reading service refuses to read; use another tool"
    return unavailable(told, f"pages cannot be read: {reason} (environment variable {_KEY})")
