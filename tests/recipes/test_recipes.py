"""Each recipe, two steps long, as a user would start it; and every configuration's keys."""

from __future__ import annotations

import json
import os
import re
import runpy
import shutil
import sys
import tomllib
from pathlib import Path
from types import SimpleNamespace

import pou
import pytest
import sft
from paths import RECIPES, ROOT
from recipe_runs import call, evaluate_recipe, flags_of, run
from stub_server import StubServer
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import GRPOConfig

from faithful_search.bundled import tiny_policy
from faithful_search.counterfactual import CounterfactualWorld
from faithful_search.errors import ConfigError
from faithful_search.judges import GroundingJudge, LexicalJudge
from faithful_search.judges.endpoint import EndpointJudge
from faithful_search.judges.facts import FactsJudge
from faithful_search.measure import suite
from faithful_search.measure.evaluation import Evaluation
from faithful_search.rewards import AnswerSupport, Correctness, Shuffled, SourceGated
from faithful_search.rollout import Engine
from faithful_search.tasks import Task, load_tasks
from faithful_search.training.config import parse_recipe, read_config
from faithful_search.training.runs import counterfactual_world, with_stale
from faithful_search.trajectory import Step, ToolCall, Trajectory, read_jsonl
from faithful_search.world import bundled_world

CONFIGS = sorted((RECIPES / "configs").glob("*.yaml"))


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_every_configuration_is_accepted(path):
    types, flags = flags_of("veritas" if path.stem == "hack_veritas" else path.stem.partition("_")[0])
    settings = parse_recipe(types, ["--config", str(path), *flags])
    given = {key: value for key, value in read_config(path).items() if isinstance(value, (str, int))}
    for key in given.keys() - {"questions", "bf16", "use_cpu", "report_to"}:
        holder = next(item for item in settings if hasattr(item, key))
        found = getattr(holder, key)
        assert str(getattr(found, "value", found)) == str(given[key]), key
    if path.stem.startswith("sft"):  # with what its mappings hold
        sft.parse(["--config", str(path), *flags])


@pytest.mark.parametrize(
    ("name", "parts", "budget", "fixed"),
    [
        ("pou_tiny", ["citation", "evidence_sensitivity", "answer"], 1, None),
        ("pou_tiny_no_pt", ["citation", "answer"], None, None),
        ("pou_tiny_pt", ["citation", "evidence_sensitivity", "answer"], None, None),
        ("pou_tiny_paper", ["citation", "evidence_sensitivity", "answer"], 1, None),
        ("pou_tiny_b2", ["citation", "evidence_sensitivity", "answer"], 2, None),
        ("pou_tiny_no_ans", ["citation", "answer"], None, 0.0),
        ("pou_tiny_static_mix", ["citation", "answer"], None, 0.5),
        ("pou_tiny_reader", ["citation", "answer"], None, None),
        ("hack_answer_only", ["correctness"], None, None),
        ("hack_counterfactual", ["correctness"], None, None),
        ("hack_source_gated", ["source_gated"], None, None),
        ("hack_pou", ["citation", "answer"], None, None),
    ],
)
def test_each_ablation_changes_what_it_says(name, parts, budget, fixed):
    script, _, _ = pou.parse(["--config", str(RECIPES / "configs" / f"{name}.yaml")])
    mix = pou.build_reward(script)
    assert list(mix.parts) == parts
    if "evidence_sensitivity" in parts:
        assert mix.parts["evidence_sensitivity"].budget == budget
    if "answer" in mix.parts:
        assert mix.parts["answer"].fixed == fixed
        plain = name in ("pou_tiny_paper", "pou_tiny_b2", "hack_pou", "pou_tiny_reader")
        assert mix.outcome == ("correctness" if plain else "source_gated")


JUDGE = ("--judge", "endpoint", "--judge_url", "http://127.0.0.1:9/v1", "--judge_model", "served")


