"""A JSONL file that only grows: each result is in it as soon as it is known, so nothing is asked
for twice.

Audits (`scores.jsonl`), labels (`pairs.jsonl`) and the verdicts of an agreement (`verdicts.jsonl`)
are ledgers. The settings that made a ledger lie beside it in a JSON file of their own, because
`pairs.jsonl` is also a dataset that other programs load line by line.
"""

import json
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from itertools import accumulate
from pathlib import Path
from typing import IO, Any, Generic, Self, TypeVar

import msgspec

from ..errors import ConfigError, DataError, JudgeError, reason_of
from ..judges import Judge, Pair, Verdict
from ..wire import files
from ..wire.redact import redact
from .workers import chunks

T = TypeVar("T")
ANSWERS = "answers.sqlite"


class Ledger:
    """The open file, which is created if needed and locked against a second writer.

    As a context it closes the file. The message of an interruption, or of a judge that cannot be
    asked, then says how many lines are kept.

    Args:
        path: of the file.
        kind: what a run that writes such a file is called in errors.
        anew: throw away what the file holds.
        asked: who is asked for the lines, as messages say it.
        again: how an interrupted run goes on, as messages say it.

    Attributes:
        count: the number of lines in the file.

    Raises `DataError` when the file cannot be written, or another run writes it.
    """

    def __init__(
        self,
        path: Path,
        kind: str = "audit",
        anew: bool = False,
        *,
        asked: str = "the judge",
        again: str = "run the same again to go on",
    ) -> None:
        self.path = path
        self._asked, self._again = asked, again
        self.count = self._end = 0
        try:
            path.touch()
            self._file = path.open("r+b")
            lock(self._file, path, kind)
            if anew:
                self._file.truncate(0)
        except OSError as error:
            raise DataError(f"cannot write {path}: {reason_of(error)}") from error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        # Closing flushes again what a full disk refused, which `append` has reported already
        with suppress(OSError):
            self._file.close()
        if isinstance(error, (KeyboardInterrupt, JudgeError)):
            ending = "interrupted"
            if isinstance(error, JudgeError):
                ending = f"{self._asked} cannot be asked: {error}"
            raise type(error)(
                f"{ending}; {self.count} lines are in {self.path}, {self._again}"
            ) from error

    def read(self) -> Iterator[tuple[int, bytes]]:
        """Yield each line with its offset in the file. Half a line at the end, which a run that was
        killed leaves, is cut off.
        """
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
        """The line that begins at this offset."""
        self._file.seek(place)
        return self._file.readline()

    def append(self, lines: Sequence[bytes]) -> list[int]:
        """Add whole lines, hand them to the operating system, and return their offsets."""
        try:
            self._file.seek(self._end)
            self._file.write(b"".join(lines))
            # Flushed but not synced: what the operating system has survives a kill of this process
            self._file.flush()
        except OSError as error:
            raise self._unwritten(error) from error
        *places, self._end = accumulate(map(len, lines), initial=self._end)
        self.count += len(lines)
        return places

    def replace(self, lines: Iterable[bytes]) -> None:
        """Replace the content of the file by these lines, which may be read from it, and close
        it.
        """
        try:
            with files.replacing(self.path) as partial, partial.open("wb") as file:
                file.writelines(lines)
                self._file.close()
        except OSError as error:
            raise self._unwritten(error) from error

    def _unwritten(self, error: OSError) -> DataError:
        with self.path.open("rb") as file:  # what could not be written whole may be there in part
            whole_lines = sum(line.endswith(b"\n") for line in file)
        return DataError(
            f"cannot write {self.path}: {error}; {whole_lines} lines are in it, run again to go on"
        )


class Records(Ledger, Generic[T]):
    """A ledger of values of one class.

    `keep` returns of each value a key and what is needed again; `kept` has these by key. Of two
    values with one key the later one counts.

    Raises `DataError` for a line that holds no such value: people edit such files, and no label
    must be thrown away.
    """

    def __init__(
        self, path: Path, name: str, kind: type[T], keep: Callable[[T], tuple[Hashable, Any]]
    ) -> None:
        super().__init__(path, name)
        self.kept: dict[Hashable, Any] = {}
        self._keep = keep
        decode = msgspec.json.Decoder(kind).decode
        for _, line in self.read():
            try:
                self.kept.update([keep(decode(line))])
            except (msgspec.MsgspecError, UnicodeError) as error:
                why = f"not a line of {name} ({error}); take the line out, or use another folder"
                raise DataError(f"{path}, line {self.count + 1}: {why}") from error

    def add(self, values: Sequence[T]) -> None:
        self.append([msgspec.json.encode(value) + b"\n" for value in values])
        self.kept.update(map(self._keep, values))


def lock(file: IO[bytes], path: Path, name: str) -> None:
    """Lock the file until this process ends. Raises `DataError` while another one has locked it."""
    if not files.lock(file):
        file.close()
        raise DataError(f"another {name} is writing {path}; wait for it, or use another folder")


def same_settings(
    path: Path, now: Mapping[str, Any], instead: str, part: str = "", ledger: Path | None = None
) -> dict[str, Any]:
    """Check that an earlier run had the same settings, and return what its settings file holds.

    Args:
        path: the settings file.
        now: the settings of this run.
        instead: what the errors advise.
        part: the key of the settings in the file; by default the file holds nothing else.
        ledger: what the earlier run wrote. While it is missing or empty, nothing is checked. By
            default nothing is checked while the settings file is missing.

    Returns an empty dictionary where nothing was checked. Raises `ConfigError` that names each
    setting that differs, and for a file without settings.
    """
    if ledger is None and not path.exists():
        return {}
    if ledger is not None and not (ledger.exists() and ledger.stat().st_size):
        return {}
    try:
        stored = json.loads(path.read_text(encoding="utf-8"))
        before = stored[part] if part else stored
        settings = json.loads(json.dumps(redact(dict(now))))  # as they would be stored
        differing = [
            f"{name}: {before.get(name)!r} there, {value!r} now"
            for name, value in settings.items()
            if before.get(name) != value
        ]
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise ConfigError(f"{path} has no settings record ({error}): {instead}") from error
    if differing:
        raise ConfigError(
            f"{path.parent} was created with different settings ({'; '.join(differing)}): {instead}"
        )
    return dict(stored)


def answers_kept(
    judge: Judge | None, folder: Path, resume: bool = True
) -> AbstractContextManager[None]:
    """A context in which the answers of a paid judge that has no cache are kept in the folder, so
    that none is paid for twice after an interruption.

    With `resume=False` the answers of an earlier run are thrown away.
    """
    if not resume:
        (folder / ANSWERS).unlink(missing_ok=True)
    return nullcontext() if judge is None else judge.keeping(folder / ANSWERS)


def width_of(judge: Judge | None, usual: int) -> int:
    """The number of pairs or rows in a batch: enough for all concurrent requests of the judge, but
    so few that an interruption loses little. It is `usual` for a judge without requests.
    """
    if judge is None or judge.concurrency is None:
        return usual
    return max(64, min(8 * judge.concurrency, 512))


def ask_in_parts(
    judge: Judge, items: Iterable[T], pair: Callable[[T], Pair], size: int
) -> Iterator[list[tuple[T, Verdict]]]:
    """Yield the items with their verdicts, `size` at a time. `pair` makes an item the pair that the
    judge reads.
    """
    for part in chunks(items, size):
        verdicts = judge.judge_batch([pair(question) for question in part])
        if len(verdicts) != len(part):
            raise JudgeError(f"{judge.name} gave {len(verdicts)} verdicts for {len(part)} pairs")
        yield list(zip(part, verdicts, strict=True))
