"""What the commands share: output and errors, common options, and options made from the fields of a
settings class (`flags`).
"""

import difflib
import math
import re
from collections.abc import Callable, Iterable
from dataclasses import MISSING, fields
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, NoReturn, TypeVar, Union, get_args, get_origin, get_type_hints

import click

from ..errors import ConfigError, DataError, FaithfulSearchError
from ..escape import as_line, printable
from ..flags import at_home, old_name_line
from ..judges import Judge
from ..judges.arguments import JudgeArguments
from ..wire.redact import redact
from ..yaml_files import load_yaml
from ..yaml_kinds import check_kind

UNFINISHED, UNMET, INTERRUPTED = 3, 4, 130
SHOWN = 5
"""The number of rows that a command names if rows were left out. The files name all of them."""
FOLDER = click.Path(file_okay=False, path_type=Path)
FILE = click.Path(dir_okay=False, path_type=Path)
ANY_PATH = click.Path(path_type=Path)


class NumberRange(click.FloatRange):
    """A number within bounds. NaN, which no bound excludes, is refused."""

    def convert(
        self, value: Any, param: click.Parameter | None, context: click.Context | None
    ) -> Any:
        number = super().convert(value, param, context)
        if math.isnan(number):
            self.fail(f"{value!r} is not a number", param, context)
        return number


AT_LEAST_1 = click.IntRange(min=1)
DEBUG = "faithful_search.debug"
_FLAG = re.compile(r"(?<![\w/-])--[a-z]+(?:_[a-z0-9]+)+\b")
_OFF = {"judge_together": "--judge-apart"}
"""The flags that switch fields off, by field, for fields that are on by default."""
F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")


def echo(message: object, err: bool = False) -> None:
    """Print a text of several lines. Its names from files and servers must be escaped already."""
    click.echo(printable(str(message)), err=err)


def say(*lines: str, err: bool = False) -> None:
    """Print lines that may hold text from files and servers: it is escaped, and begins no line."""
    for line in lines:
        click.echo(as_line(line), err=err)


def exit_unfinished(lines: Iterable[str]) -> NoReturn:
    """Print these lines and end with the exit code of a command that did not finish all its
    work.
    """
    say(*lines, err=True)
    raise click.exceptions.Exit(UNFINISHED)


def exit_unmet(lines: Iterable[str]) -> NoReturn:
    """Print these lines and end with the exit code for requirements that are not met."""
    say(*lines, err=True)
    raise click.exceptions.Exit(UNMET)


def as_typed(message: str) -> str:
    """A message with its flags spelled as commands spell them. Recipes, which share settings with
    commands, write `--web_search`.

    Example:
        >>> as_typed("--web_search searxng and --searxng_url go together")
        '--web-search searxng and --searxng-url go together'
    """
    return _FLAG.sub(lambda flag: flag[0].replace("_", "-"), message)


