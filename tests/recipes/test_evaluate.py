"""Evaluations: policies compared, other tools, as a policy was trained, what an interruption
leaves; and studies.
"""

import json
import os
import re
import shutil
import sys
from types import SimpleNamespace

import pytest
import study
from paths import RECIPES
from recipe_runs import call, parse, recipe_module

from faithful_search.bundled import tiny_policy
from faithful_search.errors import ConfigError
from faithful_search.measure import evaluating
from faithful_search.measure.evaluation import Evaluation
from faithful_search.measure.writing import write_metrics
from faithful_search.rollout import Engine
from faithful_search.trajectory import ToolCall, read_jsonl

SMALL = ("--eval_limit=2", "--threads=1", "--controls=0", "--turn_tokens=64", "--turns=2")


def test_it_compares_two_policies_and_blanks_tools(tmp_path, capsys):
    compared = (f"--compare_with={tiny_policy()}", "--blank=nothing here")
    call("evaluate", *compared, f"--out={tmp_path}", *SMALL)
    assert "paired difference" in capsys.readouterr().out
    rows = list(read_jsonl(tmp_path / "trajectories.jsonl"))
    assert {item.text for row in rows for step in row.steps for item in step.evidence} == {
        "nothing here"
    }


def test_one_that_was_interrupted_goes_on_when_it_is_told_to(tmp_path, monkeypatch):
    policy, out = shutil.copytree(tiny_policy(), tmp_path / "policy"), tmp_path / "out"
    flags = (*SMALL, f"--model={policy}", f"--out={out}", "--judge_timeout=1")
    for _ in "12":  # a mistake leaves nothing that the next run would have to be told about
        with pytest.raises(ConfigError, match="no tools"):
            call("evaluate", *flags, "--corpus=none", "--triples=none")
    shutil.rmtree(out / "unfinished")
    (out / "metrics.json").write_text(
        "{}"
    )  # of an earlier evaluation, which this one takes the place of if told to
    with pytest.raises(ConfigError, match=r"holds an evaluation; --overwrite"):
        call("evaluate", *flags)
    episodes = evaluating.run_episodes

    def interrupted(agent, tasks, what, file):
        if what == "blanked":
            raise KeyboardInterrupt
        return episodes(agent, tasks, what, file)

    with monkeypatch.context() as broken:
        broken.setattr(evaluating, "run_episodes", interrupted)
        with pytest.raises(KeyboardInterrupt):
            call("evaluate", *flags, "--overwrite=true")
    rollouts = out / "unfinished" / "policy" / "evaluating.jsonl"
    assert len(rollouts.read_text().splitlines()) == 2
    weights = policy / "model.safetensors"
    changed = weights.stat().st_mtime_ns
    refused = {
        (): "--resume goes on",
        ("--resume=true", "--temperature=1"): r"temperature: 0\.0 there, 1\.0 now",
    }
    for more, said in {**refused, ("--resume=true",): "weights"}.items():
        os.utime(weights, ns=(changed, changed + (said == "weights")))
        with pytest.raises(ConfigError, match=said):
            call("evaluate", *flags, *more)
    os.utime(weights, ns=(changed, changed))
    ran, plain = [], Engine.run
    monkeypatch.setattr(
        Engine,
        "run",
        lambda engine, tasks, **given: (ran.append(len(tasks)), plain(engine, tasks, **given))[1],
    )
    found = call(
        "evaluate", *flags, "--resume=true", "--judge_timeout=2"
    )  # which rollouts do not depend on
    assert ran[0] == 2  # the blanked ones
    assert found[str(policy)]["rows"]["exact_match"]["n"] == 2
    assert not rollouts.parent.parent.exists()


def test_a_policy_is_measured_as_it_was_trained(tmp_path, capsys):
    flags = (*SMALL, "--turns=3", f"--model={tiny_policy('pairs')}", "--questions=world_pairs")
    found = call("evaluate", *flags, f"--out={tmp_path / 'own'}")
    told = capsys.readouterr()
    assert "was trained: --dialect search_r1, --kept_responses 1" in told.out
    assert not told.err.count("valid format")
    [row] = found.values()
    assert row["rows"]["valid_format"]["value"] == 1.0
    script = json.loads((tmp_path / "own" / "metrics.json").read_text())["script"]
    assert (script["dialect"], script["kept_responses"], script["triples"]) == (
        "search_r1",
        1,
        "none",
    )
    wrong = (f"--model={tiny_policy('self_eval')}", "--dialect=pou", "--questions=world")
    call("evaluate", *flags, *wrong, f"--out={tmp_path / 'other'}")
    assert (
        "have a valid format of dialect 'pou': was it trained in another one"
        in capsys.readouterr().err
    )


