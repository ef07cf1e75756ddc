"""The demo in a browser, as a visitor meets it: each tab at the width of a phone and of a desk."""

import json
import re
import time
from pathlib import Path

import pytest
from chromium import chromium
from served import free_port

from faithful_search.errors import DataError
from faithful_search.measure.metrics import asks
from faithful_search.measure.widget import EXAMPLE, QUESTION

PHONE, DESK = 390, 1600
HOSTILE = (
    "<script>window.pwned = 1</script>\"><img src=x onerror='window.pwned = 1'>"
    "{{ 7 * 7 }}${window.pwned = 1}</style>"
)
FORGED = EXAMPLE.replace("<ref>E1</ref>", "<ref>E1, E7</ref>")
ROWS = "\n".join(
    json.dumps({"question": QUESTION, "text": text}) for text in (EXAMPLE, FORGED, EXAMPLE)
)
WHEN_IDLE = """async () => {
  const idle = () => new Promise((done) => requestIdleCallback(done, {timeout: 20000}));
  const loaded = () => performance.getEntriesByType("resource").length;
  for (let before = -1; before < loaded(); await idle()) {
    before = loaded();
    await idle();
    await new Promise((done) => setTimeout(done, 250));
  }
}"""
"""Resolves when the page has nothing to do and has loaded nothing for a while."""
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
    served.close(verbose=False)


@pytest.fixture
def visit(browser, address):
    """A page of a visitor of its own; nothing may have gone wrong in it, nor been asked of another
    server.
    """
    contexts, problems = [], []

    def visit(width=DESK, query="", **settings):
        contexts.append(browser.new_context(viewport={"width": width, "height": 900}, **settings))
        page = contexts[-1].new_page()
        page.set_default_timeout(90_000)  # an agent's first answer takes that long on busy cores
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
        page.wait_for_selector(".trajectory:visible")
        page.evaluate(WHEN_IDLE)  # parts of the page listen only when all of them are mounted
        return page

    yield visit
    for context in contexts:
        context.close()
    assert problems == []


def upload(page, file: Path) -> None:
    """Choose a file; once more where the page did not listen yet."""
    from playwright.sync_api import TimeoutError as PlaywrightTimeout

    for _ in range(3):
        try:
            with page.expect_request("**/upload?*", timeout=10_000):
                page.locator("input[type=file]").set_input_files(file)
        except PlaywrightTimeout:
            continue
        page.get_by_label(file.name, exact=True).wait_for()
        return
    raise AssertionError(f"the page does not send {file.name}")


def tab(page, name):
    """Open a tab; once more where the page did not listen yet."""
    from playwright.sync_api import TimeoutError as PlaywrightTimeout

    for _ in range(3):
        page.get_by_role("tab", name=name).click()
        try:
            page.get_by_role("tab", name=name, selected=True).wait_for(timeout=10_000)
            return
        except PlaywrightTimeout:
            continue
    raise AssertionError(f"the page does not open {name}")


def send(page, label, text, button):
    """Fill in the text and press the button; once more where the page did not listen yet."""
    from playwright.sync_api import TimeoutError as PlaywrightTimeout

    for _ in range(3):
        page.get_by_label(label).fill(text)
        try:
            with page.expect_request("**/queue/join*", timeout=10_000) as request:
                page.get_by_role("button", name=button, exact=True).click()
        except PlaywrightTimeout:
            continue
        if text in request.value.post_data_json["data"]:
            return
    raise AssertionError("the page does not send the text that was filled in")


def ask(page, question):
    """Ask an agent a question."""
    tab(page, "Ask")
    send(page, "Question", question, "Ask")


def audit(page, text):
    """Have a text audited."""
    tab(page, "Audit")
    send(page, "A trajectory, a chat", text, "Audit")


def serious(page):
    """What axe finds, but in the two pale texts of Gradio's own, when nothing fades in any more."""
    page.wait_for_function("!document.getAnimations().some((one) => one.playState === 'running')")
    return page.evaluate(AXE)


