"""Passages in Qdrant, searched by meaning: embedded in this process, or a server by URL."""

from __future__ import annotations

import math
import os
import threading
import weakref
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from typing import Any

import httpx
import msgspec

from ...errors import ConfigError, DataError, ToolError
from ...trajectory import Evidence
from ..untrusted import check_address, is_loopback
from .embedder import Described, Embedder
from .index import EngineIndex
from .passages import Progress, silent

_FIELDS = ("title", "text", "source", "url")
_ENCODER, _MADE_OF = "encoder", "made_of"  # notes at the first passage: not every server keeps some of a collection


class QdrantIndex(EngineIndex):
    """A collection of Qdrant with the vectors of an encoder and `title`, `text`, `source` and `url` beside them.

    The embedded engine needs no server: it holds all vectors in memory, keeps them in a folder or not at all, and a
    folder belongs to one process at a time. A server's key comes from `QDRANT_API_KEY`.

    Args:
        collection: its name.
        embedder: of the queries; by default the one that filled the collection, which names it.
        where: `http(s)://host:port` of a server, a folder, or `:memory:`.
        timeout: seconds a server has for an answer.

    Raises:
        ConfigError: when the package is missing, the URL holds credentials, the folder is open elsewhere, or the
            collection has another encoder's vectors, or names none where none is given.
        ToolError: when a server does not answer, or has no such collection where no encoder is given.

    Example:
        >>> embedder = Embedder("intfloat/e5-small-v2")  # doctest: +SKIP
        >>> with QdrantIndex("wiki", embedder, "http://localhost:6333") as index:  # doctest: +SKIP
        ...     index.upload(passages)
    """

    def __init__(
        self,
        collection: str,
        embedder: Embedder | None = None,
        where: str | os.PathLike[str] = ":memory:",
        timeout: float = 20,
    ) -> None:
        self.collection, self.where, self.timeout = collection, str(where), timeout
        self._remote = "://" in self.where
        self._connect()
        try:
            self.embedder = embedder or self._named()
            self._check()
        except BaseException:
            self.close()
            raise

    def search_batch(self, queries: Sequence[str], top_k: int) -> list[list[Evidence]]:
        """The nearest passages for each query; `score` is the cosine.

        Raises:
            ToolError: when there is no such collection yet, or the server fails (passing) or refuses.
        """
        if not queries:
            return []
        from qdrant_client.models import QueryRequest

        vectors = self.embedder.queries(queries).tolist()
        asked = [QueryRequest(query=vector, limit=top_k, with_payload=list(_FIELDS)) for vector in vectors]
        found = self._call("query_batch_points", requests=asked)
        return [[_passage(point) for point in response.points] for response in found]

    def upload(
        self,
        passages: Iterable[Evidence],
        *,
        batch: int = 256,
        made_of: Mapping[str, Any] | None = None,
        progress: Progress = silent,
    ) -> int:
        """Encode and write passages into the collection, `batch` at a time; see `EngineIndex.upload`.

        The batch in which an earlier call of the same `batch` was interrupted is written again.
        """
        if not self._call("collection_exists"):
            self._create()
        done = len(self) // batch * batch
        rest = islice(passages, done, None)
        with progress(desc="uploading", unit=" passages", initial=done) as bar:
            while part := list(islice(rest, batch)):
                self._call("upsert", points=self._points(part, done, made_of), wait=True)
                done += len(part)
                bar.update(len(part))
        return done

    def made_of(self) -> dict[str, Any] | None:
        """See `EngineIndex.made_of`."""
        return self._noted(_MADE_OF)

    def __len__(self) -> int:
        return int(self._call("count", exact=True).count) if self._call("collection_exists") else 0

    def close(self) -> None:
        """Let go of the folder or the connections; the index cannot be used afterwards."""
        self._close()

    def __enter__(self) -> QdrantIndex:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __reduce__(self) -> tuple[Any, ...]:
        if not self._remote:
            raise ConfigError("an embedded Qdrant belongs to one process: use a server, whose index can be pickled")
        return QdrantIndex, (self.collection, self.embedder, self.where, self.timeout)

    def _connect(self) -> None:
        self._lock, self._process = threading.Lock(), os.getpid()
        self._client = _server(self.where, self.timeout) if self._remote else _embedded(self.where)
        self._close = weakref.finalize(self, _closed, self._client, self._process)

    def _call(self, verb: str, **arguments: Any) -> Any:
        """One request; the embedded engine takes one at a time, and connections do not cross a fork."""
        if self._remote:
            if os.getpid() != self._process:
                self._connect()
            return _asked(self._client, verb, self.collection, arguments)
        with self._lock:
            return _asked(self._client, verb, self.collection, arguments)

    def _create(self) -> None:
        from qdrant_client.models import Distance, VectorParams

        how = VectorParams(size=self.embedder.dimension, distance=Distance.COSINE)
        self._call("create_collection", vectors_config=how)

    def _points(self, part: list[Evidence], start: int, made_of: Mapping[str, Any] | None) -> list[Any]:
        from qdrant_client.models import PointStruct

        vectors = self.embedder.passages(part).tolist()
        payloads: list[dict[str, Any]] = [{name: getattr(passage, name) for name in _FIELDS} for passage in part]
        if start == 0:
            payloads[0] |= {_ENCODER: msgspec.to_builtins(self.embedder.described()), _MADE_OF: made_of}
        rows = enumerate(zip(vectors, payloads, strict=True), start=start)
        return [PointStruct(id=number, vector=vector, payload=payload) for number, (vector, payload) in rows]

    def _noted(self, what: str) -> Any:
        """What the first passage carries besides itself."""
        first = self._call("retrieve", ids=[0], with_payload=[what]) if self._call("collection_exists") else ()
        return (first[0].payload or {}).get(what) if first else None

    def _named(self) -> Embedder:
        """The encoder that filled the collection."""
        if not self._call("collection_exists"):
            raise ToolError(f"The vector search engine has no collection {self.collection!r}.")
        note = self._noted(_ENCODER)
        if note is None:
            raise ConfigError(f"the collection {self.collection!r} does not say which encoder made it: give that one")
        return Embedder.reopen(msgspec.convert(note, Described))

    def _check(self) -> None:
        """Vectors of another encoder would be compared all the same, and find anything."""
        if not self._call("collection_exists"):
            return
        size = getattr(self._call("get_collection").config.params.vectors, "size", None)
        if size != self.embedder.dimension:
            raise ConfigError(
                f"the collection {self.collection!r} has vectors of {size} numbers, {self.embedder.model!r} gives "
                f"{self.embedder.dimension}: open it with the encoder that made it"
            )
        note = self._noted(_ENCODER)
        if note is not None and not self.embedder.same(made := msgspec.convert(note, Described)):
            raise ConfigError(
                f"the collection {self.collection!r} was made with {made.model!r}, whose vectors are not those of "
                f"{self.embedder.model!r}: open it with that encoder"
            )