def test_one_judge_is_r_anc_r_ans_and_the_writer_of_lures():
    plain = ("--source_gated", "false")
    judged = [*JUDGE, *plain, "--correctness", "judge", "--lures", "judge", "--budget", "1"]
    mix = pou.build_reward(pou.parse(judged)[0])
    answer = mix.parts["answer"]
    assert isinstance(answer.outcome.judge, EndpointJudge) and answer.outcome.metric == "judge"
    assert answer.process.judge is answer.outcome.judge is mix.parts["evidence_sensitivity"].writer
    mix = pou.build_reward(pou.parse([*JUDGE, *plain, "--budget", "1"])[0])
    assert isinstance(mix.parts["answer"].process.judge, EndpointJudge)
    assert (mix.parts["answer"].outcome.metric, mix.parts["evidence_sensitivity"].writer) == ("em", None)
    mix = pou.build_reward(pou.parse([])[0])
    assert isinstance(mix.parts["answer"].process.judge, FactsJudge)
    mix = pou.build_reward(pou.parse(["--support_by", "words"])[0])
    assert isinstance(mix.parts["answer"].process.judge, LexicalJudge)


@pytest.mark.parametrize(
    "flags", [("--foils", "world"), ("--shuffle_sensitivity", "true"), (*JUDGE, "--lures", "judge")]
)
def test_what_the_perturbation_reward_alone_uses_is_refused_without_it(flags):
    with pytest.raises(ConfigError, match="--budget is 0"):
        pou.parse([*flags, "--budget", "0"])
    with pytest.raises(ConfigError, match="--reward is answer_only"):
        pou.parse([*flags, "--reward", "answer_only"])
    assert pou.parse(list(flags))


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (("--turn_gamma", "0.5"), "--turn_gamma 0.5: read with --advantages turns or turns_leave_one_out only"),
        (("--lam", "0.9", "--whiten", "false"), "--lam 0.9 --whiten False: read with --advantages ppo only"),
        (("--counterfactual_groups", "own"), "--counterfactual_groups own: read with --counterfactual above 0 only"),
        (("--source_gated", "false", "--source_gated_by", "support"), "there is no gate"),
        (("--source_gated_by", "judge"), "there are: words, support"),
        (("--reward", "answer_only", "--process_on_right", "true"), "nothing but the answer"),
        (("--correctness", "judge"), "need a judge with a model"),
        (("--lures", "judge"), "need a judge with a model"),
        (("--stale", "1.5"), "in [0, 1], not 1.5"),
        (("--support", "false", "--alpha_fixed", "0.5"), "--alpha_fixed is R_ans's weight"),
        (("--generation_batch", "0"), "--generation_batch must be 1 or more, not 0"),
        (("--eval_limit", "-1"), "--eval_limit must be 0 or more, not -1"),
        (("--eval_controls", "-1"), "--eval_controls must be 0 or more"),
    ],
)
def test_flags_that_do_not_fit_and_that_nothing_reads_are_refused(flags, says):
    with pytest.raises(ConfigError, match=re.escape(says)):
        pou.parse([*flags])


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ((), SourceGated()),
        (("--source_gated_by", "support"), SourceGated(support=AnswerSupport(FactsJudge()))),
        (("--correctness", "f1"), SourceGated(Correctness("f1"))),
        (("--source_gated", "false"), Correctness()),
    ],
)
def test_the_source_gate_stands_before_the_correctness_of_either_reward(flags, expected):
    for reward in ("pou", "answer_only"):
        mix = pou.build_reward(pou.parse(["--source_gated", "true", *flags, "--reward", reward])[0])
        assert (mix.parts["answer"].outcome if reward == "pou" else mix.parts[mix.outcome]) == expected


def test_the_likelihood_gap_and_process_rewards_on_right_answers_only_are_flags():
    mix = pou.build_reward(pou.parse(["--process_on_right", "true"])[0])
    assert set(mix.only_right) == set(mix.parts) == {"citation", "evidence_sensitivity", "answer"}
    assert pou.build_reward(pou.parse([])[0]).only_right == ()
    gap = pou.build_reward(pou.parse(["--reward", "answer_only", "--likelihood_gap", "true"])[0])
    assert list(gap.parts) == ["source_gated", "answer_likelihood_gap"] and gap.only_right == () and gap.needs_policy
    flags = ["--likelihood_gap", "true", "--process_on_right", "true"]
    assert pou.build_reward(pou.parse(flags)[0]).only_right == (
        *("citation", "evidence_sensitivity", "answer"),
        "answer_likelihood_gap",
    )
    answer_only = pou.build_reward(pou.parse([*flags, "--reward", "answer_only"])[0])
    assert answer_only.only_right == ("answer_likelihood_gap",)


