"""Files of results: each appears under its name only when it is complete, and JSON holds no secret."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from ..errors import DataError
from ..wire.files import replacing
from ..wire.redact import redact


def write_whole(path: Path, data: bytes) -> Path:
    """Put this into the file, whose folder is made. Raises `DataError` when it cannot be written."""
    results_folder(path.parent)
    try:
        with replacing(path) as partial:
            partial.write_bytes(data)
    except OSError as error:
        raise DataError(f"cannot write {path}: {error}") from error
    return path


def write_metrics(path: str | os.PathLike[str], metrics: Mapping[str, Any]) -> Path:
    """Write JSON, without secrets (`wire.redact`); evaluations, estimates and other values in it become dictionaries.

    Raises `DataError` for a value that JSON has no form for, NaN included, and when it cannot be written.
    """
    try:
        plain = redact(dict(metrics))
        text = json.dumps(plain, indent=2, ensure_ascii=False, allow_nan=False, default=lambda one: redact(_plain(one)))
    except (TypeError, ValueError) as error:
        raise DataError(f"{path}: these metrics are not JSON ({error})") from error
    return write_whole(Path(path), f"{text}\n".encode(errors="replace"))  # the name of a file need not be UTF-8


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
