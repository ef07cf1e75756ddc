"""The recipes of VERITAS, self-evaluation, PokeeResearch and PPO: what they reward, the papers'
settings, runs.
"""

import json
import re
import subprocess
import sys

import estimate
import pytest
from agent_rows import CountingJudge
from paths import RECIPES, ROOT
from recipe_runs import CPU, WORLD, call, recipe_module
from stub_server import StubServer
from transformers import AutoModelForCausalLM, AutoTokenizer

from faithful_search.bundled import tiny_policy
from faithful_search.errors import ConfigError
from faithful_search.judges import GroundingJudge
from faithful_search.measure.evaluating import default_rewards, evaluate_rollouts
from faithful_search.measure.evaluation import MERGED, Evaluation
from faithful_search.recipes import pokee, pou, ppo, self_eval, veritas
from faithful_search.rewards import Mix, Warmup
from faithful_search.tasks import load_tasks
from faithful_search.training.arguments import PPOSettings
from faithful_search.training.dry_run import build_shrunk
from faithful_search.training.refusing import read_config
from faithful_search.trajectory import Evidence, Step, ToolCall, Trajectory, read_jsonl

NODDING = CountingJudge(name="nodding")
"""A judge with a model's name that upholds everything."""


def parsed(recipe, config: str, *flags: str):
    return recipe.parse(["--config", str(RECIPES / "configs" / f"{config}.yaml"), *flags])


def reward(*flags: str, judge=None) -> Mix:
    script, args, _ = veritas.parse([*flags])
    return veritas.build_reward(script, args, judge)


FILES = (
    "--questions",
    "train.jsonl",
    "--eval_questions",
    "test.jsonl",
    "--corpus",
    "http://127.0.0.1:9",
)


def test_pokee_is_rloo_without_kl_and_checks_its_answers():
    script, args, _ = parsed(pokee, "pokee_tiny")
    assert script.verify
    assert script.limits(100).verify
    assert script.dialect == "pokee"
    assert (args.advantages, args.beta, args.loss_type) == ("leave_one_out", 0.0, "dr_grpo")
    mix = pokee.build_reward(script)
    assert mix.weights == {"correctness": 1.0, "format": 0.1}
    assert mix.parts["correctness"].metric == "em"
    script, _, _ = parsed(
        pokee, "pokee_qwen2.5-7b", *CPU, *FILES[:4], "--judge_model", "m", "--use_vllm", "false"
    )
    answered = Trajectory(
        (Step("so", answer="a dozen"),), "How many?", "a dozen", dialect="pokee", answers=("12",)
    )
    assert pokee.build_reward(script, NODDING).score(answered).value == pytest.approx(1.1)


def test_ppos_default_asks_each_question_once():
    _, args, _ = ppo.parse([])
    assert (args.num_generations, args.num_iterations, args.per_device_train_batch_size) == (
        1,
        2,
        32,
    )
    assert args.lam == 0.95
    assert args.beta == 0.0
    assert not args.value_trunk
    _, args, _ = ppo.parse(
        ["--per_device_train_batch_size", "7", "--per_device_eval_batch_size", "3"]
    )
    assert (args.num_generations, args.num_generations_eval, args.generation_batch_size) == (
        1,
        1,
        7,
    )
    _, args, _ = parsed(ppo, "ppo_qwen2.5-7b", *CPU, *WORLD)  # Search-R1's
    assert (args.kl_in_reward, args.value_trunk, 32 * args.per_device_train_batch_size) == (
        True,
        True,
        256,
    )


def test_self_evaluation_trains_the_adapter_that_learnt_to_score():
    script, args, model = parsed(self_eval, "self_eval_qwen2.5-7b", *CPU, *FILES)
    mix = self_eval.build_reward(script)
    assert mix.weights == {"self_correctness": 0.5, "self_rubric": 1.0, "step_format": 0.2}
    assert (mix.gate, mix.outcome_name, mix.parts["self_rubric"].temperature) == (
        None,
        "self_correctness",
        0.1,
    )
    assert model.load_in_4bit
    assert not model.use_peft
    assert args.per_device_train_batch_size * args.gradient_accumulation_steps == 32 * 5


