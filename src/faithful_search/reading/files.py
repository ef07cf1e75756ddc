"""Reads the rows of a file as JSON, one by one.

JSON lines, tables and Parquet may be larger than memory; a JSON array and an inspect log are read
into it. An inspect log gives its samples. Where a format spreads an episode over many lines (a
session, the spans of a trace), these become one row, `{"lines": […]}`. A folder gives the rows of
its files, one file after another.

An error in a row does not end the file: each row is its JSON, or the `DataError` that says why
there is none. How much is unpacked is bounded.
"""

import csv
import json
import os
import re
import sys
import zipfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import chain, islice
from pathlib import Path
from typing import Any

import msgspec

from .. import formats, loose_json
from ..errors import DataError, kind_of, needs, reason_of
from ..json_lines import read_lines
from ..wire import unpacking

PathLike = str | os.PathLike[str]
Data = bytes | DataError
"""The JSON of a row, or why there is none."""
STDIN = "-"
TWINS = "further columns of one name"
"""The field of a table's row with the other values of columns that have one name and differ: those
of each name in a list. The first value stands under the name itself.
"""
_READ = (".jsonl", ".ndjson", ".json", ".csv", ".tsv", ".parquet", ".eval")
_MARKDOWN = (".md", ".markdown")  # each such file is one report
_HUB = "hf://datasets/"
# At least two letters: `C:/` is a path.
_ADDRESS = re.compile(r"\A[a-z][a-z0-9+.-]++:/", re.IGNORECASE)
_MARK = "\ufeff"  # a byte order mark
_BEGINS = re.compile(r"[^\s,]")  # the beginning of an array's element, or the array's end
_TELLING = 64  # rows of which the first readable one shows what the file is
_BATCH = 64  # rows of Parquet that are read at a time
_AT_ONCE = 4_000_000  # bytes of a batch up to which its rows are encoded together
_TEXT = "BYTE_ARRAY"  # Parquet's name of the type
# The files of an audit's folder, which may lie in the folder that was audited
_AUDIT = ("audit.json", "scores.jsonl", "source.jsonl", "fetched.jsonl")


def local_file(path: PathLike) -> Path:
    """The path of a file or folder on this machine; of a data set of the Hub (`hf://datasets/…`),
    that of the download.

    Raises:
        DataError: for any other address, for what the Hub does not give, and for a folder without
            files to read.
    """
    if str(path).startswith(_HUB):
        return _from_hub(str(path))
    if _ADDRESS.match(str(path)):
        raise DataError(f"{path} is not on this machine: download it first")
    if Path(path).is_dir() and not inside(Path(path)):
        raise DataError(f"{path} is a folder without {', '.join((*_READ, *_MARKDOWN))}")
    return Path(path)


def is_named_as_data(path: Path, endings: tuple[str, ...] = _READ) -> bool:
    """Whether a file of this name is one with rows, packed or not."""
    return path.name.lower().removesuffix(".gz").endswith(endings)


def inside(folder: Path) -> list[Path]:
    """The files of a folder that can be read, sorted by name, so that rows have the same numbers on
    every machine.

    Files of Markdown are reports where there is nothing else; beside data they describe it. The
    files of audits are left out.
    """
    files = sorted(folder.rglob("*"))
    data = [path for path in files if is_named_as_data(path)]
    if not data:
        return [path for path in files if is_named_as_data(path, _MARKDOWN)]
    audits: set[Path] = set()
    for path in data:
        if path.name == "audit.json" and path.with_name("scores.jsonl").exists():
            audits.add(path.parent)
    return [path for path in data if not (path.name in _AUDIT and path.parent in audits)]


