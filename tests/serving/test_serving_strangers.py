"""Who must not reach a server, or keep others from it: web pages, strangers, the slow; real servers
on loopback.
"""

import asyncio
import itertools
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress

import httpx2
import pytest
from served import (
    OPENED,
    PARSERS,
    Held,
    Shelf,
    connected,
    head,
    invoked,
    retrieving,
    running,
    use_parser,
)

from faithful_search.serving import server
from faithful_search.serving.app import Guarded, ServerLimits, Service
from faithful_search.tools import LocalSearch, Toolbox


def ask(url, **how):
    return httpx2.post(f"{url}/retrieve", **({"json": {"queries": ["a"]}} | how), timeout=30)


def padded(size):
    return b'{"queries": ["a"], "padding": "%s"}' % (b"x" * size)


def crawling(stack, url, number, path="/retrieve", length=50, begun=b"{"):
    """So many clients that begin a body and do not go on."""
    slow = [stack.enter_context(connected(url)) for _ in range(number)]
    for client in slow:
        with suppress(ConnectionError):  # it may be closed already
            client.sendall(head(length, path, b"Content-Type: application/json\r\n") + begun)
    return slow


def is_closed(client):
    """Whether the server closes the connection; it waits for that."""
    try:
        return client.recv(1) == b""
    except ConnectionError:
        return True


def assert_waits(client):
    client.setblocking(False)
    with pytest.raises(BlockingIOError):
        client.recv(1)


# --- web pages and strangers


def test_who_is_refused_is_told_what_to_do():
    with retrieving(Shelf()) as url:
        for path in ("health", "metrics"):
            assert httpx2.get(f"{url}/{path}", headers={"Host": "evil.example"}).status_code == 421
        answer = ask(url, headers={"Host": "shelf.lab:8000"})
        assert answer.status_code == 421
        assert "--allow-host shelf.lab " in answer.json()["error"]
        answer = ask(url, headers={"Origin": "http://evil.example"})
        assert answer.status_code == 403
        assert "'http://evil.example'" in answer.json()["error"]


@pytest.mark.parametrize(
    ("verb", "what"),
    [("serve", "world"), ("serve-judge", "lexical"), ("serve-reward", "--mix=pou")],
)
def test_an_address_that_others_reach_needs_a_token_or_a_word(verb, what, monkeypatch):
    served = []

    def serve(app, bound, *how):
        served.append((app, server.url_of(bound)))
        bound.close()

    async def status(app, url):
        async with httpx2.AsyncClient(transport=httpx2.ASGITransport(app)) as client:
            return (await client.get(f"{url}/metrics")).status_code

    monkeypatch.setattr(server, "serve", serve)
    monkeypatch.setenv("FAITHFUL_SEARCH_SERVE_TOKEN", "")
    refused = invoked(verb, what, "--host", "0.0.0.0", "--port", "0")
    assert refused.exit_code == 1
    assert len(refused.stderr.splitlines()) == 1
    assert not served
    assert "FAITHFUL_SEARCH_SERVE_TOKEN" in refused.stderr
    assert "--without-token" in refused.stderr
    for flags, token, expected in (
        (("--host", "0.0.0.0", "--without-token"), "", 200),
        (("--host", "0.0.0.0"), "sesame", 401),
        (("--host", "localhost"), "", 200),
        (("--host", "127.0.0.2"), "", 200),
    ):
        monkeypatch.setenv("FAITHFUL_SEARCH_SERVE_TOKEN", token)
        assert invoked(verb, what, *flags, "--port", "0").exit_code == 0
        assert asyncio.run(status(*served.pop())) == expected, flags


# --- bodies


@pytest.fixture(scope="module")
def small():
    with retrieving(Shelf(), ServerLimits(body_bytes=2000, seconds=1.0)) as found:
        yield found


def test_a_body_without_a_length_ends_at_the_limit(small):
    def endless():
        for _ in range(100_000):
            yield b"x" * 1000
        raise AssertionError("all of it was taken")

    with suppress(httpx2.WriteError, httpx2.ReadError):  # closed while we still wrote
        assert ask(small, json=None, content=endless()).status_code == 413
    assert ask(small).status_code == 200


