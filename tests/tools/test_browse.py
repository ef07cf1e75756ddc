"""Browsing a hostile web site: pages become evidence, attacks become text that the policy reads, all in time."""

import asyncio
import importlib.util
import logging
import pickle
import time
from collections.abc import Sequence
from dataclasses import replace

import pytest
from faulty_server import FaultyServer
from web_site import PARAGRAPH, Page, WebSite, slow_pdf

from faithful_search.errors import ConfigError, JudgeError, ToolError
from faithful_search.judges import Request
from faithful_search.judges.condensing import Condensing
from faithful_search.judges.endpoint import EndpointJudge
from faithful_search.tools import Toolbox
from faithful_search.tools.base import Partial
from faithful_search.tools.browse import Browse, Fetch, Jina
from faithful_search.tools.web import pages
from faithful_search.tools.web.pages import Reading
from faithful_search.trajectory import Evidence, ToolCall
from faithful_search.wire.cache import Cache
from faithful_search.wire.guard import Guard
from faithful_search.wire.http import Http
from faithful_search.wire.retry import Patience

pytest.importorskip("trafilatura")
pytest.importorskip("pypdf")
QUERY = "Who was the engineer of the lighthouse?"
READING = Reading(seconds=60, shortest=60)


@pytest.fixture(scope="module")
def shared():
    with WebSite() as site:
        yield site


@pytest.fixture
def site(shared):
    shared.seen.clear()
    return shared


def browser(site: WebSite, timeout: float = 60.0, http_timeout: float = 20.0, **knobs) -> Browse:
    http = Http(
        timeout=http_timeout,
        max_bytes=1_000_000,
        patience=Patience(retries=0),
        guard=Guard(allow=(f"{site.host}:{site.port}",)),
    )
    return Browse(Fetch(http), timeout=timeout, reading=READING, **knobs)


def browse(tool: Browse, url: str = "", **arguments) -> list[Evidence]:
    return asyncio.run(tool.browse(url, **arguments))


def fails(tool: Browse, *urls: str, match: str = "was not read", **arguments) -> ToolError:
    with pytest.raises(ToolError, match=match) as told:
        browse(tool, url_list=list(urls), **arguments)
    return told.value


def test_the_paragraph_that_is_asked_for_comes_first(site):
    found = browse(browser(site), site.url("/article"), query=QUERY)
    assert found[0].text.startswith(
        "The lighthouse of Vardal\nThe lighthouse of Vardal was built in 1887 by the engineer"
    )
    assert found[0].title == "The lighthouse of Vardal" and found[0].url == site.url("/article")
    assert found[0].source == site.url("/article#paragraph-1")
    assert [item.score for item in found] == sorted((item.score for item in found), reverse=True)
    assert browse(browser(site), site.url("/article"), query="bread café owner")[0].source.endswith("#paragraph-3")
    assert browse(browser(site), site.url("/redirect/2"), query=QUERY) == found  # named where it is
    assert "brûlée" in browse(browser(site), site.url("/latin1"), query=QUERY)[0].text


def test_without_a_query_the_page_begins_at_its_beginning(site):
    for query in ("", "  ", "zebra"):
        found = browse(browser(site, top_k=2), site.url("/article"), query=query)
        assert [item.source[-1] for item in found] == ["1", "2"]
        assert all(item.score is None for item in found)


def test_several_pages_are_ranked_together_and_each_shows_its_best(site):
    urls = [site.url(path) for path in ("/article", "/paper.pdf", "/plain.txt")]
    found = browse(browser(site, top_k=3), url_list=urls, query="lighthouse lamp electricity 1931")
    assert {item.url for item in found} == set(urls)
    assert found[0].text.startswith("Its lamp was changed")
    assert [item.title for item in found if item.url.endswith("pdf")] == ["paper.pdf (p. 1)"]
    wide = browse(browser(site, top_k=10), url_list=urls)
    assert [item.url for item in wide] == [urls[0]] * 3 + [urls[1]] + [urls[2]] * 2


@pytest.mark.parametrize(
    ("path", "why"),
    [
        ("/nowhere", "404 Not Found"),
        ("/status/429?after=3600", "429 Too Many Requests"),
        ("/to-metadata", "redirects to an address that is refused"),
        ("/bomb", "sent more than 1,000,000 bytes"),
        ("/image", "sent image/png, which cannot be read here"),
        ("/broken.pdf", "was not read: "),
        ("/empty", "no text"),
        ("/drop", "broke off"),
    ],
)
def test_what_goes_wrong_is_told(site, path, why):
    start = time.monotonic()
    told = fails(browser(site), site.url(path), match=why, query=QUERY)
    assert str(told).startswith(site.url(path)) and time.monotonic() - start < 15


