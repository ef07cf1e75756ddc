"""A JSONL file that only grows: each result is in it as soon as it is known, so nothing is asked for twice.

Audits (`scores.jsonl`), labels (`pairs.jsonl`) and the verdicts of an agreement (`verdicts.jsonl`) are ledgers. The
settings that made a ledger lie beside it in a JSON file of their own, because `pairs.jsonl` is also a dataset that
other programs load line by line.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from itertools import accumulate
from pathlib import Path
from typing import IO, Any, Self, TypeVar

from ..errors import ConfigError, DataError, JudgeError
from ..judges import Judge, Pair, Verdict
from ..wire import files
from ..wire.redact import redact
from .workers import chunks
from .writing import replacing

T = TypeVar("T")
ANSWERS = "answers.sqlite"


class Ledger:
    """The open file, made where it does not exist and locked against a second writer.

    `what` is what another run that holds the lock is called in the message; `anew` throws away what the file holds.
    Raises `DataError` when the file cannot be written, or another run writes it.
    """

    def __init__(self, path: Path, what: str = "audit", anew: bool = False) -> None:
        self.path = path
        self.count = 0
        """Lines in the file."""
        self._end = 0
        try:
            path.touch()
            self._file = path.open("r+b")
            lock(self._file, path, what)
            if anew:
                self.clear()
        except OSError as error:
            raise DataError(f"cannot write {path}: {error}") from error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(OSError):  # closing flushes again what a full disk refused; `append` has reported that
            self._file.close()

    def clear(self) -> None:
        """Throw away what the file holds."""
        self._file.truncate(0)
        self._end = self.count = 0

    def read(self) -> Iterator[tuple[int, bytes]]:
        """Yield where each line begins, and the line. Half a last line, left by a run that was killed, is cut off.

        A whole one that only lacks its line break, as an editor leaves it, is kept and gets one.
        """
        for line in self._file:
            if not line.endswith(b"\n"):
                try:
                    json.loads(line)
                except ValueError:
                    break
                line += b"\n"
                self._file.seek(self._end)
                self._file.write(line)
            yield self._end, line
            self.count += 1
            self._end += len(line)
        self._file.truncate(self._end)

    def cut(self) -> None:
        """Cut off half a last line, where the file was read in another way."""
        for _ in self.read():
            pass

    def line(self, place: int) -> bytes:
        """The line that begins at `place`."""
        self._file.seek(place)
        return self._file.readline()

    def append(self, lines: Sequence[bytes]) -> list[int]:
        """Add whole lines, hand them to the operating system, and return where each begins.

        Raises `DataError` when they cannot be written; what was written before is kept.
        """
        try:
            self._file.seek(self._end)
            self._file.write(b"".join(lines))
            # Flushed, not synced: what the operating system has survives a kill of this process at any moment
            self._file.flush()
        except OSError as error:
            raise DataError(
                f"cannot write {self.path}: {error}; {self.count} lines are in it, run again to go on"
            ) from error
        *places, self._end = accumulate(map(len, lines), initial=self._end)
        self.count += len(lines)
        return places

    def replace(self, places: Iterable[int]) -> None:
        """Keep only the lines at these places, in this order, and close the file."""
        try:
            with replacing(self.path) as file:
                file.writelines(self.line(place) for place in places)
                self._file.close()
        except OSError as error:
            raise DataError(f"cannot write {self.path}: {error}; its lines are all kept, run again to go on") from error


def lock(file: IO[bytes], path: Path, what: str) -> None:
    """Keep a second run out of the file while this one writes; the lock ends with the process.

    Where the system has no locks, nothing is locked. Raises `DataError` while another run holds the lock.
    """
    if not files.lock(file):
        file.close()
        raise DataError(f"another {what} is writing {path}; wait for it, or use another folder")


def same_settings(folder: Path, what: str, before: Mapping[str, Any], now: Mapping[str, Any], instead: str) -> None:
    """Refuse to mix results of different settings in one folder, naming each that differs and what to do `instead`."""
    differing = [
        f"{name}: {before.get(name)!r} there, {value!r} now" for name, value in now.items() if before.get(name) != value
    ]
    if differing:
        raise ConfigError(f"{folder} holds {what} made with other settings ({'; '.join(differing)}): {instead}")


def same_as_written(path: Path, what: str, settings: Mapping[str, Any], instead: str) -> None:
    """`same_settings` of a settings file that an earlier run left; without one there is nothing to refuse."""
    if path.exists():
        before, now = json.loads(path.read_text(encoding="utf-8")), json.loads(json.dumps(redact(dict(settings))))
        same_settings(path.parent, what, before, now, instead)


def answers_kept(judge: Judge | None, folder: Path, resume: bool = True) -> AbstractContextManager[None]:
    """Keep the answers of a paid judge without a cache in the folder until the run ends, so an interruption loses none.

    Applies to judges that have `keeping`; `resume` says whether answers of an earlier run are used.
    """
    if not resume:
        (folder / ANSWERS).unlink(missing_ok=True)
    keeping = getattr(judge, "keeping", None)
    return nullcontext() if keeping is None else keeping(folder / ANSWERS)


def ask_in_parts(
    judge: Judge, items: Iterable[T], pair: Callable[[T], Pair], size: int
) -> Iterator[list[tuple[T, Verdict]]]:
    """Yield the items with their verdicts, `size` at a time; `pair` is what the judge reads of an item.

    Raises `JudgeError` when the judge cannot be asked at all, or gives another number of verdicts.
    """
    for part in chunks(items, size):
        verdicts = judge.judge_batch([pair(item) for item in part])
        if len(verdicts) != len(part):
            raise JudgeError(f"{judge.name} gave {len(verdicts)} verdicts for {len(part)} pairs")
        yield list(zip(part, verdicts, strict=True))
