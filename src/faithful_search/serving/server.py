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

from ..errors import ConfigError, needs, reason_of

if TYPE_CHECKING:
    from uvicorn import Server

    from .app import App

# Seconds an idle connection stays open: longer than clients keep theirs, or they would lose
# requests
_KEEP_ALIVE = 75
_BACKLOG = 2048

# Limits on connections; uvicorn has none, neither in time nor in size.
HEADER_SECONDS = 20.0
"""The time from a connection's opening, and from the first byte of each further request, to the end
of the headers.
"""
HEADER_BYTES = 65_536
"""The size of a request's headers."""
REFUSED_BODY_BYTES = 32_000_000
"""The size of the rest of a body that nobody reads, since the request was refused without it."""
SEND_SECONDS = 300.0
"""The time that a client may leave an answer untaken."""
MAX_PIPELINED = 64
"""The number of requests that a connection may send before the first is answered. Reading more at
once would keep others waiting.
"""
MAX_CONNECTIONS = 4096
"""The number of connections at the same time; fewer where the process may open fewer files."""
SPARE_FILES = 200
"""The number of open files that are kept for everything but connections."""


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
        raise ConfigError(
            f"cannot listen on {host}:{port}: {reason_of(error)}; is another server there?"
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
        # uvicorn installs its own handlers, and raises the signal again, for ours, when it ends.
        server.run(sockets=[bound])
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
    max_connections = min(MAX_CONNECTIONS, _max_files() - SPARE_FILES)
    clock = time.monotonic

    class LimitedProtocol(base):
        """One connection. `cycle` is uvicorn's: the request that was read last and its answer."""

        # Since when the client has sent no whole request, unless one is being answered
        silent_since: float | None
        # Since when headers are expected, unless a request is being answered
        headers_due_since: float | None
        # Since when the client takes nothing of what is sent to it
        send_blocked_since: float | None
        # What came since headers are expected: a part of them, or the body of a refused request
        bytes_before_headers: int

        def connection_made(self, transport: Transport) -> None:
            super().connection_made(transport)
            self.silent_since = clock()
            self.headers_due_since = clock()
            self.send_blocked_since = None
            self.bytes_before_headers = 0
            if len(self.connections) > max_connections:
                silent = (each for each in self.connections if each.silent_since is not None)
                longest_silent = min(silent, key=lambda each: each.silent_since)
                # It leaves `connections` only on the next turn of the event loop.
                longest_silent.silent_since = None
                longest_silent.transport.abort()

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            self._update_silence()
            if self.cycle is not None and not self.cycle.response_complete:
                self.headers_due_since = None
                self.bytes_before_headers = 0
                return
            if self.headers_due_since is None:
                self.headers_due_since = clock()
            self.bytes_before_headers += len(data)
            was_refused = self.cycle is not None and self.cycle.more_body
            if self.bytes_before_headers > (REFUSED_BODY_BYTES if was_refused else HEADER_BYTES):
                self.transport.abort()

        def on_message_begin(self) -> None:  # of httptools; h11 reads one request after the other
            if len(self.pipeline) >= MAX_PIPELINED:
                raise OverflowError("too many requests at once")
            super().on_message_begin()

        def on_response_complete(self) -> None:
            super().on_response_complete()
            self._update_silence()

        def pause_writing(self) -> None:
            super().pause_writing()
            self.send_blocked_since = clock()

        def resume_writing(self) -> None:
            super().resume_writing()
            self.send_blocked_since = None

        def _update_silence(self) -> None:
            is_whole = self.cycle is not None and not self.cycle.more_body
            is_answering = is_whole and not self.cycle.response_complete
            if is_answering or self.transport.is_closing():
                self.silent_since = None
            elif self.silent_since is None:
                self.silent_since = clock()

    class LimitedServer(uvicorn.Server):
        async def on_tick(self, counter: int) -> bool:
            def is_over(since: float | None, seconds: float) -> bool:
                return since is not None and clock() - since > seconds

            connections: list[Any] = list(self.server_state.connections)
            for connection in connections:
                headers_are_late = is_over(connection.headers_due_since, HEADER_SECONDS)
                if headers_are_late or is_over(connection.send_blocked_since, SEND_SECONDS):
                    connection.transport.abort()
            return await super().on_tick(counter)

    return LimitedServer(
        uvicorn.Config(
            app,
            http=LimitedProtocol,
            log_level="warning",
            access_log=False,
            proxy_headers=False,
            ws="none",
            backlog=_BACKLOG,
            timeout_keep_alive=_KEEP_ALIVE,
            timeout_graceful_shutdown=max(1, round(drain)),  # it takes whole seconds
        )
    )


def _max_files() -> int:
    """The number of files that the process may have open, counted as at least 2 × `SPARE_FILES`: at
    a lower limit the server still takes connections, as long as there are files.
    """
    enough = MAX_CONNECTIONS + SPARE_FILES
    try:
        import resource
    except ImportError:  # Windows
        return enough
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return enough
    return max(soft, 2 * SPARE_FILES)
