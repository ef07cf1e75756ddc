"""`faithful-search eval --agent`: a served model on loopback, its estimate, and what fails."""

import json
import re

import pytest
from recipe_runs import call
from stub_server import StubServer

from faithful_search.errors import ConfigError, UnreachableError
from faithful_search.recipes.evaluation_settings import EvaluationArguments, of_suite
from faithful_search.suites import AgentLimits, Suite

TWO_SETS = """
about: two sets of the bundled world
sets:
  - {name: facts, source: world, split: test, seed: 0, corpus: world}
  - {name: passages, source: world_passages, split: test, corpus: world}
"""
ASKED = ("--model=stub", "--limit=2", "--threads=1", "--controls=1")


def answered(messages):
    return "I would say it is Rome."


@pytest.fixture(autouse=True)
def key(monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "none")


@pytest.fixture
def served():
    with StubServer(label=answered) as server:
        yield server


@pytest.fixture
def suite_file(tmp_path):
    path = tmp_path / "two.yaml"
    path.write_text(TWO_SETS, encoding="utf-8")
    return path


def measured(server, out, *flags):
    return call("evaluate", f"--endpoint={server.url}", f"--out={out}", *ASKED, *flags)


def test_a_served_model_answers_a_suite_by_an_agent(served, suite_file, tmp_path, capsys):
    metrics = measured(served, tmp_path / "out", "--agent=rag", f"--suite={suite_file}")
    assert [run["errors"]["wrong_answer"] for run in metrics["sets"].values()] == [2, 2]
    assert metrics["sets"]["facts"]["tool_calls"]["local_search"] == [1, 1]
    assert "two: rag (stub)" in capsys.readouterr().out


LIMITS = AgentLimits(turns=2, turn_tokens=9, controls=1)


@pytest.mark.parametrize(
    ("flags", "bounds"),
    [
        ({"agent": "ircot"}, (2, 9, 1)),
        ({"agent": "ircot", "turns": 5, "controls": 0}, (5, 9, 0)),
        ({"agent": "ircot", "endpoint": "http://127.0.0.1/v1"}, (None, None, 100)),
        ({}, (None, None, 100)),
    ],
)
def test_a_suite_bounds_agents_of_a_model_here(flags, bounds):
    script = of_suite(EvaluationArguments(**flags), Suite("two", "", (), agents=LIMITS))
    assert (script.turns, script.turn_tokens, script.controls) == bounds


@pytest.mark.slow
def test_the_table_of_a_bounded_agent_says_so(tmp_path, capsys):
    path = tmp_path / "two.yaml"
    path.write_text(f"{TWO_SETS}agents: {{turns: 2, controls: 1}}\n", encoding="utf-8")
    flags = (f"--suite={path}", f"--out={tmp_path / 'out'}", "--limit=1", "--threads=1")
    call("evaluate", "--agent=untrained", *flags)
    said = "two: untrained (tiny), seed 0; agents have 2 turns, 1 questions with controls"
    assert said in capsys.readouterr().out


@pytest.mark.parametrize(
    ("flags", "episodes"),
    [
        ({"endpoint": "http://127.0.0.1/v1"}, 16),
        ({"generation_batch": 32}, 32),
        ({"concurrency": 4}, 4),
    ],
)
def test_a_model_here_answers_a_batch_of_episodes_at_once(flags, episodes):
    assert EvaluationArguments(**flags).episodes_at_once == episodes


def test_results_say_how_they_were_made(served, tmp_path, capsys):
    """The stub counts 100 prompt tokens and 1 reply token a request."""
    out = tmp_path / "out"
    measured(served, out, "--agent=direct", "--corpus=none", "--prices=1000,2000")
    metrics = json.loads((out / "metrics.json").read_text())
    assert metrics["used"] == {
        "requests": 2,
        "prompt_tokens": 200,
        "completion_tokens": 2,
        "cost": 0.204,
    }
    assert (
        "2 requests, 200 prompt tokens and 2 reply tokens, cost 0.2040" in capsys.readouterr().out
    )
    assert metrics["script"]["seed"] == 0
    assert "CPU cores" in metrics["hardware"]


def test_an_agent_without_tools_needs_no_corpus(served, tmp_path):
    [run] = measured(served, tmp_path / "out", "--agent=direct", "--corpus=none").values()
    assert run["rows"]["calls"]["value"] == 0.0
    assert run["tool_calls"] == {}
    assert "follow_rate" not in run["rows"]
    assert len(served.requests) == 2


