"""A JSONL file that only grows: each result is in it as soon as it is known, so nothing is asked for twice.

Audits (`scores.jsonl`), labels (`pairs.jsonl`) and the verdicts of an agreement (`verdicts.jsonl`) are ledgers. The
settings that made a ledger lie beside it in a JSON file of their own, because `pairs.jsonl` is also a dataset that
other programs load line by line.
"""

import json
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from itertools import accumulate
from pathlib import Path
from typing import IO, Any, Generic, Self, TypeVar

import msgspec

from ..errors import ConfigError, DataError, JudgeError
from ..judges import Judge, Pair, Verdict
from ..wire import files
from ..wire.redact import redact
from .workers import chunks

T = TypeVar("T")
ANSWERS = "answers.sqlite"


class Ledger:
    """The open file, made where it does not exist and locked against a second writer; `count` lines are in it.

    `anew` throws away what it holds. An interruption, or a judge that cannot be asked, is told with what is kept.
    Raises `DataError` when the file cannot be written, or another run (`what` it is called) writes it.
    """

    def __init__(self, path: Path, what: str = "audit", anew: bool = False) -> None:
        self.path = path
        self.count = self._end = 0
        try:
            path.touch()
            self._file = path.open("r+b")
            lock(self._file, path, what)
            if anew:
                self._file.truncate(0)
        except OSError as error:
            raise DataError(f"cannot write {path}: {error}") from error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        with suppress(
            OSError
        ):  # closing flushes again what a full disk refused; `append` has reported that
            self._file.close()
        if isinstance(error, (KeyboardInterrupt, JudgeError)):
            what = (
                f"the judge cannot be asked: {error}"
                if isinstance(error, JudgeError)
                else "interrupted"
            )
            told = f"{what}; {self.count} lines are in {self.path}, run the same again to go on"
            raise type(error)(told) from error

    def read(self) -> Iterator[tuple[int, bytes]]:
        """Yield where each line begins, and the line. Half a last line, left by a run that was killed, is cut off."""
        for line in self._file:
            if not line.endswith(b"\n"):  # it may be whole, as an editor leaves it
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

    def line(self, place: int) -> bytes:
        self._file.seek(place)
        return self._file.readline()

    def append(self, lines: Sequence[bytes]) -> list[int]:
        """Add whole lines, hand them to the operating system, and return where each begins."""
        try:
            self._file.seek(self._end)
            self._file.write(b"".join(lines))
            # Flushed, not synced: what the operating system has survives a kill of this process at any moment
            self._file.flush()
        except OSError as error:
            raise self._unwritten(error) from error
        *places, self._end = accumulate(map(len, lines), initial=self._end)
        self.count += len(lines)
        return places

    def replace(self, lines: Iterable[bytes]) -> None:
        """Put these lines, which may come out of it, in place of all that it holds, and close the file."""
        try:
            with files.replacing(self.path) as partial, partial.open("wb") as file:
                file.writelines(lines)
                self._file.close()
        except OSError as error:
            raise self._unwritten(error) from error

    def _unwritten(self, error: OSError) -> DataError:
        return DataError(
            f"cannot write {self.path}: {error}; {self.count} lines are in it, run again to go on"
        )


class Records(Ledger, Generic[T]):
    """A ledger of values of one class. `kept` has what `keep` takes of each: a key, and what is needed again.

    Raises `DataError` for a line that holds no such value: people edit datasets, and a label is never thrown away.
    """

    def __init__(
        self, path: Path, what: str, kind: type[T], keep: Callable[[T], tuple[Hashable, Any]]
    ) -> None:
        super().__init__(path, what)
        self.kept: dict[Hashable, Any] = {}
        self._keep = keep
        decode = msgspec.json.Decoder(kind).decode
        for _, line in self.read():
            try:
                self.kept.update([keep(decode(line))])
            except (msgspec.MsgspecError, UnicodeError) as error:
                why = f"not a line of {what} ({error}); take the line out, or use another folder"
                raise DataError(f"{path}, line {self.count + 1}: {why}") from error

    def add(self, values: Sequence[T]) -> None:
        self.append([msgspec.json.encode(value) + b"\n" for value in values])
        self.kept.update(map(self._keep, values))


def lock(file: IO[bytes], path: Path, what: str) -> None:
    """Keep a second run out of the file until this process ends; raises `DataError` while another one holds it."""
    if not files.lock(file):
        file.close()
        raise DataError(f"another {what} is writing {path}; wait for it, or use another folder")


def same_settings(
    path: Path, now: Mapping[str, Any], instead: str, part: str = "", ledger: Path | None = None
) -> dict[str, Any]:
    """What the settings file of an earlier run holds; nothing where there is none, or where its `ledger` is empty.

    Raises `ConfigError` when that run had other settings, in a `part` of the file or all of it, or when the file does
    not say how it was made; it names each that differs and what to do `instead`.
    """
    if not path.exists() if ledger is None else not (ledger.exists() and ledger.stat().st_size):
        return {}
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        before = found[part] if part else found
        pairs = [
            (name, before.get(name), value)
            for name, value in json.loads(json.dumps(redact(dict(now)))).items()
        ]
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise ConfigError(
            f"{path} does not say how what lies there was made ({error}): {instead}"
        ) from error
    if differing := "; ".join(
        f"{name}: {old!r} there, {new!r} now" for name, old, new in pairs if old != new
    ):
        raise ConfigError(
            f"{path.parent} holds what was made with other settings ({differing}): {instead}"
        )
    return dict(found)


def answers_kept(
    judge: Judge | None, folder: Path, resume: bool = True
) -> AbstractContextManager[None]:
    """Keep the answers of a paid judge without a cache (one with `keeping`) in the folder until the run ends; `resume`
    says whether those of an earlier run, which was interrupted, are used.
    """
    if not resume:
        (folder / ANSWERS).unlink(missing_ok=True)
    keeping = getattr(judge, "keeping", None)
    return nullcontext() if keeping is None else keeping(folder / ANSWERS)


def width_of(judge: Judge | None, usual: int) -> int:
    """How many are asked about at once: enough to keep a judge's requests under way, few enough to lose little."""
    width = getattr(judge, "concurrency", None)
    return max(64, min(8 * width, 512)) if isinstance(width, int) else usual


def ask_in_parts(
    judge: Judge, items: Iterable[T], pair: Callable[[T], Pair], size: int
) -> Iterator[list[tuple[T, Verdict]]]:
    """Yield the items with their verdicts, `size` at a time; `pair` is what the judge reads of an item."""
    for part in chunks(items, size):
        verdicts = judge.judge_batch([pair(item) for item in part])
        if len(verdicts) != len(part):
            raise JudgeError(f"{judge.name} gave {len(verdicts)} verdicts for {len(part)} pairs")
        yield list(zip(part, verdicts, strict=True))