@pytest.mark.parametrize("url", ["http://169.254.169.254/a", "file:///etc/passwd", "what is the capital of France"])
def test_addresses_that_are_no_public_pages_are_refused(site, url):
    fails(browser(site), url)
    assert not site.seen


def test_pages_that_do_not_come_are_given_up_in_time(site):
    urls = [site.url(path) for path in ("/slow-headers", "/slow-body", "/silent", "/hints", "/wait/30")]
    for tool in (browser(site, http_timeout=0.3), browser(site, timeout=0.3)):
        start = time.monotonic()
        told = fails(tool, *urls)
        assert str(told).count("took longer than 0.3 seconds") == 5 and time.monotonic() - start < 10


def test_one_page_that_fails_among_others_is_a_result_that_says_so(site):
    urls = [site.url(path) for path in ("/nowhere", "/article", "/to-metadata", "/paper.pdf", "/silent")]
    found = browse(browser(site, http_timeout=1.0), url_list=urls, query=QUERY)
    assert len(found) == 5
    assert "1887" in found[0].text and found[1].url == site.url("/paper.pdf")
    assert [item.url for item in found[2:]] == [urls[0], urls[2], urls[4]]
    assert [item.text for item in found[2:]] == [
        "Not read: 127.0.0.1: 404 Not Found.",
        "Not read: 127.0.0.1 redirects to an address that is refused.",
        "Not read: 127.0.0.1 took longer than 1 seconds.",
    ]
    both = r"nowhere was not read: .*404 Not Found\. .*to-file was not read"
    fails(browser(site), site.url("/nowhere"), site.url("/to-file"), match=both)
    lasting = browse(browser(site), url_list=urls[:2], query=QUERY)
    assert isinstance(found, Partial) and not isinstance(lasting, Partial)  # only the former is worth asking for again


def test_the_same_address_twice_is_one_page_and_pages_asked_for_at_once_are_fetched_once(site):
    async def group() -> list[list[Evidence]]:
        tool = browser(site)
        return await asyncio.gather(*(tool.browse(site.url("/wait/0.5"), query=f"query {n}") for n in range(8)))

    assert browse(browser(site), url_list=[site.url("/article")] * 3) == browse(browser(site), site.url("/article"))
    site.seen.clear()
    assert all(found[0].text == "Here at last." for found in asyncio.run(group()))
    assert len(site.seen) == 1


def test_a_cache_of_pages_serves_another_query_and_keeps_no_failure(site, tmp_path):
    tool = browser(site, cache=Cache(tmp_path / "pages.sqlite", max_age=3600))
    first = browse(tool, site.url("/article"), query=QUERY)
    second = browse(tool, site.url("/article"), query="bread café owner")
    assert len(site.seen) == 1 and first[0] != second[0]
    for _ in range(2):
        fails(tool, site.url("/nowhere"), match="404")
    assert site.paths().count("/nowhere") == 2
    wider = Http(max_bytes=1_000_000, guard=Guard(allow=("127.0.0.0/8",)))
    other = Browse(Fetch(wider), cache=tool.cache, reading=READING)
    browse(other, site.url("/article"))
    assert len(site.seen) == 4  # what one guard let through is no other's
    coarse = replace(tool, reading=Reading(seconds=60, shortest=1_200))
    assert len(browse(coarse, site.url("/article"))) < len(browse(tool, site.url("/article")))


def test_nothing_hangs_a_rollout_longer_than_its_time_out(site):
    """Through the toolbox: servers that keep silent or drip, and a document that hangs the only process that reads."""
    site.pages["/slow.pdf"] = Page(slow_pdf(), "application/pdf")
    stuck = Reading(seconds=3, workers=1, memory=1_300_000_000)
    reader = browser(site).reader
    pages.read(b"warm", "text/plain", stuck)
    paths = ["/slow.pdf", "/slow.pdf", "/article", "/silent", "/slow-body", "/slow-headers", "/hints"]
    calls = [ToolCall("browse", {"url": site.url(path)}) for path in paths]
    for tool, limit in ((Browse(reader, timeout=1.0, reading=stuck), 30), (Browse(reader, reading=stuck), 1)):
        with Toolbox([tool], timeout=limit) as toolbox:
            start = time.monotonic()
            seen = toolbox.run_batch(calls, [toolbox.session() for _ in calls])
            assert time.monotonic() - start < 15
        assert all("did not answer within" in item.note or "longer than" in item.note for item in seen[3:]), seen[3:]
        assert seen[0].error and seen[1].error


