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

_APPLICATION_ID = 0x46534348  # "FSCH": marks a SQLite file as a cache of this package
_VERSION = 1  # of the table below
_TABLE = (
    "CREATE TABLE IF NOT EXISTS entries "
    "(key TEXT PRIMARY KEY, value BLOB NOT NULL, made REAL NOT NULL) WITHOUT ROWID"
)
_OWNER = """
SELECT application_id, user_version, (SELECT count(*) FROM sqlite_master)
FROM pragma_application_id, pragma_user_version
"""  # in one statement, since another process may be making the file between two of them
_GET = "SELECT value, made FROM entries WHERE key = ? AND made > ?"
_PUT = """
INSERT INTO entries VALUES (?, ?, ?)
ON CONFLICT (key) DO UPDATE SET value = excluded.value, made = excluded.made WHERE made <= ?
"""  # the entry that is there stays, unless it is too old
_REMOVE_OLDEST = """
DELETE FROM entries WHERE key IN (
    SELECT key FROM entries ORDER BY made LIMIT (SELECT 16 + count(*) / 50 FROM entries)
)
"""  # few at once, so that the journal stays small
_USED_BYTES = """
SELECT (page_count - freelist_count) * page_size
FROM pragma_page_count, pragma_freelist_count, pragma_page_size
"""
_LEAST_MAX_BYTES = 2_000_000  # in a smaller file the journal would take all the room
# Bytes set aside for the journal, at least: each of several writers may add to it before one of
# them empties it.
_JOURNAL_BYTES = 700_000
# Bytes that an entry in memory takes besides the characters of its key and value
_OVERHEAD = 400
_log = logging.getLogger(__name__)


def key_of(**parts: Any) -> str:
    """The name of a result: SHA-256 over the canonical JSON of everything that it depends on."""
    canonical = json.dumps(parts, sort_keys=True, separators=(",", ":"), default=str)
    return hashlib.sha256(canonical.encode("ascii")).hexdigest()


