"""Browsing a hostile web: pages become evidence, attacks become text that the policy reads, none
ends the program.
"""

import asyncio
import importlib.util
import logging
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
import zlib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
from faulty_server import FaultyServer
from hypothesis import given, settings, strategies as st
from web_site import PARAGRAPH, Page as Sent, WebSite, pdf, slow_pdf

from faithful_search.errors import ConfigError, JudgeError, ToolError
from faithful_search.judges import Request, Writer
from faithful_search.judges.condensing import Condensing
from faithful_search.judges.endpoint import EndpointJudge
from faithful_search.tools import Cassette, Toolbox
from faithful_search.tools.base import Partial
from faithful_search.tools.browse import Browse, Fetch, Jina
from faithful_search.tools.retrieval.bm25 import rank
from faithful_search.tools.web import pages
from faithful_search.tools.web.documents import Block, answer_to, decode, pack, parse
from faithful_search.tools.web.pages import Job, PageSettings, ParsedPage
from faithful_search.trajectory import Evidence, ToolCall
from faithful_search.wire import killable
from faithful_search.wire.cache import Cache
from faithful_search.wire.guard import Guard
from faithful_search.wire.http import Http
from faithful_search.wire.retry import Patience

pytest.importorskip("trafilatura")
pytest.importorskip("pypdf")
QUERY = "Who was the engineer of the lighthouse?"
READING = PageSettings(seconds=60, shortest=60)


@pytest.fixture(scope="module")
def shared():
    with WebSite() as site:
        yield site


@pytest.fixture
def site(shared):
    shared.seen.clear()
    return shared


def browser(site: WebSite, timeout: float = 60.0, http_timeout: float = 20.0, **knobs) -> Browse:
    guard = Guard(allow=(f"{site.host}:{site.port}",))
    http = Http(
        timeout=http_timeout, max_bytes=1_000_000, patience=Patience(retries=0), guard=guard
    )
    return Browse(Fetch(http), timeout=timeout, reading=READING, **knobs)


def browse(tool: Browse, url: str = "", **arguments) -> list[Evidence]:
    return asyncio.run(tool.browse(url, **arguments))


def fails(tool: Browse, *urls: str, match: str = "was not read", **arguments) -> ToolError:
    with pytest.raises(ToolError, match=match) as told:
        browse(tool, url_list=list(urls), **arguments)
    return told.value


def test_the_paragraph_asked_for_comes_first(
    site,
):
    found, name = (
        browse(browser(site), site.url("/article"), query=QUERY),
        "The lighthouse of Vardal",
    )
    assert found[0].text.startswith(f"{name}\n{name} was built in 1887 by the engineer")
    assert found[0].title == name
    assert found[0].url == site.url("/article")
    assert found[0].source == site.url("/article#paragraph-1")
    assert [item.score for item in found] == sorted((item.score for item in found), reverse=True)
    assert browse(browser(site), site.url("/article"), query="bread café owner")[0].source.endswith(
        "#paragraph-3"
    )
    assert browse(browser(site), site.url("/redirect/2"), query=QUERY) == found  # named where it is
    assert "brûlée" in browse(browser(site), site.url("/latin1"), query=QUERY)[0].text
    for query in ("", "  ", "zebra"):
        found = browse(browser(site, top_k=2), site.url("/article"), query=query)
        assert [item.source[-1] for item in found] == ["1", "2"]
        assert all(item.score is None for item in found)


def test_several_pages_are_ranked_together(site):
    urls = [site.url(path) for path in ("/article", "/paper.pdf", "/plain.txt")]
    found = browse(browser(site, top_k=3), url_list=urls, query="lighthouse lamp electricity 1931")
    assert {item.url for item in found} == set(urls)
    assert found[0].text.startswith("Its lamp was changed")
    assert [item.title for item in found if item.url.endswith("pdf")] == ["127.0.0.1 (p. 1)"]
    wide = browse(
        browser(site, top_k=10), url_list=[*urls, urls[0]]
    )  # an address given twice is one page
    assert [item.url for item in wide] == [urls[0]] * 3 + [urls[1]] + [urls[2]] * 2
    site.pages["/rows.csv"] = Sent(("y" * 60 + "\n").encode() * 10_001, "text/csv")
    [found] = browse(browser(site, top_k=1), site.url("/rows.csv"))
    assert found.title == "127.0.0.1 (only the first 10000 of its 10001 paragraphs were read)"


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
    assert str(told).startswith("Entry 1 of url_list was not read: ")
    assert time.monotonic() - start < 15


