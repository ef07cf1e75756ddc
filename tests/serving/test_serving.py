"""The retrieval server: its formats worked by hand, what it refuses, how it ends; always a real server on loopback."""

from __future__ import annotations

import asyncio
import http.client
import itertools
import json
import re
import runpy
import signal
import sys
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import httpx
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from paths import EXAMPLES
from served import PARSERS, Shelf, app_of, command, connected, head, invoked, use_parser

from faithful_search.errors import ConfigError
from faithful_search.serving import connection, wire
from faithful_search.serving.layers import guarded
from faithful_search.serving.metrics import Counter as Total
from faithful_search.serving.metrics import Histogram
from faithful_search.serving.server import _server, bind, running
from faithful_search.tools.retrieval.corpus import join_contents, split_contents
from faithful_search.trajectory import Evidence
from faithful_search.wire.network import Network, new_pool

SMALL = wire.Limits(body_bytes=2000, queries=5, query_chars=100, top_k=10, seconds=1.0, requests=4)


@pytest.fixture(scope="module")
def url():
    with running(app_of(Shelf())) as found:
        yield found


@pytest.fixture(scope="module")
def small():
    with running(app_of(Shelf(), SMALL)) as found:
        yield found


def post(url, **body):
    return httpx.post(url, json=body, timeout=30)


def document(query, number):
    return {"id": f"p{number}", "contents": f'"{query} #{number}"\ntext of {query} #{number}'}


# --- formats


def test_search_r1_with_scores(url):
    answer = post(f"{url}/retrieve", queries=["a", "b"], topk=2, return_scores=True)
    assert answer.status_code == 200
    assert answer.json() == {
        "result": [
            [{"document": document(q, 0), "score": 1.0}, {"document": document(q, 1), "score": 0.5}] for q in ("a", "b")
        ]
    }


def test_search_r1_without_scores_and_number(url):
    expected = {"result": [[document("a", number) for number in range(3)]]}
    assert post(f"{url}/retrieve", queries=["a"]).json() == expected
    assert post(f"{url}/retrieve", queries=["a"], topk=None, return_scores=None).json() == expected
    assert post(f"{url}/retrieve", queries=["a"], topk=0, more={"ignored": 1}).json() == expected


def test_a_rollout_without_queries_or_with_an_empty_one_is_answered(url):
    """Training code reads `result` without looking at the status: what a policy may write must not end a training."""
    assert post(f"{url}/retrieve", queries=[], topk=3, return_scores=True).json() == {"result": []}
    found = post(f"{url}/retrieve", queries=["", " \n", "a"], topk=1, return_scores=True).json()["result"]
    assert found == [[], [], [{"document": document("a", 0), "score": 1.0}]]


def test_recall(url):
    assert post(f"{url}/search", query="a", top_n=2).json() == [document("a", 0), document("a", 1)]
    scored = post(f"{url}/search", query="a", top_n=2, return_score=True).json()
    assert scored == [[document("a", 0), document("a", 1)], [1.0, 0.5]]
    plain = post(f"{url}/batch_search", query=["a", "b"], top_n=1).json()
    assert plain == [[document("a", 0)], [document("b", 0)]]
    scored = post(f"{url}/batch_search", query=["a", "b"], top_n=1, return_score=True).json()
    assert scored == [plain, [[1.0], [1.0]]]
    assert post(f"{url}/batch_search", query=[], return_score=True).json() == [[], []]


def _sent_by_verl(url, queries):
    """The search tool of verl: a list of queries in, the text that the policy gets out."""
    headers = {"Content-Type": "application/json", "Accept": "application/json"}
    body = {"queries": queries, "topk": 2, "return_scores": True}
    texts = []
    for found in httpx.post(f"{url}/retrieve", json=body, headers=headers).raise_for_status().json()["result"]:
        parts = [item["document"]["contents"].split("\n", 1) for item in found]
        texts.append("\n\n".join(f"Doc {n} (Title: {title})\n{text}" for n, (title, text) in enumerate(parts, 1)))
    return "\n---\n".join(texts)