def test_the_shuffled_control_exchanges_the_perturbation_reward_alone():
    script, _, _ = pou.parse(["--config", str(RECIPES / "configs" / "pou_tiny_shuffled.yaml")])
    plain, _, _ = pou.parse(["--config", str(RECIPES / "configs" / "pou_tiny_pt.yaml")])
    mix, own = pou.build_reward(script), pou.build_reward(plain)
    assert isinstance(mix.parts["evidence_sensitivity"], Shuffled)
    assert mix.parts["evidence_sensitivity"].reward == own.parts["evidence_sensitivity"]
    assert mix.parts["citation"] == own.parts["citation"] and mix.needs_policy


@pytest.mark.parametrize(
    ("flags", "why"),
    [
        ((*JUDGE, "--condense", "true"), "which --condense true rewrites"),
        (("--triples", "facts.nt"), "--triples facts.nt would still say what was"),
        (("--browse", "fetch", "--triples", "wikidata"), "--browse fetch and --triples wikidata would still"),
    ],
)
def test_changed_worlds_are_refused_where_tools_would_say_what_was(flags, why):
    pou.parse(flags)
    with pytest.raises(ConfigError, match=why):
        pou.parse([*flags, "--counterfactual", "0.5"])
    with pytest.raises(ConfigError, match=why):
        pou.parse([*flags, "--stale", "0.3"])
    assert pou.parse(["--counterfactual", "0.5", "--counterfactual_groups", "own"])[0].counterfactual == 0.5


def test_a_share_of_the_questions_is_stale():
    tasks = load_tasks("world", limit=40)
    found, changed = with_stale(tasks, CounterfactualWorld(bundled_world(), 0), 0.3)
    assert changed == 12 == sum(bool(task.edits) for task in found)
    assert [task.id for task in found] == [task.id for task in tasks]
    assert all(new.edits or new == old for new, old in zip(found, tasks, strict=True))
    assert found == with_stale(tasks, CounterfactualWorld(bundled_world(), 0), 0.3)[0]
    assert found != with_stale(tasks, CounterfactualWorld(bundled_world(), 1), 0.3)[0]


def test_changed_worlds_of_a_file_are_made_of_its_annotations(tmp_path):
    passage = {"id": "p", "title": "Ann", "text": "Ann was born in Rome."}
    other = {"id": "o", "title": "Bob", "text": "Bob was born in Oslo."}
    corpus = tmp_path / "corpus.jsonl"
    corpus.write_text("".join(json.dumps(row) + "\n" for row in (passage, other)))
    files = ["--questions", str(corpus), "--eval_questions", str(corpus), "--corpus", str(corpus), "--triples", "none"]
    script, _, _ = pou.parse([*files, "--counterfactual", "0.5"])
    tasks = [
        Task(name, "Where?", (city,), meta={"evidence_triples": [[name, "place of birth", city]]})
        for name, city in (("Ann", "Rome"), ("Bob", "Oslo"))
    ]
    changed = counterfactual_world(script, tasks, 0).changed(tasks[0])
    assert changed.edits == {passage["text"]: "Ann was born in Oslo."}
    script, _, _ = pou.parse(["--counterfactual", "0.5"])
    assert counterfactual_world(script, [], 0) == CounterfactualWorld(bundled_world(), 0)


def test_the_papers_configuration_only_needs_the_judges_address():
    flags = ["--config", str(RECIPES / "configs" / "pou_qwen2.5-7b.yaml"), "--bf16", "false", "--use_cpu", "true"]
    mix = pou.build_reward(pou.parse([*flags, *JUDGE[2:]])[0])
    judge = mix.parts["evidence_sensitivity"].writer
    assert judge is mix.parts["answer"].process.judge is mix.parts["answer"].outcome.judge
    assert (judge.url, judge.model, judge.concurrency) == ("http://127.0.0.1:9/v1", "served", 64)
    assert judge.cache == "outputs/pou_qwen2.5-7b/judge.sqlite"
    with pytest.raises(ConfigError, match="'endpoint' needs a model"):
        pou.build_reward(pou.parse(flags)[0])