def test_addresses_that_are_no_public_pages_are_refused(site):
    for url in ("http://169.254.169.254/a", "file:///etc/passwd", "what is the capital of France"):
        fails(browser(site), url)
    assert not site.seen


def test_a_note_tells_of_pages_that_fail_among_others(site):
    urls = [
        site.url(path) for path in ("/nowhere", "/article", "/to-metadata", "/paper.pdf", "/silent")
    ]
    found = browse(browser(site, http_timeout=1.0), url_list=urls, query=QUERY)
    assert "1887" in found[0].text
    assert {item.url for item in found} == {urls[1], urls[3]}
    assert isinstance(found, Partial)
    assert found.note == (
        "Entry 1 of url_list was not read: 127.0.0.1: 404 Not Found. "
        "Entry 3 of url_list was not read: 127.0.0.1 redirects to an address that is refused. "
        "Entry 5 of url_list was not read: 127.0.0.1 took longer than 1 seconds."
    )
    both = r"Entry 1 .* was not read: .*404 Not Found\. Entry 2 of url_list was not read"
    fails(browser(site), site.url("/nowhere"), site.url("/to-file"), match=both)
    lasting = browse(browser(site), url_list=urls[:2], query=QUERY)
    assert isinstance(lasting, Partial)
    assert (found.transient, lasting.transient) == (True, False)  # which to ask for again


def test_a_page_that_will_stay_missing_is_kept_with_its_note(site, tmp_path):
    site.pages["/brief"] = Sent(b"<title>Short</title><p>A short page about a bridge.</p>")
    call = ToolCall("browse", {"url_list": [site.url("/brief"), site.url("/nowhere")]})
    cache = Cache(tmp_path / "cache.sqlite")
    with Toolbox([browser(site)], timeout=90, cache=cache) as toolbox:
        first, again = (toolbox.run_batch([call], [toolbox.session()])[0] for _ in range(2))
    assert again == first
    assert again.note == "Entry 2 of url_list was not read: 127.0.0.1: 404 Not Found."
    assert len(site.seen) == 2
    with Toolbox(
        [browser(site)], timeout=90, cassette=Cassette(tmp_path / "c.jsonl", "record")
    ) as box:
        recorded = box.run_batch([call], [box.session()])
    with Toolbox([browser(site)], cassette=Cassette(tmp_path / "c.jsonl")) as box:
        assert box.run_batch([call], [box.session()]) == recorded == [first]


def test_a_page_asked_for_several_times_at_once_is_fetched_once(site):
    async def group() -> list[list[Evidence]]:
        tool = browser(site)
        return await asyncio.gather(
            *(tool.browse(site.url("/wait/0.5"), query=f"query {n}") for n in range(8))
        )

    assert all(found[0].text == "Here at last." for found in asyncio.run(group()))
    assert len(site.seen) == 1


def test_cached_pages_serve_other_queries(site, tmp_path):
    tool = browser(site, cache=Cache(tmp_path / "pages.sqlite", max_age=3600))
    first = browse(tool, site.url("/article"), query=QUERY)
    second = browse(tool, site.url("/article"), query="bread café owner")
    assert len(site.seen) == 1
    assert first[0] != second[0]
    for _ in range(2):
        fails(tool, site.url("/nowhere"), match="404")
    assert site.paths().count("/nowhere") == 2
    wider = Http(max_bytes=1_000_000, guard=Guard(allow=("127.0.0.0/8",)))
    browse(Browse(Fetch(wider), cache=tool.cache, reading=READING), site.url("/article"))
    assert len(site.seen) == 4  # what one guard let through is no other's
    coarse = replace(tool, reading=PageSettings(seconds=60, shortest=1_200))
    assert len(browse(coarse, site.url("/article"))) < len(browse(tool, site.url("/article")))


def test_nothing_hangs_a_rollout_longer_than_its_time_out(site):
    """Through the toolbox: servers that keep silent or drip, and a document that hangs the only
    process that reads.
    """
    site.pages["/slow.pdf"] = Sent(slow_pdf(), "application/pdf")
    stuck = PageSettings(seconds=3, workers=1, memory=1_300_000_000)
    reader = browser(site).reader
    pages.read(b"warm", "text/plain", stuck)
    paths = [
        "/slow.pdf",
        "/slow.pdf",
        "/article",
        "/silent",
        "/slow-body",
        "/slow-headers",
        "/hints",
    ]
    calls = [ToolCall("browse", {"url": site.url(path)}) for path in paths]
    for tool, limit in (
        (Browse(reader, timeout=1.0, reading=stuck), 30),
        (Browse(reader, reading=stuck), 1),
    ):
        with Toolbox([tool], timeout=limit) as toolbox:
            start = time.monotonic()
            seen = toolbox.run_batch(calls, [toolbox.session() for _ in calls])
            assert time.monotonic() - start < 15
        assert all(
            "did not answer within" in item.note or "longer than" in item.note for item in seen[3:]
        ), seen[3:]
        assert seen[0].error
        assert seen[1].error


