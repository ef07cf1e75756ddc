"""The guard: whatever a URL looks like, it leads to the public web or nowhere."""

# ruff: noqa: RUF001, SIM905 — look-alikes are what is tested; URLs hold no blanks

import asyncio
import contextlib
import copy
import ipaddress
import pickle
import socket
import threading
import time
import urllib.parse

import httpx
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from web_site import WebSite

from faithful_search.errors import ConfigError, ToolError
from faithful_search.wire import guard as guard_module
from faithful_search.wire import network as network_module
from faithful_search.wire.guard import Guard, Refused, is_private, is_public
from faithful_search.wire.http import Http
from faithful_search.wire.retry import Patience

GUARD = Guard()


@pytest.mark.parametrize(
    ("url", "plain"),
    [
        ("https://example.org", "https://example.org/"),
        ("  HTTPS://Example.ORG:443/a%20b?q=1&r=@x#top \n", "https://example.org/a%20b?q=1&r=@x"),
        ("http://example.org:80?q", "http://example.org/?q"),
        ("http://example.org:8080/", "http://example.org:8080/"),
        ("http://example.org./x", "http://example.org/x"),
        ("https://fr.wikipedia.org/wiki/Élysée", "https://fr.wikipedia.org/wiki/Élysée"),
        ("https://bücher.example/", "https://xn--bcher-kva.example/"),
        ("https://ｅｘａｍｐｌｅ.org/", "https://example.org/"),
        ("https://example。org/", "https://example.org/"),
        ("http://9.9.9.9/", "http://9.9.9.9/"),
        ("http://⑨.9.9.9/", "http://9.9.9.9/"),
        ("http://[2620:FE::FE]:8080/", "http://[2620:fe::fe]:8080/"),
        ("http://127.0.0.1.example.org/", "http://127.0.0.1.example.org/"),
        ("http://example.org/http://127.0.0.1/", "http://example.org/http://127.0.0.1/"),
        ("http://my_blog.example.org/", "http://my_blog.example.org/"),
    ],
)
def test_what_leads_to_the_public_web_is_written_plainly(url, plain):
    assert GUARD.check(url) == plain
    assert GUARD.check(plain) == plain


