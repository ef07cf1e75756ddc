"""Which addresses a policy may fetch: the public web, and what the user allows besides.

A URL is judged twice: as it is written (`Guard.check`), and by the addresses that its host resolves
to (`Guard.admit`), to one of which the connection is then made (`Network`).
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

# The ports that web sites use. With others, a page could send a policy to talk to mail servers,
# databases and the like.
PORTS = frozenset({80, 443, 8000, 8008, 8080, 8443, 8888})
LONGEST_URL = 4096
# Lookups at once. One that hangs keeps its thread; when so many hang, the next has to wait.
_LOOKUPS = 64
# Seconds for a connection to any address of a host but the last, so that a dead one does not use up
# all the time.
_FIRST_ADDRESSES_TIMEOUT = 3.0
_MOST_ADDRESSES = 8  # of one host that are tried

# Scheme, authority, and path with query
_URL = re.compile(r"(?i)(https?)://([^/?#]+)([^#]*)(?:#.*)?")
# Host, which is an IPv6 address in brackets or anything else, and port
_AUTHORITY = re.compile(
    r"(\[[0-9a-f:.]{2,45}\]|[^\[\]:]+)(?::([0-9]{1,5}))?", re.IGNORECASE | re.ASCII
)
# A host name: at most 253 characters, its labels at most 63
_NAME = re.compile(
    r"(?=.{1,253}\Z)(?:[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?\.)*[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?"
)
# Whatever stands before, resolvers read a host that ends in a number as an IPv4 address: 127.1,
# 0x7f.1, 2130706433.
_NUMBER = re.compile(r"\A(?:.*\.)?+(?:[0-9]++|0x[0-9a-f]*+)\Z")
# Top-level names that are not of the public internet
_PRIVATE_ZONES = frozenset((
    "arpa", "corp", "home", "internal", "intranet", "invalid", "lan", "local", "localdomain",
    "localhost", "onion", "private", "test",
))  # fmt: skip
_USUAL_PORT = {"http": 80, "https": 443}
_NO_HOST = "the host of this URL is not a plain name or IP address"

# Written out, because what the standard library takes for public differs between Python's versions.
# Tunnels are closed whatever they lead to: Teredo (in 2001::/23) and 6to4 (2002::/16) carry an IPv4
# address of the sender's choice. 168.63.129.16 looks public, but is Azure's own service on each host.
_CLOSED = """
    0.0.0.0/8 10.0.0.0/8 100.64.0.0/10 127.0.0.0/8 169.254.0.0/16 172.16.0.0/12 192.0.0.0/24 192.0.2.0/24
    192.88.99.0/24 192.168.0.0/16 198.18.0.0/15 198.51.100.0/24 203.0.113.0/24 224.0.0.0/4 240.0.0.0/4 168.63.129.16/32
    ::/3 2001::/23 2001:db8::/32 2002::/16 3fff::/20 4000::/2 8000::/1