def test_what_verl_makes_of_an_answer(url):
    assert _sent_by_verl(url, ["a", "b"]) == (
        'Doc 1 (Title: "a #0")\ntext of a #0\n\nDoc 2 (Title: "a #1")\ntext of a #1\n---\n'
        'Doc 1 (Title: "b #0")\ntext of b #0\n\nDoc 2 (Title: "b #1")\ntext of b #1'
    )
    assert _sent_by_verl(url, [""]) == ""


@settings(max_examples=200)
@given(st.text(), st.text())
@example('"Heroes" (song)', "\ntwo\nlines\n")
@example("line\nbreak\r\u2028\x85", '"')
@example("", "no title\nhere")
def test_no_title_breaks_what_clients_split(title, text):
    contents = join_contents(title, text)
    lines = contents.split("\n")
    assert lines[0] == f'"{" ".join(title.split())}"'
    assert "\n".join(lines[1:]) == text
    assert split_contents(contents) == (" ".join(title.split()), text)


def test_contents_of_other_servers():
    assert split_contents("Paris\nThe capital.") == ("Paris", "The capital.")
    assert split_contents("x" * 400 + "\nmore") == ("", "x" * 400 + "\nmore")
    assert split_contents('"\ntext') == ('"', "text")
    assert split_contents("") == ("", "")


def test_a_passage_of_the_web_keeps_its_url():
    asked = wire.read_retrieve(b'{"queries": ["q"]}', wire.Limits(), 3)
    written = asked.write([[Evidence("text", title="T", source="s", url="https://example.org/")]])
    assert written == {"result": [[{"id": "s", "contents": '"T"\ntext', "url": "https://example.org/"}]]}


# --- what is refused


@pytest.mark.parametrize(
    ("path", "body", "status", "says"),
    [
        ("retrieve", b"", 400, "not JSON"),
        ("retrieve", b"{", 400, "not JSON"),
        ("retrieve", b"\xff\xfe\x00", 400, "not JSON"),
        ("retrieve", b"[" * 1500, 422, "object"),
        ("retrieve", b"null", 422, '{"queries": list of strings, "topk": number, "return_scores": true or false}'),
        ("retrieve", b"{}", 422, "queries"),
        ("retrieve", b'{"queries": "one"}', 422, "$.queries"),
        ("retrieve", b'{"queries": [1]}', 422, "$.queries[0]"),
        ("retrieve", b'{"queries": ["\xff"]}', 400, "not JSON"),
        ("retrieve", b'{"queries": ["a"], "topk": "3"}', 422, "$.topk"),
        ("retrieve", b'{"queries": ["a"], "topk": 1.5}', 422, "$.topk"),
        ("retrieve", b'{"queries": ["a"], "topk": -1}', 422, "negative"),
        ("retrieve", b'{"queries": ["a"], "topk": 11}', 422, "at most 10"),
        ("retrieve", b'{"queries": ["a"], "topk": 1e400}', 422, "topk"),
        ("retrieve", b'{"queries": ["a"], "return_scores": "yes"}', 422, "return_scores"),
        ("retrieve", b'{"queries": ["a","a","a","a","a","a"]}', 413, "at most 5"),
        ("retrieve", b'{"queries": ["%s"]}' % (b"x" * 101), 413, "101 characters"),
        ("retrieve", b'{"queries": ["%s"]}' % (b"x" * 3000), 413, "larger than 2000 bytes"),
        ("search", b'{"query": ["a"]}', 422, "$.query"),
        ("search", b'{"query": "  "}', 400, "empty"),
        ("batch_search", b'{"query": "a"}', 422, "list of strings"),
        ("nowhere", b"{}", 404, "POST /retrieve"),
    ],
)
def test_refused_with_a_reason(small, path, body, status, says):
    answer = httpx.post(f"{small}/{path}", content=body)
    assert answer.status_code == status
    assert list(answer.json()) == ["error"] and says in answer.json()["error"]
    assert (answer.headers.get("connection") == "close") is (status == 413)  # what is not read is no next request
    wrong = httpx.get(f"{small}/retrieve")
    assert wrong.status_code == 405 and "POST /retrieve" in wrong.json()["error"]