NOT_WEB = [
    *("", "\x00http://example.org/"),
    *"""
    example.org //example.org/ http:/example.org/ http:example.org http:///etc/passwd http:// http://?q
    http://#example.org file:///etc/passwd FILE://localhost/etc/passwd data:text/html,<p>hello</p>
    javascript:alert(1) gopher://127.0.0.1:6379/_INFO ftp://example.org/ ws://example.org/
    unix:///var/run/docker.sock http+unix://%2Fvar%2Frun%2Fdocker.sock/ view-source:http://example.org/
    blob:http://example.org/1 about:blank jar:http://example.org!/ url:http://example.org/
    """.split(),
]
TRICKS = [
    *(
        "http://example.org\\@127.0.0.1/",
        "http://127.0.0.1\\.example.org/",
        "http:\\\\127.0.0.1\\",
        "http://exa mple.org/",
    ),
    *(
        "http://example.org/a b",
        "http://example.org/\r\nHost: 127.0.0.1",
        "http://exam\tple.org/",
        "http://exam\nple.org/",
    ),
    *("http://example.org/\x00", "http://example.org\x7f/", "http://example.org/\u2028", "http://example.org/\ud800"),
    *("http://exam\u00adple.org\u200b@127.0.0.1/", "http://" + "a." * 130 + "org/", "http://example.org/" + "a" * 5000),
    *"""
    http://user@example.org/ http://user:secret@example.org/ http://example.org@127.0.0.1/
    http://127.0.0.1@example.org/ http://@example.org/ http://example.org:80@127.0.0.1/
    http://127.0.0.1#@example.org/ http://127.0.0.1?@example.org/ http://%31%32%37.0.0.1/ http://example%2eorg/
    http://example.org%00.internal/ http://example.org:/ http://example.org:0/ http://example.org:65536/
    http://example.org:99999999999999/ http://example.org:8０/ http://example.org:+80/ http://example.org:80:80/
    http://example..org/ http://.example.org/ http://example.org../ http://-example.org/ http://example.org-/
    http://aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa.org/ http://*.example.org/
    http://exa$mple.org/ http://[example.org]/ http://[::1/ http://::1/ http://2130706433.⑦/
    """.split(),
]
LOOPBACK = """
    http://127.0.0.1/ http://127.0.0.1./ http://127.1/ http://127.0.1/ http://127.255.255.254/ http://2130706433/
    http://017700000001/ http://0x7f000001/ http://0x7f.1/ http://0177.0.0.1/ http://0177.0x0.0.1/
    http://00000000177.0.0.1/ http://127.0.0.1:80/ http://0/ http://0.0.0.0/ http://0x/ http://①②⑦.0.0.1/
    http://１２７.０.０.１/ http://127。0。0。1/ http://127｡0｡0｡1/ http://𝟏𝟐𝟕.0.0.1/ http://[::1]/ http://[::]/
    http://[0:0:0:0:0:0:0:1]/ http://[::127.0.0.1]/ http://[::ffff:127.0.0.1]/ http://[::ffff:7f00:1]/
    http://[::FFFF:0x7f.1]/ http://[64:ff9b::7f00:1]/ http://[64:ff9b::127.0.0.1]/ http://[64:ff9b:1::7f00:1]/
    http://[2002:7f00:1::]/ http://[2001:0:5ef5:79fb:0:0:80ff:fffe]/ http://[fe80::1%25eth0]/ http://[::1%25lo]/
    http://[::1%lo]/ http://localhost/ http://LOCALHOST./ http://ｌocalhost/ http://ⓛⓞⓒⓐⓛⓗⓞⓢⓣ/ http://app.localhost/
    http://localhost.localdomain/
""".split()
PRIVATE = """
    http://10.0.0.1/ http://172.16.0.1/ http://172.31.255.255/ http://192.168.1.1/ http://100.64.0.1/
    http://169.254.1.1/ http://192.0.0.8/ http://192.0.2.1/ http://198.18.0.1/ http://198.51.100.7/
    http://203.0.113.7/ http://192.88.99.1/ http://224.0.0.1/ http://239.255.255.250/ http://240.0.0.1/
    http://255.255.255.255/ http://[fc00::1]/ http://[fdff::1]/ http://[fe80::1]/ http://[fec0::1]/
    http://[ff02::1]/ http://[2001:db8::1]/ http://[3fff::1]/ http://[100::1]/ http://[5f00::1]/
    http://[::ffff:10.0.0.1]/ http://router.local/ http://router.lan/ http://vault.corp.internal/ http://redis/
    http://kubernetes.default.svc.cluster.local/ http://1.0.0.127.in-addr.arpa/ http://wiki.corp/ http://wiki.home/
    http://wiki.intranet/ http://wiki.invalid/ http://wiki.onion/ http://wiki.private/ http://wiki.test/
""".split()
METADATA = """
    http://169.254.169.254/latest/meta-data/ http://2852039166/ http://0xa9fea9fe/ http://0251.0376.0251.0376/
    http://[::ffff:169.254.169.254]/ http://[fd00:ec2::254]/ http://[fd20:ce::254]/ http://100.100.100.200/
    http://168.63.129.16/ http://192.0.0.192/ http://169.254.170.2/ http://metadata.google.internal/
    http://metadata/ http://[64:ff9b::a9fe:a9fe]/
""".split()
PORTS = [f"http://example.org:{port}/" for port in (22, 25, 6379, 9200, 11211, 2375, 5432, 27017, 65535)]


@pytest.mark.parametrize(
    "url",
    [*NOT_WEB, *TRICKS, *LOOPBACK, *PRIVATE, *METADATA, *PORTS, None, 5, b"http://example.org/", ["http://a.org/"]],
)
def test_everything_else_is_refused(url):
    with pytest.raises(Refused) as caught:
        GUARD.check(url)
    message = str(caught.value)
    assert message and not caught.value.passing
    assert "secret" not in message and "\n" not in message and len(message) < 400


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("http://me:secret@example.org/", "this URL holds a user name or password: leave it out"),
        ("file:///etc/passwd", "this is not the URL of a web page: write http://… or https://…"),
        (
            "http://example.org/a b",
            "this URL holds a space, a backslash or a control character: write these as %20, %5C, …",
        ),
        ("http://0x7f.1/", "the host of this URL is not a plain name or IP address"),
        ("http://wiki.local/", "the address of wiki.local is not public"),
        ("http://example.org:22/", "port 22 of example.org is not one of the web"),
    ],
)
def test_the_policy_is_told_why(url, words):
    with pytest.raises(Refused) as caught:
        GUARD.check(url)
    assert str(caught.value) == words