@pytest.mark.parametrize("length", [b"99999999999999999999999", b"-5", b"abc"])
def test_a_wrong_length_header_is_refused(small, length):
    with connected(small) as rough:
        rough.sendall(head(length) + b"{")
        assert rough.recv(100)[9:12] in (b"400", b"413")
    assert ask(small).status_code == 200


def test_a_length_that_is_no_number_is_not_read():
    length = "\u00b2".encode("latin-1")  # a digit to Python, and no number
    headers = [(b"host", b"localhost"), (b"content-length", length)]
    bodies = []

    async def app(scope, receive, send):
        bodies.append(await receive())

    async def receive():
        return {"type": "http.request", "body": b"{}"}

    scope = {"type": "http", "path": "/retrieve", "headers": headers}
    asyncio.run(Guarded(app, ServerLimits())(scope, receive, None))
    assert bodies[0]["body"] == b"{}"


def test_a_body_that_never_comes_is_given_up(small):
    with ExitStack() as stack:
        [slow] = crawling(stack, small, 1)
        assert ask(small).status_code == 200  # others are served meanwhile
        answer = slow.recv(1000)
        assert answer.startswith(b"HTTP/1.1 408")
        assert b"connection: close" in answer.lower()


def test_large_bodies_that_do_not_end_make_room_for_others():
    with (
        retrieving(Shelf(), ServerLimits(body_bytes=1_000_000, bodies_bytes=3_000_000)) as url,
        ExitStack() as stack,
    ):
        slow = crawling(stack, url, 8, length=950_000, begun=padded(900_000))
        assert ask(url, json=None, content=padded(900_000)).status_code == 200
        for client in slow[:5]:  # with the two next to last there is no room for another
            refused = client.recv(1000)
            assert refused.startswith(b"HTTP/1.1 503")
            assert b"retry-after: 1" in refused
        assert_waits(slow[-1])


def test_bodies_being_answered_take_room_until_they_are():
    shelf, limits = Held(seconds=1.0), ServerLimits(body_bytes=1_000_000, bodies_bytes=1_000_000)
    large = {"json": None, "content": padded(900_000)}
    with retrieving(shelf, limits) as url, ThreadPoolExecutor() as pool:
        first = pool.submit(ask, url, **large)
        assert shelf.begun.wait(30)
        assert ask(url, **large).status_code == 503
        assert first.result().status_code == 200
        assert ask(url, **large).status_code == 200


# --- connections


@pytest.fixture(params=PARSERS)
def prompt(request, monkeypatch):
    """A server whose connections have a fifth of a second for headers, with either parser that
    uvicorn knows.
    """
    use_parser(monkeypatch, request.param)
    monkeypatch.setattr(server, "HEADER_SECONDS", 0.2)
    with retrieving(Shelf()) as url:
        yield url


def _closed_after(url, *pieces):
    """Seconds until the server hangs up on one that sends these pieces."""
    start = time.monotonic()
    with connected(url) as rough, suppress(ConnectionError):
        rough.settimeout(0.05)
        for piece in itertools.chain(pieces, itertools.repeat(b"")):
            rough.sendall(piece)
            with suppress(TimeoutError):
                if not rough.recv(100):
                    break
            assert time.monotonic() - start < 20
    return time.monotonic() - start


def test_headers_that_never_end_are_neither_waited_for_nor_kept(prompt, monkeypatch):
    begun = b"POST /retrieve HTTP/1.1\r\nHost: 127.0.0.1\r\n"
    drops = [b"X-%d: y\r\n" % number for number in range(200)]
    for pieces in ([], [begun], [begun, *drops]):
        assert 0.15 < _closed_after(prompt, *pieces) < 8
    assert httpx2.get(f"{prompt}/health").status_code == 200
    monkeypatch.setattr(server, "HEADER_SECONDS", 60)
    assert _closed_after(prompt, begun, *[b"X: " + b"y" * 30_000 + b"\r\n"] * 5) < 15


