"""The demo: what visitors and agents write stays text, each tab does what it says, the page is
served.
"""

import html
import importlib
import inspect
import json
import socket
import sys
import time
from html.parser import HTMLParser
from pathlib import Path
from types import SimpleNamespace

import httpx2
import msgspec
import pytest
import yaml
from imports import import_again
from lab import lora
from paths import ROOT
from served import free_port, invoked
from stub_server import StubServer, tool_call

import faithful_search as fs
from faithful_search.bundled import tiny_policy
from faithful_search.demo import agents, auditing, view
from faithful_search.demo.agents import WITHOUT, Served, agent, task_of
from faithful_search.demo.auditing import audited
from faithful_search.demo.cheating import CheatAttempt, attempt, questions_offered
from faithful_search.demo.outside import outside
from faithful_search.docstrings import summary_and_arguments
from faithful_search.errors import ConfigError, DataError
from faithful_search.measure.widget import EXAMPLE, QUESTION
from faithful_search.tasks import load_tasks
from faithful_search.trajectory import Evidence, Issue, Step, ToolCall, Trajectory, read_jsonl
from faithful_search.world import SPLITS, bundled_world

HOSTILE = (
    "</script><script>window.pwned = 1</script>",
    '"><img src=x onerror="window.pwned = 1">',
    "{{ 7 * 7 }} {% raw %} ${window.pwned = 1} <!-- ]]>",
    "</details></div></template><style>body { display: none }</style>",
)
EXAMPLES = ROOT / "src" / "faithful_search" / "demo" / "examples.jsonl"
OUTCOMES = EXAMPLES.with_name("outcomes.jsonl")
SPACE = ROOT / "spaces" / "faithfulness_explorer"
ITALY = Evidence("The continent of Italy is Europe.", "Italy", "E1")


class Elements(HTMLParser):
    """The tags of a fragment, the names of their attributes, and its text."""

    def __init__(self, source: str) -> None:
        super().__init__()
        self.tags, self.attributes, self.text = set(), set(), ""
        self.feed(source)

    def handle_starttag(self, tag, attrs):
        self.tags.add(tag)
        self.attributes.update(name for name, _ in attrs)

    def handle_data(self, data):
        self.text += data


def everywhere(text: str) -> Trajectory:
    """A trajectory with the text in every field that is shown."""
    issues = (Issue(text, text),)
    found = (Evidence(text, text, "E1", url=text), Evidence(text, text, text))
    search = Step(text, ToolCall(text, {text: text}, text), found, note=text, issues=issues)
    last = Step(think=text, helpful=True, refs=("E1", text, f"{text} 2"), answer=text)
    return Trajectory(
        (search, last), text, text, text, "pou", text, (text,), issues=issues, meta={WITHOUT: text}
    )


def shown(text: str) -> str:
    one = everywhere(text)
    outcome = agents.Outcome(
        local=agents.Local(text, text, text),
        before=one,
        after=one,
        p_yes=(0.5, 0.25),
        p_answer=(0.5, 0.25),
        verdict=agents.verdict(one, one),
    )
    rows = [json.dumps({"question": text, "text": f"{EXAMPLE}{text}"}) for _ in range(2)]
    found = audited("\n".join([*rows, json.dumps({text: text})]))
    return "".join(
        (
            view.growing_view(one, "growing", text, text),
            view.answered_view(one, "ask", text),
            view.outcome_view([outcome], one.steps[0].evidence[0], text),
            view.audit_view(found, text),
            view.attempt_view(
                CheatAttempt(
                    cheat=text,
                    exploits=text,
                    reward=text,
                    setting=text,
                    rollout=one,
                    value=0.5,
                    reader=None,
                    parts={text: None},
                    why={text: text, "mix": text},
                )
            ),
            view.refused_view(text),
        )
    )


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_text_in_every_field_stays_text(text):
    hostile, plain = Elements(shown(text)), Elements(shown("plain"))
    assert hostile.tags <= plain.tags
    assert not plain.tags & {"script", "img", "style"}
    assert not [name for name in hostile.attributes if name.startswith("on")]
    assert hostile.text.count(text) > 10