def _from_hub(address: str) -> Path:
    """The file or folder of a data set, in the Hub's cache:
    `hf://datasets/OWNER/NAME[@REVISION][/PATH]`.
    """
    from huggingface_hub import snapshot_download

    owner, _, path = address.removeprefix(_HUB).partition("/")
    name, _, inner = path.partition("/")
    name, _, revision = name.partition("@")
    # A data set may also hold images or models: only what can be read is downloaded.
    patterns = [f"*{end}{packed}" for end in _READ for packed in ("", ".gz")]
    if inner:
        patterns = [inner, f"{inner}/*"]
    repository = f"{owner}/{name}"
    try:
        folder = snapshot_download(
            repository,
            repo_type="dataset",
            revision=revision or None,
            allow_patterns=patterns,
        )
    except Exception as error:  # of the Hub's client, of its HTTP library, or of the disk
        raise DataError(f"cannot download {address}: {_cause(error, repository)}") from error
    file = Path(folder, inner)
    if not file.exists():
        raise DataError(f"{address}: there is no {inner} in that data set")
    return local_file(file)


def _cause(error: BaseException, repository: str) -> str:
    """Why the download failed, and what to do; the kind of an error that is not known."""
    from huggingface_hub import constants, errors

    # The client looks in its cache after a failure, and first says that nothing is there.
    missing = isinstance(error, errors.LocalEntryNotFoundError)
    while isinstance(error, errors.LocalEntryNotFoundError) and error.__cause__ is not None:
        error = error.__cause__
    login = "log in with `hf auth login`, or set HF_TOKEN"
    if isinstance(error, errors.GatedRepoError):
        page = f"https://huggingface.co/datasets/{repository}"
        return f"it is gated: ask for access at {page}, and {login}"
    if isinstance(error, errors.RepositoryNotFoundError):
        return f"there is no data set {repository}, or it is private: then {login}"
    if isinstance(error, errors.RevisionNotFoundError):
        return f"{repository} has no such revision"
    if isinstance(error, errors.HFValidationError):
        return "expected hf://datasets/OWNER/NAME"
    if isinstance(error, errors.OfflineModeIsEnabled) or (missing and constants.HF_HUB_OFFLINE):
        return "it is not in the cache, and HF_HUB_OFFLINE keeps from asking the Hub"
    if isinstance(error, errors.HfHubHTTPError):
        status = getattr(error.response, "status_code", None)
        if status in (401, 403):
            return f"the Hub refused access ({status}): {login}"
        return f"the Hub answered with status {status}; try again later"
    if missing:
        return "the Hub cannot be reached (is there a network?), and it is not in the cache"
    return kind_of(error)


def read_json(path: PathLike, growing: bool = False) -> Iterator[tuple[int, Data]]:
    """Yield the number and the JSON of each row.

    The number counts from 1: lines in a file of lines, elsewhere rows. A row that cannot be read is
    a `DataError` in the place of its JSON, and so is a file of a folder that cannot be read (to its
    end); the others are read.

    Args:
        growing: somebody still writes the file: a last line without a line break is left out.

    Raises:
        DataError: a single file cannot be read, or has another form; after the rows before, where
            it breaks off.
    """
    if str(path) == STDIN:
        return _episodes(path, _lines_of_stdin())
    file = local_file(path)
    if growing:
        return _episodes(file, _complete_lines(file))
    if file.is_dir():
        return _folder_rows(file)
    return _file_rows(file)


def _lines_of_stdin() -> Iterator[tuple[int, bytes]]:
    for number, line in enumerate(unpacking.lines(STDIN, sys.stdin.buffer), start=1):
        if line.strip():
            yield number, line


def _complete_lines(file: Path) -> Iterator[tuple[int, bytes]]:
    for number, line in read_lines(file):
        if line.endswith(b"\n"):
            yield number, line


def _folder_rows(folder: Path) -> Iterator[tuple[int, Data]]:
    number = 0
    for file in inside(folder):
        try:
            for _, data in _file_rows(file):
                number += 1
                yield number, data
        except DataError as error:
            number += 1
            yield number, error


