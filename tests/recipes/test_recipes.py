"""Every configuration's keys, flags that do not fit, and Proof-of-Use's recipe: what it rewards,
and what it leaves.
"""

import json
import re
import runpy
import shutil
import sys
import tomllib
from dataclasses import fields
from pathlib import Path

import pytest
from agent_rows import file_of
from paths import RECIPES, ROOT
from recipe_runs import CPU, WORLD, call, parse, recipe_module
from transformers import AutoModelForCausalLM, AutoTokenizer

from faithful_search.bundled import tiny_policy
from faithful_search.counterfactual import CounterfactualWorld
from faithful_search.errors import ConfigError
from faithful_search.gauntlet import mixes, published
from faithful_search.judges import ContainmentJudge, GroundingJudge
from faithful_search.judges.endpoint import EndpointJudge
from faithful_search.measure.evaluation import Evaluation
from faithful_search.recipes import pou
from faithful_search.recipes.condensing import build_condenser
from faithful_search.rewards import AnswerSupport, Correctness, Mix, Shuffled, SourceGated
from faithful_search.tasks import Task, load_tasks
from faithful_search.training.refusing import read_config
from faithful_search.training.runs import counterfactual_world, with_stale
from faithful_search.trajectory import read_jsonl
from faithful_search.world import bundled_world
from faithful_search.world.facts import FactsJudge

RECIPE = {
    "hack": "pou",
    "self": "self_eval",
    "rm": "reward_model",
    "eval": "evaluate",
    # baselines, whose rewards the recipe of Proof-of-Use has by name
    "deep": "pou",
    "r1": "pou",
    "search": "pou",
    "real": "pou",
}
RECIPE_BY_END = {"sft": "sft", "rejection": "rejection"}
"""Of an experiment's configurations, whose names begin with its own."""


CONFIGS = [RECIPES / "configs", ROOT / "scripts" / "studies", ROOT / "scripts" / "policies"]


def config_named(name: str) -> Path:
    [path] = [folder / f"{name}.yaml" for folder in CONFIGS if (folder / f"{name}.yaml").exists()]
    return path


@pytest.mark.parametrize(
    "path",
    [path for folder in CONFIGS for path in sorted(folder.glob("*.yaml"))],
    ids=lambda path: path.stem,
)
def test_every_configuration_is_accepted(path):
    recipe = recipe_of(path.stem)
    world = (
        ()
        if recipe == "reward_model"
        else WORLD[:2]
        if recipe in ("evaluate", "rejection", "sft")
        else WORLD
    )
    settings = parse(recipe, "--config", str(path), *world)
    given = {
        key: value for key, value in read_config(path).items() if isinstance(value, (str, int))
    }
    for key in given.keys() - {
        "questions",
        "eval_questions",
        "corpus",
        "bf16",
        "use_cpu",
        "report_to",
    }:
        found = getattr(next(item for item in settings if hasattr(item, key)), key)
        assert found == given[key] or str(getattr(found, "value", found)) == str(given[key]), key


def recipe_of(config: str) -> str:
    begins = config.partition("_")[0]
    if begins == "real":
        return RECIPE_BY_END.get(config.rpartition("_")[2], "pou")
    return "veritas" if config == "hack_veritas" else RECIPE.get(begins, begins)


def reward(*flags: str, config: str = "pou_tiny") -> Mix:
    module = recipe_module(recipe_of(config))
    script, args, _ = module.parse(["--config", str(config_named(config)), *flags])
    return (
        module.build_reward(script, args)
        if recipe_of(config) == "veritas"
        else module.build_reward(script)
    )


PT, VERITAS = "citation evidence_sensitivity answer", "exact_match info_think think_answer"
JUDGE = ("--judge", "endpoint", "--judge_url", "http://127.0.0.1:9/v1", "--judge_model", "served")


@pytest.mark.parametrize(
    ("config", "parts"),
    [
        ("pou_tiny_no_pt", "citation answer"),
        ("hack_answer_only", "correctness"),
        ("hack_source_gated", "source_gated"),
        ("hack_pou", "citation answer"),
        ("veritas_tiny_em_only", "exact_match"),
        ("veritas_tiny_info_think", "exact_match info_think"),
        ("self_eval_tiny", "correctness step_format"),
        ("self_eval_tiny_trajectory", "correctness self_rubric step_format world_rubric"),
        ("self_eval_tiny_answer_only", "self_correctness step_format"),
    ],
)
def test_each_configuration_rewards_what_it_says(config, parts):
    assert " ".join(reward(config=config).parts) == parts


