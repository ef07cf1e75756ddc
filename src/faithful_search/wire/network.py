"""Connections that go to the very address that was judged, and packed bodies that do not burst."""

import asyncio
import contextlib
import contextvars
import functools
import ipaddress
import logging
import socket
import ssl
import zlib
from collections.abc import Sequence
from typing import Any

import httpcore

from .background import DaemonThreads
from .guard import Guard, resolve

# A resolver that hangs keeps its thread for as long; when this many hang, the next lookup has to wait.
_LOOKUPS = 64
# Before the last address of a host, none is tried for longer, so that a dead one does not use up all the time.
_FIRST_ADDRESSES = 3.0
_MOST_ADDRESSES = 8
# What we tell servers that we read. Others (br, zstd) are refused: they are not in the standard library, and each more
# is one more decompressor that strangers may feed.
ENCODINGS = "gzip, deflate"
_MOST_LAYERS = 2
_GZIP = b"\x1f\x8b"
_ANY_HEADER = 47  # zlib's window bits for "gzip or zlib, as its first bytes say"

# Debug logs of the HTTP library show response headers, and a redirect's `Location` can repeat a key.
quiet = contextvars.ContextVar("quiet", default=False)
for _name in ("httpcore.connection", "httpcore.http11"):
    logging.getLogger(_name).addFilter(lambda _: not quiet.get())


class Network(httpcore.AnyIOBackend):
    """Resolves a host, lets the guard judge all its addresses, and connects to one of them by number.

    Judging and connecting are one step, so a name server that answers differently the second time gains nothing: it is
    asked once. TLS still checks the certificate against the host's name. Lookups run in daemon threads: one that hangs
    keeps neither its caller (who may be cancelled) nor the program's end waiting. Belongs to one event loop. Without a
    guard, every connection is let through.
    """

    def __init__(self, guard: Guard | None) -> None:
        self.guard = guard
        self.lookups = DaemonThreads(_LOOKUPS)

    async def connect_tcp(  # type: ignore[override]
        self, host: str, port: int, timeout: float | None = None, **how: Any
    ) -> httpcore.AsyncNetworkStream:
        """A connection to the host; raises what the guard, the resolver or the last address does."""
        try:
            addresses: Sequence[str] = [str(ipaddress.ip_address(host))]
        except ValueError:
            resolver = self.guard.resolve if self.guard else resolve
            try:
                addresses = await asyncio.get_running_loop().run_in_executor(self.lookups, resolver, host, port)
            except RuntimeError as error:  # no thread to run it
                raise socket.gaierror(socket.EAI_AGAIN, "the name could not be looked up") from error
        if not addresses:
            raise socket.gaierror(socket.EAI_NONAME, "no address")
        if self.guard is not None:
            self.guard.admit(host, port, addresses)
        *first, last = addresses[:_MOST_ADDRESSES]
        short = _FIRST_ADDRESSES if timeout is None else min(timeout, _FIRST_ADDRESSES)
        for address in first:
            with contextlib.suppress(httpcore.ConnectError, httpcore.ConnectTimeout):
                return _Stream(await super().connect_tcp(address, port, short, **how))
        return _Stream(await super().connect_tcp(last, port, timeout, **how))


class _Stream(httpcore.AsyncNetworkStream):
    """A connection that is closed when its caller gives up during the TLS handshake; httpcore would leave it open."""

    def __init__(self, plain: httpcore.AsyncNetworkStream) -> None:
        self._plain = plain
        self.read, self.write, self.aclose = plain.read, plain.write, plain.aclose  # type: ignore[method-assign]
        self.get_extra_info = plain.get_extra_info  # type: ignore[method-assign]

    async def start_tls(
        self, ssl_context: ssl.SSLContext, server_hostname: str | None = None, timeout: float | None = None
    ) -> httpcore.AsyncNetworkStream:
        try:
            return await self._plain.start_tls(ssl_context, server_hostname, timeout)
        except asyncio.CancelledError:
            await self._plain.aclose()
            raise


@functools.cache
def tls() -> ssl.SSLContext:
    """What certificates are checked against: the system's authorities (or `SSL_CERT_FILE`) and certifi's."""
    return httpcore.default_ssl_context()


class TooLarge(Exception):
    """More bytes than allowed."""


class Undecodable(Exception):
    """An encoding that is unknown, or data that is damaged, cut short or more than one file."""


def unpack(body: bytes, encoding: str, most: int) -> bytes:
    """A body of at most `most` bytes without its Content-Encoding, which has two layers at most.

    Raises `TooLarge` when a layer would unpack to more, nothing of which is then unpacked, and `Undecodable`.
    """
    names = [name for part in encoding.lower().split(",") if (name := part.strip()) not in ("", "identity")]
    if len(names) > _MOST_LAYERS or not set(names) <= {"gzip", "x-gzip", "deflate"}:
        raise Undecodable
    for _ in names if body else ():
        body = _inflate(body, most)
    return body


def _inflate(packed: bytes, most: int) -> bytes:
    for header in (_ANY_HEADER, -zlib.MAX_WBITS):  # some servers leave out the header that belongs to deflate
        inflate = zlib.decompressobj(header)
        with contextlib.suppress(zlib.error):
            found = inflate.decompress(packed, most + 1)
            if len(found) > most:
                raise TooLarge
            # a second gzip file behind the first is not read, and not left out in silence either
            if inflate.eof and not inflate.unused_data.startswith(_GZIP):
                return found
    raise Undecodable
