"""`faithful-search controls`: the conditions compared, written down as they end, and asked of a
served model.
"""

import json
from functools import partial
from types import SimpleNamespace

import pytest
from agent_rows import file_of, lines_of
from served import invoked
from stub_server import StubServer, tool_call

from faithful_search.errors import ConfigError, DataError, JudgeError
from faithful_search.measure.controls import (
    RESULTS,
    ROLLOUTS,
    compare,
    finished_rollouts,
    plan,
    run_study,
)
from faithful_search.measure.ledger import Ledger
from faithful_search.rollout import ServedAgent, served
from faithful_search.rollout.served import FAILED
from faithful_search.tasks import Task
from faithful_search.tools import LocalSearch, Toolbox
from faithful_search.trajectory import Evidence, Step, ToolCall, Trajectory, read_jsonl
from faithful_search.wire.llm import ChatReply

KEEPERS = {"Arvon": "Mila Dorn", "Belt": "Ivo Kast", "Corry": "Tess Olm", "Dale": "Ned Quill"}
CORPUS = [
    {"id": f"p{n}", "title": f"{place} harbour", "text": f"The keeper of {place} is {keeper}."}
    for n, (place, keeper) in enumerate(KEEPERS.items())
]
TASKS = [
    Task(f"q{n}", f"Who is the keeper of {place}?", (who,))
    for n, (place, who) in enumerate(KEEPERS.items())
]
PASSAGES = [Evidence(row["text"], row["title"], source=row["id"]) for row in CORPUS]
A, B = {"policy": "a"}, {"policy": "b"}


def changed(task):
    """Every keeper is Una Orr; the last question cannot be changed."""
    text = PASSAGES[int(task.id[1:])].text
    edits = {text: text.replace(task.answers[0], "Una Orr")}
    return None if task.id == "q3" else Task(task.id, task.question, ("Una Orr",), edits=edits)


class Scripted:
    """Knows Arvon's keeper by heart, reads the others'; stops after `most` episodes as a user
    would.
    """

    def __init__(self, most=99, open_book=True):
        self.most, self.open_book, self.tasks = most, open_book, []

    def run(self, tasks, on_end=None):
        found = []
        for task in tasks:
            if len(self.tasks) == self.most:
                raise KeyboardInterrupt
            self.tasks.append(task.id)
            found.append(self._episode(task))
            on_end(found[-1])
        return found

    def _episode(self, task):
        shown = [
            task.edits.get(item.text, item.text)
            for item in PASSAGES
            if task.question[21:-1] in item.text
        ]
        shown = [text for text in shown if text is not None] if self.open_book else []
        read = shown[0].split(" is ")[1].rstrip(".") if shown else "unknown"
        answer = "Mila Dorn" if "Arvon" in task.question else read
        call = Step(
            think="Look.",
            call=ToolCall("s", {"query": "keeper"}),
            evidence=tuple(map(Evidence, shown)),
        )
        steps = (call, Step(think="So.", answer=answer))
        return Trajectory(steps, task.question, answer, id=task.id, answers=task.answers)


def agents(open_agent=None, closed=None):
    book = open_agent or Scripted()
    return {
        "open": book,
        "blocked": book,
        "changed": book,
        "closed": closed or Scripted(open_book=False),
    }


def test_the_conditions_by_hand(tmp_path):
    """Of four right answers one is known by heart: right with a closed book and blocked; in three
    changed worlds two of the answers follow.
    """
    found = plan(TASKS, corpus=lambda: PASSAGES, changes=changed)
    every = [
        f"q{number}@{name}"
        for name in ("open", "closed", "blocked", "changed")
        for number in range(4)
    ]
    assert [task.id for task in found.tasks] == every[:-1]
    study = run_study(agents(), found, tmp_path, A)
    rows = {
        name: {metric: own.value for metric, own in of.items()} for name, of in study.rows.items()
    }
    assert rows["open"] == {"right": 1.0, "answered": 1.0, "decorated": 0.0, "answer_first": 0.0}
    for without in ("closed", "blocked"):
        assert [
            rows[without][name] for name in ("right", "memory_share", "same_answer", "answered")
        ] == [0.25] * 4
        assert study.differences[without]["right"].value == -0.75
    assert rows["changed"]["follow_rate"] == rows["changed"]["right"] == pytest.approx(2 / 3)
    assert study.differences["changed"]["right"].n == 3
    assert study.sentence == (
        "25% of the right answers were given without the evidence too: 1 of 4 were right with the "
        "gold evidence "
        "blocked. Where the evidence said something else, 2 of 3 answers changed with it and 1 "
        "stayed as they were "
        "(answers that did neither are not counted)."
    )
    assert "1 of 4 questions left out, whose facts cannot be changed" in str(study)
    written = json.loads((tmp_path / RESULTS).read_text())
    assert written["rows"]["blocked"]["right"]["n"] == 4
    assert written["settings"] == A