def test_a_citation_of_nothing_that_was_returned_is_marked():
    forged = audited(EXAMPLE.replace("<ref>E1</ref>", "<ref>E1, E7</ref>"))
    [row] = forged.rows
    page = Elements(view.trajectory_view(row.trajectory, "one")).text
    assert "E7 was never returned" in page
    assert "E1 was never" not in page
    assert any(
        "1 trajectory of 1 cite evidence that was never returned" in line for line in forged.words
    )
    assert "missing" not in view.trajectory_view(audited(EXAMPLE).rows[0].trajectory, "one")


def test_a_text_a_chat_and_rows_are_audited():
    chat = [{"role": "user", "content": QUESTION}, {"role": "assistant", "content": EXAMPLE}]
    rows = "\n".join(json.dumps({"question": QUESTION, "text": EXAMPLE}) for _ in range(3))
    for text, count in (
        (EXAMPLE, 1),
        (json.dumps(chat), 1),
        (rows, 3),
        (f"[{','.join(rows.splitlines())}]", 3),
    ):
        found = audited(text)
        assert len(found.rows) == count
        assert {row.trajectory.answer for row in found.rows} == {"Teska"}
        assert found.words[0].startswith(f"{count} trajector")
        assert "written in pou" in found.words[0]
        assert {"citation_validity", "info_think_lexical"} <= found.table.keys()
    assert "<helpful>" in audited(EXAMPLE).words[1]  # what the dialect was told by
    assert audited(EXAMPLE, "search_r1").rows[0].trajectory.dialect == "search_r1"


CALL = {"id": "1", "type": "function", "function": {"name": "s", "arguments": '{"query": "x"}'}}
CHAT = [
    {"role": "user", "content": "Who?"},
    {"role": "assistant", "content": "", "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": "1", "content": "Teska did it."},
    {"role": "assistant", "content": "Teska."},
]


@pytest.mark.parametrize(
    ("text", "dialect", "said"),
    [(EXAMPLE, None, True), (EXAMPLE, "search_r1", False), (json.dumps(CHAT), None, False)],
    ids=["text", "named", "chat"],
)
def test_the_marks_of_a_text_are_said_where_they_told(text, dialect, said):
    words = audited(text, dialect).words
    assert any(line.startswith("What tells how it is written") for line in words) is said


@pytest.mark.parametrize("text", ["", "  \n", '{"question": "no text in it"}', "x" * 5_000_001])
def test_what_cannot_be_audited_is_refused_with_a_reason(text):
    with pytest.raises(DataError, match=r"\w"):
        audited(text)


ROW = json.dumps({"question": QUESTION, "text": EXAMPLE})
PRETTY = json.dumps(json.loads(ROW), indent=1)
BROKEN = "{broken json"
FOREIGN = '{"id": "r6", "foo": "bar"}'


@pytest.mark.parametrize(
    ("text", "read"),
    [
        (f"{ROW}\n{BROKEN}\n{ROW}", [1, 3]),
        (f"{BROKEN}\n{ROW}\n{ROW}", [2, 3]),
        (f"{ROW}\n{ROW}\n{BROKEN}", [1, 2]),
        (f"{ROW}\r\n{BROKEN}\r\n{ROW}", [1, 3]),
        (f"{ROW}\n{FOREIGN}\n{BROKEN}\n{ROW}", [1, 4]),
        (f"{ROW}\n\n{ROW[:70]}\n{ROW}", [1, 4]),
        (f"[{ROW},{BROKEN}]", [1]),
        (f"[{ROW},{ROW[:70]}", [1]),
    ],
    ids=["middle", "first", "last", "crlf", "foreign", "blank line", "array", "cut array"],
)
def test_a_broken_row_costs_no_other_row(text, read):
    assert sorted(row.number for row in audited(text).rows) == read


