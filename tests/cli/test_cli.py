"""The command as people type it: exit codes, messages, files."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from agent_rows import JUDGED, CountingJudge, file_of, rollout, rollouts, silent_on
from click.testing import CliRunner, Result
from served import COMMAND
from stub_server import StubServer

import faithful_search as fs
from faithful_search.cli import cli
from faithful_search.measure.audit import audit


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Runs the command in an empty folder."""
    monkeypatch.chdir(tmp_path)

    def command(*arguments: str, **settings) -> Result:
        return CliRunner().invoke(cli, [str(item) for item in arguments], **settings)

    return command


def test_an_audit_prints_a_table_and_leaves_its_files(run, tmp_path):
    rollouts(tmp_path, *range(12))
    done = run("audit", "a.jsonl", "--report-rows", "4")
    assert done.exit_code == 0, done.output
    assert "info_think_lexical" in done.output and "report.html, audit.json, scores.jsonl in a-audit" in done.output
    assert json.loads((tmp_path / "a-audit" / "audit.json").read_text())["n"] == 12
    assert len((tmp_path / "a-audit" / "scores.jsonl").read_text().splitlines()) == 12
    page = (tmp_path / "a-audit" / "report.html").read_text()
    assert sum(f"Lighthouse {n} stands in" in page for n in range(12)) == 4
    assert run("audit", "a.jsonl", "--no-report", "--out", "bare").exit_code == 0
    assert not (tmp_path / "bare" / "report.html").exists()
    refused = run("audit", "a.jsonl", "--how", "pokee")
    assert refused.exit_code == 1 and "--overwrite" in refused.stderr and "'squad' there, 'pokee' now" in refused.stderr
    assert run("audit", "a.jsonl", "--how", "pokee", "--overwrite").exit_code == 0


@pytest.mark.parametrize("escape", ["\x1b]0;owned\x07", "\x1b[2J", "\x9b31m", "\r", "\u202e"])
def test_no_terminal_obeys_what_stands_in_a_file(run, tmp_path, escape):
    odd = {"text": f"no dialect {escape}at all", "question": "Q"}
    file_of(tmp_path / "a.jsonl", [rollout(0), odd, f'{{"{escape}'])
    (tmp_path / f"b{escape}.jsonl").write_bytes((tmp_path / "a.jsonl").read_bytes())
    for command in (
        *(["audit", "a.jsonl", "--no-report"], ["audit", f"b{escape}.jsonl", "--no-report", "--dialect", "pou"]),
        *(["label", "a.jsonl"], ["label", f"b{escape}.jsonl", "--out", "b"], ["audit", f"{escape}.jsonl"]),
    ):
        done = run(*command, color=True)
        assert done.output and escape not in done.output, command


def test_rows_that_could_not_be_read_give_another_exit_code_and_are_named(run, tmp_path):
    file_of(tmp_path / "a.jsonl", [rollout(0), "{half", rollout(1)])
    done = run("audit", "a.jsonl", "--no-report")
    assert done.exit_code == 3 and "rows that could not be read: 1\n  row 2: not JSON" in done.stderr
    assert "scores.jsonl" in done.stderr


def test_rows_without_a_verdict_give_another_exit_code_and_are_named(run, tmp_path, monkeypatch):
    rollouts(tmp_path, *range(5))
    judge = CountingJudge(silent_on("Lighthouse 3"))
    monkeypatch.setattr("faithful_search.judges.arguments.load", lambda kind, model, **knobs: judge)
    command = ["audit", "a.jsonl", "--judge", "endpoint", "--judge-model", "m", "--no-report"]
    command += ["--metrics", ",".join(JUDGED)]
    done = run(*command)
    assert done.exit_code == 3
    assert "row 4, info_think_faithfulness: the judge abstained: timed out" in done.stderr
    judge.say = lambda pair: True
    assert run(*command).exit_code == 0


@pytest.mark.parametrize(
    ("content", "message"),
    [("", "no rows in it"), ('{"question": "Where?"}\n', "none of its rows (1) can be read"), (None, "cannot read")],
)
def test_what_cannot_be_done_is_one_line_and_no_traceback(run, tmp_path, content, message):
    if content is not None:
        (tmp_path / "a.jsonl").write_text(content)
    done = run("audit", "a.jsonl")
    assert done.exit_code == 1
    assert done.stderr.startswith("error: ") and message in done.stderr and done.stderr.count("\n") == 1
    for arguments in (("--debug", "audit", "a.jsonl"), ("audit", "a.jsonl", "--debug", "--overwrite")):
        again = run(*arguments)
        assert isinstance(again.exception, fs.FaithfulSearchError) and message in str(again.exception)


@pytest.mark.parametrize(
    "arguments",
    [
        ("audit",),
        ("audit", "a.jsonl", "--judge", "oracle"),
        ("audit", "a.jsonl", "--judge", "nli"),
        ("audit", "a.jsonl", "--judge-url", "http://127.0.0.1:1/v1"),
        ("audit", "a.jsonl", "--judge-model", "x"),
        ("audit", "a.jsonl", "--limit", "0"),
        ("audit", "a.jsonl", "--config", "none.yaml"),
        ("nonsense",),
        ("agreement",),
    ],
)
def test_wrong_usage_has_its_own_exit_code(run, arguments):
    done = run(*arguments)
    assert done.exit_code == 2 and "Error" in done.stderr


