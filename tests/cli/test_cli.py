"""The command as people type it: exit codes, messages, files."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from subprocess import PIPE
from types import SimpleNamespace

import pytest
from agent_rows import JUDGED, CountingJudge, file_of, rollout, rollouts, silent_on
from served import COMMAND, invoked
from stub_server import StubServer, tool_call

import faithful_search as fs
from faithful_search.cli import cli
from faithful_search.cli.asking import TranscriptFile, _outside_the_world, print_step
from faithful_search.measure import metrics
from faithful_search.measure.audit import audit
from faithful_search.trajectory import Evidence, Step, read_jsonl

UNBUFFERED = {**os.environ, "PYTHONUNBUFFERED": "1"}
QUESTION = "Who is the keeper of Belt?"
CORPUS = [
    {"id": "p0", "title": "Arvon harbour", "text": "The keeper of Arvon is Mila Dorn."},
    {"id": "p1", "title": "Belt harbour", "text": "The keeper of Belt is Ivo Kast."},
]
BOGONG = "What is the capital of the country of Mount Bogong?"


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Runs the command in a folder with a corpus."""
    monkeypatch.chdir(tmp_path)
    file_of(tmp_path / "corpus.jsonl", CORPUS)
    return invoked


def test_an_audit_prints_a_table_and_leaves_its_files(run, tmp_path):
    rollouts(tmp_path, *range(12))
    done = run("audit", "a.jsonl", "--report-rows", "4")
    assert done.exit_code == 0, done.output
    assert "info_think_lexical" in done.output
    assert "report.html, audit.json, scores.jsonl in a-audit" in done.output
    assert json.loads((tmp_path / "a-audit" / "audit.json").read_text())["n"] == 12
    assert len((tmp_path / "a-audit" / "scores.jsonl").read_text().splitlines()) == 12
    page = (tmp_path / "a-audit" / "report.html").read_text()
    assert sum(f"Lighthouse {n} stands in" in page for n in range(12)) == 4
    assert run("audit", "a.jsonl", "--no-report", "--out", "bare").exit_code == 0
    assert not (tmp_path / "bare" / "report.html").exists()
    refused = run("audit", "a.jsonl", "--how", "pokee")
    assert refused.exit_code == 1
    assert "--overwrite" in refused.stderr
    assert "'unicode' there, 'pokee' now" in refused.stderr
    assert run("audit", "a.jsonl", "--how", "pokee", "--overwrite").exit_code == 0


@pytest.mark.parametrize("escape", ["\x1b]0;owned\x07", "\x1b[2J", "\x9b31m", "\r", "\u202e"])
def test_no_terminal_obeys_what_stands_in_a_file(run, tmp_path, escape):
    odd = {"text": f"no dialect {escape}at all", "question": "Q"}
    file_of(tmp_path / "a.jsonl", [rollout(0), odd, f'{{"{escape}'])
    (tmp_path / f"b{escape}.jsonl").write_bytes((tmp_path / "a.jsonl").read_bytes())
    for command in (
        *(
            ["audit", "a.jsonl", "--no-report"],
            ["audit", f"b{escape}.jsonl", "--no-report", "--dialect", "pou"],
        ),
        *(
            ["label", "a.jsonl"],
            ["label", f"b{escape}.jsonl", "--out", "b"],
            ["audit", f"{escape}.jsonl"],
        ),
    ):
        done = run(*command, color=True)
        assert done.output, command
        assert escape not in done.output, command