class Commands(click.Group):
    """Commands whose errors are a single line. `--debug` shows the traceback, too."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        return super().parse_args(ctx, at_home(args))

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except FaithfulSearchError as error:
            if ctx.meta.get(DEBUG):
                raise
            message = as_typed(" ".join(str(error).split()))
            # Redacted, since it may quote a request or an address with a key
            say(f"error: {redact(message)}", err=True)
            ctx.exit(1)
        except KeyboardInterrupt as stop:
            say("", str(stop) or "interrupted", err=True)
            ctx.exit(INTERRUPTED)


def together(*options: Callable[[F], F]) -> Callable[[F], F]:
    """One decorator for several options."""

    def add(command: F) -> F:
        for option in reversed(options):
            command = option(command)
        return command

    return add


class OldName(click.Option):
    """An option under its name of the last release. It works, and prints its new name."""

    def __init__(self, old: str, new: str) -> None:
        super().__init__(
            [old, f"old_{old.strip('-').replace('-', '_')}"],
            hidden=True,
            expose_value=False,
            is_eager=True,  # the value must be a default before the new option is read
            callback=self._hand_on,
        )
        self.old, self.new = old, new

    def successor(self, command: click.Command) -> click.Parameter:
        return next(option for option in command.params if self.new in option.opts)

    def say(self) -> None:
        say(old_name_line(self.old, self.new), err=True)

    def _hand_on(self, ctx: click.Context, parameter: click.Parameter, value: str | None) -> None:
        if value is not None:
            self.say()
            name = self.successor(ctx.command).name
            ctx.default_map = {**(ctx.default_map or {}), str(name): value}


def old_name(old: str, new: str) -> Callable[[F], F]:
    """A decorator that lets a command take an option by its name of the last release."""

    def add(command: F) -> F:
        # As `click.option` does: the command, which is made last, collects them
        vars(command).setdefault("__click_params__", []).append(OldName(old, new))
        return command

    return add


def flags(settings: type) -> Callable[[F], F]:
    """A decorator that gives a command an option for each field of a dataclass, with the field's
    name, type, default and help text.
    """
    hints = get_type_hints(settings)
    options = []
    for setting in fields(settings):
        hint = hints[setting.name]
        flag = f"--{setting.name.replace('_', '-')}"
        kind = _without_none(hint)
        arguments: dict[str, Any] = {"type": kind}
        if get_origin(kind) is Literal:
            arguments = {"type": click.Choice(get_args(kind))}
        elif kind is bool:
            arguments = {"is_flag": True}
            if setting.name in _OFF:
                flag += f"/{_OFF[setting.name]}"
        elif setting.metadata.get("several"):
            arguments = {"type": str, "multiple": True}
        elif get_origin(kind) is tuple:
            arguments = {"callback": _listed}
        default = None if setting.default is MISSING else setting.default
        text = setting.metadata["help"]
        option = click.option(
            flag,
            *setting.metadata.get("aliases", ()),
            setting.name,
            help=f"{text[0].upper()}{text[1:].removesuffix('.')}.",
            default=default,
            show_default=default not in (None, "", False, ()),  # these say nothing
            **arguments,
        )
        options.append(option)
    return together(*options)


def _without_none(hint: Any) -> Any:
    """Of `int | None` the part that is not `None`; any other hint as it is."""
    if get_origin(hint) not in (Union, UnionType):
        return hint
    return next(part for part in get_args(hint) if part is not NoneType)


def _listed(
    ctx: click.Context, parameter: click.Parameter, value: str | None
) -> tuple[str, ...] | None:
    """The names in a text that separates them by commas."""
    if value is None:
        return None
    return tuple(name.strip() for name in value.split(",") if name.strip())


def settings_from(settings: type[T], options: dict[str, Any]) -> T:
    """The settings that are among the options. Raises `UsageError` for a value that is not
    allowed.
    """
    names = [setting.name for setting in fields(settings)]  # type: ignore[arg-type]
    try:
        return settings(**{name: options[name] for name in names})
    except ConfigError as error:
        first, _, predicate = str(error).partition(" ")
        # The error names the field, a user of the command knows the flag
        message = f"--{first} {predicate}" if first in names else str(error)
        raise click.UsageError(as_typed(message)) from error


def judge_of(options: dict[str, Any]) -> Judge | None:
    """The judge that the options of `judge_flags` name; `None` if words are to be compared."""
    try:
        return settings_from(JudgeArguments, options).load_judge()
    except ConfigError as error:
        raise click.UsageError(as_typed(str(error))) from error


def read_yaml(path: Path) -> dict[str, Any]:
    """The options in a file. Raises `BadParameter` where it cannot be read or is not a mapping."""
    try:
        settings = load_yaml(path) or {}
    except DataError as error:
        raise click.BadParameter(str(error)) from error
    if not isinstance(settings, dict):
        raise click.BadParameter(
            f"{path}: expected options and their values, found {type(settings).__name__}"
        )
    return {str(key): at_home(value) for key, value in settings.items()}


def _from_file(ctx: click.Context, parameter: click.Parameter, value: Path | None) -> None:
    """Make the options in a YAML file the defaults, so that options on the command line win."""
    settings = read_yaml(value) if value else {}
    options = {}
    for option in ctx.command.params:
        for name in (option.name, *option.opts):
            options[str(name).lstrip("-")] = option
    unknown = [key for key in settings if key not in options]
    if unknown:
        near = difflib.get_close_matches(unknown[0], options, n=1)
        advice = f"did you mean {near[0]}?" if near else "--help lists those there are"
        raise click.BadParameter(
            f"{value}: this command has no option {', '.join(unknown)}; {advice}"
        )
    defaults: dict[str, Any] = {}
    for key, setting in settings.items():
        option = options[key]
        if isinstance(option, OldName):
            option.say()
            option = option.successor(ctx.command)
        try:
            check_kind(f"{value}: {key}", setting, _kind_in_file(option))
        except ConfigError as error:
            raise click.BadParameter(str(error)) from error
        if option.multiple:
            setting = setting if isinstance(setting, list) else [setting]
        elif isinstance(setting, list):  # other options take several values by commas
            setting = ",".join(map(str, setting))
        defaults[str(option.name)] = setting
    ctx.default_map = {**defaults, **(ctx.default_map or {})}


def _kind_in_file(option: click.Parameter) -> Any:
    """The type of the values that a file may give an option, as `check_kind` takes it."""
    kind: Any = str
    if isinstance(option, click.Option) and option.is_flag:
        kind = bool
    elif isinstance(option.type, click.types.IntParamType):
        kind = int
    elif isinstance(option.type, click.types.FloatParamType):
        kind = float
    elif not option.multiple and not isinstance(option.type, (click.Path, click.Choice)):
        kind = str | list[str | float]  # which are joined by commas
    if option.multiple:
        kind = kind | list[kind]
    return kind | None  # as if the file did not name the option


def _debug(ctx: click.Context, parameter: click.Parameter, value: bool) -> None:
    if value:  # --debug stands before or after the command's name
        ctx.meta[DEBUG] = True


debug = click.option(
    "--debug",
    is_flag=True,
    expose_value=False,
    callback=_debug,
    help="Show the traceback of an error.",
)
trust_remote_code = click.option(
    "--trust-remote-code", is_flag=True, help="Allow a model to run the Python code beside it."
)
config = click.option(
    "--config",
    type=FILE,
    expose_value=False,
    is_eager=True,  # the defaults must be there before other options are read
    callback=_from_file,
    help="YAML file with options by their names. Options on the command line win.",
)
judge_flags = flags(JudgeArguments)