def test_a_kept_connection_may_rest_and_send_much(prompt):
    with httpx2.Client(timeout=30) as client:
        for seconds in (0.5, 0.0, 0.0):
            answer = client.post(
                f"{prompt}/retrieve", json={"queries": ["a" * 30_000] * 5, "topk": 1}
            )
            assert answer.status_code == 200
            assert len(answer.json()["result"]) == 5
            time.sleep(seconds)
        elsewhere = client.post(
            f"{prompt}/retrieve", content=b"x" * 1_000_000, headers={"Host": "evil.example"}
        )
        assert (
            elsewhere.status_code == 421
        )  # refused before its body came, which is read to its end


@pytest.mark.parametrize("parser", PARSERS)
def test_the_connection_silent_for_longest_is_closed(parser, monkeypatch):
    """Not one that is being answered, however long ago it was opened."""
    use_parser(monkeypatch, parser)
    monkeypatch.setattr(server, "MAX_CONNECTIONS", 4)
    shelf, body = Held(seconds=1.0), b'{"queries": ["a"]}'
    with retrieving(shelf) as url, ExitStack() as stack:
        asked = stack.enter_context(connected(url))
        asked.sendall(head(len(body)) + body)
        assert shelf.begun.wait(30)  # it is being answered
        first, *others = crawling(stack, url, 6)
        assert is_closed(first)
        assert asked.recv(100).startswith(b"HTTP/1.1 200")
        assert_waits(others[-1])


def test_many_requests_at_once_are_not_all_read():
    """Reading them takes the time of others, who would wait for seconds."""
    pytest.importorskip("httptools")
    with retrieving(Shelf()) as url, connected(url) as client, suppress(ConnectionError):
        client.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n" * 5000)
        said = b"".join(iter(lambda: client.recv(1 << 20), b""))
        assert b"HTTP/1.1 400" in said
        assert said.count(b"HTTP/1.1 200") <= server.MAX_PIPELINED + 1


def test_an_answer_that_is_not_taken_in_time_is_not_kept(monkeypatch):
    monkeypatch.setattr(server, "SEND_SECONDS", 0.1)
    with running(Service({"/large": lambda _: "x" * 20_000_000})) as url:
        with httpx2.stream("POST", f"{url}/large", timeout=30) as answer:
            time.sleep(1)
            with pytest.raises(
                httpx2.RemoteProtocolError, match="without sending complete message body"
            ):
                answer.read()
        monkeypatch.setattr(server, "SEND_SECONDS", 60.0)
        assert len(httpx2.post(f"{url}/large", timeout=30).content) > 20_000_000


# --- MCP


def test_sessions_are_bounded_and_end_when_unused(monkeypatch):
    """The next request of one that ended is told so, as the protocol wants it; there is room for a
    new one then.
    """
    pytest.importorskip("mcp")
    from faithful_search.serving import mcp

    monkeypatch.setattr(mcp, "SESSIONS", 3)
    listed = {"jsonrpc": "2.0", "id": 2, "method": "tools/list"}
    with (
        Toolbox([LocalSearch.from_corpus("world")]) as toolbox,
        running(mcp.mcp_app(toolbox, ServerLimits(), 3.0)) as url,
    ):
        client = httpx2.Client(
            base_url=url, headers={"Accept": "application/json, text/event-stream"}, timeout=30
        )
        opened = [client.post("/mcp", json=OPENED) for _ in range(5)]
        assert [answer.status_code for answer in opened] == [200] * 3 + [503] * 2
        session = {"mcp-session-id": opened[2].headers["mcp-session-id"]}
        client.post(
            "/mcp", json={"jsonrpc": "2.0", "method": "notifications/initialized"}, headers=session
        )
        assert "local_search" in client.post("/mcp", json=listed, headers=session).text
        time.sleep(3.5)
        assert client.post("/mcp", json=listed, headers=session).status_code == 404
        assert client.post("/mcp", json=OPENED).status_code == 200
