"""The guard: whatever a URL looks like, it leads to the public web or nowhere."""

import asyncio
import contextlib
import ipaddress
import json
import pickle
import socket
import threading
import time
import urllib.parse
from collections.abc import Callable
from itertools import chain, repeat
from pathlib import Path
from unittest.mock import Mock

import httpx2
import pytest
from hypothesis import example, given, strategies as st
from web_site import WebSite

from faithful_search.errors import ConfigError, ToolError
from faithful_search.wire import guard as guard_module
from faithful_search.wire.guard import Guard, Refused, is_private, is_public
from faithful_search.wire.http import Http
from faithful_search.wire.retry import Patience

GUARD = Guard()
URLS = json.loads(Path(__file__).with_name("urls.json").read_text("utf-8"))
REFUSED = ("not of the web", "tricks", "this machine", "private", "metadata", "ports")


@pytest.mark.parametrize(("url", "plain"), URLS["public"])
def test_what_leads_to_the_public_web_is_written_plainly(url, plain):
    assert GUARD.check(url) == plain
    assert GUARD.check(plain) == plain


NO_TEXTS = [None, 5, b"http://example.org/", ["http://a.org/"]]


@pytest.mark.parametrize("url", [*chain.from_iterable(URLS[kind] for kind in REFUSED), *NO_TEXTS])
def test_everything_else_is_refused(url):
    with pytest.raises(Refused) as caught:
        GUARD.check(url)
    message = str(caught.value)
    assert message
    assert not caught.value.transient
    assert "secret" not in message
    assert "\n" not in message
    assert len(message) < 400


def number(value: int) -> st.SearchStrategy[str]:
    """One part of an IPv4 address in every way that C libraries read."""
    octal, small, large = f"0{value:o}", f"0x{value:x}", f"0X{value:X}"
    return st.sampled_from([f"{value}", octal, f"00{octal}", small, large, f"0x00{value:x}"])


@st.composite
def spellings(draw: st.DrawFn) -> str:
    """An IPv4 address, mostly one that must not be reached, in one to four parts of any base."""
    first = draw(
        st.sampled_from([0, 9, 10, 100, 127, 169, 172, 192, 224, 255]) | st.integers(0, 255)
    )
    packed = first << 24 | draw(st.integers(0, 0xFFFFFF) | st.sampled_from([1, 0xFEA9FE, 0x0A0A0A]))
    length = draw(st.integers(1, 4))
    heads = [packed >> shift & 255 for shift in (24, 16, 8)[: length - 1]]
    last = packed & (1 << 8 * (5 - length)) - 1
    return ".".join([draw(number(part)) for part in (*heads, last)]) + draw(
        st.sampled_from(["", "", "."])
    )


@given(spellings())
@example("0x7f.0.0.1")
@example("9.9.9.9")
def test_ipv4_addresses_are_read_as_the_system_does(text):
    try:
        reached = socket.inet_ntoa(socket.inet_aton(text.removesuffix(".")))
    except OSError:
        reached = None
    try:
        plain = GUARD.check(f"http://{text}/")
    except Refused:
        if reached is not None and text.removesuffix(".") == reached:
            assert not is_public(
                ipaddress.ip_address(reached)
            )  # a public address in plain form is let through
        return
    assert plain == f"http://{reached}/"
    assert ipaddress.ip_address(reached).is_global


@given(
    st.integers(0, 2**128 - 1) | st.integers(0, 2**32 - 1).map(lambda four: 0xFFFF << 32 | four),
    st.booleans(),
)
def test_ipv6_addresses_are_read_as_the_system_does(packed, long):
    address = ipaddress.IPv6Address(packed)
    text = address.exploded.upper() if long else address.compressed
    reached = socket.getaddrinfo(text, 80, flags=socket.AI_NUMERICHOST)[0][4][0]
    try:
        plain = GUARD.check(f"http://[{text}]/")
    except Refused:
        return
    assert ipaddress.ip_address(urllib.parse.urlsplit(plain).hostname) == ipaddress.ip_address(
        reached
    )
    assert (address.ipv4_mapped or address).is_global


def test_the_borders_of_each_closed_network():
    # in networks without IPv4, public addresses are still public
    assert is_public(ipaddress.ip_address("64:ff9b::9.9.9.9"))
    assert not is_public(ipaddress.ip_address("64:ff9b::192.168.1.1"))
    closed = "10.0.0.0/8 100.64.0.0/10 127.0.0.0/8 169.254.0.0/16 172.16.0.0/12 192.168.0.0/16 224.0.0.0/3 0.0.0.0/8"
    for network in map(ipaddress.ip_network, closed.split()):
        assert not is_public(network[0])
        assert not is_public(network[-1])
        for outside in (int(network[0]) - 1, int(network[-1]) + 1):
            if 0 < outside < 2**32 and outside >> 24 not in (223, 126 + 1):
                assert is_public(ipaddress.IPv4Address(outside)), outside


