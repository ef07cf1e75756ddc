"""The recipes of VERITAS, self-evaluation, PokeeResearch and PPO: what they reward, the papers' settings, runs."""

import json
import re
import subprocess
import sys
import time
from pathlib import Path

import pokee
import pou
import ppo
import pytest
import self_eval
import sft
import veritas
from paths import RECIPES, ROOT
from recipe_runs import CPU, WORLD, call, run
from safetensors import safe_open
from safetensors.torch import load_file
from stub_server import StubServer

from faithful_search.coldstart.tiny import TinyConfig, build_tiny
from faithful_search.judges import GroundingJudge, Verdict
from faithful_search.measure.evaluation import Evaluation
from faithful_search.measure.suite import default_rewards, evaluate_rollouts
from faithful_search.rewards import Mix, Warmup
from faithful_search.tasks import load_tasks
from faithful_search.training.arguments import PPOSettings
from faithful_search.trajectory import Evidence, Step, ToolCall, Trajectory, read_jsonl


class Nodding:
    """A judge with a model's name that upholds everything."""

    name = "nodding"

    def judge_batch(self, pairs):
        return [Verdict(0.75, True, "", self.name) for _ in pairs]


def parsed(recipe, config: str, *flags: str):
    return recipe.parse(["--config", str(RECIPES / "configs" / f"{config}.yaml"), *flags])


def reward(*flags: str, judge=None) -> Mix:
    script, args, _ = veritas.parse([*flags])
    return veritas.build_reward(script, args, judge)


def test_pokees_default_is_rloo_without_kl_and_checks_its_answers():
    script, args, _ = parsed(pokee, "pokee_tiny")
    assert script.verify and script.limits(100).verify and script.dialect == "pokee"
    assert (args.advantages, args.beta, args.loss_type) == ("leave_one_out", 0.0, "dr_grpo")
    mix = pokee.build_reward(script)
    assert mix.weights == {"correctness": 1.0, "format": 0.1} and mix.parts["correctness"].metric == "em"


def test_ppos_default_asks_each_question_once():
    script, args, _ = ppo.parse([])
    assert (args.num_generations, args.num_iterations, args.per_device_train_batch_size) == (1, 2, 32)
    assert args.lam == 0.95 and args.beta == 0.0 and not args.value_trunk
    weights = {"exact_match": 1.0, "info_think": 0.05, "think_answer": 0.02}
    assert veritas.build_reward(script, args).weights == weights
    _, args, _ = ppo.parse(["--per_device_train_batch_size", "7", "--per_device_eval_batch_size", "3"])
    assert (args.num_generations, args.num_generations_eval, args.generation_batch_size) == (1, 1, 7)


@pytest.mark.parametrize(
    ("config", "weights", "late"),
    [
        ("veritas_pairs", {"exact_match": 1.0, "info_think": 0.05, "think_answer": 0.02}, None),
        ("veritas_tiny", {"exact_match": 1.0, "info_think": 0.05, "think_answer": 0.02}, (15, 25)),
        ("veritas_tiny_em_only", {"exact_match": 1.0}, (15, 25)),
        ("veritas_tiny_info_think", {"exact_match": 1.0, "info_think": 0.05}, (15, 25)),
        ("veritas_tiny_no_curriculum", {"exact_match": 1.0, "info_think": 0.05, "think_answer": 0.02}, None),
    ],
)
def test_each_ablation_of_veritas_changes_what_it_says(config, weights, late):
    mix = reward("--config", str(RECIPES / "configs" / f"{config}.yaml"))
    assert mix.weights == weights and mix.gate is None
    assert (mix.warmup and (mix.warmup.start, mix.warmup.end)) == late
    first = {name: 0.0 if late and name != "exact_match" else weight for name, weight in weights.items()}
    assert (mix.weights_at(1), mix.weights_at(40)) == (first, weights)