def test_values_pickle_and_say_what_a_result_depends_on(site):
    tool = browser(site)
    other = pickle.loads(pickle.dumps(tool))
    assert other == tool and browse(other, site.url("/article"))
    ways = [Browse(), Browse(top_k=3), Browse(reading=Reading(longest=900)), Browse(condenser=Words())]
    ways += map(Browse, (Jina(), Jina("http://reader.example"), Jina(guard=Guard(("wiki.intranet",)))))
    assert len({made.cache_key for made in (tool, *ways)}) == 8


def test_missing_packages_and_settings_that_make_no_sense_are_told_before_the_first_call(monkeypatch):
    Browse().check()
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"needs trafilatura: pip install 'faithful-search\[web\]'"):
        Toolbox([Browse()])
    Browse(Jina()).check()
    with pytest.raises(ConfigError, match="with a guard only"):
        Fetch(Http())
    for wrong in ({"top_k": 0}, {"timeout": 0}):
        with pytest.raises(ConfigError, match="must be positive"):
            Browse(**wrong)


def jina(content: object = "# Bridge\n\nThe bridge of Tarn has [nine arches](http://x.example).") -> dict:
    """What Jina Reader answers."""
    data = {"title": "Bridges of Tarn", "url": "https://tarn.example/bridge", "content": content}
    return {"code": 200, "status": 20000, "data": data}


def jina_server(status: int = 200, answer: object = None) -> FaultyServer:
    return FaultyServer(lambda request: (status, jina() if answer is None else answer))


def test_jina_reader(monkeypatch):
    monkeypatch.setenv("JINA_API_KEY", "sesame")
    with jina_server() as server:
        tool = Browse(Jina(server.url), reading=READING)
        [found] = browse(tool, "https://tarn.example/bridge?a=b#arches", query="arches of the bridge")
        assert found.text == "Bridge\nThe bridge of Tarn has nine arches." and found.title == "Bridges of Tarn"
        assert found.url == "https://tarn.example/bridge?a=b" and found.source.endswith("a=b#paragraph-1")
        [request] = server.requests
        headers = request.headers
        assert request.body == {"url": "https://tarn.example/bridge?a=b"}
        assert headers["authorization"] == "Bearer sesame" and headers["accept"] == "application/json"
        assert headers["x-retain-images"] == "none"
        for refused in (
            "http://169.254.169.254/",
            "file:///etc/passwd",
            "http://localhost/",
            "http://me@tarn.example/",
        ):
            fails(tool, refused)
        assert server.calls == 1
        monkeypatch.delenv("JINA_API_KEY")
        browse(tool, "https://tarn.example/bridge")
        assert "authorization" not in server.requests[-1].headers
    assert "sesame" not in repr(tool) + tool.cache_key + repr(pickle.dumps(tool))


BODIES = (b"not json", b"[]", b'{"data": null}', jina(None), jina(""))


@pytest.mark.parametrize(("status", "answer"), [*((200, body) for body in BODIES), (422, b"{}"), (503, b"{}")])
def test_jina_reader_that_misbehaves(status, answer, monkeypatch):
    monkeypatch.setenv("JINA_API_KEY", "sesame")
    with jina_server(status, answer) as server:
        tool = Browse(Jina(server.url, http=Http(patience=Patience(retries=0))), reading=READING)
        told = str(fails(tool, "https://tarn.example/bridge"))
    assert "sesame" not in told and "127.0.0.1" not in told


@pytest.mark.parametrize("status", [401, 402, 403])
def test_a_key_that_jina_refuses_is_told_to_the_operator_once_and_not_to_the_policy(status, monkeypatch, caplog):
    monkeypatch.setenv("JINA_API_KEY", "sesame")
    with jina_server(status) as server, caplog.at_level(logging.DEBUG):
        tool = Browse(Jina(server.url), reading=READING)
        for _ in range(2):
            told = fails(tool, "https://tarn.example/bridge", "https://tarn.example/ferry")
    page = "https://tarn.example/{} was not read: the reading service refuses to read; use another tool."
    assert str(told) == f"{page.format('bridge')} {page.format('ferry')}"
    assert told.passing and server.calls == 4  # in no cache and no cassette, and not tried again
    [error] = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert str(status) in error and "JINA_API_KEY" in error and "sesame" not in caplog.text