def test_an_ablation_changes_one_thing():
    pou_mixes = {
        name: reward(config=f"pou_tiny{name}")
        for name in ("", "_pt", "_b2", "_no_ans", "_static_mix")
    }
    whole = {name: mix for name, mix in pou_mixes.items() if PT.split() == [*mix.parts]}
    budgets = {name: mix.parts["evidence_sensitivity"].budget for name, mix in whole.items()}
    assert budgets == {"": 1, "_pt": None, "_b2": 2}
    fixed = {name: mix.parts["answer"].fixed for name, mix in pou_mixes.items()}
    assert fixed == {**dict.fromkeys(budgets), "_no_ans": 0.0, "_static_mix": 0.5}
    assert (pou_mixes[""].outcome_name, pou_mixes["_b2"].outcome_name) == (
        "source_gated",
        "correctness",
    )
    late, whole = reward(config="veritas_tiny"), reward(config="veritas_tiny_no_curriculum")
    weights = dict(zip(VERITAS.split(), (1.0, 0.05, 0.02), strict=True))
    assert late.weights == whole.weights == late.weights_at(40) == whole.weights_at(1) == weights
    assert late.weights_at(1) == {**dict.fromkeys(weights, 0.0), "exact_match": 1.0}
    assert (late.warmup.start, late.warmup.end, late.gate, whole.warmup) == (15, 25, None, None)


def test_one_judge_is_r_anc_r_ans_and_the_writer_of_lures(monkeypatch):
    mix = reward(*CPU, *JUDGE[2:], config="pou_qwen2.5-7b")
    answer, judge = mix.parts["answer"], mix.parts["evidence_sensitivity"].writer
    assert judge is answer.process.judge is answer.outcome.judge
    assert answer.outcome.metric == "judge"
    assert (judge.url, judge.model, judge.concurrency) == ("http://127.0.0.1:9/v1", "served", 64)
    assert judge.cache == "outputs/pou_qwen2.5-7b/judge.sqlite"
    with pytest.raises(ConfigError, match="'endpoint' needs a model"):
        reward(*CPU, config="pou_qwen2.5-7b")
    script, _, _ = pou.parse([*JUDGE, "--lures", "judge", "--budget", "1"])
    monkeypatch.setattr(script, "load_judge", GroundingJudge)
    with pytest.raises(
        ConfigError, match="needs a judge that writes: --judge endpoint or generator"
    ):
        pou.build_reward(script)
    plain = (*JUDGE, "--source_gated", "false", "--budget", "1")
    mix = reward(*plain)
    assert (mix.parts["answer"].outcome.metric, mix.parts["evidence_sensitivity"].writer) == (
        "em",
        None,
    )
    for flags, kind in (
        (plain, EndpointJudge),
        ((), FactsJudge),
        (("--support_by", "words"), ContainmentJudge),
    ):
        assert isinstance(reward(*flags).parts["answer"].process.judge, kind)


@pytest.mark.parametrize("name", ["pou", "answer_only"])
def test_the_source_gate_is_before_either_correctness(name):
    supported = SourceGated(Correctness("f1"), support=AnswerSupport(FactsJudge()))
    flags = ("--source_gated_by", "support", "--correctness", "f1")
    for given, expected in (
        ((), SourceGated()),
        (flags, supported),
        (("--source_gated", "false"), Correctness()),
    ):
        mix = reward("--source_gated", "true", *given, "--reward", name)
        assert (
            mix.parts["answer"].outcome if name == "pou" else mix.parts[mix.outcome_name]
        ) == expected


def test_objectives_are_chosen_by_flags():
    mix = reward("--likelihood_gap", "--process_on_right")
    assert [*mix.parts] == [*PT.split(), "answer_likelihood_gap"]
    assert {*mix.only_right} == {*mix.parts}
    assert mix.needs_policy
    mix = reward("--reward=answer_only", "--likelihood_gap")
    assert [*mix.parts] == ["source_gated", "answer_likelihood_gap"]
    assert not [*mix.only_right]
    assert mix.needs_policy
    mix, own = reward(config="pou_tiny_shuffled"), reward(config="pou_tiny_pt")
    assert isinstance(mix.parts["evidence_sensitivity"], Shuffled)
    assert mix.parts["evidence_sensitivity"].reward == own.parts["evidence_sensitivity"]
    assert mix.parts["citation"] == own.parts["citation"]
    assert mix.needs_policy
    assert not [*mix.only_right]


