"""VERITAS's recipe: its flags and the reward they make, its evaluations and their names, two steps of it."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import pytest
import veritas
from paths import RECIPES, ROOT
from recipe_runs import call, run
from safetensors.torch import load_file
from stub_server import StubServer

from faithful_search.bundled import tiny_policy
from faithful_search.errors import ConfigError, DataError
from faithful_search.judges import GroundingJudge, Verdict
from faithful_search.measure.evaluation import Evaluation
from faithful_search.measure.suite import default_rewards, evaluate_rollouts
from faithful_search.rewards import Warmup
from faithful_search.tasks import load_tasks
from faithful_search.training.policies import policy_source
from faithful_search.trajectory import Evidence, Step, ToolCall, Trajectory, read_jsonl

PARTS = ("info_think", "think_search", "think_answer")


class Nodding:
    """A judge with a model's name that upholds everything, and remembers what it was asked."""

    name = "nodding"

    def __init__(self):
        self.tasks = []

    def judge_batch(self, pairs):
        self.tasks += [pair.task for pair in pairs]
        return [Verdict(0.75, True, "", self.name) for _ in pairs]


def reward(*flags, judge=None):
    script, args, _ = veritas.parse(list(flags))
    return veritas.build_reward(script, args, judge)


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
def test_each_ablation_changes_what_it_says(config, weights, late):
    mix = reward("--config", str(RECIPES / "configs" / f"{config}.yaml"))
    assert mix.weights == weights and mix.gate is None
    assert (mix.warmup and (mix.warmup.start, mix.warmup.end)) == late
    first, last = mix.weights_at(1), mix.weights_at(40)
    assert last == weights and first["exact_match"] == 1.0
    assert all(first[name] == (0.0 if late else weights[name]) for name in set(weights) & set(PARTS))


def test_the_paper_is_a_configuration():
    path = RECIPES / "configs" / "veritas_qwen2.5-7b.yaml"
    data = ("--questions", "world", "--eval_questions", "world", "--corpus", "world")
    flags = ["--config", str(path), "--bf16", "false", "--use_cpu", "true", "--judge_url", "http://127.0.0.1:9", *data]
    script, args, model_args = veritas.parse(flags)
    assert (args.learning_rate, args.beta, args.temperature, args.num_generations) == (1e-6, 0.001, 1.0, 5)
    assert model_args.model_name_or_path == "Qwen/Qwen2.5-7B" and script.search_top_k == 3
    assert 32 * args.per_device_train_batch_size * args.gradient_accumulation_steps == 256 * args.num_generations
    limits = script.limits(args.max_completion_length)
    assert (limits.turns, limits.turn_tokens, limits.observation_tokens, limits.force_answer) == (5, 500, 500, True)
    mix = veritas.build_reward(script, args, script.load_judge())
    assert mix.weights == {"exact_match": 1.0, "info_think": 0.05, "think_answer": 0.02}
    assert mix.parts["info_think"].judge.url == "http://127.0.0.1:9" and mix.parts["think_answer"].judge is None
    questions = len(load_tasks("world")) // (args.generation_batch_size // 5)
    assert (mix.warmup.start, mix.warmup.end) == (questions, int(1.5 * questions + 0.5))


def test_epochs_and_steps_write_the_same_curriculum():
    epoch = len(load_tasks("world_pairs")) // 4
    written = reward("--curriculum_start", "1.0ep", "--curriculum_end", "1.5ep").warmup
    assert written == reward("--curriculum_start", str(epoch), "--curriculum_end", str(int(1.5 * epoch + 0.5))).warmup
    assert isinstance(written, Warmup) and written.parts == ("info_think", "think_answer")
    assert reward("--curriculum_start", "0", "--curriculum_end", "0").warmup is None


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--w_info_think", "-0.1"], "weights are 0 .* or more"),
        (["--w_info_think", "nan"], "weights are 0 .* or more"),
        (["--w_exact_match", "0", "--w_info_think", "0", "--w_think_answer", "0"], "one must be more"),
        (["--curriculum_start", "9", "--curriculum_end", "3"], "start 9 and end 3"),
        (["--curriculum_end", "soon"], "'soon' is neither a number of steps"),
        (["--corpus", "http://127.0.0.1:9"], "are mixed"),
        (["--eval_questions", "held_out.jsonl"], "are mixed"),
    ],
)
def test_what_contradicts_itself_is_refused(flags, message):
    with pytest.raises(ConfigError, match=message):
        reward(*flags)


