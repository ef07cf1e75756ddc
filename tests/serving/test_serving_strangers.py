"""Who must not reach a server, or keep others from it: web pages, strangers, the slow; real servers on loopback."""

from __future__ import annotations

import gc
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress

import httpx
import pytest
from served import PARSERS, Shelf, app_of, command, connected, invoked, use_parser

from faithful_search.serving import connection, wire
from faithful_search.serving.app import application
from faithful_search.serving.server import running
from faithful_search.tools import Toolbox

OPENED = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "c", "version": "1"}},
}
ACCEPT = {"Accept": "application/json, text/event-stream"}
SLOW = b"POST %s HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: 50\r\n\r\n{"


@pytest.fixture(scope="module")
def url():
    with running(app_of(Shelf())) as found:
        yield found


# --- web pages


def test_who_is_refused_is_told_what_to_do(url):
    for path in ("health", "metrics"):
        assert httpx.get(f"{url}/{path}", headers={"Host": "evil.example"}).status_code == 421
    answer = httpx.post(f"{url}/retrieve", headers={"Host": "shelf.lab:8000"})
    assert answer.status_code == 421 and "--allow-host shelf.lab " in answer.json()["error"]
    answer = httpx.post(f"{url}/retrieve", headers={"Origin": "http://evil.example"})
    assert answer.status_code == 403 and "'http://evil.example'" in answer.json()["error"]


# --- strangers


@pytest.mark.parametrize("verb", ["serve", "serve-judge"])
def test_an_address_that_others_reach_needs_a_token_or_a_word(verb, monkeypatch):
    what = {"serve": "world", "serve-judge": "lexical"}[verb]
    monkeypatch.setenv("FAITHFUL_SEARCH_SERVE_TOKEN", "")
    refused = invoked(verb, what, "--host", "0.0.0.0", "--port", "0")
    assert refused.exit_code == 1 and len(refused.stderr.splitlines()) == 1
    assert "FAITHFUL_SEARCH_SERVE_TOKEN" in refused.stderr and "--without-token" in refused.stderr
    with command(what, "--host", "0.0.0.0", "--without-token", verb=verb) as (_, found):
        assert httpx.get(f"{found}/health").status_code == 200
    with command(what, "--host", "0.0.0.0", verb=verb, FAITHFUL_SEARCH_SERVE_TOKEN="sesame") as (_, found):
        assert httpx.get(f"{found}/metrics").status_code == 401


@pytest.mark.parametrize("host", ["localhost", "127.0.0.2"])
def test_an_address_of_this_machine_alone_needs_none(host):
    with command("world", "--host", host, FAITHFUL_SEARCH_SERVE_TOKEN="") as (_, found):
        assert httpx.get(f"{found}/health").status_code == 200


# --- the slow


def crawling(stack, url, path, number):
    """So many clients that begin a body and do not go on."""
    slow = [stack.enter_context(connected(url)) for _ in range(number)]
    for client in slow:
        client.sendall(SLOW % path)
    return slow


def test_slow_bodies_take_no_place_of_others():
    with running(app_of(Shelf(), wire.Limits(requests=4))) as url, ExitStack() as stack:
        crawling(stack, url, b"/retrieve", 40)
        assert httpx.post(f"{url}/retrieve", json={"queries": ["a"]}).status_code == 200


def padded(size):
    return b'{"queries": ["a"], "padding": "%s"}' % (b"x" * size)


def test_large_bodies_that_do_not_end_make_room_for_others():
    limits = wire.Limits(body_bytes=1_000_000, bodies_bytes=3_000_000)
    head = (SLOW[:-1] % b"/retrieve").replace(b"50", b"950000")
    with running(app_of(Shelf(), limits)) as url, ExitStack() as stack:
        slow = [stack.enter_context(connected(url)) for _ in range(8)]
        for client in slow:
            client.sendall(head + padded(900_000))
        assert httpx.post(f"{url}/retrieve", content=padded(900_000)).status_code == 200
        for client in slow[:5]:  # with the two next to last there is no room for another
            refused = client.recv(1000)
            assert refused.startswith(b"HTTP/1.1 503") and b"retry-after: 1" in refused
        slow[-1].setblocking(False)
        with pytest.raises(BlockingIOError):
            slow[-1].recv(1)


def test_bodies_being_answered_take_room_until_they_are():
    shelf, limits = Shelf(seconds=1.0), wire.Limits(body_bytes=1_000_000, bodies_bytes=1_000_000)
    with running(app_of(shelf, limits)) as url, ThreadPoolExecutor() as pool:
        first = pool.submit(httpx.post, f"{url}/retrieve", content=padded(900_000), timeout=30)
        while not shelf.batches:
            pass
        assert httpx.post(f"{url}/retrieve", content=padded(900_000)).status_code == 503
        assert first.result().status_code == 200
        assert httpx.post(f"{url}/retrieve", content=padded(900_000)).status_code == 200