@settings(max_examples=60, deadline=None)
@given(
    st.binary(max_size=300) | st.recursive(st.none() | st.text(), lambda x: st.lists(x) | st.dictionaries(st.text(), x))
)
def test_garbage_is_never_an_internal_error(body):
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    for read in (wire.read_retrieve, wire.read_search, wire.read_batch_search):
        try:
            read(content, SMALL, 3)
        except wire.RequestError as error:
            assert error.status in (400, 413, 422) and str(error)


def test_a_body_without_a_length_ends_at_the_limit(small):
    def endless():
        for _ in range(100_000):
            yield b"x" * 1000
        raise AssertionError("all of it was taken")

    try:
        answer = httpx.post(f"{small}/retrieve", content=endless(), timeout=30)
        assert answer.status_code == 413
    except (httpx.WriteError, httpx.ReadError):  # closed while we still wrote
        pass
    assert httpx.get(f"{small}/health").status_code == 200


def test_a_body_that_never_comes_is_given_up(small):
    with connected(small) as slow:
        slow.sendall(head(50) + b"{")
        assert post(f"{small}/retrieve", queries=["a"]).status_code == 200  # others are served meanwhile
        answer = slow.recv(1000)
        assert answer.startswith(b"HTTP/1.1 408") and b"connection: close" in answer.lower()


def test_a_wrong_length_header_is_refused(small):
    for length in (b"99999999999999999999999", b"-5", b"abc"):
        with connected(small) as rough:
            rough.sendall(head(length) + b"{")
            assert rough.recv(100)[9:12] in (b"400", b"413")
    assert httpx.get(f"{small}/health").status_code == 200


@pytest.fixture(params=PARSERS)
def prompt(request, monkeypatch):
    """A server whose connections have a fifth of a second for headers, with either parser that uvicorn knows."""
    use_parser(monkeypatch, request.param)
    monkeypatch.setattr(connection, "SECONDS", 0.2)
    with running(app_of(Shelf())) as url:
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
    assert httpx.get(f"{prompt}/health").status_code == 200
    monkeypatch.setattr(connection, "SECONDS", 60)
    assert _closed_after(prompt, begun, *[b"X: " + b"y" * 30_000 + b"\r\n"] * 5) < 15


def test_a_kept_connection_may_rest_between_requests_and_send_much(prompt):
    with httpx.Client(timeout=30) as client:
        for seconds in (0.5, 0.0, 0.0):
            answer = client.post(f"{prompt}/retrieve", json={"queries": ["a" * 30_000] * 5, "topk": 1})
            assert answer.status_code == 200 and len(answer.json()["result"]) == 5
            time.sleep(seconds)
        assert client.post(f"{prompt}/nowhere", content=b"x" * 1_000_000).status_code == 404


def test_an_idle_connection_outlasts_the_clients_so_that_none_sends_into_a_closed_one():
    pool = new_pool(Network(None))
    assert _server(app_of(Shelf()), 1.0).config.timeout_keep_alive >= 2 * pool._keepalive_expiry


@pytest.fixture
def started(monkeypatch, tmp_path):
    """The command without its server: what it would serve, and what it printed."""
    (tmp_path / "corpus.jsonl").write_text('{"text": "Tea is steeped."}')
    monkeypatch.setenv("FAITHFUL_SEARCH_CACHE", str(tmp_path / "cache"))

    def start(*flags: str, token: str = ""):
        apps = []
        keep = lambda app, bound, *_, **__: (apps.append(app), bound.close())  # noqa: E731
        monkeypatch.setattr("faithful_search.serving.server.serve", keep)
        monkeypatch.setenv("FAITHFUL_SEARCH_SERVE_TOKEN", token)
        result = invoked("serve", tmp_path / "corpus.jsonl", "--port", "0", *flags)
        assert result.exit_code == 0, result.output
        return apps[0], result

    return start


def posted(app, path: str, **body) -> int:
    async def send() -> int:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://here") as client:
            return (await client.post(path, json=body)).status_code

    return asyncio.run(send())