def test_what_cannot_be_asked_is_said():
    refused = {
        "unknown condition wrong; there are: open, closed, blocked, changed": (TASKS, ["wrong"])
    }
    refused |= {"no questions": ([],), r"these are repeated: q1$": ([*TASKS, TASKS[1]],)}
    for why, asked in refused.items():
        with pytest.raises(ConfigError, match=why):
            plan(*asked)

    def server():
        raise ConfigError("the passages of a server cannot be read")

    assert "since the passages of a server" in plan(TASKS, ["blocked"], server).left_out["blocked"]
    nowhere = plan(TASKS, ["blocked", "changed"])
    assert [task.id for task in nowhere.tasks] == [f"q{number}@open" for number in range(4)]
    assert nowhere.left_out["blocked"].startswith("4 of 4 questions left out")
    with pytest.raises(ConfigError, match=r"no question could be asked: the server is down"):
        compare([Trajectory(id="q0@open", stop_reason=FAILED, meta={"why": "the server is down"})])


# --- the folder


def test_an_interrupted_study_asks_only_for_what_is_missing(tmp_path):
    found = plan(TASKS, ["closed"])
    with pytest.raises(KeyboardInterrupt):
        run_study(agents(Scripted(most=3)), found, tmp_path, A)
    with (tmp_path / ROLLOUTS).open("a") as file:
        file.write('{"steps": [')  # it was cut off while writing
    again, closed = Scripted(), Scripted(open_book=False)
    study = run_study(agents(again, closed), found, tmp_path, A)
    assert (again.tasks, len(closed.tasks), study.rows["open"]["right"].n) == (["q3@open"], 4, 4)
    assert len(list(read_jsonl(tmp_path / ROLLOUTS))) == 8
    nobody = dict.fromkeys(agents())
    assert run_study(nobody, found, tmp_path, A) == study
    with Ledger(tmp_path / ROLLOUTS, "study"), pytest.raises(DataError, match="another evaluation"):
        run_study(nobody, found, tmp_path, B, anew=True)
    with pytest.raises(
        ConfigError,
        match=r"different settings \(policy: .* now\): give another --out, or --overwrite",
    ):
        run_study(nobody, found, tmp_path, B)
    assert finished_rollouts(tmp_path, A) == {task.id for task in found.tasks}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"messages": []}\n', "holds something else than .*: give another --out, or --overwrite"),
        (
            f"{Trajectory(id='q0@open').to_json()}\n",
            r"settings\.json has no settings record",
        ),
    ],
)
def test_rollouts_of_no_known_study_are_refused_and_kept(tmp_path, content, message):
    rollouts = tmp_path / ROLLOUTS
    rollouts.write_text(content)
    if "messages" in content:
        (tmp_path / "settings.json").write_text(json.dumps(A))
    with pytest.raises(ConfigError, match=message):
        run_study(agents(), plan(TASKS, ["closed"]), tmp_path, A)
    assert rollouts.read_text() == content


# --- a served model

call = partial(tool_call, "local_search")


def reads(messages):
    """Searches for the question, then says in a sentence what it read; knows Arvon's keeper by
    heart.
    """
    question, last = messages[1]["content"], messages[-1]
    if last["role"] == "user":
        return call(json.dumps({"query": question}))
    place = question[21:-1]
    found = "Mila Dorn" if place == "Arvon" else None
    for item in json.loads(last["content"]) if last["content"].startswith("[") else []:
        if f"keeper of {place} is " in item["text"]:
            found = item["text"].split(" is ")[1].rstrip(".")
    return f"The keeper is {found}." if found else "I do not know."


@pytest.fixture
def toolbox():
    with Toolbox([LocalSearch.from_corpus(CORPUS)]) as box:
        yield box


