"""Passages in OpenSearch or Elasticsearch, searched by words (its BM25) over plain HTTP; no client package needed."""

import os
from base64 import b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar
from urllib.parse import quote

import msgspec

from ...errors import ConfigError, ToolError
from ...trajectory import Evidence
from ...wire.background import Background
from ...wire.http import Http
from ...wire.retry import TRANSIENT
from ..untrusted import check_address, rows, section
from .engines import FIELDS, EngineIndex, document_of, passage_of

_MAX_BYTES = 64_000_000
_LONGEST = 250  # words of a query that are looked for: engines refuse more than 1,024 conditions
_MADE_OF = "faithful_search"
_UNREADABLE = "The search engine's answer cannot be read."
_KEPT_ONLY = {"type": "keyword", "index": False, "doc_values": False}
_PROPERTIES = {
    "title": {"type": "text"},
    "text": {"type": "text"},
    "source": _KEPT_ONLY,
    "url": _KEPT_ONLY,
}


@dataclass(frozen=True)
class OpenSearchIndex(EngineIndex):
    """An index of OpenSearch or Elasticsearch whose documents have `title` and `text`, and may have `source` and `url`.

    Credentials come from the environment: `OPENSEARCH_API_KEY`, or `OPENSEARCH_USERNAME` and `OPENSEARCH_PASSWORD`; or
    the same with `ELASTICSEARCH`. Raises `ConfigError` for a URL that has some, or is none.

    Args:
        url, name: of the cluster, such as `http://localhost:9200`, and of the index there.
        fields: what is searched; `title^2` counts a field twice.
        timeout: seconds for one request, whatever the server does.
    """

    url: str
    name: str
    fields: tuple[str, ...] = ("title", "text")
    timeout: float = 20.0
    batch: ClassVar[int] = 500
    _background: Background = field(
        default_factory=lambda: Background(4), init=False, repr=False, compare=False
    )

    def __post_init__(self) -> None:
        check_address(
            self.url, "http://localhost:9200", "OPENSEARCH_USERNAME and OPENSEARCH_PASSWORD"
        )
        if {"?", "#"} & set(self.url):
            raise ConfigError("the address of a search engine has neither a query nor a fragment")

    @cached_property
    def _http(self) -> Http:
        return Http(self.timeout, per_host=16, max_bytes=_MAX_BYTES)

    def search_batch(self, queries: Sequence[str], top_k: int) -> list[list[Evidence]]:
        if not queries:
            return []
        # part of the index would be another index, on which the policy is judged all the same
        head = {"index": self.name, "allow_partial_search_results": False}
        lines: list[Any] = []
        for query in queries:
            asked = " ".join(query.split()[:_LONGEST])
            # fields as one text: a word may be in any of them
            match = {"query": asked, "fields": self.fields, "type": "cross_fields"}
            lines += [head, {"query": {"multi_match": match}, "size": top_k, "_source": FIELDS}]
        found = [*rows(self._send("POST", "_msearch", lines), "responses")]
        if len(found) != len(queries):
            raise ToolError(
                f"The search engine gave {len(found)} answers to {len(queries)} queries."
            )
        answers = []
        for response in found:
            # each query of an `_msearch` has a status of its own, whatever that of the whole
            status = response.get("status", 200)
            if status != 200 or "error" in response or not section(response, "hits"):
                told = f"The search engine refused the query: {_reason(response.get('error'))}."
                raise ToolError(told, passing=status in TRANSIENT)
            if response.get("timed_out") or section(response, "_shards").get("failed"):
                raise ToolError(
                    "The search engine could search only a part of the documents.", passing=True
                )
            hits = [*rows(response["hits"], "hits")][:top_k]
            answers.append(
                [
                    passage_of(section(hit, "_source"), hit.get("_id", ""), hit.get("_score"))
                    for hit in hits
                ]
            )
        return answers

    def __len__(self) -> int:
        count = (self._said("_count") or {}).get("count", 0)
        if not isinstance(count, int):
            raise ToolError(_UNREADABLE)
        return count

    def made_of(self) -> dict[str, Any] | None:
        indexes = self._said("_mapping") or {}
        return next(
            (
                section(section(indexes[name], "mappings"), "_meta").get(_MADE_OF)
                for name in indexes
            ),
            None,
        )

    def _said(self, what: str) -> dict[str, Any] | None:
        """What the engine says of the index; `None` where it has no such index."""
        try:
            return self._send("GET", f"{self._path}/{what}")
        except ToolError as error:
            if error.status != 404:
                raise
        return None

    @property
    def _path(self) -> str:
        return quote(self.name, safe="")

    def _prepare(self, made_of: Mapping[str, Any] | None) -> int:
        meta = {"_meta": {_MADE_OF: made_of}}
        if self._said("_count") is None:
            self._send("PUT", self._path, [{"mappings": meta | {"properties": _PROPERTIES}}])
            return 0
        self._finish()  # else what an interrupted upload wrote is not counted yet
        if not (count := len(self)):  # made by somebody who set its analyzer, say
            self._send("PUT", f"{self._path}/_mapping", [meta])
        return count

    def _finish(self) -> None:
        self._send("POST", f"{self._path}/_refresh")

    def _write(
        self, part: Sequence[Evidence], start: int, made_of: Mapping[str, Any] | None
    ) -> None:
        lines: list[Any] = []
        for number, passage in enumerate(part, start=start):
            lines += [{"index": {"_index": self.name, "_id": str(number)}}, document_of(passage)]
        items = [
            section(item, "index") for item in rows(self._send("POST", "_bulk", lines), "items")
        ]
        if len(items) != len(part):
            raise ToolError(f"The search engine answered for {len(items)} of {len(part)} passages.")
        for number, item in enumerate(items, start=start):
            if item.get("status") not in (200, 201, 429, 503):
                raise ToolError(
                    f"The search engine refused passage {number}: {_reason(item.get('error'))}."
                )
        if any(
            item["status"] in (429, 503) for item in items
        ):  # it takes some passages of a batch and not others
            raise ToolError("The search engine is too busy to write.", passing=True)

    def _send(self, method: str, path: str, lines: Sequence[Any] = ()) -> dict[str, Any]:
        try:
            content = b"".join(msgspec.json.encode(line) + b"\n" for line in lines)
        except UnicodeEncodeError:
            raise ToolError("The query is not valid Unicode.") from None
        kind = "application/json" if len(lines) == 1 else "application/x-ndjson"
        request = self._http.send(
            method, f"{self.url.rstrip('/')}/{path}", content, _credentials(), kind
        )
        found = self._background.run(request).json()
        if not isinstance(found, dict):
            raise ToolError(_UNREADABLE)
        return found


def _credentials() -> dict[str, str]:
    for prefix in ("OPENSEARCH", "ELASTICSEARCH"):
        key, user, password = (
            os.environ.get(f"{prefix}_{part}") for part in ("API_KEY", "USERNAME", "PASSWORD")
        )
        if key or (user and password):
            basic = b64encode(f"{user}:{password}".encode()).decode()
            return {"Authorization": f"ApiKey {key}" if key else f"Basic {basic}"}
    return {}


def _reason(error: Any) -> str:
    """The kind of an error: its full reason may quote documents and addresses."""
    kind = error.get("type") if isinstance(error, Mapping) else None
    return kind if isinstance(kind, str) else "no reason given"