def _closed(client: Any, process: int) -> None:
    """At the interpreter's end, too, before the client's own attempt, which comes too late; not by a forked child."""
    if os.getpid() == process:
        client.close()


def _passage(point: Any) -> Evidence:
    payload = point.payload or {}
    fields = {name: str(payload.get(name) or "") for name in _FIELDS}
    return Evidence(**{**fields, "source": fields["source"] or str(point.id)}, score=round(float(point.score), 4))


def _asked(client: Any, verb: str, collection: str, arguments: dict[str, Any]) -> Any:
    from qdrant_client.common.client_exceptions import QdrantException
    from qdrant_client.http.exceptions import ResponseHandlingException, UnexpectedResponse

    try:
        return getattr(client, verb)(collection, **arguments)
    except UnexpectedResponse as error:
        raise _refusal(error.status_code or 500, collection) from error
    except ResponseHandlingException as error:
        kind = type(error.source).__name__
        raise ToolError(f"The vector search engine cannot be reached ({kind}).", passing=True) from error
    except QdrantException as error:
        wait = getattr(error, "retry_after_s", None)
        raise ToolError("The vector search engine is too busy.", passing=True, retry_after=wait) from error
    except ValueError as error:
        if type(error) is ValueError:  # the embedded engine's own; what cannot be read raises a kind of its own
            raise _refusal(404 if "not found" in str(error) else 400, collection) from error
        raise ToolError("The vector search engine's answer cannot be read.") from error


def _refusal(status: int, collection: str) -> ToolError:
    if status in (401, 403):
        return ToolError(f"The vector search engine does not accept the key ({status}).")
    if status == 404:
        return ToolError(f"The vector search engine has no collection {collection!r} (404).")
    passing = status == 429 or status >= 500
    return ToolError(f"The vector search engine refused the request ({status}).", passing=passing)


def _server(url: str, timeout: float) -> Any:
    check_address(url, "http://localhost:6333", "QDRANT_API_KEY")
    key = os.environ.get("QDRANT_API_KEY") or None
    # of the environment a server on this machine takes the trusted certificates, not the proxy
    network = {"trust_env": not is_loopback(url), "verify": httpx.create_ssl_context()}
    return _package().QdrantClient(
        url=url, api_key=key, timeout=math.ceil(timeout), check_compatibility=False, **network
    )


def _embedded(where: str) -> Any:
    location = {"location": where} if where == ":memory:" else {"path": where}
    try:
        return _package().QdrantClient(**location, force_disable_check_same_thread=True)
    except RuntimeError as error:
        raise ConfigError(f"the Qdrant folder {where} is in use elsewhere: close it there, or use a server") from error
    except (OSError, ValueError) as error:
        raise DataError(f"cannot open the Qdrant folder {where}: {error}") from error


def _package() -> Any:
    try:
        import qdrant_client
    except ImportError as error:
        raise ConfigError("Qdrant needs its client: pip install 'faithful-search[qdrant]'") from error
    return qdrant_client