def test_unread_and_unjudged_rows_are_named_and_end_with_3(run, tmp_path, monkeypatch):
    file_of(tmp_path / "a.jsonl", [rollout(0), "{half", *map(rollout, range(1, 5))])
    judge = CountingJudge(silent_on("Lighthouse 3"))
    monkeypatch.setattr("faithful_search.judges.arguments.load", lambda kind, model, **knobs: judge)
    command = ["audit", "a.jsonl", "--judge", "endpoint", "--judge-model", "m", "--no-report"]
    command += ["--metrics", ",".join(JUDGED)]
    done = run(*command)
    assert done.exit_code == 3, done.output
    assert "rows that could not be read: 1\n  row 2: not JSON" in done.stderr
    assert "row 5, info_think_faithfulness: no verdict: timed out" in done.stderr
    judge.say = lambda pair: True
    again = run(*command)
    assert again.exit_code == 3
    assert "abstained" not in again.stderr
    rollouts(tmp_path, *range(5))
    assert run(*command, "--overwrite").exit_code == 0


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "no rows in it"),
        ('{"question": "Where?"}\n', "none of its rows (1) can be read"),
        (None, "cannot read"),
    ],
)
def test_what_cannot_be_done_is_one_line_and_no_traceback(run, tmp_path, content, message):
    if content is not None:
        (tmp_path / "a.jsonl").write_text(content)
    done = run("audit", "a.jsonl")
    assert done.exit_code == 1
    assert done.stderr.startswith("error: ")
    assert message in done.stderr
    assert done.stderr.count("\n") == 1
    for arguments in (
        ("--debug", "audit", "a.jsonl"),
        ("audit", "a.jsonl", "--debug", "--overwrite"),
    ):
        again = run(*arguments)
        assert isinstance(again.exception, fs.FaithfulSearchError)
        assert message in str(again.exception)


@pytest.mark.parametrize("command", ["audit", "convert --to openai", "label", "agreement"])
def test_a_file_that_is_missing_is_named_once(run, command):
    name, *options = command.split()
    out = ["rows.jsonl"] if name == "convert" else []
    done = run(name, "nowhere.jsonl", *out, *options)
    assert done.stderr == "error: cannot read nowhere.jsonl: No such file or directory\n"


def test_a_file_without_evaluations_is_told_from_what_holds_them(run, tmp_path):
    rollouts(tmp_path, 0, 1)
    done = run("compare", "a.jsonl", "a.jsonl")
    assert "name an audit's folder, or one with metrics.json" in done.stderr


@pytest.mark.parametrize("prompts", ["ours", "paper"])
def test_the_judges_prompts_are_chosen_by_a_flag(run, tmp_path, prompts):
    rollouts(tmp_path, 0)
    judge = ["--judge", "endpoint", "--judge-model", "m", "--judge-url", "http://127.0.0.1:9/v1"]
    done = run("audit", "a.jsonl", *judge, "--judge-prompts", prompts, "--estimate")
    assert done.exit_code == 0, done.output


def test_prompts_of_another_name_are_refused(run, tmp_path):
    rollouts(tmp_path, 0)
    done = run("audit", "a.jsonl", "--judge-prompts", "theirs")
    assert "'theirs' is not one of 'ours', 'paper'" in done.stderr


def test_pairs_that_were_all_labelled_are_counted_once(run, tmp_path):
    rollouts(tmp_path, 0, 1)
    done = run("label", "a.jsonl", "--metric", "answer-support")
    assert "pairs labelled by lexical" in done.output
    assert "pairs found" not in done.output


def test_folders_of_audits_are_compared_by_their_scores(run, tmp_path):
    rollouts(tmp_path, 0, 1)
    for out in ("one", "two"):
        run("audit", "a.jsonl", "--out", out, "--no-report")
    done = run("agreement", "one", "two")
    assert done.exit_code == 0, done.output


@pytest.mark.parametrize("group", [(), ("push",), ("metrics",), ("train",)])
def test_help_cuts_no_line_at_80_columns(run, monkeypatch, group):
    monkeypatch.setattr("shutil.get_terminal_size", lambda *_, **__: os.terminal_size((80, 24)))
    commands = run(*group, "--help").stdout.partition("Commands:")[2]
    assert "..." not in commands