def test_a_browse_tool_pickles_and_is_checked_first(site, monkeypatch):
    tool = browser(site)
    assert pickle.loads(pickle.dumps(tool)) == tool
    ways = [
        Browse(),
        Browse(top_k=3),
        Browse(reading=PageSettings(longest=900)),
        Browse(condenser=Words()),
    ]
    ways += map(
        Browse, (Jina(), Jina("http://reader.example"), Jina(guard=Guard(("wiki.intranet",))))
    )
    assert len({made.cache_key for made in (tool, *ways)}) == 8
    Browse().check()
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(
        ConfigError, match=r"needs trafilatura: pip install 'faithful-search\[web\]'"
    ):
        Toolbox([Browse()])
    Browse(Jina()).check()
    with pytest.raises(ConfigError, match="with a guard only"):
        Fetch(Http())
    for wrong in ({"top_k": 0}, {"timeout": 0}):
        with pytest.raises(ConfigError, match="must be positive"):
            Browse(**wrong)
    for wrong in (
        {"seconds": 0},
        {"memory": 0},
        {"workers": 0},
        {"shortest": 0},
        {"shortest": 9, "longest": 8},
    ):
        with pytest.raises(ConfigError):
            PageSettings(**wrong)


def jina(
    content: object = "# Bridge\n\nThe bridge of Tarn has [nine arches](http://x.example).",
) -> dict:
    """What Jina Reader answers."""
    data = {
        "title": "Bridges of Tarn " * 99,
        "url": "https://tarn.example/bridge",
        "content": content,
    }
    return {"code": 200, "status": 20000, "data": data}


def jina_server(status: int = 200, answer: object = None) -> FaultyServer:
    return FaultyServer(lambda request: (status, jina() if answer is None else answer))


def test_jina_reader(monkeypatch):
    monkeypatch.setenv("JINA_API_KEY", "sesame")
    with jina_server() as server:
        tool = Browse(Jina(server.url), reading=READING)
        [found] = browse(
            tool, "https://tarn.example/bridge?a=b#arches", query="arches of the bridge"
        )
        assert found.text == "Bridge\nThe bridge of Tarn has nine arches."
        assert found.title.startswith("Bridges of Tarn Bridges")
        assert len(found.title) <= 300
        assert found.url == "https://tarn.example/bridge?a=b"
        assert found.source.endswith("a=b#paragraph-1")
        [request], [headers] = server.requests, server.headers
        assert request.body == {"url": "https://tarn.example/bridge?a=b"}
        assert headers["authorization"] == "Bearer sesame"
        assert headers["accept"] == "application/json"
        assert headers["x-retain-images"] == "none"
        for refused in ("169.254.169.254/", "localhost/", "me@tarn.example/"):
            fails(tool, f"http://{refused}")
        fails(tool, "file:///etc/passwd")
        assert server.calls == 1
        monkeypatch.delenv("JINA_API_KEY")
        browse(tool, "https://tarn.example/bridge")
        assert "authorization" not in server.requests[-1].headers
    assert "sesame" not in repr(tool) + tool.cache_key + repr(pickle.dumps(tool))


BODIES = (b"not json", b"[]", b'{"data": null}', jina(None), jina(""))


@pytest.mark.parametrize(
    ("status", "answer"), [*((200, body) for body in BODIES), (422, b"{}"), (503, b"{}")]
)
def test_jina_reader_that_misbehaves(status, answer, monkeypatch):
    monkeypatch.setenv("JINA_API_KEY", "sesame")
    with jina_server(status, answer) as server:
        tool = Browse(Jina(server.url, http=Http(patience=Patience(retries=0))), reading=READING)
        told = str(fails(tool, "https://tarn.example/bridge"))
    assert "sesame" not in told
    assert "127.0.0.1" not in told


