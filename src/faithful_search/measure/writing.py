"""Files of results: each appears under its name only when it is complete, and holds no secret."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import msgspec

from ..errors import DataError
from ..wire import files
from ..wire.redact import redact


@contextmanager
def replacing(path: Path) -> Iterator[IO[bytes]]:
    """A file to write to, which takes the place of `path` when all went well. Raises what writing raises."""
    with files.replacing(path) as partial, partial.open("wb") as file:
        yield file


def write_metrics(path: str | os.PathLike[str], metrics: Mapping[str, Any]) -> Path:
    """Write JSON, without secrets (`wire.redact`); evaluations, estimates and other values in it become dictionaries.

    Raises `DataError` for a value that JSON has no form for, NaN included, and `OSError` when it cannot be written.
    """
    path = Path(path)
    try:
        plain = redact(dict(metrics))
        text = json.dumps(plain, indent=2, ensure_ascii=False, allow_nan=False, default=lambda one: redact(_plain(one)))
    except (TypeError, ValueError) as error:
        raise DataError(f"{path}: these metrics are not JSON ({error})") from error
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as file:
        file.write(f"{text}\n".encode(errors="replace"))  # the name of a file need not be UTF-8
    return path


def write_result(path: Path, result: Mapping[str, Any]) -> None:
    """`write_metrics` for what a command leaves. Raises `DataError` when it cannot be written."""
    try:
        write_metrics(path, result)
    except OSError as error:
        raise DataError(f"cannot write {path}: {error}") from error


def results_folder(out: Path) -> Path:
    """The folder, made where it does not exist. Raises `DataError` when it cannot be."""
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DataError(f"cannot make the folder {out}: {error}") from error
    return out


def _plain(value: Any) -> Any:
    if hasattr(value, "to_dict"):
        return value.to_dict()
    if isinstance(value, msgspec.Struct):
        return msgspec.structs.asdict(value)
    if isinstance(value, os.PathLike):
        return str(value)
    if isinstance(value, (set, frozenset)):
        return sorted(value)  # a set's own order differs from run to run
    if hasattr(value, "item"):
        return value.item()
    raise TypeError(f"{type(value).__name__} has no JSON form")
