"""Reading documents: what comes out of them, and that hostile ones cost a page, never the program."""

import os
import signal
import subprocess
import sys
import threading
import time
import zlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given, settings, strategies as st
from web_site import pdf, slow_pdf

from faithful_search.errors import ConfigError, ToolError
from faithful_search.tools.retrieval.bm25 import rank
from faithful_search.tools.web import pages
from faithful_search.tools.web.documents import Block, answer_to, decode, pack, parse
from faithful_search.tools.web.pages import Job, Page, Reading

pytest.importorskip("trafilatura")
pytest.importorskip("pypdf")
ROOMY = Reading(seconds=60)
LINUX = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="limits and /proc are Linux's")


def texts(page: Page) -> str:
    return "\n".join(paragraph.text for paragraph in page.paragraphs)


def read(body: bytes, content_type: str = "text/html", reading: Reading = ROOMY) -> str:
    """The text of a document, read by another process."""
    return texts(pages.read(body, content_type, reading))


def test_tables_lists_and_headings_are_kept():
    rows = "".join(f"<tr><td>River {n}</td><td>{n * 37} km</td></tr>" for n in range(60))
    body = (
        "<html><head><title>Rivers</title></head><body><article><h1>Rivers</h1><p>" + "These rivers are long. " * 12
        + f"</p><h2>Lengths</h2><table><tr><th>Name</th><th>Length</th></tr>{rows}</table>"
        "<ul><li>Boats are <b>welcome</b> here</li><li>Fishing is not</li></ul></article></body></html>"
    )  # fmt: skip
    page = parse(body.encode(), "text/html", ROOMY)
    assert "River 5 | 185 km" in texts(page) and "- Boats are welcome here" in texts(page)
    [last] = [paragraph.text for paragraph in page.paragraphs if "River 59 |" in paragraph.text]
    assert last.startswith("Name | Length\n")  # a row says nothing without its header
    assert not any(paragraph.text.rsplit("\n", 1)[-1] == "Lengths" for paragraph in page.paragraphs)


def test_a_page_without_main_text_or_with_a_teaser_taken_for_it_gives_all_its_text():
    body = b"<title>Prices</title><div>Tea <span>4 crowns</span></div><div>Cake 6 crowns</div><script>x</script>"
    page = parse(body, "text/html", ROOMY)
    assert page.title == "Prices" and texts(page) == "Tea 4 crowns\nCake 6 crowns"
    ferries = "".join(f"<p>Ferry number {n} leaves the harbour of Vardal at {n} o'clock.</p>" for n in range(20))
    found = read(f"<main><p>A short teaser says hardly anything.</p></main><footer>{ferries}</footer>".encode())
    assert "teaser" in found and "Ferry number 19" in found


def test_a_pdf_keeps_its_page_numbers_and_is_known_by_its_bytes_whatever_the_server_says():
    body = pdf("The bridge has nine arches.", "It was rebuilt in 1952.")
    for said in ("application/pdf", "text/html", "application/octet-stream", "", "image/png"):
        found = [(p.text, p.place) for p in pages.read(body, said, ROOMY).paragraphs]
        assert found == [("The bridge has nine arches.", "p. 1"), ("It was rebuilt in 1952.", "p. 2")]


def test_a_word_that_a_pdf_divides_is_whole_and_a_broken_title_costs_nothing():
    line_break = ") Tj 0 -14 Td ("
    body = pdf("The light-" + "@" * len(line_break) + "house of Vardal")
    body = body.replace(b"@" * len(line_break), line_break.encode()).replace(b"/Root 1 0 R", b"/Root 1 0 R /Info (x)")
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


def test_what_is_read_of_a_long_pdf_in_time_is_kept():
    page = parse(pdf(*["The river is long. " * 40] * 400), "application/pdf", Reading(seconds=0.01))
    assert 1 <= len({p.place for p in page.paragraphs}) < 400
    assert page.cut == f"the first {page.paragraphs[-1].place[3:]} of its 400 pages"


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
        (b"just words", "", "just words"),
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
    assert found.startswith("begin") and "secret" not in found and "aha" not in found
    for entity in ('"aha"', f'SYSTEM "file://{tmp_path}/secret"'):  # alone, no limit of the parser stops it
        body = f'<?xml version="1.0"?><!DOCTYPE r [<!ENTITY e {entity}>]><r><t>begin &e; end</t></r>'
        assert texts(parse(body.encode(), "application/xml", ROOMY)) == "begin end"


