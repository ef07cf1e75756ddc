"""Requests of strangers, the hostile and the slow, to real servers on loopback: none fails, tells,
waits or grows.
"""

import json
import re
import socket
import time
from collections import Counter, deque
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from itertools import count
from pathlib import Path
from random import Random
from threading import Thread
from typing import NamedTuple

import httpx2
import pytest
from served import OPENED, command, connected

HOSTS = {
    b"127.0.0.1": True, b"127.0.0.1:8000": True, b"localhost": True, b"localhost:1": True, b"LocalHost": True,
    b"[::1]:8000": True, b"192.0.2.7:8000": True, b"shelf.lab": True, b"Other.lab:80": True, b"evil.example": False,
    b"evil.example:8000": False, b"127.0.0.1.evil.example": False, b"localhost.evil.example": False,
    b"127.0.0.1.": False, b"localhost.": False, b"2130706433": False, b"0x7f.1": False, b"0177.0.0.1": False,
    b"127.1": False, b"localhost:port": False, b"localhost@evil.example": False, b"evil.example@localhost": False,
    b"evil.example#localhost": False, b"localhost/": False, b"localhost, evil.example": False,
    b"[::1].evil.example": False, b"[localhost]": False, b"[evil.example]:80": False, b"::1": False,
    b"lo\tcalhost": False, b"\xe2\x84\x93ocalhost": False, b"http://localhost": False, b"shelf.lab.evil.example": False,
    b"": False, socket.gethostname().encode(): True,
}  # fmt: skip
"""What stands in a `Host` header, and whether it names the server, which was started with
`shelf.lab, other.lab`.
"""
PAGES = {
    b"http://localhost": True, b"http://localhost:3000": True, b"http://127.0.0.1": True, b"http://[::1]:80": True,
    b"https://shelf.lab": True, b"http://evil.example": False, b"null": False, b"https://192.0.2.7": False,
    b"http://localhost.evil.example": False, b"http://localhost@evil.example": False,
    b"http://evil.example/http://localhost": False, b"http://localhost http://evil.example": False, b"x": False,
    b"": False,
}  # fmt: skip
"""What stands in an `Origin` header, and whether such a page is answered."""
METHODS = [
    b"GET",
    b"HEAD",
    b"PUT",
    b"OPTIONS",
    b"PURGE",
    b"PATCH",
    b"TRACE",
    b"CONNECT",
    b"PRI",
    b"post",
    b"",
    b"\xff",
]
METHODS += [b"X" * 5000]
TARGETS = [
    b"%s/",
    b"/%s",
    b"%s?a=b",
    b"%s%%00",
    b"%s%%ff",
    b"%s%%ed%%a0%%80",
    b"%s\xff",
    b"%s b",
    b"*",
    b"",
    b"/../%s",
]
TARGETS += [
    b"http://127.0.0.1%s",
    b"http://evil.example%s",
    b"http://evil.example",
    b"evil.example:80",
]
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
VALUES = [
    "\ud800",
    "\x00",
    "x" * 200_000,
    float("nan"),
    float("inf"),
    10**400,
    -1,
    1.5,
    None,
    True,
    [],
    {},
    [[]],
]

CALL = {"name": "local_search", "arguments": {"query": "capital"}}
CALLED = {"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": CALL}
PAIR = {"premise": "a", "hypothesis": "b", "question": "", "task": "support"}
KINDS = {
    "retrieval": (
        "serve",
        ("world",),
        "/retrieve",
        {"queries": ["capital"], "topk": 3, "return_scores": True},
    ),
    "mcp": ("serve", ("world", "--mcp-http"), "/mcp", CALLED),
    "judge": ("serve-judge", ("lexical",), "/judge", {"pairs": [PAIR]}),
    "reward": (
        "serve-reward",
        ("--abstained", "0.0"),
        "/get_reward",
        {"query": ["<answer>a</answer>"], "prompts": ["q"], "labels": [["a"]]},
    ),
}
HELD = 200
"""Requests without an end that are kept open meanwhile."""
PROMPT = 60.0
"""Seconds in which a request is answered on a busy machine."""
GROWTH = 80_000_000
"""Bytes that a process may be larger after an attack: buffers and caches of a limited size, however
long it took.
"""
NUMBERS = count(3)