"""
_CLOSED_BLOCKS = tuple(map(ipaddress.ip_network, _CLOSED.split()))
# Networks without IPv4 reach it by these addresses, whose last four bytes are an IPv4 address.
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
    """Whether an address is of the public internet, and of no tunnel, test net or metadata service.

    An IPv4 address inside an IPv6 one (`::ffff:…`, or `64:ff9b::…` of networks that have no IPv4)
    counts as itself.
    """
    ipv4_or_itself = _unwrapped(address)
    return not any(ipv4_or_itself in block for block in _CLOSED_BLOCKS)


def _unwrapped(address: Address) -> Address:
    """The IPv4 address inside an IPv6 one; any other address itself."""
    if isinstance(address, ipaddress.IPv4Address):
        return address
    if address in _NAT64:
        return ipaddress.IPv4Address(int(address) & 0xFFFF_FFFF)
    return address.ipv4_mapped or address


@dataclass(frozen=True)
class Guard:
    """Lets a policy fetch from the public web only.

    Public means: `http` or `https`; one of the `PORTS`; a full host name that is not of a private
    zone, or an address in its plain form; and *every* address of the name is public, since no
    honest site has another.

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
        self._allowed()  # raises for an entry that cannot be read

    def check(self, url: str, resolved_here: bool = True) -> str:
        """The URL in plain form, without its fragment.

        Args:
            resolved_here: whether `Network` will resolve the name and judge its addresses, too.
                Where somebody else does, an allowed network lets in addresses only, and no names.

        Raises:
            Refused: says what about the URL is not allowed.
        """
        scheme, host, port, path_and_query = _split(url)
        hosts, networks = self._allowed()
        is_listed = not hosts.isdisjoint({(host, None), (host, port)})
        # A name may lead into an allowed network, which only its addresses tell: `admit` decides.
        decided_by_addresses = bool(networks) and resolved_here
        if as_address(host) is not None:
            self.admit(host, port, [host])
        elif not is_listed and not decided_by_addresses:
            _check_public(host, port)
        authority = f"[{host}]" if ":" in host else host
        if port != _USUAL_PORT[scheme]:
            authority += f":{port}"
        if not path_and_query.startswith("/"):
            path_and_query = f"/{path_and_query}"
        return f"{scheme}://{authority}{path_and_query}"

    def admit(self, host: str, port: int, addresses: Sequence[str]) -> None:
        """Raise `Refused` when a host is not listed and resolved to an address that is neither
        public nor of an allowed network.
        """
        hosts, networks = self._allowed()
        if not hosts.isdisjoint({(host, None), (host, port)}):
            return
        for text in addresses:
            address = as_address(text)
            if address is None:
                raise Refused(f"the address of {host} is not public")
            unwrapped = _unwrapped(address)
            if any(address in network or unwrapped in network for network in networks):
                continue
            if not is_public(address):
                raise Refused(f"the address of {host} is not public")
            _check_public(host, port)

    def _allowed(self) -> tuple[set[tuple[str, int | None]], list[Block]]:
        """`allow` as hosts, each with its port or with `None` for every port, and as networks."""
        hosts: set[tuple[str, int | None]] = set()
        networks: list[Block] = []
        for entry in self.allow:
            try:
                if "/" in entry:
                    networks.append(ipaddress.ip_network(entry))
                    continue
                address = as_address(entry)
                if address is not None:
                    hosts.add((str(address), None))
                    continue
                _, host, port, _ = _split(f"http://{entry}/")
                has_port = re.search(r":[0-9]+\Z", entry) is not None
                hosts.add((host, port if has_port else None))
            except (ValueError, TypeError, Refused):
                raise ConfigError(
                    f"{entry!r} cannot be allowed: write a host (wiki.intranet), host:port "
                    "(127.0.0.1:8081) or network (10.1.0.0/16)"
                ) from None
        return hosts, networks


def _split(url: str) -> tuple[str, str, int, str]:
    """Scheme, host, port, and path with query of a URL.

    Raises `Refused` for what browsers, resolvers and libraries may read differently: what is judged
    must be what is fetched.
    """
    url = url.strip(" \t\r\n") if isinstance(url, str) else ""
    if len(url) > LONGEST_URL:
        raise Refused(f"this URL is longer than {LONGEST_URL} characters")
    match = _URL.fullmatch(url)
    if match is None:
        raise Refused("this is not the URL of a web page: write http://… or https://…")
    # Some readers drop such a character, others take it for the end of the host.
    for character in url:
        is_control = unicodedata.category(character) in ("Cc", "Cs")
        if character == "\\" or character.isspace() or is_control:
            raise Refused(
                "this URL holds a space, a backslash or a control character: write these as %20, "
                "%5C, …"
            )
    scheme = match[1].lower()
    authority = match[2]
    path_and_query = match[3]
    if "@" in authority:
        raise Refused("this URL holds a user name or password: leave it out")
    host_and_port = _AUTHORITY.fullmatch(authority)
    if host_and_port is None:
        raise Refused(_NO_HOST)
    host, port_digits = host_and_port.groups()
    port = int(port_digits) if port_digits else _USUAL_PORT[scheme]
    if not 0 < port < 65536:
        raise Refused("the port of this URL is not between 1 and 65535")
    in_brackets = host.startswith("[")
    host = host[1:-1] if in_brackets else _ascii_host(host)
    address = as_address(host)
    if address is not None:
        # As the standard library writes it, so that one address is judged, listed and connected to
        # as one text.
        host = str(address)
    elif in_brackets or not _NAME.fullmatch(host) or _NUMBER.match(host):
        raise Refused(_NO_HOST)
    return scheme, host, port, path_and_query


