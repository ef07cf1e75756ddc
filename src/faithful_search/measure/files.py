"""The rows of a file as JSON, one by one: JSON lines and Parquet larger than memory, a JSON array, an inspect log.

A format that spreads an episode over many lines (a session, the spans of a trace) has them made into one row,
`{"lines": […]}`, in memory; an inspect log becomes its samples. A folder is its files, one after another.
"""

import gzip
import json
import os
import re
import sys
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from itertools import chain, islice
from pathlib import Path
from typing import Any

import msgspec

from .. import formats
from ..errors import DataError, kind_of, needs
from ..trajectory import read_lines

PathLike = str | os.PathLike[str]
STDIN = "-"
_READ = (".jsonl", ".ndjson", ".json", ".parquet", ".eval")
_HUB = "hf://datasets/"
_ADDRESS = re.compile(r"[a-z][a-z0-9+.-]+:/", re.IGNORECASE)  # two letters at least: C:/ is a path
_BEGINS = re.compile(r"[^\s,]")  # an element of an array, or its end
_AUDIT = ("audit.json", "scores.jsonl", "source.jsonl")
"""What an audit leaves in its folder, which may lie in its source's."""


def local_file(path: PathLike) -> Path:
    """The path of a file or folder here; what is in a data set of the Hub (`hf://datasets/…`) is downloaded.

    Raises `DataError` for any other address, for what the Hub does not give, and for a folder without files to read.
    """
    if str(path).startswith(_HUB):
        return _from_hub(str(path))
    if _ADDRESS.match(str(path)):
        raise DataError(f"{path} is not on this machine: download it first")
    if Path(path).is_dir() and not inside(Path(path)):
        raise DataError(f"{path} is a folder without {', '.join(_READ)}")
    return Path(path)


def inside(folder: Path) -> list[Path]:
    """The files of a folder that can be read, by name: the rows have the same numbers wherever it lies."""
    found = sorted(
        path for path in folder.rglob("*") if path.name.removesuffix(".gz").lower().endswith(_READ)
    )
    audits = {
        path.parent
        for path in found
        if path.name == "audit.json" and path.with_name("scores.jsonl").exists()
    }
    return [path for path in found if not (path.name in _AUDIT and path.parent in audits)]


def _from_hub(address: str) -> Path:
    """The file or folder of a data set, in the Hub's cache: `hf://datasets/OWNER/NAME[@REVISION][/PATH]`."""
    from huggingface_hub import snapshot_download

    owner, _, rest = address.removeprefix(_HUB).partition("/")
    name, _, inner = rest.partition("/")
    name, _, revision = name.partition("@")
    # A data set may also hold images or models: only what can be read is downloaded
    wanted = (
        [inner, f"{inner}/*"]
        if inner
        else [f"*{end}{packed}" for end in _READ for packed in ("", ".gz")]
    )
    options: dict[str, Any] = {
        "repo_type": "dataset",
        "revision": revision or None,
        "allow_patterns": wanted,
    }
    try:
        found = Path(snapshot_download(f"{owner}/{name}", **options))
    except Exception as error:  # of the Hub's client, of its HTTP library, or of the disk
        raise DataError(f"cannot download {address}: {kind_of(error)}") from error
    if not (found / inner).exists():
        raise DataError(f"{address}: there is no {inner} in that data set")
    return local_file(found / inner)


def read_json(path: PathLike) -> Iterator[tuple[int, bytes]]:
    """Yield the JSON of each row with its number from 1: the line's in a file of lines, else how many came before.

    Raises `DataError` when the file cannot be read, or has another form; also on the way, after the rows before.
    """
    if str(path) == STDIN:
        return _episodes(
            (number, line) for number, line in enumerate(sys.stdin.buffer, start=1) if line.strip()
        )
    file = local_file(path)
    if not file.is_dir():
        return _file_rows(file)
    return enumerate((data for inner in inside(file) for _, data in _file_rows(inner)), start=1)


def total_rows(paths: Iterable[Path], limit: int | None) -> int | None:
    """How many rows will be read, for a progress bar; `None` where a file cannot be read, which is told when it is."""
    total = 0
    for path in paths:
        if path.suffix.lower() == ".parquet":
            total += min(int(_parquet(path).metadata.num_rows), limit or sys.maxsize)
        else:  # reading takes a hundredth of the time that scoring does
            with suppress(DataError):
                total += sum(1 for _ in islice(read_json(path), limit))
    return total or None


