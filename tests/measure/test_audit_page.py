"""The report page: what it shows, and that nothing an agent or a tool wrote can run in it or break
it.
"""

import re
from html.parser import HTMLParser
from pathlib import Path

import msgspec
import pytest
from chromium import chromium
from hypothesis import given, settings, strategies as st

from faithful_search.measure.audit import audit
from faithful_search.measure.report import page as audit_page
from faithful_search.trajectory import Evidence, Issue, Step, ToolCall, Trajectory
from faithful_search.wire.files import replacing

HOSTILE = (
    "</script><script>window.pwned = 1</script>",
    '"><img src=x onerror="window.pwned = 1">',
    "<!-- <script> ]]> {{ 7 * 7 }} {% raw %}",
    "</details></main><style>body { display: none }</style>",
    "\u202egnp.exe \x00 \ud7ff javascript:window.pwned=1",
)


def rollout(number: int, text: str = "Vienna lies on the Danube.") -> Trajectory:
    search = Step(
        think=f"I look up {text}",
        call=ToolCall("local_search", {"query": text}, text),
        evidence=(
            Evidence(text, "Vienna", "E1", url="javascript:alert(1)"),
            Evidence("Graz.", "Graz", "E2"),
        ),
    )
    last = Step(
        think=text, helpful=True, refs=("E1",), answer=text, issues=(Issue("nested", text),)
    )
    known = {"id": str(number), "answers": (text,), "text": text}
    return Trajectory(
        (search, last), f"Question {number}: {text}?", text, "answered", "pou", **known
    )


def make(folder: Path, trajectories: list[Trajectory], **settings) -> Path:
    source = folder / "rollouts.jsonl"
    source.write_text(
        "\n".join(trajectory.to_json() for trajectory in trajectories), encoding="utf-8"
    )
    found = audit(source, folder / "audit", workers=1, **settings)
    scores = folder / "audit" / "scores.jsonl"
    return audit_page.write(
        folder / "report.html", found, scores, list(enumerate(trajectories, start=1))
    )


def elements(page: Path) -> list[tuple[str, dict[str, str | None]]]:
    """Start tags with their attributes, in order."""
    found = []
    parser = HTMLParser()
    parser.handle_starttag = lambda tag, attrs: found.append((tag, dict(attrs)))
    parser.feed(page.read_text(encoding="utf-8"))
    return found


def plain(page: Path) -> str:
    """The text, without markup and footer."""
    return re.sub(
        r"\s+",
        " ",
        re.sub(r"<[^>]+>", "", page.read_text(encoding="utf-8").partition("<footer")[0]),
    )


@pytest.fixture(scope="module")
def harmless(tmp_path_factory):
    """The elements of a page of plain text."""
    return [tag for tag, _ in elements(make(tmp_path_factory.mktemp("plain"), [rollout(1, "x")]))]


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_text_adds_no_element(tmp_path, text, harmless):
    found = [tag for tag, _ in elements(make(tmp_path, [rollout(1, text)]))]
    for tag in ("script", "style", "img", "iframe", "details", "main", "a"):
        assert found.count(tag) == harmless.count(tag), tag
    assert harmless.count("script") == harmless.count("style") == 1


@settings(max_examples=15, deadline=None)
@given(st.text(max_size=60))
def test_any_text_is_shown_as_it_is(tmp_path_factory, text):
    found = elements(
        make(tmp_path_factory.mktemp("page"), [rollout(1, f"a{text}b")], metrics=["answer_support"])
    )
    assert [tag for tag, _ in found].count("script") == 1
    assert not [attrs for _, attrs in found if any(name.startswith("on") for name in attrs)]


def test_the_policy_names_the_pages_own_script_and_style(tmp_path):
    text = make(tmp_path, [rollout(1)]).read_text(encoding="utf-8")
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', text)[1]
    assert policy.startswith("default-src 'none'")
    for tag in ("script", "style"):
        inner = re.search(rf"<{tag}>(.*?)</{tag}>", text, re.DOTALL)[1]
        assert f"{tag}-src '{audit_page.digest(inner)}'" in policy
    assert "unsafe" not in policy
    assert " style=" not in re.sub(r"<(script|style)>.*?</\1>", "", text, flags=re.DOTALL)


def test_one_trajectory_is_not_counted_as_several(tmp_path):
    shown = plain(make(tmp_path, [rollout(1)]))
    assert "1 trajectory scored" in shown
    assert "1 trajectories" not in shown


