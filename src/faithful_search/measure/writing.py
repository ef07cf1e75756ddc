"""Write files of results, and cards. A file appears under its name when it is complete, and results
and cards hold no secret.
"""

import json
import os
from collections.abc import Mapping
from functools import partial
from importlib.resources import files
from pathlib import Path
from typing import Any

import msgspec

from ..errors import DataError, reason_of
from ..escape import Written, as_block, as_code, as_literal, finalizer
from ..wire.files import replacing
from ..wire.redact import redact


def write_whole(path: Path, data: bytes) -> Path:
    """Write the file, and create its folder if needed. Returns `path`. Raises `DataError` when it
    cannot be written.
    """
    make_folder(path.parent)
    try:
        with replacing(path) as new:
            new.write_bytes(data)
    except OSError as error:
        raise DataError(f"cannot write {path}: {reason_of(error)}") from error
    return path


def write_metrics(path: str | os.PathLike[str], metrics: Mapping[str, Any]) -> Path:
    """Write JSON without secrets (`wire.redact`). Evaluations, estimates and other values become
    dictionaries.

    Raises `DataError` for a value that JSON has no form for, such as NaN, and when the file cannot
    be written.
    """
    try:
        plain = redact(dict(metrics))
        text = json.dumps(
            plain,
            indent=2,
            ensure_ascii=False,
            allow_nan=False,
            default=lambda value: redact(_plain(value)),
        )
    except (TypeError, ValueError) as error:
        raise DataError(f"{path}: these metrics are not JSON ({error})") from error
    # The text may hold the name of a file, which need not be UTF-8
    return write_whole(Path(path), f"{text}\n".encode(errors="replace"))


def filled(package: str, template: str, **values: Any) -> str:
    """The text that a template in the package makes of these values.

    Values are escaped for the kind of text that the template makes (`escape.finalizer`). Its
    filters are `code` (a name as code in Markdown), `block` (a text between fences in Markdown),
    `literal` (a string of Python), `json`, and `written`, for a text that is escaped already.
    """
    from jinja2 import Environment, StrictUndefined

    environment = Environment(
        undefined=StrictUndefined,
        trim_blocks=True,
        keep_trailing_newline=True,
        finalize=finalizer(template),
    )
    as_json = partial(json.dumps, indent=2, ensure_ascii=False, default=str)
    environment.filters |= {
        "code": as_code,
        "block": as_block,
        "json": as_json,
        "literal": as_literal,
        "written": Written,
    }
    return environment.from_string((files(package) / template).read_text("utf-8")).render(values)


def card_of(package: str, template: str, data: Any, **values: Any) -> bytes:
    """A card: front matter (`huggingface_hub.CardData`) and a filled template, without the secrets
    of `wire.redact`.
    """
    text = f"---\n{data.to_yaml()}\n---\n\n{filled(package, template, **values)}"
    return str(redact(text)).encode()


def make_folder(out: Path) -> Path:
    """Create the folder if needed, and return it. Raises `DataError` when it cannot be created."""
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DataError(f"cannot make the folder {out}: {reason_of(error)}") from error
    return out


def _plain(value: Any) -> Any:
    if hasattr(value, "to_dict"):
        return value.to_dict()
    if hasattr(value, "item"):
        return value.item()
    if isinstance(value, (set, frozenset)):
        return sorted(value)  # a set's own order differs from run to run
    return str(value) if isinstance(value, os.PathLike) else msgspec.to_builtins(value)
