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
    """TRL's, with errors of one line."""

    def error(self, message: str) -> NoReturn:
        raise ConfigError(f"{message}; --help lists the flags")


def parse_recipe(
    types: Sequence[Any], argv: Sequence[str] | None = None, default: Path | None = None
) -> tuple[Any, ...]:
    """Instances of `types` from `--config FILE` and flags; flags win.

    A file's `extends: other.yaml` (relative to it) gives the settings it does not set itself. A file that does not
    exist is looked for among the package's own, by its name. `env:` sets environment variables, as in TRL. A token of
    the Hub is moved to the environment, as HF_TOKEN, since settings are kept in files.

    If one of `types` has a field `dry_run` and it is true, the settings are checked as they are, and then made small;
    see `dry_run.rehearse`. On a CPU that would have to emulate bf16 it is turned off in any case; see `precision`.

    Args:
        types: dataclasses whose fields are the flags.
        argv: flags; the command line's by default.
        default: the file to read without `--config`.

    Raises:
        ConfigError: for a file that cannot be read, settings that no dataclass has, or that one refuses.
    """
    early = _Parser((), add_help=False, allow_abbrev=False)  # --help is for the parser below, which knows all flags
    early.add_argument("--config")
    named, flags = early.parse_known_args(sys.argv[1:] if argv is None else argv)
    path = Path(named.config) if named.config else default
    settings = read_config(path) if path else {}
    for name, value in settings.pop("env", {}).items():
        os.environ[name] = str(value)
    known = {field.name for kind in types for field in fields(kind)}
    # vLLM needs an older Transformers, in which these settings have other names.
    settings = {key if key in known else RENAMED.get(key, key): value for key, value in settings.items()}
    parser = _Parser(types, allow_abbrev=False)
    unknown = parser.set_defaults_with_config(**settings)
    if unknown:
        names = ", ".join(item.removeprefix("--") for item in unknown if str(item).startswith("--"))
        raise ConfigError(f"{path}: no such settings: {names}; `--help` lists those there are")
    given, wrong = parser.parse_known_args(flags)
    if wrong:
        word = wrong[0].partition("=")[0]
        near = difflib.get_close_matches(word, parser._option_string_actions, n=1)
        raise ConfigError(f"no such flag: {word}; {f'did you mean {near[0]}?' if near else '--help lists them'}")
    meet(given)
    flags += without_emulation(given)  # behind what was given, so that it wins
    try:
        if getattr(given, "dry_run", False):
            values = vars(parser.parse_args(flags))
            # The real run's instances are made first, so that every setting is checked.
            check_given(*parser.parse_dict({**values, **{key: MACHINE[key] for key in MACHINE if key in values}}))
            made = parser.parse_dict(rehearse(values))
        else:
            made = parser.parse_args_into_dataclasses(flags)
        return tuple(map(without_token, made))
    except FaithfulSearchError:  # many are a ValueError, too, but say already what is wrong
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
    """The settings of a YAML file, on top of those of the file it extends; a `ConfigError` if one cannot be read."""
    read: list[Path] = []
    settings: dict[str, Any] = {}
    following: Path | None = Path(path)
    while following is not None:
        # A recipe may be run away from its folder: the package has its configurations too.
        shared = shipped("recipes/configs") / following.name
        path = shared if shared.is_file() and not following.exists() else following
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


def without_token(made: Any) -> Any:
    """The settings with their Hub token moved to the environment: trainers pickle their settings beside the policy."""
    given = getattr(made, "hub_token", None), (getattr(made, "model_init_kwargs", None) or {}).pop("token", None)
    if any(given):
        os.environ["HF_TOKEN"] = str(given[0] or given[1])
    if hasattr(made, "hub_token"):
        made.hub_token = None
    return made