class Attack(NamedTuple):
    """What is sent; whether it is for another server or of a foreign page; whether the server can
    see that it ended.
    """

    sent: bytes
    foreign: bool
    ends: bool


def spoiled(good: object, random: Random) -> bytes:
    """The body after a slip: of its values, or of its text."""
    if random.random() < 0.5:
        return json.dumps(_changed(good, random)).encode("utf-8", "surrogatepass")
    text = json.dumps(good).encode()
    start = random.randrange(len(text))
    slip = random.choice(
        (
            b"\xff",
            b"\\ud800",
            b"NaN",
            b"1e999",
            b"[" * 50_000,
            b'{"a":' * 50_000,
            b"\x00",
            b'"',
            b"",
        )
    )
    return random.choice(
        (
            b"",
            b"\xef\xbb\xbf" + text,
            text[:start] + slip + text[start + 1 :],
            text * 2,
            b"[" * 10**6,
        )
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
    pages = [
        mostly(b"http://localhost", list(PAGES)) for _ in range(random.choice((1, 2, *[0] * 6)))
    ]
    foreign = not (
        hosts and all(HOSTS[host] for host in hosts) and all(PAGES[page] for page in pages)
    )
    method, version = mostly(b"POST", METHODS), mostly(b"HTTP/1.1", VERSIONS)
    target = mostly(b"%s", TARGETS).replace(b"%s", path).replace(b"%%", b"%")
    lines = [
        headers,
        *(b"Host: " + host for host in hosts),
        *(b"Origin: " + page for page in pages),
    ]
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


class Server(NamedTuple):
    """A server that runs, and a request that it answers."""

    pid: int
    url: str
    path: str
    body: dict[str, object]
    headers: dict[str, str]

    def connect(self) -> socket.socket:
        return connected(self.url, PROMPT)

    def asking(self) -> dict[str, object]:
        """With an id for MCP, which must not have another question of the same id at work; others
        ignore it.
        """
        return self.body | {"id": next(NUMBERS)}

    def answers(self) -> bool:
        answer = httpx2.post(
            f"{self.url}{self.path}", json=self.asking(), headers=self.headers, timeout=PROMPT
        )
        return answer.status_code == 200

    def lines(self) -> bytes:
        return b"".join(f"\r\n{name}: {value}".encode() for name, value in self.headers.items())

    def memory(self) -> int:
        return 1024 * int(
            re.search(r"VmRSS:\s+(\d+)", Path(f"/proc/{self.pid}/status").read_text())[1]
        )


@pytest.fixture(scope="module", params=KINDS)
def server(request: pytest.FixtureRequest) -> Iterator[Server]:
    """Each kind of server, as its command starts it."""
    verb, arguments, path, body = KINDS[request.param]
    headers = {"Accept": "application/json, text/event-stream", "Content-Type": "application/json"}
    if request.param == "mcp":
        pytest.importorskip("mcp")
    with command(*arguments, "--allow-host", "shelf.lab, other.lab", verb=verb) as (process, url):
        if request.param == "mcp":
            opened = httpx2.post(f"{url}{path}", json=OPENED, headers=headers, timeout=PROMPT)
            headers["Mcp-Session-Id"] = opened.headers["mcp-session-id"]
        Thread(
            target=process.stdout.read, daemon=True
        ).start()  # or its log fills the pipe, and it waits
        yield Server(process.pid, url, path, body, headers)


def statuses(client: socket.socket) -> list[int]:
    """Of what is answered until the server hangs up."""
    said, deadline = bytearray(), time.monotonic() + PROMPT
    with suppress(ConnectionError):
        while part := client.recv(1 << 20):
            said += part
            if time.monotonic() > deadline:  # a stream of nothing but signs of life
                raise TimeoutError
    return [int(status) for status in re.findall(rb"HTTP/1\.1 ([2-9]\d\d) ", said)]


def asked(server: Server, *lines: bytes) -> int:
    """The status of the answer to a good request with these headers."""
    body = json.dumps(server.asking()).encode()
    head = b"POST %s HTTP/1.1%s\r\nConnection: close\r\nContent-Length: %d" % (
        server.path.encode(), server.lines(), len(body),
    )  # fmt: skip
    with server.connect() as client:
        client.sendall(b"\r\n".join((head, *lines, b"", body)))
        (status,) = statuses(client)
    return status


@pytest.mark.parametrize("name", HOSTS)
def test_a_page_that_gives_its_own_name_our_address_reads_nothing(
    server: Server, name: bytes
) -> None:
    assert asked(server, b"Host: " + name) == (200 if HOSTS[name] else 421)
    for other in (b"Host: localhost", b"host: 127.0.0.1") if not HOSTS[name] else ():
        assert asked(server, b"Host: " + name, other) in (400, 421)
        assert asked(server, other, b"Host: " + name) in (400, 421)


@pytest.mark.parametrize("page", PAGES)
def test_a_page_of_another_site_is_not_answered(server: Server, page: bytes) -> None:
    assert asked(server, b"Host: localhost", b"Origin: " + page) == (200 if PAGES[page] else 403)
    if not PAGES[page]:
        assert (
            asked(server, b"Host: localhost", b"Origin: " + page, b"Origin: http://localhost")
            == 403
        )


def sent(server: Server, one: Attack, random: Random, held: deque[socket.socket]) -> list[int]:
    """What is answered to it; the connection is kept open where it may be waited for more."""
    client = server.connect()
    held.append(client)
    if len(held) > HELD:
        held.popleft().close()
    drops, client_ends = random.choice((0, 0, 0, 50)), random.random() < 0.1
    try:
        for place in range(min(drops, len(one.sent))):
            client.sendall(one.sent[place : place + 1])
        client.settimeout(PROMPT if one.ends else 0.5)
        client.sendall(one.sent[drops:])
        if client_ends:
            client.shutdown(socket.SHUT_WR)
        client.settimeout(PROMPT if one.ends else 0.02)
        return statuses(client)
    except TimeoutError:
        assert not one.ends, one.sent[:2000]
        return []
    except OSError:  # it was refused before all of it was sent
        return []


def test_hostile_requests(server: Server, rounds: int) -> None:
    random, seen = Random(server.path), Counter[int]()
    held: deque[socket.socket] = deque()
    assert server.answers()
    before, start = server.memory(), time.monotonic()
    try:
        for number in range(rounds):
            one = attack(server.path.encode(), server.asking(), server.lines()[2:], random)
            found = sent(server, one, random, held)
            assert all(status < 500 for status in found), (found, one.sent[:2000])
            assert not one.foreign or all(status >= 400 for status in found), (
                found,
                one.sent[:2000],
            )
            seen.update(found)
            if number % 10 == 0:
                assert server.answers()
    finally:
        for client in held:
            client.close()
    grown, seconds = server.memory() - before, time.monotonic() - start
    print(
        f"{server.path}: {rounds} in {seconds:.0f} s, {before / 1e6:.0f} MB and {grown / 1e6:.1f} "
        f"more, {seen}"
    )
    assert grown < GROWTH
    assert server.answers()


def test_1100_slow_clients_keep_nobody_out(server: Server) -> None:
    """Each begins a body, and goes on by a byte while others are answered."""
    head = b"POST %s HTTP/1.1\r\nHost: localhost%s\r\nContent-Length: 50\r\n\r\n{"
    with ExitStack() as stack:
        slow = [stack.enter_context(server.connect()) for _ in range(1100)]
        for piece in (head % (server.path.encode(), server.lines()), *[b" "] * 5):
            for client in slow:
                client.sendall(piece)
            assert server.answers()