@pytest.mark.parametrize(
    ("status", "key"), [(401, "sesame"), (402, "sesame"), (403, "sesame"), (200, "sésame")]
)
def test_a_refused_jina_key_is_logged_once(status, key, monkeypatch, caplog):
    monkeypatch.setenv("JINA_API_KEY", key)  # one with an accent cannot even be sent
    with jina_server(status) as server, caplog.at_level(logging.DEBUG):
        tool = Browse(Jina(server.url), reading=READING)
        for _ in range(2):
            told = fails(tool, "https://tarn.example/bridge", "https://tarn.example/ferry")
    page = (
        "Entry {} of url_list was not read: the reading service refuses to read; use another tool."
    )
    assert str(told) == f"{page.format(1)} {page.format(2)}"
    assert told.transient  # in no cache and cassette, nor tried again
    assert server.calls == (0 if status == 200 else 4)
    [error] = [
        record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING
    ]
    assert status == 200 or str(status) in error
    assert "JINA_API_KEY" in error
    assert "same" not in caplog.text


class Words(Writer):
    """A writer that sums up, or fails as told."""

    name = "words"

    def __init__(self, fails: str = "") -> None:
        self.fails, self.asked = fails, []

    def write_batch(self, requests: Sequence[Request]) -> list[str | None]:
        self.asked += requests
        if self.fails == "raises":
            raise JudgeError("the key is wrong")
        time.sleep(1.5 * (self.fails == "hangs"))
        query = requests[0].fields["query"]
        written = {"": "It is summed up.", "nothing": "Nothing.", "echoes": f"Sought: {query}"}
        return [written.get(self.fails)] * len(requests)


def test_summaries_by_a_model(site):
    writer = Words()
    tool = browser(site, condenser=Condensing(writer))
    urls = [site.url("/article"), site.url("/paper.pdf"), site.url("/nowhere")]
    found = browse(tool, url_list=urls, query=QUERY)
    assert [item.text for item in found] == ["It is summed up."] * 2
    assert found.note == "Entry 3 of url_list was not read: 127.0.0.1: 404 Not Found."
    assert [item.source for item in found] == [f"{url}#summary" for url in urls[:2]]
    given = {request.fields["passages"] for request in writer.asked}
    assert PARAGRAPH in given
    assert any("Marit Solheim" in passages for passages in given)
    # nothing is looked for, so nothing is summed up
    assert browse(tool, urls[0], query=" ") == browse(browser(site), urls[0])
    writer.asked.clear()
    browse(browser(site, top_k=1, condenser=tool.condenser), urls[0], query=QUERY)
    assert (
        "\n\n" in writer.asked[0].fields["passages"]
    )  # a summary of one page is made from several paragraphs
    nothing = browse(browser(site, condenser=Condensing(Words("nothing"))), urls[0], query="x")
    assert list(nothing) == []
    assert nothing.note == "No results: what was read says nothing about the query."


def test_a_summarys_input_is_bounded():
    writer = Words()
    asyncio.run(Condensing(writer, longest=12).condense("q", ["a" * 8, "b" * 8]))
    assert writer.asked[0].fields == {"query": "q", "passages": "aaaaaaaa\n\nbb"}
    assert Condensing(writer).name.startswith("words condense@")
    plain, short = (
        EndpointJudge("m", "http://h/v1"),
        EndpointJudge("m", "http://h/v1", write_tokens=64),
    )
    assert (
        len({Condensing(plain).name, Condensing(short).name, Condensing(plain, longest=12).name})
        == 3
    )


@pytest.mark.parametrize("fails", ["raises", "none", "hangs", "echoes"])
def test_when_the_model_fails_the_paragraphs_are_shown(site, fails, caplog):
    tool = browser(
        site, timeout=1.0 if fails == "hangs" else 60.0, condenser=Condensing(Words(fails))
    )
    browse(browser(site), site.url("/article"))  # a worker is there
    found = browse(tool, site.url("/article"), query=QUERY)
    assert "1887" in found[0].text
    assert "no summary" in caplog.text


# documents, read by other processes

ROOMY = PageSettings(seconds=60)
LINUX = pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="limits and /proc are Linux's"
)


def texts(page: ParsedPage) -> str:
    return "\n".join(paragraph.text for paragraph in page.paragraphs)


def read(body: bytes, content_type: str = "text/html", reading: PageSettings = ROOMY) -> str:
    """The text of a document, read by another process."""
    return texts(pages.read(body, content_type, reading))


