"""Which addresses a policy may fetch: the public web, and what the user allows besides. URLs are
judged twice: as written, and by the addresses that the host resolves to, to one of which the
connection is then made (`Network`).
"""

import asyncio
import ipaddress
import re
import socket
import ssl
import unicodedata
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from typing import Any
from urllib.parse import urlsplit

import httpcore2
import httpx2

from ..errors import ConfigError, ToolError
from .background import DaemonThreads

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Block = ipaddress.IPv4Network | ipaddress.IPv6Network
Resolver = Callable[[str, int], Sequence[str]]

# The ports that web sites use; with any other, a policy could be sent to scan or talk to something
# else.
PORTS = frozenset({80, 443, 8000, 8008, 8080, 8443, 8888})
LONGEST_URL = 4096
# A resolver that hangs keeps its thread for as long; when this many hang, the next lookup has to
# wait.
_LOOKUPS = 64
# Before the last address of a host, none is tried for longer, so that a dead one does not use up
# all the time.
_FIRST_ADDRESSES = 3.0
_MOST_ADDRESSES = 8

_URL = re.compile(r"(?i)(https?)://([^/?#]+)([^#]*)(?:#.*)?")
_AUTHORITY = re.compile(
    r"(\[[0-9a-f:.]{2,45}\]|[^\[\]:]+)(?::([0-9]{1,5}))?", re.IGNORECASE | re.ASCII
)
_NAME = re.compile(
    r"(?=.{1,253}\Z)(?:[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?\.)*[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?"
)
# A host that ends so is read as an IPv4 address by resolvers (127.1, 0x7f.1, 2130706433), whatever
# stands before.
_NUMBER = re.compile(r"\A(?:.*\.)?+(?:[0-9]++|0x[0-9a-f]*+)\Z")
_PRIVATE = (
    "arpa corp home internal intranet invalid lan local localdomain localhost onion private test"
)
_USUAL_PORT = {"http": 80, "https": 443}
_NO_HOST = "the host of this URL is not a plain name or IP address"

# Written out, because what the standard library takes for public differs between Python's versions.
# The last one looks public, but holds the host's own services on one cloud.
_CLOSED = """
    0.0.0.0/8 10.0.0.0/8 100.64.0.0/10 127.0.0.0/8 169.254.0.0/16 172.16.0.0/12 192.0.0.0/24 192.0.2.0/24
    192.88.99.0/24 192.168.0.0/16 198.18.0.0/15 198.51.100.0/24 203.0.113.0/24 224.0.0.0/4 240.0.0.0/4 168.63.129.16/32
    ::/3 2001::/23 2001:db8::/32 2002::/16 3fff::/20 4000::/2 8000::/1
"""
# Tunnels are closed whatever they lead to: Teredo (in 2001::/23) and 6to4 carry an IPv4 address of
# the sender's choice.
_CLOSED_BLOCKS = tuple(map(ipaddress.ip_network, _CLOSED.split()))
_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")


class Refused(ToolError):
    """An address that the guard does not let a policy fetch."""


def resolve(host: str, port: int) -> list[str]:
    """The IP addresses of a host by the system's resolver, best first. Blocks; raises
    `socket.gaierror`.
    """
    records = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(record[4][0]) for record in records))


def is_public(address: Address) -> bool:
    """Whether an address is of the public internet, and of no tunnel, test net or metadata service;
    an IPv4 address inside an IPv6 one (`::ffff:…`, or `64:ff9b::…` of networks that have no IPv4)
    counts as itself.
    """
    return not any(_inner(address) in network for network in _CLOSED_BLOCKS)


def _inner(address: Address) -> Address:
    if address in _NAT64:
        return ipaddress.IPv4Address(int(address) & 0xFFFF_FFFF)
    return getattr(address, "ipv4_mapped", None) or address


