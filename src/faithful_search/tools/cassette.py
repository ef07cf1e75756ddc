"""Kept results of tool calls: in a cache for a while, or in a cassette, which is recorded once and
replayed from then on.
"""

import asyncio
import json
import logging
import os
import shutil
import threading
from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager, suppress
from functools import partial
from pathlib import Path
from typing import Any, Literal, get_args

import msgspec

from ..errors import ConfigError, DataError, ToolError
from ..json_lines import read_lines
from ..text import shortened
from ..trajectory import Evidence
from ..wire.background import once
from ..wire.cache import Cache
from ..wire.files import alone_in, replacing
from ..wire.redact import redact
from .base import Partial

Ask = Callable[[], Awaitable[list[Evidence]]]
Mode = Literal["replay", "record"]
_SHOWN = 120  # characters of a call in a message, which must fit into a note for the policy
_log = logging.getLogger(__name__)


class _Noted(msgspec.Struct, frozen=True):
    """A `Partial` result as the cache keeps it; other results are kept as plain lists."""

    evidence: list[Evidence]
    note: str


_DECODER = msgspec.json.Decoder(list[Evidence] | _Noted)


def _encoded(evidence: list[Evidence]) -> bytes | None:
    """A result as the cache keeps it; `None` where it is not kept, since a later call may return
    what it lacks.
    """
    if not isinstance(evidence, Partial):
        return msgspec.json.encode(evidence)
    if evidence.transient:
        return None
    return msgspec.json.encode(_Noted(list(evidence), evidence.note))


def _decoded(stored: bytes) -> list[Evidence]:
    """The result of what `_encoded` gave."""
    result = _DECODER.decode(stored)
    if isinstance(result, _Noted):
        return Partial(result.evidence, result.note, transient=False)
    return result


def recent(cache: Cache, key: str) -> list[Evidence] | None:
    """The evidence under `key` where the cache has it in memory; never waits."""
    stored = cache.recent(key)
    if stored is not None:
        with suppress(msgspec.MsgspecError):
            return _decoded(stored)
    return None


async def kept(cache: Cache | None, key: str, ask: Ask, wait: float) -> list[Evidence]:
    """The evidence under `key`, or what `ask` returns, which is then kept. A `Partial` result is
    not kept where a later call may return what it lacks.

    Concurrent calls for a key ask once and share the result or the exception, also without a cache.
    After `wait` seconds a call goes on without the cache, or without the other call that it waits
    for.
    """
    if cache is None:
        evidence, _ = await once(("kept", key), ask, wait)
    else:
        evidence, _ = await cache.get_or_compute(key, ask, _decoded, _encoded, wait)
    return evidence