def test_a_file_of_options_is_read_and_what_is_typed_wins(run, tmp_path, monkeypatch):
    rollouts(tmp_path, *range(3))
    options = "how: pokee\nmetrics: [answer_correctness, tool_use]\nno-report: true\nout: there\nlimit: 2\n"
    (tmp_path / "c.yaml").write_text(options)
    from_file = ["audit", "a.jsonl", "--config", "c.yaml"]
    assert (
        run(*from_file).exit_code == run(*from_file, "--how", "squad", "--out", "here", "--limit", "1").exit_code == 0
    )
    there, here = (json.loads((tmp_path / name / "audit.json").read_text()) for name in ("there", "here"))
    assert there["settings"]["how"] == "pokee" and there["settings"]["metrics"] == ["answer_correctness", "tool_use"]
    assert there["n"] == 2 and not (tmp_path / "there" / "report.html").exists()
    assert here["settings"]["how"] == "squad" and here["n"] == 1
    seen = {}
    monkeypatch.setattr(
        "faithful_search.judges.arguments.load",
        lambda kind, model, **knobs: seen.update(knobs, kind=kind, model=model),
    )
    options = "judge: endpoint\njudge_model: m\njudge-url: http://h/v1\njudge-concurrency: 3\n"
    (tmp_path / "judge.yaml").write_text(options)
    run("audit", "a.jsonl", "--config", "judge.yaml", "--out", "third")
    run("audit", "a.jsonl", "--config", "judge.yaml", "--out", "fourth", "--judge_timeout", "60", "--no_report")
    assert seen | {"kind": "endpoint", "model": "m", "url": "http://h/v1", "concurrency": 3, "timeout": 60.0} == seen


@pytest.mark.parametrize("text", ["colour: red\n", "- a\n", "a: [\n"])
def test_a_file_of_options_with_something_else_in_it_is_wrong_usage(run, tmp_path, text):
    (tmp_path / "c.yaml").write_text(text)
    done = run("audit", "a.jsonl", "--config", "c.yaml")
    assert done.exit_code == 2 and "c.yaml" in done.stderr


def test_the_standard_input_is_kept_so_that_it_can_be_shown_and_gone_on_with(run, tmp_path):
    text = "".join(json.dumps(rollout(n)) + "\n" for n in range(3))
    assert run("audit", "-", "--no-report", input=text).exit_code == 0
    assert (tmp_path / "stdin-audit" / "source.jsonl").read_text() == text
    assert run("audit", "-", "--no-report", input=text).exit_code == 0


def test_an_interrupted_index_says_how_to_go_on(run, tmp_path, monkeypatch):
    def stop(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("faithful_search.tools.retrieval.index_folder.build_folder", stop)
    done = run("index", "world", "out")
    assert done.exit_code == 130 and "the same command goes on" in done.stderr


def test_the_bar_moves_with_the_verdicts_of_a_slow_judge(run, tmp_path, monkeypatch):
    rollouts(tmp_path, *range(20))
    told: list[str] = []
    monkeypatch.setattr("tqdm.auto.tqdm.set_postfix_str", lambda self, text: told.append(text))
    with StubServer() as server:
        endpoint = ("--judge", "endpoint", "--judge-model", "m", "--judge-url", server.url, "--judge-cache", "c.sqlite")
        asked = ("audit", "a.jsonl", "--no-report", "--metrics", "info_think_faithfulness", *endpoint)
        bill = run(*asked, "--judge_prices", "1,1", "--estimate")
        assert bill.exit_code == 0 and "a.jsonl: 20 rows: about 20 calls" in bill.output, bill.output
        assert not server.calls and not (tmp_path / "a-audit").exists()
        done = run(*asked, "--judge_prices", "1,1")
    assert done.exit_code == 0, done.output
    assert len(told) == 20 and told[-1] == "20 verdicts, cost 0.0020"


def test_what_may_be_spent_is_a_limit_and_only_paid_judges_have_a_bill(run, tmp_path):
    rollouts(tmp_path, *range(20))
    with StubServer() as server:
        endpoint = ("--judge", "endpoint", "--judge-model", "m", "--judge-url", server.url, "--judge-cache", "none")
        asked = ("audit", "a.jsonl", "--no-report", "--metrics", "info_think_faithfulness", *endpoint)
        assert "max_cost needs prices" in run(*asked, "--max-cost", "1").stderr
        one = ("--judge-prices", "1000,0", "--judge-concurrency", "1")  # 0.1 each
        done = run(*asked, *one, "--max_cost", "0.45")
        assert (done.exit_code, server.calls) == (3, 5) and "have cost 0.5000 of at most 0.45" in done.stderr
        assert run(*asked, *one).exit_code == 0 and server.calls == 20
    assert "no other judge has a bill" in run("audit", "a.jsonl", "--estimate").stderr


def test_the_verdicts_of_two_audits_are_compared(run, tmp_path):
    source = rollouts(tmp_path, *range(8))
    for name, judge in (("one", None), ("two", CountingJudge())):
        audit(source, tmp_path / name, metrics=["info_think_faithfulness"], judge=judge)
    done = run("agreement", "one/scores.jsonl", "two/scores.jsonl", "--out", "both")
    assert done.exit_code == 0 and (tmp_path / "both" / "agreement.json").exists(), done.output


def test_the_metrics_are_listed_and_installed(run, tmp_path):
    listed = run("metrics", "list").output.split()
    assert "info_think_faithfulness" in listed and len(listed) == 10
    done = run("metrics", "install", "--cache", tmp_path / "modules")
    assert done.exit_code == 0, done.output
    assert len([path for path in done.output.splitlines() if Path(path).is_file()]) == 10


def test_the_command_starts_without_heavy_packages_and_knows_its_version():
    heavy = "import sys, faithful_search.cli; print({'torch', 'numpy', 'huggingface_hub'} & set(sys.modules))"
    assert subprocess.run([sys.executable, "-c", heavy], capture_output=True, text=True).stdout == "set()\n"
    version = subprocess.run([*COMMAND, "--version"], capture_output=True, text=True, check=True)
    assert fs.__version__ in version.stdout