def total_rows(paths: Iterable[Path], limit: int | None) -> int | None:
    """How many rows will be read, for a progress bar; `None` where no file can be read: reading
    reports that.
    """
    total = 0
    for path in paths:
        with suppress(DataError):
            if path.suffix.lower() == ".parquet" and path.is_file():
                total += min(int(_parquet(path).metadata.num_rows), limit or sys.maxsize)
            else:  # reading takes a hundredth of the time that scoring does
                total += sum(1 for _ in islice(read_json(path), limit))
    return total or None


def _file_rows(file: Path) -> Iterator[tuple[int, Data]]:
    name = file.name.lower().removesuffix(".gz")
    if name.endswith((".jsonl", ".ndjson")):
        return _episodes(file, read_lines(file))
    if name.endswith(".json"):
        return _episodes(file, enumerate(_elements(file), start=1), whole=True)
    if name.endswith((".csv", ".tsv")):
        return _table_rows(file, tabs=name.endswith(".tsv"))
    if name.endswith(".parquet"):
        return _parquet_rows(file)
    if name.endswith(".eval"):
        return _samples(file)
    if name.endswith(_MARKDOWN):
        return iter([(1, _report(file))])
    expected = f"{', '.join((*_READ, *_MARKDOWN))} (also .gz), a folder of these"
    why = f"{file}: expected {expected}, or - for JSON lines on stdin"
    if name.endswith(".txt"):
        why += '. A text can be the "text" of a row: {"text": "Thought: …"}'
    raise DataError(why)


def _episodes(
    path: PathLike, rows: Iterator[tuple[int, bytes]], whole: bool = False
) -> Iterator[tuple[int, Data]]:
    """The rows as they are; of a log that spreads an episode over many rows, one for each episode.

    `whole`: the rows are elements of one JSON value. Then they may also be the parts of one
    conversation, or stand within the only element.
    """
    head: list[tuple[int, bytes]] = []
    value: Any = None  # the first row that can be read
    for row in islice(rows, _TELLING):
        head.append(row)
        with suppress(DataError):
            value = loose_json.decode(row[1])
            break
    if whole:
        ahead, rows = _looked_ahead(rows)
        head += ahead
    rows = chain(head, rows)
    inner_rows = None
    if head:
        _, first_data = head[0]
        choose = _rows_within if whole and len(head) == 1 else _inspect_samples
        with suppress(DataError):
            inner_rows = loose_json.parts_of(first_data, choose, unpacking.MOST_IN_MEMORY)
    group = formats.group(value)
    if inner_rows is not None:
        yield from enumerate(inner_rows, start=1)
    elif group is not None:
        for number, lines in enumerate(_grouped(path, rows, group), start=1):
            yield number, b'{"lines": [' + b",".join(lines) + b"]}\n"
    elif whole and _are_one_chat(value, head):
        yield 1, b"[" + b",".join(data.strip() for _, data in rows) + b"]\n"
    else:
        yield from rows


def _rows_within(value: Any) -> list[Any] | None:
    """The rows in a file's only object: an inspect log's samples, the only list of rows under any
    name (`{"results": […]}`), or rows by their ids; `None` where the object is a row itself.
    """
    samples = _inspect_samples(value)
    if samples is not None or not isinstance(value, dict) or _is_row(value):
        return samples
    tables = [rows for rows in value.values() if _is_table(rows)]
    if len(tables) == 1:
        return list(tables[0])
    if value and all(isinstance(row, dict) and _is_row(row) for row in value.values()):
        return [{"id": name, **row} for name, row in value.items()]
    return None


def _is_table(value: Any) -> bool:
    if not isinstance(value, list) or not value:
        return False
    return all(isinstance(row, dict) for row in value) and _is_row(value[0])


def _is_row(value: Any) -> bool:
    try:
        formats.content(value)
    except DataError:
        return False
    return True


