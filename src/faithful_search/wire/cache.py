"""Results that cost money or time, kept in one SQLite file: what many threads ask for at once is
computed once.
"""

import asyncio
import hashlib
import json
import logging
import math
import os
import sqlite3
import threading
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from ..errors import ConfigError, DataError
from .background import once

T = TypeVar("T")

_OURS = 0x46534348  # the application id that marks a file as this cache
_VERSION = 1
_TABLE = (
    "CREATE TABLE IF NOT EXISTS entries "
    "(key TEXT PRIMARY KEY, value BLOB NOT NULL, made REAL NOT NULL) WITHOUT ROWID"
)
_OWNER = """
SELECT application_id, user_version, (SELECT count(*) FROM sqlite_master)
FROM pragma_application_id, pragma_user_version
"""  # one statement sees one state of a file that another process may be making
_GET = "SELECT value, made FROM entries WHERE key = ? AND made > ?"
_PUT = """
INSERT INTO entries VALUES (?, ?, ?)
ON CONFLICT (key) DO UPDATE SET value = excluded.value, made = excluded.made WHERE made <= ?
"""  # what is there stays, unless it is too old
_OLDEST = """
DELETE FROM entries WHERE key IN (SELECT key FROM entries ORDER BY made LIMIT (SELECT 16 + count(*) / 50 FROM entries))
"""  # few at once, so that the journal stays small
_USED = """
SELECT (page_count - freelist_count) * page_size FROM pragma_page_count, pragma_freelist_count, pragma_page_size
"""
_LEAST = 2_000_000  # bytes: less would be the journal's alone
# Bytes at least for the journal: each of several writers may add to it before one empties it
_JOURNAL = 700_000
_AROUND = 400  # bytes that an entry in memory takes besides the characters of its key and value
_log = logging.getLogger(__name__)


def key_of(**parts: Any) -> str:
    """The name of a result: SHA-256 over the canonical JSON of everything that it depends on."""
    canonical = json.dumps(parts, sort_keys=True, separators=(",", ":"), default=str)
    return hashlib.sha256(canonical.encode("ascii")).hexdigest()


