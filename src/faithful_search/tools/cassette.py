"""What calls of tools gave, kept: for a while in a cache, or in a cassette, recorded once and
replayed for ever.
"""

import asyncio
import json
import logging
import os
import shutil
import threading
from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager, suppress
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
_SHOWN = 120  # characters of a call in a message: the policy's note must hold the whole of it
_log = logging.getLogger(__name__)


class _Noted(msgspec.Struct, frozen=True):
    """A result that lacks something for good, as it is kept; others are kept as plain lists."""

    evidence: list[Evidence]
    note: str


_DECODER = msgspec.json.Decoder(list[Evidence] | _Noted)


def _encoded(evidence: list[Evidence]) -> bytes | None:
    """What is kept of a result; `None` where what it lacks may be had later."""
    if not isinstance(evidence, Partial):
        return msgspec.json.encode(evidence)
    return (
        None if evidence.transient else msgspec.json.encode(_Noted(list(evidence), evidence.note))
    )


def _decoded(stored: bytes) -> list[Evidence]:
    evidence = _DECODER.decode(stored)
    if isinstance(evidence, _Noted):
        return Partial(evidence.evidence, evidence.note, transient=False)
    return evidence


def recent(cache: Cache, key: str) -> list[Evidence] | None:
    """The evidence under `key` where the cache has it in memory; never waits."""
    stored = cache.recent(key)
    with suppress(msgspec.MsgspecError):
        return None if stored is None else _decoded(stored)
    return None


async def kept(cache: Cache | None, key: str, ask: Ask, wait: float) -> list[Evidence]:
    """The evidence under `key`, or what `ask` returns, which is then kept, unless it is `Partial`
    and what it lacks may be had later.

    Concurrent calls for a key ask once and share the result or the exception. After `wait` seconds
    a call goes on without the cache, or without the other call that it waits for.
    """
    if cache is None:
        return (await once(("kept", key), ask, wait))[0]
    return (await cache.get_or_compute(key, ask, _decoded, _encoded, wait))[0]