def test_a_policy_is_measured_within_its_training_bounds(tmp_path, capsys):
    bounds = {"turns": 12, "total_tokens": 4096, "search_top_k": 5}
    (tmp_path / "metrics.json").write_text(json.dumps({"settings": {"dialect": "pou", **bounds}}))
    recipe = recipe_module("evaluation_settings")
    script = recipe.as_trained(recipe.EvaluationArguments(turns=3), str(tmp_path))
    assert (script.turns, script.turn_tokens, script.total_tokens, script.search_top_k) == (
        3,
        256,
        4096,
        5,
    )
    assert "--total_tokens 4096, --search_top_k 5" in capsys.readouterr().out
    compared = recipe.as_trained(recipe.EvaluationArguments(), str(tiny_policy()))
    both = recipe.within_the_same_bounds({"one": script, "other": compared}).values()
    assert {(own.turns, own.turn_tokens, own.total_tokens, own.search_top_k) for own in both} == {
        (10, 256, 4096, 5)
    }


TOOLS = {
    "eval_unseen_tool": ["knowledge_graph", "atlas_lookup"],
    "eval_negative_tool": ["local_search", "knowledge_graph", "garden_almanac"],
}


@pytest.mark.parametrize(("config", "tools"), TOOLS.items())
def test_another_tool_is_a_configuration(config, tools, tmp_path, capsys):
    flags = [*SMALL, f"--out={tmp_path}"]
    found = call("evaluate", "--config", str(RECIPES / "configs" / f"{config}.yaml"), *flags)
    assert list(found["tiny"]["tool_calls"]) == tools
    counts = dict(
        re.findall(r"(\w+) (\d+)", capsys.readouterr().out.rpartition("calls of tiny: ")[2])
    )
    assert [*counts][: len(tools)] == tools
    assert sum(map(int, counts.values())) > 0


def test_failed_calls_are_reported_and_questions_repeated(tmp_path, monkeypatch, capsys):
    recipe = recipe_module("evaluation_run")

    def one_wrong_call(engine, tasks, rewards, controls, folder):
        calls = [ToolCall("local_search", arguments) for arguments in ({}, {"query": "x"})]
        engine.toolbox.run_batch(calls, [engine.toolbox.session()] * 2)
        assert controls == 100
        return SimpleNamespace(asked=len(tasks), trajectories=[])

    monkeypatch.setattr(recipe, "evaluate_policy", one_wrong_call)
    [script] = parse("evaluate", "--limit=2", "--samples=3", f"--out={tmp_path}")
    models = recipe.Models()
    evaluation = recipe.evaluate("tiny", recipe.as_trained(script, "tiny"), None, models)
    assert evaluation.asked == 6
    assert "calls of tiny that ended in an error: local_search 1 of 2\n" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (("--limit=-1",), "--limit must be 1 or more, not -1"),
        (("--dtype=flot",), "'flot' is not a dtype of torch"),
        (("--model=tiny", "--compare_with=tiny"), "the policy itself"),
    ],
)
def test_what_cannot_be_evaluated_is_refused(flags, said, tmp_path):
    with pytest.raises(ConfigError, match=said):
        call("evaluate", *flags, f"--out={tmp_path}")


# --- what is shown of a study that was stopped

QUESTIONS = [f"q{number}" for number in range(40)]


def run(values):
    calls = {"a": [1] * 40, "b": [1] * 40}
    return Evaluation({}, QUESTIONS, {"exact_match": list(values)}, calls)


HALF, NONE = run([0.0, 1.0] * 20), run([0.0] * 40)


def test_a_stopped_study_is_shown_as_far_as_measured(tmp_path, monkeypatch):
    """Of one setting a seed is measured and another trained; of the reference nothing is there."""
    settings = {
        name: study.Setting("pou.py", "pou_tiny.yaml", seeds=2) for name in ("ours", "theirs")
    }
    curves = {f"{name}.png": ((name,), ("reward",)) for name in settings}
    shown = study.Study(
        "memory", settings, {}, *[("exact_match",)] * 2, curves, ("cold start", "theirs")
    )
    monkeypatch.setattr(study, "STUDIES", {"pou": shown})
    monkeypatch.setattr(study, "do", None)  # nothing is trained
    for folder, found in {"cold_start": NONE, "ours_0": HALF}.items():
        write_metrics(tmp_path / folder / "test" / "metrics.json", {"script": {}, "policy": found})
    (tmp_path / "ours_1").mkdir()
    for folder in ("ours_0", "ours_1"):
        (tmp_path / folder / "history.json").write_text('[{"step": 1, "reward": 0.5}]')
    monkeypatch.setattr(sys, "argv", ["study.py", "pou", "--measured", "--out", str(tmp_path)])
    study.main()
    assert {path.name for path in tmp_path.glob("*.png")} == {"ours.png", "results.png"}
    tables = json.loads((tmp_path / "study.json").read_text())
    differences = tables.pop("Paired differences to: cold start")
    assert differences.keys() == {"ours"}
    assert differences["ours"]["exact_match"]["value"] == 0.5
    assert tables.keys() == {"Values"}
    assert tables["Values"].keys() == {"cold start", "ours"}


SETTINGS = [setting for named in study.STUDIES.values() for setting in named.settings.values()]


@pytest.mark.parametrize("setting", SETTINGS, ids=lambda setting: setting.config)
def test_a_setting_of_a_study_has_its_configuration(setting):
    assert study.config_named(setting.config).exists()


@pytest.mark.parametrize("recipe", sorted({setting.recipe for setting in SETTINGS}))
def test_a_study_runs_a_recipe_that_is_there(recipe):
    assert (study.RECIPES / recipe).exists()
