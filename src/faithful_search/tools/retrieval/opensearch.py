"""Passages in OpenSearch or Elasticsearch, searched by words (the engine's BM25) over plain HTTP.

`opensearch+https://localhost:9200/wiki` names the index `wiki` of the cluster at that address. No
client package is needed.
"""

import os
import time
from base64 import b64encode
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import islice
from typing import Any, ClassVar
from urllib.parse import quote

import msgspec

from ...errors import ConfigError, DataError, ToolError
from ...trajectory import Evidence
from ...wire.background import Background
from ...wire.http import Http
from ...wire.retry import TRANSIENT
from ..untrusted import check_address, rows, section
from .corpus import Corpus, OnBroken, called, digest, passages, readable_twice, refuse
from .index import Index, progress

FIELDS = ("title", "text", "source", "url")
"""What the engine stores of a passage."""
TIMEOUT = 20.0  # seconds for one request
SCHEME = "opensearch+"
_MAX_BYTES = 64_000_000  # of an answer
_MOST_QUERY_WORDS = 250  # that are searched for: engines refuse more than 1,024 conditions
_MADE_OF = "faithful_search"  # the key of the mapping's `_meta` that says what the passages are
_UNREADABLE = "The search engine's answer cannot be read."
_STORED_ONLY = {"type": "keyword", "index": False, "doc_values": False}
_PROPERTIES = {
    "title": {"type": "text"},
    "text": {"type": "text"},
    "source": _STORED_ONLY,
    "url": _STORED_ONLY,
}
# Seconds before a batch is sent again that the engine was too busy for
_PAUSES = (0.5, 1.0, 2.0, 4.0, 8.0)