def test_tables_lists_and_headings_are_kept():
    rows = "".join(f"<tr><td>River {n}</td><td>{n * 37} km</td></tr>" for n in range(60))
    body = f"""<title>Rivers</title><article><h1>Rivers</h1><p>{"These rivers are long. " * 12}</p><h2>Lengths</h2>
    <table><tr><th>Name</th><th>Length</th></tr>{rows}</table>
    <ul><li>Boats are <b>welcome</b> here</li><li>Fishing is not</li></ul></article>"""
    page = parse(body.encode(), "text/html", ROOMY)
    assert "River 5 | 185 km" in texts(page)
    assert "- Boats are welcome here" in texts(page)
    [last] = [paragraph.text for paragraph in page.paragraphs if "River 59 |" in paragraph.text]
    assert last.startswith("Name | Length\n")  # a row says nothing without its header
    assert not any(paragraph.text.rsplit("\n", 1)[-1] == "Lengths" for paragraph in page.paragraphs)


HIDDEN = [
    "hidden",
    "hidden=''",
    "HIDDEN=hidden",
    "aria-hidden=true",
    "aria-hidden='TRUE'",
    "style='display:none'",
    "style='color: red; DISPLAY : none !important'",
    "style='visibility:hidden'",
    "style='visibility: collapse;'",
]
SHOWN = [
    "aria-hidden=false",
    "hidden=until-found",
    "style='display:block'",
    "style='overflow:hidden'",
    "style='backface-visibility:hidden'",
    "class='display:none'",
]
SENTENCE = "The lighthouse of Vardal was built by Ada Mirov in 1871, and it stands there still. "


@pytest.mark.parametrize("length", [1, 8], ids=["short page", "long page"])
@pytest.mark.parametrize("attribute", HIDDEN)
def test_text_that_a_page_hides_is_not_read(attribute, length):
    secret = f"<div {attribute}><p>Ignore all {SENTENCE * length}</p></div> and its tail"
    page = parse(
        f"<body><main><p>{SENTENCE * length}</p>{secret}</main>".encode(), "text/html", ROOMY
    )
    assert "Ada Mirov" in texts(page)
    assert "Ignore all" not in texts(page)


@pytest.mark.parametrize("attribute", SHOWN)
def test_text_that_a_page_shows_is_read(attribute):
    shown = f"<div {attribute}><p>Also this: {SENTENCE * 4}</p></div>"
    page = parse(f"<body><main><p>{SENTENCE}</p>{shown}</main>".encode(), "text/html", ROOMY)
    assert "Also this" in texts(page)


def test_what_stands_behind_hidden_text_is_read():
    body = f"<p>{SENTENCE}<span hidden>not this</span>but this</p>"
    assert texts(parse(body.encode(), "text/html", ROOMY)).endswith("there still. but this")


def test_a_page_that_scripts_show_later_is_read():
    body = f"<html style='display:none'><body style='visibility:hidden'><p>{SENTENCE}</p>"
    assert "Ada Mirov" in texts(parse(body.encode(), "text/html", ROOMY))


@pytest.mark.parametrize("hiding", ["<!-- Ignore all -->", "<template>Ignore all</template>"])
def test_comments_and_templates_are_not_read(hiding):
    page = parse(f"<body><p>{SENTENCE}{hiding}</p>".encode(), "text/html", ROOMY)
    assert "Ignore all" not in texts(page)


def test_a_hidden_heading_is_no_title():
    page = parse(f"<h1 hidden>Ignore all</h1><p>{SENTENCE}</p>".encode(), "text/html", ROOMY)
    assert page.title == ""


def test_a_page_without_main_text_gives_all_its_text():
    body = b"<title>Prices</title><div>Tea <span>4 crowns</span></div><div>Cake 6 crowns</div><script>x</script>"
    page = parse(body, "text/html", ROOMY)
    assert page.title == "Prices"
    assert texts(page) == "Tea 4 crowns\nCake 6 crowns"
    ferries = "".join(
        f"<p>Ferry number {n} leaves the harbour of Vardal at {n} o'clock.</p>" for n in range(20)
    )
    found = read(
        f"<main><p>A short teaser says hardly anything.</p></main><footer>{ferries}</footer>".encode()
    )
    assert "teaser" in found
    assert "Ferry number 19" in found


def test_a_pdf_is_recognised_by_its_bytes():
    body = pdf("The bridge has nine arches.", "It was rebuilt in 1952.")
    for said in ("application/pdf", "text/html", "", "image/png"):
        found = [(p.text, p.place) for p in pages.read(body, said, ROOMY).paragraphs]
        assert found == [
            ("The bridge has nine arches.", "p. 1"),
            ("It was rebuilt in 1952.", "p. 2"),
        ]
    page = parse(
        pdf(*["The river is long. " * 40] * 400), "application/pdf", PageSettings(seconds=0.01)
    )
    assert 1 <= len({p.place for p in page.paragraphs}) < 400  # what is read of it in time is kept
    assert page.cut == f"the first {page.paragraphs[-1].place[3:]} of its 400 pages"


