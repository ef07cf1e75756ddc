"""The demo in a browser, as a visitor meets it: each tab at the width of a phone and of a desk."""

import json
import re
from pathlib import Path

import pytest
from chromium import chromium
from served import free_port

from faithful_search.errors import DataError
from faithful_search.measure.widget import EXAMPLE, QUESTION

PHONE, DESK = 390, 1600
HOSTILE = "<script>window.pwned = 1</script>\"><img src=x onerror='window.pwned = 1'>{{ 7 * 7 }}${window.pwned = 1}</style>"
FORGED = EXAMPLE.replace("<ref>E1</ref>", "<ref>E1, E7</ref>")
ROWS = "\n".join(
    json.dumps({"question": QUESTION, "text": text}) for text in (EXAMPLE, FORGED, EXAMPLE)
)
AXE = """async () => (await axe.run({exclude: [["footer"], [".or"]]}, {resultTypes: ["violations"]})).violations
  .filter((found) => ["serious", "critical"].includes(found.impact))
  .map((found) => [found.id, found.nodes.map((node) => node.html)])"""


@pytest.fixture(scope="module")
def browser():
    with chromium() as found:
        yield found


@pytest.fixture(scope="module")
def address(browser):
    app = pytest.importorskip(
        "faithful_search.demo.app", exc_type=Exception, reason="Gradio is not installed"
    )
    port = free_port()
    served = app.launch("127.0.0.1", port, prevent_thread_lock=True, quiet=True)
    yield f"http://127.0.0.1:{port}/"
    served.close()


@pytest.fixture
def visit(browser, address):
    """A page of a visitor of its own; nothing may have gone wrong in it, nor been asked of another server."""
    contexts, problems = [], []

    def visit(width=DESK, query="", **settings):
        contexts.append(browser.new_context(viewport={"width": width, "height": 900}, **settings))
        page = contexts[-1].new_page()
        page.on(
            "console",
            lambda message: problems.append(message.text) if message.type == "error" else None,
        )
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.on("dialog", lambda dialog: problems.append(dialog.message))
        known = (address, "blob:", "data:")
        page.on(
            "request",
            lambda sent: None if sent.url.startswith(known) else problems.append(sent.url),
        )
        page.goto(f"{address}{query}")
        page.wait_for_selector(".trajectory")
        return page

    yield visit
    for context in contexts:
        context.close()
    assert problems == []


def tab(page, name):
    page.get_by_role("tab", name=name).click()


def audit(page, text):
    tab(page, "Audit")
    page.get_by_label("A trajectory, a chat").fill(text)
    page.get_by_role("button", name="Audit", exact=True).click()


def serious(page):
    """What axe finds, but in the two pale texts of Gradio's own, when nothing fades in any more."""
    page.wait_for_function("!document.getAnimations().some((one) => one.playState === 'running')")
    return page.evaluate(AXE)


def fits(page):
    return page.evaluate("document.documentElement.scrollWidth <= innerWidth")


@pytest.mark.parametrize("width", [PHONE, pytest.param(DESK, marks=pytest.mark.slow)])
def test_steps_are_walked_by_keyboard_and_citations_light_what_they_rest_on(visit, width):
    page = visit(width)
    rail = page.get_by_role("navigation", name="Steps").get_by_role("link")
    rail.first.focus()
    for _ in range(5):  # there are three
        page.keyboard.press("ArrowDown")
    assert (
        rail.nth(2).get_attribute("aria-current") == "step"
        and page.locator("[aria-current=step]").count() == 1
    )
    assert page.url.endswith("#ask-step-3") and "question=On+what+continent" in page.url
    page.keyboard.press("ArrowUp")
    assert page.url.endswith("#ask-step-2")
    step = page.locator("#ask-step-3")
    step.get_by_role("button", name="E4").focus()
    assert page.locator(".evidence.lit .text").all_inner_texts() == [
        "The continent of Italy is Europe."
    ]
    assert step.locator(".word.lit").all_inner_texts() == ["continent", "Italy", "Europe", "Europe"]
    page.get_by_role("button", name="Ask").hover()
    step.get_by_role("button", name="E4").hover()
    assert page.locator(".evidence.lit").count() == 1
    score = page.locator(".scores .score", has_text="citation_validity")
    score.locator("summary").press("Enter")
    assert "do the citations hold, step by step?" in score.inner_text()
    assert fits(page)


