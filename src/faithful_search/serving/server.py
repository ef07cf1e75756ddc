"""The server itself: uvicorn with limits on its connections.

Its socket is bound before anything slow is loaded, slow clients keep out no others, and it ends
without breaking off an answer.
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

# Seconds that an idle connection stays open: longer than clients keep theirs, or a request could
# meet a connection that is being closed.
_KEEP_ALIVE = 75
_BACKLOG = 2048  # connections that wait to be accepted

# Limits on a connection that uvicorn lacks.
# Seconds for the headers of a request: from the opening of the connection, or the first byte of a
# further request, to their end
SECONDS = 20.0
BYTES = 65_536  # of the headers of a request
# Bytes of a body that are taken and dropped, when the request was refused before it came
UNREAD = 32_000_000
UNTAKEN = 300.0  # seconds in which a client takes what is sent to it
# Requests that are sent before the first is answered; to read more of them at once would keep other
# clients waiting
PIPELINED = 64
OPEN = 4096  # connections at the same time; fewer where the process may not open as many files
FILES = 200  # that a process opens besides the connections


def bind(host: str, port: int) -> socket.socket:
    """A socket at that address, at which clients wait for `serve`.

    Args:
        port: 0 takes a free one.

    Raises:
        ConfigError: the address cannot be had, or the extra `serve` is missing.
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
    """Serve until SIGTERM or SIGINT. Then no new requests are taken.

    Args:
        bound: a socket of `bind`.
        drain: seconds for the requests that run at the end.
        ready: called before the first client is answered.
    """
    server = server_of(app, drain)

    def stop(*_: object) -> None:
        server.should_exit = True

    former_handlers = {}
    for number in (signal.SIGTERM, signal.SIGINT):
        former_handlers[number] = signal.signal(number, stop)
    try:
        ready()
        # While it runs it has handlers of its own; at its end it raises the signals again, which
        # `stop` then takes.
        server.run(sockets=[bound])
    finally:
        for number, handler in former_handlers.items():
            signal.signal(number, handler)
        bound.close()


def server_of(app: "App", drain: float) -> "Server":
    """uvicorn with this application, and with limits on connections.

    It closes connections that are slow or send too much before their request is complete, or do not
    take their answer. When there are too many, it closes the one that has been without a complete
    request for longest, so that slow clients never keep out others. None is closed whose request is
    being answered.
    """
    import uvicorn
    from uvicorn.protocols.http.auto import AutoHTTPProtocol

    base: Any = AutoHTTPProtocol
    most_connections = min(OPEN, _most_open_files() - FILES)
    clock = time.monotonic

    class PromptProtocol(base):
        """One connection. `cycle` is uvicorn's state of its latest request."""

        unread = 0  # bytes that came while no request was being answered

        def connection_made(self, transport: Transport) -> None:
            super().connection_made(transport)
            # Since when there is no complete request, the headers of one are awaited, and the
            # client takes nothing; `None` where that is not so.
            self.no_request_since: float | None = clock()
            self.no_headers_since: float | None = clock()
            self.untaken_since: float | None = None
            if len(self.connections) > most_connections:
                waiting = [each for each in self.connections if each.no_request_since is not None]
                longest = min(waiting, key=lambda each: each.no_request_since)
                # It leaves `connections` only in the next turn of the event loop: it must not be
                # chosen again until then.
                longest.no_request_since = None
                longest.transport.abort()

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            self.update_no_request_since()
            is_answering = self.cycle is not None and not self.cycle.response_complete
            if is_answering:
                self.no_headers_since = None
                self.unread = 0
                return
            self.no_headers_since = self.no_headers_since or clock()
            self.unread += len(data)
            # Answered before its body came: the rest of that is still arriving.
            refused = self.cycle is not None and self.cycle.more_body
            if self.unread > (UNREAD if refused else BYTES):
                self.transport.abort()

        # Called where httptools parses; h11 reads one request after the other.
        def on_message_begin(self) -> None:
            if len(self.pipeline) >= PIPELINED:
                raise OverflowError("too many requests at once")
            super().on_message_begin()

        def on_response_complete(self) -> None:
            super().on_response_complete()
            self.update_no_request_since()

        def pause_writing(self) -> None:
            super().pause_writing()
            self.untaken_since = clock()

        def resume_writing(self) -> None:
            super().resume_writing()
            self.untaken_since = None

        def update_no_request_since(self) -> None:
            cycle = self.cycle
            has_request = cycle and not cycle.more_body and not cycle.response_complete
            if has_request or self.transport.is_closing():
                self.no_request_since = None
            else:
                self.no_request_since = self.no_request_since or clock()

    class Bounded(uvicorn.Server):
        async def on_tick(self, counter: int) -> bool:
            now = clock()
            connections: list[Any] = list(self.server_state.connections)
            for connection in connections:
                limits = [
                    (connection.no_headers_since, SECONDS),
                    (connection.untaken_since, UNTAKEN),
                ]
                if any(since is not None and now - since > seconds for since, seconds in limits):
                    connection.transport.abort()
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


def _most_open_files() -> int:
    """How many files, connections included, the process may have open."""
    try:
        import resource
    except ImportError:  # Windows
        return OPEN + FILES
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return OPEN + FILES if soft == resource.RLIM_INFINITY else max(soft, 2 * FILES)