class RecordedCall(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """One line of a cassette: a call, and its evidence or the message of its `ToolError`. `note`
    says what the evidence lacks, where it is `Partial`.
    """

    tool: str
    arguments: dict[str, Any]
    evidence: tuple[Evidence, ...] | None = None
    error: str | None = None
    note: str = ""

    @property
    def key(self) -> str:
        """By which equal calls are known."""
        return json.dumps([self.tool, self.arguments], sort_keys=True, default=str)

    @property
    def shown(self) -> str:
        """The arguments as messages show them."""
        arguments = json.dumps(self.arguments, ensure_ascii=False, sort_keys=True, default=str)
        return shortened(arguments, _SHOWN)

    @property
    def line(self) -> bytes:
        """The line of the file; a lone surrogate becomes its JSON escape."""
        text = json.dumps(msgspec.to_builtins(self), ensure_ascii=False, default=str)
        return text.encode("utf-8", "backslashreplace") + b"\n"

    def outcome(self) -> list[Evidence]:
        """The evidence. Raises the `ToolError` where the call failed."""
        if self.error is not None:
            raise ToolError(self.error)
        evidence = list(self.evidence or ())
        return Partial(evidence, self.note, transient=False) if self.note else evidence


class CassetteMiss(ToolError):
    """A replayed call that was never recorded; the message shows the nearest one that was."""


class Cassette(AbstractContextManager["Cassette"]):
    """Recorded tool calls. Give it to a `Toolbox`, and its tools answer from the file.

    Calls are equal when tool and arguments are; an argument that is null counts as not given. A
    `ToolError` is a result like any other, unless it is transient; that is not recorded, nor is a
    `Partial` result that lacks something for a while. No key is written (see `redact`), and a call
    that is being recorded returns what its replay will.

    Threads, event loops and processes may share a file. Concurrent equal calls of one process are
    made once; of several processes, the first result counts. A pickle carries the settings.

    Args:
        path: a JSONL file; one that ends in `.gz` can only be replayed.
        mode: "replay" asks no tool: a call that is not in the file raises `CassetteMiss`. "record"
            replays what is in the file and asks for the rest, adding each result at once.

    Raises:
        DataError: the file is missing (replay), cannot be read or written, or has a damaged line.
    """

    def __init__(self, path: str | os.PathLike[str], mode: Mode = "replay") -> None:
        if mode not in get_args(Mode):
            raise ConfigError(
                f"unknown mode {mode!r} of a cassette; there are: {', '.join(get_args(Mode))}"
            )
        self.path = Path(path).expanduser().absolute()
        self.mode = mode
        self.unrecorded = 0  # results that could not be written, and were returned all the same
        self._calls: dict[str, RecordedCall] = {}  # what the file holds, by `RecordedCall.key`
        self._lock = threading.Lock()
        if mode == "replay":
            self._open_to_replay()
        else:
            self._open_to_record()

    def _open_to_replay(self) -> None:
        if not self.path.exists():
            raise DataError(
                f'no cassette {self.path}: record it once with Cassette("{self.path}", '
                'mode="record")'
            )
        self._calls = self._read()

    def _open_to_record(self) -> None:
        if self.path.suffix == ".gz":
            raise ConfigError(
                f"cannot record into {self.path}: record into a .jsonl file and compress it "
                "afterwards"
            )
        # Write now: a file that cannot be written is known before the first answer is paid for.
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self.path.touch()
            self.close()  # which reads and sorts it
        except OSError as error:
            raise DataError(
                f"cannot record into {self.path}: {error}; give permission or name another file"
            ) from error

    async def play(
        self, tool: str, arguments: dict[str, Any], live: Ask, wait: float | None = None
    ) -> list[Evidence]:
        """The recorded result of a call, or the recorded `ToolError`.

        Args:
            live: makes the call, when recording, where none is recorded yet.
            wait: seconds after which a caller makes its own call, rather than wait for an equal one
                that is under way.

        Raises:
            CassetteMiss: the call is not recorded, and the cassette is only replayed.
        """
        call = _call_of(tool, arguments)
        recorded_call = self._calls.get(call.key)
        if recorded_call is not None:
            return recorded_call.outcome()
        if self.mode == "replay":
            raise self._miss(call)
        # Equal calls at the same time are made once.
        ask = partial(self._ask_and_record, call, live)
        answered_call, _ = await once((self.path, call.key), ask, wait)
        return answered_call.outcome()

    async def _ask_and_record(self, call: RecordedCall, live: Ask) -> RecordedCall:
        """The call with what `live` returns or raises, recorded unless it may be otherwise later.
        Raises the `ToolError` that is not recorded.
        """
        try:
            evidence = await live()
        except ToolError as error:
            if error.transient or isinstance(error, CassetteMiss):
                raise
            failed = msgspec.structs.replace(call, error=redact(str(error)))
            return await asyncio.to_thread(self._record, failed)
        plain = redact(msgspec.to_builtins(list(evidence)))
        passages = msgspec.convert(plain, tuple[Evidence, ...])
        answered = msgspec.structs.replace(call, evidence=passages)
        if isinstance(evidence, Partial):
            answered = msgspec.structs.replace(answered, note=redact(evidence.note))
            if evidence.transient:
                return answered
        return await asyncio.to_thread(self._record, answered)

    def close(self) -> None:
        """Sort a recorded file by tool and arguments, so that two recordings of the same calls
        differ little.
        """
        if self.mode == "replay":
            return
        with self._lock, alone_in(self.path.parent):
            self._calls = self._read()
            target = self.path.resolve()  # the file itself, where the path is a link
            lines = [self._calls[key].line for key in sorted(self._calls)]
            with replacing(target) as partial_file:
                partial_file.write_bytes(b"".join(lines))
                shutil.copymode(target, partial_file)

    def __exit__(self, *_: object) -> None:
        self.close()

    def __len__(self) -> int:
        """How many calls are recorded."""
        return len(self._calls)

    def __reduce__(self) -> "tuple[type[Cassette], tuple[Any, ...]]":
        return type(self), (self.path, self.mode)

    def _read(self) -> dict[str, RecordedCall]:
        """The calls in the file, by key.

        Of equal ones, as merging two recordings may leave them, the first counts.
        """
        calls: dict[str, RecordedCall] = {}
        for number, line in read_lines(self.path):
            try:
                recorded_call = msgspec.convert(json.loads(line), RecordedCall)
                if (recorded_call.evidence is None) == (recorded_call.error is None):
                    raise ValueError("it needs either evidence or an error")
            except (ValueError, RecursionError, msgspec.ValidationError) as error:
                # Only the last line has no end, where its writer was killed.
                if self.mode == "record" and not line.endswith(b"\n"):
                    _log.warning("%s: its last line was cut short and is recorded again", self.path)
                    break
                where = f"{self.path}, line {number}"
                raise DataError(
                    f"{where}: not a recorded call ({error}); remove the line or record it anew"
                ) from error
            calls.setdefault(recorded_call.key, recorded_call)
        return calls

    def _record(self, call: RecordedCall) -> RecordedCall:
        """Add a call to the file. Returns what is recorded of it, which may be another's result.

        One that cannot be written is counted and returned all the same.
        """
        with self._lock:
            if call.key in self._calls:
                return self._calls[call.key]
            try:
                self._append(call.line)
            except OSError as error:
                self.unrecorded += 1
                if self.unrecorded == 1:
                    _log.warning("tool calls are no longer recorded: %s", error)
            else:
                self._calls[call.key] = call
            return call

    def _append(self, line: bytes) -> None:
        """Add a line to the file, or nothing at all. Raises `OSError` where it cannot be
        written.
        """
        with alone_in(self.path.parent), self.path.open("ab", buffering=0) as file:
            start = file.tell()
            remaining = line
            try:
                while remaining:  # without a buffer, `write` may take a part
                    size = file.write(remaining) or 0
                    remaining = remaining[size:]
            except OSError:
                file.truncate(start)
                raise

    def _miss(self, call: RecordedCall) -> CassetteMiss:
        """The error for a call that is not recorded."""
        message = (
            f"{call.tool} {call.shown} is not in the cassette {self.path.name}; record it once."
        )
        calls_of_tool = {other.shown for other in self._calls.values() if other.tool == call.tool}
        if not calls_of_tool:
            tools = {other.tool for other in self._calls.values()}
            listed = ", ".join(sorted(tools)) or "nothing"
            return CassetteMiss(f"{message} No call of this tool is recorded; recorded: {listed}.")
        call_words = set(call.shown.lower().split())

        def shared_words(shown: str) -> int:
            return len(call_words & set(shown.lower().split()))

        nearest = max(sorted(calls_of_tool), key=shared_words)
        return CassetteMiss(f"{message} The nearest recorded call: {nearest}.")


def _call_of(tool: str, arguments: dict[str, Any]) -> RecordedCall:
    """The call as it is recorded: without keys, and without arguments that are null."""
    present = {name: value for name, value in redact(arguments).items() if value is not None}
    # To JSON and back: the values that will be read from the file.
    plain = json.loads(json.dumps(present, sort_keys=True, default=str))
    return RecordedCall(redact(tool), plain)