def test_what_cannot_write_is_refused(monkeypatch):
    script, _, _ = pou.parse([*JUDGE, "--lures", "judge", "--budget", "1"])
    monkeypatch.setattr(script, "load_judge", GroundingJudge)
    with pytest.raises(ConfigError, match="needs a judge that writes: --judge endpoint or generator"):
        pou.build_reward(script)


@pytest.mark.parametrize(
    ("text", "says"),
    [("no_such_setting: 1\n", "no_such_setting"), ("- a list\n", "mapping"), (None, "cannot read")],
)
def test_wrong_settings_are_named(tmp_path, text, says):
    path = tmp_path / "bad.yaml"
    if text:
        path.write_text(text)
    with pytest.raises(ConfigError, match=says):
        parse_recipe((GRPOConfig,), ["--config", str(path)])


def test_settings_extend_each_other_and_flags_win_but_no_file_extends_itself(tmp_path):
    (tmp_path / "base.yaml").write_text("learning_rate: 1.0e-3\nmax_steps: 7\nseed: 5\n")
    (tmp_path / "own.yaml").write_text("extends: base.yaml\nmax_steps: 9\nseed: 6\n")
    flags = ["--config", str(tmp_path / "own.yaml"), "--use_cpu", "true", "--bf16", "false", "--max_steps", "11"]
    (args,) = parse_recipe((GRPOConfig,), flags)
    assert (args.learning_rate, args.max_steps, args.seed) == (1e-3, 11, 6)
    for name, other in (("a", "b"), ("b", "c"), ("c", "b")):
        (tmp_path / f"{name}.yaml").write_text(f"extends: {other}.yaml\n")
    with pytest.raises(ConfigError, match=r"c\.yaml extends .*b\.yaml, and so itself: take one `extends:` out"):
        read_config(tmp_path / "a.yaml")


def test_pou_leaves_what_it_promises(tmp_path, capsys):
    out = tmp_path / "pou"
    flags = ["--output_dir", str(out), "--save_steps=2", "--per_device_train_batch_size=8", "--threads=1"]
    flags += ["--turns=3", "--turn_tokens=64", "--max_completion_length=400"]
    call("pou", *flags, "--max_steps=2", "--eval_limit=3")
    printed = capsys.readouterr().out
    metrics = "exact_match f1 valid_format citation_validity citation_states_fact answer_support_facts verdict_gap "
    for metric in (metrics + "no_on_blank evidence_sensitivity calls tool_entropy").split():
        assert metric in printed
    for name in ("README.md", "rewards.png", "tools.png", "trajectories.jsonl", "metrics.json", "model.safetensors"):
        assert (out / name).stat().st_size > 0
    rows = list(read_jsonl(out / "trajectories.jsonl"))
    assert len(rows) == 16
    assert {"format", "citation", "answer_support", "source_gated"} <= set(rows[0].meta["scores"])
    assert all("applies" in row.meta["parts"]["citation"] for row in rows)
    metrics = json.loads((out / "metrics.json").read_text())
    named = ("temperature", "num_generations", "per_device_train_batch_size", "gradient_accumulation_steps")
    assert {*named} <= metrics["settings"].keys()
    assert metrics["settings"]["precision"].startswith("cpu, ")
    for when in ("before", "after"):
        estimate = Evaluation.from_dict(metrics[when]).rows["exact_match"]
        assert estimate.n == 3
        assert estimate.low <= estimate.value <= estimate.high
    assert {"value", "low", "high", "n"} == set(metrics["differences"]["verdict_gap"])
    before = AutoModelForCausalLM.from_pretrained(tiny_policy("memory")).float().state_dict()
    after = AutoModelForCausalLM.from_pretrained(out).state_dict()
    assert any((before[name] != after[name]).any() for name in before)
    assert AutoTokenizer.from_pretrained(out).chat_template
    call("pou", *flags, "--max_steps=3", "--eval_limit=0", "--resume=true")
    assert "step    3/3" in capsys.readouterr().out
    assert len(list(read_jsonl(out / "trajectories.jsonl"))) == 24


