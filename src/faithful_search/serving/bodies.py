"""The bodies of requests: read in time and within limits, also within one for those of all requests together."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from .wire import Limits, RequestError

Receive = Callable[[], Awaitable[Any]]


class GoneError(Exception):
    """The client has gone."""


class Bodies:
    """The bodies that an application holds, of requests that are sent or answered at present.

    When they grow too large together, the one that has been coming for longest is given up, as often as it takes:
    clients that send slowly keep out none that send quickly.
    """

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self._most = max(limits.bodies_bytes, limits.body_bytes)
        self._whole = 0
        self._coming: dict[asyncio.Timeout, int] = {}  # the eldest first

    @asynccontextmanager
    async def read(self, scope: Any, receive: Receive) -> AsyncIterator[bytes]:
        """A request's body, whatever its length is said to be; held until the block ends.

        Raises:
            RequestError: when it does not come in time (408), is larger than allowed (413) or made room (503).
            GoneError: when the client went away before its end.
        """
        told = header(scope, b"content-length")
        if told.isdigit() and int(told[:18]) > self.limits.body_bytes:
            raise self._too_large()
        body = await self._read(receive)
        self._whole += len(body)
        try:
            yield body
        finally:
            self._whole -= len(body)

    async def _read(self, receive: Receive) -> bytes:
        body, more, patience = bytearray(), True, asyncio.timeout(self.limits.seconds)
        try:
            async with patience:
                while more:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        raise GoneError
                    body += message.get("body", b"")
                    more = message.get("more_body", False)
                    if len(body) > self.limits.body_bytes:
                        raise self._too_large()
                    self._coming[patience] = len(body)
                    self._make_room()
        except TimeoutError:
            if patience.when() == 0:
                raise RequestError("too many large bodies at the same time: come back later", 503) from None
            raise RequestError(f"the body did not come within {self.limits.seconds:g} seconds", 408) from None
        finally:
            self._coming.pop(patience, None)
        return bytes(body)

    def _make_room(self) -> None:
        while self._coming and self._whole + sum(self._coming.values()) > self._most:
            eldest = next(iter(self._coming))
            del self._coming[eldest]
            if not eldest.expired():
                eldest.reschedule(0)

    def _too_large(self) -> RequestError:
        return RequestError(f"the body is larger than {self.limits.body_bytes} bytes", 413)


def header(scope: Any, name: bytes) -> bytes:
    """Of several the last, empty where there is none."""
    value: bytes = dict(scope.get("headers", ())).get(name, b"")
    return value