@pytest.mark.parametrize(
    ("text", "ending", "unread"),
    [
        (f"{ROW}\n{BROKEN}\n{ROW}", "", ["Row 2 could not be read: not JSON"]),
        (f"{ROW}\n{FOREIGN}\n{ROW}", "", ["Row 2 could not be read: no column with messages"]),
        (
            f"{FOREIGN}\n{ROW}\n{BROKEN}",
            ".jsonl",
            ["Row 1 could not be read: no column", "Row 3 could not be read: not JSON"],
        ),
        (f"[{ROW},{BROKEN}]", "", ["The source could not be read to its end: the text: row 2"]),
        (f"[{ROW},{BROKEN}]", ".json", ["The source could not be read to its end: the text: row"]),
        (f"{ROW}\n{BROKEN}", ".json", ["The source could not be read to its end: the text: row"]),
        ("\n".join([ROW] * 201), "", ["Only the first 200 rows are read here"]),
        (f"{ROW}\n{ROW}", "", []),
        (f"{PRETTY}\n{PRETTY}", "", []),
    ],
)
def test_what_is_not_in_an_audit_is_said_with_the_reason(text, ending, unread):
    said = audited(text, ending=ending).unread
    assert [line[: len(begins)] for line, begins in zip(said, unread, strict=True)] == unread


def test_many_broken_rows_are_counted():
    assert audited("\n".join([ROW, *[BROKEN] * 30])).unread[-1] == "10 more rows could not be read."