def test_veritas_curriculum_is_in_epochs_or_steps():
    script, args, _ = parsed(
        veritas, "veritas_qwen2.5-7b", *CPU, *WORLD, "--judge_url", "http://127.0.0.1:9"
    )
    assert (
        32 * args.per_device_train_batch_size * args.gradient_accumulation_steps
        == 256 * args.num_generations
    )
    limits = script.limits(args.max_completion_length)
    assert (limits.turns, limits.turn_tokens, limits.observation_tokens, limits.force_answer) == (
        5,
        500,
        500,
        True,
    )
    mix = veritas.build_reward(script, args, script.load_judge())
    assert mix.parts["info_think"].judge.url == "http://127.0.0.1:9"
    assert mix.parts["think_answer"].judge is None
    epoch = len(load_tasks("world")) // (args.generation_batch_size // 5)
    assert mix.warmup == Warmup(("info_think", "think_answer"), epoch, int(1.5 * epoch + 0.5))
    steps = (
        "--curriculum_start",
        str(len(load_tasks("world_pairs")) // 4),
        "--curriculum_end",
        "1.5ep",
    )
    assert reward(*steps).warmup == reward("--curriculum_start", "1.0ep", *steps[2:]).warmup
    assert reward("--curriculum_start", "0", "--curriculum_end", "0").warmup is None


# --- what the evaluations report

JUDGED = [
    "info_think_faithfulness",
    "think_search_faithfulness",
    "think_answer_sub_em",
    "think_answer_faithfulness",
]


def test_rows_of_proof_of_use_are_for_its_dialect():
    show = ["decorated", "answer_first"]
    common, judged = (
        ["exact_match", "f1", "valid_format", *show],
        ["exact_match", "f1", "lm_accuracy", "valid_format"],
    )
    own = ["citation_validity", "evidence_sensitivity", "evidence_sensitivity_unseen"]
    by_words = [*common, "info_think_lexical", "think_search_lexical", "think_answer_sub_em"]
    assert list(default_rewards()) == [*common, *own, "answer_support_containment"]
    assert (
        list(default_rewards("search_r1"))
        == list(default_rewards("search_r1", GroundingJudge()))
        == by_words
    )
    assert list(default_rewards("search_r1", NODDING)) == [*judged, *show, *JUDGED]
    stated = ["answer_support", "citation_states_fact", "verdict_gap"]
    assert list(default_rewards("pou", NODDING)) == [*judged, *show, *own, *stated, *JUDGED]


def looked_up(think="It lies in Paris.", answer="Paris", reason="answered"):
    looked = ToolCall("search", {"query": "where is the tower"})
    found = (Evidence("The tower lies in Paris.", id="E1"),)
    steps = (
        Step(think="Where is the tower?", call=looked, evidence=found),
        Step(think=think, answer=answer),
    )
    about = {
        "question": "Where is the tower?",
        "answers": ("Paris",),
        "dialect": "search_r1",
        "stop_reason": reason,
    }
    return Trajectory(steps=steps, answer=answer, **about)


ROLLOUTS = [looked_up(), looked_up("I like elephants.", reason="answered_forced")]
ROLLOUTS += [
    looked_up(answer="London", reason="turn_limit"),
    looked_up(answer="", reason="answered_forced"),
]


@pytest.mark.parametrize("judge", [None, NODDING])
def test_the_metric_is_the_reward_on_the_same_text(judge):
    mix, metrics = (
        reward("--w_think_search", "0.1", "--soft", "true", judge=judge),
        default_rewards("search_r1", judge),
    )
    if judge is not None:
        assert mix.parts["info_think"].judge is mix.parts["think_search"].judge is judge
        assert mix.parts["info_think"].soft
        assert not metrics["info_think_faithfulness"].soft
    found = evaluate_rollouts(ROLLOUTS, list("abcd"), metrics, ["search"])
    named = {
        part: f"{part}_{'faithfulness' if judge else 'lexical'}"
        for part in ("info_think", "think_search")
    }
    rows = {part: found.values[name] for part, name in named.items()}
    rows |= {
        "think_answer": found.values["think_answer_sub_em"],
        "exact_match": found.values["exact_match"],
    }
    components = reward("--w_think_search", "0.1", judge=judge).components(ROLLOUTS)
    assert {name: [row[name].value for row in components] for name in rows} == rows
    assert rows["think_answer"][3] is None
    assert "tool_entropy" not in found.rows
    assert judge or rows["info_think"] == [1.0, 0.0, 1.0, 1.0]


def test_forced_answers_have_a_row_where_they_are_forced():
    found = evaluate_rollouts(ROLLOUTS, list("abcd"), {}, ["search"], forced=True).rows
    shares = {"answered": 0.25, "answered_forced": 0.5, "calls": 1.0}
    assert {name: row.value for name, row in found.items()} == shares
    assert found["answered_forced"].high < 1
    assert "answered_forced" not in evaluate_rollouts(ROLLOUTS, list("abcd"), {}, ["search"]).rows


# --- what a run leaves

SMALL = (
    "--per_device_train_batch_size=4",
    "--gradient_accumulation_steps=1",
    "--turns=2",
    "--turn_tokens=32",
    "--max_completion_length=300",
)
SMALL = (*SMALL, "--threads=1", "--eval_controls=0")


def test_two_steps_of_veritas_leave_what_they_promise(tmp_path, capsys, undrawn):
    out = tmp_path / "veritas"
    flags = ("--max_steps=2", "--num_generations=4", "--eval_limit=2", "--save_strategy=no")
    late = ("--curriculum_start=1", "--curriculum_end=3")
    found = call("veritas", "--output_dir", str(out), *SMALL, *flags, *late)
    printed = capsys.readouterr().out
    for metric in (
        "exact_match",
        "info_think_lexical",
        "think_answer_sub_em",
        "answered_forced",
        "calls",
    ):
        assert metric in printed
    assert "citation_validity" not in printed
    assert "evidence_sensitivity" not in printed
    rows = list(read_jsonl(out / "trajectories.jsonl"))
    assert len(rows) == 8
    assert {row.dialect for row in rows} == {"search_r1"}
    assert set(rows[0].meta["scores"]) == {"exact_match", "info_think", "think_answer"}
    history = [row for row in json.loads((out / "history.json").read_text()) if "reward" in row]
    assert [row["parts/info_think/weight"] for row in history] == pytest.approx([0.0, 0.025])
    assert [row["parts/exact_match/weight"] for row in history] == [1.0, 1.0]
    assert all(0 <= row["ended/answered_forced"] <= 1 for row in history)
    metrics = json.loads((out / "metrics.json").read_text())
    assert metrics == found
    assert metrics["steps"] == 2
    assert Evaluation.from_dict(metrics["after"]).rows["exact_match"].n == 2
    card = (out / "README.md").read_text()
    assert "accelerate launch recipes/veritas.py --output_dir" in card
    assert "Information-think overlap of words" in card
    assert "environment.limits(total_tokens=300)" in card
    assert "RESULT" not in card
    [made] = re.findall(r"EnvironmentArguments\((.*)\)", card)
    assert {"turns=2", "turn_tokens=32", "kept_responses=1", "dialect='search_r1'"} <= set(
        made.split(", ")
    )


@pytest.mark.slow
@pytest.mark.parametrize("allowed", [0.5, 1.0])
def test_a_silent_judge_stops_the_run_with_a_checkpoint(tmp_path, allowed):
    with StubServer(mode="error") as server:
        judge = [
            "--judge=endpoint",
            "--judge_model=stub",
            f"--judge_url={server.url}",
            "--judge_cache=none",
        ]
        late = [
            "--curriculum_start=0",
            "--curriculum_end=0",
            f"--output_dir={tmp_path}",
            "--max_steps=3",
        ]
        late += ["--num_generations=4", "--eval_limit=0", f"--max_abstained={allowed}"]
        command = [sys.executable, "recipes/veritas.py", *SMALL, *judge, *late]
        done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == (allowed == 0.5)
    assert "Traceback" not in done.stderr
    rows = list(read_jsonl(tmp_path / "trajectories.jsonl"))
    assert any(
        "500: out of memory" in reason for row in rows for reason in row.meta["reasons"].values()
    )
    if allowed == 1.0:
        assert len(rows) == 12
        return
    last = done.stderr.splitlines()[-1]
    assert last.startswith("error: at step 1 ")
    assert "info_think" in last
    assert "max_abstained=0.5" in last
    assert (tmp_path / "checkpoint-1").is_dir()
    assert len(rows) == 4


PPO = ("--advantages=ppo", "--eval_limit=0", "--num_generations=4")
LORA = ("--use_peft=true", "--lora_target_modules=all-linear", "--save_merged=true")
LORA = (*LORA, "--reward=answer_only", "--eval_limit=0", "--num_generations=4")
PAPER = f"--config={RECIPES / 'configs' / 'self_eval_tiny_paper.yaml'}"
RUBRIC = {"parts/self_rubric", "parts/world_rubric", "parts/self_rubric/abstained"}


@pytest.mark.parametrize(
    ("recipe", "flags", "dialect", "logged"),
    [
        ("ppo", ("--eval_limit=0",), "search_r1", {"value/loss", "value/explained"}),
        (
            "pokee",
            ("--eval_limit=0", "--num_generations=2"),
            "pokee",
            {"parts/correctness", "parts/format"},
        ),
        ("self_eval", (PAPER, "--eval_limit=1", "--num_generations=2"), "self_eval", RUBRIC),
        pytest.param("pou", LORA, "pou", {"parts/source_gated"}, marks=pytest.mark.slow),
        pytest.param("pou", PPO, "pou", {"value/loss", "verdict_term"}, marks=pytest.mark.slow),
    ],
)
def test_a_step_of_each_recipe_logs_what_it_rewards(
    recipe, flags, dialect, logged, tmp_path, undrawn
):
    found = call(
        recipe, *flags, f"--output_dir={tmp_path}", *SMALL, "--max_steps=1", "--save_strategy=no"
    )
    assert found["steps"] == 1
    assert found["settings"]["dialect"] == dialect
    rows = list(read_jsonl(tmp_path / "trajectories.jsonl"))
    assert len(rows) == 4
    assert all(row.dialect == dialect and row.meta["scores"] for row in rows)
    [line] = [row for row in json.loads((tmp_path / "history.json").read_text()) if "reward" in row]
    assert logged <= line.keys()
    merged, adapter = tmp_path / MERGED, tmp_path / "adapter_config.json"
    assert ((merged if flags == LORA else tmp_path) / "model.safetensors").exists()
    assert adapter.exists() == merged.exists() == (flags == LORA)
    assert ("value/loss" in logged) == (
        {*PPOSettings.__dataclass_fields__} <= found["settings"].keys()
    )
    if recipe == "self_eval":
        assert {"self_rubric", "self_correctness", "world_rubric"} <= found["after"]["rows"].keys()
        assert json.loads((tmp_path / "errors.json").read_text()).keys() == {"before", "after"}


# --- the papers' sizes, on a CPU


@pytest.mark.parametrize("name", ["pou_qwen2.5-7b", "ppo_qwen2.5-7b", "self_eval_qwen2.5-7b"])
def test_the_papers_loss_is_a_mean_over_rollouts(name):
    settings = read_config(RECIPES / "configs" / f"{name}.yaml")
    assert settings["loss_type"] == "grpo"
    assert "beta" in settings


JUDGE = ("--judge_url", "http://127.0.0.1:9/v1", "--judge_model", "NAME")
DATA = ("--questions", "train.jsonl.gz", "--eval_questions", "test.jsonl.gz")
FAST = "pou_qwen2.5-7b"
SLOW = (
    *("pou_qwen2.5-7b_lora", "pou_qwen2.5-0.5b", "pou_smollm2-135m"),
    *("veritas_qwen2.5-7b", "ppo_qwen2.5-7b", "pokee_qwen2.5-7b", "self_eval_qwen2.5-7b"),
)
ASKS_NOBODY = ("pou_qwen2.5-0.5b", "pou_smollm2-135m", "self_eval_qwen2.5-7b")
"""Configurations whose rewards need no judge."""
MAY_BE_REPLACED = {
    *("output_dir", "model_name_or_path", "load_in_4bit", "use_vllm", "judge", "tool_cache"),
    *("web_search", "browse", "triples", "corpus", "eval_split", "eval_limit", "rubric_tokens"),
    *("turn_tokens", "max_steps", "max_completion_length", "gradient_accumulation_steps"),
}


@pytest.mark.parametrize(
    "name", [FAST, *(pytest.param(name, marks=pytest.mark.slow) for name in SLOW)]
)
def test_a_large_configuration_runs_dry(tmp_path, monkeypatch, capsys, undrawn, name):
    """The command of its header, shrunk: what a CPU has not is replaced and said, all else reaches
    the real classes.
    """
    monkeypatch.chdir(tmp_path)
    path = RECIPES / "configs" / f"{name}.yaml"
    recipe = name[: name.index("_eval") + 5] if "_eval" in name else name.partition("_")[0]
    main, settings = recipe_module(recipe).main, read_config(path)
    given = () if name in ASKS_NOBODY else JUDGE
    if not name.startswith("pokee"):  # which searches the web
        given = (*given, "--corpus", "corpus.jsonl.gz")
    if name == FAST:
        given = (*given, "--eval_limit", "0", "--num_generations", "2")
        del settings["eval_limit"], settings["num_generations"]
    found = main(["--config", str(path), *DATA, *given, "--dry_run", "true", "--threads", "1"])
    out = tmp_path / "outputs" / f"{name}_dry_run"
    printed = capsys.readouterr().out
    said = dict(re.findall(r"^  (\w+) +(.* -> .*)$", printed, re.MULTILINE))
    assert said["questions"].startswith("train.jsonl.gz -> world")
    assert said["max_steps"].endswith(" -> 2")
    assert found["steps"] == 2
    assert not (tmp_path / "outputs" / name).exists()
    kept = {
        key: value
        for key, value in found["settings"].items()
        if key in settings and key not in said
    }
    assert kept
    assert all(kept[key] == settings[key] for key in kept)
    assert_everything_was_reached(printed)
    if name != FAST:
        assert int(re.search(r"dry run: (\d+) scripted turns", printed)[1]) >= 200
    config = json.loads((out / "random_model" / "config.json").read_text())
    assert config["num_hidden_layers"] == 2
    assert config["num_key_value_heads"] == 2
    adapter = name.endswith("_lora") or name.startswith("self_eval")
    assert (out / "adapter_config.json").exists() == adapter
    assert (out / MERGED).exists() == name.endswith("_lora")
    assert said.keys() & settings.keys() <= MAY_BE_REPLACED


def assert_everything_was_reached(printed: str) -> None:
    """All turns of a dry run were valid, tools were called, and each reward had a value."""
    turns = re.search(r"scripted turns, (\d+) of them in \d+ rollouts of training, (\d+)", printed)
    assert turns[1] == turns[2]
    assert "rewards without any value" not in printed
    assert re.search(r"  calls: .* \d+", printed)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("recipe", "name", "flags"),
    [
        ("sft", "sft_qwen2.5-7b", ("--trajectories", "written.jsonl.gz")),
        ("sft", "sft_self_eval_qwen2.5-7b", ("--rubric_files", "scored.jsonl.gz")),
        ("sft", "sft_smollm2-135m", ("--questions", "musique.jsonl.gz", "2wiki.jsonl.gz")),
        ("sft", "real_smollm2-135m_sft", ("--questions", "2wiki.gz", "hotpotqa.gz", "musique.gz")),
        ("reward_model", "rm_qwen2.5-14b", ("--pairs", "outputs/labels")),
        ("reward_model", "rm_mpnet", ("--pairs", "a.jsonl.gz", "b.jsonl.gz")),
    ],
)
def test_supervised_starts_and_judges_run_dry(tmp_path, monkeypatch, recipe, name, flags):
    monkeypatch.chdir(tmp_path)
    call(recipe, "--config", f"{name}.yaml", *flags, "--dry_run", "true", "--threads", "1")
    out = tmp_path / "outputs" / f"{name}_dry_run"
    assert (out / "README.md").exists()
    assert not (tmp_path / "outputs" / name).exists()


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (
            ("--num_generations", "5"),
            "generation_batch_size",
        ),  # 5 rows a group would be made whole by the replacements
        (("--max_stepz", "3"), "no such flag: --max_stepz"),
        (("--load_in_4bit", "true"), "--load_in_4bit true with --use_vllm true"),
        (
            ("--model_name_or_path", "someone/unheard-of"),
            "architecture of 'someone/unheard-of' is not known",
        ),
        (
            ("--vllm_tensor_parallel_size", "2"),
            "vllm_tensor_parallel_size",
        ),  # though vLLM is left out
    ],
)
def test_a_dry_run_hides_nothing_that_the_real_run_would_refuse(tmp_path, monkeypatch, flags, said):
    monkeypatch.chdir(tmp_path)
    given = [
        "--config",
        str(RECIPES / "configs" / "pou_qwen2.5-7b.yaml"),
        "--dry_run",
        "true",
        *flags,
    ]
    with pytest.raises(ConfigError, match=said):
        pou.parse(given)


