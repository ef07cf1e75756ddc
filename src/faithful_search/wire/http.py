"""HTTP that cannot derail a rollout: bounded in time, in bytes and in what it may reach."""

import asyncio
import json as json_text
import logging
import math
import re
import socket
import time
import zlib
from collections.abc import Callable, Mapping
from contextlib import aclosing, suppress
from contextvars import ContextVar
from dataclasses import dataclass, field, fields, replace
from functools import lru_cache
from http.client import responses
from typing import Any

import httpcore2
import httpx2

from .. import __version__
from ..errors import ConfigError, ToolError
from .background import PerLoop
from .guard import Guard, Network, Refused, is_private, tls
from .redact import REMOVED, SHORTEST
from .retry import TRANSIENT, Breaker, Patience, retry_after

AGENT = f"faithful-search/{__version__}"
"""What servers are told unless another `user_agent` is given."""
_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_MOST_REDIRECTS = 5
_MOST_PIECES = 50_000  # of a body: each piece costs time, however small it is
_KEY_HEADER = re.compile("auth|key|token", re.IGNORECASE)
_PLAIN_TYPE = re.compile(r"[a-z0-9/+.-]{0,79}")
_FAILED_CALLS = 5  # in a row, with all their retries, after which a host is left alone
_MOST_HOSTS = 1024  # hosts that are remembered: a policy may name any number
_OURS = "the service"  # how a host in the user's own network is called
# Other encodings (br, zstd) are refused: they are not in the standard library, and each would be
# one more decompressor that strangers may feed.
_ENCODINGS = "gzip, deflate"
_MOST_LAYERS = 2  # of encodings, one around the other
_GZIP = b"\x1f\x8b"  # how gzip data begins
_ANY_HEADER = 47  # zlib's window bits for "gzip or zlib, as its first bytes say"
_NETWORK = (
    httpcore2.NetworkError,
    httpcore2.TimeoutException,
    httpcore2.ProtocolError,
    OSError,
    ValueError,
)

# Debug logs of the HTTP library show response headers, and a redirect's `Location` can repeat a
# key.
_quiet = ContextVar("quiet", default=False)
for _name in ("httpcore2.connection", "httpcore2.http11"):
    logging.getLogger(_name).addFilter(lambda _: not _quiet.get())


@dataclass(frozen=True)
class Reply:
    """A successful answer, with its body unpacked; `url` is the last one of its redirects."""

    status: int
    headers: Mapping[str, str]
    body: bytes
    url: str

    def json(self) -> Any:
        """The value in the body. Raises `ToolError` where that is not JSON."""
        try:
            return json_text.loads(self.body)
        except (ValueError, RecursionError):
            raise ToolError("the answer is not JSON") from None


