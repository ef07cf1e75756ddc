"""Connections that say soon and briefly what they want, and take it: uvicorn limits neither times nor sizes."""

from __future__ import annotations

import asyncio
from typing import Any

SECONDS = 20.0  # from a connection's opening, and from each further request's first byte, to the end of its headers
BYTES = 65_536  # of the headers of a request
UNREAD = 32_000_000  # bytes of a body that came too late to be read, because the request was refused without it
UNTAKEN = 300.0  # seconds in which a client takes what is sent to it
PIPELINED = 64  # requests before the first answer: reading more of them at once would keep others waiting
OPEN = 4096  # connections at the same time, fewer where the process may not open as many files
FILES = 200  # kept for everything that is no connection of a client


def protocol() -> type[Any]:
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