def fits(page):
    return page.evaluate("document.documentElement.scrollWidth <= innerWidth")


@pytest.mark.parametrize("width", [PHONE, pytest.param(DESK, marks=pytest.mark.slow)])
def test_keys_walk_steps_and_citations_light_their_evidence(visit, width):
    page = visit(width)
    tab(page, "Ask")
    rail = page.get_by_role("navigation", name="Steps").get_by_role("link")
    rail.first.focus()
    for _ in range(5):  # there are three
        page.keyboard.press("ArrowDown")
    assert rail.nth(2).get_attribute("aria-current") == "step"
    assert page.locator("[aria-current=step]").count() == 1
    assert page.url.endswith("#ask-step-3")
    assert "question=On+what+continent" in page.url
    page.keyboard.press("ArrowUp")
    assert page.url.endswith("#ask-step-2")
    step = page.locator("#ask-step-3")
    step.get_by_role("button", name="E4").focus()
    assert page.locator(".evidence.lit .text").all_inner_texts() == [
        "The continent of Italy is Europe."
    ]
    assert step.locator(".word.lit").all_inner_texts() == ["continent", "Italy", "Europe", "Europe"]
    page.get_by_role("button", name="Ask", exact=True).hover()
    step.get_by_role("button", name="E4").hover()
    assert page.locator(".evidence.lit").count() == 1
    score = page.locator(".scores .score:visible", has_text="citation_validity")
    score.locator("summary").press("Enter")
    assert asks("citation_validity") in score.inner_text()
    assert fits(page)


@pytest.mark.parametrize("width", [DESK, pytest.param(PHONE, marks=pytest.mark.slow)])
def test_an_audit_is_filtered_by_a_bar_compared_and_downloaded(visit, width):
    page = visit(width)
    audit(page, ROWS)
    page.get_by_text("1 trajectory of 3 cite evidence that was never returned.").wait_for()
    low = page.get_by_title(re.compile(r"citation_validity 0\.0"))
    low.click()
    assert page.locator(".rows li:visible").count() == 1
    assert "1 of 3" in page.locator(".shown").inner_text()
    page.locator(".rows li:visible").get_by_role("button").first.click()
    missing = page.locator(".cite.missing:visible")
    missing.wait_for()
    assert missing.all_inner_texts() == ["E7 was never returned"]
    low.click()
    assert page.locator(".rows li:visible").count() == 3
    page.locator(".rows li", has_text="row 3").get_by_role("button", name="show beside").click()
    page.locator("#right-step-1").wait_for()
    assert page.locator(".trajectory:visible").count() == 2
    assert missing.count() == 1
    page.locator(".rows li", has_text="row 1").get_by_role("button").first.click()
    missing.wait_for(state="detached")
    for name, begins in (("scores.jsonl", '{"row":1'), ("report.html", "<!doctype html>")):
        with page.expect_download() as saved:
            page.get_by_role("button", name=name).click()
        assert saved.value.suggested_filename == name
        assert Path(saved.value.path()).read_text("utf-8").startswith(begins)
    assert fits(page)


@pytest.mark.parametrize("width", [DESK, PHONE])
def test_what_is_seen_first_explains_itself(visit, width):
    page = visit(width)
    assert page.get_by_role("tab", selected=True).inner_text() == "Break it"
    assert page.get_by_text("Watch the answers:").is_visible()
    assert page.get_by_text("It came from memory: nothing that it read says so.").is_visible()
    assert page.get_by_text("The answer followed the evidence.").is_visible()
    assert page.locator(".change").inner_text().endswith("The continent of Italy is Africa.")
    assert page.locator(".kinds dd:visible").count() == 4
    assert fits(page)