@dataclass(frozen=True)
class Http:
    """Asks web servers, within limits. May be pickled, and used on several event loops.

    With a `guard` it is for URLs that a policy chose: the guard judges each of them, those of
    redirects included, and each connection, which serves one exchange only. Without a guard it is
    for services that the user configured: connections are kept, and redirects are followed only on
    the same host and never from https to http.

    Headers go to the host that was asked, and to no other. There are no cookies, no proxies, and
    nothing is read from `.netrc`. Keys belong into headers: nothing of these, and nothing of a URL
    but its host, gets into a log or a message.

    A host that goes on failing in spite of retries is left alone for a while. Errors are marked as
    `retried`.

    Args:
        timeout: seconds for everything: waiting for a slot, the name server, connecting, redirects
            and retries.
        patience: for transient failures: no connection, or a status of `retry.TRANSIENT`.
        per_host: exchanges with one host at a time, on one event loop.
        max_bytes: the size of a body, both as received and as unpacked.
        guard: judges what may be reached; `None` reaches anything.
        user_agent: the header of that name; some servers, such as Wikidata's, want an address in it
            to write to.
    """

    # The representation is a part of cache keys: it shows only what answers depend on.
    timeout: float = field(default=20.0, repr=False)
    patience: Patience = field(default_factory=Patience, repr=False)
    per_host: int = field(default=8, repr=False)
    max_bytes: int = 4_000_000
    guard: Guard | None = None
    user_agent: str = field(default=AGENT, repr=False)
    _clients: "PerLoop[_Client]" = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        limits = self.timeout, self.per_host, self.max_bytes
        if not all(limit > 0 for limit in limits):
            raise ConfigError(f"timeout, per_host and max_bytes must be positive; got {limits}")
        if not (self.user_agent.isascii() and self.user_agent.isprintable()):
            raise ConfigError(f"a user agent is a line of ASCII text; got {self.user_agent!r}")
        object.__setattr__(self, "_clients", PerLoop(_Client.aclose))

    async def get(
        self,
        url: str,
        *,
        params: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
        accept: tuple[str, ...] = (),
    ) -> Reply:
        """Fetch a URL, with `params` added to its query.

        Args:
            accept: media types (`text/html`, `text/*`); any other is refused before its body is
                read.

        Raises:
            ToolError: says which host did what; never a query, a header or a private address.
        """
        return await self._ask(url, _HttpCall("GET", headers or {}, accept=accept), params)

    async def post(self, url: str, *, json: Any, headers: Mapping[str, str] | None = None) -> Reply:
        """Send JSON to a service; redirects are not followed."""
        content = json_text.dumps(json, ensure_ascii=False).encode("utf-8", "replace")
        return await self.send("POST", url, content, headers or {})

    async def send(
        self,
        method: str,
        url: str,
        content: bytes,
        headers: Mapping[str, str],
        kind: str = "application/json",
    ) -> Reply:
        """Send a body of a media type."""
        return await self._ask(url, _HttpCall(method, headers, content, kind=kind))

    def __reduce__(self) -> "tuple[Callable[..., Http], tuple[Any, ...]]":
        return type(self), tuple(getattr(self, each.name) for each in fields(self) if each.init)

    async def _ask(
        self, url: str, call: "_HttpCall", params: Mapping[str, Any] | None = None
    ) -> Reply:
        try:
            address = httpx2.URL(self.guard.check(url) if self.guard else url)
            address = address.copy_merge_params(dict(params)) if params else address
        except (httpx2.InvalidURL, TypeError, ValueError):
            raise ToolError("this is not a URL that can be fetched") from None
        if address.scheme not in ("http", "https") or not address.host or address.userinfo:
            raise ToolError(
                "this is not a URL that can be fetched: write http(s)://host/…, without user or "
                "password"
            )
        # A copy of the settings: if its clients held this object, they would not be closed when it
        # is thrown away.
        client = await self._clients.get(lambda: _Client(replace(self)))
        token = _quiet.set(True)
        try:
            return await call.reply(client, address.copy_with(fragment=None))
        finally:
            _quiet.reset(token)


class _Client:
    """The connections of one `Http` on one event loop, with slots and a breaker for each host."""

    def __init__(self, settings: Http) -> None:
        self.settings = settings
        self.network = Network(settings.guard)
        self.pool = httpcore2.AsyncConnectionPool(
            tls(),
            max_connections=256,
            max_keepalive_connections=32,
            keepalive_expiry=15.0,
            network_backend=self.network,
        )
        failures = _FAILED_CALLS * (1 + settings.patience.retries)
        self.host = lru_cache(_MOST_HOSTS)(
            lambda host: (asyncio.Semaphore(settings.per_host), Breaker(failures))
        )

    async def aclose(self) -> None:
        self.network.lookups.shutdown()
        closing = [connection.aclose() for connection in self.pool.connections]
        await asyncio.gather(*closing, return_exceptions=True)


