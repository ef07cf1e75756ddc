"""The server itself: bound before anything slow, ended without breaking off an answer."""

from __future__ import annotations

import ipaddress
import signal
import socket
from collections.abc import Callable
from typing import TYPE_CHECKING

from ..errors import ConfigError

if TYPE_CHECKING:
    from uvicorn import Server

    from .middleware import App

_KEEP_ALIVE = 75  # seconds an idle connection stays open: longer than clients keep theirs, or they would lose requests
_BACKLOG = 2048


def bind(host: str, port: int) -> socket.socket:
    """A socket at that address, at which clients wait for `serve`. Port 0 takes a free one.

    Raises `ConfigError` when the port is taken, the address is not of this machine, or the extra `serve` is missing.
    """
    try:
        import prometheus_client  # noqa: F401
        import starlette  # noqa: F401
        import uvicorn  # noqa: F401
    except ImportError as error:
        raise ConfigError(f"a server needs {error.name}: pip install 'faithful-search[serve]'") from error
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=_BACKLOG)
    except (OSError, UnicodeError) as error:
        why = getattr(error, "strerror", None) or error
        raise ConfigError(f"cannot listen on {host}:{port}: {why}; is another server there?") from error


def url_of(bound: socket.socket) -> str:
    """The URL of a bound socket, as a client on this machine would use it."""
    host, port = bound.getsockname()[:2]
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def is_public(bound: socket.socket) -> bool:
    """Whether other machines can reach a bound socket."""
    return not ipaddress.ip_address(bound.getsockname()[0]).is_loopback


def serve(app: App, bound: socket.socket, drain: float = 10.0, ready: Callable[[], object] = lambda: None) -> None:
    """Serve until SIGTERM or SIGINT; then no new requests, and up to `drain` seconds for those that run.

    Args:
        app: what to serve.
        bound: from `bind`; closed at the end.
        drain: seconds.
        ready: called before the first client is answered.
    """
    server = server_of(app, drain)

    def stop(*_: object) -> None:
        server.should_exit = True

    old = {number: signal.signal(number, stop) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        ready()
        server.run(sockets=[bound])  # it installs handlers of its own, and passes on to ours afterwards what came
    finally:
        for number, handler in old.items():
            signal.signal(number, handler)
        bound.close()


def server_of(app: App, drain: float) -> Server:
    """uvicorn with this application, on bounded connections."""
    import uvicorn

    from .connection import protocol

    return uvicorn.Server(
        uvicorn.Config(
            app,
            http=protocol(),
            log_level="warning",
            access_log=False,
            proxy_headers=False,
            ws="none",
            backlog=_BACKLOG,
            timeout_keep_alive=_KEEP_ALIVE,
            timeout_graceful_shutdown=max(1, round(drain)),  # it takes whole seconds
        )
    )
