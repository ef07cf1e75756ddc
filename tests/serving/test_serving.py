"""The retrieval server: its formats worked by hand, what it refuses, how it ends; always a real
server on loopback.
"""

import http.client
import json
import re
import runpy
import signal
import sys
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import httpx2
import pytest
from hypothesis import example, given, settings, strategies as st
from paths import EXAMPLES
from served import Held, Shelf, command, connected, head, invoked, retrieving
from starlette.exceptions import HTTPException

from faithful_search.errors import ConfigError
from faithful_search.serving.app import ServerLimits
from faithful_search.serving.retrieval import Retrieval
from faithful_search.serving.server import bind, server_of
from faithful_search.tools.retrieval.corpus import join_contents, split_contents
from faithful_search.wire.http import Http, _Client

SMALL = ServerLimits(body_bytes=2000, queries=5, query_chars=100, top_k=10, seconds=1.0, requests=4)


@pytest.fixture(scope="module")
def small():
    with retrieving(Shelf(), SMALL) as found:
        yield found


def post(url, path="retrieve", **body):
    return httpx2.post(f"{url}/{path}", json=body, timeout=30)


def document(query, number):
    return {"id": f"p{number}", "contents": f'"{query} #{number}"\ntext of {query} #{number}'}


def scored(query, number):
    return {"document": document(query, number), "score": 1 / (1 + number)}


# --- formats


FIRST, SECOND = document("a", 0), document("a", 1)
THREE = {"result": [[document("a", number) for number in range(3)]]}


@pytest.mark.parametrize(
    ("path", "body", "answer"),
    [
        ("retrieve", {"queries": ["a"]}, THREE),
        ("retrieve/", {"queries": ["a"], "topk": None, "return_scores": None}, THREE),
        ("retrieve", {"queries": ["a"], "topk": 0, "more": {"ignored": 1}}, THREE),
        # training code reads `result` without looking at the status: what a policy may write must
        # not end a training
        ("retrieve", {"queries": [], "return_scores": True}, {"result": []}),
        (
            "retrieve",
            {"queries": ["", "a", "b"], "topk": 2, "return_scores": True},
            {"result": [[], *([scored(q, 0), scored(q, 1)] for q in "ab")]},
        ),
        ("search", {"query": "a", "top_n": 2}, [FIRST, SECOND]),
        ("search", {"query": "a", "top_n": 2, "return_score": True}, [[FIRST, SECOND], [1.0, 0.5]]),
        ("batch_search", {"query": ["a", "b"], "top_n": 1}, [[FIRST], [document("b", 0)]]),
        (
            "batch_search",
            {"query": ["a"], "top_n": 2, "return_score": True},
            [[[FIRST, SECOND]], [[1.0, 0.5]]],
        ),
        ("batch_search", {"query": [], "return_score": True}, [[], []]),
        # what other projects send: SkyRL-gym's own body, then the same in further spellings
        (
            "retrieve",
            {"query": "a", "topk": 1, "return_scores": True},
            {"result": [[scored("a", 0)]]},
        ),
        ("retrieve", {"query": ["a"], "k": 1}, {"result": [[FIRST]]}),
        ("retrieve", {"queries": "a", "top_k": 1}, {"result": [[FIRST]]}),
        ("search", {"query": ["a"], "topk": 1}, [FIRST]),
        ("batch_search", {"query": "a", "k": 1, "return_scores": True}, [[[FIRST]], [[1.0]]]),
    ],
)
def test_formats(small, path, body, answer):
    found = post(small, path, **body)
    assert (found.status_code, found.json()) == (200, answer)


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


# --- what is refused