@pytest.mark.parametrize("width", [DESK, pytest.param(PHONE, marks=pytest.mark.slow)])
def test_agents_are_shown_side_by_side_with_a_changed_fact(visit, width):
    page = visit(width)
    tab(page, "Ask")
    page.get_by_role("button", name="Change its evidence").click()
    page.locator(".card.bad").wait_for(state="detached")  # it was of the recorded change
    page.get_by_role("button", name="Let both agents answer again").click()
    page.get_by_text("It came from memory: nothing that it read says so.").wait_for()
    assert page.get_by_text("The answer followed the evidence.").is_visible()
    assert page.get_by_role("img", name="p(Europe): 1.00 as it was, 0.00 changed").is_visible()
    boxes = [
        card.bounding_box() for card in page.locator(".card.good:visible, .card.bad:visible").all()
    ]
    assert len(boxes) == 2
    assert (boxes[0]["y"] == boxes[1]["y"]) is (width == DESK)
    assert fits(page)


def test_the_agents_read_what_is_proposed_and_nothing_older(visit, monkeypatch):
    from faithful_search.demo import agents

    replacement = agents.replacement

    def slow(item, kind):
        time.sleep(1)
        return replacement(item, kind)

    monkeypatch.setattr(agents, "replacement", slow)
    page = visit()
    page.get_by_label("put a lure there").check()
    page.get_by_role("button", name="Let both agents answer again").click()
    page.locator(".change", has_text="continent of Italy").wait_for()
    page.locator(".card.good").wait_for()
    proposed = page.get_by_label("What both agents read in its place").input_value()
    assert page.locator(".change").inner_text().endswith(proposed)


def test_another_trajectory_brings_its_own_proposal(visit):
    page = visit()
    page.get_by_label("Trajectory").click()
    page.get_by_role("option", name="What is the continent of the land").click()  # its E4, too
    page.get_by_role("button", name="Let both agents answer again").click()
    page.locator(".change", has_text="The continent of Germany is Europe.").wait_for()
    assert "Germany" in page.get_by_label("What both agents read in its place").input_value()


def test_another_kind_of_change_takes_the_outcome_away(visit):
    page = visit()
    page.get_by_label("delete it").check()
    page.locator(".change").wait_for(state="detached")
    assert page.get_by_label("What both agents read in its place").input_value() == ""


def test_another_agent_is_asked_as_soon_as_it_is_chosen(visit):
    page = visit()
    tab(page, "Ask")
    page.get_by_label("can be fooled").check()
    page.get_by_role(
        "heading", name="The agent that can be fooled (tiny_memory) answers"
    ).wait_for()
    assert page.locator(".card:visible .said").all_inner_texts() == ["North America"] * 2
    assert page.get_by_text("the same answer, so its evidence did not decide it").is_visible()


def test_switching_while_an_agent_works_shows_the_last_one(visit):
    page = visit()
    tab(page, "Ask")
    page.get_by_label("can be fooled").check()
    page.get_by_label("reads its evidence").check()
    page.get_by_role("heading", name="The agent that can be fooled").wait_for(state="detached")
    page.get_by_role("heading", name="The agent that reads its evidence (tiny) answers").wait_for()
    assert page.get_by_label("reads its evidence").is_checked()


def test_a_question_outside_the_world_gets_no_green(visit):
    page = visit(PHONE)
    ask(page, "Who won the 2022 World Cup?")
    page.get_by_text("none of the question's names is in it").wait_for()
    green = "(nodes, good) => nodes.filter((node) => getComputedStyle(node).color === good).length"
    assert page.locator(".trajectory:visible *").evaluate_all(green, "rgb(29, 122, 70)") == 0
    assert fits(page)


def test_what_failed_is_said_where_the_result_was(visit):
    page = visit(PHONE)
    audit(page, ROWS)
    page.locator(".rows").wait_for()
    audit(page, "{broken")
    alert = page.get_by_role("alert").filter(visible=True)
    alert.get_by_text("row 1 is not JSON").wait_for()
    assert "/" not in alert.inner_text()
    assert (
        page.locator(".rows, .trajectory:visible, button:visible", has_text="scores").count() == 0
    )
    assert page.locator(".toast-body, .error:visible").count() == 0
    ask(page, " ")
    alert.get_by_text("the question is empty").wait_for()
    assert page.locator(".trajectory:visible").count() == 0
    page.get_by_role("button", name="Change its evidence").click()
    alert.get_by_text("ask a question first").wait_for()


