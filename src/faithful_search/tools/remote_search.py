"""Search through a retrieval server: ours, or any other that speaks the Search-R1 or the ReCall
format.
"""

import os
from dataclasses import dataclass, field
from typing import Any, Literal
from urllib.parse import urlsplit, urlunsplit

import msgspec

from ..errors import ConfigError, ToolError
from ..trajectory import Evidence
from ..wire.cache import key_of
from ..wire.http import Http
from .base import Tool
from .outcome import unavailable
from .retrieval.corpus import split_contents
from .setup import Setup
from .untrusted import check_address

TOKEN = "FAITHFUL_SEARCH_SERVE_TOKEN"
"""The environment variable with the token of a server that wants one."""

_PATHS = {"search_r1": "/retrieve", "recall": "/search"}


@dataclass(frozen=True)
class RemoteSearch(Tool):
    """Passages from a retrieval server, such as `faithful-search serve` starts.

    What it sends is not trusted. Requests carry the token in `FAITHFUL_SEARCH_SERVE_TOKEN`, where
    there is one.

    Args:
        url: the server's address; where it has no path, the format's own is added: `/retrieve` or
            `/search`.
        wire: `"search_r1"` (`POST /retrieve` with `queries`, `topk`, `return_scores`) or `"recall"`
            (`POST /search` with `query`, `top_n`, `return_score`).
        http: how long to wait, how often to try again, how many requests at a time.
    """

    url: str
    wire: Literal["search_r1", "recall"] = "search_r1"
    name: str = "local_search"
    description: str = ""
    top_k: int = 3
    http: Http = field(default_factory=lambda: Http(per_host=64))

    @classmethod
    def open(cls, source: str, setup: Setup) -> Tool:
        return cls(source, http=setup.http(), **setup.about)

    def __post_init__(self) -> None:
        if self.wire not in _PATHS or self.top_k < 1:
            message = f"wire must be one of {', '.join(_PATHS)}, and top_k at least 1"
            raise ConfigError(f"{message}; got {self.wire!r}, {self.top_k}")
        check_address(self.url, "http://127.0.0.1:8000", TOKEN)

    @property
    def cache_key(self) -> str:  # type: ignore[override]
        # The hash of the address, which may hold a key.
        return f"remote_search {key_of(url=self.endpoint)} {self.wire} top_k={self.top_k}"

    @property
    def endpoint(self) -> str:
        """The URL that is asked."""
        parts = urlsplit(self.url)
        if parts.path.strip("/"):
            return self.url
        return urlunsplit(parts._replace(path=_PATHS[self.wire]))

    async def search(self, query: str) -> list[Evidence]:
        """Search a collection of documents and return the passages that match best.

        Args:
            query: The words to search for.
        """
        token = os.environ.get(TOKEN)
        headers = {"Authorization": f"Bearer {token}"} if token else None
        body: dict[str, Any] = {"queries": [query], "topk": self.top_k, "return_scores": True}
        if self.wire == "recall":
            body = {"query": query, "top_n": self.top_k, "return_score": True}
        try:
            reply = await self.http.post(self.endpoint, json=body, headers=headers)
            answer = reply.json()
        except ToolError as error:
            if error.status in (401, 403):
                server = urlsplit(self.url).hostname
                reason = f"{server} answers {error.status}: {TOKEN} must hold its token"
                message = "Search is not available now; use another tool."
                raise unavailable(message, reason) from None
            raise error.retold(f"Search failed: {error}.") from None
        try:
            rows = _rows(answer, self.wire)
            passages = [_passage(document, score) for document, score in rows]
        except Exception as error:  # a server of others may send anything
            raise ToolError("The search server sent something that is no search result.") from error
        return passages[: self.top_k]


def _rows(answer: Any, wire: str) -> list[tuple[Any, Any]]:
    """The documents of an answer, each with its score, `None` where it has none.

    Raises whatever reading raises, where the answer is of another form.
    """
    if wire == "search_r1":
        # One list for each query, of which there was one
        [results] = msgspec.convert(answer["result"], list[list[dict[str, Any]]])
        rows: list[tuple[Any, Any]] = []
        for result in results:
            if "document" in result:
                rows.append((result["document"], result.get("score")))
            else:
                rows.append((result, None))
        return rows
    documents = msgspec.convert(answer, list[Any])
    # With scores: a list of documents, and a list of their scores
    if len(documents) == 2 and all(isinstance(part, list) for part in documents):
        documents, scores = documents
        return list(zip(documents, scores, strict=True))
    return [(document, None) for document in documents]


def _passage(document: Any, score: Any) -> Evidence:
    """A document, in one of three forms: a text with its title in the first line, this text under
    `contents`, or `title` and `text` apart.
    """
    if isinstance(document, str):
        document = {"contents": document}
    contents = document.get("contents")
    if isinstance(contents, str):
        title, text = split_contents(contents)
    else:
        title = document.get("title", "")
        text = document["text"]
    source = document.get("id", "")
    url = document.get("url", "")
    passage = {
        "text": text,
        "title": title,
        "source": str(source) if isinstance(source, (str, int)) else "",
        "url": url if isinstance(url, str) else "",
        "score": float(score) if isinstance(score, (int, float)) else None,
    }
    return msgspec.convert(passage, Evidence)