def test_one_judge_is_asked_by_the_reward_and_by_its_metrics():
    judge = Nodding()
    mix = reward("--w_think_search", "0.1", "--soft", "true", judge=judge)
    assert mix.parts["info_think"].judge is mix.parts["think_search"].judge is judge
    assert mix.parts["info_think"].soft and not default_rewards("search_r1", judge)["info_think_faithfulness"].soft
    assert isinstance(reward().parts["info_think"].judge, GroundingJudge)


def test_tiny_is_the_dialects_own_policy():
    assert policy_source("tiny", "pou") == str(tiny_policy())
    assert policy_source("tiny", "search_r1") == str(tiny_policy("search_r1")) != str(tiny_policy())
    assert policy_source("org/model", "search_r1") == "org/model"
    with pytest.raises(DataError, match="no tiny policy writes the dialect 'research'"):
        policy_source("tiny", "research")


# --- what the evaluations report

SHOW = ["decorated", "answer_first"]
COMMON = ["exact_match", "f1", "valid_format", *SHOW]
POU = ["citation_validity", "evidence_sensitivity", "evidence_sensitivity_unseen"]
JUDGED_POU = ["answer_support", "citation_states_fact", "verdict_gap"]
JUDGED = ["info_think_faithfulness", "think_search_faithfulness", "think_answer_sub_em", "think_answer_faithfulness"]


def test_rows_say_who_judged_and_proof_of_uses_are_for_its_dialect():
    assert list(default_rewards()) == [*COMMON, *POU, "answer_support_lexical"]
    assert list(default_rewards("search_r1")) == [
        *COMMON,
        "info_think_lexical",
        "think_search_lexical",
        "think_answer_sub_em",
    ]
    judged = ["exact_match", "f1", "lm_accuracy", "valid_format", *SHOW]
    assert list(default_rewards("search_r1", Nodding())) == judged + JUDGED
    assert list(default_rewards("search_r1", GroundingJudge())) == list(default_rewards("search_r1"))
    assert list(default_rewards("pou", Nodding())) == judged + POU + JUDGED_POU + JUDGED


def looked_up(think="It lies in Paris.", answer="Paris", searched="The tower lies in Paris."):
    call = ToolCall("search", {"query": "where is the tower"})
    first = Step(think="Where is the tower?", call=call, evidence=(Evidence(searched, id="E1"),))
    last = Step(think=think, answer=answer)
    return Trajectory(
        steps=(first, last), question="Where is the tower?", answer=answer, answers=("Paris",), dialect="search_r1"
    )


ROLLOUTS = [looked_up(), looked_up(think="I like elephants."), looked_up(answer="London"), looked_up(answer="")]


@pytest.mark.parametrize("judge", [None, Nodding()])
def test_the_metric_is_the_reward_on_the_same_text(judge):
    mix = reward("--w_think_search", "0.1", judge=judge)
    found = evaluate_rollouts(ROLLOUTS, list("abcd"), default_rewards("search_r1", judge), ["search"])
    rows = {"info_think": found.values[f"info_think_{'faithfulness' if judge else 'lexical'}"]}
    rows["think_search"] = found.values[f"think_search_{'faithfulness' if judge else 'lexical'}"]
    rows |= {"think_answer": found.values["think_answer_sub_em"], "exact_match": found.values["exact_match"]}
    components = mix.components(ROLLOUTS)
    assert {name: [row[name].value for row in components] for name in rows} == rows
    assert rows["think_answer"][3] is None and "tool_entropy" not in found.rows
    if judge is None:
        assert rows["info_think"] == [1.0, 0.0, 1.0, 1.0]


