"""Connections that say soon and briefly what they want: uvicorn limits neither the time nor the size of headers."""

from __future__ import annotations

import asyncio
from typing import Any

SECONDS = 20.0
"""From the opening of a connection, and from the first byte of each further request, until its headers are there."""
BYTES = 65_536
"""Of the headers of a request."""
UNREAD = 32_000_000
"""Of a body that came too late to be read, because the request was refused without it."""


def protocol() -> type[Any]:
    """uvicorn's fastest HTTP protocol, which closes connections that dawdle or babble before their request begins."""
    from uvicorn.protocols.http.auto import AutoHTTPProtocol

    base: Any = AutoHTTPProtocol

    class Prompt(base):
        _late: asyncio.TimerHandle | None = None
        _waiting = 0

        def connection_made(self, transport: asyncio.Transport) -> None:
            super().connection_made(transport)
            self._wait()

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            if self.cycle is not None and not self.cycle.response_complete:
                return self._heard()
            self._waiting += len(data)
            refused = self.cycle is not None and self.cycle.more_body
            if self._waiting > (UNREAD if refused else BYTES):
                return self.transport.abort()
            return self._wait()

        def connection_lost(self, error: Exception | None) -> None:
            self._heard()
            super().connection_lost(error)

        def _wait(self) -> None:
            self._late = self._late or asyncio.get_running_loop().call_later(SECONDS, self.transport.abort)

        def _heard(self) -> None:
            if self._late is not None:
                self._late.cancel()
            self._late, self._waiting = None, 0

    return Prompt
