"""`faithful-search eval --suite`: sets in folders of their own, gone on with, left out, refused."""

import json
import shutil

import pytest
from recipe_runs import call

from faithful_search.bundled import tiny_policy
from faithful_search.errors import ConfigError
from faithful_search.measure import evaluating as measuring

SMALL = ("--threads=1", "--controls=0", "--turn_tokens=64", "--turns=2", "--limit=2")
TWO_SETS = """
about: two sets of the bundled world
sets:
  - {name: facts, source: world, split: test, seed: 0, corpus: world}
  - {name: passages, source: world_passages, split: test, limit: 1, corpus: world}
  - {name: absent, source: "{data}/absent.jsonl.gz", corpus: world}
"""


@pytest.fixture
def suite_file(tmp_path):
    path = tmp_path / "two.yaml"
    path.write_text(TWO_SETS, encoding="utf-8")
    return path


def measured(suite_file, out, *flags):
    return call("evaluate", f"--suite={suite_file}", f"--out={out}", *SMALL, *flags)


def interrupt_second_set(monkeypatch):
    """Control-C after the second set's first rollouts."""
    episodes = measuring.run_episodes
    sets = []

    def interrupted(agent, tasks, condition, file):
        if condition == "blanked":
            sets.append(file.parent)
            if len(sets) == 2:
                raise KeyboardInterrupt
        return episodes(agent, tasks, condition, file)

    monkeypatch.setattr(measuring, "run_episodes", interrupted)


def test_each_set_of_a_file_is_an_evaluation_of_its_own(suite_file, tmp_path, capsys):
    out = tmp_path / "out"
    metrics = measured(suite_file, out)
    assert [len(run["questions"]) for run in metrics["sets"].values()] == [2, 1]
    assert metrics["left_out"] == ["absent: no data/absent.jsonl.gz"]
    assert "left out: absent" in capsys.readouterr().out
    of_facts = json.loads((out / "facts" / "metrics.json").read_text())
    assert of_facts["tiny"] == metrics["sets"]["facts"]
    assert json.loads((out / "metrics.json").read_text())["macro"] == metrics["macro"]


def test_one_that_was_interrupted_ends_with_the_same_table(
    suite_file, tmp_path, monkeypatch, capsys
):
    whole = measured(suite_file, tmp_path / "whole")
    table = capsys.readouterr().out.partition("answers")[2]
    out = tmp_path / "out"
    with monkeypatch.context() as broken:
        interrupt_second_set(broken)
        with pytest.raises(KeyboardInterrupt):
            measured(suite_file, out)
    with pytest.raises(ConfigError, match="--resume goes on"):
        measured(suite_file, out)
    capsys.readouterr()
    continued = measured(suite_file, out, "--resume=true")
    printed = capsys.readouterr().out
    assert f"facts: measured before, in {out / 'facts'}" in printed
    assert printed.partition("answers")[2] == table
    assert continued["sets"] == whole["sets"]
    assert not (out / "unfinished").exists()


def test_one_that_failed_before_it_began_blocks_nothing(suite_file, tmp_path):
    (tmp_path / "none").mkdir()
    out = tmp_path / "out"
    with pytest.raises(ConfigError, match="cannot open the model"):
        measured(suite_file, out, f"--model={tmp_path / 'none'}")
    assert [*measured(suite_file, out)["sets"]] == ["facts", "passages"]


def test_a_suite_that_has_ended_is_not_measured_again(suite_file, tmp_path):
    out = tmp_path / "out"
    metrics = measured(suite_file, out)
    assert measured(suite_file, out, "--resume=true") == metrics
    with pytest.raises(ConfigError, match=r"turns: 2 there, 1 now"):
        measured(suite_file, out, "--resume=true", "--turns=1")
    with pytest.raises(ConfigError, match="judge: None there, 'containment' now"):
        measured(suite_file, out, "--resume=true", "--judge=containment")


def test_results_say_what_the_policy_was_tuned_on(suite_file, tmp_path):
    policy = shutil.copytree(tiny_policy(), tmp_path / "policy")
    settings = json.loads((policy / "metrics.json").read_text())["settings"]
    tuned = {"questions": "train.jsonl", "eval_questions": "world", "eval_split": "validation"}
    (policy / "metrics.json").write_text(json.dumps({"settings": settings | tuned}))
    out = tmp_path / "out"
    measured(suite_file, out, f"--model={policy}")
    assert json.loads((out / "metrics.json").read_text())["tuned_on"] == tuned


REFUSED = {
    ("--suite=nowhere",): "unknown suite 'nowhere'",
    ("--suite=pou",): "hotpotqa: the suite names no corpus for these questions: give --corpus",
    ("--suite=mini", "--compare_with=tiny_memory"): "measure each on the suite",
    ("--suite=mini", "--questions=q.jsonl", "--split=dev"): "--questions, --split: --suite says",
    ("--data=qa",): "--data qa: read with --suite only",
}


@pytest.mark.parametrize(("flags", "message"), REFUSED.items())
def test_what_a_suite_cannot_be_measured_with_is_refused(flags, message, tmp_path):
    with pytest.raises(ConfigError, match=message):
        call("evaluate", *flags, f"--out={tmp_path}")


def test_a_set_must_be_called_as_a_folder_can_be(suite_file, tmp_path):
    suite_file.write_text(TWO_SETS.replace("name: facts", "name: a/b"), encoding="utf-8")
    with pytest.raises(ConfigError, match="'a/b' is called as no folder can be"):
        measured(suite_file, tmp_path / "out")