def test_a_reward_of_the_literature_trains_as_published():
    mix = reward("--reward=castform", config="hack_answer_only")
    assert mix == published.load("castform")()


@pytest.mark.parametrize(
    ("config", "parts"),
    [
        ("deep_researcher_plus_qwen2.5-7b", "format correctness"),
        ("search_r1_qwen2.5-7b", "correctness"),
        ("search_r1_format_qwen2.5-7b", "search_r1_outcome"),
        ("r1_qwen2.5-7b", "correctness"),
    ],
)
def test_a_baseline_rewards_what_its_paper_does(config, parts):
    judge = JUDGE if config.startswith("deep") else ()  # whose model condenses there
    assert " ".join(reward(*judge, *WORLD, config=config).parts) == parts


def test_a_judge_that_nothing_asks_is_refused():
    with pytest.raises(ConfigError, match="exact_match asks no judge: leave --judge out"):
        reward(*JUDGE, *WORLD, config="search_r1_qwen2.5-7b")


def test_a_reward_of_the_literature_asks_the_judge():
    mix = reward(*JUDGE, "--reward=carr", config="hack_answer_only")
    assert isinstance(mix.parts["correctness"].judge, EndpointJudge)


WRITER = ("--writer_url", "http://127.0.0.1:9/v1", "--writer_model", "small")


def test_lures_are_written_by_the_writer_not_by_the_judge():
    mix = reward(*JUDGE, *WRITER, "--lures", "judge")
    assert mix.parts["evidence_sensitivity"].writer.model == "small"


def test_the_judge_writes_lures_where_there_is_no_writer():
    mix = reward(*JUDGE, "--lures", "judge")
    assert mix.parts["evidence_sensitivity"].writer.model == "served"


@pytest.mark.parametrize("recipe", ["pou", "pokee"])
def test_a_writer_condenses_without_a_judge(recipe):
    script, _, _ = parse(recipe, *WRITER, "--condense", "true")
    assert build_condenser(script).writer.model == "small"


@pytest.mark.parametrize(
    ("recipe", "flags", "says"),
    [
        ("pou", "--writer_model small --condense true", "--writer_url and --writer_model go"),
        ("pokee", " ".join(WRITER), "would have nothing to write"),
        (
            "pou",
            "--lam 0.9 --whiten false",
            "--lam 0.9 --whiten False: read with --advantages ppo only",
        ),
        (
            "pou",
            "--counterfactual_groups own",
            "--counterfactual_groups own: read with --counterfactual above 0",
        ),
        ("pou", "--source_gated false --source_gated_by support", "there is no gate"),
        ("pou", "--source_gated_by judge", "invalid choice: 'judge'"),
        ("pou", "--draws batch --reward answer_only", "invalid choice: 'batch'"),
        ("pou", "--reward answer_only --process_on_right true", "nothing but the answer"),
        ("pou", "--reward castform", "takes no --source_gated true"),
        ("pou", "--reward kastform", "there are: pou, answer_only, carr, castform"),
        ("pou", "--correctness judge", "need a judge with a model"),
        ("pou", "--stale 1.5", "in [0, 1], not 1.5"),
        ("pou", "--support false --alpha_fixed 0.5", "--alpha_fixed is R_ans's weight"),
        ("pou", "--generation_batch 0", "--generation_batch must be 1 or more, not 0"),
        ("pou", "--foils world --budget 0", "--budget is 0"),
        ("pou", f"{' '.join(JUDGE)} --lures judge --budget 0", "--budget is 0"),
        ("pou", "--shuffle_sensitivity true --reward answer_only", "--reward is answer_only"),
        ("pou", f"{' '.join(JUDGE)} --condense true --stale 0.3", "which --condense true rewrites"),
        (
            "pou",
            "--triples facts.nt --counterfactual 0.5",
            "--triples facts.nt would still say what was",
        ),
        (
            "pou",
            "--browse fetch --triples wikidata --stale 0.3",
            "--browse fetch and --triples wikidata would still",
        ),
        ("veritas", "--w_info_think nan", "weights are 0 (the part is left out) or more"),
        ("veritas", "--w_exact_match 0 --w_info_think 0 --w_think_answer 0", "one must be more"),
        ("veritas", "--curriculum_start 9 --curriculum_end 3", "start 9 and end 3"),
        ("veritas", "--curriculum_end soon", "'soon' is neither a number of steps"),
        ("veritas", "--eval_questions held_out.jsonl", "are mixed"),
        ("ppo", "--advantages trl --value_learning_rate 1e-5 --lam 1", "compare the rollouts"),
        ("ppo", "--per_device_train_batch_size 1", "two rollouts a batch"),
        ("pokee", "--correctness judge", "feedback of a model that reads"),
        ("pokee", "--format_weight -1", "at least 0"),
        (
            "self_eval",
            "--correctness judge",
            "argument --correctness: invalid choice: 'judge'",
        ),
        ("self_eval", "--corpus http://127.0.0.1:9", "are mixed"),
    ],
)
def test_flags_that_do_not_fit_are_refused(recipe, flags, says):
    with pytest.raises(ConfigError, match=re.escape(says)):
        script, args, _ = parse(recipe, *flags.split())
        build = recipe_module(recipe).build_reward
        build(script, args) if recipe == "veritas" else build(script)