@dataclass
class _HttpCall:
    """One call with its redirects and retries."""

    method: str
    headers: Mapping[str, str]
    content: bytes = b""
    kind: str = ""  # the media type of `content`
    accept: tuple[str, ...] = ()  # the media types that an answer may have; any where empty

    async def reply(self, client: _Client, url: httpx2.URL) -> Reply:
        self.client = client
        self.settings = client.settings
        self.guard = client.settings.guard
        timeout = self.settings.timeout
        self.deadline = time.monotonic() + timeout
        # A policy is not told the names of services in the user's own network.
        self.who = _OURS if self.guard is None and is_private(url.host) else url.host
        try:
            async with asyncio.timeout(timeout):
                return await self.settings.patience.persist(
                    lambda: self._follow(url), self.deadline
                )
        except TimeoutError:
            raise ToolError(
                f"{self.who} took longer than {timeout:g} seconds", transient=True, retried=True
            ) from None
        except ToolError as error:
            error.retried = True
            raise

    async def _follow(self, url: httpx2.URL) -> Reply:
        """Ask for the URL, and follow redirects.

        A library would follow them before the guard has judged them, and with our headers.
        """
        headers = self.headers
        answer = await self._exchange(url, headers)
        for _ in range(_MOST_REDIRECTS):
            if isinstance(answer, Reply):
                return answer
            try:
                target = url.join(answer)
                if self.guard:
                    target = httpx2.URL(self.guard.check(str(target)))
                target = target.copy_with(fragment=None)
                same_host = _same_host(url, target)
                if self.guard is None and not same_host:
                    raise ToolError(
                        f"{self.who} redirects to another server: only the one configured is asked"
                    )
                if not same_host:
                    headers = {}  # they may hold keys for the first host
                url = target
                answer = await self._exchange(url, headers)
            except (Refused, httpx2.InvalidURL, ValueError):
                raise Refused(f"{self.who} redirects to an address that is refused") from None
        if isinstance(answer, Reply):
            return answer
        raise ToolError(f"{self.who} redirects more than {_MOST_REDIRECTS} times")

    async def _exchange(self, url: httpx2.URL, headers: Mapping[str, str]) -> Reply | str:
        """One request and its answer, or the address it redirects to."""
        slots, breaker = self.client.host(url.netloc)
        async with slots:
            wait = breaker.refusal()
            if wait:
                refusal = f"{self.who} keeps failing: leave it alone for {math.ceil(wait)} seconds"
                raise ToolError(refusal, transient=True, retried=True)
            try:
                answer = await self._send(url, headers)
            except ToolError as error:
                if error.transient:
                    breaker.failed()
                else:
                    breaker.succeeded()
                raise
            except asyncio.CancelledError:
                # Before the deadline it is the caller who lost interest: that says nothing about
                # the host.
                if time.monotonic() >= self.deadline:
                    breaker.failed()
                raise
            breaker.succeeded()
            return answer

    async def _send(self, url: httpx2.URL, extra_headers: Mapping[str, str]) -> Reply | str:
        """Send one request; returns the answer, or the address it redirects to."""
        try:
            headers = httpx2.Headers(
                {"User-Agent": self.settings.user_agent, "Accept": ", ".join(self.accept) or "*/*"}
            )
            headers.update(extra_headers)
            if self.content:
                headers["Content-Type"] = self.kind
                headers["Content-Length"] = str(len(self.content))
            headers["Host"] = url.netloc.decode("ascii")
            headers["Accept-Encoding"] = _ENCODINGS
            if self.guard:
                # A stranger's server could send the answer to the next question along with this.
                headers["Connection"] = "close"
            target = httpcore2.URL(
                scheme=url.raw_scheme, host=url.raw_host, port=url.port, target=url.raw_path
            )
            request = httpcore2.Request(
                self.method, target, headers=headers.raw, content=self.content or None
            )
            async with aclosing(await self.client.pool.handle_async_request(request)) as response:
                return await self._read(response, url, extra_headers)
        except (*_NETWORK, TooLarge, Undecodable) as error:
            raise self._failure(error) from None

    async def _read(
        self, response: httpcore2.Response, url: httpx2.URL, sent_headers: Mapping[str, str]
    ) -> Reply | str:
        """The answer, or the address it redirects to."""
        status = response.status
        most = self.settings.max_bytes
        reply = Reply(status, httpx2.Headers(response.headers), body=b"", url=str(url))
        # A POST is not sent on: its body may hold what is meant for this server only.
        if status in _REDIRECTS and self.method == "GET" and "location" in reply.headers:
            return reply.headers["location"]
        if not 200 <= status < 300:
            message = f"{self.who}: {status} {responses.get(status, '')}"
            raise ToolError(
                message.strip(),
                transient=status in TRANSIENT,
                retry_after=retry_after(reply.headers.get("retry-after")),
                status=status,
            )
        media_type, _, _ = reply.headers.get("content-type", "").partition(";")
        media_type = media_type.strip().lower()
        if media_type and self.accept and not self._accepts(media_type):
            # A server can write anything there, and a policy reads it.
            named = media_type if _PLAIN_TYPE.fullmatch(media_type) else "an unknown type"
            raise ToolError(f"{self.who} sent {named}, which cannot be read here")
        packed = bytearray()
        pieces = 0
        async for piece in response.aiter_stream():
            packed += piece
            pieces += 1
            if len(packed) > most or pieces > _MOST_PIECES:
                raise TooLarge
        body = unpack(bytes(packed), reply.headers.get("content-encoding", ""), most)
        # A server may repeat the keys that it was sent: they must not get into evidence, caches and
        # files.
        for name, value in sent_headers.items():
            key = value.rpartition(" ")[2].encode("ascii", "replace")
            if _KEY_HEADER.search(name) and len(key) >= SHORTEST:
                body = body.replace(key, REMOVED.encode())
        return replace(reply, body=body)

    def _accepts(self, media_type: str) -> bool:
        """Whether `accept` names the type, or all types of its kind (`text/*`)."""
        kind, _, _ = media_type.partition("/")
        return media_type in self.accept or f"{kind}/*" in self.accept

    def _failure(self, error: Exception) -> ToolError:
        """The library's error in words for a policy; the library's words may show keys."""
        if isinstance(error, TooLarge):
            return ToolError(f"{self.who} sent more than {self.settings.max_bytes:,} bytes")
        if isinstance(error, Undecodable):
            return ToolError(f"what {self.who} sent cannot be unpacked")
        if isinstance(error, socket.gaierror) and error.errno != socket.EAI_AGAIN:
            if self.who == _OURS:
                return ToolError(f"{self.who} could not be found")
            return ToolError(f"there is no host {self.who}")
        if isinstance(error, (httpcore2.LocalProtocolError, UnicodeEncodeError)):
            return ToolError(
                "the request cannot be sent: is there a line break or an accent in a header or key?"
            )
        if isinstance(error, (httpcore2.ReadError, httpcore2.WriteError, httpcore2.ProtocolError)):
            return ToolError(f"{self.who} broke off or garbled its answer", transient=True)
        if "CERTIFICATE_VERIFY_FAILED" in str(error):
            return ToolError(f"{self.who} has no valid certificate")
        return ToolError(f"{self.who} could not be reached", transient=True)