@pytest.mark.parametrize(
    ("body", "said", "why"),
    [
        (b"\x89PNG\r\n", "image/png", "its type, image/png, cannot be read"),
        (b"<svg>text</svg>", "image/svg+xml", "its type, image/svg"),
        (b"PK\x03\x04\0\0", "", "its type is not given, but"),
        (b"MZ\0\0\0", "text/plain", "its type is text/plain, but"),
        (b"no pdf at all", "application/pdf", "its type is application/pdf, but"),
        (b"", "text/html", "no text"),
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


@settings(deadline=None, max_examples=150)
@given(st.binary(max_size=400), st.sampled_from(STARTS), st.sampled_from(KINDS + CHARSETS))
def test_any_bytes_give_a_page_or_a_reason(body, start, said):
    assert isinstance(decode(body, said), str)
    answer = answer_to(Job(start.encode() + body, said, ROOMY))
    assert answer
    if isinstance(answer, Page):
        assert all(p.text.strip() and len(p.text) <= ROOMY.longest for p in answer.paragraphs)
        answer.title.encode(), texts(answer).encode()


LINES = st.text("ab. \n", min_size=1, max_size=120).filter(str.strip)
BLOCKS = st.lists(st.builds(Block, LINES, st.booleans(), st.just(""), st.sampled_from(["", "p. 1"])))


@settings(deadline=None)
@given(BLOCKS, st.integers(1, 30), st.integers(30, 60))
def test_packing_loses_nothing_and_keeps_the_limit(blocks, shortest, longest):
    found = list(pack(blocks, shortest, longest))
    assert "".join("".join(p.text.split()) for p in found) == "".join("".join(b.text.split()) for b in blocks)
    assert all(0 < len(p.text) <= longest for p in found)


def test_long_paragraphs_end_with_a_sentence_and_short_ones_are_joined():
    [*packed] = pack([Block(("This is a sentence of some length. " * 100).strip())], 200, 1_200)
    assert len(packed) == 3 and all(p.text.endswith(".") for p in packed)
    joined = list(pack([Block(f"Short line number {n}.") for n in range(40)], 200, 1_200))
    assert all(200 <= len(p.text) <= 260 for p in joined[:-1])


def process_of(reading: Reading) -> subprocess.Popen[bytes]:
    [worker] = filter(None, pages._slots(reading).queue)
    return worker.process


def test_a_process_is_kept_between_pages_and_replaced_when_it_hangs_crashes_or_has_read_many(caplog, monkeypatch):
    one = Reading(seconds=60, memory=900_000_000, workers=1)

    def fails(body: bytes, told: str, reading: Reading = one) -> None:
        with pytest.raises(ToolError, match=told):
            read(body, "application/pdf" if body == slow_pdf() else "text/plain", reading)

    start = time.monotonic()
    fails(slow_pdf(), r"took longer than 0\.5 seconds", Reading(0.5, memory=900_000_000, workers=1))
    assert time.monotonic() - start < 30
    assert read(b"<p>Still here.</p><p>Yes.</p>", "", one) == "Still here.\nYes."
    process = process_of(one)
    threading.Timer(0.3, os.kill, (process.pid, signal.SIGSEGV)).start()
    fails(slow_pdf(), "crashed the program that reads pages")
    assert "ended with -11" in caplog.text
    assert read(b"next", "", one) == "next" and process_of(one) is not process
    process_of(one).kill()
    process_of(one).wait()
    fails(b"idle when it was killed", "crashed the program that reads pages")
    monkeypatch.setattr(pages, "_PAGES", 2)
    assert [read(word, "", one) for word in (b"one", b"two", b"three")] == ["one", "two", "three"]


@LINUX
def test_documents_that_need_too_much_memory_are_refused_in_time():
    packed = zlib.compress(zlib.compress(b"(word) Tj " * 10_000_000))
    head, tail = pdf("x").split(b"<< /Length", 1)
    stream = b"<< /Length %d /Filter [/FlateDecode /FlateDecode] >>\nstream\n%s\nendstream\n" % (len(packed), packed)
    reading = Reading(workers=1, memory=400_000_000)
    with pytest.raises(ToolError):
        read(head + stream + tail[tail.index(b"endobj") :], "application/pdf", reading)
    peak = Path(f"/proc/{process_of(reading).pid}/status").read_text().split("VmHWM:")[1].split()[0]
    assert int(peak) * 1024 < 700_000_000
    assert read(b"next", "text/plain", reading) == "next"
    with pytest.raises(ToolError, match=r"memory|damaged|crashed"):
        read(b"<p>" + b"<b>word</b> " * 1_000_000, reading=Reading(60, memory=60_000_000, workers=1))


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_forked_child_has_processes_of_its_own():
    read(b"parent", "text/plain")
    child = os.fork()
    if child == 0:
        fine = read(b"child", "text/plain") == "child" and len({pid for pid, *_ in pages._pools}) == 2
        os._exit(0 if fine else 1)
    assert read(b"parent again", "text/plain") == "parent again"
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


@LINUX
def test_a_process_has_no_keys_no_sockets_and_ends_with_its_parent():
    code = """
import os, socket, sys, time
from faithful_search.tools.web import pages
listening = socket.create_server(("127.0.0.1", 0)); os.set_inheritable(listening.fileno(), True)
pages.read(b"words", "text/plain", pages.Reading(seconds=60))
print(pages._slots(pages.Reading(seconds=60)).get().process.pid, flush=True)
time.sleep(60)
"""
    where = {**os.environ, "SERPER_API_KEY": "sesame"}
    parent = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, env=where)
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


def test_more_pages_than_processes_wait_for_each_other_and_those_too_late_are_told():
    with ThreadPoolExecutor(16) as threads:
        found = threads.map(lambda n: read(f"page {n}".encode(), "text/plain"), range(60))
        assert list(found) == [f"page {n}" for n in range(60)]
        assert pages._slots(ROOMY).qsize() == ROOMY.workers
        one = Reading(seconds=1, workers=1, memory=900_000_000)
        read(b"warm", "text/plain", one)
        slow = threads.submit(pages.read, slow_pdf(), "application/pdf", one)
        time.sleep(0.2)
        with pytest.raises(ToolError, match="other pages are still being read") as told:
            pages.read(b"late", "text/plain", one, time.monotonic() + 0.2)
        assert told.value.passing
        with pytest.raises(ToolError, match="took longer"):
            slow.result()


def test_ranking_is_that_of_bm25s_and_stable():
    import bm25s

    from faithful_search.tools.words import words

    some = ["The tower is 324 metres tall.", "Tickets", "A tower, a tall tower!", "Its height changes with heat.", ""]
    model = bm25s.BM25(k1=1.5, b=0.75, method="lucene", backend="numpy")
    vocabulary: dict[str, int] = {}
    tokens = [[vocabulary.setdefault(word, len(vocabulary)) for word in words(text)] for text in some]
    model.index((tokens, vocabulary), show_progress=False)
    expected = model.get_scores_from_ids([vocabulary["tall"], vocabulary["tower"]])
    found = rank("how tall is the tower", some)
    assert [place for place, _ in found] == [2, 0]
    assert [score for _, score in found] == pytest.approx([expected[2], expected[0]], abs=1e-4)
    assert [place for place, _ in rank("tower", ["a tower"] * 5)] == [0, 1, 2, 3, 4]
    assert rank("", some) == rank("zebra", some) == rank("tower", []) == []
    assert [place for place, _ in rank("is it", ["It is.", "Rain"])] == [0]


def test_settings_that_make_no_sense():
    for wrong in ({"seconds": 0}, {"memory": 0}, {"workers": 0}, {"shortest": 0}, {"shortest": 9, "longest": 8}):
        with pytest.raises(ConfigError):
            Reading(**wrong)
