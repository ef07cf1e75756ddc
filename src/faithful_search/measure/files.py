"""The rows of a file as JSON, one by one, larger than memory: JSON lines, a JSON array, Parquet or an inspect log.

A format that spreads an episode over many lines (a session, the spans of a trace) has them made into one row,
`{"lines": […]}`, in memory; an inspect log becomes its samples. A folder is its files, one after another.
"""

from __future__ import annotations

import gzip
import os
import re
import sys
import zipfile
import zlib
from codecs import BOM_UTF8
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import suppress
from itertools import chain
from pathlib import Path
from typing import Any

import msgspec

from .. import formats
from ..errors import DataError, kind_of
from ..trajectory import read_lines

PathLike = str | os.PathLike[str]
STDIN = "-"
_READ = (".jsonl", ".ndjson", ".json", ".parquet", ".eval")
_HUB = "hf://datasets/"
_ADDRESS = re.compile(r"[a-z][a-z0-9+.-]+:/", re.IGNORECASE)  # two letters at least: C:/ is a path
_OUTSIDE, _IN_STRING = re.compile(rb'["{}\[\],]'), re.compile(rb'"|\\.?', re.DOTALL)
_AUDIT = ("audit.json", "scores.jsonl", "source.jsonl")
"""What an audit leaves in its folder, which may lie in its source's."""
_BLOCK = 1 << 20
_COUNTED = 1 << 30
"""Bytes of the largest file whose rows are counted for a progress bar."""


def local_file(path: PathLike) -> Path:
    """The path of a file or folder on this machine; what is in a data set of the Hub (`hf://datasets/…`) is downloaded.

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
    found = sorted(path for path in folder.rglob("*") if path.name.removesuffix(".gz").lower().endswith(_READ))
    audits = {path.parent for path in found if path.name == "audit.json" and path.with_name("scores.jsonl").exists()}
    return [path for path in found if not (path.name in _AUDIT and path.parent in audits)]


def _from_hub(address: str) -> Path:
    """The file or folder of a data set, in the Hub's cache: `hf://datasets/OWNER/NAME[@REVISION][/PATH]`."""
    from huggingface_hub import snapshot_download

    owner, _, rest = address.removeprefix(_HUB).partition("/")
    name, _, inner = rest.partition("/")
    name, _, revision = name.partition("@")
    # A data set may also hold images or models: only what can be read is downloaded
    wanted = [inner, f"{inner}/*"] if inner else [f"*{end}{packed}" for end in _READ for packed in ("", ".gz")]
    try:
        found = Path(
            snapshot_download(f"{owner}/{name}", repo_type="dataset", revision=revision or None, allow_patterns=wanted)
        )
    except Exception as error:  # of the Hub's client, of its HTTP library, or of the disk
        raise DataError(f"cannot download {address}: {kind_of(error)}") from error
    if not (found / inner).exists():
        raise DataError(f"{address}: there is no {inner} in that data set")
    return local_file(found / inner)


def called(path: PathLike) -> str:
    """The name of the source in messages."""
    return "the standard input" if str(path) == STDIN else str(path)


def read_json(path: PathLike, text_column: str | None, known: Collection[str]) -> Iterator[tuple[int, bytes]]:
    """Yield the JSON of each row with its number from 1: the line's in a file of lines, else how many came before.

    Parquet must have the `text_column`, or where none is given one of the `known` columns. Raises `DataError` when the
    file cannot be read, or has another form; also on the way, after the rows before.
    """
    if str(path) == STDIN:
        return _episodes((number, line) for number, line in enumerate(sys.stdin.buffer, start=1) if line.strip())
    file = local_file(path)
    if not file.is_dir():
        return _file_rows(file, text_column, known)
    rows = (data for inner in inside(file) for _, data in _file_rows(inner, text_column, known))
    return enumerate(rows, start=1)


def count_rows(path: Path) -> int | None:
    """How many rows there are, where that is quickly known."""
    name = path.name.lower()
    if path.is_dir():
        return None
    if name.endswith(".parquet"):
        return int(_parquet(path).metadata.num_rows)
    most = _COUNTED // 16 if name.endswith(".gz") else _COUNTED  # text packs to a sixteenth at best
    if ".jsonl" not in name or path.stat().st_size > most:
        return None
    try:
        return sum(1 for _ in read_lines(path))
    except DataError:  # a file that is cut short is reported when it is read
        return None


def _file_rows(file: Path, text_column: str | None, known: Collection[str]) -> Iterator[tuple[int, bytes]]:
    name = file.name.removesuffix(".gz").lower()
    if name.endswith((".jsonl", ".ndjson")):
        return _episodes(read_lines(file))
    if name.endswith(".json"):
        return _episodes(enumerate(_elements(_blocks(file), file), start=1))
    if name.endswith(".parquet"):
        return _parquet_rows(file, text_column, known)
    if name.endswith(".eval"):
        return _samples(file)
    raise DataError(f"{file}: expected {', '.join(_READ)} (also .gz), a folder of these, or - for JSON lines on stdin")