def test_the_estimate_in_each_header_is_what_the_script_says():
    rollouts = ("pou_qwen2.5-7b", "pou_qwen2.5-7b_lora", "pou_qwen2.5-0.5b", "ppo_qwen2.5-7b")
    for name in (*rollouts, "sft_qwen2.5-7b"):
        header = (
            (RECIPES / "configs" / f"{name}.yaml")
            .read_text(encoding="utf-8")
            .replace(" \\\n#    ", "")
        )
        flags = re.search(r"python scripts/estimate\.py recipes/(\S+)(.*)", header)
        lines = estimate.main([str(RECIPES / flags[1]), *flags[2].split()])
        assert "".join(f"#   {line}\n" for line in lines) in header
        total, room = map(float, re.search(r"memory: ([\d.]+) GB of (\d+)", header).groups())
        assert total < 0.9 * room


CONFIGURATIONS = sorted((RECIPES / "configs").glob("*.yaml"))


@pytest.mark.parametrize("path", CONFIGURATIONS, ids=lambda path: path.stem)
def test_every_configuration_has_an_estimate(path):
    first, *lines = estimate.main([str(path), "--judge-prices", "0.15,0.6"])
    assert re.fullmatch(r"memory: [\d.]+ GB of 80", first)
    assert any(line.startswith("time of a step:") for line in lines)
    assert any(line.startswith("services:") for line in lines)


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("pokee_qwen2.5-7b", "512 rollouts x (1 answer + 3 condensing); in all 286,720, price 62"),
        ("pokee_qwen2.5-7b", "512 rollouts x 3 calls x 3, half of them to other tools"),
        ("pou_qwen2.5-7b", "(1 answer + 1 claims + 1 support + 1 lure + 3 condensing)"),
        ("veritas_qwen2.5-7b", "(3 info_think)"),
        ("self_eval_qwen2.5-7b", "0.081 B x 16 bytes"),
        ("sft_self_eval_qwen2.5-7b", "7.616 B x 0.56 bytes"),
    ],
)
def test_an_estimate_counts_what_the_recipe_asks(name, says):
    flags = ["--gpus", "8", "--judge-prices", "0.15,0.6"]
    lines = estimate.main([str(RECIPES / "configs" / f"{name}.yaml"), *flags])
    assert any(says in line for line in lines)