def number(value: int) -> st.SearchStrategy[str]:
    """One part of an IPv4 address in every way that C libraries read."""
    return st.sampled_from(
        [f"{value}", f"0{value:o}", f"000{value:o}", f"0x{value:x}", f"0X{value:X}", f"0x00{value:x}"]
    )


@st.composite
def spellings(draw: st.DrawFn) -> str:
    """An IPv4 address, mostly one that must not be reached, in one to four parts of any base."""
    first = draw(st.sampled_from([0, 9, 10, 100, 127, 169, 172, 192, 224, 255]) | st.integers(0, 255))
    packed = first << 24 | draw(st.integers(0, 0xFFFFFF) | st.sampled_from([1, 0xFEA9FE, 0x0A0A0A]))
    length = draw(st.integers(1, 4))
    heads = [packed >> shift & 255 for shift in (24, 16, 8)[: length - 1]]
    last = packed & (1 << 8 * (5 - length)) - 1
    text = ".".join([draw(number(part)) for part in (*heads, last)])
    return text + draw(st.sampled_from(["", "", "."]))


@given(spellings())
@example("0x7f.0.0.1")
@example("9.9.9.9")
def test_an_ipv4_address_in_any_spelling_is_what_the_system_reads_or_refused(text):
    try:
        reached = socket.inet_ntoa(socket.inet_aton(text.removesuffix(".")))
    except OSError:
        reached = None
    try:
        plain = GUARD.check(f"http://{text}/")
    except Refused:
        if reached is not None and text.removesuffix(".") == reached:
            assert not is_public(ipaddress.ip_address(reached))  # a public address in plain form is let through
        return
    assert plain == f"http://{reached}/"
    assert ipaddress.ip_address(reached).is_global


@given(st.integers(0, 2**128 - 1) | st.integers(0, 2**32 - 1).map(lambda four: 0xFFFF << 32 | four), st.booleans())
def test_an_ipv6_address_in_any_spelling_is_what_the_system_reads_or_refused(packed, long):
    address = ipaddress.IPv6Address(packed)
    text = address.exploded.upper() if long else address.compressed
    reached = socket.getaddrinfo(text, 80, flags=socket.AI_NUMERICHOST)[0][4][0]
    try:
        plain = GUARD.check(f"http://[{text}]/")
    except Refused:
        return
    assert ipaddress.ip_address(urllib.parse.urlsplit(plain).hostname) == ipaddress.ip_address(reached)
    assert (address.ipv4_mapped or address).is_global


@given(st.integers(0, 2**32 - 1).map(ipaddress.IPv4Address) | st.integers(0, 2**128 - 1).map(ipaddress.IPv6Address))
def test_what_the_standard_library_knows_to_be_private_is_not_public(address):
    if is_public(address) and getattr(address, "ipv4_mapped", None) is None:
        assert address.is_global and not address.is_multicast


def test_the_borders_of_each_closed_network():
    # in networks without IPv4, public addresses are still public
    assert is_public(ipaddress.ip_address("64:ff9b::9.9.9.9"))
    assert not is_public(ipaddress.ip_address("64:ff9b::192.168.1.1"))
    closed = "10.0.0.0/8 100.64.0.0/10 127.0.0.0/8 169.254.0.0/16 172.16.0.0/12 192.168.0.0/16 224.0.0.0/3 0.0.0.0/8"
    for network in map(ipaddress.ip_network, closed.split()):
        assert not is_public(network[0]) and not is_public(network[-1])
        for outside in (int(network[0]) - 1, int(network[-1]) + 1):
            if 0 < outside < 2**32 and outside >> 24 not in (223, 126 + 1):
                assert is_public(ipaddress.IPv4Address(outside)), outside


hosts = st.text(st.sampled_from("a1.-_0x7f:@[]%/\\?#①ａ。ß \t") | st.characters(), min_size=1, max_size=12)