@dataclass(frozen=True)
class OpenSearchIndex(Index):
    """An index of OpenSearch or Elasticsearch whose documents have `title` and `text`, and may have
    `source` and `url`.

    Credentials come from the environment: `OPENSEARCH_API_KEY`, or `OPENSEARCH_USERNAME` and
    `OPENSEARCH_PASSWORD`; or the same with `ELASTICSEARCH`.

    Args:
        url: the cluster's address, such as `http://localhost:9200`.
        name: that of the index in the cluster.
        fields: what is searched; `title^2` counts a field twice.
        timeout: seconds for one request, whatever the server does.

    Raises:
        ConfigError: the URL contains credentials, or is not an address.
    """

    url: str
    name: str
    fields: tuple[str, ...] = ("title", "text")
    timeout: float = TIMEOUT
    batch: ClassVar[int] = 500  # passages that are written at once
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

    def __len__(self) -> int:
        count = (self._get("_count") or {}).get("count", 0)
        if not isinstance(count, int):
            raise ToolError(_UNREADABLE)
        return count

    def search_batch(self, queries: Sequence[str], top_k: int) -> list[list[Evidence]]:
        if not queries:
            return []
        # A part of the index would be another index, on which the policy would be judged.
        head = {"index": self.name, "allow_partial_search_results": False}
        lines: list[Any] = []
        for query in queries:
            words = " ".join(query.split()[:_MOST_QUERY_WORDS])
            # "cross_fields" takes the fields for one text: each word may be in any of them.
            match = {"query": words, "fields": self.fields, "type": "cross_fields"}
            lines += [head, {"query": {"multi_match": match}, "size": top_k, "_source": FIELDS}]
        responses = list(rows(self._send("POST", "_msearch", lines), "responses"))
        if len(responses) != len(queries):
            raise ToolError(
                f"The search engine gave {len(responses)} answers to {len(queries)} queries."
            )
        return [_hits(response, top_k) for response in responses]

    def upload(self, passages: Iterable[Evidence], made_of: Mapping[str, Any] | None = None) -> int:
        """Write all passages, in corpus order, and return how many there are now.

        After an interruption the same call goes on with the batch that was interrupted.

        Args:
            made_of: what the passages are made of, which is kept with them.

        Raises:
            ToolError: the engine fails or refuses.
        """
        # The batch that was interrupted is written again: the count does not say which of its
        # passages are missing.
        done = self._prepare(made_of) // self.batch * self.batch
        remaining = islice(passages, done, None)
        with progress("uploading", initial=done) as bar:
            while part := list(islice(remaining, self.batch)):
                try:
                    self._write_patiently(part, done)
                except ToolError as error:
                    raise error.retold(
                        f"{error} {done} passages are written: the same call goes on there."
                    ) from error
                done += len(part)
                bar.update(len(part))
        self._refresh()
        return done

    def made_of(self) -> dict[str, Any] | None:
        """What `upload` kept with the passages; `None` where it kept nothing."""
        indexes = self._get("_mapping")
        if not indexes:
            return None
        mapping = next(iter(indexes.values()))  # the name asked for may be an alias
        return section(section(mapping, "mappings"), "_meta").get(_MADE_OF)

    def _prepare(self, made_of: Mapping[str, Any] | None) -> int:
        """Make the index if it is missing; returns the number of passages it has."""
        meta = {"_meta": {_MADE_OF: made_of}}
        if self._get("_count") is None:
            self._send("PUT", self._path, [{"mappings": meta | {"properties": _PROPERTIES}}])
            return 0
        self._refresh()  # else what an interrupted upload wrote is not counted yet
        count = len(self)
        if not count:  # somebody has made it empty, to set its analyzer, say
            self._send("PUT", f"{self._path}/_mapping", [meta])
        return count

    def _write_patiently(self, part: Sequence[Evidence], start: int) -> None:
        """`_write`, again after a pause where the engine is too busy."""
        for pause in _PAUSES:
            try:
                return self._write(part, start)
            except ToolError as error:
                if not error.transient:
                    raise
                time.sleep(max(pause, error.retry_after or 0.0))
        return self._write(part, start)

    def _write(self, part: Sequence[Evidence], start: int) -> None:
        """Write passages, the first under the number `start`."""
        lines: list[Any] = []
        for number, passage in enumerate(part, start=start):
            document = {name: getattr(passage, name) for name in FIELDS}
            lines += [{"index": {"_index": self.name, "_id": str(number)}}, document]
        reply = self._send("POST", "_bulk", lines)
        items = [section(row, "index") for row in rows(reply, "items")]
        if len(items) != len(part):
            raise ToolError(f"The search engine answered for {len(items)} of {len(part)} passages.")
        busy = False
        for number, row in enumerate(items, start=start):
            status = row.get("status")
            if status in (429, 503):  # a busy engine takes some passages of a batch, not others
                busy = True
            elif status not in (200, 201):
                reason = _reason(row.get("error"))
                raise ToolError(f"The search engine refused passage {number}: {reason}.")
        if busy:
            raise ToolError("The search engine is too busy to write.", transient=True)

    def _refresh(self) -> None:
        """Make what was written count and be found."""
        self._send("POST", f"{self._path}/_refresh")

    def _get(self, part: str) -> dict[str, Any] | None:
        """What the engine says of the index; `None` where it has no such index."""
        try:
            return self._send("GET", f"{self._path}/{part}")
        except ToolError as error:
            if error.status != 404:
                raise
        return None

    @property
    def _path(self) -> str:
        return quote(self.name, safe="")

    def _send(self, method: str, path: str, lines: Sequence[Any] = ()) -> dict[str, Any]:
        """The engine's answer. Several lines are sent as JSON lines, as its bulk requests want."""
        try:
            content = b"".join(msgspec.json.encode(line) + b"\n" for line in lines)
        except UnicodeEncodeError:
            raise ToolError("The query is not valid Unicode.") from None
        media_type = "application/json" if len(lines) == 1 else "application/x-ndjson"
        address = f"{self.url.rstrip('/')}/{path}"
        request = self._http.send(method, address, content, _credentials(), media_type)
        reply = self._background.run(request).json()
        if not isinstance(reply, dict):
            raise ToolError(_UNREADABLE)
        return reply


def is_engine(name: str) -> bool:
    """Whether a corpus's name is the URL of a search engine, or of anything else that is no file.

    Any URL counts, so that a mistyped one is reported as such, and not looked for on the Hub.
    """
    return "://" in name or name.startswith(SCHEME)


def open_engine(url: str, timeout: float = TIMEOUT) -> OpenSearchIndex:
    """The passages that a search engine has.

    Args:
        url: the address of its index; see the module's docstring.

    Raises:
        DataError: it has no passages.
        ConfigError: it cannot be reached, or `url` is not its address.
    """
    index = _at(url, timeout)
    try:
        count = len(index)
    except ToolError as error:
        raise ConfigError(f"cannot open {url}: {error}") from error
    if not count:
        raise DataError(f"{url} has no passages: fill it with: faithful-search index CORPUS {url}")
    return index