@pytest.mark.parametrize(
    ("path", "body", "status", "says"),
    [
        ("retrieve", b"", 400, "not JSON"),
        ("retrieve", b"\xff\xfe\x00", 400, "not JSON"),
        ("retrieve", b"[" * 1500, 422, "object"),
        ("retrieve", b"{}", 422, '{"queries": ["…"], "topk": 3, "return_scores": true}'),
        ("retrieve", b'{"queries": [1]}', 422, "$.queries[0]"),
        ("retrieve", b'{"queries": ["\xff"]}', 400, "not JSON"),
        ("retrieve", b'{"queries": ["a"], "topk": "3"}', 422, "$.topk"),
        ("retrieve", b'{"queries": ["a"], "topk": -1}', 422, "at least 1"),
        ("retrieve", b'{"queries": ["a"], "topk": 11}', 422, "at most 10"),
        ("retrieve", b'{"queries": ["a"], "topk": 1e400}', 422, "topk"),
        ("retrieve", b'{"queries": ["a","a","a","a","a","a"]}', 413, "at most 5"),
        ("retrieve", b'{"queries": ["%s"]}' % (b"x" * 101), 413, "101 characters"),
        ("retrieve", b'{"queries": ["%s"]}' % (b"x" * 3000), 413, "larger than 2000 bytes"),
        ("search", b'{"query": ["a", "b"]}', 422, "use /batch_search"),
        ("retrieve", b'{"query": 3}', 422, "$.query"),
        ("search", b'{"query": "  "}', 400, "empty"),
        ("batch_search", b'{"question": "a"}', 422, '"query": ["…"]'),
        ("nowhere", b"{}", 404, "POST /retrieve"),
        ("health", b"{}", 405, "GET /health"),
    ],
)
def test_refused_with_a_reason(small, path, body, status, says):
    answer = httpx2.post(f"{small}/{path}", content=body)
    assert answer.status_code == status
    assert list(answer.json()) == ["error"]
    assert says in answer.json()["error"]
    assert (answer.headers.get("connection") == "close") is (
        status == 413
    )  # what is not read is no next request


@settings(max_examples=60, deadline=None)
@given(
    st.binary(max_size=300)
    | st.recursive(st.none() | st.text(), lambda x: st.lists(x) | st.dictionaries(st.text(), x))
)
def test_garbage_is_never_an_internal_error(body):
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    for answer in Retrieval(Shelf(inline=True), limits=SMALL).answers.values():
        try:
            answer(content)
        except HTTPException as error:
            assert error.status_code in (400, 413, 422)
            assert error.detail


# --- failures behind it


@pytest.mark.parametrize(
    ("query", "status", "says"),
    [
        ("busy", 503, "busy"),
        ("broken", 502, "broken"),
        ("crash", 500, "internal error"),
        ("slow", 504, "too long"),
    ],
)
def test_failures_of_the_index_are_answers(small, query, status, says):
    answer = post(small, queries=[query])
    assert answer.status_code == status
    assert says in answer.json()["error"]
    assert "secret" not in answer.text
    assert ("retry-after" in answer.headers) == (status == 503)
    time.sleep(0.6 if query == "slow" else 0)
    assert post(small, queries=["fine"]).status_code == 200


def test_a_query_that_is_refused_spoils_no_other_request():
    shelf = Held()
    shelf.gate.clear()
    with retrieving(shelf) as url, ThreadPoolExecutor(6) as pool:
        answers = [pool.submit(post, url, queries=["first"])]
        assert shelf.begun.wait(30)
        answers += [
            pool.submit(post, url, queries=[query]) for query in ("a", "b", "broken", "c", "d")
        ]
        while requests_at(url) < 6:
            time.sleep(0.01)
        time.sleep(0.1)  # they are counted a moment before they wait
        shelf.gate.set()
        assert [answer.result().status_code for answer in answers] == [200, 200, 200, 502, 200, 200]
    assert any(len(queries) > 1 and "broken" in queries for queries, _ in shelf.batches)


def requests_at(url):
    """How many are being answered or were."""
    lines = httpx2.get(f"{url}/metrics").text.splitlines()
    return sum(
        float(line.split()[1])
        for line in lines
        if re.match("faithful_search_requests_(running|total{)", line)
    )


@pytest.mark.parametrize(
    ("query", "status"),
    [("fine", 200), ("busy", 503), ("broken", 502), ("crash", 500), ("  ", 200)],
)
def test_a_quick_index_is_searched_without_leaving_the_loop(query, status):
    threads, shelf = threading.active_count(), Shelf(inline=True)
    with retrieving(shelf) as url:
        answer = post(url, queries=[query, "b", "b"], topk=1)
        assert threading.active_count() <= threads + 1  # the server's own
    assert answer.status_code == status
    if query == "fine":
        assert answer.json()["result"] == [
            [document("fine", 0)],
            [document("b", 0)],
            [document("b", 0)],
        ]
    assert shelf.batches[0] == ([item for item in (query, "b") if item.strip()], 1)


