"""The client of retrieval servers: against ours, against one that sends anything at all, and against one that dies."""

import asyncio
import json
import pickle
from contextlib import contextmanager

import pytest
from faulty_server import FaultyServer
from hypothesis import given, settings, strategies as st
from served import Shelf, command, passage, running

from faithful_search.errors import ConfigError, ToolError
from faithful_search.serving.retrieval import Retrieval
from faithful_search.tools import outcome
from faithful_search.tools.remote_search import TOKEN, RemoteSearch
from faithful_search.tools.toolbox import Toolbox
from faithful_search.trajectory import Evidence, ToolCall
from faithful_search.wire.http import Http
from faithful_search.wire.retry import Patience

ONCE = Http(timeout=10, patience=Patience(retries=0), per_host=64)


@pytest.fixture(scope="module")
def url():
    with running(Retrieval(Shelf())) as found:
        yield found


@contextmanager
def answering(body: bytes, status: int = 200):
    """The URL of a server that answers everything with these bytes."""
    with FaultyServer(lambda request: (status, body)) as server:
        yield server.url


def search(tool: RemoteSearch, query: str = "q") -> list[Evidence]:
    return asyncio.run(tool.search(query))


@pytest.mark.parametrize(("path", "wire"), [("", "search_r1"), ("/retrieve", "search_r1"), ("/", "recall")])
def test_what_our_server_found_comes_back_whole(url, path, wire):
    assert search(RemoteSearch(url + path, wire, top_k=2), "where") == [passage("where", 0), passage("where", 1)]
    assert RemoteSearch("http://host:1/my/own?x=1", wire).endpoint == "http://host:1/my/own?x=1"


DOCUMENTS = [{"id": "1", "contents": "T\nX"}, {"id": "2", "contents": "T\nY"}]


@pytest.mark.parametrize(
    ("answer", "found"),
    [
        ({"result": [[]]}, []),
        ({"result": [[{"id": 7, "contents": "Paris\nText"}]]}, [Evidence("Text", title="Paris", source="7")]),
        ({"result": [[{"title": "T", "text": "X"}]]}, [Evidence("X", title="T")]),
        ({"result": [[{"document": "bare text", "score": 2}]]}, [Evidence("bare text", score=2.0)]),
        ({"result": [[{"document": {"contents": '"T"\nX', "url": 5}, "score": "high"}]]}, [Evidence("X", title="T")]),
        ({"result": [[{"contents": "a"}] * 9], "more": 1}, [Evidence("a")] * 3),
        (DOCUMENTS, [Evidence("X", "T", source="1"), Evidence("Y", "T", source="2")]),
        ([DOCUMENTS, [0.5, 2]], [Evidence("X", "T", source="1", score=0.5), Evidence("Y", "T", source="2", score=2.0)]),
    ],
)
def test_what_other_servers_of_the_family_send(answer, found):
    with answering(json.dumps(answer).encode()) as url:
        assert search(RemoteSearch(url, "recall" if isinstance(answer, list) else "search_r1")) == found


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"<html>",
        b"\xff\xfe",
        b"null",
        b"[]",
        b'{"result": null}',
        b'{"result": []}',
        b'{"result": [[], []]}',
        b'{"result": ["text"]}',
        b'{"result": [[1]]}',
        b'{"result": [[{"document": {"contents": 5}}]]}',
        b'{"result": [[{"document": {"title": 5, "text": "x"}}]]}',
        b"[" * 100_000,
    ],
)
def test_what_is_no_result_is_told_to_the_policy(body):
    with answering(body) as url, pytest.raises(ToolError) as failed:
        search(RemoteSearch(url, http=ONCE))
    assert url.removeprefix("http://") not in str(failed.value) and str(failed.value)


anything = st.recursive(
    st.none() | st.booleans() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["result", "document", "contents", "text", "title", "id", "score"]), inner)
    ),
    max_leaves=12,
)


class Sent:
    """In the place of `Http`: any request is answered with this value."""

    def __init__(self, answer) -> None:
        self.answer = answer

    async def post(self, url, json, headers):
        return self

    def json(self):
        return self.answer


@settings(max_examples=150, deadline=None)
@given(anything, st.sampled_from(["search_r1", "recall"]))
def test_anything_is_evidence_or_refused(answer, wire):
    try:
        found = search(RemoteSearch("http://h", wire, http=Sent(answer)))
    except ToolError:
        return
    for item in found:
        assert (type(item.text), type(item.title), type(item.source), type(item.url)) == (str, str, str, str)


def test_a_refused_token_is_the_operators_affair(caplog, monkeypatch):
    monkeypatch.setenv(TOKEN, "token-of-another-server")
    outcome._told.clear()
    with answering(b"{}", 401) as url, pytest.raises(ToolError, match=r"^Search is not available now") as refused:
        search(RemoteSearch(url, http=ONCE))
    assert refused.value.passing and refused.value.tried
    assert TOKEN in caplog.text and "token-of-another-server" not in caplog.text


def test_a_server_killed_in_the_midst_is_told_to_the_policy():
    with command("world") as (process, url), Toolbox([RemoteSearch(url, http=ONCE)]) as toolbox:
        calls, sessions = [ToolCall("local_search", {"query": "capital"})] * 8, [toolbox.session() for _ in range(8)]
        assert all(found.evidence for found in toolbox.run_batch(calls, sessions))
        process.kill()
        process.wait(20)
        for found in toolbox.run_batch(calls, sessions):
            assert found.error and not found.evidence and found.note


def test_calls_are_kept_by_server_format_and_number_without_the_addresss_secrets():
    tools = [RemoteSearch(url) for url in ("http://a/s", "http://a/s?key=x", "http://a/s?key=y", "http://b/s")]
    tools.append(RemoteSearch("http://a/s", "recall"))
    keys = {tool.cache_key for tool in (*tools, RemoteSearch("http://a/s", top_k=5))}
    assert len(keys) == 6 and not any("key=x" in key for key in keys)


def test_the_token_comes_from_the_environment(monkeypatch):
    with running(Retrieval(Shelf()), token="s3cret") as url:
        tool = RemoteSearch(url, top_k=1, http=ONCE)
        with pytest.raises(ToolError, match="not available"):
            search(tool)
        monkeypatch.setenv(TOKEN, "s3cret")
        assert search(tool) == [passage("q", 0)]
        assert "s3cret" not in f"{tool!r} {tool.cache_key}" and b"s3cret" not in pickle.dumps(tool)


def test_what_cannot_work_is_refused_at_once():
    for name, wrong in (("wire", "soap"), ("top_k", 0)):
        with pytest.raises(ConfigError, match=name):
            RemoteSearch("http://a", **{name: wrong})
