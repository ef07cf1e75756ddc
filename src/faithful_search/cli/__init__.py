"""The command `faithful-search`: ask, audit, compare, convert, download data, label, train,
evaluate, index, serve, merge, publish on the Hub, write episodes for a cold start.

Exit codes: 0 done; 1 it could not be done, the message says why; 2 wrong usage; 3 an audit or a
labelling that ended with rows that could not be read or judged; 4 a requirement that an audit does
not meet, or a regression; 130 interrupted.

Commands import what they need inside their functions, so that `--help` and usage errors come at
once.
"""

import sys
from io import TextIOWrapper

import click

from .. import __version__
from .asking import ask
from .cheating import gauntlet
from .controlling import controls
from .data import data
from .looking_up import answerable
from .measuring import agreement, audit, compare, convert, label, metrics
from .options import Commands, debug
from .pushing import merge, push
from .serving import demo, index, serve, serve_judge, serve_reward
from .training import Recipe, evaluate, train
from .writing import write_episodes

_SPELLING = {
    "help_option_names": ["-h", "--help"],
    "max_content_width": 110,
    "show_default": True,
    "token_normalize_func": lambda token: token.replace("_", "-"),  # the recipes' --judge_url, too
}


@click.group(cls=Commands, context_settings=_SPELLING)
@click.version_option(__version__, prog_name="faithful-search")
@debug
def cli() -> None:
    """Search agents that use their evidence: train them, and measure whether they do."""


for command in (
    *(agreement, answerable, ask, audit, compare, controls, convert, data, demo, evaluate),
    *(gauntlet, index, label, merge, metrics, push, serve, serve_judge, serve_reward, train),
    write_episodes,
):
    cli.add_command(command)
    # A command and its subcommands take --debug; the group above takes it in front of their names
    subcommands = command.commands.values() if isinstance(command, click.Group) else [command]
    for subcommand in subcommands:
        if not isinstance(subcommand, Recipe):  # which reads its arguments itself
            debug(subcommand)


def main() -> None:
    """The entry point of the command."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):  # an old code page lacks κ and the lines of tables
            stream.reconfigure(errors="replace")
    cli(prog_name="faithful-search")