hosts = st.text(
    st.sampled_from("a1.-_0x7f:@[]%/\\?#①ａ。ß \t") | st.characters(), min_size=1, max_size=12
)


@given(hosts, st.sampled_from(["/", "", "?q", "#f", ":80/", ":8080"]))
def test_all_readers_of_a_checked_url_see_the_same_host(host, rest):
    try:
        plain = GUARD.check(f"http://{host}{rest}")
    except Refused:
        return
    read = urllib.parse.urlsplit(plain)
    assert read.hostname == httpx2.URL(plain).raw_host.decode()
    assert (read.port or 80) == (httpx2.URL(plain).port or 80)
    assert read.username is None
    assert not read.fragment
    assert read.hostname.isascii()
    assert not is_private(read.hostname)
    assert GUARD.check(plain) == plain


@pytest.mark.parametrize(("entry", "url"), URLS["opened by an entry"])
def test_an_entry_of_the_allow_list_opens_what_it_names(entry, url):
    host = urllib.parse.urlsplit(url).hostname
    address = host if ":" in host or host[0].isdigit() else "10.1.2.3"
    guard = pickle.loads(pickle.dumps(Guard((entry,))))
    plain = httpx2.URL(guard.check(url))
    port = plain.port or {"http": 80, "https": 443}[plain.scheme]
    guard.admit(plain.host, port, [address])
    with pytest.raises(Refused):  # without the entry
        GUARD.check(url)
        GUARD.admit(plain.host, port, [address])


@pytest.mark.parametrize(("entry", "url", "address"), URLS["not opened by an entry"])
def test_and_nothing_else(entry, url, address):
    guard = Guard((entry,))
    with pytest.raises(Refused):
        plain = httpx2.URL(guard.check(url))
        guard.admit(plain.host, plain.port or 80, [address])


@pytest.mark.parametrize(
    ("host", "refused"),
    [
        ("169.254.169.254", True),
        ("localhost", True),
        ("redis:6379", True),
        ("10.1.2.3:9", False),
        ("wiki", False),
    ],
)
def test_where_others_resolve_names_networks_open_addresses_only(host, refused):
    with pytest.raises(Refused) if refused else contextlib.nullcontext():
        Guard(("10.0.0.0/8", "wiki")).check(f"http://{host}/", resolved_here=False)


@pytest.mark.parametrize(
    "entry",
    ["", "*", "http://a.org", "a.org/x", "10.0.0.1/8", "user@a.org", "a b", "a:x", 7, "1/2/3"],
)
def test_other_entries_are_a_mistake_of_the_user(entry):
    with pytest.raises(ConfigError, match="cannot be allowed"):
        Guard((entry,))
    with pytest.raises(ConfigError, match="tuple"):
        Guard("127.0.0.1")


def test_every_address_of_a_name_must_be_allowed():
    GUARD.admit("example.org", 443, ["9.9.9.9", "2620:fe::fe"])
    Guard(("10.0.0.0/8",)).admit("example.org", 443, ["10.0.0.1", "9.9.9.9"])
    with pytest.raises(Refused):
        Guard(("10.0.0.0/8",)).admit("example.org", 443, ["10.0.0.1", "192.168.0.1"])
    scoped = "fe80::1%eth0", "2620:fe::fe%eth0"
    for bad in ("127.0.0.1", "10.0.0.1", "::1", *scoped, "::ffff:169.254.169.254", "what?"):
        for addresses in ([bad], ["9.9.9.9", bad], [bad, "9.9.9.9"]):
            with pytest.raises(Refused, match=r"^the address of example\.org is not public$"):
                GUARD.admit("example.org", 443, addresses)


def changing(*answers: list[str] | Exception) -> Mock:
    """A name server whose answers change, until the last one, or that fails."""
    return Mock(side_effect=chain(answers, repeat(answers[-1])))


def quick(guard: Guard, timeout: float = 2.0) -> Http:
    return Http(timeout=timeout, patience=Patience(retries=0), guard=guard)


def fetch(
    names: Callable[[str, int], list[str]], url: str, *allow: str, timeout: float = 20
) -> bytes:
    """A page, the names in whose URL are resolved so."""
    return asyncio.run(quick(Guard(allow, names), timeout).get(url)).body


@pytest.fixture
def site():
    with WebSite() as served:
        yield served


@pytest.fixture
def usual(site, monkeypatch):
    """The site, its port counted among those of the web: only its address keeps a guard from it."""
    monkeypatch.setattr(guard_module, "PORTS", guard_module.PORTS | {site.port})
    return site


def test_a_name_that_turns_private_is_never_connected_to(usual):
    """First public, then loopback: the address judged is the address used, and each connection is
    judged.
    """
    names = changing(["192.0.43.8"], ["127.0.0.1"])
    http, url = quick(Guard((), names), 0.5), f"http://rebind.example.org:{usual.port}/article"

    async def attempts():
        for _ in range(3):
            with pytest.raises(ToolError):
                await http.get(url)

    asyncio.run(attempts())
    assert names.call_count == 3
    assert usual.connections == 0
    # asked once for a connection: the second answer would lead to where nothing listens
    names = changing(["127.0.0.1"], ["127.0.0.2"])
    assert b"Vardal" in fetch(names, url, "127.0.0.1/32")
    assert names.call_count == 1


