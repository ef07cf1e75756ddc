"""Google's results through serper.dev, with a key."""

import os
from dataclasses import dataclass, field

from ....errors import ConfigError
from ....trajectory import Evidence
from ....wire.http import Http
from ....wire.redact import carried
from ...untrusted import check_address, rows, section
from . import Provider, document_of, page

_KEY = "SERPER_API_KEY"


@dataclass(frozen=True)
class Serper(Provider):
    """`POST /search` of serper.dev. An answer box and a knowledge panel that name their page come
    before the results.

    The key is read from the environment for each request and kept nowhere.
    """

    url: str = "https://google.serper.dev"
    http: Http = field(default_factory=Http, repr=False)

    def __post_init__(self) -> None:
        check_address(self.url, "https://google.serper.dev", _KEY)

    def check(self) -> None:
        if not carried(os.environ.get(_KEY, "")):
            alternatives = "the other providers, SearXNG ('searxng') and ddgs ('ddgs'), need none"
            raise ConfigError(
                f"web search through Serper needs a key of serper.dev in {_KEY}; {alternatives}"
            )

    async def search(self, query: str, count: int) -> list[Evidence]:
        headers = {"X-API-KEY": carried(os.environ.get(_KEY, "")) or ""}
        request = self.http.post(
            f"{self.url.rstrip('/')}/search", json={"q": query, "num": count}, headers=headers
        )
        refused = f"Serper refused the key in {_KEY}: it is missing, wrong or expired"
        unpaid = f"Serper refused a search: no credits may be left for the key in {_KEY}"
        document = await document_of(
            request, {400: unpaid, 401: refused, 402: unpaid, 403: refused}
        )
        box = section(document, "answerBox")
        panel = section(document, "knowledgeGraph")
        # answer boxes without a page are left out: they could not be cited
        pages = page(
            box.get("title"),
            box.get("link"),
            box.get("snippet") or box.get("answer"),
            box.get("date"),
        )
        pages += page(panel.get("title"), panel.get("descriptionLink"), panel.get("description"))
        for row in rows(document, "organic"):
            pages += page(row.get("title"), row.get("link"), row.get("snippet"), row.get("date"))
        return pages[:count]