def test_an_endpoint_alone_is_the_untrained_agent(served, tmp_path):
    results = measured(served, tmp_path / "out")
    assert [*results] == ["untrained (stub)"]


@pytest.mark.parametrize(
    "agent", ["direct", "rag", "ircot", "search_o1", "all_in_one", "untrained"]
)
def test_an_estimate_asks_nothing(agent, served, tmp_path, capsys):
    judge = ("--judge=endpoint", "--judge_model=judge", f"--judge_url={served.url}")
    flags = (f"--agent={agent}", "--estimate=true", "--prices=1,2", "--samples=3", *judge)
    assert measured(served, tmp_path / "out", *flags) == {}
    assert served.requests == []
    assert not (tmp_path / "out").exists()
    printed = capsys.readouterr().out
    assert f"{agent} (stub) at {served.url}: it costs at most" in printed
    assert "Nothing was asked." in printed
    assert re.search(r"the judge \S+: at most [1-9]", printed)


def test_an_estimate_needs_no_empty_folder(served, tmp_path, capsys):
    (tmp_path / "metrics.json").write_text("{}", encoding="utf-8")
    assert measured(served, tmp_path, "--agent=rag", "--estimate=true") == {}
    assert (tmp_path / "metrics.json").read_text(encoding="utf-8") == "{}"


def test_an_estimate_names_sets_that_are_left_out(served, tmp_path, capsys):
    path = tmp_path / "two.yaml"
    absent = '  - {name: absent, source: "{data}/absent.jsonl.gz", corpus: world}'
    path.write_text(f"{TWO_SETS}{absent}\n", encoding="utf-8")
    flags = ("--agent=rag", f"--suite={path}", "--estimate=true")
    measured(served, tmp_path / "out", *flags)
    assert "left out: absent: no data/absent.jsonl.gz" in capsys.readouterr().out


def test_tokens_that_nobody_counted_are_said(served, tmp_path, capsys):
    served.mode = "garbage"
    measured(served, tmp_path / "out", "--agent=direct", "--corpus=none")
    printed = capsys.readouterr().out
    assert "did not say how many tokens a request had: the counts are too low (2 times)" in printed


def test_a_model_that_is_not_there_is_no_judge(served, tmp_path):
    flags = ("--agent=direct", "--corpus=none", "--endpoint=http://127.0.0.1:9/v1")
    with pytest.raises(UnreachableError, match=r"the agent's model cannot be asked: .* --resume"):
        measured(served, tmp_path / "out", *flags)


def test_an_estimate_bounds_what_is_asked(served, suite_file, tmp_path, capsys):
    flags = ("--agent=rag", f"--suite={suite_file}", "--turn_tokens=8")
    measured(served, tmp_path / "out", *flags, "--estimate=true")
    line = capsys.readouterr().out.partition("\nall ")[2].splitlines()[0]
    measured(served, tmp_path / "out", *flags)
    assert line.split()[:2] == ["8", str(len(served.requests))]


def test_episodes_that_failed_are_asked_for_again(tmp_path, capsys):
    out = tmp_path / "out"
    flags = ("--agent=direct", "--corpus=none")
    with StubServer(label=answered, mode="context") as broken:
        with pytest.raises(
            UnreachableError, match=r"2 episodes got no answer .*maximum context length"
        ):
            measured(broken, out, *flags)
        assert not (out / "metrics.json").exists()
        broken.mode = "ok"
        measured(broken, out, *flags, "--resume=true")
    assert len(json.loads((out / "metrics.json").read_text())["direct (stub)"]["questions"]) == 2


REFUSED = {
    ("--endpoint=http://127.0.0.1:9/v1",): "needs the served model's name",
    ("--agent=nobody",): "unknown agent 'nobody'; there are: all_in_one, cot",
    ("--agent=rag", "--verify=true"): "--verify True: read with a policy",
    ("--agent=rag", "--dialect=pou"): "--dialect pou: read with --agent untrained only",
    ("--agent=rag", "--compare_with=tiny_memory"): "measure each agent",
    ("--concurrency=3",): "--concurrency 3: read with --agent only",
    ("--prices=1,2",): "--prices 1,2: read with --endpoint only",
    ("--estimate=true",): "none would: give --endpoint",
}


@pytest.mark.parametrize(("flags", "message"), REFUSED.items())
def test_what_an_agent_cannot_be_measured_with_is_refused(flags, message, tmp_path):
    with pytest.raises(ConfigError, match=message):
        call("evaluate", *flags, f"--out={tmp_path}")