def _looked_ahead(
    rows: Iterator[tuple[int, bytes]],
) -> tuple[list[tuple[int, bytes]], Iterator[tuple[int, bytes]]]:
    """The next rows, and an iterator over those after them. An error in between is raised by that
    iterator.
    """
    ahead: list[tuple[int, bytes]] = []
    try:
        ahead.extend(islice(rows, _TELLING))
    except DataError as error:
        return ahead, _raising(error)
    return ahead, rows


def _raising(error: DataError) -> Iterator[tuple[int, bytes]]:
    yield from ()
    raise error


def _are_one_chat(first: Any, head: list[tuple[int, bytes]]) -> bool:
    """Whether a list that begins so, and whose `first` element is no conversation, is one."""
    rows = formats.states_an_episode(first) or formats.read(first) is not None
    if len(head) < 2 or rows:
        return False
    parts: list[Any] = []
    for _, data in head:
        with suppress(DataError):
            parts.append(loose_json.decode(data))
    return formats.read(parts) is not None


def _inspect_samples(value: Any) -> list[Any] | None:
    """The samples of an inspect log that was written as JSON; `None` for anything else."""
    if not isinstance(value, dict) or "eval" not in value:
        return None
    samples = value.get("samples")
    return samples if isinstance(samples, list) else None


def _grouped(
    path: PathLike, rows: Iterable[tuple[int, bytes]], group: str
) -> Iterable[list[bytes]]:
    """The lines of each episode; `group` is the episode of the first line.

    A line that names no episode belongs to that of the line before it. A broken line becomes
    `null`, so that the format can report how many there were.
    """
    lines: dict[str, list[bytes]] = {}
    size = 0
    for _, data in rows:
        try:
            group = formats.group(loose_json.decode(data)) or group
        except DataError:
            data = b"null"
        lines.setdefault(group, []).append(data.strip(loose_json.BLANK))
        size += len(data)
        if size > unpacking.MOST_IN_MEMORY:
            raise DataError(
                f"cannot read {path}: its episodes are spread over more than "
                f"{unpacking.MOST_IN_MEMORY:,} bytes of lines, which must be in memory; divide the "
                "file"
            )
    return lines.values()


def _elements(path: Path) -> Iterator[bytes]:
    """The elements of a JSON array, or the objects that follow one another, each with a line break
    at its end.
    """
    with unpacking.unpacked(path) as file:
        data = unpacking.whole(path, file)
    # What is not UTF-8 becomes half characters: reading reports it for the row that it is in.
    text = data.decode("utf-8", "surrogateescape").strip(_MARK + loose_json.BLANK.decode())
    array = text.startswith("[")
    end = 1 if array else 0
    number = 0
    begin = _BEGINS.search(text, end)
    while begin is not None:
        if array and begin[0] == "]":
            break
        start = begin.start()
        try:
            end = loose_json.end_of(text, start)
        except DataError as error:
            why = f"row {number + 1} is not JSON, or cut off ({error})"
            raise DataError(f"{path}: {why}") from error
        number += 1
        yield text[start:end].encode("utf-8", "surrogateescape") + b"\n"
        begin = _BEGINS.search(text, end)
    if array and begin is None:
        raise DataError(
            f"{path}: the array is not closed after row {number}; the file seems cut off"
        )
    if begin and text[begin.end() :]:
        raise DataError(f"{path}: text after the end of the array, whose last row is {number}")


def _report(path: Path) -> bytes:
    """The row of a file of Markdown: the text is the report, the file's name the id."""
    with unpacking.unpacked(path) as file:
        text = unpacking.whole(path, file).decode("utf-8", "surrogateescape").lstrip(_MARK)
    name = path.name.removesuffix(".gz").rpartition(".")[0]
    return json.dumps({"id": name, "report": text}).encode() + b"\n"


