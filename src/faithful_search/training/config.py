"""Recipe settings: TRL's dataclasses from a YAML file and flags, where a file may extend another."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import yaml
from trl import TrlParser

from ..errors import ConfigError, FaithfulSearchError
from .dry_run import MACHINE, check_given, rehearse
from .endings import heeding_sigterm, leave
from .meeting import meet
from .precision import without_emulation

RENAMED = {
    "activation_checkpointing": "gradient_checkpointing",
    "activation_checkpointing_kwargs": "gradient_checkpointing_kwargs",
}
"""Settings by their names of today, and what they were called before Transformers 5.18."""


def parse_recipe(
    types: Sequence[Any], argv: Sequence[str] | None = None, default: Path | None = None
) -> tuple[Any, ...]:
    """Instances of `types` from `--config FILE` and flags; flags win.

    A file's `extends: other.yaml` (relative to it) gives the settings it does not set itself, so that an ablation's
    file holds only what it changes. `env:` sets environment variables, as in TRL.

    Where one of `types` has a field `dry_run` and it is true, the settings are read as they stand, and then made small;
    see `dry_run.rehearse`. On a CPU that would have to emulate bf16 it is turned off, whatever the file and the flags
    say; see `precision`.

    Args:
        types: dataclasses whose fields are the flags.
        argv: flags; the command line's by default.
        default: the file to read when no `--config` is given.

    Raises:
        ConfigError: for a file that cannot be read, settings that no dataclass has, or that one refuses.

    Example:
        ```python
        script, args = parse_recipe((PoUArguments, GRPOConfig), default=Path("recipes/configs/pou_tiny.yaml"))
        ```
    """
    flags = list(sys.argv[1:] if argv is None else argv)
    path = _take_config(flags) or default
    settings = read_config(path) if path else {}
    for name, value in settings.pop("env", {}).items():
        os.environ[name] = str(value)
    parser = TrlParser(types)
    settings = _as_installed(settings, types)
    unknown = parser.set_defaults_with_config(**settings)
    if unknown:
        names = ", ".join(item.removeprefix("--") for item in unknown if str(item).startswith("--"))
        raise ConfigError(f"{path}: no such settings: {names}; `--help` lists those there are")
    given = parser.parse_known_args(flags)[0]
    meet(given)
    flags += without_emulation(given)
    try:
        if getattr(given, "dry_run", False):
            return _small(parser, flags)
        return parser.parse_args_into_dataclasses(args=flags)
    except FaithfulSearchError:
        raise
    except ValueError as error:
        raise ConfigError(f"{path or 'the flags'}: {error}") from error


def run_recipe(main: Callable[[], Any]) -> None:
    """Run a recipe as a program: what ends it before its time is one line on the standard error, see `endings.leave`.

    SIGTERM ends it as Ctrl-C does, everything tidied up.
    """
    try:
        with heeding_sigterm():
            main()
    except (Exception, KeyboardInterrupt) as error:
        leave(error)


def read_config(path: str | Path) -> dict[str, Any]:
    """The settings of a YAML file, on top of those of the file it extends."""
    path = Path(path)
    try:
        own = yaml.safe_load(path.read_text(encoding="utf-8")) or {}
    except (OSError, UnicodeError, yaml.YAMLError) as error:
        raise ConfigError(f"cannot read the settings in {path}: {error}") from error
    if not isinstance(own, dict):
        raise ConfigError(f"{path} must hold a YAML mapping, not {type(own).__name__}")
    parent = own.pop("extends", None)
    return {**(read_config(path.parent / parent) if parent else {}), **own}


def _as_installed(settings: dict[str, Any], types: Sequence[Any]) -> dict[str, Any]:
    """Settings by the names that the installed Transformers has for them; vLLM wants an older one."""
    known = {field.name for kind in types for field in fields(kind)}
    return {RENAMED[key] if key in RENAMED and key not in known else key: value for key, value in settings.items()}


def _small(parser: TrlParser, flags: Sequence[str]) -> tuple[Any, ...]:
    """The instances of a dry run; before that, those of the real one are made, so that every key has been read."""
    values = vars(parser.parse_args(list(flags)))
    there = {key: value for key, value in MACHINE.items() if key in values}
    check_given(*parser.parse_dict({**values, **there}))
    return parser.parse_dict(rehearse(values))


def _take_config(flags: list[str]) -> Path | None:
    for place, flag in enumerate(flags):
        if flag == "--config":
            if place + 1 == len(flags):
                raise ConfigError("--config needs a file")
            found = flags[place + 1]
            del flags[place : place + 2]
            return Path(found)
        if flag.startswith("--config="):
            del flags[place]
            return Path(flag.removeprefix("--config="))
    return None