class DownInStepTwo(StubServer):
    """Answers with 500 while the rollouts of the second step are scored: those of the first are in the log then."""

    def __init__(self, log: Path) -> None:
        super().__init__(label=self.reply)
        self.log = log

    def now(self, request):
        logged = self.log.read_bytes().count(b"\n") if self.log.exists() else 0
        self.mode = "error" if 8 <= logged < 16 else "ok"
        return super().now(request)

    def reply(self, messages):
        asked = messages[-1]["content"]
        if "Write the passage" in asked:
            return "The registers of the town name Ogrelia."
        return "0" if "grade an answer" in messages[0]["content"] else "1"


@pytest.mark.slow
def test_an_llm_judges_and_writes_and_an_outage_stops_nothing_where_that_is_asked_for(tmp_path):
    out = tmp_path / "judged"
    flags = ("--max_steps=3", "--num_generations=2", "--per_device_train_batch_size=8", "--eval_limit=6", "--threads=1")
    judge = ("--judge=endpoint", "--judge_model=stub", "--correctness=judge", "--lures=judge", "--budget=1")
    launch = ("-m", "accelerate.commands.launch", "--num_processes=1", "--cpu", "recipes/pou.py", "--max_abstained=1")
    with DownInStepTwo(out / "trajectories.jsonl") as server:
        where = ("--output_dir", str(out), "--judge_url", server.url, "--judge_cache", str(tmp_path / "judge.sqlite"))
        printed = run(*launch, *flags, *judge, *where)
    lines = [line for line in printed.splitlines() if line.startswith("step ")]
    assert ["abstained" in line for line in lines] == [False, True, False]
    rows = [row.meta for row in read_jsonl(out / "trajectories.jsonl")]
    first, second, third = ([row for row in rows if row["step"] == step] for step in range(3))
    assert [len(first), len(second), len(third)] == [8, 8, 8]
    assert all(row["reward"] is not None for row in first + third)
    silent = [row for row in second if row["reward"] is None]
    assert silent and all("the judge abstained: " in row["why"] for row in silent)
    assert any("500: out of memory" in reason for row in silent for reason in row["reasons"].values())
    wrong = [row for row in first + third if row["parts"]["correctness"].get("judge") == "endpoint:stub correctness@1"]
    assert wrong and all(row["reasons"]["correctness"] == "not upheld by the judge" for row in wrong)
    assert {probe["lure"] for row in first + third for probe in _no_steps(row)} == {"written"}


def _no_steps(row):
    return [probe for probe in row["parts"]["evidence_sensitivity"].get("steps", ()) if probe["case"] == "no"]


def test_evaluate_compares_two_policies_and_blanks_tools(tmp_path, capsys):
    flags = ("--limit", "4", "--turns", "4", "--turn_tokens", "64", "--threads", "1", "--controls", "0")
    call("evaluate", "--compare_with", str(tiny_policy()), "--output_dir", str(tmp_path / "two"), *flags)
    assert "paired difference" in capsys.readouterr().out
    call("evaluate", "--blank", "nothing here", "--output_dir", str(tmp_path / "blank"), *flags)
    rows = list(read_jsonl(tmp_path / "blank" / "trajectories.jsonl"))
    texts = {item.text for row in rows for step in row.steps for item in step.evidence}
    assert texts == {"nothing here"}