def test_a_served_agents_turns_are_bounded(toolbox):
    task = Task(
        "q",
        TASKS[1].question,
        ("Una Orr",),
        edits={PASSAGES[1].text: "The keeper of Belt is Una Orr."},
    )
    with StubServer(label=reads) as server:
        [found] = ServedAgent("stub", server.url, toolbox).run(TASKS[1:2])
        sent = server.requests[:2]
        [edited] = ServedAgent("stub", server.url, toolbox).run([task])
        [short] = ServedAgent("stub", server.url, toolbox, turns=1).run([task])
        server.label = lambda said: (
            said[-1]["content"] if said[-1]["role"] == "tool" else call(arguments)
        )
        for arguments in ("{", "[1]", '{"words": "x"}'):  # calls that cannot be read are answered
            [broken] = ServedAgent("stub", server.url, toolbox).run(TASKS[:1])
            assert "local_search" in broken.answer, arguments
            assert broken.steps[0].evidence == (), arguments
    assert (found.answer, found.stop_reason, found.id) == (
        "The keeper is Ivo Kast.",
        "answered",
        "q1",
    )
    first = found.steps[0]
    assert first.call.name == "local_search"
    assert first.evidence[0] == Evidence(PASSAGES[1].text, "Belt harbour", "E1")
    assert sent[0]["tools"][0]["function"]["name"] == "local_search"
    assert sent[1]["messages"][-1]["tool_call_id"] == "c1"
    assert edited.answer == "The keeper is Una Orr."
    assert (short.answer, short.stop_reason) == (
        None,
        "turn_limit",
    )


def test_a_reply_that_was_cut_is_no_answer(monkeypatch, toolbox):
    replies = {
        "one": ChatReply("The keeper is Mila", cut=True),
        "two": ChatReply(""),
        "three": ChatReply("Mila Dorn"),
        "four": ChatReply("", cut=True),  # as of a model that reasoned until its tokens were spent
    }

    async def chat(messages, body):
        return replies[messages[-1]["content"].split()[-1].rstrip("?")]

    monkeypatch.setattr(served, "LLM", lambda *given: SimpleNamespace(chat=chat))
    found = ServedAgent("stub", "http://127.0.0.1:9", toolbox).run(
        [Task(name, f"Who is {name}?") for name in replies]
    )
    assert [own.answer for own in found] == [None, None, "Mila Dorn", None]
    assert [own.stop_reason for own in found] == [
        "turn_token_limit",
        "no_action",
        "answered",
        "turn_token_limit",
    ]
    assert found[0].steps[-1].think == "The keeper is Mila"
    replies["three"] = ChatReply("<think>I know.</think><answer>Mila Dorn</answer>")
    tasks = [Task(name, f"Who is {name}?") for name in ("two", "three")]
    empty, whole = ServedAgent("stub", "http://127.0.0.1:9", toolbox, dialect="pou").run(tasks)
    assert (empty.steps, empty.stop_reason, whole.answer) == ((), "no_action", "Mila Dorn")


def test_a_reply_that_was_cut_is_shown_as_it_is_kept(monkeypatch, toolbox):
    async def chat(messages, body):
        return ChatReply("The keeper is Mila", cut=True)

    monkeypatch.setattr(served, "LLM", lambda *arguments: SimpleNamespace(chat=chat))
    shown = []
    agent = ServedAgent("stub", "http://127.0.0.1:9", toolbox)
    [trajectory] = agent.run(TASKS[:1], on_step=lambda episode_id, step: shown.append(step))
    assert shown == list(trajectory.steps)


def test_an_endpoint_that_fails_is_no_verdict_about_the_agent(toolbox):
    with StubServer("context", label=reads) as server:
        ended = []
        [found] = ServedAgent("stub", server.url, toolbox).run(TASKS[:1], ended.append)
        assert found.stop_reason == FAILED
        assert "context length" in found.meta["why"]
        assert ended == []
    with (
        StubServer("unauthorized") as server,
        pytest.raises(JudgeError, match="the key is missing or wrong"),
    ):
        ServedAgent("stub", server.url, toolbox).run(TASKS)
    for url in ("127.0.0.1:8000", "http://me:secret@host/v1"):
        with pytest.raises(
            ConfigError, match=r"must begin with http|must not hold a password"
        ) as error:
            ServedAgent("stub", url, toolbox)
        assert "secret" not in str(error.value)


# --- the command


