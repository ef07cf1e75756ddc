"""Search through a retrieval server: ours, or any other that speaks the Search-R1 or the ReCall format."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal
from urllib.parse import urlsplit, urlunsplit

from ..errors import ConfigError, ToolError
from ..trajectory import Evidence
from ..wire.http import Http
from .base import Tool
from .error_log import unavailable
from .retrieval.corpus import split_contents
from .untrusted import check_address

TOKEN = "FAITHFUL_SEARCH_SERVE_TOKEN"
"""The environment variable with the token of a server that wants one."""

_TITLE, _TEXT, _URL = 500, 20_000, 2_000
"""Characters that are kept of what a server sends."""
_PATHS = {"search_r1": "/retrieve", "recall": "/search"}


@dataclass(frozen=True)
class RemoteSearch(Tool):
    """Passages from a retrieval server, such as `faithful-search serve` starts. What it sends is not trusted.

    A server that wants a token gets the one in `FAITHFUL_SEARCH_SERVE_TOKEN`.

    Args:
        url: of the server; where it has no path, the format's own is added: `/retrieve` or `/search`.
        wire: `"search_r1"` (`POST /retrieve` with `queries`, `topk`, `return_scores`) or `"recall"` (`POST /search`
            with `query`, `top_n`, `return_score`).
        name: what the policy calls it.
        description: what the policy is told; empty for the default.
        top_k: passages a query returns at most.
        http: how long to wait, how often to try again, how many requests at a time.
    """

    url: str
    wire: Literal["search_r1", "recall"] = "search_r1"
    name: str = "local_search"
    description: str = ""
    top_k: int = 3
    http: Http = field(default_factory=lambda: Http(per_host=64))

    def __post_init__(self) -> None:
        if self.wire not in _PATHS:
            raise ConfigError(f"wire must be one of {', '.join(_PATHS)}; got {self.wire!r}")
        if self.top_k < 1:
            raise ConfigError(f"top_k must be at least 1, got {self.top_k}")
        check_address(self.url, "http://127.0.0.1:8000", TOKEN)

    @property
    def cache_key(self) -> str:  # type: ignore[override]
        """Server, format and number of passages."""
        bare = urlunsplit(urlsplit(self.endpoint)._replace(query="", fragment=""))
        return f"remote_search {bare} {self.wire} top_k={self.top_k}"

    @property
    def endpoint(self) -> str:
        """Where requests go."""
        parts = urlsplit(self.url)
        return self.url if parts.path.strip("/") else urlunsplit(parts._replace(path=_PATHS[self.wire]))

    async def search(self, query: str) -> list[Evidence]:
        """Search a collection of documents and return the passages that match best.

        Args:
            query: The words to search for.
        """
        token = os.environ.get(TOKEN)
        headers = {"Authorization": f"Bearer {token}"} if token else None
        try:
            answer = (await self.http.post(self.endpoint, json=self._request(query), headers=headers)).json()
        except ToolError as error:
            if error.status in (401, 403):
                mend = f"{urlsplit(self.url).hostname} answers {error.status}: {TOKEN} must hold its token"
                raise unavailable("Search is not available now; use another tool.", mend) from None
            raise error.retold(f"Search failed: {error}.") from None
        try:
            return _READERS[self.wire](answer)[: self.top_k]
        except _UNREADABLE as error:
            raise ToolError("The search server sent something that is no search result.") from error

    def _request(self, query: str) -> dict[str, Any]:
        if self.wire == "recall":
            return {"query": query, "top_n": self.top_k, "return_score": True}
        return {"queries": [query], "topk": self.top_k, "return_scores": True}


_UNREADABLE = (ValueError, TypeError, KeyError, IndexError, AttributeError, RecursionError)


def _from_search_r1(answer: Any) -> list[Evidence]:
    (found,) = answer["result"]
    _require(found, list)
    return [_passage(item["document"], item.get("score")) if "document" in item else _passage(item) for item in found]


def _from_recall(answer: Any) -> list[Evidence]:
    _require(answer, list)
    if len(answer) == 2 and all(isinstance(part, list) for part in answer):
        documents, scores = answer
        return [_passage(document, score) for document, score in zip(documents, scores, strict=True)]
    return [_passage(document) for document in answer]


_READERS: dict[str, Callable[[Any], list[Evidence]]] = {"search_r1": _from_search_r1, "recall": _from_recall}


def _passage(document: Any, score: Any = None) -> Evidence:
    """One document: with `contents`, or with `title` and `text`."""
    if isinstance(document, str):
        document = {"contents": document}
    contents = document.get("contents")
    title, text = (
        split_contents(contents) if isinstance(contents, str) else (document.get("title", ""), document["text"])
    )
    source, url = document.get("id", ""), document.get("url", "")
    return Evidence(
        text=_require(text, str)[:_TEXT],
        title=_require(title, str)[:_TITLE],
        source=str(source)[:_TITLE] if isinstance(source, (str, int)) else "",
        url=url if isinstance(url, str) and len(url) <= _URL else "",
        score=float(score) if isinstance(score, (int, float)) else None,
    )


def _require(value: Any, kind: type) -> Any:
    if not isinstance(value, kind):
        raise TypeError(f"expected {kind.__name__}, got {type(value).__name__}")
    return value