def test_the_commands_limits_and_token_hold(started):
    app, _ = started("--topk-limit", "3", "--queries-limit", "2", "--body-limit", "200")
    assert posted(app, "/retrieve", queries=["tea"] * 2, topk=3) == 200
    assert posted(app, "/retrieve", queries=["tea"], topk=4) == 422
    assert posted(app, "/retrieve", queries=["tea"] * 3) == posted(app, "/retrieve", queries=["t" * 200]) == 413
    for flags, path in ((), "/retrieve"), (("--mcp-http",), "/mcp"):
        app, _ = started(*flags, token="sesame")
        assert posted(app, path, queries=["tea"]) == 401


# --- failures behind it


@pytest.mark.parametrize(
    ("query", "status", "says"),
    [("busy", 503, "busy"), ("broken", 502, "broken"), ("crash", 500, "internal error"), ("slow", 504, "too long")],
)
def test_failures_of_the_index_are_answers(small, query, status, says):
    answer = post(f"{small}/retrieve", queries=[query])
    assert answer.status_code == status and says in answer.json()["error"]
    assert "secret" not in answer.text
    assert ("retry-after" in answer.headers) == (status == 503)
    time.sleep(0.6 if query == "slow" else 0)
    assert post(f"{small}/retrieve", queries=["fine"]).status_code == 200