@dataclass(frozen=True)
class Guard:
    """Lets a policy fetch from the public web only.

    Public means: `http` or `https`; one of the `PORTS`; a full host name that is not of a private
    zone, or an address in its plain form; and *every* address of the name in the public internet:
    no honest site has another.

    Args:
        allow: what may be fetched besides: a host or address (`wiki.intranet`, `127.0.0.1`, `::1`;
            any port), one of its ports (`wiki.intranet:8081`, `[::1]:8081`), or a network
            (`10.1.0.0/16`; any port, also by names).
        resolve: gives the addresses of a host; may block.

    Example:
        >>> Guard().check("https://Example.org/a?b#c")
        'https://example.org/a?b'
        >>> Guard(allow=("127.0.0.1:8081",)).check("http://127.0.0.1:8081/")
        'http://127.0.0.1:8081/'
    """

    allow: tuple[str, ...] = ()
    resolve: Resolver = field(default=resolve, repr=False)

    def __post_init__(self) -> None:
        if isinstance(self.allow, str):
            raise ConfigError(f"allow is a tuple of entries, not one string: {self.allow!r}")
        self._entries()

    def check(self, url: str, resolved_here: bool = True) -> str:
        """The URL in plain form, without its fragment; raises `Refused`, saying what about it is
        not allowed.

        Where somebody else resolves names (`resolved_here=False`), networks let in addresses only.
        """
        scheme, host, port, rest = _split(url)
        hosts, networks = self._entries()
        if as_address(host) is not None:
            self.admit(host, port, [host])
        # a name may lead to an allowed network, which only its addresses can tell: `admit` judges
        # them
        elif not (networks and resolved_here) and not hosts & {(host, None), (host, port)}:
            _check_public(host, port)
        bracketed = f"[{host}]" if ":" in host else host
        usual = port == _USUAL_PORT[scheme]
        return f"{scheme}://{bracketed}{'' if usual else f':{port}'}{rest if rest.startswith('/') else f'/{rest}'}"

    def admit(self, host: str, port: int, addresses: Sequence[str]) -> None:
        """Raise `Refused` when a host is not listed and resolved to an address that is neither
        public nor of an allowed network.
        """
        hosts, networks = self._entries()
        if hosts & {(host, None), (host, port)}:
            return
        for address in map(as_address, addresses):
            if address is None or not any(
                address in each or _inner(address) in each for each in networks
            ):
                if address is None or not is_public(address):
                    raise Refused(f"the address of {host} is not public")
                _check_public(host, port)

    def _entries(self) -> tuple[set[tuple[str, int | None]], list[Block]]:
        """What is allowed besides: hosts with a port, or `None` for every port, and networks."""
        hosts: set[tuple[str, int | None]] = set()
        networks: list[Block] = []
        for entry in self.allow:
            try:
                if "/" in entry:
                    networks.append(ipaddress.ip_network(entry))
                elif (address := as_address(entry)) is not None:
                    hosts.add((str(address), None))
                else:
                    _, host, port, _ = _split(f"http://{entry}/")
                    hosts.add((host, port if re.search(r":[0-9]+\Z", entry) else None))
            except (ValueError, TypeError, Refused):
                forms = (
                    "a host (wiki.intranet), host:port (127.0.0.1:8081) or network (10.1.0.0/16)"
                )
                raise ConfigError(f"{entry!r} cannot be allowed: write {forms}") from None
        return hosts, networks


def _split(url: str) -> tuple[str, str, int, str]:
    """Scheme, host, port and the rest of a URL; refuses what browsers, resolvers and libraries read
    differently.
    """
    url = url.strip(" \t\r\n") if isinstance(url, str) else ""
    if len(url) > LONGEST_URL:
        raise Refused(f"this URL is longer than {LONGEST_URL} characters")
    match = _URL.fullmatch(url)
    if match is None:
        raise Refused("this is not the URL of a web page: write http://… or https://…")
    # what browsers, resolvers and libraries drop, or read as the end of something
    if any(
        each == "\\" or each.isspace() or unicodedata.category(each) in ("Cc", "Cs") for each in url
    ):
        raise Refused(
            "this URL holds a space, a backslash or a control character: write these as %20, %5C, …"
        )
    scheme, authority, rest = match[1].lower(), match[2], match[3]
    if "@" in authority:
        raise Refused("this URL holds a user name or password: leave it out")
    parts = _AUTHORITY.fullmatch(authority)
    if parts is None:
        raise Refused(_NO_HOST)
    port = int(parts[2]) if parts[2] else _USUAL_PORT[scheme]
    if not 0 < port < 65536:
        raise Refused("the port of this URL is not between 1 and 65535")
    # every other form of a host is refused, such as an address in one number, octal or hexadecimal
    bracketed = parts[1].startswith("[")
    if bracketed:
        host = parts[1][1:-1]
    else:
        # compatibility forms first: full-width or circled digits are digits to some resolvers
        host = unicodedata.normalize("NFKC", parts[1]).replace("\u3002", ".").lower()
        try:
            host = (
                host if host.isascii() else httpx2.URL(f"http://{host}/").raw_host.decode("ascii")
            )
        except (httpx2.InvalidURL, UnicodeError):
            raise Refused(_NO_HOST) from None
        host = host.removesuffix(".")
    address = as_address(host)
    if address is None and (bracketed or not _NAME.fullmatch(host) or _NUMBER.match(host)):
        raise Refused(_NO_HOST)
    # an address as the standard library writes it: what is judged, listed and connected to is one
    # text
    return scheme, host if address is None else str(address), port, rest


