"""Requests as no client means them, byte by byte: who it claims to be for, what it asks, and how its body comes."""

import json
from random import Random
from typing import NamedTuple

HOSTS = {
    b"127.0.0.1": True, b"127.0.0.1:8000": True, b"localhost": True, b"localhost:1": True, b"LocalHost": True,
    b"[::1]:8000": True, b"192.0.2.7:8000": True, b"shelf.lab": True, b"Other.lab:80": True, b"evil.example": False,
    b"evil.example:8000": False, b"127.0.0.1.evil.example": False, b"localhost.evil.example": False,
    b"127.0.0.1.": False, b"localhost.": False, b"2130706433": False, b"0x7f.1": False, b"0177.0.0.1": False,
    b"127.1": False, b"localhost:port": False, b"localhost@evil.example": False, b"evil.example@localhost": False,
    b"evil.example#localhost": False, b"localhost/": False, b"localhost, evil.example": False,
    b"[::1].evil.example": False, b"[localhost]": False, b"[evil.example]:80": False, b"::1": False,
    b"lo\tcalhost": False, b"\xe2\x84\x93ocalhost": False, b"http://localhost": False, b"shelf.lab.evil.example": False,
    b"": False,
}  # fmt: skip
"""What stands in a `Host` header, and whether it names the server, which was started with `shelf.lab, other.lab`."""
PAGES = {
    b"http://localhost": True, b"http://localhost:3000": True, b"http://127.0.0.1": True, b"http://[::1]:80": True,
    b"https://shelf.lab": True, b"http://evil.example": False, b"null": False, b"https://192.0.2.7": False,
    b"http://localhost.evil.example": False, b"http://localhost@evil.example": False,
    b"http://evil.example/http://localhost": False, b"http://localhost http://evil.example": False, b"x": False,
    b"": False,
}  # fmt: skip
"""What stands in an `Origin` header, and whether such a page is answered."""
METHODS = [b"GET", b"HEAD", b"PUT", b"OPTIONS", b"PURGE", b"PATCH", b"TRACE", b"CONNECT", b"PRI", b"post", b"", b"\xff"]
METHODS += [b"X" * 5000]
TARGETS = [b"%s/", b"/%s", b"%s?a=b", b"%s%%00", b"%s%%ff", b"%s%%ed%%a0%%80", b"%s\xff", b"%s b", b"*", b"", b"/../%s"]
TARGETS += [b"http://127.0.0.1%s", b"http://evil.example%s", b"http://evil.example", b"evil.example:80"]
TARGETS += [b"/health", b"/metrics", b"%s" + b"a" * 70_000]
VERSIONS = [b"HTTP/1.0", b"HTTP/2.0", b"HTTP/0.9", b"HTTP/1.1 x", b"", b"RTSP/1.0"]
HEADERS = [
    b"Authorization: Bearer \xff",
    b"Accept: */*",
    b"Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13",
    b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c",
    b"Content-Encoding: gzip",
    b"Content-Type: text/plain; charset=utf-7",
    b"Content-Type: \xff",
    b"Expect: 100-continue",
    b"Expect: more",
    b"Mcp-Session-Id: \xff\x00",
    b"Mcp-Session-Id: " + b"9" * 1000,
    b"Mcp-Protocol-Version: 1",
    b"Last-Event-ID: 1",
    b"Transfer-Encoding: gzip",
    b"X-Forwarded-Host: localhost\r\nForwarded: host=localhost\r\nX-Forwarded-For: 127.0.0.1",
    b"Cookie: " + b"a=b;" * 5000,
    b"X: " + b"y" * 70_000,
    b"\r\n".join(b"X-%d: y" % number for number in range(2000)),
    b" folded: onto the last",
    b"no colon",
    b"Nul\x00: x",
    b": nameless",
    b"X: a\rHost: evil.example",
    b"X: a\nHost: evil.example",
]
VALUES = ["\ud800", "\x00", "x" * 200_000, float("nan"), float("inf"), 10**400, -1, 1.5, None, True, [], {}, [[]]]


