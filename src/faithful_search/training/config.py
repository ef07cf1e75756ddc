"""Recipe settings: TRL's dataclasses from a YAML file and flags, where a file may extend another."""

from __future__ import annotations

import difflib
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, NoReturn

import yaml
from trl import TrlParser

from ..bundled import shipped
from ..errors import ConfigError, FaithfulSearchError
from .dry_run import MACHINE, check_given, rehearse
from .endings import ending_with_launcher, heeding_sigterm, leave
from .precision import without_emulation
from .processes import meet

RENAMED = {
    "activation_checkpointing": "gradient_checkpointing",
    "activation_checkpointing_kwargs": "gradient_checkpointing_kwargs",
}
"""Settings by their current names, and their names before Transformers 5.18."""


class _Parser(TrlParser):
    """With errors of one line, and without abbreviated flags."""

    def __init__(self, types: Sequence[Any]) -> None:
        super().__init__(types, allow_abbrev=False)

    def error(self, message: str) -> NoReturn:
        raise ConfigError(f"{message}; --help lists the flags")

    def check_known(self, flags: Sequence[str]) -> None:
        """Refuse unknown flags, naming the flag that was probably meant."""
        if wrong := self.parse_known_args(list(flags))[1]:
            word = wrong[0].partition("=")[0]
            near = difflib.get_close_matches(word, self._option_string_actions, n=1)
            hint = f"did you mean {near[0]}?" if near else "--help lists them"
            raise ConfigError(f"no such flag: {word}; {hint}")


def parse_recipe(
    types: Sequence[Any], argv: Sequence[str] | None = None, default: Path | None = None
) -> tuple[Any, ...]:
    """Instances of `types` from `--config FILE` and flags; flags win.

    A file's `extends: other.yaml` (relative to it) gives the settings it does not set itself, so that an ablation's
    file holds only what it changes. A file that is not there is looked for among the package's own, by its name.
    `env:` sets environment variables, as in TRL. A token of the Hub is moved to the environment, as HF_TOKEN, since
    settings are kept in files.

    If one of `types` has a field `dry_run` and it is true, the settings are checked as they are, and then made small;
    see `dry_run.rehearse`. On a CPU that would have to emulate bf16 it is turned off in any case; see `precision`.

    Args:
        types: dataclasses whose fields are the flags.
        argv: flags; the command line's by default.
        default: the file to read without `--config`.

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
    parser = _Parser(types)
    settings = _as_installed(settings, types)
    unknown = parser.set_defaults_with_config(**settings)
    if unknown:
        names = ", ".join(item.removeprefix("--") for item in unknown if str(item).startswith("--"))
        raise ConfigError(f"{path}: no such settings: {names}; `--help` lists those there are")
    parser.check_known(flags)
    given = parser.parse_known_args(flags)[0]
    meet(given)
    flags += without_emulation(given)
    try:
        made = _small(parser, flags) if getattr(given, "dry_run", False) else parser.parse_args_into_dataclasses(flags)
        return tuple(map(without_token, made))
    except FaithfulSearchError:
        raise
    except ValueError as error:
        raise ConfigError(f"{path or 'the flags'}: {error}") from error


def run_recipe(main: Callable[[], Any]) -> None:
    """Run a recipe as a program that ends early with one line on standard error, see `endings.leave`.

    SIGTERM ends it as Ctrl-C does, with everything cleaned up, and so does the end of the launcher that started it.
    """
    try:
        with heeding_sigterm():
            ending_with_launcher()
            main()
    except (Exception, KeyboardInterrupt) as error:
        leave(error)


def read_config(path: str | Path) -> dict[str, Any]:
    """The settings of a YAML file, on top of those of the file it extends.

    Raises:
        ConfigError: for a file that cannot be read, is not a mapping, or extends itself.
    """
    read: list[Path] = []
    settings: dict[str, Any] = {}
    following: Path | None = Path(path)
    while following is not None:
        path = _found(following)
        if path.resolve() in [one.resolve() for one in read]:
            raise ConfigError(f"{read[-1]} extends {path}, and so itself: take one `extends:` out")
        try:
            own = yaml.safe_load(path.read_text(encoding="utf-8")) or {}
        except (OSError, UnicodeError, yaml.YAMLError) as error:
            raise ConfigError(f"cannot read the settings in {path}: {error}") from error
        if not isinstance(own, dict):
            raise ConfigError(f"{path} must hold a YAML mapping, not {type(own).__name__}")
        parent = own.pop("extends", None)
        settings = {**own, **settings}
        read.append(path)
        following = path.parent / str(parent) if parent else None
    return settings


def _found(path: Path) -> Path:
    """The file, or the package's own configuration of that name: a recipe may be run away from its folder."""
    own = shipped("recipes/configs") / path.name
    return own if own.is_file() and not path.exists() else path


def without_token(made: Any) -> Any:
    """The settings with their Hub token moved to the environment: trainers pickle their settings beside the policy."""
    given = getattr(made, "hub_token", None), (getattr(made, "model_init_kwargs", None) or {}).pop("token", None)
    if any(given):
        os.environ["HF_TOKEN"] = str(given[0] or given[1])
    if hasattr(made, "hub_token"):
        made.hub_token = None
    return made


def _as_installed(settings: dict[str, Any], types: Sequence[Any]) -> dict[str, Any]:
    """Settings by their names in the installed Transformers; vLLM needs an older one."""
    known = {field.name for kind in types for field in fields(kind)}
    return {RENAMED[key] if key in RENAMED and key not in known else key: value for key, value in settings.items()}


def _small(parser: TrlParser, flags: Sequence[str]) -> tuple[Any, ...]:
    """The instances of a dry run; those of the real run are made first, so that every setting is checked."""
    values = vars(parser.parse_args(list(flags)))
    there = {key: value for key, value in MACHINE.items() if key in values}
    check_given(*parser.parse_dict({**values, **there}))
    return parser.parse_dict(rehearse(values))


def _take_config(flags: list[str]) -> Path | None:
    """Remove `--config FILE` or `--config=FILE` from the flags; the file."""
    place = next((place for place, flag in enumerate(flags) if flag.partition("=")[0] == "--config"), None)
    if place is None:
        return None
    _, given, name = flags.pop(place).partition("=")
    if not given:
        if place == len(flags):
            raise ConfigError("--config needs a file")
        name = flags.pop(place)
    return Path(name)