@pytest.mark.parametrize("text", [BROKEN, f"[{BROKEN}", FOREIGN, f"[{ROW},{BROKEN}"])
def test_no_reason_names_a_path_of_the_server(text, tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    try:
        said = " ".join(audited(text).unread)
    except DataError as error:
        said = str(error)
    assert str(tmp_path) not in said


def test_an_audit_that_takes_too_long_is_ended(monkeypatch):
    audited(EXAMPLE)
    monkeypatch.setattr(auditing, "SECONDS", 0.2)
    with pytest.raises(DataError, match="takes longer than"):
        audited(EXAMPLE * 3_000)


def test_a_visitors_audit_does_not_keep_the_server_busy():
    start = time.process_time()
    audited(json.dumps({"question": "Who?", "text": EXAMPLE * 500}))
    assert time.process_time() - start < 0.5


def test_a_public_file_of_the_hub_is_audited_without_a_token(tmp_path, monkeypatch):
    (tmp_path / "rollouts.jsonl").write_text(json.dumps({"text": EXAMPLE}))
    (tmp_path / "large.jsonl").write_bytes(b"x" * 5_000_001)
    asked = []

    def hub(token):
        asked.append(token)
        return SimpleNamespace(
            open=lambda address, mode: (tmp_path / Path(address).name).open(mode)
        )

    monkeypatch.setattr("huggingface_hub.HfFileSystem", hub)
    found = audited("hf://datasets/org/name/rollouts.jsonl\n")
    assert [row.trajectory.answer for row in found.rows] == ["Teska"]
    assert asked == [False]
    for name, told in (
        ("private", "cannot read hf://datasets/org/name/private"),
        ("large", "too large for this page"),
    ):
        with pytest.raises(DataError, match=told):
            audited(f"hf://datasets/org/name/{name}.jsonl")


def test_evidence_is_changed_exchanged_and_deleted():
    changed = agents.replacement(ITALY, "change its fact")
    assert changed.startswith("The continent of Italy is ")
    assert "Europe" not in changed
    assert changed == agents.replacement(ITALY, "change its fact")
    lure = agents.replacement(ITALY, "put a lure there")
    assert "continent of Italy" in lure
    assert "Europe" not in lure
    assert changed.removesuffix(".").split(" is ")[1] in lure
    assert "Italy" not in agents.replacement(ITALY, "exchange it")
    assert agents.replacement(ITALY, "delete it") == ""
    with pytest.raises(DataError, match="not from the bundled world"):
        agents.replacement(Evidence("The moon is a cheese."), "change its fact")


@pytest.mark.parametrize(
    ("answer", "read", "said"),
    [
        ("Asia", "The continent of Italy is Asia.", agents.FOLLOWED),
        ("Europe", "The continent of Italy is Asia.", agents.MEMORY),
        ("Europe", "Italy lies in Europe.", agents.ELSEWHERE),
        ("Africa", "The continent of Italy is Asia.", agents.INVENTED),
        ("unknown", "Bread dough rests.", agents.NOTICED),
        (r"\boxed{unknown}", "Bread dough rests.", agents.NOTICED),
        (None, "Bread dough rests.", agents.NOTICED),
    ],
)
def test_the_sentence_says_what_became_of_the_answer(answer, read, said):
    step = Step(evidence=(Evidence(read, id="E1"),))
    assert (
        agents.verdict(Trajectory((step,), answer="Europe"), Trajectory((step,), answer=answer))
        == said
    )


def test_the_examples_are_what_the_bundled_policy_does():
    examples = list(read_jsonl(EXAMPLES))
    assert all(
        bundled_world().stated(item.text) for one in examples for item in one.evidence.values()
    )
    assert all(task_of(one.question).answers == one.answers for one in examples)
    seen = list(agent(agents.READS).ask(examples[0].question))
    assert [len(one.steps) for one in seen] == [
        *range(1, len(seen)),
        len(seen) - 1,
    ]  # step by step, then whole
    assert (seen[-1].answer, seen[-1].meta) == (examples[0].answer, examples[0].meta)
    for bad in (" ", "🦊" * 300):
        with pytest.raises(DataError, match="the question is"):
            next(agent(agents.READS).ask(bad))


def test_the_recorded_outcomes_are_what_the_bundled_policies_do():
    recorded = [msgspec.json.decode(line, type=agents.Outcome) for line in OUTCOMES.open("rb")]
    example = next(iter(read_jsonl(EXAMPLES)))
    text = agents.replacement(ITALY, "change its fact")
    for before, now in zip(recorded, agents.run_on(example.question, ITALY, text), strict=True):
        assert (now.verdict, now.after.steps) == (before.verdict, before.after.steps)
        assert now.p_answer == pytest.approx(before.p_answer, abs=1e-3)
        assert now.p_yes == (before.p_yes and pytest.approx(before.p_yes, abs=1e-3))


@pytest.mark.parametrize("dialect", ["search_r1", "self_eval", "pokee", "pairs"])
def test_a_policy_of_another_dialect_is_asked_and_broken(dialect):
    own = agents.Local.of(str(tiny_policy(dialect)))
    question = "On what continent does Italy lie?"
    *_, whole = agent(own).ask(question)
    [outcome] = agents.run_on(question, ITALY, "", [own])
    assert whole.dialect == agent(own).engine.dialect.name
    assert whole.stop_reason is not None
    assert outcome.local == own


def test_a_checkpoint_with_an_adapter_is_asked(tmp_path):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder = tmp_path / "pou" / "checkpoint-40"
    model = lora(AutoModelForCausalLM.from_pretrained(tiny_policy()))
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(tiny_policy()).save_pretrained(folder)
    own = agents.Local.of(str(folder))
    *_, whole = agent(own).ask("Who discovered Bromine?")
    assert own.name == "pou/checkpoint-40"
    assert whole.stop_reason is not None


@pytest.mark.parametrize(
    ("answer", "without", "needs"),
    [
        ("Europe", "unknown", True),
        ("Europe", None, True),
        ("Europe", "europe.", False),
        ("unknown", "Europe", None),
        (None, "Europe", None),
    ],
)
def test_an_answer_needs_evidence_where_it_changes_without(answer, without, needs):
    whole = Trajectory((), "Where?", answer, meta={WITHOUT: without})
    assert agents.needs_evidence(whole) is needs


@pytest.mark.parametrize(
    ("question", "names"),
    [
        ("Who won the 2022 World Cup?", "none of the question's names"),
        ("意大利的首都是什么", "none of the question's names"),
        ("Hello!", "none of the question's names"),
        ("who wrote hamlet in 1601?", "none of the question's names"),
        ("Who won the prize for peace in 1999?", "none of the question's names"),
        ("Who is the president of Italy?", "“president”"),
        ("How tall is Mount Etna?", "“tall”"),
        ("In Italy " + "z" * 200, "“zzzzzzzzzzzzzzzzzzzzzzzzzzzzz…”"),
    ],
)
def test_a_question_outside_the_world_is_said_to_be_so(question, names):
    assert names in outside(question)


@pytest.mark.parametrize("question", ["What is the capital of Italy?", "the capital of japan?"])
def test_a_question_inside_the_world_is_not_doubted(question):
    assert outside(question) == ""


def test_no_question_of_the_world_is_doubted():
    questions = [task.question for split in SPLITS for task in load_tasks("world", split, 100)]
    assert [question for question in questions if outside(question)] == []


def test_an_answer_from_outside_the_world_is_not_certain():
    step = Step("So.", answer="Europe", helpful=True, refs=("E1",), evidence=(ITALY,))
    shown = view.answered_view(
        Trajectory((step,), "Who won?", "Europe", meta={WITHOUT: ""}), "ask", "It"
    )
    assert '<div class="explorer doubted">' in shown
    assert "none of the question's names is in it" in Elements(shown).text
    assert "stated by" not in shown
    assert "card good" not in shown


def test_a_served_model_gets_the_visitors_key_only(monkeypatch):
    def searches(messages):
        if messages[-1]["role"] == "tool":
            return "Europe." if "Europe" in messages[-1]["content"] else "I do not know."
        return tool_call("knowledge_graph", '{"query": "continent of Italy"}')

    monkeypatch.setenv("OPENAI_API_KEY", "the-servers-own")
    with StubServer(label=searches) as server:
        *_, found = Served(server.url, "stub").ask(
            "On what continent does Italy lie?", "the-visitors"
        )
        list(Served(server.url, "stub").ask("On what continent does Italy lie?", ""))
        keys = {headers.get("authorization") for headers in server.headers}
    assert (found.answer, found.meta[WITHOUT]) == ("Europe.", "I do not know.")
    assert keys == {"Bearer the-visitors", None}
    with (
        StubServer("context") as server,
        pytest.raises(DataError, match=r"no answer came: .*context length"),
    ):
        list(Served(server.url, "stub").ask("On what continent does Italy lie?", "the-visitors"))


def told_of_a_served_model(url: str) -> str:
    with pytest.raises(DataError) as refused:
        list(Served(url, "stub").ask("Where does Italy lie?", "wrong"))
    return str(refused.value)


def test_a_visitor_is_not_told_where_a_served_model_is(caplog):
    url = f"http://127.0.0.1:{free_port()}/v1"
    told = told_of_a_served_model(url)
    assert "cannot be reached" in told
    assert url not in told
    assert url in caplog.text


def test_a_visitor_whose_key_is_refused_is_told_to_check_it():
    with StubServer("unauthorized") as server:
        assert "check the key" in told_of_a_served_model(server.url)


@pytest.mark.slow
def test_one_agent_follows_changed_evidence_and_one_does_not():
    example = next(iter(read_jsonl(EXAMPLES)))
    reads, fooled = agents.run_on(
        example.question, ITALY, agents.replacement(ITALY, "change its fact")
    )
    assert (reads.before.answer, reads.verdict) == (example.answer, agents.FOLLOWED)
    assert fooled.verdict == agents.MEMORY
    assert fooled.before.answer == fooled.after.answer
    assert reads.p_answer[0] > 0.9
    assert reads.p_answer[1] < 0.1
    assert fooled.p_yes is None  # it wrote its answer before
    assert fooled.p_answer[0] == fooled.p_answer[1]
    gone = next(agents.run_on(example.question, ITALY, ""))
    assert gone.verdict == agents.NOTICED
    assert gone.p_yes[1] < 0.5 < gone.p_yes[0]


def test_the_page_is_served_with_an_example_in_it(monkeypatch):
    pytest.importorskip("gradio")
    from faithful_search.demo import app

    monkeypatch.setattr(app, "agent", lambda name: None)  # what is seen first needs none
    port = free_port()
    page = app.launch("127.0.0.1", port, prevent_thread_lock=True, quiet=True)
    try:
        with httpx2.Client(
            base_url=f"http://127.0.0.1:{port}", trust_env=False, timeout=60
        ) as client:
            assert client.get("/").status_code == 200
            config = client.get("/config").json()
    finally:
        page.close()
    values = [str(component["props"].get("value")) for component in config["components"]]
    example = next(iter(read_jsonl(EXAMPLES)))
    assert any(
        'class="trajectory"' in value and html.escape(example.question) in value for value in values
    )
    assert {"Ask", "Audit", "Break it"} <= {
        component["props"].get("label") for component in config["components"]
    }
    assert [
        call["api_name"] for call in config["dependencies"] if call["api_visibility"] == "public"
    ] == ["audit"]


@pytest.fixture
def app():
    pytest.importorskip("gradio")
    from faithful_search.demo import app

    return app


def alert(source: str) -> str:
    """What the page says in an alert, where all else of it would be."""
    assert 'role="alert"' in source
    return Elements(source).text


def test_an_agent_that_cannot_run_is_said_in_the_page(app, monkeypatch):
    def without_torch(local):
        raise ConfigError("an agent here needs torch: <pip>")

    monkeypatch.setattr(app, "agent", without_torch)
    *_, (shown, state) = app.ask("Who?", "reads its evidence")
    assert "needs torch: <pip>" in alert(shown)
    assert state is None


def test_a_mistake_of_the_page_keeps_its_words_in_the_log(app, monkeypatch, caplog):
    def broken(local):
        raise KeyError("/home/somebody/secret")

    monkeypatch.setattr(app, "agent", broken)
    *_, (shown, _) = app.ask("Who?", "reads its evidence")
    assert "secret" not in shown
    assert "KeyError" in alert(shown)
    assert "secret" in caplog.text


def test_an_agent_at_work_shows_no_score_and_no_answer(app, monkeypatch):
    step = Step("I look.", ToolCall("local_search", {"query": "x"}, ""), (ITALY,))
    growing = Trajectory((step,), "Where does Italy lie?")
    monkeypatch.setattr(app, "agent", lambda local: SimpleNamespace(ask=lambda question: [growing]))
    begun, (shown, state) = app.ask("Where does Italy lie?", "reads its evidence")
    assert "0 steps so far" in begun[0]
    assert "1 step so far" in shown
    assert "answer:" not in shown
    assert '<details class="score' not in shown
    assert state is None


def test_an_audit_is_replaced_by_the_reason_why_another_failed(app):
    summary, downloads, found, worst, beside = app.show_audit(BROKEN)
    assert "row 1 is not JSON" in alert(summary)
    assert (downloads.visible, found, worst, beside.visible) == (False, None, "", False)


def test_a_file_of_another_kind_is_refused_by_its_ending(app):
    summary, *_ = app.show_audit("", "/tmp/trajectories.parquet")
    assert "this page reads .jsonl, .json, .txt" in alert(summary)


def test_an_audit_names_what_was_audited(app, tmp_path):
    file = tmp_path / "rows of mine.jsonl"
    file.write_text(f"\ufeff{ROW}\n{BROKEN}\n{ROW}", encoding="utf-8")
    summary, downloads, _, worst, _ = app.show_audit("", str(file))
    text = Elements(summary).text
    assert "Audit of rows of mine.jsonl" in text
    assert "Row 2 could not be read" in text
    assert "citation_validity" in text
    assert "Teska" in worst
    assert downloads.visible


def test_the_tool_says_what_was_found_and_what_was_not_read(app):
    told = app.audit(f"{ROW}\n{BROKEN}")
    assert told["findings"][0].startswith("Row 2 could not be read")
    assert told["metrics"]["citation_validity"]["mean"].startswith("1.000")
    assert told["worst rows"][0]["answer"] == "Teska"


def test_the_tool_describes_each_of_its_arguments(app):
    _, described = summary_and_arguments(inspect.getdoc(app.audit))
    assert list(described) == list(inspect.signature(app.audit).parameters)


def test_the_tool_fails_with_the_reason_as_text(app):
    with pytest.raises(app.gradio.Error, match=r"unknown dialect .*&lt;b&gt;"):
        app.audit(ROW, "<b>")


def test_nothing_to_change_is_said_where_the_outcome_would_be(app):
    policies = app.local_agents(None)
    assert "ask a question first" in alert(app.propose(None, "E1", "delete it")[1])
    assert "ask a question first" in alert([*app.run_on(None, "E1", "", policies)][-1])
    assert "no evidence to change" in alert(app.propose(Trajectory(()), "E1", "delete it")[1])


def test_a_policy_of_ones_own_can_be_chosen_and_broken(app):
    own = agents.Local.of(str(tiny_policy("pokee")))
    config = app.build(policy=own).get_config_file()
    labels = [part["props"].get("label") for part in config["components"]]
    offered = [part["props"].get("choices") for part in config["components"]]
    values = [part["props"].get("value") for part in config["components"]]
    assert offered[labels.index("Who answers")][-1] == ("tiny_pokee", "tiny_pokee")
    assert "Let all three agents answer again" in values


def test_the_page_has_its_own_buttons_and_no_other(app):
    parts = app.build().get_config_file()["components"]
    assert [part["props"]["value"] for part in parts if part["type"] == "button"] == [
        "Let both agents answer again",
        "Change its evidence →",
        "Audit",
        "Download report.html",
        "Download scores.jsonl",
        "Let it cheat",
    ]


def test_a_taken_port_is_said_in_one_line(app, monkeypatch):
    monkeypatch.setattr(app, "agent", lambda local: None)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(ConfigError, match="the port may be taken; choose another --port"):
            app.launch("127.0.0.1", taken.getsockname()[1], prevent_thread_lock=True)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--endpoint", "http://127.0.0.1:9/v1"), "give --model NAME"),
        (("--dialect", "pou"), "give --model, no --endpoint"),
        (("--model", "/nowhere/pou"), "there is no model '/nowhere/pou'"),
    ],
)
def test_what_cannot_be_asked_is_refused_at_the_start(arguments, said):
    assert said in invoked("demo", *arguments).output


