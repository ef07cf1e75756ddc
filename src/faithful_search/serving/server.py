"""The server itself: bound before anything slow, kept from slow clients, ended without breaking off
an answer.
"""

import ipaddress
import signal
import socket
import time
from asyncio import Transport
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ..errors import ConfigError, needs

if TYPE_CHECKING:
    from uvicorn import Server

    from .app import App

# Seconds an idle connection stays open: longer than clients keep theirs, or they would lose
# requests
_KEEP_ALIVE = 75
_BACKLOG = 2048

# Of connections, which uvicorn limits neither in time nor in size:
# From a connection's opening, and from each further request's first byte, to the end of its headers
SECONDS = 20.0
BYTES = 65_536  # of the headers of a request
# Bytes of a body that came too late to be read, because the request was refused without it
UNREAD = 32_000_000
UNTAKEN = 300.0  # seconds in which a client takes what is sent to it
PIPELINED = (
    64  # requests before the first answer: reading more of them at once would keep others waiting
)
OPEN = 4096  # connections at the same time, fewer where the process may not open as many files
FILES = 200  # kept for everything that is no connection of a client


def bind(host: str, port: int) -> socket.socket:
    """A socket at that address, at which clients wait for `serve`; port 0 takes a free one. Raises
    `ConfigError` when it cannot be had, or the extra `serve` is missing.
    """
    with needs("a server", "serve"):
        import prometheus_client  # noqa: F401
        import starlette  # noqa: F401
        import uvicorn  # noqa: F401
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=_BACKLOG)
    except (OSError, UnicodeError) as error:
        why = getattr(error, "strerror", None) or error
        raise ConfigError(
            f"cannot listen on {host}:{port}: {why}; is another server there?"
        ) from error


def url_of(bound: socket.socket) -> str:
    """The URL of a bound socket, as a client on this machine would use it."""
    host, port = bound.getsockname()[:2]
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def is_public(bound: socket.socket) -> bool:
    """Whether other machines can reach a bound socket."""
    return not ipaddress.ip_address(bound.getsockname()[0]).is_loopback


def serve(
    app: "App",
    bound: socket.socket,
    drain: float = 10.0,
    ready: Callable[[], object] = lambda: None,
) -> None:
    """Serve at a socket of `bind` until SIGTERM or SIGINT; then no new requests, and up to `drain`
    seconds for those that run. `ready` is called before the first client is answered.
    """
    server = server_of(app, drain)

    def stop(*_: object) -> None:
        server.should_exit = True

    old = {number: signal.signal(number, stop) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        ready()
        server.run(
            sockets=[bound]
        )  # it installs handlers of its own, and passes on to ours afterwards what came
    finally:
        for number, handler in old.items():
            signal.signal(number, handler)
        bound.close()


def server_of(app: "App", drain: float) -> "Server":
    """uvicorn with this application, and with limits on connections.

    It closes connections that are slow or send too much before their request begins, or do not take
    their answer; and when there are too many, the one whose client has been silent or sending for
    longest, so that slow clients never keep out others. None is closed whose request is being
    answered.
    """
    import uvicorn
    from uvicorn.protocols.http.auto import AutoHTTPProtocol

    base: Any = AutoHTTPProtocol
    most = min(OPEN, _files() - FILES)
    clock = time.monotonic

    class PromptProtocol(base):
        unread = 0  # bytes since its headers should have come

        def connection_made(self, transport: Transport) -> None:
            super().connection_made(transport)
            # since when there is no whole request, its headers do not come, its answer is not taken
            self.unasked: float | None = clock()
            self.late: float | None = clock()
            self.untaken: float | None = None
            if len(self.connections) > most:
                waiting = (each for each in self.connections if each.unasked is not None)
                eldest = min(waiting, key=lambda each: each.unasked)
                eldest.unasked = None  # it is lost only when the event loop comes round
                eldest.transport.abort()

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            self.note()
            if self.cycle is not None and not self.cycle.response_complete:
                self.late, self.unread = None, 0
                return
            self.late, self.unread = self.late or clock(), self.unread + len(data)
            refused = self.cycle is not None and self.cycle.more_body
            if self.unread > (UNREAD if refused else BYTES):
                self.transport.abort()

        def on_message_begin(self) -> None:  # of httptools; h11 reads one request after the other
            if len(self.pipeline) >= PIPELINED:
                raise OverflowError("too many requests at once")
            super().on_message_begin()

        def on_response_complete(self) -> None:
            super().on_response_complete()
            self.note()

        def pause_writing(self) -> None:
            super().pause_writing()
            self.untaken = clock()

        def resume_writing(self) -> None:
            super().resume_writing()
            self.untaken = None

        def note(self) -> None:
            # a connection whose request is whole is being answered
            received = self.cycle is not None and not (
                self.cycle.more_body or self.cycle.response_complete
            )
            self.unasked = (
                None if received or self.transport.is_closing() else self.unasked or clock()
            )

    class Bounded(uvicorn.Server):
        async def on_tick(self, counter: int) -> bool:
            connections: list[Any] = list(self.server_state.connections)
            for each in connections:
                since = [(each.late, SECONDS), (each.untaken, UNTAKEN)]
                if any(start is not None and clock() - start > seconds for start, seconds in since):
                    each.transport.abort()
            return await super().on_tick(counter)

    return Bounded(
        uvicorn.Config(
            app,
            http=PromptProtocol,
            log_level="warning",
            access_log=False,
            proxy_headers=False,
            ws="none",
            backlog=_BACKLOG,
            timeout_keep_alive=_KEEP_ALIVE,
            timeout_graceful_shutdown=max(1, round(drain)),  # it takes whole seconds
        )
    )


def _files() -> int:
    """How many files the process may have open."""
    try:
        import resource
    except ImportError:  # Windows
        return OPEN + FILES
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return OPEN + FILES if soft == resource.RLIM_INFINITY else max(soft, 2 * FILES)
