"""Web search services, one file each: `load("searxng")` is the class in `searxng.py`. A query in,
pages out; whatever a service answers may be wrong or hostile.
"""

import asyncio
import sys
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Mapping
from typing import Any

from .... import registry
from ....errors import ToolError
from ....trajectory import Evidence
from ....wire.http import Reply
from ...outcome import unavailable
from ...untrusted import is_page, line

_TITLE, _TEXT, _DATE = 300, 2_000, 40  # characters kept


class Provider(ABC):
    """A web search service; implementations are frozen dataclasses, whose text is a part of cache
    keys: what results depend on, and no secret.
    """

    def check(self) -> None:  # noqa: B027 (most need nothing)
        """Raise `ConfigError` when a key or a package is missing, saying how to give it."""

    @abstractmethod
    async def search(self, query: str, count: int) -> list[Evidence]:
        """The pages found, best first, about `count`; title, url and snippet of each. Raises
        `ToolError` when the service does not answer as it should.
        """


def names() -> list[str]:
    """The files here that define a provider."""
    return registry.names(sys.modules[__name__], Provider)


def load(name: str) -> type[Provider]:
    """The provider in the file of that name. Raises `ConfigError` when there is none, naming those
    that exist.
    """
    return registry.load(sys.modules[__name__], name, Provider)


def page(title: Any, url: Any, text: Any, date: Any = "") -> list[Evidence]:
    """A result as evidence, its date before the snippet; none when it has no http(s) address or
    nothing to read.
    """
    title = line(title, _TITLE)
    text = line(text, _TEXT)
    date = line(date, _DATE)
    is_readable = bool(title or text)
    if not is_readable or not is_page(url):  # what cannot be opened cannot be checked
        return []
    if date and text:
        text = f"{date}: {text}"
    return [Evidence(text=text, title=title or url, source=url, url=url)]


async def document_of(request: Awaitable[Reply], refusals: Mapping[int, str]) -> Mapping[str, Any]:
    """The JSON object that answers a request, else a `ToolError`; `refusals` says by status what is
    wrong with the configuration, for the log.
    """
    try:
        # a page of results is some kilobytes, but a server may send megabytes
        document = await asyncio.to_thread((await request).json)
    except ToolError as error:
        if reason := refusals.get(error.status or 0):
            message = "The search service refuses to search; use another tool."
            raise unavailable(message, f"web search does not work: {reason}") from None
        raise error.retold(f"Web search failed: {error}.") from None
    if not isinstance(document, Mapping):
        raise ToolError(
            "Web search failed: the search service answered with something else than results."
        )
    return document