@pytest.mark.parametrize(
    ("config", "weights"),
    [
        ("", {"correctness": 1.0, "step_format": 0.2}),
        ("_trajectory", {"correctness": 0.5, "self_rubric": 1.0, "step_format": 0.2, "world_rubric": 0.0}),
        ("_paper", {"self_correctness": 0.5, "self_rubric": 1.0, "step_format": 0.2, "world_rubric": 0.0}),
        ("_answer_only", {"self_correctness": 1.0, "step_format": 0.2}),
    ],
)
def test_each_configuration_of_self_evaluation_rewards_what_it_says(config, weights):
    script, _, _ = parsed(self_eval, f"self_eval_tiny{config}")
    mix = self_eval.build_reward(script)
    assert mix.weights == weights and mix.gate is None and mix.outcome == next(iter(weights))
    rubric = mix.parts.get("self_rubric")
    assert rubric is None or (rubric.temperature, rubric.reply_tokens) == (0.1, 40)
    assert set(self_eval.build_metrics(script)) == {"self_rubric", "self_correctness", "world_rubric"}


def test_veritas_is_a_configuration():
    script, args, model = parsed(veritas, "veritas_qwen2.5-7b", *CPU, *WORLD, "--judge_url", "http://127.0.0.1:9")
    assert (args.learning_rate, args.beta, args.temperature, args.num_generations) == (1e-6, 0.001, 1.0, 5)
    assert model.model_name_or_path == "Qwen/Qwen2.5-7B" and script.search_top_k == 3
    assert 32 * args.per_device_train_batch_size * args.gradient_accumulation_steps == 256 * args.num_generations
    limits = script.limits(args.max_completion_length)
    assert (limits.turns, limits.turn_tokens, limits.observation_tokens, limits.force_answer) == (5, 500, 500, True)
    mix = veritas.build_reward(script, args, script.load_judge())
    assert mix.weights == {"exact_match": 1.0, "info_think": 0.05, "think_answer": 0.02}
    assert mix.parts["info_think"].judge.url == "http://127.0.0.1:9" and mix.parts["think_answer"].judge is None
    questions = len(load_tasks("world")) // (args.generation_batch_size // 5)
    assert (mix.warmup.start, mix.warmup.end) == (questions, int(1.5 * questions + 0.5))


def test_search_r1s_ppo_is_a_configuration():
    _, args, _ = parsed(ppo, "ppo_qwen2.5-7b", *CPU, *WORLD)
    assert (args.learning_rate, args.value_learning_rate, args.beta, args.epsilon) == (1e-6, 1e-5, 0.001, 0.2)
    assert (args.gamma, args.lam, args.kl_in_reward, args.value_trunk) == (1.0, 1.0, True, True)
    assert (args.num_generations, 32 * args.per_device_train_batch_size) == (1, 256)


def test_self_evaluation_is_a_configuration():
    data = ("--questions", "train.jsonl", "--eval_questions", "test.jsonl", "--corpus", "http://127.0.0.1:9")
    script, args, model = parsed(self_eval, "self_eval_qwen2.5-7b", *CPU, *data)
    assert (args.learning_rate, args.beta, args.temperature, args.num_generations) == (1e-6, 0.0, 0.7, 5)
    assert args.per_device_train_batch_size * args.gradient_accumulation_steps == 32 * 5
    assert (args.max_steps, args.max_completion_length, script.turns, script.turn_tokens) == (125, 6144, 10, 1024)
    assert model.load_in_4bit and not model.use_peft  # the adapter that learnt to score is trained on
    mix = self_eval.build_reward(script)
    assert mix.weights == {"self_correctness": 0.5, "self_rubric": 1.0, "step_format": 0.2}
    assert mix.parts["self_rubric"].temperature == mix.parts["self_correctness"].temperature == 0.1
    script, args, model = parsed(sft, "sft_self_eval_qwen2.5-7b", *CPU)
    assert model.load_in_4bit and model.use_peft
    assert (model.lora_r, model.lora_alpha, args.num_train_epochs) == (32, 32, 3)
    assert sft.chosen(script, "rubric").held_out == 500 and script.dialect == "self_eval"


def test_pokee_asks_a_judge_about_the_answer():
    data = ("--questions", "q.jsonl", "--eval_questions", "e.jsonl", "--judge_model", "m", "--use_vllm", "false")
    script, args, _ = parsed(pokee, "pokee_qwen2.5-7b", *CPU, *data)
    assert (args.learning_rate, args.max_steps, args.num_generations, script.turns) == (3e-6, 140, 8, 100)
    mix = pokee.build_reward(script, Nodding())
    answered = Trajectory((Step("so", answer="a dozen"),), "How many?", "a dozen", dialect="pokee", answers=("12",))
    assert mix.score(answered).value == pytest.approx(1.1)