def as_address(text: str) -> Address | None:
    """An IP address without a zone (`%eth0`); `None` for any other text."""
    try:
        return None if "%" in text else ipaddress.ip_address(text)
    except ValueError:
        return None


def is_private(host: str) -> bool:
    """Whether a host, by its looks alone, is not of the public internet: `redis`, `wiki.local`,
    `10.0.0.1`.
    """
    address = as_address(host)
    if address is not None:
        return not is_public(address)
    return "." not in host or host.rpartition(".")[2] in _PRIVATE.split()


def is_loopback(url: str) -> bool:
    """Whether a URL leads to this machine itself: no proxy has any business there."""
    host = urlsplit(url).hostname or ""
    address = as_address(host)
    if address is not None:
        return address.is_loopback
    return host == "localhost" or host.endswith(".localhost")


def _check_public(host: str, port: int) -> None:
    if is_private(host):
        raise Refused(f"the address of {host} is not public")
    if port not in PORTS:
        raise Refused(f"port {port} of {host} is not one of the web")


class Network(httpcore2.AnyIOBackend):
    """Resolves a host, lets the guard judge all its addresses, and connects to one of them by
    number.

    Judging and connecting are one step, so a name server that answers differently the second time
    gains nothing: it is asked once. TLS still checks the certificate against the host's name. A
    lookup that hangs keeps neither its caller nor the program's end waiting. Belongs to one event
    loop. Without a guard, every connection is let through.
    """

    def __init__(self, guard: Guard | None) -> None:
        self.guard = guard
        self.lookups = DaemonThreads(_LOOKUPS)

    async def connect_tcp(  # type: ignore[override]
        self, host: str, port: int, timeout: float | None = None, **how: Any
    ) -> httpcore2.AsyncNetworkStream:
        try:
            addresses: Sequence[str] = [str(ipaddress.ip_address(host))]
        except ValueError:
            resolver = self.guard.resolve if self.guard else resolve
            try:
                addresses = await asyncio.get_running_loop().run_in_executor(
                    self.lookups, resolver, host, port
                )
            except RuntimeError as error:  # no thread to run it
                raise socket.gaierror(
                    socket.EAI_AGAIN, "the name could not be looked up"
                ) from error
        if not addresses:
            raise socket.gaierror(socket.EAI_NONAME, "no address")
        if self.guard is not None:
            self.guard.admit(host, port, addresses)
        *first, last = addresses[:_MOST_ADDRESSES]
        short = _FIRST_ADDRESSES if timeout is None else min(timeout, _FIRST_ADDRESSES)
        for address in first:
            with suppress(httpcore2.ConnectError, httpcore2.ConnectTimeout):
                return _closing(await super().connect_tcp(address, port, short, **how))
        return _closing(await super().connect_tcp(last, port, timeout, **how))


def _closing(stream: httpcore2.AsyncNetworkStream) -> httpcore2.AsyncNetworkStream:
    """The connection, closed when its caller gives up during the TLS handshake; httpcore2 would
    leave it open.
    """
    handshake = stream.start_tls

    async def start_tls(*how: Any, **more: Any) -> httpcore2.AsyncNetworkStream:
        try:
            return await handshake(*how, **more)
        except asyncio.CancelledError:
            await stream.aclose()
            raise

    stream.start_tls = start_tls  # type: ignore[method-assign]
    return stream


@cache
def tls() -> ssl.SSLContext:
    """What certificates are checked against: the system's authorities, or those of `SSL_CERT_FILE`
    or `SSL_CERT_DIR`.
    """
    return httpcore2.default_ssl_context()