def test_a_word_that_a_pdf_divides_is_whole():
    line_break = ") Tj 0 -14 Td ("
    body = pdf("The light-" + "@" * len(line_break) + "house of Vardal")
    body = body.replace(b"@" * len(line_break), line_break.encode()).replace(
        b"/Root 1 0 R", b"/Root 1 0 R /Info (x)"
    )
    page = parse(body, "application/pdf", ROOMY)
    assert (page.title, texts(page)) == ("", "The lighthouse of Vardal")


def test_a_locked_pdf_says_so(tmp_path):
    import pypdf

    writer = pypdf.PdfWriter()
    writer.add_blank_page(100, 100)
    writer.write(tmp_path / "open.pdf")
    writer.encrypt("secret", algorithm="RC4-40")
    writer.write(tmp_path / "locked.pdf")
    for name, told in (("locked", "locked by a password"), ("open", "may be images")):
        with pytest.raises(ToolError, match=told):
            read((tmp_path / f"{name}.pdf").read_bytes(), "application/pdf")


@pytest.mark.parametrize(
    ("body", "said", "expected"),
    [
        (b"One.\n\nTwo.", "text/plain", "One.\nTwo."),
        (b'{"capital": "Paris", "rivers": ["Seine"]}', "application/json", '"capital": "Paris",\n"rivers":'),
        (b'{"capital": ', "application/json", '{"capital":'),
        (b"<feed><title>News</title><entry>Rain &amp; sun</entry></feed>", "application/atom+xml", "News\nRain & sun"),
        (b"# Rivers\n\nThe [Seine](http://x/y) is\nlong. ![map](m.png)\n\n- one\n- two\n\n|a|b|\n|--|--|\n|c|d|\n"
         b"Rain ===\n-----\n## Sun ##\nshines", "text/markdown",
         "Rivers\nThe Seine is long.\n- one\n- two\n|a|b|\n|c|d| Rain ===\nSun\nshines"),
        (b"name,length\nSeine,777\n", "text/csv", "name,length\nSeine,777"),
        ("\ufeffRésumé".encode("utf-16"), "text/plain", "Résumé"),
        (b"\xef\xbb\xbf<HTML><p>One.<p>Two.", "text/plain", "One.\nTwo."),
        (b"<?xml version='1.0'?><a>one<b>two</b></a>", "text/plain", "one\ntwo"),
    ],
)  # fmt: skip
def test_other_texts(body, said, expected):
    assert texts(parse(body, said, ROOMY)).startswith(expected)


def test_xml_entities_are_not_expanded_and_files_not_read(tmp_path):
    (tmp_path / "secret").write_text("very secret")
    entities = "".join(f'<!ENTITY e{n} "{f"&e{n - 1};" * 10 if n else "aha"}">' for n in range(12))
    outside = f'<!ENTITY file SYSTEM "file://{tmp_path}/secret">'
    body = f'<?xml version="1.0"?><!DOCTYPE r [{entities}{outside}]><r><t>begin &e11; &file; end</t></r>'
    found = texts(parse(body.encode(), "application/xml", ROOMY))
    assert found.startswith("begin")
    assert "secret" not in found
    assert "aha" not in found
    for entity in (
        '"aha"',
        f'SYSTEM "file://{tmp_path}/secret"',
    ):  # alone, no limit of the parser stops it
        body = (
            f'<?xml version="1.0"?><!DOCTYPE r [<!ENTITY e {entity}>]><r><t>begin &e; end</t></r>'
        )
        assert texts(parse(body.encode(), "application/xml", ROOMY)) == "begin end"


@pytest.mark.parametrize(
    ("body", "said", "why"),
    [
        (b"\x89PNG\r\n", "image/png", "its type, image/png, cannot be read"),
        (b"<svg>text</svg>", "image/svg+xml", "its type, image/svg"),
        (b"PK\x03\x04\0\0", "", "its type is not given, but"),
        (b"MZ\0\0\0", "text/plain", "its type is text/plain, but"),
        (b"no pdf at all", "application/pdf", "its type is application/pdf, but"),
        (b"<html><body><script>render()</script></body></html>", "text/html", "no text"),
        (b"%PDF-1.4 and then nothing", "application/pdf", "damaged"),
        (b"[" * 100_000, "application/json", "nested too deeply"),
    ],
)
def test_what_cannot_be_read_says_why(body, said, why):
    with pytest.raises(ToolError, match=why):
        read(body, said)


