"""The server itself: bound before anything slow, ended without breaking off an answer."""

from __future__ import annotations

import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from ..errors import ConfigError
from .layers import addressed, is_loopback

if TYPE_CHECKING:
    from uvicorn import Server

    from .app import App

_KEEP_ALIVE = 75  # seconds an idle connection stays open: longer than clients keep theirs, or they would lose requests
_BACKLOG = 2048


def bind(host: str, port: int) -> socket.socket:
    """A socket at that address, on which clients are refused until `serve`. Port 0 takes a free one.

    Raises `ConfigError` when the port is taken or the address is not of this machine.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        bound = socket.socket(family, kind, protocol)
    except (OSError, UnicodeError, OverflowError) as error:
        raise ConfigError(f"cannot listen on {host}:{port}: {error}") from error
    # a server that was ended leaves its port reserved for a while
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        bound.bind(address)
    except OSError as error:
        bound.close()
        raise ConfigError(f"cannot listen on {host}:{port}: {error.strerror}; is another server there?") from error
    return bound


def url_of(bound: socket.socket) -> str:
    """The URL of a bound socket, as a client on this machine would use it."""
    host, port = bound.getsockname()[:2]
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def is_public(bound: socket.socket) -> bool:
    """Whether other machines can reach a bound socket."""
    return not is_loopback(bound.getsockname()[0])


def serve(
    app: App,
    bound: socket.socket,
    drain: float = 10.0,
    ready: Callable[[], object] = lambda: None,
    names: Sequence[str] = (),
) -> None:
    """Serve until SIGTERM or SIGINT; then no new requests, and up to `drain` seconds for those that run.

    Args:
        app: what to serve.
        bound: from `bind`; closed at the end.
        drain: seconds.
        ready: called as soon as clients can connect.
        names: of this server, besides its addresses, see `layers.addressed`.

    Raises:
        ConfigError: when another server has begun to listen there since `bind`.
    """
    server = _server(app, drain, names)

    def stop(*_: object) -> None:
        server.should_exit = True

    old = {number: signal.signal(number, stop) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        bound.listen(_BACKLOG)  # from now on clients are queued, so that none told of it by `ready` is refused
        ready()
        server.run(sockets=[bound])  # it installs handlers of its own, and passes on to ours afterwards what came
    except OSError as error:
        raise ConfigError(f"cannot listen on {url_of(bound)}: {error.strerror}") from error
    finally:
        for number, handler in old.items():
            signal.signal(number, handler)
        bound.close()


@contextmanager
def running(app: App, host: str = "127.0.0.1", drain: float = 10.0) -> Iterator[str]:
    """Serve on a free port from a thread, for tests and notebooks; gives the URL."""
    bound = bind(host, 0)
    server = _server(app, drain)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [bound]}, name="faithful-search-serve", daemon=True)
    thread.start()
    while not server.started and thread.is_alive():  # one that cannot start would be waited for without end
        time.sleep(0.005)
    try:
        yield url_of(bound)
    finally:
        server.should_exit = True
        thread.join(drain + 5)
        bound.close()


def _server(app: App, drain: float, names: Sequence[str] = ()) -> Server:
    try:
        import uvicorn

        from .connection import protocol
    except ImportError as error:
        raise ConfigError("a server needs uvicorn: pip install 'faithful-search[serve]'") from error
    return uvicorn.Server(
        uvicorn.Config(
            addressed(app, names),
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
