"""Recipe settings: TRL's dataclasses from a YAML file and flags, where a file may extend another."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import yaml
from trl import ModelConfig, TrlParser, get_quantization_config

from ..errors import ConfigError, FaithfulSearchError


def parse_recipe(
    types: Sequence[Any], argv: Sequence[str] | None = None, default: Path | None = None
) -> tuple[Any, ...]:
    """Instances of `types` from `--config FILE` and flags; flags win.

    A file's `extends: other.yaml` (relative to it) gives the settings it does not set itself, so that an ablation's
    file holds only what it changes. `env:` sets environment variables, as in TRL.

    Args:
        types: dataclasses whose fields are the flags.
        argv: flags; the command line's by default.
        default: the file to read when no `--config` is given.

    Raises:
        ConfigError: for a file that cannot be read, or settings that no dataclass has.

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
    unknown = parser.set_defaults_with_config(**settings)
    if unknown:
        names = ", ".join(item.removeprefix("--") for item in unknown if str(item).startswith("--"))
        raise ConfigError(f"{path}: no such settings: {names}; `--help` lists those there are")
    return tuple(parser.parse_args_into_dataclasses(args=flags))


def run_recipe(main: Callable[[], Any]) -> None:
    """Run a recipe as a program: what the package refuses is one line on the standard error and exit code 1."""
    try:
        main()
    except FaithfulSearchError as error:
        raise SystemExit(f"error: {error}") from None


def model_init_kwargs(model_args: ModelConfig) -> dict[str, Any]:
    """How `from_pretrained` shall load the model: revision, dtype, attention, quantisation of TRL's `ModelConfig`."""
    quantization = get_quantization_config(model_args)
    return {
        "revision": model_args.model_revision,
        "dtype": model_args.dtype,
        "attn_implementation": model_args.attn_implementation,
        **({"quantization_config": quantization} if quantization else {}),
    }


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