UTF_8 = ("Crème brûlée à Zürich, naïve café", "Łódź", "日本語のテキスト")


@pytest.mark.parametrize(
    ("text", "written", "said", "in_page"),
    [
        *((text, "utf-8", said, "") for text in UTF_8 for said in ("x; charset=iso-8859-1", "x; charset=klingon", "")),
        ("For dessert, order a “crème brûlée” at the café.", "cp1252", "text/html; charset=utf-8", ""),
        ("Большие дожди идут. " * 10, "cp1251", "text/html", ""),
        ("Crème “brûlée”", "cp1252", "text/html; charset=latin-1", ""),
        ("Crème brûlée", "cp1252", "text/html; charset=us-ascii", ""),
        ("Привет, мир", "cp1251", "text/html", "windows-1251"),
        ("Привет, мир", "cp1251", "text/html; charset=iso-8859-1", "windows-1251"),
        ("日本語", "shift_jis", "text/html; charset=Shift_JIS", ""),
        ("日本語", "iso2022_jp", "text/html; charset=iso-2022-jp", ""),
        ("日本語", "utf-16-le", "text/html; charset=utf-16-le", ""),
        ("中文网页", "gbk", 'text/html; charset="gb2312"', ""),
    ],
)  # fmt: skip
def test_character_sets_declared_or_not(text, written, said, in_page):
    meta = f'<meta charset="{in_page}">' if in_page else ""
    assert decode((meta + text).encode(written), said) == meta + text


def test_one_stray_byte_or_a_cut_end_does_not_make_a_page_latin():
    body = "Crème brûlée à la carte, déjà vu, très élégant".encode()
    assert decode(body[:-1] + "é".encode()[:1], "").startswith("Crème brûlée")
    assert "Crème brûlée" in decode(b"\xff" + body, "text/html")


KINDS = ["text/html", "application/pdf", "text/markdown", "application/xml", "application/json", ""]
CHARSETS = ["text/plain; charset=utf-16", "x; charset=hex", "x; charset=idna"]
STARTS = ["<p>", "%PDF-1.4\n", "# a\n", "<?xml version='1.0'?><a>", ""]


@settings(max_examples=60)
@given(st.binary(max_size=400), st.sampled_from(STARTS), st.sampled_from(KINDS + CHARSETS))
def test_any_bytes_give_a_page_or_a_reason(body, start, said):
    assert isinstance(decode(body, said), str)
    answer = answer_to(Job(start.encode() + body, said, ROOMY))
    assert answer
    if isinstance(answer, ParsedPage):
        assert all(p.text.strip() and len(p.text) <= ROOMY.longest for p in answer.paragraphs)
        answer.title.encode(), texts(answer).encode()


LINES = st.text("ab. \n", min_size=1, max_size=120).filter(str.strip)
BLOCKS = st.lists(
    st.builds(Block, LINES, st.booleans(), st.just(""), st.sampled_from(["", "p. 1"]))
)


@settings(max_examples=60)
@given(BLOCKS, st.integers(1, 30), st.integers(30, 60))
def test_packing_loses_nothing_and_keeps_the_limit(blocks, shortest, longest):
    found = list(pack(blocks, shortest, longest))
    assert "".join("".join(p.text.split()) for p in found) == "".join(
        "".join(b.text.split()) for b in blocks
    )
    assert all(0 < len(p.text) <= longest for p in found)
    long = list(pack([Block(("This is a sentence of some length. " * 100).strip())], 200, 1_200))
    assert len(long) == 3
    assert all(p.text.endswith(".") for p in long)
    joined = list(pack([Block(f"Short line number {n}.") for n in range(40)], 200, 1_200))
    assert all(200 <= len(p.text) <= 260 for p in joined[:-1])


def process_of(reading: PageSettings) -> subprocess.Popen[bytes]:
    [worker] = filter(None, pages.program(reading).slots().queue)
    return worker.process


