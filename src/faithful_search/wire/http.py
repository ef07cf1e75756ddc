"""HTTP that cannot derail a rollout: bounded in time, in bytes and in what it may reach."""

from __future__ import annotations

import asyncio
import http
import json as json_text
import math
import re
import socket
import ssl
import time
import weakref
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

import httpcore
import httpx

from .. import __version__
from ..errors import ConfigError, ToolError
from .background import PerLoop
from .guard import Guard, Refused, is_private
from .network import Network, new_pool, quiet
from .redact import REMOVED, SHORTEST
from .reply import ENCODINGS, Reply, TooLarge, Undecodable, media_type, read_headers, unpack
from .retry import TRANSIENT, Breaker, Patience, retry_after

AGENT = f"faithful-search/{__version__}"
"""What servers are told unless another `user_agent` is given."""
_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_BODILESS = frozenset({204, 205})
_MOST_PIECES = 50_000  # a body in crumbs costs time for each crumb, whatever its size
_KEY_HEADER = re.compile("auth|key|token", re.IGNORECASE)
_PLAIN_TYPE = re.compile(r"[a-z0-9/+.-]{0,79}")
_CALLS = 5  # in a row that fail, with all their repetitions, before a host is left alone
_MOST_HOSTS = 1024
_OURS = "the service"
_FAILURES = (
    *(httpcore.NetworkError, httpcore.TimeoutException, httpcore.ProtocolError),
    *(OSError, ValueError, TooLarge, Undecodable),
)


@dataclass(frozen=True)
class Http:
    """Asks web servers, within limits. May be pickled, and used on several event loops.

    With a `guard`, for URLs that a policy chose: the guard judges every one, also behind redirects, which may lead to
    any URL it lets through, and every connection, which serves one exchange only. Without, for services that the user
    configured: connections are kept, and redirects followed only on the same host and never from https to http. Headers
    given to `get` go to the host asked, and to no other; there are no cookies, no proxies and nothing from `.netrc`.
    Keys belong into headers: nothing of these, and nothing of a URL but its host, gets into a log or a message.
    `Reply.url` holds the whole URL, with its `params`.

    Transient failures (no connection, the statuses `retry.TRANSIENT`) are retried with `patience`, and a host that goes
    on failing is left alone for a while. The error raised in the end is marked as `tried`. Answers may be packed with
    gzip or deflate, at most twice; other encodings are not asked for and not read.

    Args:
        timeout: seconds for everything: waiting for a slot, the name server, connecting, redirects and retries.
        patience: for transient failures.
        per_host: exchanges with one host at a time, on one event loop.
        max_bytes: of a body, both as received and as unpacked.
        max_redirects: followed in one exchange.
        guard: judges what may be reached; `None` reaches anything.
        user_agent: what servers are told; some, such as Wikidata, want to know whom to write to.

    Raises:
        ConfigError: for a limit that is not positive.

    Example:
        >>> http = Http(timeout=5, guard=Guard())
        >>> asyncio.run(http.get("http://169.254.169.254/"))
        Traceback (most recent call last):
        faithful_search.wire.guard.Refused: the address of 169.254.169.254 is not public
    """

    timeout: float = 20.0
    patience: Patience = field(default_factory=Patience)
    per_host: int = 8
    max_bytes: int = 4_000_000
    max_redirects: int = 5
    guard: Guard | None = None
    user_agent: str = AGENT
    _clients: PerLoop[_Client] = field(
        default_factory=lambda: PerLoop(_Client.aclose), init=False, repr=False, compare=False
    )

    def __post_init__(self) -> None:
        if not (all(limit > 0 for limit in (self.timeout, self.per_host, self.max_bytes)) and self.max_redirects >= 0):
            raise ConfigError(f"timeout, per_host and max_bytes must be positive, max_redirects not negative: {self}")
        if not (self.user_agent.isascii() and self.user_agent.isprintable()):
            raise ConfigError(f"a user agent is a line of ASCII text; got {self.user_agent!r}")

    async def get(
        self,
        url: str,
        *,
        params: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
        accept: tuple[str, ...] = (),
    ) -> Reply:
        """Fetch a URL.

        Args:
            url: absolute.
            params: added to the URL's query.
            headers: for this host only.
            accept: media types (`text/html`, `text/*`); another is refused before its body is read, an answer that
                names none is let through. Empty for any.

        Raises:
            ToolError: saying which host did what; never a query, a header or a private address of ours.
        """
        return await self._ask(_Request("GET", self._address(url, params), dict(headers or {}), accept=accept))

    async def post(self, url: str, *, json: Any, headers: Mapping[str, str] | None = None) -> Reply:
        """Send JSON to a service. Redirects are not followed. Raises as `get` does."""
        content = json_text.dumps(json, ensure_ascii=False).encode("utf-8", "replace")
        return await self._ask(_Request("POST", self._address(url, None), dict(headers or {}), content))

    async def aclose(self) -> None:
        """Close this event loop's connections. Otherwise that happens when the loop shuts down its generators."""
        await self._clients.aclose()

    def __reduce__(self) -> tuple[Callable[..., Http], tuple[Any, ...]]:
        return type(self), tuple(getattr(self, item.name) for item in fields(self) if item.init)

    def _address(self, url: str, params: Mapping[str, Any] | None) -> httpx.URL:
        try:
            found = httpx.URL(self.guard.check(url) if self.guard else url)
            found = found.copy_merge_params(dict(params)) if params else found
        except (httpx.InvalidURL, TypeError, ValueError):
            raise ToolError("this is not a URL that can be fetched") from None
        if found.scheme not in ("http", "https") or not found.host or found.userinfo:
            raise ToolError("this is not a URL that can be fetched: write http(s)://host/…, without user or password")
        return found.copy_with(fragment=None)

    async def _ask(self, request: _Request) -> Reply:
        # a copy of the settings: were this one held by its clients, they would not be closed when it is thrown away
        client = await self._clients.get(lambda: _Client(replace(self)))
        token = quiet.set(True)
        try:
            return await client.ask(request)
        finally:
            quiet.reset(token)