@given(hosts, st.sampled_from(["/", "", "?q", "#f", ":80/", ":8080"]))
def test_all_readers_of_a_checked_url_see_the_same_host(host, rest):
    try:
        plain = GUARD.check(f"http://{host}{rest}")
    except Refused:
        return
    read = urllib.parse.urlsplit(plain)
    assert read.hostname == httpx.URL(plain).raw_host.decode()
    assert (read.port or 80) == (httpx.URL(plain).port or 80)
    assert read.username is None and not read.fragment and read.hostname.isascii()
    assert not is_private(read.hostname)
    assert GUARD.check(plain) == plain


class TestAllowList:
    @pytest.mark.parametrize(
        ("entry", "url"),
        [
            ("127.0.0.1", "http://127.0.0.1:9999/"),
            ("127.0.0.1:9999", "http://127.0.0.1:9999/"),
            ("::1", "http://[::1]:9999/"),
            ("[::1]", "http://[::1]:9999/"),
            ("[::1]:9999", "http://[0:0::1]:9999/"),
            ("Wiki.Intranet", "http://wiki.intranet./a"),
            ("wiki:80", "http://wiki/a"),
            ("localhost", "https://localhost/"),
            ("example.org:22", "http://example.org:22/"),
            ("10.0.0.0/8", "http://10.1.2.3:9/"),
            ("10.0.0.0/8", "http://[::ffff:10.1.2.3]:9/"),
            ("fd00::/8", "http://[fd00::5]/"),
        ],
    )
    def test_an_entry_opens_what_it_names(self, entry, url):
        host = urllib.parse.urlsplit(url).hostname
        address = host if ":" in host or host[0].isdigit() else "10.1.2.3"
        for guard in (Guard((entry,)), pickle.loads(pickle.dumps(Guard((entry,)))), copy.deepcopy(Guard((entry,)))):
            plain = httpx.URL(guard.check(url))
            port = plain.port or {"http": 80, "https": 443}[plain.scheme]
            guard.admit(plain.host, port, [address])
            with pytest.raises(Refused):  # without the entry
                GUARD.check(url)
                GUARD.admit(plain.host, port, [address])

    @pytest.mark.parametrize(
        ("entry", "url", "address"),
        [
            ("127.0.0.1:9999", "http://127.0.0.1:9998/", "127.0.0.1"),
            ("127.0.0.1", "http://127.0.0.2/", "127.0.0.2"),
            ("wiki.intranet", "http://api.wiki.intranet/", "10.0.0.1"),
            ("wiki.intranet", "http://wiki.intranet.example.org/", "10.0.0.1"),
            ("10.0.0.0/8", "http://11.0.0.1:9/", "11.0.0.1"),
            ("10.0.0.0/8", "http://127.0.0.1/", "127.0.0.1"),
            ("10.0.0.0/8", "http://169.254.169.254/", "169.254.169.254"),
            ("10.0.0.0/8", "http://mixed.example.org/", "192.168.0.1"),
            ("10.0.0.0/8", "http://localhost/", "127.0.0.1"),
            ("10.0.0.0/8", "http://redis:6379/", "9.9.9.9"),
            ("10.0.0.0/8", "http://10.0.0.1@127.0.0.1/", "127.0.0.1"),
            ("10.0.0.0/8", "file://10.0.0.1/etc/passwd", "10.0.0.1"),
            ("wiki.intranet", "http://wiki.intranet:0/", "10.0.0.1"),
            ("wiki.intranet", "http://wiki.intranet:65536/", "10.0.0.1"),
        ],
    )
    def test_and_nothing_else(self, entry, url, address):
        guard = Guard((entry,))
        with pytest.raises(Refused):
            plain = httpx.URL(guard.check(url))
            guard.admit(plain.host, plain.port or 80, [address])

    @pytest.mark.parametrize(
        ("host", "refused"),
        [("169.254.169.254", True), ("localhost", True), ("redis:6379", True), ("10.1.2.3:9", False), ("wiki", False)],
    )
    def test_where_others_resolve_names_networks_open_addresses_only(self, host, refused):
        with pytest.raises(Refused) if refused else contextlib.nullcontext():
            Guard(("10.0.0.0/8", "wiki")).check(f"http://{host}/", resolved_here=False)

    def test_an_address_is_judged_as_written(self):
        with pytest.raises(Refused):
            Guard(("10.0.0.0/8",)).check("http://169.254.169.254/")

    @pytest.mark.parametrize(
        "entry", ["", "*", "http://a.org", "a.org/x", "10.0.0.1/8", "user@a.org", "a b", "a:x", 7, "1/2/3"]
    )
    def test_other_entries_are_a_mistake_of_the_user(self, entry):
        with pytest.raises(ConfigError, match="cannot be allowed"):
            Guard((entry,))

    def test_a_string_is_not_a_list(self):
        with pytest.raises(ConfigError, match="tuple"):
            Guard("127.0.0.1")

    def test_every_address_of_a_name_must_be_public(self):
        GUARD.admit("example.org", 443, ["9.9.9.9", "2620:fe::fe"])
        scoped = "fe80::1%eth0", "2620:fe::fe%eth0"
        for bad in ("127.0.0.1", "10.0.0.1", "::1", *scoped, "::ffff:169.254.169.254", "what?"):
            for addresses in ([bad], ["9.9.9.9", bad], [bad, "9.9.9.9"]):
                with pytest.raises(Refused, match=r"^the address of example\.org is not public$"):
                    GUARD.admit("example.org", 443, addresses)

    def test_a_name_with_addresses_in_an_allowed_network_and_public_ones_is_let_through(self):
        Guard(("10.0.0.0/8",)).admit("example.org", 443, ["10.0.0.1", "9.9.9.9"])
        with pytest.raises(Refused):
            Guard(("10.0.0.0/8",)).admit("example.org", 443, ["10.0.0.1", "192.168.0.1"])