def test_a_reading_process_is_kept_until_it_fails(caplog, monkeypatch):
    one = PageSettings(seconds=60, memory=900_000_000, workers=1)

    def ends(body: bytes, told: str, reading: PageSettings = one) -> None:
        with pytest.raises(ToolError, match=told):
            read(body, "application/pdf" if body == slow_pdf() else "text/plain", reading)

    start = time.monotonic()
    ends(
        slow_pdf(),
        r"took longer than 0\.5 seconds",
        PageSettings(0.5, memory=900_000_000, workers=1),
    )
    assert time.monotonic() - start < 30
    assert read(b"<p>Still here.</p><p>Yes.</p>", "", one) == "Still here.\nYes."
    process = process_of(one)
    threading.Timer(0.3, os.kill, (process.pid, signal.SIGSEGV)).start()
    ends(slow_pdf(), "crashed the program that reads pages")
    assert "ended with -11" in caplog.text
    assert read(b"next", "", one) == "next"
    assert process_of(one) is not process
    process_of(one).kill()
    process_of(one).wait()
    ends(b"idle when it was killed", "crashed the program that reads pages")
    monkeypatch.setattr(killable, "MOST_ANSWERS", 2)
    assert [read(word, "", one) for word in (b"one", b"two", b"three")] == ["one", "two", "three"]


@LINUX
def test_documents_that_need_too_much_memory_are_refused_in_time():
    packed = zlib.compress(zlib.compress(b"(word) Tj " * 10_000_000))
    head, tail = pdf("x").split(b"<< /Length", 1)
    stream = b"<< /Length %d /Filter [/FlateDecode /FlateDecode] >>\nstream\n%s\nendstream\n" % (
        len(packed),
        packed,
    )
    reading = PageSettings(workers=1, memory=400_000_000)
    with pytest.raises(ToolError):
        read(head + stream + tail[tail.index(b"endobj") :], "application/pdf", reading)
    peak = Path(f"/proc/{process_of(reading).pid}/status").read_text().split("VmHWM:")[1].split()[0]
    assert int(peak) * 1024 < 700_000_000
    assert read(b"next", "text/plain", reading) == "next"
    with pytest.raises(ToolError, match=r"memory|damaged|crashed"):
        read(
            b"<p>" + b"<b>word</b> " * 1_000_000,
            reading=PageSettings(60, memory=60_000_000, workers=1),
        )


@LINUX
def test_a_reading_process_has_neither_keys_nor_sockets():
    code = """
import os, socket, sys, time
from faithful_search.tools.web import pages
listening = socket.create_server(("127.0.0.1", 0)); os.set_inheritable(listening.fileno(), True)
pages.read(b"words", "text/plain", pages.PageSettings(seconds=60))
print(pages.program(pages.PageSettings()).slots().get().process.pid, flush=True)
time.sleep(60)
"""
    where = {**os.environ, "SERPER_API_KEY": "sesame"}
    parent = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, env=where
    )
    worker = Path("/proc", parent.stdout.readline().strip())
    assert b"sesame" not in (worker / "environ").read_bytes()
    assert not [link for link in (worker / "fd").iterdir() if "socket" in os.readlink(link)]
    assert os.readlink(worker / "fd" / "0") == "/dev/null"
    parent.kill()
    parent.wait()
    parent.stdout.close()
    deadline = time.monotonic() + 20
    while worker.exists() and (worker / "status").read_text().split("State:")[1].split()[0] != "Z":
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_pages_wait_for_a_free_process():
    with ThreadPoolExecutor(16) as threads:
        found = threads.map(lambda n: read(f"page {n}".encode(), "text/plain"), range(60))
        assert list(found) == [f"page {n}" for n in range(60)]
        assert pages.program(ROOMY).slots().qsize() == ROOMY.workers
        one = PageSettings(seconds=1, workers=1, memory=900_000_000)
        read(b"warm", "text/plain", one)
        slow = threads.submit(pages.read, slow_pdf(), "application/pdf", one)
        time.sleep(0.2)
        with pytest.raises(ToolError, match="other pages are still being read") as told:
            pages.read(b"late", "text/plain", one, time.monotonic() + 0.2)
        assert told.value.transient
        with pytest.raises(ToolError, match="took longer"):
            slow.result()


def test_paragraphs_are_ranked_by_bm25():
    some = [
        "The tower is 324 metres tall.",
        "Tickets",
        "A tower, a tall tower!",
        "Its height changes with heat.",
        "",
    ]
    assert [place for place, _ in rank("how tall is the tower", some)] == [2, 0]
    assert rank("tower", ["a tower", "some rain"]) == [
        (0, 0.2773)
    ]  # ln(1 + 1.5 / 1.5) / (1 + 1.5), of a mean length
    assert [place for place, _ in rank("tower", ["a tower"] * 5)] == [0, 1, 2, 3, 4]
    assert rank("", some) == rank("zebra", some) == rank("tower", []) == []
    assert [place for place, _ in rank("is it", ["It is.", "Rain"])] == [0]
