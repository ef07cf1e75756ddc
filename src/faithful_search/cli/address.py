"""What the commands share that serve: where they listen, under which names, and for whom."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import click

from ..errors import ConfigError
from .options import echo

if TYPE_CHECKING:
    from socket import socket

    from ..serving.app import App

F = TypeVar("F", bound=Callable[..., Any])
_PORT = click.IntRange(0, 65535)
_SECONDS = click.FloatRange(min=0.1)


def address_options(port: int) -> Callable[[F], F]:
    """The options of where a command listens and for whom; it gets them as `**where`, for `Address`."""
    options = (
        click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on; 0.0.0.0 for all."),
        click.option(
            "--port", type=click.IntRange(0, 65535), default=port, show_default=True, help="0 takes a free one."
        ),
        click.option(
            "--allow-host",
            default="",
            help="Names that clients call this server by, with commas between; IPs need none.",
        ),
        click.option("--without-token", is_flag=True, help="Serve everybody at an address that others can reach."),
        click.option(
            "--drain", type=_SECONDS, default=10.0, show_default=True, help="Seconds for running requests at the end."
        ),
    )

    def add(command: F) -> F:
        for option in reversed(options):
            command = option(command)
        return command

    return add


@dataclass(frozen=True)
class Address:
    """Where a command listens and for whom: its options of the same names."""

    host: str
    port: int
    allow_host: str
    without_token: bool
    drain: float

    def bind(self) -> socket:
        """A socket, not yet listening.

        Raises:
            ConfigError: when the address cannot be had, or when others could use it and nobody said that they may.
        """
        from ..serving.server import bind, is_public
        from ..tools.remote_search import TOKEN

        bound = bind(self.host, self.port)
        if not is_public(bound) or self.without_token or _token():
            return bound
        bound.close()
        raise ConfigError(
            f"anybody who reaches {self.host} could use this server: set {TOKEN} to a token that clients must send, "
            "or say --without-token"
        )

    def serve(self, app: App, bound: socket, line: str) -> None:
        """Serve for those who know the token of the environment, all where there is none; `line` says it is ready."""
        from ..serving.layers import guarded
        from ..serving.server import serve

        names = [name.strip() for name in (self.host, *self.allow_host.split(",")) if name.strip()]
        serve(guarded(app, _token()), bound, self.drain, lambda: echo(line), names)


def _token() -> str:
    from ..tools.remote_search import TOKEN

    return os.environ.get(TOKEN, "")