class Held(Shelf):
    """Searches when its gate is opened."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = threading.Event()

    def search_batch(self, queries, top_k):
        assert self.gate.wait(30)
        return super().search_batch(queries, top_k)


def test_a_query_that_is_refused_spoils_no_other_request():
    shelf, queries = Held(), ["first", "a", "b", "broken", "c", "d"]
    with running(app_of(shelf)) as url, ThreadPoolExecutor(6) as pool:
        answers = [pool.submit(post, f"{url}/retrieve", queries=[query]) for query in queries]
        while requests_at(url) < 6:
            time.sleep(0.01)
        shelf.gate.set()
        assert [answer.result().status_code for answer in answers] == [200, 200, 200, 502, 200, 200]
    assert any(len(queries) > 1 and "broken" in queries for queries, _ in shelf.batches)


class Quick(Shelf):
    """Searched on the event loop."""

    inline = True


@pytest.mark.parametrize(
    ("query", "status"), [("fine", 200), ("busy", 503), ("broken", 502), ("crash", 500), ("  ", 200)]
)
def test_a_quick_index_is_searched_without_leaving_the_loop(query, status):
    threads, shelf = threading.active_count(), Quick()
    with running(app_of(shelf)) as url:
        answer = post(f"{url}/retrieve", queries=[query, "b", "b"], topk=1)
        assert threading.active_count() <= threads + 1  # the server's own
    assert answer.status_code == status
    if query == "fine":
        assert answer.json()["result"] == [[document("fine", 0)], [document("b", 0)], [document("b", 0)]]
    assert shelf.batches[0] == ([item for item in (query, "b") if item.strip()], 1)


def test_many_queries_in_one_request_leave_a_quick_index_time_for_others():
    shelf = Held()
    shelf.inline = True
    with running(app_of(shelf)) as url, ThreadPoolExecutor(1) as pool:
        many = pool.submit(post, f"{url}/retrieve", queries=[f"q{n}" for n in range(100)], topk=1)
        time.sleep(0.05)
        assert httpx.get(f"{url}/health", timeout=20).status_code == 200
        shelf.gate.set()
        assert many.result(60).json()["result"] == [[document(f"q{n}", 0)] for n in range(100)]


def test_too_many_at_once_are_sent_away_and_may_come_back():
    limits = wire.Limits(requests=2, seconds=30)
    with running(app_of(Shelf(seconds=0.3), limits)) as url, ThreadPoolExecutor(8) as pool:
        statuses = Counter(
            answer.status_code for answer in pool.map(lambda n: post(f"{url}/retrieve", queries=[f"q{n}"]), range(8))
        )
        assert statuses[200] >= 2 and statuses[503] >= 1 and sum(statuses.values()) == 8
        assert post(f"{url}/retrieve", queries=["again"]).status_code == 200


def test_what_nobody_waits_for_is_not_searched():
    shelf = Shelf(seconds=0.2)
    with running(app_of(shelf, batch=1)) as url:
        with connected(url) as leaving:
            body = json.dumps({"queries": [f"lost {n}" for n in range(20)]}).encode()
            leaving.sendall(head(len(body)) + body)
            while not shelf.batches:
                time.sleep(0.01)
        assert post(f"{url}/retrieve", queries=["kept"]).status_code == 200
    assert len(shelf.batches) < 10


# --- many at once


def test_128_clients_each_get_their_own_answer():
    shelf = Shelf(seconds=0.002)
    with running(app_of(shelf)) as url:

        def client(number):
            with httpx.Client(timeout=60) as kept:
                for turn in range(5):
                    query, top_k = f"c{number} t{turn}", 1 + (number + turn) % 4
                    answer = kept.post(f"{url}/retrieve", json={"queries": [query], "topk": top_k}).json()
                    assert answer == {"result": [[document(query, place) for place in range(top_k)]]}

        with ThreadPoolExecutor(128) as pool:
            assert [*pool.map(client, range(128))] == [None] * 128
        metrics = httpx.get(f"{url}/metrics").text
    assert 'faithful_search_requests_total{path="/retrieve",status="200"} 640' in metrics
    assert "faithful_search_queries_total 640" in metrics
    assert "faithful_search_requests_running 0" in metrics
    assert "faithful_search_passages 7" in metrics
    assert len(shelf.batches) < 640 and max(len(queries) for queries, _ in shelf.batches) > 1


def test_the_same_query_is_searched_once_in_a_batch_and_a_server_stops_with_its_block():
    shelf, before = Shelf(), threading.active_count()
    with running(app_of(shelf)) as url:
        assert httpx.get(f"{url}/health").json() == {"status": "ok", "passages": 7}
        found = post(f"{url}/retrieve", queries=["same"] * 10 + ["other"], topk=1).json()["result"]
    assert [item[0]["id"] for item in found] == ["p0"] * 11
    assert shelf.batches == [(["same", "other"], 1)]
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"{url}/health")
    assert threading.active_count() <= before + 2  # the index's own thread


def test_metrics_are_what_prometheus_reads():
    total, seconds = Total("t", "Tries.", ("path",)), Histogram("s", "Time.", (0.1, 1.0))
    total.add(2, 'a"\\\n')
    for value in (0.05, 0.1, 0.5, 7):
        seconds.observe(value)
    assert total.lines() == ["# HELP t Tries.", "# TYPE t counter", 't{path="a\\"\\\\\\n"} 2']
    assert seconds.lines()[2:] == [
        's_bucket{le="0.1"} 2',
        's_bucket{le="1"} 3',
        's_bucket{le="+Inf"} 4',
        "s_sum 7.65",
        "s_count 4",
    ]


def test_a_token_keeps_strangers_out_but_not_the_health_check():
    with running(guarded(app_of(Shelf()), "s3cret")) as url:
        assert httpx.get(f"{url}/health").status_code == 200
        assert httpx.get(f"{url}/metrics").status_code == 401
        for header in ("Bearer wrong", "s3cret", "", "bearer s3cret", "Bearer s3cré"):
            answer = httpx.post(f"{url}/retrieve", json={"queries": ["a"]}, headers={b"Authorization": header.encode()})
            assert answer.status_code == 401 and "token" in answer.json()["error"], header
        let_in = httpx.post(f"{url}/retrieve", json={"queries": ["a"]}, headers={"Authorization": "Bearer s3cret"})
        assert let_in.status_code == 200


# --- the command


@pytest.fixture(scope="module")
def world():
    with command("world") as (_, url):
        yield url


def test_the_command_serves_a_corpus_to_search_r1s_client(world):
    """The step of a Search-R1 rollout, in code that knows nothing of this package."""
    client = runpy.run_path(str(EXAMPLES / "search_r1_client.py"))
    texts = client["search_step"](f"{world}/retrieve", ["capital", "", "river"], topk=2)
    assert len(texts) == 3 and texts[1] == ""
    for text in (texts[0], texts[2]):
        assert text.startswith('Doc 1(Title: "') and "\nDoc 2(Title: " in text
    assert client["search_step"](f"{world}/retrieve", []) == []
    assert httpx.get(f"{world}/health").json()["status"] == "ok"


def test_a_folder_of_files_is_a_corpus_too(tmp_path):
    """And what is served already is not served again."""
    for name in ("rome", "paris"):
        (tmp_path / f"{name}.jsonl").write_text(json.dumps({"title": name, "text": f"{name} is a capital"}))
    with command(str(tmp_path), FAITHFUL_SEARCH_CACHE=str(tmp_path / "cache")) as (_, url):
        (found,) = post(f"{url}/retrieve", queries=["capital"]).json()["result"]
        second = invoked("serve", url)
    assert [item["contents"].partition("\n")[0] for item in found] == ['"paris"', '"rome"']
    assert second.exit_code == 1 and f"{url} is served already" in second.stderr


def test_a_taken_port_an_unknown_host_and_a_missing_corpus_are_said_plainly(world):
    port = world.rpartition(":")[2]
    second = invoked("serve", "world", "--port", port)
    assert second.exit_code == 1 and second.stderr.startswith(f"error: cannot listen on 127.0.0.1:{port}")
    with pytest.raises(ConfigError, match="cannot listen on no such host"):
        bind("no such host", 0)
    missing = invoked("serve", "/no/corpus.jsonl", "--port", "0")
    assert missing.exit_code == 1 and missing.stderr.startswith("error: ") and "/no/corpus.jsonl" in missing.stderr


@pytest.mark.parametrize("flags", [("--mcp", "--mcp-http"), ("--triples", "world"), ("--topk", "101")])
def test_flags_that_do_not_go_together_are_refused(flags):
    answer = invoked("serve", "world", *flags)
    assert answer.exit_code == 2 and flags[0] in answer.stderr


def test_a_value_of_the_wrong_kind_in_a_file_of_tools_is_named(tmp_path):
    (tmp_path / "tools.yaml").write_text('tool_timeout: "30"')
    answer = invoked("serve", "world", "--mcp", "--tools", str(tmp_path / "tools.yaml"))
    assert answer.exit_code == 1 and "Expected `float`, got `str` - at `$.tool_timeout`" in answer.stderr


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_running_request_ends_before_the_server_does(number, tmp_path):
    """Bodies that are still being sent count as running."""
    with command("world", "--drain", "20") as (process, url):
        body = b'{"queries": ["capital"], "topk": 1}'
        with connected(url):  # it says nothing
            with connected(url) as running_one:
                running_one.sendall(head(len(body)))
                time.sleep(0.3)
                process.send_signal(number)
                _refused(url)
                assert process.poll() is None
                running_one.sendall(body)
                answer = http.client.HTTPResponse(running_one)
                answer.begin()
                assert answer.status == 200 and len(json.loads(answer.read())["result"][0]) == 1
            assert process.wait(30) == 0
        assert "Traceback" not in process.stdout.read()


def _refused(url):
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        try:
            connected(url).close()
            time.sleep(0.05)
        except OSError:
            return
    raise AssertionError("new connections are still accepted")


def test_an_endless_request_does_not_keep_the_server():
    with command("world", "--drain", "1") as (process, url), connected(url) as endless:
        endless.sendall(head(1000) + b"{")
        time.sleep(0.3)
        start = time.monotonic()
        process.send_signal(signal.SIGTERM)
        assert endless.recv(100).startswith(b"HTTP/1.1 503")
        assert process.wait(30) == 0
        assert time.monotonic() - start < 15
        assert "Traceback" not in process.stdout.read()


def test_requests_that_still_wait_are_answered_at_the_end():
    shelf = Shelf(seconds=0.05)
    with ThreadPoolExecutor(8) as pool:
        with running(app_of(shelf, batch=1)) as url:
            asked = [pool.submit(post, f"{url}/retrieve", queries=[f"q{n}"]) for n in range(8)]
            while requests_at(url) < 8:
                time.sleep(0.01)
        assert [answer.result().status_code for answer in asked] == [200] * 8


def requests_at(url):
    """How many are being answered or were."""
    lines = httpx.get(f"{url}/metrics").text.splitlines()
    return sum(float(line.split()[1]) for line in lines if re.match("faithful_search_requests_(running|total{)", line))


def test_a_missing_package_is_named_with_its_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    with pytest.raises(ConfigError, match=r"faithful-search\[serve\]"), running(app_of(Shelf())):
        pass