def test_epochs_and_steps_write_the_same_curriculum():
    epoch = len(load_tasks("world_pairs")) // 4
    written = reward("--curriculum_start", "1.0ep", "--curriculum_end", "1.5ep").warmup
    assert written == reward("--curriculum_start", str(epoch), "--curriculum_end", str(int(1.5 * epoch + 0.5))).warmup
    assert isinstance(written, Warmup) and written.parts == ("info_think", "think_answer")
    assert reward("--curriculum_start", "0", "--curriculum_end", "0").warmup is None


# --- what the evaluations report

JUDGED = ["info_think_faithfulness", "think_search_faithfulness", "think_answer_sub_em", "think_answer_faithfulness"]


def test_rows_say_who_judged_and_proof_of_uses_are_for_its_dialect():
    show = ["decorated", "answer_first"]
    common, judged = ["exact_match", "f1", "valid_format", *show], ["exact_match", "f1", "lm_accuracy", "valid_format"]
    own = ["citation_validity", "evidence_sensitivity", "evidence_sensitivity_unseen"]
    by_words = [*common, "info_think_lexical", "think_search_lexical", "think_answer_sub_em"]
    assert list(default_rewards()) == [*common, *own, "answer_support_lexical"]
    assert list(default_rewards("search_r1")) == list(default_rewards("search_r1", GroundingJudge())) == by_words
    assert list(default_rewards("search_r1", Nodding())) == [*judged, *show, *JUDGED]
    stated = ["answer_support", "citation_states_fact", "verdict_gap"]
    assert list(default_rewards("pou", Nodding())) == [*judged, *show, *own, *stated, *JUDGED]


def looked_up(think="It lies in Paris.", answer="Paris", reason="answered"):
    looked = ToolCall("search", {"query": "where is the tower"})
    found = (Evidence("The tower lies in Paris.", id="E1"),)
    steps = (Step(think="Where is the tower?", call=looked, evidence=found), Step(think=think, answer=answer))
    about = {"question": "Where is the tower?", "answers": ("Paris",), "dialect": "search_r1", "stop_reason": reason}
    return Trajectory(steps=steps, answer=answer, **about)


REASONS = ("answered", "answered_forced", "turn_limit", "answered_forced")
ROLLOUTS = [
    looked_up(),
    looked_up("I like elephants.", reason=REASONS[1]),
    looked_up(answer="London", reason=REASONS[2]),
]
ROLLOUTS += [looked_up(answer="", reason=REASONS[3])]


@pytest.mark.parametrize("judge", [None, Nodding()])
def test_the_metric_is_the_reward_on_the_same_text(judge):
    mix, metrics = reward("--w_think_search", "0.1", "--soft", "true", judge=judge), default_rewards("search_r1", judge)
    if judge is not None:
        assert mix.parts["info_think"].judge is mix.parts["think_search"].judge is judge
        assert mix.parts["info_think"].soft and not metrics["info_think_faithfulness"].soft
    found = evaluate_rollouts(ROLLOUTS, list("abcd"), metrics, ["search"])
    named = {part: f"{part}_{'faithfulness' if judge else 'lexical'}" for part in ("info_think", "think_search")}
    rows = {part: found.values[name] for part, name in named.items()}
    rows |= {"think_answer": found.values["think_answer_sub_em"], "exact_match": found.values["exact_match"]}
    components = reward("--w_think_search", "0.1", judge=judge).components(ROLLOUTS)
    assert {name: [row[name].value for row in components] for name in rows} == rows
    assert rows["think_answer"][3] is None and "tool_entropy" not in found.rows
    assert judge or rows["info_think"] == [1.0, 0.0, 1.0, 1.0]


def test_forced_answers_have_a_row_where_they_are_forced():
    found = evaluate_rollouts(ROLLOUTS, list("abcd"), {}, ["search"], forced=True).rows
    shares = {"answered": 0.25, "answered_forced": 0.5, "calls": 1.0}
    assert {name: row.value for name, row in found.items()} == shares and found["answered_forced"].high < 1
    assert "answered_forced" not in evaluate_rollouts(ROLLOUTS, list("abcd"), {}, ["search"]).rows


# --- what a run leaves