def _ascii_host(host: str) -> str:
    """A host name as it is looked up: in lower case, and what is not ASCII in Punycode.

    Compatibility forms are replaced first, since full-width or circled digits are digits to some
    resolvers.
    """
    ideographic_full_stop = "\u3002"
    host = unicodedata.normalize("NFKC", host).replace(ideographic_full_stop, ".").lower()
    if not host.isascii():
        try:
            host = httpx2.URL(f"http://{host}/").raw_host.decode("ascii")
        except (httpx2.InvalidURL, UnicodeError):
            raise Refused(_NO_HOST) from None
    return host.removesuffix(".")


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
    return "." not in host or host.rpartition(".")[2] in _PRIVATE_ZONES


def is_loopback(url: str) -> bool:
    """Whether a URL leads to this machine itself: no proxy has any business there."""
    host = urlsplit(url).hostname or ""
    address = as_address(host)
    if address is not None:
        return address.is_loopback
    return host == "localhost" or host.endswith(".localhost")


def _check_public(host: str, port: int) -> None:
    """Raise `Refused` for a host that looks private, or a port that no web site uses."""
    if is_private(host):
        raise Refused(f"the address of {host} is not public")
    if port not in PORTS:
        raise Refused(f"port {port} of {host} is not one of the web")


class Network(httpcore2.AnyIOBackend):
    """Resolves a host, lets the guard judge all its addresses, and connects to one of them by
    number.

    A name server is asked once for both, so that nothing is gained by a second answer that differs.
    TLS still checks the certificate against the host's name. A lookup that hangs keeps neither its
    caller nor the program's end waiting. Belongs to one event loop.

    Args:
        guard: `None` lets every connection through.
    """

    def __init__(self, guard: Guard | None) -> None:
        self.guard = guard
        self.lookups = DaemonThreads(_LOOKUPS)

    async def connect_tcp(  # type: ignore[override]
        self, host: str, port: int, timeout: float | None = None, **kwargs: Any
    ) -> httpcore2.AsyncNetworkStream:
        addresses = await self._addresses(host, port)
        if not addresses:
            raise socket.gaierror(socket.EAI_NONAME, "no address")
        if self.guard is not None:
            self.guard.admit(host, port, addresses)
        *first, last = addresses[:_MOST_ADDRESSES]
        short_timeout = _FIRST_ADDRESSES_TIMEOUT
        if timeout is not None:
            short_timeout = min(timeout, short_timeout)
        for address in first:
            with suppress(httpcore2.ConnectError, httpcore2.ConnectTimeout):
                stream = await super().connect_tcp(address, port, short_timeout, **kwargs)
                return _closed_if_cancelled(stream)
        return _closed_if_cancelled(await super().connect_tcp(last, port, timeout, **kwargs))

    async def _addresses(self, host: str, port: int) -> Sequence[str]:
        """The addresses of a host, or the address that it is, best first."""
        try:
            return [str(ipaddress.ip_address(host))]
        except ValueError:
            resolver = self.guard.resolve if self.guard else resolve
        loop = asyncio.get_running_loop()
        try:
            return await loop.run_in_executor(self.lookups, resolver, host, port)
        except RuntimeError as error:  # `lookups` is shut down, or no thread can be started
            raise socket.gaierror(socket.EAI_AGAIN, "the name could not be looked up") from error


def _closed_if_cancelled(stream: httpcore2.AsyncNetworkStream) -> httpcore2.AsyncNetworkStream:
    """The connection, which is closed when its caller gives up during the TLS handshake; httpcore2
    would leave it open.
    """
    handshake = stream.start_tls

    async def start_tls(*args: Any, **kwargs: Any) -> httpcore2.AsyncNetworkStream:
        try:
            return await handshake(*args, **kwargs)
        except asyncio.CancelledError:
            await stream.aclose()
            raise

    stream.start_tls = start_tls  # type: ignore[method-assign]
    return stream


@cache
def tls() -> ssl.SSLContext:
    """The settings of TLS, made once: certificates are checked against the system's authorities, or
    those in `SSL_CERT_FILE` or `SSL_CERT_DIR`.
    """
    return httpcore2.default_ssl_context()