def _file_rows(file: Path) -> Iterator[tuple[int, bytes]]:
    name = file.name.removesuffix(".gz").lower()
    if name.endswith((".jsonl", ".ndjson")):
        return _episodes(read_lines(file))
    if name.endswith(".json"):
        return _episodes(enumerate(_elements(file), start=1))
    if name.endswith(".parquet"):
        return _parquet_rows(file)
    if name.endswith(".eval"):
        return _samples(file)
    raise DataError(
        f"{file}: expected {', '.join(_READ)} (also .gz), a folder of these, or - for JSON lines on stdin"
    )


def _episodes(rows: Iterator[tuple[int, bytes]]) -> Iterator[tuple[int, bytes]]:
    """The rows as they are; of a log that spreads an episode over many, one for each episode."""
    first = next(rows, None)
    if first is None:
        return
    value = _decoded(first[1])
    rows = chain([first], rows)
    if (
        isinstance(value, dict) and "eval" in value and isinstance(value.get("samples"), list)
    ):  # inspect's, as JSON
        yield from enumerate(map(msgspec.json.encode, value["samples"]), start=1)
    elif (group := formats.group(value)) is None:
        yield from rows
    else:
        lines: dict[str, list[bytes]] = {}
        for _, data in rows:
            value = _decoded(data)
            group = (
                formats.group(value) or group
            )  # a line that names no episode belongs to the one before it
            # A broken line stays one, so that the format can say how many there were
            lines.setdefault(group, []).append(b"null" if value is None else data.strip())
        for number, own in enumerate(lines.values(), start=1):
            yield number, b'{"lines": [' + b",".join(own) + b"]}\n"


def _decoded(data: bytes) -> Any:
    with suppress(msgspec.MsgspecError, ValueError, RecursionError):
        return msgspec.json.decode(data)
    return None


def _elements(path: Path) -> Iterator[bytes]:
    """The elements of a JSON array, or objects that follow one another, each with a line break behind it."""
    opener: Callable[..., Any] = gzip.open if path.suffix == ".gz" else open
    with _reading(path), opener(path, "rb") as file:
        text = file.read().decode("utf-8-sig").strip()
    array, number, read = text.startswith("["), 0, json.JSONDecoder().raw_decode
    at = int(array)
    while (mark := _BEGINS.search(text, at)) and not (array and mark[0] == "]"):
        try:
            _, at = read(text, mark.start())
        except (ValueError, RecursionError) as error:
            raise DataError(
                f"{path}: row {number + 1} is not JSON, or cut off ({error})"
            ) from error
        number += 1
        yield text[mark.start() : at].encode() + b"\n"
    if array and mark is None:
        raise DataError(
            f"{path}: the array is not closed after row {number}; the file seems cut off"
        )
    if mark and text[mark.end() :]:
        raise DataError(f"{path}: text after the end of the array, whose last row is {number}")


def _samples(path: Path) -> Iterator[tuple[int, bytes]]:
    with suppress(ImportError):
        import zipfile_zstd  # noqa: F401 - lets zipfile read the compression that newer logs have
    try:
        with _reading(path), zipfile.ZipFile(path) as log:
            names = sorted(
                name
                for name in log.namelist()
                if name.startswith("samples/") and name.endswith(".json")
            )
            for number, name in enumerate(names, start=1):
                yield number, log.read(name) + b"\n"
    except NotImplementedError as error:
        raise DataError(
            f"{path} is compressed in a way that needs: pip install 'faithful-search[inspect]'"
        ) from error


def _parquet(path: Path) -> Any:
    with needs(f"reading {path}", "parquet"):
        from pyarrow import parquet
    with _reading(path):
        return parquet.ParquetFile(path)


def _parquet_rows(path: Path) -> Iterator[tuple[int, bytes]]:
    encoder = msgspec.json.Encoder(enc_hook=str)  # dates and decimals as text
    batches = _parquet(path).iter_batches(batch_size=64)
    with _reading(path):
        for number, row in enumerate(
            chain.from_iterable(batch.to_pylist() for batch in batches), start=1
        ):
            yield number, encoder.encode(row) + b"\n"


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    try:
        yield
    except (
        OSError,
        EOFError,
        ValueError,
        zipfile.BadZipFile,
        zlib.error,
    ) as error:  # pyarrow's are ValueErrors
        raise DataError(f"cannot read {path}: {error}") from error