class Attack(NamedTuple):
    """What is sent; whether it is for another server or of a foreign page; whether the server can see that it ended."""

    sent: bytes
    foreign: bool
    ends: bool


def spoiled(good: object, random: Random) -> bytes:
    """The body after a slip: of its values, or of its text."""
    if random.random() < 0.5:
        return json.dumps(_changed(good, random)).encode("utf-8", "surrogatepass")
    text = json.dumps(good).encode()
    start = random.randrange(len(text))
    piece = random.choice((b"\xff", b"\\ud800", b"NaN", b"1e999", b"[" * 50_000, b'{"a":' * 50_000, b"\x00", b'"', b""))
    return random.choice(
        (b"", b"\xef\xbb\xbf" + text, text[:start] + piece + text[start + 1 :], text * 2, b"[" * 10**6)
    )


def _changed(value: object, random: Random) -> object:
    if isinstance(value, dict) and value and random.random() < 0.9:
        key = random.choice(list(value))
        return {**value, random.choice((key, key, "other")): _changed(value[key], random)}
    if isinstance(value, list) and value and random.random() < 0.5:
        return [_changed(value[0], random), *value] * random.choice((1, 1, 300))
    return random.choice(VALUES)


def attack(path: bytes, good: object, headers: bytes, random: Random) -> Attack:
    """A request that is wrong in some ways, seldom in none."""

    def mostly(usual: bytes, others: list[bytes]) -> bytes:
        return usual if random.random() < 0.9 else random.choice(others)

    hosts = [mostly(b"localhost", list(HOSTS)) for _ in range(random.choice((0, 2, 3, *[1] * 12)))]
    pages = [mostly(b"http://localhost", list(PAGES)) for _ in range(random.choice((1, 2, *[0] * 6)))]
    foreign = not (hosts and all(HOSTS[host] for host in hosts) and all(PAGES[page] for page in pages))
    method, version = mostly(b"POST", METHODS), mostly(b"HTTP/1.1", VERSIONS)
    target = mostly(b"%s", TARGETS).replace(b"%s", path).replace(b"%%", b"%")
    lines = [headers, *(b"Host: " + host for host in hosts), *(b"Origin: " + page for page in pages)]
    lines += random.choices(HEADERS, k=random.choice((1, 2, *[0] * 6)))
    body = json.dumps(good).encode() if random.random() < 0.3 else spoiled(good, random)
    framing, body, ends = _framed(body, random)
    times = random.choice((1, 1, 1, 1, 3, 40))
    if ends := ends and times == 1 and method != b"GET":  # MCP streams to GET without end
        lines.append(b"Connection: close")
    random.shuffle(lines)
    sent = b"\r\n".join((b" ".join((method, target, version)), *lines, *framing, b"", body)) * times
    if random.random() < 0.05:
        sent, ends = sent[: random.randrange(len(sent))], False
    return Attack(sent, foreign, ends)


def _framed(body: bytes, random: Random) -> tuple[list[bytes], bytes, bool]:
    """How long the body is said to be, what is sent of it, and whether that is its end."""
    size = b"Content-Length: %d"
    chunks = b"%x\r\n%s\r\n" % (len(body), body) if body else b""
    chunked = b"Transfer-Encoding: chunked"
    return random.choice(
        (
            *[([size % len(body)], body, True)] * 40,
            ([], body, False),
            ([size % max(0, len(body) - 9)], body, False),
            ([size % (len(body) + 9)], body, False),
            ([size % len(body), size % 3], body, False),
            ([b"Content-Length: -5"], body, False),
            ([b"Content-Length: " + b"9" * 30], body, False),
            ([b"Content-Length: 0x10"], body, False),
            *[([chunked], chunks + b"0\r\n\r\n", True)] * 5,
            ([chunked], chunks, False),
            ([chunked], b"fffffffffffffffff\r\n" + body, False),
            ([chunked], b"-1\r\n" + body, False),
            ([chunked, size % 3], chunks + b"0\r\n\r\n", False),
            ([chunked], chunks + b"0\r\n" + b"X: y\r\n" * 1000, False),
        )
    )