class RecordedCall(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """One line of a cassette: a call and what came of it, evidence or the error's message. `note`
    says what the evidence lacks.
    """

    tool: str
    arguments: dict[str, Any]
    evidence: tuple[Evidence, ...] | None = None
    error: str | None = None
    note: str = ""

    @property
    def key(self) -> str:
        return json.dumps([self.tool, self.arguments], sort_keys=True, default=str)

    @property
    def shown(self) -> str:
        return shortened(
            json.dumps(self.arguments, ensure_ascii=False, sort_keys=True, default=str), _SHOWN
        )

    @property
    def line(self) -> bytes:
        """The call as it is written; a lone surrogate becomes its JSON escape."""
        text = json.dumps(msgspec.to_builtins(self), ensure_ascii=False, default=str)
        return text.encode("utf-8", "backslashreplace") + b"\n"

    def outcome(self) -> list[Evidence]:
        if self.error is not None:
            raise ToolError(self.error)
        evidence = list(self.evidence or ())
        return Partial(evidence, self.note, transient=False) if self.note else evidence


class CassetteMiss(ToolError):
    """A replayed call that was never recorded; the message shows the nearest one that was."""


class Cassette(AbstractContextManager["Cassette"]):
    """Recorded tool calls. Give it to a `Toolbox`, and its tools answer from the file.

    Calls are the same when tool and arguments are; an argument that is null counts as not given. A
    definite `ToolError` is a result like any other; what may pass, alone or as what a `Partial`
    lacks, is not recorded. No key is written (see `redact`), and a recorded call returns what its
    replay will.

    Threads, event loops and processes may share a file. Concurrent equal calls of one process are
    made once; of several processes, the first result counts. A pickle carries the settings.

    Args:
        path: a JSONL file; one that ends in `.gz` can only be replayed.
        mode: `"replay"` asks no tool: a call that is not in the file raises `CassetteMiss`.
            `"record"` replays what is in the file and asks for the rest, adding each result at
            once.

    Raises `DataError` when the file is missing (replay), cannot be read or written, or has a
    damaged line.
    """

    def __init__(self, path: str | os.PathLike[str], mode: Mode = "replay") -> None:
        if mode not in get_args(Mode):
            raise ConfigError(
                f"unknown mode {mode!r} of a cassette; there are: {', '.join(get_args(Mode))}"
            )
        self.path, self.mode = Path(path).expanduser().absolute(), mode
        self.unrecorded = 0  # results that could not be written, and were returned all the same
        self._lock = threading.Lock()
        if mode == "replay":
            if not self.path.exists():
                raise DataError(
                    f'no cassette {self.path}: record it once with Cassette("{self.path}", '
                    'mode="record")'
                )
            self._calls = self._read()
            return
        if self.path.suffix == ".gz":
            raise ConfigError(
                f"cannot record into {self.path}: record into a .jsonl file and compress it "
                "afterwards"
            )
        try:  # shows now, not after the first paid answer, whether it can be written
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self.path.touch()
            self.close()
        except OSError as error:
            raise DataError(
                f"cannot record into {self.path}: {error}; give permission or name another file"
            ) from error

    async def play(
        self, tool: str, arguments: dict[str, Any], live: Ask, wait: float | None = None
    ) -> list[Evidence]:
        """The recorded result of a call, or the recorded `ToolError`; when recording, `live` is
        asked for one that is not there yet. A caller that has waited `wait` seconds for an equal
        call makes its own.
        """
        passed = {name: value for name, value in redact(arguments).items() if value is not None}
        plain = json.loads(
            json.dumps(passed, sort_keys=True, default=str)
        )  # as it will be read from the file
        call = RecordedCall(redact(tool), plain)
        if (recorded_call := self._calls.get(call.key)) is not None:
            return recorded_call.outcome()
        if self.mode == "replay":
            raise self._miss(call)

        async def record() -> RecordedCall:
            try:
                evidence = await live()
                plain = redact(msgspec.to_builtins(list(evidence)))
                recorded = msgspec.structs.replace(
                    call, evidence=msgspec.convert(plain, tuple[Evidence, ...])
                )
                if isinstance(evidence, Partial):
                    recorded = msgspec.structs.replace(recorded, note=redact(evidence.note))
                    if evidence.transient:
                        return recorded
            except ToolError as error:
                if error.transient or isinstance(error, CassetteMiss):
                    raise
                recorded = msgspec.structs.replace(call, error=redact(str(error)))
            return await asyncio.to_thread(self._keep, recorded)

        recorded, _ = await once((self.path, call.key), record, wait)
        return recorded.outcome()

    def close(self) -> None:
        """Sort a recorded file by tool and arguments, so that two recordings of the same calls
        differ little.
        """
        if self.mode == "replay":
            return
        with self._lock, alone_in(self.path.parent):
            self._calls = self._read()
            target = self.path.resolve()
            with replacing(target) as partial:
                partial.write_bytes(b"".join(self._calls[key].line for key in sorted(self._calls)))
                shutil.copymode(target, partial)

    def __exit__(self, *_: object) -> None:
        self.close()

    def __len__(self) -> int:
        return len(self._calls)

    def __reduce__(self) -> "tuple[type[Cassette], tuple[Any, ...]]":
        return type(self), (self.path, self.mode)

    def _read(self) -> dict[str, RecordedCall]:
        """By key; of two equal calls, as merging two recordings may leave them, the first
        counts.
        """
        calls: dict[str, RecordedCall] = {}
        for number, line in read_lines(self.path):
            try:
                recorded = msgspec.convert(json.loads(line), RecordedCall)
                if (recorded.evidence is None) == (recorded.error is None):
                    raise ValueError("it needs either evidence or an error")
            except (ValueError, RecursionError, msgspec.ValidationError) as error:
                if self.mode == "record" and not line.endswith(b"\n"):
                    _log.warning("%s: its last line was cut short and is recorded again", self.path)
                    break
                where = f"{self.path}, line {number}"
                raise DataError(
                    f"{where}: not a recorded call ({error}); remove the line or record it anew"
                ) from error
            calls.setdefault(recorded.key, recorded)
        return calls

    def _keep(self, recorded: RecordedCall) -> RecordedCall:
        """What is recorded of the call from now on; what cannot be written is returned all the
        same.
        """
        with self._lock:
            if recorded.key in self._calls:
                return self._calls[recorded.key]
            try:
                with alone_in(self.path.parent), self.path.open("ab", buffering=0) as file:
                    start, line = file.tell(), recorded.line
                    try:
                        while line:
                            line = line[file.write(line) or 0 :]
                    except OSError:
                        file.truncate(start)
                        raise
                self._calls[recorded.key] = recorded
            except OSError as error:
                self.unrecorded += 1
                if self.unrecorded == 1:
                    _log.warning("tool calls are no longer recorded: %s", error)
            return recorded

    def _miss(self, call: RecordedCall) -> CassetteMiss:
        missed = (
            f"{call.tool} {call.shown} is not in the cassette {self.path.name}; record it once."
        )
        of_the_tool = {each.shown for each in self._calls.values() if each.tool == call.tool}
        if not of_the_tool:
            there = ", ".join(sorted({call.tool for call in self._calls.values()})) or "nothing"
            return CassetteMiss(f"{missed} No call of this tool is recorded; recorded: {there}.")
        words = set(call.shown.lower().split())
        nearest = max(sorted(of_the_tool), key=lambda text: len(words & set(text.lower().split())))
        return CassetteMiss(f"{missed} The nearest recorded call: {nearest}.")