@pytest.mark.parametrize(
    "addresses", [["127.0.0.1"], ["9.9.9.9", "127.0.0.1"], ["127.0.0.1", "9.9.9.9"]]
)
@pytest.mark.parametrize("allow", [(), ("127.0.0.2/32",), ("other.example.org",)])
def test_a_public_name_with_a_private_address_is_refused(usual, addresses, allow):
    with pytest.raises(Refused, match=r"^the address of inside\.example\.org is not public$"):
        fetch(changing(addresses), f"http://inside.example.org:{usual.port}/article", *allow)
    assert usual.connections == 0


def test_the_next_of_a_few_addresses_is_tried_where_one_is_dead(site):
    url = f"http://many.example.org:{site.port}/article"
    assert b"Vardal" in fetch(changing(["127.0.0.99", "127.0.0.1"]), url, "127.0.0.0/8")
    before = site.connections
    with pytest.raises(ToolError, match=r"many\.example\.org could not be reached"):
        fetch(
            changing([*(f"127.0.0.{n}" for n in range(2, 40)), "127.0.0.1"]),
            url,
            "127.0.0.0/8",
            timeout=60,
        )
    assert site.connections == before


def test_an_address_that_never_answers_does_not_use_up_the_time(site, monkeypatch):
    monkeypatch.setattr(guard_module, "_FIRST_ADDRESSES_TIMEOUT", 0.2)
    deaf = socket.create_server(("127.0.0.2", site.port), backlog=0)
    queued = [socket.socket() for _ in range(4)]
    for each in queued:
        each.setblocking(False)
        each.connect_ex(("127.0.0.2", site.port))
    names, start = changing(["127.0.0.2", "127.0.0.1"]), time.monotonic()
    assert b"Vardal" in fetch(
        names, f"http://two.example.org:{site.port}/article", "127.0.0.0/8", timeout=60
    )
    assert 0.2 <= time.monotonic() - start < 20
    for each in (deaf, *queued):
        each.close()


@pytest.mark.parametrize("host", ["0x7f.1", "redis", "me@example.org", "example.org:22"])
def test_what_is_refused_as_written_is_not_even_looked_up(host):
    names = changing(["9.9.9.9"])
    with pytest.raises(Refused):
        fetch(names, f"http://{host}/")
    assert names.call_count == 0


def test_a_connection_belongs_to_its_name(usual):
    """Both names lead to one address; the one that is not allowed does not get the other's
    connection.
    """
    names = changing(["127.0.0.1"])
    http = quick(Guard((f"good.example.org:{usual.port}",), names))

    async def both():
        await http.get(f"http://good.example.org:{usual.port}/article")
        with pytest.raises(Refused):
            await http.get(f"http://evil.example.org:{usual.port}/article")
        await http.get(f"http://good.example.org:{usual.port}/article")

    asyncio.run(both())
    assert names.call_count == 3
    assert usual.connections == 2 == len(usual.seen)
    assert {item.headers["host"] for item in usual.seen} == {f"good.example.org:{usual.port}"}


def test_hanging_lookups_end_at_the_deadline():
    running, release = [], threading.Event()

    def hang(host: str, port: int) -> list[str]:
        running.append(host)
        release.wait(60)
        return ["9.9.9.9"]

    http, start = quick(Guard((), hang), 0.3), time.monotonic()

    async def many():
        urls = [f"http://host{number}.example.org/" for number in range(100)]
        return await asyncio.gather(*map(http.get, urls), return_exceptions=True)

    outcomes = asyncio.run(many())
    assert time.monotonic() - start < 10  # the loop's end does not wait for the threads either
    release.set()
    assert str(outcomes[0]) == "host0.example.org took longer than 0.3 seconds"
    assert all(isinstance(outcome, ToolError) for outcome in outcomes)
    assert 1 <= len(running) <= 64


@pytest.mark.parametrize(
    "answer", [OSError("no"), ValueError("odd"), socket.gaierror(socket.EAI_NONAME, "none"), []]
)
def test_a_failing_name_server_is_told_in_words(answer):
    with pytest.raises(
        ToolError, match=r"^(there is no host nowhere\.example\.org|.* could not be reached)$"
    ):
        fetch(changing(answer), "http://nowhere.example.org/")


def test_ipv6():
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError:
        pytest.skip("no IPv6 here")
    with WebSite("::1") as site:
        assert b"Vardal" in fetch(changing([]), site.url("/article"), "::1")
        assert site.seen[0].headers["host"] == f"[::1]:{site.port}"
        for allow in ((), ("127.0.0.1",)):
            with pytest.raises(Refused):
                fetch(changing([]), site.url("/article"), *allow)
        assert len(site.seen) == 1
