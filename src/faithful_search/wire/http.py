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

import httpcore
import httpx

from .. import __version__
from ..errors import ConfigError, ToolError
from .background import PerLoop
from .guard import Guard, Network, Refused, is_private, tls
from .redact import REMOVED, SHORTEST
from .retry import TRANSIENT, Breaker, Patience, retry_after

AGENT = f"faithful-search/{__version__}"
"""What servers are told unless another `user_agent` is given."""
_REDIRECTS, _MOST_REDIRECTS = frozenset({301, 302, 303, 307, 308}), 5
_MOST_PIECES = 50_000  # a body in crumbs costs time for each crumb, whatever its size
_KEY_HEADER = re.compile("auth|key|token", re.IGNORECASE)
_PLAIN_TYPE = re.compile(r"[a-z0-9/+.-]{0,79}")
_CALLS = 5  # in a row that fail, with all their repetitions, before a host is left alone
_MOST_HOSTS = 1024  # of which something is known: a policy may name any number
_OURS = "the service"
# Others (br, zstd) are refused: they are not in the standard library, and each more is one more decompressor that
# strangers may feed.
_ENCODINGS, _MOST_LAYERS = "gzip, deflate", 2
_GZIP = b"\x1f\x8b"
_ANY_HEADER = 47  # zlib's window bits for "gzip or zlib, as its first bytes say"
_NETWORK = (
    httpcore.NetworkError,
    httpcore.TimeoutException,
    httpcore.ProtocolError,
    OSError,
    ValueError,
)

# Debug logs of the HTTP library show response headers, and a redirect's `Location` can repeat a key.
_quiet = ContextVar("quiet", default=False)
for _name in ("httpcore.connection", "httpcore.http11"):
    logging.getLogger(_name).addFilter(lambda _: not _quiet.get())


@dataclass(frozen=True)
class Reply:
    """A successful answer, its body unpacked; `url` is where it came from in the end."""

    status: int
    headers: Mapping[str, str]
    body: bytes
    url: str

    def json(self) -> Any:
        try:
            return json_text.loads(self.body)
        except (ValueError, RecursionError):
            raise ToolError("the answer is not JSON") from None