@pytest.fixture
def files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    lines = [{"id": task.id, "question": task.question, "answers": task.answers} for task in TASKS]
    file_of(tmp_path / "questions.jsonl", lines)
    file_of(tmp_path / "corpus.jsonl", CORPUS)
    return ["--questions", "questions.jsonl", "--corpus", "corpus.jsonl", "--out", "out"]


def rewrite(path, more):
    file_of(path, [line | more(line) for line in lines_of(path)])


controls = partial(invoked, "controls")


def test_the_command_resumes_where_an_endpoint_failed(files, tmp_path):
    with StubServer("context", faults=3, label=reads) as server:
        words = ["stub", "--endpoint", server.url, "--turns", "4", "--concurrency", "1", *files]
        some, rest, again = controls(*words), controls(*words), controls(*words)
    assert some.output.startswith(
        f"12 episodes with {server.url}, up to 256 tokens a reply: about 36 requests with "
    )
    assert some.exit_code == 3
    assert "3 rollouts failed and count nowhere; the same command tries again" in some.output
    assert rest.exit_code == 0
    assert rest.output.startswith("3 episodes")
    assert "25% of the right answers were given without the evidence too: 1 of 4" in rest.output
    assert "changed: 4 of 4 questions left out" in rest.output
    assert again.exit_code == 0
    assert again.output.startswith("0 episodes")
    study = json.loads((tmp_path / "out" / RESULTS).read_text())
    assert study["rows"]["closed"]["memory_share"]["value"] == 0.25
    assert study["settings"]["match"] == "contains"
    assert (tmp_path / "out" / "controls.png").stat().st_size > 10_000


def test_annotated_questions_are_asked_in_changed_worlds(files, tmp_path):
    triples = ([[f"{place} harbour", "keeper", keeper]] for place, keeper in KEEPERS.items())
    rewrite(tmp_path / "questions.jsonl", lambda line: {"evidence_triples": next(triples)})
    with StubServer(label=reads) as server:
        words = ["stub", "--endpoint", server.url, "--conditions", "changed", *files]
        done = controls(*words)
        assert done.exit_code == 0, done.output
        rows = json.loads((tmp_path / "out" / RESULTS).read_text())["rows"]
        follow = rows["changed"]["follow_rate"]
        assert list(rows) == ["open", "changed"]
        assert (follow["value"], follow["n"]) == (1.0, 4)
        rewrite(tmp_path / "corpus.jsonl", lambda line: {"title": "T"})
        other = controls(*words)
        assert other.exit_code == 1
        assert "passages: " in other.output
        assert "questions: " not in other.output


def test_the_figure_has_the_follow_rate_where_worlds_are_changed(files, tmp_path, monkeypatch):
    drawn = []
    monkeypatch.setattr(
        "faithful_search.analysis.figures.bars",
        lambda evaluations, metrics, *_, **__: drawn.extend(metrics),
    )
    triples = ([[f"{place} harbour", "keeper", keeper]] for place, keeper in KEEPERS.items())
    rewrite(tmp_path / "questions.jsonl", lambda line: {"evidence_triples": next(triples)})
    with StubServer(label=reads) as server:
        controls("stub", "--endpoint", server.url, "--conditions", "changed", *files)
    assert drawn == ["right", "same_answer", "follow_rate", "decorated"]


def test_mistakes_are_told_in_a_line(files, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    for words, said in (
        (
            ["--corpus", "corpus.jsonl"],
            "the questions 'world' cannot be answered from 'corpus.jsonl'",
        ),
        (
            ["--questions", "nowhere.jsonl", "--corpus", "corpus.jsonl"],
            "neither a file here nor a dataset",
        ),
        (["--questions", "questions.jsonl", "--corpus", "none"], "no tools: give --corpus"),
    ):
        done = controls("tiny", *words)
        assert done.exit_code == 1
        assert said in done.output
        assert len(done.output.splitlines()) == 1


@pytest.mark.slow
def test_a_policy_of_this_machine_is_asked(tmp_path):
    done = controls("tiny", "--limit", "2", "--turns", "4", "--out", str(tmp_path))
    assert done.exit_code == 0, done.output
    assert "of the right answers were given without the evidence" in done.output
    other = controls("tiny", "--limit", "3", "--out", str(tmp_path))
    assert other.exit_code == 1
    assert "questions: " in other.output
    assert "turns: 4 there, 10 now" in other.output