class Cache:
    """Bytes by key in a SQLite file (WAL), safe for many threads and processes.

    Concurrent callers in a process share the computation of a key; two processes may both compute
    it, and the first result stays. What was put or read lately is in memory, too. A pickle carries
    the settings.

    Args:
        path: the file; it and its folders are created when missing.
        patience: seconds to wait for another process that writes.
        max_age: seconds after which an entry counts as absent; the next result takes its place.
        max_bytes: how large the file may grow, its journal included; two million at least. The
            oldest entries make room for new ones, also when a larger file is opened. A value of
            more than a tenth of it is not kept.
        memory: bytes of entries held in memory; 0 for none.

    Its methods raise `DataError` when the file cannot be opened or written, is damaged, or belongs
    to something else.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        patience: float = 10.0,
        *,
        max_age: float | None = None,
        max_bytes: int | None = None,
        memory: int = 64_000_000,
    ) -> None:
        if max_age is not None and not max_age > 0:
            raise ConfigError(f"a cache's max_age must be positive, got {max_age}")
        if max_bytes is not None and max_bytes < _LEAST:
            raise ConfigError(f"a cache's max_bytes must be at least {_LEAST:,}, got {max_bytes:,}")
        self.path, self.patience = Path(path).expanduser().absolute(), patience
        self.max_age, self.max_bytes, self.memory = max_age, max_bytes, memory
        self.unstored = 0  # results that could not be written, and were returned all the same
        self._lock = threading.RLock()
        self._open: tuple[int, sqlite3.Connection] | None = None
        self._recent: OrderedDict[str, tuple[bytes, float]] = (
            OrderedDict()
        )  # written only by who holds the lock
        self._held = 0

    def get(self, key: str) -> bytes | None:
        return self.get_many([key]).get(key)

    def recent(self, key: str) -> bytes | None:
        """The value under `key` where it is in memory; touches no file and never waits."""
        value, made = self._recent.get(key, (None, -math.inf))
        return value if made > self._too_old() else None

    def get_many(self, keys: Iterable[str]) -> dict[str, bytes]:
        distinct = list(keys)
        values = {key: value for key in distinct if (value := self.recent(key)) is not None}
        if missing := [key for key in distinct if key not in values]:
            with self._connection() as connection:
                for key in missing:
                    for value, made in connection.execute(_GET, (key, self._too_old())):
                        values[key] = value
                        self._remember(key, value, made)
        return values

    def put(self, key: str, value: bytes) -> None:
        """Keep a value; what is there already stays, unless it is too old."""
        if self.max_bytes is not None and len(value) > self.max_bytes // 10:
            return
        made = time.time()
        with self._connection() as connection:
            stored = connection.execute(_PUT, (key, value, made, self._too_old())).rowcount > 0
            self._make_room(connection)
            if stored:
                self._remember(key, value, made)

    async def get_or_compute(
        self,
        key: str,
        compute: Callable[[], Awaitable[T]],
        decode: Callable[[bytes], T],
        encode: Callable[[T], bytes | None] = msgspec.json.encode,
        wait: float | None = None,
    ) -> tuple[T, bool]:
        """The value of `key`, and whether it was there already or a concurrent caller computed it.

        Where the file cannot be read or written, and after `wait` seconds for it or for another
        caller, what `compute` gives is returned all the same. Exceptions are never kept, nor is
        what `encode` makes `None` of.
        """

        async def find_or_compute() -> tuple[T, bool]:
            try:
                async with asyncio.timeout(wait):
                    stored = await asyncio.to_thread(self.get, key)
                if stored is not None:
                    return decode(stored), True
            except (TimeoutError, DataError, msgspec.MsgspecError) as error:
                _log.warning(
                    "asked without the cache: %s",
                    str(error) or f"it did not answer within {wait:g} s",
                )
            value = await compute()
            if (encoded := encode(value)) is not None:
                with suppress(TimeoutError):
                    async with asyncio.timeout(wait):
                        await asyncio.to_thread(self._keep, key, encoded)
            return value, False

        with suppress(msgspec.MsgspecError):
            if (
                there := self.recent(key)
            ) is not None:  # without a thread or a task: such a hit costs microseconds
                return decode(there), True
        (value, kept), shared = await once((self.path, key), find_or_compute, wait)
        return value, kept or shared

    def close(self) -> None:
        """Close the file and forget what is in memory; the next use opens it again."""
        with self._lock:
            connections, self._open = self._open, None
            self._recent, self._held = OrderedDict(), 0
            if connections and connections[0] == os.getpid():
                connections[1].close()

    def __len__(self) -> int:
        with self._connection() as connection:
            (count,) = connection.execute(
                "SELECT count(*) FROM entries WHERE made > ?", (self._too_old(),)
            ).fetchone()
            return int(count)

    def __repr__(self) -> str:
        return f"Cache({str(self.path)!r})"

    def __reduce__(self) -> "tuple[Callable[[], Cache], tuple[()]]":
        settings = {
            name: getattr(self, name) for name in ("patience", "max_age", "max_bytes", "memory")
        }
        return partial(Cache, self.path, **settings), ()

    def _keep(self, key: str, value: bytes) -> None:
        try:
            self.put(key, value)
        except DataError as error:  # a result is worth more than its place in the file
            self.unstored += 1
            if self.unstored == 1:
                _log.warning("results are no longer kept: %s", error)

    def _remember(self, key: str, value: bytes, made: float) -> None:
        """Hold an entry in memory; the ones that came first make room."""
        if len(key) + len(value) + _AROUND > self.memory:
            return
        if key in self._recent:
            self._held -= len(key) + len(self._recent.pop(key)[0]) + _AROUND
        self._recent[key] = value, made
        self._held += len(key) + len(value) + _AROUND
        while self._held > self.memory:
            oldest, (old, _) = self._recent.popitem(last=False)
            self._held -= len(oldest) + len(old) + _AROUND

    def _too_old(self) -> float:
        """When an entry that counts as absent was made at the latest."""
        return -math.inf if self.max_age is None else time.time() - self.max_age

    @contextmanager
    def _connection(self) -> Iterator[sqlite3.Connection]:
        with self._lock:
            try:
                if (
                    self._open is None or self._open[0] != os.getpid()
                ):  # a connection must not cross a fork
                    self._open = (os.getpid(), self._connect())
                yield self._open[1]
            except (sqlite3.Error, OSError) as error:
                advice = "give permission and space, wait for processes that write to it, or name another file"
                raise DataError(f"cannot use the cache {self.path} ({error}): {advice}") from error

    def _connect(self) -> sqlite3.Connection:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        connection = sqlite3.connect(
            self.path, self.patience, isolation_level=None, check_same_thread=False
        )
        try:
            # only reads: a file of others stays as it is
            owner, version, tables = connection.execute(_OWNER).fetchone()
            if (owner, version) != (_OURS, _VERSION) and (owner or tables):
                told = (
                    "is a database of something else, or a cache of another version of this package"
                )
                raise DataError(f"{self.path} {told}; name another file for the cache")
            with connection:
                connection.execute(
                    "BEGIN IMMEDIATE"
                )  # shows now, not after the first paid answer, that it is writable
                connection.execute(f"PRAGMA application_id = {_OURS}")
                connection.execute(f"PRAGMA user_version = {_VERSION}")
                connection.execute(_TABLE)
            with suppress(
                sqlite3.OperationalError
            ):  # SQLite does not wait for another process that sets it as well
                connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("PRAGMA synchronous = NORMAL")
            if self.max_bytes is not None:
                connection.execute("CREATE INDEX IF NOT EXISTS oldest ON entries (made)")
                self._make_room(connection)
                if self.path.stat().st_size > self.max_bytes:
                    with suppress(sqlite3.OperationalError):  # others use it at this moment
                        connection.execute("VACUUM")
                        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        except BaseException:  # nobody else holds the connection yet
            connection.close()
            raise
        return connection

    def _make_room(self, connection: sqlite3.Connection) -> None:
        """Remove the oldest entries while there are too many, and empty the journal when it is
        long.

        SQLite empties it only at a moment when nobody reads or writes. So whoever writes waits for
        that moment, up to a second, or the journal would only grow under load.
        """
        if self.max_bytes is None:
            return
        most = self.max_bytes - max(self.max_bytes // 4, _JOURNAL)
        while connection.execute(_USED).fetchone()[0] > most:
            connection.execute(_OLDEST)
        deadline = time.monotonic() + 1.0
        with suppress(FileNotFoundError):
            while (
                os.stat(f"{self.path}-wal").st_size > self.max_bytes // 10
                and time.monotonic() < deadline
            ):
                busy, *_ = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
                time.sleep(0.01 * busy)