class Names:
    """A name server whose answers change."""

    def __init__(self, *answers: list[str]) -> None:
        self.answers, self.asked = list(answers), 0

    def __call__(self, host: str, port: int) -> list[str]:
        self.asked += 1
        return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]


def fetch(http: Http, url: str) -> bytes:
    return asyncio.run(http.get(url)).body


def quick(guard: Guard, timeout: float = 2.0) -> Http:
    return Http(timeout=timeout, patience=Patience(retries=0), guard=guard)


@pytest.fixture
def site():
    with WebSite() as served:
        yield served


@pytest.fixture
def usual(site, monkeypatch):
    """The site, its port counted among those of the web: only its address keeps a guard from it."""
    monkeypatch.setattr(guard_module, "PORTS", guard_module.PORTS | {site.port})
    return site


class TestConnecting:
    def test_a_name_that_turns_private_is_never_connected_to(self, usual):
        """First public, then loopback: the address judged is the address used, and each connection is judged."""
        names = Names(["192.0.43.8"], ["127.0.0.1"])
        http, url = quick(Guard((), names), 0.5), f"http://rebind.example.org:{usual.port}/article"

        async def attempts():
            for _ in range(3):
                with pytest.raises(ToolError):
                    await http.get(url)

        asyncio.run(attempts())
        assert names.asked == 3
        assert usual.connections == 0
        assert b"Vardal" in fetch(quick(Guard(("rebind.example.org",), names)), url)  # it was there to be reached

    def test_the_name_server_is_asked_once_for_each_connection(self, site):
        """Were it asked again to connect, the second answer would lead to an address where nothing listens."""
        names = Names(["127.0.0.1"], ["127.0.0.2"])
        body = fetch(quick(Guard(("127.0.0.1/32",), names)), f"http://rebind.example.org:{site.port}/article")
        assert b"Vardal" in body and names.asked == 1

    @pytest.mark.parametrize("addresses", [["127.0.0.1"], ["9.9.9.9", "127.0.0.1"], ["127.0.0.1", "9.9.9.9"]])
    @pytest.mark.parametrize("allow", [(), ("127.0.0.2/32",), ("other.example.org",)])
    def test_a_public_name_with_a_private_address_is_refused(self, usual, addresses, allow):
        guard = Guard(allow, Names(addresses))
        with pytest.raises(Refused, match=r"^the address of inside\.example\.org is not public$"):
            fetch(quick(guard), f"http://inside.example.org:{usual.port}/article")
        assert usual.connections == 0

    def test_the_next_address_is_tried_where_one_is_dead(self, site):
        names = Names(["127.0.0.99", "127.0.0.1"])
        guard = Guard(("127.0.0.0/8",), names)
        assert b"Vardal" in fetch(quick(guard, 20), f"http://two.example.org:{site.port}/article")

    def test_an_address_that_never_answers_does_not_use_up_the_time(self, site, monkeypatch):
        monkeypatch.setattr(network_module, "_FIRST_ADDRESSES", 0.2)
        deaf = socket.create_server(("127.0.0.2", site.port), backlog=0)
        queued = [socket.socket() for _ in range(4)]
        for each in queued:
            each.setblocking(False)
            each.connect_ex(("127.0.0.2", site.port))
        guard = Guard(("127.0.0.0/8",), Names(["127.0.0.2", "127.0.0.1"]))
        start = time.monotonic()
        assert b"Vardal" in fetch(quick(guard, 60), f"http://two.example.org:{site.port}/article")
        assert 0.2 <= time.monotonic() - start < 20
        for each in (deaf, *queued):
            each.close()

    @pytest.mark.parametrize(
        "url", ["http://0x7f.1/", "http://redis/", "http://me@example.org/", "http://example.org:22/"]
    )
    def test_what_is_refused_as_written_is_not_even_looked_up(self, url):
        names = Names(["9.9.9.9"])
        with pytest.raises(Refused):
            fetch(quick(Guard((), names)), url)
        assert names.asked == 0

    def test_not_every_address_of_a_name_with_very_many_is_tried(self, site):
        guard = Guard(("127.0.0.0/8",), Names([*(f"127.0.0.{n}" for n in range(2, 40)), "127.0.0.1"]))
        with pytest.raises(ToolError, match=r"many\.example\.org could not be reached"):
            fetch(quick(guard, 60), f"http://many.example.org:{site.port}/article")
        assert not site.connections

    def test_a_connection_belongs_to_its_name(self, usual):
        """Both names lead to one address; the one that is not allowed does not get the other's connection."""
        names = Names(["127.0.0.1"])
        http = quick(Guard((f"good.example.org:{usual.port}",), names))

        async def both():
            await http.get(f"http://good.example.org:{usual.port}/article")
            with pytest.raises(Refused):
                await http.get(f"http://evil.example.org:{usual.port}/article")
            await http.get(f"http://good.example.org:{usual.port}/article")

        asyncio.run(both())
        assert names.asked == 3 and usual.connections == 2 == len(usual.seen)
        assert {item.headers["host"] for item in usual.seen} == {f"good.example.org:{usual.port}"}

    def test_a_name_server_that_hangs_does_not_outlast_the_deadline(self):
        def hang(host: str, port: int) -> list[str]:
            time.sleep(30)
            return ["9.9.9.9"]

        start = time.monotonic()
        with pytest.raises(ToolError, match=r"slow\.example\.org took longer than 0\.3 seconds"):
            fetch(quick(Guard((), hang), 0.3), "http://slow.example.org/")
        assert time.monotonic() - start < 10  # the loop's end does not wait for the thread either

    def test_hanging_lookups_do_not_pile_up_without_end(self):
        running, release = [], threading.Event()

        def hang(host: str, port: int) -> list[str]:
            running.append(host)
            release.wait(60)
            return ["9.9.9.9"]

        http = Http(timeout=0.3, patience=Patience(retries=0), guard=Guard((), hang))

        async def many():
            urls = [f"http://host{number}.example.org/" for number in range(300)]
            return await asyncio.gather(*map(http.get, urls), return_exceptions=True)

        outcomes = asyncio.run(many())
        release.set()
        assert all(isinstance(outcome, ToolError) for outcome in outcomes)
        assert 1 <= len(running) <= 64

    @pytest.mark.parametrize(
        "answer", [OSError("no"), ValueError("odd"), socket.gaierror(socket.EAI_NONAME, "none"), None]
    )
    def test_a_failing_name_server_is_told_in_words(self, answer):
        def fail(host: str, port: int) -> list[str]:
            if answer is not None:
                raise answer
            return []

        with pytest.raises(ToolError, match=r"^(there is no host nowhere\.example\.org|.* could not be reached)$"):
            fetch(quick(Guard((), fail)), "http://nowhere.example.org/")

    def test_ipv6(self):
        try:
            with socket.socket(socket.AF_INET6) as probe:
                probe.bind(("::1", 0))
        except OSError:
            pytest.skip("no IPv6 here")
        with WebSite("::1") as site:
            assert b"Vardal" in fetch(quick(Guard(("::1",))), site.url("/article"))
            assert site.seen[0].headers["host"] == f"[::1]:{site.port}"
            for guard in (Guard(), Guard(("127.0.0.1",))):
                with pytest.raises(Refused):
                    fetch(quick(guard), site.url("/article"))
            assert len(site.seen) == 1
