"""What the commands share: errors of one line, common options, and options made of the fields of a settings class."""

from collections.abc import Callable, Iterable
from dataclasses import MISSING, fields
from pathlib import Path
from types import NoneType
from typing import Any, Literal, NoReturn, TypeVar, get_args, get_origin, get_type_hints

import click

from ..errors import ConfigError, FaithfulSearchError
from ..judges import Judge
from ..judges.arguments import JudgeArguments
from ..text import printable
from ..wire.redact import redact

UNFINISHED, INTERRUPTED = 3, 130
SHOWN = 5
"""Rows that are named where some are left out; files have the others."""
FOLDER = click.Path(file_okay=False, path_type=Path)
FILE = click.Path(dir_okay=False, path_type=Path)
ANY_PATH = click.Path(path_type=Path)
AT_LEAST_1 = click.IntRange(min=1)
_DEBUG = "faithful_search.debug"
_OFF = {"judge_together": "--judge-apart"}
"""By field that is on by default, the flag that says no."""
F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")


def echo(message: object, err: bool = False) -> None:
    """Print text that may come from files and servers: control characters in it are spelled out."""
    click.echo(printable(str(message)), err=err)


def unfinished(lines: Iterable[str]) -> NoReturn:
    """End with the exit code of a command that has done less than all, saying what is open."""
    echo("\n".join(lines), err=True)
    raise click.exceptions.Exit(UNFINISHED)


class Commands(click.Group):
    """Commands whose errors are one line, not a traceback, unless `--debug` asks for it."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except FaithfulSearchError as error:
            if ctx.meta.get(_DEBUG):
                raise
            # An error may quote a request or an address with its key
            echo(f"error: {redact(' '.join(str(error).split()))}", err=True)
            ctx.exit(1)
        except KeyboardInterrupt as stop:
            echo(f"\n{str(stop) or 'interrupted'}", err=True)
            ctx.exit(INTERRUPTED)


def together(*options: Callable[[F], F]) -> Callable[[F], F]:
    """One decorator for several options."""

    def add(command: F) -> F:
        for option in reversed(options):
            command = option(command)
        return command

    return add


def flags(settings: type) -> Callable[[F], F]:
    """Give a command an option for each field of a dataclass: name, type, default and `help` are the field's."""
    hints, options = get_type_hints(settings), []
    for item in fields(settings):
        hint = hints[item.name]
        names = [f"--{item.name.replace('_', '-')}", *item.metadata.get("aliases", ()), item.name]
        # of `int | None` the part that is not None
        kind = next(kind for kind in (*get_args(hint), hint) if kind is not NoneType)
        how: dict[str, Any] = {"type": kind}
        if get_origin(hint) is Literal:
            how = {"type": click.Choice(get_args(hint))}
        elif kind is bool:
            names[0] += f"/{_OFF[item.name]}" if item.name in _OFF else ""
            how = {"is_flag": True}
        elif get_origin(kind) is tuple:
            how = {"callback": _listed}
        default = None if item.default is MISSING else item.default
        how |= {
            "default": default,
            "show_default": default not in (None, "", False),
        }  # which say nothing
        text = item.metadata["help"]
        options.append(click.option(*names, help=f"{text[0].upper()}{text[1:]}.", **how))
    return together(*options)


def _listed(
    ctx: click.Context, parameter: click.Parameter, value: str | None
) -> tuple[str, ...] | None:
    return (
        None if value is None else tuple(name.strip() for name in value.split(",") if name.strip())
    )


def taken(settings: type[T], given: dict[str, Any]) -> T:
    """The settings among the options. Raises `UsageError` for a value that they refuse."""
    try:
        return settings(**{item.name: given[item.name] for item in fields(settings)})  # type: ignore[arg-type]
    except ConfigError as error:
        raise click.UsageError(str(error)) from error


def judge_of(given: dict[str, Any]) -> Judge | None:
    """The judge that `judge_flags` name; `None` is the comparison of words."""
    try:
        return taken(JudgeArguments, given).load_judge()
    except ConfigError as error:
        raise click.UsageError(str(error)) from error


def read_yaml(path: Path) -> dict[str, Any]:
    """The options in a file. Raises `BadParameter` where it cannot be read or is not a mapping."""
    import yaml

    try:
        found = yaml.safe_load(path.read_text(encoding="utf-8")) or {}
    except (OSError, UnicodeError, yaml.YAMLError) as error:
        raise click.BadParameter(f"cannot read {path}: {error}") from error
    if not isinstance(found, dict):
        raise click.BadParameter(
            f"{path}: expected options and their values, found {type(found).__name__}"
        )
    return {str(key): value for key, value in found.items()}


def _from_file(ctx: click.Context, parameter: click.Parameter, value: Path | None) -> None:
    """The options in a YAML file become the defaults; options on the command line win."""
    found = read_yaml(value) if value else {}
    names = {option.lstrip("-"): item.name for item in ctx.command.params for option in item.opts}
    names |= {name: name for name in names.values()}
    if unknown := [key for key in found if key not in names]:
        raise click.BadParameter(f"{value}: this command has no option {', '.join(unknown)}")
    # The options that take several values take them by commas
    plain = {
        key: ",".join(map(str, item)) if isinstance(item, list) else item
        for key, item in found.items()
    }
    ctx.default_map = {
        **(ctx.default_map or {}),
        **{names[key]: item for key, item in plain.items()},
    }


def _debug(ctx: click.Context, parameter: click.Parameter, value: bool) -> None:
    if value:  # --debug stands before or after the command's name
        ctx.meta[_DEBUG] = True


debug = click.option(
    "--debug", is_flag=True, expose_value=False, callback=_debug, help="Show an error's traceback."
)
trust_remote_code = click.option(
    "--trust-remote-code", is_flag=True, help="Run the Python code beside a model."
)
config = click.option(
    "--config",
    type=FILE,
    expose_value=False,
    is_eager=True,  # the defaults must be there before other options are read
    callback=_from_file,
    help="A YAML file with options by their names; the command line wins.",
)
judge_flags = flags(JudgeArguments)