def test_the_page_says_what_was_measured_and_how_sure_that_is(tmp_path):
    page = make(tmp_path, [rollout(n) for n in range(4)])
    text, shown = page.read_text(encoding="utf-8"), plain(page)
    told = [re.sub(r"<[^>]+>", "", line) for line in re.findall(r'<p class="told">(.*?)</p>', text)]
    right, best, worst, sure = told
    assert right.startswith(
        "Right: of 4 questions, in 100% the answer is a gold answer, in 100% it"
    )
    assert best.startswith("Best: in 100% (95% interval 51% to 100%), ")
    assert worst.startswith("Worst: in 0%")
    assert sure.startswith("How sure: 4 trajectories measured")
    assert "judge: lexical" in text.partition("</header>")[0]
    assert "faithful-search 0" in text.partition("</header>")[0]
    assert "Audit of rollouts.jsonl" in shown
    assert "4 trajectories scored" in shown
    assert "helpful, cites E1" in shown
    assert text.count('class="evidence cited"') == 4
    assert text.count('class="evidence"') == 4
    assert "does each call follow from its thought? (words are compared, not meaning)" in shown
    assert re.search(
        r"nested ?4 ?Vienna lies on the Danube\.", shown
    )  # a kind of issue, and one of them


def test_reasons_stand_at_their_steps(tmp_path):
    call = ToolCall("search", {"query": "Vienna"}, "")
    search = Step(think="Vienna?", call=call, evidence=(Evidence("Graz.", id="D1"),))
    last = Step(think="So.", answer="Vienna lies here. Linz lies there.")
    page = make(
        tmp_path,
        [Trajectory((search, search, last), "Where?", last.answer, "answered", "search_r1")],
    )
    shown = plain(page)
    first, second, third = (
        shown.split(f"step {n}")[-1].split(f"step {n + 1}")[0] for n in (1, 2, 3)
    )
    assert "repeated_calls counts against it" in second
    assert "repeated_calls" not in first + third
    assert "“Vienna lies here.”" in third
    assert "“Linz lies there.”" in third
    assert "n/a citation_validity" in shown
    assert "has no verdicts to check" in shown
    # what should not happen is good when it does not
    assert '<span class="chip low">unused_evidence_lexical <b>1.00</b>' in page.read_text(
        encoding="utf-8"
    )


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path):
    (tmp_path / "page").write_bytes(b"old")
    with pytest.raises(RuntimeError, match="gone"), replacing(tmp_path / "page") as partial:
        partial.write_bytes(b"new")
        raise RuntimeError("gone")
    assert [(path.name, path.read_bytes()) for path in tmp_path.iterdir()] == [("page", b"old")]


@pytest.fixture(scope="module")
def browser():
    with chromium() as instance:
        yield instance


@pytest.fixture
def hostile_page(tmp_path):
    return make(
        tmp_path,
        [rollout(number, text) for number, text in enumerate((*HOSTILE, "Vienna"), start=1)],
    )


def opened(browser, path: Path, width: int):
    page = browser.new_page(viewport={"width": width, "height": 800})
    problems: list[str] = []
    page.on("console", lambda message: problems.append(message.text))
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on("dialog", lambda dialog: problems.append(dialog.message))
    page.on(
        "request",
        lambda request: None if request.url.startswith("file:") else problems.append(request.url),
    )
    page.goto(path.as_uri())
    return page, problems


@pytest.mark.parametrize("width", [1280, 390])
def test_in_a_browser_nothing_runs_and_nothing_overflows(browser, hostile_page, width):
    page, problems = opened(browser, hostile_page, width)
    page.click("#toggle")
    assert page.evaluate("window.pwned") is None
    assert problems == []
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.locator(".rollout[open]").count() == len(HOSTILE) + 1
    assert page.locator("img, iframe, a:not([href^='#'])").count() == 0
    assert page.locator("footer").is_visible()
    interval = page.locator(".metrics td", has_text="[").first
    assert interval.is_visible()
    assert interval.bounding_box()["x"] + interval.bounding_box()["width"] <= width
    page.close()