def test_a_large_request_leaves_the_loop_time_for_others():
    shelf = Held(inline=True)
    shelf.gate.clear()
    with retrieving(shelf) as url, ThreadPoolExecutor(1) as pool:
        many = pool.submit(post, url, queries=[f"q{n}" for n in range(20)], topk=1)
        assert shelf.begun.wait(30)
        assert httpx2.get(f"{url}/health", timeout=20).status_code == 200
        shelf.gate.set()
        assert many.result(60).json()["result"] == [[document(f"q{n}", 0)] for n in range(20)]


def test_too_many_at_once_are_sent_away_and_may_come_back():
    with (
        retrieving(Shelf(seconds=0.3), ServerLimits(requests=2, seconds=30)) as url,
        ThreadPoolExecutor(8) as pool,
    ):
        statuses = Counter(
            answer.status_code
            for answer in pool.map(lambda n: post(url, queries=[f"q{n}"]), range(8))
        )
        assert statuses[200] >= 2
        assert statuses[503] >= 1
        assert sum(statuses.values()) == 8
        assert post(url, queries=["again"]).status_code == 200


def test_what_nobody_waits_for_is_not_searched():
    shelf = Held(seconds=0.2)
    with retrieving(shelf, batch=1) as url:
        with connected(url) as leaving:
            body = json.dumps({"queries": [f"lost {n}" for n in range(20)]}).encode()
            leaving.sendall(head(len(body)) + body)
            assert shelf.begun.wait(30)
        assert post(url, queries=["kept"]).status_code == 200
    assert len(shelf.batches) < 10


# --- many at once


def test_many_clients_each_get_their_own_answer():
    shelf, clients, turns = Shelf(seconds=0.002), 32, 4
    with retrieving(shelf) as url:

        def client(number):
            with httpx2.Client(timeout=60) as kept:
                for turn in range(turns):
                    query, top_k = f"c{number} t{turn}", 1 + (number + turn) % 4
                    answer = kept.post(
                        f"{url}/retrieve", json={"queries": [query], "topk": top_k}
                    ).json()
                    assert answer == {
                        "result": [[document(query, place) for place in range(top_k)]]
                    }

        with ThreadPoolExecutor(clients) as pool:
            list(pool.map(client, range(clients)))
        metrics = httpx2.get(f"{url}/metrics").text
    for line in (
        'faithful_search_requests_total{path="/retrieve",status="200"} 128.0',
        "faithful_search_queries_total 128.0",
        "faithful_search_requests_running 0.0",
        "faithful_search_request_seconds_count 128.0",
    ):
        assert line in metrics
    assert len(shelf.batches) < 128
    assert max(len(queries) for queries, _ in shelf.batches) > 1


def test_equal_queries_of_a_batch_are_searched_once():
    shelf, before = Shelf(), threading.active_count()
    with retrieving(shelf) as url:
        assert httpx2.get(f"{url}/health").json() == {"status": "ok", "passages": 7}
        found = post(url, queries=["same"] * 10 + ["other"], topk=1).json()["result"]
    assert [item[0]["id"] for item in found] == ["p0"] * 11
    assert shelf.batches == [(["same", "other"], 1)]
    with pytest.raises(httpx2.ConnectError):
        httpx2.get(f"{url}/health")
    assert threading.active_count() <= before + 2  # the index's own thread


# --- the command


@pytest.fixture(scope="module")
def world():
    with command("world") as (_, url):
        yield url


def test_the_command_serves_a_corpus_to_search_r1s_client(world):
    """The step of a Search-R1 rollout, in code that knows nothing of this package."""
    client = runpy.run_path(str(EXAMPLES / "search_r1_client.py"))
    texts = client["search_step"](f"{world}/retrieve", ["capital", "", "river"], topk=2)
    assert len(texts) == 3
    assert texts[1] == ""
    for text in (texts[0], texts[2]):
        assert text.startswith('Doc 1(Title: "')
        assert "\nDoc 2(Title: " in text
    assert client["search_step"](f"{world}/retrieve", []) == []