def test_a_files_choices_are_checked_too(tmp_path):
    (tmp_path / "draws.yaml").write_text("draws: batch\n")
    with pytest.raises(ConfigError, match="unknown draws 'batch'; there are: rollout, question"):
        pou.parse(["--config", str(tmp_path / "draws.yaml"), *CPU])


@pytest.mark.parametrize("recipe", ["pou", "veritas", "pokee", "self_eval"])
def test_every_flag_says_what_it_does(recipe):
    settings = recipe_module(recipe).RECIPE.settings
    assert [field.name for field in fields(settings) if not field.metadata.get("help")] == []


def test_the_gauntlet_runs_what_the_recipe_trains_with():
    assert mixes.MIXES["pou_recipe"](None) == reward()


def test_a_share_of_the_questions_is_stale():
    tasks = load_tasks("world", limit=40)
    found, changed = with_stale(tasks, CounterfactualWorld(bundled_world(), 0), 0.3)
    assert changed == 12 == sum(bool(task.edits) for task in found)
    assert [task.id for task in found] == [task.id for task in tasks]
    assert all(new.edits or new == old for new, old in zip(found, tasks, strict=True))
    assert found == with_stale(tasks, CounterfactualWorld(bundled_world(), 0), 0.3)[0]
    assert found != with_stale(tasks, CounterfactualWorld(bundled_world(), 1), 0.3)[0]


def test_changed_worlds_of_a_file_are_made_of_its_annotations(tmp_path):
    people = (("Ann", "Rome"), ("Bob", "Oslo"))
    rows = [
        {"id": name, "title": name, "text": f"{name} was born in {city}."} for name, city in people
    ]
    corpus = file_of(tmp_path / "corpus.jsonl", rows)
    files = [
        "--questions",
        str(corpus),
        "--eval_questions",
        str(corpus),
        "--corpus",
        str(corpus),
        "--triples",
        "none",
    ]
    script, _, _ = pou.parse([*files, "--counterfactual", "0.5"])
    facts = [
        (name, {"evidence_triples": [[name, "place of birth", city]]}, city)
        for name, city in people
    ]
    tasks = [Task(name, "Where?", (city,), meta=meta) for name, meta, city in facts]
    changed = counterfactual_world(script, tasks, 0).changed(tasks[0])
    assert changed.edits == {"Ann was born in Rome.": "Ann was born in Oslo."}
    script, *_ = pou.parse(["--counterfactual", "0.5", "--counterfactual_groups", "own"])
    assert counterfactual_world(script, [], 0) == CounterfactualWorld(bundled_world(), 0)


