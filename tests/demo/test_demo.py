"""The demo: what visitors and agents write stays text, each tab does what it says, the page is served."""

import html
import importlib
import json
import sys
from html.parser import HTMLParser
from pathlib import Path
from types import SimpleNamespace

import httpx
import pytest
import yaml
from paths import ROOT
from served import free_port, invoked
from stub_server import StubServer, tool_call

import faithful_search as fs
from faithful_search.demo import agents, view
from faithful_search.demo.agents import WITHOUT, Served, agent, task_of
from faithful_search.demo.auditing import audited
from faithful_search.errors import ConfigError, DataError
from faithful_search.measure.widget import EXAMPLE, QUESTION
from faithful_search.trajectory import Evidence, Issue, Step, ToolCall, Trajectory, read_jsonl
from faithful_search.world import bundled_world

HOSTILE = (
    "</script><script>window.pwned = 1</script>",
    '"><img src=x onerror="window.pwned = 1">',
    "{{ 7 * 7 }} {% raw %} ${window.pwned = 1} <!-- ]]>",
    "</details></div></template><style>body { display: none }</style>",
)
EXAMPLES = ROOT / "src" / "faithful_search" / "demo" / "examples.jsonl"
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
    outcome = agents.Outcome("tiny", one, one, (0.5, 0.25), (0.5, 0.25), agents.verdict(one, one))
    found = audited(
        "\n".join(json.dumps({"question": text, "text": f"{EXAMPLE}{text}"}) for _ in range(2))
    )
    return view.answered_view(one, "ask") + view.outcome_view([outcome]) + view.audit_view(found)


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_text_in_every_field_stays_text(text):
    hostile, plain = Elements(shown(text)), Elements(shown("plain"))
    assert hostile.tags <= plain.tags and not plain.tags & {"script", "img", "style"}
    assert not [name for name in hostile.attributes if name.startswith("on")]
    assert hostile.text.count(text) > 10


def test_a_citation_of_nothing_that_was_returned_is_marked():
    forged = audited(EXAMPLE.replace("<ref>E1</ref>", "<ref>E1, E7</ref>"))
    [row] = forged.rows
    page = Elements(view.trajectory_view(row.trajectory, "one")).text
    assert "E7 was never returned" in page and "E1 was never" not in page
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
        assert len(found.rows) == count and {row.trajectory.answer for row in found.rows} == {
            "Teska"
        }
        assert (
            found.words[0].startswith(f"{count} trajector") and "written in pou" in found.words[0]
        )
        assert {"citation_validity", "info_think_lexical"} <= found.table.keys()
    assert "<helpful>" in audited(EXAMPLE).words[1]  # what the dialect was told by
    assert audited(EXAMPLE, "search_r1").rows[0].trajectory.dialect == "search_r1"


@pytest.mark.parametrize("text", ["", "  \n", '{"question": "no text in it"}', "x" * 5_000_001])
def test_what_cannot_be_audited_is_refused_with_a_reason(text):
    with pytest.raises(DataError, match=r"\w"):
        audited(text)


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
    assert [row.trajectory.answer for row in found.rows] == ["Teska"] and asked == [False]
    for name, told in (
        ("private", "cannot read hf://datasets/org/name/private"),
        ("large", "too large for this page"),
    ):
        with pytest.raises(DataError, match=told):
            audited(f"hf://datasets/org/name/{name}.jsonl")


def test_evidence_is_changed_exchanged_and_deleted():
    changed = agents.replacement(ITALY, "change its fact")
    assert changed.startswith("The continent of Italy is ") and "Europe" not in changed
    assert changed == agents.replacement(ITALY, "change its fact")
    lure = agents.replacement(ITALY, "put a lure there")
    assert (
        "continent of Italy" in lure
        and "Europe" not in lure
        and changed.removesuffix(".").split(" is ")[1] in lure
    )
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
    seen = list(agent("tiny").ask(examples[0].question))
    assert [len(one.steps) for one in seen] == [
        *range(1, len(seen)),
        len(seen) - 1,
    ]  # step by step, then whole
    assert (seen[-1].answer, seen[-1].meta) == (examples[0].answer, examples[0].meta)
    for bad in (" ", "🦊" * 300):
        with pytest.raises(DataError, match="the question is"):
            next(agent("tiny").ask(bad))


def test_a_served_model_is_asked_with_the_visitors_key_and_no_other(monkeypatch):
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


@pytest.mark.slow
def test_one_agent_follows_changed_evidence_and_the_other_does_not():
    example = next(iter(read_jsonl(EXAMPLES)))
    reads, fooled = agents.run_on(
        example.question, ITALY, agents.replacement(ITALY, "change its fact")
    )
    assert (reads.before.answer, reads.verdict) == (example.answer, agents.FOLLOWED)
    assert fooled.verdict == agents.MEMORY and fooled.before.answer == fooled.after.answer
    assert reads.p_answer[0] > 0.9 and reads.p_answer[1] < 0.1
    assert (
        fooled.p_yes is None and fooled.p_answer[0] == fooled.p_answer[1]
    )  # it wrote its answer before
    gone = next(agents.run_on(example.question, ITALY, ""))
    assert gone.verdict == agents.NOTICED and gone.p_yes[1] < 0.5 < gone.p_yes[0]


def test_the_page_is_served_with_an_example_in_it(monkeypatch):
    pytest.importorskip("gradio")
    from faithful_search.demo import app

    monkeypatch.setattr(app, "agent", lambda name: None)  # what is seen first needs none
    port = free_port()
    page = app.launch("127.0.0.1", port, prevent_thread_lock=True, quiet=True)
    try:
        with httpx.Client(
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


def test_the_tabs_tell_what_went_wrong_as_text(monkeypatch):
    gradio = pytest.importorskip("gradio")
    from faithful_search.demo import app

    def without_torch(name):
        raise ConfigError("an agent here needs torch: <pip>")

    monkeypatch.setattr(app, "agent", without_torch)
    with pytest.raises(gradio.Error, match=r"needs torch: &lt;pip&gt;"):
        next(app.ask("Who?", "reads its evidence"))
    with pytest.raises(gradio.Error, match="this page reads"):
        app.show_audit("", "/tmp/trajectories.parquet")
    summary, downloads, _, left, right = app.show_audit(EXAMPLE)
    assert (
        "citation_validity" in summary
        and downloads.visible
        and not right.visible
        and "Teska" in left
    )
    told = app.audit(EXAMPLE)
    assert told["metrics"]["citation_validity"]["mean"].startswith("1.000")
    assert told["worst rows"][0]["answer"] == "Teska"


def test_without_gradio_the_command_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "gradio", None)
    monkeypatch.delitem(sys.modules, "faithful_search.demo.app", raising=False)
    done = invoked("demo")
    assert done.exit_code == 1 and "pip install 'faithful-search[demo]'" in done.output


def test_the_space_asks_for_this_version_and_the_pinned_gradio():
    front = yaml.safe_load((SPACE / "README.md").read_text(encoding="utf-8").split("---")[1])
    assert front["sdk"] == "gradio" and len(front["short_description"]) <= 60
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