def test_an_evaluation_that_was_interrupted_goes_on_when_it_is_told_to(tmp_path, monkeypatch):
    policy, out = tmp_path / "policy", tmp_path / "out"
    shutil.copytree(tiny_policy(), policy)
    flags = ("--policy", str(policy), "--limit", "4", "--turns", "2", "--turn_tokens", "48", "--threads", "1")
    flags = (*flags, "--output_dir", str(out), "--judge_timeout", "1")
    for _ in "12":  # a mistake leaves nothing that the next run would have to be told about
        with pytest.raises(ConfigError, match="no tools"):
            call("evaluate", *flags, "--corpus", "none", "--triples", "none")
    (out / "metrics.json").write_text("{}")  # of an earlier evaluation, which this one takes the place of
    with monkeypatch.context() as broken:
        broken.setattr(suite, "blank_engine", lambda *args: exec("raise KeyboardInterrupt"))
        with pytest.raises(KeyboardInterrupt):
            call("evaluate", *flags, "--overwrite_output_dir", "true")
    rollouts = out / "unfinished" / "policy" / "evaluating.jsonl"
    assert len(rollouts.read_text().splitlines()) == 4
    with pytest.raises(ConfigError, match="--resume true goes on"):
        call("evaluate", *flags)
    with pytest.raises(ConfigError, match=r"temperature: 0\.0 there, 1\.0 now"):
        call("evaluate", *flags, "--resume", "true", "--temperature", "1")
    weights = policy / "model.safetensors"
    changed = weights.stat().st_mtime_ns
    os.utime(weights, ns=(changed, changed + 1))
    with pytest.raises(ConfigError, match="weights"):
        call("evaluate", *flags, "--resume", "true")
    os.utime(weights, ns=(changed, changed))
    ran, plain = [], Engine.run

    def counted(engine, tasks, **given):
        ran.append(len(tasks))
        return plain(engine, tasks, **given)

    monkeypatch.setattr(Engine, "run", counted)
    found = call("evaluate", *flags, "--resume", "true", "--judge_timeout", "2")  # which rollouts do not depend on
    assert ran[0] == 4  # the blanked ones
    assert found[str(policy)]["rows"]["exact_match"]["n"] == 4 and not rollouts.parent.parent.exists()


def test_a_policy_is_measured_as_it_was_trained_and_another_dialect_is_warned_of(tmp_path, capsys):
    flags = ("--limit", "4", "--controls", "0", "--turns", "3", "--turn_tokens", "48", "--threads", "1")
    flags = (*flags, "--policy", str(tiny_policy("pairs")), "--questions", "world_pairs")
    found = call("evaluate", *flags, "--output_dir", str(tmp_path / "own"))
    told = capsys.readouterr()
    assert "was trained: --dialect search_r1, --kept_responses 1" in told.out and not told.err.count("valid format")
    [row] = found.values()
    assert row["rows"]["valid_format"]["value"] == 1.0
    script = json.loads((tmp_path / "own" / "metrics.json").read_text())["script"]
    assert (script["dialect"], script["kept_responses"], script["triples"]) == ("search_r1", 1, "none")
    wrong = ("--policy", str(tiny_policy("self_eval")), "--dialect", "pou", "--questions", "world")
    call("evaluate", *flags, *wrong, "--output_dir", str(tmp_path / "other"))
    assert "have a valid format of dialect 'pou': was it trained in another one" in capsys.readouterr().err
    with pytest.raises(ConfigError, match="--limit must be 1 or more, not -1"):
        call("evaluate", "--limit", "-1")
    with pytest.raises(ConfigError, match="'flot' is not a dtype of torch"):
        call("evaluate", "--dtype", "flot")
    with pytest.raises(ConfigError, match="the policy itself"):
        call("evaluate", "--policy", "tiny", "--compare_with", "tiny", "--output_dir", str(tmp_path / "same"))


def test_a_policy_is_measured_within_the_bounds_that_it_was_trained_with(tmp_path, capsys):
    bounds = {"turns": 12, "total_tokens": 4096, "search_top_k": 5}
    (tmp_path / "metrics.json").write_text(json.dumps({"settings": {"dialect": "pou", **bounds}}))
    recipe = evaluate_recipe()
    script = recipe.as_trained(recipe.EvaluationArguments(turns=3), str(tmp_path))
    assert (script.turns, script.turn_tokens, script.total_tokens, script.search_top_k) == (3, 256, 4096, 5)
    assert "--total_tokens 4096, --search_top_k 5" in capsys.readouterr().out
    compared = recipe.as_trained(recipe.EvaluationArguments(), str(tiny_policy()))
    both = recipe.within_the_same_bounds({"one": script, "other": compared}).values()
    assert {(own.turns, own.turn_tokens, own.total_tokens, own.search_top_k) for own in both} == {(10, 256, 4096, 5)}


