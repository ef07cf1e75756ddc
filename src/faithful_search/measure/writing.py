"""Files of results and cards: each appears under its name only when it is complete, and holds no secret."""

import json
import os
from collections.abc import Mapping
from functools import partial
from importlib.resources import files
from pathlib import Path
from typing import Any

import msgspec

from ..errors import DataError
from ..text import as_markdown, printable
from ..wire.files import replacing
from ..wire.redact import redact


def write_whole(path: Path, data: bytes) -> Path:
    """Put this into the file, whose folder is made. Raises `DataError` when it cannot be written."""
    results_folder(path.parent)
    try:
        with replacing(path) as new:
            new.write_bytes(data)
    except OSError as error:
        raise DataError(f"cannot write {path}: {error}") from error
    return path


def write_metrics(path: str | os.PathLike[str], metrics: Mapping[str, Any]) -> Path:
    """Write JSON, without secrets (`wire.redact`); evaluations, estimates and other values in it become dictionaries.

    Raises `DataError` for a value that JSON has no form for, NaN included, and when it cannot be written.
    """
    try:
        plain = redact(dict(metrics))
        text = json.dumps(
            plain,
            indent=2,
            ensure_ascii=False,
            allow_nan=False,
            default=lambda one: redact(_plain(one)),
        )
    except (TypeError, ValueError) as error:
        raise DataError(f"{path}: these metrics are not JSON ({error})") from error
    return write_whole(
        Path(path), f"{text}\n".encode(errors="replace")
    )  # the name of a file need not be UTF-8


def filled(package: str, template: str, **values: Any) -> str:
    """The text of a template beside the code. Filters: `text` shows what it is given as it is in Markdown, `code` as a
    name, which nothing in it can end, `json` as JSON.
    """
    from jinja2 import Environment, StrictUndefined

    environment = Environment(
        undefined=StrictUndefined, trim_blocks=True, keep_trailing_newline=True
    )
    as_json = partial(json.dumps, indent=2, ensure_ascii=False, default=str)
    environment.filters |= {"text": as_markdown, "code": _code, "json": as_json}
    return environment.from_string((files(package) / template).read_text("utf-8")).render(values)


def card_of(package: str, template: str, data: Any, **values: Any) -> bytes:
    """A card: front matter (`huggingface_hub.CardData`) and a filled template, without the secrets of `wire.redact`."""
    return str(
        redact(f"---\n{data.to_yaml()}\n---\n\n{filled(package, template, **values)}")
    ).encode()


def results_folder(out: Path) -> Path:
    """The folder, made where it does not exist. Raises `DataError` when it cannot be."""
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DataError(f"cannot make the folder {out}: {error}") from error
    return out


def _code(name: str) -> str:
    return f"`{printable(' '.join(name.split())).replace('`', chr(39)).replace('|', '¦')}`"


def _plain(value: Any) -> Any:
    if hasattr(value, "to_dict"):
        return value.to_dict()
    if hasattr(value, "item"):
        return value.item()
    if isinstance(value, (set, frozenset)):
        return sorted(value)  # a set's own order differs from run to run
    return str(value) if isinstance(value, os.PathLike) else msgspec.to_builtins(value)