@dataclass(frozen=True)
class Http:
    """Asks web servers, within limits. May be pickled, and used on several event loops.

    With a `guard`, for URLs that a policy chose: the guard judges every one, also behind redirects, and every
    connection, which serves one exchange only. Without, for services that the user configured: connections are kept,
    and redirects followed only on the same host and never from https to http. Headers go to the host asked, and to no
    other; there are no cookies, no proxies and nothing from `.netrc`. Keys belong into headers: nothing of these, and
    nothing of a URL but its host, gets into a log or a message.

    A host that goes on failing, with all retries, is left alone for a while. Errors are marked as `tried`.

    Args:
        timeout: seconds for everything: waiting for a slot, the name server, connecting, redirects and retries.
        patience: for transient failures: no connection, or a status of `retry.TRANSIENT`.
        per_host: exchanges with one host at a time, on one event loop.
        max_bytes: of a body, both as received and as unpacked.
        guard: judges what may be reached; `None` reaches anything.
        user_agent: what servers are told; some, such as Wikidata, want to know whom to write to.
    """

    # the text of a client is a part of cache keys: it holds what answers depend on
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

        `accept` are media types (`text/html`, `text/*`); any other is refused before its body is read. Raises
        `ToolError`, saying which host did what; never a query, a header or a private address of ours.
        """
        return await self._ask(url, _Call("GET", headers or {}, accept=accept), params)

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
        return await self._ask(url, _Call(method, headers, content, kind=kind))

    def __reduce__(self) -> "tuple[Callable[..., Http], tuple[Any, ...]]":
        return type(self), tuple(getattr(self, item.name) for item in fields(self) if item.init)

    async def _ask(self, url: str, call: "_Call", params: Mapping[str, Any] | None = None) -> Reply:
        try:
            address = httpx.URL(self.guard.check(url) if self.guard else url)
            address = address.copy_merge_params(dict(params)) if params else address
        except (httpx.InvalidURL, TypeError, ValueError):
            raise ToolError("this is not a URL that can be fetched") from None
        if address.scheme not in ("http", "https") or not address.host or address.userinfo:
            raise ToolError(
                "this is not a URL that can be fetched: write http(s)://host/…, without user or password"
            )
        # a copy of the settings: were this one held by its clients, they would not be closed when it is thrown away
        client = await self._clients.get(lambda: _Client(replace(self)))
        token = _quiet.set(True)
        try:
            return await call.reply(client, address.copy_with(fragment=None))
        finally:
            _quiet.reset(token)


class _Client:
    """What one `Http` has on one event loop: connections, and for each host its slots and its breaker."""

    def __init__(self, settings: Http) -> None:
        self.settings = settings
        self.network = Network(settings.guard)
        kept: dict[str, Any] = {"max_keepalive_connections": 32, "keepalive_expiry": 15.0}
        self.pool = httpcore.AsyncConnectionPool(
            tls(), max_connections=256, network_backend=self.network, **kept
        )
        failures = _CALLS * (1 + settings.patience.retries)
        self.host = lru_cache(_MOST_HOSTS)(
            lambda host: (asyncio.Semaphore(settings.per_host), Breaker(failures))
        )

    async def aclose(self) -> None:
        self.network.lookups.shutdown()
        await asyncio.gather(
            *(each.aclose() for each in self.pool.connections), return_exceptions=True
        )


@dataclass
class _Call:
    """One call with its redirects and retries."""

    method: str
    headers: Mapping[str, str]
    content: bytes = b""
    kind: str = ""
    accept: tuple[str, ...] = ()

    async def reply(self, client: _Client, url: httpx.URL) -> Reply:
        self.client, self.settings, self.guard = client, client.settings, client.settings.guard
        timeout = self.settings.timeout
        self.deadline = time.monotonic() + timeout
        # a policy is not told the names of services in the user's own network
        self.who = _OURS if self.guard is None and is_private(url.host) else url.host
        try:
            async with asyncio.timeout(timeout):
                return await self.settings.patience.persist(
                    lambda: self._follow(url), self.deadline
                )
        except TimeoutError:
            raise ToolError(
                f"{self.who} took longer than {timeout:g} seconds", passing=True, tried=True
            ) from None
        except ToolError as error:
            error.tried = True
            raise

    async def _follow(self, url: httpx.URL) -> Reply:
        # by hand: a library's own redirects would be followed before the guard has judged them, and with our headers
        headers = self.headers
        answer = await self._exchange(url, headers)
        for _ in range(_MOST_REDIRECTS):
            if isinstance(answer, Reply):
                return answer
            try:
                target = url.join(answer)
                target = (
                    httpx.URL(self.guard.check(str(target))) if self.guard else target
                ).copy_with(fragment=None)
                # the same host and port, or the same host by https after http, as sites do that upgrade their visitors
                ways = [(each.scheme, each.port) for each in (url, target)]
                home = url.host == target.host and (
                    ways[0] == ways[1] or ways == [("http", None), ("https", None)]
                )
                if self.guard is None and not home:
                    raise ToolError(
                        f"{self.who} redirects to another server: only the one configured is asked"
                    )
                # headers, which may hold keys, stay with the host they were given for
                url, headers = target, headers if home else {}
                answer = await self._exchange(url, headers)
            except (Refused, httpx.InvalidURL, ValueError):
                raise Refused(f"{self.who} redirects to an address that is refused") from None
        if isinstance(answer, Reply):
            return answer
        raise ToolError(f"{self.who} redirects more than {_MOST_REDIRECTS} times")

    async def _exchange(self, url: httpx.URL, headers: Mapping[str, str]) -> Reply | str:
        """One request and its answer, or where it redirects to."""
        slots, breaker = self.client.host(url.netloc)
        async with slots:
            if wait := breaker.refusal():
                rest = f"{self.who} keeps failing: leave it alone for {math.ceil(wait)} seconds"
                raise ToolError(rest, passing=True, tried=True)
            try:
                answer = await self._send(url, headers)
            except ToolError as error:
                (breaker.failed if error.passing else breaker.succeeded)()
                raise
            except asyncio.CancelledError:
                # cancelled before its time, the caller lost interest: that says nothing about the host
                if time.monotonic() >= self.deadline:
                    breaker.failed()
                raise
            breaker.succeeded()
            return answer

    async def _send(self, url: httpx.URL, given: Mapping[str, str]) -> Reply | str:
        try:
            headers = httpx.Headers(
                {"User-Agent": self.settings.user_agent, "Accept": ", ".join(self.accept) or "*/*"}
            )
            headers.update(given)
            if self.content:
                headers.update(
                    {"Content-Type": self.kind, "Content-Length": str(len(self.content))}
                )
            headers.update({"Host": url.netloc.decode("ascii"), "Accept-Encoding": _ENCODINGS})
            if self.guard:
                # a stranger's server could send the answer to the next question along with this one
                headers["Connection"] = "close"
            target = httpcore.URL(
                scheme=url.raw_scheme, host=url.raw_host, port=url.port, target=url.raw_path
            )
            request = httpcore.Request(
                self.method, target, headers=headers.raw, content=self.content or None
            )
            async with aclosing(await self.client.pool.handle_async_request(request)) as response:
                return await self._read(response, url, given)
        except (*_NETWORK, TooLarge, Undecodable) as error:
            raise self._failure(error) from None

    async def _read(
        self, response: httpcore.Response, url: httpx.URL, given: Mapping[str, str]
    ) -> Reply | str:
        status, most = response.status, self.settings.max_bytes
        reply = Reply(status, httpx.Headers(response.headers), b"", str(url))
        # a POST is not sent on: its body may hold what is meant for this server only
        if status in _REDIRECTS and self.method == "GET" and "location" in reply.headers:
            return reply.headers["location"]
        if not 200 <= status < 300:
            said, wait = (
                f"{self.who}: {status} {responses.get(status, '')}",
                reply.headers.get("retry-after"),
            )
            raise ToolError(
                said.strip(),
                passing=status in TRANSIENT,
                retry_after=retry_after(wait),
                status=status,
            )
        kind = reply.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind and self.accept and {kind, f"{kind.partition('/')[0]}/*"}.isdisjoint(self.accept):
            # a server can write anything there, and a policy reads it
            shown = kind if _PLAIN_TYPE.fullmatch(kind) else "an unknown type"
            raise ToolError(f"{self.who} sent {shown}, which cannot be read here")
        packed, pieces = bytearray(), 0
        async for piece in response.aiter_stream():
            packed += piece
            pieces += 1
            if len(packed) > most or pieces > _MOST_PIECES:
                raise TooLarge
        body = unpack(bytes(packed), reply.headers.get("content-encoding", ""), most)
        # what a server repeats of the keys that it was sent would go on into evidence, caches and files
        for name, value in given.items():
            key = value.rpartition(" ")[2].encode("ascii", "replace")
            if _KEY_HEADER.search(name) and len(key) >= SHORTEST:
                body = body.replace(key, REMOVED.encode())
        return replace(reply, body=body)

    def _failure(self, error: Exception) -> ToolError:
        """The library's error in words for a policy; its own may show keys."""
        if isinstance(error, TooLarge):
            return ToolError(f"{self.who} sent more than {self.settings.max_bytes:,} bytes")
        if isinstance(error, Undecodable):
            return ToolError(f"what {self.who} sent cannot be unpacked")
        if isinstance(error, socket.gaierror) and error.errno != socket.EAI_AGAIN:
            return ToolError(
                f"there is no host {self.who}"
                if self.who != _OURS
                else f"{self.who} could not be found"
            )
        if isinstance(error, (httpcore.LocalProtocolError, UnicodeEncodeError)):
            return ToolError(
                "the request cannot be sent: is there a line break or an accent in a header or key?"
            )
        if isinstance(error, (httpcore.ReadError, httpcore.WriteError, httpcore.ProtocolError)):
            return ToolError(f"{self.who} broke off or garbled its answer", passing=True)
        if "CERTIFICATE_VERIFY_FAILED" in str(error):
            return ToolError(f"{self.who} has no valid certificate")
        return ToolError(f"{self.who} could not be reached", passing=True)