def fill_engine(
    corpus: Corpus,
    url: str,
    *,
    paragraph_characters: int | None = None,
    limit: int | None = None,
    on_broken: OnBroken = refuse,
) -> int:
    """Write the passages of a corpus into a search engine, and return their number. After an
    interruption the same call goes on.

    Args:
        corpus, paragraph_characters, on_broken: see `corpus.passages`.
        url: the address of the engine's index; see the module's docstring.
        limit: write only the first passages.

    Raises:
        DataError: the corpus cannot be used.
        ConfigError: the settings do not fit what the engine holds.
        ToolError: the engine fails or refuses.
    """
    index = _at(url, TIMEOUT)
    corpus = readable_twice(corpus)
    # Kept in the engine, since nothing on this machine says what it was filled with.
    made_of = {
        "digest": digest(corpus),
        "paragraph_characters": paragraph_characters,
        "limit": limit,
    }
    present = index.made_of()
    if present is None and len(index):
        present = {"corpus": "passages of another origin"}
    if present is not None and any(present.get(key) != made_of[key] for key in made_of):
        raise ConfigError(
            f"{url} is made of something else ({present.get('corpus')}): name another index, or "
            "delete it there"
        )
    texts = passages(corpus, paragraph_characters=paragraph_characters, on_broken=on_broken)
    return index.upload(islice(texts, limit), made_of | {"corpus": called(corpus)})


def _at(url: str, timeout: float) -> OpenSearchIndex:
    """The index at a URL. Raises `ConfigError` where it does not name one."""
    address = url.removeprefix(SCHEME).rstrip("/")
    cluster, _, name = address.rpartition("/")
    # Without an index, `http://localhost:9200` falls apart into `http:/` and the host.
    is_complete = cluster and name and not cluster.endswith((":/", "://"))
    if not url.startswith(SCHEME) or not is_complete or {"?", "#"} & set(address):
        raise ConfigError("name a search engine as opensearch+http://localhost:9200/INDEX")
    return OpenSearchIndex(cluster, name, timeout=timeout)


def _hits(response: Mapping[str, Any], top_k: int) -> list[Evidence]:
    """The passages in one response of an `_msearch`; each response has a status of its own."""
    status = response.get("status", 200)
    if status != 200 or "error" in response or not section(response, "hits"):
        reason = _reason(response.get("error"))
        raise ToolError(
            f"The search engine refused the query: {reason}.", transient=status in TRANSIENT
        )
    if response.get("timed_out") or section(response, "_shards").get("failed"):
        raise ToolError(
            "The search engine could search only a part of the documents.", transient=True
        )
    return [_passage(hit) for hit in islice(rows(response["hits"], "hits"), top_k)]


def _passage(hit: Mapping[str, Any]) -> Evidence:
    """A document, which others may have written; without a source its id is the source."""
    document = section(hit, "_source")
    title, text, source, url = (str(document.get(name) or "") for name in FIELDS)
    score = hit.get("_score")
    return Evidence(
        text=text,
        title=title,
        source=source or str(hit.get("_id", "")),
        url=url,
        # Rounded, since further digits differ between machines.
        score=round(score, 4) if isinstance(score, float | int) else None,
    )


def _credentials() -> dict[str, str]:
    """The header that authenticates, from the environment; none where that has no credentials."""
    for prefix in ("OPENSEARCH", "ELASTICSEARCH"):
        key = os.environ.get(f"{prefix}_API_KEY")
        if key:
            return {"Authorization": f"ApiKey {key}"}
        user = os.environ.get(f"{prefix}_USERNAME")
        password = os.environ.get(f"{prefix}_PASSWORD")
        if user and password:
            basic = b64encode(f"{user}:{password}".encode()).decode()
            return {"Authorization": f"Basic {basic}"}
    return {}


def _reason(error: Any) -> str:
    """The kind of an error: its full reason may quote documents and addresses."""
    kind = error.get("type") if isinstance(error, Mapping) else None
    return kind if isinstance(kind, str) else "no reason given"