def _same_host(url: httpx2.URL, target: httpx2.URL) -> bool:
    """Whether a redirect stays on its host and port.

    From http to https on the default ports counts: that is how sites upgrade their visitors.
    """
    if url.host != target.host:
        return False
    before = (url.scheme, url.port)
    after = (target.scheme, target.port)
    is_upgrade = before == ("http", None) and after == ("https", None)
    return before == after or is_upgrade


class TooLarge(Exception):
    """A body of more bytes than allowed."""


class Undecodable(Exception):
    """A body of an unknown encoding, or damaged, cut short, or of more than one file."""


def unpack(body: bytes, encoding: str, most: int) -> bytes:
    """Undo the Content-Encoding of a body, which may have two layers.

    Raises:
        TooLarge: a layer unpacks to more than `most` bytes.
        Undecodable: the encoding is unknown, or the data is damaged.
    """
    names = [part.strip() for part in encoding.lower().split(",")]
    layers = [name for name in names if name not in ("", "identity")]
    if len(layers) > _MOST_LAYERS or not set(layers) <= {"gzip", "x-gzip", "deflate"}:
        raise Undecodable
    if not body:
        return body
    for _ in layers:  # each says by its own header which of the two it is
        body = _inflate(body, most)
    return body


def _inflate(packed: bytes, most: int) -> bytes:
    """Undo one layer of gzip or deflate."""
    # Some servers leave out the header that belongs to deflate.
    for header in (_ANY_HEADER, -zlib.MAX_WBITS):
        inflate = zlib.decompressobj(header)
        with suppress(zlib.error):
            unpacked = inflate.decompress(packed, most + 1)
            if len(unpacked) > most:
                raise TooLarge
            # A second gzip file after the first would be left out in silence: refuse it.
            if inflate.eof and not inflate.unused_data.startswith(_GZIP):
                return unpacked
    raise Undecodable