def test_forced_answers_have_a_row_where_they_are_forced():
    rollouts = [
        msgspec.structs.replace(item, stop_reason=reason)
        for item, reason in zip(ROLLOUTS, ["answered", "answered_forced", "turn_limit", "answered_forced"], strict=True)
    ]
    found = evaluate_rollouts(rollouts, list("abcd"), {}, ["search"], forced=True)
    assert {name: row.value for name, row in found.rows.items()} == {
        "answered": 0.25,
        "answered_forced": 0.5,
        "calls": 1.0,
    }
    assert found.rows["answered_forced"].high < 1
    assert "answered_forced" not in evaluate_rollouts(rollouts, list("abcd"), {}, ["search"]).rows


# --- what a run leaves


def test_two_steps_of_the_recipe_leave_what_they_promise(tmp_path, capsys):
    out = tmp_path / "veritas"
    small = ("--max_steps", "2", "--save_steps", "2", "--eval_limit", "2", "--per_device_train_batch_size", "8")
    small = (*small, "--eval_controls", "0", "--turns", "3", "--turn_tokens", "64", "--max_completion_length", "400")
    schedule = ("--curriculum_start", "1", "--curriculum_end", "3", "--threads", "1")
    found = call("veritas", "--output_dir", str(out), *small, *schedule)
    printed = capsys.readouterr().out
    for metric in ("exact_match", "info_think_lexical", "think_answer_sub_em", "answered_forced", "calls"):
        assert metric in printed
    assert "citation_validity" not in printed and "evidence_sensitivity" not in printed
    rows = list(read_jsonl(out / "trajectories.jsonl"))
    assert len(rows) == 16 and {row.dialect for row in rows} == {"search_r1"}
    assert set(rows[0].meta["scores"]) == {"exact_match", "info_think", "think_answer"}
    history = [row for row in json.loads((out / "history.json").read_text()) if "reward" in row]
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
    limits = "turns=3, turn_tokens=64, total_tokens=400, observation_tokens=500, force_answer=True, kept_responses=1"
    assert f"Limits({limits})" in card and "RESULT" not in card
    assert 'LocalSearch.from_corpus("world", top_k=3, name="search")' in card


def logged(folder: Path) -> list[dict]:
    """The log of each step, without what a clock or a counter of one process measured."""
    rows = [row for row in json.loads((folder / "history.json").read_text()) if "reward" in row]
    return [
        {key: value for key, value in row.items() if "time" not in key and not key.endswith(("/p50", "/p95"))}
        for row in rows
    ]


@pytest.mark.slow
def test_a_run_that_was_killed_within_the_curriculum_goes_on_as_if_nothing_had_happened(tmp_path):
    """Rollouts with their rewards, every metric, the weights of the parts and those of the policy."""
    small = ["--max_steps=6", "--save_steps=3", "--eval_limit=0", "--per_device_train_batch_size=8", "--threads=1"]
    small += ["--curriculum_start=2", "--curriculum_end=5"]
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
    small = ["--max_steps=3", "--eval_limit=0", "--per_device_train_batch_size=8", "--threads=1"]
    with StubServer(mode="error") as server:
        judge = ["--judge=endpoint", "--judge_model=stub", f"--judge_url={server.url}", "--judge_cache=none"]
        late = ["--curriculum_start=0", "--curriculum_end=0", f"--output_dir={tmp_path}"]
        command = [sys.executable, "recipes/veritas.py", *small, *judge, *late]
        done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 1 and "Traceback" not in done.stderr
    last = done.stderr.splitlines()[-1]
    assert last.startswith("error: at step 1 ") and "info_think" in last and "max_abstained=0.5" in last
    assert (tmp_path / "checkpoint-1").is_dir() and len(list(read_jsonl(tmp_path / "trajectories.jsonl"))) == 8
