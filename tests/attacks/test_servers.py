"""Requests of strangers, the hostile and the slow, to real servers on loopback: none fails, tells, waits or grows."""

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

import httpx
import pytest
from hostile_requests import HOSTS, PAGES, Attack, attack
from served import command

CLIENT = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "c", "version": "1"}}
OPENED = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": CLIENT}
CALL = {"name": "local_search", "arguments": {"query": "capital"}}
CALLED = {"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": CALL}
PAIR = {"premise": "a", "hypothesis": "b", "question": "", "task": "support"}
KINDS = {
    "retrieval": ("serve", ("world",), "/retrieve", {"queries": ["capital"], "topk": 3, "return_scores": True}),
    "mcp": ("serve", ("world", "--mcp-http"), "/mcp", CALLED),
    "judge": ("serve-judge", ("lexical",), "/judge", {"pairs": [PAIR]}),
}
HELD = 200
"""Requests without an end that are kept open meanwhile."""
PROMPT = 60.0
"""Seconds in which a request is answered on a busy machine."""
GROWTH = 80_000_000
"""Bytes that a process may be larger after an attack: buffers and caches of a limited size, however long it took."""
NUMBERS = count(3)


class Server(NamedTuple):
    """A server that runs, and a request that it answers."""

    pid: int
    url: str
    path: str
    body: dict[str, object]
    headers: dict[str, str]

    def connect(self) -> socket.socket:
        host, _, port = self.url.removeprefix("http://").rpartition(":")
        return socket.create_connection((host, int(port)), timeout=PROMPT)

    def asking(self) -> dict[str, object]:
        """With an id for MCP, which must not have another question of the same id at work; others ignore it."""
        return self.body | {"id": next(NUMBERS)}

    def answers(self) -> bool:
        answer = httpx.post(f"{self.url}{self.path}", json=self.asking(), headers=self.headers, timeout=PROMPT)
        return answer.status_code == 200

    def lines(self) -> bytes:
        return b"".join(f"\r\n{name}: {value}".encode() for name, value in self.headers.items())

    def memory(self) -> int:
        return 1024 * int(re.search(r"VmRSS:\s+(\d+)", Path(f"/proc/{self.pid}/status").read_text())[1])


@pytest.fixture(scope="module", params=KINDS)
def server(request: pytest.FixtureRequest) -> Iterator[Server]:
    """Each kind of server, as its command starts it."""
    verb, arguments, path, body = KINDS[request.param]
    headers = {"Accept": "application/json, text/event-stream", "Content-Type": "application/json"}
    if request.param == "mcp":
        pytest.importorskip("mcp")
    with command(*arguments, "--allow-host", "shelf.lab, other.lab", verb=verb) as (process, url):
        if request.param == "mcp":
            opened = httpx.post(f"{url}{path}", json=OPENED, headers=headers, timeout=PROMPT)
            headers["Mcp-Session-Id"] = opened.headers["mcp-session-id"]
        Thread(target=process.stdout.read, daemon=True).start()  # or its log fills the pipe, and it waits
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
def test_a_page_that_gives_its_own_name_our_address_reads_nothing(server: Server, name: bytes) -> None:
    assert asked(server, b"Host: " + name) == (200 if HOSTS[name] else 421)
    for other in (b"Host: localhost", b"host: 127.0.0.1") if not HOSTS[name] else ():
        assert asked(server, b"Host: " + name, other) in (400, 421)
        assert asked(server, other, b"Host: " + name) in (400, 421)


def test_this_machines_own_name_is_a_name_of_the_server(server: Server) -> None:
    assert asked(server, b"Host: " + socket.gethostname().encode()) == 200


@pytest.mark.parametrize("page", PAGES)
def test_a_page_of_another_site_is_not_answered(server: Server, page: bytes) -> None:
    assert asked(server, b"Host: localhost", b"Origin: " + page) == (200 if PAGES[page] else 403)
    if not PAGES[page]:
        assert asked(server, b"Host: localhost", b"Origin: " + page, b"Origin: http://localhost") == 403


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
            assert not one.foreign or all(status >= 400 for status in found), (found, one.sent[:2000])
            seen.update(found)
            if number % 10 == 0:
                assert server.answers()
    finally:
        for client in held:
            client.close()
    grown, seconds = server.memory() - before, time.monotonic() - start
    print(f"{server.path}: {rounds} in {seconds:.0f} s, {before / 1e6:.0f} MB and {grown / 1e6:.1f} more, {seen}")
    assert grown < GROWTH and server.answers()


def test_1100_slow_clients_keep_nobody_out(server: Server) -> None:
    """Each begins a body, and goes on by a byte while others are answered."""
    head = b"POST %s HTTP/1.1\r\nHost: localhost%s\r\nContent-Length: 50\r\n\r\n{"
    with ExitStack() as stack:
        slow = [stack.enter_context(server.connect()) for _ in range(1100)]
        for piece in (head % (server.path.encode(), server.lines()), *[b" "] * 5):
            for client in slow:
                client.sendall(piece)
            assert server.answers()
