"""PPO's recipe: its settings, what the papers published, and two updates of it that are resumed."""

from __future__ import annotations

import json

import ppo
import pytest
from paths import RECIPES
from safetensors import safe_open

from faithful_search.errors import ConfigError


def test_the_embedded_default_asks_each_question_once():
    script, args, _ = ppo.parse([])
    assert (args.num_generations, args.num_iterations, args.per_device_train_batch_size) == (1, 2, 32)
    assert script.ppo.lam == 0.95 and args.beta == 0.0 and not script.ppo.value_trunk
    assert ppo.build_reward(script, args).weights == {"exact_match": 1.0, "info_think": 0.05, "think_answer": 0.02}


def test_the_papers_setting():
    config = str(RECIPES / "configs" / "ppo_qwen2.5-7b.yaml")
    flags = ["--bf16", "false", "--use_cpu", "true", "--questions", "world", "--eval_questions", "world"]
    script, args, _ = ppo.parse(["--config", config, *flags])
    assert (args.learning_rate, script.ppo.value_learning_rate, args.beta, args.epsilon) == (1e-6, 1e-5, 0.001, 0.2)
    assert (script.ppo.gamma, script.ppo.lam, script.ppo.kl_in_reward, script.ppo.value_trunk) == (1.0, 1.0, True, True)
    assert (args.num_generations, 32 * args.per_device_train_batch_size) == (1, 256)


def test_what_rewards_nothing_is_refused_as_in_veritas():
    with pytest.raises(ConfigError, match="one must be more"):
        ppo.parse(["--w_exact_match", "0", "--w_info_think", "0", "--w_think_answer", "0"])


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