SMALL = ("--per_device_train_batch_size=8", "--threads=1", "--eval_limit=0")
SHORT = ("--max_steps=2", "--eval_limit=2", "--eval_controls=0", "--threads=1")


def test_two_steps_of_veritas_leave_what_they_promise(tmp_path, capsys):
    out = tmp_path / "veritas"
    small = (*SMALL, *SHORT, "--save_steps=2", "--turns=3", "--turn_tokens=64", "--max_completion_length=400")
    found = call("veritas", "--output_dir", str(out), *small, "--curriculum_start=1", "--curriculum_end=3")
    printed = capsys.readouterr().out
    for metric in ("exact_match", "info_think_lexical", "think_answer_sub_em", "answered_forced", "calls"):
        assert metric in printed
    assert "citation_validity" not in printed and "evidence_sensitivity" not in printed
    rows = list(read_jsonl(out / "trajectories.jsonl"))
    assert len(rows) == 16 and {row.dialect for row in rows} == {"search_r1"}
    assert set(rows[0].meta["scores"]) == {"exact_match", "info_think", "think_answer"}
    history = logged(out)
    assert [row["parts/info_think/weight"] for row in history] == pytest.approx([0.0, 0.025])
    assert [row["parts/exact_match/weight"] for row in history] == [1.0, 1.0]
    assert all(0 <= row["ended/answered_forced"] <= 1 for row in history)
    for name in ("rewards.png", "tools.png", "stability.png", "model.safetensors"):
        assert (out / name).stat().st_size > 0
    metrics = json.loads((out / "metrics.json").read_text())
    assert metrics == found and metrics["steps"] == 2
    assert Evaluation.from_dict(metrics["after"]).rows["exact_match"].n == 2
    card = (out / "README.md").read_text()
    assert "accelerate launch recipes/veritas.py --output_dir" in card and "Information-think overlap of words" in card
    assert "environment.limits(total_tokens=400)" in card and "RESULT" not in card
    [made] = re.findall(r"EnvironmentArguments\((.*)\)", card)
    assert {"turns=3", "turn_tokens=64", "kept_responses=1", "dialect='search_r1'"} <= set(made.split(", "))


def logged(folder: Path) -> list[dict]:
    """The log of each step, without what a clock or a counter of one process measured."""
    rows = [row for row in json.loads((folder / "history.json").read_text()) if "reward" in row]
    clocks = ("/p50", "/p95")
    return [{key: row[key] for key in row if "time" not in key and not key.endswith(clocks)} for row in rows]


@pytest.mark.slow
def test_a_run_that_was_killed_within_the_curriculum_goes_on_as_if_nothing_had_happened(tmp_path):
    """Rollouts with their rewards, every metric, the weights of the parts and those of the policy."""
    small = [*SMALL, "--max_steps=6", "--save_steps=3", "--curriculum_start=2", "--curriculum_end=5"]
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    run("recipes/veritas.py", *small, f"--output_dir={whole}")
    command = [sys.executable, "recipes/veritas.py", *small, f"--output_dir={broken}"]
    log = broken / "trajectories.jsonl"
    with (tmp_path / "broken.txt").open("w") as said:
        started = subprocess.Popen(command, stdout=said, stderr=said, cwd=ROOT)
        while started.poll() is None and not (log.exists() and len(log.read_text().splitlines()) > 24):
            time.sleep(0.02)
        started.kill()
        assert started.wait() < 0, (tmp_path / "broken.txt").read_text()
    assert (broken / "checkpoint-3" / "trainer_state.json").is_file() and not (broken / "model.safetensors").exists()
    run("recipes/veritas.py", *small, f"--output_dir={broken}", "--resume=true")
    assert logged(broken) == logged(whole)
    weights = [row["parts/info_think/weight"] for row in logged(broken)]
    assert weights == pytest.approx([0.0, 0.0, 0.05 / 3, 0.1 / 3, 0.05, 0.05])
    rollouts, expected = (list(read_jsonl(folder / "trajectories.jsonl")) for folder in (broken, whole))
    assert rollouts == expected and len(rollouts) == 48
    ours, theirs = (load_file(folder / "model.safetensors") for folder in (broken, whole))
    assert ours.keys() == theirs.keys() and all(ours[name].equal(theirs[name]) for name in theirs)


