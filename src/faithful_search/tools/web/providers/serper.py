"""Google's results through serper.dev, with a key."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import ClassVar

from ....errors import ConfigError
from ....trajectory import Evidence
from ....wire.http import Http
from ...untrusted import check_address, rows, section
from . import Provider, document_of, page, unavailable


@dataclass(frozen=True)
class Serper(Provider):
    """`POST /search` of serper.dev. An answer box and a knowledge panel that name their page come before the results.

    The key is read from the environment for each request and kept nowhere.

    Args:
        url: address of the service.
        key_variable: the environment variable that holds the key.
        country: two letters (`gl`), empty for the service's default.
        language: two letters (`hl`), empty for the service's default.
        http: the client.
    """

    url: str = "https://google.serper.dev"
    key_variable: str = "SERPER_API_KEY"
    country: str = ""
    language: str = ""
    http: Http = field(default_factory=Http, repr=False)
    name: ClassVar[str] = "serper"

    def __post_init__(self) -> None:
        check_address(self.url, "https://google.serper.dev", self.key_variable)

    @property
    def cache_key(self) -> str:
        return f"serper {self.url} {self.country} {self.language}"

    def check(self) -> None:
        """Raise `ConfigError` when there is no key."""
        if not self._key():
            raise ConfigError(
                f"web search through Serper needs a key in the environment variable {self.key_variable} (from "
                "serper.dev); the other providers, SearXNG ('searxng') and ddgs ('ddgs'), need none"
            )

    async def search(self, query: str, count: int) -> list[Evidence]:
        key = self._key()
        if not key:
            raise unavailable(f"no usable key in {self.key_variable}")
        asked = {"q": query, "num": count, "gl": self.country, "hl": self.language}
        given = {name: value for name, value in asked.items() if value}
        request = self.http.post(f"{self.url.rstrip('/')}/search", json=given, headers={"X-API-KEY": key})
        refused = f"Serper refused the key in {self.key_variable}: it is wrong or expired"
        unpaid = f"Serper refused a search: no credits may be left for the key in {self.key_variable}"
        document = await document_of(request, {400: unpaid, 401: refused, 402: unpaid, 403: refused})
        box, panel = section(document, "answerBox"), section(document, "knowledgeGraph")
        # answer boxes without a page are left out: they could not be cited
        found = page(box.get("title"), box.get("link"), box.get("snippet") or box.get("answer"), box.get("date"))
        found += page(panel.get("title"), panel.get("descriptionLink"), panel.get("description"))
        for row in rows(document, "organic"):
            found += page(row.get("title"), row.get("link"), row.get("snippet"), row.get("date"))
        return found[:count]

    def _key(self) -> str:
        key = os.environ.get(self.key_variable, "").strip()
        return key if key.isascii() and key.isprintable() else ""