class TooLarge(Exception):
    """More bytes than allowed."""


class Undecodable(Exception):
    """An encoding that is unknown, or data that is damaged, cut short or more than one file."""


def unpack(body: bytes, encoding: str, most: int) -> bytes:
    """A body of at most `most` bytes without its Content-Encoding, which has two layers at most.

    Raises `TooLarge` when a layer would unpack to more, nothing of which is then unpacked, and `Undecodable`.
    """
    names = [
        name
        for part in encoding.lower().split(",")
        if (name := part.strip()) not in ("", "identity")
    ]
    if len(names) > _MOST_LAYERS or not set(names) <= {"gzip", "x-gzip", "deflate"}:
        raise Undecodable
    for _ in names if body else ():
        body = _inflate(body, most)
    return body


def _inflate(packed: bytes, most: int) -> bytes:
    for header in (
        _ANY_HEADER,
        -zlib.MAX_WBITS,
    ):  # some servers leave out the header that belongs to deflate
        inflate = zlib.decompressobj(header)
        with suppress(zlib.error):
            found = inflate.decompress(packed, most + 1)
            if len(found) > most:
                raise TooLarge
            # a second gzip file behind the first is not read, and not left out in silence either
            if inflate.eof and not inflate.unused_data.startswith(_GZIP):
                return found
    raise Undecodable