@pytest.mark.slow
def test_a_judge_that_falls_silent_stops_the_run_with_a_checkpoint_and_one_line(tmp_path):
    with StubServer(mode="error") as server:
        judge = ["--judge=endpoint", "--judge_model=stub", f"--judge_url={server.url}", "--judge_cache=none"]
        late = ["--curriculum_start=0", "--curriculum_end=0", f"--output_dir={tmp_path}", "--max_steps=3"]
        command = [sys.executable, "recipes/veritas.py", *SMALL, *judge, *late]
        done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 1 and "Traceback" not in done.stderr
    last = done.stderr.splitlines()[-1]
    assert last.startswith("error: at step 1 ") and "info_think" in last and "max_abstained=0.5" in last
    assert (tmp_path / "checkpoint-1").is_dir() and len(list(read_jsonl(tmp_path / "trajectories.jsonl"))) == 8


@pytest.mark.slow
def test_pokees_rollouts_have_answers_that_are_checked(tmp_path):
    tiny = build_tiny(tmp_path / "tiny", TinyConfig(dialect="pokee", start="pou"))
    small = [*SHORT, "--num_generations=2", "--per_device_train_batch_size=4", "--max_completion_length=400"]
    found = pokee.main([f"--model_name_or_path={tiny}", f"--output_dir={tmp_path / 'out'}", *small, "--turns=4"])
    assert found["steps"] == 2 and found["settings"]["dialect"] == "pokee"
    rollouts = list(read_jsonl(tmp_path / "out" / "trajectories.jsonl"))
    assert len(rollouts) == 8 and all(row.dialect == "pokee" and set(row.meta["scores"]) for row in rollouts)


@pytest.mark.slow
def test_self_evaluation_leaves_scores_errors_and_plots(tmp_path):
    small = (*SHORT, "--eval_limit=4", "--num_generations=4", "--per_device_train_batch_size=8")
    config = f"--config={RECIPES / 'configs' / 'self_eval_tiny_paper.yaml'}"
    found = self_eval.main([config, f"--output_dir={tmp_path}", *small])
    assert found["steps"] == 2
    assert {"self_rubric", "self_correctness", "world_rubric"} <= set(found["after"]["rows"])
    history = json.loads((tmp_path / "history.json").read_text())
    parts = {"parts/self_rubric", "parts/world_rubric", "parts/self_rubric/abstained"}
    assert all(parts <= set(row) for row in history[:2])
    assert any("self_gap" in row for row in history) == (tmp_path / "self_preference.png").exists()
    assert set(json.loads((tmp_path / "errors.json").read_text())) == {"before", "after"}


@pytest.mark.slow
def test_a_stopped_ppo_run_goes_on_with_its_value_and_leaves_the_policy_alone(tmp_path):
    small = [*SMALL, "--save_steps=2", "--turns=2", f"--output_dir={tmp_path}", "--bf16=false"]
    ppo.main([*small, "--max_steps", "2"])
    with safe_open(tmp_path / "checkpoint-2" / "model.safetensors", "pt") as saved:
        assert "value.out.weight" in set(saved.keys())
    ppo.main([*small, "--max_steps", "4", "--resume", "true"])
    with safe_open(tmp_path / "model.safetensors", "pt") as saved:
        assert not [name for name in set(saved.keys()) if "value" in name]
    history = json.loads((tmp_path / "history.json").read_text())
    assert [row["step"] for row in history if "value/loss" in row] == [1, 2, 3, 4]
    assert (tmp_path / "stability.png").exists()


@pytest.mark.slow
def test_proof_of_use_has_ppo_too(tmp_path):
    """Its probes and their term beside the value; settings of PPO are told of such runs alone."""
    told = {}
    for name in ("ppo", "trl"):
        out = str(tmp_path / name)
        told[name] = pou.main([*SMALL, "--max_steps=2", "--advantages", name, "--output_dir", out])["settings"]
        rows = [row for row in json.loads((tmp_path / name / "history.json").read_text()) if "loss" in row]
        assert len(rows) == 2 and all(("value/loss" in row) == (name == "ppo") for row in rows)
        assert all("verdict_term" in row for row in rows)
    assert told["ppo"].keys() - told["trl"].keys() == set(PPOSettings.__dataclass_fields__)
