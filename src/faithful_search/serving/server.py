"""The server itself: bound before anything slow, kept from slow clients, ended without breaking off an answer."""

from __future__ import annotations

import asyncio
import ipaddress
import signal
import socket
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ..errors import ConfigError

if TYPE_CHECKING:
    from uvicorn import Server

    from .app import App

_KEEP_ALIVE = 75  # seconds an idle connection stays open: longer than clients keep theirs, or they would lose requests
_BACKLOG = 2048

# Of connections, which uvicorn limits neither in time nor in size:
SECONDS = 20.0  # from a connection's opening, and from each further request's first byte, to the end of its headers
BYTES = 65_536  # of the headers of a request
UNREAD = 32_000_000  # bytes of a body that came too late to be read, because the request was refused without it
UNTAKEN = 300.0  # seconds in which a client takes what is sent to it
PIPELINED = 64  # requests before the first answer: reading more of them at once would keep others waiting
OPEN = 4096  # connections at the same time, fewer where the process may not open as many files
FILES = 200  # kept for everything that is no connection of a client


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

    return uvicorn.Server(
        uvicorn.Config(
            app,
            http=_protocol(),
            log_level="warning",
            access_log=False,
            proxy_headers=False,
            ws="none",
            backlog=_BACKLOG,
            timeout_keep_alive=_KEEP_ALIVE,
            timeout_graceful_shutdown=max(1, round(drain)),  # it takes whole seconds
        )
    )


def _protocol() -> type[Any]:
    """uvicorn's fastest HTTP protocol, which closes connections that dawdle or babble before their request begins, or
    do not take their answer.

    When there are too many, the one is closed whose client has been silent or sending for longest, so that slow clients
    never keep out others. None is closed whose request is being answered.
    """
    from uvicorn.protocols.http.auto import AutoHTTPProtocol

    base: Any = AutoHTTPProtocol
    most = min(OPEN, _files() - FILES)
    unasked: dict[Any, None] = {}  # connections without a whole request, the eldest first

    class Prompt(base):
        _waiting = 0  # bytes of a request whose headers are not complete

        def connection_made(self, transport: asyncio.Transport) -> None:
            super().connection_made(transport)
            self._timers: dict[str, asyncio.TimerHandle] = {}
            unasked[self] = None
            if len(self.connections) > most:
                eldest = next(iter(unasked))
                del unasked[eldest]  # it is lost only when the event loop comes round
                eldest.transport.abort()
            self._hang_up_after(SECONDS, "headers")

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            self._note()
            if self.cycle is not None and not self.cycle.response_complete:
                self._waiting = 0
                return self._never_mind("headers")
            self._waiting += len(data)
            refused = self.cycle is not None and self.cycle.more_body
            if self._waiting > (UNREAD if refused else BYTES):
                return self.transport.abort()
            return self._hang_up_after(SECONDS, "headers")

        def on_message_begin(self) -> None:  # of httptools; h11 reads one request after the other
            if len(self.pipeline) >= PIPELINED:
                raise OverflowError("too many requests at once")
            super().on_message_begin()

        def on_response_complete(self) -> None:
            super().on_response_complete()
            self._note()

        def pause_writing(self) -> None:
            super().pause_writing()
            self._hang_up_after(UNTAKEN, "taking")

        def resume_writing(self) -> None:
            super().resume_writing()
            self._never_mind("taking")

        def connection_lost(self, error: Exception | None) -> None:
            unasked.pop(self, None)
            for what in list(self._timers):
                self._never_mind(what)
            super().connection_lost(error)

        def _note(self) -> None:
            # a connection whose request is whole is being answered, and is never closed for others
            whole = self.cycle is not None and not (self.cycle.more_body or self.cycle.response_complete)
            if whole or self.transport.is_closing():
                unasked.pop(self, None)
            else:
                unasked.setdefault(self)

        def _hang_up_after(self, seconds: float, what: str) -> None:
            if what not in self._timers:
                self._timers[what] = asyncio.get_running_loop().call_later(seconds, self.transport.abort)

        def _never_mind(self, what: str) -> None:
            if timer := self._timers.pop(what, None):
                timer.cancel()

    return Prompt


def _files() -> int:
    """How many files the process may have open."""
    try:
        import resource
    except ImportError:  # Windows
        return OPEN + FILES
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return OPEN + FILES if soft == resource.RLIM_INFINITY else max(soft, 2 * FILES)