def _table_rows(path: Path, tabs: bool) -> Iterator[tuple[int, Data]]:
    """The rows of a table whose header names the columns. A JSON array or object in a cell is read.

    Of columns of one name the first that is filled counts; where others hold something else, these
    are `TWINS`. Columns without a name may differ: nothing is read from them.
    """
    csv.field_size_limit(unpacking.MOST_LINE)
    with _reading(path), unpacking.unpacked(path) as file:
        lines = (line.decode("utf-8", "surrogateescape") for line in unpacking.lines(path, file))
        first = next(lines, "").lstrip(_MARK)
        delimiter = "\t" if tabs else _delimiter(first)
        table = csv.reader(chain([first], lines), delimiter=delimiter, strict=True)
        header = next(table, [])
        number = 0
        for cells in table:
            if not cells:  # an empty line
                continue
            number += 1
            if len(cells) == len(header):
                yield number, json.dumps(_table_row(header, cells)).encode() + b"\n"
            else:  # columns have moved: nothing in the row can be trusted
                count = f"{len(cells)} cells under {len(header)} names of columns"
                yield number, DataError(f"{count}: is a quotation mark or a separator missing?")


def _delimiter(header: str) -> str:
    """What stands between the cells of a CSV file whose first line this is: spreadsheets write
    semicolons where the comma is the decimal sign.
    """
    return ";" if header.count(";") > header.count(",") else ","


def _table_row(header: Sequence[str], cells: Sequence[str]) -> dict[str, Any]:
    row: dict[str, Any] = {}
    twins: dict[str, list[Any]] = {}
    for name, cell in zip(header, cells, strict=True):
        value = _cell(cell)
        if row.get(name) is None:
            row[name] = value
        elif name and value is not None and value != row[name]:
            twins.setdefault(name, []).append(value)
    if twins:
        row[TWINS] = twins
    return row


def _cell(text: str) -> Any:
    """The value in a cell; `None` where it is empty."""
    if text.lstrip()[:1] in ("[", "{"):
        with suppress(DataError):
            return loose_json.decode(text)
    return text or None


def _samples(path: Path) -> Iterator[tuple[int, Data]]:
    """The samples of an inspect log in its own, zipped form."""
    with suppress(ImportError):
        import zipfile_zstd  # noqa: F401 - lets zipfile read the compression that newer logs have
    with _reading(path), zipfile.ZipFile(path) as log:
        names = {name for name in log.namelist() if name.startswith("samples/")}
        most = unpacking.most_unpacked(path)
        size = 0
        for number, name in enumerate(sorted(names), start=1):
            if not name.endswith(".json"):
                continue
            data = _member(log, path, name)
            if not isinstance(data, DataError):
                size += len(data)
            unpacking.check_unpacked(path, size, most)
            yield number, data


def _member(log: zipfile.ZipFile, path: Path, name: str) -> Data:
    try:
        with log.open(name) as file:
            return file.read(unpacking.MOST_LINE + 1) + b"\n"
    except NotImplementedError:
        return DataError(
            f"{path} is compressed in a way that needs: pip install 'faithful-search[inspect]'"
        )
    except RuntimeError:
        return DataError(f"{path}: {name} is encrypted; save the log without a password")
    except Exception as error:  # of the package for each kind of compression
        return DataError(f"{path}: {name} is damaged ({kind_of(error)})")


def _parquet(path: Path, **options: Any) -> Any:
    with needs(f"reading {path}", "parquet"):
        from pyarrow import parquet
    with _reading(path):
        return parquet.ParquetFile(path, **options)


def _parquet_rows(path: Path) -> Iterator[tuple[int, Data]]:
    number = 0
    with _reading(path):
        metadata = _parquet(path).metadata
        text_columns = _text_columns(metadata)
        # A text that many rows repeat is in memory once; Arrow can do that in flat columns only.
        flat_texts = [column for column in text_columns.values() if "." not in column]
        source = _parquet(path, read_dictionary=flat_texts)
        for group in range(metadata.num_row_groups):
            row_group = metadata.row_group(group)
            unpacked = row_group.total_byte_size
            unpacking.check_unpacked(path, unpacked, unpacking.most_unpacked(path))
            size = _rows_at_a_time(row_group, text_columns)
            for batch in source.iter_batches(batch_size=size, row_groups=[group]):
                for data in _batch_rows(batch):
                    number += 1
                    yield number, data