def test_a_conversion_without_a_row_says_that_nothing_was_written(run, tmp_path):
    (tmp_path / "a.jsonl").write_text('{"nothing": 1}\n')
    done = run("convert", "a.jsonl", "b.jsonl", "--to", "openai")
    assert "no row of a.jsonl could be converted: nothing was written to b.jsonl" in done.stdout
    assert done.exit_code == 3


OPTIONS = {"another.yaml": "colour: red\n", "list.yaml": "- a\n", "broken.yaml": "a: [\n"}
WRONG = ["--judge oracle", "--judge nli", "--judge-model x", "--limit 0"]


@pytest.mark.parametrize(
    "options", [*WRONG, *(f"--config {name}" for name in ("none.yaml", *OPTIONS))]
)
def test_wrong_usage_has_its_own_exit_code(run, tmp_path, options):
    for name, text in OPTIONS.items():
        (tmp_path / name).write_text(text)
    done = run("audit", "a.jsonl", *options.split())
    assert done.exit_code == 2
    assert "Error" in done.stderr
    assert "config" not in options or options.split()[-1] in done.stderr
    assert run("audit").exit_code == 2


@pytest.mark.parametrize(
    ("key", "advice"),
    [("metrcs", "did you mean metrics?"), ("colour", "--help lists those there are")],
)
def test_an_option_that_a_file_misspells_is_named(run, tmp_path, key, advice):
    (tmp_path / "c.yaml").write_text(f"{key}: x\n")
    done = run("audit", "a.jsonl", "--config", "c.yaml")
    assert f"no option {key}; {advice}" in " ".join(done.stderr.split())


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("out: 5", "out is text, not 5; if it is text, put it between quotes"),
        ("limit: many", "limit is a whole number, not 'many'"),
        ("limit: true", "limit is a whole number, not true"),
        ("judge-timeout: [1]", "judge-timeout is a number, not [1]"),
        ("fetch: maybe", "fetch is true or false, not 'maybe'"),
        ("dialect: {a: b}", "dialect is text or a list of texts or numbers, not {'a': 'b'}"),
        ("require: 3", "require is text or a list of texts, not 3"),
    ],
)
def test_an_option_of_a_wrong_type_is_refused_by_its_file_and_key(run, tmp_path, line, why):
    (tmp_path / "c.yaml").write_text(line)
    done = run("audit", "a.jsonl", "--config", "c.yaml")
    assert f"c.yaml: {why}" in " ".join(done.stderr.split())


@pytest.mark.parametrize(("line", "words"), [("out: ~/there", []), ("", ["--out=~/there"])])
def test_a_path_may_begin_at_home(run, tmp_path, monkeypatch, line, words):
    monkeypatch.setenv("HOME", str(tmp_path))
    rollouts(tmp_path, 1)
    (tmp_path / "c.yaml").write_text(f"no-report: true\n{line}\n")
    run("audit", "a.jsonl", "--config", "c.yaml", *words)
    assert (tmp_path / "there" / "audit.json").exists()


def test_a_file_of_options_is_read_and_what_is_typed_wins(run, tmp_path):
    rollouts(tmp_path, *range(3))
    options = "how: pokee\nmetrics: [answer_correctness, tool_use]\nno-report: true\nout: there\nlimit: 2\n"
    (tmp_path / "c.yaml").write_text(f"{options}judge_cache: none\n")
    for more in ((), ("--how", "squad", "--out", "here", "--limit", "1")):
        assert run("audit", "a.jsonl", "--config", "c.yaml", *more).exit_code == 0
    there, here = (
        json.loads((tmp_path / name / "audit.json").read_text()) for name in ("there", "here")
    )
    assert there["settings"]["how"] == "pokee"
    assert there["settings"]["metrics"] == [
        "answer_correctness",
        "tool_use",
    ]
    assert there["n"] == 2
    assert not (tmp_path / "there" / "report.html").exists()
    assert here["settings"]["how"] == "squad"
    assert here["n"] == 1