@pytest.mark.parametrize("width", [DESK, pytest.param(PHONE, marks=pytest.mark.slow)])
def test_an_audit_is_filtered_by_a_bar_compared_and_downloaded(visit, width):
    page = visit(width)
    audit(page, ROWS)
    page.get_by_text("1 trajectory of 3 cite evidence that was never returned.").wait_for()
    low = page.get_by_title(re.compile(r"citation_validity 0\.0"))
    low.click()
    assert (
        page.locator(".rows li:visible").count() == 1
        and "1 of 3" in page.locator(".shown").inner_text()
    )
    page.locator(".rows li:visible").get_by_role("button").first.click()
    missing = page.locator(".cite.missing:visible")
    missing.wait_for()
    assert missing.all_inner_texts() == ["E7 was never returned"]
    low.click()
    assert page.locator(".rows li:visible").count() == 3
    page.locator(".rows li", has_text="row 3").get_by_role("button", name="show beside").click()
    page.locator("#right-step-1").wait_for()
    assert page.locator(".trajectory:visible").count() == 2 and missing.count() == 1
    page.locator(".rows li", has_text="row 1").get_by_role("button").first.click()
    missing.wait_for(state="detached")
    for name, begins in (("scores.jsonl", '{"row":1'), ("report.html", "<!doctype html>")):
        with page.expect_download() as saved:
            page.get_by_role("button", name=name).click()
        assert saved.value.suggested_filename == name
        assert Path(saved.value.path()).read_text("utf-8").startswith(begins)
    assert fits(page)


@pytest.mark.parametrize("width", [DESK, pytest.param(PHONE, marks=pytest.mark.slow)])
def test_one_agent_follows_a_changed_fact_and_one_does_not_side_by_side(visit, width):
    page = visit(width)
    page.get_by_role("button", name="Change its evidence").click()
    page.get_by_role("button", name="Let both agents answer again").click()
    page.get_by_text("It came from memory: nothing that it read says so.").wait_for()
    assert page.get_by_text("The answer followed the evidence.").is_visible()
    assert page.get_by_role("img", name="p(Europe): 1.00 as it was, 0.00 changed").is_visible()
    boxes = [card.bounding_box() for card in page.locator(".card.good, .card.bad").all()]
    assert len(boxes) == 2 and (boxes[0]["y"] == boxes[1]["y"]) is (width == DESK)
    page.get_by_label("put a lure there").check()
    lure = "document.querySelector('textarea[maxlength=\"1000\"]').value"
    page.wait_for_function(f"{lure}.includes('continent of Italy')")
    assert fits(page)


def test_hostile_text_in_every_field_stays_text(visit, monkeypatch):
    def refused(address):
        raise DataError(f"cannot read {address}")

    monkeypatch.setattr("faithful_search.demo.auditing._fetched", refused)
    page = visit(PHONE)
    page.get_by_label("Question").fill(HOSTILE)
    page.get_by_role("button", name="Ask").click()
    page.get_by_role("heading", name=HOSTILE).wait_for()
    audit(
        page,
        EXAMPLE.replace("Teska", HOSTILE)
        .replace("E1", f"E1{HOSTILE}")
        .replace("local_search", HOSTILE),
    )
    page.locator(".trajectory:visible").wait_for()
    assert page.locator(".trajectory:visible").inner_text().count(HOSTILE) > 3
    audit(page, f"hf://{HOSTILE}")
    page.get_by_text("cannot read hf://<script>").wait_for()
    tab(page, "Break it")
    page.get_by_label("What both agents read in its place").fill(HOSTILE)
    page.get_by_role("button", name="Let both agents answer again").click()
    page.locator(".card.bad").wait_for()
    page.get_by_text("Its steps with the changed evidence").first.click()
    assert page.locator(".evidence:visible", has_text=HOSTILE).count() >= 1
    assert (
        page.evaluate("window.pwned") is None
        and page.locator(".explorer :is(script, img, style)").count() == 0
    )


def test_nothing_of_a_visitor_is_shown_to_another(visit):
    one, other = visit(), visit()
    audit(one, EXAMPLE.replace("Teska", "Zwettl"))
    one.locator(".trajectory:visible", has_text="Zwettl").wait_for()
    for page in (other, visit()):
        tab(page, "Audit")
        assert "Zwettl" not in page.content() and page.locator(".trajectory:visible").count() == 0


@pytest.mark.parametrize("scheme", ["light", pytest.param("dark", marks=pytest.mark.slow)])
def test_axe_finds_nothing_serious_in_any_tab(visit, scheme):
    script = Path(pytest.importorskip("axe_playwright_python").__file__).with_name("axe.min.js")
    page = visit(query=f"?__theme={scheme}", color_scheme=scheme)
    page.add_script_tag(path=script)
    assert serious(page) == []
    audit(page, ROWS)
    page.locator(".rows").wait_for()
    assert serious(page) == []
    tab(page, "Break it")
    page.get_by_role("button", name="Let both agents answer again").click()
    page.locator(".card.bad").wait_for()
    assert serious(page) == []