class Cache:
    """Bytes by key in a SQLite file (WAL), safe for many threads and processes.

    Concurrent callers in a process share the computation of a key; two processes may both compute
    it, and the first result stays. What was put or read lately is in memory, too. A pickle carries
    the settings only.

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
        if max_bytes is not None and max_bytes < _LEAST_MAX_BYTES:
            raise ConfigError(
                f"a cache's max_bytes must be at least {_LEAST_MAX_BYTES:,}, got {max_bytes:,}"
            )
        self.path = Path(path).expanduser().absolute()
        self.patience = patience
        self.max_age = max_age
        self.max_bytes = max_bytes
        self.memory = memory
        self.unstored = 0  # results that could not be written, and were returned all the same
        self._lock = threading.RLock()
        # The connection, and the process that opened it
        self._open: tuple[int, sqlite3.Connection] | None = None
        # For each key its value and when it was made (`time.time`), oldest use first. Whoever
        # writes here holds the lock; reading needs none.
        self._recent: OrderedDict[str, tuple[bytes, float]] = OrderedDict()
        self._recent_bytes = 0

    def get(self, key: str) -> bytes | None:
        """The value under `key`; `None` where there is none, or only one that is too old."""
        return self.get_many([key]).get(key)

    def recent(self, key: str) -> bytes | None:
        """The value under `key` where it is in memory; touches no file and never waits."""
        value, made = self._recent.get(key, (None, -math.inf))
        return value if made > self._expired_before() else None

    def get_many(self, keys: Iterable[str]) -> dict[str, bytes]:
        """The values of those keys that have one."""
        values: dict[str, bytes] = {}
        not_in_memory: list[str] = []
        for key in keys:
            value = self.recent(key)
            if value is None:
                not_in_memory.append(key)
            else:
                values[key] = value
        if not_in_memory:
            with self._connection() as connection:
                for key in not_in_memory:
                    row = connection.execute(_GET, (key, self._expired_before())).fetchone()
                    if row is not None:
                        values[key], made = row
                        self._remember(key, values[key], made)
        return values

    def put(self, key: str, value: bytes) -> None:
        """Store a value. One that is there already stays, unless it is too old."""
        if self.max_bytes is not None and len(value) > self.max_bytes // 10:
            return
        made = time.time()
        with self._connection() as connection:
            changed = connection.execute(_PUT, (key, value, made, self._expired_before()))
            stored = changed.rowcount > 0
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

        A cache that fails costs no result: where the file cannot be read or written, `compute` is
        called and its value returned.

        Args:
            compute: computes the value. Its exceptions are raised and never stored.
            decode, encode: between the value and its bytes. A value that `encode` makes `None` is
                returned and not stored.
            wait: seconds to wait for the file, and for another caller, before `compute` is called.
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
            encoded = encode(value)
            if encoded is not None:
                with suppress(TimeoutError):
                    async with asyncio.timeout(wait):
                        await asyncio.to_thread(self._put_or_warn, key, encoded)
            return value, False

        # First without a thread or a task: a hit in memory costs microseconds.
        with suppress(msgspec.MsgspecError):
            in_memory = self.recent(key)
            if in_memory is not None:
                return decode(in_memory), True
        (value, was_stored), shared = await once((self.path, key), find_or_compute, wait)
        return value, was_stored or shared

    def close(self) -> None:
        """Close the file and forget what is in memory; the next use opens it again."""
        with self._lock:
            opened = self._open
            self._open = None
            self._recent = OrderedDict()
            self._recent_bytes = 0
            if opened is not None:
                process, connection = opened
                if process == os.getpid():  # the parent of a fork still uses its own
                    connection.close()

    def __len__(self) -> int:
        """How many entries are in the file and not too old."""
        with self._connection() as connection:
            query = "SELECT count(*) FROM entries WHERE made > ?"
            (count,) = connection.execute(query, (self._expired_before(),)).fetchone()
            return int(count)

    def __repr__(self) -> str:
        return f"Cache({str(self.path)!r})"

    def __reduce__(self) -> "tuple[Callable[[], Cache], tuple[()]]":
        settings = {
            name: getattr(self, name) for name in ("patience", "max_age", "max_bytes", "memory")
        }
        return partial(Cache, self.path, **settings), ()

    def _put_or_warn(self, key: str, value: bytes) -> None:
        """`put`, but a failure is counted in `unstored`: a result is worth more than its entry."""
        try:
            self.put(key, value)
        except DataError as error:
            self.unstored += 1
            if self.unstored == 1:
                _log.warning("results are no longer kept: %s", error)

    def _remember(self, key: str, value: bytes, made: float) -> None:
        """Hold an entry in memory; the ones that came first make room."""
        size = _memory_of(key, value)
        if size > self.memory:
            return
        if key in self._recent:
            replaced, _ = self._recent.pop(key)
            self._recent_bytes -= _memory_of(key, replaced)
        self._recent[key] = value, made
        self._recent_bytes += size
        while self._recent_bytes > self.memory:
            oldest_key, (oldest_value, _) = self._recent.popitem(last=False)
            self._recent_bytes -= _memory_of(oldest_key, oldest_value)

    def _expired_before(self) -> float:
        """Entries that were made until this time (`time.time`) count as absent."""
        return -math.inf if self.max_age is None else time.time() - self.max_age

    @contextmanager
    def _connection(self) -> Iterator[sqlite3.Connection]:
        """The connection to the file, for nobody else meanwhile.

        Raises `DataError` for what SQLite raises, also within the block.
        """
        with self._lock:
            try:
                # SQLite's connections must not be used on both sides of a fork.
                if self._open is None or self._open[0] != os.getpid():
                    self._open = (os.getpid(), self._connect())
                yield self._open[1]
            except (sqlite3.Error, OSError) as error:
                advice = (
                    "give permission and space, wait for processes that write to it, or name "
                    "another file"
                )
                raise DataError(f"cannot use the cache {self.path} ({error}): {advice}") from error

    def _connect(self) -> sqlite3.Connection:
        """Open the file, which is made where it is not there, and set it up as a cache."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        connection = sqlite3.connect(
            self.path, self.patience, isolation_level=None, check_same_thread=False
        )
        try:
            # Nothing is written before this is known: the database of another program stays as it
            # is. A new file has neither an owner nor tables.
            owner, version, tables = connection.execute(_OWNER).fetchone()
            is_new = not owner and not tables
            if not is_new and (owner, version) != (_APPLICATION_ID, _VERSION):
                raise DataError(
                    f"{self.path} is a database of something else, or a cache of another version "
                    "of this package; name another file for the cache"
                )
            with connection:
                # Takes the lock for writing: a file that cannot be written is known now, and not
                # only after the first paid answer.
                connection.execute("BEGIN IMMEDIATE")
                connection.execute(f"PRAGMA application_id = {_APPLICATION_ID}")
                connection.execute(f"PRAGMA user_version = {_VERSION}")
                connection.execute(_TABLE)
            # Fails at once, rather than after a wait, while another process sets it as well.
            with suppress(sqlite3.OperationalError):
                connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("PRAGMA synchronous = NORMAL")
            if self.max_bytes is not None:
                connection.execute("CREATE INDEX IF NOT EXISTS oldest ON entries (made)")
                self._make_room(connection)
                if self.path.stat().st_size > self.max_bytes:
                    # A file only becomes smaller so, and only while no other process uses it.
                    with suppress(sqlite3.OperationalError):
                        connection.execute("VACUUM")
                        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        except BaseException:
            connection.close()
            raise
        return connection

    def _make_room(self, connection: sqlite3.Connection) -> None:
        """Remove the oldest entries while the file is too large, and empty the journal when it is.

        SQLite can empty the journal only at a moment when nobody reads or writes. So whoever writes
        waits for that moment, up to a second, or the journal would only grow under load.
        """
        if self.max_bytes is None:
            return
        most_used = self.max_bytes - max(self.max_bytes // 4, _JOURNAL_BYTES)
        while connection.execute(_USED_BYTES).fetchone()[0] > most_used:
            connection.execute(_REMOVE_OLDEST)
        longest_journal = self.max_bytes // 10
        deadline = time.monotonic() + 1.0
        with suppress(FileNotFoundError):  # no journal
            while os.stat(f"{self.path}-wal").st_size > longest_journal:
                if time.monotonic() >= deadline:
                    break
                # 1 where another connection reads or writes, else 0
                busy, *_ = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
                time.sleep(0.01 * busy)


def _memory_of(key: str, value: bytes) -> int:
    """About how many bytes an entry takes in memory."""
    return len(key) + len(value) + _OVERHEAD