def _episodes(rows: Iterator[tuple[int, bytes]]) -> Iterator[tuple[int, bytes]]:
    """The rows as they are; of a log that spreads an episode over many, one for each episode."""
    first = next(rows, None)
    if first is None:
        return
    value = _decoded(first[1])
    rows = chain([first], rows)
    if isinstance(value, dict) and "eval" in value and isinstance(value.get("samples"), list):  # inspect's, as JSON
        yield from enumerate(map(msgspec.json.encode, value["samples"]), start=1)
    elif (group := formats.group(value)) is None:
        yield from rows
    else:
        lines: dict[str, list[bytes]] = {}
        for _, data in rows:
            value = _decoded(data)
            group = formats.group(value) or group  # a line that names no episode belongs to the one before it
            # A broken line stays one, so that the format can say how many there were
            lines.setdefault(group, []).append(b"null" if value is None else data.strip())
        for number, own in enumerate(lines.values(), start=1):
            yield number, b'{"lines": [' + b",".join(own) + b"]}\n"


def _decoded(data: bytes) -> Any:
    try:
        return msgspec.json.decode(data)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return None


def _samples(path: Path) -> Iterator[tuple[int, bytes]]:
    """The samples of an inspect log, which is a zip."""
    with suppress(ImportError):
        import zipfile_zstd  # noqa: F401 - lets zipfile read the compression that newer logs have
    try:
        with zipfile.ZipFile(path) as log:
            names = sorted(name for name in log.namelist() if name.startswith("samples/") and name.endswith(".json"))
            for number, name in enumerate(names, start=1):
                yield number, log.read(name) + b"\n"
    except NotImplementedError as error:
        raise DataError(f"{path} is compressed in a way that needs: pip install 'faithful-search[inspect]'") from error
    except (OSError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise DataError(f"cannot read {path}: {error}") from error


def _blocks(path: Path) -> Iterator[bytes]:
    opener: Callable[..., Any] = gzip.open if path.suffix == ".gz" else open
    try:
        with opener(path, "rb") as file:
            if (start := file.read(len(BOM_UTF8))) != BOM_UTF8:
                yield start
            while block := file.read(_BLOCK):
                yield block
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"cannot read {path}: {error}") from error


def _elements(blocks: Iterable[bytes], path: Path) -> Iterator[bytes]:
    """The elements of a JSON array, or objects that follow one another, each with a line break behind it.

    They are found by their brackets and not decoded, so that a broken element costs no other; in linear time.
    """
    held = bytearray()  # what has not become an element yet
    depth = base = number = 0  # `base` is the depth at which elements stand: 1 in an array
    started = closed = extra = in_string = escaped = False
    for block in blocks:
        start, at = 0, int(escaped)
        escaped = False
        while not closed and (mark := (_IN_STRING if in_string else _OUTSIDE).search(block, at)):
            char, at = mark[0], mark.end()
            if in_string:
                in_string = char != b'"'
                escaped = char == b"\\"  # what it escapes comes with the next block
                continue
            if char == b'"':
                in_string = started = True
                continue
            if char in b"{[":
                opens = char == b"[" and not started and not held.strip()
                started, base = True, 1 if opens else base
                depth += 1
                if not opens:
                    continue
            elif char in b"}]":
                depth = max(0, depth - 1)
                closed = base == 1 and depth < 1
            if depth > base:
                continue
            end = at if char in b"}]" and depth >= base else mark.start()
            element = bytes(held + block[start:end]).strip()
            held.clear()
            start = at
            if element:
                number += 1
                yield element + b"\n"
        if closed:
            extra = extra or bool(block[start:].strip())
        else:
            held += block[start:]
    if held.strip():
        yield bytes(held)  # no line break: an error in this element can then say that the file is cut off
    elif base and not closed:
        raise DataError(f"{path}: the array is not closed after row {number}; the file seems cut off")
    elif extra:
        raise DataError(f"{path}: text after the end of the array, whose last row is {number}")


def _parquet(path: Path) -> Any:
    try:
        from pyarrow import parquet
    except ImportError as error:
        raise DataError(f"reading {path} needs pyarrow: pip install 'faithful-search[parquet]'") from error
    try:
        return parquet.ParquetFile(path)
    except (OSError, ValueError) as error:  # pyarrow's own errors are ValueErrors
        raise DataError(f"cannot read {path}: {error}") from error


def _parquet_rows(path: Path, text_column: str | None, known: Collection[str]) -> Iterator[tuple[int, bytes]]:
    file = _parquet(path)
    names = file.schema_arrow.names
    if text_column and text_column not in names:
        raise DataError(f"{path}: no column {text_column!r}; it has: {', '.join(names)}")
    if not text_column and not set(known) & set(names):
        raise DataError(f"{path}: none of its columns ({', '.join(names)}) is known to hold messages or text; name one")
    encoder, number = msgspec.json.Encoder(enc_hook=str), 0  # dates and decimals as text
    rows = (row for batch in file.iter_batches(batch_size=64) for row in batch.to_pylist())
    try:
        for number, row in enumerate(rows, start=1):
            yield number, encoder.encode(row) + b"\n"
    except (OSError, ValueError) as error:
        raise DataError(f"cannot read {path} after row {number}: {error}") from error
