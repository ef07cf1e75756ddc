"""Results that cost money or time, kept in one SQLite file: what many threads ask for at once is computed once."""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import os
import sqlite3
import threading
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from .errors import DataError

_OURS = 0x46534348  # the application id that marks a file as this cache
_VERSION = 1
_TABLE = "CREATE TABLE entries (key TEXT PRIMARY KEY, value BLOB NOT NULL, made REAL NOT NULL) WITHOUT ROWID"
_OWNER = """
SELECT application_id, user_version, (SELECT count(*) FROM sqlite_master)
FROM pragma_application_id, pragma_user_version
"""  # one statement sees one state of a file that another process may be making
_CHUNK = 500  # keys of one query: SQLite limits its parameters
_log = logging.getLogger(__name__)


def key_of(**parts: Any) -> str:
    """The name of a result: SHA-256 over the canonical JSON of everything that it depends on.

    Example:
        >>> key_of(model="m", seed=0) == key_of(seed=0, model="m")
        True
    """
    canonical = json.dumps(parts, sort_keys=True, separators=(",", ":"), default=str)
    return hashlib.sha256(canonical.encode("ascii")).hexdigest()


class Cache:
    """Bytes by key in a SQLite file (WAL), safe for many threads and processes.

    Within a process a key is computed by one at a time, whichever thread or event loop asks; others wait for that
    result. Two processes may both compute it; the first result stays. A failure reaches those who waited for it and is
    never kept. A pickle carries the path.

    Args:
        path: the file; it and its folders are made when missing.
        patience: seconds to wait for another process that writes.

    Raises:
        DataError: when the file cannot be opened or written, is damaged, or belongs to something else. It is left as
            it was.

    Example:
        >>> import tempfile
        >>> cache = Cache(tempfile.mkdtemp() + "/results.sqlite")
        >>> cache.put("a", b"1")
        >>> cache.get("a"), cache.get("b")
        (b'1', None)
    """

    def __init__(self, path: str | os.PathLike[str], patience: float = 10.0) -> None:
        self.path, self.patience = Path(path).expanduser().absolute(), patience
        self._start_fresh()

    def _start_fresh(self) -> None:
        self._lock = threading.RLock()
        self._open: tuple[int, sqlite3.Connection] | None = None
        self.unstored = 0
        """How many results could not be written; they were returned all the same."""

    def get(self, key: str) -> bytes | None:
        """The value kept under `key`."""
        return self.get_many([key]).get(key)

    def get_many(self, keys: Iterable[str]) -> dict[str, bytes]:
        """The values there are, by key."""
        wanted = list(keys)
        found: dict[str, bytes] = {}
        with self._connection() as connection:
            for start in range(0, len(wanted), _CHUNK):
                part = wanted[start : start + _CHUNK]
                marks = ",".join("?" * len(part))
                found.update(connection.execute(f"SELECT key, value FROM entries WHERE key IN ({marks})", part))
        return found

    def put(self, key: str, value: bytes) -> None:
        """Keep a value; what is there already stays."""
        with self._connection() as connection:
            connection.execute("INSERT OR IGNORE INTO entries VALUES (?, ?, ?)", (key, value, time.time()))

    async def get_or_compute(self, key: str, compute: Callable[[], Awaitable[bytes]]) -> tuple[bytes, bool]:
        """The value of `key`, and whether it was there already or somebody else computed it just now."""
        while True:
            flight, leads = _board(self.path, key)
            if leads:
                return await self._lead(key, flight, compute)
            try:
                return await asyncio.shield(asyncio.wrap_future(flight)), True
            except asyncio.CancelledError:
                task = asyncio.current_task()
                if not flight.cancelled() or (task and task.cancelling()):
                    raise

    def close(self) -> None:
        """Close the file; the next use opens it again."""
        with self._lock:
            opened, self._open = self._open, None
            if opened and opened[0] == os.getpid():
                opened[1].close()

    def __len__(self) -> int:
        with self._connection() as connection:
            return int(connection.execute("SELECT count(*) FROM entries").fetchone()[0])

    def __repr__(self) -> str:
        return f"Cache({str(self.path)!r})"

    def __getstate__(self) -> dict[str, Any]:
        return {"path": self.path, "patience": self.patience}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._start_fresh()

    async def _lead(
        self, key: str, flight: Future[bytes], compute: Callable[[], Awaitable[bytes]]
    ) -> tuple[bytes, bool]:
        try:
            kept = await asyncio.to_thread(self.get, key)
            value = kept if kept is not None else await compute()
            if kept is None:
                await asyncio.to_thread(self._keep, key, value)
        except asyncio.CancelledError:
            _land(self.path, key)
            flight.cancel()
            raise
        except BaseException as error:
            _land(self.path, key)
            flight.set_exception(error)
            raise
        _land(self.path, key)
        flight.set_result(value)
        return value, kept is not None

    def _keep(self, key: str, value: bytes) -> None:
        """A result is worth more than its place in the cache: one that cannot be written is reported, not lost."""
        try:
            self.put(key, value)
        except DataError as error:
            self.unstored += 1
            if self.unstored == 1:
                _log.warning("results are no longer kept: %s", error)

    @contextmanager
    def _connection(self) -> Iterator[sqlite3.Connection]:
        with self._lock:
            try:
                if self._open is None or self._open[0] != os.getpid():  # a connection must not cross a fork
                    self._open = (os.getpid(), self._connect())
                yield self._open[1]
            except (sqlite3.Error, OSError) as error:
                raise DataError(self._explain(error)) from error

    def _connect(self) -> sqlite3.Connection:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        connection = sqlite3.connect(
            self.path, timeout=self.patience, isolation_level=None, check_same_thread=False, cached_statements=16
        )
        try:
            self._prepare(connection)
        except BaseException:
            connection.close()
            raise
        return connection

    def _prepare(self, connection: sqlite3.Connection) -> None:
        self._check_owner(connection)
        connection.execute("BEGIN IMMEDIATE")  # shows now, not after the first paid answer, that nothing can be written
        try:
            if self._check_owner(connection) == "new":
                connection.execute(f"PRAGMA application_id = {_OURS}")
                connection.execute(f"PRAGMA user_version = {_VERSION}")
                connection.execute(_TABLE)
        except BaseException:
            connection.execute("ROLLBACK")
            raise
        connection.execute("COMMIT")
        self._use_wal(connection)
        connection.execute("PRAGMA synchronous = NORMAL")

    def _check_owner(self, connection: sqlite3.Connection) -> str:
        """`new` or `ours`. Only reads: a file of something else must stay as it is."""
        owner, version, tables = connection.execute(_OWNER).fetchone()
        if not tables and owner in (0, _OURS):
            return "new"
        if owner != _OURS:
            raise DataError(f"{self.path} is a database of something else; name another file for the cache")
        if version != _VERSION:
            raise DataError(f"the cache {self.path} was written by another version of this package; name another file")
        return "ours"

    def _use_wal(self, connection: sqlite3.Connection) -> None:
        """Another process that opens the file at this moment makes SQLite refuse at once, without its usual wait."""
        deadline = time.monotonic() + self.patience
        while True:
            try:
                connection.execute("PRAGMA journal_mode = WAL")
                return
            except sqlite3.OperationalError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.01)

    def _explain(self, error: Exception) -> str:
        said = str(error)
        if "locked" in said:
            advice = f"another process has been writing to it for {self.patience:g} s; wait for it or name another file"
        elif "readonly" in said or "unable to open" in said or isinstance(error, OSError):
            advice = "it cannot be opened for writing; give permission or name another file"
        elif "not a database" in said or "malformed" in said:
            advice = "it is damaged or no cache; move it away or name another file"
        else:
            advice = "free space or name another file"
        return f"cannot use the cache {self.path} ({said}): {advice}"


_flights: dict[tuple[Path, str], Future[bytes]] = {}
_guard = threading.Lock()


def _board(path: Path, key: str) -> tuple[Future[bytes], bool]:
    """The computation of this key that is under way, or a new one that the caller has to lead."""
    with _guard:
        flight = _flights.get((path, key))
        if flight is not None:
            return flight, False
        _flights[path, key] = flight = Future()
        return flight, True


def _land(path: Path, key: str) -> None:
    with _guard:
        _flights.pop((path, key), None)


def _forget_flights() -> None:
    """In a forked child nobody leads the parent's computations."""
    global _guard
    _guard = threading.Lock()
    _flights.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_flights)
