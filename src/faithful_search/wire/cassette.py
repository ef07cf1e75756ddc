"""Tool calls recorded once and replayed for ever: a JSONL file, one call a line, to be kept under version control."""

from __future__ import annotations

import asyncio
import difflib
import json
import logging
import os
import shutil
import threading
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import contextmanager
from hashlib import sha256
from io import FileIO
from pathlib import Path
from typing import Any, Literal, get_args

import msgspec

from ..errors import ConfigError, DataError, ToolError
from ..text import shortened
from ..trajectory import Evidence, read_lines
from .cache import Partial
from .redact import redact
from .single_flight import once

try:
    import fcntl
except ImportError:  # Windows: appends of several processes are then kept apart by the system alone
    fcntl = None  # type: ignore[assignment]

Mode = Literal["replay", "record"]
_SHOWN = 120  # characters of one argument in a message: the policy's note must hold the whole of it
_CANDIDATES = 8
_log = logging.getLogger(__name__)


class Recorded(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """One line of a cassette: a call and what came of it, evidence or the error's message."""

    tool: str
    arguments: dict[str, Any]
    evidence: tuple[Evidence, ...] | None = None
    error: str | None = None

    def outcome(self) -> list[Evidence]:
        """The evidence; raises the recorded error as `ToolError`."""
        if self.error is not None:
            raise ToolError(self.error)
        return list(self.evidence or ())


class CassetteMiss(ToolError):
    """A replayed call that was never recorded; the message shows the nearest one that was."""


class Cassette:
    """Recorded tool calls. Give it to a `Toolbox`, and its tools answer from the file.

    `"replay"` asks no tool: a call that is not in the file raises `CassetteMiss`. `"record"` replays what is in the
    file and asks for the rest, adding each result at once, so that an interrupted recording goes on where it was. Calls
    are the same when tool and arguments are; an argument that is null counts as not given. A definite `ToolError` is a
    result like any other; what may pass (`ToolError.passing`, time-outs, a lost connection) is not recorded, nor is a
    `Partial` result.

    No key is written: see `redact`. A recorded call returns what its replay will return, without keys too.
    Threads, event loops and processes may share a file; equal calls of one process at the same time are asked once, and
    of several processes the first result stays. A pickle carries the settings.

    Args:
        path: a JSONL file; one that ends in `.gz` can only be replayed.
        mode: see above.
        secrets: further strings that must not be written, such as keys that are in no environment variable.

    Raises:
        ConfigError: for an unknown mode, or for recording into `.gz`.
        DataError: when the file is missing (replay), cannot be read or written, or has a damaged line.

    Example:
        >>> import asyncio, tempfile
        >>> async def live():
        ...     return [Evidence("Paris is the capital of France.")]
        >>> path = tempfile.mkdtemp() + "/calls.jsonl"
        >>> with Cassette(path, "record") as cassette:
        ...     _ = asyncio.run(cassette.play("search", {"query": "France"}, live))
        >>> asyncio.run(Cassette(path).play("search", {"query": "France"}, live))[0].text
        'Paris is the capital of France.'
    """

    def __init__(self, path: str | os.PathLike[str], mode: Mode = "replay", secrets: tuple[str, ...] = ()) -> None:
        if mode not in get_args(Mode):
            raise ConfigError(f"unknown mode {mode!r} of a cassette; there are: {', '.join(get_args(Mode))}")
        self.path, self.mode, self.secrets = Path(path).expanduser().absolute(), mode, tuple(secrets)
        if mode == "record" and self.path.suffix == ".gz":
            raise ConfigError(f"cannot record into {self.path}: record into a .jsonl file and compress it afterwards")
        self._start_fresh()

    def _start_fresh(self) -> None:
        self._lock = threading.Lock()
        self._calls: dict[str, Recorded] = {}
        self._read = (0, 0, 0)  # how much of which file is in `_calls`: inode, bytes, lines
        self._sum = sha256()  # of these bytes
        self.unrecorded = 0
        """How many results could not be written; they were returned all the same."""
        if self.mode == "record":
            self._prepare()
        elif not self.path.exists():
            raise DataError(f'no cassette {self.path}: record it once with Cassette("{self.path}", mode="record")')
        else:
            self._take_in(read_lines(self.path))

    async def play(
        self,
        tool: str,
        arguments: dict[str, Any],
        live: Callable[[], Awaitable[list[Evidence]]],
        wait: float | None = None,
    ) -> list[Evidence]:
        """The recorded result of a call; when recording, `live` is asked for one that is not there yet.

        Who has waited `wait` seconds for an equal call that is under way asks by itself.

        Raises:
            ToolError: the recorded one, or the one of `live`.
            CassetteMiss: for a call that is not in the file, in replay.
        """
        asked = self._redacted(tool, arguments)
        key = _key(asked)
        if key not in self._calls and self.mode == "replay":
            raise CassetteMiss(self._explain(asked))
        if key in self._calls:
            return self._calls[key].outcome()
        recorded, _ = await once((self.path, key), lambda: self._record(key, asked, live), wait)
        return recorded.outcome()

    def close(self) -> None:
        """Sort a recorded file by tool and arguments, so that two recordings of the same calls differ little."""
        if self.mode == "record":
            with self._locked() as file:
                self._catch_up(file)
                self._sort(file)

    def __enter__(self) -> Cassette:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __len__(self) -> int:
        return len(self._calls)

    def __repr__(self) -> str:
        return f"Cassette({str(self.path)!r}, {self.mode!r})"

    def __getstate__(self) -> dict[str, Any]:
        return {"path": self.path, "mode": self.mode, "secrets": self.secrets}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._start_fresh()

    def _redacted(self, tool: str, arguments: dict[str, Any]) -> Recorded:
        given = {name: value for name, value in redact(arguments, self.secrets).items() if value is not None}
        plain = json.loads(json.dumps(given, sort_keys=True, default=str))  # as it will be read from the file
        return Recorded(redact(tool, self.secrets), plain)

    async def _record(self, key: str, asked: Recorded, live: Callable[[], Awaitable[list[Evidence]]]) -> Recorded:
        await asyncio.to_thread(self._look_again)
        if key in self._calls:
            return self._calls[key]
        try:
            found = await live()
            result = msgspec.convert(redact(msgspec.to_builtins(list(found)), self.secrets), tuple[Evidence, ...])
            recorded = msgspec.structs.replace(asked, evidence=result)
            if isinstance(found, Partial):
                return recorded
        except ToolError as error:
            if error.passing or isinstance(error, CassetteMiss):
                raise
            recorded = msgspec.structs.replace(asked, error=redact(str(error), self.secrets))
        return await asyncio.to_thread(self._keep, key, recorded)

    def _keep(self, key: str, recorded: Recorded) -> Recorded:
        """What is recorded under `key` from now on. A result is worth more than its line: it is returned either way."""
        try:
            with self._locked() as file:
                self._catch_up(file)
                if key not in self._calls:
                    self._append(file, recorded)
                    self._calls[key] = recorded
        except (OSError, DataError) as error:
            self.unrecorded += 1
            if self.unrecorded == 1:
                _log.warning("tool calls are no longer recorded: %s", error)
        return self._calls.get(key, recorded)

    def _look_again(self) -> None:
        """Another process may have recorded the call meanwhile."""
        try:
            with self._locked() as file:
                self._catch_up(file)
        except (OSError, DataError):
            return  # said once there is something to write

    def _prepare(self) -> None:
        """Shows now, not after the first paid answer, that nothing can be written."""
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with self._locked() as file:
                self._repair(file)
                self._catch_up(file)
        except OSError as error:
            raise DataError(f"cannot record into {self.path}: {error}; give permission or name another file") from error

    @contextmanager
    def _locked(self) -> Iterator[FileIO]:
        """The file, open for reading and appending, and nobody else's until the end."""
        with self._lock:
            file = _open_locked(self.path)
            with file:  # closing it unlocks it
                yield file

    def _repair(self, file: FileIO) -> None:
        """A recording that was killed may have left half a line at its end: nothing of it can be used."""
        whole = file.read()
        if not whole or whole.endswith(b"\n"):
            return
        start = whole.rfind(b"\n") + 1
        if _is_json(whole[start:]):
            file.write(b"\n")
        else:
            _log.warning("%s: its last line was cut short and is recorded again", self.path)
            file.truncate(start)

    def _catch_up(self, file: FileIO) -> None:
        """Take in what other processes wrote since; all of it where the file was made anew."""
        inode, size = os.fstat(file.fileno()).st_ino, file.seek(0, os.SEEK_END)
        known, done, count = self._read
        if (inode, size) == (known, done):
            return
        file.seek(0)
        whole = file.read()
        if sha256(whole[:done]).digest() != self._sum.digest():  # an inode alone tells little: it is given again
            done, count = 0, 0
        lines = whole[done:].split(b"\n")
        self._take_in((number, line) for number, line in enumerate(lines, count + 1) if line.strip())
        self._read, self._sum = (inode, size, count + len(lines) - 1), sha256(whole)

    def _take_in(self, lines: Iterable[tuple[int, bytes]]) -> None:
        """Of two equal calls, as merging two recordings may leave them, the first counts."""
        for number, line in lines:
            recorded = _parsed(line, f"{self.path}, line {number}")
            self._calls.setdefault(_key(recorded), recorded)

    def _append(self, file: FileIO, recorded: Recorded) -> None:
        start, line = file.seek(0, os.SEEK_END), _line(recorded)
        try:
            _write(file, line)
        except OSError:
            file.truncate(start)
            raise
        inode, _, count = self._read
        self._read = (inode, file.seek(0, os.SEEK_END), count + 1)
        self._sum.update(line)

    def _sort(self, file: FileIO) -> None:
        lines = [_line(self._calls[key]) for key in sorted(self._calls)]
        whole = b"".join(lines)
        file.seek(0)
        if file.read() == whole:
            return
        target = self.path.resolve()
        partial = target.with_name(f".{target.name}.partial")
        try:
            partial.write_bytes(whole)
            shutil.copymode(target, partial)
            partial.replace(target)
        finally:
            partial.unlink(missing_ok=True)
        self._read, self._sum = (target.stat().st_ino, len(whole), len(lines)), sha256(whole)

    def _explain(self, asked: Recorded) -> str:
        told = f"{asked.tool} {_brief(asked.arguments)} is not in the cassette {self.path.name}; "
        told += 'record it once with mode="record". '
        others = [call for call in self._calls.values() if call.tool == asked.tool]
        if not others:
            known = ", ".join(sorted({call.tool for call in self._calls.values()})) or "nothing"
            return f"{told}No call of this tool is recorded; recorded: {known}."
        nearest = _nearest(asked, others)
        return f"{told}The nearest recorded call: {_brief(nearest.arguments)}; {_difference(asked, nearest)}."


def _parsed(line: bytes, where: str) -> Recorded:
    try:
        recorded = msgspec.convert(json.loads(line), Recorded)
    except (ValueError, RecursionError, msgspec.ValidationError) as error:
        raise DataError(f"{where}: not a recorded call ({error}); remove the line or record it anew") from error
    if (recorded.evidence is None) == (recorded.error is None):
        raise DataError(f"{where}: a recorded call has either evidence or an error; remove the line or record it anew")
    return recorded


def _key(call: Recorded) -> str:
    """Tool and arguments as one string, which also sorts the file."""
    return json.dumps([call.tool, call.arguments], sort_keys=True, default=str)


def _line(recorded: Recorded) -> bytes:
    text = json.dumps(msgspec.to_builtins(recorded), ensure_ascii=False, default=str)
    return text.encode("utf-8", "backslashreplace") + b"\n"  # a lone surrogate becomes its JSON escape


def _write(file: FileIO, data: bytes) -> None:
    while data:
        data = data[file.write(data) or 0 :]


def _is_json(line: bytes) -> bool:
    try:
        json.loads(line)
    except ValueError:
        return False
    return True


def _open_locked(path: Path) -> FileIO:
    while True:
        file = path.open("a+b", buffering=0)
        if fcntl is not None:
            fcntl.flock(file, fcntl.LOCK_EX)
        file.seek(0)
        if os.path.samestat(os.fstat(file.fileno()), path.stat()):
            return file
        file.close()  # another process has put a sorted file in its place meanwhile


def _nearest(asked: Recorded, others: list[Recorded]) -> Recorded:
    wanted = set(_brief(asked.arguments, 1000).lower().split())

    def shared(call: Recorded) -> float:
        words = set(_brief(call.arguments, 1000).lower().split())
        return len(wanted & words) / max(1, len(wanted | words))

    def alike(call: Recorded) -> float:
        return difflib.SequenceMatcher(None, _brief(asked.arguments, 300), _brief(call.arguments, 300)).ratio()

    return max(sorted(others, key=shared, reverse=True)[:_CANDIDATES], key=alike)


def _difference(asked: Recorded, nearest: Recorded) -> str:
    names = sorted({*asked.arguments, *nearest.arguments})
    told = []
    for name in names:
        if name not in asked.arguments:
            told.append(f"it also has {name!r}")
        elif name not in nearest.arguments:
            told.append(f"it has no {name!r}")
        elif asked.arguments[name] != nearest.arguments[name]:
            told.append(f"{name!r} differs {_where(asked.arguments[name], nearest.arguments[name])}")
    return ", ".join(told)


def _where(ours: Any, theirs: Any) -> str:
    mine, other = str(ours), str(theirs)
    pairs = enumerate(zip(mine, other, strict=False))
    place = next((number for number, (a, b) in pairs if a != b), min(len(mine), len(other)))
    return f"at character {place + 1}: {mine[place : place + 20]!r}, recorded {other[place : place + 20]!r}"


def _brief(arguments: dict[str, Any], length: int = _SHOWN) -> str:
    return shortened(json.dumps(arguments, ensure_ascii=False, sort_keys=True, default=str), length)