@dataclass(frozen=True)
class _Request:
    method: str
    url: httpx.URL
    headers: Mapping[str, str]
    content: bytes = b""
    accept: tuple[str, ...] = ()
    deadline: float = math.inf
    who: str = ""

    def raw(self, settings: Http) -> httpcore.Request:
        """As it goes over the wire, here still before TLS."""
        headers = httpx.Headers({"User-Agent": settings.user_agent, "Accept": ", ".join(self.accept) or "*/*"})
        headers.update(self.headers)
        headers.update({"Host": self.url.netloc.decode("ascii"), "Accept-Encoding": ENCODINGS})
        if settings.guard:
            # on a kept connection, a stranger's server could send the answer to the next question along with this one
            headers["Connection"] = "close"
        if self.method == "POST":
            headers.update({"Content-Type": "application/json", "Content-Length": str(len(self.content))})
        url = httpcore.URL(
            scheme=self.url.raw_scheme, host=self.url.raw_host, port=self.url.port, target=self.url.raw_path
        )
        return httpcore.Request(self.method, url, headers=headers.raw, content=self.content or None)

    def accepts(self, kind: str) -> bool:
        wanted = {kind, f"{kind.partition('/')[0]}/*", "*/*"}
        return not kind or not self.accept or not wanted.isdisjoint(self.accept)


