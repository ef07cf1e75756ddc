"""recipes/self_eval.py: its configurations, what it refuses, its dry run, and a short run from beginning to end."""

from __future__ import annotations

import json

import pytest
import self_eval
import sft
from paths import RECIPES

from faithful_search.errors import ConfigError


def parsed(*flags: str):
    return self_eval.parse(list(flags))


@pytest.mark.parametrize(
    ("config", "weights"),
    [
        ("self_eval_tiny", {"correctness": 1.0, "step_format": 0.2}),
        (
            "self_eval_tiny_trajectory",
            {"correctness": 0.5, "self_rubric": 1.0, "step_format": 0.2, "world_rubric": 0.0},
        ),
        (
            "self_eval_tiny_paper",
            {"self_correctness": 0.5, "self_rubric": 1.0, "step_format": 0.2, "world_rubric": 0.0},
        ),
        ("self_eval_tiny_answer_only", {"self_correctness": 1.0, "step_format": 0.2}),
    ],
)
def test_each_configuration_rewards_what_it_says(config, weights):
    script, _, _ = parsed("--config", str(RECIPES / "configs" / f"{config}.yaml"))
    mix = self_eval.build_reward(script)
    assert mix.weights == weights and mix.gate is None and mix.outcome == next(iter(weights))
    rubric = mix.parts.get("self_rubric")
    assert rubric is None or (rubric.temperature, rubric.reply_tokens) == (0.1, 40)
    assert set(self_eval.build_metrics(script)) == {"self_rubric", "self_correctness", "world_rubric"}


def test_the_paper_is_a_configuration():
    data = ("--questions", "train.jsonl", "--eval_questions", "test.jsonl", "--corpus", "http://127.0.0.1:9")
    flags = ("--config", str(RECIPES / "configs" / "self_eval_qwen2.5-7b.yaml"), "--use_cpu", "true", "--bf16", "false")
    script, args, model_args = parsed(*flags, *data)
    assert (args.learning_rate, args.beta, args.temperature, args.num_generations) == (1e-6, 0.0, 0.7, 5)
    assert args.per_device_train_batch_size * args.gradient_accumulation_steps == 32 * 5
    assert (args.max_steps, args.max_completion_length, script.turns, script.turn_tokens) == (125, 6144, 10, 1024)
    assert model_args.load_in_4bit and not model_args.use_peft  # the adapter that learnt to score is trained on
    mix = self_eval.build_reward(script)
    assert mix.weights == {"self_correctness": 0.5, "self_rubric": 1.0, "step_format": 0.2}
    assert mix.parts["self_rubric"].temperature == mix.parts["self_correctness"].temperature == 0.1

    path = str(RECIPES / "configs" / "sft_self_eval_qwen2.5-7b.yaml")
    script, args, model_args = sft.parse(["--config", path, "--use_cpu", "true", "--bf16", "false"])
    assert model_args.load_in_4bit and model_args.use_peft
    assert (model_args.lora_r, model_args.lora_alpha, args.num_train_epochs) == (32, 32, 3)
    assert sft.chosen(script, "rubric").held_out == 500 and script.dialect == "self_eval"


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--reward", "both"], "unknown reward 'both'; there are: trajectory, answer_only"),
        (["--correctness", "judge"], "unknown correctness 'judge'; there are: self, em, f1"),
        (["--corpus", "http://127.0.0.1:9"], "are mixed"),
    ],
)
def test_what_contradicts_itself_is_refused(flags, message):
    with pytest.raises(ConfigError, match=message):
        parsed(*flags)


@pytest.mark.slow
def test_a_short_run_leaves_scores_errors_and_plots(tmp_path):
    out = tmp_path / "run"
    config = ("--config", str(RECIPES / "configs" / "self_eval_tiny_paper.yaml"), "--output_dir", str(out))
    small = ("--max_steps=2", "--eval_limit=4", "--eval_controls=0", "--num_generations=4", "--threads=1")
    found = self_eval.main([*config, *small, "--per_device_train_batch_size=8"])
    assert found["steps"] == 2
    assert {"self_rubric", "self_correctness", "world_rubric"} <= set(found["after"]["rows"])
    history = json.loads((out / "history.json").read_text())
    assert all(
        {"parts/self_rubric", "parts/world_rubric", "parts/self_rubric/abstained"} <= set(row) for row in history[:2]
    )
    assert any("self_gap" in row for row in history) == (out / "self_preference.png").exists()
    assert set(json.loads((out / "errors.json").read_text())) == {"before", "after"}


@pytest.mark.slow
def test_the_papers_settings_run_dry(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    data = ("--questions", "train.jsonl.gz", "--eval_questions", "test.jsonl.gz", "--corpus", "corpus.jsonl.gz")
    model = ("--model_name_or_path=Qwen/Qwen2.5-7B-Instruct", "--use_peft=true", "--lora_r=32", "--lora_alpha=32")
    config = ("--config", str(RECIPES / "configs" / "self_eval_qwen2.5-7b.yaml"))
    found = self_eval.main([*config, *data, *model, "--dry_run", "true", "--threads", "1"])
    assert found["steps"] == 2
    out = tmp_path / "outputs" / "self_eval_qwen2.5-7b_dry_run"
    adapter = json.loads((out / "adapter_config.json").read_text())
    assert (adapter["r"], adapter["lora_alpha"]) == (32, 32)
