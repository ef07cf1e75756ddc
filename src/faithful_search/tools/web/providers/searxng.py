"""A SearXNG server, as one hosts it oneself."""

from dataclasses import dataclass, field
from urllib.parse import urlsplit

from ....errors import ToolError
from ....trajectory import Evidence
from ....wire.http import Http
from ...untrusted import check_address, rows
from . import Provider, document_of, page

# in this order: answers and infoboxes that name their page come before the results
_PARTS = {
    "answers": ("title", "url", "answer"),
    "infoboxes": ("infobox", "id", "content"),
    "results": ("title", "url", "content"),
}


@dataclass(frozen=True)
class SearXNG(Provider):
    """`GET /search?format=json` of a SearXNG server, whose `settings.yml` must name `json` under
    `search: formats:`.
    """

    url: str
    http: Http = field(default_factory=Http, repr=False)

    def __post_init__(self) -> None:
        check_address(self.url, "http://localhost:8888")

    async def search(self, query: str, count: int) -> list[Evidence]:
        mend = "add `json` to `formats` under `search` in its settings.yml and restart it"
        disabled = f"SearXNG at {urlsplit(self.url).netloc} answers 403: its JSON format is disabled; {mend}"
        request = self.http.get(
            f"{self.url.rstrip('/')}/search", params={"q": query, "format": "json"}
        )
        document = await document_of(request, {403: disabled})
        pages: list[Evidence] = []
        for part, (title, url, text) in _PARTS.items():
            for row in rows(document, part):
                date = str(row.get("publishedDate") or "")[:10]
                pages += page(row.get(title), row.get(url), row.get(text), date)
        # else an outage of the engines would be read as "nothing is known about it"
        if not pages and document.get("unresponsive_engines"):
            raise ToolError(
                "Web search failed: none of the search engines answered.", transient=True
            )
        return pages[:count]