@pytest.mark.parametrize("parser", PARSERS)
def test_of_too_many_connections_the_one_silent_for_longest_is_closed(parser, monkeypatch):
    """Not one that is being answered, however long ago it was opened."""
    use_parser(monkeypatch, parser)
    monkeypatch.setattr(connection, "OPEN", 4)
    shelf, body = Shelf(seconds=1.0), b'{"queries": ["a"]}'
    with running(app_of(shelf)) as url, ExitStack() as stack:
        asked = stack.enter_context(connected(url))
        asked.sendall((SLOW[:-1] % b"/retrieve").replace(b"50", b"%d" % len(body)) + body)
        while not shelf.batches:  # it is being answered
            pass
        first, *others = crawling(stack, url, b"/retrieve", 6)
        assert first.recv(1) == b""
        assert asked.recv(100).startswith(b"HTTP/1.1 200")
        others[-1].setblocking(False)
        with pytest.raises(BlockingIOError):
            others[-1].recv(1)


def test_many_requests_at_once_are_not_all_read(url):
    """Reading them takes the time of others, who would wait for seconds."""
    pytest.importorskip("httptools")
    with connected(url) as client, suppress(ConnectionError):
        client.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n" * 5000)
        said = b"".join(iter(lambda: client.recv(1 << 20), b""))
        assert b"HTTP/1.1 400" in said and said.count(b"HTTP/1.1 200") <= connection.PIPELINED + 1


def test_an_answer_that_is_not_taken_in_time_is_not_kept(monkeypatch):
    monkeypatch.setattr(connection, "UNTAKEN", 0.0)
    with running(application({"/large": lambda _: "x" * 50_000_000})) as url:
        with pytest.raises(httpx.RemoteProtocolError, match="without sending complete message body"):
            httpx.post(f"{url}/large", timeout=30)
        monkeypatch.setattr(connection, "UNTAKEN", 60.0)
        assert len(httpx.post(f"{url}/large", timeout=30).content) > 50_000_000


# --- MCP


@pytest.fixture
def tools():
    """A server of tools over HTTP whose bodies must come within a second, and whose sessions rest for two."""
    pytest.importorskip("mcp")
    from faithful_search.serving.mcp import mcp_app
    from faithful_search.tools import LocalSearch

    with Toolbox([LocalSearch.from_corpus("world")]) as toolbox:
        app = mcp_app(toolbox, wire.Limits(body_bytes=2000, seconds=1.0), idle=2.0)  # counting sessions takes time
        with running(app) as url:
            yield url


def test_a_body_for_the_tools_that_never_comes_is_given_up(tools):
    with ExitStack() as stack:
        slow = crawling(stack, tools, b"/mcp", 50)
        assert httpx.post(f"{tools}/mcp", json=OPENED, headers=ACCEPT).status_code == 200
        for client in slow:
            assert client.recv(1000).startswith(b"HTTP/1.1 408")


def test_a_body_for_the_tools_has_the_commands_limit(tools):
    padded = OPENED | {"padding": "x" * 3000}
    assert httpx.post(f"{tools}/mcp", json=padded, headers=ACCEPT).status_code == 413


def test_a_session_that_nobody_uses_ends(tools):
    """And its next request is told so, as the protocol wants it; a new one begins as before."""
    listed = {"jsonrpc": "2.0", "id": 2, "method": "tools/list"}
    with httpx.Client(base_url=tools, headers=ACCEPT, timeout=30) as client:
        session = {"mcp-session-id": client.post("/mcp", json=OPENED).headers["mcp-session-id"]}
        client.post("/mcp", json={"jsonrpc": "2.0", "method": "notifications/initialized"}, headers=session)
        assert "local_search" in client.post("/mcp", json=listed, headers=session).text
        _until(lambda: _sessions() == 0)
        assert client.post("/mcp", json=listed, headers=session).status_code == 404
        assert client.post("/mcp", json=OPENED).status_code == 200


def test_sessions_free_what_they_held(tools):
    with httpx.Client(base_url=tools, headers=ACCEPT, timeout=30) as client:
        for _ in range(30):
            opened = client.post("/mcp", json=OPENED)
            assert opened.status_code == 200
        session = {"mcp-session-id": opened.headers["mcp-session-id"]}
        assert client.delete("/mcp", headers=session).status_code == 200
        assert _sessions() > 1
        _until(lambda: _sessions() == 0)


def _sessions():
    """Of all servers in this process: what the protocol's library keeps for each."""
    from mcp.server.streamable_http import StreamableHTTPServerTransport

    gc.collect()
    return sum(isinstance(item, StreamableHTTPServerTransport) for item in gc.get_objects())


def _until(true):
    deadline = time.monotonic() + 30
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_no_more_sessions_than_there_is_room_for(tools, monkeypatch):
    from faithful_search.serving import mcp

    monkeypatch.setattr(mcp, "SESSIONS", 3)
    with Toolbox([]) as toolbox, running(mcp.mcp_app(toolbox, wire.Limits())) as url, httpx.Client() as client:
        statuses = [client.post(f"{url}/mcp", json=OPENED, headers=ACCEPT).status_code for _ in range(5)]
    assert statuses == [200, 200, 200, 503, 503]