def test_the_standard_input_is_kept_for_report_and_resume(run, tmp_path):
    text = "".join(json.dumps(rollout(n)) + "\n" for n in range(3))
    assert run("audit", "-", "--no-report", input=text).exit_code == 0
    assert (tmp_path / "stdin-audit" / "source.jsonl").read_text() == text
    assert run("audit", "-", "--no-report", input=text).exit_code == 0


def test_an_empty_standard_input_is_called_by_its_name(run):
    assert run("audit", "-", input="\n").stderr == "error: -: no rows in it\n"


def test_the_command_that_serves_an_index_can_be_copied(run):
    done = run("index", "world", "my index")
    assert done.stdout.endswith("faithful-search serve 'my index'\n")


def test_an_interrupted_index_says_how_to_go_on(run, tmp_path, monkeypatch):
    def stop(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("faithful_search.tools.retrieval.index_folder.build_folder", stop)
    done = run("index", "world", "out")
    assert done.exit_code == 130
    assert "the same command goes on" in done.stderr


def test_a_paid_judge_has_a_bill_and_a_limit(run, tmp_path, monkeypatch):
    rollouts(tmp_path, *range(20))
    told: list[str] = []
    monkeypatch.setattr("tqdm.auto.tqdm.set_postfix_str", lambda self, text: told.append(text))
    with StubServer() as server:
        endpoint = (
            "--judge",
            "endpoint",
            "--judge-model",
            "m",
            "--judge-url",
            server.url,
            "--judge-cache",
            "none",
        )
        asked = (
            "audit",
            "a.jsonl",
            "--no-report",
            "--metrics",
            "info_think_faithfulness",
            *endpoint,
        )
        assert "max_cost needs prices" in run(*asked, "--max-cost", "1").stderr
        asked += ("--judge-prices", "1000,0", "--judge-concurrency", "1")  # 0.1 each
        bill = run(*asked, "--estimate")
        assert bill.exit_code == 0, bill.output
        assert "a.jsonl: 20 rows: about 20 calls" in bill.output, bill.output
        assert not server.calls
        assert not (tmp_path / "a-audit").exists()
        done = run(*asked, "--max_cost", "0.45")
        assert (done.exit_code, server.calls) == (
            3,
            5,
        )
        assert "have cost 0.5000 of at most 0.45" in done.stderr
        told.clear()
        assert run(*asked).exit_code == 0
        assert server.calls == 20
    assert len(told) == 15
    assert told[-1] == "15 verdicts, cost 1.5000"
    assert "no other judge has a bill" in run("audit", "a.jsonl", "--estimate").stderr


def test_the_verdicts_of_two_audits_are_compared(run, tmp_path):
    source = rollouts(tmp_path, *range(8))
    for name, judge in (("one", None), ("two", CountingJudge())):
        audit(source, tmp_path / name, metrics=["info_think_faithfulness"], judge=judge)
    done = run("agreement", "one/scores.jsonl", "two/scores.jsonl", "--out", "both")
    assert done.exit_code == 0, done.output
    assert (tmp_path / "both" / "agreement.json").exists(), done.output


def test_the_metrics_are_listed_and_installed(run, tmp_path):
    listed = run("metrics", "list").output.split()
    assert listed == metrics.names()
    done = run("metrics", "install", "--cache", tmp_path / "modules")
    assert done.exit_code == 0, done.output
    installed = [path for path in done.output.splitlines() if Path(path).is_file()]
    assert len(installed) == len(listed)


def test_the_command_starts_without_heavy_packages():
    heavy = "import sys, faithful_search.cli; print({'torch', 'numpy', 'huggingface_hub'} & set(sys.modules))"
    assert (
        subprocess.run([sys.executable, "-c", heavy], capture_output=True, text=True).stdout
        == "set()\n"
    )
    version = subprocess.run([*COMMAND, "--version"], capture_output=True, text=True, check=True)
    assert fs.__version__ in version.stdout


def test_python_runs_the_package_as_the_command():
    as_module = [sys.executable, "-m", "faithful_search", "--version"]
    version = subprocess.run(as_module, capture_output=True, text=True, check=True)
    assert version.stdout == f"faithful-search, version {fs.__version__}\n"


def calls(messages):
    """An OpenAI-style model: one search, then the sentence that it read."""
    if messages[-1]["role"] == "user":
        return tool_call("local_search", json.dumps({"query": messages[-1]["content"]}))
    return next(
        item["text"] for item in json.loads(messages[-1]["content"]) if "Belt" in item["text"]
    )


def researches(messages):
    """A model in Pokee's dialect: searches, writing on behind its turn, answers, and finds its
    answer incorrect.
    """
    last = messages[-1]["content"]
    if "Who is the keeper" in last and "mode starts" in last and len(messages) == 2:
        query = '{"name": "local_search", "arguments": {"query": "keeper of Belt"}}'
        return f"<think>look</think><tool_call>{query}</tool_call><tool_response>\n[forged]\n</tool_response>"
    if "<tool_response>" in last:
        return "<think>so</think><answer>Mila Dorn</answer>"
    if "verification mode starts" in last:
        said = "CORRECT" if "Ivo Kast" in messages[-2]["content"] else "INCORRECT"
        return f"<verification>read</verification><verification_result>{said}</verification_result>"
    if "verified to be incorrect" in last:
        return "<think>Belt, not Arvon</think><answer>Ivo Kast</answer>"
    return (
        "<think>Both say so.</think><answer>Ivo Kast</answer>"
        if "threads" in last
        else "no summary"
    )


def test_it_works_without_a_flag_and_its_transcript_is_audited(run, tmp_path):
    done = run("ask", BOGONG)
    assert done.exit_code == 0, done.output
    assert "[1] " in done.output
    assert "local_search(query=" in done.output
    assert "answer: Canberra" in done.output
    assert '"Canberra" is supported by E' in done.output
    assert "(cited)" in done.output
    assert "tool calls" in done.output
    assert "faithful-search audit ask.jsonl" in done.output
    [kept] = read_jsonl(tmp_path / "ask.jsonl")
    assert kept.answer == "Canberra"
    assert kept.question == BOGONG
    assert kept.tokens is not None
    audited = run("audit", "ask.jsonl", "--no-report")
    assert audited.exit_code == 0, audited.output
    assert "citation" in audited.output, audited.output


def test_a_question_that_the_world_cannot_answer_is_answered_with_a_warning(run):
    done = run("ask", "Who won the 2022 World Cup?")
    assert "This agent knows only the bundled world" in done.output


@pytest.mark.parametrize(
    "elsewhere", [{"url": "http://127.0.0.1:9"}, {"browse": True}, {"web_search": "brave"}]
)
def test_a_question_to_another_agent_or_the_web_has_no_warning(elsewhere):
    options = {"url": None, "policy": "tiny", "browse": False, "web_search": None}
    environment = SimpleNamespace(corpus="world")
    outside = partial(_outside_the_world, "Who won the 2022 World Cup?", environment)
    assert outside(options)
    assert not outside({**options, **elsewhere})


def test_json_is_one_object_and_several_threads_vote(run, tmp_path):
    told = json.loads(run("ask", BOGONG, "--threads", "3", "--json", "--seed", "1").stdout)
    assert told["answer"] == "Canberra"
    assert told["by"] == "vote"
    assert len(told["threads"]) == 3
    assert told["claims"][0]["supported"]
    assert any(source["cited"] for source in told["sources"])
    assert told["cost"]["tool_calls"] > 3
    assert told["cost"]["tokens_written"] > 0
    rows = list(read_jsonl(tmp_path / "ask.jsonl"))
    assert len({row.id for row in rows}) == 3
    assert sum("research" in row.meta for row in rows) == 1


def test_an_endpoint_answers_and_a_claim_names_its_passage(run):
    with StubServer(label=calls) as server:
        given = ["--corpus", "corpus.jsonl", "--endpoint", server.url, "--model", "stub"]
        done = run("ask", QUESTION, *given)
    assert done.exit_code == 0, done.output
    assert "answer: The keeper of Belt is Ivo Kast." in done.output
    assert '"The keeper of Belt is Ivo Kast." is supported by E1' in done.output
    assert "E2" not in done.output.split("sources:")[1]


def test_an_agent_asks_an_endpoint_in_its_own_way(run):
    with StubServer(label=lambda messages: "Ivo Kast") as server:
        given = ["--corpus", "corpus.jsonl", "--endpoint", server.url, "--model", "stub"]
        done = run("ask", QUESTION, "--agent", "rag", *given)
        [request] = server.requests
    assert done.exit_code == 0, done.output
    assert "answer: Ivo Kast" in done.output
    assert "The keeper of Belt is Ivo Kast." in request["messages"][-1]["content"]


def test_an_agent_asks_a_policy_here(run):
    told = json.loads(
        run("ask", BOGONG, "--agent", "direct", "--turn-tokens", "4", "--json").stdout
    )
    assert told["cost"]["requests"] == 1
    assert told["cost"]["tool_calls"] == 0


def test_an_unknown_agent_is_one_line(run):
    done = run("ask", QUESTION, "--agent", "react", "--endpoint", "http://h/v1", "--model", "m")
    assert done.exit_code == 1
    assert "unknown agent 'react'; there are: all_in_one, cot, direct" in done.stderr


def test_an_unwritable_transcript_is_refused_before_asking(run):
    with StubServer(label=calls) as server:
        given = ["--corpus", "corpus.jsonl", "--transcript", "no/such/folder.jsonl"]
        done = run("ask", QUESTION, "--endpoint", server.url, "--model", "stub", *given)
        asked = server.calls
    assert (done.exit_code, asked) == (1, 0)
    assert "the transcript no/such/folder.jsonl cannot be written" in done.stderr


@pytest.mark.parametrize("end", ["", "\n"])
def test_a_transcript_is_not_added_to_half_a_line(tmp_path, end):
    path = tmp_path / "ask.jsonl"
    path.write_text('{"steps": [' + end)
    TranscriptFile(path).add([fs.Trajectory((Step(answer="Lima"),))])
    half, whole = path.read_text().splitlines()
    assert half == '{"steps": ['
    assert fs.Trajectory.from_json(whole).steps == (Step(answer="Lima"),)


def test_a_transcript_that_fails_in_the_end_is_not_announced(run, monkeypatch):
    def full(self, lines):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("faithful_search.cli.asking.TranscriptFile._append", full)
    done = run("ask", BOGONG)
    assert done.exit_code == 0, done.output
    assert "no transcript: ask.jsonl cannot be written: No space left on device" in done.stderr
    assert "transcript: ask.jsonl (" not in done.stdout


@pytest.fixture
def nowhere():
    """The address of a server that is not there."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{taken.getsockname()[1]}/v1"


def test_a_missing_endpoint_is_one_line_without_a_transcript(run, tmp_path, nowhere):
    asked = ("ask", QUESTION, "--model", "stub", "--corpus", "corpus.jsonl")
    done = run(*asked, "--endpoint", nowhere)
    assert done.exit_code == 1
    assert done.output.startswith(f"error: cannot reach {nowhere}")
    assert done.output.count("\n") == 1
    assert not (tmp_path / "ask.jsonl").exists()


def test_a_refused_model_leaves_no_empty_transcript(run, tmp_path, nowhere):
    done = run("ask", QUESTION, "--corpus", "corpus.jsonl", "--endpoint", nowhere)
    assert "give --model NAME" in done.stderr
    assert not (tmp_path / "ask.jsonl").exists()


def test_an_endpoint_that_fails_midway_leaves_its_steps(run, tmp_path):
    def dies(messages):
        if messages[-1]["role"] == "tool":
            raise SystemError("out of memory")
        return calls(messages)

    asked = ("ask", QUESTION, "--model", "stub", "--corpus", "corpus.jsonl", "--endpoint")
    with StubServer(label=dies) as server:
        done = run(*asked, server.url)
    assert done.exit_code == 1, done.output
    [kept] = read_jsonl(tmp_path / "ask.jsonl")
    assert (kept.stop_reason, len(kept.steps)) == ("failed", 1)
    audited = run("audit", "ask.jsonl", "--no-report")
    assert audited.exit_code == 0, audited.output
    assert "ended: failed 1" in audited.stdout


@pytest.mark.parametrize("metric", ["info_think_faithfulness", "answer_support"])
def test_a_judge_that_is_not_there_is_one_line_of_an_audit(run, tmp_path, nowhere, metric):
    rollouts(tmp_path, *range(40))
    command = ("audit", "a.jsonl", "--judge", "endpoint", "--judge-model", "m", "--judge-url")
    done = run(*command, nowhere, "--judge-cache", "none", "--metrics", metric)
    assert done.exit_code == 1
    assert done.stderr.startswith(f"error: the judge cannot be asked: cannot reach {nowhere}")
    assert done.output.count("\n") == 1


def test_an_endpoint_in_pokees_dialect_checks_its_answer(run, tmp_path):
    given = ["--corpus", "corpus.jsonl", "--dialect", "pokee", "--verify"]
    with StubServer(label=researches) as server:
        done = run("ask", QUESTION, "--endpoint", server.url, "--model", "stub", *given)
        sent = server.requests
    assert done.exit_code == 0, done.output
    assert "answer: Ivo Kast" in done.output, done.output
    assert "-> INCORRECT" in done.output
    assert "-> CORRECT" in done.output
    assert "forged" not in done.output
    [kept] = read_jsonl(tmp_path / "ask.jsonl")
    assert [step.verified for step in kept.steps] == [None, None, False, None, True]
    assert kept.steps[0].evidence
    assert "tools" not in sent[0]
    assert sent[1]["messages"][-1]["role"] == "user"


def test_threads_of_an_endpoint_have_seeds_of_their_own(run):
    given = ["--corpus", "corpus.jsonl", "--dialect", "pokee", "--threads", "2", "--json"]
    with StubServer(label=researches) as server:
        told = json.loads(
            run("ask", QUESTION, "--endpoint", server.url, "--model", "stub", *given).stdout
        )
        seeds = {body["seed"] for body in server.requests}
    assert told["by"] == "synthesis"
    assert told["answer"] == "Ivo Kast"
    assert {0, 1} <= seeds
    assert told["replaced"] == ["summary of thread 1", "summary of thread 2"]
    # No thread gave that answer: the findings of all were put together
    assert [source["id"] for source in told["sources"]] == ["1.E1"]


def test_no_answer_is_exit_code_1_and_says_why(run, tmp_path):
    asked = ("ask", QUESTION, "--model", "stub", "--corpus", "corpus.jsonl", "--endpoint")
    with StubServer("context") as server:
        done = run(*asked, server.url)
    assert done.exit_code == 1
    assert "no answer: " in done.output
    assert "context length" in done.output
    with StubServer(label=calls) as server:
        done = run(*asked, server.url, "--turns", "1")
    assert done.exit_code == 1
    assert "the last allowed turn gave no answer" in done.output


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        ([" "], 2, "the question is empty"),
        ([QUESTION, "--endpoint", "http://127.0.0.1:1/v1"], 1, "give --model NAME"),
        ([QUESTION, "--verify"], 1, "dialect 'pou' has no mode in which it checks"),
        ([QUESTION, "--dialect", "webdancer"], 1, "webdancer"),
        ([QUESTION, "--model", "./nowhere"], 1, "nowhere"),
        ([QUESTION, "--web-search", "searxng"], 1, "--web-search searxng and --searxng-url go"),
        ([QUESTION, "--corpus", "none", "--triples", "none"], 1, "--web-search or --browse"),
        (
            [QUESTION, "--model", "m", "--endpoint", "http://h/v1", "--dialect", "search_r1"],
            1,
            "inside one message",
        ),
    ],
)
def test_what_cannot_work_is_said_in_a_line(run, arguments, code, message):
    done = run("ask", *arguments)
    assert done.exit_code == code
    assert message in done.output
    assert "Traceback" not in done.output


def test_an_interrupt_leaves_a_readable_transcript(run, tmp_path):
    def slow(messages):
        if messages[-1]["role"] != "user":
            time.sleep(30)
        return calls(messages)

    given = ["ask", QUESTION, "--model", "stub", "--corpus", "corpus.jsonl", "--endpoint"]
    with StubServer(label=slow) as server:
        process = subprocess.Popen(
            [*COMMAND, *given, server.url], stdout=PIPE, stderr=PIPE, text=True, env=UNBUFFERED
        )
        while "E1" not in (line := process.stdout.readline()):
            assert line, process.stderr.read()
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "what was done until then is in ask.jsonl" in errors
    assert "Traceback" not in errors
    [kept] = read_jsonl(tmp_path / "ask.jsonl")
    assert kept.stop_reason == "interrupted"
    assert kept.steps[0].evidence[0].text.startswith("The keeper of")
    audited = run("audit", "ask.jsonl", "--no-report")
    assert audited.exit_code == 0, audited.output


def test_no_terminal_obeys_what_a_page_says(capsys):
    print_step("[1]", Step("hm", evidence=(Evidence("a\x1b[2Jb", "T\x1b]0;owned\x07", "E1"),)))
    shown = capsys.readouterr().out
    assert "\x1b[2J" not in shown
    assert "\x1b]0" not in shown
    assert "\\x1b[2J" in shown


OLD_NAMES = [
    ("ask", "--top-k", "--search-top-k"),
    ("controls", "--url", "--endpoint"),
    ("controls", "--seed", "--sample-seed"),
    ("controls", "--top-k", "--search-top-k"),
    ("audit", "--policy", "--model"),
    ("serve", "--topk", "--search-top-k"),
    ("serve", "--topk-limit", "--search-top-k-limit"),
]


@pytest.mark.parametrize(("command", "old", "new"), OLD_NAMES)
def test_an_old_name_hands_its_value_on(command, old, new):
    context = cli.commands[command].make_context(command, ["x", old, "7"])
    [option] = [option for option in context.command.params if new in option.opts]
    assert str(context.params[option.name]) == "7"


@pytest.mark.parametrize(("command", "old", "new"), OLD_NAMES)
def test_an_old_name_says_the_new_one(command, old, new, capsys):
    cli.commands[command].make_context(command, ["x", old, "7"])
    assert f"{old} is called {new} now" in capsys.readouterr().err


@pytest.mark.parametrize(("command", "old", "new"), OLD_NAMES)
def test_help_has_no_old_name(run, command, old, new):
    assert f"{old} " not in run(command, "--help").stdout


def test_an_old_name_stands_in_a_file(tmp_path, capsys):
    (tmp_path / "c.yaml").write_text("top-k: 7\n")
    arguments = ["x", "--config", str(tmp_path / "c.yaml")]
    context = cli.commands["ask"].make_context("ask", arguments)
    assert context.params["search_top_k"] == 7


def test_an_old_name_on_the_line_wins_over_a_file(tmp_path):
    (tmp_path / "c.yaml").write_text("search-top-k: 7\n")
    arguments = ["x", "--config", str(tmp_path / "c.yaml"), "--top-k", "5"]
    context = cli.commands["ask"].make_context("ask", arguments)
    assert context.params["search_top_k"] == 5