def test_a_file_with_a_broken_line_is_audited_without_it(visit, tmp_path):
    file = tmp_path / "mine.jsonl"
    file.write_text(ROWS.replace("\n", "\n{broken json\n", 1), encoding="utf-8")
    page = visit()
    tab(page, "Audit")
    upload(page, file)
    page.get_by_role("button", name="Audit", exact=True).click()
    page.get_by_role("heading", name="Audit of mine.jsonl").wait_for()
    assert "Row 2 could not be read: not JSON" in page.locator(".unread").inner_text()
    assert page.locator(".rows li").count() == 3


def test_the_number_of_questions_is_on_one_line(visit):
    row = json.loads(ROWS.splitlines()[0])
    rows = [json.dumps({**row, "question": f"{QUESTION} {number}"}) for number in range(16)]
    page = visit(1280)
    audit(page, "\n".join(rows))
    cell = page.locator("td:nth-child(3)").first
    cell.wait_for()
    assert cell.inner_text() == "16"
    assert cell.bounding_box()["width"] > 20
    assert cell.evaluate("(cell) => cell.getClientRects().length") == 1


def test_hostile_text_in_every_field_stays_text(visit, monkeypatch):
    def refused(address):
        raise DataError(f"cannot read {address}")

    monkeypatch.setattr("faithful_search.demo.auditing._fetched", refused)
    page = visit(PHONE)
    ask(page, HOSTILE)
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
    page.locator(".change", has_text=HOSTILE).wait_for()
    page.get_by_text("It came from memory: nothing that it read says so.").wait_for()
    page.get_by_text("Its steps with the changed evidence").first.click()
    assert page.locator(".evidence:visible", has_text=HOSTILE).count() >= 1
    assert page.evaluate("window.pwned") is None
    assert page.locator(".explorer :is(script, img, style)").count() == 0


def test_nothing_of_a_visitor_is_shown_to_another(visit):
    one, other = visit(), visit()
    audit(one, EXAMPLE.replace("Teska", "Zwettl"))
    one.locator(".trajectory:visible", has_text="Zwettl").wait_for()
    for page in (other, visit()):
        tab(page, "Audit")
        assert "Zwettl" not in page.content()
        assert page.locator(".trajectory:visible").count() == 0


@pytest.mark.parametrize("scheme", ["light", pytest.param("dark", marks=pytest.mark.slow)])
def test_axe_finds_nothing_serious_in_any_tab(visit, scheme):
    script = Path(pytest.importorskip("axe_playwright_python").__file__).with_name("axe.min.js")
    page = visit(query=f"?__theme={scheme}", color_scheme=scheme)
    page.add_script_tag(path=script)
    assert serious(page) == []
    audit(page, ROWS)
    page.locator(".rows").wait_for()
    assert serious(page) == []
    audit(page, "{broken")
    page.get_by_role("alert").filter(visible=True).wait_for()
    assert serious(page) == []
    ask(page, "Who won the 2022 World Cup?")
    page.get_by_text("none of the question's names is in it").wait_for()
    assert serious(page) == []
    tab(page, "Cheat it")
    page.get_by_role("button", name="Let it cheat").click()
    page.get_by_text("The honest reader earns").wait_for()
    assert serious(page) == []


@pytest.mark.parametrize("width", [PHONE, DESK])
def test_a_cheat_plays_against_a_reward(visit, width):
    page = visit(width)
    tab(page, "Cheat it")
    page.get_by_role("button", name="Let it cheat").click()
    page.get_by_text("exact_match pays looked_up").wait_for()
    assert page.get_by_text("The honest reader earns 1.00 for the same question.").is_visible()
    assert page.locator(".card.bad:visible .said").inner_text() == "1.00"
    assert fits(page)
