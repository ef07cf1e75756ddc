"""Each recipe, two steps long, as a user would start it; and every configuration's keys."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import GRPOConfig, ModelConfig, SFTConfig

from faithful_search.bundled import tiny_policy
from faithful_search.errors import ConfigError
from faithful_search.evaluation.suite import Evaluation
from faithful_search.training.config import parse_recipe, read_config
from faithful_search.trajectory import read_jsonl

ROOT = Path(__file__).parent.parent
RECIPES = ROOT / "recipes"
CONFIGS = sorted((RECIPES / "configs").glob("*.yaml"))


@pytest.fixture(autouse=True)
def recipes_importable(monkeypatch):
    monkeypatch.syspath_prepend(str(RECIPES))


def run(*command: str) -> str:
    done = subprocess.run([sys.executable, *command], capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_every_configuration_is_accepted(path):
    import pou
    import sft

    types = (sft.ExpertArguments, SFTConfig) if path.stem.startswith("sft") else (pou.PoUArguments, GRPOConfig)
    flags = ["--config", str(path), "--questions", "world", "--bf16", "false", "--use_cpu", "true"]
    script, args, model_args = parse_recipe((*types, ModelConfig), flags)
    given = {key: value for key, value in read_config(path).items() if isinstance(value, (str, int))}
    for key in given.keys() - {"questions", "bf16", "use_cpu", "report_to"}:
        holder = next(item for item in (script, args, model_args) if hasattr(item, key))
        found = getattr(holder, key)
        assert str(getattr(found, "value", found)) == str(given[key]), key


@pytest.mark.parametrize(
    ("name", "parts", "budget", "fixed"),
    [
        ("pou_tiny", ["citation", "evidence_sensitivity", "answer"], 1, None),
        ("pou_tiny_b2", ["citation", "evidence_sensitivity", "answer"], 2, None),
        ("pou_tiny_no_pt", ["citation", "answer"], None, None),
        ("pou_tiny_no_ans", ["citation", "evidence_sensitivity", "answer"], 1, 0.0),
        ("pou_tiny_static_mix", ["citation", "evidence_sensitivity", "answer"], 1, 0.5),
        ("pou_tiny_answer_only", ["correctness"], None, None),
    ],
)
def test_each_ablation_changes_what_it_says(name, parts, budget, fixed):
    import pou

    script, _, _ = pou.parse(["--config", str(RECIPES / "configs" / f"{name}.yaml")])
    mix = pou.build_reward(script)
    assert list(mix.parts) == parts
    if budget:
        assert mix.parts["evidence_sensitivity"].budget == budget
    if "answer" in mix.parts:
        assert mix.parts["answer"].fixed == fixed


def test_settings_extend_each_other_and_flags_win(tmp_path):
    (tmp_path / "base.yaml").write_text("learning_rate: 1.0e-3\nmax_steps: 7\n")
    (tmp_path / "own.yaml").write_text("extends: base.yaml\nmax_steps: 9\n")
    flags = ["--config", str(tmp_path / "own.yaml"), "--use_cpu", "true", "--bf16", "false"]
    (args,) = parse_recipe((GRPOConfig,), flags)
    assert (args.learning_rate, args.max_steps) == (1e-3, 9)
    (args,) = parse_recipe((GRPOConfig,), [*flags, "--max_steps", "11"])
    assert args.max_steps == 11


def test_wrong_settings_are_named(tmp_path):
    path = tmp_path / "bad.yaml"
    path.write_text("no_such_setting: 1\n")
    with pytest.raises(ConfigError, match="no_such_setting"):
        parse_recipe((GRPOConfig,), ["--config", str(path)])
    path.write_text("- a list\n")
    with pytest.raises(ConfigError, match="mapping"):
        parse_recipe((GRPOConfig,), ["--config", str(path)])
    with pytest.raises(ConfigError, match="cannot read"):
        parse_recipe((GRPOConfig,), ["--config", str(tmp_path / "missing.yaml")])


def test_pou_leaves_what_it_promises(tmp_path):
    out = tmp_path / "pou"
    flags = (
        "--max_steps",
        "2",
        "--save_steps",
        "2",
        "--eval_limit",
        "6",
        "--per_device_train_batch_size",
        "8",
        "--threads",
        "1",
    )
    printed = run("recipes/pou.py", "--output_dir", str(out), *flags)
    for metric in (
        "exact_match",
        "f1",
        "valid_format",
        "citation_validity",
        "evidence_sensitivity",
        "calls",
        "tool_entropy",
    ):
        assert metric in printed
    for name in ("README.md", "rewards.png", "tools.png", "trajectories.jsonl", "metrics.json", "model.safetensors"):
        assert (out / name).stat().st_size > 0
    rows = list(read_jsonl(out / "trajectories.jsonl"))
    assert len(rows) == 16
    assert {"format", "citation", "evidence_sensitivity", "answer_support", "correctness"} <= set(
        rows[0].meta["scores"]
    )
    metrics = json.loads((out / "metrics.json").read_text())
    for when in ("before", "after"):
        estimate = Evaluation.from_dict(metrics[when]).rows["exact_match"]
        assert estimate.n == 6
        assert estimate.low <= estimate.value <= estimate.high
    before = AutoModelForCausalLM.from_pretrained(tiny_policy()).float().state_dict()
    after = AutoModelForCausalLM.from_pretrained(out).state_dict()
    assert any((before[name] != after[name]).any() for name in before)
    assert AutoTokenizer.from_pretrained(out).chat_template
    resumed = run(
        "recipes/pou.py", "--output_dir", str(out), *flags, "--max_steps", "3", "--resume", "true", "--eval_limit", "0"
    )
    assert "step    3/3" in resumed
    assert len(list(read_jsonl(out / "trajectories.jsonl"))) == 24


def test_sft_makes_a_policy_from_nothing(tmp_path):
    out = tmp_path / "sft"
    tiny = json.dumps({"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2})
    printed = run(
        "recipes/sft.py",
        "--output_dir",
        str(out),
        "--episodes",
        "60",
        "--swaps_per_episode",
        "1",
        "--max_steps",
        "2",
        "--per_device_train_batch_size",
        "4",
        "--tiny",
        tiny,
        "--save_strategy",
        "no",
        "--bf16",
        "false",
        "--threads",
        "1",
    )
    assert "episodes kept" in printed
    assert len(list(read_jsonl(out / "episodes.jsonl"))) == 60
    assert AutoModelForCausalLM.from_pretrained(out).config.hidden_size == 32
    assert AutoTokenizer.from_pretrained(out).chat_template


def test_evaluate_compares_two_policies_and_blanks_tools(tmp_path):
    flags = ("--limit", "4", "--turns", "4", "--turn_tokens", "64", "--threads", "1")
    printed = run(
        "recipes/evaluate.py", "--compare_with", str(tiny_policy()), "--output_dir", str(tmp_path / "two"), *flags
    )
    assert "paired difference" in printed
    run("recipes/evaluate.py", "--blank", "nothing here", "--output_dir", str(tmp_path / "blank"), *flags)
    rows = list(read_jsonl(tmp_path / "blank" / "trajectories.jsonl"))
    texts = {item.text for row in rows for step in row.steps for item in step.evidence}
    assert texts == {"nothing here"}


@pytest.mark.slow
def test_two_processes_share_one_alpha_and_one_log(tmp_path):
    out = tmp_path / "two"
    flags = ("--max_steps", "2", "--eval_limit", "5", "--per_device_train_batch_size", "8", "--threads", "1")
    launch = ("-m", "torch.distributed.run", "--nproc_per_node", "2", "recipes/pou.py", "--save_steps", "2")
    printed = run(*launch, "--output_dir", str(out), *flags)
    assert "paired difference" in printed
    rows = list(read_jsonl(out / "trajectories.jsonl"))
    assert len(rows) == len({row.id for row in rows}) == 2 * 16
    for step in (0, 1):
        assert len({row.meta["alpha"] for row in rows if row.meta["step"] == step}) == 1