@pytest.mark.parametrize("name", ["pokee_qwen2.5-7b", "veritas_qwen2.5-7b", "sft_qwen2.5-7b"])
def test_probes_are_those_of_proof_of_use_alone(name):
    lines = estimate.main([str(RECIPES / "configs" / f"{name}.yaml")])
    assert not any("probing" in line or "sensitivity" in line for line in lines)


@pytest.mark.parametrize(
    ("name", "batches"),
    [
        ("pou_qwen2.5-7b", (2, 32)),
        ("pokee_qwen2.5-7b", (1, 64)),
        ("veritas_qwen2.5-7b", (8, 25)),
        ("ppo_qwen2.5-7b", (8, 5)),
    ],
)
def test_the_guides_batches_for_six_gpus_hold_whole_groups(name, batches):
    accelerate = read_config(RECIPES / "accelerate" / "zero3_six_of_eight.yaml")
    settings = read_config(RECIPES / "configs" / f"{name}.yaml")
    rows = accelerate["num_processes"] * batches[0] * batches[1]
    guide = (ROOT / "docs" / "scaling.md").read_text(encoding="utf-8")
    groups = settings["num_generations"]
    assert rows % groups == 0
    assert f"{rows // groups} × {groups}" in guide
    assert len(accelerate["gpu_ids"].split(",")) == accelerate["num_processes"]


def test_a_model_here_is_shrunk_with_its_own_tokenizer(tmp_path):
    path = build_shrunk(str(tiny_policy()), tmp_path / "small")
    config = AutoModelForCausalLM.from_pretrained(path).config
    assert (config.model_type, config.num_hidden_layers, config.vocab_size) == ("llama", 2, 3031)
    own = AutoTokenizer.from_pretrained(tiny_policy())
    assert AutoTokenizer.from_pretrained(path).chat_template == own.chat_template