@pytest.mark.parametrize(
    ("config", "tools"),
    [
        ("eval_unseen_tool", ["knowledge_graph", "atlas_lookup"]),
        ("eval_negative_tool", ["local_search", "knowledge_graph", "garden_almanac"]),
    ],
)
def test_evaluations_with_another_tool_are_a_configuration_and_say_who_was_called(config, tools, tmp_path, capsys):
    flags = ["--limit", "4", "--turns", "2", "--turn_tokens", "64", "--threads", "1", "--output_dir", str(tmp_path)]
    found = evaluate_recipe().main(["--config", str(RECIPES / "configs" / f"{config}.yaml"), *flags])
    assert list(found["tiny"]["tool_calls"]) == tools
    counts = dict(re.findall(r"(\w+) (\d+)", capsys.readouterr().out.rpartition("calls of tiny: ")[2]))
    assert [*counts][: len(tools)] == tools and sum(map(int, counts.values())) > 0


def test_calls_that_ended_in_an_error_are_said_and_each_question_is_asked_as_often_as_wanted(
    tmp_path, monkeypatch, capsys
):
    recipe = evaluate_recipe()

    def one_wrong_call(engine, tasks, rewards, controls, folder):
        calls = [ToolCall("local_search", arguments) for arguments in ({}, {"query": "x"})]
        engine.toolbox.run_batch(calls, [engine.toolbox.session()] * 2)
        assert controls == 100
        return SimpleNamespace(asked=len(tasks), trajectories=[])

    monkeypatch.setattr(recipe, "evaluate_policy", one_wrong_call)
    given = ["--limit", "2", "--samples", "3", "--output_dir", str(tmp_path)]
    [script] = parse_recipe((recipe.EvaluationArguments,), given)
    assert recipe.evaluate("tiny", recipe.as_trained(script, "tiny")).asked == 6
    assert "calls of tiny that ended in an error: local_search 1 of 2\n" in capsys.readouterr().err
    calls = tuple(Step(call=ToolCall(name)) for name in ("ghost", "atlas", "ghost"))
    found = SimpleNamespace(tool_calls={"search": 0, "atlas": 1}, trajectories=[Trajectory(steps=calls)])
    assert recipe._calls(found) == "search 0, atlas 1, ghost 2 (unknown)"


@pytest.mark.parametrize("recipe", ["pou", "veritas", "self_eval", "sft", "reward_model", "evaluate"])
def test_a_recipe_that_cannot_begin_says_why_in_one_line(recipe, tmp_path, monkeypatch, capsys):
    missing = tmp_path / "missing.yaml"
    monkeypatch.setattr(sys, "argv", [f"{recipe}.py", "--config", str(missing)])
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(RECIPES / f"{recipe}.py"), run_name="__main__")
    said = capsys.readouterr().err
    line = said.splitlines()[-1]
    assert "Traceback" not in said
    assert ended.value.code == 1 and line.startswith(f"error: cannot read the settings in {missing}")


HEADER = re.compile(r"(?m)^# /// script$\s(?P<content>(^#(| .*)$\s)+)^# ///$")
"""As PEP 723 has it."""


@pytest.mark.parametrize("recipe", sorted(path.stem for path in RECIPES.glob("*.py")))
def test_a_recipe_alone_says_what_it_needs_and_finds_its_configuration(recipe, tmp_path):
    path = Path(shutil.copy(RECIPES / f"{recipe}.py", tmp_path / f"{recipe}_alone.py"))
    [found] = HEADER.finditer(path.read_text(encoding="utf-8"))
    told = tomllib.loads("".join(line[2:] for line in found["content"].splitlines(keepends=True)))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert told == {"requires-python": project["requires-python"], "dependencies": ["faithful-search[train]"]}
    alone = runpy.run_path(str(path), run_name=path.stem)
    if default := alone.get("DEFAULT_CONFIG"):
        assert not default.exists() and read_config(default) == read_config(RECIPES / "configs" / default.name)
