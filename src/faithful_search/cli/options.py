"""What the commands share: one-line errors, `--debug`, and `--config` for options from a YAML file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from ..errors import FaithfulSearchError
from ..text import printable

INTERRUPTED = 130
FOLDER = click.Path(file_okay=False, path_type=Path)
_DEBUG = "faithful_search.debug"


def echo(message: object, err: bool = False) -> None:
    """Print what may hold words of files and servers, so that a terminal obeys none of them."""
    click.echo(printable(str(message)), err=err)


class Commands(click.Group):
    """Commands whose errors are one line, not a traceback, unless `--debug` asks for it."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except FaithfulSearchError as error:
            if ctx.meta.get(_DEBUG):
                raise
            from ..wire.redact import redact  # the tools take long to import

            echo(f"error: {redact(' '.join(str(error).split()))}", err=True)
            ctx.exit(1)
        except KeyboardInterrupt as stop:
            echo(f"\n{str(stop) or 'interrupted'}", err=True)
            ctx.exit(INTERRUPTED)


def _debug(ctx: click.Context, parameter: click.Parameter, value: bool) -> None:
    if value:
        ctx.meta[_DEBUG] = True


def _from_file(ctx: click.Context, parameter: click.Parameter, value: Path | None) -> None:
    """The options of a YAML file become the defaults; what is typed wins."""
    if value is None:
        return
    found = read_yaml(value)
    names = {option.lstrip("-"): item.name for item in ctx.command.params for option in item.opts}
    names |= {name: name for name in names.values()}
    unknown = [str(key) for key in found if str(key) not in names]
    if unknown:
        raise click.BadParameter(f"{value}: no option of this command is called {', '.join(unknown)}")
    given = {names[str(key)]: _plain(item) for key, item in found.items()}
    ctx.default_map = {**(ctx.default_map or {}), **given}


def read_yaml(path: Path) -> dict[str, Any]:
    """The options in a file. Raises `BadParameter` when it holds none."""
    import yaml

    try:
        found = yaml.safe_load(path.read_text(encoding="utf-8")) or {}
    except (OSError, UnicodeError, yaml.YAMLError) as error:
        raise click.BadParameter(f"cannot read {path}: {error}") from error
    if not isinstance(found, dict):
        raise click.BadParameter(f"{path}: expected options and their values, found {type(found).__name__}")
    return {str(key): value for key, value in found.items()}


def _plain(value: Any) -> Any:
    return ",".join(map(str, value)) if isinstance(value, list) else value


debug = click.option(
    "--debug", is_flag=True, expose_value=False, is_eager=True, callback=_debug, help="Show the traceback of an error."
)
trust_remote_code = click.option(
    "--trust-remote-code", is_flag=True, help="Run the Python code that lies beside a model, where it needs some."
)
config = click.option(
    "--config",
    type=click.Path(dir_okay=False, path_type=Path),
    expose_value=False,
    is_eager=True,
    callback=_from_file,
    help="A YAML file with options by their names; what is typed wins.",
)