class _Client:
    """The connections, slots and breakers of one `Http` on one event loop."""

    def __init__(self, settings: Http) -> None:
        self._settings, self._guard = settings, settings.guard
        self._network = Network(settings.guard)
        self.pool = new_pool(self._network)
        self._slots: weakref.WeakValueDictionary[bytes, asyncio.Semaphore] = weakref.WeakValueDictionary()
        self._breakers: OrderedDict[bytes, Breaker] = OrderedDict()

    async def aclose(self) -> None:
        self._network.lookups.shutdown()
        await asyncio.gather(*(each.aclose() for each in self.pool.connections), return_exceptions=True)

    async def ask(self, request: _Request) -> Reply:
        """Everything that belongs to one call, within its time."""
        timeout, host = self._settings.timeout, request.url.host
        # a policy is not told the names of services in the user's own network
        who = _OURS if self._guard is None and is_private(host) else host
        request = replace(request, deadline=time.monotonic() + timeout, who=who)
        try:
            async with asyncio.timeout(timeout):
                return await self._settings.patience.persist(lambda: self._follow(request), request.deadline)
        except TimeoutError:
            raise ToolError(f"{who} took longer than {timeout:g} seconds", passing=True, tried=True) from None
        except ToolError as error:
            error.tried = True
            raise

    async def _follow(self, request: _Request) -> Reply:
        # by hand: a library's own redirects would be followed before the guard has judged them, and with our headers
        seen = {request.url}
        answer = await self._exchange(request)
        while not isinstance(answer, Reply):
            try:
                target = request.url.join(answer)
                target = httpx.URL(self._guard.check(str(target))) if self._guard else target
                home = _same_server(request.url, target)
                if self._guard is None and not home:
                    raise ToolError(f"{request.who} redirects to another server: only the one configured is asked")
                # headers, which may hold keys, stay with the host they were given for
                request = replace(request, url=target.copy_with(fragment=None), headers=request.headers if home else {})
                if request.url in seen:
                    raise ToolError(f"{request.who} redirects in a circle")
                seen.add(request.url)
                if len(seen) > self._settings.max_redirects + 1:
                    raise ToolError(f"{request.who} redirects more than {self._settings.max_redirects} times")
                answer = await self._exchange(request)
            except (Refused, httpx.InvalidURL, ValueError):
                raise Refused(f"{request.who} redirects to an address that is refused") from None
        return answer

    async def _exchange(self, request: _Request) -> Reply | str:
        """One request and its answer, or where it redirects to."""
        server = request.url.netloc
        # the least recently asked is forgotten first: a policy may name any number of hosts
        breaker = self._breakers.pop(server, None) or Breaker(_CALLS * (1 + self._settings.patience.retries))
        self._breakers[server] = breaker
        if len(self._breakers) > _MOST_HOSTS:
            self._breakers.popitem(last=False)
        async with self._slots.setdefault(server, asyncio.Semaphore(self._settings.per_host)):
            if wait := breaker.refusal():
                rest = f"{request.who} keeps failing: leave it alone for {math.ceil(wait)} seconds"
                raise ToolError(rest, passing=True, tried=True)
            try:
                answer = await self._send(request)
            except ToolError as error:
                (breaker.failed if error.passing else breaker.succeeded)()
                raise
            except asyncio.CancelledError:
                # cancelled before its time, the caller lost interest: that says nothing about the host
                if time.monotonic() >= request.deadline:
                    breaker.failed()
                raise
            breaker.succeeded()
            return answer

    async def _send(self, request: _Request) -> Reply | str:
        try:
            response = await self.pool.handle_async_request(request.raw(self._settings))
            try:
                return await self._read(request, response)
            finally:
                await response.aclose()
        except _FAILURES as error:
            raise self._failure(request.who, error) from None

    async def _read(self, request: _Request, response: httpcore.Response) -> Reply | str:
        status, headers = response.status, read_headers(response.headers)
        # a POST is not sent on: its body may hold what is meant for this server only
        if status in _REDIRECTS and request.method == "GET" and "location" in headers:
            return headers["location"]
        if not 200 <= status < 300:
            phrases = {item.value: item.phrase for item in http.HTTPStatus}
            said, wait = f"{request.who}: {status} {phrases.get(status, '')}", retry_after(headers.get("retry-after"))
            raise ToolError(said.strip(), passing=status in TRANSIENT, retry_after=wait, status=status)
        kind = media_type(headers)
        if not request.accepts(kind):
            # a server can write anything there, and a policy reads it
            shown = kind if _PLAIN_TYPE.fullmatch(kind) else "an unknown type"
            raise ToolError(f"{request.who} sent {shown}, which cannot be read here")
        body = b""
        if status not in _BODILESS:
            most, length = self._settings.max_bytes, headers.get("content-length", "")
            # what a server claims is refused at once; what it sends is counted all the same, for it may claim anything
            if length.isdecimal() and len(length) < 20 and int(length) > most:
                raise TooLarge
            packed, pieces = bytearray(), 0
            async for piece in response.aiter_stream():
                packed += piece
                pieces += 1
                if len(packed) > most or pieces > _MOST_PIECES:
                    raise TooLarge
            body = unpack(bytes(packed), headers.get("content-encoding", ""), most)
        # what a server repeats of the keys that it was sent would go on into evidence, caches and files
        for name, value in request.headers.items():
            key = value.rpartition(" ")[2].encode("ascii", "replace")
            if _KEY_HEADER.search(name) and len(key) >= SHORTEST:
                body = body.replace(key, REMOVED.encode())
        return Reply(status, headers, body, str(request.url))

    def _failure(self, who: str, error: Exception) -> ToolError:
        """The library's error in words for a policy; its own may show keys."""
        if isinstance(error, TooLarge):
            return ToolError(f"{who} sent more than {self._settings.max_bytes:,} bytes")
        if isinstance(error, Undecodable):
            return ToolError(f"what {who} sent cannot be unpacked")
        if isinstance(error, socket.gaierror) and error.errno != socket.EAI_AGAIN:
            return ToolError(f"there is no host {who}" if who != _OURS else f"{who} could not be found")
        if isinstance(error, (httpcore.LocalProtocolError, UnicodeEncodeError)):
            return ToolError("the request cannot be sent: is there a line break or an accent in a header or key?")
        if isinstance(error, (httpcore.ReadError, httpcore.WriteError, httpcore.ProtocolError)):
            return ToolError(f"{who} broke off or garbled its answer", passing=True)
        cause: BaseException | None = error
        while isinstance(error, httpcore.ConnectError) and cause is not None:
            if isinstance(cause, ssl.SSLCertVerificationError):
                return ToolError(f"{who} has no valid certificate")
            cause = cause.__cause__ or cause.__context__
        return ToolError(f"{who} could not be reached", passing=True)


def _same_server(one: httpx.URL, other: httpx.URL) -> bool:
    """The same host and port, or the same host by https after http, as sites do that upgrade their visitors."""
    if one.host != other.host:
        return False
    upgraded = (one.scheme, one.port, other.scheme, other.port) == ("http", None, "https", None)
    return upgraded or (one.scheme, one.port) == (other.scheme, other.port)
