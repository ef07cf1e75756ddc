"""Passages in Qdrant, searched by meaning: embedded in this process, or a server by URL."""

import math
import os
import threading
import weakref
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from typing import Any, ClassVar

import httpx
import msgspec

from ...errors import ConfigError, ToolError, needs
from ...trajectory import Evidence
from ...wire.guard import is_loopback
from ...wire.retry import TRANSIENT
from ..untrusted import check_address
from .dense import Described, Embedder
from .engines import FIELDS, EngineIndex, document_of, passage_of

_ENCODER, _MADE_OF = "encoder", "made_of"


class QdrantIndex(EngineIndex):
    """A collection of Qdrant with the vectors of an encoder and `title`, `text`, `source` and `url` beside them.

    The embedded engine needs no server: it holds all vectors in memory, keeps them in a folder or not at all, and a
    folder belongs to one process at a time. A server's key comes from `QDRANT_API_KEY`.

    Args:
        collection: its name.
        embedder: of the queries; by default the one that filled the collection, which names it.
        where: `http(s)://host:port` of a server, a folder, or `:memory:`.
        timeout: seconds a server has for an answer.

    Raises `ConfigError` for a missing package or encoder, a URL or folder that cannot be opened, or a collection with
    another encoder's vectors; `ToolError` when a server does not answer, or has no collection to name the encoder.
    """

    batch: ClassVar[int] = 256

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
            made = self._noted(_ENCODER)
            described = None if made is None else msgspec.convert(made, Described)
            if embedder is None:
                if not self._call("collection_exists"):
                    raise ToolError(f"The search engine has no collection {collection!r}.")
                if described is None:
                    raise ConfigError(
                        f"the collection {collection!r} does not say which encoder made it: give one"
                    )
                embedder = Embedder.reopen(described)
            elif described is not None:
                embedder.check(described)
            self.embedder = embedder
        except (
            BaseException
        ):  # also Ctrl-C while a model loads: nobody else holds the connection yet
            self.close()
            raise

    def search_batch(self, queries: Sequence[str], top_k: int) -> list[list[Evidence]]:
        if not queries:
            return []
        from qdrant_client.models import QueryRequest

        vectors = self.embedder.queries(queries).tolist()
        asked = [
            QueryRequest(query=vector, limit=top_k, with_payload=list(FIELDS)) for vector in vectors
        ]
        found = self._call("query_batch_points", requests=asked)
        return [
            [passage_of(p.payload or {}, p.id, p.score) for p in response.points]
            for response in found
        ]

    def made_of(self) -> dict[str, Any] | None:
        return self._noted(_MADE_OF)

    def __len__(self) -> int:
        return int(self._call("count", exact=True).count) if self._call("collection_exists") else 0

    def close(self) -> None:
        self._close()

    def __reduce__(self) -> tuple[Any, ...]:
        if not self._remote:
            raise ConfigError(
                "an embedded Qdrant belongs to one process: use a server, whose index can be pickled"
            )
        return QdrantIndex, (self.collection, self.embedder, self.where, self.timeout)

    def _connect(self) -> None:
        self._process = os.getpid()
        # the embedded engine takes one request at a time
        self._lock = nullcontext() if self._remote else threading.Lock()
        with needs("Qdrant", "qdrant"):
            from qdrant_client import QdrantClient
        how: dict[str, Any]
        if self._remote:
            check_address(self.where, "http://localhost:6333", "QDRANT_API_KEY")
            how = {
                "url": self.where,
                "api_key": os.environ.get("QDRANT_API_KEY") or None,
                "timeout": math.ceil(self.timeout),  # it takes whole seconds
                "check_compatibility": False,  # would ask the server for its version on every start
                # of the environment a server on this machine takes the trusted certificates, not the proxy
                "trust_env": not is_loopback(self.where),
                "verify": httpx.create_ssl_context(),
            }
        else:
            place = "location" if self.where == ":memory:" else "path"
            how = {place: self.where, "force_disable_check_same_thread": True}
        try:
            self._client = QdrantClient(**how)
        except (RuntimeError, OSError, ValueError) as error:
            mend = "where the folder is in use elsewhere, close it there, or use a server"
            raise ConfigError(f"cannot open Qdrant at {self.where} ({error}): {mend}") from error
        # at the interpreter's end the client's own attempt comes too late
        self._close = weakref.finalize(self, _closed, self._client, self._process)

    def _noted(self, what: str) -> Any:
        """What the first passage carries besides itself."""
        first = (
            self._call("retrieve", ids=[0], with_payload=[what])
            if self._call("collection_exists")
            else ()
        )
        return (first[0].payload or {}).get(what) if first else None

    def _prepare(self, made_of: Mapping[str, Any] | None) -> int:
        from qdrant_client.models import Distance, VectorParams

        if not self._call("collection_exists"):
            how = VectorParams(size=self.embedder.described().dimension, distance=Distance.COSINE)
            self._call("create_collection", vectors_config=how)
        return len(self)

    def _write(
        self, part: Sequence[Evidence], start: int, made_of: Mapping[str, Any] | None
    ) -> None:
        from qdrant_client.models import PointStruct

        vectors, payloads = self.embedder.passages(part).tolist(), [*map(document_of, part)]
        # the notes travel with the first passage: not every server keeps notes of a collection
        if start == 0:
            payloads[0] |= {
                _ENCODER: msgspec.to_builtins(self.embedder.described()),
                _MADE_OF: made_of,
            }
        rows = enumerate(zip(vectors, payloads, strict=True), start=start)
        points = [
            PointStruct(id=number, vector=vector, payload=payload)
            for number, (vector, payload) in rows
        ]
        self._call("upsert", points=points, wait=True)

    def _call(self, verb: str, **arguments: Any) -> Any:
        from qdrant_client.common.client_exceptions import QdrantException
        from qdrant_client.http.exceptions import ResponseHandlingException, UnexpectedResponse

        if self._remote and os.getpid() != self._process:  # connections do not cross a fork
            self._connect()
        try:
            with self._lock:
                return getattr(self._client, verb)(self.collection, **arguments)
        except ResponseHandlingException as error:
            kind = type(error.source).__name__
            raise ToolError(
                f"The search engine cannot be reached ({kind}).", passing=True
            ) from error
        except UnexpectedResponse as error:
            raise self._refusal(error.status_code or 500) from error
        except QdrantException as error:
            raise self._refusal(429, getattr(error, "retry_after_s", None)) from error
        except (ValueError, AssertionError) as error:
            if type(error) is not ValueError:  # what cannot be read raises a kind of its own
                raise ToolError("The search engine's answer cannot be read.") from error
            raise self._refusal(404 if "not found" in str(error) else 400) from error

    def _refusal(self, status: int, retry_after: float | None = None) -> ToolError:
        """What the policy reads of this status; the engine's own words may quote documents and addresses."""
        if status in (401, 403):
            return ToolError(f"The search engine does not accept the credentials ({status}).")
        if status in TRANSIENT:
            busy = f"The search engine is not available at the moment ({status})."
            return ToolError(busy, passing=True, retry_after=retry_after)
        why = f"no collection {self.collection!r}" if status == 404 else "no reason given"
        return ToolError(f"The search engine refused the request ({status}: {why}).")


def _closed(client: Any, process: int) -> None:
    if os.getpid() == process:  # not by a forked child
        client.close()