def test_metrics_bars_and_issues_lead_to_their_rows(browser, tmp_path):
    from playwright.sync_api import expect

    clean = [
        msgspec.structs.replace(rollout(n), steps=rollout(n).steps[:1], answer=None) for n in (1, 2)
    ]
    page, problems = opened(browser, make(tmp_path, [*clean, rollout(3)]), 1280)

    def shown():
        selector, ids = ".rollout:not([hidden])", "items => items.map((item) => item.id)"
        return page.eval_on_selector_all(selector, ids)

    def wait_for(field, value):  # a link's target is opened after the click returns
        expect(page.locator(field)).to_have_value(value)  # the page forbids scripts from text

    page.click(".kind a")
    wait_for("#issue", "nested")
    assert shown() == ["row-3"]
    page.click(".metrics a:has-text('sub_em_unicode')")
    wait_for("#order", "worst")
    assert shown() == ["row-1", "row-2", "row-3"]
    page.click("figure:has-text('exact_match_unicode') a[aria-label^='0.95']")
    wait_for("#least", "0.95")
    assert shown() == ["row-3"]
    page.click(".told:has-text('Best') a")
    wait_for("#order", "best")
    assert not problems
    page.close()


def test_in_a_browser_it_can_be_printed_and_linked_to(browser, hostile_page):
    from playwright.sync_api import expect

    page, _ = opened(browser, hostile_page, 1280)
    page.emulate_media(media="print", color_scheme="dark")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(251, 250, 248)"
    page.emulate_media(media="screen")
    page.goto(f"{hostile_page.as_uri()}#row-2-step-2")
    expect(page.locator("#row-2-step-2")).to_be_visible()
    assert not page.locator("#row-3").evaluate("item => item.open")
    page.goto(f"{hostile_page.as_uri()}#row-99")
    said = "row 99 is not on this page: --report-rows shows more"
    expect(page.locator("#shown")).to_have_text(said)
    page.close()


def test_words_that_stand_nowhere_before_are_marked(tmp_path):
    call = ToolCall("search", {"query": "x"}, "")
    search = Step(think="Graz?", call=call, evidence=(Evidence("Vienna has 1,900,000.", id="E1"),))
    last = Step(think="Vienna has 1,900,000 people, Linz fewer.", answer="Zürich")
    made = make(
        tmp_path, [Trajectory((search, last), "Which people?", "Zürich", "answered", "search_r1")]
    )
    text = made.read_text(encoding="utf-8")
    assert re.findall("<mark>(.*?)</mark>", text.partition('id="rollouts"')[2]) == [
        "Linz",
        "fewer",
        "Zürich",
    ]


@pytest.fixture(scope="module")
def cited(tmp_path_factory):
    """The page of an answer that cites a passage, and one that was never returned."""
    answer = "Vienna lies on the Danube [1]. Graz lies on the Mur [7]."
    evidence = (Evidence("Vienna lies on the Danube.", "Vienna", "E1"),)
    steps = (Step(call=ToolCall("search"), evidence=evidence), Step(answer=answer))
    found = Trajectory(steps, "Where?", answer, dialect="openai")
    return make(tmp_path_factory.mktemp("cited"), [found])


def test_a_citation_leads_to_its_passage(cited):
    places = {attrs.get("id") for tag, attrs in elements(cited) if tag == "details"}
    links = {attrs.get("href") for tag, attrs in elements(cited) if tag == "a"}
    assert "#row-1-step-1-passage-1" in links & {f"#{place}" for place in places}


def test_a_citation_without_a_passage_is_shown_so(cited):
    assert "[1]: Vienna; [7] was never returned" in plain(cited)


def test_a_cited_passage_is_open(cited):
    (passage,) = [attrs for _, attrs in elements(cited) if attrs.get("class") == "evidence cited"]
    assert "open" in passage


def test_a_mark_is_no_word_that_stands_nowhere(cited):
    _, answer = cited.read_text(encoding="utf-8").split('<div class="text answer">')
    assert re.findall(r"<mark>(.*?)</mark>", answer.partition("</div>")[0]) == ["Graz", "Mur"]


def test_long_rows_are_folded_and_make_no_long_page(tmp_path):
    long = "Danube water. " * 20_000
    search = Step(
        think=long,
        call=ToolCall("search", {"query": "x"}, ""),
        evidence=(Evidence(long, "Vienna", "E1"),),
    )
    many = Step(think="again", call=ToolCall("search", {"query": "y"}, ""))
    rows = [Trajectory((search, *[many] * 200), "Where?", "Vienna", "answered", "search_r1")]
    made = make(tmp_path, rows, metrics=["protocol_format"])
    assert made.stat().st_size < 250_000
    text = made.read_text(encoding="utf-8")
    assert "20,000 characters more" in text
    assert "258,499 characters are not on this page" in text
    assert "and 101 steps more, in the file" in text