def test_a_key_that_cannot_be_one_is_not_sent(monkeypatch, caplog):
    monkeypatch.setenv("JINA_API_KEY", "sésame")
    with jina_server() as server:
        fails(Browse(Jina(server.url), reading=READING), "https://tarn.example/", match="refuses to read")
        assert not server.calls
    assert "JINA_API_KEY" in caplog.text and "same" not in caplog.text


def test_a_title_without_end_is_cut():
    with jina_server(answer={"data": {"title": "Bridges " * 10_000, "content": "Nine arches."}}) as server:
        [found] = browse(Browse(Jina(server.url), reading=READING), "https://tarn.example/bridge")
    assert found.title.startswith("Bridges Bridges") and len(found.title) <= 300


class Words:
    """A writer that says how much it was given, or fails as told."""

    name = "words"

    def __init__(self, fails: str = "") -> None:
        self.fails = fails
        self.asked: list[Request] = []

    def write_batch(self, requests: Sequence[Request]) -> list[str | None]:
        self.asked += requests
        if self.fails == "raises":
            raise JudgeError("the key is wrong")
        if self.fails == "hangs":
            time.sleep(1.5)
        if self.fails == "nothing":
            return ["Nothing."] * len(requests)
        return [None if self.fails else f"Summary for: {request.fields['query']}" for request in requests]


def test_summaries_by_a_model(site):
    writer = Words()
    tool = browser(site, condenser=Condensing(writer))
    urls = [site.url("/article"), site.url("/paper.pdf"), site.url("/nowhere")]
    found = browse(tool, url_list=urls, query=QUERY)
    assert [item.text for item in found] == [f"Summary for: {QUERY}"] * 2 + ["Not read: 127.0.0.1: 404 Not Found."]
    assert [item.source for item in found[:2]] == [f"{url}#summary" for url in urls[:2]]
    given = {request.fields["passages"] for request in writer.asked}
    assert PARAGRAPH in given and any("Marit Solheim" in passages for passages in given)
    # nothing is looked for, so nothing is summed up
    assert browse(tool, urls[0], query=" ") == browse(browser(site), urls[0])
    writer.asked.clear()
    browse(browser(site, top_k=1, condenser=tool.condenser), urls[0], query=QUERY)
    assert "\n\n" in writer.asked[0].fields["passages"]  # a summary of one page is made from several paragraphs
    [nothing] = browse(browser(site, condenser=Condensing(Words("nothing"))), urls[0], query="x")
    assert nothing.text == "This page says nothing about it."


def test_what_a_model_is_given_is_bounded_and_its_failures_are_told_apart():
    writer = Words()
    asyncio.run(Condensing(writer, longest=12).condense("q", ["a" * 8, "b" * 8]))
    assert writer.asked[0].fields == {"query": "q", "passages": "aaaaaaaa\n\nbb"}
    for fails, passing in (("raises", False), ("none", True)):
        with pytest.raises(ToolError, match="no summary could be written") as error:
            asyncio.run(Condensing(Words(fails)).condense("q", ["a"]))
        assert error.value.passing is passing
    assert Condensing(writer).name.startswith("words condense@")  # in a cache's key: another prompt, another summary
    made = [
        EndpointJudge("m", "http://h/v1", **how) for how in ({}, {"write_tokens": 64}, {"extra_body": {"top_k": 1}})
    ]
    assert len({*(Condensing(writer).name for writer in made), Condensing(made[0], longest=12).name}) == 4


@pytest.mark.parametrize("fails", ["raises", "none", "hangs"])
def test_when_the_model_fails_the_paragraphs_are_shown(site, fails, caplog):
    tool = browser(site, timeout=1.0 if fails == "hangs" else 60.0, condenser=Condensing(Words(fails)))
    browse(browser(site), site.url("/article"))  # a worker is there
    assert "1887" in browse(tool, site.url("/article"), query=QUERY)[0].text
    assert "no summary" in caplog.text


def test_what_was_left_out_of_a_document_is_said_with_each_piece_of_it(site):
    site.pages["/rows.csv"] = Page(("y" * 60 + "\n").encode() * 10_001, "text/csv")
    [found] = browse(browser(site, top_k=1), site.url("/rows.csv"))
    assert found.title == "rows.csv (only the first 10000 of its 10001 paragraphs were read)"