def test_pou_leaves_what_it_promises(tmp_path, capsys, request):
    out = tmp_path / "pou"
    flags = [
        "--output_dir",
        str(out),
        "--save_steps=1",
        "--per_device_train_batch_size=4",
        "--gradient_accumulation_steps=1",
        "--threads=1",
    ]
    flags += ["--turns=2", "--turn_tokens=32", "--max_completion_length=300", "--num_generations=4"]
    call("pou", *flags, "--max_steps=1", "--eval_limit=2", "--eval_controls=1")
    printed = capsys.readouterr().out
    metrics = "exact_match f1 valid_format citation_validity citation_states_fact answer_support_facts verdict_gap "
    for metric in (metrics + "no_on_blank evidence_sensitivity calls tool_entropy").split():
        assert metric in printed
    plots = ("rewards.png", "tools.png", "stability.png")
    weights, table = out / "model.safetensors", out / "metrics.json"
    assert weights.stat().st_mode == table.stat().st_mode  # others may read both, or neither
    assert "evaluating 2 questions before training" in printed
    assert "evaluating 2 questions after training" in printed
    assert "How sure: 2 questions and one run" in printed
    assert f"faithful-search compare '{out}#before' '{out}#after'" in printed
    for name in (*plots, "README.md", "trajectories.jsonl", "metrics.json", "model.safetensors"):
        assert (out / name).stat().st_size > 0
    rows = list(read_jsonl(out / "trajectories.jsonl"))
    assert len(rows) == 4
    assert {"format", "citation", "answer_support", "source_gated"} <= set(rows[0].meta["scores"])
    assert all("applies" in row.meta["parts"]["citation"] for row in rows)
    metrics = json.loads((out / "metrics.json").read_text())
    assert metrics["settings"]["num_generations"] == 4
    assert metrics["settings"]["precision"].startswith("cpu, ")
    for when in ("before", "after"):
        estimate = Evaluation.from_dict(metrics[when]).rows["exact_match"]
        assert estimate.n == 2
        assert estimate.low <= estimate.value <= estimate.high
    assert {"value", "low", "high", "n"} == set(metrics["differences"]["verdict_gap"])
    assert AutoTokenizer.from_pretrained(out).chat_template
    request.getfixturevalue("undrawn")  # from here on
    call("pou", *flags, "--max_steps=2", "--eval_limit=0", "--resume=true")
    assert "step    2/2" in capsys.readouterr().out
    assert len(list(read_jsonl(out / "trajectories.jsonl"))) == 8
    before = AutoModelForCausalLM.from_pretrained(tiny_policy("memory")).float().state_dict()
    after = AutoModelForCausalLM.from_pretrained(out).state_dict()
    assert any((before[name] != after[name]).any() for name in before)


def test_pou_trains_on_rollouts_of_trls_loop(tmp_path):
    flags = "--rollouts trl --max_steps 1 --eval_limit 0 --num_generations 4 --threads 1"
    sizes = "--per_device_train_batch_size 4 --gradient_accumulation_steps 1 --turns 3"
    call("pou", "--output_dir", str(tmp_path), *flags.split(), *sizes.split())
    rows = list(read_jsonl(tmp_path / "trajectories.jsonl"))
    assert [row.meta["scores"]["evidence_sensitivity"] for row in rows] != [None] * 4
    assert json.loads((tmp_path / "metrics.json").read_text())["settings"]["rollouts"] == "trl"
    assert "response_template" not in (tmp_path / "tokenizer_config.json").read_text()


@pytest.mark.parametrize(
    "recipe", ["pou", "veritas", "self_eval", "sft", "reward_model", "evaluate"]
)
def test_a_recipe_that_cannot_begin_says_why_in_one_line(recipe, tmp_path, monkeypatch, capsys):
    (tmp_path / "file").touch()
    missing = tmp_path / "missing.yaml"
    config = ["--config", str(missing)], f"cannot read {missing}"
    folder = (
        ["--output_dir", str(tmp_path / "file" / "out"), *CPU],
        "cannot be written: Not a directory",
    )
    for flags, why in (config, folder) if recipe != "evaluate" else (config,):
        monkeypatch.setattr(sys, "argv", [f"{recipe}.py", *flags])
        with pytest.raises(SystemExit) as ended:
            runpy.run_path(str(RECIPES / f"{recipe}.py"), run_name="__main__")
        said = capsys.readouterr().err
        assert "Traceback" not in said
        assert ended.value.code == 1
        [line] = [line for line in said.splitlines() if line.startswith("error: ")]
        assert why in line


HEADER = re.compile(r"(?m)^# /// script$\s(?P<content>(^#(| .*)$\s)+)^# ///$")
"""As PEP 723 has it."""


@pytest.mark.parametrize("recipe", sorted(path.stem for path in RECIPES.glob("*.py")))
def test_a_recipe_alone_says_what_it_needs_and_runs(recipe, tmp_path):
    path = Path(shutil.copy(RECIPES / f"{recipe}.py", tmp_path / f"{recipe}_alone.py"))
    [found] = HEADER.finditer(path.read_text(encoding="utf-8"))
    told = tomllib.loads("".join(line[2:] for line in found["content"].splitlines(keepends=True)))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert told == {
        "requires-python": project["requires-python"],
        "dependencies": ["faithful-search[train]"],
    }
    assert callable(runpy.run_path(str(path), run_name=path.stem)["main"])


@pytest.mark.parametrize(
    "recipe", sorted(path.stem for path in RECIPES.glob("*.py") if path.stem != "evaluate")
)
def test_a_default_configuration_comes_with_the_package(recipe):
    assert recipe_module(recipe).DEFAULT_CONFIG.is_file()
