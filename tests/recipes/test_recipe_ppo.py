"""PPO's recipe: its settings, what the papers published, and two updates of it that are resumed."""

from __future__ import annotations

import json

import pou
import ppo
import pytest
from paths import RECIPES
from safetensors import safe_open
from veritas import build_reward

from faithful_search.errors import ConfigError
from faithful_search.training.ppo import PPOSettings


def test_the_embedded_default_asks_each_question_once():
    script, args, _ = ppo.parse([])
    assert (args.num_generations, args.num_iterations, args.per_device_train_batch_size) == (1, 2, 32)
    assert script.lam == 0.95 and args.beta == 0.0 and not script.value_trunk
    assert build_reward(script, args).weights == {"exact_match": 1.0, "info_think": 0.05, "think_answer": 0.02}


def test_the_papers_setting():
    config = str(RECIPES / "configs" / "ppo_qwen2.5-7b.yaml")
    flags = ["--bf16", "false", "--use_cpu", "true", "--questions", "world", "--eval_questions", "world"]
    script, args, _ = ppo.parse(["--config", config, *flags])
    assert (args.learning_rate, script.value_learning_rate, args.beta, args.epsilon) == (1e-6, 1e-5, 0.001, 0.2)
    assert (script.gamma, script.lam, script.kl_in_reward, script.value_trunk) == (1.0, 1.0, True, True)
    assert (args.num_generations, 32 * args.per_device_train_batch_size) == (1, 256)


def test_one_rollout_of_a_question_needs_a_value(tmp_path):
    flags = ["--advantages", "trl", "--value_learning_rate", "1e-5", "--lam", "1"]
    with pytest.raises(ConfigError, match="compare the rollouts"):
        ppo.main([*flags, "--output_dir", str(tmp_path), "--eval_limit", "0"])


def test_a_batch_of_single_rollouts_may_be_odd_but_not_one():
    _, args, _ = ppo.parse(["--per_device_train_batch_size", "7", "--per_device_eval_batch_size", "3"])
    assert (args.num_generations, args.num_generations_eval, args.generation_batch_size) == (1, 1, 7)
    with pytest.raises(ConfigError, match="two rollouts a batch"):
        ppo.parse(["--per_device_train_batch_size", "1"])


@pytest.mark.slow
def test_a_stopped_run_goes_on_with_its_value_and_leaves_the_policy_alone(tmp_path):
    small = ["--per_device_train_batch_size", "8", "--save_steps", "2", "--turns", "2", "--threads", "1"]
    small += ["--eval_limit", "0", "--output_dir", str(tmp_path), "--bf16", "false"]
    ppo.main([*small, "--max_steps", "2"])
    with safe_open(tmp_path / "checkpoint-2" / "model.safetensors", "pt") as saved:
        assert "value.out.weight" in saved.keys()  # noqa: SIM118  (it has no other way)
    ppo.main([*small, "--max_steps", "4", "--resume", "true"])
    with safe_open(tmp_path / "model.safetensors", "pt") as saved:
        assert not [name for name in saved.keys() if "value" in name]  # noqa: SIM118
    history = json.loads((tmp_path / "history.json").read_text())
    assert [row["step"] for row in history if "value/loss" in row] == [1, 2, 3, 4]
    assert (tmp_path / "stability.png").exists()


@pytest.mark.slow
def test_proof_of_use_has_ppo_too(tmp_path):
    """Its probes and their term beside the value; settings of PPO are told of such runs alone."""
    small = ["--per_device_train_batch_size", "8", "--max_steps", "2", "--eval_limit", "0", "--threads", "1"]
    told = {}
    for name in ("ppo", "trl"):
        out = str(tmp_path / name)
        told[name] = pou.main([*small, "--advantages", name, "--output_dir", out])["settings"]
        rows = [row for row in json.loads((tmp_path / name / "history.json").read_text()) if "loss" in row]
        assert len(rows) == 2 and all(("value/loss" in row) == (name == "ppo") for row in rows)
        assert all("verdict_term" in row for row in rows)
    assert told["ppo"].keys() - told["trl"].keys() == set(PPOSettings.__dataclass_fields__)