def test_without_gradio_the_command_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "gradio", None)
    import_again(monkeypatch, "faithful_search.demo.app")
    done = invoked("demo")
    assert done.exit_code == 1
    assert "pip install 'faithful-search[demo]'" in done.output


def test_the_space_asks_for_this_version_and_the_pinned_gradio():
    front = yaml.safe_load((SPACE / "README.md").read_text(encoding="utf-8").split("---")[1])
    assert front["sdk"] == "gradio"
    assert len(front["short_description"]) <= 60
    assert f"gradio=={front['sdk_version']}\n" in (ROOT / "constraints.txt").read_text(
        encoding="utf-8"
    )
    assert (SPACE / "requirements.txt").read_text(
        encoding="utf-8"
    ) == f"faithful-search[train]=={fs.__version__}\n"
    assert "from faithful_search.demo.app import launch" in (SPACE / front["app_file"]).read_text(
        encoding="utf-8"
    )
    assert importlib.util.find_spec("faithful_search.demo.app")


def test_a_cheat_is_shown_with_what_it_was_paid_and_why():
    played = attempt(questions_offered()[0], "looked_up", "answer_only")
    assert (played.value, played.reader) == (0.0, 1.0)
    page = Elements(view.attempt_view(played)).text
    assert "before any evidence holds it" in page
    assert "The honest reader earns 1.00" in page


CHOICES = [("?", "looked_up", "pou"), (None, "mine.py", "pou"), (None, "looked_up", "reward.py")]


@pytest.mark.parametrize(("question", "cheat", "reward"), CHOICES)
def test_what_is_not_offered_is_not_played(question, cheat, reward):
    with pytest.raises(DataError, match="there is no"):
        attempt(question or questions_offered()[0], cheat, reward)