def _text_columns(metadata: Any) -> dict[int, str]:
    """The paths of the columns that hold texts, by the columns' places. A column within another one
    has a dot in its path.
    """
    paths: dict[int, str] = {}
    for place in range(metadata.num_columns):
        column = metadata.schema.column(place)
        if column.physical_type == _TEXT:
            paths[place] = column.path
    return paths


def _rows_at_a_time(row_group: Any, text_columns: Iterable[int]) -> int:
    """How many rows of a group are read at a time: with the largest text in each of them they must
    fit into memory.
    """
    largest_text = 1
    for place in text_columns:
        largest_text = max(largest_text, row_group.column(place).total_uncompressed_size)
    rows_in_memory = unpacking.MOST_IN_MEMORY // largest_text
    return max(1, min(_BATCH, rows_in_memory))


def _batch_rows(batch: Any) -> Iterator[Data]:
    """The JSON of each row; rows are encoded one by one where they do not go together."""
    encoder = msgspec.json.Encoder(enc_hook=str)
    if batch.nbytes <= _AT_ONCE:
        with suppress(Exception):  # one of the rows cannot be encoded: find out below which
            yield from [encoder.encode(row) + b"\n" for row in _with_dates_as_text(batch)]
            return
    for place in range(batch.num_rows):
        try:
            [row] = _with_dates_as_text(batch.slice(place, 1))
            yield encoder.encode(row) + b"\n"
        except Exception as error:  # of Arrow, of Python's dates, of a value that has no JSON
            yield DataError(f"a value cannot be read ({kind_of(error)})")


def _with_dates_as_text(batch: Any) -> list[dict[str, Any]]:
    """The rows of a batch, with dates as text: Python has no year after 9999."""
    import pyarrow as pa

    columns = []
    for column in batch.columns:
        # In two steps: a time in another zone must become UTC before it is written as text.
        for kind in (_without_zones(pa, column.type), _textual(pa, column.type)):
            if kind != column.type:
                column = column.cast(kind)
        columns.append(column)
    with_texts = pa.RecordBatch.from_arrays(columns, batch.schema.names)
    rows: list[dict[str, Any]] = with_texts.to_pylist()
    return rows


def _without_zones(pa: Any, kind: Any) -> Any:
    """The type with times in UTC: this machine may not know the time zone of others."""
    if pa.types.is_timestamp(kind):
        return pa.timestamp(kind.unit)
    return _mapped(pa, kind, _without_zones)


def _textual(pa: Any, kind: Any) -> Any:
    if pa.types.is_temporal(kind):
        return pa.string()
    return _mapped(pa, kind, _textual)


def _mapped(pa: Any, kind: Any, change: Callable[[Any, Any], Any]) -> Any:
    """A nested type with each type in it changed; any other type as it is."""

    def changed(field: Any) -> Any:
        return field.with_type(change(pa, field.type))

    if pa.types.is_struct(kind):
        return pa.struct([changed(kind.field(place)) for place in range(kind.num_fields)])
    if pa.types.is_list(kind):
        return pa.list_(changed(kind.value_field))
    if pa.types.is_large_list(kind):
        return pa.large_list(changed(kind.value_field))
    if pa.types.is_fixed_size_list(kind):
        return pa.list_(changed(kind.value_field), kind.list_size)
    if pa.types.is_map(kind):
        return pa.map_(kind.key_type, changed(kind.item_field))
    return kind


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    """Raise `DataError` for whatever goes wrong within."""
    try:
        yield
    except DataError:
        raise
    except Exception as error:  # of the system, zipfile, pyarrow and what unpacks for them
        raise DataError(f"cannot read {path}: {reason_of(error)}") from error