def test_a_folder_of_files_is_a_corpus_with_limits_and_a_token(tmp_path, monkeypatch):
    """And what is served already is not served again."""
    for name in ("rome", "paris"):
        (tmp_path / f"{name}.jsonl").write_text(
            json.dumps({"title": name, "text": f"{name} is a capital"})
        )
    limits = ("--search-top-k-limit", "3", "--queries-limit", "2", "--body-limit", "200")
    kept = {
        "FAITHFUL_SEARCH_CACHE": str(tmp_path / "cache"),
        "FAITHFUL_SEARCH_SERVE_TOKEN": "s3cret",
    }
    with command(str(tmp_path), *limits, **kept) as (_, url), httpx2.Client(base_url=url) as client:
        assert client.get("/health").status_code == 200
        assert client.get("/metrics").status_code == 401
        for header in ("Bearer wrong", "s3cret", "", "bearer s3cret", "Bearer s3cré"):
            answer = client.post(
                "/retrieve", json={"queries": ["a"]}, headers={b"Authorization": header.encode()}
            )
            assert answer.status_code == 401, header
            assert "token" in answer.json()["error"], header
        client.headers["Authorization"] = "Bearer s3cret"
        (found,) = client.post("/retrieve", json={"queries": ["capital"]}).json()["result"]
        for body, status in (
            ({"queries": ["tea"] * 2, "topk": 3}, 200),
            ({"queries": ["tea"], "topk": 4}, 422),
            ({"queries": ["tea"] * 3}, 413),
            ({"queries": ["t" * 200]}, 413),
        ):
            assert client.post("/retrieve", json=body).status_code == status
        second = invoked("serve", url)
    assert [item["contents"].partition("\n")[0] for item in found] == ['"paris"', '"rome"']
    assert second.exit_code == 1
    assert f"{url} is served already" in second.stderr


def test_what_cannot_be_served_is_said_plainly(world, tmp_path, monkeypatch):
    port, tools = world.rpartition(":")[2], tmp_path / "tools.yaml"
    for flags, code, says in (
        (("world", "--port", port), 1, f"error: cannot listen on 127.0.0.1:{port}"),
        (("/no/corpus.jsonl", "--port", "0"), 1, "/no/corpus.jsonl"),
        (("world", "--mcp", "--mcp-http"), 2, "--mcp and"),
        (("world", "--triples", "world"), 2, "--triples"),
        (("world", "--search-top-k", "101"), 2, "--search-top-k"),
    ):
        answer = invoked("serve", *flags)
        assert answer.exit_code == code
        assert says in answer.stderr
    for text, says in (
        ("tool_timeout: '30'", "Expected `float`, got `str` - at `$.tool_timeout`"),
        ("web_serch: ddgs", "web_serch"),
        ("[1]", "options and their values"),
    ):
        tools.write_text(text)
        answer = invoked("serve", "world", "--mcp", "--tools", tools)
        assert answer.exit_code in (1, 2)
        assert says in answer.stderr
        assert "Traceback" not in answer.stderr
    with pytest.raises(ConfigError, match="cannot listen on no such host"):
        bind("no such host", 0)
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    with pytest.raises(ConfigError, match=r"needs uvicorn: pip install 'faithful-search\[serve\]'"):
        bind("127.0.0.1", 0)


def test_a_running_request_ends_before_the_server_does():
    """Bodies that are still being sent count as running."""
    with command("world", "--drain", "20") as (process, url):
        body = b'{"queries": ["capital"], "topk": 1}'
        with connected(url):  # it says nothing
            with connected(url) as running_one:
                running_one.sendall(head(len(body)))
                time.sleep(0.3)
                process.send_signal(signal.SIGINT)
                with pytest.raises(OSError):  # soon no new connection is accepted
                    for _ in range(400):
                        connected(url).close()
                        time.sleep(0.05)
                assert process.poll() is None
                running_one.sendall(body)
                answer = http.client.HTTPResponse(running_one)
                answer.begin()
                assert answer.status == 200
                assert len(json.loads(answer.read())["result"][0]) == 1
            assert process.wait(30) == 0
        assert "Traceback" not in process.stdout.read()


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


def test_the_servers_idle_timeout_outlasts_the_clients():
    ours = server_of(Retrieval(Shelf()), 1.0).config.timeout_keep_alive
    assert ours >= 2 * _Client(Http()).pool._keepalive_expiry


def test_skyrl_gyms_own_client_is_answered(small):
    search = pytest.importorskip("skyrl_gym.tools.search")
    reply, error = search.call_search_api(f"{small}/retrieve", "a", topk=1, log_requests=False)
    assert error is None
    assert search._passages2string(reply["result"][0]).startswith("Doc 1: ")
